"""Documents and questions, the files they come from, and the interface of a method. Knows nothing of models.

evaluation/layouts.py reads the layouts of the paper's data sets. Your own data is JSON lines, one document a line:

    {"id": "d1", "text": "...", "questions": [{"id": "d1-0", "question": "Who ...?", "answers": ["Ann", "Ann Lee"]}]}

`text` is one long text. A list of texts, `passages`, can replace it; no chunk then mixes two passages. A missing id is
made from the number of the line or the question.
"""
import codecs
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from core.disk import hash_of
from core.files import InputError, Rule, attempt, check_values, open_bytes, parse_json, reading
from core.settings import Settings

EMBEDDED = Path(__file__).parent / "tiny" / "test.jsonl"

# The fields of a line, and of each of its questions.
ID = Rule((str, int), "a text or a whole number")
WORDS = Rule((str,), "a text that is not blank", str.strip)
ALL_WORDS = Rule((list,), "a non-empty list of texts, none of them blank",
                 lambda texts: texts and all(isinstance(text, str) and text.strip() for text in texts))
DOCUMENT_RULES = {"id": ID, "questions": Rule((list,), "a list of objects",
                                              lambda rows: all(isinstance(row, dict) for row in rows))}
QUESTION_RULES = {"id": ID, "question": WORDS, "answers": ALL_WORDS}

OPTIONS = Rule((list,), "a list of 1 to 26 texts", lambda texts: 0 < len(texts) <= 26)      # named by their letters


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

# Why reading ended.
ENDS = {"yes": "the model said it knows enough", "nodes": "the fixed number of nodes was read",
        "all": "all there was has been read", "window": "the window was full", "read": "everything was read at once",
        "none": "nothing was found to answer from"}


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
    end: str = "read"             # why reading ended, a key of ENDS
    cut: bool = False             # the document did not fit the window and was cut
    trace: list = field(default_factory=list)         # its steps: pecan.Step, or the replies of a baseline
    counts: dict[str, int] = field(default_factory=dict)       # what only this kind of method counts, for this answer


class Method(Protocol):
    """A method answers questions about a document that it has prepared once."""

    models: dict                  # by name: the models and encoders that its answers depend on
    settings: Settings

    def setup(self) -> dict:
        """What all answers depend on, besides the code."""
        return {name: model.fingerprint for name, model in self.models.items()} | self.settings.answer_settings()

    def identity(self, document: Document) -> dict | None:
        """What a prepared graph depends on; None if nothing is kept. "code" is None if nobody knows it (core.code)."""
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
    """A text file as a document without questions; InputError if it is missing, empty or not UTF-8 text."""
    with reading(path, "cannot be read as UTF-8 text"):
        text = Path(path).read_bytes().decode("utf-8-sig")
    if "\0" in text or text.startswith(("%PDF-", "{\\rtf")):
        raise InputError(f"{path}: a binary file, PDF or RTF; convert the document to plain text")
    if not text.strip():
        raise InputError(f"{path}: the document is empty")
    return Document(Path(path).name, [text])


def json_lines(path: Path) -> Iterator[tuple[int, dict]]:
    """Yield the number and the object of each line that is not blank, of a file on disk or in a zip file.

    A byte order mark is no content. A gzipped file is unpacked. InputError names the line, or the file if it cannot be
    read.
    """
    with reading(path), open_bytes(path) as lines:
        for number, line in enumerate(lines, 1):
            line = line.removeprefix(codecs.BOM_UTF8).strip()
            if line.startswith(b"["):
                raise InputError(f"{path}, line {number}: holds a list; write each of its objects on a line")
            if line:
                yield number, parse_json(line, f"{path}, line {number}", dict)


def read_jsonl(path: Path) -> list[Document]:
    """The documents of a JSON lines file, on disk or in a zip file. InputError names the line and what is wrong."""
    path = Path(path) if isinstance(path, str) else path
    documents = []
    seen = set()                                            # (kind, id)
    for number, row in json_lines(path):
        where = f"{path}, line {number}"
        document = _document({"id": f"{path.stem}-{number}"} | row, where)
        for used in (("document", document.id), *(("question", question.id) for question in document.questions)):
            if used in seen:
                raise InputError(f"{where}: id {used[1]!r} is used a second time")
            seen.add(used)
        documents.append(document)

    if not documents:
        raise InputError(f"{path}: holds no document")
    return documents


def check_options(values: dict, prefix: str):
    """Raise InputError, which begins with `prefix`, for impossible options or an impossible index of the right one."""
    check_values(values, {"options": OPTIONS}, prefix)
    indices = range(len(values["options"]))
    check_values(values, {"gold": Rule((int,), f"the index of an option, at most {indices[-1]}", indices.__contains__)},
                 prefix)


def _document(row: dict, where: str) -> Document:
    """The document in a line. InputError begins with `where`."""
    if ("text" in row) == ("passages" in row):
        raise InputError(f"{where}: a document has either text or passages")
    rules = DOCUMENT_RULES | ({"text": WORDS} if "text" in row else {"passages": ALL_WORDS})
    check_values(row, rules, f"{where}: ")

    document = Document(str(row["id"]), [row["text"]] if "text" in row else row["passages"])
    for n, question in enumerate(row["questions"]):
        question = {"id": f"{document.id}-{n}"} | question
        check_values(question, QUESTION_RULES, f"{where}: question {n}: ")
        extra = {key: value for key, value in question.items() if key not in QUESTION_RULES}
        if "options" in extra:
            check_options(extra, f"{where}: question {n}: ")
        document.questions.append(Question(str(question["id"]), question["question"], question["answers"], extra))
    return document
