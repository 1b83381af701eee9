"""Estimates what a run costs before it begins, without weights: FLOPs, minutes and memory.

Chunks and the groups of level 1 are exact. What a model will write and read is not known, so each cost is a range:

    construction    least: no reply is longer than a token, and so there is no second level
                    most: every reply fills its limit, and its nodes have half of the tokens that it summarises
    search          least: one check after an eighth of the text (or of what fits, if that is less), one token's answer
                    most: all that fits, in nodes of chunk size with a check after each, and the longest answer
    agents          least: a tenth of the most
                    most: as often as the tables below say, with the longest replies

Reading a prompt, visiting a node and writing a token cost very different times per FLOP. So minutes are FLOPs of each
kind of pass times the seconds that such a pass takes here, in layers with random weights.

At the paper's lengths there is one figure instead. Tables A3 and A4 suggest that a summary has about half as many
tokens as its nodes. Table 1's TFLOPs and the number of nodes read for a query (GARLIC 4.4) suggest about 60 tokens a
node.
"""
import argparse
import math
import timeit
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch

from baselines.common import READERS, scaled
from core.files import InputError, attempt, remark
from core.settings import PAPER, PASS, Settings
from core.together import batch_rows
from evaluation import paper
from evaluation.datasets import Dataset
from evaluation.methods import Run, pecan_of, plan
from evaluation.models import choose_threads, unloaded
from evaluation.tables import as_text, quantity
from llama import BLOCK_BYTES, Cache, Llama, flops_of, flops_of_reply, length_of, rows_together
from model.checkpoint import Config, choose_device, locate, read_config, tensor_shapes
from pecan import (
    answer_turn,
    chunks,
    limit_and_room,
    node_line,
    pack,
    question_prompt,
    room_for_nodes,
    summary_prompt,
)

SUMMARY = 0.5                     # tokens of the nodes of a summary / tokens of what it summarises
NODE = 60                         # tokens of a node
GRAPH = 1.5                       # tokens of all nodes / tokens of the chunks, at most
FEW = 8                           # a short search reads 1/8 of the text, or of the room for nodes
CLOSE = 5                         # tokens that close the user's turn and open the reply
PROMPT = 150                      # tokens of template, instruction and question, at the published lengths
ANSWER = 10                       # tokens of an answer, at the published lengths

# Agent -> its calls, at most: for each CALL tokens of a document, and for a question. A call reads INSTRUCTION + CALL
# tokens and writes CALL. A shorter reply is a part of a call, hence 0.6.
DOCUMENT_CALLS = {"raptor": 0.6, "memwalker": 0.8, "graphreader": 3, "mkrag": 5, "jerr": 3}
QUESTION_CALLS = {"memwalker": 3, "graphreader": 12, "mkrag": 3, "jerr": 3}
CALL = 500                        # before scaling
INSTRUCTION = 300
LAYERS = 2 ** 28                  # bytes of the layers that are measured, at least; see seconds_a_flop

NOTE = """FLOPs and minutes: from short to longest replies, and from few to all nodes that
fit. Minutes are those of the model's passes here, measured on random layers;
loading, encoders and RAPTOR's clustering come on top. Bytes: the weights and
the largest pass. A graph is built once, for the first run that needs it."""

PUBLISHED = (f"Computed for the mean document of Table A3. Assumed: summaries of {SUMMARY:.0%}, {NODE} tokens a node, "
             f"GARLIC's number of nodes,\n{PROMPT} tokens of prompt and {ANSWER} of answer. The ratios are computed / "
             "published, without and with all logits.")


def dry_run(args: argparse.Namespace, datasets: list[Dataset]) -> tuple[dict, str]:
    """What each run of the command costs, as numbers and as a table for each data set.

    Reads texts, configs and tokenizers, but no weights.
    """
    costs = {}
    tables = []
    for dataset in datasets:
        costs[dataset.name] = runs = {run.row.name: expected(run) for run in plan(args, [dataset])}
        title = f"{dataset.name}: {len(dataset.documents):,} documents, {len(dataset.questions):,} questions"
        rows = [[name, *("-".join(map(quantity, cost)) if any(cost) else "-" for cost in run.values())]
                for name, run in runs.items()]
        tables.append(as_text(title, ["method", "FLOPs: graphs", "answers", "minutes", "bytes"], rows))
    return costs, "\n\n".join(tables)


