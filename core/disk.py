"""What is kept on disk for one document: its graph, the replies of a construction that was interrupted, and vectors.

    GRAPH.json                      the graph (write_graph describes it), or a baseline's tree
    GRAPH.json.summaries            the replies so far; removed with GRAPH.json.lock when the graph is complete
    GRAPH.json.ENCODER.vectors      the vectors of its nodes; ENCODER is a hash of the encoder's fingerprint

Files hold plain values; pecan.Graph gives them their meaning.
"""
import contextlib
import hashlib
import json
from collections import Counter
from pathlib import Path

import torch

from core.files import (
    COUNT,
    NUMBER,
    InputError,
    OutputError,
    Rule,
    check_values,
    read_json,
    read_noted,
    reading,
    write_file,
    write_tensors,
)

FORMAT = "pecan graph 5"

GRAPH = {"flops": NUMBER, "nodes": Rule((list,), "a list that is not empty", bool), "edges": Rule((list,), "a list")}
NODE = {"level": COUNT, "text": Rule((str,), "a text that is not empty", bool)}


def hash_of(*content) -> str:
    """The first 16 digits of the sha256 of some values of JSON's types."""
    return hashlib.sha256(json.dumps(content, allow_nan=False).encode()).hexdigest()[:16]


def file_name(document: str, model: str, settings: dict) -> str:
    """The name, without an ending, of the graph of this document, this building model and these settings."""
    return hash_of(FORMAT, document, model, settings)


# --- the graph ------------------------------------------------------------------------------------------------------

def write_graph(path: str | Path, head: dict, nodes: list[dict], edges: list[tuple[int, int, float]]):
    """Write a graph as readable JSON, one line for each node and each edge; OutputError if that fails.

        {"format": ..., "document": sha256, "model": fingerprint, "settings": {...}, "flops": ...,    head
         "nodes": [{"level": 1, "text": "..."}, ...],                a node's place is its id; levels come in order
         "edges": [[i, j, e_ij], ...]}                               from node i down to node j; rows sum to 1
    """
    text = json.dumps({"format": FORMAT, **head}, indent=0, allow_nan=False).removesuffix("\n}")
    for key, rows in (("nodes", nodes), ("edges", edges)):
        lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows]
        text += f',\n"{key}": [\n' + ",\n".join(lines) + "\n]"
    write_file(path, text + "\n}\n")


def read_graph(path: str | Path, **wanted) -> dict:
    """The values that write_graph wrote. `wanted` has values that the head must have.

    Raises InputError if the file is damaged, or if it is the graph of another document, another model or other
    settings.
    """
    with reading(path, "not a complete graph", "; remove it, and it is built again, or choose another name"):
        raw = read_json(path)
        if raw.get("format") != FORMAT:
            raise InputError(f"{path}: format is {raw.get('format')!r:.60}, this version reads {FORMAT!r}")
        check_values(raw, GRAPH, f"{path}: ")
        for name, value in wanted.items():
            if raw[name] != value:
                raise InputError(f"{path}: is of another {name}: {raw[name]}, not {value}")

        for i, node in enumerate(raw["nodes"]):
            check_values(node, NODE, f"{path}: node {i}: ")
            if node.keys() != NODE.keys():
                raise InputError(f"{path}: node {i} has the keys {[*node]}; it must have {[*NODE]}")
        levels = [node["level"] for node in raw["nodes"]]
        if any(b - a not in (0, 1) for a, b in zip([0, *levels], levels)):
            raise InputError(f"{path}: levels do not rise from 1 one by one")

        sums = Counter()                                    # of the edges of each node
        for i, j, weight in raw["edges"]:
            numbers = type(i) is type(j) is int and type(weight) in (int, float)
            if not (numbers and 0 <= j < i < len(levels) and levels[i] == levels[j] + 1 and weight > 0):
                raise InputError(f"{path}: edge {[i, j, weight]!r:.60} does not lead one level down, weight above 0")
            sums[i] += weight
        for i, total in sums.items():
            if abs(total - 1) > 1e-4:
                raise InputError(f"{path}: the edges of node {i} sum to {total:.6f}, not to 1")
    return raw


# --- vectors --------------------------------------------------------------------------------------------------------

def node_vectors(path: str | Path | None, encoder, texts: list[str]) -> tuple[torch.Tensor, int]:
    """An encoder's vectors of a graph's nodes [|V|, D], and the FLOPs they cost; kept in PATH.ENCODER.vectors.

    A file of other texts, or one that cannot be read, is replaced. Nothing is kept in a folder that cannot be written,
    such as one with others' graphs.
    """
    texts_hash = hash_of(texts)
    file = path and Path(f"{path}.{hash_of(encoder.fingerprint)}.vectors")
    if file:
        with contextlib.suppress(InputError), reading(file):
            tensors, note = read_noted(file)
            stored_hash, flops = note.split()
            if stored_hash == texts_hash:
                return tensors["vectors"], int(flops)

    flops_before = encoder.flops
    vectors = encoder.encode(texts)
    flops = encoder.flops - flops_before
    if file:
        with contextlib.suppress(OutputError):
            write_tensors(file, {"vectors": vectors.contiguous()}, f"{texts_hash} {flops}")
    return vectors, flops
