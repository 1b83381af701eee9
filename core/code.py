"""What a graph or an answer depends on, so that none is taken that other code or other arguments have made.

The code of a function is what Python runs: its bytecode, with that of all functions, classes and constants that it
names, as they are in memory when it is used. So a function that was replaced counts as what it is now; comments, other
functions of a file and other files do not count; and an installed package counts by its name. Another version of Python
compiles other bytecode. That costs a rebuild, never a wrong number.

Not noticed: another version of a package, names that are computed (getattr), what was changed inside an object with a
fingerprint, such as a model's weights.
"""
import contextlib
import copyreg
import json
import re
import subprocess
import sys
from dis import get_instructions
from functools import cache, cached_property, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, EllipsisType, FunctionType, ModuleType

import torch

from core.files import InputError, hash_of, remark

ROOT = Path(__file__).resolve().parents[1]
VERSION = re.search(r"(?m)^version: *(\S+)", (ROOT / "CITATION.cff").read_text(encoding="utf-8"))[1]
HELD = "__wrapped__", "func", "args", "keywords", "fget", "fset"           # by partial, property and their like
COMPILED = ("co_code co_consts co_names co_varnames co_freevars co_cellvars co_exceptiontable co_argcount "
            "co_posonlyargcount co_kwonlyargcount co_flags").split()


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
    code = {}
    try:
        names = {name: named(part, code) for name, part in parts.items()}
    except ValueError as error:                             # or a closure that is still empty
        remark(str(error))
        return {"code": None}
    return {"code": hash_of({name: made_of for name, (_, made_of) in code.items()})} | names


def named(value, code: dict):
    """A name for a value, in JSON's types. Functions and classes go by their place; `code` gets what they are made of.

    An object goes by its class and the fingerprint that this class defines, or else by what pickle would keep of it.
    InputError if nothing tells it from others like it.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float and value - value == 0:                # JSON has no infinite number, and no NaN
        return value
    if kind in (float, complex, bytes, EllipsisType):
        return repr(value)
    if kind in (list, tuple):
        return [named(item, code) for item in value]
    if kind in (set, frozenset):
        return sorted((named(item, code) for item in value), key=json.dumps)
    if kind is dict:
        return {str(named(key, code)): named(item, code) for key, item in value.items()}
    if kind is ModuleType:
        return value.__name__
    if kind is CodeType:
        return read(value)[0]
    if kind in (partial, property, cached_property, staticmethod, classmethod, type(installed)):
        held = [getattr(value, name) for name in HELD if hasattr(value, name)]
        return named([kind, *held], code)

    if isinstance(value, (type, FunctionType)):
        name = f"{value.__module__}.{value.__qualname__}"
        while name in code and code[name][0] is not value:
            name += "'"                                     # two lambdas of a function have the same name
        if name not in code:
            code[name] = value, None                        # it may need itself
            code[name] = value, named(parts_of(value), code)
        return name

    # A subclass with an own __init__ may hold more than the fingerprint that it inherits knows.
    maker = next(base for base in kind.__mro__ if "__init__" in vars(base))
    names = getattr(getattr(maker.__init__, "__code__", None), "co_names", ())
    if "fingerprint" in {*vars(kind), *vars(maker), *names}:
        return f"{named(kind, code)} {value.fingerprint}".strip()
    with contextlib.suppress(TypeError, RecursionError):
        if not isinstance(value, torch.Tensor) and not hasattr(value, "fingerprint"):
            reduce = copyreg.dispatch_table.get(kind)
            of = getattr(value, "__self__", kind)           # both math and torch have a floor
            return named([of, reduce(value) if reduce else value.__reduce_ex__(4)], code)
    raise InputError(f"{value!r:.99}: nothing tells it from others like it, so nothing is kept on disk; let its class "
                     "define `fingerprint`, or take plain values, dataclasses, functions and classes")


def parts_of(value) -> list:
    """What a class or a function is made of."""
    if isinstance(value, type):
        items = {name: item for name, item in vars(value).items()
                 if callable(item) or isinstance(item, (classmethod, property)) or not name.startswith(("__", "_abc_"))}
        return [] if installed(value.__module__) else [value.__bases__, items]
    if installed(value.__globals__["__name__"]):
        return [getattr(value, "__wrapped__", None)]        # of a decorator

    hashed, names, imported = read(value.__code__)
    space = value.__globals__ | {name: import_module(name) for name in imported if not installed(name)}
    held = [cell.cell_contents for cell in value.__closure__ or ()]
    kinds = [kind for kind in value.__annotations__.values() if isinstance(kind, type)]      # of its arguments
    return [hashed, value.__defaults__, value.__kwdefaults__, held, kinds, reached(names | imported, space)]


@cache
def read(code: CodeType) -> tuple[str, set, set]:
    """A hash of bytecode, the names in it, of globals and attributes, and the modules that it imports when it runs."""
    hashed = hash_of([named(getattr(code, name), {}) for name in COMPILED])
    names = set(code.co_names)
    imported = {step.argval for step in get_instructions(code) if step.opname == "IMPORT_NAME"}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names |= read(inner)[1]
            imported |= read(inner)[2]
    return hashed, names, imported


def reached(names: set, space: dict) -> dict:
    """What these names mean in a module, and in those of the project's modules that they mean."""
    found = {}
    for name in sorted(names & space.keys()):
        value = space[name]
        if isinstance(value, ModuleType) and not installed(value.__name__):
            value = reached(names - {name}, vars(value))
        found[name] = value
    return found


@cache
def installed(module: str) -> bool:
    """Whether a module is Python's own or of an installed package."""
    package = module.partition(".")[0]
    with contextlib.suppress(ValueError, AttributeError, TypeError):       # a notebook, a script, or not there
        if {"site-packages", "dist-packages"} & {*Path(find_spec(package).origin).parts}:
            return True
    return package in sys.stdlib_module_names
