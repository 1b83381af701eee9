"""Run methods over data sets, score their answers, print the paper's tables.

    python eval.py                                       the embedded model on the embedded set
    python eval.py --dataset mine.jsonl --model smollm2  other data, another Llama
    python eval.py --dataset hf://datasets/zai-org/LongBench/data.zip:hotpotqa  data from the hub
    python eval.py --table A4                             a table of the paper
    python eval.py --table patience --pictures            a figure of the paper
    python eval.py --table systems                       the systems of other papers, side by side
    python eval.py --dry-run                             what a run would cost
    python eval.py --score results/embedded/pecan.jsonl  score predictions again, without a model
    python eval.py --score A.jsonl B.jsonl               two runs side by side, whoever made them
    torchrun --nproc-per-node 2 eval.py                  two processes share the documents

evaluation/README.md describes data sets, tables, metrics and long runs.
"""
import argparse
import contextlib
import json
import platform
import sys
from pathlib import Path

import torch

from core.code import VERSION
from core.command import make_parser, parse_options, shown, user_errors
from core.disk import differences
from core.files import InputError, hash_of, lock, read_if_there, reading, write_file, write_json
from data import EMBEDDED
from evaluation import cost, metrics, pictures, tables
from evaluation.datasets import Dataset
from evaluation.methods import METHODS, TABLES, Run, plan
from evaluation.models import add_model_options, unloaded
from evaluation.runner import Runner
from evaluation.team import Team
from model.checkpoint import locate, read_config

DEFAULT_METHODS = "pecan", "bm25", "whole"     # if neither --method nor --table chooses others
NOTE = "F1 is LongBench's, ROUGE-L is rouge_score's. Intervals are 95 % bootstraps.\nFLOPs are counted, not timed."
LEGEND = ("FLOPs: of a question; graph: FLOPs of a document; cut: documents that were cut;\n"
          "diff: F1 minus PECAN's, on the same questions (intervals are in the results).")


# --- parse ----------------------------------------------------------------------------------------------------------

def parse(argv) -> argparse.Namespace:
    """The options, and `rows`, the rows to run; InputError if options contradict each other."""
    parser = make_parser("eval.py", __doc__)
    parser.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    parser.add_argument("--dataset", nargs="+", default=[str(EMBEDDED)], metavar="PATH",
                        help="one or several, in a layout of evaluation/layouts.py, on disk or on the hub: "
                             "hf://datasets/OWNER/NAME[@REVISION]/FILE[:TASK] (default: the embedded set)")
    parser.add_argument("--method", help=f"one or several of {','.join(METHODS)} (default: "
                                         f"{','.join(DEFAULT_METHODS)}; for --table 1 or systems its rows)")
    parser.add_argument("--table", choices=[name for name in TABLES if name],
                        help="a table or figure of the paper, or the systems of other papers")
    parser.add_argument("--searcher", action="append", default=[], metavar="DIR",
                        help="for --table 2: another checkpoint; it searches its own graphs and those of --model")
    parser.add_argument("--dragon", nargs=2, metavar=("QUESTIONS", "PASSAGES"),
                        help="Dragon's two encoders (default: the mean of the model's own embeddings)")
    parser.add_argument("--scorer", metavar="DIR", help="checkpoint of LongLLMLingua's scorer (default: the model)")
    parser.add_argument("--top", type=int, help="how much the rows with an X read: Top-X methods, and PECAN without "
                                                "progress control in Table 3 (default: the paper's number on its data)")
    parser.add_argument("--dry-run", action="store_true", help="print what the run would cost, and stop; with --table "
                                                               "A4, at the paper's lengths, next to its figures")
    parser.add_argument("--score", nargs="+", metavar="FILE", help="score files of predictions, without a model")
    parser.add_argument("--limit", type=int, help="only the first LIMIT documents of each data set")
    parser.add_argument("--output", default="results", metavar="DIR",
                        help="folder of predictions, graphs and results (default: %(default)s)")
    parser.add_argument("--graphs", metavar="DIR", help="folder of the graphs (default: OUTPUT/graphs)")
    parser.add_argument("--pictures", action="store_true",
                        help="draw Figure 3 (--table nodes) or 4 (patience) in the output folder (needs matplotlib)")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON instead of a table")
    add_model_options(parser)
    args = parse_options(parser, argv)

    rows, decided = TABLES[args.table]
    for option in decided:
        if getattr(args, option) not in (None, []):
            raise InputError(f"--{option} cannot be chosen {f'with --table {args.table}' if args.table else 'here'}")

    known = {row.name: row for row in (rows(args.model, args.searcher) if callable(rows) else rows)}
    names = args.method.replace(" ", "").split(",") if args.method else known if args.table else DEFAULT_METHODS
    for name in names:
        if name not in known:
            raise InputError(f"--method {name}: unknown here; choose from {', '.join(known)}")
    args.rows = [row for row in known.values() if row.name in names]
    if args.top is not None and not any(row.top_k == "X" for row in args.rows):
        raise InputError(f"--top {args.top} is for rows with an X, such as bm25-x, and none of them is run")
    if args.pictures:
        pictures.check(args.table)
    if args.score:
        others = [f"--{name.replace('_', '-')}" for name, value in vars(args).items()
                  if name not in ("score", "json", "rows", "device") and value != parser.get_default(name)]
        if others:
            raise InputError(f"--score reads files of predictions as they are, so it cannot be used with {others[0]}")
    return args


