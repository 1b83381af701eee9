"""Which attention heads count. The paper takes the mean over all of them; to choose some is an extension beyond it.

A head is written "layer-head", both counted from 0. Chosen heads count alike, the others not at all. A file of chosen
heads, such as heads.json next to a checkpoint:

    {"edges": ["1-0", "1-1"],          those for E
     "relevance": ["1-0"],             those for r
     "source": "..."}                  how they were chosen, and on which documents (for people)
"""
import re
from pathlib import Path

import torch

from support.files import InputError, Rule, check_values, read_json, reading

FILE = "heads.json"               # in a checkpoint's folder
LIST = re.compile(r"\d{1,6}-\d{1,6}(,\d{1,6}-\d{1,6})*")
WORDS = "layer-head, both counted from 0, such as 1-0,1-1"
HEADS = Rule((list,), lambda names: all(isinstance(name, str) for name in names) and LIST.fullmatch(",".join(names)),
             f"a list of {WORDS}")


class NoHeads(InputError):
    """Nobody has chosen heads for a checkpoint."""


def pairs_of(heads: str) -> list[tuple[int, int]]:
    """The heads of a list, (layer, head)."""
    return [tuple(map(int, name.split("-"))) for name in heads.split(",")]


def in_order(heads: str) -> str:
    """A list of heads as it names graphs and runs: each head once, from the lowest layer up."""
    return ",".join(f"{layer}-{head}" for layer, head in sorted(set(pairs_of(heads))))


def read_heads(path: str | Path) -> tuple[str, str]:
    """The heads for E and those for r that a file chooses; InputError if it is no such file."""
    content = read_json(path)
    with reading(path, remedy=" (support/heads.py shows a file of chosen heads)"):
        check_values(content, {"edges": HEADS, "relevance": HEADS}, f"{path}: ")
    return in_order(",".join(content["edges"])), in_order(",".join(content["relevance"]))


def chosen_heads(option: str | None) -> dict:
    """The settings that --heads chooses, by one list for both or by a file; None chooses nothing."""
    if option is None:
        return {}
    if LIST.fullmatch(option):
        return {"edge_heads": in_order(option), "relevance_heads": in_order(option)}
    if not Path(option).is_file():
        raise InputError(f"--heads {option}: no list of {WORDS}, and no file of them")
    edges, relevance = read_heads(option)
    return {"edge_heads": edges, "relevance_heads": relevance}


def heads_of_checkpoints(builder: Path, searcher: Path) -> dict:
    """The settings that the heads.json of two checkpoints' folders choose; NoHeads if one of them has none."""
    for folder in (builder, searcher):
        if not (folder / FILE).exists():
            raise NoHeads(f"{folder} has no {FILE}; choose heads with --heads")
    return {"edge_heads": read_heads(builder / FILE)[0], "relevance_heads": read_heads(searcher / FILE)[1]}


def head_weights(heads: str | None, layers: int, heads_of_layer: int) -> torch.Tensor:
    """What each head counts, [L, H] float64: 1 / (L H) each (None), or 1 / n each of n chosen ones and 0 the others.

    Raises InputError if a chosen head is not there.
    """
    if heads is None:
        return torch.full((layers, heads_of_layer), 1 / (layers * heads_of_layer), dtype=torch.float64)

    chosen = pairs_of(heads)
    weights = torch.zeros(layers, heads_of_layer, dtype=torch.float64)
    for layer, head in chosen:
        if layer >= layers or head >= heads_of_layer:
            raise InputError(f"head {layer}-{head} is not there: the checkpoint has {layers} layers of "
                             f"{heads_of_layer} heads, both counted from 0")
        weights[layer, head] = 1 / len(chosen)
    return weights
