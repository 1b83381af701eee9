"""Estimates the costs of PECAN and of the whole document before a run, without weights.

Chunks and the groups of level 1 are exact. What a model will write and read is not known, so each cost is a range:

    construction    least: no reply is longer than a token, and so there is no second level
                    most: every reply fills its limit, and its nodes have half of the tokens that it summarises
    search          least: one check after an eighth of what fits, and an answer of one token
                    most: all that fits, in nodes of chunk size with a check after each, and the longest answer

At the paper's lengths there is one figure instead. Tables A3 and A4 suggest that a summary has about half as many
tokens as its nodes. Table 1's TFLOPs and the number of nodes read for a query (GARLIC 4.4) suggest about 60 tokens a
node.
"""
import argparse
import math
from collections.abc import Iterator
from itertools import chain

from core.settings import PAPER, PASS, Settings
from core.together import rows
from evaluation import paper
from evaluation.datasets import Dataset
from evaluation.methods import PECAN, WHOLE, Run, plan
from evaluation.models import unloaded
from evaluation.tables import Table, as_text, quantity
from llama import BLOCK_BYTES, flops_of, flops_of_reply, length_of
from model.checkpoint import Config, choose_device, tensor_shapes
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
GRAPH = 1.1                       # tokens of all nodes / tokens of the chunks, if summaries are short
FEW = 8                           # a short search reads 1/8 of the text, or of the room for nodes
CLOSE = 5                         # tokens that close the user's turn and open the reply
PROMPT = 150                      # tokens of template, instruction and question, at the published lengths
ANSWER = 10                       # tokens of an answer, at the published lengths

NOTE = ("FLOPs of construction, of searches and of the whole document: from short to longest replies, and from few to\n"
        "all nodes that fit. A sentence encoder (--encoder) adds its own. Bytes of the weights, and the bytes that\n"
        "a batch of groups, a search and the longest whole document add.\nThe estimate is for one run of PECAN and one "
        "of the whole document. It leaves out other methods and other rows of a table.")

PUBLISHED = (f"Computed for the mean document of Table A3. Assumed: summaries of {SUMMARY:.0%}, {NODE} tokens a node, "
             f"GARLIC's number of nodes,\n{PROMPT} tokens of prompt and {ANSWER} of answer. The ratios are computed / "
             "published, without and with all logits.")


def dry_run(args: argparse.Namespace, datasets: list[Dataset]) -> tuple[dict, str]:
    """The costs of PECAN and of the whole document over data sets, as numbers and as a table.

    Reads texts, configs and tokenizers, but no weights.
    """
    def cell(cost):
        return "-".join(f"{n:,}" if n < 1e6 else quantity(n) for n in (cost if isinstance(cost, list) else [cost]))

    costs = {dataset.name: expected(*plan(args, [dataset], [PECAN, WHOLE])) for dataset in datasets}
    header = ["data", *next(iter(costs.values()))]
    return costs, as_text(Table("", header, [[name, *map(cell, cost.values())] for name, cost in costs.items()]))


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
    return costs, as_text(Table("", header, rows))


