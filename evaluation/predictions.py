"""The answers of a run on disk, one line each, and the setup of the run.

During a run, every process but the first writes its own file METHOD.part-N.jsonl. At the end all answers are in
OUTPUT/DATASET/METHOD.jsonl, in the order of the questions. A question counts as answered only when its line is on disk,
so a killed run loses no answer.
"""
import glob
import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from core.files import (
    FLAG,
    NUMBER,
    TEXT,
    TEXTS,
    InputError,
    append_line,
    check_values,
    complete_lines,
    parse_json,
    read_json,
    reading,
    write_file,
    write_json,
    writing,
)
from data import Answer, Document, Prepared, Question
from evaluation import metrics

# The fields that every line must have.
RULES = {**dict.fromkeys(("id", "document", "hash", "question", "prediction"), TEXT), "answers": TEXTS,
         **dict.fromkeys(("nodes", "tokens", "flops", "construction_flops", "calls", "refused", "construction_calls",
                          "construction_refused"), NUMBER), "cut": FLAG}


def prediction(document: Document, question: Question, prepared: Prepared, answer: Answer, graph: str | None) -> dict:
    """The line of an answer; `graph` names the file of the document's graph."""
    steps = [asdict(step) for step in answer.trace]
    return {"id": question.id, "document": document.id, "hash": document.hash, "question": question.text,
            "prediction": answer.text, "answers": question.answers,
            "f1": metrics.f1(answer.text, question.answers), "rouge_l": metrics.rouge_l(answer.text, question.answers),
            "nodes": len(answer.nodes), "tokens": answer.tokens, "flops": answer.flops,
            "construction_flops": prepared.flops, "graph": graph, "end": answer.end, "cut": answer.cut,
            "calls": answer.calls, "refused": answer.refused, "construction_calls": prepared.calls,
            "construction_refused": prepared.refused,
            **{name: question.extra[name] for name in metrics.OPTIONS if name in question.extra},
            "trace": [{name: step[name] for name in step if name != "candidates"} for step in steps]}


class Predictions:
    """The answers of one run. `rows` holds the answers on disk and those added since, without their traces.

    Raises InputError if a line is not a prediction. If a kill has torn the last line, its question counts as open.
    """

    def __init__(self, path: Path, rank: int = 0):
        self.path = path
        self.own = part(path, rank) if rank else path
        self.rows = {}                                            # id of the question -> row
        for place, line in lines_of(path):
            with reading(place, "not a prediction", "; move the file away, or use --overwrite"):
                row = parse_json(line, place, dict)
                check_values(row, RULES, f"{place}: ")
            self.keep(row)

    def keep(self, row: dict):
        self.rows[row["id"]] = {name: value for name, value in row.items() if name != "trace"}

    def holds(self, document: Document, question: Question) -> bool:
        """Whether this question is answered; InputError if its id was answered for another text."""
        row = self.rows.get(question.id)
        if row is None:
            return False

        if (row["hash"], row["question"], row["answers"]) != (document.hash, question.text, question.answers):
            raise InputError(f"{self.path}: question {question.id} was answered for another text; choose another "
                             "--output, or --overwrite")
        return True

    def add(self, row: dict):
        """Keep an answer, and write it to the disk before returning."""
        self.keep(row)
        append_line(self.own, json.dumps(row, ensure_ascii=False, allow_nan=False))

    def finish(self, order: list[str]):
        """Put the answers of all processes into one file. The questions of `order` come first, in this order."""
        lines = {json.loads(line)["id"]: line.decode() + "\n" for _, line in lines_of(self.path)}

        ids = dict.fromkeys([*(id for id in order if id in lines), *lines])
        if ids:
            write_file(self.path, "".join(lines[id] for id in ids))
        for file in answer_files(self.path)[1:]:
            file.unlink()


def part(path: Path, rank: int | str) -> Path:
    return path.with_name(f"{path.stem}.part-{rank}.jsonl")


def answer_files(path: Path) -> list[Path]:
    """The files that hold the answers of a run, `path` first."""
    parts = sorted(path.parent.glob(part(Path(glob.escape(str(path))), "*").name))
    return [file for file in (path, *parts) if file.exists()]


def lines_of(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the place of each answer ("FILE, line N") and its line."""
    for file in answer_files(path):
        with reading(file):
            lines = complete_lines(file)
        for number, line in enumerate(lines, 1):
            yield f"{file}, line {number}", line


def claim_file(path: Path, setup: dict, overwrite: bool):
    """Write the setup of a file of answers; InputError if the file holds answers of another setup.

    With `overwrite`, existing files are renamed to NAME.old, or to NAME.old2 if there is a NAME.old, and so on.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    files = answer_files(path)
    place = path.with_suffix(".setup.json")

    if overwrite and files:
        endings = (f".old{n if n > 1 else ''}" for n in itertools.count(1))
        old = [file for file in (*files, place) if file.exists()]
        unused = next(ending for ending in endings if not any(Path(f"{file}{ending}").exists() for file in old))
        for file in old:
            with writing(file):
                file.rename(f"{file}{unused}")
    elif files:
        with reading(place, remedy="; choose another --output, or --overwrite the answers"):
            before = read_json(place)
            for name, value in setup.items():
                if before.get(name) != value:
                    raise InputError(f"{path} holds answers of another {name} ({before.get(name)!s:.80} there, "
                                     f"{value!s:.80} here)")
    write_json(place, setup)
