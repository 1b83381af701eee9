"""A data set on disk or on the hub: its layout, its documents with their questions, and a report."""
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from core.files import InputError, instead, look, one_line, reading, sha256
from data import EMBEDDED, Document
from evaluation.layouts import LAYOUTS, File, LongBench, NarrativeQA, Report, files_below, text_of
from evaluation.paper import DATASETS, OTHER_DATASETS

ROWS = r"(?i)\.(json|jsonl|ndjson)(\.gz)?$|^qaps\.csv$|^QuALITY\..*\.(train|dev|test)$"       # names of their files
TAKEN = (*DATASETS, *OTHER_DATASETS, "", "..", "graphs")       # names with another use in an output folder


class Dataset:
    """A data set: its first `limit` documents that have questions, and a report about all documents.

    Rows with the same text are one document, so its graph is built once. `name` is the data set's name in the paper, or
    the name of the file. `questions` are the ids of the questions, in order.
    """

    def __init__(self, path: str | Path, limit: int | None = None):
        address = str(path)
        digest = None
        if address.startswith(("hf:", "https:")):
            path, address, digest = fetch(address)
        label, self.files = find(str(path))
        self.layout = LAYOUTS[label.split()[0]]
        self.name = name_of(label, path)
        self.report = Report(address, label, digest or sha256(self.files))
        if self.report.part and self.report.part not in self.layout.parts:
            raise InputError(f"{address}: {self.layout.name}'s {self.report.part!r:.60} is not read, only "
                             f"{', '.join(self.layout.parts)}")

        found = self._read()
        if not found:
            raise InputError(f"{path}: holds no question ("
                             f"{', '.join(self.report.found) or f'rows: {self.report.rows}'})")
        self.report.documents = len(found)
        self.report.questions = sum(len(document.questions) for document in found)
        self.documents = found[:limit]
        self.questions = [question.id for document in self.documents for question in document.questions]

    def lengths(self, split: Callable) -> dict:
        """The lengths of the documents in words or tokens (Table A3); `split` cuts a text into them."""
        counts = [sum(len(split(passage)) for passage in document.passages) for document in self.documents]
        return {"average": sum(counts) / len(counts), "least": min(counts), "most": max(counts),
                "documents": len(counts), "questions": len(self.questions)}

    def _read(self) -> list[Document]:
        """The documents that have questions. A repeated question id gets a number."""
        documents = {}
        used = set()
        for document in self._rows():
            questions = documents.setdefault(document.hash, replace(document, questions=[])).questions
            for question in document.questions:
                if question.id in used:
                    self.report.note("a question id that is used again, numbered", question.id)
                    numbered = (f"{question.id}#{n}" for n in itertools.count(2))
                    question = replace(question, id=next(id for id in numbered if id not in used))
                used.add(question.id)
                questions.append(question)
        return [document for document in documents.values() if document.questions]

    def _rows(self) -> Iterator[Document]:
        """The document of each row. A row of another form is skipped."""
        for where, row in self.layout.rows(self.files, self.report):
            self.report.rows += 1
            try:
                document = self.layout.document(where, row, self.report)
            except Exception as error:                      # nobody can list what a damaged file makes libraries raise
                self.report.note(f"a row of another form ({type(error).__name__}: {one_line(error)})", where)
                continue

            if document.passages:
                yield document
            else:
                self.report.note("a row without text", where)


# --- the hub --------------------------------------------------------------------------------------------------------

def fetch(address: str) -> tuple[str, str, str]:
    """The file at hf://datasets/OWNER/NAME[@REVISION]/FILE[:PART], from the hub or from its cache.

    Returns its local path with the part, the address with the commit that was read, and the file's sha256. Raises
    InputError if there is no such file, or if it cannot be had.
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
        commit = path.parents[name.count("/")].name         # .../snapshots/COMMIT/FILE
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    part = uri.path_in_repo.removeprefix(name)
    return f"{path}{part}", f"hf://datasets/{uri.id}@{commit}/{name}{part}", digest


# --- which layout it is ---------------------------------------------------------------------------------------------

def find(path: str) -> tuple[str, list[File]]:
    """The layout at `path`, and the files to read: one file, or the files in a folder or a zip file.

    The layout is a name in LAYOUTS. If only a part is read, its name follows. PATH:PART is one of NarrativeQA's sets,
    or the file of this name, such as a task in LongBench's zip file.
    """
    whole = path
    part = ""
    if not Path(path).exists() and ":" in path:
        whole, _, part = path.rpartition(":")
    if not Path(whole).exists():
        raise InputError(f"{path}: there is no such file or folder")

    with reading(whole):                                    # its folders may be nested too deeply
        files = files_below(Path(whole))
    found = {file: stem(file.name) for file in files if re.search(ROWS, file.name)}
    chosen = [file for file in found if not part or stem(part) == found[file] or file.name == NarrativeQA.table]
    labels = {*map(recognise, chosen)}
    if labels == {NarrativeQA.name}:
        label = f"{NarrativeQA.name} {part}".strip()
        return label, [file for file in files if file in chosen or ".content" in file.name]
    if len(labels) != 1 or None in labels:
        held = " and ".join(sorted(label or "no row of a known layout" for label in labels)) or (
            f"no {part}" if found else "no .json(l) file" + (look(whole) or instead(file.name for file in files)))
        hint = f"; {whole}:NAME reads one file of {', '.join(found.values())}" if part and found or chosen[1:] else ""
        raise InputError(f"{path}: holds {held}; one of these layouts is wanted: {', '.join(LAYOUTS)}{hint}")
    return labels.pop(), chosen


def recognise(file: File) -> str | None:
    """The label of a file's layout, from its first row; None if unknown. InputError if it is not JSON.

    The first row is the file's first JSON value, or is in it. If it has the keys of several layouts, the first counts.
    """
    if file.name == NarrativeQA.table:
        return NarrativeQA.name
    with reading(file, "not valid JSON"):
        value, _ = json.JSONDecoder().raw_decode(text_of(file, Report("")).lstrip())

    rows = value if isinstance(value, list) else [value, *value.values()] if isinstance(value, dict) else []
    labels = (layout.label(row, stem(file.name)) for row in rows[:2] if isinstance(row, dict)
              for layout in LAYOUTS.values() if layout.keys <= row.keys())
    return next(labels, None)


def stem(name: str) -> str:
    """The name of a file without the endings of its format. Others belong to it: law.v1 and law.v2 differ."""
    return re.sub(r"(?i)(\.(json|jsonl|ndjson|zip|gz))+$", "", name)


def name_of(label: str, path: str | Path) -> str:
    """The data set's name: the paper's for an official layout, else the file's, or that of the part."""
    name = label.removeprefix(f"{LongBench.name} ").split()[0]
    if name in (*DATASETS, *OTHER_DATASETS):
        return name
    if Path(path) == EMBEDDED:
        return "embedded"
    name = stem(Path(path if Path(path).exists() else str(path).replace(":", "/")).name)
    return f"{name}-own" if name in TAKEN else name
