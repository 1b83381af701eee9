"""The tests themselves: the bugs that would hurt most, put in one at a time, must turn them red. All of them:
python tests/mutations.py"""
import pytest
from mutations import killers


@pytest.mark.parametrize("name", [
    "RoPE scaling dropped", "interleaved RoPE", "wrong GQA order", "mask off by one", "cache position off by one",
    "edges not normalised", "a node's mass in place of its mean", "r is a sum over the node's tokens",
    "position factor dropped"])
def test_a_bug_is_caught(name):
    assert killers(name), f"no test notices: {name}"
