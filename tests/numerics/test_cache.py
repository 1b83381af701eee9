"""Ring 6, the node cache: any sequence of reading, probing and rolling back has the same result as one pass.

These tests use float64: its rounding errors are 1e-13, and a wrong position, mask or slot causes far larger ones.
"""
import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import assert_same, ids_and_spans
from test_llama import probe, read

from llama import Cache, Llama

EXACT = 1e-10


class Life:
    """A cache of three rows, the operations on it, and what it should hold. An operation is given three numbers."""

    def __init__(self, model, seed):
        self.model = model
        self.cache = Cache(model, 3, 400)
        self.held = {row: [] for row in range(3)}             # the segments of each row that is still in the batch
        self.done = []                                        # names of the operations
        self.random = random.Random(seed)

    def ids(self, length):
        return [self.random.randrange(5, 300) for _ in range(length)]

    def live(self, name, numbers):
        self.done.append(name)
        getattr(self, name)(numbers)

    def read(self, lengths, looks=False):
        """Read a node into each row. If it looks: with its attention to the first node of the row."""
        looks = looks and all(segments and segments[0][0] for segments in self.held.values())
        averaging = self.cache.averaging_matrix([[row[0][0]] for row in self.held.values()]) if looks else None
        new = {row: [(self.random.random(), self.ids(lengths[row]))] for row in self.held}
        hidden, a = self.model.read(self.cache, list(new.values()), averaging)
        self.held = {row: self.held[row] + new[row] for row in new}
        self.check(hidden, a=a)

    def look(self, lengths):
        self.read(lengths, looks=True)

    def probe(self, numbers):
        """Run tokens after each row, and roll them back."""
        ids = self.ids(numbers[0])
        hidden, _ = self.model.read(self.cache, [[]] * len(self.held), probe=ids)
        self.check(hidden, ids)

    def take_back(self, numbers):
        """Roll back the last read, or the last two."""
        self.held = {row: segments[:-1 - numbers[0] % 2] for row, segments in self.held.items()}
        self.rollback()

    def cut(self, numbers):
        """Roll back the last tokens of each row. A node that was cut is no longer a node; its other tokens stay."""
        for row, segments in self.held.items():
            if segments and len(segments[-1][1]) > numbers[0]:
                self.held[row] = [*segments[:-1], (None, segments[-1][1][:-numbers[0]])]
        self.rollback()

    def rollback(self):
        self.cache.rollback([len(ids_and_spans(segments)[0]) for segments in self.held.values()])
        self.check()

    def drop(self, numbers):
        """A row leaves the batch, but never the last one."""
        if len(self.held) > 1:
            place = numbers[0] % len(self.held)
            self.cache.keep_rows([n for n in range(len(self.held)) if n != place])
            del self.held[list(self.held)[place]]
        self.check()

    def check(self, hidden=None, probed=(), a=None):
        """Compare each row with one pass over it: lengths, nodes, keys, values, the last logits, and attention."""
        for n, segments in enumerate(self.held.values()):
            ids, spans = ids_and_spans(segments)
            assert self.cache.lengths[n] == len(ids)
            assert self.cache.nodes[n] == {node: (x.start, x.stop) for node, x in spans.items() if node is not None}
            if not ids and not probed:
                continue

            logits, attention, whole = read(self.model, [*ids, *probed])
            for ours, wanted in zip(self.cache.keys + self.cache.values, whole.keys + whole.values):
                same = (ours[n, :, :len(ids)] - wanted[0, :, :len(ids)]).abs() < EXACT
                assert same.all(), f"keys or values of row {n} after {self.done}"
            if hidden is not None:
                error = (self.model.logits(hidden[n]) - logits[-1]).abs().max()
                assert error < EXACT, f"row {n} after {self.done}: {error}"
            if a is not None:
                new, first = len(segments[-1][1]), spans[segments[0][0]]
                error = (a[n, :new, 0] - attention[-new:, first.start:first.stop].mean(1)).abs().max()
                assert error < EXACT, f"attention of row {n} to its first node: {error}"


