"""Command lines: their help, what all of them refuse, and how errors are shown. Imports nothing heavy."""
import argparse
import os
import sys
from pathlib import Path

from core.files import InputError, MemoryShortage, OutputError, enough_memory

AT_LEAST_1 = ("limit", "nodes", "top")       # options that count documents, nodes or chunks

# This module is imported before torch (pyproject.toml), whose import takes seconds: Ctrl-C meanwhile is no traceback.
# (While Python looks for the module of "python -m", the name of the program is "-m".)
if sys.argv[0] == "-m" or Path(sys.argv[0]).resolve().is_relative_to(Path(__file__).parents[1]):
    usual_hook = sys.excepthook
    sys.excepthook = lambda kind, *rest: (
        print("interrupted", file=sys.stderr) if kind is KeyboardInterrupt else usual_hook(kind, *rest))


def make_parser(prog: str, text: str) -> argparse.ArgumentParser:
    """A parser whose --help begins with the first line of a text and ends with the commands in it, as examples."""
    lines = text.splitlines()
    examples = [line[2:] for line in lines if line.startswith(("    python ", "    torchrun "))]
    return argparse.ArgumentParser(prog=prog, description=lines[0], epilog="\n".join(["examples:", *examples]),
                                   formatter_class=argparse.RawDescriptionHelpFormatter)


def parse_options(parser: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    """The options; InputError for one that is empty or not UTF-8 text, and for one that counts nothing."""
    args = parser.parse_args(argv)
    for name, value in vars(args).items():
        if name in AT_LEAST_1 and value is not None and value < 1:
            raise InputError(f"--{name} is {value}; it must be at least 1")
        for text in value if isinstance(value, list) else [value]:
            if text == "":
                raise InputError(f"{name} is empty; leave it out, or give it a value")
            try:
                str(text).encode()
            except UnicodeEncodeError:
                raise InputError(f"{name} {text!a} is not UTF-8 text") from None
    return args


def user_errors(main, note: str = "") -> int:
    """Run a command line and return its exit code.

    An error that its user can correct is one line on stderr and exit code 2, an interruption exit code 130. `note` is
    added if the cause is not the input but memory, the disk or an interruption. A reader that has left (`| head`) is
    no error.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")          # a terminal may know ASCII only

    try:
        with enough_memory():
            code = main()
        sys.stdout.flush()
        return code
    except InputError as error:
        message = " ".join(str(error).split()) + (note if isinstance(error, (OutputError, MemoryShortage)) else "")
    except BrokenPipeError:
        _silence()
        return 0
    except OSError as error:
        _silence()
        message = f"{error.filename or 'stdout'}: {error.strerror or error}{note}"     # files are named: files.writing
    except KeyboardInterrupt:
        print(f"interrupted{note}", file=sys.stderr)
        return 130
    print(f"error: {message}", file=sys.stderr)
    return 2


def _silence():
    """Let nothing more be written to stdout, if it takes no more: Python would fail again when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
