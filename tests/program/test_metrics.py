"""The metrics against the packages that define them, on worked examples and on random texts."""
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from core.files import InputError
from evaluation import metrics
from evaluation.metrics import exact_match, f1, interval, read_predictions, rouge_l, scores

# prediction, gold answer, F1 by LongBench, ROUGE-L by rouge_score
WORKED = [("He went to the old mill by the river.", "to the old mill", .6, .6154),
          ("The old mill.", "the old mill", 1, 1), ("No, it is not.", "No", .4, .4),
          ("the cat saw the dog and the cat ran", "the cat and the dog ran", .8, .6667),
          ("U.S. Army", "US Army", 1, .4), ("a well-known author", "a well known author", .4, 1),
          ("The.", "the", 0, 1), ("", "the mill", 0, 0)]
PARTS = ["the", "The", "a", "mill", "mill.", "old", ".", "..", "U.S.", "no,", "3.5", "1-2", "(x)", "é", "\n", "it's",
         "-", "dog", "dog", "cat"]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=14).map(" ".join)


@pytest.mark.parametrize("prediction, answers, wanted", [
    ("The Casa-Loma.", ["casaloma", "x"], 1), ("Loma Casa", ["Casa Loma"], 0), ("Casa Loma in Toronto", ["Casa Loma"],
    0), ("casa loma", ["Toronto", "a Casa Loma"], 1)])
def test_exact_match_by_hand(prediction, answers, wanted):
    assert exact_match(prediction, answers) == wanted


OPTIONS = ["Ann", "The old mill.", "C", "A dog"]


@pytest.mark.parametrize("prediction, wanted", [
    ("(B) is wrong. Answer: (C) C", 2), ("(c)", 2), ("It is (B), the old mill.", 1), ("B", 1), (" b.", 1), ("B)", 1),
    ("old mill", 1), ("a dog", 3), ("Answer: a dog", None), ("(A) or (B)", None), ("Ann or a dog", None), ("", None),
    ("(E)", None), ("B is right", None), ("Answer: (A), no: Answer: (B)", None),
    ("(B), I mean (b)", 1)])
def test_options_by_hand(prediction, wanted):
    assert metrics.option_of(prediction, OPTIONS) == wanted


def test_accuracy_by_hand():
    """Accuracy is over the questions with options. A reply that fits two equal options names none."""
    rows = [{"prediction": prediction, "options": [*OPTIONS, 7], "gold": gold} for prediction, gold in (
        ("(B)", 1), ("(B)", 0), ("7", 4), ("?", 3))]
    assert metrics.accuracy([*rows, {"prediction": "x"}]) == {"accuracy": 50.0}
    assert metrics.accuracy([{"prediction": "x"}, {"prediction": "x", "options": OPTIONS}]) == {}
    assert metrics.option_of("Ann", ["Ann", "ann"]) is None


@pytest.mark.parametrize("prediction, answer, by_longbench, by_rouge_score", WORKED)
def test_worked_examples(prediction, answer, by_longbench, by_rouge_score):
    assert f1(prediction, [answer]) == pytest.approx(by_longbench, abs=5e-5)
    assert rouge_l(prediction, [answer]) == pytest.approx(by_rouge_score, abs=5e-5)


def test_the_best_over_the_gold_answers():
    for metric in (f1, rouge_l):
        best = metric("the old mill", ["old mill"])
        assert metric("the old mill", ["zzz", "old mill"]) == metric("the old mill", ["old mill", "zzz"]) == best > 0


@given(TEXTS, TEXTS)
def test_rouge_l_equals_the_package(prediction, answer):
    by_rouge_score = RougeScorer(["rougeL"]).score(answer, prediction)["rougeL"].fmeasure
    assert rouge_l(prediction, [answer]) == pytest.approx(by_rouge_score, abs=1e-12)


