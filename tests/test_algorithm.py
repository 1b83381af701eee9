"""Ring 7, the algorithm: pecan.py against a second implementation (naive.py), on random graphs and random attention.

Attention, replies and verdicts are made up here, by tables; all else is the real thing: tokenizer, node cache, spans,
averages, probes, generation, graph and search. The made-up numbers are multiples of powers of 2, and nodes have 1, 2, 4
or 8 tokens, so that sums are exact: both implementations must agree on every number, and on every tie.
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

import pecan
from data import Document
from llama import Llama
from pecan import Graph, Node, Search, build, edge_weights, final_scores
from support.files import InputError
from support.settings import Settings

ROWS, CAPACITY = 211, 2048                     # of the attention table
WORDS = "Mara Theo Ada Igor Ulla Carl Dora Emil Felix Oslo baker job".split()


class Scripted(Llama):
    """A Llama whose attention, next tokens and verdicts come from tables in place of a forward pass."""

    def __init__(self, tiny, seed):
        rng = np.random.default_rng(seed)
        config = replace(tiny.config, layers=1, kv_heads=1, heads=1, head_width=2, width=2)
        super().__init__(config, {"model.embed_tokens.weight": torch.zeros(config.vocab, 2)}, tiny.tokenizer)
        self.table = rng.integers(0, 9, (ROWS, CAPACITY)) / 8
        self.yes = rng.integers(-3, 2, CAPACITY)
        encode = self.tokenizer.encode
        self.yes_id, self.no_id = self.tokenizer.first("Yes"), self.tokenizer.first("No")
        star, newline = encode("*"), encode("\n")
        self.next = rng.permutation(sum(map(encode, WORDS), []) + 6 * star + 5 * newline + encode("\n\n")
                                    + 2 * list(config.eos))
        self.fingerprint = "scripted"

    def attend(self, token, x, y):
        return self.table[(31 * token + x) % ROWS, y]

    def follow(self, token, x):
        """After a newline a star, mostly: replies are bullets with some disorder."""
        if token == self.tokenizer.encode("\n")[0] and x % 4:
            return self.tokenizer.encode("*")[0]
        return self.next[(17 * token + 5 * x) % len(self.next)].item()

    def p_yes(self, x):
        return 1 / (1 + np.exp(-float(self.yes[x])))

    def forward(self, tokens, positions, mask=None, cache=None, averaging=None):
        hidden = torch.stack((tokens, positions), -1)
        if averaging is None:
            return hidden, None
        a = torch.from_numpy(self.table)[(31 * tokens + positions) % ROWS].float()[:, :, :averaging.shape[1]]
        return hidden, a @ averaging

    def logits(self, hidden):
        logits = torch.zeros(len(hidden), self.config.vocab)
        for row, (token, x) in zip(logits, hidden.tolist()):
            row[self.follow(token, x)] = 100
            row[self.yes_id], row[self.no_id] = float(self.yes[x]), 0
        return logits


# --- stage 1 --------------------------------------------------------------------------------------------------------

def test_building_equals_the_naive_one(tiny):
    """Chunks, windows, replies, IPs, levels and edges, for any attention and any reply; with one summary for each
    window too. And what a graph is: E strictly one level down, hence acyclic, each row of mass 1 or empty, no edge
    across windows."""
    met = Counter()

    @settings(max_examples=150)
    @given(st.integers(0, 2 ** 32), st.integers(1, 25), st.integers(1, 4), st.integers(4, 12), st.sampled_from([1, 8]),
           st.booleans())
    def compare(seed, sentences, passages, chunk, batch, tree):
        rng, model = random.Random(seed), Scripted(tiny, seed)
        texts = [" ".join(rng.choice(WORDS) for _ in range(4 * sentences)) for _ in range(passages)]
        graph = build(model, Document("d", texts), Settings(chunk=chunk, window=220, summary_share=.15, tree=tree,
                                                            batch=batch))
        nodes, levels, E = naive_build(model.tokenizer, model.attend, model.follow, model.config.eos[0], texts, chunk,
                                       220, .15, tree)
        assert [node.text for node in graph.nodes] == nodes and [node.level for node in graph.nodes] == levels
        ours = graph.E.to_dense().numpy()
        assert (error := np.abs(ours - E).max()) < 1e-6, f"{error}: averages are float32"
        assert all(levels[i] == levels[j] + 1 and i > j for i, j in np.argwhere(ours))
        off = max(abs(row.sum() - (level > 1)) for row, level in zip(ours, levels))
        assert off < 1e-9, f"rows sum to 1 or are empty; float64 rounds by 1e-16: {off}"
        windows = {frozenset(np.flatnonzero(row)) for row in E if row.any()}
        met.update([levels[-1], ("tree", tree), ("windows apart", any(not a & b for a in windows for b in windows))])
    compare()
    assert {1, 2, 3, ("tree", True), ("tree", False), ("windows apart", True)} <= set(met), met


@settings(max_examples=500)
@given(st.lists(st.sampled_from(["*", "\n", "\n*", "\n\n", "Mara", "job"]), min_size=1), st.booleans())
def test_bullets_equal_the_naive_ones(tiny, reply, cut):
    """Line by line over characters in pecan.py, token by token in naive.py."""
    ids = sum(map(tiny.tokenizer.encode, reply), [])
    limit = len(ids) + (not cut)
    # attention of token x to "node" x alone: the edges then tell which tokens an IP was made of
    window = list(range(len(ids)))
    points = pecan.information_points(tiny.tokenizer, ids, torch.eye(len(ids)), window, limit, tree=False)
    ours = [set(np.flatnonzero(point.e)) for point in points]
    assert ours == [set(point) for point in naive_points(tiny.tokenizer, ids, cut)]


@given(st.integers(0, 2 ** 32), st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(1, 6))
def test_edges_from_all_layers_and_heads(seed, layers, heads, ips, nodes):
    """From raw weights [L, H, T, T] with every mean written out: over heads, layers, tokens of j, tokens of i. (That
    the model's a(x, j) is such a mean, test_accumulation.py tells.)"""
    rng = np.random.default_rng(seed)
    spans, end = [], 3
    for _ in range(nodes + ips):
        spans.append(range(end, end + rng.integers(1, 6)))
        end = spans[-1].stop + 1
    lower, higher, raw = spans[:nodes], spans[nodes:], rng.random((layers, heads, end, end))
    a = torch.tensor([[sum(raw[layer, head, x, y] for layer in range(layers) for head in range(heads) for y in j)
                       / layers / heads / len(j) for j in lower] for x in range(end)])
    for i in higher:
        e = [sum(raw[layer, head, x, y] for layer in range(layers) for head in range(heads) for x in i for y in j)
             / layers / heads / len(i) / len(j) for j in lower]
        wanted = [weight / sum(e) for weight in e]
        assert edge_weights(a, list(i)).tolist() == pytest.approx(wanted, rel=1e-12)     # float64, sums of a hundred


# --- stage 2 --------------------------------------------------------------------------------------------------------

def random_graph(rng, levels, sizes=(1, 2, 4)):
    """Texts, levels and E of a graph whose edges are eighths; some nodes have no predecessor, as after a reply without
    IPs."""
    level_of = [level for level, count in enumerate(levels, 1) for _ in range(count)]
    texts = [" ".join(rng.choices(WORDS, k=rng.choice(sizes))) for _ in level_of]
    E = np.zeros((len(texts), len(texts)))
    for i, level in enumerate(level_of):
        below = [j for j, other in enumerate(level_of) if other == level - 1]
        linked = rng.sample(below, rng.randint(1, len(below))) if below else []
        for _ in range(8 if linked else 0):
            E[i, rng.choice(linked)] += 1 / 8
    return texts, level_of, E


@given(st.integers(0, 2 ** 32), st.lists(st.integers(1, 6), min_size=1, max_size=3), st.booleans(), st.booleans())
def test_scores_equal_the_naive_ones(seed, levels, attention, similarity):
    """z = E^T r against the sum of equation 1, both normalisations, both ablations; zero sums and negative cosines."""
    rng = random.Random(seed)
    _, _, E = random_graph(rng, levels)
    r = [rng.choice([0, 0, rng.random()]) for _ in E]
    c = [rng.choice([0, rng.uniform(-1, 1)]) for _ in E]
    z, final = naive_scores(E, r, c, attention, similarity)
    r, c = (torch.tensor(x, dtype=torch.float64) for x in (r, c))
    ours = final_scores(torch.from_numpy(E).to_sparse(), r, c, attention, similarity)
    assert ours[0].tolist() == pytest.approx(z, rel=1e-12)                     # float64: rounding is 1e-15
    assert ours[1].tolist() == pytest.approx(final, rel=1e-12)


CHUNK = 4                         # so that a top level can be too large for the window by little and by much
CHOICES = st.fixed_dictionaries({
    "confidence": st.sampled_from([0.0, .27, .5, .5, .55, .98]), "patience": st.integers(1, 4),
    "attention": st.booleans(), "similarity": st.booleans(),
    "fixed_nodes": st.one_of(st.none(), st.none(), st.integers(1, 12))}).filter(
        lambda chosen: chosen["attention"] or chosen["similarity"])


def test_searching_equals_the_naive_one(tiny):
    """Every visited node with its r, z, score, runner-up, p_yes and verdict, the end and the tokens, for any graph,
    attention, similarity, verdicts and window, under every setting and ablation; ties too."""
    met = Counter()

    @settings(max_examples=400)
    @given(st.integers(0, 2 ** 32), st.lists(st.integers(1, 7), min_size=1, max_size=3), st.integers(4, 120), CHOICES)
    def compare(seed, levels, room, chosen):
        rng, model, t = random.Random(seed), Scripted(tiny, seed), tiny.tokenizer
        texts, level_of, E = random_graph(rng, levels)
        question = " ".join(rng.choices(WORDS, k=rng.choice([1, 2, 4, 8])))
        c = [rng.randint(-2, 4) / 4 for _ in texts]
        turn = pecan.length_of(pecan.answer_turn(t, 0))
        window = pecan.length_of(pecan.question_prompt(t, question)) + turn + 2 + room
        wanted = naive_search(t, model.attend, model.p_yes, texts, level_of, E, question, c, chunk=CHUNK,
                              window=window, answer_tokens=2, **chosen)
        nodes = [Node(level, text) for level, text in zip(level_of, texts)]
        graph = Graph(nodes, torch.from_numpy(E).to_sparse(), "", "", {})
        s = Search(model, graph, question, torch.tensor(c),
                   Settings(chunk=CHUNK, window=window, answer_tokens=2, **chosen))
        if wanted is None:
            met["no room"] += 1
            with pytest.raises(InputError, match="too small for a node"):
                s.run()
            return
        steps, end = wanted
        assert s.run() == end
        ours = [[step.node, step.r, step.z, step.score, step.runner_up, step.p_yes, step.verdict] for step in s.trace]
        assert len(ours) == len(steps) and s.visited == [step[0] for step in steps]
        for a, b in zip(ours, steps):
            assert a[:5] == b[:5] and a[6] == b[6], (a, b)                   # exact: sums of eighths have no rounding
            assert (a[5] is None) == (b[5] is None)
            assert a[5] is None or a[5] == pytest.approx(b[5], rel=1e-12), "one softmax in float64 rounds by 1e-16"
        assert [step.position for step in s.trace] == list(range(2, len(steps) + 2))
        assert all(step.similarity == (None if step.score is None else c[step.node]) for step in s.trace)
        assert s.trace[-1].tokens == s.tokens
        probes = sum(step[5] is not None for step in steps)
        lines = sum(pecan.length_of(s.lines[step[0]]) for step in steps)
        assert s.tokens == pecan.length_of(pecan.question_prompt(t, question)) + lines + probes * len(t.frame.close)
        assert s.cache.lengths == [s.tokens - probes * len(t.frame.close)]
        met.update([end, "ablation" if not (chosen["attention"] and chosen["similarity"]) else "both scores"])
        met["p_yes is t_p"] += any(step[5] == chosen["confidence"] for step in steps)
        met["patience"] += sum(step[6] == "Yes" for step in steps) > 1
        met["part of the top"] += sum(step[3] is None for step in steps) < levels[-1]
        met["up again"] += any(level_of[b[0]] > level_of[a[0]] for a, b in zip(steps, steps[1:]))
        met["a tie"] += any(step.score == step.runner_up_score for step in s.trace if step.runner_up is not None)
    compare()
    missing = {"yes", "nodes", "all", "window", "no room", "ablation", "both scores", "p_yes is t_p", "patience",
               "part of the top", "up again", "a tie"} - {name for name, count in met.items() if count}
    assert not missing, f"no example has met: {missing}"
