"""Ring 9, full size without weights: shapes of 1B, 8B and 70B on PyTorch's meta device, which holds no data.

Code, shapes and dtypes are those of a run on a GPU with windows of 8,192 tokens. Three things are shortened, because
only the cache outlives a layer: a reply has two tokens, a search begins in a cache that counts as nearly full, and only
the first layers run.
"""
import math
import re
from pathlib import Path

import pytest
import torch
from measure import groups, memory, random_model, search

from core.settings import PASS, WINDOW
from evaluation.cost import bytes_of_pass
from model.checkpoint import read_config, tensor_shapes

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", ["1B", "8B", "70B"])
@pytest.mark.parametrize("run", [groups, search])
def test_memory_at_full_size(run, shape, dtype):
    """Eight windows are summarised; a search fills its window. Their memory is as the dry run says, all tensors are on
    one device, and no probe stays in the cache."""
    model, _ = random_model(shape, "meta", dtype, num_hidden_layers=8)
    counted, said = memory(run, model, WINDOW)
    assert counted == pytest.approx(said, rel=.05)


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
