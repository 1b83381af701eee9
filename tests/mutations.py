"""Small bugs, put into the source one at a time: the test beside them must fail for each.

    python tests/mutations.py           all bugs
    python tests/mutations.py NAME ..   those whose names contain NAME

mutations.diff has a paragraph for each test: a file of the source, the test, and the bugs that it catches, below their
names. All bugs together take about as long as all tests. So pytest leaves them out; .ci/run runs both.
"""
import contextlib
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
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
OPTIONS = """-qx -o addopts= -p no:cacheprovider -p no:unraisableexception --tb=native --disable-plugin-autoload
    -p _hypothesis_pytestplugin --hypothesis-profile=unshrunk""".split()


def changes_in(text: str) -> dict[str, tuple[str, str]]:
    """The changes in a text of diffs, by the line above each: the lines before it and after it."""
    return {name: tuple("".join(f"{line[1:]}\n" for line in lines.splitlines() if line[0] in signs)
                        for signs in ("- ", "+ "))
            for name, lines in re.findall(r"^([^-+ \n].*)\n((?:[-+ ].*(?:\n|\Z))+)", text, re.MULTILINE)}


MUTATIONS = {}                # name: (file, text, the text that replaces it, the test that catches it)
for paragraph in (ROOT / "tests" / "mutations.diff").read_text(encoding="utf-8").split("\n\n"):
    head, bugs = paragraph.split("\n", 1)
    file, test = head.split(", ")
    MUTATIONS |= {name: (file, *change, test) for name, change in changes_in(bugs).items()}


def argument_of(test: str) -> str:
    """The test as an argument of pytest; its file is in one of the rooms, or in a folder there."""
    file, name = test.split("::")
    path, = (ROOT / "tests").rglob(file)
    return f"{path.relative_to(ROOT)}::{name}"


def run(call: tuple) -> tuple[str, str, str]:
    """Put a bug into a copy of the project, byte code included, and run tests there. Call it in a fresh process.

    `call` holds the bug's name; its file, text and replacement, or None for a copy without a bug; and the tests, as
    arguments of pytest. Returns the name; "caught" if a test failed by an assertion, "SURVIVES" if none failed, or
    "crashed"; and the test, or what was printed.
    """
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


def main(wanted: list[str]) -> int:
    """Run the bugs, as many at once as there are processors (at most 8), and print what became of each."""
    chosen = {name: bug for name, bug in MUTATIONS.items() if not wanted or any(word in name for word in wanted)}
    calls = [(name, change, [argument_of(test)]) for name, (*change, test) in chosen.items()]
    if not wanted:                                             # in a copy without any bug, nothing may fail
        calls.insert(0, ("no bug", None, sorted({test for _, _, (test,) in calls})))

    # Processes are forked from a server that loads the libraries once. Each runs one bug.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    wrong = 0
    with context.Pool(min(8, os.cpu_count()), maxtasksperchild=1) as pool:
        for name, outcome, said in pool.imap(run, calls):
            wrong += outcome != ("SURVIVES" if name == "no bug" else "caught")
            print(f"{name:48} {outcome} {said}", flush=True)
    print(f"{len(chosen)} bugs, {wrong} not caught")
    return 0 if chosen and not wrong else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
