"""A data set on disk: which layout it has, its documents, its questions, and a report of what was found.

Documents come one at a time, each with all its questions. Defects of the data are mended, or what has them is left
out; both are counted and reported.
"""
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from data import EMBEDDED, Document, Question
from evaluation.layouts.contents import UNREADABLE, File, files_below, sha256
from evaluation.layouts.hotpotqa import HotpotQA
from evaluation.layouts.layout import PAPER, Layout, Start
from evaluation.layouts.longbench import LongBench, choose_longbench_task, fetch_longbench
from evaluation.layouts.musique import MuSiQue
from evaluation.layouts.narrativeqa import TABLE, NarrativeQA, choose_narrativeqa_set
from evaluation.layouts.own import Own
from evaluation.layouts.qasper import Qasper
from evaluation.layouts.report import Report
from support.files import InputError, unreadable

# In the order in which they are tried: the first that recognises a file is its layout.
LAYOUTS: dict[str, Layout] = {
    layout.name: layout for layout in (NarrativeQA(), HotpotQA(), Qasper(), MuSiQue(), LongBench(), Own())}


class Dataset:
    """A data set: its documents one at a time, each with all its questions, and a report of what was found.

    Documents are recognised by their text: rows about the same text are one document, so that its graph is built once.
    `name` is the data set's name in the paper, or the name of the file. `questions` are the ids of the questions of the
    first `limit` documents, in order. The files are read twice, and once more for each run: only questions stay in
    memory.
    """

    def __init__(self, path: str | Path, limit: int | None = None):
        label, self.files = find(str(path))
        self.layout = LAYOUTS[label.split()[0]]
        self.name = name_of(label, path)
        self.report = Report(str(path), label)

        questions_of = self._collect_questions()
        if not questions_of:
            raise InputError(f"{path}: holds no question ({', '.join(self.report.skipped) or 'it is empty'})")

        self.report.documents = len(questions_of)
        self.report.questions = sum(len(questions) for questions in questions_of.values())
        self.report.sha256 = sha256(self.files)

        first = list(questions_of.items())[:limit]
        self.questions_of: dict[str, list[Question]] = dict(first)           # under the hash of their document
        self.questions = [question.id for _, questions in first for question in questions]

    def documents(self) -> Iterator[Document]:
        """The first `limit` documents that have questions, read again from the files."""
        left = dict(self.questions_of)
        for document in self._read(Report(self.report.path, self.report.layout)):
            questions = left.pop(document.hash, None)
            if questions:
                yield Document(document.id, document.passages, questions)
            if not left:
                return

    def lengths(self, tokenizer) -> dict:
        """How many tokens the documents have (Table A3)."""
        counts = []
        for document in self.documents():
            counts.append(sum(len(tokenizer.encode(passage)) for passage in document.passages))

        return {"average": sum(counts) / len(counts), "least": min(counts), "most": max(counts),
                "documents": len(counts), "questions": len(self.questions)}

    def _collect_questions(self) -> dict[str, list[Question]]:
        """The questions of each document that has any, under its hash. An id that occurs again gets a number."""
        questions_of: dict[str, list[Question]] = {}
        uses: Counter = Counter()
        for document in self._read(self.report):
            questions = questions_of.setdefault(document.hash, [])
            for question in document.questions:
                uses[question.id] += 1
                if uses[question.id] > 1:
                    self.report.problem("an id of a question stands there again and got a number", question.id)
                    question = replace(question, id=f"{question.id}#{uses[question.id]}")
                questions.append(question)

        return {document: questions for document, questions in questions_of.items() if questions}

    def _read(self, report: Report) -> Iterator[Document]:
        """The documents of all rows. A row that is not of the layout's form is skipped."""
        rows = self.layout.rows(self.files, report)
        for where, row in _readable(rows, self.files):
            report.rows += 1
            try:
                document = self.layout.document(where, row, report)
            except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                report.skip(f"a row of another form ({type(error).__name__}: {error})", where)
                continue

            if document.passages:
                yield document
            else:
                report.skip("a row without text", where)


def _readable(rows: Iterator, files: list[File]) -> Iterator:
    """The same rows; InputError if a file cannot be read to its end."""
    try:
        yield from rows
    except UNREADABLE as error:
        raise unreadable(files[0], error) from None


# --- which layout it is ---------------------------------------------------------------------------------------------

def find(path: str) -> tuple[str, list[File]]:
    """The layout at `path`, and the files to read: a file, or those in a folder or a zip file.

    The layout is given by a name in LAYOUTS, followed by the part that is read, if there is one. PATH:SET is one of
    NarrativeQA's sets, PATH:TASK one task of LongBench's zip file; LongBench:TASK is fetched from the hub.
    """
    place, part = path, ""
    if not Path(path).exists() and ":" in path:
        place, _, part = path.rpartition(":")
    if place == "LongBench":
        place = fetch_longbench()
    if not Path(place).exists():
        raise InputError(f"{path}: cannot be read (there is no such file or folder)")

    files = files_below(Path(place))
    json_files = [file for file in files if re.search(r"\.jsonl?(\.gz)?$", file.name)]
    tables = [file for file in files if file.name == TABLE]
    if tables and not json_files:
        return choose_narrativeqa_set(path, part, files)

    json_files = choose_longbench_task(path, place, part, json_files)
    labels = sorted({recognise(file) for file in json_files + tables})
    if len(labels) != 1 or labels == ["unknown"]:
        raise InputError(f"{path}: holds {' and '.join(labels) or 'no JSON'}; one of these layouts is wanted: "
                         f"{', '.join(LAYOUTS)}")
    return labels[0], json_files


def recognise(file: File) -> str:
    """The layout of a file, with the part that it names, or "unknown".

    Raises InputError if the file is called JSON lines and its first line is not JSON.
    """
    start = Start(file)
    for layout in LAYOUTS.values():
        label = layout.recognise(start)
        if label:
            return label

    if file.name.endswith((".jsonl", ".jsonl.gz")):
        try:
            json.loads(start.line)
        except ValueError as error:
            raise InputError(f"{file}, line 1: not valid JSON ({error})") from None
    return "unknown"


def name_of(label: str, path: str | Path) -> str:
    """The data set's name: the paper's, or that of the file. The paper's names are kept for the official layouts."""
    name = label.removeprefix(f"{LongBench.name} ").split()[0]
    if name in PAPER:
        return name
    if Path(path) == EMBEDDED:
        return "embedded"

    name = Path(path).name.split(".")[0]
    return f"{name}-own" if name in PAPER else name
