"""What can be run: the methods, the rows of each table, and the checkpoints that they need."""
import argparse
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from support.heads import chosen_heads, heads_of_checkpoints

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
from core.files import InputError
from core.settings import WHOLE_DOCUMENT, Settings
from data import Method
from evaluation import paper
from llama import Llama, flops_of
from pecan import Pecan
from support.options import load_models
from support.sbert import load_towers

# --- the rows of the tables -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One row of a table: a method under settings of its own."""
    name: str                     # of its file of predictions, and for --method
    label: str                    # as in the paper's tables
    method: str = "pecan"         # for make
    uses: tuple[str, ...] = ("encoder", "builder")           # attributes of Models that it needs, apart from the model
    paper: dict = field(default_factory=dict)                # the paper's settings for this row; options win
    changes: dict = field(default_factory=dict)              # settings that make this row what it is
    heads: bool = False                                      # which heads count is chosen (beyond the paper)
    top_k: int | str | None = None                           # how much is retrieved; "X": what costs as much as PECAN
    model: str | None = None                                 # checkpoints other than the command line's (Table 2)
    builder: str | None = None


PECAN = Run("pecan", "PECAN")
BM25_5 = Run("bm25", "BM25 Top-5", "bm25", (), top_k=5)
SBERT_5 = Run("sbert", "SBERT Top-5", "sbert", ("encoder",), top_k=5)
DRAGON_5 = Run("dragon", "Dragon Top-5", "dragon", ("towers",), top_k=5)
RAPTOR_CT_5 = Run("raptor-ct", "RAPTOR-CT Top-5", "raptor-ct", ("encoder",), top_k=5)

# The names that --method takes. In Table 1's order, but PECAN first, because Top-X depends on what PECAN costs. Next to
# it an extension beyond the paper.
METHODS = {run.name: run for run in (
    PECAN,
    Run("pecan-heads", "PECAN, chosen heads (not in the paper)", heads=True),
    BM25_5,
    SBERT_5,
    DRAGON_5,
    Run("memwalker", "MeMWalker", "memwalker", ()),
    Run("raptor-tt", "RAPTOR-TT", "raptor-tt", ("encoder",), top_k=5),
    RAPTOR_CT_5,
    Run("longllmlingua", "LongLLMLingua", "longllmlingua", ("scorer",)),
    replace(BM25_5, name="bm25-x", label="BM25 Top-X", top_k="X"),
    replace(SBERT_5, name="sbert-x", label="SBERT Top-X", top_k="X"),
    replace(DRAGON_5, name="dragon-x", label="Dragon Top-X", top_k="X"),
    replace(RAPTOR_CT_5, name="raptor-ct-x", label="RAPTOR-CT Top-X", top_k="X"),
    Run("whole", "whole document", "whole", (), paper={"window": WHOLE_DOCUMENT}),
    # GARLIC has no t_p: the likelier word decides, whatever --confidence says.
    Run("garlic", "GARLIC", changes={"confidence": 0.5}),
)}
TABLE_1 = [name for name, run in METHODS.items() if not run.heads]

# Whole systems of other papers, which Table 1 does not have.
METHODS |= {run.name: run for run in (
    Run("graphreader", "GraphReader", "graphreader", ()),
    Run("mkrag", "MKRAG (reconstruction)", "mkrag", ("encoder",)),
    Run("jerr", "JERR (reconstruction)", "jerr", ()),
)}
SYSTEMS = ["pecan", "garlic", *(name for name in METHODS if name not in (*TABLE_1, "pecan-heads"))]


# The tables whose rows are methods, from which --method may choose.
COMPARE = {None: list(METHODS), "1": TABLE_1, "systems": SYSTEMS}


def runs_of(table: str | None, fixed_nodes: int | None = None, searchers: list[str] = (),
            model: str = "") -> list[Run]:
    """The runs that a table needs; all methods if `table` is None.

    `fixed_nodes` is the data set's number of nodes without progress control (GARLIC 4.4). If the papers give none
    (None), it is as many as PECAN reads on average, which is how the paper chose its own.
    """
    if table in COMPARE:
        return [METHODS[name] for name in COMPARE[table]]
    if table == "2":
        return pairs_of_models(model, searchers)

    if table == "3":
        return [PECAN,
                Run("pecan-without-attention", "w/o Attention-Guided Retrieval", changes={"attention": False}),
                Run("pecan-without-progress", "w/o Dynamic Progress Control",
                    changes={"fixed_nodes": fixed_nodes or "mean"}),
                Run("pecan-without-graph", "w/o IP-based Graph", changes={"tree": True}),
                Run("pecan-without-similarity", "w/o Embedding Similarity", changes={"similarity": False}),
                METHODS["pecan-heads"]]
    if table == "patience":
        return [Run(f"pecan-patience-{n}" if n > 1 else "pecan", f"t_n = {n}", changes={"patience": n})
                for n in range(1, 9)]
    return {"A3": [], "A4": [PECAN, METHODS["whole"]], "nodes": [PECAN]}[table]


