"""Read and write text, JSON and tensors; errors that name a file; checks of values by type and range.

This file imports no other file of the project.
"""
import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from filelock import FileLock, Timeout


class InputError(ValueError):
    """The user gave something wrong. The message names the file, key, line or value, and says what would be right."""


class OutOfMemory(InputError):
    """Memory has run out, on any device."""


def one_line(error: BaseException) -> str:
    """The message of an error in one line of at most 300 characters; its type if the message is empty."""
    if isinstance(error, KeyError):
        return f"key {error} is missing"
    message = getattr(error, "strerror", None) or error
    return " ".join(str(message).split())[:300] or type(error).__name__


@cache
def remark(line: str):
    """Print a line on stderr, once in a run."""
    print(line, file=sys.stderr)


@contextlib.contextmanager
def optional(purpose: str):
    """Guard the import of an optional package. If the package is not installed, InputError says what needs it."""
    try:
        yield
    except ImportError as error:
        raise InputError(f"{purpose}, and {error.name} is not installed "
                         "(pip install -r requirements-extra.txt)") from None


# --- memory ---------------------------------------------------------------------------------------------------------

SHORTAGE = (MemoryError, torch.OutOfMemoryError)


@contextlib.contextmanager
def enough_memory():
    """Raise OutOfMemory if memory runs out in the block."""
    try:
        yield
    except SHORTAGE as error:
        raise OutOfMemory(f"out of memory ({one_line(error)}); try a smaller --window or --dtype bfloat16") from None


def attempt(function, *arguments):
    """What function(*arguments) returns, or an InputError in its place, so that others can go on without it.

    Only the text of the error is kept: the frames of an exception hold tensors. An OSError is raised: a run stops when
    it can no longer keep what it computes.
    """
    try:
        with enough_memory():
            return function(*arguments)
    except InputError as error:
        return type(error)(str(error))


# --- reading --------------------------------------------------------------------------------------------------------

@contextlib.contextmanager
def reading(where, wanted: str = "cannot be read", remedy: str = ""):
    """Turn every error in the block into an InputError: nobody can list what libraries raise for damaged files.

    Its message is "WHERE: WANTED (what the error said)REMEDY". `where` is the file, maybe with a line, `wanted` says
    what it should be, and `remedy` what to do. An InputError of the block only gets the remedy. A lack of memory and an
    interruption say nothing of the file, so they go on as they are.
    """
    try:
        yield
    except InputError as error:
        raise InputError(f"{error}{remedy}") from None
    except (*SHORTAGE, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:                          # the panic of a library in Rust is no Exception
        raise InputError(f"{where}: {wanted} ({one_line(error)}){remedy}") from None


def parse_json(text: str | bytes, where, kind: type | None = None):
    """The value in a JSON text, UTF-8 if it is bytes. InputError, which begins with `where`, if it is not of this kind
    (None: any).

    We write again what we have read, so what could not be written is refused here: NaN, infinite numbers, and halves of
    a character (lone surrogates).
    """
    with reading(where, "not valid JSON"):
        value = json.loads(text if isinstance(text, str) else text.decode("utf-8-sig"))
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        if not isinstance(value, kind or object):
            raise InputError(f"{where}: holds a {type(value).__name__}, not a {kind.__name__}")
    return value


def read_json(path: str | Path) -> dict:
    """The object in a JSON file; InputError if the file is missing, is not JSON, or does not hold an object."""
    with reading(path):
        content = Path(path).read_bytes()
    return parse_json(content, path, dict)


def read_if_there(path: Path) -> dict:
    """As read_json; {} if the file is missing."""
    return read_json(path) if path.exists() else {}


def hash_of(*content) -> str:
    """The first 16 digits of the sha256 of some values of JSON's types."""
    return hashlib.sha256(json.dumps(content, allow_nan=False).encode()).hexdigest()[:16]


def sha256(files: Iterable) -> str:
    """The hash of the names and contents of files, on disk or in a zip file."""
    digest = hashlib.sha256()
    for file in files:
        with reading(file), file.open("rb") as stream:
            digest.update(file.name.encode() + hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


# --- values ---------------------------------------------------------------------------------------------------------

class Rule(NamedTuple):
    """The rule for a value: it has one of `types`, and `holds` is true for it. `words` is the rule in English."""
    types: tuple
    words: str
    holds: Callable = lambda _: True


COUNT = Rule((int,), "a whole number from 1 to 16,777,216", lambda n: 1 <= n <= 1 << 24)
POSITIVE = Rule((int, float), "a number above 0 and below 1e12", lambda x: 0 < x < 1e12)
FLAG = Rule((bool,), "true or false")
TEXT = Rule((str,), "a text")
TEXTS = Rule((list,), "a non-empty list of texts", lambda texts: texts and all(isinstance(text, str) for text in texts))


def check_values(values: dict, rules: dict[str, Rule], prefix: str = ""):
    """Raise InputError for the first value that is missing or breaks its rule; `prefix` begins the message."""
    for name, rule in rules.items():
        if name not in values:
            raise InputError(f"{prefix}key {name!r} is missing")
        value = values[name]
        if type(value) not in rule.types or not rule.holds(value):
            raise InputError(f"{prefix}{name} is {value!r:.60}; it must be {rule.words}")


# --- writing --------------------------------------------------------------------------------------------------------

def write_file(path: str | Path, content: str | bytes):
    """Write a file, at once or not at all: a new file replaces `path` in one step.

    Each process names its new file differently, so two processes that write `path` do not disturb each other.
    """
    partial = Path(f"{path}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)                     # a full disk leaves no half of a file


def write_json(path: str | Path, content: dict):
    """Write a JSON file that people can read, at once or not at all."""
    write_file(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def complete_lines(path: Path) -> list[bytes]:
    """The lines that append_line wrote. A last line is left out if a kill has torn it."""
    return path.read_bytes().split(b"\n")[:-1]  # line feeds only: a text may hold other line ends


def append_line(path: Path, line: str):
    """Append a line to a file. If a kill has torn the file's last line, that line is cut off first."""
    with open(path, "a+b") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.write(line.encode() + b"\n")


@contextlib.contextmanager
def lock(path: str | Path):
    """Hold the lock PATH.lock, which the system frees if the process is killed. InputError if another run holds it."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    held = FileLock(f"{path}.lock")
    try:
        held.acquire(timeout=0)
    except Timeout:
        raise InputError(f"{path}: another run is writing there; wait for it, or choose another name") from None

    try:
        yield
    finally:
        with contextlib.suppress(OSError):                  # Windows removes no file that is open
            os.unlink(held.lock_file)
        held.release()
