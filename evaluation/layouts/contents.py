"""What files hold: bytes, text in mended encodings, JSON, and the text of pages in HTML.

A file is a path on disk or in a zip file. Defects that can be mended are counted in the report.
"""
import html
import re
import zipfile
from collections.abc import Iterator
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

def json_list(file: File) -> Iterator[tuple[str, object]]:
    """The rows of a file that holds one list. It is read as a whole, because JSON cannot be read in parts."""
    for number, row in enumerate(parse_json(read_bytes(file), file, list)):
        yield f"{file.name}, row {number}", row


def json_lines(files: list[File], report: Report) -> Iterator[tuple[str, object]]:
    """The rows of files that hold one row a line. Empty lines are passed over, lines that are not JSON are skipped."""
    for file in files:
        with reading(file), open_bytes(file) as stream:
            for number, line in enumerate(stream, 1):
                where = f"{file.name}, line {number}"
                if not line.strip():
                    continue

                try:
                    row = parse_json(decode(line, report, where), where)
                except InputError:
                    report.skip("not valid JSON", where)
                else:
                    yield where, row


# --- HTML -----------------------------------------------------------------------------------------------------------

HIDDEN = ("script", "style", "title")        # what is between these tags is no text
NEW_LINE = {"p", "br", "div", "tr", "pre", "li", "h1", "h2", "h3"}
TAGS = "a abbr address area b base big blockquote body br button caption center cite code col dd del div dl dt em " \
    "embed font footer form frame frameset h1 h2 h3 h4 h5 h6 head header hr html i iframe img input ins label li " \
    "link map meta nav noscript object ol option p param pre s samp script section select small span strike strong " \
    "style sub sup table tbody td textarea tfoot th thead title tr tt u ul var \\w++:\\w++".replace(" ", "|")

# A comment, a declaration or a tag. Each alternative ends at the next "<", so the time is linear in the page.
MARKUP = re.compile(rf"<!--|<[!?][^<>]*+>|<(/?)({TAGS})(?:[\s/][^<>]*+)?>", re.I)

# The start of a script that lost its tags; it ends with a comment or an empty line.
SCRIPT = re.compile(r"(?:<!--\s*+)?(?:if\s*+\(window\b|var |function\b|document\.)")
SCRIPT_END = re.compile(r"-->|\n[^\S\n]*+\n")


def plain_text(text: str, report: Report, where: str) -> str:
    """A story without the page around it: no HTML, and no script before it."""
    if re.search(r"<(html|body|pre|script|!doctype)\b", text[:5000], re.I):
        report.problem("a page in HTML, of which the text was taken", where)
        text = _text_of_page(text)

    # Some pages lost their tags, but not the script.
    begins = SCRIPT.match(text, len(text) - len(text.lstrip()))
    ends = begins and SCRIPT_END.search(text, begins.end())
    if ends:
        report.problem("JavaScript before the text, left out", where)
        text = text[ends.end():]
    return text


def _text_of_page(page: str) -> str:
    """The text of a page, without scripts, styles and the title.

    A comment, script or title that is never closed hides nothing but its first mark: what follows it is the story. "<"
    is text unless it begins a tag of HTML.
    """
    closing = {name: re.compile(rf"</{name}\b[^<>]*+>", re.I) for name in HIDDEN} | {"comment": re.compile("-->")}
    parts = []
    position = 0
    while markup := MARKUP.search(page, position):
        parts.append(page[position:markup.start()])
        position = markup.end()
        name = "comment" if markup[0] == "<!--" else (markup[2] or "").lower()
        if name in NEW_LINE:
            parts.append("\n")

        # What is hidden ends at its closing mark. One that was not found is not looked for again.
        if name in closing and not markup[1]:
            end = closing[name].search(page, position)
            if end:
                position = end.end()
            else:
                del closing[name]
    return html.unescape("".join([*parts, page[position:]]))
