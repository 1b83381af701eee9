"""Ring 7, the algorithm: pecan.py equals a second implementation (naive.py), on random graphs and random attention.

Attention, replies and verdicts are read from tables; all else is real: tokenizer, node cache, spans, averaging, probes,
generation, graph and search. The numbers in the tables are multiples of powers of 2, and nodes have 1, 2, 4 or 8
tokens. So sums are exact, and both implementations must agree on every number and every tie.
"""
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import build as naive_build
from naive import points as naive_points
from naive import scores as naive_scores
from naive import search as naive_search
from naive import without_repeats

import pecan
from core.files import InputError
from core.settings import Settings
from data import Document
from llama import Llama
from pecan import Graph, Node, Search, build, edge_weights, final_scores

ROWS = 211                                     # rows of the attention table
CAPACITY = 2048                                # columns of the attention table: positions
WORDS = "Mara Theo Ada Igor Ulla Carl Dora Emil Felix Oslo baker job".split()


class Scripted(Llama):
    """A Llama whose attention, next tokens and verdicts come from tables instead of a forward pass."""

    def __init__(self, tiny, seed):
        rng = np.random.default_rng(seed)
        config = replace(tiny.config, layers=1, kv_heads=1, heads=1, head_width=2, width=2)
        super().__init__(config, {"model.embed_tokens.weight": torch.zeros(config.vocab, 2)}, tiny.tokenizer)
        self.looping = seed % 3 == 0                            # the next token depends only on this one
        self.table = rng.integers(0, 9, (ROWS, CAPACITY)) / 8
        self.yes = rng.integers(-3, 2, CAPACITY)                # logits of Yes; No has 0

        # Replies consist of words and of enough markers and newlines to form bullets.
        encode = self.tokenizer.encode
        self.star = encode("*")[0]
        self.newline = encode("\n")[0]
        words = [token for word in WORDS for token in encode(word)]
        self.vocabulary = rng.permutation(words + 6 * encode("*") + 5 * encode("\n") + encode("\n\n")
                                          + 2 * list(config.eos))

    def attend(self, token, x, y):
        """Attention of `token` at position x to position y."""
        return self.table[(31 * token + x) % ROWS, y]

    def follow(self, token, x):
        """The next token, after a newline mostly a star. So replies are bullets with some disorder, or they loop."""
        if token == self.newline and (x % 4 or self.looping):
            return self.star
        return self.vocabulary[(17 * token + 5 * x * (not self.looping)) % len(self.vocabulary)].item()

    def p_yes(self, x):
        return 1 / (1 + np.exp(-float(self.yes[x])))

    def forward(self, tokens, positions, mask=None, cache=None, averaging=None):
        hidden = torch.stack((tokens, positions), -1)
        if averaging is None:
            return hidden, None
        attention = torch.from_numpy(self.table)[(31 * tokens + positions) % ROWS].float()
        return hidden, attention[:, :, :averaging.shape[1]] @ averaging

    def logits(self, hidden):
        logits = torch.zeros(len(hidden), self.config.vocab)
        yes = self.tokenizer.first("Yes")
        no = self.tokenizer.first("No")
        for row, (token, x) in zip(logits, hidden.tolist()):
            row[self.follow(token, x)] = 100
            row[yes] = float(self.yes[x])
            row[no] = 0
        return logits


# --- stage 1 --------------------------------------------------------------------------------------------------------

def test_building_equals_the_naive_one(tiny):
    """Chunks, groups, replies, IPs, levels and edges are equal for any attention and any reply, also with one summary
    for each group. Edges lead exactly one level down, so the graph has no cycle. Each row of E sums to 1 or is empty.
    No edge crosses groups."""
    met = Counter()

    @settings(max_examples=100)
    @given(st.integers(0, 2 ** 32), st.integers(1, 25), st.integers(1, 4), st.integers(4, 12), st.sampled_from([1, 8]),
           st.booleans())
    def compare(seed, sentences, passages, chunk, batch, tree):
        rng = random.Random(seed)
        model = Scripted(tiny, seed)
        texts = [" ".join(rng.choice(WORDS) for _ in range(4 * sentences)) for _ in range(passages)]
        graph = build(model, Document("d", texts), Settings(chunk=chunk, window=219, summary_share=.15, tree=tree,
                                                            batch=batch))
        nodes, levels, E = naive_build(model.tokenizer, model.attend, model.follow, model.config.eos[0], texts, chunk,
                                       219, .15, tree)              # 32.85 tokens for a summary: 32

        assert [node.text for node in graph.nodes] == nodes and [node.level for node in graph.nodes] == levels
        ours = graph.E.to_dense().numpy()
        error = np.abs(ours - E).max()
        assert error < 1e-6, f"{error}: the averages are float32"

        assert all(levels[i] == levels[j] + 1 and i > j for i, j in np.argwhere(ours))
        off = max(abs(row.sum() - (level > 1)) for row, level in zip(ours, levels))
        assert off < 1e-9, f"rows sum to 1 or are empty; float64 rounds by 1e-16: {off}"

        groups = {frozenset(np.flatnonzero(row)) for row in E if row.any()}
        apart = any(not a & b for a in groups for b in groups)
        met.update([levels[-1], ("tree", tree), ("groups apart", apart)])

    compare()
    wanted = {1, 2, 3, ("tree", True), ("tree", False), ("groups apart", True)}
    assert wanted <= set(met), met


