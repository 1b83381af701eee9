"""Does z find the needed chunk? Searches are replayed from the top level on, without the model, until they have it.

A replay reads the node with the highest score outside S, as pecan.Search does: of any level, the lower id if scores are
equal. What a node adds to r was measured once (capture.to_question); its position is that of the replay.

    rank              place of a needed chunk among the chunks, in the order in which the replay reads them
    recall at k       share of the needed chunks among the first k chunks that are read
    steps             nodes read after the top level until all needed chunks are read
"""
import itertools
import random
from collections.abc import Callable

import numpy as np

from baselines.bm25 import Okapi, words
from study.choices import RELEVANCE, edge_choices, position
from study.figures import Table, ranks
from study.record import Asked, Chosen, Record

RECALL = (1, 2, 5, 10)


def share(x: np.ndarray) -> np.ndarray:
    """x / sum(x), as pecan.share."""
    return x / x.sum() if x.sum() > 0 else np.zeros_like(x)


# How z and c are joined. Names say what is not the paper's.
JOINED = {
    "z + c": lambda z, c: share(z) + share(c.clip(0)),
    "z": lambda z, c: z,
    "z + c by ranks": lambda z, c: 1 / (60 + ranks(-z)) + 1 / (60 + ranks(-c)),
    "z + c by maximum": lambda z, c: np.maximum(share(z), share(c.clip(0))),
}


def replay(score: Callable, start: list[int], needed: list[int], candidates: np.ndarray) -> list[int]:
    """The nodes read after `start`, in order, until no needed candidate is left.

    score(S) gives the scores [|V|]; `candidates` are true or false [|V|].
    """
    S = list(start)
    left = candidates.copy()
    left[S] = False
    while left[needed].any():
        S.append(int(np.where(left, score(S), -np.inf).argmax()))            # the lower id if scores are equal
        left[S[-1]] = False
    return S[len(start):]


def by_attention(asked: Asked, E: np.ndarray, relevance: Callable, join: Callable, heads: Chosen) -> Callable:
    """The score of a search by z = E^T r, joined with c."""
    def score(S):
        r = np.zeros(len(E))
        r[S] = relevance(asked, S, position(S), heads)
        return join(E.T @ r, asked.c)
    return score


def constant(scores) -> Callable:
    """A score that does not depend on what was read."""
    return lambda S: scores


def orders(record: Record, asked: Asked, E: dict[str, np.ndarray], r_heads: Chosen) -> dict[str, list[int]]:
    """Name -> nodes read after the top level, in order, for every way of choosing the next node."""
    graph = record.graph
    V, top = len(graph.nodes), graph.top_level
    chunks = np.array([node.level == 1 for node in graph.nodes])
    texts = [words(node.text) for node in graph.nodes]
    rng = random.Random(asked.text.id)
    every = np.ones(V, bool)
    found = {}

    def attention(name, edges, relevance, join):
        score = by_attention(asked, E[edges], RELEVANCE[relevance], JOINED[join], r_heads)
        found[name] = replay(score, top, asked.needed, every)

    for name in JOINED:
        attention(name, "the paper", "the paper", name)
    for name in ("z", "z + c"):
        attention(f"{name}, E uniform", "uniform", "the paper", name)
        attention(f"{name}, E by chosen heads", "chosen heads", "the paper", name)
        for relevance in RELEVANCE:
            if relevance != "the paper":
                attention(f"{name}, r {relevance}", "the paper", relevance, name)
        attention(f"{name}, E and r by chosen heads", "chosen heads", "chosen heads", name)
        attention(f"{name}, E and r by chosen heads, r above its mean", "chosen heads",
                  "chosen heads, above its mean", name)

    okapi = np.zeros(V)
    okapi[chunks] = Okapi(list(itertools.compress(texts, chunks))).scores(words(asked.text.text))
    for name, scores, candidates in (
            ("c", asked.c, every),
            ("random", [rng.random() for _ in range(V)], every),
            ("BM25 over chunks", okapi, chunks),
            ("BM25 over all nodes", Okapi(texts).scores(words(asked.text.text)), every)):
        found[name] = replay(constant(scores), top, asked.needed, candidates)
    return found


def add_retrieval(table: Table, record: Record, edge_heads: Chosen, r_heads: Chosen):
    """Add a document. Graphs without information points have nothing to retrieve by."""
    if record.graph.nodes[-1].level == 1:
        return
    E = {name: E.numpy() for name, E in edge_choices(record.raw, edge_heads).items()}

    for asked in record.asked:
        found = orders(record, asked, E, r_heads)
        steps = {name: max(order.index(i) for i in asked.needed) + 1 for name, order in found.items()}
        for name, order in found.items():
            chunks = [i for i in order if record.graph.nodes[i].level == 1]
            for i in asked.needed:
                table.add(name, "rank", record.document.id, chunks.index(i) + 1)
                for k in RECALL:
                    table.add(name, f"recall at {k}", record.document.id, i in chunks[:k])

            table.add(name, "steps", record.document.id, steps[name])
            table.add(name, "steps - random's", record.document.id, steps[name] - steps["random"])
            table.add(name, "steps - c's", record.document.id, steps[name] - steps["c"])
