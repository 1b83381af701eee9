"""The two stages next to transformers: a window with its summary, and a search."""
from collections.abc import Callable
from functools import partial

import torch

from core.settings import Settings
from data import EMBEDDED, read_jsonl
from llama import Cache, Llama, Segment, length_of
from pecan import Graph, Node, Search
from speed.measure import in_turns, line, random_model
from speed.peer import Peer

NODE = 64                         # tokens of a node of a window here
GROUP = 7                         # chunks below an information point of the search


def models(device: torch.device, short: bool):
    """(shape, model): on a CPU the shape of the embedded model and one of SmolLM2's width; on a GPU 8B."""
    for shape in ("8B",) if device.type == "cuda" else ("embedded", "SmolLM2, 6 layers")[:1 if short else 2]:
        yield shape, random_model(shape, device, torch.bfloat16 if device.type == "cuda" else torch.float32)


def compare(what: str, shape: str, model: Llama, run: Callable, kinds: list[str]):
    """Time run(model) next to run(peer) for each kind of attention. run returns numbers that must be the same."""
    runs = {"ours": partial(run, model)} | {kind: partial(run, Peer(model, kind)) for kind in kinds}
    found = {kind: run() for kind, run in runs.items()}
    if model.dtype == torch.float32:                        # bfloat16 may choose other words
        for kind in kinds:
            for ours, theirs in zip(found["ours"], found[kind]):
                torch.testing.assert_close(theirs, ours, rtol=1e-3, atol=1e-6)
    taken = in_turns(runs, model.device, 3)
    for kind in kinds:
        line(f"{what} / transformers, {kind}", shape, taken["ours"], taken[kind], "s")


def prompt_of(model: Llama, length: int) -> list[Segment]:
    """Random ids as nodes of 64 tokens, numbered from 0."""
    ids = torch.randint(5, model.config.vocab, (length,), generator=torch.Generator().manual_seed(0)).tolist()
    return [(n, ids[start:start + NODE]) for n, start in enumerate(range(0, length, NODE))]


def stage_1(device: torch.device, short: bool):
    """A window is read and summarised, with attention to its nodes; sdpa gives none."""
    reply = 12 if short else 256

    def write(nodes: list[Segment], model: Llama) -> list:
        cache = Cache(model, 1, length_of(nodes) + reply)
        hidden, _ = model.read(cache, [nodes])
        ids, a = model.generate(cache, hidden, reply, cache.averaging_matrix([range(len(nodes))]))
        return [*ids, *(a if a[0].any() else [])]

    for shape, model in models(device, short):
        for length in (192,) if short else (1024, 4096, 8192):
            # Eager attention keeps the weights of all layers: of 8,192 tokens, 7.5 GiB of the smallest shape.
            compare("a window, its summary", f"{shape}, {length:,} + {reply}", model,
                    partial(write, prompt_of(model, length)), ["sdpa", "eager"] if length <= 1024 else ["sdpa"])


def one_search(device: torch.device, short: bool):
    """A whole search: tokens, scores and bookkeeping too. No verdict says Yes, so all nodes are read."""
    document, = read_jsonl(EMBEDDED, 1)
    passages = document.passages[:10] if short else document.passages
    nodes = [Node(1, text) for text in passages] + [Node(2, text) for text in passages[::GROUP]]
    graph = Graph(nodes, [(len(passages) + j // GROUP, j, 1 / GROUP) for j in range(len(passages))])
    c = torch.rand(len(nodes), generator=torch.Generator().manual_seed(0))
    settings = Settings(window=4096, confidence=1 - 1e-9, answer_tokens=4)

    def search(model: Llama) -> list:
        answer = Search(model, graph, document.questions[0].text, c, settings).answer()
        assert len(answer.nodes) == len(nodes)
        return [model.tokenizer.encode(answer.text), answer.nodes, [step.r for step in answer.trace],
                [step.p_yes for step in answer.trace if step.verdict]]

    for shape, model in models(device, short):
        compare("a search", f"{shape}, {len(nodes)} nodes", model, search, ["eager"])
