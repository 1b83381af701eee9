"""The metrics against the packages that define them, on worked examples and on random texts."""
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge import Rouge
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU

from core.files import InputError
from evaluation import metrics
from evaluation.metrics import bleu4, exact_match, f1, interval, read_predictions, rouge_l, rouge_l_of_rouge, scores

# prediction, gold answer, F1 by LongBench, ROUGE-L by rouge, ROUGE-L by rouge_score
WORKED = [("He went to the old mill by the river.", "to the old mill", .6, .6667, .6154),
          ("The old mill.", "the old mill", 1, .6667, 1), ("No, it is not.", "No", .4, 0, .4),
          ("the cat saw the dog and the cat ran", "the cat and the dog ran", .8, .7273, .6667),
          ("U.S. Army", "US Army", 1, .4, .4), ("a well-known author", "a well known author", .4, .5714, 1),
          ("The.", "the", 0, 0, 1), ("", "the mill", 0, 0, 0)]
PARTS = ["the", "The", "a", "mill", "mill.", "old", ".", "..", "U.S.", "no,", "3.5", "1-2", "(x)", "é", "&amp;", "\n",
         "it's", "-", "dog", "dog", "cat"]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=14).map(" ".join)


def rouge(prediction, answer):
    """The package rouge as LongBench calls it: 0 if it raises."""
    try:
        return Rouge().get_scores([prediction], [answer], avg=True)["rouge-l"]["f"]
    except ValueError:
        return 0.0


@pytest.mark.parametrize("prediction, answers, wanted", [
    ("The Casa-Loma.", ["casaloma", "x"], 1), ("Loma Casa", ["Casa Loma"], 0),
    ("Casa Loma in Toronto", ["Casa Loma"], 0),
    ("casa loma", ["Toronto", "a Casa Loma"], 1)])
def test_exact_match_by_hand(prediction, answers, wanted):
    assert exact_match(prediction, answers) == wanted


OPTIONS = ["Ann", "The old mill.", "C", "A dog"]


@pytest.mark.parametrize("prediction, wanted", [
    ("(B) is wrong. Answer: (C) C", 2), ("(c)", 2), ("It is (B), the old mill.", 1), ("B", 1), (" b.", 1), ("B)", 1),
    ("old mill", 1), ("a dog", 3), ("Answer: a dog", None), ("(A) or (B)", None), ("Ann or a dog", None), ("", None),
    ("(E)", None), ("B is right", None), ("Answer: (A), no: Answer: (B)", None)])
def test_options_by_hand(prediction, wanted):
    assert metrics.option_of(prediction, OPTIONS) == wanted


def test_accuracy_by_hand():
    """Of all questions with options, and of the difficult ones; two equal options name none."""
    rows = [{"prediction": prediction, "options": OPTIONS, "gold": gold, "difficult": difficult}
            for prediction, gold, difficult in (("(B)", 1, 1), ("(B)", 0, 1), ("Ann", 0, 0), ("?", 3, 0))]
    assert metrics.accuracy(rows) == {"accuracy": 50.0, "accuracy_difficult": 50.0}
    assert metrics.accuracy([*rows[2:], {"prediction": "x"}]) == {"accuracy": 50.0}
    assert metrics.accuracy([{"prediction": "x"}]) == {} and metrics.option_of("Ann", ["Ann", "ann"]) is None
    assert scores([row | {"answers": ["Ann"]} for row in rows])["accuracy"] == 50.0


@pytest.mark.parametrize("prediction, answer, by_longbench, by_rouge, by_rouge_score", WORKED)
def test_worked_examples(prediction, answer, by_longbench, by_rouge, by_rouge_score):
    assert f1(prediction, [answer]) == pytest.approx(by_longbench, abs=5e-5)
    assert rouge_l_of_rouge(prediction, [answer]) == pytest.approx(by_rouge, abs=5e-5)
    assert rouge_l(prediction, [answer]) == pytest.approx(by_rouge_score, abs=5e-5)


def test_the_best_over_the_gold_answers():
    for metric in (f1, rouge_l, rouge_l_of_rouge):
        assert metric("the old mill", ["zzz", "old mill"]) == metric("the old mill", ["old mill"]) > 0


@given(TEXTS, TEXTS)
def test_rouge_l_equals_the_packages(prediction, answer):
    by_rouge_score = RougeScorer(["rougeL"]).score(answer, prediction)["rougeL"].fmeasure
    assert rouge_l(prediction, [answer]) == pytest.approx(by_rouge_score, abs=1e-12)
    assert rouge_l_of_rouge(prediction, [answer]) == pytest.approx(rouge(prediction, answer), abs=1e-12)


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=5))
def test_bleu_equals_sacrebleu(pairs):
    """With one gold answer the two definitions agree.

    With several, sacrebleu takes the closest length and Evaluate the shortest.
    """
    predictions, answers = map(list, zip(*pairs))
    sacrebleu = BLEU(tokenize="13a", smooth_method="none", force=True)
    by_sacrebleu = sacrebleu.corpus_score(predictions, [answers]).score / 100
    assert bleu4(predictions, [[answer] for answer in answers]) == pytest.approx(by_sacrebleu, abs=1e-9)


