"""Ring 6, the node cache: any sequence of reading, probing and taking back leaves what one pass would have left.

In float64, where a rounding error is 1e-13 and a wrong position, mask or slot is not; bit by bit where the same
operations ran on the same shapes.
"""
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import assert_same
from test_llama import read

from llama import Cache, Llama

CAPACITY = 200
lengths = st.integers(1, 12)
# For a cache of three rows: read a node in each; read one and look at the first node; ask something and take it back;
# take back the last reads; take back the last tokens of a read; drop a row (3 to 9: none).
values = {"read": st.tuples(lengths, lengths, lengths), "probe": lengths, "take back": st.integers(1, 2),
          "look": st.tuples(lengths, lengths, lengths), "cut": st.integers(1, 6), "keep": st.integers(0, 9)}


def operations(kinds):
    return st.sampled_from(kinds).flatmap(lambda kind: st.tuples(st.just(kind), values[kind]))


SAME_SHAPES = ["read", "read", "probe", "take back"]              # what these leave is the same bit by bit
lives = st.one_of(*(st.lists(operations(kinds), min_size=8, max_size=16) for kinds in (SAME_SHAPES, [*values, "read"])))


class Life:
    """A cache, and what it should hold: the reads that were not taken back, each {row: (node, ids)}; `allowed` is how
    far it may be from a cache that had no other life than these, `done` what was done to it."""

    def __init__(self, model, seed):
        self.model, self.rows, self.reads, self.count = model, [0, 1, 2], [], 1000 * seed
        self.cache, self.hidden, self.allowed, self.done = Cache(model, 3, CAPACITY), None, 0, []

    def piece(self, length):
        """`length` ids never used before, as a node of their own."""
        self.count += 1
        generator = torch.Generator().manual_seed(self.count)
        return self.count, torch.randint(5, 300, (length,), generator=generator).tolist()

    def ids(self, row):
        return [i for pieces in self.reads for i in pieces[row][1]]

    def live(self, operation, value):
        if operation in ("read", "look"):
            pieces, watch = {row: self.piece(value[row]) for row in self.rows}, None
            first = self.reads[0] if self.reads else {}
            if operation == "look" and all(first.get(row, (None,))[0] for row in self.rows):
                watch = self.cache.averaging_matrix([[first[row][0]] for row in self.rows])
                self.allowed = 1e-10                              # attention is written out, not fused
            else:
                operation = "read"
            self.reads.append(pieces)
            self.hidden, seen = self.model.read(self.cache, [[pieces[row]] for row in self.rows], watch)
            for n, row in enumerate(self.rows):
                logits, a = read(self.model, self.ids(row))
                error = (self.model.logits(self.hidden[n]) - logits[-1]).abs().max()
                assert error < 1e-10, f"row {row} after {len(self.reads)} reads: {error}"
                if watch is not None:
                    old, new = len(first[row][1]), len(pieces[row][1])
                    error = (seen[n, :new, 0] - a[-new:, :old].mean(1)).abs().max()
                    assert error < 1e-6, f"attention of row {row} to its first node, accumulated in float32: {error}"
        elif operation == "probe" and self.reads:
            _, ids = self.piece(value)
            logits = self.model.probe(self.cache, ids)
            for n, row in enumerate(self.rows):
                error = (logits[n] - read(self.model, self.ids(row) + ids)[0][-1]).abs().max()
                assert error < 1e-10, f"probe behind row {row}: {error}"
        elif operation == "take back":
            self.reads = self.reads[:-value]
            self.cache.rollback([len(self.ids(row)) for row in self.rows])
            self.hidden = None
        elif operation == "cut" and self.reads:                   # what is left of a node is no node
            cut = {row: (None, ids[:-value]) if len(ids) > value else (name, ids)
                   for row, (name, ids) in self.reads.pop().items()}
            self.reads.append(cut)
            self.cache.rollback([len(self.ids(row)) for row in self.rows])
            self.hidden, self.allowed = None, 1e-10               # a kernel rounds by the length of what it reads
        elif operation == "keep" and value in self.rows and len(self.rows) > 1:
            self.cache.keep_rows([n for n, row in enumerate(self.rows) if row != value])
            self.rows.remove(value)
            self.hidden, self.allowed = None, 1e-10               # and by the shape of its batch
        else:
            return
        self.done.append(operation)

    def check(self):
        """The spans of the nodes, the keys and the values of a cache that has had no other life than the reads that
        count: bit by bit where these were the same operations on the same shapes, or to 1e-10."""
        plain = Cache(self.model, len(self.rows), CAPACITY)
        for pieces in self.reads:
            hidden, _ = self.model.read(plain, [[pieces[row]] for row in self.rows])
        assert self.cache.lengths == plain.lengths == [len(self.ids(row)) for row in self.rows]
        assert self.cache.nodes == plain.nodes
        for n, row in enumerate(self.rows):
            for node, (start, end) in self.cache.nodes[n].items():
                assert self.ids(row)[start:end] == next(p[row][1] for p in self.reads if p[row][0] == node)
            for layer in range(self.model.config.layers):
                for lived, fresh in ((self.cache.keys, plain.keys), (self.cache.values, plain.values)):
                    difference = (lived[layer] - fresh[layer])[n, :, :plain.lengths[n]].abs()
                    assert (difference <= self.allowed).all(), f"row {row}, layer {layer}: {difference.max()}"
        if self.hidden is not None:
            error = (self.hidden - hidden).abs().max()
            assert error <= self.allowed, f"what is read behind a probe or a rollback differs by {error}"


