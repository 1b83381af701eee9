"""Traces: `pecan.py --trace FILE.jsonl` writes one line of JSON for each question; view.page reads them.

view/README.md describes a line. Reading one needs no model, only the graph file that it names.
"""
import json
import os
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import pecan
from core.files import InputError, parse_json, reading, sha256, write_file
from core.settings import Settings
from data import Answer
from pecan import Node, Step
from support.disk import hash_of, read_graph
from view.recorder import watching

FORMAT = "pecan trace 4"
BEGINNING = json.dumps({"format": FORMAT})[:-1].encode()


class Trace(NamedTuple):
    """One question, its answer, and the graph that was searched."""
    graph: str                    # hash of its file, name included
    nodes: list[Node]
    edges: list[tuple[int, int, float]]      # (i, j, e_ij)
    question: str
    settings: Settings
    room: int                     # tokens of the window for nodes
    c: list[float]                # cosine of the question and each node [|V|]
    lengths: list[int]            # tokens of each node, marker included [|V|]
    answer: Answer


@contextmanager
def tracing(method: pecan.Pecan, graph: str | Path, path: str | Path):
    """Write every answer of `method` within the block to `path`, replacing the file. `graph` is the graph's file.

    Raises OutputError if the trace cannot be written.
    """
    graph = Path(graph)
    searches = []
    lines = []

    def write(answer, prepared, question):
        search = searches.pop()
        file, folder = graph.parent.resolve() / graph.name, Path(path).parent.resolve()
        if file.anchor == folder.anchor:                     # on Windows they may be on two drives
            file = Path(os.path.relpath(file, folder))
        file = {"file": file.as_posix(), "hash": sha256([graph])}
        room = search.room + search.lengths[search.visited].sum().item()             # before the first node
        line = {"format": FORMAT, "graph": file, "model": method.model.fingerprint,
                "encoder": method.encoder.fingerprint, "settings": asdict(method.settings), "question": question,
                "room": room, "c": search.c.tolist(), "lengths": search.lengths.tolist(), "answer": asdict(answer)}
        lines.append(json.dumps(line | {"hash": hash_of(line)}, ensure_ascii=False, allow_nan=False) + "\n")
        write_file(path, "".join(lines))

    with watching(pecan, "Search", lambda search, *_: searches.append(search)), watching(method, "answer", write):
        yield


def is_trace(path: str | Path) -> bool:
    """Whether a file begins like a trace."""
    with reading(path), Path(path).open("rb") as file:
        return file.read(len(BEGINNING)) == BEGINNING


def read_traces(path: str | Path) -> list[Trace]:
    """The traces in a file, in order. InputError names the line or the graph file that has changed since."""
    with reading(path):
        lines = Path(path).read_bytes().splitlines()
    if not lines:
        raise InputError(f"{path}: holds no trace")

    traces = []
    for number, line in enumerate(lines, 1):
        place = f"{path}, line {number}"
        row = parse_json(line, place, dict)
        with reading(place, f"not a whole {FORMAT!r}"):
            if row["format"] != FORMAT:
                raise InputError(f"{place}: format is {row['format']!r:.60}, this version reads {FORMAT!r}")
            if row.pop("hash") != hash_of(row):
                raise InputError(f"{place}: has changed since it was written; write it again")
            file = Path(path).parent / row["graph"]["file"]
            digest = row["graph"]["hash"]
            if sha256([file]) != digest:
                raise InputError(f"{file}: is not the graph of {place}: its hash is different")
            graph = read_graph(file)

            answer = Answer(**row["answer"])
            answer.trace = [Step(**step) for step in answer.trace]
            nodes = [Node(**node) for node in graph["nodes"]]
            settings = Settings(**row["settings"])
            traces.append(Trace(digest, nodes, graph["edges"], row["question"], settings, row["room"], row["c"],
                                row["lengths"], answer))
    return traces
