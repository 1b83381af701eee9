"""Whoever changes the method sees the numbers of the changed method.

The changes are those of CONTRIBUTING.md, made in a copy of the program. eval.py then runs as a newcomer would run it:
the same command again, and a new folder with the old graphs.
"""
import json
import re
import shutil
import subprocess
import sys

import pytest
from mutations import ROOT, changes_in

PROGRAM = "core model encoders baselines evaluation view tiny".split()
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
CHANGES = changes_in(re.search(r"```diff\n(.*?)```", TEXT, re.S)[1])


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A copy of the program, and the folder `old` with the results of the unchanged code."""
    folder = tmp_path_factory.mktemp("program")
    for name in PROGRAM:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (*ROOT.glob("*.py"), ROOT / "CITATION.cff"):
        shutil.copy(file, folder)
    run(folder, "old")
    assert "1 of 1 graphs found" in run(folder, "again", "--graphs", "old/graphs").stderr, "unchanged code takes it"
    return folder


def run(folder, output, *options, code=0):
    command = [sys.executable, "eval.py", "--limit", "1", "--method", "pecan", "--device", "cpu", "--output", output]
    done = subprocess.run([*command, *options], cwd=folder, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done


def numbers(folder, output):
    """What the search of each question read, and all its numbers."""
    lines = (folder / output / "embedded" / "pecan.jsonl").read_text().splitlines()
    return [json.loads(line)["trace"] for line in lines]


def replaced(folder, file, old, new):
    source = (folder / file).read_text(encoding="utf-8")
    assert source.count(old) == 1, f"{file} holds {old!r} {source.count(old)} times"
    (folder / file).write_text(source.replace(old, new), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_method_gives_the_changed_numbers(program, tmp_path, change):
    """The same folder is refused, and the graphs, whose code is in the same file, are built anew."""
    folder = shutil.copytree(program, tmp_path / "p")
    file = change.split(":")[0]
    replaced(folder, file, *CHANGES[change])

    assert "is of another setup" in run(folder, "old", code=2).stderr
    done = run(folder, "new", "--graphs", "old/graphs")
    assert "0 of 1 graphs found" in done.stderr
    assert numbers(folder, "new") != numbers(folder, "old"), "the change has no effect here"


@pytest.mark.slow
def test_what_no_number_depends_on_refuses_nothing(program, tmp_path):
    """A comment, the heading of a section, a new file, a change of a table."""
    folder = shutil.copytree(program, tmp_path / "p")
    replaced(folder, "pecan.py", "# --- the conversation", "# A comment\n\n# --- another heading")
    replaced(folder, "evaluation/tables.py", 'NOT_RUN = "not run"', 'NOT_RUN = "missing"')
    replaced(folder, "core/files.py", "# --- memory", "# --- out of memory")
    (folder / "pecan2.py").write_text("from pecan import *\n")
    assert "7 of 7 answers, 1 of 1 graphs found" in run(folder, "old").stderr
