"""What the command lines share: help and errors, the options that name models and settings, and loading the models."""
import argparse
import contextlib
import os
import sys
from pathlib import Path

import torch

from core.files import InputError, OutputError, enough_memory
from core.settings import Settings, resolve
from data import Document
from llama import Llama
from support.sbert import load_encoder

AT_LEAST_1 = ("limit", "nodes", "top")       # options that count documents, nodes or chunks
SMALL = 256                            # models of less width run on one thread
THREADS = torch.get_num_threads()      # wider models run on as many threads as PyTorch chooses
EMBEDDED_MODEL = Path(__file__).parents[1] / "tiny"


def make_parser(prog: str, text: str | None) -> argparse.ArgumentParser:
    """A parser. Its --help begins with the first line of a text, and ends with the commands in the text as examples.

    The text is a docstring, which `python -OO` removes.
    """
    lines = (text or "\n").splitlines()
    examples = [line[2:] for line in lines if line.startswith(("    python ", "    torchrun "))]
    return argparse.ArgumentParser(prog=prog, description=lines[0], epilog="\n".join(["examples:", *examples]),
                                   formatter_class=argparse.RawDescriptionHelpFormatter)


def parse_options(parser: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    """The options. InputError if one is blank (maybe an unset shell variable) or no UTF-8, or if a count is below 1."""
    args = parser.parse_args(argv)
    for name, value in vars(args).items():
        for text in map(str, value if isinstance(value, list) else [value]):
            if not text.strip():
                raise InputError(f"{name} is blank; leave it out, or give it a value")
            if text.encode(errors="replace").decode() != text:
                raise InputError(f"{name} {text!r:.60} is not UTF-8 text; check the encoding of the terminal")
        if name in AT_LEAST_1 and value is not None and value < 1:
            raise InputError(f"--{name} is {value}; it must be at least 1")
    return args


def user_errors(main, note: str = "") -> int:
    """Run a command line and return its exit code.

    An error that the user can correct prints one line on stderr and gives exit code 2. An interruption gives 130.
    `note` ends the line after an interruption, or if a file could not be written.
    """
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")          # None if the shell has closed it
    try:
        with enough_memory():
            if sys.stdout is None:
                raise OutputError("standard output is closed: nobody would see the answer")

            # A terminal need not know every character of an answer. It then shows the number of the character. A pipe
            # gets each answer at once, as a terminal does, so a kill loses none.
            with contextlib.suppress(AttributeError):           # no terminal, but a notebook
                sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)
            code = main()
            sys.stdout.flush()
            return code

    except (InputError, OSError) as error:
        message = " ".join(str(error).split())
        print(f"error: {message}{note if isinstance(error, OutputError) else ''}", file=sys.stderr)
        if isinstance(error, OSError):
            sys.stdout = None                                   # what it still holds cannot be printed
        return 2
    except KeyboardInterrupt:
        print(f"interrupted{note}", file=sys.stderr)
        return 130


# --- models and settings ----------------------------------------------------------------------------------------------

def add_model_options(parser: argparse.ArgumentParser):
    """Add the options that name models and change settings."""
    parser.add_argument("--model", default=str(EMBEDDED_MODEL), metavar="DIR",
                        help="checkpoint folder or hub repository of an instruct Llama (default: the embedded model)")
    parser.add_argument("--encoder", metavar="DIR",
                        help="BERT or MPNet sentence encoder for the similarity (default: the mean of the model's "
                             "own embeddings)")
    parser.add_argument("--builder", metavar="DIR", help="another checkpoint that builds the graphs (Table 2)")

    parser.add_argument("--chunk", type=int, help="tokens of a chunk (paper: 300)")
    parser.add_argument("--window", type=int, help="window s in tokens (paper: 8192)")
    parser.add_argument("--confidence", type=float, help="confidence threshold t_p (paper: 0.5)")
    parser.add_argument("--patience", type=int, help="stop patience t_n (paper: 1)")
    parser.add_argument("--batch", type=int, help="groups of nodes summarised together (default: 8; fewer take "
                                                  "less memory)")
    parser.add_argument("--nodes", type=int, help="read this many nodes, without dynamic progress control")
    parser.add_argument("--without", choices=["attention", "similarity", "graph"], action="append", default=[],
                        help="an ablation of section 4.2; may be given twice")

    parser.add_argument("--device", default="auto", help="cuda, mps or cpu (default: the first one available)")
    parser.add_argument("--dtype", default="auto", help="float32, bfloat16, float16 or float64 (default: as stored on "
                                                        "cuda, float32 elsewhere)")


def chosen_settings(args: argparse.Namespace) -> dict:
    """The settings that the options choose, for settings.resolve; None leaves a setting open."""
    if args.nodes is not None and (args.patience is not None or args.confidence is not None):
        raise InputError("--nodes reads a fixed number of nodes without checks, so --patience and --confidence cannot "
                         "be used with it")

    return {"chunk": args.chunk, "window": args.window, "confidence": args.confidence, "patience": args.patience,
            "batch": args.batch, "fixed_nodes": args.nodes,
            "attention": False if "attention" in args.without else None,
            "similarity": False if "similarity" in args.without else None,
            "tree": True if "graph" in args.without else None}


def settings_of(args: argparse.Namespace, model: Llama, builder: Llama | None, paper: dict | None) -> Settings:
    """The settings of one document; `paper` as in settings.resolve."""
    longest = min(checkpoint.config.max_length for checkpoint in (model, builder or model))
    return resolve(model.folder, longest, paper, chosen_settings(args))


def load_models(args: argparse.Namespace) -> tuple[Llama, object, Llama | None]:
    """Load the model, the encoder and the builder (None if not given), and print what runs where."""
    model = Llama.load(args.model, args.device, args.dtype)
    builder = Llama.load(args.builder, args.device, args.dtype) if args.builder else None
    encoder = load_encoder(args.encoder, model)

    # A small model gains nothing from threads, and loses much when other programs use the cores.
    if not os.environ.get("OMP_NUM_THREADS"):
        widest = max(checkpoint.config.width for checkpoint in (model, builder or model))
        torch.set_num_threads(1 if widest < SMALL else THREADS)

    dtype = str(model.dtype).removeprefix("torch.")
    similarity = args.encoder or "the mean of its own embeddings"
    print(f"{args.model} on {model.device} in {dtype}; similarity by {similarity}", file=sys.stderr)
    return model, encoder, builder


def warn_if_unknown(model: Llama, document: Document):
    """Print a warning if the model does not know more than a tenth of the words of a document's first passage."""
    unknown = model.tokenizer.unknown(document.passages[0])
    if unknown > 0.1:
        print(f"warning: {unknown:.0%} of the document's words are unknown to this model; the embedded model knows "
              "only its own small world, choose another with --model", file=sys.stderr)
