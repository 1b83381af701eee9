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

# prediction | gold answer | F1 by LongBench | ROUGE-L by rouge_score
WORKED = """
He went to the old mill by the river. | to the old mill         | .6 | .6154
The old mill.                         | the old mill            | 1  | 1
No, it is not.                        | No                      | .4 | .4
the cat saw the dog and the cat ran   | the cat and the dog ran | .8 | .6667
U.S. Army                             | US Army                 | 1  | .4
a well-known author                   | a well known author     | .4 | 1
The.                                  | the                     | 0  | 1
                                      | the mill                | 0  | 0
"""

# prediction | gold answers | exact match
EXACT = """
The Casa-Loma.       | casaloma, x          | 1
Loma Casa            | Casa Loma            | 0
Casa Loma in Toronto | Casa Loma            | 0
casa loma            | Toronto, a Casa Loma | 1
                     | A                    | 0
The                  | A                    | 0
a.                   | A                    | 1
                     | ?                    | 0
"""


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")] for line in table.strip("\n").splitlines()]


PARTS = ["the", "The", "a", "mill", "mill.", "old", ".", "..", "U.S.", "no,", "3.5", "1-2", "(x)", "é", "\n", "it's",
         "-", "dog", "dog", "cat"]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=14).map(" ".join)


@pytest.mark.parametrize("prediction, answers, wanted", cells(EXACT))
def test_exact_match_by_hand(prediction, answers, wanted):
    assert exact_match(prediction, answers.split(", ")) == int(wanted)


OPTIONS = ["He was ill", "He wanted money", "He wanted revenge.", "A dog bit him"]
REPLIES = {
    0: "Both B and C are wrong; it is A.|A|a|A)|"
       "Answer: A|The answer is A because he was ill.|A is correct.|a. He was ill|A\nB is about another.|"
       "A. He was ill.\nB and C are about others.",
    1: "It is neither A nor C. B.|(B), I mean (b)|It is (B), he wanted money.",
    2: "C|c.|(c)|C)|Answer: C|answer: (C)|The answer is C.|The correct answer is: **C**|**Answer:**\nC|Choice C|[C]|"
       "(C) He did|C) He wanted revenge|C. He did|C: he did|C - he did|**C**\n\nHe did|C, as he did|Option C is best.|"
       "(A) is wrong. The answer is C.|(B) is wrong. Answer: (C) He did|A is wrong, the answer is C|"
       "The answer is not A but C.|The answer is $\\boxed{C}$.|I think it's C.|C is the right one.|he wanted revenge|"
       "Because he wanted revenge, I think.|The answer isn't A. It's C.|The answer is neither A nor B; it is C.|"
       "He wanted revenge, which is a better answer than A|The answer is C rather than A.|A: no. B: no. C: yes. D: no.|"
       "C. He did\n\nExplanation: Option A is wrong because he ate. Option B is wrong.|(C) He did\n\n(A) is wrong as|"
       "The best option is C. Option A is not supported.|The answer cannot be A or B, so the answer is C.|"
       "A and B are wrong, so C.|A is incorrect; C is correct.|Option A is wrong. Option C is right.|"
       "(A) is wrong, (C) is right.|**A** isn't right. **C** is.|Option A (he was ill) is clearly wrong. C fits.|"
       "I don't think it's A. It is C.|Options A, B, and D are all unsupported, leaving C.|C is right and A is not.|"
       "A. Incorrect\nB. Incorrect\nC. Correct\nD. Incorrect|(A) No. (B) No. (C) Yes. (D) No.|A: C|A. (C)|'C'|"
       "**A.** Wrong. **C.** Right.|"
       "(A) He was ill - Incorrect.\n(B) He wanted money - Incorrect.\n(C) He wanted revenge - Correct.|"
       "A) He was ill (Incorrect)\nB) ❌\nC) ✅|While A is plausible, C is the best answer.|Q: Why?\nA: C|"
       "Option B seems plausible, but C is correct.|Eliminating options A and B, or D, leaves C.|"
       "Option (A) can be ruled out. Option (B) can be eliminated. So (C).|"
       "C: He was not paid|(C) No money|A) He was ill: not said.\nB) No.\nThe answer is C.|C is of interest.|"
       "C\n\nQ: And who?\nA: B|C is the one. A never is right.",
    3: "Answer: a dog bit him|A dog bit him|The answer is that a dog bit him.",
    None: "The answer is A or C|The answer: it can't be A.|The answer is either A or (C).|Answer: A, B|"
          "(A) He was ill\n(B) He wanted money\n(C) He wanted revenge|A. He was ill\nB. He wanted money|"
          "Option A or option C|The answer is **A** or **C**|The answer is not C|(E)|"
          "|(A) or (B)|B or C|A dog barked|I think a dog did it|He was ill or he wanted money|Not (C)|None of them|"
          "Answer: (A), no: Answer: (B)|I'd say D'Artagnan|A is no longer the best. B|C is at best wrong. A"}


