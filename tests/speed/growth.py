"""How the time of a construction and of a search grows."""
import random

import torch

from core.settings import resolve
from data import Document
from llama import Llama
from pecan import Search, build
from speed.measure import TINY, line, seconds
from tiny.world import make_world


def long_document(tokenizer, tokens: int) -> Document:
    """A document of the embedded world with at least so many tokens."""
    passages = []
    rng = random.Random(0)
    length = 0
    while length < tokens:
        more = make_world(rng, 12).passages
        passages += more
        length += sum(len(tokenizer.encode(passage)) for passage in more)
    return Document(f"{tokens} tokens", passages)


def growth(device: torch.device, short: bool):
    """The seconds at each size, next to the linear extrapolation from the size before it."""
    tiny = Llama.load(TINY, str(device))
    settings = resolve(TINY, 512)
    before = {}

    def measured(what, size, unit, run):
        taken = seconds(run, device)
        if what in before:
            smaller, of_smaller = before[what]
            line(f"{what} / linear growth", f"{smaller:,} to {size:,} {unit}", taken, of_smaller * size / smaller, "s")
        before[what] = size, taken

    for tokens in (500, 3_000) if short else (2_000, 8_000, 32_000, 128_000, 500_000):
        document = long_document(tiny.tokenizer, tokens)
        found = []
        measured("construction", tokens, "tokens", lambda: found.append(build(tiny, document, settings)))

        graph = found[0]
        V = len(graph.nodes)
        c = torch.rand(V, generator=torch.Generator().manual_seed(0))
        measured("start of a search", V, "nodes", lambda: found.append(Search(tiny, graph, "What?", c, settings)))
        found[1].start()
        measured("choice of a node", V, "nodes", found[1].next)
