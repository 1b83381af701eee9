"""The documents agree with the code: line numbers, names, links, examples and commands.

python tests/documents/test_readme.py      corrects the line numbers in the documents
"""
import contextlib
import io
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from core.settings import PASS  # noqa: E402
from evaluation.cost import bytes_of_pass  # noqa: E402
from model.checkpoint import read_config, tensor_shapes  # noqa: E402
from view.ask import main  # noqa: E402

README = ROOT / "README.md"
LISTED = [name for name in subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True,
    check=True).stdout.split() if (ROOT / name).exists()]
DOCUMENTS = [ROOT / name for name in LISTED if name.endswith(".md") and name != "CHANGELOG.md"]
LINK = re.compile(r"\[`(?P<name>[\w.]+)`\]\((?P<file>[\w/]+\.py)#L(?P<line>\d+)\)")
FILES = {Path(name).stem: ROOT / name for name in LISTED if name.endswith(".py") and not name.endswith("__init__.py")}
TESTS = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))


def each_document(test):
    return pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())(test)


def line_of(file: Path, name: str) -> int:
    """The line that defines the last part of a dotted name, searched for from the class before it."""
    parts = name.split(".")
    *parents, last = parts[1:] if parts[0] == file.stem and len(parts) > 1 else parts
    source = file.read_text(encoding="utf-8").splitlines()

    start = 0
    for parent in parents:
        start = next((i for i, line in enumerate(source) if re.match(rf"class {parent}\b", line)), len(source))
    pattern = rf"\s*(?:(?:def|class) {last}\b|(?:self\.)?(?:\w+, )*{last}(?:, \w+)*(?::[^=]*)? = )"
    found = [i for i, line in enumerate(source[start:], start + 1) if re.match(pattern, line)]
    assert found, f"{file.name} does not define {name}"
    return found[0]


@pytest.mark.lines
@each_document
def test_lines_and_names(path):
    """Links to a line lead to its definition. Tests, files and functions in backticks exist, and so do linked files."""
    text = path.read_text(encoding="utf-8")
    for link in LINK.finditer(text):
        assert int(link["line"]) == line_of(path.parent / link["file"], link["name"]), f"{link[0]}: run this file"
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}(" in TESTS, f"there is no test {name}"
    for name in re.findall(r"`(?:[\w-]+/)*(\w+)\.py`", text):
        assert name in FILES, f"there is no file {name}.py"
    for file, name in re.findall(r"`(\w+)\.([\w.]+)`", text):
        if file in FILES and name not in ("py", "json", "jsonl", "html"):
            line_of(FILES[file], name)
    for target in re.findall(r"\]\(([^)#:]+)(?:#\w+)?\)", text):
        assert (path.parent / target).exists(), f"a link leads to {target}, which does not exist"


def test_the_lines_of_python_in_the_readme():
    code, = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    printed = io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue() == "1921\n"


def test_the_search_in_the_readme(tmp_path, capsys):
    """The command prints every line of the README's trace."""
    shown, = re.findall(r"```\n(When did Selma move\?\n.*?)```", README.read_text(encoding="utf-8"), re.S)
    main([str(ROOT / "tiny" / "story.txt"), "When did Selma move?", "--trace", "--device", "cpu",
          "--graph", str(tmp_path / "graph.json")])
    printed = capsys.readouterr().out.splitlines()
    for line in shown.splitlines():
        assert line in printed or line.strip() == "..."


def test_the_memory_in_the_documents():
    """The table of docs/models.md gives weights plus formula, for groups that fill three quarters of the window."""
    rows = re.findall(r"^\| ([\d,]+)[^|]* \|(.*)\|$", (ROOT / "docs" / "models.md").read_text(encoding="utf-8"), re.M)
    config = read_config(ROOT / "tests" / "llama-3.1-8b")
    weights = 2 * sum(map(math.prod, tensor_shapes(config).values()))
    assert [row[0] for row in rows] == ["2,048", "4,096", "8,192", "16,384"]
    for row, cells in rows:
        window = int(row.replace(",", ""))
        passes = [(batch * window * 3 // 4, batch * window) for batch in (1, 2, 4, 8, 16)] + [(PASS, window, window)]
        assert cells.replace("|", " ").split() == [f"{(weights + bytes_of_pass(config, 2, *each)) / 1e9:.1f}"
                                                   for each in passes]


# Commands in the documents that need only the repository, and the test that runs each, or .ci/run.
RUN_BY = {
    "pip install -r requirements.txt": ".ci/run",
    'python pecan.py tiny/story.txt "When did Selma move?"': "test_the_search_in_the_readme",
    "pip install -r requirements.txt && python eval.py": ".ci/run",
    "pip install -r requirements.txt -r tests/requirements.txt && pytest": ".ci/run",
    "pip install -r requirements.txt -r tests/requirements.txt": ".ci/run",
    "pytest": ".ci/run",
    "pytest tests/numerics": ".ci/run",
    'pytest tests/numerics -m "not slow"': ".ci/run",
    "ruff check": "test_ruff_finds_nothing",
    "python tests/mutations.py": ".ci/run",
    "python tests/documents/test_readme.py": "test_lines_and_names",
    "python tests/documents/test_demo.py": "test_the_notebook_gives_what_it_stores",
    'python pecan.py tiny/story.txt "When did Selma move?" --trace': "test_the_search_in_the_readme",
    'python pecan.py tiny/story.txt "When did Selma move?" --trace selma.jsonl': "test_the_commands_of_view",
    "python -m view.page selma.jsonl -o selma.html": "test_the_commands_of_view",
    "python -m view.annotate -o docs/annotated.html": "test_the_page_in_the_documents_is_the_one_that_is_made",
    "python -m view.search -o docs/search.html": "test_the_page_of_a_search_is_the_one_that_is_made",
    "python tests/documents/test_images.py": "test_pictures_have_the_text_of_todays_pages",
    "python eval.py --score results/embedded/pecan.jsonl": "test_predictions_are_scored_again",
    "python eval.py --dry-run": "test_a_real_run_costs_what_the_dry_run_says",
    "torchrun --nproc-per-node 2 eval.py": "test_a_killed_run_goes_on",
    "python tests/benchmark.py --short": "test_the_benchmark_in_its_short_form",
}


@each_document
def test_every_command_is_run(path):
    """A test or .ci/run runs each command, except in a block with the comment "# needs ..."."""
    for block in re.findall(r"```sh\n(.*?)```", path.read_text(encoding="utf-8"), re.S):
        lines = [] if "# needs " in block else block.replace("\\\n", " ").splitlines()
        for command in filter(None, (re.sub(r"\s+", " ", line.split("#")[0]).strip() for line in lines)):
            assert command in RUN_BY, f"no test runs {command!r}"
            assert RUN_BY[command] == ".ci/run" or f"def {RUN_BY[command]}(" in TESTS, f"there is no {RUN_BY[command]}"


if __name__ == "__main__":
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        document.write_text(LINK.sub(lambda m: f"[`{m['name']}`]({m['file']}#L"
                                               f"{line_of(document.parent / m['file'], m['name'])})", text),  # noqa: B023
                            encoding="utf-8")
