"""Ring 7, stage 2 with the embedded model.

Every number that a search reports is computed again from Hugging Face's attention. (Random graphs, random attention and
every setting: test_algorithm.py.)
"""
from dataclasses import replace

import pytest
import torch
from oracle import TOLERANCE, ids_and_spans, mean_attention, token_ids
from view.watch import watching

import pecan
from baselines.whole import Whole, cut_middle
from core.files import InputError
from data import Document
from pecan import Search, length_of, node_line
from pecan import Graph, Node, edge_matrix


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

def expected_choice(graph, r, c, visited, fits):
    """z, the final scores, and the nodes that fit, best first, from equation 1 in loops."""
    V = range(len(graph.nodes))
    E = graph.E.to_dense()
    z = [sum(r[j] * E[j, i].item() for j in V) for i in V]
    positive = [max(x, 0) for x in c]
    final = [z[i] / sum(z) + positive[i] / sum(positive) for i in V]
    order = sorted((i for i in V if i not in visited and fits(i)), key=lambda i: -final[i])
    return z, final, order


def test_a_search_recomputed_from_hugging_face(tiny, tiny_hf, graph, question, similarity, settings):
    """Every r, z, final score, candidate and p_yes of a trace follows from Hugging Face's passes over the nodes."""
    s = search(tiny, graph, question, similarity, settings, confidence=0.999)     # a high threshold
    end = s.room + s.cache.lengths[0]                                             # nodes fill the cache up to here
    t = tiny.tokenizer
    top = graph.top_level
    assert s.visited[:len(top)] == top and len(s.visited) > len(top) + 3

    ids, spans = ids_and_spans(nodes_prompt(t, graph, question, s.visited))
    assert s.cache.lengths == [len(ids)], "the cache holds the query and the nodes, and no probe"
    a = mean_attention(tiny_hf, ids)
    c = similarity(question).tolist()

    r = [0.0] * len(graph.nodes)
    for position, step in enumerate(s.trace, 2):
        # The choice of the node, from the nodes read before it. (The top level is not chosen.)
        if step.score is not None:
            visited = s.visited[:position - 2]
            used = spans[visited[-1]].stop
            z, final, order = expected_choice(
                graph, r, c, visited, lambda i: used + length_of(node_line(t, i, graph.nodes[i].text)) <= end)
            assert [step.node, *(i for i, _, _ in step.candidates[1:])] == order[:10]
            assert step.c == pytest.approx(c[step.node])
            for i, z_i, score in [(step.node, step.z, step.score), *step.candidates]:
                assert (z_i, score) == pytest.approx((z[i], final[i]), rel=TOLERANCE)

        # Its relevance: position times the mean attention of its tokens to those of the question.
        x = spans[step.node]
        q = spans["q"]
        r[step.node] = position * sum(a[i, j].item() for i in x for j in q) / len(x) / len(q)
        assert step.r == pytest.approx(r[step.node], rel=TOLERANCE) and step.position == position
        assert step.attention * position == pytest.approx(step.r) and step.cached == x.stop

        # The check that followed it.
        if step.p_yes is not None:
            probe = ids[:x.stop] + t.frame.close
            with torch.no_grad():
                logits = tiny_hf(torch.tensor([probe])).logits[0, -1]
            p = logits[[t.encode("Yes")[0], t.encode("No")[0]]].softmax(0)[0].item()
            assert step.p_yes == pytest.approx(p, abs=TOLERANCE)
            assert step.verdict == ("Yes" if p > 0.999 else "No")


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


def test_the_last_verdict_stays_in_the_conversation(tiny, graph, question, similarity, settings):
    """The answer follows a "No" if the last check said so, else a "Yes", also without any check."""
    for satisfied in (True, False):
        s = Search(tiny, graph, question, similarity(question), settings)
        verdict = "Yes" if satisfied else "No"
        turns = []

        def check():
            s.trace[-1].verdict = verdict
            return satisfied

        s.check = check
        with watching(pecan, "answer_turn", lambda _, tokenizer, first: turns.append(first)):
            s.answer()
        assert turns == [tiny.tokenizer.first(verdict)]

    with watching(pecan, "answer_turn", lambda _, tokenizer, first: turns.append(first)):
        Search(tiny, graph, question, similarity(question), replace(settings, fixed_nodes=9)).answer()
    assert turns[-1:] == [tiny.tokenizer.first("Yes")]


# --- what is read ---------------------------------------------------------------------------------------------------

