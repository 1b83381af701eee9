"""The metrics against the packages that define them, on worked examples and on random texts."""
import itertools
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
from evaluation.metrics import exact_match, f1, interval, read_predictions, rouge_l, scores
from evaluation.options import option_of


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
FORMS = ("{}|{}.|({})|{})|**{}**|'{}'|{}: he did|{} - he did|({}) He did|({}) {text}|{text}|{lower}.|({lower})|A: {}|"
         "Answer: {}|**Answer:** ({})|Answer: {text}|**Answer:**\n{}|The answer is {}.|$\\boxed{{{}}}$|"
         "The correct answer is ({}), because he was not paid.|Because {text}, I think.|Option {} is correct.|"
         "I think it's {}.|{} is the best.|{} fits best.|{} was right.|"
         "The answer is {lower}.|Answer: {lower}|option {lower}")
FOLLOWS = ("|\n\nA is wrong.|\n(B) is for others.|\n\nB, C and D are not supported.|\n\nA. no\nB. no|"
           "\n\nThe answer is not C.|\n\nExplanation: Option A is wrong, but option B might do.|\n\nQ: And who?\nA: D|"
           "\n\nHe was ill, but that is not why.|\nThe rest is not said")


def test_the_first_line_that_names_an_option_decides():
    """Whatever follows it. Letters are read in lower case, too, if they are marked."""
    for n, letter in enumerate("ABCD"):
        for form, follow in itertools.product(FORMS.split("|"), FOLLOWS.split("|")):
            reply = form.format(letter, text=OPTIONS[n].strip("."), lower=letter.lower()) + follow
            assert option_of(reply, OPTIONS) == n, reply


DENIED = ("Option {} is plausible, but it says so. The answer is {}.|"
          "The answer is not {} but {}.|Not ({}), so ({})|I don't think it's {}. It is {}.|{}: no. {}: yes.|"
          "{}) ❌\n{}) ✅|Option {} (he was fine) is wrong. So {} fits best.|**{}** isn't right. **{}** is.|"
          "{}. Wrong\n{}. Correct|({}) No. ({}) Yes.|{} can be ruled out. So {}.|{} is wrong, {} is right.|"
          "The answer is {1}, not {0}.|{1} is right and {0} is not.|I choose {1} instead of {0}.")
SEVERAL = "{} or {}|({}) or ({})|Answer: {}, {}|Either {} or ({}).|Option {} or option {}|Answer: {}, no: Answer: ({})"


def test_a_denial_takes_the_nearest_letter():
    """And two letters that are not denied name no option."""
    for (_, one), (n, other) in itertools.permutations(enumerate("ABCD"), 2):
        for form in (DENIED + "|" + SEVERAL).split("|"):
            reply = form.format(one, other)
            assert option_of(reply, OPTIONS) == (None if form in SEVERAL else n), reply


REPLIES = {
    0: "Both B and C are wrong; it is A.|The answer is A because he was ill.|A. He was ill.\nB and C are about others.",
    1: "It is neither A nor C. B.|(B), I mean (b)|It is (B), he wanted money.|Step 1: A is about it.\nThe answer is B.|"
       "Option A: he was well.\nOption B: he was poor.\n\nAnswer: B|A) He was well.\nB) He was poor.\n\nThe correct "
       "choice is B.|(A) is about him. (B) is about money.\n\nThe answer is (B).|Looking at A: he is.\n\n**Answer: B**|"
       "B\n\nQuestion: And who?\nAnswer: D|B seems to be the best choice; A is too narrow.|Option B would be the best "
       "answer, although option A could be argued.|B appears to be the correct answer, while A is only partly true.|"
       "B must be the answer, though A is tempting.|B is the best answer: A misses it.|B is the answer as A misses it.|"
       "I chose B as my answer, though A is close.",
    2: "While A is plausible, C is the best answer.|He wanted revenge, which is a better answer than A|C, as he did|"
       "The answer cannot be A or B, so the answer is C.|Options A, B, and D are all unsupported, leaving C.|"
       "C rather than A.|Q: Why?\nA: C|C is of interest.|C\n\nAnswer: A|(C)\n\nIf the answer was A, he would not.|"
       "(A) He was ill - Incorrect.\n(B) He wanted money - Incorrect.\n(C) He wanted revenge - Correct.|"
       "(A) He was ill\n(B) He wanted money\n(C) He wanted revenge\n(D) A dog bit him\n\nThe answer is C.",
    3: "The answer is that a dog bit him.",
    None: "|(E)|N/A|None of them|Not (C)|The answer: it can't be A.|A dog barked|I think a dog did it|"
          "I'd say D'Artagnan|He was ill or he wanted money|A) He was ill\nB) He wanted money\nC) He wanted revenge\n\n"
          "D) A dog"}


@pytest.mark.parametrize("wanted, prediction", [(n, reply) for n in REPLIES for reply in REPLIES[n].split("|")])
def test_options_by_hand(prediction, wanted):
    assert option_of(prediction, OPTIONS) == wanted


@pytest.mark.parametrize("prediction, options, wanted", table("""
B. No.                | Yes., No.            | 1
The answer is (B) No. | Yes., No.            | 1
B, no doubt           | yes, no              | 1
He is a doctor.       | doctor, no,          | 0
Answer: Vitamin C     | Vitamin A, Vitamin C | 1
“He can’t.”           | He can., He can't.   | 1"""))
def test_the_text_of_an_option_is_its_letter(prediction, options, wanted):
    """Whatever letters and denials are in it; the longest counts."""
    assert option_of(prediction, options.split(", ")) == int(wanted)


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
    with pytest.raises(InputError, match="LongBench's 'dureader' is not scored, only narr.*qasper"):
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
        return [{"id": n, "prediction": text, "answers": ["a1 b1", "a2"]} for n, text in enumerate(predictions)]
    assert metrics.difference(rows("a1 b1", "a1 b1", "x", "a2"), rows("a1", "a1", "x"))["f1"] == pytest.approx(200 / 9)
    assert metrics.difference(rows("a1 b1", "x"), rows("a1 b1", "x")) == {"f1": 0.0, "interval": [0.0, 0.0]}
    assert metrics.difference(rows("x"), []) is None