@settings(max_examples=500)
@given(st.lists(st.sampled_from(["*", "\n", "\n*", "\n\n", "Mara", "job", ":"]), min_size=1), st.booleans())
def test_bullets_equal_the_naive_ones(tiny, reply, cut):
    """pecan.py finds bullets line by line over characters, naive.py token by token."""
    ids = [token for part in reply for token in tiny.tokenizer.encode(part)]
    limit = len(ids) if cut else len(ids) + 1

    # Token x attends only to "node" x, so the edges of an IP show its tokens.
    points = pecan.information_points(tiny.tokenizer, ids, torch.eye(len(ids)), limit, tree=False)
    ours = [set(np.flatnonzero(point.e)) for point in points]
    wanted = naive_points(tiny.tokenizer, ids, cut)
    kept = without_repeats(tiny.tokenizer, ids, wanted)
    assert ours == [set(point) for point in kept]


@given(st.integers(0, 2 ** 32), st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(1, 6))
def test_edges_from_all_layers_and_heads(seed, layers, heads, ips, nodes):
    """Edges equal those of raw weights [L, H, T, T] with every mean written out: over heads, layers, tokens of j and
    tokens of i. (test_accumulation.py shows that the model's a(x, j) is such a mean.)"""
    rng = np.random.default_rng(seed)
    spans = []
    end = 3
    for _ in range(nodes + ips):
        spans.append(range(end, end + rng.integers(1, 6)))
        end = spans[-1].stop + 1
    lower = spans[:nodes]
    higher = spans[nodes:]
    raw = rng.random((layers, heads, end, end))

    def mean(i, j):
        """The mean weight of the tokens i to the tokens j."""
        total = sum(raw[layer, head, x, y] for layer in range(layers) for head in range(heads) for x in i for y in j)
        return total / layers / heads / len(i) / len(j)

    a = torch.tensor([[mean([x], j) for j in lower] for x in range(end)])
    for i in higher:
        e = [mean(i, j) for j in lower]
        wanted = [weight / sum(e) for weight in e]
        assert edge_weights(a, list(i)).tolist() == pytest.approx(wanted, rel=1e-12)     # float64 sums of 100 terms


# --- stage 2 --------------------------------------------------------------------------------------------------------

def random_graph(rng, levels, sizes=(1, 2, 4)):
    """Texts, levels and E of a graph whose edge weights are eighths.

    Some nodes have no predecessor, as after a reply without IPs.
    """
    level_of = [level for level, count in enumerate(levels, 1) for _ in range(count)]
    texts = [" ".join(rng.choices(WORDS, k=rng.choice(sizes))) for _ in level_of]
    E = np.zeros((len(texts), len(texts)))
    for i, level in enumerate(level_of):
        below = [j for j, other in enumerate(level_of) if other == level - 1]
        if below:
            linked = rng.sample(below, rng.randint(1, len(below)))
            for _ in range(8):
                E[i, rng.choice(linked)] += 1 / 8
    return texts, level_of, E


@given(st.integers(0, 2 ** 32), st.lists(st.integers(1, 6), min_size=1, max_size=3), st.booleans(), st.booleans())
def test_scores_equal_the_naive_ones(seed, levels, attention, similarity):
    """z = Eᵀr equals the sum of equation 1. Both normalisations and both ablations are equal too, with sums of zero and
    negative cosines."""
    rng = random.Random(seed)
    _, _, E = random_graph(rng, levels)
    r = [rng.choice([0, 0, rng.random()]) for _ in E]
    c = [rng.choice([0, rng.uniform(-1, 1)]) for _ in E]

    z, final = naive_scores(E, r, c, attention, similarity)
    r, c = (torch.tensor(values, dtype=torch.float64) for values in (r, c))
    ours = final_scores(torch.from_numpy(E).to_sparse(), r, c, attention, similarity)
    assert ours[0].tolist() == pytest.approx(z, rel=1e-12)                     # float64 rounds by 1e-15
    assert ours[1].tolist() == pytest.approx(final, rel=1e-12)


