"""What attention is worth, step by step, with intervals (study/README.md).

    python -m study --short         two documents of the embedded world
    python -m study                 all of them, with the ablations; an interrupted run goes on
    python -m study --report        run nothing, report what is there
"""
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from tqdm import tqdm

from core.command import make_parser, parse_options, user_errors
from core.files import TEXTS, InputError, check_values, optional, write_file
from core.settings import resolve
from data import EMBEDDED, Document, read_jsonl
from study.choose import chosen_on_others
from study.collect import Bench, Record, collect, load
from study.figures import Figure, figure, number
from study.steps import STATISTICS, answers, edges, progress, relevance, retrieval
from support.options import EMBEDDED_MODEL, load_models

DATA = Path(__file__).parent / "data"
KNOWN = {"embedded": EMBEDDED, "hotpotqa": DATA / "hotpotqa.jsonl", "musique": DATA / "musique.jsonl"}
STEPS = (edges, relevance, retrieval, progress, answers)
Report = dict[tuple[str, str], Figure]           # (figure, way) -> its value


def documents_of(names: list[str], limit: int | None, questions: int | None = None) -> dict[str, list[Document]]:
    """The documents of each data set; InputError if a question has no evidence."""
    found = {}
    for name in names:
        path = KNOWN.get(name, Path(name))
        documents = read_jsonl(path, limit)
        for document in documents:
            document.questions[:] = document.questions[:questions]
            for question in document.questions:
                check_values(question.extra, {"evidence": TEXTS}, f"{path}: question {question.id}: ")
        found[name if name in KNOWN else path.stem] = [document for document in documents if document.questions]
    return found


def report(records: dict[str, list[Record]]) -> dict[str, Report]:
    """The figures of each data set, and of several together."""
    items = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))    # data -> (figure, way) -> document -> items
    chosen = iter(chosen_on_others(sum(records.values(), [])))
    for data, of_data in records.items():
        for record, by_others in zip(of_data, chosen):
            for step in STEPS:
                for name, way, item in step(record, by_others):
                    for column in (data, "together"):
                        items[column][name, way][data, record.document.id].append(item)
    if len(records) == 1:
        del items["together"]
    return {column: {key: figure(list(documents.values()), STATISTICS.get(key[0], np.mean))
                     for key, documents in rows.items()} for column, rows in items.items()}


def markdown(found: dict[str, Report]) -> str:
    """One table: a row for each way of each figure, a column for each data set; n counts the items of a figure."""
    ways = defaultdict(dict)                                # figure -> its ways, in the order in which they came in
    for rows in found.values():
        for name, way in rows:
            ways[name][way] = None

    lines = [f"| figure | way | {' | '.join(found)} |", "|---" * (len(found) + 2) + "|"]
    for name, of_figure in ways.items():
        for way in of_figure:
            values = [rows.get((name, way)) for rows in found.values()]
            n = ", ".join(str(value.n) for value in values if value)
            cells = [f"{number(value.value)} [{number(value.low)}, {number(value.high)}]" if value else ""
                     for value in values]
            lines.append(f"| {f'{name}; n {n}' if way == next(iter(of_figure)) else ''} | {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv=None) -> int:
    parser = make_parser("python -m study", __doc__)
    parser.add_argument("--model", default=str(EMBEDDED_MODEL), metavar="DIR", help="(default: the embedded model)")
    parser.add_argument("--encoder", metavar="DIR", help="sentence encoder (default: the model's own embeddings)")
    parser.add_argument("--data", nargs="+", default=["embedded"], metavar="NAME",
                        help="embedded, hotpotqa, musique, or files in data.py's format with evidence")
    parser.add_argument("--limit", type=int, help="first documents of each data set")
    parser.add_argument("--short", action="store_true", help="two documents, two questions each, no ablations")
    parser.add_argument("--output", default="results-study", metavar="DIR", help="(default: %(default)s)")
    parser.add_argument("--report", action="store_true", help="run nothing; report what is there")
    parser.add_argument("--pictures", action="store_true", help="draw pictures too (needs matplotlib)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.set_defaults(builder=None)
    args = parse_options(parser, argv)

    data = documents_of(args.data, *((2, 2) if args.short else (args.limit, None)))
    model, encoder, _ = load_models(args)
    bench = Bench(model, encoder, resolve(model.folder, model.config.max_length), Path(args.output), args.short)
    bench.check_setup()

    # A document of each data set in turn, so that what is there after an interruption is even.
    turns = [(name, documents[n]) for n in range(max(map(len, data.values()))) for name, documents in data.items()
             if n < len(documents)]
    for name, document in tqdm([] if args.report else turns, "documents", disable=not sys.stderr.isatty()):
        collect(bench, name, document)

    records = {name: [load(bench.path(name, document), document) for document in documents
                      if bench.path(name, document).exists()] for name, documents in data.items()}
    if not all(records.values()):
        raise InputError(f"{bench.folder}: holds no document of these; leave --report out")
    found = report(records)
    write_file(bench.folder / "report.md", markdown(found) + "\n")
    print(markdown(found))
    if args.pictures:
        with optional("pictures need matplotlib"):
            from study.draw import draw  # here, because matplotlib is an extra
        print("\n".join(f"picture: {path}" for name, rows in found.items() for path in draw(name, rows, bench.folder)))
    return 0


if __name__ == "__main__":
    sys.exit(user_errors(main))
