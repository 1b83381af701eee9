"""The bugs of mutations.py have their place, and the command that puts them in tells what it finds.

That each is caught, `python tests/mutations.py` shows.
"""
import mutations
import pytest
from mutant import ROOT
from mutations import MUTATIONS, main


def test_every_bug_has_its_place():
    """Exactly one, so that a change of the source is noticed in seconds."""
    texts = {}
    for name, (file, old, new, _) in MUTATIONS.items():
        texts.setdefault(file, (ROOT / file).read_text(encoding="utf-8"))
        count = texts[file].count(old)
        assert count == 1 and new != old, f"{name}: {file} holds {old!r} {count} times"


@pytest.mark.slow
def test_the_command(capsys):
    """python tests/mutations.py, for one bug."""
    assert main(["no 1/sqrt(K)"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 bugs, 0 survive"


@pytest.mark.slow
def test_what_is_not_caught_is_said(monkeypatch, capsys):
    """A bug that no assertion notices: nothing fails, or the test ends by a crash."""
    test = "test_rope.py::test_half_split_rotation_by_hand"
    monkeypatch.setattr(mutations, "MUTATIONS", {
        "a comment": ("llama.py", "import torch\n", "import torch                    # no bug\n", test),
        "a crash": ("llama.py", "second = x.chunk(2, dim=-1)\n", "second = x.chunk(2, dim=-1)\n    1 / 0\n", test)})
    monkeypatch.setattr(mutations, "parts_of_tests", lambda: [])
    assert main([]) == 1
    survivor, crash, *_, last = capsys.readouterr().out.splitlines()
    assert survivor.split() == ["a", "comment", "SURVIVES"] and "a crash: the tests did not run" in crash
    assert last == "2 bugs, 2 survive"
