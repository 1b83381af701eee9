"""Run methods over data sets, score their answers, print the paper's tables.

    python eval.py                                       the embedded model on the embedded set
    python eval.py --dataset mine.jsonl --model smollm2  your own data or the paper's, an instruct Llama
    python eval.py --table A4 --pictures                  a table or figure of the paper, also drawn
    python eval.py --table systems                       the systems of other papers, side by side
    python eval.py --dry-run                             what a run would cost
    python eval.py --score results/embedded/pecan.jsonl  score predictions again, without a model
    torchrun --nproc-per-node 2 eval.py                  documents shared out over processes and devices

evaluation/README.md describes data sets, tables, metrics and long runs.
"""
import argparse
import contextlib
import json
import platform
import sys
from dataclasses import asdict

from core.command import make_parser, parse_options, user_errors

import torch
from support.heads import NoHeads, chosen_heads, head_weights

from core.checkpoint import locate, read_config
from core.files import InputError, OutputError, read_json, write_file
from core.tokenizer import Tokenizer
from data import EMBEDDED
from evaluation import cells, cost, metrics, paper, pictures, tables
from evaluation.dry_run import dry_run
from evaluation.layouts import Dataset
from evaluation.runner import Runner, Team
from evaluation.runs import COMPARE, METHODS, runs_of
from support.options import add_model_options

DEFAULT_METHODS = ["pecan", "pecan-heads", "bm25", "whole"]    # if neither --method nor --table chooses others


# --- parse ----------------------------------------------------------------------------------------------------------

def parse(argv) -> argparse.Namespace:
    """The options; InputError if they contradict each other. `methods` are the names of what to run."""
    parser = make_parser("eval.py", __doc__)
    parser.add_argument("--dataset", nargs="+", default=[str(EMBEDDED)], metavar="PATH",
                        help="one or several, in a layout of evaluation/layouts (default: the embedded set)")
    parser.add_argument("--method", help=f"one or several of {','.join(METHODS)} (default: "
                                         f"{','.join(DEFAULT_METHODS)}; for --table 1 or systems its rows)")
    parser.add_argument("--table", choices=[name for name in tables.SHOW if name],
                        help="a table or figure of the paper")
    parser.add_argument("--searcher", action="append", default=[], metavar="DIR",
                        help="for --table 2: another checkpoint that searches the graphs of --model, and its own")
    parser.add_argument("--dragon", nargs=2, metavar=("QUESTIONS", "PASSAGES"),
                        help="Dragon's two encoders (default: the mean of the model's own embeddings)")
    parser.add_argument("--scorer", metavar="DIR", help="checkpoint of LongLLMLingua's scorer (default: the model)")
    parser.add_argument("--top", type=int, help="what the Top-X methods retrieve (default: the paper's, or as much as "
                                                "costs what PECAN does)")
    parser.add_argument("--dry-run", action="store_true", help="print what the run would cost, and stop")
    parser.add_argument("--score", nargs="+", metavar="FILE", help="score files of predictions, without a model")
    parser.add_argument("--limit", type=int, help="only the first LIMIT documents of each data set")
    parser.add_argument("--output", default="results", metavar="DIR",
                        help="folder of predictions, graphs and results (default: %(default)s)")
    parser.add_argument("--graphs", metavar="DIR", help="folder of the graphs (default: OUTPUT/graphs)")
    parser.add_argument("--overwrite", action="store_true", help="answer again what the output folder holds")
    parser.add_argument("--pictures", action="store_true",
                        help="draw the table as well, PNG and SVG in the output folder (needs matplotlib)")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON in place of a table")
    parser.add_argument("--seed", type=int, default=0, help="kept with the results; decoding is greedy")
    add_model_options(parser)
    args = parse_options(parser, argv)

    chosen = COMPARE.get(args.table, METHODS) if args.table else DEFAULT_METHODS
    args.methods = args.method.split(",") if args.method is not None else list(chosen)
    check_methods(args)
    if not -2 ** 63 <= args.seed < 2 ** 63:
        raise InputError(f"--seed is {args.seed}; it must fit 64 bits")
    if args.pictures:
        pictures.check(args.table)
    return args


