"""The metrics against the packages that define them, on worked examples and on random texts."""
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from runs import table

from core.files import InputError
from evaluation import metrics
from evaluation.metrics import exact_match, f1, interval, option_of, read_predictions, rouge_l, scores


@pytest.mark.parametrize("prediction, answer, by_longbench, by_rouge_score", table("""
He went to the old mill by the river. | to the old mill         | .6 | .6154
The old mill.                         | the old mill            | 1  | 1
No, it is not.                        | No                      | .4 | .4
the cat saw the dog and the cat ran   | the cat and the dog ran | .8 | .6667
U.S. Army                             | US Army                 | 1  | .4
a well-known author                   | a well known author     | .4 | 1
The.                                  | the                     | 0  | 1
                                      | the mill                | 0  | 0"""))
def test_worked_examples(prediction, answer, by_longbench, by_rouge_score):
    assert f1(prediction, [answer]) == pytest.approx(float(by_longbench), abs=5e-5)
    assert rouge_l(prediction, [answer]) == pytest.approx(float(by_rouge_score), abs=5e-5)


PARTS = "the The a mill mill. old . .. U.S. no, 3.5 1-2 (x) é it's - dog dog cat".split() + ["\n"]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=14).map(" ".join)


@given(TEXTS, TEXTS)
def test_rouge_l_equals_the_package(prediction, answer):
    by_rouge_score = RougeScorer(["rougeL"]).score(answer, prediction)["rougeL"].fmeasure
    assert rouge_l(prediction, [answer]) == pytest.approx(by_rouge_score, abs=1e-12)


@pytest.mark.parametrize("prediction, answers, wanted", table("""
The Casa-Loma.       | casaloma, x          | 1
Loma Casa            | Casa Loma            | 0
Casa Loma in Toronto | Casa Loma            | 0
casa loma            | Toronto, a Casa Loma | 1
                     | A                    | 0
The                  | A                    | 0
a.                   | A                    | 1
                     | ?                    | 0"""))
def test_exact_match_by_hand(prediction, answers, wanted):
    assert exact_match(prediction, answers.split(", ")) == int(wanted)


# --- options --------------------------------------------------------------------------------------------------------

OPTIONS = ["He was ill", "He wanted money", "He wanted revenge.", "A dog bit him"]


@pytest.mark.parametrize("wanted, replies", [
    (1, ["B", "b", "B.", "(B)", "(b) He wanted", "B. He", "B) no", "B: no", "**B**", "**(B)** He", "Well:\n\nB\nA"]),
    (2, ["He wanted revenge", "**he wanted revenge.**", "Let me think.\nHe wanted revenge.\nA"]),
    (3, ["A dog bit him", "D\nA. He was ill"]),
    (None, ["", "E", "(E)", "A dog barked", "The answer is B", "B.B. King", "He wanted revenge or money"])])
def test_the_first_line_that_is_an_option_or_begins_with_its_letter(wanted, replies):
    assert {option_of(reply, OPTIONS) for reply in replies} == {wanted}


def test_accuracy_by_hand():
    """Accuracy is over the questions with options."""
    rows = [{"prediction": prediction, "options": [*OPTIONS, 7], "gold": gold} for prediction, gold in (
        ("(B)", 1), ("(B)", 0), ("7", 4), ("?", 3), ("(B)", None))]
    assert metrics.accuracy([*rows, {"prediction": "x"}]) == {"accuracy": 50.0}
    assert metrics.accuracy(rows[4:]) == {}


# --- all of them ----------------------------------------------------------------------------------------------------

def test_interval():
    """It is the same each time, contains the mean, and is as wide as the normal approximation says."""
    values = [0.0, 100.0] * 200
    low, high = interval(values)
    assert interval(values) == [low, high] and low < 50 < high
    assert high - low == pytest.approx(2 * 1.96 * 50 / 400 ** .5, rel=.1)
    assert interval([7.0] * 9) == [7.0, 7.0]


GOOD = '{"pred": "x\u2028", "answers": ["x"], "all_classes": null, "length": 3}'
WRONG = """{
[]
{"pred": "x"}
{"pred": 1, "answers": ["x"]}
{"prediction": "x", "answers": []}
{"pred": "x", "answers": ["x"], "options": [], "gold": 0}
{"pred": "x", "answers": ["x"], "options": {"A": 1}, "gold": 0}
{"pred": "x", "answers": ["x"], "options": ["x"], "gold": "A"}
{"pred": "x", "answers": ["x"], "options": ["x"], "gold": 1}"""


@pytest.mark.parametrize("line", WRONG.splitlines())
def test_a_line_that_is_no_prediction(tmp_path, line):
    """A byte order mark and empty lines do no harm. U+2028 ends no line."""
    path = tmp_path / "qasper.jsonl"
    path.write_text(f"\ufeff\n{GOOD}\n \n{line}", encoding="utf-8")
    with pytest.raises(InputError, match="qasper.jsonl, line 4: (not|holds|options|gold)"):
        read_predictions(path)
    path.write_text("\n")
    with pytest.raises(InputError, match="qasper.jsonl: holds no prediction"):
        read_predictions(path)
    path.write_text(GOOD, encoding="utf-8")
    path = path.rename(tmp_path / "qasper_e.jsonl")          # LongBench-E's
    assert len(read_predictions(path)) == 1
    with pytest.raises(InputError, match="LongBench's 'dureader' is not read, only narr.*qasper"):
        read_predictions(path.rename(tmp_path / "dureader.jsonl"))


@pytest.mark.skipif("PECAN_LONGBENCH_PREDICTIONS" not in os.environ, reason="set PECAN_LONGBENCH_PREDICTIONS to a "
                    "folder of LongBench's prediction files: RUN/TASK.jsonl, and RUN/result.json next to them")
@pytest.mark.parametrize("run", ["llama2-7b-chat", "llama3-8b"])
@pytest.mark.parametrize("task", "narrativeqa qasper hotpotqa musique".split())
def test_the_official_figures_of_longbench(run, task):
    """F1 equals LongBench's own output to two decimals."""
    folder = Path(os.environ["PECAN_LONGBENCH_PREDICTIONS"]) / run
    found = scores(read_predictions(folder / f"{task}.jsonl"))
    assert round(found["f1"], 2) == json.loads((folder / "result.json").read_text())[task]


def test_differences_are_paired():
    """Differences are taken per question. If all are equal, the interval has no width, however scores vary."""
    def rows(*predictions):
        return [{"id": n, "document": "d", "prediction": text, "answers": ["a1 b1", "a2"]}
                for n, text in enumerate(predictions)]
    assert metrics.difference(rows("a1 b1", "a1 b1", "x", "a2"), rows("a1", "a1", "x"))["f1"] == pytest.approx(200 / 9)
    assert metrics.difference(rows("a1 b1", "x"), rows("a1 b1", "x")) == {"f1": 0.0, "interval": [0.0, 0.0]}
    assert metrics.difference(rows("x"), []) is None