@pytest.mark.slow
def test_any_life_of_a_cache_equals_one_pass(model64):
    """The operations run in any order, on two caches in turns: the model itself keeps no state between calls."""
    met = Counter()
    operations = st.sampled_from(["read", "read", "look", "probe", "take_back", "cut", "drop"])
    turns = st.tuples(st.integers(0, 1), operations, st.tuples(*3 * [st.integers(1, 12)]))

    @settings(max_examples=25)
    @given(st.lists(turns, min_size=12, max_size=24))
    def compare(turns):
        lives = Life(model64, 1), Life(model64, 2)
        for which, name, numbers in turns:
            lives[which].live(name, numbers)
        for one in lives:
            done = " ".join(one.done)
            for event in ("read read", "look", "probe read", "take_back read", "cut read", "drop read"):
                met[event] += event in done

    compare()
    assert len(met) == 6 and min(met.values()) > 1, met


@pytest.mark.parametrize("length", [1, 7, 50, 300])
def test_node_by_node_equals_one_pass(model64, ids, length):
    """600 tokens are read in nodes of 1 to 300 tokens. Logits after each node and keys of the last layer are equal."""
    tokens = ids(600)
    cache = Cache(model64, 1, 600)
    wanted, _, whole = read(model64, tokens)
    for start in range(0, 600, length):
        hidden, _ = model64.read(cache, [[(start, tokens[start:start + length])]])
        end = cache.lengths[0]
        assert cache.nodes[0][start] == (start, end)
        error = (model64.logits(hidden)[0] - wanted[end - 1]).abs().max()
        assert error < EXACT, f"token {end}: {error}"
    assert (cache.keys[-1] - whole.keys[-1]).abs().max() < EXACT


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_a_probe_leaves_no_trace(folder, ids, dtype):
    """After each probe, hidden states, keys and values equal those of a cache without probes, bit by bit."""
    model = Llama.load(folder, "cpu", dtype)
    probed = Cache(model, 1, 300)
    plain = Cache(model, 1, 300)
    for start in range(0, 200, 40):
        part = [[(start, ids(300)[start:start + 40])]]
        after_probe, _ = model.read(probed, part)
        never_probed, _ = model.read(plain, part)
        assert_same(after_probe, never_probed, "a read after a probe")

        probe(model, probed, ids(5, seed=start + 1))
        assert probed.lengths == plain.lengths and probed.nodes == plain.nodes
        for one, other in ((probed.keys, plain.keys), (probed.values, plain.values)):
            for layer in range(model.config.layers):
                assert_same(one[layer][:, :, :start + 40], other[layer][:, :, :start + 40], f"layer {layer}")


def test_averages_are_over_the_tokens_of_a_node(model, ids):
    """A column sums to 1 over the slots of its node and is 0 elsewhere. So it gives the mean, not the sum."""
    cache = Cache(model, 2, 60)
    model.read(cache, [[("a", ids(10)), (None, ids(1))], [(None, ids(3)), ("a", ids(4)), ("b", ids(6))]])
    averaging = cache.averaging_matrix([["a"], ["b", "a"]])
    assert averaging.shape == (2, 13, 2) and averaging.dtype == torch.float32
    assert averaging[1, :, 0].tolist() == pytest.approx([0] * 7 + [1 / 6] * 6)
    assert averaging[1, :, 1].tolist() == pytest.approx([0] * 3 + [1 / 4] * 4 + [0] * 6)
    assert averaging[0].T.tolist() == [pytest.approx([1 / 10] * 10 + [0] * 3), [0] * 13], "a missing column is 0"


def test_a_full_cache_is_an_error(model, ids):
    """Ten tokens of the longest row fit, in two reads. A token after them changes nothing, neither the cache nor what
    was spent."""
    cache = Cache(model, 2, 10)
    model.read(cache, [[("a", ids(6))], [("a", ids(2))]])
    model.read(cache, [[("b", ids(4))]] * 2)
    before = model.spent()
    with pytest.raises(ValueError, match="do not fit a cache of 10"):
        model.read(cache, [[("c", ids(1))]] * 2)
    assert cache.lengths == [10, 6] and model.spent() == before
    assert cache.nodes == [{"a": (0, 6), "b": (6, 10)}, {"a": (0, 2), "b": (2, 6)}]
