"""Turns the command line into a list of runs. A run has a method, settings, a data set and a file of answers.

This is decided before weights are loaded, except for one number. How much a run reads may depend on PECAN's run;
`settle` sets this number after PECAN's run.
"""
import argparse
import itertools
from dataclasses import dataclass, replace
from pathlib import Path

from baselines.common import scaled
from core.files import InputError, read_json
from core.settings import PAPER, Settings, resolve
from evaluation import paper
from evaluation.layouts import Dataset
from evaluation.methods import Checkpoints, Row, rows_of
from llama import flops_of, length_of
from model.checkpoint import locate, read_config
from model.tokenizer import Tokenizer
from pecan import answer_turn, node_line, question_prompt
from support.command import chosen_settings, max_length


@dataclass(frozen=True)
class Run:
    """One method over one data set."""
    dataset: Dataset
    row: Row
    label: str
    checkpoints: Checkpoints
    settings: Settings
    top_k: int | str | None       # how much is retrieved; None: the method decides
    file: Path                    # of the answers
    graphs: Path                  # folder of the documents' graphs and trees


def plan(args: argparse.Namespace, datasets: list[Dataset]) -> list[Run]:
    """The runs that the command line asks for, in order. InputError for a wrong checkpoint or setting."""
    for checkpoint in (args.encoder, args.scorer, *(args.dragon or ())):
        if checkpoint:                                           # a wrong name is found now, not after hours
            read_json(locate(checkpoint) / "config.json")
    return [planned(args, dataset, row) for dataset in datasets
            for row in rows_of(args.table, dataset.name, args.model, args.searcher)
            if args.methods is None or row.name in args.methods]


def planned(args: argparse.Namespace, dataset: Dataset, row: Row) -> Run:
    checkpoints = Checkpoints(*(getattr(args, name) for name in Checkpoints._fields))._replace(**row.checkpoints)
    label = row.label
    if row.is_pecan:
        label = ", ".join([label, *(f"w/o {name}" for name in args.without)])
        label += f", {args.nodes} nodes" if args.nodes else ""

    # The window may not exceed the length that the models were made for.
    names = [checkpoints.model, checkpoints.builder if row.is_pecan else None]
    longest = max_length(*(read_config(locate(name)) for name in names if name))
    changes = {name: value for name, value in row.changes.items() if value != "mean"}
    settings = resolve(locate(checkpoints.model), longest, PAPER.get(dataset.name, {}) | row.paper,
                       chosen_settings(args), changes)

    top_k = row.top_k
    if top_k == "X":
        top_k = args.top or (paper.TOP_X[dataset.name][of_tree(row)] if dataset.name in paper.TOP_X else "X")
    output = Path(args.output)
    return Run(dataset, row, label, checkpoints, settings, top_k, output / dataset.name / f"{row.name}.jsonl",
               Path(args.graphs or output / "graphs"))


def of_tree(row: Row) -> bool:
    """Whether a Top-X method retrieves nodes of a tree instead of chunks."""
    return row.name == "raptor-ct-x"


def settle(run: Run, pecan: dict | None) -> Run:
    """The run with the number that depends on PECAN; `pecan` is the summary of PECAN's run on the same data set.

    A Top-X search costs as much as a PECAN search or a little more, as in the paper (Table 1 and its caption): X is the
    least number of full chunks, or of RAPTOR's full nodes, whose prompt costs at least that. (The paper's TFLOPs give
    the paper's X on all four data sets; of RAPTOR's nodes they give 20, 41, 11, 20 instead of 20, 42, 12, 22.)
    The number is part of the file's name, because it changes with the number of documents. InputError if PECAN was not
    run.
    """
    if run.top_k != "X" and run.row.changes.get("fixed_nodes") != "mean":
        return run
    if pecan is None:
        raise InputError(f"{run.label} depends on PECAN's result: run PECAN too (--method pecan,"
                         f"{run.row.name}), or say how much with --top")

    if run.top_k == "X":
        folder = locate(run.checkpoints.model)
        config = read_config(folder)
        tokenizer = Tokenizer(folder, config.vocab)
        prompt = length_of([*question_prompt(tokenizer, ""), *answer_turn(tokenizer, 0)])
        line = length_of(node_line(tokenizer, None, ""))
        line += scaled(100, run.settings) if of_tree(run.row) else run.settings.chunk

        lengths = ((X, prompt + X * line) for X in itertools.count(1))
        amount = next(X for X, tokens in lengths if flops_of(config, tokens, tokens) >= pecan["flops"])
        run = replace(run, top_k=amount)
    else:
        amount = round(pecan["nodes"])
        run = replace(run, settings=replace(run.settings, fixed_nodes=amount))
    return replace(run, file=run.file.with_stem(f"{run.file.stem}-{amount}"))
