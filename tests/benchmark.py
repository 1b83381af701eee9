"""The cost of the method, side by side with transformers in the same process; BENCHMARK.md explains the figures.

    python tests/benchmark.py            half an hour
    python tests/benchmark.py --short    seconds: small sizes show that both sides compute the same

Times are compared inside one run, because machines differ and are shared.
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
from measure import nodes_of, random_model  # noqa: E402
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


def compare(what: str, run: Callable, kinds: tuple[str, ...]):
    """Time run(model) next to run(peer), in turns, for each kind of attention. A ratio above 1 is in our favour.

    run returns numbers that must be the same, as far as the peer has them. On a CPU the shapes are that of the embedded
    model and one of SmolLM2's width; on a GPU 8B. Seconds are the process's own on a CPU, which others may use too, and
    the wall clock's on a GPU. (A run ends with numbers in Python, so the GPU is done by then.)
    """
    device, clock = ("cuda", time.perf_counter) if GPU else ("cpu", time.process_time)
    for shape in ("8B",) if GPU else ("embedded",) if SHORT else ("embedded", "SmolLM2, 6 layers"):
        model, hf = random_model(shape, device, torch.bfloat16 if GPU else torch.float32)
        models = [model, *(Peer(model, hf, kind) for kind in kinds)]
        wanted, *found = map(run, models)
        for numbers in () if GPU else found:                # bfloat16 may choose other words
            torch.testing.assert_close(numbers, wanted[:len(numbers)], rtol=1e-3, atol=1e-6)

        rounds = [[timeit.timeit(partial(run, one), timer=clock, number=1) for one in models] for _ in range(3)]
        ours, *theirs = map(statistics.median, zip(*rounds))
        for kind, peer in zip(kinds, theirs):
            title = f"{what}, {shape} / {kind}"
            print(f"{title:60}{ours:10,.4g} s{peer:10,.4g} s{peer / ours:8.2f}x", flush=True)


def stage_1(length: int):
    """A window is read and summarised, with attention to its nodes; sdpa gives none."""
    reply = 12 if SHORT else 256
    nodes = nodes_of(length)

    def write(model: Llama) -> list:
        cache = Cache(model, 1, length + reply)
        hidden, _ = model.read(cache, [nodes])
        ids, a = model.generate(cache, hidden, reply, cache.averaging_matrix([range(len(nodes))]))
        return [*ids, *(a if a[0].any() else [])]

    # Eager attention keeps the weights of all layers: of 8,192 tokens, 6.0 GiB of the smallest shape.
    compare(f"{length:,} tokens, a summary", write, ("sdpa", "eager")[:1 if length > 1024 else 2])


def one_search(n: int):
    """A whole search: tokens, scores and bookkeeping too. No verdict says Yes, so all nodes are read."""
    nodes = [*(Node(1, f"color {i} " * 20) for i in range(n)), Node(2, "color")]
    graph = Graph(nodes, [(n, i, 1 / n) for i in range(n)])
    settings = Settings(window=4096, confidence=1 - 1e-9, answer_tokens=4)

    def read_all(model: Llama) -> list:
        answer = Search(model, graph, "Who?", torch.linspace(0, 1, n + 1), settings).answer()
        assert answer.end == "all there was has been read"
        return [model.tokenizer.encode(answer.text), answer.nodes, [step.r for step in answer.trace],
                [step.p_yes for step in answer.trace]]

    compare(f"a search, {n + 1} nodes", read_all, ("eager",))


if __name__ == "__main__":
    GPU = torch.cuda.is_available()
    SHORT = "--short" in sys.argv
    print(f"{'cuda' if GPU else 'cpu'}, {os.cpu_count()} cores, torch {torch.__version__}\n")
    print(f"{'what':60}{'ours':>12}{'peer':>12}{'ratio':>9}")
    for tokens in (192,) if SHORT else (1024, 4096, 8192):
        stage_1(tokens)
    one_search(9 if SHORT else 79)
