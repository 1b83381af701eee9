"""One search against its peers."""
from dataclasses import replace

import torch
from view.watch import watching

from core.settings import resolve
from data import EMBEDDED, read_jsonl
from llama import Cache, Llama, length_of
from pecan import Search, build
from speed import peer
from speed.measure import TINY, in_turns, line, random_models
from support.token_mean import TokenMean


@torch.no_grad()
def from_the_start(model: Llama, passes: list, limit: int):
    """Run the same verdicts and answer, but every pass reads the whole prompt again, without attention."""
    prompt = []
    for segments, probe in passes:
        prompt += segments
        cache = Cache(model, 1, length_of(prompt) + len(probe) + limit)
        hidden, _ = model.read(cache, [prompt], None, probe)
        model.logits(hidden)
    model.generate(cache, hidden, limit)


def one_search(device: torch.device, short: bool):
    """Measure a search of the first embedded document by each model. No verdict says Yes, so all nodes are read."""
    tiny = Llama.load(TINY, str(device))
    document, = read_jsonl(EMBEDDED, 1)
    if short:
        document = replace(document, passages=document.passages[:10])
    settings = resolve(TINY, 512)
    graph = build(tiny, document, settings)
    question = document.questions[0].text
    vectors = TokenMean(tiny).encode([question, *(node.text for node in graph.nodes)])
    settings = replace(settings, window=2048, confidence=1 - 1e-9)

    for shape, model in random_models(device, short, on_cpu=2):
        if shape == "embedded":
            model = tiny
        compare(model, lambda model=model: Search(model, graph, question, vectors[1:] @ vectors[0], settings).answer(),
                settings.answer_tokens, f"{shape}, {len(graph.nodes)} nodes")


def compare(model: Llama, search, limit: int, name: str):
    """`search` runs a search and returns its Answer, here and with the peers."""
    passes = []                                             # (segments, tokens of the probe)

    def heard(_, cache, rows, averaging=None, probe=()):
        if length_of(rows[0]) > 1:                          # a single token is one of the answer
            passes.append((rows[0], list(probe)))

    with watching(model, "read", heard):
        answer = search()

    eager = peer.hugging_face(model, "eager")
    yes_no = [model.tokenizer.first("Yes"), model.tokenizer.first("No")]
    runs = {"ours": search,
            "peer": lambda: peer.search(eager, passes, yes_no, limit, model.config.eos),
            "again": lambda: from_the_start(model, passes, limit)}

    # The same attention, verdicts and answer.
    attention, p_yes, ids = runs["peer"]()
    if model.dtype == torch.float32:
        assert model.tokenizer.decode(ids).strip() == answer.text, f"{name}: another answer than transformers'"
        mine = [step.attention for step in answer.trace], [step.p_yes for step in answer.trace if step.verdict]
        for ours, theirs in zip(mine, (attention, p_yes), strict=True):
            error = (torch.tensor(ours) - torch.tensor(theirs)).abs().max().item()
            assert error < 1e-4, f"{name}: attention or p_yes is off by {error}"

    runs["again"]()
    taken = in_turns(runs, model.device, 1)
    line("a search / transformers with a cache and crop", name, taken["ours"], taken["peer"], "s")
    line("a search / the prompt read again each time", name, taken["ours"], taken["again"], "s")
