"""Text and JSON in and out, and the errors that name a file. This file imports no other file of the project."""
import gzip
import json
import os
from pathlib import Path


class InputError(ValueError):
    """A mistake in what the user gave: the message names the file, key, line or value and says what would be right."""


class OutputError(InputError):
    """A file cannot be written, so nothing that is computed after it could be kept."""


def unreadable(path, error: Exception) -> InputError:
    """The error to raise if reading a file has raised `error`."""
    return InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})")


def one_line(error: BaseException) -> str:
    """The message of an error in one line of at most 300 characters; its type if the message is empty."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def read_json(path: str | Path) -> dict:
    """The object in a JSON file; InputError if the file is missing, is not JSON, or does not hold an object."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise unreadable(path, error) from None
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON ({error})") from None

    if not isinstance(content, dict):
        raise InputError(f"{path}: holds a {type(content).__name__}, not an object")
    return content


def write_file(path: str | Path, text: str):
    """Replace a file at once or not at all; OutputError if it cannot be written."""
    partial = Path(f"{path}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror or error})") from None


def open_bytes(path):
    """Open a file, on disk or in a zip file, for reading. It is unpacked if it is gzipped, whatever its name is."""
    with path.open("rb") as file:
        is_gzipped = file.read(2) == b"\x1f\x8b"
    return gzip.open(path.open("rb")) if is_gzipped else path.open("rb")