def test_the_room_that_a_large_top_level_leaves_to_the_token(tiny, question, settings):
    """If the top level does not fit, exactly five chunks stay free, or half of the room if that is less. A top level
    that just fits is read whole."""
    def visited(lengths, chunk):
        texts = ["road " * (length - 2) for length in lengths]                 # a line has two more tokens, "\n*"
        graph = Graph([Node(1, text.strip()) for text in texts], edge_matrix([], len(texts)), "", "", {})
        s = Search(tiny, graph, question, torch.tensor([.9, .1]), replace(settings, chunk=chunk))
        assert [length_of(line) for line in s.lines] == lengths
        s.start()
        return s.visited

    s = Search(tiny, Graph([], edge_matrix([], 0), "", "", {}), question, torch.zeros(0), settings)
    room = s.room
    for chunk, free in ((20, 100), (9999, room // 2)):
        kept = room - free
        assert visited([kept, free], chunk) == [0, 1], "all of it fits"
        assert visited([kept, free + 1], chunk) == [0], "the most similar node fits what is kept"
        assert visited([kept + 1, free], chunk) == [1], "it is one token too long"


def test_ablations_choose_by_one_score(tiny, graph, question, similarity, settings):
    hard = replace(settings, confidence=0.999)
    by_similarity = search(tiny, graph, question, similarity, hard, attention=False)
    c = similarity(question).clamp(min=0)
    step = next(step for step in by_similarity.trace if step.score is not None)
    assert step.node == max((i for i in range(len(c)) if i not in graph.top_level), key=lambda i: (c[i].item(), -i))

    by_attention = search(tiny, graph, question, similarity, hard, similarity=False)
    assert all(step.score == step.z for step in by_attention.trace if step.score is not None)


def test_ties_go_to_the_lower_id(tiny, graph, question, settings):
    s = Search(tiny, graph, question, torch.zeros(len(graph.nodes)), replace(settings, attention=False))
    s.start()
    s.next()
    assert s.visited[-1] == 0


def test_a_question_that_leaves_no_room(tiny, graph, similarity, settings):
    used = settings.window - pecan.room_for_nodes(tiny.tokenizer, "Who", settings)
    for question, window in (("Who " * 500, settings.window), ("Who", used)):
        with pytest.raises(InputError, match="too small: prompts, question and answer"):
            Search(tiny, graph, question, similarity("Who"), replace(settings, window=window))


# --- what it costs --------------------------------------------------------------------------------------------------

def test_flops_and_tokens_of_a_search(tiny, graph, question, similarity, settings):
    """The counter equals a formula: 2 x parameters for each token read, 4 L H K T S for attention, and the output
    matrix for each probe and each generated token, including the one that ends the answer."""
    answer = Search(tiny, graph, question, similarity(question), replace(settings, confidence=0.9)).answer()
    c = tiny.config
    t = tiny.tokenizer
    matrices = sum(w.numel() for name, w in tiny.weights.items() if w.ndim == 2 and "embed" not in name)

    reads = []                                                # (tokens, keys that they see)
    length = 0                                                # of the cache
    of_logits = 2 * c.vocab * c.width

    def read(tokens):
        nonlocal length
        length += tokens
        reads.append((tokens, length))

    def spent():
        return sum(2 * matrices * n + 4 * c.layers * c.heads * c.head_width * n * keys for n, keys in reads)

    # The top level is one pass, and so is every later node. A check's tokens are part of the pass before it.
    read(length_of(pecan.question_prompt(t, question)))
    line = probes = 0
    flops = []                                                # spent up to each step
    for step in answer.trace:
        line += length_of(node_line(t, step.node, graph.nodes[step.node].text))
        if step.p_yes is not None:
            read(line + len(t.frame.close))
            length -= len(t.frame.close)
            line = 0
            probes += 1
            flops.append(spent() + probes * of_logits)
    start = len(graph.top_level)
    assert [step.flops for step in answer.trace] == [flops[0] - of_logits] * (start - 1) + flops
    read(length_of(pecan.answer_turn(t, t.first("Yes"))))

    # The answer's last token is chosen, not run.
    words = answer.tokens - sum(tokens for tokens, _ in reads)
    for _ in range(min(words, settings.answer_tokens - 1)):
        read(1)

    logits = probes + min(words + 1, settings.answer_tokens)
    assert answer.flops == spent() + logits * of_logits


@pytest.mark.parametrize("most", [512, 20])
def test_a_search_in_as_few_passes_as_it_can(tiny, graph, question, similarity, settings, monkeypatch, most):
    """There is one pass for the question, each group of the top level, each later node, the answer's turn and each word
    of the answer. A check has no pass of its own: it ends another. However nodes are grouped, the counts are right."""
    monkeypatch.setattr(pecan, "PASS", most)
    passes = []
    append = tiny.append

    def counted(cache, rows, averaging=None):
        passes.append(token_ids(rows[0]))
        return append(cache, rows, averaging)

    monkeypatch.setattr(tiny, "append", counted)
    t = tiny.tokenizer
    answer = Search(tiny, graph, question, similarity(question), replace(settings, confidence=0.9)).answer()
    start, after = [], []
    for step in answer.trace:
        (start if step.score is None else after).append(token_ids(node_line(t, step.node, graph.nodes[step.node].text)))

    # Groups of the top level have at most `most` tokens, and the next node would not have fitted.
    groups = [[]]
    for line in start:
        if len(groups[-1]) + len(line) > most:
            groups.append([])
        groups[-1] += line
    assert (len(groups) > 1) == (most == 20) and len(after) > 2
    groups[-1] += t.frame.close
    wanted = [token_ids(pecan.question_prompt(t, question)), *groups, *(line + t.frame.close for line in after),
              token_ids(pecan.answer_turn(t, t.first(answer.trace[-1].verdict)))]
    assert passes[:len(wanted)] == wanted and all(len(word) == 1 for word in passes[len(wanted):])

    # The answer's tokens: prompt, nodes, probes and answer. A step's tokens: all up to the end of its pass.
    words = t.encode(answer.text)
    probes = (1 + len(after)) * len(t.frame.close)
    assert answer.tokens == sum(map(len, wanted)) + len(words)
    opening = len(wanted[0])
    so_far = [opening + sum(map(len, (start + after)[:n + 1])) for n in range(len(answer.trace))]
    checked = [max(0, n + 2 - len(start)) * len(t.frame.close) for n in range(len(answer.trace))]
    read = [a + b for a, b in zip(so_far, checked)]
    assert [step.tokens for step in answer.trace[len(start) - 1:]] == read[len(start) - 1:], "tokens up to a step"
    assert probes == checked[-1]
