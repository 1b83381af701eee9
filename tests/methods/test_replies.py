"""What GraphReader, MKRAG and JERR take from a reply, and what they count as dropped.

replies.jsonl is the table: a reply as it was written, what is taken, and how many parts are dropped. Rows with "by" are
real replies, to texts of HotpotQA (CC BY-SA 4.0). "about" is what the model was asked about; a title stands for its
passage in tests/hotpotqa_3.json. Rows with "plain" are in the format of their paper; they are decorated at random, too.
"""
import json
import re
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from baselines import graphreader_prompts as figures
from baselines.agent import form_of, own_lines, rated
from baselines.graphreader import FactGraph, Walk, facts_of, stems_of
from baselines.jerr import keywords_of, names_of, pages_of, relations_of, synopsis_of
from baselines.mkrag import decisions_of, entities_of, pairs_of, sub_questions, weights_of
from evaluation.datasets import Dataset

pytest.importorskip("snowballstemmer")
FOLDER = Path(__file__).parent
PASSAGES = {passage.partition("\n")[0]: passage
            for document in Dataset(FOLDER.parent / "hotpotqa_3.json").documents for passage in document.passages}


def walked(reply: str, about: str) -> list:
    """Notebook and action after a reply at a stage; `about` is the stage and the notebook before.

    The node is Toronto, with facts in chunks 0 to 9; its neighbours are Latin and Danko Jones (band).
    """
    stage, _, notebook = about.partition(": ")
    graph = FactGraph([[["f", "Toronto", "Latin", "Danko Jones (band)"]]] * 10)
    walk = Walk(None, graph, [""] * 12, "", "", stems_of("Toronto"), notebook, read=[11])
    found = walk.act(stage, reply)
    return [*([] if stage == "neighbours" else [walk.notebook]), *walk.actions, *[None] * found.count(None)]


# How a reply is read. The first two prompts ask for free text.
READERS = {"plan": lambda reply, _: own_lines(reply, figures.PLAN),
           "reason": lambda reply, _: own_lines(reply, figures.REASON),
           "scores": lambda reply, names: rated(reply, names.splitlines()),
           "pages": lambda reply, prompt: pages_of(reply, prompt, 13, 3),
           "facts": facts_of, "walk": walked, "entities": entities_of, "weights": weights_of, "pairs": pairs_of,
           "split": sub_questions, "decision": decisions_of, "synopsis": synopsis_of, "names": names_of,
           "keywords": lambda reply, question: sorted(keywords_of(question, names_of(reply, question))),
           "relations": lambda reply, names: relations_of(reply, {form_of(name): name for name in names.splitlines()})}
TABLE = [{"about": "", "dropped": 0} | json.loads(line)
         for line in (FOLDER / "replies.jsonl").read_text(encoding="utf-8").splitlines()]


def read(row: dict, reply: str) -> tuple[list, int]:
    """What is taken, in JSON's types, and how many parts are dropped, if a row's reply is written like this."""
    about = "\n".join(PASSAGES.get(title, title) for title in row["about"].split("\n"))
    found = json.loads(json.dumps(READERS[row["kind"]](reply, about)))
    return [value for value in found if value is not None], found.count(None)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row['kind']}: {row['written'][:40]!r}")
def test_the_table(row):
    assert read(row, row["written"]) == (row["taken"], row["dropped"])


# --- any decoration -------------------------------------------------------------------------------------------------

WRAPS = ["{}", "**{}**", "\"{}\"", "“{}”", "‘{}’", "[{}]", "`{}`", "*{}*", " {} "]
LABELS = ["{}: ", "**{}:** ", "**{}**: ", "{}：", "__{}__: "]
MARKS = "|* |- |• |– |### |> |1. |2) |(3) |**4.** |* 6. |[5] ".split("|")
ENDS = ["\n", "\n\n", "\n \n"]
FRAMES = ["{}", "```\n{}\n```", "Sure! Here it is:\n{}", "Here you are:\n\n```text\n{}```", "{}\n\nI hope this helps!"]


def values_in(value) -> list[str]:
    """The texts in JSON's lists."""
    return [text for inner in value for text in values_in(inner)] if isinstance(value, list) else [str(value)]


def decorated(row: dict, random) -> str:
    """The reply of a row with any decoration: of its values where they stand alone, of labels, lines and the whole."""
    def choice(options):
        return random.choice(options[:5] if row["kind"] == "pages" else options)              # [5] would be a page
    text = row["written"]
    if row["kind"] != "entities":                            # JSON
        for value in values_in(row["taken"]):
            text = re.sub(rf"(?m)(^|[:|] |, )({re.escape(value)})(?=$| \||,)",
                          lambda found: found[1] + choice(WRAPS).format(found[2]), text, count=1)
        text = re.sub(r"(?m)(?<![\w ])([A-Z]\w+(?: \w+){0,3}): ", lambda label: choice(LABELS).format(label[1]), text)
        text = "".join(choice(MARKS) + line + choice(ENDS) for line in text.splitlines())
        text = text.translate(choice([{}, str.maketrans("'-", "’–")]))
    return choice(FRAMES).format(text)


@pytest.mark.parametrize("row", [row for row in TABLE if row.get("plain")], ids=lambda row: row["kind"])
@hypothesis.given(st.randoms(use_true_random=False))
def test_decoration_changes_nothing(row, random):
    """Marks, bold type, quotes, brackets, typographic signs, empty lines, fences, preambles and afterwords, in any
    combination. An afterword is at most one part that is dropped. (Free text has no end: there it is text.)"""
    taken, dropped = read(row, decorated(row, random))
    assert re.findall(r"\w+|None", str(taken)) == re.findall(r"\w+|None", str(row["taken"]))
    assert dropped - row["dropped"] in (0, 1)
