"""The tests themselves: each small bug of mutations.py must be caught by the test that is there for it.

Every bug is a test, so that pytest-xdist shares them out among the processors.
"""
import pytest
from chromium import installed
from mutant import ROOT, failing, processes
from mutations import MUTATIONS, call_for, main, parts_of_tests


def test_every_bug_has_its_place():
    """Exactly one, so that a change of the source is noticed in seconds."""
    texts = {}
    for name, (file, old, new, _) in MUTATIONS.items():
        texts.setdefault(file, (ROOT / file).read_text(encoding="utf-8"))
        count = texts[file].count(old)
        assert count == 1 and new != old, f"{name}: {file} holds {old!r} {count} times"


@pytest.fixture(scope="module")
def fresh_process():
    """Calls a function in a process that has only the libraries loaded."""
    with processes(1) as pool:
        yield pool.apply


@pytest.mark.slow
@pytest.mark.parametrize("tests", parts_of_tests(2, of_a_file=1))
def test_nothing_fails_without_a_bug(fresh_process, tests):
    """In the same kind of copy, so that what fails with a bug fails because of it.

    One test of each file, if it is fast, stands for all: what a copy lacks, it would miss too. (mutations.py runs all.)
    """
    assert fresh_process(failing, ("no bug", None, [*tests, "-m", "not slow"])) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_bug_is_caught(fresh_process, name):
    if MUTATIONS[name][3].startswith("test_page.py") and not installed():
        pytest.skip("no browser: install chromium and chromium-driver")
    assert fresh_process(failing, call_for(name)), f"{MUTATIONS[name][3]} does not notice"


@pytest.mark.slow
def test_the_command(capsys):
    """python tests/mutations.py, for one bug."""
    assert main(["no 1/sqrt(K)"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 bugs, 0 survive"
