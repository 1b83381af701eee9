"""The answers of a row of a table on disk: a line for each, written before the next batch of questions is asked.

A question counts as answered only when its line is on disk. So a killed run loses at most one batch of answers, and
goes on where it stopped. Process 0 writes OUTPUT/DATASET/METHOD.jsonl, process N of torchrun METHOD.N.jsonl; whoever
reads METHOD.jsonl reads them all. METHOD.setup.json says by which models, settings and code they were made.
"""
import re
from pathlib import Path

from core.code import VERSION, commit
from core.disk import beside, check_same, read_rows, sealed, unsealed, write_row
from core.files import InputError, read_json, reading, write_json
from data import Answer, Document, Prepared, Question

OPTIONS = ("options", "gold")                               # of a question with options: the fields of its row
ABOUT = ("id", "document", "hash", "question", "answers")   # what a row says about its question, and options


def answer_files(path: str | Path) -> list[Path]:
    """The files that hold the answers of METHOD.jsonl: it, and METHOD.1.jsonl, METHOD.2.jsonl and so on."""
    path = Path(path)
    name = re.compile(rf"{re.escape(path.stem)}(\.\d+)?{re.escape(path.suffix)}")
    return sorted(file for file in path.parent.glob("*") if name.fullmatch(file.name))


def key_of(row: dict) -> tuple[str, str]:
    """The key of a row's question: two documents may have a question of the same id, as in Qasper."""
    return row["document"], row["id"]


def row_of(id: str, question: str, answer: Answer, graph: dict | None) -> dict:
    """What a line says of an answer, with all that view.page needs besides the graph's file (see `beside`)."""
    return {"id": id, "question": question, "prediction": answer.text, "nodes": len(answer.nodes),
            "flops": answer.flops, "tokens": answer.tokens, "end": answer.end, "cut": answer.cut,
            "counts": answer.counts, "graph": graph, "search": answer.search,
            "trace": [step if isinstance(step, dict) else vars(step) for step in answer.trace]}


class Answers:
    """The answers of one row over one data set. `rows`: key of a question -> its row, without trace and search.

    InputError if there are answers of another setup. `setup` also has the version and the commit that began the file.
    """

    def __init__(self, path: Path, setup: dict, process: int = 0):
        self.path = path
        self.own = path.with_suffix(f".{process}.jsonl") if process else path
        self.setup = claim(path, setup)
        self.rows = {}
        for file in answer_files(path):
            for row in read_rows(file):
                self.keep(row)

    def keep(self, row: dict):
        """Traces are long, and no table needs them."""
        self.rows[key_of(row)] = {name: value for name, value in row.items() if name not in ("trace", "search")}

    def holds(self, document: Document, question: Question) -> bool:
        """Whether this question is answered; InputError if its id was answered for other data."""
        row = self.rows.get((document.id, question.id))
        for name, value in about(document, question).items() if row else ():
            if row.get(name) != value:
                raise InputError(f"{self.path}: question {question.id} was answered for another text (its {name} has "
                                 "changed); choose another --output")
        return row is not None

    def add(self, document: Document, question: Question, prepared: Prepared, answer: Answer, graph: Path | None):
        """Write the line of an answer to the disk before returning. `graph` is the file of the document's graph."""
        row = about(document, question) | row_of(question.id, question.text, answer, graph and beside(self.own, graph))
        row |= {"construction_flops": prepared.flops, "construction_counts": prepared.counts}
        write_row(self.own, row)
        self.keep(row)


def about(document: Document, question: Question) -> dict:
    """The fields of an answer's row that say which question it answers."""
    return {"id": question.id, "document": document.id, "hash": document.hash, "question": question.text,
            "answers": question.answers, **{name: question.extra.get(name) for name in OPTIONS}}


def claim(path: Path, setup: dict) -> dict:
    """Write the setup of a file of answers, with version and commit; InputError if it holds answers of another setup.

    Returns the setup that is there.
    """
    file = path.with_suffix(".setup.json")
    if answer_files(path):
        with reading(file, remedy="; choose another --output"):
            before = unsealed(read_json(file), file)
            check_same(path, before, setup)
        return before
    path.parent.mkdir(parents=True, exist_ok=True)
    setup = {"version": VERSION, "commit": commit()} | setup
    write_json(file, sealed(setup))
    return setup
