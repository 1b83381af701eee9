"""Full size: memory next to the formula of the dry run, and how fast a processor without a GPU is.

Without a GPU, memory is counted on PyTorch's meta device, which runs the same code on tensors without data.
"""
import os
import time

import torch
from measure import groups, memory, nodes_of, random_model, search

from core.settings import WINDOW
from evaluation.cost import NODE, PROMPT, construction
from llama import Cache
from speed.reading import line


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