def check_methods(args: argparse.Namespace):
    """Raise InputError for unknown methods, and for options that the chosen methods or table would ignore."""
    known = COMPARE.get(args.table, METHODS)
    for method in args.methods:
        if method not in known:
            raise InputError(f"--method {method}: unknown here; choose from {', '.join(known)}")
    if (args.table == "2") != bool(args.searcher):
        raise InputError("--table 2 compares models: name the others with --searcher DIR, which no other table takes")
    if args.top is not None and not any(METHODS[method].top_k == "X" for method in args.methods):
        raise InputError(f"--top {args.top} is for the methods of Top-X, none of which is run (they end in -x)")

    chosen_heads(args.heads)
    if args.heads and args.table != "3" and (args.table or "pecan-heads" not in args.methods):
        raise InputError(f"--heads {args.heads} is for the row of chosen heads: --method pecan-heads, or --table 3")

    # What a table decides itself cannot be chosen as well.
    decided = {"--method": (args.method, args.table not in COMPARE),
               "--patience": (args.patience, args.table == "patience"),
               "--nodes": (args.nodes, args.table is not None),
               "--without": (args.without, args.table is not None)}
    for option, (given, by_table) in decided.items():
        if given and by_table:
            raise InputError(f"{option} cannot be chosen with --table {args.table}, which decides itself what is run")


# --- without a run --------------------------------------------------------------------------------------------------

