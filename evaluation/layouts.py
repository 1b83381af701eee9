"""The layouts in which data sets are published, and how files become text.

These are the paper's data sets in their official layouts, LongBench's tasks, and the project's own format. To add a
layout, write a subclass of `Layout`, as MuSiQue is, and enter it in LAYOUTS, at the end of this file. What a file says
is what is read. A row with a defect is left out, and the report counts it.
"""
import codecs
import csv
import html
import io
import json
import re
import string
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from core.files import InputError, one_line, open_bytes, parse_json, reading
from data import Document, Question, read_jsonl
from evaluation.paper import DATASETS

File = Path | zipfile.Path        # on disk or in a zip file


@dataclass
class Report:
    """The counts of a data set. `found` holds each defect, how often it was found, and where first."""
    path: str
    layout: str = ""              # its name, and the part of it that is read: "NarrativeQA test"
    sha256: str = ""              # of the files that were read
    rows: int = 0                 # of the layout: questions, papers (Qasper) or documents (own)
    documents: int = 0
    questions: int = 0
    found: dict = field(default_factory=dict)

    @property
    def part(self) -> str:
        """The part of the layout that is read; "" for all of it."""
        return self.layout.partition(" ")[2]

    def note(self, defect: str, where: str):
        """Count a defect."""
        self.found.setdefault(defect, {"count": 0, "first": where})["count"] += 1

    def lines(self) -> list[str]:
        """The report in words."""
        found = [f"  {entry['count']} times: {defect} (first: {entry['first']})"
                 for defect, entry in self.found.items()]
        return [f"{self.path}: {self.layout}, {self.rows} rows, sha256 {self.sha256[:16]}: "
                f"{self.documents} documents, {self.questions} questions", *found]


# --- files ----------------------------------------------------------------------------------------------------------

def files_below(root: File) -> list[File]:
    """The files of a folder or a zip file, in the order of their names; or the file itself. None that is hidden."""
    if isinstance(root, Path) and root.is_file() and root.name.lower().endswith(".zip"):      # a zip in a zip is a file
        with reading(root, "not a readable zip file"):
            root = zipfile.Path(root)
    if not root.is_dir():
        return [root]

    shown = (child for child in root.iterdir() if not child.name.startswith((".", "__MACOSX")))
    children = sorted(shown, key=lambda child: child.name)
    return [file for child in children for file in files_below(child)]


# --- encodings ------------------------------------------------------------------------------------------------------

def windows_1252(error: UnicodeDecodeError) -> tuple[str, int]:
    """An error handler: bytes that are not UTF-8 are Windows-1252. The five undefined become U+FFFD."""
    return error.object[error.start:error.end].decode("cp1252", "replace"), error.end


codecs.register_error("windows-1252", windows_1252)


def text_of(file: File, report: Report) -> str:
    """The text of a file, unpacked if it is gzipped, in the encoding that its byte order mark says. Without one it is
    UTF-8, and what is no UTF-8 is Windows-1252.
    """
    with reading(file), open_bytes(file) as stream:
        content = stream.read()
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return content.decode(json.detect_encoding(content))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        report.note("not UTF-8, read as Windows-1252", f"{file.name}, line {line}")
        return content.decode("utf-8-sig", "windows-1252")


# --- pages ----------------------------------------------------------------------------------------------------------

HIDDEN = {"script", "style", "title"}

# Tags that may stand inside a word. All others begin or end a line.
INLINE = set("a abbr b big cite code del em font i ins kbd q s small span strike strong sub sup tt u var wbr".split())

# IMSDb's script against frames. Where stories of NarrativeQA have lost their tags, 123 begin with it and 15 with its
# comment (by the column story_start of documents.csv).
FRAMES = re.compile(r"(?s)\s*(?:<!--\s*)?(?:/\*.*?\*/\s*)?if\s*\(window\s*!=\s*top\)\s*top\.location\.href\s*="
                    r"\s*location\.href;?(?:\s*//\s*-->)?")


class Page(HTMLParser):
    """Reads a page in HTML; `text` is a list of what it shows."""
    hidden = False

    def __init__(self, page: str):
        super().__init__()
        self.text = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.hidden |= tag in HIDDEN
        self.text.append("" if tag in INLINE else "\n")

    def handle_endtag(self, tag):
        self.hidden &= tag not in HIDDEN
        self.text.append("" if tag in INLINE else "\n")

    def handle_data(self, data):
        self.text.append("" if self.hidden else data)


