"""Scores of answers (F1, exact match, accuracy, ROUGE-L) with bootstrap intervals, and the summary of a run.

The paper names two sources of ROUGE-L, LongBench (package rouge) and Hugging Face Evaluate (package rouge_score), and
does not say which it prints. We use rouge_score, because its values are as close to F1 as the published ones.
"""
import re
import string
from collections import Counter
from pathlib import Path
from statistics import fmean

import numpy as np

from core.files import TEXT, TEXTS, InputError, check_values
from data import json_lines
from evaluation.answers import ABOUT, OPTIONS, answer_files, key_of
from evaluation.layouts import check_options, task_of

# --- F1 and exact match ---------------------------------------------------------------------------------------------

def words(text: str) -> list[str]:
    """The words of a text as LongBench's F1 compares them (see `f1`)."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def exact_match(prediction: str, answers: list[str]) -> float:
    """1 if the prediction has the same words in the same order as some gold answer, else 0.

    GraphReader does not say how it normalises texts; we do it as for F1. An answer that has no words then, such as "A",
    is compared as it is, so that no empty prediction equals it.
    """
    def normal(text):
        return words(text) or text.lower().strip(string.punctuation + string.whitespace)

    return float(any(normal(prediction) == normal(answer) != "" for answer in answers))


def f1(prediction: str, answers: list[str]) -> float:
    """LongBench's QA F1 in 0..1: the best over the gold answers.

    Both texts are lower-cased. ASCII punctuation is deleted without a blank in its place, then the words a, an and the.
    The score is the F1 of the two multisets of words. It is 0 if they share no word, even if both are empty.
    """
    def score(answer):
        p = Counter(words(prediction))
        a = Counter(words(answer))
        same = (p & a).total()
        return 2 * same / (p.total() + a.total()) if same else 0.0

    return max(map(score, answers))


# --- options --------------------------------------------------------------------------------------------------------

def option_of(prediction: str, options: list[str]) -> int | None:
    """The index of the option that a reply names: by the first line that names one. None if no line does.

    A line names an option if it is the option's text, or the option's letter, or begins with the letter in one of the
    forms "(B)", "B.", "B)", "B:" and then a blank. Case, bold type and a full stop at the end are nothing. So "A dog
    barked" and "The answer is B" name none. The papers do not say how they match replies.
    """
    letters = string.ascii_lowercase[:len(options)]
    texts = [option.strip().rstrip(".").casefold() for option in options]
    for line in prediction.replace("**", "").casefold().splitlines():
        said = line.strip().rstrip(".")
        if said and said in texts:
            return texts.index(said)
        found = re.match(rf"\(?([{letters}])(?:[.):]+\s|\)?$)", said)
        if found:
            return letters.index(found[1])
    return None


def accuracy(rows: list[dict]) -> dict:
    """The percentage of rows whose prediction names the gold option; {} if no row has options and `gold`."""
    right = [100.0 * (option_of(row["prediction"], list(map(str, row["options"]))) == row["gold"]) for row in rows
             if None not in map(row.get, OPTIONS)]
    return {"accuracy": fmean(right)} if right else {}


# --- ROUGE-L --------------------------------------------------------------------------------------------------------

def rouge_l(prediction: str, answers: list[str]) -> float:
    """ROUGE-L of the package rouge_score, in 0..1: the best over the gold answers.

    This is the F1 of the longest common subsequence of the two word lists, without stemming. Texts are lower-cased;
    everything outside a-z and 0-9 separates words. So a text in another script has no words and scores 0.
    """
    def words(text):
        return re.findall("[a-z0-9]+", text.lower())

    def score(answer):
        p = words(prediction)
        a = words(answer)
        longest = common_words(p, a)
        return 2 * longest / (len(p) + len(a)) if longest else 0.0

    return max(map(score, answers))


def common_words(x: list[str], y: list[str]) -> int:
    """The length of the longest common subsequence of two lists of words."""
    above = [0] * (len(y) + 1)
    for word in x:
        row = [0]
        for j, other in enumerate(y, 1):
            row.append(above[j - 1] + 1 if word == other else max(above[j], row[j - 1]))
        above = row
    return above[-1]


# --- all of them ----------------------------------------------------------------------------------------------------

def interval(values: list[float]) -> list[float]:
    """The 95 % bootstrap interval of a mean, [low, high].

    The 2.5th and 97.5th percentile of the means of 1,000 samples, drawn with replacement and with seed 0.
    """
    drawn = np.random.default_rng(0).integers(0, len(values), (1000, len(values)))
    means = np.asarray(values)[drawn].mean(1)
    return np.percentile(means, [2.5, 97.5]).tolist()


def with_interval(name: str, values: list[float]) -> dict:
    return {name: fmean(values), f"{name}_interval": interval(values)}


def f1_of(row: dict) -> float:
    """The F1 of a row in percent, which the row keeps."""
    if "f1" not in row:
        row["f1"] = 100 * f1(row["prediction"], row["answers"])
    return row["f1"]


def difference(rows: list[dict], others: list[dict]) -> dict | None:
    """Mean F1 of `rows` minus mean F1 of `others`, in points, with its 95 % interval; None if they share no question.

    The difference is taken on each question that both have answered, so a hard question affects both alike.
    """
    ours, theirs = ({key_of(row): f1_of(row) for row in of} for of in (rows, others))
    differences = [ours[key] - theirs[key] for key in ours if key in theirs]
    return {"f1": fmean(differences), "interval": interval(differences)} if differences else None


def shared(rows: list[dict], others: list[dict]) -> list[list[dict]]:
    """The rows of both about the same questions, whose id, words, document and gold answers are equal; none of
    LongBench's.
    """
    ours, theirs = ({str([row.get(name) for name in ABOUT]): row for row in of if "hash" in row}
                    for of in (rows, others))
    return [[of[question] for question in ours if question in theirs] for of in (ours, theirs)]


def scores(rows: list[dict]) -> dict:
    """The metrics, in percent, of rows with a prediction and gold answers.

    n; f1, em (exact match) and rouge_l, each with its interval; accuracy, if there are options.
    """
    found = {"n": len(rows)} | with_interval("f1", [f1_of(row) for row in rows])
    for name, metric in (("em", exact_match), ("rouge_l", rouge_l)):
        found |= with_interval(name, [100 * metric(row["prediction"], row["answers"]) for row in rows])
    return found | accuracy(rows)


def is_yes_or_no(texts: list[str]) -> bool:
    """Whether some text is only Yes or No."""
    return any(words(text) in (["yes"], ["no"]) for text in texts)


def summary(rows: list[dict], pecan: list[dict] | None = None) -> dict:
    """The scores of a run's rows, and means with their intervals; `pecan` are the rows of PECAN's run, to compare with.

    FLOPs, nodes and tokens are means over questions; construction FLOPs are a mean over documents. `counts` are sums
    over both. `first_word_again` counts answers that are only Yes or No, as the first turn is, where no gold answer is.
    """
    documents = list({row["hash"]: row for row in rows}.values())            # one row of each
    found = scores(rows) | {
        "documents": len(documents), "cut_documents": len({row["hash"] for row in rows if row["cut"]}),
        "histogram": dict(sorted(Counter(row["nodes"] for row in rows).items())),
        "graphs": sum(row["graph"] is not None for row in documents),
        "first_word_again": sum(is_yes_or_no([row["prediction"]]) and not is_yes_or_no(row["answers"])
                                for row in rows)}
    for name, counted in (("nodes", rows), ("tokens", rows), ("flops", rows), ("construction_flops", documents)):
        found |= with_interval(name, [row[name] for row in counted])

    counts = Counter()
    for counted in (*(row["counts"] for row in rows), *(row["construction_counts"] for row in documents)):
        counts.update(counted)
    found["counts"] = dict(counts)

    # What is compared with PECAN is compared on the questions that both have answered.
    flops = {key_of(row): row["flops"] for row in pecan or ()}
    both = [(row["flops"], flops[key_of(row)]) for row in rows if key_of(row) in flops]
    if both:
        ours, theirs = map(sum, zip(*both))
        found["ratio"] = ours / theirs
        found["difference"] = difference(rows, pecan) if rows is not pecan else None
    return found


def read_predictions(path: str | Path) -> list[dict]:
    """Rows with prediction and answers, from a file of this project, with those of its other processes, or of LongBench
    (`pred`).

    InputError names the first line without them, or with impossible options. A LongBench file must be of an English
    question answering task, which is its name, or the end of FILE:TASK.
    """
    rows = []
    task = Path(path).name.split(".")[0]
    if not Path(path).exists() and ":" in str(path):
        path, _, task = str(path).rpartition(":")

    lines = [(file, *line) for file in answer_files(path) or [Path(path)] for line in json_lines(file)]
    for file, number, row in lines:
        if "pred" in row:
            task_of(task, f"{path}:TASK")
        row = {"prediction": row.get("pred")} | row
        where = f"{file}, line {number}: "
        check_values(row, {"prediction": TEXT, "answers": TEXTS}, f"{where}not a prediction with its answers: ")
        if None not in map(row.get, OPTIONS):
            try:
                check_options(row)
            except InputError as error:
                raise InputError(f"{where}{error}") from None
        rows.append(row)
    if not rows:
        raise InputError(f"{path}: holds no prediction")
    return rows
