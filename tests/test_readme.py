"""The documents point at what is there: the README's lines, the functions and tests that the list of the paper names,
and the commands that CI runs.

python tests/test_readme.py      puts the line numbers right
"""
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[`(?P<name>[\w.]+)`\]\((?P<file>[\w/]+\.py)#L(?P<line>\d+)\)")
README = ROOT / "README.md"
MODULES = {path.stem: str(path.relative_to(ROOT))               # of the program: name -> file
           for folder in (".", "support", "evaluation", "baselines") for path in (ROOT / folder).glob("*.py")}


def line_of(file: str, name: str) -> int:
    """The line where the last part of a dotted name is defined, behind the class of the part before it."""
    *parents, last = name.split(".")[1:] if name.split(".")[0] == Path(file).stem else name.split(".")
    source, start = (ROOT / file).read_text(encoding="utf-8").splitlines(), 0
    for parent in parents:
        start = next(i for i, line in enumerate(source) if re.match(rf"class {parent}\b", line))
    pattern = rf"\s*(?:(?:def|class) {last}\b|(?:self\.)?(?:\w+, )*{last}(?:, \w+)*(?::[^=]*)? = )"
    found = [i for i, line in enumerate(source[start:], start + 1) if re.match(pattern, line)]
    assert found, f"{file} holds no {name}"
    return found[0]


def test_lines_of_the_equations():
    links = list(LINK.finditer(README.read_text(encoding="utf-8")))
    assert len(links) > 15
    for link in links:
        assert int(link["line"]) == line_of(link["file"], link["name"]), f"{link[0]}: run python tests/test_readme.py"


def test_what_the_documents_name_exists():
    """Functions, tests and files in backticks, in both documents; the paper's list in tests/README.md above all."""
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_*.py"))
    rows = 0
    for path in (README, ROOT / "tests" / "README.md"):
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"`(test_\w+)`", text):
            assert f"def {name}(" in source, f"{path.name}: there is no test {name}"
        folders = ".", "support", "tests", "tiny", "evaluation", "baselines"
        for name in re.findall(r"`((?:tests/)?\w+\.py)`", text):
            assert any((ROOT / folder / name).exists() for folder in folders), f"{path.name}: {name}"
        for name in re.findall(f"`((?:{'|'.join(MODULES)})\\.[\\w.]+)`", text):
            if not name.endswith((".py", ".json")):
                line_of(MODULES[name.split(".")[0]], name)
        rows += text.count("\n| ")
    assert rows > 90


def test_ci_runs_its_commands():
    readme, ci = README.read_text(encoding="utf-8"), (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for command in ("-r requirements.txt -r tests/requirements.txt && pytest --cov", "python eval.py"):
        assert command in readme and command in ci


if __name__ == "__main__":
    README.write_text(LINK.sub(lambda m: f"[`{m['name']}`]({m['file']}#L{line_of(m['file'], m['name'])})",
                               README.read_text(encoding="utf-8")), encoding="utf-8")
