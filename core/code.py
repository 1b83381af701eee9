"""Hashes of the code: a number belongs to the code that made it, so graphs, vectors and answers name that code.

Files count byte by byte, as they are when the program starts. In pecan.py nothing needs what stands below it, so its
headings are the boundaries: a graph depends on what stands above "the conversation". No list of names is kept by hand.
A changed comment changes a hash, too. That costs a rebuild, never a wrong number.
"""
import contextlib
import hashlib
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION = re.search(r"(?m)^version: *(\S+)", (ROOT / "CITATION.cff").read_text(encoding="utf-8"))[1]
SOURCES = {file.relative_to(ROOT).as_posix(): file.read_bytes()
           for pattern in ("*.py", "[!.]*/*.py") for file in sorted(ROOT.glob(pattern))}
BELOW = "llama.py", "data.py", "core/", "model/"            # what every method stands on
CONVERSATION = "\n# --- the conversation"
STAGE_2 = "\n# --- stage 2"


def commit() -> str | None:
    """The commit of this code, with "-dirty" behind it if files were changed; None outside of a git checkout."""
    with contextlib.suppress(OSError):
        command = ["git", "--git-dir=.git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip() or None
    return None


def code_hash(*beginnings: str, upto: str) -> str:
    """16 digits of the sha256 of the files whose paths have these beginnings, and of pecan.py up to a heading.

    ValueError if pecan.py has no such heading.
    """
    source = SOURCES["pecan.py"]
    parts = [source[:source.index(upto.encode())]]
    parts += [content for path, content in SOURCES.items() if path.startswith((*BELOW, *beginnings))]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:16]


def files_of(kind: type) -> set[str] | None:
    """The paths, without endings, of the files of a class and its bases; None if one stands outside of the project."""
    paths = set()
    for base in kind.__mro__:
        if base.__module__ not in ("builtins", "typing"):
            file = Path(getattr(sys.modules[base.__module__], "__file__", None) or "/").resolve()
            path = file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else ""
            if path not in SOURCES:
                return None
            paths.add(path.removesuffix(".py"))
    return paths


def code_of_graphs(kind: type) -> str | None:
    """The code of PECAN's graphs, and of those of a class that changes it: stage 1. It needs nothing of the rest.

    It is in a graph's name (data.Method.file_name) and in its file (disk.read_kept), so other code builds anew.
    """
    files = files_of(kind)
    return None if files is None else code_hash(*(files - {"pecan"}), upto=CONVERSATION)


def code_of_method(kind: type) -> str | None:
    """The code of a method's answers, and of what a compared method builds: the files of its classes, with companions
    such as mkrag_prompts.py, and what all methods share.

    None if a class stands outside of the project: then nobody knows the code, and nothing may be kept.
    """
    files = files_of(kind)
    return None if files is None else code_hash("encoders/", *files, upto=STAGE_2)
