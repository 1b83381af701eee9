"""What files hold: bytes, text in mended encodings, JSON, and the text of pages in HTML.

A file is a path on disk or in a zip file. Defects that can be mended are counted in the report.
"""
import hashlib
import html.parser
import json
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from evaluation.layouts.report import Report
from support.files import InputError, open_bytes, unreadable

File = Path | zipfile.Path

# What the disk raises, what gzip raises, and what damaged zip files or those locked by a password raise.
UNREADABLE = (OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError, NotImplementedError)


# --- files ----------------------------------------------------------------------------------------------------------

def files_below(root: File) -> list[File]:
    """The files of a folder or a zip file, in the order of their names; or the file itself."""
    if root.is_file() and root.name.endswith(".zip"):
        try:
            root = zipfile.Path(root)
        except zipfile.BadZipFile:
            raise InputError(f"{root}: not a readable zip file") from None
    if not root.is_dir():
        return [root]

    children = sorted(root.iterdir(), key=lambda child: child.name)
    return [file for child in children for file in files_below(child)]


def sha256(files: list[File]) -> str:
    """The hash of the files' names and contents."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").digest()
        digest.update(file.name.encode() + content)
    return digest.hexdigest()


def read_bytes(file: File) -> bytes:
    """The content of a file, unpacked if it is gzipped."""
    try:
        with open_bytes(file) as stream:
            return stream.read()
    except UNREADABLE as error:
        raise unreadable(file, error) from None


# --- encodings ------------------------------------------------------------------------------------------------------

def decode(content: bytes, report: Report, where: str) -> str:
    """Bytes as text: UTF-8, or latin-1 if they are not UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        report.problem("not UTF-8, read as latin-1", where)
        return content.decode("latin-1")


def mend(text: str, report: Report, where: str) -> str:
    """Put text right whose UTF-8 was once read as latin-1 or Windows-1252; other text stays as it is."""
    for wrong in ("latin-1", "cp1252"):
        try:
            mended = text.encode(wrong).decode("utf-8")
        except UnicodeError:
            continue
        if mended != text:
            report.problem(f"UTF-8 that was read as {wrong}, mended", where)
        return mended.removeprefix("\ufeff")
    return text.removeprefix("\ufeff")


# --- JSON -----------------------------------------------------------------------------------------------------------

def load_json(file: File, kind: type):
    """The whole content of a JSON file; InputError if it is not JSON or not of this kind (list or dict)."""
    try:
        content = json.loads(read_bytes(file).decode("utf-8-sig"))
    except ValueError as error:
        raise InputError(f"{file}: not valid JSON ({error})") from None
    if not isinstance(content, kind):
        raise InputError(f"{file}: holds a {type(content).__name__} where a {kind.__name__} is wanted")
    return content


def json_list(files: list[File]) -> Iterator[tuple[str, object]]:
    """The rows of files that hold one list each. A file is read as a whole, because JSON cannot be read in parts."""
    for file in files:
        for number, row in enumerate(load_json(file, list)):
            yield f"{file.name}, row {number}", row


def json_lines(files: list[File], report: Report) -> Iterator[tuple[str, object]]:
    """The rows of files that hold one row a line. Empty lines are passed over, lines that are not JSON are skipped."""
    for file in files:
        with open_bytes(file) as stream:
            for number, line in enumerate(stream, 1):
                where = f"{file.name}, line {number}"
                if not line.strip():
                    continue

                try:
                    row = json.loads(decode(line, report, where))
                except ValueError:
                    report.skip("not valid JSON", where)
                else:
                    yield where, row


# --- HTML -----------------------------------------------------------------------------------------------------------

def plain_text(text: str, report: Report, where: str) -> str:
    """A story without the page around it: no HTML, and no script before it."""
    if re.search(r"<(html|body|pre|script|!doctype)\b", text[:5000], re.I):
        report.problem("a page in HTML, of which the text was taken", where)
        page = _Page()
        page.feed(text)
        text = "".join(page.parts)

    # Some pages lost their tags, but not the script. It ends with a comment or an empty line.
    script = re.match(r"\s*(<!--)?\s*(if\s*\(window\b|var |function\b|document\.).*?(-->|\n\s*\n)", text, re.S)
    if script:
        report.problem("JavaScript before the text, left out", where)
        text = text[script.end():]
    return text


class _Page(html.parser.HTMLParser):
    """Collects the text of a page, without scripts, styles and the title."""
    HIDDEN = ("script", "style", "title")
    NEW_LINE = ("p", "br", "div", "tr", "pre", "li", "h1", "h2", "h3")

    def __init__(self):
        super().__init__()
        self.parts = []
        self.depth = 0                # how many hidden tags are open

    def handle_starttag(self, tag, attributes):
        if tag in self.HIDDEN:
            self.depth += 1
        if tag in self.NEW_LINE:
            self.parts.append("\n")

    def handle_endtag(self, tag):
        if tag in self.HIDDEN:
            self.depth = max(0, self.depth - 1)

    def handle_data(self, data):
        if self.depth == 0:
            self.parts.append(data)
