"""Runs tests in a copy of the project with a bug, in a separate process."""
import contextlib
import multiprocessing
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
OPTIONS = ["-q", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:unraisableexception", "--tb=native",
           "--disable-plugin-autoload", "-p", "_hypothesis_pytestplugin", "--hypothesis-profile=unshrunk"]


def copy_with(change: tuple[str, str, str] | None, folder: str) -> Path:
    """A copy of the project, byte code included, with this change (file, text, its replacement) or with none.

    ValueError unless the file holds the text exactly once.
    """
    copy = Path(folder) / "pecan"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "results*", "smollm2"))
    if change is None:
        return copy

    file, old, new = change
    source = (copy / file).read_text(encoding="utf-8")
    if source.count(old) != 1:
        raise ValueError(f"{file} holds {old!r} {source.count(old)} times; a mutation needs one place")
    (copy / file).write_text(source.replace(old, new), encoding="utf-8")
    return copy


class OneExample:
    """A plugin that runs each test with the first of its examples only."""

    @staticmethod
    def pytest_collection_modifyitems(items):
        seen = {}
        for item in items:
            seen.setdefault((item.path, item.originalname), item)
        items[:] = seen.values()


def failing(name: str, change: tuple[str, str, str] | None, tests: list[str]) -> list[str]:
    """The `tests` (arguments of pytest) that fail with this change. Call it in a fresh process.

    Without a change each test runs with one example, because every example would miss what a copy lacks. RuntimeError,
    with the change's name, if pytest could not run them or a crash made them fail.
    """
    import pytest
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(copy_with(change, folder))
        with open("output", "w") as output, contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = pytest.main([*tests, *OPTIONS, "--basetemp", f"{folder}/tests"],
                               plugins=[] if change else [OneExample])
        printed = Path("output").read_text()
        os.chdir("/")

    all_passed = code == 0
    some_failed = code == 1 and re.search(FOUND, printed, re.MULTILINE)
    if not (all_passed or some_failed):
        raise RuntimeError(f"{name}: the tests did not run\n{printed[-2000:]}")
    return re.findall(r"^(?:FAILED|ERROR) tests/(\S+)", printed, re.MULTILINE)


@contextlib.contextmanager
def processes(count: int | None = None):
    """A pool of `count` processes (None: one for each processor, at most 8); each serves one call and ends.

    They are forked from a server that loads the libraries once.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with context.Pool(count or min(8, os.cpu_count()), maxtasksperchild=1) as pool:
        yield pool
