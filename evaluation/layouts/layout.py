"""The contract of a layout, and the helpers that the modules next to this one share.

To add a layout, write a subclass of `Layout`, as in musique.py, and enter it in LAYOUTS of dataset.py.
"""
from collections.abc import Iterator

from data import Document, Question
from evaluation.layouts.contents import File, mend, rows_of
from evaluation.layouts.report import Report


class Layout:
    """A form in which data sets are published: how we recognise it, find its rows, and read a row.

    Unless a subclass says otherwise, a file holds one list of rows or one row a line, and the first row has all `keys`.
    """
    name: str                     # one word
    keys: set                     # a row that has them is of this layout

    def recognise(self, row: dict) -> str | None:
        """`name` if a file's first row has this layout, else None. If the row names a part, it follows the name."""
        return self.name if self.keys <= row.keys() else None

    def rows(self, files: list[File], report: Report) -> Iterator[tuple[str, object]]:
        """Yield (where, row) for each row of the files; `where` is the row's place, in words, for the report.

        Raises InputError if a file does not have the layout. A row that cannot be read is counted by report.skip.
        """
        return (row for file in files for row in rows_of(file, report))

    def document(self, where: str, row: object, report: Report) -> Document:
        """The document of a row with its questions, made by `checked`.

        The contents of a row need no checks here. After a KeyError, TypeError, ValueError, AttributeError or IndexError
        the row is skipped and counted, because it has another form. So is a row whose document has no passages.
        """
        raise NotImplementedError


def of_kind(value, kind: type):
    """The value, if it is of this kind: a str, list, dict or bool; TypeError otherwise.

    Without this check a wrong value goes unnoticed: a text becomes a list of letters, None the word "None", and the
    text "false" counts as true.
    """
    if type(value) is not kind:
        raise TypeError(f"{value!r:.40} is not a {kind.__name__}")
    return value


def texts(value) -> list[str]:
    """The value, if it is a list of texts; TypeError otherwise."""
    return [of_kind(text, str) for text in of_kind(value, list)]


def paragraph(title: str, text: str) -> str:
    """A paragraph with its title on a line above it.

    The paper does not say whether titles are read. We read them: the questions of HotpotQA and MuSiQue name things by
    the titles of their articles, and a paragraph often says only "he" or "the film". LongBench also prints both data
    sets with titles. (The nodes in PECAN's Figure A1 have no titles, but they are from a single story.)
    """
    return f"{of_kind(title, str)}\n{of_kind(text, str)}"


def checked(where: str, name: str, passages: list[str], questions: list[Question], report: Report) -> Document:
    """The document that a layout returns: encodings are mended, and empty texts are left out.

    `passages` and `questions` are as in the row. A repeated answer is kept once. A question without a text or an
    answer, or of another form, is left out and counted.
    """
    document = Document(name, [mend(passage, report, where) for passage in texts(passages) if passage.strip()])

    for question in questions:
        try:
            texts([question.text, *texts(question.answers)])
            of_kind(question.id, int if type(question.id) is int else str)
        except TypeError as error:
            report.skip(f"a question of another form ({error})", where)
            continue

        text = mend(question.text, report, where).strip()
        answers = list(dict.fromkeys(mend(answer, report, where).strip() for answer in question.answers))
        if "" in answers:
            report.problem("an empty answer, left out", question.id)
            answers.remove("")

        if answers and text:
            document.questions.append(Question(str(question.id), text, answers, question.extra))
        elif text:
            report.skip("a question without an answer", question.id)
        else:
            report.skip("an empty question", question.id)
    return document
