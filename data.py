"""Documents and questions, the files they come from, and the interface of a method. Knows nothing of models.

evaluation/layouts.py reads data sets with their questions.
"""
import codecs
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from core.code import identity_of
from core.files import InputError, attempt, hash_of, parse_json, reading
from core.settings import Settings

EMBEDDED = Path(__file__).parent / "tiny" / "test.jsonl"


@dataclass(frozen=True)
class Question:
    """A question and its gold answers, each of them right. `extra` holds other fields of the data."""
    id: str
    text: str
    answers: list[str]
    extra: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Document:
    """A document and its questions. No chunk mixes two of its passages; a single text is one passage."""
    id: str
    passages: list[str]
    questions: list[Question] = field(default_factory=list)

    @cached_property
    def hash(self) -> str:
        """sha256 of the passages. A graph names its document by this hash."""
        return hashlib.sha256(json.dumps(self.passages, ensure_ascii=False).encode()).hexdigest()


# --- methods and answers --------------------------------------------------------------------------------------------

@dataclass
class Prepared:
    """A document made ready for its questions."""
    texts: list[str]              # what can be retrieved: chunks, nodes, units, pairs
    flops: int = 0                # what preparing cost, the construction of a graph included
    graph: object = None          # what was built: PECAN's graph, a tree, pairs
    index: object = None          # finds texts: their vectors [n, D], word counts or token ids
    counts: dict[str, int] = field(default_factory=dict)       # what only this kind of method counts, while preparing


@dataclass
class Answer:
    """A method's answer to a question, and its cost."""
    text: str
    nodes: list[int]              # indices in Prepared.texts, in the order they were read (LongLLMLingua: ranks)
    flops: int
    tokens: int                   # prompt, nodes, checks and answer
    end: str = "everything was read at once"      # why reading ended, in words
    cut: bool = False             # the document did not fit the window and was cut
    trace: list = field(default_factory=list)         # its steps: pecan.Step, or the replies of a baseline
    search: dict = field(default_factory=dict)        # what PECAN's search began with: settings, room, c, lengths
    counts: dict[str, int] = field(default_factory=dict)       # what only this kind of method counts, for this answer


class Method(Protocol):
    """A method answers questions about a document that it has prepared once."""

    settings: Settings

    def setup(self) -> dict:
        """All answers depend on this: the class, all that it holds, and the code of both."""
        return identity_of(method=type(self), parts=vars(self))

    def identity(self, document: Document) -> dict | None:
        """A document's prepared graph depends on this (core.code.identity_of); None if nothing is kept."""
        return None

    def file_name(self, document: Document) -> str | None:
        """The name, without an ending, under which the prepared graph is kept on disk; None if nothing is kept."""
        identity = self.identity(document)
        return hash_of(identity) if identity and identity["code"] else None

    def prepare_all(self, documents: list[Document], paths: list,
                    progress: bool = False) -> "list[Prepared | InputError]":
        """Prepare documents, together where that is faster. If a path is given (not None), the graph is read from
        there, or built and written there.

        An InputError takes the place of a document that cannot be used, and so does one whose file cannot be read.
        """

    def prepare(self, document: Document, path: str | Path | None = None, progress: bool = False) -> Prepared:
        """`prepare_all` for one document; raises its InputError."""
        [prepared] = self.prepare_all([document], [path], progress)
        if isinstance(prepared, InputError):
            raise prepared
        return prepared

    def answer(self, prepared: Prepared, question: str) -> Answer:
        """Answer one question; InputError if this question cannot be answered, for example if it is too long."""

    def answer_all(self, asked: list[tuple[Prepared, str]]) -> Iterator[tuple[int, Answer | InputError]]:
        """Yield (n, the answer to asked[n]) in any order; an InputError if this question cannot be answered."""
        for n, (prepared, question) in enumerate(asked):
            yield n, attempt(self.answer, prepared, question)


# --- files ----------------------------------------------------------------------------------------------------------

def read_text(path: str | Path) -> Document:
    """A file of plain UTF-8 text as a document without questions; InputError if it is missing, empty, or HTML."""
    with reading(path, "plain UTF-8 text is wanted"):
        text = Path(path).read_bytes().decode("utf-8-sig")
    if re.match(r"(?i)\s*<(!doctype|html)\b", text):
        raise InputError(f"{path}: plain UTF-8 text is wanted, and this is a page in HTML")
    if not text.strip():
        raise InputError(f"{path}: the document is empty")
    return Document(Path(path).name, [text])


def json_lines(path: Path) -> Iterator[tuple[int, dict]]:
    """Yield the number and the object of each line that is not blank, of a file on disk or in a zip file.

    A byte order mark is no content. InputError names the line, or the file if it cannot be read.
    """
    with reading(path), path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            line = line.removeprefix(codecs.BOM_UTF8).strip()
            if line:
                yield number, parse_json(line, f"{path}, line {number}", dict)
