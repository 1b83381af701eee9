"""Scores of answers: F1, ROUGE-L in both of its readings, BLEU-4, and bootstrap intervals.

The paper scores with LongBench's source (F1; its ROUGE-L is the package rouge's) and Hugging Face Evaluate (ROUGE-L of
rouge_score, BLEU), and does not say which ROUGE-L it prints. Tables here print rouge_score's, because the published
figures stay as close to their F1 as that one does; the other is told beside it.
"""
import json
import math
import re
import string
from collections import Counter
from pathlib import Path

import numpy as np

from support.files import InputError


def f1(prediction: str, answers: list[str]) -> float:
    """LongBench's QA F1 in 0..1: the best over the gold answers.

    Both texts are lower-cased, stripped of ASCII punctuation (nothing put in its place) and of the words a, an, the; F1
    of the two multisets of words. 0 where they share none, also where both are empty.
    """
    def words(text):
        text = "".join(c for c in text.lower() if c not in string.punctuation)
        return Counter(re.sub(r"\b(a|an|the)\b", " ", text).split())

    def score(answer):
        p, a = words(prediction), words(answer)
        same = (p & a).total()
        return 2 * same / (p.total() + a.total()) if same else 0.0
    return max(map(score, answers))


def rouge_l(prediction: str, answers: list[str]) -> float:
    """ROUGE-L F-measure in 0..1 as the package rouge_score defines it (no stemmer): the best over the gold answers.

    Lower-cased, everything outside a-z and 0-9 separates words; longest common subsequence of the two word lists,
    precision and recall weighted alike. Text in another script has no words and scores 0.
    """
    def words(text):
        return re.sub(r"[^a-z0-9]+", " ", text.lower()).split()

    def score(answer):
        p, a = words(prediction), words(answer)
        row = [0] * (len(a) + 1)                            # LCS of the words of p so far and every prefix of a
        for word in p:
            above = 0
            for j, other in enumerate(a, 1):
                above, row[j] = row[j], above + 1 if word == other else max(row[j], row[j - 1])
        return 2 * row[-1] / (len(p) + len(a)) if row[-1] else 0.0
    return max(map(score, answers))


def rouge_l_of_rouge(prediction: str, answers: list[str]) -> float:
    """ROUGE-L F-measure in 0..1 as the package rouge 1.0.1 defines it, which LongBench calls: the best over the gold
    answers.

    Case and punctuation stay; "." separates sentences, blanks separate words. The words of the longest common
    subsequences of every pair of sentences are counted once each, over the different words of either text; F = 2PR / (P
    + R + 1e-8). 0 where the package fails: a text that is empty or all full stops.
    """
    def sentences(text):
        return [" ".join(part.split()).split(" ") for part in text.split(".") if part]

    def score(answer):
        p, a = sentences(prediction), sentences(answer)
        if not p or not a:
            return 0.0
        same = {word for theirs in a for ours in p for word in _common(theirs, ours)}
        precision, recall = (len(same) / len({word for sentence in text for word in sentence}) for text in (p, a))
        return 2 * precision * recall / (precision + recall + 1e-8)
    return max(map(score, answers))


def _common(x: list[str], y: list[str]) -> list[str]:
    """The longest common subsequence of two lists of words; of several, the one that the package finds."""
    table = [[0] * (len(y) + 1)]
    for word in x:
        above, row = table[-1], [0]
        for j, other in enumerate(y, 1):
            row.append(above[j - 1] + 1 if word == other else max(above[j], row[j - 1]))
        table.append(row)
    i, j, words = len(x), len(y), []
    while i and j:
        if x[i - 1] == y[j - 1]:
            words.append(x[i - 1])
            i, j = i - 1, j - 1
        elif table[i - 1][j] > table[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return words


def bleu4(predictions: list[str], answers: list[list[str]]) -> float:
    """BLEU-4 of a whole set in 0..1 as Hugging Face Evaluate computes it (GARLIC, section 4.1): mteval's 13a words,
    case kept, up to 4-grams, no smoothing; 0 where no 4-gram matches. Counts are clipped by the most of any gold
    answer; the length to reach is that of the shortest."""
    matches, possible, length, wanted = [0] * 4, [0] * 4, 0, 0
    for prediction, gold in zip(predictions, answers):
        p, references = _words_13a(prediction), [_words_13a(answer) for answer in gold]
        length, wanted = length + len(p), wanted + min(map(len, references))
        for n in range(1, 5):
            most = Counter()
            for reference in references:
                most |= _ngrams(reference, n)
            matches[n - 1] += (_ngrams(p, n) & most).total()
            possible[n - 1] += max(0, len(p) - n + 1)
    if not all(matches):
        return 0.0
    brevity = 1.0 if length > wanted else math.exp(1 - wanted / length)
    return brevity * math.exp(sum(math.log(m / n) for m, n in zip(matches, possible)) / 4)


def _ngrams(words: list[str], n: int) -> Counter:
    return Counter(tuple(words[i:i + n]) for i in range(len(words) - n + 1))


def _words_13a(text: str) -> list[str]:
    """mteval-v13a: symbols stand alone, full stops and commas too unless between digits, a dash behind a digit."""
    text = text.replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for name, character in (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")):
        text = text.replace(name, character)
    text = re.sub(r"([{-~\[-` -&(-+:-@/])", r" \1 ", f" {text} ")
    text = re.sub(r"([^0-9])([.,])", r"\1 \2 ", text)
    text = re.sub(r"([.,])([^0-9])", r" \1 \2", text)
    return re.sub(r"([0-9])(-)", r"\1 \2 ", text).split()


def interval(values: list[float], resamples: int = 1000, seed: int = 0) -> list[float]:
    """95 % interval of a mean: the 2.5th and 97.5th percentile of the means of `resamples` bootstrap samples."""
    values, rng = np.asarray(values), np.random.default_rng(seed)
    means = [values[rng.integers(0, len(values), len(values))].mean() for _ in range(resamples)]
    return np.percentile(means, [2.5, 97.5]).tolist()


def scores(rows: list[dict]) -> dict:
    """Of rows with prediction and answers: n, and in percent f1, rouge_l, rouge (the package rouge's ROUGE-L), bleu4,
    and the intervals of the first two."""
    texts = [(row["prediction"], row["answers"]) for row in rows]
    of = {name: [100 * metric(*text) for text in texts]
          for name, metric in (("f1", f1), ("rouge_l", rouge_l), ("rouge", rouge_l_of_rouge))}
    return {"n": len(rows), **{name: sum(values) / len(rows) for name, values in of.items()},
            "bleu4": 100 * bleu4(*map(list, zip(*texts))),
            **{f"{name}_interval": interval(of[name]) for name in ("f1", "rouge_l")}}


def read_predictions(path: str | Path) -> list[dict]:
    """Rows with prediction and answers of a file of predictions, this project's or LongBench's (`pred`). InputError
    names the line that is neither."""
    try:
        lines = Path(path).read_text(encoding="utf-8").rstrip("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            prediction, answers = row["prediction"] if "prediction" in row else row["pred"], row["answers"]
            if not (isinstance(prediction, str) and answers and all(isinstance(answer, str) for answer in answers)):
                raise ValueError("a text and a list of texts are wanted")
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}, line {number}: not a prediction with its answers ({error})") from None
        rows.append({"prediction": prediction, "answers": answers})
    if not rows:
        raise InputError(f"{path}: holds no prediction")
    return rows
