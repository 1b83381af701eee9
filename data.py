"""Documents and questions, and the files they come from. Knows files, no models.

The layouts of the paper's data sets are read by evaluation/layouts. Your own data is JSON lines, one document a line:

    {"id": "d1", "text": "...", "questions": [{"id": "d1-0", "question": "Who ...?", "answers": ["Ann", "Ann Lee"]}]}

`text` is one long text. `passages`, a list of texts, can take its place; passages are kept apart. A missing id is made
from the number of the line.
"""
import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from support.files import InputError, open_bytes, parse_json, reading

EMBEDDED = Path(__file__).parent / "tiny" / "test.jsonl"


@dataclass(frozen=True)
class Question:
    """A question and its gold answers, each of which is right. `extra` holds what else the data says about it."""
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

    @property
    def hash(self) -> str:
        """sha256 of the passages; a graph belongs to a document by it."""
        return hashlib.sha256(json.dumps(self.passages, ensure_ascii=False, allow_nan=False).encode()).hexdigest()


def read_text(path: str | Path) -> Document:
    """A text file as a document without questions; InputError if it is missing, empty or not UTF-8 text."""
    with reading(path):
        content = Path(path).read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start}); convert the document to plain text") from None

    if "\0" in text:
        raise InputError(f"{path}: a binary file; convert the document to plain text")
    if not text.strip():
        raise InputError(f"{path}: the document is empty")
    return Document(Path(path).name, [text])


def read_jsonl(path: str | Path, limit: int | None = None) -> list[Document]:
    """The documents of a JSON lines file, at most `limit`; InputError names the line and what is wrong with it."""
    documents = list(itertools.islice(iterate_jsonl(Path(path)), limit))
    if not documents:
        raise InputError(f"{path}: holds no document")
    return documents


def iterate_jsonl(path: Path) -> Iterator[Document]:
    """The documents of a JSON lines file, one at a time; InputError as in read_jsonl."""
    documents_seen = set()
    questions_seen = set()
    with reading(path), open_bytes(path) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue

            where = f"{path}, line {number}"
            document = _document(line, where, f"{path.stem}-{number}")
            _check_new([document.id], documents_seen, where)
            _check_new([question.id for question in document.questions], questions_seen, where)
            yield document


def _check_new(ids: list[str], seen: set[str], where: str):
    """Add ids to those seen so far; InputError if one is there already."""
    for id in ids:
        if id in seen:
            raise InputError(f"{where}: id {id!r} is used a second time")
        seen.add(id)


def _document(line: bytes, where: str, name: str) -> Document:
    """The document in a line; its id is `name` if it has none. InputError says what is wrong, starting with `where`."""
    row = parse_json(line, where)
    if not isinstance(row, dict):
        raise InputError(f"{where}: a document is an object with text (or passages) and questions")
    if ("text" in row) == ("passages" in row):
        raise InputError(f"{where}: a document has either text or passages")
    passages = [row["text"]] if "text" in row else row["passages"]
    if not isinstance(passages, list) or not passages or not all(_is_text(passage) for passage in passages):
        raise InputError(f"{where}: text is a non-empty string; passages is a non-empty list of such strings")
    if not isinstance(row.get("questions"), list):
        raise InputError(f"{where}: questions is a list")

    document = Document(_id(row, name, where), passages)
    for n, question in enumerate(row["questions"]):
        document.questions.append(_question(question, n, document.id, where))
    return document


def _question(row, n: int, document: str, where: str) -> Question:
    """The question number `n` of a document; InputError if its text or its answers are missing."""
    if not isinstance(row, dict) or not _is_text(row.get("question")):
        raise InputError(f"{where}: question {n} has no text under \"question\"")
    answers = row.get("answers")
    if not isinstance(answers, list) or not answers or not all(isinstance(answer, str) for answer in answers):
        raise InputError(f"{where}: question {n} needs \"answers\", a non-empty list of strings")

    extra = {key: value for key, value in row.items() if key not in ("id", "question", "answers")}
    return Question(_id(row, f"{document}-{n}", where), row["question"], answers, extra)


def _id(row: dict, name: str, where: str) -> str:
    """The id of a document or question, `name` if it has none; InputError if it is no text or number."""
    if type(row.get("id", name)) not in (str, int):
        raise InputError(f"{where}: id is {row['id']!r:.60}; it must be a text or a whole number")
    return str(row.get("id", name))


def _is_text(value) -> bool:
    """Whether a value is a string that is not blank."""
    return isinstance(value, str) and bool(value.strip())
