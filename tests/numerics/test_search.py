"""Ring 7, stage 2 with the embedded model.

Every number that a search reports is computed again from Hugging Face's attention. (Random graphs, random attention and
every setting: test_algorithm.py.)
"""
from dataclasses import replace
from itertools import accumulate

import pytest
import torch
from naive import scores as naive_scores
from oracle import ids_and_spans, mean_attention, rounding, token_ids

import pecan
from baselines.whole import Whole, cut_middle
from core.files import InputError
from data import Document
from llama import flops_of
from pecan import Graph, Node, Search, length_of, node_line


def search(tiny, graph, question, cosines, settings, **changes) -> Search:
    """A search that has run, with these settings changed."""
    s = Search(tiny, graph, question, cosines(question), replace(settings, **changes))
    s.run()
    return s


def nodes_prompt(t, graph, question, nodes):
    """The prompt of a search that has read these nodes."""
    segments = pecan.question_prompt(t, question)
    for i in nodes:
        segments += node_line(t, i, graph.nodes[i].text)
    return segments


def greedy(hf, prompt, settings):
    """Hugging Face's answer to a prompt, as ids."""
    ids = hf.generate(torch.tensor([prompt]), max_new_tokens=settings.answer_tokens, do_sample=False, pad_token_id=0)
    return ids[0, len(prompt):].tolist()


# --- against Hugging Face -------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def searched(tiny, tiny_hf, graph, question, similarity, settings):
    """A search with a high threshold; the ids that it read; the span of each node in them; and r of each node, which is
    its position times the mean of Hugging Face's attention from its tokens to those of the question."""
    s = search(tiny, graph, question, similarity, settings, confidence=.999)
    assert s.visited[:len(graph.top_level)] == graph.top_level and len(s.visited) > len(graph.top_level) + 3
    ids, spans = ids_and_spans(nodes_prompt(tiny.tokenizer, graph, question, s.visited))
    a = mean_attention(tiny_hf, ids)
    r = {node: position * a[spans[node].start:spans[node].stop, spans["q"].start:spans["q"].stop].mean().item()
         for position, node in enumerate(s.visited, 2)}
    return s, ids, spans, r


def test_r_follows_from_hugging_faces_attention(tiny, searched):
    """The cache holds the query and the nodes, and no probe."""
    s, ids, spans, r = searched
    assert s.cache.lengths == [len(ids)]
    for position, step in enumerate(s.trace, 2):
        assert step.r == pytest.approx(r[step.node], rel=rounding(tiny))
        assert (step.position, step.cached) == (position, spans[step.node].stop)
        assert step.to_query * position == step.r == s.r[step.node]


def test_each_choice_follows_from_equation_1(tiny, graph, question, similarity, searched):
    """z, final score and the ten best candidates follow from Hugging Face's r of the nodes read before, in loops."""
    s, _, spans, r = searched
    V = range(len(graph.nodes))
    E = graph.E.to_dense().numpy()
    c = similarity(question).tolist()
    end = s.room + s.cache.lengths[0]                                             # nodes fill the cache up to here
    for n, step in enumerate(s.trace[len(graph.top_level):], len(graph.top_level)):
        before = s.visited[:n]
        z, final = naive_scores(E, [r[i] if i in before else 0.0 for i in V], c)
        used = spans[before[-1]].stop
        fit = [i for i in V if i not in before
               and used + length_of(node_line(tiny.tokenizer, i, graph.nodes[i].text)) <= end]
        best = sorted(fit, key=lambda i: -final[i])[:10]
        assert [i for i, _, _ in step.candidates] == best and step.node == best[0]
        for i, z_i, score in [(step.node, step.z, step.score), *step.candidates]:
            assert (z_i, score) == pytest.approx((z[i], final[i]), rel=rounding(tiny))
        assert step.c == pytest.approx(c[step.node])


def test_p_yes_follows_from_hugging_faces_logits(tiny, tiny_hf, searched):
    """The question, the nodes so far and the end of the turn are one prompt. p_yes is the softmax of two logits behind
    it, so it errs by at most a quarter of the error of their difference."""
    s, ids, spans, _ = searched
    t = tiny.tokenizer
    for step in [step for step in s.trace if step.p_yes is not None]:
        with torch.no_grad():
            logits = tiny_hf(torch.tensor([ids[:spans[step.node].stop] + t.frame.close])).logits[0, -1]
        p = logits[[t.encode("Yes")[0], t.encode("No")[0]]].softmax(0)[0].item()
        assert step.p_yes == pytest.approx(p, abs=rounding(tiny) * logits.abs().max().item() / 2)
        assert step.verdict == ("Yes" if p > .999 else "No")


