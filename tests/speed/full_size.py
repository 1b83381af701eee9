"""Full size: memory next to the formula of the dry run, and how fast a processor without a GPU is.

Without a GPU, memory is counted on PyTorch's meta device, which runs the same code on tensors without data.
"""
import os
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from core.settings import PASS, WINDOW, Settings
from evaluation.cost import NODE, PROMPT, bytes_of_pass, construction
from llama import Cache, Llama, length_of
from pecan import Graph, Node, Search, node_line, summarise, summary_prompt
from speed.measure import line, peak_of, random_model
from speed.reading import nodes_of

REPLY = 2                         # tokens of a reply; memory does not depend on how many of its slots are written
ROWS = 8                          # groups of a batch

# What stands for the data that the meta device does not hold. Attention runs as one operation, like a fused kernel.
ANSWERS = {F.scaled_dot_product_attention: torch.empty_like,
           torch.Tensor.tolist: lambda x: torch.zeros(x.shape, dtype=x.dtype).tolist(),
           torch.Tensor.cpu: lambda x: torch.full(x.shape, .01, dtype=x.dtype),
           torch.Tensor.__bool__: lambda x: True}


class WithoutData(TorchFunctionMode):
    """Runs on the meta device what asks for data, too."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in ANSWERS and args[0].is_meta:
            return ANSWERS[function](args[0])
        return function(*args, **kwargs or {})


def groups(model: Llama, window: int) -> tuple[int, ...]:
    """Summarise a batch of full windows. Return the tokens of its prompts and the slots of its cache."""
    text = "color " * 298
    empty = length_of(summary_prompt(model.tokenizer, []))
    length = length_of(node_line(model.tokenizer, None, text))
    nodes = (window - empty - REPLY) // length
    summarise(model, [[text] * nodes] * ROWS, REPLY)
    tokens = ROWS * (empty + nodes * length)
    return tokens, tokens + ROWS * REPLY


def search(model: Llama, window: int) -> tuple[int, ...]:
    """Run a search that fills its window: two nodes, a check, and the answer. All other tokens count as read.

    Return the tokens of its longest pass, the slots of its cache, and the keys that attention weights are for.
    """
    search = Search(model, Graph([Node(1, "color " * 250)] * 2, []), "Who is Ahab?", torch.ones(2),
                    Settings(window=window, answer_tokens=REPLY))
    search.cache.lengths[0] += search.room - search.lengths.sum().item()
    search.answer()
    assert search.cache.lengths == [window - 1], "the last token of the answer does not run, and a probe is rolled back"
    return PASS, window, window


def memory(run: Callable, model: Llama, window: int) -> tuple[int, int]:
    """The bytes that run(model, window) adds at its peak, and those of the dry run's formula."""
    passed = []
    with WithoutData() if model.device.type == "meta" else nullcontext():
        peak = peak_of(lambda: passed.extend(run(model, window)), model.device)
    return peak, bytes_of_pass(model.config, model.dtype.itemsize, *passed)


def full_size(device: torch.device, short: bool):
    """The bytes that a batch of groups and a search add: measured (without a GPU, counted) and computed."""
    on_gpu = device.type == "cuda"
    for shape in ("1B",) if short else ("8B",) if on_gpu else ("1B", "8B", "70B"):
        model, _ = random_model(shape, device if on_gpu else "meta", torch.bfloat16)
        for window in (2048,) if short else (2048, 4096, 8192, 16384):
            for run in (groups, search):
                what = f"bytes of {run.__name__}, {shape}, window {window:,} / formula"
                try:
                    line(what, *(size / 2 ** 30 for size in memory(run, model, window)), "GiB")
                except torch.OutOfMemoryError:
                    print(f"{what}: more than this GPU has")


def laptop(device: torch.device, short: bool):
    """SmolLM2-1.7B's shape on the processor, float32 and bfloat16: tokens a second, and the seconds of ten pages."""
    threads = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count())
    pages = [group for level in construction([300] * 20, WINDOW * 3 // 4, WINDOW // 4, NODE) for group in level]
    shape, length, reply = ("embedded", 192, 4) if short else ("SmolLM2-1.7B", 2048, 16)
    for dtype in (torch.float32, torch.bfloat16):
        model, _ = random_model(shape, "cpu", dtype)
        nodes = nodes_of(length)
        cache = Cache(model, 1, length + reply)
        start = time.perf_counter()
        hidden, _ = model.read(cache, [nodes])
        half = time.perf_counter()
        model.generate(cache, hidden, reply, cache.averaging_matrix([range(len(nodes))]))
        reading, writing = length / (half - start), reply / (time.perf_counter() - half)
        seconds = sum((PROMPT + read) / reading + written / writing for read, written in pages)
        print(f"{shape}, {dtype}: reading {reading:.3g} tokens/s, writing {writing:.3g}, ten pages {seconds:.3g} s")
    torch.set_num_threads(threads)