# --- print ----------------------------------------------------------------------------------------------------------

def output(args: argparse.Namespace, numbers: dict, *texts: str):
    """Print a table with its notes, or the numbers alone as JSON."""
    print(json.dumps(numbers, indent=2, allow_nan=False) if args.json else "\n".join(texts))


def score_files(args: argparse.Namespace):
    """Print the metrics of prediction files, ours or LongBench's. Of two of ours, only the questions that both have
    count, and how their setups differ is printed, too.
    """
    files = {path: metrics.read_predictions(path) for path in args.score}
    found = {path: metrics.scores(rows) for path, rows in files.items()}
    columns = ["F1", "95 %", "ROUGE-L", "EM", "accuracy", "n"]
    lines = []
    if len(files) == 2 and all(shared := metrics.shared(*files.values())):
        first, second = shared
        with reading(" and ".join(files), "cannot be compared"):
            found = dict(zip(files, (metrics.summary(first), metrics.summary(second, first))))
        columns += ["F1 - first row", "nodes", "FLOPs/query"]
        lines = differences(*(read_if_there(Path(path).with_suffix(".setup.json")) for path in files))
    rows = [[path, *tables.cells(found[path], columns)] for path in found]
    output(args, found | {"setup": lines}, tables.as_text("", ["predictions", *columns], rows), *lines)


def show(args: argparse.Namespace, results: dict, failures: list[str]):
    """Write results, table and pictures; print the table and the unanswered questions."""
    everything = {"python": platform.python_version(), "torch": torch.__version__, "data": results,
                  "not answered": failures}
    # A command that runs something else in this folder writes another file.
    chosen = [args.table, args.method and ",".join(row.name for row in args.rows), args.limit and f"limit-{args.limit}",
              args.dataset != [str(EMBEDDED)] and ",".join(results)]
    suffix = "".join(f"-{part}" for part in chosen if part)
    suffix = suffix if len(suffix) < 99 else f"-{hash_of(suffix)}"
    path = Path(args.output) / f"results{suffix}.json"
    write_json(path, everything)
    text = "\n\n".join(tables.tables_of(args.table, results))
    write_file(path.with_name(f"table{suffix}.txt"), f"{text}\n")

    for failure in failures:
        print(f"not answered: {shown(failure)}", file=sys.stderr)
    for dataset in results if args.pictures else ():
        if results[dataset]["runs"]:
            picture = path.with_name(f"picture{suffix}-{dataset}")
            pictures.draw(args.table, dataset, results[dataset]["runs"], picture)
            print(f"drawn: {picture}.png, .svg", file=sys.stderr)
    notes = {None: [LEGEND, NOTE], "A3": []}.get(args.table, [NOTE])
    output(args, everything, text, *notes, *tables.remarks(results, args.question_again), f"Results: {path}")


# --- run ------------------------------------------------------------------------------------------------------------

def do_all(runs: list[Run], runner: Runner, results: dict) -> list[str]:
    """Do the runs and put their summaries into `results`; return why answers are missing.

    If a run fails, the others go on. InputError if there is no answer at all.
    """
    failures = []
    pecan = {}                                               # data set -> the rows of PECAN's run, which comes first
    for run in runs:
        name = run.dataset.name
        if run.needs_top:
            results[name]["needs --top"][run.row.name] = run.row.label
            continue
        try:
            rows, setup, reasons = runner.do(run)
        except InputError as error:
            reasons = [error]
        else:
            if run.row.name == "pecan":
                pecan[name] = rows
            summary = {"label": run.row.label, "setup": setup} | metrics.summary(rows, pecan.get(name))
            results[name]["runs"][run.row.name] = summary
        failures += [f"{run.row.label} on {name}: {reason}" for reason in reasons]

    if runs and not any(entry["runs"] for entry in results.values()):
        raise InputError([*failures, f"{runs[0].row.label} needs --top"][0])
    return failures


def main(argv=None) -> int:
    args = parse(argv)
    if args.score:
        score_files(args)
        return 0

    if args.dry_run and args.table == "A4":
        output(args, *cost.at_published_lengths(read_config(locate(args.model))), cost.PUBLISHED)
        return 0

    datasets = [Dataset(path, args.limit) for path in args.dataset]
    results = {dataset.name: {"report": dataset.report, "paper": args.dataset_settings or dataset.name, "runs": {},
                              "needs --top": {}} for dataset in datasets}
    if len({name.casefold() for name in results}) < len(datasets):                # a Mac has one folder for both
        raise InputError(f"--dataset: two of {' '.join(args.dataset)} have the same name; run them one by one, "
                         "each with its own --output")
    runs = plan(args, datasets)
    if args.dry_run:
        output(args, *cost.dry_run(args, datasets), cost.NOTE)
        return 0

    team = Team()
    with contextlib.ExitStack() as held:
        team.first(lambda: held.enter_context(lock(Path(args.output) / "results")))
        if team.rank == 0:
            print(*datasets, sep="\n", file=sys.stderr)
        failures = do_all(runs, Runner(team), results)
        if args.table == "A3":
            _, tokenizer = unloaded(args.model)
            for dataset in datasets:
                results[dataset.name]["lengths"] = dataset.lengths(tokenizer.encode)
        team.first(lambda: show(args, results, failures))   # the others wait: one that ends with 1 has all killed
        team.leave()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(user_errors(main, "; finished answers are kept, and the same command continues (other settings or "
                               "code need another --output)"))
