"""PECAN, annotated: pecan.py and llama.py as one page. Prose and formulas, beside them the code, below it its tensors.

    python -m view.annotate -o docs/annotated.html

Prose, code and line numbers are those of the two files. The ways in from the paper are the tables of README.md and
tests/README.md, the tensors those of docs/walk.md. Only the formulas are written here, in formulas.jinja. So the page
needs no model and no network, and is the same on every machine.
"""
import ast
import re
import sys
import textwrap
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from core.command import make_parser, parse_options, user_errors
from core.files import optional, write_file
from view import walk
from view.page import render

FILES = ["llama", "pecan"]                                  # a file knows its own names and those of the files before it

# What is marked in the margin: the words that a paragraph holds, and its class.
MARKS = {r"paper does not say|^Silent:": "silent", r"^Trap:": "trap"}

# A stretch of prose that is more than words: code, a link, an address, or what may be the name of a definition.
INLINE = re.compile(r"`([^`]+)`|\[([^]]+)\]\((https:[^)]+)\)|(https:[^\s)]+)|\w[\w.]*\w")


@dataclass
class Row:
    """Prose and the lines of code beside it, as HTML: (line number, line)."""
    prose: str = ""
    code: list[tuple[int, str]] = field(default_factory=list)


@dataclass
class Block:
    """A definition, or the head of a file: its full name ("pecan.Search.visit"), the line of its name, its rows."""
    name: str
    line: int
    section: str
    rows: list[Row] = field(default_factory=lambda: [Row()])


# --- names ----------------------------------------------------------------------------------------------------------

def definitions(place: str, body: ast.Module | ast.ClassDef) -> dict[str, ast.stmt]:
    """The constants, classes, functions and methods of a file, by full name."""
    found = {}
    for node in body.body:
        if isinstance(node, ast.Assign):
            found[f"{place}.{node.targets[0].id}"] = node
        elif isinstance(node, ast.If):
            found[f"{place}.__main__"] = node
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[f"{place}.{node.name}"] = node
        if isinstance(node, ast.ClassDef):
            found |= definitions(f"{place}.{node.name}", node)
    return found


def inside(node: ast.AST):
    """All nodes of a tree but those in f-strings, whose places Python 3.11 does not know."""
    yield node
    for child in [] if isinstance(node, ast.JoinedStr) else ast.iter_child_nodes(node):
        yield from inside(child)


