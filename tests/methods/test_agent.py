"""The parts that methods which ask the model share, on the embedded model: batches, costs, refusals, cut prompts."""
from dataclasses import replace
from functools import partial

import pytest
import torch
from speaker import Script, said

from baselines import raptor
from baselines.agent import AGAIN, Agent
from baselines.graphreader import GraphReader
from baselines.jerr import JERR
from baselines.memwalker import MeMWalker
from baselines.mkrag import MKRAG
from baselines.raptor import Raptor
from core.files import InputError
from core.settings import resolve
from encoders.token_mean import TokenMean
from pecan import Search

pytest.importorskip("snowballstemmer")
METHODS = [GraphReader, JERR, MeMWalker, MKRAG, Raptor]


def made(kind, model, settings):
    return kind(model, TokenMean(model), settings) if kind in (MKRAG, Raptor) else kind(model, settings)


@pytest.mark.parametrize("kind", METHODS)
def test_the_models_own_replies(tiny, settings, document, question, tmp_path, kind, monkeypatch):
    """Costs are what the model has spent meanwhile, and RAPTOR's vectors: one product with the whitening matrix each.
    Neither costs nor replies depend on the batch size."""
    vector = 2 * tiny.config.width ** 2 if kind is Raptor else 0
    document = replace(document, passages=document.passages[:8])
    monkeypatch.setattr(raptor, "clusters", lambda vectors, *_: [list(range(len(vectors)))[:9], [9, 10, 11]])
    found = []
    for batch in (1, 4):
        chosen = replace(settings, batch=batch, answer_tokens=8, window=4000, chunk=8)
        method = made(kind, tiny, chosen)
        path = tmp_path / f"{batch}.json"
        before = tiny.flops
        prepared = method.prepare(document, path)
        assert prepared.flops == tiny.flops - before + vector * len(prepared.texts) and prepared.counts["calls"] > 0
        again = made(kind, tiny, chosen).prepare(document, path)
        assert (again.flops, again.counts) == (prepared.flops, prepared.counts)

        before, tokens = tiny.flops, tiny.tokens
        answer = method.answer(prepared, question)
        assert answer.counts["calls"] == len(answer.trace)
        assert (answer.flops, answer.tokens) == (tiny.flops - before + vector, tiny.tokens - tokens)
        found.append((answer, path.read_text()))
    assert found[0] == found[1]


def test_a_thought_is_no_part_of_what_a_model_says(tiny, settings, graph, question, monkeypatch):
    """This holds for all replies of methods, here the reader's, and for PECAN's answers."""
    monkeypatch.setattr(tiny.tokenizer, "decode", lambda ids: "<think>a cat</think>\n\na goat")
    method = Agent(tiny, settings)
    method.read = lambda prepared, question: method.reading(question, [])
    search = Search(tiny, graph, question, torch.ones(len(graph.nodes)), settings)
    assert method.answer(None, question).text == search.answer().text.strip() == "a goat"


def test_nothing_is_lost_in_silence(tiny, settings):
    """A prompt is asked twice at most, the second time with a reminder. Accepted replies are kept. What they drop is
    counted, and so are cut replies and their torn last line, unless it is the only one."""
    method = Agent(tiny, settings)
    assert [method.replies_to([("What is it?", limit)])[0].cut for limit in (1, 99)] == [True, False]
    cut = partial(said, cut=True)
    first = "x", "2 y z", cut("5\n6"), cut("7"), cut("Here:\n8 y")                             # about a to e
    script = Script(method, *first, "y", cut("y\nz"))                                          # about a and e again
    parsed = []

    def digits(reply, text):
        parsed.append(reply)
        return [word if word.isdigit() else None for word in reply.split()]
    assert method.ask("", list("abcde"), digits) == [[], ["2"], ["5"], ["7"], []]
    assert script.heard == [*"abcde", f"{AGAIN}a", f"{AGAIN}e"]
    assert method.talk.counts == {"calls": 7, "refused": 4, "dropped": 2 + 1, "cut": 4}
    assert len(method.talk.trace) == 7
    assert parsed[-1] == "y", "what a parser keeps has no torn line"


def test_a_checkpoint_that_follows_no_instructions(tiny):
    """The embedded model's methods that ask in words are not made at all. RAPTOR only wants summaries."""
    settings = resolve(tiny.folder, tiny.config.max_length)
    for kind in METHODS[:-1]:
        with pytest.raises(InputError, match=f"{kind.__name__} asks in words"):
            made(kind, tiny, settings)
    made(Raptor, tiny, settings)


def test_what_does_not_fit_is_left_out(tiny, settings):
    """The first text that fits the window with reminder and reply is asked, or else the last one. The limit is exact to
    the token. A prompt that does not fit with its reply is an error."""
    texts = ["Q: Mara pet goat", "Q: Mara pet", "Q: "]
    method = Agent(tiny, settings)
    whole = method.length(AGAIN + texts[0]) + method.limit
    least = method.length(texts[2]) + method.limit
    for window, asked in ((whole, texts[0]), (whole - 1, texts[1]), (least, texts[2])):
        method.settings = replace(settings, window=window)
        script = Script(method, "x")
        assert method.ask_fitting(texts, lambda reply, _: [reply]) == ["x"] and script.heard == [asked]

    prompt = method.length("What is it?")
    with pytest.raises(InputError, match=f"window {prompt + 8} is too small: a prompt of Agent takes {prompt} tokens"):
        Agent(tiny, replace(settings, window=prompt + 8)).ask("", ["It", "What is it?"], None, 9)
