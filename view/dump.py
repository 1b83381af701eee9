"""The dump: `pecan.py --dump FILE.safetensors` writes every tensor of the construction and of each search, for audits.

FILE.json, next to it, explains each tensor in the words of the table below.
"""
import itertools
import json
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

import pecan
from core.files import write_file, write_tensors
from core.watch import watching

MEANINGS = {
    "group.#.nodes": "ids of the N nodes that were summarised together (# is a number from 0 on)",
    "group.#.reply": "token ids of their summary",
    "group.#.a": "a(x, j): attention of token x of the reply to node j, the mean over layers, heads and the tokens of "
                 "j [tokens, N] (3.1); missing if the reply is empty",
    "point.#.group": "number of the group whose reply has this information point as a bullet; points are in the order "
                     "of nodes, from the first of level 2 on (points of a discarded level come last)",
    "point.#.tokens": "places of its tokens in the reply",
    "point.#.e_prime": "e'_ij: the mean of a(x, j) over its tokens [N] (3.1)",
    "levels": "level of each node [|V|]; 1 is a chunk",
    "E.indices": "rows i and columns j of the edges [2, edges]",
    "E.values": "e_ij = e'_ij / sum_j' e'_ij' [edges] (3.1, normalisation)",
    "query.#.c": "cosine of the query and each node [|V|]",
    "query.#.tokens": "tokens of each node in the window, marker included [|V|]",
    "query.#.visited": "S, in the order of reading",
    "query.#.p_yes": "p_yes after each node of S; NaN without a check",
    "query.#.choice.#.r": "relevance of the visited nodes, 0 elsewhere [|V|] (Appendix C)",
    "query.#.choice.#.z": "z = Eᵀr [|V|] (equation 1)",
    "query.#.choice.#.scores": "final score [|V|]: z and c, each over its sum",
    "query.#.choice.#.order": "the ten best nodes outside S that fit the window, best first",
}


@contextmanager
def dumping(method: pecan.Pecan, path: str | Path):
    """Keep what `method` computes within the block. At its end, write both files or raise OutputError.

    The method's functions are watched while they run, so a graph that is only loaded gives no groups and no points.
    """
    tensors = {}
    groups, replies, points, searches, choices = [], [], [], [], []
    queries = itertools.count()

    def keep(name, value):
        tensors[name] = torch.as_tensor(value).cpu().clone(memory_format=torch.contiguous_format)

    def keep_construction(prepared, *_):
        keep("levels", [node.level for node in prepared.graph.nodes])
        keep("E.indices", prepared.graph.E.indices())
        keep("E.values", prepared.graph.E.values())

        # Groups take the nodes in order, level after level.
        first = 0
        for k, (texts, (ids, a)) in enumerate(zip(groups, replies, strict=True)):
            keep(f"group.{k}.nodes", range(first, first + len(texts)))
            keep(f"group.{k}.reply", torch.tensor(ids, dtype=torch.int64))
            if a is not None:
                keep(f"group.{k}.a", a)
            first += len(texts)

        for m, (k, a, tokens) in enumerate(points):
            keep(f"point.{m}.group", k)
            keep(f"point.{m}.tokens", tokens)
            keep(f"point.{m}.e_prime", a[tokens].double().mean(0))

    def keep_search(answer, *_):
        search = searches.pop()
        at = f"query.{next(queries)}."
        keep(at + "c", search.c)
        keep(at + "tokens", search.lengths)
        keep(at + "visited", answer.nodes)
        keep(at + "p_yes", np.array([step.p_yes for step in answer.trace], float))

        # The last scores led to no step if no remaining node fitted.
        chosen = [step for step in answer.trace if step.candidates]
        for n, (step, (r, z, scores)) in enumerate(zip(chosen, choices)):
            of_choice = f"{at}choice.{n}."
            keep(of_choice + "r", r)
            keep(of_choice + "z", z)
            keep(of_choice + "scores", scores)
            keep(of_choice + "order", [i for i, _, _ in step.candidates])
        choices.clear()

    with (watching(pecan, "summarise", lambda _, model, batch, *rest: groups.extend(batch)),
          watching(pecan, "information_points", lambda _, tokenizer, ids, a, *rest: replies.append((ids, a))),
          watching(pecan, "edge_weights", lambda _, a, tokens: points.append((len(replies), a, tokens))),
          watching(pecan, "Search", lambda search, *_: searches.append(search)),
          watching(pecan, "final_scores", lambda scores, E, r, *rest: choices.append((r.clone(), *scores))),
          watching(method, "prepare", keep_construction), watching(method, "answer", keep_search)):
        yield
    write_tensors(path, tensors)
    write_file(Path(path).with_suffix(".json"), json.dumps(MEANINGS, indent=1) + "\n")
