"""Ring 6, the node cache: any sequence of reading, probing and rolling back has the same result as one pass.

These tests use float64: its rounding errors are 1e-13, and a wrong position, mask or slot causes far larger ones.
Results are equal bit by bit if the same operations ran on the same shapes.
"""
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import assert_same
from test_llama import probe, read

from llama import Cache, Llama

CAPACITY = 200

# The operations on a cache of three rows, with their numbers.
lengths = st.integers(1, 12)
values = {
    "read": st.tuples(lengths, lengths, lengths),             # a node in each row, of these lengths
    "look": st.tuples(lengths, lengths, lengths),             # the same, with attention to the row's first node
    "probe": lengths,                                         # this many tokens after each row, then rolled back
    "take back": st.integers(1, 2),                           # this many of the last reads are rolled back
    "cut": st.integers(1, 6),                                 # this many tokens of the last read are rolled back
    "drop": st.integers(0, 9),                                # this row leaves the batch (3 to 9: none)
}


def operations(kinds):
    return st.sampled_from(kinds).flatmap(lambda kind: st.tuples(st.just(kind), values[kind]))


# SAME_SHAPES leave the same bits as reads alone. All operations together leave the same numbers up to rounding.
SAME_SHAPES = ["read", "read", "probe", "take back"]
lives = st.one_of(*(st.lists(operations(kinds), min_size=8, max_size=16) for kinds in (SAME_SHAPES, [*values, "read"])))


class Life:
    """A cache, the operations on it, and its expected content.

    `reads` are the reads that were not taken back, each {row: (node, ids)}. The cache may differ by `allowed` from one
    with these reads and nothing else.
    """

    def __init__(self, model, seed):
        self.model = model
        self.cache = Cache(model, 3, CAPACITY)
        self.rows = [0, 1, 2]                                 # rows still in the batch
        self.reads = []
        self.done = []                                        # names of the operations
        self.hidden = None                                    # of the last read, if only probes followed it
        self.allowed = 0
        self.count = 1000 * seed

    def segment(self, length):
        """`length` ids never used before, as a new node."""
        self.count += 1
        generator = torch.Generator().manual_seed(self.count)
        return self.count, torch.randint(5, 300, (length,), generator=generator).tolist()

    def ids(self, row):
        return [i for segments in self.reads for i in segments[row][1]]

    def live(self, operation, value):
        """Run the operation on the cache, if it is possible now."""
        if operation in ("read", "look"):
            operation = self.read(operation, value)
        elif operation == "probe" and self.reads:
            self.probe(value)
        elif operation == "take back":
            self.reads = self.reads[:-value]
            self.rollback()
        elif operation == "cut" and self.reads:
            self.cut(value)
        elif operation == "drop" and value in self.rows and len(self.rows) > 1:
            self.cache.keep_rows([n for n, row in enumerate(self.rows) if row != value])
            self.rows.remove(value)
            self.hidden = None
            self.allowed = 1e-10                              # a kernel's rounding depends on the batch
        else:
            return
        self.done.append(operation)

        # Check after every operation: with wrong counts, the next operation would crash.
        for n, row in enumerate(self.rows):
            assert list(self.cache.nodes[n]) == [segments[row][0] for segments in self.reads if segments[row][0]]
        assert len(self.cache.nodes) == len(self.cache.lengths) == len(self.rows)

    def read(self, operation, lengths):
        """Read a node into each row, compare with one pass, and return the operation that ran.

        A look becomes a plain read if some row has no first node (any more).
        """
        segments = {row: self.segment(lengths[row]) for row in self.rows}
        first = self.reads[0] if self.reads else {}
        averaging = None
        if operation == "look" and all(first.get(row, (None,))[0] for row in self.rows):
            averaging = self.cache.averaging_matrix([[first[row][0]] for row in self.rows])
            self.allowed = 1e-10                              # attention is written out, not fused

        self.reads.append(segments)
        self.hidden, a = self.model.read(self.cache, [[segments[row]] for row in self.rows], averaging)
        for n, row in enumerate(self.rows):
            logits, wanted = read(self.model, self.ids(row))
            error = (self.model.logits(self.hidden[n]) - logits[-1]).abs().max()
            assert error < 1e-10, f"row {row} after {len(self.reads)} reads: {error}"
            if averaging is not None:
                old = len(first[row][1])
                new = len(segments[row][1])
                error = (a[n, :new, 0] - wanted[-new:, :old].mean(1)).abs().max()
                assert error < 1e-6, f"attention of row {row} to its first node, accumulated in float32: {error}"
        return "read" if averaging is None else "look"

    def probe(self, length):
        """Probe all rows and compare with one pass."""
        _, ids = self.segment(length)
        logits = probe(self.model, self.cache, ids)
        for n, row in enumerate(self.rows):
            wanted, _ = read(self.model, self.ids(row) + ids)
            error = (logits[n] - wanted[-1]).abs().max()
            assert error < 1e-10, f"probe after row {row}: {error}"

    def cut(self, length):
        """Roll back the end of the last read. A node that was cut is no longer a node; its other tokens stay."""
        last = {}
        for row, (node, ids) in self.reads.pop().items():
            last[row] = (None, ids[:-length]) if len(ids) > length else (node, ids)
        self.reads.append(last)
        self.rollback()
        self.allowed = 1e-10                                  # a kernel's rounding depends on the length

    def rollback(self):
        self.cache.rollback([len(self.ids(row)) for row in self.rows])
        self.hidden = None

    def check(self):
        """Compare lengths, nodes, keys and values with those of a cache with these reads and nothing else.

        They are equal bit by bit if the same operations ran on the same shapes, and to 1e-10 otherwise.
        """
        plain = Cache(self.model, len(self.rows), CAPACITY)
        for segments in self.reads:
            hidden, _ = self.model.read(plain, [[segments[row]] for row in self.rows])
        assert self.cache.lengths == plain.lengths == [len(self.ids(row)) for row in self.rows]
        assert self.cache.nodes == plain.nodes

        for n, row in enumerate(self.rows):
            ids_of = {segments[row][0]: segments[row][1] for segments in self.reads}
            for node, (start, end) in self.cache.nodes[n].items():
                assert self.ids(row)[start:end] == ids_of[node]
            for layer in range(self.model.config.layers):
                for lived, fresh in ((self.cache.keys, plain.keys), (self.cache.values, plain.values)):
                    difference = (lived[layer] - fresh[layer])[n, :, :plain.lengths[n]].abs()
                    assert (difference <= self.allowed).all(), f"row {row}, layer {layer}: {difference.max()}"

        if self.hidden is not None:
            error = (self.hidden - hidden).abs().max()
            assert error <= self.allowed, f"a read after a probe or a rollback differs by {error}"


