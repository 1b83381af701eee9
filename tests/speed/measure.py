"""Shapes, clocks and lines of the benchmark."""
import itertools
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from core.checkpoint import Config, tensor_shapes
from core.tokenizer import Tokenizer
from llama import Llama

TINY = Path(__file__).parents[2] / "tiny"

# vocabulary, width, hidden, layers, query heads, key/value heads, head width
SIZES = {"embedded": (461, 128, 256, 6, 4, 2, 32),
         "SmolLM2, 6 layers": (49152, 576, 1536, 6, 9, 3, 64),
         "1B, 2 layers": (128256, 2048, 8192, 2, 32, 8, 64),
         "8B": (128256, 4096, 14336, 32, 32, 8, 128)}


def random_models(device: torch.device, short: bool, on_cpu: int = 3):
    """(shape, a Llama of random weights) for each shape, for the first ones on a CPU. Replies end at their limit.

    In bfloat16 on a GPU, else in float32.
    """
    on_gpu = device.type == "cuda"
    for shape in list(SIZES)[:1 if short else 4 if on_gpu else on_cpu]:
        vocab, width, hidden, layers, heads, kv_heads, head_width = SIZES[shape]
        config = Config(vocab=vocab, width=width, hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads,
                        head_width=head_width, norm_eps=1e-5, max_length=1 << 17, tied=shape != "8B", rope_theta=5e5,
                        rope=None, eos=(), dtype="float32")
        torch.manual_seed(0)
        weights = {}
        for name, size in tensor_shapes(config).items():
            weight = torch.empty(size, dtype=torch.bfloat16 if on_gpu else torch.float32, device=device)
            weights[name] = weight.fill_(1) if len(size) == 1 else weight.normal_(0, size[-1] ** -0.5)
        yield shape, Llama(config, weights, Tokenizer(TINY))


# --- clocks ---------------------------------------------------------------------------------------------------------

def seconds(run: Callable, device: torch.device) -> float:
    """What one call takes: the time of the process on a CPU, which others may use too; else the time on the wall."""
    on_gpu = device.type == "cuda"
    clock = time.perf_counter if on_gpu else time.process_time
    if on_gpu:
        torch.cuda.synchronize()
    start = clock()
    run()
    if on_gpu:
        torch.cuda.synchronize()
    return clock() - start


def in_turns(runs: dict[str, Callable], device: torch.device, times: int) -> dict[str, float]:
    """The median seconds of each run, called in turns. All have run before, so nothing is warmed up here."""
    turns = [{name: seconds(run, device) for name, run in runs.items()} for _ in range(times)]
    return {name: statistics.median(turn[name] for turn in turns) for name in runs}


def peak_of(run: Callable, device: torch.device = torch.device("cpu")) -> int:
    """Bytes allocated at the peak of run(), above what was allocated before it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    with tempfile.TemporaryDirectory() as folder:
        profiled.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]

    allocations = [event for event in events if event.get("name") == "[memory]"]
    allocations.sort(key=lambda event: event["ts"])
    return max(itertools.accumulate(event["args"]["Bytes"] for event in allocations))


# --- lines ----------------------------------------------------------------------------------------------------------

def machine(device: torch.device) -> str:
    """What the figures were measured on."""
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()
    return f"{name}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}"


def line(what: str, shape: str, ours: float, peer: float, unit: str):
    """Print a line of the table. A ratio above 1 is in our favour, whether less or more is better."""
    ratio = ours / peer if unit.endswith("/s") else peer / ours
    print(f"{what:50}{shape:35}{ours:12,.4g} {unit:9}{peer:12,.4g}{ratio:8.2f}x", flush=True)
