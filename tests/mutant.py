"""Runs tests in a copy of the project with a bug."""
import contextlib
import os
import re
import shutil
import tempfile
from pathlib import Path

from _pytest.config import default_plugins

ROOT = Path(__file__).parents[1]

# A test must fail by its own assertion. A crash proves nothing about numbers.
FOUND = r"^(AssertionError|Failed|ValueError: .*do not fit a cache|.*would become that special token)"

# The libraries and the parts of pytest that a process starts with; they take longer to load than most tests to run.
PRELOADED = ["hypothesis", "numpy", "pytest", "tokenizers", "torch.utils.flop_counter",
             "transformers.models.llama.modeling_llama", "transformers.generation", "rouge_score.rouge_scorer",
             *(f"_pytest.{name}" for name in default_plugins)]

# The project's own options would start more processes. The rest turns off things that take longer than most tests: the
# search for unclosed objects, the source around a failure, the plugins of other packages.
OPTIONS = ["-qx", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:unraisableexception", "--tb=native",
           "--disable-plugin-autoload", "-p", "_hypothesis_pytestplugin", "--hypothesis-profile=unshrunk"]


def changes_in(text: str) -> dict[str, tuple[str, str]]:
    """The changes in a text of diffs, by the line above each: the lines before it and after it."""
    changes = {}
    for name, lines in re.findall(r"^([^-+ \n].*)\n((?:[-+ ].*(?:\n|\Z))+)", text, re.MULTILINE):
        changes[name] = tuple("".join(f"{line[1:]}\n" for line in lines.splitlines() if line[0] in signs)
                              for signs in ("- ", "+ "))
    return changes


def run(call: tuple) -> tuple[str, str, str]:
    """Put a bug into a copy of the project, byte code included, and run tests there. Call it in a fresh process.

    `call` holds the bug's name; its file, text and replacement, or None for a copy without a bug; and the tests, as
    arguments of pytest. Returns the name; "caught" if a test failed by an assertion, "SURVIVES" if none failed, or
    "crashed"; and the test, or what was printed.
    """
    import pytest
    name, change, tests = call
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "pecan"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "results*", "smollm2"))
        os.chdir(copy)
        if change:
            file, old, new = change
            Path(file).write_text(Path(file).read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
        with open("output", "w") as output, contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = pytest.main([*tests, *OPTIONS, "--basetemp", f"{folder}/tests"])
        printed = Path("output").read_text()
        os.chdir("/")

    if code == 0:
        return name, "SURVIVES", ""
    if code == 1 and re.search(FOUND, printed, re.MULTILINE):
        return name, "caught", re.search(r"^(?:FAILED|ERROR) tests/([^\s[]+)", printed, re.MULTILINE)[1]
    return name, "crashed", printed[-2000:]
