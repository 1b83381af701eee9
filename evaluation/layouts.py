"""The layouts in which data sets are published: what a row holds, and the document that it becomes.

To add a layout, write a function `row -> Document`, as `musique` is, and enter it in LAYOUTS, at the end, with the keys
that its rows have. What a row says is what is read. A row of another form is an InputError, and the run ends.
"""
import csv
import gzip
import html
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from core.files import InputError, reading
from data import Document, Question

# --- values ---------------------------------------------------------------------------------------------------------

def check(value, form, name: str):
    """InputError, which begins with `name`, unless a value of JSON has this form.

    A form is a type, or several (str | None); {key: form}, and other keys do no harm; [form] for all items of a list;
    (form, ...) for the items of a list of this length.
    """
    kind = dict if isinstance(form, dict) else list if isinstance(form, list | tuple) else form
    wrong = not isinstance(value, kind) or isinstance(value, bool) and kind is int
    if wrong or isinstance(form, tuple) and len(value) != len(form):
        wanted = f"list, with {len(form)} items" if isinstance(form, tuple) else getattr(kind, "__name__", kind)
        raise InputError(f"{name} is {value!r:.60}; it must be of type {wanted}")

    if isinstance(form, dict):
        for key, inner in form.items():
            if key not in value:
                raise InputError(f"{name} has no key {key!r}")
            check(value[key], inner, key)
    elif isinstance(form, list | tuple):
        for item, inner in zip(value, form if isinstance(form, tuple) else form * len(value)):
            check(item, inner, f"an item of {name}")
    elif isinstance(value, str):
        value.encode()                                      # half a character (\ud83d) could not be written again


def check_options(values: dict):
    """InputError unless there are 1 to 26 options, which letters name, and the index of the right one."""
    check(values, {"options": [str], "gold": int}, "a question with options")
    if not 0 <= values["gold"] < len(values["options"]) <= 26:
        raise InputError(f"gold is {values['gold']}; it must be the index of one of 1 to 26 options")


def ask(name: str, text: str, answers: list[str], **extra) -> Question:
    """The question of a row. A gold answer that is blank is none, and a repeated one is kept once."""
    if not text.strip():
        raise InputError(f"question {name} is blank")
    return Question(name, text.strip(), list(dict.fromkeys(filter(None, map(str.strip, answers)))), extra)


# --- the data sets of the paper -------------------------------------------------------------------------------------

def paragraph(title: str, text: str) -> str:
    """A paragraph with its title on a line above it; "" if the paragraph is empty.

    The paper does not say whether titles are read. We read them: the questions of HotpotQA and MuSiQue name things by
    the titles of their articles, and a paragraph often says only "he" or "the film". LongBench also prints both data
    sets with titles. (PECAN's Figure A1 speaks against it: its nodes, "portions" of texts of HotpotQA, have no titles.)
    """
    return title + "\n" + text if text.strip() else ""


HOTPOTQA = {"_id": str, "question": str, "answer": str, "supporting_facts": list, "context": [(str, [str])]}


def hotpotqa(row: dict) -> Document:
    """A question with its paragraphs, [title, [sentence, ...]]; sentences keep the blanks before them.

    Titles are escaped as in HTML: of 1,000 in the development set 10 are, such as "Harper &amp; Row", and the sentences
    below them have the plain sign.
    """
    passages = [paragraph(html.unescape(title), "".join(sentences)) for title, sentences in row["context"]]
    return Document(row["_id"], passages, [ask(row["_id"], row["question"], [row["answer"]])])


MUSIQUE = {"id": str, "question": str, "answer": str, "answer_aliases": [str], "answerable": bool,
           "paragraphs": [{"idx": int, "title": str, "paragraph_text": str}]}


def musique(row: dict) -> Document:
    """A question with its paragraphs, in the order of idx: titles repeat. An unanswerable one has no gold answer."""
    passages = [paragraph(each["title"], each["paragraph_text"])
                for each in sorted(row["paragraphs"], key=lambda each: each["idx"])]
    answers = [row["answer"], *row["answer_aliases"]] if row["answerable"] else []
    return Document(row["id"], passages, [ask(row["id"], row["question"], answers)])


QASPER = {"id": str, "title": str, "abstract": str,
          "full_text": [{"section_name": str | None, "paragraphs": [str]}],
          "qas": [{"question_id": str, "question": str, "answers": [{"answer": {
              "unanswerable": bool, "extractive_spans": [str], "yes_no": bool | None, "free_form_answer": str}}]}]}