def at_published_lengths(config: Config) -> tuple[dict, str]:
    """The costs of Table A4, computed for the mean document of Table A3 and this model, next to the published ones.

    The paper does not say which logits it counted. So we compute each cost twice: with only the logits that are used,
    and with those of every token that is read, because a plain forward pass computes them all.
    """
    costs = {}
    rows = []
    for dataset, (tokens, *_) in paper.TABLE_A3.items():
        settings = Settings(**PAPER[dataset])
        limit = int(settings.window * settings.summary_share)
        lengths = [min(settings.chunk, tokens - start) for start in range(0, tokens, settings.chunk)]
        groups = sum(construction(lengths, settings.window - limit - PROMPT, limit, NODE), [])
        nodes = paper.FIXED_NODES[dataset]
        whole = PROMPT + tokens
        search = PROMPT + nodes * NODE

        # FLOPs, and the number of tokens that are read.
        computed = {"whole document": (generation(config, whole, ANSWER), whole),
                    "construction": (sum(generation(config, PROMPT + nodes, summary) for nodes, summary in groups),
                                     sum(PROMPT + nodes for nodes, _ in groups)),
                    "search": (searching(config, search, ANSWER) + nodes * flops_of(config, CLOSE, search, 1), search)}
        costs[dataset] = {}
        for (row, (flops, read)), figures in zip(computed.items(), paper.TABLE_A4.values()):
            with_logits = flops + flops_of(config, 0, 0, read)
            published = 1e12 * figures[dataset]
            costs[dataset][row] = {"flops": flops, "with all logits": with_logits, "published": published}
            rows.append([dataset, row, *map(quantity, (flops, with_logits, published)),
                         f"{flops / published:.2f}x", f"{with_logits / published:.2f}x"])
    header = ["data", "FLOPs", "computed", "with all logits", "published", "ratio", "ratio"]
    return costs, as_text("", header, rows)


class Cost(NamedTuple):
    """Of passes through a model."""
    flops: float
    seconds: float
    bytes: int                    # of the largest pass, without the weights


class Checkpoint:
    """A checkpoint without its weights, and what passes through it cost."""

    def __init__(self, name: str, options: argparse.Namespace):
        self.name = name
        self.config, self.tokenizer = unloaded(name)
        self.device, self.dtype = choose_device(options.device, options.dtype, self.config.dtype)

    def bytes_of_weights(self) -> int:
        return self.dtype.itemsize * sum(map(math.prod, tensor_shapes(self.config).values()))

    def cost(self, reading: float, piece: int, writing: float, rows: int, **largest: int) -> Cost:
        """Of FLOPs: reading in pieces of so many tokens, writing in so many rows. `largest`: see bytes_of_pass."""
        seconds = reading * seconds_a_flop(self.device, self.dtype, self.name, 1, piece)
        seconds += writing * seconds_a_flop(self.device, self.dtype, self.name, rows, 1)
        return Cost(reading + writing, seconds, bytes_of_pass(self.config, self.dtype.itemsize, **largest))

    def ask(self, rows: int, prompt: int, reply: int, count: float = 1) -> Cost:
        """`count` prompts with replies, in so many rows."""
        reading = count * generation(self.config, prompt, 1)
        writing = count * generation(self.config, prompt, reply) - reading
        return self.cost(reading, PASS, writing, rows, batch=rows, length=prompt, slots=rows * (prompt + reply))

    def search(self, prompt: int, reply: int, longest: int, checks: int, window: int) -> Cost:
        """A search of PECAN, whose prompt and answer have so many tokens at its end, and its longest node."""
        reading = searching(self.config, prompt, 0, longest)
        writing = searching(self.config, prompt, reply, longest) - reading
        reading += checks * flops_of(self.config, len(self.tokenizer.frame.before_reply), prompt, 1)
        return self.cost(reading, NODE, writing, 1, batch=1, length=min(prompt, PASS), slots=window, keys=prompt)


