"""Documents and questions, and the files they come from. Knows files, no models.

The layouts of the paper's data sets are read in evaluation/layouts. The format of one's own data is JSON lines, one
document each:

    {"id": "d1", "text": "...", "questions": [{"id": "d1-0", "question": "Who ...?", "answers": ["Ann", "Ann Lee"]}]}

`text` is one long text; `passages`, a list of texts, may stand in its place and keeps the passages apart. Ids are
made up from the line where they are missing.
"""
import hashlib
import itertools
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from support.files import InputError, open_bytes

EMBEDDED = Path(__file__).parent / "tiny" / "test.jsonl"


@dataclass(frozen=True)
class Question:
    """A question and its gold answers, any of which is right; what else the data says of it stands in `about`."""
    id: str
    text: str
    answers: list[str]
    about: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Document:
    """A document: passages that are never mixed in one chunk (one, where it is a single text), and its questions."""
    id: str
    passages: list[str]
    questions: list[Question] = field(default_factory=list)

    @property
    def hash(self) -> str:
        """sha256 of the passages: what a graph belongs to."""
        return hashlib.sha256(json.dumps(self.passages, ensure_ascii=False).encode()).hexdigest()


def read_text(path: str | Path) -> Document:
    """A text file as a document without questions; InputError where it is missing, empty or not UTF-8 text."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start}); convert the document to plain text") from None
    if "\0" in text:
        raise InputError(f"{path}: a binary file; convert the document to plain text")
    if not text.strip():
        raise InputError(f"{path}: the document is empty")
    return Document(Path(path).name, [text])


def read_jsonl(path: str | Path, limit: int | None = None) -> list[Document]:
    """Documents of a JSON lines file, at most `limit`; InputError names the line and what is wrong with it."""
    documents = list(itertools.islice(iterate_jsonl(Path(path)), limit))
    if not documents:
        raise InputError(f"{path}: holds no document")
    return documents


def iterate_jsonl(path: Path) -> Iterator[Document]:
    """The same, one at a time."""
    documents_seen, questions_seen = set(), set()
    try:
        with open_bytes(path) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    document = _document(line.decode("utf-8-sig"), f"{path}, line {number}", f"{path.stem}-{number}")
                    for seen, ids in ((documents_seen, [document.id]),
                                      (questions_seen, [question.id for question in document.questions])):
                        for id in ids:
                            if id in seen:
                                raise InputError(f"{path}, line {number}: id {id!r} stands there a second time")
                            seen.add(id)
                    yield document
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}, line {number}: not UTF-8 text (byte {error.start})") from None


def _document(line: str, where: str, name: str) -> Document:
    try:
        row = json.loads(line)
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: half a surrogate pair, {error.object[error.start]!r}, is no character") from None
    except ValueError as error:
        raise InputError(f"{where}: not valid JSON ({error})") from None

    def want(ok, what):
        if not ok:
            raise InputError(f"{where}: {what}")

    def text(value):
        return isinstance(value, str) and bool(value.strip())
    want(isinstance(row, dict), "a document is an object with text (or passages) and questions")
    want(("text" in row) != ("passages" in row), "a document has either text or passages")
    passages = [row["text"]] if "text" in row else row["passages"]
    want(isinstance(passages, list) and passages and all(map(text, passages)),
         "text is a non-empty string; passages is a non-empty list of such strings")
    want(isinstance(row.get("questions"), list), "questions is a list")
    document = Document(str(row.get("id", name)), passages)
    for n, q in enumerate(row["questions"]):
        want(isinstance(q, dict) and text(q.get("question")), f"question {n} has no text under \"question\"")
        answers = q.get("answers")
        want(isinstance(answers, list) and answers and all(isinstance(a, str) for a in answers),
             f"question {n} needs \"answers\", a non-empty list of strings")
        about = {key: value for key, value in q.items() if key not in ("id", "question", "answers")}
        document.questions.append(Question(str(q.get("id", f"{document.id}-{n}")), q["question"], answers, about))
    return document
