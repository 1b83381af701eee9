"""Write searches as one page: the graph, and each search step by step. Neither a model nor a network is needed.

    python pecan.py tiny/story.txt "When did Selma move?" --trace selma.jsonl
    python -m view.page selma.jsonl
    python -m view.page results/embedded/pecan.jsonl --question test-0-0

The page is view/page.html.jinja with view/page.css and view/page.js inside. Texts of documents and models are in a
block of JSON; the script puts them on the page as plain text. The content security policy allows only this style and
this script, by their hashes.
"""
import base64
import hashlib
import json
import sys
from pathlib import Path

import jinja2

from core.command import make_parser, parse_options, user_errors
from core.disk import read_kept, read_rows
from core.files import InputError, sha256, write_file
from evaluation.answers import answer_files

FOLDER = Path(__file__).parent


def source_hash(text: str) -> str:
    """The hash of an inline style or script, as a content security policy names it."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def page(rows: list[dict], about: str = "", start: int = 0) -> str:
    """The page of searches (read_searches), with a line `about` it, opened at a step of the first one.

    Each graph is there once. It may hold the attention that its edges come from, `heat` (view.search).
    """
    graphs = {}
    questions = []
    for row in rows:
        graph = row["graph"]
        graphs[graph["hash"]] = {name: graph.get(name, {}) for name in ("nodes", "edges", "heat")}
        answer = {"text": row["prediction"], **{name: row[name] for name in ("end", "tokens", "flops")}}
        questions.append({"question": row["question"], "answer": answer, "steps": row["trace"],
                          "graph": list(graphs).index(graph["hash"]), **row["search"]})

    # JSON for a script tag. Without "<", no text in it can end the tag or begin another.
    data = {"graphs": list(graphs.values()), "questions": questions, "start": start}
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    style, script = ((FOLDER / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(FOLDER), autoescape=True)
    return environment.get_template("page.html.jinja").render(
        data=text, about=about, style=style, script=script, style_hash=source_hash(style),
        script_hash=source_hash(script)) + "\n"


def read_searches(path: str | Path, question: str | None = None) -> list[dict]:
    """The searches of PECAN in a file, or those of the questions with this id, each with its graph in `graph`.

    InputError if there is none, or names the line or the graph's file that has changed since.
    """
    found = []
    for file in answer_files(path):
        for row in read_rows(file):
            if question in (None, row["id"]) and row["search"] and row["graph"]:
                graph = file.parent / row["graph"]["file"]
                if sha256([graph]) != row["graph"]["hash"]:
                    raise InputError(f"{graph}: is not the graph of {file}: its hash is different")
                found.append(row | {"graph": row["graph"] | read_kept(graph)})
    if not found:
        of = f" for the question {question!r}" if question else ""
        raise InputError(f"{path}: holds no search{of}, or none whose graph was kept")
    return found


# --- the command ------------------------------------------------------------------------------------------------------

def main(argv=None) -> int:
    parser = make_parser("python -m view.page", __doc__, "FILE.jsonl")
    parser.add_argument("answers", metavar="FILE.jsonl", help="of pecan.py --trace, or the answers of eval.py")
    parser.add_argument("--question", metavar="ID", help="only the question with this id")
    parser.add_argument("-o", "--output", metavar="OUT.html", help="default: FILE.html")
    args = parse_options(parser, argv)

    output = args.output or Path(args.answers).with_suffix(".html")
    write_file(output, page(read_searches(args.answers, args.question)))
    print(output)
    return 0


if __name__ == "__main__":
    sys.exit(user_errors(main))
