"""The command line of pecan.py: questions about one document."""
import argparse
import sys
from collections import Counter
from pathlib import Path
from textwrap import fill, indent

from core.command import make_parser, parse_options, shown, user_errors
from core.disk import beside, read_rows, write_row
from core.files import InputError, attempt
from core.settings import PAPER, resolve
from data import Answer, read_text
from evaluation.answers import row_of
from evaluation.models import add_model_options, chosen_settings, load_models, warn_if_unknown
from evaluation.tables import LONGER, quantity
from pecan import Pecan

TEXT = """Answer questions about a long document with PECAN.

    python pecan.py tiny/story.txt "When did Selma move?" "Where does Selma live?"
    python pecan.py tiny/story.txt "When did Selma move?" --trace               every node that was read, and why
    python pecan.py tiny/story.txt "When did Selma move?" --trace selma.jsonl   for view.page, or a program
    python pecan.py book.txt "Who is Ahab?" --model meta-llama/Llama-3.1-8B-Instruct
"""


def trace_file(text: str) -> str:
    """What --trace took; an error of the command line if that is no file of a trace, but perhaps a question."""
    if not text.endswith(".jsonl") and text != "-":         # the constant of an option without a file
        raise argparse.ArgumentTypeError(f"took {text!r}, which does not end with .jsonl; put --trace at the end")
    return text


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = make_parser("pecan.py", TEXT, "document question [question ..]")
    parser.add_argument("document", help="a UTF-8 text file")
    parser.add_argument("questions", nargs="+", metavar="question")
    parser.add_argument("--graph", help="graph file (default: in the working directory, named after the document)")
    parser.add_argument("--trace", nargs="?", const="-", type=trace_file, metavar="FILE.jsonl",
                        help="print every node that was read, and why; or append it to a file for view.page "
                             "(view/README.md)")
    add_model_options(parser)

    return parse_options(parser, argv)


def as_text(answer: Answer, question: str, texts: list[str], steps: bool) -> str:
    """An answer for a reader, with its steps if `steps` is set; `texts` are the texts of all nodes."""
    lines = [question, f"  {answer.text}",
             f"  ({len(answer.nodes)} of {len(texts)} nodes read, {quantity(answer.flops)} FLOPs; {answer.end})"]
    for step in answer.trace if steps else []:
        why = "top level" if step.score is None else f"score {step.score:.3g} (z {step.z:.3g}, c {step.c:.3f})"
        check = "" if step.p_yes is None else f"  p_yes {step.p_yes:.3f} {step.verdict}"
        lines += [f"  #{step.node} level {step.level}  {why}  r {step.r:.3g}{check}",
                  indent(fill(texts[step.node], 74), " " * 6)]           # 80 columns
    return shown("\n".join(lines))


def ask(argv: list[str] | None = None) -> int:
    args = parse(argv)
    # Slips are named before a model is loaded.
    document = read_text(args.document)
    chosen = chosen_settings(args)
    file = None if args.trace == "-" else args.trace
    if file:
        open(file, "a").close()
        list(read_rows(Path(file)))

    model, encoder, builder = load_models(args)
    warn_if_unknown(model, document)
    settings, construction = (llama and resolve(llama.folder, llama.config.max_length, PAPER.get(args.dataset_settings),
                                                chosen) for llama in (model, builder))
    method = Pecan(model, encoder, settings, builder, construction)

    name = Path(args.document).name.encode()[:99].decode(errors="ignore")        # a file's name has 255 bytes at most
    path = Path(args.graph or f"{name}.{method.file_name(document)}.graph.json")
    verb = "reloaded" if path.exists() else "built"
    prepared = method.prepare(document, path, sys.stderr.isatty())
    by_level = Counter(node.level for node in prepared.graph.nodes)         # nodes are in the order of levels
    print(f"{verb} {path}: {by_level.total()} nodes, by level {[*by_level.values()]}", file=sys.stderr)
    if prepared.counts.get("longer"):
        print("warning:", LONGER.format(**prepared.counts), file=sys.stderr)

    for question in args.questions:
        answer = attempt(method.answer, prepared, question)
        if isinstance(answer, InputError):
            raise InputError(f"{question:.60}: {answer}")
        if file:
            write_row(Path(file), row_of(question, question, answer, beside(file, path)))
        print(as_text(answer, question, prepared.texts, steps=args.trace == "-"))
    return 0


def main(argv: list[str] | None = None) -> int:
    return user_errors(lambda: ask(argv))
