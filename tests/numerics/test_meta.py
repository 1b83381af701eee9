"""Ring 11, full size without weights: shapes of 1B, 8B and 70B on PyTorch's meta device, which holds no data.

Code, shapes and dtypes are those of a run on a GPU with windows of 8,192 tokens. Three things are shortened, because
only the cache outlives a layer: a reply has two tokens, a search begins in a cache that counts as nearly full, and some
cases run only the first layers.
"""
import math
import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from speed import peer
from speed.full_size import REPLY, WithoutData, read_windows, search_to_the_end
from speed.measure import Counted, random_model
from torch.utils.flop_counter import FlopCounterMode

from core.settings import PASS, WINDOW
from evaluation.cost import bytes_of_pass
from llama import Cache, Llama, flops_of, length_of
from model.checkpoint import read_config, tensor_shapes
from pecan import answer_turn

ROOT = Path(__file__).parents[2]


@contextmanager
def checked(model: Llama):
    """Count bytes, and assert shapes and dtypes of everything that runs. (Counted asserts the devices.)"""
    forward = model.forward

    def checked_forward(tokens, positions, mask, cache, averaging):
        hidden, a = forward(tokens, positions, mask, cache, averaging)
        assert hidden.shape == (*tokens.shape, model.config.width) and hidden.dtype == model.dtype
        assert (a is None) == (averaging is None)
        assert a is None or a.shape == (*tokens.shape, averaging.shape[2]) and a.dtype == torch.float32
        assert {tensor.dtype for tensor in (*cache.keys, *cache.values)} == {model.dtype}
        return hidden, a

    model.forward = checked_forward
    with WithoutData(), Counted() as counted:
        yield counted
    for name in ("_softmax", "rsqrt", "pow", "cos", "sin"):
        assert counted.dtypes[name, "meta"] == {torch.float32}, f"{name} in {counted.dtypes[name, 'meta']}"
    for name in ("mm", "silu", "embedding"):
        assert counted.dtypes[name, "meta"] == {model.dtype}, f"{name} in {counted.dtypes[name, 'meta']}"


def model_of(shape: str, dtype: torch.dtype, layers: int) -> Llama:
    """A random model on the meta device, with at most so many layers."""
    model = random_model(shape, "meta", dtype)
    layers = min(layers, model.config.layers)
    model.config = replace(model.config, layers=layers)
    model.weights = {name: weight for name, weight in model.weights.items()
                     if "layers" not in name or int(name.split(".")[2]) < layers}
    return model


@pytest.mark.parametrize("dtype, layers", [(torch.bfloat16, 32), (torch.float16, 8), (torch.float32, 8)], ids=str)
@pytest.mark.parametrize("shape", ["1B", "8B", "70B"])
def test_a_batch_of_windows_at_full_size(shape, dtype, layers):
    """Devices, dtypes and shapes are right when eight windows are summarised; memory is as the dry run says."""
    model = model_of(shape, dtype, layers)
    with checked(model) as counted:
        tokens, slots = read_windows(model, 8)
    assert .95 < slots / (8 * WINDOW) <= 1
    said = bytes_of_pass(model.config, dtype.itemsize, tokens, slots)
    assert counted.peak == pytest.approx(said, rel=.05)


@pytest.mark.parametrize("shape, dtype, layers", [("1B", torch.float32, 16), ("8B", torch.bfloat16, 8),
                                                  ("70B", torch.float16, 16)], ids=str)
def test_a_search_at_full_size(shape, dtype, layers):
    """The same holds for a search that fills its window, and no probe stays in the cache."""
    model = model_of(shape, dtype, layers)
    with checked(model) as counted:
        search = search_to_the_end(model)
    close = length_of(answer_turn(model.tokenizer, 0)) + REPLY
    assert search.cache.lengths == [WINDOW - 1] and search.trace[-1].cached == WINDOW - close
    said = bytes_of_pass(model.config, dtype.itemsize, PASS, WINDOW, WINDOW)
    assert counted.peak == pytest.approx(said, rel=.05)


def test_the_memory_in_the_documents():
    """The table of docs/models.md gives weights plus formula, for groups that fill three quarters of the window."""
    rows = re.findall(r"^\| ([\d,]+)[^|]* \|(.*)\|$", (ROOT / "docs" / "models.md").read_text(encoding="utf-8"), re.M)
    config = read_config(ROOT / "tests" / "llama-3.1-8b")
    weights = 2 * sum(map(math.prod, tensor_shapes(config).values()))
    assert [row[0] for row in rows] == ["2,048", "4,096", "8,192", "16,384"]
    for row, cells in rows:
        window = int(row.replace(",", ""))
        passes = [(batch * window * 3 // 4, batch * window) for batch in (1, 2, 4, 8, 16)] + [(PASS, window, window)]
        assert cells.replace("|", " ").split() == [f"{(weights + bytes_of_pass(config, 2, *each)) / 1e9:.1f}"
                                                   for each in passes]


@pytest.mark.parametrize("shape, layers", [("1B", 16), ("8B", 32), ("70B", 8)])
def test_flops_at_full_size(shape, layers):
    """Our count, the formula, and PyTorch's counts of our pass and of transformers' eager pass are equal."""
    model = model_of(shape, torch.bfloat16, layers)
    with WithoutData(fused=False), FlopCounterMode(display=False) as counter:
        model.logits(model.read(Cache(model, 1, WINDOW), [[(None, [5] * WINDOW)]])[0])
    with torch.no_grad(), FlopCounterMode(display=False) as theirs:
        peer.hugging_face(model, "eager")(torch.ones(1, WINDOW, dtype=torch.long, device="meta"), logits_to_keep=1)
    assert model.flops == counter.get_total_flops() == theirs.get_total_flops()
    assert model.flops == flops_of(model.config, WINDOW, WINDOW, 1)
