"""Attention of each head. The forward pass keeps only the mean over heads, so we watch its functions from outside.

    L layers   H query heads   T tokens   N nodes whose attention is wanted   |V| nodes of a graph   M edges
"""
import torch

import llama
import pecan
from core.settings import Settings
from core.watch import watching
from data import Document
from llama import Cache, Llama, Segment, length_of
from pecan import build, node_line, question_prompt, summary_prompt
from support.graph import Graph


def append(model: Llama, cache: Cache, row: list[Segment], nodes: list) -> torch.Tensor:
    """Append a row of segments; return a(x, j) of its tokens x to these nodes j in every head [L, H, T, N]."""
    averaging = cache.averaging_matrix([nodes])                                            # [1, P', N]
    layers = []

    def heard(result, *_):
        of_heads = result[1][0].flatten(0, 1)                                              # [H, T, P]
        layers.append(of_heads[..., :averaging.shape[1]] @ averaging[0])

    with watching(llama, "attention", heard):
        model.append(cache, [row], averaging)
    return torch.stack(layers).float().cpu()


def construct(model: Llama, document: Document, settings: Settings) -> tuple[Graph, torch.Tensor, torch.Tensor]:
    """Build a graph. Return the graph, the pairs [M, 2], and e'_ij of each pair in every head [M, L, H].

    A pair (i, j) is an IP and a node of its group. Every reply is read again after its prompt, because one pass gives
    the attention of all its tokens in every head.
    """
    groups, replies = [], []                                # texts; (token ids, tokens of each bullet)
    bullets = []                                            # of the current reply

    def heard_reply(points, tokenizer, ids, *_):
        replies.append((ids, list(bullets)))
        bullets.clear()

    with (watching(pecan, "edge_weights", lambda e, a, tokens: bullets.append(tokens)),
          watching(pecan, "information_points", heard_reply),
          watching(pecan, "summarise", lambda summaries, model, batch, *_: groups.extend(batch))):
        graph = build(model, document, settings, pecan.summarise)

    # Groups take the nodes in order, level after level, and bullets become nodes in order. Bullets of a discarded level
    # would have ids beyond the last node.
    pairs, e = [], [torch.zeros(0, model.config.layers, model.config.heads)]
    i, j = sum(node.level == 1 for node in graph.nodes), 0
    for texts, (ids, bullets) in zip(groups, replies, strict=True):
        bullets = bullets[:len(graph.nodes) - i]
        if bullets:
            prompt = summary_prompt(model.tokenizer, texts)
            cache = Cache(model, 1, length_of(prompt) + len(ids))
            model.append(cache, [prompt])
            a = append(model, cache, [(None, ids)], range(len(texts)))                     # [L, H, T, N]
        for tokens in bullets:
            pairs += [(i, j + n) for n in range(len(texts))]
            e.append(a[:, :, tokens].mean(2).permute(2, 0, 1))                             # [N, L, H]
            i += 1
        j += len(texts)
    return graph, torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2), torch.cat(e)


def to_question(model: Llama, graph: Graph, question: str) -> torch.Tensor:
    """Mean attention of each node's tokens to the question's tokens, in every head [|V|, L, H].

    The top level is read first, in document order, as in a search. Every other node is read directly after it and then
    rolled back. So each node is measured as if it were the first one that the search chose.
    """
    tokenizer = model.tokenizer
    lines = [node_line(tokenizer, i, node.text) for i, node in enumerate(graph.nodes)]
    opening = question_prompt(tokenizer, question)
    top = graph.top_level
    room = sum(length_of(lines[i]) for i in top) + max(map(length_of, lines))
    cache = Cache(model, 1, length_of(opening) + room)
    model.append(cache, [opening])

    found = {}
    for i in [*top, *(i for i in range(len(lines)) if i not in top)]:
        before = list(cache.lengths)
        marker, _ = lines[i]
        found[i] = append(model, cache, lines[i], ["q"])[:, :, len(marker[1]):, 0].mean(2)           # [L, H]
        if i not in top:
            cache.rollback(before)
    return torch.stack([found[i] for i in range(len(lines))])
