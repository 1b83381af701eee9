"""Each system answers Figure 20 of the GraphReader paper ("Casa Loma"). Every prompt is compared as a whole.

A script gives the replies. The expected conversations are in tests/story/, for reading. A test fails if one letter of a
prompt, or of the text that the reader gets at the end, differs.

    python tests/test_story.py        writes the conversations anew
"""
import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2])]

import pytest  # noqa: E402
from speaker import Script  # noqa: E402

from baselines import common, graphreader_prompts  # noqa: E402
from baselines.graphreader import GraphReader  # noqa: E402
from baselines.jerr import JERR  # noqa: E402
from baselines.mkrag import MKRAG  # noqa: E402
from core.settings import Settings  # noqa: E402
from data import Answer, Document  # noqa: E402
from llama import Llama  # noqa: E402
from support.command import EMBEDDED_MODEL  # noqa: E402
from support.token_mean import TokenMean  # noqa: E402

FOLDER = Path(__file__).parent / "story"
QUESTION = "What is the name of the castle in the city where the performer of Never Too Loud was formed?"
STORY = Document("story", [
    "\"Never Too Loud\" is the fourth studio album by Canadian hard rock band Danko Jones. It was recorded at Studio "
    "606 in Los Angeles, with the producer Nick Raskulinecz.",
    "Danko Jones is a Canadian hard rock trio from Toronto. The band consists of Danko Jones (vocals/guitar), John "
    "\"JC\" Calabrese (bass), and Rich Knox (drums).",
    "Casa Loma is a Gothic Revival castle-style mansion and garden in midtown Toronto, Ontario, Canada. It was "
    "constructed from 1911 to 1914 as a residence for financier Sir Henry Pellatt."])


# --- the replies ----------------------------------------------------------------------------------------------------

def acts(action: str, notebook: str = "") -> str:
    book = f"*Updated Notebook*: {notebook}\n" if notebook else ""
    return f"{book}*Rationale for Next Action*: the plan asks for it.\n*Chosen Action*: {action}"


# As in Figures 21 to 24, but with the numbers of our chunks.
GRAPHREADER = [
    "1. \"Never Too Loud\" is the fourth studio album by Canadian hard rock band Danko Jones. | Never Too Loud | "
    "studio album | Canadian | hard rock band | Danko Jones",
    "1. Danko Jones is a Canadian hard rock trio from Toronto. | Danko Jones | Canadian | hard rock trio | Toronto",
    "1. Casa Loma is a Gothic Revival castle-style mansion and garden in midtown Toronto, Ontario, Canada. | Casa Loma "
    "| Gothic Revival | castle-style mansion | Toronto | Canada",
    "To answer the question, we need to identify the performer or band associated with \"Never Too Loud\", determine "
    "the city where they were formed, and then find out the name of any notable castle in that city.",
    "Node: Never Too Loud, Score: 100",
    acts("read_chunk(ID-0)", "Never Too Loud is an album."),
    acts("search_more()", "The performer of Never Too Loud is Danko Jones."),
    acts("read_neighbor_node(Danko Jones)"),
    acts("read_chunk([1])", "The performer is Danko Jones, a trio from Toronto."),
    acts("search_more()", "Danko Jones is a band from Toronto, Canada."),
    acts("read_neighbor_node(Toronto)"),
    acts("read_chunk([2])", "Danko Jones is from Toronto. Casa Loma is there."),
    acts("termination()", "The castle mentioned in the text in Toronto is Casa Loma."),
    "Analyze:\nThe band is from Toronto, where the castle is.\nFinal answer:\nCasa Loma"]

MKRAG_BUILDS = [
    {"Never Too Loud": {"Attributes": {"Kind": "studio album"}, "Relationships": {"Performer": "Danko Jones"}}},
    {"Danko Jones": {"Relationships": {"City": "Toronto"}}},
    {"Casa Loma": {"Attributes": {"Kind": "castle", "Style": "Gothic Revival"}, "Relationships": {"City": "Toronto"},
                   "Events": ["1911 - construction began"]}, "residence": {"Attributes": {"Owner": "a financier"}}}]
