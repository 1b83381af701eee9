"""What a run left of each document, read again, with what is known to be true of it."""
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors.torch
import torch

from data import Document, Question
from pecan import Graph
from study.choices import Attended, Heads, edges_of
from study.figures import area
from study.truth import facts_reader, leading, needed_chunks, sources_of
from support.files import read_json


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
    ways: dict                    # rows of ways.json, ablations.json and extensions.json


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
            for name in ("search", "ways", "ablations", "extensions")}

    asked = []
    for n, question in enumerate(document.questions):
        needed = needed_chunks(document, graph, question)
        leads = np.array(leading(graph, question, needed, facts), float)
        found = {name: of_name[n] if of_name else {} for name, of_name in rows.items()}
        asked.append(Asked(question, tensors[f"{n}.question"], tensors[f"{n}.after"], tensors["empty"],
                           tensors[f"{n}.c"], needed, leads, found["search"],
                           found["ways"] | found["ablations"] | found["extensions"]))
    return Record(document, facts, graph, Attended(**edges, lengths=lengths), known, asked)


# --- heads ----------------------------------------------------------------------------------------------------------

def mass_of_heads(record: Record) -> tuple[np.ndarray, int]:
    """Sum [L, H] over the IPs with known sources of a head's share of attention on them, and how many IPs there are."""
    pairs, e = record.raw.pairs.numpy(), record.raw.e.numpy()
    total, n = np.zeros(e.shape[1:]), 0
    for i, known in record.known.items():
        of_point = pairs[:, 0] == i
        if known and of_point.sum() > len(known):
            on_sources = e[of_point & np.isin(pairs[:, 1], known)].sum(0)
            total += on_sources / e[of_point].sum(0).clip(1e-30)
            n += 1
    return total, n


def area_of_heads(record: Record) -> tuple[np.ndarray, int]:
    """Sum [L, H] over the questions of the area of a head's attention to the question, and how many questions count.

    The area is that over all information points; a question counts if they are of both kinds.
    """
    points = [i for i, node in enumerate(record.graph.nodes) if node.level > 1]
    L, H = record.raw.e.shape[1:]
    total, n = np.zeros((L, H)), 0
    for asked in record.asked:
        right = asked.leads[points]
        if 0 < right.sum() < len(points):
            total += np.array([[area(asked.question[points, layer, head], right) for head in range(H)]
                               for layer in range(L)])
            n += 1
    return total, n


def best(scores: list[tuple[np.ndarray, int]], k: int) -> Heads:
    """The k heads with the highest mean score, best first."""
    mean = sum(total for total, _ in scores) / max(1, sum(n for _, n in scores))
    order = np.argsort(-mean, axis=None, kind="stable")[:k]
    return [divmod(int(place), mean.shape[1]) for place in order]


def how_many(layers: int, heads: int) -> int:
    """Heads to choose: ten, or a sixth of the model's if it has fewer than sixty."""
    return max(1, min(10, layers * heads // 6))


def by_attention(record: Record) -> np.ndarray:
    """The paper's E [|V|, |V|]."""
    return edges_of(record.raw.pairs, record.raw.e.mean((1, 2)), len(record.graph.nodes)).numpy()
