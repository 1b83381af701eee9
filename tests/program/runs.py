"""Runs of eval.py, batches that are watched, files of rows, and tables of statements."""
import contextlib
import io
import json
from pathlib import Path
from types import SimpleNamespace

import eval as command_line
from core.command import user_errors
from core.together import Batches

ROOT = Path(__file__).parents[2]


def run(*arguments, code=0):
    """Run eval.py in this process, which saves the time of the imports, and check its exit code."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        found = user_errors(lambda: command_line.main(["--device", "cpu", *map(str, arguments)]))
    assert found == code, stderr.getvalue()
    return SimpleNamespace(stdout=stdout.getvalue(), stderr=stderr.getvalue())


class Watched(Batches):
    """Batches of `rows`; instead of work(batch), watch(batch, work) gives the results."""
    def __init__(self, rows, watch):
        super().__init__(rows)
        self.watch = watch

    def run(self, items, length, work, progress=False):
        return super().run(items, length, lambda batch: self.watch(batch, work), progress)


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def table(text: str) -> list[list[str]]:
    """The cells of a table in words: a row a line, with | between the cells."""
    return [[cell.strip() for cell in line.split("|")] for line in text.strip("\n").splitlines()]
