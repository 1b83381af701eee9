"""The code and the arguments that made a graph or an answer, so that none made by others is taken.

A function or class counts by its file, with all files of the project that this imports. Comments do not count, nor do
other files; an installed package counts by its name.

Not noticed: another version of a package, import_module, a file or a variable of the environment that the code reads,
and what is replaced in a module, in a class or in an object with a fingerprint while the program runs.
"""
import ast
import contextlib
import math
import re
import subprocess
import sys
import time
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from sysconfig import get_path

from torch.package.find_file_dependencies import find_files_source_depends_on

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
    """A name for each part, which differs if the part does something else, and `code`, a hash of all their code.

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
        remark(f"no graph is kept, and answers cannot be continued: {error}")
        return {"code": None}
    return {"code": hash_of(sorted(sources.items()))} | names


def named(value, sources: dict[str, str]):
    """A name for a value, in JSON's types. A function or class goes by its place, and its source goes to `sources`.

    An object goes by its class and the fingerprint that this class defines, or else by what pickle would keep of it.
    An error if nothing tells it from others like it.
    """
    kind = type(value)
    if kind in (type(None), bool, int, str) or kind is float and math.isfinite(value):
        return value
    if kind in (list, tuple, set, frozenset):
        items = [named(item, sources) for item in value]
        return items if kind is list else [kind.__name__, items if kind is tuple else sorted(items, key=repr)]
    if kind is dict and all(type(key) is str for key in value):
        return {key: named(item, sources) for key, item in value.items()}

    if hasattr(value, "__qualname__"):
        module = value.__module__
        if getattr(sys.modules[module], value.__name__) is not value:
            raise NameError(f"{value.__name__} is something else")
        follow(module, sources)
        return f"{module}.{value.__name__}"

    # A subclass with an own __init__ may hold more than the fingerprint that it inherits knows.
    maker = next(base for base in kind.__mro__ if vars(base).keys() & {"__init__", "fingerprint"})
    if "fingerprint" in vars(maker):
        return named([kind, value.fingerprint], sources)
    return named([kind, value.__reduce_ex__(4)], sources)


def follow(module: str, sources: dict[str, str]):
    """Put the source of a module into `sources`, and of its package and all modules that it imports."""
    if module and module not in sources:
        sources[module], imported = source(module)
        for other in [module.rpartition(".")[0], *imported]:
            follow(other, sources)


@cache
def source(module: str) -> tuple[str, list[str]]:
    """The source of a module of the project without its comments, and what it imports, also in functions.

    Empty for what is Python's own or installed, and for names that are not modules.
    """
    package = find_spec(module.partition(".")[0])           # first, because to look into a package imports it
    file = str(package and package.origin)
    if file.startswith(get_path("stdlib")) or re.search("(site|dist)-packages|^(built-in|frozen)$", file):
        return "", []
    spec = None
    with contextlib.suppress(ModuleNotFoundError):
        spec = find_spec(module)
    if not (spec and spec.origin):
        return "", []

    file = spec.origin
    if Path(file).stat().st_mtime > BEGUN:
        raise InputError(f"{file} has changed since the program began; begin again")

    text = ast.unparse(ast.parse(Path(file).read_bytes()))
    imports = find_files_source_depends_on(text, spec.parent)
    return text, [f"{of}.{name}" for of, name in imports]                    # a module, or something of the module `of`
