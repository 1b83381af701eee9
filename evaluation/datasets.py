"""A data set on disk or on the hub: its documents with their questions."""
import contextlib
import hashlib
import itertools
import json
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from core.files import InputError, one_line, reading, sha256
from data import EMBEDDED, Document, json_lines
from evaluation.layouts import LAYOUTS, SETS, TABLE, TASKS, Layout, check, narrativeqa, task_of
from evaluation.paper import DATASETS, OTHER_DATASETS

TAKEN = {*map(str.casefold, (*DATASETS, *OTHER_DATASETS, "graphs"))}      # names with another use in an output folder


class Dataset:
    """A data set, or its first `limit` documents that have questions.

    `path` is a file of rows, PATH:TASK a task in LongBench's zip file, a folder with qaps.csv NarrativeQA, and PATH:SET
    one of its sets; each may be on the hub. Rows with the same text are one document, so its graph is built once.
    Reading stops at the row where document `limit` + 1 begins: questions of earlier documents below it are not asked.

    `name` is the data set's name in the paper, if the file is the official one, or the name of the file. `questions`
    are the keys of the questions, in order: (id of the document, id of the question). `report` is what the results say
    about the data. InputError names the row that is wrong.
    """

    def __init__(self, path: str | Path, limit: int | None = None):
        path, address = fetch(str(path)) if str(path).startswith(("hf:", "https:")) else (str(path), str(path))
        self.part = ""
        if not Path(path).exists() and ":" in path:
            path, _, self.part = path.rpartition(":")
        self.path = Path(path)
        if not self.path.exists():
            raise InputError(f"{address}: there is no such file or folder")

        self.left_out = Counter()                           # why -> how many questions
        self.documents = self._read(limit)
        self.questions = [(document.id, question.id) for document in self.documents for question in document.questions]
        self.report = {"path": address, "layout": self.layout, "sha256": self._sha256(),
                       "documents": len(self.documents), "questions": len(self.questions), "left out": +self.left_out}
        if not self.questions:
            raise InputError(f"{self}: there must be a question with an answer")

    def __str__(self) -> str:
        """The data in one line."""
        left_out = ", ".join(f"{count} questions {why}" for why, count in self.report["left out"].items())
        return (f"{self.report['path']}: {self.layout}, {len(self.documents)} documents, "
                f"{len(self.questions)} questions{left_out and f'; left out: {left_out}'}")

    def lengths(self, split: Callable) -> dict:
        """The lengths of the documents in words or tokens (Table A3); `split` cuts a text into them."""
        counts = [sum(len(split(passage)) for passage in document.passages) for document in self.documents]
        return {"average": sum(counts) / len(counts), "least": min(counts), "most": max(counts),
                "documents": len(counts), "questions": len(self.questions)}

    def _read(self, limit: int | None) -> list[Document]:
        """The documents without blank passages, and without questions that have no gold answer."""
        documents = {}                                      # hash of the text -> document
        used = set()
        for where, document in self._rows():
            passages = [passage for passage in document.passages if passage.strip()]
            if not passages:
                raise InputError(f"{where}: there is no text in it")
            document = replace(document, passages=passages)
            text = document.hash
            if text not in documents and len(documents) == limit:
                break

            answered = [question for question in document.questions if question.answers]
            self.left_out["without a gold answer"] += len(document.questions) - len(answered)
            if not answered:
                continue
            kept = documents.setdefault(text, replace(document, questions=[]))
            for question in answered:
                if (kept.id, question.id) in used:
                    raise InputError(f"{where}: question id {question.id!r} is used a second time in its document")
                used.add((kept.id, question.id))
                kept.questions.append(question)
        return list(documents.values())

    def _rows(self) -> Iterator[tuple[str, Document]]:
        """Yield where a row is, in words, and its document. The layout is that of the first row."""
        if (self.path / TABLE).exists():
            if self.part not in ("", *SETS):
                raise InputError(f"{self.path}: NarrativeQA has no set {self.part!r:.60}, only {', '.join(SETS)}")
            self.layout = self.name = "NarrativeQA"
            for document in narrativeqa(self.path, self.part, self.left_out):
                yield f"{self.path}, story {document.id}", document
            return

        rows = rows_of(self.path, self.part)
        first = next(rows, (1, {}))
        layout = next((LAYOUTS[key] for key in LAYOUTS if key in first[1]), None)
        if not layout:
            raise InputError(f"{self.path}, row 1: a row must have one of the keys {', '.join(LAYOUTS)}")
        self.layout = layout.name
        self.name = name_of(layout, self.path, self.part)
        for number, row in itertools.chain([first], rows):
            try:
                check(row, layout.form, "the row")
                document = layout.document(row)
                if layout.name == "LongBench" and self.name in TASKS.values() and task_of(row["dataset"]) != self.name:
                    raise InputError(f"the row is of {row['dataset']}, and the file of {self.name}")
            except ValueError as error:                     # an InputError, or half a character
                raise InputError(f"{self.path}, row {number}: {one_line(error)}") from None
            yield f"{self.path}, row {number}", document

    def _sha256(self) -> str:
        """Of the file, or of the table and the stories."""
        if self.path.is_dir():
            return sha256([self.path / TABLE, *sorted(self.path.rglob("*.content"))])
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def name_of(layout: Layout, path: Path, part: str) -> str:
    """The name of a data set in the paper for its official file or LongBench's task, else the name of the file.

    So a file of HotpotQA's layout that holds something else does not take the paper's settings, figures and folder.
    """
    stem = part or path.stem
    if layout.name == "LongBench" and stem.removesuffix("_e") in TASKS:
        return task_of(stem)
    if re.fullmatch(layout.files, stem):
        return layout.name
    if path == EMBEDDED:
        return "embedded"
    return f"{stem}-own" if stem.casefold() in TAKEN else stem


