"""What a run would cost, estimated before it starts: documents, windows, calls, tokens, FLOPs and memory.

Chunks and the windows of level 1 are those of the run. What a model has yet to write is assumed. The paper's own
figures (Table A4 next to Table A3) amount to summaries of about half of what they summarise, and to nodes of about 60
tokens (Table 1's TFLOPs over the nodes a query reads, GARLIC 4.4). For a data set that is not the paper's, 30 nodes a
query are assumed.
"""
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from core.checkpoint import Config, tensor_shapes
from core.settings import Settings
from data import Document
from llama import flops_of, length_of
from pecan import answer_turn, chunks, node_line, pack, question_prompt, room_for_summary, summary_prompt
from support.memory import bytes_of_pass

SUMMARY = 0.5                     # length of a summary, of the tokens that it summarises
NODE = 60                         # tokens of a node
NODES = 30                        # nodes read for a query

ASSUMED = (f"FLOPs of construction, of searches, of searches that fill their windows, of the whole document; memory is "
           f"weights, caches and what a layer computes. Assumed: summaries of {SUMMARY:.0%} of what they summarise, "
           f"{NODE} tokens a node (no more than a chunk has), the paper's number of nodes a query ({NODES} for other "
           "data).")


@dataclass
class Cost:
    """Sums over a data set.

    FLOPs of construction are over the documents, FLOPs of search and of the whole document over the questions.
    """
    documents: int = 0
    questions: int = 0
    tokens: int = 0               # of the documents
    windows: int = 0
    calls: int = 0                # summaries, checks and answers that the model is asked for
    construction: int = 0
    search: int = 0
    most: int = 0                 # FLOPs of searches that all fill their windows
    whole: int = 0
    longest: int = 0              # tokens of the longest prompt of a whole document, answer included
    batch: int = 0                # tokens of the prompts of the largest batch of windows, padding included
    slots: int = 0                # of the cache of that batch


# --- the estimate ---------------------------------------------------------------------------------------------------

def expected(documents: Iterator[Document], model, builder, settings: Settings, nodes: int | None,
             whole_window: int) -> Cost:
    """The cost of PECAN, and of the whole document in one pass, for all questions.

    `model` answers and `builder` makes the graphs: their config and tokenizer are read, and nothing else but text.
    `nodes` is the paper's number of nodes a query, None if it gives none; `whole_window` is the window of the whole
    document.
    """
    cost = Cost()
    c, tokenizer = model.config, model.tokenizer
    limit, space = room_for_summary(builder.tokenizer, settings)         # refuses what the run would refuse
    nodes = settings.fixed_nodes or nodes or NODES
    instruction = length_of(summary_prompt(builder.tokenizer, {}))       # Table A1 without nodes
    probe = len(tokenizer.frame.close)
    for document in documents:
        texts = chunks(builder.tokenizer, document, settings.chunk)
        lines = [length_of(node_line(builder.tokenizer, None, text)) for text in texts]
        tokens = sum(length_of(node_line(tokenizer, None, text)) for text in texts)
        cost.documents += 1
        cost.tokens += tokens

        # Stage 1: the graph of the document.
        windows, flops, rows, longest = construction(lines, instruction, limit, space, builder.config, settings)
        cost.batch = max(cost.batch, rows * longest)
        cost.slots = max(cost.slots, rows * (longest + limit))
        cost.windows += windows
        cost.calls += windows
        cost.construction += flops

        for question in document.questions:
            cost.questions += 1
            opening = length_of(question_prompt(tokenizer, question.text))
            turn = length_of(answer_turn(tokenizer, 0))
            room = settings.window - opening - turn - settings.answer_tokens

            # Stage 2: a search that reads the assumed number of nodes, and one that fills its window.
            read = min(nodes * node_tokens(settings), room, tokens)
            flops, checks = search(opening, read, turn, probe, c, settings)
            cost.search += flops
            cost.calls += checks + 1
            flops, _ = search(opening, room, turn, probe, c, settings, full=True)
            cost.most += flops

            # The whole document, cut to its window.
            prompt = min(opening + tokens + turn, whole_window - settings.answer_tokens)
            cost.whole += generation(c, prompt, settings.answer_tokens)
            cost.longest = max(cost.longest, prompt + settings.answer_tokens)
    return cost


