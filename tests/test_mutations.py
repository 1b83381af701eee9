"""The tests themselves: each small bug of mutations.py must turn the test red that is there for it."""
import pytest
from mutations import MUTATIONS, SOUND, catch


@pytest.fixture(scope="module")
def killers():
    return dict(catch([SOUND, *MUTATIONS]))


def test_nothing_is_caught_where_nothing_is_wrong(killers):
    assert not killers[SOUND]


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_bug_is_caught(killers, name):
    assert killers[name], f"{MUTATIONS[name][3]} does not notice"