def qasper(row: dict) -> Document:
    """A paper with its questions. Title, abstract and sections become one text; all annotators' answers are gold."""
    parts = [row["title"], row["abstract"]]
    for section in row["full_text"]:
        parts += [section["section_name"] or "", *section["paragraphs"]]
    questions = [ask(each["question_id"], each["question"], [gold(given["answer"]) for given in each["answers"]])
                 for each in row["qas"]]
    return Document(row["id"], ["\n".join(part for part in parts if part.strip())], questions)


def gold(answer: dict) -> str:
    """An annotator's answer, written as Qasper's own scorer writes it."""
    if answer["unanswerable"]:
        return "Unanswerable"
    if answer["extractive_spans"]:
        return ", ".join(answer["extractive_spans"])
    return answer["free_form_answer"] or {None: "", True: "Yes", False: "No"}[answer["yes_no"]]


# --- other data sets ------------------------------------------------------------------------------------------------

def two_wiki(row: dict) -> Document:
    """HotpotQA's form plus "evidences". Its sentences have no blanks between them, its titles are not escaped."""
    passages = [paragraph(title, " ".join(filter(None, map(str.strip, sentences))))
                for title, sentences in row["context"]]
    return Document(row["_id"], passages, [ask(row["_id"], row["question"], [row["answer"]])])


QUALITY = {"article_id": str, "set_unique_id": str, "article": str,
           "questions": [{"question": str, "options": [str]}]}


def quality(row: dict) -> Document:
    """An article and one writer's questions about it; other rows may have the same article.

    The options follow a question's text as lines "(A) ..", and the answer is the text of the right one. For the
    accuracy, a question also has `options` and `gold`, the index of the right one. A test set has no gold_label.
    """
    if is_page(row["article"]):
        raise InputError("the article is a page in HTML; the file with htmlstripped in its name is wanted")
    questions = []
    for number, each in enumerate(row["questions"]):
        options = [" ".join(option.split()) for option in each["options"]]
        lines = [f"({letter}) {option}" for letter, option in zip(string.ascii_uppercase, options)]
        right = {}
        if "gold_label" in each:
            check(each["gold_label"], int, "gold_label")
            right = {"options": options, "gold": each["gold_label"] - 1}
            check_options(right)
        questions.append(ask(f"{row['set_unique_id']}-{number}", "\n".join([each["question"], *lines]),
                             [options[right["gold"]]] if right else [], **right))
    return Document(row["article_id"], [row["article"]], questions)


LONGBENCH = {"_id": str, "input": str, "context": str, "answers": [str], "dataset": str}

# The English tasks of question answering, and the data sets that they are of. (LongBench-E's tasks end in _e.) Other
# tasks have other metrics than ours, or Chinese answers, which our metrics cannot split into words.
TASKS = {"narrativeqa": "NarrativeQA", "qasper": "Qasper", "hotpotqa": "HotpotQA", "musique": "MuSiQue",
         "2wikimqa": "2WikiMultihopQA", "multifieldqa_en": "multifieldqa_en"}
OF_PASSAGES = "HotpotQA", "MuSiQue", "2WikiMultihopQA"


def task_of(name: str, where: str = "the row") -> str:
    """The data set of a task; InputError for a task that is not read."""
    dataset = TASKS.get(name.removesuffix("_e"))
    if not dataset:
        raise InputError(f"{where}: LongBench's {name!r:.60} is not read, only {', '.join(TASKS)}")
    return dataset


def longbench(row: dict) -> Document:
    """A question with its context, which is cut into its passages if the task has several documents."""
    passages = [row["context"]]
    if task_of(row["dataset"]) in OF_PASSAGES:
        passages = re.split(r"^Passage \d+:\r?\n", row["context"], flags=re.M)
    return Document(row["_id"], passages, [ask(row["_id"], row["input"], row["answers"])])


OWN = {"questions": [{"question": str, "answers": [str]}]}