def construction(level: list[int], instruction: int, limit: int, space: int, c: Config,
                 settings: Settings) -> tuple[int, int, int, int]:
    """Windows and FLOPs of building one graph; the rows of its largest batch, and the tokens of its longest prompt.

    `level` holds the tokens of each chunk's line; `instruction` is the length of the prompt without nodes. A window has
    `space` for nodes and `limit` for the summary.
    """
    node = node_tokens(settings)
    number, flops = 0, 0
    rows, longest = 0, 0
    while True:
        # Each window is read, and its summary is written.
        windows = pack(level, space)
        rows = max(rows, min(settings.batch, len(windows)))
        summaries = []
        for window in windows:
            read = sum(level[i] for i in window)
            summary = min(limit, max(1, int(SUMMARY * read)))
            longest = max(longest, instruction + read)
            flops += generation(c, instruction + read, summary)
            summaries.append(summary)

        # One window's nodes are the top level.
        number += len(windows)
        if len(windows) == 1:
            return number, flops, rows, longest

        # The next level: each summary is divided into nodes; the last one is what remains.
        level = []
        for summary in summaries:
            level += [node] * (summary // node)
            if summary % node:
                level.append(summary % node)


def search(opening: int, read: int, turn: int, probe: int, c: Config, settings: Settings,
           full: bool = False) -> tuple[int, int]:
    """FLOPs of one search that reads `read` tokens of nodes, and its number of checks.

    The nodes are between the `opening` (Table A2 up to its first node) and the `turn` that asks for the answer; a check
    adds `probe` tokens. A token sees half of the prompt on average, because nodes are read one by one. If `full`, it
    sees the whole prompt, which is the upper limit.
    """
    prompt = opening + read + turn
    flops = flops_of(c, prompt, prompt if full else prompt // 2)

    # After each node the model is asked whether it knows enough.
    checks = 0 if settings.fixed_nodes else max(1, read // node_tokens(settings))
    flops += checks * flops_of(c, probe, opening + read, 1)

    # The answer is written into the same cache.
    flops += sum(flops_of(c, 1, prompt + n, 1) for n in range(settings.answer_tokens))
    return flops, checks


def generation(c: Config, prompt: int, tokens: int) -> int:
    """FLOPs of reading a prompt and writing `tokens` tokens."""
    return flops_of(c, prompt, prompt, 1) + sum(flops_of(c, 1, prompt + n, 1) for n in range(1, tokens))


def node_tokens(settings: Settings) -> int:
    """The assumed length of a node, which is never longer than a chunk."""
    return min(NODE, settings.chunk)


# --- memory ---------------------------------------------------------------------------------------------------------

def memory(c: Config, cost: Cost, width: int, builder: Config | None = None) -> tuple[int, int]:
    """Bytes of the weights, another builder's included, and the most that a run adds, at `width` bytes a number.

    It adds the most of what its largest batch of windows and its longest whole document take.
    """
    weights = sum(math.prod(shape) for config in filter(None, (c, builder)) for shape in tensor_shapes(config).values())
    batch = bytes_of_pass(builder or c, cost.batch, cost.slots, width)
    whole = bytes_of_pass(c, cost.longest, cost.longest, width)
    return width * weights, max(batch, whole)


def peak_memory(device: str | None) -> float:
    """The most GiB in use so far: on the GPU if `device` is cuda, else by the process; 0 if the system does not say."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2 ** 30
    try:
        import resource
    except ImportError:                                           # Windows
        return 0.0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2 ** 30
