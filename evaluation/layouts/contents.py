"""The contents of files: bytes, rows of JSON, text with mended encodings, and the text of HTML pages.

A file is a path on disk or in a zip file. Mended defects are counted in the report.
"""
import re
import zipfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from core.files import InputError, open_bytes, parse_json, reading
from evaluation.layouts.report import Report

File = Path | zipfile.Path

# --- files ----------------------------------------------------------------------------------------------------------

def files_below(root: File) -> list[File]:
    """The files of a folder or a zip file, in the order of their names; or the file itself."""
    if isinstance(root, Path) and root.is_file() and root.name.endswith(".zip"):      # a zip in a zip is a file
        with reading(root, "not a readable zip file"):
            root = zipfile.Path(root)
    if not root.is_dir():
        return [root]

    children = sorted(root.iterdir(), key=lambda child: child.name)
    return [file for child in children for file in files_below(child)]


def read_bytes(file: File) -> bytes:
    """The content of a file, unpacked if it is gzipped."""
    with reading(file), open_bytes(file) as stream:
        return stream.read()


def rows_of(file: File, report: Report) -> Iterator[tuple[str, object]]:
    """Yield each row with its place. Rows are the items of one list, or lines. Lines that are not JSON are skipped."""
    content = read_bytes(file)
    if content.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"["):
        for number, row in enumerate(parse_json(content, file, list)):
            yield f"{file.name}, row {number}", row
        return

    for number, line in enumerate(content.splitlines(), 1):
        where = f"{file.name}, line {number}"
        if not line.strip():
            continue

        try:
            row = parse_json(decode(line, report, where), where)
        except InputError:
            report.skip("not valid JSON", where)
        else:
            yield where, row


# --- encodings ------------------------------------------------------------------------------------------------------

def decode(content: bytes, report: Report, where: str) -> str:
    """Bytes as text: UTF-8, or latin-1 if they are not UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        report.problem("not UTF-8, read as latin-1", where)
        return content.decode("latin-1")


def mend(text: str, report: Report, where: str) -> str:
    """Repair text whose UTF-8 was once read as latin-1 or Windows-1252; return other text unchanged."""
    for wrong in ("latin-1", "cp1252"):
        try:
            mended = text.encode(wrong).decode("utf-8")
        except UnicodeError:
            continue

        if mended != text:
            report.problem(f"UTF-8 that was read as {wrong}, mended", where)
        return mended.removeprefix("\ufeff")
    return text.removeprefix("\ufeff")


# --- HTML -----------------------------------------------------------------------------------------------------------

# The start of a script without tags. The script ends with a comment or an empty line.
SCRIPT = re.compile(r"\s*+(?:<!--\s*+)?(?:if\s*+\(window\b|var |function\b|document\.)")
SCRIPT_END = re.compile(r"-->|\n[^\S\n]*+\n")


class Page(HTMLParser):
    """The text of a page, without scripts, styles and the title."""

    def __init__(self, page: str):
        super().__init__()
        self.text = ""
        self.hidden = None            # the tag whose content is not text
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        if tag in ("script", "style", "title"):
            self.hidden = tag
        if tag in ("p", "br", "div", "tr", "pre", "li", "h1", "h2", "h3"):
            self.text += "\n"

    def handle_endtag(self, tag):
        if tag == self.hidden:
            self.hidden = None

    def handle_data(self, data):
        if self.hidden is None:
            self.text += data


def plain_text(text: str, report: Report, where: str) -> str:
    """The text of a story, without HTML and without a script before it."""
    if re.search(r"<(html|body|pre|script|!doctype)\b", text[:5000], re.I):
        report.problem("a page in HTML; only its text was kept", where)
        text = Page(text).text

    # Some pages have lost their tags, but not the script.
    begins = SCRIPT.match(text)
    ends = begins and SCRIPT_END.search(text, begins.end())
    if ends:
        report.problem("JavaScript before the text, left out", where)
        text = text[ends.end():]
    return text