def test_any_life_of_a_cache_equals_one_pass(model64):
    """Read, look, probe, take back, cut, drop rows, in any order."""
    met = Counter()

    @settings(max_examples=150)
    @given(lives)
    def compare(life):
        one = Life(model64, 1)
        for operation, value in life:
            one.live(operation, value)
        one.check()
        done = " ".join(one.done)
        for event in ("read read", "look", "read probe read", "take back read", "cut read", "keep read"):
            met[event] += event in done
        met["bit by bit"] += one.allowed == 0 and {"probe", "take back"} <= set(one.done)
    compare()
    assert len(met) == 7 and all(met.values()), met


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 2), operations([*values, "read"])), min_size=12, max_size=24))
def test_caches_do_not_disturb_each_other(model64, turns):
    """Three caches alive at once, in turns; no state of a conversation stands on the model."""
    lives = [Life(model64, seed) for seed in (1, 2, 3)]
    for n, (operation, value) in turns:
        lives[n].live(operation, value)
    for one in lives:
        one.check()


@pytest.mark.parametrize("length", [1, 7, 50, 300])
def test_node_by_node_equals_one_pass(model64, ids, length):
    """600 tokens, in nodes of one token up to 300: every last token's logits, and all keys of the last layer."""
    tokens, cache = ids(600), Cache(model64, 1, 600)
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
    """Bit-equal after each probe to never having been probed, in every dtype: hidden states, keys and values."""
    model = Llama.load(folder, "cpu", dtype)
    probed, plain = Cache(model, 1, 300), Cache(model, 1, 300)
    for start in range(0, 200, 40):
        part = [[(start, ids(300)[start:start + 40])]]
        a, _ = model.read(probed, part)
        b, _ = model.read(plain, part)
        assert_same(a, b, "what is read behind a probe")
        model.probe(probed, ids(5, seed=start + 1))
        assert probed.lengths == plain.lengths and probed.nodes == plain.nodes
        for one, other in ((probed.keys, plain.keys), (probed.values, plain.values)):
            for layer in range(model.config.layers):
                assert_same(one[layer][:, :, :start + 40], other[layer][:, :, :start + 40], f"layer {layer}")


def test_averages_are_over_the_tokens_of_a_node(model, ids):
    """Columns sum to 1 over the node's own slots, and are 0 elsewhere: the mean, not the mass."""
    cache = Cache(model, 2, 60)
    model.read(cache, [[(None, ids(3)), ("a", ids(4)), ("b", ids(6))], [("a", ids(10)), (None, ids(1))]])
    watch = cache.averaging_matrix([["b", "a"], ["a"]])
    assert watch.shape == (2, 13, 2) and watch.dtype == torch.float32
    assert watch[0, :, 0].tolist() == pytest.approx([0] * 7 + [1 / 6] * 6)
    assert watch[0, :, 1].tolist() == pytest.approx([0] * 3 + [1 / 4] * 4 + [0] * 6)
    assert watch[1].T.tolist() == [pytest.approx([1 / 10] * 10 + [0] * 3), [0] * 13], "a missing column is 0"


def test_a_full_cache_is_an_error(model, ids):
    with pytest.raises(ValueError, match="do not fit a cache of 10"):
        model.read(Cache(model, 1, 10), [[(None, ids(11))]])
