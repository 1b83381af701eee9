"""A graph on disk: one readable JSON file. Plain fields go in and come out, and every one of them is checked.

    {"format": ..., "document": sha256, "model": fingerprint, "settings": {...}, "flops": ...,
     "nodes": [{"id": 0, "level": 1, "text": "..."}, ...],          ids count from 0, levels come in order
     "edges": [[i, j, e_ij], ...]}                                  from node i down to node j; rows sum to 1
"""
import hashlib
import json
import os
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from support.files import InputError, OutputError, append_line, read_json, write_bytes, write_file

FORMAT = "pecan graph 2"          # 1 counted the FLOPs of padding


class Fields(NamedTuple):
    """What a graph's file holds."""
    levels: list[int]                          # of each node; 1 is a chunk
    texts: list[str]                           # of each node
    edges: list[tuple[int, int, float]]        # (i, j, e_ij), from a node to one a level lower
    document: str                              # sha256 of the document
    model: str                                 # fingerprint of the checkpoint that built it
    settings: dict                             # those of the construction
    flops: int                                 # of the construction


def file_name(document: str, model: str, settings: dict) -> str:
    """The name, without an ending, of the graph of this document, this building model and these settings."""
    identity = [FORMAT, document, model, settings]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]


def check_place(path: str | Path | None):
    """Raise OutputError if the folder of `path` cannot be written: better before the long work than after it."""
    if path is not None and not os.access(Path(path).parent, os.W_OK):
        raise OutputError(f"{path}: cannot be written; choose another place for the graph")


def write_graph(path: str | Path, graph: Fields):
    """Write the file. An existing one is replaced at once or not at all; OutputError if it cannot be written."""
    head = {"format": FORMAT, "document": graph.document, "model": graph.model, "settings": graph.settings,
            "flops": graph.flops}
    nodes = [{"id": i, "level": level, "text": text} for i, (level, text) in enumerate(zip(graph.levels, graph.texts))]

    # One line for each node and each edge, so that people and diff tools can read the file.
    text = json.dumps(head, indent=0).removesuffix("\n}")
    for key, rows in (("nodes", nodes), ("edges", graph.edges)):
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        text += f',\n"{key}": [\n' + ",\n".join(lines) + "\n]"
    write_file(path, text + "\n}\n")


def read_graph(path: str | Path, document: str | None = None, model: str | None = None,
               settings: dict | None = None) -> Fields:
    """Read and check a graph. `document`, `model` and `settings` are what it must belong to (None: any).

    Raises InputError saying what is wrong with the file, or that the graph is another document's, another model's, or
    was built with other settings.
    """
    raw = read_json(path)
    if raw.get("format") != FORMAT:
        raise InputError(f"{path}: format is {raw.get('format')!r}, this version reads {FORMAT!r}")
    try:
        levels = _levels(path, raw["nodes"])
        graph = Fields(levels, [row["text"] for row in raw["nodes"]], _edges(path, raw["edges"], levels),
                       raw["document"], raw["model"], raw["settings"], raw["flops"])
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{path}: not a complete graph ({type(error).__name__}: {error})") from None

    if not all(isinstance(text, str) and text for text in graph.texts):
        raise InputError(f"{path}: a node without text")
    if type(graph.flops) is not int or graph.flops < 0:
        raise InputError(f"{path}: flops is {graph.flops!r}, not a number of operations")
    if document is not None and graph.document != document:
        raise InputError(f"{path}: is the graph of another document")
    if model is not None and graph.model != model:
        raise InputError(f"{path}: was built by another model")
    if settings is not None and graph.settings != settings:
        raise InputError(f"{path}: was built with {graph.settings}, not with {settings}")
    return graph


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
        if not (0 <= j < i < len(levels)) or levels[i] != levels[j] + 1 or not 0 < weight <= 1:
            raise InputError(f"{path}: edge [{i}, {j}, {weight}] does not lead one level down, weight in (0, 1]")
        edges.append((i, j, weight))
        sums[i] += weight

    for i, total in enumerate(sums):
        wanted = 0 if levels[i] == 1 else 1
        if abs(total - wanted) > 1e-4:
            raise InputError(f"{path}: the edges of node {i} sum to {total:.6f}, not to {wanted}")
    return edges


# --- next to a graph ------------------------------------------------------------------------------------------------

class Journal(list):
    """The finished batches of a construction, (windows, IPs, FLOPs) each, kept in GRAPH.windows until it is complete.

    A batch is one line of JSON, on disk before the next one begins. A last line that a kill has torn is dropped.
    Without a path, nothing is kept on disk. Raises InputError if the file holds something else.
    """

    def __init__(self, path: str | Path | None):
        super().__init__()
        self.path = None if path is None else Path(f"{path}.windows")
        if self.path is None or not self.path.exists():
            return

        lines, _, _ = self.path.read_bytes().rpartition(b"\n")
        for number, line in enumerate(lines.splitlines(), 1):
            try:
                windows, points, flops = json.loads(line)
                list.append(self, (int(windows), [(str(text), list(window), list(e)) for text, window, e in points],
                                   int(flops)))
            except (ValueError, TypeError) as error:
                raise InputError(f"{self.path}, line {number}: not a finished batch of windows ({error}); remove the "
                                 "file, and the graph is built from the start") from None

        with open(self.path, "r+b") as file:
            file.truncate(len(lines) + 1 if lines else 0)

    def append(self, batch: tuple):
        super().append(batch)
        if self.path is not None:
            append_line(self.path, json.dumps(batch, ensure_ascii=False, allow_nan=False))

    def remove(self):
        """Forget the file: the graph is complete."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def node_vectors(path: str | Path | None, encoder, texts: list[str]) -> tuple[torch.Tensor, int]:
    """Vectors of a graph's nodes [|V|, D] by this encoder, and the FLOPs they cost; kept in GRAPH.ENCODER.vectors.

    The file is named by the encoder's fingerprint and holds a hash of the texts. One that does not fit is replaced.
    """
    identity = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
    name = hashlib.sha256(encoder.fingerprint.encode()).hexdigest()[:16]
    file = None if path is None else Path(f"{path}.{name}.vectors")
    if file is not None and file.exists():
        try:
            with safe_open(file, framework="pt") as stored:
                belongs_to, flops = json.loads((stored.metadata() or {})["texts, flops"])
                if belongs_to == identity:
                    return stored.get_tensor("vectors"), int(flops)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError):
            pass                                             # a damaged file is computed again

    flops_before = encoder.flops
    vectors = encoder.encode(texts)
    flops = encoder.flops - flops_before
    if file is not None:
        # One entry of metadata: safetensors writes several in any order, and a file must be the same each time.
        metadata = {"texts, flops": json.dumps([identity, flops])}
        content = safetensors.torch.save({"vectors": vectors.contiguous()}, metadata)
        write_bytes(file, content)
    return vectors, flops
