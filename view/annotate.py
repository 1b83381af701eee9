"""Write pecan.py and llama.py as one annotated page: prose and formulas, code beside them, tensors below.

    python -m view.annotate -o docs/annotated.html

Prose, code and line numbers come from the two files. The paper's statements come from the tables of README.md and
tests/README.md, formulas from formulas.jinja. The values are those of a run of the embedded model on tiny/story.txt.
"""
import ast
import re
import sys
import textwrap
from itertools import count, groupby
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup, escape

if not __package__:
    sys.exit("error: run it as python -m view.annotate, in the folder of README.md")

from core.command import parse_options, user_errors
from core.files import optional
from data import read_text
from view.heat import heat
from view.page import page_parser, render, write_page
from view.recorder import QUESTION, STORY, embedded_method, record

ROOT = Path(__file__).parents[1]

FILES = ["llama", "pecan"]                                  # each links its own names and the names of earlier files
CLASSES = {"model": "Llama", "builder": "Llama", "cache": "Cache", "graph": "Graph"}      # of a name before a dot

# What is marked as our choice: a sentence with these words, or all from a question ("What if ...?") up to it.
SILENT = re.compile(r"((?:What\b[^?]*\?[^?]*?|[^\s.?](?:[^.?]|\.\b)*)paper\s+does\s+not\s+say[^.:]*[.:]\)?)")

# Parts of a line of prose that get a form: code, a link, an index, or a word that may be the name of a definition.
INLINE = re.compile(r"`([^`]+)`|\[([^]]+)\]\((http[^)]+)?[^)]*\)"
                    r"|\b(\w|sum|mean)(&#39;)?_(\w+(?:&#39;)?|{[^}]+})|\w[\w.]*\w")

# A line of the file, as HTML, that is a docstring or a comment.
SAID = re.compile('^ *<span class="(docstring|comment)')


Names = dict[str, str]                                      # a name, as it is written in a file -> its full name


class Row(NamedTuple):
    """Prose, and the lines of code beside it, as HTML."""
    prose: list[str]
    code: list[tuple[int, str]]                             # (number, line)


class Block(NamedTuple):
    """A definition ("pecan.Search.visit") or the head of a file, and the section that begins with it, or ""."""
    name: str
    section: str
    rows: list[Row]


# --- names ----------------------------------------------------------------------------------------------------------

def definitions(path: str, body: ast.Module | ast.ClassDef) -> dict[str, int]:
    """The constants, classes, functions and methods of a file, by full name, and the line where each begins."""
    found = {}
    for node in body.body:
        line = [*getattr(node, "decorator_list", []), node][0].lineno          # its first decorator's, if any
        if isinstance(node, ast.Assign):
            found[f"{path}.{node.targets[0].id}"] = line
        elif isinstance(node, ast.If):
            found[f"{path}.__main__"] = line
        elif hasattr(node, "name"):
            found[f"{path}.{node.name}"] = line
        if isinstance(node, ast.ClassDef):
            found |= definitions(f"{path}.{node.name}", node)
    return found


# --- HTML -----------------------------------------------------------------------------------------------------------

def highlighted(source: str, names: Names) -> list[str]:
    """The lines of a file as HTML. A name leads to its definition.

    A plain word may be the name of a local variable, too. So it is a link only where it is called.
    """
    with optional("view.annotate highlights with Pygments"):
        from pygments.lexers import PythonLexer
        from pygments.token import Comment, Keyword, Name, Operator, String
    kinds = {Comment: "comment", String.Doc: "docstring", String: "string", Keyword: "keyword",
             Operator.Word: "keyword", Name.Function: "defined", Name.Class: "defined"}

    html = Markup()
    inside = ""                                             # the name of the class
    tokens = list(PythonLexer(stripnl=False).get_tokens(source))
    words = ["", "", *(text for _, text in tokens), ""]
    for (kind, text), owner, before, after in zip(tokens, words, words[1:], words[3:]):
        style = next((style for wide, style in kinds.items() if kind in wide), "")
        name = ""
        if kind in Name.Class:
            inside = text
        elif kind in Name and before == ".":
            owner = inside if owner == "self" else CLASSES.get(owner, owner)
            name = f"{owner}.{text}"
        elif kind in Name and not style and before != "\n" and (after == "(" or re.search("[A-Z_]", text)):
            name = text

        form = '<a href="#{}">{}</a>' if name in names else '<span class="{}">{}</span>' if style else "{}{}"
        html += Markup("\n").join(Markup(form).format(names.get(name, style), part) for part in text.split("\n"))
    return html.split("\n")


