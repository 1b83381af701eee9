"""Attention head by head, seen from outside. The forward pass itself adds it up and drops it layer by layer.

    L layers   H query heads   N nodes whose attention is wanted   |V| nodes of a graph   M edges of a graph
"""
from collections import defaultdict
from contextlib import contextmanager
from typing import NamedTuple

import torch

import llama
from core.settings import Settings
from data import Document
from llama import Cache, Llama, length_of
from pecan import ASK, Graph, build, question_prompt
from support.trace import listening


class Pass(NamedTuple):
    """One pass of the model that was asked for attention to nodes."""
    cache: Cache
    rows: list[int]               # of the cache's first batch, those that still run
    a: torch.Tensor               # a(x, j) of each head [B, L, H, T, N]
    sink: torch.Tensor            # attention to the first token of the prompt [B, L, H, T]


@contextmanager
def watching(heard):
    """Within the block, `heard` gets a Pass after every pass with written-out attention. Results do not change."""
    attention, append, keep_rows = llama.attention, Llama.append, Cache.keep_rows
    layers = []
    rows_of = {}                                            # cache -> the rows that still run
    wanted = [None]                                         # averaging matrix of the pass that runs [B, P', N]

    def watched_attention(q, k, v, mask=None):
        out, weights = attention(q, k, v, mask)
        of_heads = weights.flatten(1, 2)                                                   # [B, H, T, P]
        seen = min(of_heads.shape[3], wanted[0].shape[1])
        layers.append((of_heads[..., :seen] @ wanted[0][:, None, :seen].to(of_heads.dtype), of_heads[..., 0]))
        return out, weights

    def watched_append(self, cache, rows, averaging=None):
        layers.clear()
        wanted[0] = averaging
        result = append(self, cache, rows, averaging)
        if averaging is not None:
            a, sink = (torch.stack(parts, 1).float().cpu() for parts in zip(*layers, strict=True))
            heard(Pass(cache, rows_of.get(cache, list(range(len(rows)))), a, sink))
        return result

    def watched_keep_rows(self, rows):
        before = rows_of.get(self, list(range(len(self.lengths))))
        rows_of[self] = [before[b] for b in rows]
        return keep_rows(self, rows)

    llama.attention, Llama.append, Cache.keep_rows = watched_attention, watched_append, watched_keep_rows
    try:
        yield
    finally:
        llama.attention, Llama.append, Cache.keep_rows = attention, append, keep_rows


# --- stage 1: edges of each head ------------------------------------------------------------------------------------

class Construction(NamedTuple):
    """A graph, and e'_ij of each head. M pairs (i, j) are neighbours: j was in the window whose summary has i."""
    graph: Graph
    pairs: torch.Tensor           # [M, 2]
    e: torch.Tensor               # e'_ij before the mean over layers and heads [M, L, H]
    without_sink: torch.Tensor    # the same when each row of attention is divided by 1 - its first token's [M, L, H]


def construct(model: Llama, document: Document, settings: Settings, progress: bool = False) -> Construction:
    """Build a graph, and keep every head's part of its edges."""
    replies = defaultdict(list)                             # row of the batch -> [2, L, H, N] of each token
    state = {"cache": None, "row": 0, "window": []}
    points = []                                             # (window, [2, L, H, N])

    def heard(seen: Pass):
        if seen.cache is not state["cache"]:
            replies.clear()
            state.update(cache=seen.cache, row=0)
        for b, row in enumerate(seen.rows):
            a = seen.a[b, :, :, 0]                                                         # [L, H, N]
            rest = 1 - seen.sink[b, :, :, 0, None]
            replies[row].append(torch.stack((a, a / rest.clamp(min=1e-6))))

    def noted(what, values):
        if what == "window":
            state.update(window=values["nodes"], reply=replies.get(state["row"], []), row=state["row"] + 1)
        if what == "edges":
            tokens = torch.stack([state["reply"][x] for x in values["tokens"]])            # [tokens, 2, L, H, N]
            points.append((state["window"], tokens.double().mean(0)[..., :len(state["window"])]))

    with watching(heard), listening(noted):
        graph = build(model, document, settings, progress)
    return Construction(graph, *of_pairs(graph, points))


