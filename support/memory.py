"""What a pass through a model takes of a device's memory, what is free there, and how many windows fit."""
import contextlib
import os
from pathlib import Path

import torch

from core.checkpoint import Config
from core.settings import Settings

BATCHES = (1, 2, 4, 8)            # sizes to choose from
ON_CUDA = 16                      # one more


def bytes_of_pass(c: Config, tokens: int, slots: int, width: int) -> int:
    """Bytes that a pass over `tokens` tokens adds to the weights, with its cache of `slots`, at `width` bytes a number.

    Added are the cache, and what the forward pass holds at its peak, in the SwiGLU of a layer: three tensors of the
    hidden width, x and h, the queries and the output of attention, and RoPE's tables.
    """
    cached = 2 * c.layers * c.kv_heads * c.head_width                                      # numbers of a slot
    computed = 3 * c.hidden + 2 * c.width + 2 * c.heads * c.head_width + 2 * c.head_width  # numbers of a token
    return width * (cached * slots + computed * tokens)


def free_memory(device: torch.device) -> int | None:
    """Bytes that are free on a GPU, or else in the machine; None if the system does not say."""
    if device.type == "cuda":
        reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)        # PyTorch's own
        return torch.cuda.mem_get_info(device)[0] + reserve

    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(AttributeError, OSError, ValueError):       # Windows, macOS
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def fitting_batch(settings: Settings, models: list, processes: int = 1, weights: int = 0) -> int:
    """The largest batch whose full windows take at most half of the free memory; at least 1, and 8 if it is not known.

    Each of the `models` (config, dtype, device) reads the windows. The memory of a machine is shared by `processes`,
    and `weights` bytes of it will be taken before.
    """
    device = models[0].device
    free = free_memory(device)
    if free is None:
        return Settings.batch

    prompt = settings.window - int(settings.window * settings.summary_share)
    window = max(bytes_of_pass(model.config, prompt, settings.window, model.dtype.itemsize) for model in models)
    of_each = free - weights if device.type == "cuda" else (free - weights) // processes
    sizes = [*BATCHES, ON_CUDA] if device.type == "cuda" else BATCHES
    return max((size for size in sizes if size * window <= of_each // 2), default=1)
