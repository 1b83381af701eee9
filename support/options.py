"""The options that pecan.py and eval.py share, the models that they load, and how errors are shown."""
import argparse
import re
import sys
from pathlib import Path

import torch

from llama import Llama
from support.files import InputError, one_line
from support.sbert import load_encoder


def add_model_options(parser: argparse.ArgumentParser):
    """The options that pecan.py and eval.py share."""
    parser.add_argument("--model", default=str(Path(__file__).parents[1] / "tiny"), metavar="DIR",
                        help="checkpoint folder or hub repository of an instruct Llama (default: the embedded model)")
    parser.add_argument("--encoder", metavar="DIR",
                        help="BERT or MPNet sentence encoder for the similarity (default: the mean of the model's "
                             "own embeddings)")
    parser.add_argument("--builder", metavar="DIR", help="another checkpoint that builds the graphs (Table 2)")
    parser.add_argument("--chunk", type=int, help="tokens of a chunk (paper: 300)")
    parser.add_argument("--window", type=int, help="window s in tokens (paper: 8192)")
    parser.add_argument("--confidence", type=float, help="confidence threshold t_p (paper: 0.5)")
    parser.add_argument("--patience", type=int, help="stop patience t_n (paper: 1)")
    parser.add_argument("--batch", type=int, help="windows of a document that run together (default: 8)")
    parser.add_argument("--nodes", type=int, help="read this many nodes, without dynamic progress control")
    parser.add_argument("--without", choices=["attention", "similarity", "graph"], action="append", default=[],
                        help="an ablation of section 4.2; may be given twice")
    parser.add_argument("--device", default="auto", help="cuda, mps or cpu (default: the first of them that is there)")
    parser.add_argument("--dtype", default="auto", help="float32, bfloat16, float16 or float64 (default: as stored on "
                                                          "cuda, float32 elsewhere)")


def load_models(args) -> tuple[Llama, object, Llama | None]:
    """Model, encoder and builder that the options ask for; says what runs, on which device and in which dtype."""
    model = Llama.load(args.model, args.device, args.dtype)
    builder = Llama.load(args.builder, args.device, args.dtype) if args.builder else None
    print(f"{args.model} on {model.device} in {str(model.dtype).removeprefix('torch.')}; "
          f"similarity by {args.encoder or 'the mean of its own embeddings'}", file=sys.stderr)
    return model, load_encoder(args.encoder, model), builder


def chosen_settings(args) -> dict:
    """The settings that the options choose; None where they leave one open."""
    if args.nodes is not None and args.nodes < 1:
        raise InputError(f"--nodes is {args.nodes}; it must be at least 1")
    without = {name: False if name in args.without else None for name in ("attention", "similarity")}
    return {"chunk": args.chunk, "window": args.window, "confidence": args.confidence, "patience": args.patience,
            "fixed_nodes": args.nodes, "batch": args.batch, "tree": "graph" in args.without or None, **without}


SHORTAGE = re.compile("out of memory|not enough memory|can't allocate memory|cannot allocate memory", re.IGNORECASE)


def user_errors(main, note: str = ""):
    """Run a command line: what its user can mend is one line and exit code 2, an interruption exit code 130. `note`
    is said where it is not the input that ended the run."""
    try:
        return main()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
    except (MemoryError, RuntimeError) as error:            # each device words its shortage of memory in its own way
        if not isinstance(error, (MemoryError, torch.OutOfMemoryError)) and not SHORTAGE.search(str(error)):
            raise
        print(f"error: out of memory ({one_line(error)}); lower --batch, or take a smaller --window or --dtype "
              f"bfloat16{note}", file=sys.stderr)
    except OSError as error:                                # a full disk, a folder that may not be written
        place = f"{error.filename}: " if error.filename else ""
        print(f"error: {place}{error.strerror or error}{note}", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"interrupted{note}", file=sys.stderr)
        return 130
    return 2
