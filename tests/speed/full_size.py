"""Full size: memory next to the formula of the dry run.

Without a GPU, memory is counted on PyTorch's meta device, which runs the same code on tensors without data.
"""
import torch
from measure import groups, memory, random_model, search

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
