"""Run methods over a data set, score their answers, print one table.

    python eval.py                                     the embedded model on the embedded set
    python eval.py --dataset mine.jsonl --model DIR    one's own documents (format: data.py), an instruct Llama

Every question that is answered is one line in predictions-METHOD.jsonl, written at once: a run that is killed continues
where it stopped. Graphs are kept beside it, named by document, model and construction settings.
"""
import argparse
import json
import os
import platform
import re
import string
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import torch
from tqdm import tqdm

from baselines.whole import Whole
from data import EMBEDDED, Document, InputError, Question, read_json, read_jsonl, write_file
from pecan import Pecan, add_model_options, load, user_errors

METHODS = {"pecan": Pecan, "whole": Whole}
NAMES = {"pecan": "PECAN", "whole": "whole document"}


# --- metrics --------------------------------------------------------------------------------------------------------

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
    precision and recall weighted alike. The package `rouge`, which LongBench uses, gives other numbers.
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


# --- running --------------------------------------------------------------------------------------------------------

class Predictions:
    """The answers of one method, one JSON line each, in the order in which they were given."""
    KEYS = {"id", "document", "hash", "question", "prediction", "answers", "nodes", "tokens", "flops",
            "construction_flops", "cut", "f1", "rouge_l"}

    def __init__(self, path: Path):
        self.path, self.rows = path, {}
        if not path.exists():
            return
        whole, _, torn = path.read_bytes().rpartition(b"\n")           # a kill may have torn the last line: redo it
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict) or not self.KEYS <= row.keys():
                raise InputError(f"{path}, line {number}: not a prediction; move the file away, or use --overwrite")
            self.rows[row["id"]] = row
        if torn:
            with open(path, "r+b") as file:
                file.truncate(len(whole) + 1 if whole else 0)

    def holds(self, document: Document, question: Question) -> bool:
        """Whether this very question about this very text is answered; InputError where the id stands for another."""
        row = self.rows.get(question.id)
        if row and (row["hash"], row["question"], row["answers"]) != (document.hash, question.text, question.answers):
            raise InputError(f"{self.path}: question {question.id} was answered for another text; choose another "
                             "--output, or --overwrite")
        return row is not None

    def add(self, row: dict):
        self.rows[row["id"]] = row
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())


def run(method, documents: list[Document], predictions: Predictions, graphs: Path, bar: tqdm) -> list[str]:
    """Answer what is not answered yet, document by document; returns what could not be, and why."""
    failures = []
    for document in documents:
        unanswered = [question for question in document.questions if not predictions.holds(document, question)]
        bar.update(len(document.questions) - len(unanswered))
        prepared, key = None, method.key(document)
        for question in unanswered:
            try:
                if prepared is None:
                    prepared = method.prepare(document, key and graphs / f"{key}.json", progress=not bar.disable)
                answer = method.answer(prepared, question.text)
            except InputError as error:
                failures.append(f"question {question.id} of document {document.id}: {error}")
            else:
                predictions.add({
                    "id": question.id, "document": document.id, "hash": document.hash, "question": question.text,
                    "prediction": answer.text, "answers": question.answers, "f1": f1(answer.text, question.answers),
                    "rouge_l": rouge_l(answer.text, question.answers), "nodes": len(answer.nodes),
                    "tokens": answer.tokens, "flops": answer.flops, "construction_flops": prepared.flops, "graph": key,
                    "end": answer.end, "cut": answer.cut, "trace": [asdict(step) for step in answer.trace]})
            bar.update()
    return failures


def summary(rows: list[dict]) -> dict:
    """Means over the questions, in percent where they are scores; construction is a mean over the documents."""
    def mean(values):
        values = list(values)
        return sum(values) / len(values)
    construction = {row["document"]: row["construction_flops"] for row in rows}
    return {"n": len(rows), "documents": len(construction),
            "f1": 100 * mean(row["f1"] for row in rows), "rouge_l": 100 * mean(row["rouge_l"] for row in rows),
            "nodes": mean(row["nodes"] for row in rows), "tokens": mean(row["tokens"] for row in rows),
            "flops": mean(row["flops"] for row in rows), "construction_flops": mean(construction.values()),
            "cut_documents": len({row["document"] for row in rows if row["cut"]})}


