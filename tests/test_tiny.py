"""The embedded model: its world is consistent, training sees what a search runs, the shipped weights do their job."""
import random

import pytest
import torch

from data import EMBEDDED, read_jsonl
from llama import Cache, attention, length_of, rms_norm, rope_tables, rotate, split_heads
from pecan import Pecan, question_prompt
from support.sbert import TokenMean
from tiny.lesson import collate
from tiny.lessons import Teacher
from tiny.train import Training
from tiny.world import ALL, KEPT, VALUES, ask, bullet, facts_in, make_world, summarise


@pytest.fixture(scope="module")
def teacher(tiny):
    return Teacher(tiny.tokenizer, tiny.config.eos[0])


def test_a_world_states_its_facts():
    world = make_world(random.Random(0), 10)
    assert len(world.facts) == 60 and facts_in(" ".join(world.passages)) == set(world.facts.values())

    # Summaries of the first level keep three relations of each person.
    low = summarise([fact for stated in world.stated for fact in stated], "was")
    assert {f for facts in low for f in facts} == {f for f in world.facts.values() if f.relation in KEPT["was"]}
    assert [facts_in(bullet(facts)) for facts in low] == [set(facts) for facts in low]

    # Every question states the facts that its answer needs.
    for kind in (*VALUES, "hop"):
        text, answer, needed = ask(world, random.Random(1), kind)
        assert needed[-1].value == answer and all(fact.name in text or fact.name == needed[0].value for fact in needed)


def test_no_held_out_fact_is_ever_taught(tiny, teacher):
    """Every fact of the test set is a combination of name and value that no lesson states."""
    rng = random.Random(0)
    lessons = [make(rng) for _ in range(40) for make in (
        lambda rng: teacher.drill(rng, absent=0.3, hops=0.3), lambda rng: teacher.listing(rng, 4),
        lambda rng: teacher.summary(rng, 1), lambda rng: teacher.summary(rng, 2), lambda rng: teacher.search(rng, 400))]
    taught = set()
    for lesson in lessons:
        text = tiny.tokenizer.decode(lesson.ids).replace("*", ".").replace("\n", ".")
        taught |= {fact for fact in facts_in(text) if fact in ALL.get((fact.name, fact.relation), [])}

    asked = {fact for document in read_jsonl(EMBEDDED) for question in document.questions
             for fact in facts_in(" ".join(question.extra["evidence"]))}
    assert len(taught) > 2000 and len(asked) > 100
    assert not any(fact.held_out for fact in taught) and all(fact.held_out for fact in asked)


def test_a_branch_is_a_probe(tiny, teacher):
    """A verdict in training is computed as in a search: node by node, with the probe rolled back."""
    rng = random.Random(4)
    lesson = teacher.search(rng, 300)
    tokens, positions, mask, _, _ = collate([lesson], "cpu")
    with torch.no_grad():
        hidden, _ = tiny.forward(tokens, positions, mask)

    first = min(start for start, _, _ in lesson.branches)
    checked = 0
    for start, end, prefix in lesson.branches:
        read, _ = tiny.read(Cache(tiny, 1, 512), [[(None, lesson.ids[:prefix])]], probe=lesson.ids[start:end])
        assert (tiny.logits(read[0]) - tiny.logits(hidden[0, end - 1])).abs().max() < 1e-3
        checked += prefix < first
    assert checked


@pytest.mark.slow
def test_training_resumes_where_it_stopped(tmp_path):
    """Two steps, an interruption and two steps give the weights of four steps, bit by bit."""
    through = Training(tmp_path / "through", 0, 1e6)
    for _ in range(4):
        through.step()

    stopped = Training(tmp_path / "stopped", 0, 1e6)
    for _ in range(2):
        stopped.step()
    stopped.save()

    resumed = Training(tmp_path / "stopped", 0, 1e6)
    assert resumed.at["step"] == 2
    for _ in range(2):
        resumed.step()

    assert resumed.at == through.at and resumed.right == through.right
    for name, weight in through.weights.items():
        assert torch.equal(weight, resumed.weights[name]), name


def test_the_structured_start_looks_back(tmp_path):
    """Before any training, head h of the first layer attends most to the token h + 1 back, whatever the tokens are."""
    model = Training(tmp_path, 0, 1e6).model
    c = model.config
    tokens = torch.randint(5, c.vocab, (1, 60), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        x = rms_norm(model.weights["model.embed_tokens.weight"][tokens], 1.0, c.norm_eps)
        cos, sin = rope_tables(torch.arange(60)[None], model.inv_freq, x.dtype)
        q, k = (rotate(split_heads(x @ model.weights[f"model.layers.0.self_attn.{name}_proj.weight"].T, c.head_width),
                       cos, sin) for name in "qk")
        mask = torch.ones(1, 60, 60).tril().bool()
        _, weights = attention(q.view(1, c.kv_heads, -1, 60, c.head_width), k, k, mask)

    for h, head in enumerate(weights[0].flatten(0, 1)):
        back = [head.diagonal(-distance)[10:].mean().item() for distance in range(20)]
        assert max(back) == back[h + 1] > 0.3, (h, back)


def test_the_shipped_tokenizer_knows_the_world(tiny):
    document = read_jsonl(EMBEDDED, limit=1)[0]
    t = tiny.tokenizer
    for text in [*document.passages, *(q.text for q in document.questions)]:
        assert t.decode(t.encode(text)) == text
    assert length_of(question_prompt(t, "What is Mara's pet?")) < 60


@pytest.mark.slow
def test_the_shipped_model_does_its_job(tiny, settings):
    """On six held-out documents half of the answers are right, and 85 % of the verdicts.

    (On all thirty documents F1 is 74, which python eval.py measures. 36 questions scatter by 8 points, and processors
    round differently.)
    """
    method = Pecan(tiny, TokenMean(tiny), settings)
    right = []                                                # of each answer
    verdicts = []                                             # of each check: whether its verdict was right
    for document in read_jsonl(EMBEDDED, limit=6):
        prepared = method.prepare(document)
        for question in document.questions:
            answer = method.answer(prepared, question.text)
            right.append(answer.text == question.answers[0])

            needed = facts_in(" ".join(question.extra["evidence"]))
            read = set()
            for step in answer.trace:
                read |= facts_in(prepared.graph.nodes[step.node].text)
                if step.verdict:
                    verdicts.append((needed <= read) == (step.verdict == "Yes"))

    assert sum(right) / len(right) >= 0.5 and sum(verdicts) / len(verdicts) >= 0.85
