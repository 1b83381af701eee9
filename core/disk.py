"""What is kept on disk for one document, and how we know that it still is what it was.

    GRAPH.json                      the graph, or a baseline's tree
    GRAPH.json.summaries            the replies so far (core.together); removed when the graph is complete
    GRAPH.json.ENCODER.vectors      the vectors of its nodes; ENCODER is a hash of the encoder and its code

Each file, or its name, says what it is of and by which code it was made. Each holds a hash of itself, so a file that
was damaged or changed is noticed before a wrong number comes out of it. Files hold plain values; pecan.Graph gives them
their meaning.
"""
import contextlib
import glob
import hashlib
import json
import re
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save

from core.code import CONVERSATION, code_hash
from core.files import InputError, read_json, reading, write_file


def hash_of(*content) -> str:
    """The first 16 digits of the sha256 of some values of JSON's types."""
    return hashlib.sha256(json.dumps(content, allow_nan=False).encode()).hexdigest()[:16]


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

        {"seal": ..., "document": sha256, "model": fingerprint, "settings": {...}, "code": ...,   what it is of
         "flops": ..., "nodes": [{"level": 1, "text": "..."}, ...],     a node's index is its id; levels come in order
         "edges": [[i, j, e_ij], ...]}                                  from node i down to node j; rows sum to 1
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
        for name, value in (of or {}).items():
            if content.get(name) != value:
                raise InputError(f"{path}: is of another {name}: {content.get(name)}, not {value}")
    return content


def of_any_code(path: Path) -> list[Path]:
    """The graphs beside `path` of the same document, model and settings, whichever code has built them.

    A graph's name holds a hash of these, a dash, and the hash of the code (data.Method.file_name). The newest comes
    last.
    """
    names = re.sub(r"-[0-9a-f]{16}(?=\.)", "-" + 16 * "[0-9a-f]", glob.escape(path.name))
    return sorted(path.parent.glob(names), key=lambda path: path.stat().st_mtime)


def any_of(path: Path) -> Path:
    """`path`, or if it is missing the newest of these graphs."""
    return path if path.exists() else [path, *of_any_code(path)][-1]


def node_vectors(path: str | Path | None, encoder, texts: list[str]) -> tuple[torch.Tensor, int]:
    """An encoder's vectors of a graph's nodes [|V|, D], and the FLOPs they cost; kept in PATH.ENCODER.vectors.

    A file of other texts, or one that has changed, is replaced. Nothing is kept in a folder that cannot be written,
    such as one with others' graphs.
    """
    encoded = hash_of(encoder.fingerprint, code_hash("encoders/", upto=CONVERSATION))
    file = path and Path(f"{path}.{encoded}.vectors")
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
