"""The embedded model: the world tells the truth, training sees what a search runs, and the shipped weights do their
job."""
import random

import pytest
import torch

from data import EMBEDDED, read_jsonl
from llama import Cache
from pecan import Pecan, length_of, question_prompt
from support.sbert import TokenMean
from support.settings import resolve
from support.tokenizer import Tokenizer
from tiny.lessons import Teacher, collate
from tiny.train import Training
from tiny.world import ALL, KEPT, VALUES, ask, bullet, facts_in, make_world, summarise


@pytest.fixture(scope="module")
def teacher(tiny):
    return Teacher(tiny.tokenizer, tiny.config.eos[0])


def test_a_world_states_its_facts():
    world = make_world(random.Random(0), 10)
    assert len(world.facts) == 60 and facts_in(" ".join(world.passages)) == set(world.facts.values())
    low = summarise([fact for stated in world.stated for fact in stated], "was")
    assert {f for facts in low for f in facts} == {f for f in world.facts.values() if f.relation in KEPT["was"]}
    assert [facts_in(bullet(facts)) for facts in low] == [set(facts) for facts in low]
    for kind in (*VALUES, "hop"):
        text, answer, needed = ask(world, random.Random(1), kind)
        assert needed[-1].value == answer and all(fact.name in text or fact.name == needed[0].value for fact in needed)


def test_no_held_out_fact_is_ever_taught(tiny, teacher):
    """Every fact of the test set is a combination of name and value that no lesson states."""
    rng, taught = random.Random(0), set()
    lessons = [make(rng) for _ in range(40) for make in (
        lambda rng: teacher.drill(rng, absent=0.3, hops=0.3), lambda rng: teacher.listing(rng, 4),
        lambda rng: teacher.summary(rng, 1), lambda rng: teacher.summary(rng, 2), lambda rng: teacher.search(rng, 400))]
    for lesson in lessons:
        text = tiny.tokenizer.decode(lesson.ids).replace("*", ".").replace("\n", ".")
        taught |= {fact for fact in facts_in(text) if fact in ALL.get((fact.name, fact.relation), [])}
    asked = {fact for document in read_jsonl(EMBEDDED) for question in document.questions
             for fact in facts_in(" ".join(question.extra["evidence"]))}
    assert len(taught) > 2000 and len(asked) > 100
    assert not any(fact.held_out for fact in taught) and all(fact.held_out for fact in asked)


def test_a_branch_is_a_probe(tiny, teacher):
    """A verdict in training is computed as in a search: node by node, with the probe taken back."""
    rng = random.Random(4)
    lesson = teacher.search(rng, 300)
    tokens, positions, mask, _, _ = collate([lesson], "cpu")
    with torch.no_grad():
        hidden, _ = tiny.forward(tokens, positions, mask)
    first = min(start for start, _, _ in lesson.branches)
    checked = 0
    for start, end, prefix in lesson.branches:
        cache = Cache(tiny, 1, 512)
        tiny.read(cache, [[(None, lesson.ids[:prefix])]])
        logits = tiny.probe(cache, lesson.ids[start:end])
        assert (logits[0] - tiny.logits(hidden[0, end - 1])).abs().max() < 1e-3
        checked += prefix < first
    assert checked


def test_training_goes_on_where_it_stopped(tmp_path):
    """Two steps, an interruption and two steps give the weights of four steps, bit for bit."""
    through, stopped = (Training(tmp_path / name, 0, 1e6) for name in ("through", "stopped"))
    for _ in range(4):
        through.step()
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
    training = Training(tmp_path, 0, 1e6)
    model, c = training.model, training.model.config
    from llama import attention, rms_norm, rope_tables, rotate
    tokens = torch.randint(5, c.vocab, (1, 60), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        x = rms_norm(model.weights["model.embed_tokens.weight"][tokens], 1.0, c.norm_eps)
        cos, sin = rope_tables(torch.arange(60)[None], model.inv_freq, x.dtype)
        q, k = (rotate((x @ model.weights[f"model.layers.0.self_attn.{n}_proj.weight"].T).view(1, 60, -1, c.head_width)
                       .transpose(1, 2), cos, sin) for n in "qk")
        _, weights = attention(q.view(1, c.kv_heads, -1, 60, c.head_width), k, k, torch.ones(1, 60, 60).tril().bool())
    for h, head in enumerate(weights[0].flatten(0, 1)):
        back = [head.diagonal(-distance)[10:].mean().item() for distance in range(20)]
        assert max(back) == back[h + 1] > 0.3, (h, back)


def test_the_shipped_tokenizer_knows_the_world(tiny):
    document = read_jsonl(EMBEDDED, limit=1)[0]
    t: Tokenizer = tiny.tokenizer
    for text in [*document.passages, *(q.text for q in document.questions)]:
        assert t.decode(t.encode(text)) == text
    assert length_of(question_prompt(t, "What is Mara's pet?")) < 60


def test_the_shipped_model_does_its_job(tiny):
    """On six held-out documents, verdicts right in 85 % of the checks and an F1 of 50. (On all thirty it is 74, which
    python eval.py measures; 36 questions scatter by 8 points, and processors round differently.)"""
    method = Pecan(tiny, TokenMean(tiny), resolve(tiny.folder, tiny.config.max_length))
    right, verdicts = [], []
    for document in read_jsonl(EMBEDDED, limit=6):
        prepared = method.prepare(document)
        for question in document.questions:
            answer, seen = method.answer(prepared, question.text), set()
            right.append(answer.text == question.answers[0])
            needed = facts_in(" ".join(question.extra["evidence"]))
            for step in answer.trace:
                seen |= facts_in(prepared.graph.nodes[step.node].text)
                verdicts += [(needed <= seen) == (step.verdict == "Yes")] if step.verdict else []
    assert sum(right) / len(right) >= 0.5 and sum(verdicts) / len(verdicts) >= 0.85