WEIGHTS = "Never Too Loud | 1.0\nDanko Jones | 0.7\nCasa Loma | 1.0\nresidence | 0.3"
PAIRS = [
    [("Who performed the studio album Never Too Loud?", "Danko Jones")],
    [("What is Never Too Loud?", "a studio album")], [("Who performed Never Too Loud?", "Danko Jones")],
    [("From which city is Danko Jones?", "Toronto")],
    [("Which Gothic Revival castle was begun in Toronto in 1911?", "Casa Loma")],
    [("What is Casa Loma?", "a Gothic Revival castle")], [("Where is Casa Loma?", "in Toronto")],
    [("What began in 1911?", "the construction of Casa Loma")],
    [("Of what kind is Casa Loma?", "a castle")], [("Of which style is Casa Loma?", "Gothic Revival")],
    [("In which city is Casa Loma?", "Toronto")], [("When did the construction of Casa Loma begin?", "1911")]]
MKRAG_SAYS = [
    *map(json.dumps, MKRAG_BUILDS), WEIGHTS,
    *("\n".join(f"Question: {question}\nAnswer: {answer}" for question, answer in pairs) for pairs in PAIRS),
    "1. Who performed Never Too Loud?\n2. Which castle is there?", "RewriteQ: From which city is Danko Jones?",
    "Answer: Casa Loma"]

JERR_SAYS = [
    "Danko Jones made Never Too Loud.", "Danko Jones comes from Toronto.", "Toronto has a castle, Casa Loma.",
    "* Never Too Loud\n* Danko Jones", "* Danko Jones\n* Toronto", "* Toronto\n* Casa Loma",
    "* made", "* comes from", "* castle",
    "Danko Jones | made | Never Too Loud", "Danko Jones | comes from | Toronto",
    "Toronto | has | Casa Loma\nCasa Loma | is a | castle",
    "* castle\n* Never Too Loud", "I want to look up Page [0, 2] to see the castle."]


# --- the systems ----------------------------------------------------------------------------------------------------

def mkrag(model) -> MKRAG:
    """MKRAG with the number of shared words in place of p_yes, because the model knows none of these words."""
    method = MKRAG(model, TokenMean(model), settings(24))
    method.p_yes = lambda query, texts: [len({*query.lower().split()} & {*text.lower().split()}) for text in texts]
    return method


def settings(chunk: int) -> Settings:
    """Chunks are the passages. Windows are large, since the embedded model has many tokens for words it never saw."""
    return Settings(chunk=chunk, window=100_000)


SYSTEMS = {"graphreader": (GRAPHREADER, lambda model: GraphReader(model, settings(6))),
           "mkrag": (MKRAG_SAYS, mkrag), "jerr": (JERR_SAYS, lambda model: JERR(model, settings(6)))}


def conversation(model, name: str) -> str:
    """All prompts and replies in order, and the text that the reader gets."""
    replies, make = SYSTEMS[name]
    method = make(model)
    read = []
    method.answer_from = lambda question, ids: read.append("".join(map(chr, ids))) or Answer("", [], 0, 0)
    script = Script(method, *replies)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(common, "line_ids",                    # a character is a token: the model lacks these words
                      lambda tokenizer, text: list(map(ord, f"\n* {' '.join(text.split())}")))
        answer = method.answer(method.prepare(STORY), QUESTION)
    assert not script.replies and answer.refused == 0
    assert [reply.text for reply in answer.trace] == list(replies[-answer.calls:])

    # GraphReader's instructions are compared with the paper by their hashes, in test_graphreader.py.
    names = {value: name for name, value in vars(graphreader_prompts).items() if isinstance(value, str)}
    parts = []
    for prompt, reply in zip(script.heard, replies, strict=True):
        for figure in sorted(names, key=len, reverse=True):
            if prompt.startswith(f"{figure}\n"):
                prompt = f"{{{names[figure]}}}{prompt.removeprefix(figure)}"
        parts.append(f"=== prompt\n{prompt}\n=== reply\n{reply}\n")
    return "\n".join([*parts, f"=== the reader gets{read[0]}\n"])


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_story(tiny, name):
    if name == "graphreader":
        pytest.importorskip("snowballstemmer")
    assert conversation(tiny, name) == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


if __name__ == "__main__":
    for name in SYSTEMS:
        text = conversation(Llama.load(EMBEDDED_MODEL, "cpu"), name)
        (FOLDER / f"{name}.txt").write_text(text, encoding="utf-8")