def expected(run: Run) -> dict[str, list]:
    """What a run costs: FLOPs of graphs and of answers and minutes, each [least, most]; [bytes] of weights and a pass.

    A question that does not fit is left out, as in the run. InputError if the window is too small for all.
    """
    options = run.options
    model = builder = Checkpoint(options.model, options)
    settings = run.settings                                  # that build
    if is_pecan(run) and options.builder:
        builder = Checkpoint(options.builder, options)
        settings = run.construction
    choose_threads(model.config, builder.config)

    documents = []                                           # the tokens of each chunk, and the questions
    for document in run.dataset.documents:
        texts = chunks(builder.tokenizer, document, settings.chunk)
        if run.row.name == "whole":
            texts = [" ".join(text.split()) for text in document.passages]
        documents.append(([length_of(node_line(builder.tokenizer, None, text)) for text in texts], document.questions))
    ends = []                                                # FLOPs of graphs and of answers, and seconds
    for most in (False, True):
        built = [cost for lengths, _ in documents for cost in costs_of_graph(run, builder, settings, lengths, most)]
        answered = []
        unfit = []
        for lengths, questions in documents:
            for question in questions:
                costs = attempt(list, costs_of_answer(run, model, question.text, lengths, most))
                if isinstance(costs, InputError):
                    unfit.append(costs)
                else:
                    answered += costs
        ends.append((sum(cost.flops for cost in built), sum(cost.flops for cost in answered),
                     sum(cost.seconds for cost in built + answered)))

    if not answered:
        raise unfit[0]
    if unfit:
        remark(f"{run.row.label}: left out are {len(unfit)} questions, such as one for which {unfit[0]}")

    # A machine may be half as fast as when it was measured, or twice. But a range wider than 10 is of no use.
    graphs, answers, (least, most) = zip(*ends)
    weights = sum(each.bytes_of_weights() for each in {model, builder})
    largest = max(cost.bytes for cost in built + answered)
    return {"graphs": graphs, "answers": answers, "minutes": [max(least / 2, most / 5) / 60, 2 * most / 60],
            "bytes": [weights + largest]}


def is_pecan(run: Run) -> bool:
    return run.row.make is pecan_of


def costs_of_graph(run: Run, builder: Checkpoint, settings: Settings, lengths: list[int], most: bool) -> Iterator[Cost]:
    """The construction of a document's graph or tree; `lengths` are the tokens of its chunks."""
    batch = batch_rows(settings, builder.device.type)
    if is_pecan(run):
        limit, room = limit_and_room(builder.tokenizer, settings)
        instruction = length_of(summary_prompt(builder.tokenizer, []))                     # Table A1 without nodes
        levels = list(construction(lengths, room, limit, min(NODE, settings.chunk)))
        for groups in levels if most else levels[:1]:
            rows = min(batch, len(run.dataset.documents) * len(groups))
            for nodes, _ in groups:
                yield builder.ask(rows, instruction + nodes, limit if most else 1)
    kind = run.row.name.partition("-")[0]                    # all of RAPTOR's rows build the same
    if kind in DOCUMENT_CALLS:
        yield call(run, builder, batch, DOCUMENT_CALLS[kind] * sum(lengths) / scaled(CALL, settings), most)


def costs_of_answer(run: Run, model: Checkpoint, question: str, lengths: list[int], most: bool) -> Iterator[Cost]:
    """The answer to a question about a document whose chunks have these lengths."""
    settings = run.settings
    asked = question_prompt(model.tokenizer, question)
    fits = room_for_nodes(model.tokenizer, asked, question, settings)
    top = run.top_k or is_pecan(run) and settings.fixed_nodes
    if top and top != "X":
        fits = min(fits, top * max(lengths))

    tokens = sum(lengths)
    whole = run.row.name == "whole"
    read = min(tokens if whole else int(GRAPH * tokens), fits)
    if not most and not whole:
        read = min(tokens, fits) // FEW
    prompt = length_of(asked) + read + length_of(answer_turn(model.tokenizer, 0, settings.again(question)))
    reply = settings.answer_tokens if most else 1
    if is_pecan(run):
        checks = math.ceil(read * len(lengths) / tokens) if most else 1
        yield model.search(prompt, reply, max(lengths), 0 if top else checks, settings.window)
        return
    rows = batch_rows(settings, model.device.type, READERS)
    yield model.ask(min(rows, len(run.dataset.questions)), prompt, reply)
    if run.row.name in QUESTION_CALLS:
        yield call(run, model, 1, QUESTION_CALLS[run.row.name], most)
    if run.row.name == "longllmlingua":                      # its scorer reads the document about three times
        yield model.ask(1, CALL, 1, (3 if most else .3) * tokens / CALL)


