"""Ring 6, the node cache: any sequence of reading, probing and rolling back has the same result as one pass.

These tests use float64: its rounding errors are 1e-13, and a wrong position, mask or slot causes far larger ones.
"""
import random
from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import spent, written_out

from llama import Cache

EXACT = 1e-10


class Life:
    """A cache of three rows, the operations on it, and what it should hold. An operation is given three numbers."""

    def __init__(self, model, seed):
        self.model = model
        self.cache = Cache(model, 3, 400)
        self.rows = [([], {}) for _ in range(3)]              # the ids of each row; node -> (its first slot, the next)
        self.done = []                                        # names of the operations
        self.random = random.Random(seed)

    def ids(self, length):
        return [self.random.randrange(5, 300) for _ in range(length)]

    def read(self, lengths):
        """Read a node into each row, with its attention to the row's first node if each row has one."""
        first = [list(nodes)[:1] for _, nodes in self.rows]
        averaging = self.cache.averaging_matrix(first) if all(first) else None
        node = len(self.done)
        new = [self.ids(length) for length, _ in zip(lengths, self.rows)]
        hidden, a = self.model.read(self.cache, [[(node, ids)] for ids in new], averaging)
        for added, (ids, nodes) in zip(new, self.rows):
            nodes[node] = (len(ids), len(ids) + len(added))
            ids += added
        self.check(hidden, a=a)

    def probe(self, numbers):
        """Run tokens after each row, and roll them back."""
        ids = self.ids(numbers[0])
        hidden, _ = self.model.read(self.cache, [[]] * len(self.rows), probe=ids)
        self.check(hidden, ids)

    def cut(self, numbers):
        """Roll back the last tokens of each row. A node that loses a token is no longer a node; its others stay."""
        self.rows = [(ids[:-n], {node: span for node, span in nodes.items() if span[1] <= len(ids) - n})
                     for n, (ids, nodes) in zip(numbers, self.rows)]
        self.cache.rollback([len(ids) for ids, _ in self.rows])
        self.check()

    def drop(self, numbers):
        """A row leaves the batch, but never the last one."""
        kept = [n for n in range(len(self.rows)) if n != numbers[0] % len(self.rows)] or [0]
        self.cache.keep_rows(kept)
        self.rows = [self.rows[n] for n in kept]
        self.check()

    def check(self, hidden=None, probed=(), a=None):
        """Compare each row with one pass over it: lengths, nodes, keys, values, the last logits, and attention."""
        for n, (ids, nodes) in enumerate(self.rows):
            assert self.cache.lengths[n] == len(ids) and self.cache.nodes[n] == nodes
            if not ids and not probed:
                continue

            logits, attention, whole = written_out(self.model, [*ids, *probed])
            errors = [torch.dist(ours[n, :, :len(ids)], wanted[0, :, :len(ids)])
                      for ours, wanted in zip(self.cache.keys + self.cache.values, whole.keys + whole.values)]
            if hidden is not None:
                errors.append(torch.dist(self.model.logits(hidden[n]), logits[-1]))
            if a is not None:
                (start, end), *_, (new, _) = nodes.values()
                errors.append(torch.dist(a[n, :len(ids) - new, 0], attention[new:, start:end].mean(1)))
            assert max(errors) < EXACT, f"row {n} after {self.done}: {errors}"


def test_any_life_of_a_cache_equals_one_pass(model64):
    """The operations run in any order, on two caches in turns: the model itself keeps no state between calls."""
    met = Counter()
    operations = st.sampled_from("read read read probe cut cut drop".split())
    turns = st.tuples(st.integers(0, 1), operations, st.tuples(*3 * [st.integers(1, 12)]))

    @settings(max_examples=25)
    @given(st.lists(turns, min_size=12, max_size=24))
    def compare(turns):
        lives = Life(model64, 1), Life(model64, 2)
        for which, name, numbers in turns:
            lives[which].done.append(name)
            getattr(lives[which], name)(numbers)
        met.update(pair for life in lives for pair in zip(life.done, life.done[1:]))

    compare()
    assert all(met[name, "read"] > 1 for name in ("read", "probe", "cut", "drop")), met


@pytest.mark.parametrize("length", [1, 7, 300])
def test_node_by_node_equals_one_pass(model64, ids, length):
    """One token, then 600 more in nodes of 1 to 300 tokens, and a probe after each: logits after each node and keys of
    the last layer are equal. (The first token is read alone: a mask that is missing only there, by "P > T + 1", shows
    nowhere else.)"""
    tokens = ids(601)
    cache = Cache(model64, 1, 603)
    wanted, _, whole = written_out(model64, tokens)
    for start, end in pairwise([0, *range(1, 601, length), 601]):
        hidden, _ = model64.read(cache, [[(start, tokens[start:end])]])
        assert cache.nodes[0][start] == (start, end) and cache.lengths == [end]
        assert torch.dist(model64.logits(hidden)[0], wanted[end - 1]) < EXACT, f"token {end}"
        model64.read(cache, [[]], probe=[7, 8])
    assert torch.dist(cache.keys[-1][:, :, :601], whole.keys[-1][:, :, :601]) < EXACT


def test_a_full_cache_is_an_error(model, ids):
    """Ten tokens of the longest row fit. A token after them changes nothing, neither the cache nor what was spent."""
    cache = Cache(model, 2, 10)
    model.read(cache, [[("a", ids(10))], [("a", ids(2))]])
    before = spent(model)
    with pytest.raises(ValueError, match="do not fit a cache of 10"):
        model.read(cache, [[("b", ids(1))]] * 2)
    assert cache.lengths == [10, 2] and spent(model) == before
    assert cache.nodes == [{"a": (0, 10)}, {"a": (0, 2)}]
