"""Scores of answers (F1, exact match, accuracy, ROUGE-L) with bootstrap intervals, and the summary of a run.

The paper names two sources of ROUGE-L, LongBench (package rouge) and Hugging Face Evaluate (package rouge_score), and
does not say which it prints. We use rouge_score, because its values are as close to F1 as the published ones.
"""
import re
import string
from collections import Counter
from pathlib import Path

import numpy as np

from core.files import TEXT, TEXTS, InputError, check_values
from data import check_options, json_lines
from evaluation.layouts import LongBench

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

OPTIONS = ("options", "gold")                                    # their fields in a row


# An option's letter alone. "a" and "I" before another word are words themselves, unless that word may follow a letter.
LETTER = r"(?<!\w)(?<!\w['’])(?!(?-i:[AaIi]\s+(?!(?:is|because|since|as|and|n?or|but)\b)[a-z]))[{}](?!['’]?\w)"

# What stands between the letters of "A, B or (C)".
JOINT = r"[\s*)\]]{0,4}(?:[,/&]|\b(?:and|n?or)\b)(?:[\s*(\[]|\b(?:and|n?or|maybe|perhaps|possibly|option)\b){0,6}"

# What a reply says before letters that it denies, and after them.
NOT = (r"(?:\b(?:not|cannot|neither|nor|never|than|instead of|rules? out|eliminat(?:e|ing)|unlike|except)\b|n['’]t\b)"
       r"(?:\s+(?:be|either|the|options?|choice|answer|correct|right|think|believe|that|it|it['’]s|is)\b){0,5}[\s*(\[\"]{1,4}")
WRONG = (r"[\s*)\]\"]{0,4}(?:\([^()\n]{0,99}\))?(?:"
         r"\s{0,4}[:=-]\s{0,4}(?-i:no|wrong|incorrect|false)\b|\s{1,4}(?:cannot|\w{1,9}n['’]t|contradicts?)\b|"
         r"(?:\s{1,4}(?:is|are|was|were|be|seems?|looks?|can|could|does|do|would|to|both|all|also|the|an?|\w{1,12}ly)\b)"
         r"{1,5}\s{1,4}(?:not|never|wrong|incorrect|false|un(?:supported|likely|true)|excluded|eliminated|ruled out|"
         r"impossible)\b)")

# What it says behind a letter that it affirms.
RIGHT = r"[\s*)\]\"]{1,4}is\s(?:(?:clearly|probably|most|likely|the|one)\s){0,4}(?:correct|right|best|answer)\b"

# "A. No. B: False (C) ❌": a verdict after each letter. If an option itself says so, it is no verdict.
VERDICT = r"(?:(?:no|wrong|incorrect|false)\b|[✗✘❌])"
JUDGED = rf"[.:=*()\s–-]{{0,6}}{VERDICT}\s{{0,4}}(?:[.;)\n]|\Z)"


def option_of(prediction: str, options: list[str]) -> int | None:
    """The place of the one option that a prediction names; None if it names none or several.

    Letters that the reply denies do not count ("not A", "A or B is wrong"). Then the first of these forms that occurs
    decides. The papers do not say how they match replies.

        an option's text alone (as F1 compares words)   He wanted revenge.
        letters after "answer" in its sentence          The answer is C.   **Answer:** (C)
        letters at the start, marked or alone           C) He wanted revenge   C: he did   C   (no list from A on)
        letters before "is right"                       A is plausible, but C is the best.
        letters after "option" or "choice"              Option C is the best one.
        letters in brackets                             I say (C)
        one option's text inside the reply              He wanted revenge, I think.
        capital letters alone                           I think it is C.
    """
    letters = string.ascii_uppercase[:len(options)]
    letter = LETTER.format(letters)
    several = f"{letter}(?:{JOINT}{letter}){{0,25}}+"
    wrong = WRONG if any(re.match(f"(?i){VERDICT}", option) for option in options) else f"(?:{WRONG}|{JUDGED})"
    reply = prediction
    for mark, option in zip(letters, options):              # a letter with its text behind it is that letter
        reply = re.sub(rf"(?i)(\b{mark}(?! \w)[\W_]{{1,6}}){re.escape(option.strip('. '))}(?!\w)", r"\1", reply)
    reply = re.sub(f"(?i){NOT}{several}|{several}{wrong}", "", reply)
    forms = [rf"(?i)(?:\banswer\b[^.!?\n]{{0,99}}?|\A(?:Q[.:].*\n+)?A[.:](?! *\n)\s*\(?)[\s*]{{0,9}}({several})",
             rf"(?i)\A\W*(?!A\b.*\n\W*B[.:)])({several})(?=\s*(?:[^\w\s,]|\n|\Z))",
             rf"(?i)({several}){RIGHT}",
             rf"(?i)\b(?:option|choice)\b[^.!?\n]{{0,99}}?({several})", rf"(?i)\(({several})\)"]
    by_form = [re.findall(f"(?i){letter}", " ".join(re.findall(form, reply))) for form in forms]

    said, kept, *texts = [f" {' '.join(words(re.sub('[‘’“”]', '', text)))} " for text in (prediction, reply, *options)]
    alone = [letters[n] for n, text in enumerate(texts) if text == said and text.strip()]
    inside = [n for n, text in enumerate(texts) if text.strip() and text in kept]
    longest = [letters[n] for n in inside if not any(texts[n] != texts[m] and texts[n] in texts[m] for m in inside)]

    for found in (alone, *by_form, longest, re.findall(letter, reply)):
        named = {letter.upper() for letter in found}
        if named:
            return letters.index(named.pop()) if len(named) == 1 else None
    return None


