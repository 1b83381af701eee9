"""Ring 11, full size without weights: shapes of 1B, 8B and 70B on PyTorch's meta device, which holds no data.

The code is the one that runs on a GPU: the same shapes and dtypes, and tensors that meet on two devices are an error. All
layers run, in windows of 8,192. Three things are shortened, because no layer keeps anything but its cache: a reply has
three tokens; a search begins in a cache that counts as nearly full; and for 70B it runs 8 of the 80 layers.
"""
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from speed import peer
from speed.measure import Counted, random_model
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

import pecan
from core.settings import PASS, Settings
from core.watch import watching
from evaluation.cost import bytes_of_pass
from llama import Cache, Llama, length_of
from pecan import Search, summarise, summary_prompt
from support.graph import Graph, Node, edge_matrix

WINDOW = 8192
REPLY = 3


class WithoutData(TorchFunctionMode):
    """Answers for data that is not there, and fused attention as the one operation that it is on a GPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is F.scaled_dot_product_attention:
            return torch.empty_like(args[0])
        if args and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            if function is torch.Tensor.tolist:
                return torch.zeros(args[0].shape, dtype=args[0].dtype).tolist()
            if function is torch.Tensor.cpu:
                return torch.full(args[0].shape, .01, dtype=args[0].dtype)
            if function is torch.Tensor.__bool__:
                return True
        return function(*args, **kwargs or {})


@contextmanager
def counting(model: Llama):
    """Counts bytes, and asserts of everything that runs: its device, and the dtypes of the path."""
    shapes = []

    def heard(result, *given, **named):
        shapes.append((result[0].shape, result[1] if result[1] is None else result[1].dtype))

    with WithoutData(), Counted() as counted:
        yield counted
    for name in ("_softmax", "rsqrt", "cos", "sin", "new_zeros"):
        assert counted.dtypes[name] <= {torch.float32, *([model.dtype] if name == "new_zeros" else [])}, name
    for name in ("mm", "silu", "embedding", "index_put_", "zeros", "empty_like"):
        assert counted.dtypes[name] <= {model.dtype, torch.int64}, f"{name} in {counted.dtypes[name]}"