def own(row: dict) -> Document:
    """A document of your own data, a line of a file of JSON lines:

        {"id": "d1", "text": "...", "questions": [{"id": "q1", "question": "Who ...?", "answers": ["Ann", "Ann Lee"]}]}

    `text` is one long text. A list of texts, `passages`, can replace it; no chunk then mixes two passages. A missing id
    is made from the hash of the passages, or from the number of the question. A question keeps its other fields; with
    `options` and `gold`, the index of the right one, it counts for the accuracy.
    """
    if ("text" in row) == ("passages" in row):
        raise InputError("a document has either text or passages")
    passages = [row["text"]] if "text" in row else row["passages"]
    check(passages, [str], "text or passages")
    document = Document(row.get("id", Document("", passages).hash[:8]), passages)
    check(document.id, str, "id")

    for number, each in enumerate(row["questions"]):
        extra = {"id": f"{document.id}-{number}"} | each
        name, text, answers = map(extra.pop, ("id", "question", "answers"))
        check(name, str, "id")
        if "options" in extra:
            check_options(extra)
        document.questions.append(ask(name, text, answers, **extra))
    return document


class Layout(NamedTuple):
    """What a row has, and the document that it becomes. `files` are the names of official files, without the ending."""
    name: str                     # of the data set, as in the paper
    files: str                    # a regular expression
    form: dict
    document: Callable[[dict], Document]


# The first row of a file has one of these keys; the first one counts.
LAYOUTS = {
    "evidences": Layout("2WikiMultihopQA", "train|dev", HOTPOTQA | {"evidences": list}, two_wiki),
    "supporting_facts": Layout("HotpotQA", "hotpot_(train_v1.1|dev_distractor_v1)", HOTPOTQA, hotpotqa),
    "paragraphs": Layout("MuSiQue", "musique_(ans|full)_v1.0_(train|dev)", MUSIQUE, musique),
    "full_text": Layout("Qasper", "qasper-(train|dev|test)-v0.3", QASPER, qasper),
    "article": Layout("QuALITY", "QuALITY.v1.0(.1)?.htmlstripped", QUALITY, quality),
    "context": Layout("LongBench", "", LONGBENCH, longbench),
    "questions": Layout("own", "", OWN, own)}


# --- NarrativeQA, a folder ------------------------------------------------------------------------------------------

TABLE = "qaps.csv"                                          # a folder that holds it is NarrativeQA
COLUMNS = "document_id", "set", "question", "answer1", "answer2"
SETS = "train", "valid", "test"


def narrativeqa(folder: Path, part: str, left_out: Counter) -> Iterator[Document]:
    """Yield the documents of qaps.csv, or of one of its SETS. A story is ID.content, in the folder or below.

    Questions about a story that is not there, or that is not UTF-8, are counted in `left_out`.
    """
    questions = {}
    table = folder / TABLE
    with reading(table), table.open(encoding="utf-8-sig", newline="") as file:
        for number, row in enumerate(csv.DictReader(file), 2):                # row 1 holds the names of the columns
            if None in row or None in map(row.get, COLUMNS) or not row["question"].strip():
                raise InputError(f"{table}, row {number}: {', '.join(COLUMNS)} are wanted, one value each")
            name = row["document_id"]
            if part in ("", row["set"]):
                asked = ask(f"{name}-{number}", row["question"], [row["answer1"], row["answer2"]])
                questions.setdefault(name, []).append(asked)

    stories = {file.stem: file for file in folder.rglob("*.content")}
    for name, asked in questions.items():
        if name not in stories:
            left_out["about a story that is not there"] += len(asked)
            continue
        with reading(stories[name]):
            content = stories[name].read_bytes()
            content = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            left_out["about a story that is not UTF-8"] += len(asked)
        else:
            yield Document(name, [without_tags(text) if is_page(text) else text], asked)


# What a page does not show; tags that may stand inside a word. All other tags begin or end a line.
HIDDEN = re.compile(r"(?is)<(script|style|title)\b.*?</\1\s*>|<!--.*?-->")
INLINE = re.compile(r"(?i)</?(?:a|b|big|em|font|i|small|span|strike|strong|sub|sup|tt|u)\b[^<>]*>")
TAG = re.compile(r"(?i)<[/?]?[a-z!][^<>]*>")


def is_page(text: str) -> bool:
    """Whether a text begins with a tag."""
    return bool(TAG.match(text.lstrip()))


def without_tags(page: str) -> str:
    """The text of a page in HTML.

    Python's parser is not used: what it makes of an unclosed comment or element differs between its versions. Here only
    what is closed is hidden.
    """
    return html.unescape(TAG.sub("\n", INLINE.sub("", HIDDEN.sub("", page))))