def output(args: argparse.Namespace, numbers: dict, shown: list[cells.Table], *notes: str):
    """Print tables with notes, or the numbers alone as JSON."""
    if args.json:
        print(json.dumps(numbers, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print("\n".join(["\n\n".join(map(cells.as_text, shown)), *notes]))


def score_files(args: argparse.Namespace) -> int:
    """Print the metrics of prediction files, ours or LongBench's."""
    scores_of = {path: metrics.scores(metrics.read_predictions(path)) for path in args.score}
    rows = []
    for path, scores in scores_of.items():
        f1, rouge_l, rouge, bleu4, em = (f"{scores[name]:.2f}" for name in ("f1", "rouge_l", "rouge", "bleu4", "em"))
        rows.append([path, f1, cells.score(scores)[1], rouge_l, cells.score(scores, "rouge_l")[1], rouge, bleu4, em,
                     tables.accuracy(scores), str(scores["n"])])
    header = ["predictions", "F1", "95 %", "ROUGE-L", "95 %", "ROUGE-L (rouge)", "BLEU-4", "EM", "accuracy", "n"]
    output(args, scores_of, [cells.Table("", header, rows)])
    return 0


# --- run and print --------------------------------------------------------------------------------------------------

def run_all(args: argparse.Namespace, runner: Runner, dataset: Dataset) -> tuple[dict, dict, list[str]]:
    """Do the chosen runs over one data set; a run that cannot be done does not stop the others.

    Returns the summaries of the runs, the reasons of those that could not be done (both by name), and what was not
    answered. Raises OutputError if nothing more can be written.
    """
    done = {}
    not_run = {}
    failures = []

    for run in runs_of(args.table, paper.FIXED_NODES.get(dataset.name), args.searcher, args.model):
        chosen = run.name in args.methods or args.table not in COMPARE
        try:
            if chosen:
                failures += runner.run(dataset, run, done)
            else:
                runner.recall(dataset, run, done)           # keeps its row if an earlier call has done it
        except OutputError:
            raise
        except InputError as error:
            not_run[run.name] = {"label": run.label, "reason": str(error)}
            if args.method or not isinstance(error, NoHeads):    # nobody asked for the extension
                failures.append(f"{run.label} on {dataset.name}: {error}")
    return done, not_run, failures


def show(args: argparse.Namespace, runner: Runner, results: dict, failures: list[str]):
    """Write the results and the table as JSON, text and Markdown; print the table, and what was not answered."""
    device = next((models.model.device.type for models in runner.models.values()), None)
    everything = {"versions": {"python": platform.python_version(), "torch": torch.__version__},
                  "device": device, "seed": args.seed, "data": results,
                  "not answered": failures}
    suffix = f"-{args.table}" if args.table else ""
    path = runner.output / f"results{suffix}.json"
    write_file(path, json.dumps(everything, indent=2, ensure_ascii=False, allow_nan=False) + "\n")

    shown = tables.SHOW[args.table](results)
    write_file(runner.output / f"table{suffix}.txt", "\n\n".join(map(cells.as_text, shown)) + "\n")
    write_file(runner.output / f"table{suffix}.md", "\n".join(map(cells.as_markdown, shown)) + "\n")
    as_dicts = [table._asdict() for table in shown]
    write_file(runner.output / f"table{suffix}.json", json.dumps(as_dicts, indent=2, allow_nan=False) + "\n")

    for failure in failures:
        print(f"not answered: {failure}", file=sys.stderr)
    if args.pictures:
        files = pictures.draw(args.table, results, runner.output / f"picture{suffix}")
        print("pictures: " + ", ".join(map(str, files)), file=sys.stderr)
    output(args, everything, shown, *tables.remarks(args.table, results, args.encoder), f"Results: {path}")
    print(f"peak memory of this process {cost.peak_memory(device):.2f} GiB", file=sys.stderr)


def evaluate(args: argparse.Namespace, datasets: list[Dataset], runner: Runner) -> int:
    """Do all runs over all data sets and show what came of them; returns the exit code.

    Raises InputError if nothing at all was answered.
    """
    runner.team.first(runner.claim_folder)
    results = {}
    failures = []
    for dataset in datasets:
        if runner.team.rank == 0:
            print("\n".join(dataset.report.lines()), file=sys.stderr)
        done, not_run, not_answered = run_all(args, runner, dataset)
        failures += not_answered
        results[dataset.name] = {"report": asdict(dataset.report), "runs": done, "not run": not_run}
        if args.table == "A3":
            results[dataset.name]["lengths"] = dataset.lengths(Tokenizer(locate(args.model)).encode)

    reasons = [entry["reason"] for result in results.values() for entry in result["not run"].values()]
    if reasons and not any(result["runs"] for result in results.values()):
        raise InputError(reasons[0])

    if runner.team.rank == 0:
        show(args, runner, results, failures)
    runner.team.leave()
    return 1 if failures else 0


def main(argv=None) -> int:
    args = parse(argv)
    if args.score:
        return score_files(args)
    datasets = [Dataset(path, args.limit) for path in args.dataset]
    names = [dataset.name for dataset in datasets]
    if len(set(names)) < len(names):
        raise InputError(f"--dataset: {' and '.join(args.dataset)} have the same name, {names[0]}; run them one by one")
    for checkpoint in (args.builder, args.encoder, args.scorer, *args.searcher, *(args.dragon or ())):
        if checkpoint:                                           # a wrong name is found now, not after hours
            read_json(locate(checkpoint) / "config.json")
    for setting, heads in chosen_heads(args.heads).items():      # so is a head that is not there
        config = read_config(locate(args.builder or args.model if setting == "edge_heads" else args.model))
        head_weights(heads, config.layers, config.heads)
    if args.dry_run:
        costs, shown, notes = dry_run(args, datasets)
        output(args, costs, shown, *notes)
        return 0

    torch.manual_seed(args.seed)
    with contextlib.closing(Runner(args, Team())) as runner:
        return evaluate(args, datasets, runner)


if __name__ == "__main__":
    sys.exit(user_errors(main, "; what was finished is kept, and the same command goes on (other settings want another "
                               "--output)"))
