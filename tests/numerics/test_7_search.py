"""Ring 7, stage 2 with the embedded model.

Every number that a search reports is computed again from Hugging Face's attention. (Random graphs, random attention and
every setting: test_7_algorithm.py.)
"""
import gc
import weakref
from copy import copy
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from oracle import beside, ending_at, greedy, ids_and_spans, mean_attention, one_pass, relative, rounding

import pecan
from core.files import InputError
from encoders.token_mean import TokenMean
from llama import Cache, Llama, flops_of, ids_of
from pecan import Graph, Node, Pecan, Search, length_of, node_line


def nodes_prompt(t, graph, question, nodes):
    """The prompt of a search that has read these nodes."""
    segments = pecan.question_prompt(t, question)
    for i in nodes:
        segments += node_line(t, i, graph.nodes[i].text)
    return segments


@pytest.fixture(scope="module")
def begin(tiny, graph, question, settings):
    """A function that begins a search for the question, with these settings changed, maybe by another model."""
    vectors = TokenMean(tiny).encode([question, *(node.text for node in graph.nodes)])
    c = vectors[1:] @ vectors[0]
    return lambda model=tiny, **changes: Search(model, graph, question, c, replace(settings, **changes))


# --- against Hugging Face -------------------------------------------------------------------------------------------

@pytest.fixture(scope="module", params=[4, 20])
def searched(request, tiny, graph, question, begin):
    """A search with a high threshold, which reads the top level in pieces of one node, longer than PASS, or of two; the
    ids that it read; and the span of each node in them."""
    s = begin(confidence=.999)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pecan, "PASS", request.param)
        s.start()
        s.next()
        s.run()                                               # goes on from there
    assert s.visited[:len(graph.top_level)] == graph.top_level and len(s.visited) > len(graph.top_level) + 3
    return s, *ids_and_spans(nodes_prompt(tiny.tokenizer, graph, question, s.visited))


def test_r_follows_from_hugging_faces_attention(tiny, tiny_hf, searched):
    """r of a node is its position times the mean of Hugging Face's attention from its tokens to those of the question.
    The cache holds the query and the nodes, in the order they were read, and no probe."""
    s, ids, spans = searched
    assert s.cache.lengths == [len(ids)]
    a = mean_attention(one_pass(tiny_hf, ids))[:, spans["q"]].mean(1)
    r = []
    for position, step in enumerate(s.trace, 2):
        assert (step.position, step.cached) == (position, spans[step.node].stop)
        assert step.to_query * position == step.r == s.r[step.node]
        r.append(position * a[spans[step.node]].mean())
    error = relative(s.r[s.visited], torch.stack(r))
    assert error < rounding(tiny), error


def test_p_yes_follows_from_hugging_faces_logits(tiny, tiny_hf, searched):
    """The question, the nodes so far and the end of the turn are one prompt. p_yes is the softmax of two logits behind
    it, so it errs by at most a quarter of the error of their difference."""
    s, ids, spans = searched
    t = tiny.tokenizer
    for step in [step for step in s.trace if step.p_yes is not None]:
        logits = one_pass(tiny_hf, ids[:spans[step.node].stop] + t.frame.before_reply).logits[0, -1]
        p = logits[[t.encode("Yes")[0], t.encode("No")[0]]].softmax(0)[0].item()
        assert step.p_yes == pytest.approx(p, abs=rounding(tiny) * logits.abs().max().item() / 2)
        assert step.verdict == ("Yes" if p > .999 else "No")


@pytest.mark.parametrize("eos, length", [(2, 1), (460, 9)])
def test_the_answer_is_what_hugging_face_generates(tiny, tiny_hf, graph, question, begin, eos, length):
    """A search in one cache gives Hugging Face's answer to one prompt, and counts exactly the tokens that were run, but
    none of another search that begins meanwhile. The embedded model answers in one word, but goes on to the limit if
    another token than its own would end the answer."""
    t = tiny.tokenizer
    model = ending_at(tiny, eos)
    search = begin(model, answer_tokens=9)
    begin(model).start()
    answer = search.answer()
    prompt = ids_of(nodes_prompt(t, graph, question, answer.nodes)
                       + pecan.answer_turn(t, t.first(answer.trace[-1].verdict)))
    words = [i for i in greedy(tiny_hf, prompt, 9, eos_token_id=eos) if i != eos]
    assert answer.text == t.decode(words).strip() and len(words) == length

    probes = sum(step.p_yes is not None for step in answer.trace)
    assert answer.tokens == len(prompt) + probes * len(t.frame.before_reply) + len(words)


@pytest.mark.parametrize("verdict, changes", [("Yes", {"confidence": 0.0}), ("No", {"confidence": .9999999}),
                                              ("Yes", {"fixed_nodes": 99, "question_again": True})])
