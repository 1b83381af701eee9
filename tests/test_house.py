"""The house: which file may import which, and the limits that keep it readable.

A file imports only from floors below its own, so there can be no circle. Who adds a file gives it a floor here.
"""
import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FLOORS = [
    ["core/files.py", "core/text.py"],
    ["support/heads.py"],
    ["data.py", "core/command.py", "core/settings.py", "support/graph.py", "support/journal.py",
     "core/checkpoint.py", "core/tokenizer.py", "support/gguf_tokenizer.py", "support/trace.py"],
    ["data.py", "support/memory.py", "llama.py"],
    ["support/token_mean.py"],
    ["support/sbert.py"],
    ["support/options.py"],
    ["pecan.py", "support/convert.py"],
    ["view/trace_file.py"],
    ["view/replay.py", "view/page.py", "view/walk.py"],
    ["baselines/common.py", "baselines/graphreader_prompts.py", "baselines/tree_search.py"],
    ["baselines/agent.py", "baselines/fact_graph.py"],
    ["baselines/*.py", "evaluation/metrics.py", "evaluation/paper.py", "evaluation/predictions.py",
     "evaluation/cost.py", "evaluation/together.py", "evaluation/layouts/report.py"],
    ["evaluation/layouts/contents.py"],
    ["evaluation/layouts/layout.py"],
    ["evaluation/layouts/*.py"],
    ["evaluation/layouts/dataset.py"],
    ["evaluation/layouts/__init__.py"],
    ["evaluation/layouts/__main__.py"],
    ["evaluation/runs.py"],
    ["evaluation/cells.py"],
    ["evaluation/runner.py", "evaluation/tables.py"],
    ["evaluation/pictures.py", "evaluation/dry_run.py"],
    ["eval.py"],
    ["tiny/facts.py", "tiny/start.py", "tiny/lesson.py", "tiny/curve.py"],
    ["tiny/world.py"],
    ["tiny/lessons.py"],
    ["tiny/curriculum.py"],
    ["study/capture.py", "study/choices.py", "study/figures.py", "study/reading.py", "study/rows.py",
     "study/truth.py"],
    ["study/record.py", "study/run.py"],
    ["study/*.py"],
    ["study/report.py", "study/pictures.py"],
    ["study/settings.py"],
    ["study/__main__.py", "tiny/compare.py", "tiny/train.py"],
]

LINES = {"eval.py": 260, "pecan.py": 620, "llama.py": 360}
STAGE_1_BY = 190
WORDS = {"README.md": 1700}
BLANK = 0.06                      # share of blank lines inside functions


def files() -> list[str]:
    """The program's Python files, without the tests."""
    folders = [".", "support", "baselines", "evaluation", "evaluation/layouts", "study", "view", "tiny"]
    found = [path.relative_to(ROOT).as_posix() for folder in folders for path in (ROOT / folder).glob("*.py")]
    return [file for file in found if (ROOT / file).read_text(encoding="utf-8").strip()]       # not an empty __init__


def floor_of(file: str) -> int:
    """The number of a file's floor; a file that is named goes before a pattern that fits it."""
    for floor, names in enumerate(FLOORS):
        if file in names:
            return floor
    for floor, names in enumerate(FLOORS):
        if any(Path(file).match(name) for name in names if "*" in name):
            return floor
    raise AssertionError(f"{file} has no floor: add it to FLOORS")


def imports(file: str) -> set[str]:
    """The files of this project that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        modules = []
        if isinstance(node, ast.Import):
            modules = [name.name for name in node.names]
        if isinstance(node, ast.ImportFrom):
            modules = [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
        for module in modules:
            path = module.replace(".", "/")
            found |= {name for name in (f"{path}.py", f"{path}/__init__.py") if (ROOT / name).exists()}
    return {name for name in found if (ROOT / name).read_text(encoding="utf-8").strip()}      # not an empty __init__


@pytest.mark.parametrize("file", files())
def test_a_file_imports_from_floors_below_only(file):
    for other in imports(file):
        assert floor_of(other) < floor_of(file), f"{file} imports {other}, which is on its own floor or above"


def test_the_imports_are_seen():
    """The test above would pass if it saw no import."""
    assert {"llama.py", "data.py", "core/files.py", "core/settings.py"} <= imports("pecan.py")
    assert "evaluation/paper.py" in imports("eval.py"), "from evaluation import paper"


@pytest.mark.parametrize("file", LINES)
def test_limits_on_lines(file):
    assert len((ROOT / file).read_text(encoding="utf-8").splitlines()) <= LINES[file]


def test_stage_1_begins_early():
    lines = (ROOT / "pecan.py").read_text(encoding="utf-8").splitlines()
    assert next(n for n, line in enumerate(lines, 1) if line.startswith("# --- stage 1")) <= STAGE_1_BY


@pytest.mark.parametrize("document", WORDS)
def test_limits_on_words(document):
    assert len((ROOT / document).read_text(encoding="utf-8").split()) <= WORDS[document]


def bodies(file: str) -> list[tuple[str, list[str]]]:
    """Each function of a file and its lines, without the docstring."""
    source = (ROOT / file).read_text(encoding="utf-8")
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
            found.append((node.name, source.splitlines()[body[0].lineno - 1:node.end_lineno]))
    return found


def test_functions_have_paragraphs():
    """No function of more than 14 lines is one breath, and enough lines inside functions are blank."""
    lines = []
    for file in files():
        for name, body in bodies(file):
            lines += body
            assert len(body) <= 14 or any(not line.strip() for line in body), f"{file}: {name} has no paragraphs"
    assert sum(not line.strip() for line in lines) >= BLANK * len(lines)


def test_ruff_finds_nothing():
    command = [sys.executable, "-m", "ruff", "check", "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_daily_loop_leaves_out_what_is_slow():
    """pytest -m "not slow" does. Tried with a file that has both kinds and loads fast."""
    done = subprocess.run([sys.executable, "-m", "pytest", "-m", "not slow", "--collect-only", "-q", "-n0",
                           "tests/test_mutations.py"], cwd=ROOT, capture_output=True, text=True)
    collected = [line for line in done.stdout.splitlines() if "::" in line]
    assert any("test_every_bug_has_its_place" in line for line in collected)
    assert not any("test_the_command" in line for line in collected)


@pytest.mark.parametrize("file", files())
def test_no_json_holds_what_is_no_json(file):
    """Python would write NaN and Infinity, which other readers of JSON refuse."""
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.dumps", "json.dump"):
            refused = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}.get("allow_nan")
            assert refused == "False", f"{file}, line {node.lineno}: allow_nan=False is missing"


def test_nothing_is_said_twice():
    """No sentence of eight words or more is in two of the documents, or twice in one."""
    seen = {}
    for path in sorted(ROOT.glob("**/*.md")):
        if any(part.startswith((".", "results", "venv")) for part in path.relative_to(ROOT).parts):
            continue
        prose = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
        for sentence in re.split(r"(?<=[.:;!?])\s+|\n\n|\n[-|#]|\|", prose):
            words = " ".join(re.findall(r"\w+", sentence.lower()))
            if len(words.split()) >= 8:
                assert words not in seen, f"{path.name} repeats {seen[words]}: {sentence.strip()}"
                seen[words] = path.name