def accuracy(rows: list[dict]) -> dict:
    """The percentage of rows whose prediction names the gold option; {} if no row has options and `gold`."""
    right = [100.0 * (option_of(row["prediction"], list(map(str, row["options"]))) == row["gold"]) for row in rows
             if None not in map(row.get, OPTIONS)]
    return {"accuracy": mean(right)} if right else {}


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

def mean(values: list) -> float:
    return sum(values) / len(values)


def interval(values: list[float]) -> list[float]:
    """The 95 % bootstrap interval of a mean, [low, high].

    The 2.5th and 97.5th percentile of the means of 1,000 samples, drawn with replacement.
    """
    places = np.random.default_rng(0).integers(0, len(values), (1000, len(values)))
    means = np.asarray(values)[places].mean(1)
    return np.percentile(means, [2.5, 97.5]).tolist()


def with_interval(name: str, values: list[float]) -> dict:
    return {name: mean(values), f"{name}_interval": interval(values)}


def difference(rows: list[dict], others: list[dict]) -> dict | None:
    """Mean F1 of `rows` minus mean F1 of `others`, in points, with its 95 % interval; None if they share no question.

    The difference is taken on each question that both have answered, so a hard question affects both alike.
    """
    ours, theirs = ({row["id"]: f1(row["prediction"], row["answers"]) for row in of} for of in (rows, others))
    differences = [100 * (ours[id] - theirs[id]) for id in ours if id in theirs]
    return {"f1": mean(differences), "interval": interval(differences)} if differences else None


def scores(rows: list[dict]) -> dict:
    """The metrics, in percent, of rows with a prediction and gold answers.

    n; f1, em (exact match) and rouge_l, each with its interval; accuracy, if there are options.
    """
    found = {"n": len(rows)}
    for name, metric in (("f1", f1), ("em", exact_match), ("rouge_l", rouge_l)):
        found |= with_interval(name, [100 * metric(row["prediction"], row["answers"]) for row in rows])
    return found | accuracy(rows)


def summary(rows: list[dict]) -> dict:
    """The scores of a run's rows, and means with their intervals.

    FLOPs, nodes and tokens are means over questions; construction FLOPs are a mean over documents.
    """
    documents = list({row["hash"]: row for row in rows}.values())            # one row of each
    found = scores(rows) | {
        "documents": len(documents), "cut_documents": len({row["hash"] for row in rows if row["cut"]}),
        "histogram": dict(sorted(Counter(row["nodes"] for row in rows).items()))}

    for name, counted in (("nodes", rows), ("tokens", rows), ("flops", rows), ("construction_flops", documents)):
        found |= with_interval(name, [row[name] for row in counted])

    # Replies that the method asked for, and those it refused, for documents and questions together.
    for name in ("calls", "refused"):
        found[name] = sum(row[name] for row in rows) + sum(row[f"construction_{name}"] for row in documents)
    return found


def read_predictions(path: str | Path) -> list[dict]:
    """Rows with prediction and answers, from a file of this project or of LongBench (`pred`).

    InputError names the first line without them, or with impossible options. It also refuses a LongBench file that is
    not named after an English question answering task.
    """
    rows = []
    task = Path(path).name.split(".")[0]
    for number, row in json_lines(Path(path)):
        if "pred" in row and LongBench().part(task) not in LongBench.parts:
            raise InputError(f"{path}: LongBench's {task!r} is not scored, only {', '.join(LongBench.tasks)}; "
                             "predictions of others have the key 'prediction'")
        row, place = {"prediction": row.get("pred")} | row, f"{path}, line {number}: "
        check_values(row, {"prediction": TEXT, "answers": TEXTS}, f"{place}not a prediction with its answers: ")
        if None not in map(row.get, OPTIONS):
            check_options(row, place)
        rows.append(row)
    if not rows:
        raise InputError(f"{path}: holds no prediction")
    return rows
