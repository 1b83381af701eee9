"""What a run left of each document, read again, with what is known to be true of it."""
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors.torch
import torch

from core.files import read_json
from data import Document, Question
from pecan import Graph
from study.choices import Attended, Chosen, Heads, edges_of
from study.truth import facts_reader, leading, needed_chunks, sources_of

Attention = tuple[np.ndarray, np.ndarray]        # of each head [n, L, H]: on what is right, and on all


class Asked(NamedTuple):
    """A question, raw attention [|V|, L, H] (capture.py), and the truth."""
    text: Question
    question: np.ndarray          # of each node's tokens to the question's
    after: np.ndarray             # of the question's tokens to each node's, with the question after the nodes
    empty: np.ndarray             # of each node's tokens to those of a question without content
    c: np.ndarray                 # cosine of the question and each node [|V|]
    needed: list[int]             # ids of the chunks that the answer needs
    leads: np.ndarray             # whether each node leads to one of them, 1 or 0 [|V|]
    search: dict                  # row of search.json; empty if not there
    ways: dict                    # rows of ways.json, ablations.json, next.json and extensions.json


class Record(NamedTuple):
    """A document, its graph, raw edges and questions."""
    document: Document
    facts: Callable | None        # finds facts in texts of the embedded world, None elsewhere
    graph: Graph
    raw: Attended
    known: dict[int, list[int]]   # the known sources of each information point
    asked: list[Asked]


def read_record(folder: Path, document: Document) -> Record | None:
    """The record of a document; None if its heads.safetensors is not there yet."""
    if not (folder / "heads.safetensors").exists():
        return None
    facts = facts_reader(document)
    graph = Graph.load(folder / "graph.json", document)
    edges = safetensors.torch.load_file(folder / "edges.safetensors")
    lengths = torch.tensor([len(node.text) for node in graph.nodes])
    known = sources_of(graph, edges["pairs"], facts)
    tensors = {name: tensor.numpy() for name, tensor in
               safetensors.torch.load_file(folder / "heads.safetensors").items()}
    rows = {name: read_json(folder / f"{name}.json")["rows"] if (folder / f"{name}.json").exists() else None
            for name in ("search", "ways", "ablations", "next", "extensions")}

    asked = []
    for n, question in enumerate(document.questions):
        needed = needed_chunks(document, graph, question)
        leads = np.array(leading(graph, question, needed, facts), float)
        found = {name: of_name[n] if of_name else {} for name, of_name in rows.items()}
        asked.append(Asked(question, tensors[f"{n}.question"], tensors[f"{n}.after"], tensors["empty"],
                           tensors[f"{n}.c"], needed, leads, found["search"],
                           found["ways"] | found["ablations"] | found["next"] | found["extensions"]))
    return Record(document, facts, graph, Attended(**edges, lengths=lengths), known, asked)


# --- heads ----------------------------------------------------------------------------------------------------------

def on_sources(record: Record) -> Attention:
    """Of each IP with known sources: its attention to them, and to all nodes of its window."""
    pairs, e = record.raw.pairs.numpy(), record.raw.e.numpy()
    right, all_ = [], []
    for i, known in record.known.items():
        of_point = pairs[:, 0] == i
        if known and of_point.sum() > len(known):
            right.append(e[of_point & np.isin(pairs[:, 1], known)].sum(0))
            all_.append(e[of_point].sum(0))
    return stacked(right, record), stacked(all_, record)


def on_right_points(record: Record) -> Attention:
    """Of each question: the attention to it of the IPs that lead to what it needs, and of all IPs.

    A question counts if they are of both kinds.
    """
    points = [i for i, node in enumerate(record.graph.nodes) if node.level > 1]
    right, all_ = [], []
    for asked in record.asked:
        leads = asked.leads[points].astype(bool)
        if 0 < leads.sum() < len(points):
            right.append(asked.question[points][leads].sum(0))
            all_.append(asked.question[points].sum(0))
    return stacked(right, record), stacked(all_, record)


def stacked(rows: list[np.ndarray], record: Record) -> np.ndarray:
    """Rows [L, H] as one array [n, L, H], also if there is none."""
    return np.array(rows).reshape(-1, *record.raw.e.shape[1:])


def all_of(attention: list[Attention]) -> Attention:
    """The attention of several documents as one."""
    return tuple(np.concatenate([part[n] for part in attention]) for n in range(2))


def best_single(attention: list[Attention], k: int) -> Heads:
    """The k heads of whose attention what is right has the largest share, each on its own; all if nothing is known."""
    right, all_ = all_of(attention)
    shares = (right / all_.clip(1e-30)).sum(0)                                               # [L, H]
    order = (-shares).argsort(axis=None, kind="stable")
    return [divmod(int(n), shares.shape[1]) for n in order[:k if len(right) else None]]


def chosen_by(attention: list[Attention], k: int) -> Chosen:
    return Chosen(best(attention, k), best_single(attention, k))


def best(attention: list[Attention], k: int) -> Heads:
    """Up to k heads, so that what is right has the largest share of their attention together; all if nothing is known.

    The head with the largest share comes first, then whichever raises it most, as long as one does. E and r are means
    over heads, so a head with much attention in the wrong places spoils them, however well it ranks.
    """
    right, all_ = all_of(attention)
    heads, share = [], 0.0
    while len(heads) < k and len(right):
        with_others = [part + sum(part[:, layer, head, None, None] for layer, head in heads) for part in (right, all_)]
        shares = (with_others[0] / with_others[1].clip(1e-30)).mean(0)                       # [L, H]
        for layer, head in heads:
            shares[layer, head] = 0
        if shares.max() <= share:
            break
        share = shares.max()
        heads.append(divmod(int(shares.argmax()), shares.shape[1]))
    return heads or list(np.ndindex(right.shape[1:]))


def how_many(layers: int, heads: int) -> int:
    """Heads to choose: ten, or a sixth of the model's if it has fewer than sixty."""
    return max(1, min(10, layers * heads // 6))


def by_attention(record: Record) -> np.ndarray:
    """The paper's E [|V|, |V|]."""
    return edges_of(record.raw.pairs, record.raw.e.mean((1, 2)), len(record.graph.nodes)).numpy()
