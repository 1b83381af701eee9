"""Scores of answers: F1, exact match, accuracy, ROUGE-L in both of its readings, BLEU-4, and bootstrap intervals.

The paper names two sources for its scores: LongBench (F1; ROUGE-L by the package rouge) and Hugging Face Evaluate
(ROUGE-L by rouge_score; BLEU). It does not say which ROUGE-L it prints. The tables here print rouge_score's, because
the published figures are as close to their F1 as that one is. The results hold the other as well.
"""
import math
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

OPTIONS = ("options", "gold", "difficult")                       # what a row says about them


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
    """The share of rows whose prediction names the gold option, in percent; of all, and of the difficult ones.

    Rows without options do not count. Empty if no row has any.
    """
    right = {"accuracy": [], "accuracy_difficult": []}
    for row in rows:
        if isinstance(row.get("options"), list):
            options = list(map(str, row["options"]))
            value = 100.0 * (option_of(row["prediction"], options) == row.get("gold"))
            right["accuracy"].append(value)
            if row.get("difficult"):
                right["accuracy_difficult"].append(value)
    return {name: sum(values) / len(values) for name, values in right.items() if values}


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
        longest = subsequence_table(p, a)[-1][-1]
        return 2 * longest / (len(p) + len(a)) if longest else 0.0

    return max(map(score, answers))


def rouge_l_of_rouge(prediction: str, answers: list[str]) -> float:
    """ROUGE-L of LongBench's package, rouge 1.0.1, in 0..1: the best over the gold answers.

    The F-measure. Case and punctuation are kept; "." separates sentences, blanks separate words. Each pair of sentences
    has a longest common subsequence; the different words of all of them are counted. P is this count over the different
    words of the prediction, R over those of the answer, and F = 2PR / (P + R + 1e-8). The score is 0 if the package
    fails: if a text is empty or holds nothing but full stops.
    """
    def sentences(text):
        return [" ".join(part.split()).split(" ") for part in text.split(".") if part]

    def words(sentences):
        return {word for sentence in sentences for word in sentence}

    def score(answer):
        p, a = sentences(prediction), sentences(answer)
        if not p or not a:
            return 0.0

        same = set()
        for sentence in a:
            for other in p:
                same.update(common_words(sentence, other))

        precision = len(same) / len(words(p))
        recall = len(same) / len(words(a))
        return 2 * precision * recall / (precision + recall + 1e-8)

    return max(map(score, answers))


def subsequence_table(x: list[str], y: list[str]) -> list[list[int]]:
    """Lengths of the longest common subsequences of two lists of words.

    table[i][j] is that of the first i words of x and the first j words of y.
    """
    table = [[0] * (len(y) + 1)]
    for word in x:
        above = table[-1]
        row = [0]
        for j, other in enumerate(y, 1):
            row.append(above[j - 1] + 1 if word == other else max(above[j], row[j - 1]))
        table.append(row)
    return table


