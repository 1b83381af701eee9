"""Write one question, searched in three ways by the embedded model, as the page of view/page.py.

    python -m view.search -o docs/search.html
"""
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

if not __package__:
    sys.exit("error: run it as python -m view.search, in the folder of README.md")

from core.command import make_parser, parse_options, user_errors
from core.settings import resolve
from data import EMBEDDED, read_text
from encoders.token_mean import TokenMean
from llama import Llama
from pecan import Pecan, build
from view.annotate import QUESTION, STORY
from view.heat import points_written
from view.page import page, write_page
from view.trace import read_traces, tracing

ABOUT = (
    "A Llama of 0.9 million parameters has read a generated story of 800 words, tiny/story.txt. Three searches: as "
    "the paper says; with a t_p for which the model must be surer; without attention. README.md has the method.")


def searched() -> str:
    model = Llama.load(EMBEDDED.parent, "cpu")
    settings = resolve(model.folder, model.config.max_length)
    method = Pecan(model, TokenMean(model), settings)
    with TemporaryDirectory() as folder:
        graph, traces = Path(folder, "graph.json"), Path(folder, "trace.jsonl")
        with points_written() as points:                    # in document order, level by level
            build(model, read_text(STORY), settings)
        prepared = method.prepare(read_text(STORY), graph)
        with tracing(method, graph, traces):
            for changed in ({}, {"confidence": .9999}, {"attention": False}):
                method.settings = replace(settings, **changed)
                method.answer(prepared, QUESTION)
        found = read_traces(traces)

    # a(x, j) × 100,000 in whole numbers: four digits, as many as the page shows
    numbers = [i for i, node in enumerate(prepared.graph.nodes) if node.level > 1]
    rows = {i: {"tokens": [token for token, _ in tokens], "rows": [[round(1e5 * a) for a in row] for _, row in tokens]}
            for i, (_, tokens) in zip(numbers, points, strict=True)}
    return page(found, ABOUT, len(found[0]["answer"]["trace"]), rows)


def main(argv=None) -> int:
    parser = make_parser("python -m view.search", __doc__)
    parser.add_argument("-o", "--output", required=True, metavar="OUT.html")
    args = parse_options(parser, argv)
    write_page(args.output, searched())
    return 0


if __name__ == "__main__":
    sys.exit(user_errors(main))
