"""Points 3 and 4: one search against its peers, and many searches at once."""
from dataclasses import replace

import torch

from core.settings import resolve
from data import EMBEDDED
from evaluation.layouts import Dataset
from evaluation.together import answer_together
from llama import Cache, Llama
from pecan import Pecan, Search, answer_turn, node_line, question_prompt
from speed import peer
from speed.measure import Row, embedded, interleaved, random_model, shapes_for, without_eos
from support.token_mean import TokenMean


def passes_of(search: Search, question: str, answer) -> list:
    """What a search has read, pass by pass: (segments, tokens of the probe)."""
    t = search.tokenizer
    passes = [(question_prompt(t, question), [])]
    group = []
    for step in answer.trace:
        group += node_line(t, step.node, search.graph.nodes[step.node].text)
        if step.p_yes is not None:
            passes.append((group, t.frame.close))
            group = []
    return [*passes, (answer_turn(t, t.first(answer.trace[-1].verdict)), [])]


@torch.no_grad()
def with_a_node_cache(model: Llama, passes: list, limit: int) -> tuple:
    """The model's part of a search, and nothing else: attention, p_yes and the answer's ids."""
    cache = Cache(model, 1, 1 << 11)
    attention, verdicts = [], []
    yes_no = [model.tokenizer.first("Yes"), model.tokenizer.first("No")]
    for segments, probe in passes:
        before = cache.lengths[0]
        averaging = cache.averaging_matrix([["q"]]) if probe else None
        hidden, a = model.read(cache, [segments], averaging, probe)
        if probe:
            spans = [cache.nodes[0][node] for node, _ in segments if node is not None]
            attention += [a[0, start - before:end - before, 0].mean().item() for start, end in spans]
            verdicts.append(model.logits(hidden)[0, yes_no].double().softmax(0)[0].item())
    return attention, verdicts, model.generate(cache, hidden, limit)[0][0]


@torch.no_grad()
def from_the_start(model: Llama, passes: list, limit: int):
    """The same verdicts and answer if every pass reads the whole prompt again, without attention."""
    prompt = []
    for segments, probe in passes:
        prompt += segments
        cache = Cache(model, 1, 1 << 11)
        hidden, _ = model.read(cache, [prompt], None, probe)
        if probe:
            model.logits(hidden)
    model.generate(cache, hidden, limit)


def for_the_peer(passes: list) -> tuple[list, tuple[int, int]]:
    """The passes as ids, with the spans of their nodes and their probes; and the span of the question."""
    found = []
    end = 0
    for segments, probe in passes:
        ids = []
        spans = []
        for node, part in segments:
            span = (end, end + len(part))
            if node == "q":
                question = span
            elif node is not None:
                spans.append(span)
            end = span[1]
            ids += part
        found.append((ids, spans, probe))
    return found, question


def one_search(device: torch.device) -> list[Row]:
    """Point 3: a search of the embedded document, by each model; a verdict never says Yes, so all nodes are read."""
    tiny = embedded(device)
    document = next(Dataset(EMBEDDED, 1).documents())
    prepared = Pecan(tiny, TokenMean(tiny), resolve(tiny.folder, 512)).prepare(document)
    question = document.questions[0].text
    c = prepared.index @ TokenMean(tiny).encode([question])[0]

    rows = []
    for shape in shapes_for(device, "SmolLM2, 6 layers"):
        model = without_eos(tiny) if shape == "embedded" else random_model(shape, device)
        settings = replace(resolve(tiny.folder, 512), window=2048, confidence=1 - 1e-9)
        answer = Search(model, prepared.graph, question, c, settings).answer()
        search = Search(model, prepared.graph, question, c, settings)
        passes = passes_of(search, question, answer)

        # Prompt, nodes, probes and answer, no token more.
        tokens = sum(len(ids) for segments, _ in passes for _, ids in segments) + sum(len(probe) for _, probe in passes)
        assert answer.tokens == tokens + settings.answer_tokens, (answer.tokens, tokens)
        rows += compared(model, passes, settings.answer_tokens, f"{shape}, {len(answer.nodes)} nodes, {tokens} tokens")
    return rows


def compared(model: Llama, passes: list, limit: int, name: str) -> list[Row]:
    eager = peer.hugging_face(model, "eager")
    yes_no = [model.tokenizer.first("Yes"), model.tokenizer.first("No")]
    theirs, question = for_the_peer(passes)
    runs = {"ours": lambda: with_a_node_cache(model, passes, limit),
            "peer": lambda: peer.search(eager, theirs, question, yes_no, limit),
            "again": lambda: from_the_start(model, passes, limit)}

    mine, others = runs["ours"](), runs["peer"]()
    if model.dtype == torch.float32:
        assert mine[2] == others[2], f"{name}: another answer than transformers'"
        for ours, wanted in zip(mine[:2], others[:2], strict=True):
            error = (torch.tensor(ours) - torch.tensor(wanted)).abs().max().item()
            assert error < 1e-4, f"{name}: attention or p_yes is off by {error}"

    times = 3 if model.config.width < 256 or model.device.type == "cuda" else 1
    taken = interleaved(runs, model.device, times, warm=False)
    rows = [Row("3 one search / transformers with a cache and crop", name, taken["ours"], taken["peer"], "s",
                "at most the peer's", limit=1),
            Row("3 one search / the prompt read again at each step", name, taken["ours"], taken["again"], "s", "-")]
    total = sum(len(ids) for segments, _ in passes for _, ids in segments) + sum(len(probe) for _, probe in passes)
    prompt, again = 0, 0
    for segments, probe in passes:
        prompt += sum(len(ids) for _, ids in segments)
        again += prompt + len(probe)
    return [*rows, Row("3 tokens of a search / the prompt read again at each step", name, total, again, "tokens", "-")]


def many(device: torch.device) -> list[Row]:
    """Point 4: the questions of a document one by one, and together."""
    tiny = embedded(device)
    encoder = TokenMean(tiny)
    rows = []
    for shape in ("embedded",) if device.type == "cpu" else ("embedded", "8B"):
        model = tiny if shape == "embedded" else random_model(shape, device)
        settings = resolve(tiny.folder, 512)
        method = Pecan(model, encoder, settings, tiny)
        asked = [(method.prepare(document), [question.text for question in document.questions])
                 for document in Dataset(EMBEDDED, 10).documents()]
        if device.type == "cuda":                            # 16 questions about each of two documents
            asked = [(prepared, (questions * 3)[:16]) for prepared, questions in asked[:2]]

        answers = {}

        def alone():
            answers["alone"] = [method.answer(prepared, text) for prepared, texts in asked for text in texts]

        def together():
            answers["together"] = [one for prepared, texts in asked for one in answer_together(method, prepared, texts)]

        taken = interleaved({"alone": alone, "together": together}, device)
        if model.dtype == torch.float32:
            for a, b in zip(answers["alone"], answers["together"], strict=True):
                assert (a.text, a.nodes, a.tokens, a.flops) == (b.text, b.nodes, b.tokens, b.flops)
        number = len(answers["alone"])
        rows.append(Row("4 questions together / one by one", f"{shape}, {len(asked[0][1])} at once",
                        number / taken["together"], number / taken["alone"], "queries/s",
                        "3x on two cores, 4x at 16 on a GPU", True, 3 if device.type == "cpu" else 4))
    return rows
