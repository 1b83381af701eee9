"""The data sets of the paper: NarrativeQA, Qasper, HotpotQA and MuSiQue in their official layouts, LongBench's tasks,
and the project's own format. Knows files, no models.

A layout is recognised by its content. Documents come one at a time, each with all its questions; what is wrong with the
data is mended or left out, counted, and told.
"""
import argparse
import csv
import hashlib
import html.parser
import io
import json
import re
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from data import EMBEDDED, Document, Question, iterate_jsonl
from support.files import InputError, one_line, open_bytes

# --- data sets ------------------------------------------------------------------------------------------------------

@dataclass
class Report:
    """What was found in a data set. `skipped` and `problems` hold, for each reason, how often and where first."""
    path: str
    layout: str = ""
    sha256: str = ""              # of the files that were read
    rows: int = 0                 # as the layout has them: questions, or papers (Qasper), or documents (own)
    documents: int = 0
    questions: int = 0
    skipped: dict = field(default_factory=dict)
    problems: dict = field(default_factory=dict)

    def skip(self, reason: str, where: str):
        self._note(self.skipped, reason, where)

    def problem(self, reason: str, where: str):
        self._note(self.problems, reason, where)

    def _note(self, what: dict, reason: str, where: str):
        entry = what.setdefault(reason, {"count": 0, "first": where})
        entry["count"] += 1


    def lines(self) -> list[str]:
        """What was found, in words."""
        found = [f"{self.path}: {self.layout}, {self.rows} rows, sha256 {self.sha256[:16]}: "
                 f"{self.documents} documents, {self.questions} questions"]
        return found + [f"  {name}, {entry['count']} times: {reason} (first: {entry['first']})"
                        for name, notes in (("skipped", self.skipped), ("problem", self.problems))
                        for reason, entry in notes.items()]


class Dataset:
    """A data set on disk: its documents one at a time, each with all its questions, and a report of what was found.

    Documents are recognised by their text: rows about the same one are one document, so that its graph is built once.
    `name` is the data set's in the paper, or the file's; `questions` are the ids of the questions of the first `limit`
    documents, in order. The files are read twice, and once more for each run: what stays in memory is questions.
    """

    def __init__(self, path: str | Path, limit: int | None = None):
        self.layout, self.files = _layout(str(path))
        self.report, self.about = Report(str(path), self.layout), {}       # hash of a document -> its questions
        self.name = self.layout.removeprefix("LongBench ").split()[0]
        if self.name not in PAPER:                               # the paper's names are for its own layouts
            self.name = "embedded" if Path(path) == EMBEDDED else Path(path).name.split(".")[0]
            self.name += "-own" if self.name in PAPER else ""
        ids: Counter = Counter()
        for document in _read(self.layout, self.files, self.report):
            questions = self.about.setdefault(document.hash, [])
            for q in document.questions:
                ids[q.id] += 1
                if ids[q.id] > 1:
                    self.report.problem("an id of a question stands there again and got a number", q.id)
                    q = Question(f"{q.id}#{ids[q.id]}", q.text, q.answers, q.about)
                questions.append(q)
        self.about = {text: questions for text, questions in self.about.items() if questions}
        if not self.about:
            raise InputError(f"{path}: holds no question ({', '.join(self.report.skipped) or 'it is empty'})")
        self.report.documents, self.report.questions = len(self.about), sum(map(len, self.about.values()))
        self.report.sha256 = _sha256(self.files)
        self.about = dict(list(self.about.items())[:limit])
        self.questions = [q.id for questions in self.about.values() for q in questions]

    def documents(self) -> Iterator[Document]:
        """The first `limit` documents that have questions, read again from the files."""
        left = dict(self.about)
        for document in _read(self.layout, self.files, Report(self.report.path, self.layout)):
            questions = left.pop(document.hash, None)
            if questions:
                yield Document(document.id, document.passages, questions)
            if not left:
                return

    def lengths(self, tokenizer) -> dict:
        """Tokens of the documents (Table A3)."""
        counts = [sum(len(tokenizer.encode(passage)) for passage in document.passages)
                  for document in self.documents()]
        return {"average": sum(counts) / len(counts), "least": min(counts), "most": max(counts),
                "documents": len(counts), "questions": len(self.questions)}


