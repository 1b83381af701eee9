"""The tests themselves: each small bug of mutations.py must be caught by the test that is there for it.

Every bug is a test, so that pytest-xdist shares them out among the processors.
"""
import pytest
from chromium import installed
from mutant import failing, processes
from mutations import MUTATIONS, call_for, main, tests_in_parts

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fresh_process():
    """Calls a function in a process that has only the libraries loaded."""
    with processes(1) as pool:
        yield pool.apply


@pytest.mark.parametrize("tests", tests_in_parts(2, of_a_file=1))
def test_nothing_fails_without_a_bug(fresh_process, tests):
    """In the same kind of copy, so that what fails with a bug fails because of it.

    One test of each file, if it is fast, stands for all: what a copy lacks, it would miss too. (mutations.py runs all.)
    """
    assert fresh_process(failing, ("no bug", None, [*tests, "-m", "not slow"])) == []


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_bug_is_caught(fresh_process, name):
    if MUTATIONS[name][3].startswith("test_page.py") and not installed():
        pytest.skip("no browser: install chromium and chromium-driver")
    assert fresh_process(failing, call_for(name)), f"{MUTATIONS[name][3]} does not notice"


def test_the_command(capsys):
    """python tests/mutations.py, for one bug."""
    assert main(["no 1/sqrt(K)"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 bugs, 0 survive"
