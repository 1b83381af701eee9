"""The methods that eval.py can run: what checkpoints each needs, how each is made, how much Top-X is."""
import argparse
from functools import cached_property

from baselines.bm25 import BM25
from baselines.common import scaled
from baselines.dense import Dense
from baselines.longllmlingua import LongLLMLingua
from baselines.memwalker import MeMWalker
from baselines.raptor import Raptor
from baselines.whole import Whole
from evaluation import paper
from evaluation.tables import Run
from llama import Llama, flops_of
from pecan import Pecan
from support.files import InputError
from support.options import load_models
from support.sbert import load_towers
from support.settings import Settings

# Each takes (models, settings, top) and has key, prepare and answer; beside it, what it uses but the model.
METHODS = {
    "pecan": (lambda m, s, top: Pecan(m.model, m.encoder, s, m.builder), ("encoder", "builder")),
    "bm25": (lambda m, s, top: BM25(m.model, s, top), ()),
    "sbert": (lambda m, s, top: Dense(m.model, m.encoder, m.encoder, s, top), ("encoder",)),
    "dragon": (lambda m, s, top: Dense(m.model, *m.towers, s, top), ("towers",)),
    "raptor-tt": (lambda m, s, top: Raptor(m.model, m.encoder, s, top, collapsed=False), ("encoder",)),
    "raptor-ct": (lambda m, s, top: Raptor(m.model, m.encoder, s, top), ("encoder",)),
    "memwalker": (lambda m, s, top: MeMWalker(m.model, s), ()),
    "longllmlingua": (lambda m, s, top: LongLLMLingua(m.model, m.scorer, s), ("scorer",)),
    "whole": (lambda m, s, top: Whole(m.model, s), ()),
}


class Models:
    """The checkpoints that the command line names; what only some methods use is loaded when one of them asks."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.model, self.encoder, self.builder = load_models(args)

    @cached_property
    def towers(self):
        return load_towers(self.args.dragon, self.model)

    @cached_property
    def scorer(self) -> Llama:
        args = self.args
        return Llama.load(args.scorer, args.device, args.dtype) if args.scorer else self.model

    def fingerprints(self, method: str) -> dict:
        """Of what a method uses beside the model; None where it uses none."""
        used = {name: getattr(self, name) for name in METHODS[method][1]}
        return {name: [tower.fingerprint for tower in value] if name == "towers" else value and value.fingerprint
                for name, value in used.items()}


def top_of(run: Run, models: Models, settings: Settings, dataset: str, pecan: dict | None, wanted: int | None):
    """How many chunks, or nodes of RAPTOR's, a run retrieves.

    Top-X is what `--top` says, or the paper's for its data sets. Elsewhere it is about as many as cost what PECAN's
    searches do, which is what the paper's are chosen by (caption of Table 1), a token costing what it costs in a pass
    over one chunk. (From the paper's own TFLOPs this gives its X to within 15 % on all four data sets.)
    """
    if run.top != "X":
        return run.top
    known, chunks = paper.SETTINGS.get(dataset), run.method != "raptor-ct"
    if wanted or known:
        return wanted or (known.top_chunks if chunks else known.top_nodes)
    if pecan is None:
        raise InputError(f"{run.label} reads as much as costs what PECAN does: run PECAN over {dataset} first, or say "
                         "how much with --top")
    length = settings.chunk if chunks else scaled(100, settings)
    return max(1, round(pecan["flops"] / flops_of(models.model.config, length, settings.chunk)))
