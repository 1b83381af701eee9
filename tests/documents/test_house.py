"""The house: folders are the architecture. Imports lead down, without circles."""
import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

from test_readme import LISTED, ROOT

# From the ground up. The last two stand side by side.
STOREYS = "core", "data", "model", "llama", "encoders", "pecan", "baselines", "evaluation", "eval", "view tiny"

# The program's Python files, without the tests.
FILES = [Path(name) for name in LISTED if name.endswith(".py") and not name.startswith("tests/")]


def imports(file: Path) -> set[Path]:
    """The files of this project that a file imports, anywhere in it."""
    modules = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = getattr(node, "module", "")
            modules |= {module, *(f"{module}.{name.name}".strip(".") for name in node.names)}

    known = {file.with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__"): file for file in FILES}
    return {known[module] for module in modules if module in known} - {file}


def test_imports_lead_down():
    """A file imports from lower storeys or its own folder, and never in a circle."""
    graph = {file: imports(file) for file in FILES}
    storeys = {folder: n for n, names in enumerate(STOREYS) for folder in names.split()}
    for file, others in graph.items():
        for other in others:
            here, there = (path.parts[0].removesuffix(".py") for path in (file, other))
            assert here == there or storeys[there] < storeys[here], f"{file} imports {other}, which is not below"
    list(TopologicalSorter(graph).static_order())           # raises CycleError


def test_ruff_finds_nothing():
    command = [sys.executable, "-m", "ruff", "check", "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
