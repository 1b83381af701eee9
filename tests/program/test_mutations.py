"""Each bug of mutations.py has its place and its test, and the command reports which bugs survive.

`python tests/mutations.py` itself shows that the tests catch each bug.
"""
import re

import mutations
import pytest
from mutant import ROOT
from mutations import MUTATIONS, argument_of, main


def test_every_bug_has_its_line_and_its_test():
    """Each has exactly one. A change of the sources or the tests that breaks this is noticed in seconds."""
    for name, (file, old, new, test) in MUTATIONS.items():
        count = (ROOT / file).read_text(encoding="utf-8").count(old)
        assert count == 1 and new != old, f"{name}: {file} holds {old!r} {count} times"
        path, function = argument_of(test).split("::")
        assert f"\ndef {function}(" in (ROOT / path).read_text(encoding="utf-8"), f"{name}: no {test}"


@pytest.mark.slow
def test_the_command(monkeypatch, capsys):
    """Of three bugs, an assertion catches the first, nothing catches the second, and the third crashes its test."""
    test = "test_1_rope.py::test_half_split_rotation_by_hand"
    monkeypatch.setattr(mutations, "MUTATIONS", MUTATIONS | {
        "a comment": ("llama.py", "import torch\n", "import torch                    # no bug\n", test),
        "a crash": ("llama.py", "second = x.chunk(2, dim=-1)\n", "second = x.chunk(2, dim=-1)\n    1 / 0\n", test)})
    assert main(["no 1/sqrt(K)", "a comment", "a crash"]) == 1
    printed = capsys.readouterr().out
    for line in (r"no 1/sqrt\(K\) +caught ", "a comment +SURVIVES", "a crash +crashed", "3 bugs, 2 not caught$"):
        assert re.search(f"^{line}", printed, re.MULTILINE), printed
