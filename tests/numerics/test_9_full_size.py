"""Ring 9, full size without weights: shapes of 1B, 8B and 70B on PyTorch's meta device, which holds no data.

Code, shapes and dtypes are those of a run on a GPU with windows of 8,192 tokens. Three things are shortened, because
only the cache outlives a layer: a reply has two tokens, a search begins in a cache that counts as nearly full, and only
the first layers run.
"""
import pytest
import torch
from measure import groups, memory, random_model, search

from core.settings import WINDOW


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", ["1B", "8B", "70B"])
@pytest.mark.parametrize("run", [groups, search])
def test_memory_at_full_size(run, shape, dtype):
    """Eight windows are summarised; a search fills its window. Their memory is as the dry run says, all tensors are on
    one device, and no probe stays in the cache."""
    model, _ = random_model(shape, "meta", dtype, num_hidden_layers=8)
    counted, said = memory(run, model, WINDOW)
    assert counted == pytest.approx(said, rel=.05)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("run", [groups, search])
def test_memory_on_a_gpu(run):
    """The same of all layers of 8B, measured; it takes 24 GB."""
    model, _ = random_model("8B", "cuda", torch.bfloat16)
    counted, said = memory(run, model, WINDOW)
    assert counted == pytest.approx(said, rel=.05)
