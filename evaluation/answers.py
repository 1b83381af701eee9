"""The answers of a run on disk: a line for each, written before the next question is asked.

A question counts as answered only when its line is on disk, so a killed run loses no answer and goes on where it
stopped. Processes share the documents: every process but the first writes its own file METHOD.part-N.jsonl, and at the
end all answers are in OUTPUT/DATASET/METHOD.jsonl, in the order of the questions.
"""
import json
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from core.code import VERSION, commit
from core.disk import sealed, unsealed
from core.files import (
    InputError,
    append_line,
    complete_lines,
    parse_json,
    read_json,
    reading,
    write_file,
    write_json,
)
from data import Answer, Document, Prepared, Question
from evaluation import metrics
from evaluation.methods import Run


class Predictions:
    """The answers of one run. `rows` holds those that were on disk when it was made: key of the question -> row."""

    def __init__(self, path: Path, rank: int = 0):
        self.path = path
        self.own = path.with_name(f"{path.stem}.part-{rank}.jsonl") if rank else path
        self.rows = {metrics.key_of(row): row for row, _ in rows_on_disk(path)}

    def holds(self, document: Document, question: Question) -> bool:
        """Whether this question is answered; InputError if its id was answered for other data."""
        row = self.rows.get((document.id, question.id))
        if row is None:
            return False

        wanted = {"hash": document.hash, "question": question.text, "answers": question.answers,
                  **{name: question.extra.get(name) for name in metrics.OPTIONS}}
        for name, value in wanted.items():
            if row.get(name) != value:
                raise InputError(f"{self.path}: question {question.id} was answered for another text (its {name} has "
                                 "changed); choose another --output, or --overwrite")
        return True

    def add(self, document: Document, question: Question, prepared: Prepared, answer: Answer, graph: str | None):
        """Score an answer, and write its line to the disk before returning. `graph` names the document's graph file.

        A step's candidates are left out: they would be most of the file.
        """
        row = {"id": question.id, "document": document.id, "hash": document.hash, "question": question.text,
               "answers": question.answers, "prediction": answer.text,
               "f1": metrics.f1(answer.text, question.answers),
               "rouge_l": metrics.rouge_l(answer.text, question.answers),
               "construction_flops": prepared.flops, "construction_counts": prepared.counts, "graph": graph,
               **{name: question.extra[name] for name in metrics.OPTIONS if name in question.extra},
               **vars(answer), "nodes": len(answer.nodes)}
        del row["text"]
        steps = [step if isinstance(step, dict) else vars(step) for step in answer.trace]
        row["trace"] = [{name: step[name] for name in step if name != "candidates"} for step in steps]
        append_line(self.own, json.dumps(sealed(row), ensure_ascii=False, allow_nan=False))

    def finish(self, order: list[tuple]) -> dict[tuple, dict]:
        """Put the answers of all processes into one file. The questions of `order` come first, in this order.

        Returns all rows that are there, by the keys of their questions.
        """
        found = {metrics.key_of(row): (row, line) for row, line in rows_on_disk(self.path)}
        ordered = {key: found[key] for key in (*order, *found) if key in found}
        if ordered:
            write_file(self.path, b"".join(line + b"\n" for _, line in ordered.values()))
        for file in answer_files(self.path)[1:]:
            file.unlink()
        return {key: row for key, (row, _) in ordered.items()}

def answer_files(path: Path) -> list[Path]:
    """The files that hold the answers of a run, `path` first."""
    parts = sorted(file for file in path.parent.glob("*.jsonl") if file.name.startswith(f"{path.stem}.part-"))
    return [file for file in (path, *parts) if file.exists()]


def rows_on_disk(path: Path) -> Iterator[tuple[dict, bytes]]:
    """Yield the row of each answer, without its trace, and its line. InputError if a line is not a prediction.

    If a kill has torn the last line of a file, its question counts as open.
    """
    for file in answer_files(path):
        with reading(file):
            lines = complete_lines(file)
        for number, line in enumerate(lines, 1):
            if line.strip():
                where = f"{file}, line {number}"
                with reading(where, "not a prediction", "; move the file away, or use --overwrite"):
                    row = unsealed(parse_json(line, where, dict), where)
                row.pop("trace", None)
                yield row, line


def set_aside(runs: list[Run]):
    """Rename the answers of all runs, and their setups, to NAME.old, or NAME.old.1 if there is one already.

    If a run's X is still open (methods.settle), answers with any X are renamed.
    """
    for run in runs:
        x = r"(-\d+)?" if run.top_k == "X" else ""
        kind = re.escape(run.file.stem) + x + r"(\.part-\d+)?\.(jsonl|setup\.json)"
        files = [file for file in run.file.parent.glob("*.json*") if re.fullmatch(kind, file.name)]
        if any(file.suffix == ".jsonl" for file in files):
            endings = (f".old.{n}" if n else ".old" for n in count())
            ending = next(ending for ending in endings if not any(Path(f"{file}{ending}").exists() for file in files))
            for file in files:
                file.rename(f"{file}{ending}")


def claim_file(path: Path, setup: dict) -> dict:
    """Write the setup of a file of answers; InputError if the file holds answers of another setup.

    Returns the setup with the version and the commit that began the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.with_suffix(".setup.json")
    if answer_files(path):
        with reading(file, remedy="; choose another --output, or --overwrite the answers"):
            before = unsealed(read_json(file), file)
            for name, value in setup.items():
                if before.get(name) != value or (name == "code" and value is None):      # nobody knows this code
                    raise InputError(f"{path} holds answers of another {name} ({before.get(name)!s:.80} there, "
                                     f"{value!s:.80} here)")
        return before
    setup = {"version": VERSION, "commit": commit()} | setup
    write_json(file, sealed(setup))
    return setup
