"""Traces: `pecan.py --trace FILE.jsonl` writes one line of JSON for each question; view.page reads them.

view/README.md describes a line. Reading one needs no model, only the graph file that it names.
"""
import json
import os
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pecan
from core.disk import hash_of, read_kept
from core.files import InputError, reading, sha256, write_file
from data import json_lines
from view.recorder import watching

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


@contextmanager
def tracing(method: pecan.Pecan, graph: Path, path: str | Path):
    """Write every answer of `method` within the block to `path`, replacing the file. `graph` is the graph's file.

    Raises errors as check_trace does.
    """
    check_trace(path, graph)
    searches = []
    lines = []

    def write(answer, prepared, question):
        search = searches.pop()
        file = graph.parent.resolve() / graph.name
        folder = Path(path).parent.resolve()
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
