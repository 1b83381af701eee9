"""Readings of the paper and alternatives to it, a few lines each: how edges E and relevance r come from raw attention.

    e_h(i, j)   e' of head h: the mean over the tokens of IP i of a_h(x, j)      [M, L, H] for the M pairs (i, j)
    a_h(i)      mean attention of node i's tokens to the question's, in head h   [|V|, L, H]
    S           the visited nodes, in the order of reading

Every E has rows that sum to 1. The paper's is the mean of e_h over all layers and heads. What is known of a question
(record.Asked) comes as `raw`.
"""
from typing import NamedTuple

import numpy as np
import torch

Heads = list[tuple[int, int]]     # (layer, head), counted from 0


class Chosen(NamedTuple):
    """Heads chosen on other documents, best first."""
    together: Heads               # whose attention together is best placed (record.best)
    single: Heads                 # the best, each on its own (record.best_single)


# --- edges ----------------------------------------------------------------------------------------------------------

def edges_of(pairs: torch.Tensor, values: torch.Tensor, V: int) -> torch.Tensor:
    """E [|V|, |V|] from a value for each pair [M]: each row divided by its sum."""
    E = torch.zeros(V, V, dtype=torch.float64)
    E[pairs[:, 0], pairs[:, 1]] = values.double()
    sums = E.sum(1, keepdim=True)
    return E / sums.where(sums > 0, 1)


def weighted_edges(pairs: torch.Tensor, e: torch.Tensor, heads: Heads, V: int) -> torch.Tensor:
    """E by the mean over some heads."""
    return edges_of(pairs, e[:, [layer for layer, _ in heads], [head for _, head in heads]].mean(1), V)


class Attended(NamedTuple):
    """What stage 1 left: see run.py. `lengths` are the characters of each node's text."""
    pairs: torch.Tensor
    e: torch.Tensor
    without_sink: torch.Tensor
    vectors: torch.Tensor
    lengths: torch.Tensor


def edge_choices(raw: Attended, heads: Chosen) -> dict[str, torch.Tensor]:
    """Name -> E of every reading and alternative."""
    pairs, e, V = raw.pairs, raw.e, len(raw.vectors)
    i, j = pairs.T
    cosines = (raw.vectors[i] * raw.vectors[j]).sum(1).clamp(min=0)
    few = max(1, len(heads.together) // 2)

    return {
        "the paper": edges_of(pairs, e.mean((1, 2)), V),
        "uniform": edges_of(pairs, torch.ones(len(pairs)), V),
        "similarity": edges_of(pairs, cosines, V),
        "upper half of the layers": edges_of(pairs, e[:, e.shape[1] // 2:].mean((1, 2)), V),
        "chosen heads": weighted_edges(pairs, e, heads.together, V),
        "half of the chosen heads": weighted_edges(pairs, e, heads.together[:few], V),
        "the best heads one by one": weighted_edges(pairs, e, heads.single, V),
        "sum over the node, by characters": edges_of(pairs, e.mean((1, 2)) * raw.lengths[j], V),
        "without the first token's sink": edges_of(pairs, raw.without_sink.mean((1, 2)), V),
    }


# --- relevance ------------------------------------------------------------------------------------------------------

def position(S: list[int]) -> np.ndarray:
    """Positions of the visited nodes, as in Appendix C: the query has 1, the first node 2 [S]."""
    return np.arange(2, len(S) + 2)


def concentrated(a: np.ndarray) -> np.ndarray:
    """Heads weighted by how concentrated they are over S, without labels [S], from a [S, L, H].

    Every head's attention is divided by its sum over S. Heads are averaged with weights KL(shares, uniform) squared.
    """
    heads = a.reshape(len(a), -1)
    shares = heads / heads.sum(0).clip(1e-30)
    divergence = (shares * np.log(shares.clip(1e-30) * len(a))).sum(0).clip(0)
    total = (divergence ** 2).sum()
    return shares @ (divergence ** 2) / total if total > 0 else shares.mean(1)


def of_heads(a: np.ndarray, heads: Heads) -> np.ndarray:
    """The mean over some heads [S]."""
    return a[:, [layer for layer, _ in heads], [head for _, head in heads]].mean(1)


def above_mean(r: np.ndarray) -> np.ndarray:
    """r above its mean over S, 0 elsewhere."""
    return (r - r.mean()).clip(0)


def paper(raw, S: list[int], p: np.ndarray, heads: Chosen | None = None) -> np.ndarray:
    """position x mean over layers, heads and tokens (Appendix C) [S]."""
    return p * raw.question[S].mean((1, 2))


# Name -> r of the visited nodes S at positions p [S]. All have the position factor, unless they say otherwise.
RELEVANCE = {
    "the paper": paper,
    "without position": lambda raw, S, p, heads: raw.question[S].mean((1, 2)),
    "uniform": lambda raw, S, p, heads: np.ones(len(S)),
    "query after the nodes, without position": lambda raw, S, p, heads: raw.after[S].mean((1, 2)),
    "minus that of \"N/A\"": lambda raw, S, p, heads: p * (raw.question[S] - raw.empty[S]).mean((1, 2)).clip(0),
    "divided by that of \"N/A\"": lambda raw, S, p, heads: raw.question[S].mean((1, 2)) / raw.empty[S].mean((1, 2)),
    "above its mean": lambda raw, S, p, heads: above_mean(paper(raw, S, p)),
    "squared": lambda raw, S, p, heads: paper(raw, S, p) ** 2,
    "to the fourth power": lambda raw, S, p, heads: paper(raw, S, p) ** 4,
    "heads weighted by concentration": lambda raw, S, p, heads: p * concentrated(raw.question[S]),
    "chosen heads": lambda raw, S, p, heads: p * of_heads(raw.question[S], heads.together),
    "chosen heads, above its mean": lambda raw, S, p, heads: above_mean(p * of_heads(raw.question[S], heads.together)),
    "the best heads one by one": lambda raw, S, p, heads: p * of_heads(raw.question[S], heads.single),
    "an oracle's": lambda raw, S, p, heads: raw.leads[S].astype(float),
}