def table(results: dict[str, dict]) -> str:
    """One line per method; FLOPs in the unit that suits the smallest of them."""
    flops = [r["flops"] for r in results.values()]
    unit, name = next(((u, n) for u, n in ((1e12, "TFLOPs"), (1e9, "GFLOPs")) if min(flops) >= u / 10), (1e6, "MFLOPs"))
    base = results.get("pecan", {}).get("flops")
    rows = [("method", "F1", "ROUGE-L", "nodes", f"{name}/query", "ratio", f"{name}/document", "cut", "n")]
    rows += [(NAMES[method], f"{r['f1']:.1f}", f"{r['rouge_l']:.1f}", f"{r['nodes']:.1f}" if r["nodes"] else "-",
              f"{r['flops'] / unit:.3f}", f"{r['flops'] / base:.2f}x" if base else "-",
              f"{r['construction_flops'] / unit:.3f}" if r["construction_flops"] else "-",
              f"{r['cut_documents']}/{r['documents']}", str(r["n"])) for method, r in results.items()]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                               for i, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows)


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="eval.py", description="Evaluate PECAN and what it is compared with.")
    parser.add_argument("--dataset", default=str(EMBEDDED), metavar="FILE",
                        help="JSON lines (default: the embedded set)")
    parser.add_argument("--method", default=",".join(METHODS), help="one or several of %(default)s")
    parser.add_argument("--limit", type=int, help="only the first LIMIT documents")
    parser.add_argument("--output", default="results", metavar="DIR",
                        help="folder of predictions, graphs and results.json (default: %(default)s)")
    parser.add_argument("--overwrite", action="store_true", help="start anew, whatever the output folder holds")
    parser.add_argument("--seed", type=int, default=0, help="kept with the results; decoding is greedy")
    add_model_options(parser)
    args = parser.parse_args(argv)
    methods = args.method.split(",")
    for method in methods:
        if method not in METHODS:
            raise InputError(f"--method {method}: unknown; choose from {', '.join(METHODS)}")
    if args.limit is not None and args.limit < 1:
        raise InputError(f"--limit is {args.limit}; it must be at least 1")
    torch.manual_seed(args.seed)
    documents = read_jsonl(args.dataset, args.limit)
    questions = [(document, question) for document in documents for question in document.questions]
    if not questions:
        raise InputError(f"{args.dataset}: holds no question")
    model, encoder, settings, builder = load(args)

    # What must not change under an answer that is kept: all but the number of documents and the place it runs on.
    setup = {"dataset": Path(args.dataset).name, "model": model.fingerprint, "encoder": args.encoder,
             "builder": builder and builder.fingerprint, "dtype": str(model.dtype), "seed": args.seed,
             "settings": asdict(settings)}
    output = Path(args.output)
    claim(output, setup, args.overwrite)
    results, failures, show = {}, [], sys.stderr.isatty()
    for method in METHODS:                                        # one that ran before keeps its row
        predictions = Predictions(output / f"predictions-{method}.jsonl")
        if method in methods:
            runner = METHODS[method](model, encoder, settings, builder)
            with tqdm(total=len(questions), desc=NAMES[method], unit="question", disable=not show) as bar:
                failed = run(runner, documents, predictions, output / "graphs", bar)
            if len(failed) == len(questions):                     # nothing can be answered: it is not the questions
                raise InputError(failed[0])
            failures += failed
        rows = [predictions.rows[q.id] for document, q in questions if predictions.holds(document, q)]
        if rows and (method in methods or len(rows) == len(questions)):
            results[method] = summary(rows)
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    setup |= {"documents": len(documents), "device": str(model.device), "versions": versions, "results": results}
    write_file(output / "results.json", json.dumps(setup, indent=2) + "\n")
    for failure in failures:
        print(f"not answered: {failure}", file=sys.stderr)
    print(table(results))
    print(f"F1 as LongBench defines it, ROUGE-L as rouge_score does; FLOPs are counted, not timed. "
          f"Results: {output / 'results.json'}")
    return 1 if failures else 0


def claim(output: Path, setup: dict, overwrite: bool):
    """Make the output folder this run's; refuse one that holds answers given under other settings.

    Graphs are never thrown away: their names say which document, model and settings they belong to.
    """
    (output / "graphs").mkdir(parents=True, exist_ok=True)
    kept = output / "setup.json"
    if overwrite:
        for path in [*output.glob("predictions-*.jsonl"), output / "results.json", kept]:
            path.unlink(missing_ok=True)
    if any(output.glob("predictions-*.jsonl")):
        old = read_json(kept)
        different = [key for key in setup if old.get(key) != setup[key]]
        if different:
            raise InputError(f"{output} holds results of another {' and '.join(different)}; "
                             "choose another --output, or --overwrite them")
    write_file(kept, json.dumps(setup, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(user_errors(main))
