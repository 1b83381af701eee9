"""Each system answers Figure 20 of the GraphReader paper ("Casa Loma"). Every prompt is compared as a whole.

story/ has the expected conversations, for reading. The test plays their replies, and fails if one letter differs in a
prompt, or in the text that the reader gets at the end. GraphReader's replies are as in Figures 21 to 24.
"""
import re
from pathlib import Path

import pytest
from speaker import Script

from baselines import common, graphreader_prompts
from baselines.agent import Talk, form_of
from baselines.common import Reading
from baselines.graphreader import GraphReader
from baselines.jerr import JERR
from baselines.memwalker import MeMWalker
from baselines.mkrag import MKRAG
from core.settings import Settings
from data import Document
from encoders.token_mean import TokenMean

pytest.importorskip("snowballstemmer")
FOLDER = Path(__file__).parent / "story"
QUESTION = "What is the name of the castle in the city where the performer of Never Too Loud was formed?"
STORY = Document("story", [
    "\"Never Too Loud\" is the fourth studio album by Canadian hard rock band Danko Jones. It was recorded at Studio "
    "606 in Los Angeles, with the producer Nick Raskulinecz.",
    "Danko Jones is a Canadian hard rock trio from Toronto. The band consists of Danko Jones (vocals/guitar), John "
    "\"JC\" Calabrese (bass), and Rich Knox (drums).",
    "Casa Loma is a Gothic Revival castle-style mansion and garden in midtown Toronto, Ontario, Canada. It was "
    "constructed from 1911 to 1914 as a residence for financier Sir Henry Pellatt."])


def mkrag(model, settings) -> MKRAG:
    """MKRAG with the number of shared words in place of p_yes, because the model knows none of these words."""
    method = MKRAG(model, TokenMean(model), settings)
    method.p_yes = lambda query, texts: [len({*form_of(query).split()} & {*form_of(text).split()}) for text in texts]
    return method


# Chunks are the passages.
@pytest.mark.parametrize("name, make, chunk", [("graphreader", GraphReader, 6), ("mkrag", mkrag, 24), ("jerr", JERR, 6),
                                               ("memwalker", MeMWalker, 12)])
def test_the_story(tiny, name, make, chunk, monkeypatch):
    """The prompts that lead to the replies of the conversation, and the text that the reader gets.

    The model lacks these words: windows are large, and a character of what is read is a token."""
    told = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    told = re.sub(r"\{([A-Z]+)\}", lambda figure: getattr(graphreader_prompts, figure[1]), told)
    replies = re.findall(r"^=== reply\n(.*?)\n\n(?====)", told, re.DOTALL | re.MULTILINE)
    monkeypatch.setattr(common, "line_ids", lambda _, text: list(map(ord, f"\n* {' '.join(text.split())}")))
    method = make(tiny, Settings(chunk=chunk, window=100_000))
    method.reading = lambda question, lines, *about: Reading("".join(map(chr, lines)), *about)
    script = Script(method, *replies)
    prepared = method.prepare(STORY)
    method.talk = Talk(method)
    reading = method.read(prepared, QUESTION)
    assert method.talk.counts["refused"] == 0
    assert [said["text"] for said in method.talk.trace] == replies[-method.talk.counts["calls"]:]
    parts = [f"=== prompt\n{prompt}\n=== reply\n{reply}\n" for prompt, reply in zip(script.heard, replies, strict=True)]
    assert "\n".join([*parts, f"=== the reader gets{reading.prompt}\n"]) == told
