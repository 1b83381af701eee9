"""The answers of a run on disk, one line each.

A killed run keeps its answers. In the end they are in the order of the questions.
"""
import json
import os
from pathlib import Path

from data import Document, Question
from support.files import InputError, write_file


def lock(output: Path):
    """Lock an output folder, so that a second run is refused.

    Returns the open file that holds the lock (None on Windows, which has no such lock). The system frees the lock when
    the process ends, however it ends. Raises InputError if another run holds it.
    """
    try:
        import fcntl
    except ImportError:                                           # Windows
        return None

    output.mkdir(parents=True, exist_ok=True)
    file = open(output / "lock", "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InputError(f"{output}: another run is writing there; wait for it, or choose another --output") from None
    return file


class Predictions:
    """The answers of one run over one data set, one JSON line each.

    During the run, process RANK appends to its own part, PATH.part-RANK. In the end the first process joins the parts
    into PATH. `rows` holds the answers that were there at the start and those added since, without their traces.
    """
    NAMES = {"id", "document", "hash", "question", "prediction", "answers", "nodes", "tokens", "flops",
             "construction_flops", "cut"}                         # every line has them

    def __init__(self, path: Path, rank: int = 0):
        self.path = path
        self.part = path.with_name(f"{path.name}.part-{rank}")
        self.rows = {}                                            # id of the question -> row
        for file in self.files():
            self.read(file)

    def read(self, file: Path):
        """Take over the answers of a file; InputError if a line is no prediction.

        A last line without its end was torn by a kill. It is cut off, and its question is answered again.
        """
        complete, _, torn = file.read_bytes().rpartition(b"\n")
        lines = complete.split(b"\n") if complete else []
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict) or not self.NAMES <= row.keys():
                raise InputError(f"{file}, line {number}: not a prediction; move the file away, or use --overwrite")
            self.keep(row)

        # A process repairs its own part only: another may be writing to the others.
        if torn and file == self.part:
            with open(file, "r+b") as part:
                part.truncate(len(complete) + 1 if complete else 0)

    def files(self) -> list[Path]:
        """The files that hold answers: PATH, if it is there, and the parts."""
        parts = sorted(self.path.parent.glob(f"{self.path.name}.part-*"))
        return [*([self.path] if self.path.exists() else []), *parts]

    def keep(self, row: dict):
        """Keep a row in memory, without its trace, which is long."""
        self.rows[row["id"]] = {name: value for name, value in row.items() if name != "trace"}

    def holds(self, document: Document, question: Question) -> bool:
        """Whether this question about this text is answered.

        Raises InputError if the id was answered for another text.
        """
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
        with open(self.part, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def finish(self, order: list[str]):
        """Join all parts into PATH: the questions of `order` first, in this order.

        Questions that are not in `order` come last, as they were found.
        """
        # Split at the line feed only: a text may hold other line ends.
        lines = {}
        for file in self.files():
            for line in file.read_bytes().split(b"\n")[:-1]:
                lines[json.loads(line)["id"]] = line.decode() + "\n"

        position = {id: n for n, id in enumerate(order)}
        ids = sorted(lines, key=lambda id: position.get(id, len(position)))
        write_file(self.path, "".join(lines[id] for id in ids))
        for part in self.files()[1:]:
            part.unlink()