def pairs_of_models(model: str, searchers: list[str]) -> list[Run]:
    """Table 2: `model` alone, then every other searcher on its own graphs and on those of `model`."""
    pairs = [Run("pecan", name_of(model))]
    for searcher in searchers:
        alone = name_of(searcher)
        both = f"{name_of(model)}-{alone}"
        pairs += [Run(f"pecan-{alone}", alone, model=searcher),
                  Run(f"pecan-{both}", both, model=searcher, builder=model)]
    return pairs


def name_of(model: str) -> str:
    """The last part of a folder's or repository's name, without a @revision."""
    return Path(model).name if Path(model).is_dir() else Path(model.partition("@")[0]).name


# --- the checkpoints and methods of a run ---------------------------------------------------------------------------

class Models:
    """The checkpoints that the command line names. What only some methods use is loaded when one of them asks."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.model, self.encoder, self.builder = load_models(args)

    @cached_property
    def towers(self):
        """Dragon's two encoders, of questions and of passages."""
        return load_towers(self.args.dragon, self.model)

    @cached_property
    def scorer(self) -> Llama:
        """LongLLMLingua's small model."""
        args = self.args
        return Llama.load(args.scorer, args.device, args.dtype) if args.scorer else self.model

    def fingerprints(self, run: Run) -> dict:
        """Name and fingerprint of what a run uses besides the model; None for what the command line leaves out."""
        found = {}
        for name in run.uses:
            used = getattr(self, name)
            found[name] = [tower.fingerprint for tower in used] if name == "towers" else used and used.fingerprint
        return found


def make(run: Run, models: Models, settings: Settings, top_k: int | None) -> Method:
    """The method of a run, ready to prepare documents. InputError if it needs a package that is not there."""
    model = models.model

    match run.method:
        case "pecan":
            return Pecan(model, models.encoder, settings, models.builder)
        case "bm25":
            return BM25(model, settings, top_k)
        case "sbert":
            return Dense(model, models.encoder, models.encoder, settings, top_k)
        case "dragon":
            return Dense(model, *models.towers, settings, top_k)
        case "raptor-tt":
            return Raptor(model, models.encoder, settings, top_k, collapsed=False)
        case "raptor-ct":
            return Raptor(model, models.encoder, settings, top_k)
        case "memwalker":
            return MeMWalker(model, settings)
        case "longllmlingua":
            return LongLLMLingua(model, models.scorer, settings)
        case "graphreader":
            return GraphReader(model, settings)
        case "mkrag":
            return MKRAG(model, models.encoder, settings)
        case "jerr":
            return JERR(model, settings)
        case "whole":
            return Whole(model, settings)
    raise ValueError(f"{run.method} is no method")


def heads_of(run: Run, models: Models) -> dict:
    """The settings of a row of chosen heads: those of --heads, or of heads.json in the folders of both checkpoints.

    All other rows take the mean over all heads, which is the paper's method.
    """
    if not run.heads:
        return {}
    builder = models.builder or models.model
    return chosen_heads(models.args.heads) or heads_of_checkpoints(builder.folder, models.model.folder)


def top_k_of(run: Run, models: Models, settings: Settings, dataset: str, pecan: dict | None,
             option: int | None) -> int | None:
    """How many chunks, or nodes of RAPTOR's, a run retrieves. `pecan` is the summary of PECAN's run, if it is done.

    Top-X is what the option --top gives, or the paper's for its data sets. For other data it is about as many as cost
    what PECAN's searches do, which is what the paper chose its own by (caption of Table 1), if a token costs what it
    costs in a pass over one chunk. (From the paper's own TFLOPs this gives its X to within 15 % on all four data sets.)
    """
    if run.top_k != "X":
        return run.top_k
    if option:
        return option

    retrieves_chunks = run.method != "raptor-ct"
    if dataset in paper.TOP_X:
        top_x = paper.TOP_X[dataset]
        return top_x.chunks if retrieves_chunks else top_x.nodes
    if pecan is None:
        raise InputError(f"{run.label} reads as much as costs what PECAN does: run PECAN over {dataset} first, or say "
                         "how much with --top")
    length = settings.chunk if retrieves_chunks else scaled(100, settings)
    return max(1, round(pecan["flops"] / flops_of(models.model.config, length, settings.chunk)))
