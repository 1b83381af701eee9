"""Traces: `pecan.py --trace FILE.jsonl` writes one line of JSON for each question; view.page reads them.

view/README.md describes a line. Reading one needs no model, only the graph file that it names.
"""
import json
import os
from dataclasses import asdict
from pathlib import Path

from core.disk import hash_of, read_kept
from core.files import InputError, reading, sha256, write_file
from data import Answer, Prepared, json_lines
from pecan import Pecan

FORMAT = "pecan trace 4"
BEGINNING = json.dumps({"format": FORMAT})[:-1].encode()


def check_trace(path: str | Path, graph: str | Path | None):
    """Raise InputError if the file is the graph, or exists and is no trace; OSError if it cannot be written."""
    if graph and Path(path).resolve() == Path(graph).resolve():
        raise InputError(f"{path}: is the graph's file; choose another name for the trace")
    new = not Path(path).exists()
    with open(path, "a+b") as file:
        file.seek(0)
        if file.read(len(BEGINNING)) not in (b"", BEGINNING):
            raise InputError(f"{path}: exists and is not a trace; choose another name")
    if new:
        os.unlink(path)                                      # until there is an answer


def trace_of(method: Pecan, prepared: Prepared, question: str, answer: Answer, graph: dict) -> dict:
    """The trace of an answer. `graph` holds the graph, or says where it is (graph_beside)."""
    search = method.search(prepared, question)              # again, as it was before the first node
    return {"format": FORMAT, "graph": graph, "model": method.model.fingerprint,
            "encoder": method.encoder.fingerprint, "settings": asdict(method.settings), "question": question,
            "room": search.room, "c": search.c.tolist(), "lengths": search.lengths.tolist(), "answer": asdict(answer)}


def graph_beside(path: str | Path, graph: Path) -> dict:
    """The name of a graph's file, as seen from the folder of a trace, and its hash."""
    file = graph.parent.resolve() / graph.name
    folder = Path(path).parent.resolve()
    if file.anchor == folder.anchor:                         # on Windows they may be on two drives
        file = Path(os.path.relpath(file, folder))
    return {"file": file.as_posix(), "hash": sha256([graph])}


def write_traces(path: str | Path, traces: list[dict]):
    """Write a file of traces, replacing the one that is there."""
    lines = [json.dumps(trace | {"hash": hash_of(trace)}, ensure_ascii=False, allow_nan=False) for trace in traces]
    write_file(path, "\n".join(lines) + "\n")


def read_traces(path: str | Path) -> list[dict]:
    """The traces in a file, in order, each with what its graph's file holds (disk.write_kept) in `graph`.

    InputError names the line or the graph file that has changed since.
    """
    traces = []
    for number, row in json_lines(Path(path)):
        where = f"{path}, line {number}"
        with reading(where, f"not a whole {FORMAT!r}"):
            if row["format"] != FORMAT:
                raise InputError(f"{where}: format is {row['format']!r:.60}, this version reads {FORMAT!r}")
            if row.pop("hash") != hash_of(row):
                raise InputError(f"{where}: has changed since it was written; write it again")

            file = Path(path).parent / row["graph"]["file"]
            if sha256([file]) != row["graph"]["hash"]:
                raise InputError(f"{file}: is not the graph of {where}: its hash is different")
            row["graph"] |= read_kept(file)
        traces.append(row)
    if not traces:
        raise InputError(f"{path}: holds no trace")
    return traces
