"""Every method that can be run, the rows of every table, and the runs that a command line asks for.

To register a variant or a baseline of your own, add its Row to OWN. Runs are planned before weights are loaded.
"""
import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from baselines.bm25 import BM25
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
from evaluation import paper, variants
from evaluation.datasets import Dataset
from evaluation.models import chosen_settings
from model.checkpoint import locate, read_config
from pecan import Pecan, Search, build, summarise

# --- rows -----------------------------------------------------------------------------------------------------------

def pecan_of(models, run) -> Pecan:
    """PECAN with the settings of a run; its number of nodes is fixed if the row says how many are read."""
    settings = replace(run.settings, fixed_nodes=run.top_k or run.settings.fixed_nodes)
    return Pecan(models.model, models.encoder, settings, models.builder, run.construction, build=run.row.build,
                 summarise=run.row.summarise, search=run.row.search)


class Row(NamedTuple):
    """A row of a table: how its method is made, and what else makes it this row."""
    name: str                     # for --method and for the file of answers
    label: str                    # as in the paper's tables
    make: Callable = pecan_of     # (Models, Run) -> data.Method
    top_k: int | str | None = None       # how many texts are read (None: the method decides); "X": see paper_x
    paper_x: dict = {}            # data set -> the paper's X; elsewhere --top says it
    paper: dict = {}              # the paper's settings for this row; options win
    changes: dict = {}            # settings that no option changes
    checkpoints: dict = {}        # instead of the command line's (Table 2)
    build: Callable = build       # of a variant of PECAN: what takes the place of these three
    summarise: Callable = summarise
    search: Callable = Search


PECAN = Row("pecan", "PECAN")
WHOLE = Row("whole", "whole document", lambda models, run: Whole(models.model, run.settings),
            paper={"window": WHOLE_DOCUMENT})
GARLIC = Row("garlic", "GARLIC", changes={"confidence": 0.5})    # it has no t_p: the likelier word decides
CHUNKS = paper.TOP_X["chunks"]
TOP_5 = (
    Row("bm25", "BM25 Top-5", lambda models, run: BM25(models.model, run.settings, run.top_k), 5, CHUNKS),
    Row("sbert", "SBERT Top-5", lambda models, run: Dense(models.model, models.encoder, models.encoder, run.settings,
                                                          run.top_k), 5, CHUNKS),
    Row("dragon", "Dragon Top-5", lambda models, run: Dense(models.model, models.question_tower, models.passage_tower,
                                                            run.settings, run.top_k), 5, CHUNKS),
    Row("raptor-ct", "RAPTOR-CT Top-5", lambda models, run: Raptor(models.model, models.encoder, run.settings,
                                                                   run.top_k), 5, paper.TOP_X["nodes"]),
)
TABLE_1 = (
    *TOP_5[:3],
    Row("memwalker", "MeMWalker", lambda models, run: MeMWalker(models.model, run.settings)),
    Row("raptor-tt", "RAPTOR-TT", lambda models, run: Raptor(models.model, models.encoder, run.settings, run.top_k,
                                                             collapsed=False), 5),
    TOP_5[3],
    Row("longllmlingua", "LongLLMLingua", lambda models, run: LongLLMLingua(models.model, models.scorer, run.settings)),
    *(row._replace(name=f"{row.name}-x", label=row.label.replace("Top-5", "Top-X"), top_k="X") for row in TOP_5),
    WHOLE, PECAN, GARLIC,
)
# PECAN, GARLIC, and systems of other papers that are not in Table 1.
SYSTEMS = (
    PECAN, GARLIC,
    Row("graphreader", "GraphReader", lambda models, run: GraphReader(models.model, run.settings)),
    Row("mkrag", "MKRAG (reconstruction)", lambda models, run: MKRAG(models.model, models.encoder, run.settings)),
    Row("jerr", "JERR (reconstruction)", lambda models, run: JERR(models.model, run.settings)),
)
VARIANTS = (
    Row("late-edges", "edges of late layers", summarise=partial(summarise, over=variants.late_layers)),
    Row("siblings", "edges to the next sibling", build=partial(variants.with_siblings, weight=0.1)),
    Row("softmax-r", "r by softmax", search=variants.SoftmaxR),
    Row("two-nodes", "two nodes a check", search=variants.TwoNodes),
    Row("budget", "ends after 250 tokens", search=variants.Budget),
)
# Your own variants, baselines and controls, which --method chooses. With top_k="X" a row takes --top.
OWN = ()
METHODS = {row.name: row for row in (PECAN, *TABLE_1, *SYSTEMS, *VARIANTS, *OWN)}