def plain_text(text: str, report: Report, where: str) -> str:
    """The text of a story or an article, which may be a page in HTML. ValueError if it is no text.

    It is a page if one of these tags or the end of any element is among its first 5,000 characters.
    """
    if "\0" in text:
        raise ValueError("holds NUL characters, so it is no text")
    if re.search(r"<(html|body|pre|script|!doctype|title|p|br|center|font)\b|</[a-z]\w*>", text[:5000], re.I):
        report.note("a page in HTML; only its text was kept", where)
        text = "".join(Page(text).text)

    script = FRAMES.match(text)
    if script:
        report.note("JavaScript before the text, left out", where)
        text = text[script.end():]
    return text


# --- the contract of a layout ---------------------------------------------------------------------------------------

class Layout:
    """A form in which data sets are published: how we recognise it, find its rows, and read a row.

    Unless a subclass says otherwise, a file holds one list of rows or one row a line, and the first row has all `keys`.
    """
    name: str                     # one word
    keys: set                     # a row that has them is of this layout
    parts: tuple = ()             # that can be read alone

    def label(self, row: dict, stem: str) -> str:
        """`name`, and behind it the part of the layout that a row of the file `stem` belongs to."""
        return self.name

    def rows(self, files: list[File], report: Report) -> Iterator[tuple[str, object]]:
        """Yield (where, row) for each row of the files; `where` says in words which row it is.

        Raises InputError if a file does not have the layout. A row that cannot be read is counted by report.note.
        """
        for file in files:
            for number, line in self.lines(text_of(file, report), file):
                where = f"{file.name}, {number}"
                try:
                    if line.strip():
                        yield where, parse_json(line, where)
                except InputError:
                    report.note("not valid JSON", where)

    def lines(self, text: str, file: File) -> Iterable[tuple[str, str]]:
        """Which row of a file, and its JSON, apart from that of others: a damaged row costs itself alone."""
        if text.lstrip().startswith("["):
            with reading(file, "not valid JSON"):
                return [(f"row {number}", json.dumps(row)) for number, row in enumerate(json.loads(text))]
        return [(f"line {number}", line) for number, line in enumerate(text.split("\n"), 1)]    # a text may hold others

    def document(self, where: str, row: object, report: Report) -> Document:
        """The document of a row with its questions, made by `checked`.

        The contents of a row need no checks here. If this raises anything, the row is skipped and counted, because it
        has another form. So is a row whose document has no passages.
        """
        raise NotImplementedError


def texts(value) -> list[str]:
    """The value, if it is a list of texts; TypeError otherwise. (Unchecked, a text would become a list of letters.)"""
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise TypeError("not a list of texts")
    return value


def paragraph(title: str, text: str) -> str:
    """A paragraph with its title on a line above it; "" if the paragraph is empty.

    The paper does not say whether titles are read. We read them: the questions of HotpotQA and MuSiQue name things by
    the titles of their articles, and a paragraph often says only "he" or "the film". LongBench also prints both data
    sets with titles. (PECAN's Figure A1 speaks against it: its nodes, "portions" of texts of HotpotQA, have no titles.)
    """
    return title + "\n" + text if text.strip() else ""


def id_of(row: dict):
    """The id that a row gives, if it is not empty."""
    return next((row[key] for key in ("_id", "id") if row.get(key) not in (None, "")), None)


def checked(where: str, name, passages: list[str], questions: Iterable, report: Report,
            read: Callable = lambda question: question) -> Document:
    """The document that a layout returns. What a row says is read as it stands; only empty texts are left out.

    `passages` and `questions` are as in the row; `read` makes a Question of each. A repeated answer is kept once. A
    question without a text or an answer, or of another form, is left out and counted. `where` replaces an id of None.
    """
    document = Document(where if name is None else str(name),
                        [passage for passage in texts(passages) if passage.strip()])
    for asked in questions:
        try:
            question = read(asked)
            words = texts([question.text, *texts(question.answers)])
        except Exception as error:
            report.note(f"a question of another form ({one_line(error)})", where)
            continue

        text, *answers = map(str.strip, words)
        answers = list(dict.fromkeys(filter(None, answers)))
        name = where if question.id is None else str(question.id)
        if answers and text:
            document.questions.append(Question(name, text, answers, question.extra))
        else:
            report.note("a question without an answer" if text else "an empty question", name)
    return document


# --- the data sets of the paper -------------------------------------------------------------------------------------

