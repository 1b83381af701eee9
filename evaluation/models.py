"""The models and settings of a command line: the options that name them, and loading them."""
import argparse
import sys
from functools import cached_property
from pathlib import Path

import torch

from core.files import InputError, remark
from core.settings import PAPER, SMALL, Settings
from data import EMBEDDED, Document
from encoders.sbert import load_encoder, load_towers
from llama import Llama
from model.checkpoint import Config, locate, read_config
from model.tokenizer import Tokenizer

WITHOUT = {"attention": {"attention": False}, "similarity": {"similarity": False}, "graph": {"tree": True}}
THREADS = torch.get_num_threads()      # wider models run on as many threads as PyTorch chooses


# --- options ----------------------------------------------------------------------------------------------------------

def named(checkpoint: str) -> str:
    """A checkpoint as messages name it: "." does not say which folder it is."""
    return str(Path.cwd()) if checkpoint and Path(checkpoint) == Path() else checkpoint


def add_model_options(parser: argparse.ArgumentParser):
    """Add the options that name models and change settings."""
    parser.add_argument("--model", default=str(EMBEDDED.parent), type=named, metavar="DIR",
                        help="checkpoint folder or hub repository of an instruct Llama (default: the embedded model)")
    parser.add_argument("--encoder", type=named, metavar="DIR",
                        help="BERT or MPNet sentence encoder for the similarity (default: the mean of the model's "
                             "own embeddings)")
    parser.add_argument("--builder", type=named, metavar="DIR",
                        help="another checkpoint that builds the graphs (Table 2)")

    parser.add_argument("--chunk", type=int, help="tokens of a chunk (paper: 300)")
    parser.add_argument("--window", type=int, help="window s in tokens (paper: 8192)")
    parser.add_argument("--confidence", type=float, help="confidence threshold t_p (paper: 0.5; Qasper 0.98, "
                                                           "MuSiQue 0.55)")
    parser.add_argument("--dataset-settings", choices=PAPER, metavar="NAME",
                        help="the paper's settings, X and figures for this data set: "
                             f"{', '.join(PAPER)} (eval.py: default by the names of official files)")
    parser.add_argument("--patience", type=int, help="stop patience t_n (paper: 1)")
    parser.add_argument("--batch", type=int, help="rows that run together: summaries, searches, replies (default: 32, "
                                                  "searches 16; without CUDA summaries 16384 / window, searches 8 for "
                                                  "small models and 1 for others; fewer if memory runs out)")
    parser.add_argument("--question-again", action=argparse.BooleanOptionalAction,
                        help="say the question once more before the answer, for small models (the paper does not)")
    parser.add_argument("--nodes", type=int, help="read this many nodes, without dynamic progress control")
    parser.add_argument("--without", choices=[*WITHOUT], action="append", default=[],
                        help="an ablation of section 4.2; may be given twice")

    parser.add_argument("--device", default="auto", help="cuda, mps or cpu (default: the first one available)")
    parser.add_argument("--dtype", default="auto", help="float32, bfloat16, float16 or float64 (default: as stored on "
                                                        "cuda, float32 elsewhere)")


def chosen_settings(args: argparse.Namespace) -> dict:
    """The settings that the options choose, for settings.resolve; None leaves a setting open."""
    if args.nodes is not None and (args.patience is not None or args.confidence is not None):
        raise InputError("--nodes reads a fixed number of nodes without checks, so --patience and --confidence cannot "
                         "be used with it")

    chosen = {"chunk": args.chunk, "window": args.window, "confidence": args.confidence, "patience": args.patience,
              "batch": args.batch, "fixed_nodes": args.nodes, "question_again": args.question_again}
    for ablation in args.without:
        chosen |= WITHOUT[ablation]
    Settings(**{name: value for name, value in chosen.items() if value is not None})       # InputError if out of range
    return chosen


# --- checkpoints ------------------------------------------------------------------------------------------------------

def load_models(args: argparse.Namespace) -> tuple[Llama, object, Llama | None]:
    """Load the model, the encoder and the builder (None if not given), and print what runs where."""
    model = Llama.load(args.model, args.device, args.dtype)
    builder = Llama.load(args.builder, args.device, args.dtype) if args.builder else None
    encoder = load_encoder(args.encoder, model)

    choose_threads(model.config, (builder or model).config)
    dtype = str(model.dtype).removeprefix("torch.")
    similarity = args.encoder or "the mean of its own embeddings"
    print(f"{args.model} on {model.device} in {dtype}; similarity by {similarity}", file=sys.stderr)
    return model, encoder, builder


def choose_threads(*configs: Config):
    """One thread for small models, whatever the environment says: they gain nothing from more, and lose much when other
    programs use the cores.
    """
    torch.set_num_threads(1 if max(config.width for config in configs) < SMALL else THREADS)


def warn_if_unknown(model: Llama, document: Document):
    """Print a warning if the model does not know more than a tenth of the words that begin a document."""
    unknown = model.tokenizer.unknown(document.passages[0][:100_000])
    if unknown > 0.1:
        remark(f"warning: {unknown:.0%} of the document's words are unknown to this model; the embedded model knows "
               "only its own small world, choose another with --model")


class Models:
    """The models that the options of a run name. LongLLMLingua's scorer is loaded on first use."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.model, self.encoder, self.builder = load_models(options)
        self.question_tower, self.passage_tower = load_towers(options.dragon, self.model)

    @cached_property
    def scorer(self) -> Llama:
        options = self.options
        return Llama.load(options.scorer, options.device, options.dtype) if options.scorer else self.model


def unloaded(name: str) -> tuple[Config, Tokenizer]:
    """The config and the tokenizer of a checkpoint, without its weights."""
    folder = locate(name)
    config = read_config(folder)
    return config, Tokenizer(folder, config.vocab)