def test_bleu_with_several_answers_by_hand():
    """A count is clipped to the highest of any answer, and the shortest answer sets the length.

    "the the" counts twice, because one of the answers has it twice.
    """
    prediction = "the the cat sat down"
    answers = ["the the cat sat down there now", "cat sat down"]
    assert bleu4([prediction], [answers]) == 1.0
    assert bleu4(["the cat sat"], [["the cat sat"]]) == 0.0, "no 4-gram"
    assert bleu4(["a b c d"], [["a b c d e f g h"]]) == pytest.approx(2.718281828 ** -1)


def test_interval():
    """It is the same each time, around the mean, and as wide as the normal approximation says."""
    values = [0.0, 100.0] * 200
    low, high = interval(values)
    assert interval(values) == [low, high] and low < 50 < high
    assert high - low == pytest.approx(2 * 1.96 * 50 / 400 ** .5, rel=.1)
    assert interval([7.0] * 9) == [7.0, 7.0]


def test_scores_of_rows():
    rows = [{"prediction": "the old mill", "answers": ["old mill"]}, {"prediction": "cat", "answers": ["dog"]}]
    s = scores(rows)
    assert (s["n"], s["f1"], s["bleu4"]) == (2, 50.0, 0.0)
    assert s["f1_interval"] == [0.0, 100.0]
    assert s["rouge_l"] == pytest.approx(100 * rouge_l("the old mill", ["old mill"]) / 2)


@pytest.mark.parametrize("line", ["{", "[]", '{"pred": "x"}', '{"pred": 1, "answers": ["x"]}',
                                  '{"prediction": "x", "answers": []}'])
def test_a_line_that_is_no_prediction(tmp_path, line):
    path = tmp_path / "p.jsonl"
    path.write_text('{"pred": "x", "answers": ["x"], "all_classes": null, "length": 3}\n' + line)
    with pytest.raises(InputError, match="p.jsonl, line 2: (not|holds)"):
        read_predictions(path)

    path.write_text(path.read_text().splitlines()[0])
    assert read_predictions(path) == [{"prediction": "x", "answers": ["x"]}]


# ROUGE-L of LongBench's prediction files by the packages rouge and rouge_score. Their F1 is in result.json.
OFFICIAL = {"llama2-7b-chat": {"narrativeqa": (18.00, 20.52), "qasper": (20.43, 23.85), "hotpotqa": (24.76, 32.20),
                               "musique": (12.18, 13.37)}, "llama3-8b": {}}


@pytest.mark.skipif("PECAN_LONGBENCH_PREDICTIONS" not in os.environ, reason="set PECAN_LONGBENCH_PREDICTIONS to a "
                    "folder of LongBench's prediction files: RUN/TASK.jsonl, and RUN/result.json next to them")
@pytest.mark.parametrize("run", OFFICIAL)
@pytest.mark.parametrize("task", ["narrativeqa", "qasper", "hotpotqa", "musique"])
def test_the_official_figures_of_longbench(run, task):
    """F1 equals LongBench's own output to two decimals, ROUGE-L that of both packages."""
    folder = Path(os.environ["PECAN_LONGBENCH_PREDICTIONS"]) / run
    s = scores(read_predictions(folder / f"{task}.jsonl"))
    assert round(s["f1"], 2) == json.loads((folder / "result.json").read_text())[task]
    if task in OFFICIAL[run]:
        assert (round(s["rouge"], 2), round(s["rouge_l"], 2)) == OFFICIAL[run][task]


def test_differences_are_paired():
    """Question by question: two methods that differ by the same on hard and easy questions differ for certain."""
    def rows(*predictions):
        return [{"id": n, "prediction": text, "answers": ["a1 b1", "a2"]} for n, text in enumerate(predictions)]
    ours, theirs = rows("a1 b1", "a1 b1", "x", "a2"), rows("a1", "a1", "x", "x")
    found = metrics.difference(ours, theirs[:3])
    assert found["n"] == 3 and found["f1"] == pytest.approx((100 - 200 / 3) * 2 / 3)

    always = metrics.difference(rows("a1 b1", "a2"), rows("x", "x"))
    assert always == {"n": 2, "f1": 100.0, "interval": [100.0, 100.0]}
    hard_and_easy = metrics.difference(rows("a1 b1", "x"), rows("a1 b1", "x"))
    assert hard_and_easy["interval"] == [0.0, 0.0], "the spread of the questions is no spread of the difference"
    assert metrics.difference(rows("x"), []) == {"n": 0, "f1": None, "interval": None}