@pytest.mark.parametrize("wanted, prediction", [(n, reply) for n in REPLIES for reply in REPLIES[n].split("|")])
def test_options_by_hand(prediction, wanted):
    """A reply that means one option counts, however it is written; letters that it denies do not."""
    assert metrics.option_of(prediction, OPTIONS) == wanted


@pytest.mark.parametrize("prediction", ["B. No.", "(B) No", "The answer is (B) No.", "B: No"])
def test_an_option_that_says_no_is_not_denied(prediction):
    assert metrics.option_of(prediction, ["Yes.", "No."]) == 1


@pytest.mark.parametrize("prediction, wanted", [("He is a doctor.", 0), ("It is B, not A", 1), ("B, no doubt", 1)])
def test_an_article_or_the_beginning_of_a_word_is_no_option(prediction, wanted):
    assert metrics.option_of(prediction, ["doctor", "no", "thief"]) == wanted


def test_accuracy_by_hand():
    """Accuracy is over the questions with options. A reply that fits two equal options names none."""
    rows = [{"prediction": prediction, "options": [*OPTIONS, 7], "gold": gold} for prediction, gold in (
        ("(B)", 1), ("(B)", 0), ("7", 4), ("?", 3))]
    assert metrics.accuracy([*rows, {"prediction": "x"}]) == {"accuracy": 50.0}
    assert metrics.accuracy([{"prediction": "x"}, {"prediction": "x", "options": OPTIONS, "gold": None}]) == {}
    assert metrics.option_of("Ann", ["Ann", "ann"]) is None
    assert metrics.option_of("“He can’t.”", ["He can.", "He can't."]) == 1, "typographic quotes"


@pytest.mark.parametrize("prediction, answer, by_longbench, by_rouge_score", cells(WORKED))
def test_worked_examples(prediction, answer, by_longbench, by_rouge_score):
    assert f1(prediction, [answer]) == pytest.approx(float(by_longbench), abs=5e-5)
    assert rouge_l(prediction, [answer]) == pytest.approx(float(by_rouge_score), abs=5e-5)


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
    for name in ("dureader.jsonl", "qasper_e.jsonl"):        # the second is LongBench-E's
        (tmp_path / name).write_text(GOOD, encoding="utf-8")
    assert len(read_predictions(tmp_path / "qasper_e.jsonl")) == 1
    with pytest.raises(InputError, match="LongBench's 'dureader' is not scored, only narr.*qasper"):
        read_predictions(tmp_path / "dureader.jsonl")


# ROUGE-L of LongBench's prediction files by the package rouge_score. Their F1 is in result.json.
OFFICIAL = {"llama2-7b-chat": {"narrativeqa": 20.52, "qasper": 23.85, "hotpotqa": 32.20, "musique": 13.37},
            "llama3-8b": {}}


@pytest.mark.skipif("PECAN_LONGBENCH_PREDICTIONS" not in os.environ, reason="set PECAN_LONGBENCH_PREDICTIONS to a "
                    "folder of LongBench's prediction files: RUN/TASK.jsonl, and RUN/result.json next to them")
@pytest.mark.parametrize("run", OFFICIAL)
@pytest.mark.parametrize("task", ["narrativeqa", "qasper", "hotpotqa", "musique"])
def test_the_official_figures_of_longbench(run, task):
    """F1 equals LongBench's own output to two decimals, Llama 2's ROUGE-L the package's."""
    folder = Path(os.environ["PECAN_LONGBENCH_PREDICTIONS"]) / run
    s = scores(read_predictions(folder / f"{task}.jsonl"))
    assert round(s["f1"], 2) == json.loads((folder / "result.json").read_text())[task]
    assert task not in OFFICIAL[run] or round(s["rouge_l"], 2) == OFFICIAL[run][task]


def test_differences_are_paired():
    """Differences are taken per question. If all are equal, the interval has no width, however scores vary."""
    def rows(*predictions):
        return [{"id": n, "prediction": text, "answers": ["a1 b1", "a2"]} for n, text in enumerate(predictions)]
    assert metrics.difference(rows("a1 b1", "a1 b1", "x", "a2"), rows("a1", "a1", "x"))["f1"] == pytest.approx(200 / 9)
    assert metrics.difference(rows("a1 b1", "a2"), rows("x", "x")) == {"f1": 100.0, "interval": [100.0, 100.0]}
    assert metrics.difference(rows("a1 b1", "x"), rows("a1 b1", "x"))["interval"] == [0.0, 0.0]
    assert metrics.difference(rows("x"), []) is None
