"""Ring 7, the algorithm: pecan.py equals a second implementation (naive.py), on random graphs and random attention.

Attention, replies and verdicts are read from tables; all else is real: tokenizer, node cache, spans, averaging, probes,
generation, graph and search. The numbers in the tables are multiples of powers of 2, and the nodes of a search have 1,
2, 4 or 8 tokens. So its sums are exact, and both implementations must agree on every number and every tie. Edges agree
to 1e-6.
"""
import random
from collections import Counter, defaultdict
from dataclasses import replace
from functools import partial

import naive
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_points import points
from oracle import beside, graph_of

import pecan
from core.files import InputError, attempt
from core.settings import Settings
from data import Answer, Document
from llama import Llama, flops_of, length_of
from pecan import Graph, Node, Search

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
        self.table = torch.from_numpy(rng.integers(0, 9, (ROWS, CAPACITY)) / 8)
        self.yes = rng.integers(-3, 2, CAPACITY).astype(float)  # logits of Yes; No has 0

        # Replies consist of words and of enough markers and newlines to form bullets.
        encode = self.tokenizer.encode
        self.star, self.newline = encode("*")[0], encode("\n")[0]
        texts = WORDS + 6 * ["*"] + 5 * ["\n"] + ["\n\n"]
        tokens = [token for text in texts for token in encode(text)]
        self.vocabulary = rng.permutation(tokens + 2 * list(config.eos)).tolist()

    def attend(self, token, x, y):
        """Attention of `token` at position x to position y."""
        return self.table[(31 * token + x) % ROWS, y].item()

    def follow(self, token, x):
        """The next token, after a newline mostly a star. So replies are bullets with some disorder, or they loop."""
        if token == self.newline and (x % 4 or self.looping):
            return self.star
        return self.vocabulary[(17 * token + 5 * x * (not self.looping)) % len(self.vocabulary)]

    def p_yes(self, x):
        return torch.tensor([self.yes[x], 0], dtype=torch.float64).softmax(0)[0].item()

    def forward(self, tokens, positions, cache, attended=0, ends=None, slots=0):
        hidden = torch.stack((tokens, positions), -1)
        if ends is not None:
            hidden = hidden.take_along_dim(ends[:, :, None], 1)
        if not attended:
            return hidden, None
        attention = self.table[(31 * tokens + positions) % ROWS].float()
        return hidden, attention[:, :, :attended]

    def logits(self, hidden, tokens=slice(None)):
        logits = torch.zeros(len(hidden), self.config.vocab)
        self.flops += flops_of(self.config, 0, 0, len(hidden))
        for row, (token, x) in zip(logits, hidden.tolist()):
            row[self.follow(token, x)] = 100
            row[self.tokenizer.first("Yes")] = self.yes[x]
            row[self.tokenizer.first("No")] = 0
        return logits[:, tokens]


# --- stage 1 --------------------------------------------------------------------------------------------------------

def test_building_equals_the_naive_one(tiny):
    """Chunks, groups, replies, IPs, levels and edges are equal for any attention and any reply, also with one summary
    for each group (w/o IP-based graph)."""
    met = set()

    @settings(max_examples=100)
    @given(st.integers(0, 2 ** 32), st.integers(1, 25), st.integers(1, 4), st.integers(4, 12), st.booleans())
    def compare(seed, sentences, passages, chunk, tree):
        rng = random.Random(seed)
        model = Scripted(tiny, seed)
        texts = [" ".join(rng.choices(WORDS, k=4 * sentences)) for _ in range(passages)]
        graph = graph_of(model, Document("d", texts), Settings(chunk=chunk, window=219, summary_share=.15, tree=tree))
        nodes, levels, edges = naive.build(tiny.tokenizer, model.attend, model.follow, model.config.eos, texts,
                                           chunk, 219, .15, tree)          # 32.85 tokens for a summary: 32

        assert [(node.text, node.level) for node in graph.nodes] == list(zip(nodes, levels))
        assert graph.edges == [(i, j, pytest.approx(e, abs=1e-6)) for (i, j), e in edges.items() if e], "float32"
        met.add((levels[-1], levels.count(levels[-1]) > 1))

    compare()
    assert met >= {(1, False), (1, True), (2, False), (2, True), (3, False)}, "one chunk; no shorter; up to one node"


@settings(max_examples=500)
@given(st.lists(st.sampled_from(["*", "\n", "\n*", "\n\n", "Mara", "job", ":"]), min_size=1), st.booleans())
def test_bullets_equal_the_naive_ones(tiny, reply, cut):
    """pecan.py finds bullets line by line over characters, naive_points.py token by token. A repeat is left out."""
    ids = sum(map(tiny.tokenizer.encode, reply), [])
    limit = len(ids) if cut else len(ids) + 1

    # Token x attends only to "node" x, so the edges of an IP show its tokens.
    found = pecan.information_points(tiny.tokenizer, ids, torch.eye(len(ids)), limit, tree=False)
    ours = [(text, np.flatnonzero(e).tolist()) for text, e in found]
    assert ours == [*points(tiny.tokenizer, ids, cut).items()]


# --- stage 2 --------------------------------------------------------------------------------------------------------

def random_search(rng, levels, lengths=(1, 2, 4)):
    """A graph whose texts have so many words and whose edge weights are eighths, a question, and similarities c.

    Some nodes have no predecessor, as after a reply without IPs.
    """
    def text(*lengths):
        return " ".join(rng.choices(WORDS, k=rng.choice(lengths)))

    nodes = [Node(level, text(*lengths)) for level, count in enumerate(levels, 1) for _ in range(count)]
    eighths = Counter()
    for i, node in enumerate(nodes):
        below = [j for j, other in enumerate(nodes) if other.level == node.level - 1]
        eighths.update((i, rng.choice(below)) for _ in range(8 if below else 0))
    graph = Graph(nodes, [(i, j, n / 8) for (i, j), n in sorted(eighths.items())])
    return graph, text(1, 2, 4, 8), [rng.randint(-2, 4) / 4 for _ in nodes]