def test_the_last_verdict_stays_in_the_conversation(tiny, begin, spy, verdict, changes):
    """The answer follows a "No" if the last check said so, else a "Yes", also without any check. A full window has room
    for a second turn that says the question again."""
    turns = spy("answer_turn", pecan)
    begin(**changes).answer()
    (_, first, _), _ = turns[-1]
    assert first == tiny.tokenizer.first(verdict)


# --- the window -----------------------------------------------------------------------------------------------------

def test_the_room_that_a_large_top_level_leaves_to_the_token(tiny, question, settings):
    """If the top level does not fit, exactly five chunks stay free, or half of the room if that is less. A top level
    that just fits is read whole."""
    def visited(lengths, chunk):
        nodes = [Node(1, " ".join(["road"] * (length - 2))) for length in lengths]     # a line has two more, "\n*"
        s = Search(tiny, Graph(nodes, []), question, torch.tensor([.9, .1]), replace(settings, chunk=chunk))
        s.start()
        return s.visited

    room = pecan.room_for_nodes(tiny.tokenizer, pecan.question_prompt(tiny.tokenizer, question), question, settings)
    for chunk, free in ((20, 100), (9999, room // 2)):
        kept = room - free
        assert visited([kept, free], chunk) == [0, 1], "all of it fits"
        assert visited([kept, free + 1], chunk) == [0], "the most similar node fits what is kept"
        assert visited([kept + 1, free], chunk) == [1], "it is one token too long"


def test_a_question_that_leaves_no_room(settings, begin):
    used = settings.window - begin().room
    assert begin(window=used + 1).room == 1
    with pytest.raises(InputError, match=f"too small: prompts, question and answer take {used} tokens"):
        begin(window=used)


# --- what it costs --------------------------------------------------------------------------------------------------

def test_passes_flops_and_tokens_of_a_search(tiny, graph, question, settings, begin, monkeypatch, spy):
    """There is one pass for the question, each group of the top level, each later node, the answer's turn and each word
    of the answer but the last. A check has no pass of its own: it ends another. All passes, and the output matrix for
    each check and each chosen word, are the cost. (test_8_flops.py: what a pass costs.)"""
    monkeypatch.setattr(pecan, "PASS", 20)
    passes = spy("flops_of")
    answer = begin(confidence=0.9).answer()
    t = tiny.tokenizer
    counts = [tokens for (_, tokens, _), _ in passes]
    costs = [flops for _, flops in passes]

    # The top level has four nodes of 7 tokens. Two of them fit into 20 tokens, and a check follows the last. Every
    # later node has a pass and a check of its own.
    lengths = [length_of(node_line(t, step.node, graph.nodes[step.node].text)) for step in answer.trace]
    assert lengths[:4] == [7] * len(graph.top_level) and len(lengths) > 6
    check = len(t.frame.before_reply)
    chosen = min(len(t.encode(answer.text)) + 1, settings.answer_tokens)       # also the token that ends the answer
    assert counts == [length_of(pecan.question_prompt(t, question)), 14, 14 + check,
                      *(length + check for length in lengths[4:]),
                      length_of(pecan.answer_turn(t, 0)), *[1] * (chosen - 1)]

    # What was spent up to a step is what was spent up to the end of its pass.
    logits = flops_of(tiny.config, 0, 0, 1)
    checks = 0
    for step, n in zip(answer.trace, [2, 2, 3, 3, *range(4, len(lengths))], strict=True):
        checks += step.p_yes is not None
        assert step.flops == sum(costs[:n]) + checks * logits and step.tokens == sum(counts[:n])
    assert answer.flops == sum(costs) + (checks + chosen) * logits


def test_searches_side_by_side_share_passes(tiny, begin, spy):
    """Searches that end after different numbers of nodes read the same nodes and write the same answers as alone, and
    r and p_yes differ by rounding. There are as many passes as the longest search has."""
    searches = [*(partial(begin, fixed_nodes=n) for n in (9, 16, 6, 12)), partial(begin, confidence=.999)]
    passes = spy("flops_of")                                  # one for each row of a pass
    alone = []
    counts = [0]
    for search in searches:
        alone.append(search().answer())
        counts.append(len(passes))
    calls = []
    model = copy(tiny)
    model.forward = lambda *arguments: calls.append(len(arguments[0])) or tiny.forward(*arguments)
    together = beside(model, 380, [lambda row, search=search: search(row).answer() for search in searches])

    assert sum(calls) == counts[-1] == len(passes) - counts[-1], "as many rows"
    assert len(calls) == max(after - before for before, after in pairwise(counts))
    assert len({len(answer.nodes) for answer in alone}) == 5
    for one, other in zip(alone, together, strict=True):
        assert (one.text, one.nodes, one.end, one.flops) == (other.text, other.nodes, other.end, other.flops)
        ours, theirs = (torch.tensor([[step.r, step.p_yes or 0] for step in answer.trace]) for answer in (one, other))
        assert relative(theirs, ours) < rounding(tiny)


def test_long_passes_do_not_pad_short_ones(tiny, spy):
    passes = spy("forward", Llama)
    beside(tiny, 380, [lambda model, T=T: model.read(Cache(model, 1, 380), [[(None, [5] * T)]]) for T in (300, 9, 280)])
    assert [tuple(tokens.shape) for (_, tokens, *_), _ in passes] == [(2, 300), (1, 9)]


def test_a_search_that_fails_and_memory_for_eight_rows(tiny, graph, question, settings):
    """A question that is too long fails alone. If memory runs out, in a pass or in a search, it is freed and fewer rows
    run. All others have their answers, also in a variant that asks the model more on the way."""
    rows = []
    caches = []
    shortages = [torch.OutOfMemoryError]

    class Asks(Search):
        def stop(self, hidden):
            if shortages:
                raise shortages.pop()
            asked = [(None, self.tokenizer.encode(self.question))]
            before = self.cache.lengths
            states, _ = self.model.append(self.cache, [asked])
            self.cache.rollback(before)
            end = super().stop(hidden)
            return end and f"{end} {states.shape}"

    def scarce(tokens, positions, cache, *rest):
        if cache.capacity == settings.window:
            caches.append(weakref.ref(cache.keys[0]._base))
            assert len({id(each()) for each in caches if each() is not None}) == 1
        rows.append(len(tokens))
        if rows[-1] > 8:
            raise torch.OutOfMemoryError
        return tiny.forward(tokens, positions, cache, *rest)

    model = copy(tiny)
    model.forward = scarce
    method = Pecan(model, TokenMean(tiny), replace(settings, batch=12), search=Asks)
    ready = method.ready(asdict(graph))
    questions = [question, "Where is Amos?"] * 6
    questions[7] = "why " * 400
    gc.disable()                                              # memory is freed at once, or else the next wave lacks it
    found = dict(method.answer_all([(ready, text) for text in questions]))
    gc.enable()
    assert [n for n in found if isinstance(found[n], InputError)] == [7] and "too small" in str(found.pop(7))
    assert not shortages and {11, 6, 3, 1} <= {*rows}

    for n in (0, 1):
        alone = Pecan(tiny, TokenMean(tiny), settings, search=Asks).answer(ready, questions[n])
        for answer in (found[m] for m in found if m % 2 == n):
            assert (answer.text, answer.nodes, answer.end, answer.flops) == (
                alone.text, alone.nodes, alone.end, alone.flops)


def test_no_search_keeps_the_model(tiny, begin):
    """Another may need the memory. (Cycles are only collected later.)"""
    model = copy(tiny)
    model.weights = type("Weights", (dict,), {})(tiny.weights)
    kept = weakref.ref(model.weights)
    gc.disable()
    beside(model, 380, [lambda row: begin(row).answer()] * 2)
    del model
    assert kept() is None
    gc.enable()


def test_a_search_with_a_second_cache_runs_alone(tiny, begin):
    """Side by side its passes would go into the row of its first."""
    def search(model):
        found = begin(model)
        model.read(Cache(model, 1, 99), [[(None, [5, 6, 7])]])
        return found.answer().text

    assert search(tiny) == begin().answer().text
    with pytest.raises(IndexError):
        beside(tiny, 380, [search] * 2)


def test_over_says_which_layers_make_r(tiny, tiny_hf, graph, question, settings, begin):
    """With one layer alone, r follows from Hugging Face's, for one search and for two side by side that look at
    different layers."""
    class OneLayer(Search):
        def __init__(self, model, layer):
            self.layer = layer
            super().__init__(model, graph, question, begin().c, settings)

        def over(self, A, layer, layers):
            return A.mean((1, 2)) * layers * (layer == self.layer)

    last = tiny.config.layers - 1
    both = beside(tiny, settings.window, [lambda model: OneLayer(model, 0).answer(),
                                          lambda model: OneLayer(model, last).answer()])
    for layer, found in ((last, OneLayer(tiny, last).answer()), (0, both[0]), (last, both[1])):
        ids, spans = ids_and_spans(nodes_prompt(tiny.tokenizer, graph, question, found.nodes))
        a = one_pass(tiny_hf, ids).attentions[layer][0].double().mean(0)[:, spans["q"]].mean(1)
        wanted = torch.stack([step.position * a[spans[step.node]].mean() for step in found.trace])
        assert relative(torch.tensor([step.r for step in found.trace]), wanted) < rounding(tiny)