def links_of(tree: ast.Module, defined: dict[str, ast.stmt], names: dict[str, str]) -> dict[tuple[int, int], str]:
    """(line, column) of every name in a file that means a definition, and the full name of that.

    `names` are those that the file knows. What stands before a dot has the class of the parameter of that name.
    """
    used = [node for node in inside(tree) if isinstance(node, ast.alias)]
    links = {(node.lineno, node.col_offset): names[node.name] for node in used if node.name in names}
    classes = {arg.arg: name for arg in inside(tree) if isinstance(arg, ast.arg) and arg.annotation
               for name in re.findall(r"\w+", ast.unparse(arg.annotation)) if f"{name}.__init__" in names}

    for full, function in defined.items():
        if not isinstance(function, ast.FunctionDef):
            continue
        local = {node.arg for node in inside(function) if isinstance(node, ast.arg)}
        local |= {node.id for node in inside(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        for node in inside(function):
            if isinstance(node, ast.Name) and node.id in names and node.id not in local:
                links[node.lineno, node.col_offset] = names[node.id]
            elif isinstance(node, ast.Attribute):
                before = node.value.func if isinstance(node.value, ast.Call) else node.value
                owner = getattr(before, "attr", getattr(before, "id", None))
                owner = full.split(".")[1] if owner == "self" else classes.get(owner, owner)
                if f"{owner}.{node.attr}" in names:
                    links[node.end_lineno, node.end_col_offset - len(node.attr)] = names[f"{owner}.{node.attr}"]
    return links


# --- code and prose as HTML -----------------------------------------------------------------------------------------

def highlighted(source: str, links: dict[tuple[int, int], str]) -> list[str]:
    """The lines of a file as HTML."""
    with optional("view.annotate highlights with Pygments"):
        from pygments.lexers import PythonLexer
        from pygments.token import Comment, Keyword, Name, Number, Operator, String
    kinds = {Comment: "comment", String: "string", Number: "number", Keyword: "keyword", Operator.Word: "keyword",
             Name.Function: "defined", Name.Class: "defined"}

    lines = [Markup()]
    column = 0
    for kind, text in PythonLexer(stripnl=False).get_tokens(source):
        style = next((style for wide, style in kinds.items() if kind in wide), None)
        for i, part in enumerate(text.split("\n")):
            if i > 0:
                lines.append(Markup())
                column = 0
            target = links.get((len(lines), column))
            if target:
                lines[-1] += Markup('<a href="#{}">{}</a>').format(target, part)
            elif style and part:
                lines[-1] += Markup('<span class="{}">{}</span>').format(style, part)
            else:
                lines[-1] += part
            column += len(part)
    return lines


def prose(text: str, names: dict[str, str]) -> str:
    """A docstring or a comment as HTML; what is indented stays as it is."""
    def linked(name):
        return f'<a href="#{names[name]}">{name}</a>' if name in names and ("_" in name or "." in name) else name

    def inline(match):
        code, words, address, bare = match.groups()
        if code:
            return f"<code>{linked(code)}</code>"
        if address or bare:
            return f'<a href="{address or bare}">{words or bare}</a>'
        return linked(match[0])

    made = ""
    for part in re.findall(r"(?m)^    .*(?:\n+    .*)*|^\S.*(?:\n\S.*)*", text):
        words = INLINE.sub(inline, str(escape(part)))
        mark = next((name for pattern, name in MARKS.items() if re.search(pattern, part)), "")
        made += f"<pre>{textwrap.dedent(words)}</pre>" if part.startswith(" ") else f'<p class="{mark}">{words}</p>'
    return Markup(made)


# --- the page -------------------------------------------------------------------------------------------------------

def blocks_of(file: str, source: str, defined: dict[str, ast.stmt], names: dict[str, str]) -> list[Block]:
    """A file from top to bottom: a block for each definition, and in it a row for each comment on a line of its own."""
    tree = ast.parse(source)
    starts = {min([node.lineno, *(mark.lineno for mark in getattr(node, "decorator_list", []))]): name
              for name, node in defined.items()}
    docstrings = {node.body[0].lineno: node for node in [tree, *defined.values()]
                  if not isinstance(node, (ast.Assign, ast.If)) and ast.get_docstring(node)}
    hidden = {line for node in docstrings.values() for line in range(node.body[0].lineno, node.body[0].end_lineno + 1)}

    blocks = [Block(file, 1, "")]
    section = ""
    comment = ""
    html = highlighted(source, links_of(tree, defined, names))
    for number, line in enumerate(source.splitlines(), 1):
        row = blocks[-1].rows[-1]
        if number in hidden:
            row.prose += prose(ast.get_docstring(docstrings[number]), names) if number in docstrings else ""
        elif heading := re.fullmatch(r"# --- (.*?) -+", line):
            section = heading[1]
        elif html[number - 1].lstrip().startswith('<span class="comment"'):
            comment += line.strip().removeprefix("#").removeprefix(" ") + "\n"
        elif not line:
            row.code.append((number, ""))
            comment += "\n" if comment else ""
        else:
            if number in starts:
                blocks.append(Block(starts[number], defined[starts[number]].lineno, section))
                section = ""
            elif comment:
                blocks[-1].rows.append(Row())
            row = blocks[-1].rows[-1]
            row.prose += prose(comment, names)
            comment = ""
            row.code.append((number, html[number - 1]))

    for row in (row for block in blocks for row in block.rows):
        while row.code and not row.code[-1][1]:
            row.code.pop()
    return blocks


def table(path: str, head: str) -> list[list[str]]:
    """The rows of the table in a document that begins with this head: words, the names in the files, the other cells."""
    text = (walk.ROOT / path).read_text(encoding="utf-8")
    rows = text.split(f"\n| {head} |")[1].split("\n\n")[0].splitlines()[2:]
    cells = [row.strip("| ").split(" | ") for row in rows]
    found = [(words, re.findall(rf"`((?:{'|'.join(FILES)})\.[\w.]+)`", code), rest) for words, code, *rest in cells]
    return [(words, names, rest) for words, names, rest in found if names]


def annotated() -> str:
    """The page, HTML."""
    defined = {}
    names = {}
    files = {}
    for file in FILES:
        source = (walk.ROOT / f"{file}.py").read_text(encoding="utf-8")
        defined[file] = definitions(file, ast.parse(source))
        names = names | {full.removeprefix(f"{file}."): full for full in defined[file]}
        files[file] = blocks_of(file, source, defined[file], names)

    tensors = {}
    for section, function, *tensor in walk.rows((walk.ROOT / "docs" / "walk.md").read_text(encoding="utf-8")):
        first, found = tensors.setdefault(function.replace(".py  ", "."), (section, []))
        if section == first:
            found.append(tensor)

    readme = (walk.ROOT / "README.md").read_text(encoding="utf-8").split("\n## ")[0].split("\n", 1)[1]
    about = re.sub(r"```\n(.*?)```", lambda block: textwrap.indent(block[1], "    "), readme, flags=re.DOTALL)
    return render("annotate", about=prose(about, {}), files=dict(reversed(files.items())), tensors=tensors,
                  paper=table("README.md", "paper"),
                  statements=[*table("tests/README.md", "PECAN"), *table("tests/README.md", "only in GARLIC")])


def main(argv=None) -> int:
    parser = make_parser("python -m view.annotate", __doc__)
    parser.add_argument("-o", "--output", required=True, metavar="OUT.html")
    args = parse_options(parser, argv)
    write_file(args.output, annotated())
    return 0


if __name__ == "__main__":
    sys.exit(user_errors(main))
