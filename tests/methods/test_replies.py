"""What GraphReader, MKRAG, JERR and MeMWalker take from a reply, and what they count as dropped.

replies.jsonl is the table: a reply as it was written, what is taken, and how many parts are dropped. Rows with "plain"
are in the format that the prompt asks for; they are decorated at random, too. Rows with "by" are real replies, to texts
of HotpotQA (CC BY-SA 4.0). "about" is what the model was asked about.
"""
import json
import re
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from baselines import graphreader
from baselines.agent import form_of, rated
from baselines.graphreader import facts_of, move_of
from baselines.jerr import names_of, pages_of, relations_of, synopsis_of
from baselines.memwalker import action_of
from baselines.mkrag import decisions_of, entities_of, pairs_of, sub_questions, weights_of

READERS = {"scores": lambda reply, names: rated(reply, graphreader.RATED, names.splitlines()),
           "pages": lambda reply, _: pages_of(reply, 13, 3), "action": lambda reply, _: action_of(reply, ["-1", "-2"]),
           "facts": facts_of, "walk": move_of, "entities": entities_of, "weights": weights_of, "pairs": pairs_of,
           "split": sub_questions, "decision": decisions_of, "synopsis": synopsis_of, "names": names_of,
           "relations": lambda reply, names: relations_of(reply, {form_of(name): name for name in names.splitlines()})}
TABLE = [{"about": "", "dropped": 0} | json.loads(line)
         for line in (Path(__file__).parent / "replies.jsonl").read_text(encoding="utf-8").splitlines()]


def read(row: dict, reply: str) -> tuple[list, int]:
    """What is taken, in JSON's types, and how many parts are dropped, if a row's reply is written like this."""
    found = json.loads(json.dumps(READERS[row["kind"]](reply, row["about"])))
    return [value for value in found if value is not None], found.count(None)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row['kind']}: {row['written'][:40]!r}")
def test_the_table(row):
    assert read(row, row["written"]) == (row["taken"], row["dropped"])


# --- what is nothing ------------------------------------------------------------------------------------------------

WRAPS = ["{}", "**{}**", "\"{}\"", "“{}”", "'{}'", "‘{}’", "**\"{}\"**"]
LABELS = ["{}: ", "**{}:** ", "**{}**: ", "{}:"]
MARKS = ["", "* ", "- ", "+ ", "• ", "1. ", "2) "]
CASES = [str, str.upper, str.lower]


def values_in(value) -> list[str]:
    """The texts in JSON's lists."""
    return [text for inner in value for text in values_in(inner)] if isinstance(value, list) else [str(value)]


def decorated(row: dict, random) -> str:
    """The reply of a row with marks of a list, bold type, quotes, and labels in upper or lower case."""
    text = row["written"]
    for value in values_in(row["taken"]):
        text = re.sub(rf"(?m)(^|[:|] |, )({re.escape(value)})(?=$| \||,)",
                      lambda found: found[1] + random.choice(WRAPS).format(found[2]), text, count=1)
    text = re.sub(r"(?m)(^|, )(\*?[A-Z]\w+(?: (?!is )\w+){0,3}\*?): ",
                  lambda label: label[1] + random.choice(LABELS).format(random.choice(CASES)(label[2])), text)
    return "\n".join(random.choice(MARKS) + line for line in text.splitlines())


@pytest.mark.parametrize("row", [row for row in TABLE if row.get("plain")], ids=lambda row: row["kind"])
@hypothesis.given(st.randoms(use_true_random=False))
def test_decoration_changes_nothing(row, random):
    taken, dropped = read(row, decorated(row, random))
    assert re.findall(r"\w+", str(taken)) == re.findall(r"\w+", str(row["taken"])) and dropped == row["dropped"]
