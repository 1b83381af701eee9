"""Shapes, clocks and lines of the benchmark."""
import os
import platform
import statistics
import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from llama import Llama
from model.checkpoint import Config, tensor_shapes
from model.tokenizer import Tokenizer

TINY = Path(__file__).parents[2] / "tiny"

# The first fields of Config: vocabulary, width, hidden, layers, query heads, key/value heads, head width.
SIZES = {"embedded": (461, 128, 256, 6, 4, 2, 32),
         "SmolLM2, 6 layers": (49152, 576, 1536, 6, 9, 3, 64),
         "1B": (128256, 2048, 8192, 16, 32, 8, 64),
         "SmolLM2-1.7B": (49152, 2048, 8192, 24, 32, 32, 64),
         "8B": (128256, 4096, 14336, 32, 32, 8, 128),
         "70B": (128256, 8192, 28672, 80, 64, 8, 128)}


def random_model(shape: str, device: torch.device | str, dtype: torch.dtype) -> Llama:
    """A Llama with random weights; on the device "meta" it has none. Its replies end at their limit."""
    config = Config(*SIZES[shape], norm_eps=1e-5, max_length=1 << 17, tied=shape not in ("8B", "70B"),
                    rope_theta=5e5, rope=None, eos=(), dtype=str(dtype).removeprefix("torch."))
    torch.manual_seed(0)
    weights = {}
    for name, size in tensor_shapes(config).items():
        weight = torch.empty(size, dtype=dtype, device=device)
        weights[name] = weight.fill_(1) if len(size) == 1 else weight.normal_(0, size[-1] ** -0.5)
    return Llama(config, weights, Tokenizer(TINY))


# --- clocks ---------------------------------------------------------------------------------------------------------

def in_turns(runs: dict[str, Callable], device: torch.device, times: int) -> dict[str, float]:
    """The median seconds of each run, called in turns. All have run before, so nothing is warmed up here.

    Seconds are the process's own on a CPU, which others may use too, and the wall clock's on a GPU. (A run ends with
    numbers in Python, so the GPU is done by then.)
    """
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    taken = {name: [] for name in runs}
    for _ in range(times):
        for name, run in runs.items():
            start = clock()
            run()
            taken[name].append(clock() - start)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def peak_of(run: Callable, device: torch.device = torch.device("cpu")) -> int:
    """Bytes allocated at the peak of run(), above what was allocated before it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before

    with Counted() as counted:
        run()
    return counted.peak


class Counted(TorchDispatchMode):
    """Counts the bytes of living tensors that operations made, on any device, and records their dtypes by operation and
    device.

    Earlier tensors are not counted. An operation on tensors of two devices, except a copy, is an AssertionError.
    """

    def __init__(self):
        super().__init__()
        self.storages = weakref.WeakSet()                   # those seen
        self.alive = 0
        self.peak = 0
        self.dtypes = defaultdict(set)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation.overloadpacket.__name__
        given = self.dense((args, kwargs))
        devices = {tensor.device.type for tensor in given}
        assert len(devices) < 2 or "copy" in name, f"{name} of tensors on {' and '.join(sorted(devices))}"
        self.storages.update(tensor.untyped_storage() for tensor in given)

        result = operation(*args, **kwargs or {})
        for tensor in self.dense(result):
            self.dtypes[name, tensor.device.type].add(tensor.dtype)
            self.count(tensor.untyped_storage())
        return result

    @staticmethod
    def dense(values) -> list[torch.Tensor]:
        return [x for x in tree_leaves(values) if isinstance(x, torch.Tensor) and x.layout == torch.strided]

    def count(self, storage):
        if storage not in self.storages:
            self.storages.add(storage)
            weakref.finalize(storage, self.free, storage.nbytes())
            self.alive += storage.nbytes()
            self.peak = max(self.peak, self.alive)

    def free(self, size: int):
        self.alive -= size


# --- lines ----------------------------------------------------------------------------------------------------------

def machine(device: torch.device) -> str:
    """The machine that the figures were measured on."""
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()
    return f"{name}, {os.cpu_count()} cores, torch {torch.__version__}"


def line(what: str, shape: str, ours: float, peer: float, unit: str):
    """Print a line of the table. A ratio above 1 is always in our favour."""
    ratio = ours / peer if unit.endswith("/s") else peer / ours
    print(f"{what:46}{shape:35}{ours:12,.4g} {unit:9}{peer:12,.4g}{ratio:8.2f}x", flush=True)
