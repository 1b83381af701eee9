"""Runs of eval.py, files of rows, and tables of statements."""
import contextlib
import io
import json
from pathlib import Path
from types import SimpleNamespace

import eval as command_line
from core.command import user_errors

ROOT = Path(__file__).parents[2]


def run(*arguments, code=0):
    """Run eval.py in this process, which saves the time of the imports, and check its exit code."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        found = user_errors(lambda: command_line.main(["--device", "cpu", *map(str, arguments)]))
    assert found == code, stderr.getvalue()
    return SimpleNamespace(stdout=stdout.getvalue(), stderr=stderr.getvalue())


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def table(text: str) -> list[list[str]]:
    """The cells of a table in words: a row a line, with | between the cells."""
    return [[cell.strip() for cell in line.split("|")] for line in text.strip("\n").splitlines()]
