"""Estimates the costs of PECAN and of the whole document before a run, without weights.

Chunks and the groups of level 1 are exact; the lengths of replies are assumed. Tables A3 and A4 suggest that a summary
has about half as many tokens as its nodes. Table 1's TFLOPs and the number of nodes read for a query (GARLIC 4.4)
suggest about 60 tokens a node. For data sets that the paper does not use, we assume 30 nodes a query.
"""
import math
from collections.abc import Iterator

from core.settings import PAPER, PASS, Settings
from evaluation import paper
from evaluation.methods import Run
from evaluation.models import unloaded
from evaluation.tables import Table, as_text, quantity
from llama import BLOCK_BYTES, flops_of, length_of
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

SUMMARY = 0.5                     # tokens of a summary / tokens of its nodes
NODE = 60                         # tokens of a node
NODES = 30                        # nodes read for a query
CLOSE = 5                         # tokens that close the user's turn and open the reply
PROMPT = 150                      # tokens of template, instruction and question, at the published lengths
ANSWER = 10                       # tokens of an answer, at the published lengths

NOTE = (f"FLOPs of construction, of searches and of the whole document. Bytes of the weights, and the bytes that a "
        f"batch of groups, a search and the longest whole document add.\nAssumed: a summary has {SUMMARY:.0%} of the "
        f"tokens that it summarises, a node {NODE} tokens (at most a chunk's). A query reads the paper's number of "
        f"nodes ({NODES} for other data).\nThe estimate is for one run of PECAN and one of the whole document. It "
        "leaves out other methods and other rows of a table.")

PUBLISHED = (f"Computed for the mean document of Table A3. Assumed: summaries of {SUMMARY:.0%}, {NODE} tokens a node, "
             f"GARLIC's number of nodes,\n{PROMPT} tokens of prompt and {ANSWER} of answer. The ratios are computed / "
             "published, without and with all logits.")


def dry_run(pairs: list[list[Run]]) -> tuple[dict, str]:
    """The costs of runs, as numbers and as a table. Each pair is a run of PECAN and a run of the whole document.

    Reads texts, configs and tokenizers, but no weights.
    """
    costs = {run.dataset.name: expected(run, whole.settings.window) for run, whole in pairs}
    header = ["data", *next(iter(costs.values()))]
    rows = [[name, *(f"{n:,}" if n < 1e6 else quantity(n) for n in cost.values())] for name, cost in costs.items()]
    return costs, as_text(Table("", header, rows))


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


def expected(run: Run, whole_window: int) -> dict[str, int]:
    """The costs of PECAN and of the whole document in one pass: FLOPs and counts are sums, bytes the most of a pass.

    InputError if the window is too small, as in the run.
    """
    models = run.checkpoints
    settings = run.settings
    data = run.dataset
    built = run.construction or settings                     # the settings of stage 1
    config, tokenizer = unloaded(models.model)
    builder_config, builder_tokenizer = unloaded(models.builder or models.model)
    width = choose_device(models.device, models.dtype, config.dtype)[1].itemsize
    limit, room = limit_and_room(builder_tokenizer, built)
    instruction = length_of(summary_prompt(builder_tokenizer, []))       # Table A1 without nodes
    turn = length_of(answer_turn(tokenizer, 0))
    node = min(NODE, built.chunk)
    nodes = settings.fixed_nodes or paper.FIXED_NODES.get(data.name, NODES)

    total = {"documents": len(data.documents), "tokens": 0, "windows": 0, "calls": 0, "construction": 0,
             "questions": len(data.questions), "search": 0, "whole": 0}
    batches, searches, wholes = [], [], []                   # the bytes of each pass
    for document in data.documents:
        # Stage 1, level by level.
        texts = chunks(builder_tokenizer, document, built.chunk)
        level = [length_of(node_line(builder_tokenizer, None, text)) for text in texts]
        for groups in construction(level, room, limit, node):
            longest = instruction + max(tokens for tokens, _ in groups)
            rows = min(built.batch, len(groups))
            batches.append(bytes_of_pass(builder_config, width, rows * longest, rows * (longest + limit)))
            total["windows"] += len(groups)
            total["construction"] += sum(generation(builder_config, instruction + tokens, summary)
                                         for tokens, summary in groups)

        tokens = sum(length_of(node_line(tokenizer, None, text)) for text in texts)
        total["tokens"] += tokens
        for question in document.questions:
            # Stage 2: a search that reads the assumed number of nodes.
            asked = question_prompt(tokenizer, question.text)
            opening = length_of(asked)
            read = min(nodes * node, tokens, room_for_nodes(tokenizer, asked, settings))
            prompt = opening + read + turn
            checks = 0 if settings.fixed_nodes else math.ceil(read / node)
            searches.append(bytes_of_pass(config, width, min(read, PASS), settings.window, prompt))
            total["calls"] += checks + 1
            total["search"] += searching(config, prompt, settings.answer_tokens)
            total["search"] += checks * flops_of(config, len(tokenizer.frame.close), opening + read, 1)

            # The whole document, cut to its window.
            prompt = min(opening + tokens + turn, whole_window - settings.answer_tokens)
            wholes.append(bytes_of_pass(config, width, prompt, prompt + settings.answer_tokens))
            total["whole"] += generation(config, prompt, settings.answer_tokens)

    total["calls"] += total["windows"]
    weights = [*tensor_shapes(config).values(), *(tensor_shapes(builder_config).values() if models.builder else ())]
    return {**total, "batch": built.batch, "bytes of weights": width * sum(map(math.prod, weights)),
            "of a batch": max(batches), "of a search": max(searches), "of the whole": max(wholes)}


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


def searching(config: Config, prompt: int, tokens: int) -> int:
    """FLOPs of a search without its checks: reading a prompt node by node, and writing `tokens` tokens.

    While the prompt is read, a token sees half of it on average.
    """
    return flops_of(config, prompt, prompt // 2) + sum(flops_of(config, 1, prompt + n, 1) for n in range(tokens))


def generation(config: Config, prompt: int, tokens: int) -> int:
    """FLOPs of reading a prompt and writing `tokens` tokens."""
    return flops_of(config, prompt, prompt, 1) + sum(flops_of(config, 1, prompt + n, 1) for n in range(1, tokens))


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
