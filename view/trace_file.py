"""Reads what `--trace FILE.jsonl` wrote, with the graph that it names. No model is needed."""
import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from support.files import InputError, unreadable
from support.graph_file import Fields, read_graph
from support.trace import FORMAT

HEADER = ("graph", "settings", "question", "room", "nodes")
STEP = ("step", "node", "level", "position", "candidates", "relevance", "p_yes", "verdict", "tokens", "flops", "cached")
ANSWER = ("answer", "end", "nodes", "tokens", "flops")


class Trace(NamedTuple):
    """One question: the lines of its trace, and the graph that it was asked of."""
    path: str
    header: dict
    steps: list[dict]
    answer: dict
    graph: Fields


def read_traces(path: str | Path) -> list[Trace]:
    """The questions of a file, in order. InputError names the line that is wrong, or the graph that is not the same."""
    traces = []
    header = None
    steps = []
    for number, line in enumerate(_lines(path), 1):
        where = f"{path}, line {number}"
        row = _row(line, where)

        if "format" in row:
            if row["format"] != FORMAT or header is not None:
                raise InputError(f"{where}: not the place of a header {FORMAT!r}")
            header = _complete(row, HEADER, where)
        elif header is None:
            raise InputError(f"{where}: a trace begins with a header {FORMAT!r}")
        elif "step" in row:
            steps.append(_complete(row, STEP, where))
        else:
            traces.append(Trace(str(path), header, steps, _complete(row, ANSWER, where), _graph(path, header, where)))
            header = None
            steps = []

    if header is not None or not traces:
        raise InputError(f"{path}: ends before an answer")
    return traces


def _lines(path) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from None


def _row(line: str, where: str) -> dict:
    """The object in a line of JSON."""
    def refuse(word):
        raise ValueError(f"{word} is no figure")

    try:
        row = json.loads(line, parse_constant=refuse)
    except ValueError as error:
        raise InputError(f"{where}: not valid JSON ({error})") from None
    if not isinstance(row, dict):
        raise InputError(f"{where}: holds a {type(row).__name__}, not an object")
    return row


def _complete(row: dict, keys: tuple[str, ...], where: str) -> dict:
    """The row, if it has these keys."""
    for key in keys:
        if key not in row:
            raise InputError(f"{where}: {key!r} is missing")
    return row


def _graph(path, header: dict, where: str) -> Fields:
    """The graph that a header names by its place, seen from the trace, and by its hash."""
    try:
        file = Path(path).parent / header["graph"]["file"]
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        if digest != header["graph"]["sha256"]:
            raise InputError(f"{file}: is not the graph of {where}: its sha256 is {digest[:16]}..., not "
                             f"{str(header['graph']['sha256'])[:16]}...")
    except OSError as error:
        raise unreadable(file, error) from None
    except (KeyError, TypeError) as error:
        raise InputError(f"{where}: graph has a file and a sha256 ({error})") from None

    graph = read_graph(file)
    if len(header["nodes"]) != len(graph.levels):
        raise InputError(f"{where}: has {len(header['nodes'])} nodes, its graph {len(graph.levels)}")
    return graph
