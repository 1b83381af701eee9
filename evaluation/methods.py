"""Every method that can be run, the rows of every table, and the plan: the runs that a command line asks for.

To register a baseline, add its Row to SYSTEMS. The plan is made before weights are loaded, except for one number: how
much a run reads may depend on PECAN's run, and `settle` sets this number after PECAN's run.
"""
import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from baselines.bm25 import BM25
from baselines.common import scaled
from baselines.dense import Dense
from baselines.graphreader import GraphReader
from baselines.jerr import JERR
from baselines.longllmlingua import LongLLMLingua
from baselines.memwalker import MeMWalker
from baselines.mkrag import MKRAG
from baselines.raptor import Raptor
from baselines.whole import Whole
from core.files import InputError, read_json
from core.settings import PAPER, WHOLE_DOCUMENT, Settings, resolve
from evaluation import paper
from evaluation.datasets import Dataset
from evaluation.models import Checkpoints, chosen_settings, unloaded
from llama import flops_of, length_of
from model.checkpoint import locate, read_config
from pecan import Pecan, answer_turn, node_line, question_prompt

# --- methods --------------------------------------------------------------------------------------------------------

def pecan(model, encoder, builder, settings, construction=None):
    """Pecan, with its arguments in the order in which the method of a row is called."""
    return Pecan(model, encoder, settings, builder, construction)


class Row(NamedTuple):
    """A row of a table: a method, and the settings that make it this row."""
    name: str                     # for --method and for the file of answers
    label: str                    # as in the paper's tables
    method: Callable = pecan      # called with model, what the row uses, settings, then construction or top_k if given
    uses: tuple[str, ...] = ("encoder", "builder")           # attributes of Models besides the model; these are PECAN's
    top_k: int | str | None = None                           # how much is retrieved; "X": for about PECAN's cost
    paper: dict = {}              # the paper's settings for this row; options win
    changes: dict = {}            # settings that no option changes
    checkpoints: dict = {}        # instead of the command line's (Table 2)

    @property
    def is_pecan(self) -> bool:
        return self.method is pecan


PECAN = Row("pecan", "PECAN")
TOP_5 = (
    Row("bm25", "BM25 Top-5", BM25, (), 5),
    Row("sbert", "SBERT Top-5", Dense, ("encoder", "encoder"), 5),
    Row("dragon", "Dragon Top-5", Dense, ("question_tower", "passage_tower"), 5),
    Row("raptor-ct", "RAPTOR-CT Top-5", Raptor, ("encoder",), 5),
)
TABLE_1 = {row.name: row for row in (
    *TOP_5[:3],
    Row("memwalker", "MeMWalker", MeMWalker, ()),
    Row("raptor-tt", "RAPTOR-TT", partial(Raptor, collapsed=False), ("encoder",), 5),
    TOP_5[3],
    Row("longllmlingua", "LongLLMLingua", LongLLMLingua, ("scorer",)),
    *(row._replace(name=f"{row.name}-x", label=row.label.replace("Top-5", "Top-X"), top_k="X") for row in TOP_5),
    Row("whole", "whole document", Whole, (), paper={"window": WHOLE_DOCUMENT}),
    PECAN,
    # GARLIC has no t_p: the likelier word decides, whatever --confidence says.
    Row("garlic", "GARLIC", changes={"confidence": 0.5}),
)}

# PECAN, GARLIC, and systems of other papers that are not in Table 1.
SYSTEMS = {row.name: row for row in (
    PECAN,
    TABLE_1["garlic"],
    Row("graphreader", "GraphReader", GraphReader, ()),
    Row("mkrag", "MKRAG (reconstruction)", MKRAG, ("encoder",)),
    Row("jerr", "JERR (reconstruction)", JERR, ()),
)}
METHODS = {"pecan": PECAN} | TABLE_1 | SYSTEMS
COMPARE = {None: METHODS, "1": TABLE_1, "systems": SYSTEMS}      # tables whose rows --method may choose from


# --- the rows of the tables -----------------------------------------------------------------------------------------

def rows_of(table: str | None, dataset: str = "", model: str = "", searchers: list[str] = ()) -> list[Row]:
    """The rows of a table for a data set; all methods if `table` is None. Table 2 compares `model` and `searchers`.

    Without progress control, Table 3 reads the number of nodes that GARLIC gives (4.4). For other data sets the number
    is open (None): it becomes as many as PECAN reads on average. The paper chose its number in the same way.
    """
    if table in COMPARE:
        return list(COMPARE[table].values())
    if table == "2":
        names = list(map(name_of, (model, *searchers)))
        if len(set(names)) < len(names):
            raise InputError(f"--table 2: two of {' '.join((model, *searchers))} have the same name; rename a folder")

        # `model` alone, then each searcher on its own graphs and on the graphs of `model`.
        pairs = [(model, model), *((builder, searcher) for searcher in searchers for builder in (searcher, model))]
        return [Row("pecan" if searcher == model else f"pecan-{name_of(builder)}-{name_of(searcher)}",
                    f"{name_of(builder)} + {name_of(searcher)}",
                    checkpoints={"model": searcher, "builder": None if builder == searcher else builder})
                for builder, searcher in pairs]

    if table == "3":
        return [PECAN,
                Row("pecan-without-attention", "w/o Attention-Guided Retrieval", changes={"attention": False}),
                Row("pecan-without-progress", "w/o Dynamic Progress Control",
                    changes={"fixed_nodes": paper.FIXED_NODES.get(dataset)}),
                Row("pecan-without-graph", "w/o IP-based Graph", changes={"tree": True}),
                Row("pecan-without-similarity", "w/o Embedding Similarity", changes={"similarity": False})]

    if table == "patience":
        return [Row(f"pecan-patience-{n}" if n > 1 else "pecan", f"t_n = {n}", changes={"patience": n})
                for n in range(1, 9)]
    return {"A3": [], "A4": [PECAN, METHODS["whole"]], "nodes": [PECAN]}[table]