# --- rows -----------------------------------------------------------------------------------------------------------

def rows_of(path: Path, part: str) -> Iterator[tuple[int, dict]]:
    """Yield the rows of a file with their numbers. A .json file is one list, or Qasper's object; others have lines.

    With `part`, the file is LongBench's zip file, and data/PART.jsonl in it is read.
    """
    if part or path.suffix == ".zip":
        task_of(part, f"{path}:TASK")
        with reading(path, "not LongBench's zip file"):
            path = zipfile.Path(path, f"data/{part}.jsonl")
    return enumerate(rows_of_list(path), 1) if path.suffix == ".json" else json_lines(path)


def rows_of_list(path: Path) -> Iterator[dict]:
    """Yield the rows of a JSON list, which is read no further than they are asked for; or Qasper's papers with ids."""
    sign = r"\s*\[\s*(?={)"                                # before the first row
    decoder = json.JSONDecoder(parse_constant=int)          # int("NaN") is an error; NaN and Infinity are no JSON
    text = ""                                               # what is read and no row yet

    with reading(path, "not one JSON list of objects, or Qasper's object"), path.open(encoding="utf-8-sig") as file:
        for more in iter(lambda: file.read(len(text) + 65_536), ""):
            text += more
            with contextlib.suppress(ValueError):           # not JSON, or only not yet: the text is cut in a row
                while found := re.match(sign, text):
                    row, end = decoder.raw_decode(text, found.end())
                    yield row
                    text = text[end:]
                    sign = r"\s*,\s*(?={)"                  # before others
        if text.lstrip().startswith("{"):
            yield from ({"id": name} | paper for name, paper in json.loads(text).items())
        elif text.strip() != "]":
            raise ValueError(f"it breaks off, or is wrong, from {text[:60]!r} on")


# --- the hub --------------------------------------------------------------------------------------------------------

def fetch(address: str) -> tuple[str, str]:
    """The file at hf://datasets/OWNER/NAME[@REVISION]/FILE[:PART], from the hub or from its cache.

    Returns its local path with the part, and the address with the commit that was read. InputError if there is no such
    file, or if it cannot be had.
    """
    import huggingface_hub as hub
    with reading(address, "not an address of the form hf://datasets/OWNER/NAME[@REVISION]/FILE[:PART]"):
        uri = hub.parse_hf_uri(address)
        name = uri.path_in_repo.rsplit(":", 1)[0]
        if uri.type != "dataset" or not name:
            raise ValueError("it names no file of a data set")

    with reading(address, "cannot be fetched from the hub", "; if it is gated, accept its terms there, and log in with "
                                                            "`hf auth login`"):
        path = Path(hub.hf_hub_download(uri.id, name, repo_type="dataset", revision=uri.revision))
    commit = path.parents[name.count("/")].name             # .../snapshots/COMMIT/FILE
    part = uri.path_in_repo.removeprefix(name)
    return f"{path}{part}", f"hf://datasets/{uri.id}@{commit}/{name}{part}"
