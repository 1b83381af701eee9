"""NarrativeQA: a table of questions, qaps.csv, and a file DOCUMENT.content for each story.

The columns of the table are document_id, set (train, valid or test), question, answer1, answer2. PATH:SET reads only
one of the three sets.
"""
import csv
import io
from collections.abc import Iterator

from core.files import InputError, reading
from data import Document, Question
from evaluation.layouts.contents import File, decode, plain_text, read_bytes
from evaluation.layouts.layout import Layout, checked
from evaluation.layouts.report import Report

TABLE = "qaps.csv"


class NarrativeQA(Layout):
    name = "NarrativeQA"
    keys = {TABLE}                # a file's name, because rows are not JSON

    def rows(self, files: list[File], report: Report) -> Iterator[tuple[str, object]]:
        """A row is a document: its questions and the file of its story. Rows are in the order of the table."""
        part = report.layout.removeprefix(self.name).strip()
        stories = {file.name.split(".")[0]: file for file in files if ".content" in file.name}

        questions = {}
        for file in files:
            if file.name == TABLE:
                read_table(file, part, questions, report)

        for name in questions:
            if name in stories:
                yield name, (questions[name], stories[name])
            else:
                report.skip("a document whose story is missing", name)

    def document(self, where: str, row: tuple[list[Question], File], report: Report) -> Document:
        questions, story = row
        text = plain_text(decode(read_bytes(story), report, where), report, where)
        return checked(where, where, [text], questions, report)


def read_table(file: File, part: str, questions: dict[str, list[Question]], report: Report):
    """Add the questions of one set ("" for all three) to `questions`, under the ids of their documents."""
    text = decode(read_bytes(file), report, str(file))
    with reading(file, "not a readable table"):
        table = csv.DictReader(io.StringIO(text))
        missing = {"document_id", "set", "question", "answer1", "answer2"} - set(table.fieldnames or [])
        if missing:
            raise InputError(f"{file}: has no column {sorted(missing)[0]}")

        # The first line holds the names of the columns.
        for number, row in enumerate(table, 2):
            if None in row:
                report.skip("a row with too many columns", f"{file.name}, row {number}")
            elif part in ("", row["set"]):
                name = row["document_id"]
                question = Question(f"{name}-{number}", row["question"], [row["answer1"], row["answer2"]])
                questions.setdefault(name, []).append(question)


def choose_narrativeqa_set(path: str, part: str, files: list[File]) -> tuple[str, list[File]]:
    """The layout with the chosen set ("" for all three), and its files; InputError if there is no such set."""
    if part not in ("", "train", "valid", "test"):
        raise InputError(f"{path}: NarrativeQA's sets are train, valid and test")

    label = f"{NarrativeQA.name} {part}".strip()
    return label, [file for file in files if file.name == TABLE or ".content" in file.name]
