"""What GraphReader, MKRAG and JERR share, on the embedded model: batches, refusals, prompts that are cut, files."""
import json
from dataclasses import replace

import pytest
from oracle import token_ids
from speaker import Script, scripted  # noqa: F401

from baselines.agent import Talk, reminder
from baselines.common import replies
from baselines.graphreader import GraphReader
from baselines.jerr import JERR
from baselines.mkrag import MKRAG
from core.files import InputError
from core.settings import resolve
from data import EMBEDDED, read_jsonl
from pecan import summary_prompt
from support.token_mean import TokenMean


@pytest.fixture(scope="module")
def settings(tiny):
    return resolve(tiny.folder, tiny.config.max_length)


METHODS = {
    "graphreader": lambda model, settings: GraphReader(model, replace(settings, window=4000, chunk=8)),
    "mkrag": lambda model, settings: MKRAG(model, TokenMean(model), settings),
    "jerr": lambda model, settings: JERR(model, settings)}


@pytest.mark.parametrize("name, passages", [("graphreader", 6), ("mkrag", 6), ("jerr", 15)])
def test_calls_of_a_batch_equal_calls_one_at_a_time(tiny, settings, tmp_path, name, passages, monkeypatch):
    """The model's own replies: what is built, what is said, and the answer do not depend on the batch."""
    whole = read_jsonl(EMBEDDED, 1)[0]
    document = replace(whole, passages=whole.passages[:passages])
    found = []
    rows = []
    for batch in (1, 4):
        heard = []
        original = Talk.say

        def say(self, texts, prompts, limit, progress, original=original, heard=heard):
            said = original(self, texts, prompts, limit, progress)
            heard.extend(zip(texts, said, strict=True))
            rows.append(len(texts))
            return said
        with monkeypatch.context() as patch:
            patch.setattr(Talk, "say", say)
            method = METHODS[name](tiny, replace(settings, batch=batch, answer_tokens=8))
            prepared = method.prepare(document, tmp_path / f"{batch}.json")
            answer = method.answer(prepared, document.questions[0].text)
        kept = json.loads((tmp_path / f"{batch}.json").read_text())
        kept.pop("flops")                                   # padding costs
        found.append((kept, heard, answer.text, answer.nodes, answer.tokens, answer.calls, answer.refused))
    assert found[0] == found[1] and max(rows) > 1, "several texts were asked together"


def test_replies_keep_the_order_of_their_prompts(tiny):
    """Five prompts that are answered differently, two at a time: each reply is the one to its own prompt."""
    texts = ["Mara is Sofia's baker.", "Otto is Lima's cook.", "Ida is Oslo's judge.", "Nora is Riga's nurse.",
             "Emil is Kyiv's pilot."]
    prompts = [token_ids(summary_prompt(tiny.tokenizer, {0: text})) for text in texts]
    alone = [replies(tiny, [prompt], 12)[0] for prompt in prompts]
    assert replies(tiny, prompts, 12, batch=2) == alone
    assert len(set(map(tuple, alone))) == 5


def test_refused_replies_are_asked_for_again(tiny, settings, script):
    """Three times each, with a reminder; what was accepted is not asked again, and an empty result is accepted."""
    talk = script("x", "2", "x", "y", "5", "x")(tiny, settings, "test")

    def parse(n, reply):
        return [] if reply == "2" else int(reply) if reply.isdigit() else None
    assert talk.ask_until("stage", ["a", "b", "c"], 5, parse, "Say a number.") == [None, [], 5]
    again = reminder("Say a number.")
    assert Script.heard == ["a", "b", "c", f"a{again}", f"c{again}", f"a{again}"] and not Script.replies
    assert (talk.calls, talk.refused) == (6, 4)


def test_a_prompt_that_does_not_fit_is_named(tiny, settings):
    talk = Talk(tiny, replace(settings, window=30), "M")
    with pytest.raises(InputError, match=r"window 30 is too small: the stage of M takes \d+ tokens and its reply 9"):
        talk.ask("the stage", ["What is it? " * 9], 9)


def test_what_does_not_fit_is_left_out_from_the_end(tiny, settings):
    """With room for the reply and for the reminder; nothing is left out if it just fits."""
    words = ["Mara", "pet", "goat", "Otto"]
    whole = Talk(tiny, settings, "x").length("Q: Mara pet goat Otto" + reminder("W."))

    def shortened(window):
        return Talk(tiny, replace(settings, window=window), "x").shortened(
            lambda shown: "Q: " + " ".join(shown), words, 7, "W.")
    assert shortened(whole + 7) == "Q: Mara pet goat Otto" and shortened(whole + 6) == "Q: Mara pet goat"
    assert shortened(1) == "Q: " and len(words) == 4
