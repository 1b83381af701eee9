"""Measure what attention is worth in each step, with intervals (study/README.md).

    python -m study --short         two documents of the embedded world
    python -m study                 all of them, with the ablations; run it again to continue after an interruption
"""
import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

from core.command import make_parser, parse_options, user_errors
from core.files import InputError, check_values, optional
from core.settings import resolve
from data import EMBEDDED, PASSAGES, Document, read_jsonl
from study.choose import chosen_on_others
from study.collect import Bench, Record, collect
from study.figures import Figure, area, figure
from study.steps import P_YES, answers, edges, progress, relevance, retrieval
from support.options import EMBEDDED_MODEL, load_models

DATA = Path(__file__).parent / "data"
KNOWN = {"embedded": EMBEDDED, "hotpotqa": DATA / "hotpotqa.jsonl", "musique": DATA / "musique.jsonl"}
STEPS = (edges, relevance, retrieval, progress, answers)
Report = dict[str, dict[str, Figure]]             # figure -> way -> its value


def documents_of(names: list[str], limit: int | None, questions: int | None = None) -> dict[str, list[Document]]:
    """The documents of each data set.

    InputError if a question has no evidence or a blank answer, or if two data sets have the same name.
    """
    found = {}
    for name in names:
        path = KNOWN.get(name, Path(name))
        documents = read_jsonl(path, limit)
        for document in documents:
            document.questions[:] = document.questions[:questions]
            for question in document.questions:
                check_values({"answers": question.answers} | question.extra,
                             {"answers": PASSAGES, "evidence": PASSAGES}, f"{path}: question {question.id}: ")

        column = name if name in KNOWN else path.stem
        if column in found:
            raise InputError(f"--data: two of {' '.join(names)} have the same name; run them one by one")
        found[column] = [document for document in documents if document.questions]
    return found


def report(records: dict[str, list[Record]]) -> dict[str, Report]:
    """The figures of each data set; if there are several, also the figures of all together."""
    items = {}                                              # column -> figure -> way -> document -> items
    every = [(data, record) for data, of_data in records.items() for record in of_data]
    chosen = chosen_on_others([record for _, record in every])
    for step in STEPS:
        for (data, record), by_others in zip(every, chosen, strict=True):
            for name, way, item in step(record, by_others):
                for column in {data, "together"} if len(records) > 1 else {data}:
                    ways = items.setdefault(column, {}).setdefault(name, {})
                    ways.setdefault(way, {}).setdefault((data, record.document.id), []).append(item)

    return {column: {name: {way: figure(list(documents.values()), area if name == P_YES else np.mean)
                            for way, documents in ways.items()} for name, ways in items[column].items()}
            for column in (*records, "together") if column in items}


def markdown(found: dict[str, Report]) -> str:
    """One table: a row for each way of each figure, a column for each data set; n counts the items of a figure."""
    lines = [f"| figure | way | {' | '.join(found)} |", "|---" * (len(found) + 2) + "|"]
    for name in dict.fromkeys(name for rows in found.values() for name in rows):
        columns = [rows.get(name, {}) for rows in found.values()]
        label = f"{name}; n {', '.join(str(next(iter(ways.values())).n) for ways in columns if ways)}"
        for way in dict.fromkeys(way for ways in columns for way in ways):
            lines.append(f"| {label} | {way} | {' | '.join(str(ways.get(way, '')) for ways in columns)} |")
            label = ""
    return "\n".join(lines)


def main(argv=None) -> int:
    parser = make_parser("python -m study", __doc__)
    parser.add_argument("--model", default=str(EMBEDDED_MODEL), metavar="DIR", help="(default: the embedded model)")
    parser.add_argument("--encoder", metavar="DIR", help="sentence encoder (default: the model's own embeddings)")
    parser.add_argument("--data", nargs="+", default=["embedded"], metavar="NAME",
                        help="embedded, hotpotqa, musique, or files in data.py's format with evidence")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--limit", type=int, help="only the first LIMIT documents of each data set")
    size.add_argument("--short", action="store_true", help="two documents, two questions each, no ablations")
    parser.add_argument("--output", default="results-study", metavar="DIR", help="(default: %(default)s)")
    parser.add_argument("--pictures", action="store_true", help="draw pictures too (needs matplotlib)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.set_defaults(builder=None)
    args = parse_options(parser, argv)

    data = documents_of(args.data, *((2, 2) if args.short else (args.limit, None)))
    model, encoder, _ = load_models(args)
    bench = Bench(model, encoder, resolve(model.folder, model.config.max_length), Path(args.output), args.short)

    records = {name: [] for name in data}
    for name, documents in data.items():
        for document in tqdm(documents, name, disable=None):
            records[name].append(collect(bench, name, document))
            if not sys.stderr.isatty():                     # show progress where there is no bar
                print(f"{name}: {document.id} is done", file=sys.stderr)
    found = report(records)
    print(markdown(found))
    if args.pictures:
        with optional("pictures need matplotlib"):
            from study.draw import draw  # here, because matplotlib is an extra
        print("\n".join(f"picture: {path}" for name, rows in found.items() for path in draw(name, rows, bench.folder)))
    return 0


if __name__ == "__main__":
    sys.exit(user_errors(main))