def test_interval():
    """It is the same each time, contains the mean, and is as wide as the normal approximation says."""
    values = [0.0, 100.0] * 200
    low, high = interval(values)
    assert interval(values) == [low, high] and low < 50 < high
    assert high - low == pytest.approx(2 * 1.96 * 50 / 400 ** .5, rel=.1)
    assert interval([7.0] * 9) == [7.0, 7.0]


def test_scores_of_rows():
    """Scores and intervals belong to their own metrics: words in another order have F1 1, ROUGE-L 1/2 and EM 0."""
    rows = [{"prediction": text, "answers": ["Mara Lee"]} for text in ("Mara Lee", "Lee Mara") * 10]
    found = scores(rows)
    assert (found["n"], found["f1"], found["rouge_l"], found["em"]) == (20, 100, 75, 50)
    assert found["f1_interval"] == [100, 100] and found["rouge_l_interval"] == interval([100, 50] * 10)


@pytest.mark.parametrize("line", ["{", "[]", '{"pred": "x"}', '{"pred": 1, "answers": ["x"]}',
                                  '{"prediction": "x", "answers": []}',
                                  '{"pred": "x", "answers": ["x"], "options": [], "gold": 0}',
                                  '{"pred": "x", "answers": ["x"], "options": ["x"], "gold": "A"}',
                                  '{"pred": "x", "answers": ["x"], "options": ["x"], "gold": 1}'])
def test_a_line_that_is_no_prediction(tmp_path, line):
    path = tmp_path / "p.jsonl"
    path.write_text('{"pred": "x", "answers": ["x"], "all_classes": null, "length": 3}\n' + line)
    with pytest.raises(InputError, match="p.jsonl, line 2: (not|holds|options|gold)"):
        read_predictions(path)

    path.write_text(path.read_text().splitlines()[0])
    assert [(row["prediction"], row["answers"]) for row in read_predictions(path)] == [("x", ["x"])]


# ROUGE-L of LongBench's prediction files by the package rouge_score. Their F1 is in result.json.
OFFICIAL = {"llama2-7b-chat": {"narrativeqa": 20.52, "qasper": 23.85, "hotpotqa": 32.20, "musique": 13.37},
            "llama3-8b": {}}


@pytest.mark.skipif("PECAN_LONGBENCH_PREDICTIONS" not in os.environ, reason="set PECAN_LONGBENCH_PREDICTIONS to a "
                    "folder of LongBench's prediction files: RUN/TASK.jsonl, and RUN/result.json next to them")
@pytest.mark.parametrize("run", OFFICIAL)
@pytest.mark.parametrize("task", ["narrativeqa", "qasper", "hotpotqa", "musique"])
def test_the_official_figures_of_longbench(run, task):
    """F1 equals LongBench's own output to two decimals, ROUGE-L the package's."""
    folder = Path(os.environ["PECAN_LONGBENCH_PREDICTIONS"]) / run
    s = scores(read_predictions(folder / f"{task}.jsonl"))
    assert round(s["f1"], 2) == json.loads((folder / "result.json").read_text())[task]
    assert round(s["rouge_l"], 2) == OFFICIAL[run].get(task, round(s["rouge_l"], 2))


def test_differences_are_paired():
    """Differences are taken per question. If all are equal, the interval has no width, however scores vary."""
    def rows(*predictions):
        return [{"id": n, "prediction": text, "answers": ["a1 b1", "a2"]} for n, text in enumerate(predictions)]
    ours, theirs = rows("a1 b1", "a1 b1", "x", "a2"), rows("a1", "a1", "x", "x")
    assert metrics.difference(ours, theirs[:3])["f1"] == pytest.approx((100 - 200 / 3) * 2 / 3)
    assert metrics.difference(rows("a1 b1", "a2"), rows("x", "x")) == {"f1": 100.0, "interval": [100.0, 100.0]}
    hard_and_easy = metrics.difference(rows("a1 b1", "x"), rows("a1 b1", "x"))
    assert hard_and_easy["interval"] == [0.0, 0.0], "the spread of the questions is no spread of the difference"
    assert metrics.difference(rows("x"), []) is None