def name_of(model: str) -> str:
    """The last part of a folder's or repository's name, without a @revision."""
    return Path(model).name if Path(model).is_dir() else Path(model.partition("@")[0]).name


# --- the plan -------------------------------------------------------------------------------------------------------

class Run(NamedTuple):
    """One method over one data set."""
    dataset: Dataset
    row: Row
    label: str
    checkpoints: Checkpoints
    settings: Settings
    construction: Settings | None                            # the builder's, if another model builds the graphs
    top_k: int | str | None       # how much is retrieved; None: the method decides
    file: Path                    # of the answers
    graphs: Path                  # folder of the documents' graphs and trees


def plan(args: argparse.Namespace, datasets: list[Dataset]) -> list[Run]:
    """The runs that the command line asks for, PECAN's first, because others may depend on its cost.

    InputError for a wrong checkpoint or setting.
    """
    for checkpoint in filter(None, (args.encoder, args.scorer, *(args.dragon or ()))):
        read_json(locate(checkpoint) / "config.json")            # a wrong name is found now, not after hours
    return [planned(args, dataset, row) for dataset in datasets
            for row in sorted(rows_of(args.table, dataset.name, args.model, args.searcher),
                              key=lambda row: row != PECAN)
            if not args.methods or row.name in args.methods]


def planned(args: argparse.Namespace, dataset: Dataset, row: Row) -> Run:
    checkpoints = Checkpoints(*(getattr(args, name) for name in Checkpoints._fields))._replace(**row.checkpoints)
    label = row.label
    if row.is_pecan:
        label += "".join(f", w/o {name}" for name in args.without)
        label += f", {args.nodes} nodes" if args.nodes else ""

    # The window may not exceed the length that the models were made for: the model and, of PECAN, the builder.
    names = [checkpoints.model, row.is_pecan and checkpoints.builder]
    folders = [locate(name) for name in names if name]
    lengths = [read_config(folder).max_length for folder in folders]
    sources = PAPER.get(dataset.name, {}) | row.paper, chosen_settings(args), row.changes
    settings = resolve(folders[0], min(lengths), *sources)
    construction = resolve(folders[1], lengths[1], *sources) if len(folders) > 1 else None

    top_k = row.top_k
    if top_k == "X":
        top_k = args.top or (paper.TOP_X[dataset.name][row.method is Raptor] if dataset.name in paper.TOP_X else "X")
    output = Path(args.output)
    return Run(dataset, row, label, checkpoints, settings, construction, top_k,
               output / dataset.name / f"{row.name}.jsonl", Path(args.graphs or output / "graphs"))


def is_open(run: Run) -> bool:
    """Whether a number of the run depends on PECAN's result."""
    return run.top_k == "X" or "fixed_nodes" in run.row.changes and run.settings.fixed_nodes is None


def settle(run: Run, pecan: dict | None) -> Run:
    """The run with the number that depends on PECAN; `pecan` is the summary of PECAN's run on the same data set.

    A Top-X search costs as much as a PECAN search or a little more, as in the paper (Table 1 and its caption): X is the
    least number of full chunks, or of RAPTOR's full nodes, whose prompt costs at least that. (The paper's TFLOPs give
    the paper's X on all four data sets; of RAPTOR's nodes they give 20, 41, 11, 20 instead of 20, 42, 12, 22.)
    The number is part of the file's name, because it changes with the number of documents. InputError if PECAN was not
    run.
    """
    if not is_open(run):
        return run
    if pecan is None:
        raise InputError(f"{run.label} depends on PECAN's run, which gave no result: run PECAN too, or, for Top-X, "
                         "choose X with --top")

    if run.top_k == "X":
        config, tokenizer = unloaded(run.checkpoints.model)
        prompt = length_of([*question_prompt(tokenizer, ""), *answer_turn(tokenizer, 0)])
        line = length_of(node_line(tokenizer, None, ""))
        line += scaled(100, run.settings) if run.row.method is Raptor else run.settings.chunk

        amount = 1
        tokens = prompt + line
        while flops_of(config, tokens, tokens) < pecan["flops"]:
            amount += 1
            tokens += line
        run = run._replace(top_k=amount)
    else:
        amount = round(pecan["nodes"])
        run = run._replace(settings=replace(run.settings, fixed_nodes=amount))
    return run._replace(file=run.file.with_stem(f"{run.file.stem}-{amount}"))
