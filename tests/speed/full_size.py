"""Full size: memory next to the formula of the dry run, and how fast a processor without a GPU is.

Without a GPU, memory is counted on PyTorch's meta device, which runs the same code on tensors without data.
"""
import os
import time
from contextlib import nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from core.settings import PASS, WINDOW, Settings
from evaluation.cost import NODE, PROMPT, bytes_of_pass, construction
from llama import Cache, Llama, length_of
from pecan import Graph, Node, Search, summarise, summary_prompt
from speed.measure import line, peak_of, random_model
from speed.reading import prompt_of

REPLY = 2                         # tokens of a reply; memory does not depend on how many of its slots are written
ROWS = 8                          # groups of a batch


class WithoutData(TorchFunctionMode):
    """Gives answers where there is no data, and runs attention as one operation, like a fused kernel."""

    def __init__(self, fused: bool = True):
        super().__init__()
        self.fused = fused

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if args and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            if function is F.scaled_dot_product_attention and self.fused:
                return torch.empty_like(args[0])
            if function is torch.Tensor.tolist:
                return torch.zeros(args[0].shape, dtype=args[0].dtype).tolist()
            if function is torch.Tensor.cpu:
                return torch.full(args[0].shape, .01, dtype=args[0].dtype)
            if function is torch.Tensor.__bool__:
                return True
        return function(*args, **kwargs or {})


def read_windows(model: Llama, rows: int, window: int = WINDOW) -> tuple[int, int]:
    """Summarise a batch of full windows. Return the tokens of its prompts and the slots of its cache."""
    texts = ["color " * 298] * 2
    empty, one, two = (length_of(summary_prompt(model.tokenizer, texts[:count])) for count in range(3))
    texts = texts[:1] * ((window - empty - REPLY) // (two - one))
    summarise(model, [texts] * rows, REPLY)
    prompt = empty + len(texts) * (two - one)
    return rows * prompt, rows * (prompt + REPLY)


def search_to_the_end(model: Llama, window: int = WINDOW) -> Search:
    """Run a search that fills its window: two nodes of the top level in a pass, two chunks, checks, and the answer."""
    texts = ["color " * 250] * 2 + ["color " * 10] * 2
    graph = Graph([Node(1 + n // 2, text) for n, text in enumerate(texts)], [(2, 0, .5), (3, 1, .5)])
    settings = Settings(window=window, answer_tokens=REPLY, confidence=.9)
    search = Search(model, graph, "Who is Ahab?", torch.ones(4), settings)

    # The other tokens of the window count as read.
    skipped = search.room - search.lengths.sum().item()
    search.cache.lengths[0] += skipped
    search.room -= skipped
    answer = search.answer()
    assert answer.end == "all" and len(answer.trace) == 4
    return search


def full_size(device: torch.device, short: bool):
    """The bytes that a batch of groups and a search add: measured (without a GPU, counted) and computed."""
    on_gpu = device.type == "cuda"
    for shape in ("1B",) if short else ("8B",) if on_gpu else ("1B", "8B", "70B"):
        model = random_model(shape, device if on_gpu else "meta", torch.bfloat16)
        for window in (2048,) if short else (2048, 4096, 8192, 16384):
            sizes = []
            runs = {f"{ROWS} groups": lambda: sizes.extend(read_windows(model, ROWS, window)),  # noqa: B023
                    "search": partial(search_to_the_end, model, window)}
            for what, run in runs.items():
                with nullcontext() if on_gpu else WithoutData():
                    try:
                        peak = peak_of(run, model.device)
                    except torch.OutOfMemoryError:
                        print(f"{shape}, window {window:,}, {what}: more than this GPU has")
                        continue
                passed = (PASS, window, window) if what == "search" else sizes
                line("bytes / formula", f"{shape}, window {window:,}, {what}", peak / 2 ** 30,
                     bytes_of_pass(model.config, model.dtype.itemsize, *passed) / 2 ** 30, "GiB")


def laptop(device: torch.device, short: bool):
    """SmolLM2-1.7B's shape on the processor, float32 and bfloat16: tokens a second, and the seconds of ten pages."""
    threads = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count())
    pages = [group for level in construction([300] * 20, WINDOW * 3 // 4, WINDOW // 4, NODE) for group in level]
    read = sum(PROMPT + nodes for nodes, _ in pages)
    written = sum(summary for _, summary in pages)

    speeds = []
    for dtype in (torch.float32, torch.bfloat16):
        model = random_model("embedded" if short else "SmolLM2-1.7B", "cpu", dtype)
        speeds.append(tokens_a_second(model, *((192, 4) if short else (2048, 16))))
    for what, both in zip(("reading", "writing with attention"), zip(*speeds)):
        line(f"{what}, float32 / bfloat16", "SmolLM2-1.7B, one row", *both, "tokens/s")
    seconds = [read / reading + written / writing for reading, writing in speeds]
    line("ten pages, float32 / bfloat16", f"SmolLM2-1.7B, {read:,} tokens read, {written:,} written", *seconds, "s")
    torch.set_num_threads(threads)


def tokens_a_second(model: Llama, length: int, reply: int) -> tuple[float, float]:
    """Tokens a second of reading a prompt of nodes, and of writing a reply with attention to them."""
    nodes = prompt_of(model, length)
    model.read(Cache(model, 1, length), [nodes[:1]])                  # to warm up
    cache = Cache(model, 1, length + reply)
    start = time.perf_counter()
    hidden, _ = model.read(cache, [nodes])
    half = time.perf_counter()
    model.generate(cache, hidden, reply, cache.averaging_matrix([range(len(nodes))]))
    return length / (half - start), reply / (time.perf_counter() - half)
