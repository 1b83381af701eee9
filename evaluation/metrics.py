"""Scores of answers: F1, exact match, accuracy, ROUGE-L, and bootstrap intervals; and the summary of a run.

The paper names two sources of ROUGE-L, LongBench (the package rouge) and Hugging Face Evaluate (rouge_score), and does
not say which it prints. Here it is rouge_score's, because the published figures are as close to their F1 as it is.
"""
import re
import string
from collections import Counter
from pathlib import Path

import numpy as np

from core.files import TEXT, TEXTS, check_values, parse_json, reading

# --- F1 and exact match ---------------------------------------------------------------------------------------------

def words(text: str) -> list[str]:
    """The words of a text as LongBench's F1 compares them: see there."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def exact_match(prediction: str, answers: list[str]) -> float:
    """1 if the words of the prediction are those of some gold answer, in their order, else 0.

    GraphReader does not say how texts are normalised: as for F1 here.
    """
    return float(any(words(prediction) == words(answer) for answer in answers))


def f1(prediction: str, answers: list[str]) -> float:
    """LongBench's QA F1 in 0..1: the best over the gold answers.

    Both texts are lower-cased, then ASCII punctuation is deleted (no blank replaces it), then the words a, an, the. The
    score is the F1 of the two multisets of words: 0 if they share none, also if both are empty.
    """
    def score(answer):
        p, a = Counter(words(prediction)), Counter(words(answer))
        same = (p & a).total()
        return 2 * same / (p.total() + a.total()) if same else 0.0

    return max(map(score, answers))


# --- options --------------------------------------------------------------------------------------------------------

OPTIONS = ("options", "gold")                                    # what a row says about them


def option_of(prediction: str, options: list[str]) -> int | None:
    """The place of the one option that a prediction names, None if it names none or several.

    It may say "Answer: (C)", have a letter in brackets, be one letter, or be an option's text (in the words of F1); the
    first of these that occurs decides. No paper says how replies are matched.
    """
    letters = "".join(chr(ord("A") + n) for n in range(len(options)))
    for form in (rf"Answer:\s*\(([{letters}])\)", rf"\(([{letters}])\)", rf"\A\W*([{letters}])\W*\Z"):
        found = {letter.upper() for letter in re.findall(form, prediction, re.IGNORECASE)}
        if found:
            return letters.index(found.pop()) if len(found) == 1 else None

    same = [n for n, option in enumerate(options) if words(option) == words(prediction)]
    return same[0] if len(same) == 1 else None


def accuracy(rows: list[dict]) -> dict:
    """The share of rows whose prediction names the gold option, in percent. Empty if no row has options."""
    right = [100.0 * (option_of(row["prediction"], list(map(str, row["options"]))) == row.get("gold")) for row in rows
             if isinstance(row.get("options"), list)]
    return {"accuracy": mean(right)} if right else {}


# --- ROUGE-L --------------------------------------------------------------------------------------------------------

def rouge_l(prediction: str, answers: list[str]) -> float:
    """ROUGE-L of the package rouge_score, in 0..1: the best over the gold answers.

    The F-measure, without the stemmer. Texts are lower-cased; everything outside a-z and 0-9 separates words.
    Precision and recall of the longest common subsequence of the two word lists weigh the same. A text in another
    script has no words and scores 0.
    """
    def words(text):
        return re.sub(r"[^a-z0-9]+", " ", text.lower()).split()

    def score(answer):
        p, a = words(prediction), words(answer)
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

def mean(values: list) -> float:
    return sum(values) / len(values)


def interval(values: list[float]) -> list[float]:
    """The 95 % bootstrap interval of a mean, [low, high].

    The 2.5th and 97.5th percentile of the means of 1,000 samples, drawn with replacement.
    """
    places = np.random.default_rng(0).integers(0, len(values), (1000, len(values)))
    means = np.asarray(values)[places].mean(1)
    return np.percentile(means, [2.5, 97.5]).tolist()


def difference(rows: list[dict], others: list[dict]) -> dict | None:
    """Mean F1 of `rows` minus that of `others`, in points, over the questions that both answer; its 95 % interval.

    The difference is taken question by question, so that hard questions weigh on both sides alike. None if they share
    no question.
    """
    ours, theirs = ({row["id"]: f1(row["prediction"], row["answers"]) for row in of} for of in (rows, others))
    differences = [100 * (ours[id] - theirs[id]) for id in ours if id in theirs]
    return {"f1": mean(differences), "interval": interval(differences)} if differences else None


def scores(rows: list[dict]) -> dict:
    """The metrics of rows that hold a prediction and its answers, in percent.

    n, f1, em (exact match), rouge_l, the intervals of f1 and rouge_l, and the accuracy, if there are options.
    """
    found = {"n": len(rows)}
    for name, metric in (("f1", f1), ("em", exact_match), ("rouge_l", rouge_l)):
        values = [100 * metric(row["prediction"], row["answers"]) for row in rows]
        found[name] = mean(values)
        found[f"{name}_interval"] = interval(values)
    return found | accuracy(rows)


def summary(rows: list[dict]) -> dict:
    """The scores of a run's rows, and means: of FLOPs, nodes and tokens over the questions, of construction over the
    documents, each with its interval."""
    documents = list({row["hash"]: row for row in rows}.values())            # a row of each
    nodes = [row["nodes"] for row in rows]
    found = scores(rows) | {
        "documents": len(documents), "cut_documents": len({row["hash"] for row in rows if row["cut"]}),
        "histogram": {n: nodes.count(n) for n in sorted(set(nodes))}}

    for name, counted in (("nodes", rows), ("tokens", rows), ("flops", rows), ("construction_flops", documents)):
        values = [row[name] for row in counted]
        found[name] = mean(values)
        found[f"{name}_interval"] = interval(values)

    # Replies that a method asked for, for its documents and its questions.
    for name in ("calls", "refused"):
        found[name] = sum(row[name] for row in rows) + sum(row[f"construction_{name}"] for row in documents)
    return found


def read_predictions(path: str | Path) -> list[dict]:
    """Rows with prediction and answers, from a file of this project or of LongBench (`pred`).

    Raises InputError, which names the line that is neither.
    """
    with reading(path):
        lines = Path(path).read_text(encoding="utf-8").rstrip("\n").split("\n")

    rows = []
    for number, line in enumerate(lines, 1):
        place = f"{path}, line {number}"
        row = parse_json(line, place, dict)
        rows.append({"prediction": row.get("pred")} | row)
        check_values(rows[-1], {"prediction": TEXT, "answers": TEXTS}, f"{place}: not a prediction with its answers: ")
    return rows
