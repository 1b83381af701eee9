"""Text and JSON in and out, and the errors that name a file. The ground floor: this file imports no other of ours."""
import gzip
import json
import os
from pathlib import Path


class InputError(ValueError):
    """A mistake in what the user gave: the message names the file, key, line or value and says what would be right."""


class OutputError(InputError):
    """A file cannot be written: whatever is done next could not be kept either."""


def one_line(error: BaseException) -> str:
    """What an error says, in one line of at most 300 characters; its type where it says nothing."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def read_json(path: str | Path) -> dict:
    """The object in a JSON file; InputError where the file is missing, not JSON, or something else than an object."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds a {type(content).__name__} where an object is wanted")
    return content


def write_file(path: str | Path, text: str):
    """Replace a file at once or not at all; OutputError where it cannot be written."""
    partial = Path(f"{path}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror or error})") from None


def open_bytes(path):
    """A file (of the disk or of a zip file) for reading, unpacked where it is gzipped, whatever its name says."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path.open("rb")) if packed else path.open("rb")


def write_bytes(path: str | Path, content: bytes):
    """Replace a file at once or not at all; OutputError if it cannot be written."""
    partial = Path(f"{path}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror or error})") from None


def append_line(path: str | Path, line: str):
    """Append a line to a file; it is on the disk when this returns."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())