def common_words(x: list[str], y: list[str]) -> list[str]:
    """The longest common subsequence of two lists of words, last word first.

    If there are several, it is the one that the package rouge finds.
    """
    table = subsequence_table(x, y)
    words = []
    i, j = len(x), len(y)
    while i and j:
        if x[i - 1] == y[j - 1]:
            words.append(x[i - 1])
            i, j = i - 1, j - 1
        elif table[i - 1][j] > table[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return words


# --- BLEU-4 ---------------------------------------------------------------------------------------------------------

def bleu4(predictions: list[str], answers: list[list[str]]) -> float:
    """BLEU-4 of a whole set in 0..1, as Hugging Face Evaluate computes it.

    GARLIC reports it (section 4.1). Words are mteval's 13a, case is kept, n-grams go up to 4. Nothing is smoothed, so
    it is 0 if no 4-gram matches. A count is clipped to the highest in any gold answer. If the predictions together are
    shorter than their shortest gold answers together, the score is reduced.
    """
    matches, possible = [0] * 4, [0] * 4
    length, shortest = 0, 0
    for prediction, gold in zip(predictions, answers):
        p = words_13a(prediction)
        references = [words_13a(answer) for answer in gold]
        length += len(p)
        shortest += min(map(len, references))

        for n in range(1, 5):
            most = Counter()
            for reference in references:
                most |= ngrams(reference, n)
            matches[n - 1] += (ngrams(p, n) & most).total()
            possible[n - 1] += max(0, len(p) - n + 1)
    if not all(matches):
        return 0.0

    brevity = 1.0 if length > shortest else math.exp(1 - shortest / length)
    return brevity * math.exp(sum(math.log(m / n) for m, n in zip(matches, possible)) / 4)


def ngrams(words: list[str], n: int) -> Counter:
    return Counter(tuple(words[i:i + n]) for i in range(len(words) - n + 1))


def words_13a(text: str) -> list[str]:
    """The words of mteval-v13a.

    Symbols are words. So are full stops and commas, unless they are between digits, and a dash after a digit.
    """
    text = text.replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for name, character in (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")):
        text = text.replace(name, character)

    text = re.sub(r"([{-~\[-` -&(-+:-@/])", r" \1 ", f" {text} ")
    text = re.sub(r"([^0-9])([.,])", r"\1 \2 ", text)
    text = re.sub(r"([.,])([^0-9])", r" \1 \2", text)
    text = re.sub(r"([0-9])(-)", r"\1 \2 ", text)
    return text.split()


# --- all of them ----------------------------------------------------------------------------------------------------

def interval(values: list[float], resamples: int = 1000, seed: int = 0) -> list[float]:
    """The 95 % bootstrap interval of a mean, [low, high].

    The 2.5th and 97.5th percentile of the means of `resamples` samples, drawn with replacement.
    """
    values = np.asarray(values)
    rng = np.random.default_rng(seed)
    means = values[rng.integers(0, len(values), (resamples, len(values)))].mean(1)
    return np.percentile(means, [2.5, 97.5]).tolist()


def difference(rows: list[dict], others: list[dict]) -> dict:
    """Mean F1 of `rows` minus that of `others`, in points, over the n questions that both answer; 95 % interval.

    The difference is taken question by question, so that hard questions weigh on both sides alike.
    """
    f1_of = {row["id"]: f1(row["prediction"], row["answers"]) for row in others}
    differences = [100 * (f1(row["prediction"], row["answers"]) - f1_of[row["id"]]) for row in rows
                   if row["id"] in f1_of]
    if not differences:
        return {"n": 0, "f1": None, "interval": None}
    return {"n": len(differences), "f1": sum(differences) / len(differences), "interval": interval(differences)}


def scores(rows: list[dict]) -> dict:
    """The metrics of rows that hold a prediction and its answers, in percent.

    n, f1, em (exact match), rouge_l, rouge (ROUGE-L by the package rouge), bleu4, the intervals of f1 and rouge_l, and
    the accuracy, if there are options.
    """
    predictions = [row["prediction"] for row in rows]
    answers = [row["answers"] for row in rows]
    values = {}
    for name, metric in (("f1", f1), ("em", exact_match), ("rouge_l", rouge_l),
                         ("rouge", rouge_l_of_rouge)):
        values[name] = [100 * metric(*pair) for pair in zip(predictions, answers)]

    found = {"n": len(rows)}
    for name in values:
        found[name] = sum(values[name]) / len(rows)
    found["bleu4"] = 100 * bleu4(predictions, answers)
    found |= accuracy(rows)
    for name in ("f1", "rouge_l"):
        found[f"{name}_interval"] = interval(values[name])
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
        key = "prediction" if "prediction" in row else "pred"
        check_values(row, {key: TEXT, "answers": TEXTS}, f"{place}: not a prediction with its answers: ")
        of_options = {name: row[name] for name in OPTIONS if name in row}
        rows.append({"prediction": row[key], "answers": row["answers"]} | of_options)
    return rows
