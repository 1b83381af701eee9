"""The graph (section 3), its file, and the vectors of its nodes on disk.

The file is readable JSON, one line for each node and each edge:

    {"format": ..., "document": sha256, "model": fingerprint, "settings": {...}, "flops": ...,
     "nodes": [{"level": 1, "text": "..."}, ...],                   a node's place is its id; levels come in order
     "edges": [[i, j, e_ij], ...]}                                  from node i down to node j; rows sum to 1
"""
import contextlib
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from core.files import (
    NUMBER,
    InputError,
    Rule,
    check_values,
    read_json,
    read_sealed,
    reading,
    write_file,
    write_sealed,
    writing,
)
from data import Document

FORMAT = "pecan graph 4"

RULES = {**dict.fromkeys(("document", "model"), Rule((str,), bool, "a text")),
         **dict.fromkeys(("nodes", "edges"), Rule((list,), lambda _: True, "a list")),
         "settings": Rule((dict,), lambda _: True, "an object"), "flops": NUMBER}


@dataclass
class Node:
    level: int                    # 1: a chunk of the document; higher: an information point
    text: str


@dataclass
class Graph:
    """The hierarchical weighted directed acyclic graph of one document.

    A node's place in `nodes` is its id, and levels come in order. E [|V|, |V|] is float64 and sparse (COO): row i sums
    to 1, or is all 0 if i is a chunk, or an information point whose attention rounds to 0.
    """
    nodes: list[Node]
    E: torch.Tensor
    document: str                 # sha256 of the document
    model: str                    # fingerprint of the checkpoint that built it
    settings: dict                # of the construction
    flops: int = 0                # of the construction

    @property
    def top_level(self) -> list[int]:
        """Ids of the top level, in document order."""
        return [i for i, node in enumerate(self.nodes) if node.level == self.nodes[-1].level]

    def save(self, path: str | Path):
        """Write the file. An existing one is replaced at once or not at all; OutputError if it cannot be written."""
        head = {"format": FORMAT, "document": self.document, "model": self.model, "settings": self.settings,
                "flops": self.flops}
        edges = [(i, j, e) for (i, j), e in zip(self.E.indices().T.tolist(), self.E.values().tolist(), strict=True)]

        text = json.dumps(head, indent=0, allow_nan=False).removesuffix("\n}")
        for key, rows in (("nodes", map(asdict, self.nodes)), ("edges", edges)):
            lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows]
            text += f',\n"{key}": [\n' + ",\n".join(lines) + "\n]"
        write_file(path, text + "\n}\n")

    @classmethod
    def load(cls, path: str | Path, document: Document | None = None, settings: dict | None = None,
             model=None) -> "Graph":
        """Read a graph that save wrote. It must belong to `document`, `settings` and `model` (None: any).

        Raises InputError if the file is damaged, or is of another document, another model or other settings.
        """
        with reading(path, "not a complete graph", "; remove it, and the graph is built again"):
            raw = read_json(path)
            if raw.get("format") != FORMAT:
                raise InputError(f"{path}: format is {raw.get('format')!r:.60}, this version reads {FORMAT!r}")
            check_values(raw, RULES, f"{path}: ")
            nodes = [Node(**row) for row in raw["nodes"]]
            _check_nodes(path, nodes)
            _check_edges(path, raw["edges"], nodes)

            owner = {"document": document and document.hash, "model": model and model.fingerprint, "settings": settings}
            for name, wanted in owner.items():
                if wanted not in (None, raw[name]):
                    raise InputError(f"{path}: is of another {name}: {raw[name]}, not {wanted}")
        return cls(nodes, edge_matrix(raw["edges"], len(nodes)), raw["document"], raw["model"], raw["settings"],
                   raw["flops"])


def edge_matrix(edges: list[tuple[int, int, float]], V: int) -> torch.Tensor:
    """E [|V|, |V|] from edges (i, j, e_ij); every other pair of nodes is exactly 0, and takes no memory."""
    places = torch.tensor([(i, j) for i, j, _ in edges], dtype=torch.int64).reshape(-1, 2).T
    weights = torch.tensor([e for _, _, e in edges], dtype=torch.float64)
    return torch.sparse_coo_tensor(places, weights, (V, V), check_invariants=True).coalesce()


def _check_nodes(path, nodes: list[Node]):
    """Raise InputError if a node has no text, or levels do not rise from 1 one by one."""
    levels = [node.level for node in nodes]
    whole = all(type(level) is int for level in levels)
    if not levels or not whole or levels[0] != 1 or any(b - a not in (0, 1) for a, b in zip(levels, levels[1:])):
        raise InputError(f"{path}: levels do not rise from 1 one by one")
    for i, node in enumerate(nodes):
        if not (isinstance(node.text, str) and node.text):
            raise InputError(f"{path}: node {i} has no text")


def _check_edges(path, edges: list, nodes: list[Node]):
    """Raise InputError if an edge does not lead one level down, or if the edges of a node sum to neither 1 nor 0."""
    sums = [0.0] * len(nodes)
    for i, j, weight in edges:
        whole = type(i) is type(j) is int and type(weight) in (int, float)
        if not (whole and 0 <= j < i < len(nodes) and nodes[i].level == nodes[j].level + 1 and weight > 0):
            raise InputError(f"{path}: edge {[i, j, weight]!r:.60} does not lead one level down, weight above 0")
        sums[i] += weight
    for i, total in enumerate(sums):
        if total and abs(total - 1) > 1e-4:
            raise InputError(f"{path}: the edges of node {i} sum to {total:.6f}, not to 1")


# --- next to a graph ------------------------------------------------------------------------------------------------

def file_name(document: str, model: str, settings: dict) -> str:
    """The name, without an ending, of the graph of this document, this building model and these settings."""
    identity = [FORMAT, document, model, settings]
    return hashlib.sha256(json.dumps(identity, allow_nan=False).encode()).hexdigest()[:16]


def check_place(path: str | Path | None):
    """Raise OutputError if `path` cannot be written. This is called before the long work."""
    if path is not None:
        with writing(path):
            longest = Path(f"{path}.{'0' * 16}.vectors.{os.getpid()}.partial")       # the longest name that is written
            longest.touch()
            longest.unlink()


def node_vectors(path: str | Path | None, encoder, texts: list[str]) -> tuple[torch.Tensor, int]:
    """An encoder's vectors of a graph's nodes [|V|, D], and the FLOPs they cost; kept in GRAPH.ENCODER.vectors.

    ENCODER is a hash of the encoder's fingerprint. The file also holds a hash of the texts. A file of other texts, or a
    damaged one, is replaced.
    """
    identity = hashlib.sha256(json.dumps(texts, allow_nan=False).encode()).hexdigest()
    name = hashlib.sha256(encoder.fingerprint.encode()).hexdigest()[:16]
    file = None if path is None else Path(f"{path}.{name}.vectors")
    if file is not None and file.exists():
        with contextlib.suppress(InputError):
            tensors, note = read_sealed(file)
            texts_of, flops = note.split()
            if texts_of == identity:
                return tensors["vectors"], int(flops)

    flops_before = encoder.flops
    vectors = encoder.encode(texts)
    flops = encoder.flops - flops_before
    if file is not None:
        write_sealed(file, {"vectors": vectors.contiguous()}, f"{identity} {flops}")
    return vectors, flops
