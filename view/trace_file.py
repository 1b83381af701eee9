"""Reads what `--trace FILE.jsonl` wrote, with the graph that it names. No model is needed."""
import hashlib
from pathlib import Path
from typing import NamedTuple

from core.files import ANY, InputError, check_values, parse_json, reading
from support.graph import Fields, read_graph
from support.trace import FORMAT

# What the lines must have.
HEADER = dict.fromkeys(("graph", "settings", "question", "room", "nodes"), ANY)
STEP = dict.fromkeys(("step", "node", "level", "position", "candidates", "relevance", "p_yes", "verdict", "tokens",
                      "flops", "cached"), ANY)
ANSWER = dict.fromkeys(("answer", "end", "nodes", "tokens", "flops"), ANY)


class Trace(NamedTuple):
    """One question: the lines of its trace, and the graph that it was asked of."""
    path: str
    header: dict
    steps: list[dict]
    answer: dict
    graph: Fields


def read_traces(path: str | Path) -> list[Trace]:
    """The questions of a file, in order. InputError names the line that is wrong, or the graph that is not the same."""
    with reading(path, "not UTF-8 text"):
        lines = Path(path).read_text(encoding="utf-8").splitlines()

    traces = []
    header = None
    steps = []
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        row = parse_json(line, where, dict)

        if "format" in row:
            if row["format"] != FORMAT or header is not None:
                raise InputError(f"{where}: not the place of a header {FORMAT!r}")
            check_values(row, HEADER, f"{where}: ")
            header = row
        elif header is None:
            raise InputError(f"{where}: a trace begins with a header {FORMAT!r}")
        elif "step" in row:
            check_values(row, STEP, f"{where}: ")
            steps.append(row)
        else:
            check_values(row, ANSWER, f"{where}: ")
            traces.append(Trace(str(path), header, steps, row, _graph(path, header, where)))
            header = None
            steps = []

    if header is not None or not traces:
        raise InputError(f"{path}: ends before an answer")
    return traces


def _graph(path, header: dict, where: str) -> Fields:
    """The graph that a header names by its place, seen from the trace, and by its hash."""
    with reading(where, "its graph has a file and a sha256"):
        file = Path(path).parent / header["graph"]["file"]
        wanted = str(header["graph"]["sha256"])
    with reading(file):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != wanted:
        raise InputError(f"{file}: is not the graph of {where}: its sha256 is {digest[:16]}..., not {wanted[:16]}...")

    graph = read_graph(file)
    if len(header["nodes"]) != len(graph.levels):
        raise InputError(f"{where}: has {len(header['nodes'])} nodes, its graph {len(graph.levels)}")
    return graph