def of_pairs(graph: Graph, points: list) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """pairs [M, 2] and both kinds of e' [M, L, H], checked against E. Points of a level that was given up are left out.

    Raises AssertionError if the mean over layers and heads is not E: then what was seen belongs to other points.
    """
    first = sum(node.level == 1 for node in graph.nodes)
    points = points[:len(graph.nodes) - first]
    pairs = [(i, j) for i, (window, _) in enumerate(points, first) for j in window]
    e, without_sink = torch.cat([a.permute(3, 0, 1, 2) for _, a in points]).float().unbind(1) if points else (
        torch.zeros(0, 1, 1), torch.zeros(0, 1, 1))

    E = graph.E.to_dense()
    mean = torch.zeros_like(E)
    for (i, j), value in zip(pairs, e.double().mean((1, 2)), strict=True):
        mean[i, j] = value
    sums = mean.sum(1, keepdim=True)
    assert (mean / sums.where(sums > 0, 1) - E).abs().max() < 1e-4, "attention of heads does not give E"
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2), e.contiguous(), without_sink.contiguous()


# --- stage 2: relevance of each head --------------------------------------------------------------------------------

def to_question(model: Llama, graph: Graph, question: str) -> torch.Tensor:
    """Mean attention of each node's tokens to the question's, in every head [|V|, L, H].

    The top level is read first, in document order, as a search does. Every other node is read directly after it, and
    rolled back. So the attention of a node that a search reads later is here that of a search's first choice.
    """
    seen = []
    tokenizer = model.tokenizer
    lines = graph.lines(tokenizer)
    opening = question_prompt(tokenizer, question)
    cache = Cache(model, 1, length_of(opening) + room_of(graph, lines))

    def read(i):
        model.read(cache, [lines[i]], cache.averaging_matrix([["q"]]))
        marker, _ = lines[i]
        return seen.pop().a[0, :, :, len(marker[1]):, 0].mean(2)                           # [L, H]

    with watching(seen.append):
        model.read(cache, [opening])
        return over_nodes(graph, cache, read)


def from_question(model: Llama, graph: Graph, question: str) -> torch.Tensor:
    """Mean attention of the question's tokens to each node's, with the question after the nodes [|V|, L, H].

    As in to_question, every other node is read directly after the top level, and the question after it.
    """
    seen = []
    tokenizer = model.tokenizer
    lines = graph.lines(tokenizer)
    order, heading = ASK[0].split("\n\n")
    opening = [(None, tokenizer.frame.open + tokenizer.encode(order + ASK[1]))]
    asked = [(None, tokenizer.encode("\n\n" + heading)), (None, tokenizer.encode(question))]
    cache = Cache(model, 1, length_of(opening) + room_of(graph, lines) + length_of(asked))

    def read(i):
        before = list(cache.lengths)
        model.read(cache, [lines[i]])
        after = list(cache.lengths)
        model.read(cache, [asked], cache.averaging_matrix([[i]]))
        cache.rollback(after if graph.nodes[i].level == graph.nodes[-1].level else before)
        return seen.pop().a[0, :, :, -len(asked[1][1]):, 0].mean(2)                        # [L, H]

    with watching(seen.append):
        model.read(cache, [opening])
        return over_nodes(graph, cache, read)


def room_of(graph: Graph, lines: list) -> int:
    """Tokens of the top level and of the longest other node."""
    return sum(length_of(lines[i]) for i in graph.top_level) + max(map(length_of, lines))


def over_nodes(graph: Graph, cache: Cache, read) -> torch.Tensor:
    """read(i) of each node [|V|, L, H]: the top level one after another, every other node directly after it."""
    found = {i: read(i) for i in graph.top_level}
    for i in range(len(graph.nodes)):
        if i not in found:
            before = list(cache.lengths)
            found[i] = read(i)
            cache.rollback(before)
    return torch.stack([found[i] for i in range(len(graph.nodes))])
