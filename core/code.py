"""What a graph or an answer depends on, so that none is taken that other code or other arguments have made.

A function or class counts by its file, and by those of the project that this file imports. Comments and other files do
not count; an installed package counts by its name.

Not noticed: another version of a package, an import whose name is computed, and what is replaced in a module, in a
class or in an object with a fingerprint while the program runs.
"""
import ast
import contextlib
import copyreg
import math
import re
import subprocess
import sys
import time
from functools import cache
from importlib.util import find_spec, resolve_name
from operator import attrgetter
from pathlib import Path
from types import FunctionType

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
    modules = []                                            # it grows while it is read
    try:
        for name, part in parts.items():
            with reading(name, "nothing can name it; take functions and classes of files, plain values, dataclasses or "
                         "classes that define `fingerprint`"):
                names[name] = named(part, modules)
        for module in modules:
            sources[module], imported = read(module)
            modules += [name for name in imported if name not in modules]
    except InputError as error:
        remark(f"nothing is kept on disk: {error}")
        return {"code": None}
    return {"code": hash_of(sorted(sources.items()))} | names


def named(value, modules: list[str]):
    """A name for a value, in JSON's types. A function or class goes by its place; `modules` gets the module.

    An object goes by its class and the fingerprint that this class defines, or else by what pickle would keep of it.
    An error if nothing tells it from others like it.
    """
    kind = type(value)
    if kind in (type(None), bool, int, str) or kind is float and math.isfinite(value):
        return value
    if kind in (list, tuple):
        return [named(item, modules) for item in value]
    if kind in (set, frozenset):
        return sorted((named(item, modules) for item in value), key=repr)
    if kind is dict:
        return {str(named(key, modules)): named(item, modules) for key, item in value.items()}

    if isinstance(value, (type, FunctionType, type(installed))):
        module = value.__module__
        modules.append(module)
        if not installed(module) and attrgetter(value.__qualname__)(sys.modules[module]) is not value:
            raise NameError(f"{value.__qualname__} is something else")
        return f"{module}.{value.__qualname__}"

    # A subclass with an own __init__ may hold more than the fingerprint that it inherits knows.
    maker = next(base for base in kind.__mro__ if vars(base).keys() & {"__init__", "fingerprint"})
    if "fingerprint" in vars(maker):
        return f"{named(kind, modules)} {value.fingerprint}".strip()
    reduce = copyreg.dispatch_table.get(kind)
    made = reduce(value) if reduce else value.__reduce_ex__(4)
    return f"{getattr(value, '__self__', kind)}.{made}" if isinstance(made, str) else named([kind, *made], modules)


@cache
def read(module: str) -> tuple[str, list[str]]:
    """The source of a module of the project, and the names of modules that it imports (and of what is in them).

    Nothing of another module, and of what is no module.
    """
    spec = None
    with contextlib.suppress(ModuleNotFoundError):
        spec = find_spec(module)
    if installed(module) or not spec or not spec.origin:
        return "", []
    file = Path(spec.origin)
    if file.stat().st_mtime > BEGUN:
        raise InputError(f"{file} has changed since the program began; begin again")

    tree = ast.parse(file.read_bytes())
    imported = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            of = resolve_name("." * node.level + (node.module or ""), module.rpartition(".")[0])
            imported += [of, *(f"{of}.{alias.name}" for alias in node.names)]
    return ast.dump(tree), imported


@cache
def installed(module: str) -> bool:
    """Whether a module is Python's own or of an installed package."""
    package = module.partition(".")[0]
    return package in sys.stdlib_module_names or bool(re.search("(site|dist)-packages", str(find_spec(package))))
