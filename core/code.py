"""What a graph or an answer depends on, so that none is taken that other code or other arguments have made.

A function or class counts by its source, with that of all it names in its file and in those of the project that it
imports. Comments do not count, nor do other functions and files; an installed package counts by its name.

Not noticed: another version of a package, a name that is computed (getattr, a list that a decorator fills), a file that
the code reads, and what is replaced in a module, in a class or in an object with a fingerprint while the program runs.
"""
import ast
import contextlib
import math
import re
import subprocess
import sys
import time
from functools import cache
from importlib.util import find_spec, resolve_name
from operator import attrgetter
from pathlib import Path

from core.files import InputError, hash_of, reading, remark

ROOT = Path(__file__).resolve().parents[1]
VERSION = re.search(r"(?m)^version: *(\S+)", (ROOT / "CITATION.cff").read_text(encoding="utf-8"))[1]
BEGUN = time.time()


def commit() -> str | None:
    """The commit of this code, with "-dirty" behind it if files were changed; None outside of a git checkout."""
    with contextlib.suppress(OSError):
        command = ["git", "--git-dir=.git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip() or None
    return None


def identity_of(**parts) -> dict:
    """A name for each part, other for one that does something else, and `code`, a hash of all the code that they need.

    If nothing can name a part, `code` is None and a line on stderr says so: then nothing may be kept on disk.
    """
    names = {}
    sources = {}
    try:
        for name, part in parts.items():
            with reading(name, "nothing can name it; take functions and classes of files, plain values, dataclasses or "
                         "classes that define `fingerprint`"):
                names[name] = named(part, sources)
    except InputError as error:
        remark(f"nothing is kept on disk: {error}")
        return {"code": None}
    return {"code": hash_of(sources)} | names


def named(value, sources: dict[str, list]):
    """A name for a value, in JSON's types. A function or class goes by its place, and `sources` gets its source.

    An object goes by its class and the fingerprint that this class defines, or else by what pickle would keep of it.
    An error if nothing tells it from others like it.
    """
    kind = type(value)
    if kind in (type(None), bool, int, str) or kind is float and math.isfinite(value):
        return value
    if kind in (list, tuple):
        return [named(item, sources) for item in value]
    if kind in (set, frozenset):
        return sorted((named(item, sources) for item in value), key=repr)
    if kind is dict:
        return {str(named(key, sources)): named(item, sources) for key, item in value.items()}

    if hasattr(value, "__qualname__"):
        module = value.__module__
        name = value.__qualname__
        if not installed(module) and attrgetter(name)(sys.modules[module]) is not value:
            raise NameError(f"{name} is something else")
        follow(module, name.partition(".")[0], sources)
        return f"{module}.{name}"

    # A subclass with an own __init__ may hold more than the fingerprint that it inherits knows.
    maker = next(base for base in kind.__mro__ if vars(base).keys() & {"__init__", "fingerprint"})
    if "fingerprint" in vars(maker):
        return [named(kind, sources), value.fingerprint]
    return named([kind, value.__reduce_ex__(4)], sources)


def follow(module: str, name: str, sources: dict[str, list]):
    """Put what a name means in a module (*: all its names) into `sources`, with what the names in it mean."""
    place = f"{module}.{name}"
    if place in sys.modules:                                # from package import module
        return follow(place, "*", sources)
    if place in sources:
        return

    sources[place] = []
    bound = statements(module)
    for text, others in sum(bound.values(), []) if name == "*" else bound.get(name, []) + bound.get("*", []):
        sources[place].append(text)
        for other in others:
            follow(*other, sources)


@cache
def statements(module: str) -> dict[str, list[tuple[str, list]]]:
    """The statements at the top of a module's file, by the names that they bind (and some that they only use).

    Each as its text, and the names in it, as (module, name). {} if no file of the project holds the module.
    """
    if installed(module):
        return {}
    file = Path(find_spec(module).origin)
    if file.stat().st_mtime > BEGUN:
        raise InputError(f"{file} has changed since the program began; begin again")

    bound = {}
    for statement in ast.parse(file.read_bytes()).body:
        for alias in getattr(statement, "names", [None]):
            statement.names = [alias]                       # each name of an import counts alone
            nodes = [*ast.walk(statement)]
            text = ast.unparse(statement)
            others = []
            for node in nodes:
                if isinstance(node, ast.Name):
                    others.append((module, node.id))
                elif isinstance(node, ast.Import):
                    others += [(alias.name, "*") for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    of = resolve_name("." * node.level + (node.module or ""), find_spec(module).parent)
                    others += [(of, alias.name) for alias in node.names]

            for node in nodes[:1] if hasattr(statement, "name") else nodes:
                for key in ("name", "asname", "id"):        # of a definition or an import, and of a value
                    name = str(getattr(node, key, None)).partition(".")[0]
                    bound.setdefault(name, []).append((text, others))
    return bound


@cache
def installed(module: str) -> bool:
    """Whether a module is Python's own or of an installed package, or of one that is not there."""
    package = module.partition(".")[0]
    return package in sys.stdlib_module_names or bool(re.search("(site|dist)-packages|^None", str(find_spec(package))))