class NarrativeQA(Layout):
    """A table of questions, qaps.csv, and a file DOCUMENT.content for each story.

    The columns of the table are document_id, set (train, valid or test), question, answer1, answer2. PATH:SET reads
    only one of the three sets.
    """
    name = "NarrativeQA"
    table = "qaps.csv"
    keys = {table}                # it is recognised by its name
    parts = "train", "valid", "test"

    def rows(self, files, report):
        """A row is a document: its questions and the file of its story. Rows are in the order of the table."""
        stories = {file.name.split(".")[0]: file for file in files if file.name != self.table}
        for file in files:
            if file.name == self.table:
                for name, questions in self.questions(file, report).items():
                    if name in stories:
                        yield name, (questions, stories[name])
                    else:
                        report.note("a document whose story is missing", name)

    def questions(self, file: File, report: Report) -> dict[str, list[Question]]:
        """The questions of a table, by the ids of their documents."""
        questions = {}
        with reading(file, "not a table of questions"):
            table = csv.DictReader(io.StringIO(text_of(file, report)))
            for number, row in enumerate(table, 2):               # the first line holds the names of the columns
                name = row["document_id"]
                question = Question(f"{name}-{number}", row["question"], [row["answer1"], row["answer2"]])
                if None in row:
                    report.note("a row with too many columns", f"{file.name}, row {number}")
                elif report.part in ("", row["set"]):
                    questions.setdefault(name, []).append(question)
        return questions

    def document(self, where, row, report):
        questions, story = row
        text = plain_text(text_of(story, report), report, where)
        return checked(where, where, [text], questions, report)


class Qasper(Layout):
    """A file holds one object. It maps the id of each paper to the paper and its questions.

        {id: {"title": ..., "abstract": ..., "full_text": [{"section_name": ..., "paragraphs": [...]}, ...],
              "qas": [{"question_id": ..., "question": ..., "answers": [{"answer": {...}}, ...]}, ...]}, ...}
    """
    name = "Qasper"
    keys = {"full_text", "abstract"}          # of its first paper

    def lines(self, text, file):
        with reading(file, "not one object of papers", "; rows of the hub are not read, only the official file"):
            papers = json.loads(text)
            if self.keys <= papers.keys():
                raise ValueError("it is a single paper")
            return [(f"paper {name}", json.dumps([name, paper])) for name, paper in papers.items()]

    def document(self, where, row, report):
        """Title, abstract and sections of a paper become one text. The answers of all annotators are gold."""
        name, row = row
        parts = [row["title"], row["abstract"]]
        for section in row["full_text"]:
            parts += [section.get("section_name"), *texts(section["paragraphs"])]
        text = "\n".join(part for part in parts if part and part.strip())

        return checked(where, name, [text], row["qas"], report, lambda asked: Question(
            asked["question_id"], asked["question"], [self.gold(given["answer"]) for given in asked["answers"]]))

    def gold(self, answer: dict) -> str:
        """An annotator's answer, written as Qasper's own scorer writes it."""
        if answer["unanswerable"]:
            return "Unanswerable"
        if answer["extractive_spans"]:
            return ", ".join(texts(answer["extractive_spans"]))
        return answer["free_form_answer"] or {None: "", True: "Yes", False: "No"}[answer["yes_no"]]


class HotpotQA(Layout):
    """A file holds one list of questions, each with its paragraphs.

        [{"_id": ..., "question": ..., "answer": ..., "supporting_facts": [...],
          "context": [[title, [sentence, ...]], ...]}, ...]               sentences keep the blanks before them

    JSON lines of one question each are read, too. So is the hub's form: "id" instead of "_id", and a context of
    {"title": [title, ...], "sentences": [[sentence, ...], ...]}. HotpotQA's titles are escaped as in HTML: of 1,000 in
    its development set 10 are, such as "Harper &amp; Row", and the sentences below them have the plain sign.
    """
    name = "HotpotQA"
    keys = {"question", "context", "supporting_facts"}

    def document(self, where, row, report):
        context = row["context"]
        if isinstance(context, dict):
            context = zip(context["title"], context["sentences"], strict=True)
        passages = [self.passage(title, texts(sentences)) for title, sentences in context]
        question = Question(id_of(row), row["question"], [row.get("answer") or ""])
        return checked(where, question.id, passages, [question], report)

    def passage(self, title: str, sentences: list[str]) -> str:
        return paragraph(html.unescape(title), "".join(sentences))


class MuSiQue(Layout):
    """JSON lines of questions, each with its paragraphs.

        {"id": ..., "question": ..., "answer": ..., "answer_aliases": [...], "answerable": true,
         "paragraphs": [{"idx": 0, "title": ..., "paragraph_text": ...}, ...]}

    Paragraphs are identified by idx, because titles repeat. A test set has no answers.
    """
    name = "MuSiQue"
    keys = {"paragraphs", "question"}

    def document(self, where, row, report):
        paragraphs = sorted(row["paragraphs"], key=lambda row: row["idx"])
        passages = [paragraph(row["title"], row["paragraph_text"]) for row in paragraphs]
        answers = [row.get("answer") or "", *texts(row.get("answer_aliases") or [])]
        if not row.get("answerable", True):
            answers = []
        return checked(where, id_of(row), passages, [Question(id_of(row), row["question"], answers)], report)