def call(run: Run, model: Checkpoint, rows: int, count: float, most: bool) -> Cost:
    """An agent's calls, `count` at most."""
    tokens = scaled(CALL, run.settings)
    return model.ask(rows, INSTRUCTION + tokens, tokens, count if most else count / 10)


@cache
def seconds_a_flop(device, dtype, model: str, rows: int, tokens: int) -> float:
    """Measured: a pass over so many tokens in each row, through layers with random weights.

    PASS tokens are the beginning of a prompt. Fewer follow one of that length, and attend to it. One layer of a large
    model is enough, because all are alike, and the output matrix costs the same per FLOP. Of a small model we take as
    many as fill LAYERS bytes, or they would stay in the processor's cache, which a whole model does not.
    """
    cached = 0 if tokens == PASS else PASS
    config = read_config(locate(model))
    bytes_of_layer = dtype.itemsize * flops_of(config, 1, 0) / config.layers / 2
    config = replace(config, layers=min(config.layers, math.ceil(LAYERS / bytes_of_layer)), vocab=1, tied=True)
    weights = {name: torch.rand(shape, device=device, dtype=dtype) for name, shape in tensor_shapes(config).items()}
    part = Llama(config, weights)
    memory = Cache(part, rows, cached + tokens)
    memory.lengths = [cached] * rows
    positions = torch.arange(cached, cached + tokens, device=device).expand(rows, -1)

    forward = part.recorded(memory, cached) if tokens == 1 else part.forward
    timer = timeit.Timer(lambda: forward(positions * 0, positions, memory, cached)[0].sum().item())
    timer.timeit(1)                                          # the first pass prepares the device
    number, seconds = timer.autorange()
    return seconds / (number * rows * flops_of(config, tokens, cached + tokens))


def construction(level: list[int], room: int, limit: int, node: int) -> Iterator[list[tuple[int, int]]]:
    """Yield each level's groups: (tokens of the nodes, tokens of the summary). `level` has the tokens of each chunk."""
    while True:
        groups = [sum(level[i] for i in group) for group in pack(level, room)]
        summaries = [min(limit, int(SUMMARY * nodes)) for nodes in groups]
        yield list(zip(groups, summaries))
        if len(groups) == 1:
            return

        # The next level: each summary is divided into nodes; the last node gets the rest.
        level = [min(node, summary - start) for summary in summaries for start in range(0, summary, node)]


def searching(config: Config, prompt: int, tokens: int, piece: int = 0) -> int:
    """FLOPs of a search without its checks: reading a prompt in pieces, node by node, and writing `tokens` tokens.

    While the prompt is read, a token sees half of it on average, and half of its own piece.
    """
    written = sum(flops_of(config, 1, prompt + n, 1) for n in range(tokens))
    return flops_of(config, prompt, (prompt + piece) // 2) + written


def generation(config: Config, prompt: int, tokens: int) -> int:
    """FLOPs of reading a prompt and writing `tokens` tokens."""
    return flops_of_reply(config, prompt, tokens - 1)       # the last token does not run


def bytes_of_pass(config: Config, width: int, batch: int, length: int, slots: int, keys: int = 0) -> int:
    """Bytes that a pass over a batch of rows, each with `length` tokens, needs besides the weights; a number takes
    `width` bytes.

    Some rows run together. The pass holds a cache of `slots` slots, x and h, the queries with their keys, the output of
    attention, and RoPE's tables. Its peak is in a layer's SwiGLU, which adds three tensors of the hidden width. If
    attention weights for `keys` keys are computed, the peak is there: one tensor of the hidden width (a gate), two
    float32 copies of a block's weights, and the block's scores.
    """
    cached = 2 * config.layers * config.kv_heads * config.head_width                       # numbers in a slot
    computed = 2 * config.width + (2 * config.heads + config.kv_heads + 2) * config.head_width
    computed += config.intermediate * (1 if keys else 3)
    computed *= min(batch, rows_together(length))
    weights = min(config.heads * batch * length * keys, BLOCK_BYTES // 4)
    weight_width = 8 + (width if width < 4 else 0)                       # the scores
    return width * (cached * slots + computed * length) + weight_width * weights
