"""The parts that methods which ask the model share, on the embedded model: batches, costs, refusals, cut prompts."""
from dataclasses import replace

import pytest
import torch
from speaker import Script, generations

from baselines import raptor
from baselines.agent import Agent, Tree, reminder, replies_to, user_turn
from baselines.graphreader import GraphReader
from baselines.jerr import JERR
from baselines.memwalker import MeMWalker
from baselines.mkrag import MKRAG
from baselines.raptor import Raptor
from core.files import InputError
from encoders.token_mean import TokenMean
from pecan import Search

pytest.importorskip("snowballstemmer")
METHODS = {
    "graphreader": lambda model, settings: GraphReader(model, replace(settings, window=4000, chunk=8)),
    "mkrag": lambda model, settings: MKRAG(model, TokenMean(model), settings),
    "jerr": JERR, "memwalker": MeMWalker,
    "raptor": lambda model, settings: Raptor(model, TokenMean(model), settings)}


@pytest.mark.parametrize("name", METHODS)
def test_the_models_own_replies(tiny, settings, document, question, tmp_path, name, monkeypatch, capsys):
    """Costs are the sum over all calls, the reader, and RAPTOR's vectors: one product with the whitening matrix each.
    Neither costs nor replies depend on the batch size. A construction shows a bar if that is wanted, a question never
    does."""
    document = replace(document, passages=document.passages[:8])
    monkeypatch.setattr(raptor, "clusters", lambda vectors, *_: [list(range(len(vectors)))[:9], [9, 10, 11]])
    vector = 2 * tiny.config.width ** 2 if name == "raptor" else 0
    said = generations(tiny, monkeypatch)
    found = []
    for batch in (1, 4):
        method = METHODS[name](tiny, replace(settings, batch=batch, answer_tokens=8))
        path = tmp_path / f"{batch}.json"
        said.clear()
        prepared = method.prepare(document, path, progress=batch == 4)
        assert ("replies" in capsys.readouterr().err) == (batch == 4)
        assert said and prepared.flops == sum(flops for flops, _ in said) + vector * len(prepared.texts)
        assert isinstance(method, Tree) or prepared.counts["calls"] == len(said) >= prepared.counts["refused"] > 0
        again = METHODS[name](tiny, method.settings).prepare(document, path)
        assert (again.flops, again.counts) == (prepared.flops, prepared.counts)

        said.clear()
        answer = method.answer(prepared, question)
        assert capsys.readouterr().err == ""
        assert answer.counts["calls"] == len(answer.trace) == len(said) - (answer.end == "read")
        assert (answer.flops, answer.tokens) == (sum(flops for flops, _ in said) + vector, sum(n for _, n in said))
        found.append((answer, path.read_text()))
    assert found[0] == found[1]


def test_a_thought_is_no_part_of_what_a_model_says(tiny, settings, graph, question, monkeypatch):
    """This holds for replies, for the reader's answers, and for PECAN's."""
    monkeypatch.setattr(tiny.tokenizer, "decode", lambda ids: "<think>a cat</think>\n<think>?\n</think>\n\na goat")
    said = [*replies_to(tiny, ["What is it?"], 4), Agent(tiny, settings).answer_from(question, []).text,
            Search(tiny, graph, question, torch.ones(len(graph.nodes)), settings).answer().text]
    assert list(map(str.strip, said)) == ["a goat"] * 3


def test_refused_replies_are_asked_for_again(tiny, settings):
    """A prompt is asked up to three times, with a reminder from the second time on. Accepted replies are kept."""
    method = Agent(tiny, settings)
    script = Script(method, "x", "2", "x", "y", "5", "x")

    def digits(reply, text):
        return [letter for letter in reply if letter.isdigit()]
    assert method.ask_until("", ["a", "b", "c"], digits, "Say a number.") == [[], ["2"], ["5"]]
    again = reminder("Say a number.")
    assert script.heard == ["a", "b", "c", f"{again}a", f"{again}c", f"{again}a"] and not script.replies
    assert (len(method.trace), method.counts["refused"]) == (6, 4)


def test_what_does_not_fit_is_left_out(tiny, settings):
    """The first text that fits the window with reminder and reply is asked, or else the last one. The limit is exact to
    the token. A prompt that does not fit with its reply is an error."""
    texts = ["Q: Mara pet goat", "Q: Mara pet", "Q: Mara", "Q: "]
    method = Agent(tiny, settings)
    whole = method.length(reminder("W.") + texts[0]) + method.limit
    for window, asked in ((whole, texts[0]), (whole - 1, texts[1]), (1, texts[3])):
        method.settings = replace(settings, window=window)
        script = Script(method, "x")
        assert method.ask_fitting(texts, str, "W.") == "x" and script.heard == [asked]

    prompt = len(user_turn(tiny.tokenizer, "What is it?"))
    with pytest.raises(InputError, match=f"window {prompt + 8} is too small: a prompt takes {prompt} tokens and i"):
        Agent(tiny, replace(settings, window=prompt + 8)).ask(["It", "What is it?"], 9)
