"""A graph on disk: one readable JSON file. Plain fields go in and come out, and every one of them is checked.

    {"format": ..., "document": sha256, "model": fingerprint, "settings": {...}, "flops": ...,
     "repeats": ..., "loops": ...,                                  bullets left out, replies ended (pecan.Graph)
     "nodes": [{"id": 0, "level": 1, "text": "..."}, ...],          ids count from 0, levels come in order
     "edges": [[i, j, e_ij], ...]}                                  from node i down to node j; rows sum to 1
"""
import contextlib
import gc
import hashlib
import json
import os
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from support.files import (
    NUMBER,
    InputError,
    OutputError,
    Rule,
    check_values,
    read_json,
    reading,
    write_file,
    write_tensors,
)

FORMAT = "pecan graph 3"          # 1 counted the FLOPs of padding, 2 kept repeated bullets

RULES = {**dict.fromkeys(("document", "model"), Rule((str,), bool, "a text")),
         **dict.fromkeys(("nodes", "edges"), Rule((list,), lambda _: True, "a list")),
         "settings": Rule((dict,), lambda _: True, "an object"),
         **dict.fromkeys(("flops", "repeats", "loops"), NUMBER)}


class Fields(NamedTuple):
    """What a graph's file holds."""
    levels: list[int]                          # of each node; 1 is a chunk
    texts: list[str]                           # of each node
    edges: list[tuple[int, int, float]]        # (i, j, e_ij), from a node to one a level lower
    document: str                              # sha256 of the document
    model: str                                 # fingerprint of the checkpoint that built it
    settings: dict                             # those of the construction
    flops: int                                 # of the construction
    repeats: int = 0                           # bullets that were left out
    loops: int = 0                             # replies that were ended


def file_name(document: str, model: str, settings: dict) -> str:
    """The name, without an ending, of the graph of this document, this building model and these settings."""
    identity = [FORMAT, document, model, settings]
    return hashlib.sha256(json.dumps(identity, allow_nan=False).encode()).hexdigest()[:16]


def check_place(path: str | Path | None):
    """Raise OutputError if the folder of `path` cannot be written: better before the long work than after it."""
    if path is None:
        return
    longest = Path(f"{path}.{'0' * 16}.vectors.{os.getpid()}.partial")             # of the names that are written
    try:
        longest.touch()
        longest.unlink()
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror}); choose another place or a shorter name for "
                          "the graph") from None


def write_graph(path: str | Path, graph: Fields):
    """Write the file. An existing one is replaced at once or not at all; OutputError if it cannot be written."""
    head = {"format": FORMAT, "document": graph.document, "model": graph.model, "settings": graph.settings,
            "flops": graph.flops, "repeats": graph.repeats, "loops": graph.loops}
    nodes = [{"id": i, "level": level, "text": text} for i, (level, text) in enumerate(zip(graph.levels, graph.texts))]

    # One line for each node and each edge, so that people and diff tools can read the file.
    text = json.dumps(head, indent=0, allow_nan=False).removesuffix("\n}")
    for key, rows in (("nodes", nodes), ("edges", graph.edges)):
        lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows]
        text += f',\n"{key}": [\n' + ",\n".join(lines) + "\n]"
    write_file(path, text + "\n}\n")


def read_graph(path: str | Path, document: str | None = None, model: str | None = None,
               settings: dict | None = None) -> Fields:
    """Read and check a graph. `document`, `model` and `settings` are what it must belong to (None: any).

    Raises InputError saying what is wrong with the file, or that the graph is another document's, another model's, or
    was built with other settings.
    """
    with _nothing_collected(), reading(path, "not a complete graph", "; remove the file, and the graph is built again"):
        raw = read_json(path)
        if raw.get("format") != FORMAT:
            raise InputError(f"{path}: format is {raw.get('format')!r:.60}, this version reads {FORMAT!r}")
        check_values(raw, RULES, f"{path}: not a complete graph: ")
        levels = _levels(path, raw["nodes"])
        texts = [row["text"] for row in raw["nodes"]]
        if not all(isinstance(text, str) and text for text in texts):
            raise InputError(f"{path}: a node without text")
        graph = Fields(levels, texts, _edges(path, raw["edges"], levels), raw["document"], raw["model"],
                       raw["settings"], raw["flops"], raw["repeats"], raw["loops"])

        for name, wanted in {"document": document, "model": model, "settings": settings}.items():
            if wanted not in (None, getattr(graph, name)):
                raise InputError(f"{path}: is of another {name}: {getattr(graph, name)}, not {wanted}")
    return graph


@contextlib.contextmanager
def _nothing_collected():
    """Hold Python's garbage collector off: it would look at all rows read so far, over and over, for no garbage.

    (100,000 nodes load in 1.66 s instead of 2.42, ten times as long as 10,000.)
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _levels(path, rows) -> list[int]:
    """The levels of the nodes; InputError if ids do not count from 0 or levels do not rise from 1 one by one."""
    if [row["id"] for row in rows] != list(range(len(rows))):
        raise InputError(f"{path}: node ids do not count from 0")

    levels = [row["level"] for row in rows]
    whole = all(type(level) is int for level in levels)
    if not levels or not whole or levels[0] != 1 or any(b - a not in (0, 1) for a, b in zip(levels, levels[1:])):
        raise InputError(f"{path}: levels do not rise from 1 one by one")
    return levels


def _edges(path, rows, levels: list[int]) -> list[tuple[int, int, float]]:
    """The edges; InputError if one does not lead one level down, or those of a node do not sum to 1 (a chunk's: 0)."""
    edges = []
    sums = [0.0] * len(levels)
    for i, j, weight in rows:
        whole = type(i) is type(j) is int and type(weight) in (int, float)
        if not whole or not 0 <= j < i < len(levels) or levels[i] != levels[j] + 1 or not 0 < weight <= 1:
            raise InputError(f"{path}: edge {[i, j, weight]!r:.60} does not lead one level down, weight in (0, 1]")
        edges.append((i, j, weight))
        sums[i] += weight

    for i, total in enumerate(sums):
        wanted = 0 if levels[i] == 1 else 1
        if abs(total - wanted) > 1e-4:
            raise InputError(f"{path}: the edges of node {i} sum to {total:.6f}, not to {wanted}")
    return edges


# --- next to a graph ------------------------------------------------------------------------------------------------

def node_vectors(path: str | Path | None, encoder, texts: list[str]) -> tuple[torch.Tensor, int]:
    """Vectors of a graph's nodes [|V|, D] by this encoder, and the FLOPs they cost; kept in GRAPH.ENCODER.vectors.

    The file is named by the encoder's fingerprint and holds a hash of the texts. One that does not fit is replaced.
    """
    identity = hashlib.sha256(json.dumps(texts, allow_nan=False).encode()).hexdigest()
    name = hashlib.sha256(encoder.fingerprint.encode()).hexdigest()[:16]
    file = None if path is None else Path(f"{path}.{name}.vectors")
    if file is not None and file.exists():
        try:
            with safe_open(file, framework="pt") as stored:
                texts_of, flops = stored.metadata()["of"].split()
                if texts_of == identity:
                    return stored.get_tensor("vectors"), int(flops)
        except (OSError, SafetensorError, KeyError, ValueError, TypeError):
            pass                                             # a damaged file is computed again

    flops_before = encoder.flops
    vectors = encoder.encode(texts)
    flops = encoder.flops - flops_before
    if file is not None:
        # One entry of metadata: the order of several changes from run to run, and with it the bytes of the file.
        write_tensors(file, {"vectors": vectors.contiguous()}, {"of": f"{identity} {flops}"})
    return vectors, flops
