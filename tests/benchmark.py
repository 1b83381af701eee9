"""The cost of the method, side by side with transformers in the same process; BENCHMARK.md explains the figures.

    python tests/benchmark.py [PART ...] [--short]        parts: stage_1, one_search, full_size (default: all)

Times are compared inside one run, because machines differ and are shared. --short takes seconds. Its small
sizes show that everything runs and that both sides compute the same.
"""
import os
import statistics
import sys
import time
import timeit
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch  # noqa: E402
from measure import groups, memory, nodes_of, random_model, search  # noqa: E402
from transformers import DynamicCache  # noqa: E402

from core.settings import Settings  # noqa: E402
from llama import Cache, Llama  # noqa: E402
from pecan import Graph, Node, Search  # noqa: E402


class Peer(Llama):
    """A model of one row whose forward pass, mask and cache are those of transformers, over the same weights.

    Prompts, generation and the search around the passes are ours, so both sides do the same work. "eager" attention
    keeps the weights of all layers and heads until the end of a pass; "sdpa" gives no weights, so a(x, j) stays 0.
    """

    def __init__(self, model: Llama, hf, attention: str):
        super().__init__(replace(model.config, kv_heads=0), model.weights, model.tokenizer)      # our cache stays empty
        self.hf = hf
        self.attention = attention

    def recorded(self, cache, attended):
        return self.forward                                 # its cache grows, so its step cannot be recorded

    def forward(self, tokens, positions, cache, attended=0, ends=None):
        if cache.lengths == [0]:
            self.hf.set_attn_implementation(self.attention)
            cache.past = DynamicCache(config=self.hf.config)
        probe = cache.past.get_seq_length() - cache.lengths[0]
        if probe:
            cache.past.crop(-probe)
        out = self.hf.model(tokens, past_key_values=cache.past, use_cache=True,
                            output_attentions=self.attention == "eager" and attended > 0)
        a = torch.zeros(*tokens.shape, attended, device=tokens.device) if attended else None             # [1, T, P']
        for weights in out.attentions or ():
            a += weights.float().mean(1)[:, :, :attended] / self.config.layers
        return out.last_hidden_state[:, slice(None) if ends is None else ends[0]], a


def line(what: str, ours: float, peer: float, unit: str):
    """Print a line of the table. A ratio above 1 is in our favour."""
    print(f"{what:60}{ours:12,.4g} {unit:9}{peer:12,.4g}{peer / ours:8.2f}x", flush=True)


def compare(what: str, device: torch.device, short: bool, run: Callable, kinds: tuple[str, ...]):
    """Time run(model) next to run(peer), in turns, for each kind of attention.

    run returns numbers that must be the same, as far as the peer has them. On a CPU the shapes are that of the embedded
    model and one of SmolLM2's width; on a GPU 8B. Seconds are the process's own on a CPU, which others may use too, and
    the wall clock's on a GPU. (A run ends with numbers in Python, so the GPU is done by then.)
    """
    on_gpu = device.type == "cuda"
    clock = time.perf_counter if on_gpu else time.process_time
    for shape in ("8B",) if on_gpu else ("embedded", "SmolLM2, 6 layers")[:1 if short else 2]:
        model, hf = random_model(shape, device, torch.bfloat16 if on_gpu else torch.float32)
        models = [model, *(Peer(model, hf, kind) for kind in kinds)]
        wanted, *found = map(run, models)
        for numbers in () if on_gpu else found:             # bfloat16 may choose other words
            torch.testing.assert_close(numbers, wanted[:len(numbers)], rtol=1e-3, atol=1e-6)

        rounds = [[timeit.timeit(partial(run, one), timer=clock, number=1) for one in models] for _ in range(3)]
        ours, *theirs = map(statistics.median, zip(*rounds))
        for kind, peer in zip(kinds, theirs):
            line(f"{what}, {shape} / {kind}", ours, peer, "s")


def stage_1(device: torch.device, short: bool):
    """A window is read and summarised, with attention to its nodes; sdpa gives none."""
    reply = 12 if short else 256
    for length in (192,) if short else (1024, 4096, 8192):
        nodes = nodes_of(length)

        def write(model: Llama) -> list:
            cache = Cache(model, 1, length + reply)
            hidden, _ = model.read(cache, [nodes])
            ids, a = model.generate(cache, hidden, reply, cache.averaging_matrix([range(len(nodes))]))
            return [*ids, *(a if a[0].any() else [])]

        # Eager attention keeps the weights of all layers: of 8,192 tokens, 6.0 GiB of the smallest shape.
        compare(f"{length:,} tokens, a summary", device, short, write, ("sdpa", "eager")[:1 if length > 1024 else 2])


def one_search(device: torch.device, short: bool):
    """A whole search: tokens, scores and bookkeeping too. No verdict says Yes, so all nodes are read."""
    n = 9 if short else 79
    nodes = [*(Node(1, f"color {i} " * 20) for i in range(n)), Node(2, "color")]
    graph = Graph(nodes, [(n, i, 1 / n) for i in range(n)])
    settings = Settings(window=4096, confidence=1 - 1e-9, answer_tokens=4)

    def read_all(model: Llama) -> list:
        answer = Search(model, graph, "Who?", torch.linspace(0, 1, n + 1), settings).answer()
        assert answer.end == "all"
        return [model.tokenizer.encode(answer.text), answer.nodes, [step.r for step in answer.trace],
                [step.p_yes for step in answer.trace]]

    compare(f"a search, {n + 1} nodes", device, short, read_all, ("eager",))


def full_size(device: torch.device, short: bool):
    """The bytes that a batch of groups and a search add, next to the formula of the dry run. Without a GPU they are
    counted on PyTorch's meta device, which runs the same code on tensors without data."""
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


PARTS = {part.__name__: part for part in (stage_1, one_search, full_size)}


def main(words: list[str]):
    if not {*words} <= {*PARTS, "--short"}:
        sys.exit(__doc__)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{device}, {os.cpu_count()} cores, torch {torch.__version__}\n")
    print(f"{'what':60}{'ours':>12}{'peer':>22}{'ratio':>9}")
    for name in [word for word in words if word != "--short"] or PARTS:
        PARTS[name](device, "--short" in words)


if __name__ == "__main__":
    main(sys.argv[1:])