def expected(run: Run, whole: Run) -> dict[str, int | list[int]]:
    """The costs of a run of PECAN and one of the whole document: FLOPs of all, [least, most], and bytes of a pass.

    InputError if the window is too small, as in the run.
    """
    settings = run.settings
    built = run.construction or settings                     # the settings of stage 1
    config, tokenizer = unloaded(run.options.model)
    builder, builder_tokenizer = unloaded(run.options.builder or run.options.model)
    device, dtype = choose_device(run.options.device, run.options.dtype, config.dtype)
    width = dtype.itemsize
    limit, room = limit_and_room(builder_tokenizer, built)
    instruction = length_of(summary_prompt(builder_tokenizer, []))       # Table A1 without nodes
    close = len(tokenizer.frame.close)                       # tokens of a check
    vector = 2 * config.width ** 2                           # FLOPs of the mean embedding of a text

    total = {"documents": len(run.dataset.documents), "tokens": 0, "questions": len(run.dataset.questions),
             "construction": [0, 0], "search": [0, 0], "whole": [0, 0]}
    batches, searches, wholes = [], [], []                   # the bytes of each pass

    def add(name, least, most):
        total[name] = [total[name][0] + least, total[name][1] + most]

    for document in run.dataset.documents:
        # Stage 1, level by level. We count a vector for each chunk, and at most as many for the points above.
        texts = chunks(builder_tokenizer, document, built.chunk)
        lengths = [length_of(node_line(builder_tokenizer, None, text)) for text in texts]
        levels = [[instruction + nodes for nodes, _ in groups]
                  for groups in construction(lengths, room, limit, min(NODE, built.chunk))]
        add("construction", sum(generation(builder, prompt, 1) for prompt in levels[0]),
            sum(generation(builder, prompt, limit) for prompt in chain(*levels)) + 2 * len(texts) * vector)
        for prompts in levels:
            together = min(rows(built.batch, device.type), len(run.dataset.documents) * len(prompts))
            batches.append(bytes_of_pass(builder, width, together * max(prompts), together * (max(prompts) + limit)))

        tokens = sum(lengths)
        total["tokens"] += tokens
        for question in document.questions:
            # Stage 2. Without progress control there are no checks, and the number of nodes is known.
            asked = question_prompt(tokenizer, question.text)
            opening = length_of(asked)
            turn = length_of(answer_turn(tokenizer, 0, settings.again(question.text)))
            fits = room_for_nodes(tokenizer, asked, question.text, settings)
            if settings.fixed_nodes:
                fits = min(fits, settings.fixed_nodes * max(lengths))
            few, all_nodes = min(tokens, fits) // FEW, min(int(GRAPH * tokens), fits)
            checks = 0 if settings.fixed_nodes else math.ceil(all_nodes * len(texts) / tokens)
            ends = [searching(config, opening + read + turn, answer, max(lengths))
                    + n * flops_of(config, close, opening + read, 1)
                    for read, answer, n in ((few, 1, min(1, checks)), (all_nodes, settings.answer_tokens, checks))]
            add("search", ends[0], ends[1] + vector)
            searches.append(bytes_of_pass(config, width, min(all_nodes, PASS), settings.window,
                                          opening + all_nodes + turn))

            # The whole document, cut to its window.
            prompt = min(opening + tokens + turn, whole.settings.window - settings.answer_tokens)
            add("whole", generation(config, prompt, 1), generation(config, prompt, settings.answer_tokens))
            wholes.append(bytes_of_pass(config, width, prompt, prompt + settings.answer_tokens))

    weights = [*tensor_shapes(config).values(), *(tensor_shapes(builder).values() if run.options.builder else ())]
    return total | {"bytes of weights": width * sum(map(math.prod, weights)), "of a batch": max(batches),
                    "of a search": max(searches), "of the whole": max(wholes)}


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


def bytes_of_pass(config: Config, width: int, tokens: int, slots: int, keys: int = 0) -> int:
    """Bytes that a pass over `tokens` tokens needs besides the weights; a number takes `width` bytes.

    The pass holds a cache of `slots` slots, x and h, the queries with their keys, the output of attention, and RoPE's
    tables. Its peak is in a layer's SwiGLU, which adds three tensors of the hidden width. If attention weights for
    `keys` keys are computed, the peak is there: one tensor of the hidden width (a gate), two float32 copies of a
    block's weights, and the block's scores.
    """
    cached = 2 * config.layers * config.kv_heads * config.head_width                       # numbers in a slot
    computed = 2 * config.width + (2 * config.heads + config.kv_heads + 2) * config.head_width
    computed += config.intermediate * (1 if keys else 3)
    weights = min(config.heads * tokens * keys, BLOCK_BYTES // 4)
    weight_width = 8 + (width if width < 4 else 0)                       # the scores
    return width * (cached * slots + computed * tokens) + weight_width * weights