# --- other data sets ------------------------------------------------------------------------------------------------

class TwoWiki(HotpotQA):
    """2WikiMultihopQA has HotpotQA's form plus "evidences".

    Its sentences have no blanks between them, and nothing shows that its titles are escaped.
    """
    name = "2WikiMultihopQA"
    keys = HotpotQA.keys | {"evidences"}

    def passage(self, title, sentences):
        return paragraph(title, " ".join(filter(None, map(str.strip, sentences))))


class QuALITY(Layout):
    """JSON lines, each with an article and one writer's questions about it. A question has four options.

        {"article_id": ..., "set_unique_id": ..., "title": ..., "article": ...,
         "questions": [{"question": ..., "options": [4 texts], "gold_label": 1 to 4, ...}, ...]}

    Several lines may hold the same article; they become one document. A test set has no labels.
    """
    name = "QuALITY"
    keys = {"article", "article_id", "questions"}

    def document(self, where, row, report):
        """The options follow a question's text as lines "(A) ..". The answer is the text of the right option.

        For the accuracy, `extra` has the options and gold, the index of the right one. A test set has no labels.
        """
        def read(numbered):
            number, asked = numbered
            options = [" ".join(option.split()) for option in texts(asked["options"])]
            lines = [f"({letter}) {option}" for letter, option in zip(string.ascii_uppercase, options)]
            gold = (asked.get("gold_label") or 0) - 1 if len(options) == len(lines) else -1
            return Question(f"{row['set_unique_id']}-{number}", "\n".join([asked["question"], *lines]),
                            [option for n, option in enumerate(options) if n == gold],
                            {"options": options, "gold": gold})

        article = plain_text(row["article"], report, where)               # a page, in files without "htmlstripped"
        return checked(where, row["article_id"], [article], enumerate(row["questions"]), report, read)


class LongBench(Layout):
    """JSON lines of questions, each with its context. A task has a file TASK.jsonl; PATH:TASK reads it from data.zip.

        {"_id": ..., "input": ..., "context": ..., "answers": [...], "dataset": TASK}

    Some copies say "question" instead of "input". Without "dataset", the file's name is the task. Only English question
    answering is read, and four of these tasks are data sets of the paper. (LongBench-E's tasks end in _e.) The other
    tasks have other metrics than ours, or Chinese answers, which our metrics cannot split into words.
    """
    name = "LongBench"
    keys = {"context", "answers"}
    tasks = {name.lower(): name for name in DATASETS} | {"2wikimqa": "2WikiMultihopQA",
                                                         "multifieldqa_en": "multifieldqa_en"}
    parts = tuple(tasks.values())
    of_passages = "HotpotQA", "MuSiQue", "2WikiMultihopQA"

    def part(self, task) -> str:
        """The name of a task, which is that of its data set if it is one of ours."""
        return self.tasks.get(str(task).removesuffix("_e"), str(task))

    def label(self, row, stem):
        return f"{self.name} {self.part(row.get('dataset') or stem)}"

    def document(self, where, row, report):
        """The context is cut into its passages, if the task has several documents. ValueError if it is another task."""
        task = row.get("dataset") or report.part
        if self.part(task) != report.part:
            raise ValueError(f"of the task {task!r:.60}")
        passages = [row["context"]]
        if report.part in self.of_passages:
            passages = re.split(r"^Passage \d+:\r?\n", row["context"], flags=re.M)
        name = id_of(row)
        question = Question(name, row.get("input") or row["question"], row["answers"])
        return checked(where, name, passages, [question], report)


class Own(Layout):
    """The project's own format: JSON lines of documents with their questions. It is described and read in data.py."""
    name = "own"
    keys = {"questions"}

    def rows(self, files, report):
        """A row is a document. Nothing is skipped: a mistake in your own data is an InputError."""
        return ((document.id, document) for file in files for document in read_jsonl(file))

    def document(self, where, row, report):
        return row


# datasets.recognise tries them in this order.
LAYOUTS = {
    layout.name: layout for layout in (NarrativeQA(), TwoWiki(), HotpotQA(), Qasper(), MuSiQue(), QuALITY(),
                                       LongBench(), Own())}