# Table 3. Without progress control X is the number of nodes that GARLIC gives (4.4).
ABLATIONS = (
    PECAN,
    Row("pecan-without-attention", "w/o Attention-Guided Retrieval", changes={"attention": False}),
    Row("pecan-without-progress", "w/o Dynamic Progress Control", top_k="X", paper_x=paper.FIXED_NODES),
    Row("pecan-without-graph", "w/o IP-based Graph", changes={"tree": True}),
    Row("pecan-without-similarity", "w/o Embedding Similarity", changes={"similarity": False}),
)
PATIENCE = tuple(Row(f"pecan-patience-{n}" if n > 1 else "pecan", f"t_n = {n}", changes={"patience": n})
                 for n in range(1, 9))

def pairs(model: str, searchers: list[str]) -> tuple[Row, ...]:
    """The rows of Table 2: `model` alone, then each searcher on its own graphs and on the graphs of `model`."""
    def name_of(checkpoint):             # the last part of a folder's or repository's name, without a @revision
        return Path(checkpoint if Path(checkpoint).is_dir() else checkpoint.partition("@")[0]).name

    def file_of(checkpoint):             # "x.1" would be the answers of process 1 of "x"
        return name_of(checkpoint).replace(".", "_")

    if not searchers:
        raise InputError("--table 2 compares models: name the others with --searcher DIR")
    if len({*map(file_of, (model, *searchers))}) <= len(searchers):
        raise InputError(f"--table 2: two of {' '.join((model, *searchers))} have the same name; rename a folder")
    built = [(model, model), *((builder, searcher) for searcher in searchers for builder in (searcher, model))]
    return tuple(Row("pecan" if searcher == model else f"pecan-{file_of(builder)}-{file_of(searcher)}",
                     f"{name_of(builder)} + {name_of(searcher)}",
                     checkpoints={"model": searcher, "builder": None if builder == searcher else builder})
                 for builder, searcher in built)


# --table (None: without it) -> its rows, or a function of the models that gives them, and the options that it decides
# itself. --method chooses some of the rows, unless the table decides that, too.
SOME_ROWS = "nodes", "without", "searcher"
ALL_ROWS = *SOME_ROWS, "method"
TABLES = {
    None: (tuple(METHODS.values()), ("searcher",)),
    "1": (TABLE_1, SOME_ROWS),
    "2": (pairs, ("nodes", "without", "method", "builder")),
    "3": (ABLATIONS, ALL_ROWS),
    "A3": ((), ALL_ROWS),
    "A4": ((PECAN, WHOLE), ALL_ROWS),
    "patience": (PATIENCE, (*ALL_ROWS, "patience")),
    "nodes": ((PECAN,), ALL_ROWS),
    "systems": (SYSTEMS, SOME_ROWS),
}


# --- runs -----------------------------------------------------------------------------------------------------------

class Run(NamedTuple):
    """One row over one data set."""
    dataset: Dataset
    row: Row
    options: argparse.Namespace          # the command line's, with the row's checkpoints
    settings: Settings
    construction: Settings | None        # the builder's, if another model builds the graphs
    top_k: int | None                    # as the row's; its X, or None if nothing gives one
    file: Path                           # of the answers
    graphs: Path                         # folder of the documents' graphs and trees

    @property
    def needs_top(self) -> bool:
        """Whether its X is missing."""
        return self.row.top_k == "X" and self.top_k is None


def plan(args: argparse.Namespace, datasets: list[Dataset]) -> list[Run]:
    """The runs of a command line's rows, PECAN's first, because others are compared with it.

    InputError for a wrong checkpoint, or a setting out of its range: it is found now, not after hours.
    """
    for checkpoint in (args.encoder, args.scorer, *(args.dragon or ())):
        if checkpoint:
            read_json(locate(checkpoint) / "config.json")

    runs = []
    for dataset in datasets:
        known_as = args.dataset_settings or dataset.name
        for row in sorted(args.rows, key=lambda row: row.name != "pecan"):
            if row.make is pecan_of:
                changes = [f"w/o {name}" for name in args.without]
                changes += [f"{args.nodes} nodes"] if args.nodes else []
                row = row._replace(label=", ".join([row.label, *changes]))

            # Each model has its own settings, and its window may not exceed the length that it was made for.
            options = argparse.Namespace(**vars(args) | row.checkpoints)
            by_paper = PAPER.get(known_as, {}) | row.paper
            sources = by_paper, chosen_settings(args), row.changes
            settings, construction = (name and resolve(locate(name), read_config(locate(name)).max_length, *sources)
                                      for name in (options.model, options.builder))

            top_k = args.top or row.paper_x.get(known_as) if row.top_k == "X" else row.top_k
            output = Path(args.output)
            file = row.name.replace(".", "_") + ".jsonl"             # "x.1" would be the answers of process 1 of "x"
            runs.append(Run(dataset, row, options, settings, construction, top_k,
                            output / dataset.name / file, Path(args.graphs or output / "graphs")))
    return runs