# --- layouts: the rows of each, and what a row says -----------------------------------------------------------------

PAPER = ("NarrativeQA", "Qasper", "HotpotQA", "MuSiQue")
LONGBENCH = {name.lower(): name for name in PAPER}               # its tasks


def _read(layout: str, files: list, report: Report) -> Iterator[Document]:
    """The documents of the files; a row of another form than its layout's is skipped."""
    rows, document_of = READERS[layout.split()[0]]
    for where, row in _readable(rows(files, report), files):
        report.rows += 1
        try:
            document = document_of(where, row, report)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            report.skip(f"a row of another form ({type(error).__name__}: {error})", where)
        else:
            if document.passages:
                yield document
            else:
                report.skip("a row without text", where)


def _readable(rows: Iterator, files: list) -> Iterator:
    """The same rows; InputError where a file cannot be read to its end."""
    try:
        yield from rows
    except UNREADABLE as error:
        raise InputError(f"{files[0]}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _own_rows(files, report):
    for file in files:
        for document in iterate_jsonl(file):
            yield document.id, document


def _hotpotqa(where, row, report) -> Document:
    """Paragraphs are [title, [sentences]], sentences with their leading blanks."""
    titles = [title for title, _ in row["context"]]
    if len(titles) < 10:
        report.problem("fewer than 10 paragraphs", where)
    if len(set(titles)) < len(titles):
        report.problem("a title stands twice in a row", where)
    passages = [f"{title}\n{''.join(sentences)}" for title, sentences in row["context"] if "".join(sentences).strip()]
    if len(passages) < len(titles):
        report.problem("an empty paragraph, left out", where)
    return _checked(report, where, row["_id"], passages, [(row["_id"], row["question"], [row.get("answer") or ""])])


def _musique(where, row, report) -> Document:
    """Paragraphs are known by their idx, because titles repeat; a test set has no answers."""
    paragraphs = sorted(row["paragraphs"], key=lambda paragraph: paragraph["idx"])
    if len(paragraphs) < 20:
        report.problem("fewer than 20 paragraphs", where)
    if len({paragraph["title"] for paragraph in paragraphs}) < len(paragraphs):
        report.problem("a title stands twice in a row", where)
    passages = [f"{paragraph['title']}\n{paragraph['paragraph_text']}" for paragraph in paragraphs]
    answers = [row.get("answer") or "", *row.get("answer_aliases", [])]
    if not row.get("answerable", True):
        report.problem("a question that its paragraphs do not answer, left out", where)
    asked = [(row["id"], row["question"], answers)] if row.get("answerable", True) else []
    return _checked(report, where, row["id"], passages, asked)


def _qasper_rows(files, report):
    for file in files:                                           # one object: its file is read at once
        yield from _load(file, dict).items()


def _qasper(where, row, report) -> Document:
    """Title, abstract and sections of a paper are one text; the answers of all annotators are gold."""
    sections = [part for section in row["full_text"]
                for part in (section.get("section_name") or "", *section["paragraphs"])]
    if not sections:
        report.problem("a paper without full text", where)
    text = "\n".join(part for part in (row["title"], row["abstract"], *sections) if part and part.strip())
    return _checked(report, where, where, [text], [
        (qa["question_id"], qa["question"], [_qasper_answer(a["answer"]) for a in qa["answers"]]) for qa in row["qas"]])


def _qasper_answer(answer: dict) -> str:
    """As Qasper's own scorer writes it."""
    if answer["unanswerable"]:
        return "Unanswerable"
    if answer["extractive_spans"]:
        return ", ".join(answer["extractive_spans"])
    return answer["free_form_answer"] or ("" if answer["yes_no"] is None else "Yes" if answer["yes_no"] else "No")


def _narrativeqa_rows(files, report):
    """Documents of qaps.csv in their order, each with its questions and the file of its story."""
    stories = {file.name.split(".")[0]: file for file in files if ".content" in file.name}
    part, asked = report.layout.partition(" ")[2], {}                # train, valid, test; all where none is named
    for file in files:
        if file.name == "qaps.csv":
            table = csv.DictReader(io.StringIO(_decode(_bytes(file), report, str(file))))
            missing = {"document_id", "set", "question", "answer1", "answer2"} - set(table.fieldnames or [])
            if missing:
                raise InputError(f"{file}: has no column {sorted(missing)[0]}")
            for number, row in enumerate(table, 2):
                if part in ("", row["set"]):
                    asked.setdefault(row["document_id"], []).append(
                        (f"{row['document_id']}-{number}", row["question"], [row["answer1"], row["answer2"]]))
    for name, questions in asked.items():
        if name in stories:
            yield name, (questions, stories[name])
        else:
            report.skip("a document whose story is missing", name)


def _narrativeqa(where, row, report) -> Document:
    asked, story = row
    return _checked(report, where, where, [_plain(_decode(_bytes(story), report, where), report, where)], asked)


def _longbench(where, row, report) -> Document:
    """Contexts of several documents are cut into their passages."""
    passages = [part for part in re.split(r"^Passage \d+:\n", row["context"], flags=re.M) if part.strip()]
    name = str(row.get("_id") or where)
    return _checked(report, where, name, passages, [(name, row.get("input") or row["question"], row["answers"])])


def _checked(report, where: str, name: str, passages: list[str], asked: list[tuple]) -> Document:
    """A document of what is there, less empty passages, answers that are empty or repeated, questions without any."""
    document = Document(name, [_mended(passage, report, where) for passage in passages if passage.strip()])
    for text in document.passages:
        text.encode()                                        # half a surrogate pair is no character: a ValueError
    for id, text, answers in asked:
        json.dumps((id, text, answers), ensure_ascii=False).encode()
        answers = list(dict.fromkeys(_mended(answer, report, where).strip() for answer in answers))
        if "" in answers:
            report.problem("an empty answer, left out", id)
            answers.remove("")
        if answers and text.strip():
            document.questions.append(Question(str(id), text.strip(), answers))
        else:
            report.skip("a question without an answer" if text.strip() else "an empty question", id)
    return document


# --- what files hold ------------------------------------------------------------------------------------------------

# The disk's refusals, gzip's, and those of zip files that are damaged or locked by a password.
UNREADABLE = (OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError, NotImplementedError)


def _bytes(file) -> bytes:
    """The content of a file, unpacked where it is gzipped."""
    try:
        with open_bytes(file) as stream:
            return stream.read()
    except UNREADABLE as error:
        raise InputError(f"{file}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _decode(content: bytes, report, where: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        report.problem("not UTF-8, read as latin-1", where)
        return content.decode("latin-1")


def _mended(text: str, report, where: str) -> str:
    """Text whose UTF-8 was once read as latin-1 (or Windows' 1252), put right; other text as it is."""
    for wrong in ("latin-1", "cp1252"):
        try:
            mended = text.encode(wrong).decode("utf-8")
        except UnicodeError:
            continue
        if mended != text:
            report.problem(f"UTF-8 that was read as {wrong}, mended", where)
        return mended.removeprefix("\ufeff")
    return text.removeprefix("\ufeff")


class _Words(html.parser.HTMLParser):
    """The text of a page, scripts and styles left out."""

    def __init__(self):
        super().__init__()
        self.parts, self.inside = [], 0

    def handle_starttag(self, tag, attributes):
        self.inside += tag in ("script", "style", "title")
        self.parts.append("\n" if tag in ("p", "br", "div", "tr", "pre", "li", "h1", "h2", "h3") else "")

    def handle_endtag(self, tag):
        self.inside = max(0, self.inside - (tag in ("script", "style", "title")))

    def handle_data(self, data):
        if not self.inside:
            self.parts.append(data)


def _plain(text: str, report, where: str) -> str:
    """A story without the page around it."""
    if re.search(r"<(html|body|pre|script|!doctype)\b", text[:5000], re.I):
        report.problem("a page in HTML, of which the text was taken", where)
        words = _Words()
        words.feed(text)
        text = "".join(words.parts)
    script = re.match(r"\s*(<!--)?\s*(if\s*\(window\b|var |function\b|document\.).*?(-->|\n\s*\n)", text, re.S)
    if script:
        report.problem("JavaScript before the text, left out", where)
        text = text[script.end():]
    return text


def _load(file, kind: type):
    try:
        content = json.loads(_bytes(file).decode("utf-8-sig"))
    except ValueError as error:
        raise InputError(f"{file}: not valid JSON ({error})") from None
    if not isinstance(content, kind):
        raise InputError(f"{file}: holds a {type(content).__name__} where a {kind.__name__} is wanted")
    return content


def _json_list(files, report) -> Iterator[tuple[str, dict]]:
    for file in files:                                           # one list: its file is read at once
        for number, row in enumerate(_load(file, list)):
            yield f"{file.name}, row {number}", row


def _json_lines(files, report) -> Iterator[tuple[str, dict]]:
    for file in files:
        with open_bytes(file) as stream:
            for number, line in enumerate(stream, 1):
                where = f"{file.name}, line {number}"
                if line.strip():
                    try:
                        row = json.loads(_decode(line, report, where))
                    except ValueError:
                        report.skip("not valid JSON", where)
                    else:
                        yield where, row


def _sha256(files) -> str:
    """Of the files' names and contents."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            digest.update(file.name.encode() + hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


# --- which layout it is ---------------------------------------------------------------------------------------------

READERS = {"own": (_own_rows, lambda where, document, report: document), "HotpotQA": (_json_list, _hotpotqa),
           "MuSiQue": (_json_lines, _musique), "Qasper": (_qasper_rows, _qasper),
           "NarrativeQA": (_narrativeqa_rows, _narrativeqa), "LongBench": (_json_lines, _longbench)}


def _layout(path: str) -> tuple[str, list]:
    """The layout of what stands at `path`, a key of READERS and the part of it that was named, and the files for it: a
    file, a folder, a zip file; of NarrativeQA one of its sets, PATH:SET, and of LongBench's zip file one task,
    PATH:TASK, of which LongBench:TASK is fetched from the hub."""
    place, task = path, ""
    if not Path(path).exists() and ":" in path:
        place, _, task = path.rpartition(":")
    if place == "LongBench":
        place = _fetch_longbench()
    if not Path(place).exists():
        raise InputError(f"{path}: cannot be read (there is no such file or folder)")
    files = _files(Path(place))
    data = [file for file in files if re.search(r"\.jsonl?(\.gz)?$", file.name)]
    if any(file.name == "qaps.csv" for file in files) and not data:
        if task not in ("", "train", "valid", "test"):
            raise InputError(f"{path}: NarrativeQA's sets are train, valid and test")
        return (f"NarrativeQA {task}".strip(),
                [file for file in files if file.name == "qaps.csv" or ".content" in file.name])
    tasks = {name: [file for file in data if file.name == f"{name}.jsonl"] for name in LONGBENCH}
    if task or all(tasks.values()):
        if not tasks.get(task):
            raise InputError(f"{path}: LongBench's tasks are chosen by name: {place}:TASK, with TASK one of "
                             f"{', '.join(LONGBENCH)}")
        data = tasks[task]
    layouts = sorted({_kind(file) for file in data} | {"NarrativeQA" for file in files if file.name == "qaps.csv"})
    if len(layouts) != 1 or layouts == ["unknown"]:
        raise InputError(f"{path}: holds {' and '.join(layouts) or 'no JSON'}; one of these layouts is wanted: "
                         f"{', '.join(READERS)}")
    return layouts[0], data


def _files(root) -> list:
    """The files of a folder or a zip file, in order of their names; or the file itself."""
    if root.is_file() and root.name.endswith(".zip"):
        try:
            root = zipfile.Path(root)
        except zipfile.BadZipFile:
            raise InputError(f"{root}: not a readable zip file") from None
    if not root.is_dir():
        return [root]
    return [file for child in sorted(root.iterdir(), key=lambda child: child.name) for file in _files(child)]


def _kind(file) -> str:
    """The layout of a file, by the keys of its first row."""
    text = _bytes(file).decode("utf-8-sig", "replace").lstrip()
    start, line = text[:1 << 16], text.partition("\n")[0]
    keys = set(re.findall(r'"(\w+)"\s*:', start))
    if start.startswith("[") and {"context", "supporting_facts"} <= keys:
        return "HotpotQA"
    if {"full_text", "abstract"} <= keys:
        return "Qasper"
    try:
        keys = set(json.loads(line))                             # of JSON lines
    except ValueError as error:
        if file.name.endswith((".jsonl", ".jsonl.gz")):
            raise InputError(f"{file}, line 1: not valid JSON ({error})") from None
        return "unknown"
    except TypeError:
        return "unknown"
    if {"paragraphs", "question"} <= keys:
        return "MuSiQue"
    if {"context", "answers"} <= keys and keys & {"input", "question"}:
        task = json.loads(line).get("dataset", "")
        return f"LongBench {LONGBENCH.get(task, task)}".strip()
    return "own" if "questions" in keys and keys & {"text", "passages"} else "unknown"


def _fetch_longbench() -> str:
    """The path of LongBench's data.zip, from the hub or its cache."""
    from huggingface_hub import hf_hub_download
    try:
        return hf_hub_download("zai-org/LongBench", "data.zip", repo_type="dataset")
    except Exception as error:                               # offline, interrupted, refused: each is the user's to mend
        raise InputError(f"LongBench: cannot be fetched from the hub ({one_line(error)}); try again, or give its "
                         "data.zip as PATH:TASK") from None


# --- command line ---------------------------------------------------------------------------------------------------

def main(argv=None) -> int:
    """python -m evaluation.layouts"""
    parser = argparse.ArgumentParser(prog="python -m evaluation.layouts", description="Tell what is in a data set.")
    parser.add_argument("path", nargs="+", help="files, folders or zip files; LongBench's tasks as PATH:TASK")
    parser.add_argument("--tokenizer", metavar="DIR", help="checkpoint whose tokens are counted (default: words)")
    parser.add_argument("--limit", type=int, help="only the first LIMIT documents")
    args = parser.parse_args(argv)
    try:
        if args.limit is not None and args.limit < 1:
            raise InputError(f"--limit is {args.limit}; it must be at least 1")
        return tell(args)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def tell(args) -> int:
    """Print what was found."""
    count = lambda text: len(text.split())                                                # noqa: E731
    if args.tokenizer:
        from support.checkpoint import locate
        from support.tokenizer import Tokenizer
        tokenizer = Tokenizer(locate(args.tokenizer))
        count = lambda text: len(tokenizer.encode(text))                                  # noqa: E731
    for path in args.path:
        dataset = Dataset(path, args.limit)
        answers = [len(q.answers) for questions in dataset.about.values() for q in questions]
        lengths = [sum(map(count, document.passages)) for document in dataset.documents()]
        print("\n".join(dataset.report.lines()))
        print(f"  {'tokens' if args.tokenizer else 'words'} of a document: average {sum(lengths) / len(lengths):,.0f}, "
              f"min {min(lengths):,}, max {max(lengths):,}; {sum(answers) / len(answers):.1f} answers to a question")
    return 0


if __name__ == "__main__":
    sys.exit(main())