CHUNK = 4                         # so small that a top level can exceed the window by little or by much
CHOICES = st.fixed_dictionaries({
    "confidence": st.sampled_from([0.0, .27, .5, .5, .55, .98]), "patience": st.integers(1, 4),
    "attention": st.booleans(), "similarity": st.booleans(),
    "fixed_nodes": st.one_of(st.none(), st.none(), st.integers(1, 12))}).filter(
        lambda chosen: chosen["attention"] or chosen["similarity"])

# The random searches must meet all these situations, or the test proves too little.
SITUATIONS = {"yes", "nodes", "all", "window", "no room", "ablation", "both scores", "p_yes is t_p", "patience",
              "part of the top", "up again", "a tie"}


def runner_up(step):
    """The second best node; None if there is none."""
    return step.candidates[1][0] if step.candidates and len(step.candidates) > 1 else None


def assert_same_steps(ours, wanted):
    """Every number of every step is equal; p_yes up to the rounding of one softmax."""
    assert len(ours) == len(wanted)
    for a, b in zip(ours, wanted):
        assert (a.node, a.r, a.z, a.score, a.verdict) == (b.node, b.r, b.z, b.score, b.verdict), "eighths do not round"
        assert runner_up(a) == b.runner_up
        assert (a.p_yes is None) == (b.p_yes is None)
        if b.p_yes is not None:
            assert a.p_yes == pytest.approx(b.p_yes, rel=1e-12), "one softmax in float64 rounds by 1e-16"


def situations(chosen, levels, level_of, steps, trace, end):
    """The SITUATIONS that this search met."""
    met = {end, "both scores" if chosen["attention"] and chosen["similarity"] else "ablation"}
    if any(step.p_yes == chosen["confidence"] for step in steps):
        met.add("p_yes is t_p")
    if sum(step.verdict == "Yes" for step in steps) > 1:
        met.add("patience")
    if sum(step.score is None for step in steps) < levels[-1]:
        met.add("part of the top")
    if any(level_of[b.node] > level_of[a.node] for a, b in zip(steps, steps[1:])):
        met.add("up again")
    if any(runner_up(step) is not None and step.score == step.candidates[1][2] for step in trace):
        met.add("a tie")
    return met


def test_searching_equals_the_naive_one(tiny):
    """Every visited node is equal, with its r, z, score, runner-up, p_yes and verdict; so are the end and the tokens.
    This holds for any graph, attention, similarity, verdicts and window, under every setting and ablation, and for
    ties."""
    met = set()

    @settings(max_examples=300)
    @given(st.integers(0, 2 ** 32), st.lists(st.integers(1, 7), min_size=1, max_size=3), st.integers(4, 120), CHOICES)
    def compare(seed, levels, room, chosen):
        rng = random.Random(seed)
        model = Scripted(tiny, seed)
        t = tiny.tokenizer
        texts, level_of, E = random_graph(rng, levels)
        question = " ".join(rng.choices(WORDS, k=rng.choice([1, 2, 4, 8])))
        c = [rng.randint(-2, 4) / 4 for _ in texts]

        opening = pecan.length_of(pecan.question_prompt(t, question))
        window = opening + pecan.length_of(pecan.answer_turn(t, 0)) + 2 + room
        wanted = naive_search(t, model.attend, model.p_yes, texts, level_of, E, question, c, chunk=CHUNK, window=window,
                              answer_tokens=2, **chosen)
        nodes = [Node(level, text) for level, text in zip(level_of, texts)]
        graph = Graph(nodes, [(i, j, E[i, j]) for i, j in np.argwhere(E).tolist()])
        s = Search(model, graph, question, torch.tensor(c), Settings(chunk=CHUNK, window=window, answer_tokens=2,
                                                                     **chosen))
        if wanted is None:
            met.add("no room")
            with pytest.raises(InputError, match="too small for a node"):
                s.run()
            return

        steps, end = wanted
        assert s.run() == end
        assert_same_steps(s.trace, steps)
        assert s.visited == [step.node for step in steps]
        assert [step.position for step in s.trace] == list(range(2, len(steps) + 2))
        assert all(step.c == (None if step.score is None else c[step.node]) for step in s.trace)

        # Tokens: the question, the nodes and every probe were run; the cache keeps all but the probes.
        probes = sum(step.p_yes is not None for step in steps) * len(t.frame.close)
        lines = sum(pecan.length_of(s.lines[step.node]) for step in steps)
        assert s.trace[-1].tokens == model.spent(s.spent_before)[1] == opening + lines + probes
        assert s.cache.lengths == [opening + lines]
        met.update(situations(chosen, levels, level_of, steps, s.trace, end))

    compare()
    assert met == SITUATIONS, f"no example has met: {SITUATIONS - met}"