def test_the_answer_is_what_hugging_face_generates(tiny, tiny_hf, graph, question, similarity, settings):
    """A search in one cache gives Hugging Face's answer to one prompt, and counts exactly the tokens that were run."""
    t = tiny.tokenizer
    answer = Search(tiny, graph, question, similarity(question), settings).answer()
    prompt = token_ids(nodes_prompt(t, graph, question, answer.nodes)
                       + pecan.answer_turn(t, t.first(answer.trace[-1].verdict)))
    words = [i for i in greedy(tiny_hf, prompt, settings) if i not in tiny.config.eos]
    assert answer.text == t.decode(words).strip()

    probes = sum(step.p_yes is not None for step in answer.trace)
    assert answer.tokens == len(prompt) + probes * len(t.frame.close) + len(words)


def test_the_whole_document_in_one_pass(tiny, tiny_hf, document, question, settings):
    """The baseline's prompt is Table A2's with all passages as nodes, cut in the middle; its answer is Hugging
    Face's."""
    t = tiny.tokenizer
    method = Whole(tiny, settings)
    prepared = method.prepare(document)
    assert prepared.index == [i for passage in document.passages for i in token_ids(node_line(t, None, passage))]
    answer = method.answer(prepared, question)
    room = pecan.room_for_nodes(t, question, settings)
    assert answer.cut and len(prepared.index) > room

    ids = cut_middle(prepared.index, room)
    half = room // 2
    assert len(ids) == room and ids[:half] == prepared.index[:half] and ids[-half:] == prepared.index[-half:]
    prompt = token_ids([*pecan.question_prompt(t, question), (None, ids), *pecan.answer_turn(t, t.first("Yes"))])
    assert len(prompt) + settings.answer_tokens == settings.window
    reply = greedy(tiny_hf, prompt, settings)
    assert answer.text == t.decode([i for i in reply if i not in tiny.config.eos]).strip()

    for n, wanted in enumerate(([0], [0, 4], [0, 1, 4], [0, 1, 3, 4], [*range(5)]), 1):
        assert cut_middle([*range(5)], n) == wanted
    assert not method.answer(method.prepare(Document("d", document.passages[:3])), question).cut
    with pytest.raises(InputError, match="too small: prompts, question and answer"):
        method.answer(prepared, "Who " * 500)


# --- when a search ends ---------------------------------------------------------------------------------------------

def test_patience_and_confidence(tiny, graph, question, similarity, settings):
    """The t_n-th Yes ends a search; a threshold of 0 says Yes to everything, from the top level on."""
    top = len(graph.top_level)
    for patience in (1, 2, 4):
        s = search(tiny, graph, question, similarity, settings, confidence=0.0, patience=patience)
        assert len(s.visited) == top + patience - 1
        assert [step.verdict for step in s.trace[top - 1:]] == ["Yes"] * patience
        assert all(step.p_yes is None for step in s.trace[:top - 1]), "the first check comes after the top level"


def test_the_window_keeps_room_for_the_answer(tiny, graph, question, similarity, settings):
    """Reading ends when nothing fits; a smaller node is tried if the best does not fit."""
    s = Search(tiny, graph, question, similarity(question), replace(settings, confidence=0.9999999))
    s.check = lambda: False                                   # never satisfied: everything that fits is read
    end = s.run()
    left = s.room
    unread = [i for i in range(len(graph.nodes)) if i not in s.visited]
    assert unread and end == "window", "the document must not fit the window"
    assert left >= 0 and all(length_of(s.lines[i]) > left for i in unread)
    assert len(set(s.visited)) == len(s.visited)

    turn = length_of(pecan.answer_turn(tiny.tokenizer, tiny.tokenizer.first("No")))
    assert s.cache.lengths[0] + turn + settings.answer_tokens <= settings.window


