"""What the command lines share: --help, checked options, and errors that a user can correct."""
import argparse
import contextlib
import re
import sys

from tqdm import tqdm

from core.files import InputError, enough_memory

AT_LEAST_1 = ("limit", "nodes", "top")       # options that count documents, nodes or chunks


def make_parser(prog: str, text: str | None, arguments: str = "") -> argparse.ArgumentParser:
    """A parser. Its --help begins with the first line of a text, and ends with the commands in the text as examples.

    `arguments` are those that are no options. The options are not named above an error: there are too many.
    """
    lines = (text or prog).splitlines()                     # python -OO leaves docstrings out
    examples = [line[2:] for line in lines if line.startswith(("    python ", "    torchrun "))]
    return argparse.ArgumentParser(prog=prog, usage=f"{prog} [options] {arguments}", description=lines[0],
                                   epilog="\n".join(["examples:", *examples]),
                                   formatter_class=argparse.RawDescriptionHelpFormatter)


def parse_options(parser: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    """The options. InputError if one is blank (maybe an unset shell variable) or no UTF-8, or if a count is below 1."""
    args = parser.parse_args(argv)
    for name, value in vars(args).items():
        for text in map(str, value if isinstance(value, list) else [value]):
            if not text.strip():
                raise InputError("a question is empty" if name == "questions" else
                                 f"{name} is blank; leave it out, or give it a value")
            if text.encode(errors="replace").decode() != text:
                raise InputError(f"{name} {text!r:.60} is not UTF-8 text; check the encoding of the terminal")
        if name in AT_LEAST_1 and value is not None and value < 1:
            raise InputError(f"--{name} is {value}; it must be at least 1")
    return args


def shown(text: str) -> str:
    """A text with the numbers of control characters instead of them: a document's could take over the terminal."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda sign: f"\\x{ord(sign[0]):02x}", text)


def progress_bar(total: int, unit: str, **options) -> tqdm:
    """A bar with the time that is left, in a terminal; where nobody sees a bar, a line a minute."""
    if not sys.stderr.isatty():
        options |= {"mininterval": 60, "maxinterval": 60, "delay": 60, "position": 0,
                    "bar_format": f"{{desc}}: {{n_fmt}} of {{total_fmt}} {unit}s, {{remaining}} left\n"}
    return tqdm(total=total, unit=unit, leave=False, **options)


def user_errors(main, note: str = "") -> int:
    """Run a command line and return its exit code.

    What the user can correct is no bug and needs no traceback: it prints one line on stderr and gives exit code 2. An
    interruption gives 130. `note` ends the line after an interruption or an OSError, such as that of a full disk.
    """
    try:
        with enough_memory():
            # A terminal need not know every character of an answer. It then shows the character's number. A pipe gets
            # each answer at once, as a terminal does, so a kill loses none.
            with contextlib.suppress(AttributeError):           # no terminal, but a notebook
                sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)
            code = main()
            print(end="", flush=True)                           # here, where a full disk is an error like others
            return code

    except (InputError, OSError) as error:
        message = shown(" ".join(str(error).split()))
        print(f"error: {message}{note if isinstance(error, OSError) else ''}", file=sys.stderr)
        if isinstance(error, OSError) and error.filename is None:
            sys.stdout = None                                   # what it still holds cannot be printed
        return 2
    except KeyboardInterrupt:
        print(f"interrupted{note}", file=sys.stderr)
        return 130
