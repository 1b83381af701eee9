"""The documents agree with the code: names, links, examples and commands."""
import argparse
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
import eval as evaluation  # noqa: E402
from core.settings import PASS  # noqa: E402
from evaluation.cost import bytes_of_pass  # noqa: E402
from model.checkpoint import read_config, tensor_shapes  # noqa: E402
from view import ask, page  # noqa: E402

README = (ROOT / "README.md").read_text(encoding="utf-8")
# The project's files are those that git has. A virtual environment, of whatever name, is not among them.
LISTED = [name for name in subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True,
                                          check=True).stdout.split() if (ROOT / name).exists()]
DOCUMENTS = [ROOT / name for name in LISTED if name.endswith(".md") and name != "CHANGELOG.md"]
FILES = {Path(name).stem: (ROOT / name).read_text(encoding="utf-8") for name in LISTED
         if name.endswith(".py") and not name.endswith("__init__.py")}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_a_document_names_exists(path):
    """The files that it links, and tests, files and definitions in backticks."""
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", text):
        assert (path.parent / target).exists(), f"a link leads to {target}, which does not exist"
    for name in re.findall(r"`(test_\w+)`", text):
        assert any(f"def {name}(" in source for source in FILES.values()), f"there is no test {name}"
    for name in re.findall(r"`(?:[\w-]+/)*(\w+)\.py`", text):
        assert name in FILES, f"there is no file {name}.py"
    for file, name in re.findall(r"`(\w+)\.(?:\w+\.)*(\w+)`", text):
        if file in FILES and name not in ("py", "json", "jsonl", "html"):
            definition = rf"(?m)^ *(?:(?:def|class) {name}\b|(?:self\.|\w+, )*{name}(?:, \w+)*(?::[^=\n]*)? = )"
            assert re.search(definition, FILES[file]), f"{file}.py does not define {name}"


def test_the_lines_of_python_in_the_readme(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    code, = re.findall(r"```python\n(.*?)```", README, re.S)
    exec(code, {})
    assert capsys.readouterr().out == "1921\n"


def test_the_search_in_the_readme(tmp_path, capsys):
    """The command prints every line of the README's trace."""
    shown, = re.findall(r"```\n(When did Selma move\?\n.*?)```", README, re.S)
    ask.main([str(ROOT / "tiny" / "story.txt"), "When did Selma move?", "--trace", "--device", "cpu",
              "--graph", str(tmp_path / "graph.json")])
    assert {*shown.splitlines()} <= {"  ...", *capsys.readouterr().out.splitlines()}


def test_the_memory_in_the_documents():
    """The table of docs/models.md gives weights plus formula, for groups that fill three quarters of the window."""
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    config = read_config(ROOT / "tests" / "llama-3.1-8b")
    weights = 2 * sum(map(math.prod, tensor_shapes(config).values()))
    for window in (2048, 8192, 16384):
        passes = [(batch, window * 3 // 4, batch * window) for batch in (1, 4, 8, 16, 32)]
        passes += [(rows, PASS, rows * window, window) for rows in (1, 16)]
        cells = r" \| ".join(f"{(weights + bytes_of_pass(config, 2, *each)) / 1e9:.1f}" for each in passes)
        assert re.search(rf"(?m)^\| {window:,}[^|]* \| {cells} \|$", text)


# --- commands -------------------------------------------------------------------------------------------------------

MAINS = {"pecan.py": ask, "eval.py": evaluation, "view.page": page}


@pytest.fixture
def understood(monkeypatch):
    """A function that asserts that a command is one of this project, with existing options."""
    parse_args = argparse.ArgumentParser.parse_args

    def stop(parser, argv):
        raise EOFError(parse_args(parser, argv))
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)

    def check(command):
        command = re.sub("^(python -m|torchrun --nproc-per-node 2) ", "python ", command)
        _, name, *arguments = shlex.split(command, comments=True)
        with pytest.raises(EOFError):
            MAINS[name].main(arguments)
    return check


def test_every_command_is_understood(understood):
    """Those of the documents, which may need the network or a checkpoint, and the examples of --help."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    blocks = "\n".join(re.findall(r"(?s)```sh\n(.*?)```", text)).replace("\\\n", " ")
    for command in re.findall(r"(?m)^ *((?:python|torchrun) (?!tests/).*)$", blocks):
        understood(command)
    for main in MAINS.values():
        for example in re.findall("(?m)^    ((?:python|torchrun) .*?)(?:  .*)?$", getattr(main, "TEXT", main.__doc__)):
            understood(example)
    for path in re.findall(r"\btests/[\w/.]+", blocks):
        assert (ROOT / path).exists(), f"there is no {path}"
