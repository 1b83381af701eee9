"""What is kept on disk for one document, and how we know that it still is what it was.

    GRAPH.json                      the graph, or a baseline's tree
    GRAPH.json.replies              the model's replies so far (core.together); removed when the graph is complete
    GRAPH.json.ENCODER.vectors      the vectors of its nodes; ENCODER is a hash of the encoder and its code

Each file, or its name, says what it is of and by which code it was made. Each holds a hash of itself, so a file that
was damaged or changed is noticed before it is used. (`eval.py --score` takes predictions as they are.) A last line that
a kill has torn is dropped (`read_rows`). Files hold plain values; pecan.Graph gives them their meaning.
"""
import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save

from core.code import identity_of
from core.files import (
    InputError,
    append_line,
    complete_lines,
    hash_of,
    parse_json,
    read_json,
    reading,
    sha256,
    write_file,
)


def sealed(content: dict) -> dict:
    """The content with its hash, `seal`."""
    return {"seal": hash_of(content), **content}


def unsealed(content: dict, where) -> dict:
    """The content that was sealed, without its seal. InputError, which begins with `where`, if it has changed since."""
    content = dict(content)
    if content.pop("seal", None) != hash_of(content):
        raise InputError(f"{where}: has changed since it was written, or is no such file")
    return content


def write_kept(path: str | Path, of: dict, content: dict):
    """Write a graph or a tree as JSON that people can read: a line for each item of a list.

        {"seal": ..., "document": sha256, "code": ..., "model": ..., "settings": {...}, ...,      what it is of
         "nodes": [{"level": 1, "text": "..."}, ...],                   a node's index is its id; levels come in order
         "edges": [[i, j, e_ij], ...],                                  from node i down to node j; rows sum to 1
         "flops": ...}
    """
    def text(value):
        items = value if isinstance(value, list) else ()
        lines = ",\n".join(json.dumps(item, ensure_ascii=False, allow_nan=False) for item in items)
        return f"[\n{lines}\n]" if items else json.dumps(value, ensure_ascii=False, allow_nan=False)

    keys = [f"{json.dumps(key)}: {text(value)}" for key, value in sealed(of | content).items()]
    write_file(path, "{\n" + ",\n".join(keys) + "\n}\n")


def read_kept(path: str | Path, of: dict | None = None) -> dict:
    """The values that write_kept wrote. InputError if the file is damaged, or if it is of something else than `of`."""
    with reading(path, "not a complete graph", "; choose another name, or remove it, if it is a damaged graph"):
        content = unsealed(read_json(path), path)
        if of:
            check_same(path, content, of)
    return content


def check_same(path: str | Path, kept: dict, of: dict):
    """Raise InputError if what is kept at a path is of something else, or of code that nothing can name."""
    kept = {name: kept.get(name) for name in of}
    if hash_of(kept) != hash_of(of) or not of["code"]:
        lines = " ".join(differences(kept, of)) or "nothing can name its code"
        raise InputError(f"{path}: is of another setup ({lines:.300})")


def differences(before: dict, after: dict) -> list[str]:
    """The lines by which two objects differ as JSON, each once, without brackets; "-" begins a line of the first."""
    texts = [json.dumps(each, indent=0).splitlines() for each in (before, after)]
    return [*dict.fromkeys(line for line in unified_diff(*texts, n=0) if re.match(r'[+-](?!.*"seal").*\w', line))]


def beside(path: str | Path, graph: Path) -> dict:
    """How a row in the file `path` names the file of its graph: as seen from there, and by its hash."""
    file = os.path.relpath(graph.resolve(), Path(path).parent.resolve())
    return {"file": Path(file).as_posix(), "hash": sha256([graph])}


def write_row(path: Path, row: dict):
    """Append a row to a file of JSON lines. It is on the disk when this returns."""
    append_line(path, json.dumps(sealed(row), ensure_ascii=False, allow_nan=False))


def read_rows(path: Path) -> Iterator[dict]:
    """Yield the rows of such a file, none if it is missing. A last line that a kill has torn is none.

    InputError names the file and the line that is damaged.
    """
    with reading(path):
        lines = complete_lines(path) if path.exists() else []
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        with reading(where, "not what was written there", "; move the file away"):
            row = unsealed(parse_json(line, where, dict), where)
        yield row


def node_vectors(path: str | Path | None, encoder, texts: list[str]) -> tuple[torch.Tensor, int]:
    """An encoder's vectors of a graph's nodes [|V|, D], and the FLOPs they cost; kept in PATH.ENCODER.vectors.

    A file of other texts, or one that has changed, is replaced. Nothing is kept in a folder that cannot be written,
    such as one with others' graphs.
    """
    of = identity_of(encoder=encoder)
    file = path and of["code"] and Path(f"{path}.{hash_of(of)}.vectors")
    if file:
        with contextlib.suppress(InputError), reading(file):
            with safe_open(file, framework="pt") as stored:
                vectors = stored.get_tensor("vectors").clone()      # Windows replaces no file while tensors lie in it
                note = stored.metadata()["note"]
            flops = int(note.split()[0])
            if note == note_of(texts, vectors, flops):
                return vectors, flops

    flops_before = encoder.flops
    vectors = encoder.encode(texts).contiguous()
    flops = encoder.flops - flops_before
    if file:
        with contextlib.suppress(OSError):
            write_file(file, save({"vectors": vectors}, {"format": "pt", "note": note_of(texts, vectors, flops)}))
    return vectors, flops


def note_of(texts: list[str], vectors: torch.Tensor, flops: int) -> str:
    """FLOPs, and a hash of all."""
    content = hashlib.sha256(vectors.numpy().tobytes()).hexdigest()
    return f"{flops} {hash_of(texts, list(vectors.shape), str(vectors.dtype), content, flops)}"