@pytest.mark.slow
def test_any_life_of_a_cache_equals_one_pass(model64):
    """The operations are read, look, probe, take back, cut and drop, in any order."""
    met = Counter()

    @settings(max_examples=90)
    @given(lives)
    def compare(life):
        one = Life(model64, 1)
        for operation, value in life:
            one.live(operation, value)
        one.check()

        done = " ".join(one.done)
        for event in ("read read", "look", "read probe read", "take back read", "cut read", "drop read"):
            met[event] += event in done
        met["bit by bit"] += one.allowed == 0 and {"probe", "take back"} <= set(one.done)

    compare()
    assert len(met) == 7 and all(met.values()), met


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 2), operations([*values, "read"])), min_size=12, max_size=24))
def test_caches_do_not_disturb_each_other(model64, turns):
    """Three caches are used in turns. The model itself keeps no state between calls."""
    lives = [Life(model64, seed) for seed in (1, 2, 3)]
    for n, (operation, value) in turns:
        lives[n].live(operation, value)
    for one in lives:
        one.check()


@pytest.mark.parametrize("length", [1, 7, 50, 300])
def test_node_by_node_equals_one_pass(model64, ids, length):
    """600 tokens are read in nodes of 1 to 300 tokens. Logits after each node and keys of the last layer are equal."""
    tokens = ids(600)
    cache = Cache(model64, 1, 600)
    wanted, _ = read(model64, tokens)
    for start in range(0, 600, length):
        hidden, _ = model64.read(cache, [[(start, tokens[start:start + length])]])
        end = cache.lengths[0]
        assert cache.nodes[0][start] == (start, end)
        error = (model64.logits(hidden)[0] - wanted[end - 1]).abs().max()
        assert error < 1e-10, f"token {end}: {error}"

    whole = Cache(model64, 1, 600)
    model64.read(whole, [[(None, tokens)]])
    assert (cache.keys[-1] - whole.keys[-1]).abs().max() < 1e-10


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
