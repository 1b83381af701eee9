"""The answers of a run on disk, one line each.

A killed run keeps its answers. In the end they are in the order of the questions.
"""
import glob
import json
import shutil
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
    open_own,
    parse_json,
    reading,
    write_file,
    writing,
)
from data import Document, Question


def lock(output: Path):
    """Lock an output folder, so that a second run is refused.

    Returns the open file that holds the lock; close it, and the folder is free again. The system frees it too when the
    process ends, however it ends. Raises InputError if another run holds it. (Windows has no such lock.)
    """
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
    file = open_own(output / "lock")
    try:
        import fcntl
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:                                           # Windows
        pass
    except OSError:
        file.close()
        raise InputError(f"{output}: another run is writing there; wait for it, or choose another --output") from None
    return file


# --- old answers, until there are new ones --------------------------------------------------------------------------

def answer_files(path: Path) -> list[Path]:
    """The files that hold the answers of a run: `path`, if it is there, and the parts."""
    parts = sorted(path.parent.glob(f"{glob.escape(path.name)}.part-*"))
    return [*([path] if path.exists() else []), *parts]


def setup_path(path: Path) -> Path:
    """The file of the setup that belongs to a file of predictions."""
    return path.with_suffix(".setup.json")


def old_folder(path: Path) -> Path:
    """Where old answers wait until the first new one is on the disk."""
    return path.with_name(f"{path.name}.old")


def set_aside(path: Path):
    """Move the answers of a run, and its setup, to old_folder.

    The setup goes first. So if a kill comes between two moves, no setup is there, and put_back knows what to do.
    """
    old = old_folder(path)
    with writing(old):
        old.mkdir(exist_ok=True)
        for file in [setup_path(path), *answer_files(path)]:
            if file.exists():
                file.replace(old / file.name)


def put_back(path: Path):
    """Undo set_aside if no new answer was given; otherwise the old ones are removed.

    InputError if the folder holds anything else: then it is someone else's.
    """
    old = old_folder(path)
    if not old.is_dir():
        return
    others = set(old.iterdir()) - {setup_path(old / path.name), *answer_files(old / path.name)}
    if others:
        raise InputError(f"{min(others)}: is in the way of answers that are set aside; move it out of {old.name}")
    if setup_path(path).exists() and any(map(complete_lines, answer_files(path))):
        shutil.rmtree(old)
        return

    with writing(old):
        if setup_path(path).exists():                            # of a run without an answer: a torn line is none
            for file in [*answer_files(path), setup_path(path)]:
                file.unlink()
        for file in sorted(old.iterdir(), key=lambda file: file.name == setup_path(path).name):
            file.replace(path.parent / file.name)
        old.rmdir()


# --- the answers of a run -------------------------------------------------------------------------------------------

# What every line has.
RULES = {**dict.fromkeys(("id", "document", "hash", "question", "prediction"), TEXT), "answers": TEXTS,
         **dict.fromkeys(("nodes", "tokens", "flops", "construction_flops"), NUMBER), "cut": FLAG}


class Predictions:
    """The answers of one run over one data set, one JSON line each.

    During the run, process RANK appends to its own part, PATH.part-RANK. In the end the first process joins the parts
    into PATH. `rows` holds the answers that were there at the start and those added since, without their traces.
    """

    def __init__(self, path: Path, rank: int = 0):
        self.path = path
        self.part = path.with_name(f"{path.name}.part-{rank}")
        self.rows = {}                                            # id of the question -> row
        for file in answer_files(path):
            self.read(file)

    def read(self, file: Path):
        """Take over the answers of a file; InputError if a line is no prediction.

        The question of a line that was torn by a kill is answered again.
        """
        with reading(file):
            lines = complete_lines(file)
        for number, line in enumerate(lines, 1):
            with reading(f"{file}, line {number}", "not a prediction", "; move the file away, or use --overwrite"):
                row = parse_json(line, f"{file}, line {number}", dict)
                check_values(row, RULES, f"{file}, line {number}: ")
            self.keep(row)

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
        append_line(self.part, json.dumps(row, ensure_ascii=False, allow_nan=False))
        if old_folder(self.path).is_dir():
            shutil.rmtree(old_folder(self.path), ignore_errors=True)               # another process may be doing it

    def finish(self, order: list[str]):
        """Join all parts into PATH: the questions of `order` first, in this order.

        Questions that are not in `order` come last, as they were found.
        """
        lines = {}
        for file in answer_files(self.path):
            for line in complete_lines(file):
                lines[json.loads(line)["id"]] = line.decode() + "\n"

        position = {id: n for n, id in enumerate(order)}
        ids = sorted(lines, key=lambda id: position.get(id, len(position)))
        write_file(self.path, "".join(lines[id] for id in ids))
        for part in answer_files(self.path)[1:]:
            part.unlink()