def test_the_fixed_number_of_nodes(tiny, graph, question, similarity, settings):
    """Without dynamic progress control there are no checks. At most number / levels nodes of the top level start."""
    s = search(tiny, graph, question, similarity, settings, fixed_nodes=9)
    assert len(s.visited) == 9 and all(step.verdict is None for step in s.trace)

    started = [step.node for step in s.trace if step.score is None]
    c = similarity(question)
    assert started == sorted(sorted(graph.top_level, key=lambda i: -c[i])[:9 // 3])

    many = search(tiny, graph, question, similarity, settings, fixed_nodes=3 * len(graph.top_level))
    assert many.visited[:len(graph.top_level)] == graph.top_level


@pytest.mark.parametrize("verdict, changes", [("Yes", {"confidence": 0.0}), ("No", {"confidence": .9999999}),
                                              ("Yes", {"fixed_nodes": 9})])
def test_the_last_verdict_stays_in_the_conversation(tiny, graph, question, similarity, settings, spy, verdict, changes):
    """The answer follows a "No" if the last check said so, else a "Yes", also without any check."""
    turns = spy("answer_turn", pecan)
    Search(tiny, graph, question, similarity(question), replace(settings, **changes)).answer()
    (_, first), _ = turns[-1]
    assert first == tiny.tokenizer.first(verdict)


# --- what is read ---------------------------------------------------------------------------------------------------

def test_the_room_that_a_large_top_level_leaves_to_the_token(tiny, question, settings):
    """If the top level does not fit, exactly five chunks stay free, or half of the room if that is less. A top level
    that just fits is read whole."""
    def visited(lengths, chunk):
        texts = ["road " * (length - 2) for length in lengths]                 # a line has two more tokens, "\n*"
        graph = Graph([Node(1, text.strip()) for text in texts], [])
        s = Search(tiny, graph, question, torch.tensor([.9, .1]), replace(settings, chunk=chunk))
        assert [length_of(line) for line in s.lines] == lengths
        s.start()
        return s.visited

    room = pecan.room_for_nodes(tiny.tokenizer, question, settings)
    for chunk, free in ((20, 100), (9999, room // 2)):
        kept = room - free
        assert visited([kept, free], chunk) == [0, 1], "all of it fits"
        assert visited([kept, free + 1], chunk) == [0], "the most similar node fits what is kept"
        assert visited([kept + 1, free], chunk) == [1], "it is one token too long"


def test_a_question_that_leaves_no_room(tiny, graph, similarity, settings):
    used = settings.window - pecan.room_for_nodes(tiny.tokenizer, "Who", settings)
    for question, window in (("Who " * 500, settings.window), ("Who", used)):
        with pytest.raises(InputError, match="too small: prompts, question and answer"):
            Search(tiny, graph, question, similarity("Who"), replace(settings, window=window))


# --- what it costs --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("most", [512, 20])
def test_passes_flops_and_tokens_of_a_search(tiny, graph, question, similarity, settings, monkeypatch, most):
    """There is one pass for the question, each group of the top level, each later node, the answer's turn and each word
    of the answer but the last. A check has no pass of its own: it ends another. All passes, and the output matrix for
    each check and each chosen word, are the cost. (test_flops.py: what a pass costs.)"""
    monkeypatch.setattr(pecan, "PASS", most)
    passes = []                                               # (ids, tokens that were in the cache before)
    append = tiny.append

    def counted(cache, rows, averaging=None):
        passes.append((token_ids(rows[0]), cache.lengths[0]))
        return append(cache, rows, averaging)

    monkeypatch.setattr(tiny, "append", counted)
    t = tiny.tokenizer
    answer = Search(tiny, graph, question, similarity(question), replace(settings, confidence=0.9)).answer()

    # Groups of the top level have at most `most` tokens, and the next node would not have fitted.
    lines = [token_ids(node_line(t, step.node, graph.nodes[step.node].text)) for step in answer.trace]
    groups = [[]]
    pass_of = []                                              # of each step
    for step, line in zip(answer.trace, lines):
        if step.score is not None or len(groups[-1]) + len(line) > most:
            groups.append([])
        groups[-1] += line + (t.frame.close if step.p_yes is not None else [])
        pass_of.append(len(groups))
    start = len(graph.top_level)
    assert (pass_of[start - 1] > 1) == (most == 20) and len(answer.trace) > start + 2
    assert all(step.p_yes is not None for step in answer.trace[start - 1:])
    wanted = [token_ids(pecan.question_prompt(t, question)), *groups,
              token_ids(pecan.answer_turn(t, t.first(answer.trace[-1].verdict)))]
    found = [ids for ids, _ in passes]
    assert found[:len(wanted)] == wanted and all(len(word) == 1 for word in found[len(wanted):])

    # What was spent up to a step is what was spent up to the end of its pass.
    flops = [*accumulate(flops_of(tiny.config, len(ids), before + len(ids)) for ids, before in passes)]
    tokens = [*accumulate(map(len, found))]
    logits = flops_of(tiny.config, 0, 0, 1)
    checks = 0
    for step, n in zip(answer.trace, pass_of):
        checks += step.p_yes is not None
        assert (step.flops, step.tokens) == (flops[n] + checks * logits, tokens[n])

    words = len(t.encode(answer.text))
    chosen = min(words + 1, settings.answer_tokens)           # the token that ends the answer is chosen, too
    assert answer.tokens == tokens[len(wanted) - 1] + words
    assert answer.flops == flops[-1] + (checks + chosen) * logits
