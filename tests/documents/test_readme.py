"""The documents agree with the code: line numbers, names, links, examples and commands.

python tests/test_readme.py      corrects the line numbers in the README
"""
import contextlib
import io
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from view.ask import main  # noqa: E402

README = ROOT / "README.md"
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", ROOT / "docs" / "8b.md", ROOT / "tests" / "BENCHMARK.md",
             *ROOT.glob("[a-z]*/README.md")]
LINK = re.compile(r"\[`(?P<name>[\w.]+)`\]\((?P<file>[\w/]+\.py)#L(?P<line>\d+)\)")
FOLDERS = [".", "core", "support", "baselines", "evaluation", "evaluation/layouts", "tiny", "study", "view", "tests"]
MODULES = {path.stem: path.relative_to(ROOT).as_posix()          # name -> file, without the tests
           for folder in FOLDERS[:-1] for path in (ROOT / folder).glob("*.py")}


def line_of(file: str, name: str) -> int:
    """The line that defines the last part of a dotted name, searched for from the class before it."""
    parts = name.split(".")
    *parents, last = parts[1:] if parts[0] == Path(file).stem else parts
    source = (ROOT / file).read_text(encoding="utf-8").splitlines()

    start = 0
    for parent in parents:
        start = next((i for i, line in enumerate(source) if re.match(rf"class {parent}\b", line)), len(source))
    pattern = rf"\s*(?:(?:def|class) {last}\b|(?:self\.)?(?:\w+, )*{last}(?:, \w+)*(?::[^=]*)? = )"
    found = [i for i, line in enumerate(source[start:], start + 1) if re.match(pattern, line)]
    assert found, f"{file} does not define {name}"
    return found[0]


def test_lines_of_the_equations():
    links = list(LINK.finditer(README.read_text(encoding="utf-8")))
    assert len(links) > 15
    for link in links:
        assert int(link["line"]) == line_of(link["file"], link["name"]), f"{link[0]}: run python tests/test_readme.py"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_a_document_names_exists(path):
    """Tests, files and functions in backticks exist, and so do linked files."""
    text = path.read_text(encoding="utf-8")
    tests = "".join(test.read_text(encoding="utf-8") for test in (ROOT / "tests").glob("test_*.py"))
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}(" in tests, f"there is no test {name}"
    for name in re.findall(r"`((?:[\w-]+/)*\w+\.py)`", text):
        assert any((ROOT / folder / name).exists() for folder in FOLDERS), f"there is no file {name}"
    for name in re.findall(f"`((?:{'|'.join(MODULES)})\\.[\\w.]+)`", text):
        if not name.endswith((".py", ".json")):
            line_of(MODULES[name.split(".")[0]], name)
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
    text = README.read_text(encoding="utf-8")
    shown, = re.findall(r"```\n(When did Selma move\?\n.*?)```", text, re.S)
    main([str(ROOT / "tiny" / "story.txt"), "When did Selma move?", "--trace", "--device", "cpu",
                "--graph", str(tmp_path / "graph.json")])
    printed = capsys.readouterr().out.splitlines()
    for line in shown.splitlines():
        assert line in printed or line.strip() == "..."


# Commands in the documents that need only the repository, and the test that runs each, or .ci/run.
RUN_BY = {
    "pip install -r requirements.txt && python eval.py": ".ci/run",
    "pip install -r requirements.txt -r tests/requirements.txt && pytest --cov": ".ci/run",
    "pip install -r requirements.txt -r tests/requirements.txt": ".ci/run",
    "pytest --cov": ".ci/run",
    "python pecan.py tiny/story.txt \"When did Selma move?\" --trace": "test_the_search_in_the_readme",
    "python tests/test_readme.py": "test_lines_of_the_equations",
    'pytest -m "not slow"': ".ci/run",
    "ruff check": "test_ruff_finds_nothing",
    "python -m tiny.train --output DIR": "test_training_resumes_where_it_stopped",
    "python eval.py --score results/embedded/pecan.jsonl": "test_predictions_are_scored_again",
    "python eval.py --dry-run": "test_the_dry_run_estimates_the_cost",
    "torchrun --nproc-per-node 2 eval.py": "test_a_killed_run_goes_on",
    "python tests/mutations.py": "test_the_command",
    "python tests/benchmark.py": "test_the_benchmark_in_its_short_form",
}

RUN_BY |= {
    'python pecan.py tiny/story.txt "When did Selma move?" --trace selma.jsonl': "test_the_commands_of_view",
    'python pecan.py tiny/story.txt "When did Selma move?" --graph dumped.graph.json --dump selma.safetensors':
        "test_the_commands_of_view",
    "python -m view.walk > docs/walk.md": "test_the_walk_in_the_documents_is_the_one_that_is_made",
    "python -m view.annotate -o docs/annotated.html": "test_the_page_in_the_documents_is_the_one_that_is_made",
    "python -m view.replay selma.jsonl": "test_the_commands_of_view",
    "python -m study --short": "test_the_short_form",
    "python -m view.page selma.jsonl -o selma.html": "test_the_commands_of_view",
}


def commands(path: Path) -> list[str]:
    """The commands in a document's shell blocks, except in a block with the comment "# needs ..."."""
    found = []
    for block in re.findall(r"```sh\n(.*?)```", path.read_text(encoding="utf-8"), re.S):
        if "# needs " not in block:
            lines = block.replace("\\\n", " ").splitlines()
            found += [re.sub(r"\s+", " ", line.split("#")[0]).strip() for line in lines]
    return [command for command in found if command]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_command_is_run(path):
    """A test or .ci/run runs each command, unless its block says what it needs (a checkpoint)."""
    tests = "".join(test.read_text(encoding="utf-8") for test in (ROOT / "tests").glob("test_*.py"))
    for command in commands(path):
        assert command in RUN_BY, f"no test runs {command!r}"
        assert RUN_BY[command] == ".ci/run" or f"def {RUN_BY[command]}(" in tests, f"there is no {RUN_BY[command]}"


if __name__ == "__main__":
    README.write_text(LINK.sub(lambda m: f"[`{m['name']}`]({m['file']}#L{line_of(m['file'], m['name'])})",
                               README.read_text(encoding="utf-8")), encoding="utf-8")
