"""The lines of JSON that view.page shows: a search of PECAN, and the file of its graph. No model is needed.

`pecan.py --trace FILE.jsonl` appends a line for each question; view/README.md describes it.
"""
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from core.disk import read_kept, sealed, unsealed
from core.files import InputError, append_line, reading, sha256
from data import Answer, json_lines


def row_of(question: str, answer: Answer) -> dict:
    """An answer as eval.py keeps it, too."""
    row = asdict(answer)
    return {"id": question, "question": question, "prediction": row.pop("text"), **row}


def append_row(path: str | Path, row: dict, graph: Path):
    """Append the row of an answer, with its graph's file, as seen from its own folder, and the hash of this file."""
    file = os.path.relpath(graph.resolve(), Path(path).parent.resolve())
    row = row | {"graph": {"file": Path(file).as_posix(), "hash": sha256([graph])}}
    append_line(Path(path), json.dumps(sealed(row), ensure_ascii=False, allow_nan=False))


def read_rows(path: str | Path) -> Iterator[tuple[str, dict]]:
    """Yield "FILE, line N" and the row of each line; InputError if it has changed since it was written."""
    for number, row in json_lines(Path(path)):
        where = f"{path}, line {number}"
        yield where, unsealed(row, where)


def read_searches(path: str | Path, question: str | None = None) -> list[dict]:
    """The rows of a file, or of the question with this id, each with what its graph's file holds in `graph`.

    InputError names the line or the graph's file that has changed since.
    """
    found = []
    for where, row in read_rows(path):
        if question not in (None, row["id"]):
            continue
        with reading(where, "not a search of PECAN"):
            file = Path(path).parent / row["graph"]["file"]
            if sha256([file]) != row["graph"]["hash"]:
                raise InputError(f"{file}: is not the graph of {where}: its hash is different")
            found.append(row | {"graph": row["graph"] | read_kept(file), "search": {**row["search"]}})
    if not found:
        raise InputError(f"{path}: holds no search" + (f" for the question {question!r}" if question else ""))
    return found
