"""A dump is checked from outside: numpy alone computes E and the order of retrieval again."""
import json
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from safetensors.numpy import load_file

from data import EMBEDDED, read_jsonl
from pecan import Pecan
from support.token_mean import TokenMean
from view.dump import dumping

# Another window gives batches with rows of different lengths. A high threshold makes a search long.
CASES = {"embedded": (0, {}), "larger windows": (1, {"window": 400}),
         "no answer in sight": (2, {"confidence": 0.99999}), "one point for each group": (0, {"tree": True})}


@pytest.fixture(scope="module", params=CASES)
def dump(request, tmp_path_factory, tiny, settings):
    """The tensors and their meanings, two answers, the same answers without a dump, and the nodes of the graph."""
    number, changes = CASES[request.param]
    whole = read_jsonl(EMBEDDED, 3)[number]
    document = replace(whole, passages=whole.passages[:23])
    folder = tmp_path_factory.mktemp("dump")
    method = Pecan(tiny, TokenMean(tiny), replace(settings, **changes))

    def answers():
        prepared = method.prepare(document, folder / "graph.json")
        return [method.answer(prepared, question.text) for question in document.questions[2:4]]

    with dumping(method, folder / "my.dump.safetensors"):
        dumped = answers()
    nodes = json.loads((folder / "graph.json").read_text())["nodes"]
    meanings = json.loads((folder / "my.dump.json").read_text())
    return load_file(folder / "my.dump.safetensors"), meanings, dumped, answers(), nodes


def dense(tensors) -> np.ndarray:
    """E [V, V] from the dump."""
    E = np.zeros((len(tensors["levels"]),) * 2)
    E[tuple(tensors["E.indices"])] = tensors["E.values"]
    return E


def numbered(tensors, *name) -> range:
    """The numbers of the tensors of this kind: 0, 1, 2 .. without a gap."""
    kind = ".".join(name)
    found = {int(re.match(rf"{kind}\.(\d+)\.", each)[1]) for each in tensors if each.startswith(f"{kind}.")}
    assert found == set(range(len(found)))
    return range(len(found))


def test_e_from_the_attention_of_every_group(dump, tiny):
    """Averaging a(x, j) over the tokens of each point gives every e'; normalising e' gives every row of E. These tokens
    of the reply are the point's text."""
    tensors, *_, nodes = dump
    assert tensors["levels"].tolist() == [node["level"] for node in nodes]
    E = dense(tensors)
    computed = np.zeros_like(E)
    first = (tensors["levels"] == 1).sum()
    for point in numbered(tensors, "point"):
        group = tensors[f"point.{point}.group"]
        a = tensors[f"group.{group}.a"].astype(np.float64)
        e_prime = a[tensors[f"point.{point}.tokens"]].mean(0)
        np.testing.assert_allclose(tensors[f"point.{point}.e_prime"], e_prime, rtol=1e-12)
        if first + point < len(E):
            computed[first + point, tensors[f"group.{group}.nodes"]] = e_prime / e_prime.sum()
            said = tensors[f"group.{group}.reply"][tensors[f"point.{point}.tokens"]].tolist()
            assert tiny.tokenizer.decode(said) == nodes[first + point]["text"]
    np.testing.assert_allclose(computed, E, rtol=1e-12)
    assert len(E) > first


def test_the_order_of_retrieval(dump):
    """E, r and c give z, the final scores and the node that is read next."""
    tensors, _, answers, *_ = dump
    E = dense(tensors)
    choices = 0
    for query in numbered(tensors, "query"):
        c = tensors[f"query.{query}.c"]
        visited = tensors[f"query.{query}.visited"].tolist()
        chosen = numbered(tensors, "query", str(query), "choice")
        choices += len(chosen)

        for choice in chosen:
            r, z, scores, order = (tensors[f"query.{query}.choice.{choice}.{name}"]
                                   for name in ("r", "z", "scores", "order"))
            known = visited[:choice - len(chosen)]
            assert set(np.flatnonzero(r)) == set(known)
            np.testing.assert_allclose(z, E.T @ r, rtol=1e-12)
            np.testing.assert_allclose(scores, z / z.sum() + np.maximum(c, 0) / np.maximum(c, 0).sum(), rtol=1e-12)
            assert not set(order) & set(known) and order[0] == visited[choice - len(chosen)]
            assert order.tolist() == sorted(order, key=lambda i: (-scores[i], i))
    assert choices > 0


def test_a_dump_explains_itself_and_changes_nothing(dump):
    tensors, meanings, dumped, plain, _ = dump
    assert {re.sub(r"\d+", "#", name) for name in tensors} == set(meanings)
    assert dumped == plain
    for query, answer in enumerate(plain):
        assert tensors[f"query.{query}.visited"].tolist() == answer.nodes
        checks = [np.nan if step.p_yes is None else step.p_yes for step in answer.trace]
        np.testing.assert_array_equal(tensors[f"query.{query}.p_yes"], checks)
        tokens, c = tensors[f"query.{query}.tokens"], tensors[f"query.{query}.c"]
        for before, step in pairwise(answer.trace):
            assert step.cached - before.cached == tokens[step.node] and step.c in (None, c[step.node])