def in_line(text: str, names: Names) -> str:
    """Prose as HTML. A known name with a dot or an underscore becomes a link to its definition."""
    def linked(name):
        return f'<a href="#{names[name]}">{name}</a>' if name in names and re.search("[._]", name) else name

    def made(match):
        code, words, address, letter, prime, index = match.groups()
        if code:
            return f"<code>{linked(code)}</code>"
        if words:                                           # a link within the repository leads nowhere from a page
            return f'<a href="{address}">{words}</a>' if address else words
        return f"<i>{letter}</i>{prime or ''}<sub>{re.sub('[{}_]', '', index)}</sub>" if letter else linked(match[0])
    return Markup(INLINE.sub(made, str(escape(text))))


def prose(text: str, names: Names) -> str:
    """A docstring or a comment as HTML. Indented parts keep their lines."""
    html = Markup()
    for part in re.findall(r"(?m)^    .*(?:\n+    .*)*|^\S.*(?:\n\S.*)*", text):
        if part.startswith("    "):
            html += Markup("<pre>{}</pre>\n").format(textwrap.dedent(part))
        else:
            pieces = [in_line(piece, names) for piece in SILENT.split(part)]
            pieces[1::2] = [Markup('<span class="silent">{}</span>').format(piece) for piece in pieces[1::2]]
            html += Markup("<p>{}</p>\n").format(Markup("").join(pieces))
    return html


def blocks_of(file: str, source: str, names: Names, defined: dict[str, int]) -> list[Block]:
    """A file from top to bottom: a block for each definition, and in it a new row at each comment on its own line."""
    starts = {line: name for name, line in defined.items()}
    blocks = [Block(file, "", [Row([], [])])]
    section = ""
    comments = []

    numbered = zip(count(1), source.splitlines(), highlighted(source, names))
    for said, lines in groupby(numbered, lambda line: SAID.findall(line[2])):
        lines = list(lines)
        text = textwrap.dedent("\n".join(line for _, line, _ in lines))
        if said == ["docstring"]:
            blocks[-1].rows[-1].prose.append(prose(text.replace('"""', ""), names))
        elif heading := re.fullmatch(r"# --- (.*?) -+", text):
            section = heading[1]
        elif said == ["comment"]:
            comments.append(prose(re.sub("(?m)^# ?", "", text), names))
        else:
            for number, line, code in lines:
                if number in starts:
                    blocks.append(Block(starts[number], section, []))
                    section = ""
                if number in starts or comments and line:
                    blocks[-1].rows.append(Row(comments, []))
                    comments = []
                blocks[-1].rows[-1].code.append((number, code))
    return blocks


# --- the page -------------------------------------------------------------------------------------------------------

def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def table(path: str, head: str) -> list[tuple[str, list[str], list[str]]]:
    """The rows of a document's table: the paper's statement, the definitions it names, the other cells."""
    rows = read(path).split(f"\n| {head} |")[1].split("\n\n")[0].splitlines()[2:]
    cells = [row.strip("| ").split(" | ") for row in rows]
    name = re.compile(rf"`((?:{'|'.join(FILES)})\.[\w.]+)`")
    return [(in_line(words, {}), name.findall(code), [in_line(cell, {}) for cell in rest])
            for words, code, *rest in cells]


def example() -> dict:
    """The values of a run of the embedded model on its story, and the heat table of the node that led to the answer."""
    method = embedded_method()
    graph, node, source, rows = record(method, read_text(STORY), QUESTION)
    table = heat(method.model, graph, source, method.settings, style=False)
    texts = [(i, graph.nodes[i].text) for i in (node, source)]
    return {"question": QUESTION, "texts": texts, "tensors": rows, "heat": Markup(table)}


def annotated() -> str:
    names = {}
    files = {}
    for file in FILES:
        source = read(f"{file}.py")
        defined = definitions(file, ast.parse(source))
        names |= {full.removeprefix(f"{file}."): full for full in defined}
        files[file] = blocks_of(file, source, names, defined)

    before, drawing, after = read("README.md").split("\n## How it works\n")[1].split("\n<picture>")[0].split("```\n")
    return render("annotate", about=prose(before.strip(), {}), after=prose(after, {}),
                  drawing=drawing, files=files, paper=table("README.md", "paper"), **example(),
                  statements=table("tests/README.md", "PECAN") + table("tests/README.md", "only in GARLIC"))


def main(argv=None) -> int:
    args = parse_options(page_parser("view.annotate", __doc__), argv)
    write_page(args.output, annotated())
    return 0


if __name__ == "__main__":
    sys.exit(user_errors(main))