CHUNK = 4                         # so small that a top level can exceed the window by little or by much
CHOICES = st.fixed_dictionaries({
    "confidence": st.sampled_from([0.0, .27, .5, .5, .55, .98]), "patience": st.integers(1, 4),
    "attention": st.booleans(), "similarity": st.booleans(),
    "fixed_nodes": st.one_of(st.none(), st.none(), st.integers(1, 12))}).filter(
        lambda chosen: chosen["attention"] or chosen["similarity"])


def test_searching_equals_the_naive_one(tiny):
    """Every visited node is equal, with its r, z, c, score, the ten best candidates, p_yes and verdict; so is the end.

    This holds for any graph, attention, similarity, verdicts and window, for ties, and under every setting: t_p, t_n,
    without attention, without similarity, with a fixed number of nodes.
    """
    met = set()

    @settings(max_examples=300)
    @given(st.integers(0, 2 ** 32), st.lists(st.integers(1, 7), min_size=1, max_size=3), st.integers(4, 120), CHOICES)
    def compare(seed, levels, room, chosen):
        model = Scripted(tiny, seed)
        t = tiny.tokenizer
        graph, question, c = random_search(random.Random(seed), levels)
        chosen |= {"chunk": CHUNK, "answer_tokens": 2, "window": room + 2 + length_of(
            pecan.question_prompt(t, question) + pecan.answer_turn(t, 0))}

        texts, level_of = zip(*((node.text, node.level) for node in graph.nodes))
        E = defaultdict(float, {(i, j): e for i, j, e in graph.edges})
        steps, end = naive.search(t, model.attend, model.p_yes, texts, level_of, E, question, c, **chosen)
        s = Search(model, graph, question, torch.tensor(c), Settings(**chosen))
        met.add(end)
        if not steps:
            with pytest.raises(InputError, match="too small for a node"):
                s.run()
            return
        assert s.run() == end
        assert [{key: vars(step)[key] for key in steps[0]} for step in s.trace] == steps, "eighths do not round"
        assert s.visited == [step["node"] for step in steps]

        best = [step["candidates"] or [] for step in steps]
        situations = {
            "p_yes is t_p": any(step["p_yes"] == chosen["confidence"] for step in steps),
            "patience": [step["verdict"] for step in steps].count("Yes") > 1,
            "part of the top": best.count([]) < levels[-1],
            "up again": any(level_of[b["node"]] > level_of[a["node"]] for a, b in zip(steps, steps[1:])),
            "a negative c is read": any(c[step["node"]] < 0 for step, ranked in zip(steps, best) if ranked),
            "a tie": any(ranked[0][2] == ranked[1][2] for ranked in best if len(ranked) > 1)}
        met.update(name for name, holds in situations.items() if holds)

    compare()
    assert met == {"the model said it knows enough", "the fixed number of nodes was read", "the window was full",
                   "all there was has been read", "no room", "p_yes is t_p", "patience", "part of the top", "up again",
                   "a negative c is read", "a tie"}, "the random searches must meet all these situations"


def test_searches_side_by_side_equal_those_alone(tiny):
    """Texts, steps, ends, FLOPs and tokens, for any graphs, questions, settings and rows, mixed in one cache. A row
    that has ended, or waits for its answer, does not run: what runs, counted pass by pass without padding, is what the
    searches cost alone. An error of one is an error of all, so that they are run again, alone."""
    def answer(model, **about):
        return Search(model, **about).answer()

    met = set()
    every_setting = st.tuples(st.integers(0, 2 ** 32), st.lists(st.integers(1, 6), min_size=1, max_size=3), CHOICES)

    @settings(max_examples=100)
    @given(st.integers(0, 2 ** 32), st.lists(every_setting, min_size=1, max_size=6), st.integers(1, 400))
    def compare(seed, choices, room):
        model = Scripted(tiny, seed)
        passes = []                                         # the FLOPs of each

        def forward(tokens, positions, cache, *rest):
            ends = [[n for n in row if n < cache.capacity] for row in positions.tolist()]             # not padding
            passes.append(sum(flops_of(tiny.config, len(row), row[-1] + 1) for row in ends))
            return Scripted.forward(model, tokens, positions, cache, *rest)

        model.forward = forward
        searches = []
        for seed, levels, chosen in choices:
            rng = random.Random(seed)
            graph, question, c = random_search(rng, levels, (1, 4, 64))                # 64: more than an answer's room
            turn = length_of(pecan.question_prompt(tiny.tokenizer, "") + pecan.answer_turn(tiny.tokenizer, 0))
            chosen = Settings(**chosen, chunk=CHUNK, answer_tokens=rng.randint(1, 3), window=turn + room)
            searches.append(partial(answer, graph=graph, question=question, c=torch.tensor(c), settings=chosen))

        right = [search for search in searches if isinstance(attempt(search, model), Answer)]
        if len(right) < len(searches):
            met.add("failed")
            with pytest.raises(InputError):
                beside(model, turn + room, searches)
        if not right:
            return

        passes.clear()
        alone = [search(model) for search in right]
        one_by_one = sum(passes)
        passes.clear()
        together = beside(model, turn + room, right)
        assert [*map(str, together)] == [*map(str, alone)], "all fields, those of the steps included"
        assert sum(passes) == one_by_one
        met.update(answer.end for answer in together if len(together) > 1)

    compare()
    assert len(met) == 5
