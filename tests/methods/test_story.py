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


def settings(chunk: int) -> Settings:
    """Windows are large, since the embedded model has many tokens for words it never saw."""
    return Settings(chunk=chunk, window=100_000)


def mkrag(model, settings) -> MKRAG:
    """MKRAG with the number of shared words in place of p_yes, because the model knows none of these words."""
    method = MKRAG(model, TokenMean(model), settings)
    method.p_yes = lambda query, texts: [len({*form_of(query).split()} & {*form_of(text).split()}) for text in texts]
    return method


SYSTEMS = {"graphreader": (GraphReader, 6), "mkrag": (mkrag, 24), "jerr": (JERR, 6)}          # chunks are the passages


def conversation(model, name: str, told: str, monkeypatch) -> str:
    """The prompts that lead to the replies in `told`, these replies, and the text that the reader gets."""
    replies = re.findall(r"^=== reply\n(.*?)\n\n(?====)", told, re.DOTALL | re.MULTILINE)
    make, chunk = SYSTEMS[name]
    method = make(model, settings(chunk))
    method.reading = lambda question, lines, *about: Reading("".join(map(chr, lines)), *about)
    monkeypatch.setattr(common, "line_ids",                  # a character is a token: the model lacks these words
                        lambda tokenizer, text: list(map(ord, f"\n* {' '.join(text.split())}")))
    script = Script(method, *replies)
    prepared = method.prepare(STORY)
    method.talk = Talk(method)
    reading = method.read(prepared, QUESTION)
    assert not script.replies and method.talk.counts["refused"] == 0
    assert [said["text"] for said in method.talk.trace] == replies[-method.talk.counts["calls"]:]

    parts = [f"=== prompt\n{prompt}\n=== reply\n{reply}\n" for prompt, reply in zip(script.heard, replies, strict=True)]
    return "\n".join([*parts, f"=== the reader gets{reading.prompt}\n"])


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_story(tiny, name, monkeypatch):
    told = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    told = re.sub(r"\{([A-Z]+)\}", lambda figure: getattr(graphreader_prompts, figure[1]), told)
    assert conversation(tiny, name, told, monkeypatch) == told
