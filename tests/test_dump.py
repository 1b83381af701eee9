"""A dump, audited from outside: E and the order of retrieval computed again with numpy alone."""
import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from core.files import InputError
from data import EMBEDDED, read_jsonl
from pecan import Pecan
from support.token_mean import TokenMean
from support.trace import Recorder

# With other windows the rows of a batch are of different lengths; with a high threshold a search is long.
CASES = {"embedded": (0, {}), "small windows": (1, {"window": 400}),
         "no answer in sight": (2, {"confidence": 0.99999})}


@pytest.fixture(scope="module", params=CASES)
def dump(request, tmp_path_factory, tiny, settings):
    """The tensors and their meanings, the graph, and two answers."""
    number, changes = CASES[request.param]
    whole = read_jsonl(EMBEDDED, 3)[number]
    document = replace(whole, passages=whole.passages[:23])
    folder = tmp_path_factory.mktemp("dump")
    method = Recorder(Pecan(tiny, TokenMean(tiny), replace(settings, **changes)),
                      dump=folder / "dump.safetensors")
    prepared = method.prepare(document, folder / "graph.json")
    answers = [method.answer(prepared, question.text) for question in document.questions[2:4]]
    return load_file(folder / "dump.safetensors"), json.loads((folder / "dump.json").read_text()), prepared, answers


def dense(dump) -> np.ndarray:
    """E [V, V] as the dump has it."""
    V = len(dump["levels"])
    E = np.zeros((V, V))
    i, j = dump["E.indices"]
    E[i, j] = dump["E.values"]
    return E


def test_e_from_the_attention_of_every_window(dump):
    """a(x, j), averaged over the tokens of each point, then normalised: every e' and every row of E."""
    tensors, _, _, _ = dump
    E = dense(tensors)
    computed = np.zeros_like(E)
    first = int(np.argmax(tensors["levels"] == 2)) if (tensors["levels"] == 2).any() else len(E)
    points = sorted({int(name.split(".")[1]) for name in tensors if name.startswith("point.")})
    assert points == list(range(len(points))) and len(points) >= len(E) - first > 0

    for point in points:
        window = int(tensors[f"point.{point}.window"])
        a = tensors[f"window.{window}.a"].astype(np.float64)
        e_prime = a[tensors[f"point.{point}.tokens"]].mean(0)
        np.testing.assert_allclose(tensors[f"point.{point}.e_prime"], e_prime, rtol=1e-12)
        if first + point < len(E):
            computed[first + point, tensors[f"window.{window}.nodes"]] = e_prime / e_prime.sum()
    np.testing.assert_allclose(computed, E, rtol=1e-12)


def test_the_order_of_retrieval(dump):
    """z, final scores and the node that is read, from E, r and c."""
    tensors, _, _, answers = dump
    E = dense(tensors)
    for query, answer in enumerate(answers):
        at = f"query.{query}."
        c = tensors[at + "c"]
        visited = tensors[at + "visited"].tolist()
        assert visited == answer.nodes
        choices = sum(name.startswith(at) and name.endswith(".z") for name in tensors)
        start = len(visited) - choices

        for choice in range(choices):
            of_choice = f"{at}choice.{choice}."
            r = tensors[of_choice + "r"]
            known = visited[:start + choice]
            assert set(np.flatnonzero(r)) == set(known)
            z = E.T @ r
            scores = z / z.sum() + np.maximum(c, 0) / np.maximum(c, 0).sum()
            np.testing.assert_allclose(tensors[of_choice + "z"], z, rtol=1e-12)
            np.testing.assert_allclose(tensors[of_choice + "scores"], scores, rtol=1e-12)

            order = tensors[of_choice + "order"]
            assert not set(order.tolist()) & set(known)
            assert order.tolist() == sorted(order.tolist(), key=lambda i: (-tensors[of_choice + "scores"][i], i))
            assert visited[start + choice] == order[0]
    assert choices > 0


def test_every_tensor_is_explained(dump):
    tensors, meanings, _, answers = dump
    assert set(tensors) == set(meanings)
    for name, tensor in tensors.items():
        assert meanings[name]["shape"] == list(tensor.shape) and meanings[name]["dtype"] == str(tensor.dtype)
        assert len(meanings[name]["is"]) > 10
    checks = [-1.0 if step.p_yes is None else step.p_yes for step in answers[0].trace]
    assert tensors["query.0.p_yes"].tolist() == checks


def test_a_dump_needs_the_whole_construction(tmp_path, tiny, settings):
    document = read_jsonl(EMBEDDED, 1)[0]
    for exists in ("graph.json", "graph.json.windows"):
        (tmp_path / exists).write_text("")
        with pytest.raises(InputError, match=f"{exists}: exists"):
            Recorder(Pecan(tiny, TokenMean(tiny), settings), dump=tmp_path / "d.safetensors").prepare(
                document, tmp_path / "graph.json")
        (tmp_path / exists).unlink()
