"""What a run would cost, told before it starts: documents, windows, calls, tokens, FLOPs and peak memory.

Chunks and the windows of level 1 are those of the run. What a model has yet to write is assumed: the paper's own
figures (Table A4 beside Table A3) amount to summaries of about half of what they summarise, and to nodes of about 60
tokens (Table 1's TFLOPs over the nodes a query reads, GARLIC 4.4). Where the paper does not name the data set, 30 nodes
are assumed.
"""
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from data import Document
from llama import flops_of
from pecan import answer_turn, chunks, length_of, node_line, pack, question_prompt, summary_prompt
from support.checkpoint import Config, tensor_shapes
from support.settings import Settings

SUMMARY, NODE, NODES = 0.5, 60, 30             # of the tokens summarised; tokens of a node; nodes of a query
ASSUMED = (f"FLOPs of construction, of searches, of searches that fill their windows, of the whole document; memory is "
           f"weights and caches. Assumed: summaries of {SUMMARY:.0%} of what they summarise, {NODE} tokens a node (no "
           f"more than a chunk has), the paper's number of nodes a query ({NODES} for other data).")


@dataclass
class Cost:
    """Sums over a data set; FLOPs of construction over the documents, of search and of the whole document over the
    questions."""
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


def generation(c: Config, prompt: int, tokens: int) -> int:
    """FLOPs of reading a prompt and writing `tokens` tokens."""
    return flops_of(c, prompt, prompt, 1) + sum(flops_of(c, 1, prompt + n, 1) for n in range(1, tokens))


def expected(documents: Iterator[Document], c: Config, tokenizer, settings: Settings, nodes: int | None,
             whole_window: int) -> Cost:
    """The cost of PECAN, and of the whole document in one pass and a window of its own, over the documents. Nothing but
    text is read."""
    cost, nodes = Cost(), settings.fixed_nodes or nodes or NODES
    limit, prompt = int(settings.window * settings.summary_share), length_of(summary_prompt(tokenizer, {}))
    probe, node = len(tokenizer.frame.close), min(NODE, settings.chunk)
    for document in documents:
        lines = [length_of(node_line(tokenizer, None, text)) for text in chunks(tokenizer, document, settings.chunk)]
        total, level = sum(lines), lines
        while True:
            windows = pack(level, settings.window - limit - prompt)
            written = [min(limit, max(1, int(SUMMARY * sum(level[i] for i in window)))) for window in windows]
            for window, reply in zip(windows, written):
                cost.construction += generation(c, prompt + sum(level[i] for i in window), reply)
            cost.windows += len(windows)
            cost.calls += len(windows)
            if len(windows) == 1:
                break
            level = [n for reply in written for n in [node] * (reply // node) + [reply % node] if n]
        cost.documents += 1
        cost.tokens += total
        for question in document.questions:
            opening, turn = length_of(question_prompt(tokenizer, question.text)), length_of(answer_turn(tokenizer, 0))
            room = settings.window - opening - turn - settings.answer_tokens
            cost.questions += 1
            for full in (False, True):
                read = room if full else min(nodes * node, room, total)
                checks = 0 if settings.fixed_nodes else max(1, read // node)
                flops = flops_of(c, opening + read + turn, (opening + read + turn) // (1 if full else 2))
                flops += checks * flops_of(c, probe, opening + read, 1)
                flops += sum(flops_of(c, 1, opening + read + turn + n, 1) for n in range(settings.answer_tokens))
                if full:
                    cost.most += flops
                else:
                    cost.search += flops
                    cost.calls += checks + 1
            prompt_of_all = min(opening + total + turn, whole_window - settings.answer_tokens)
            cost.whole += generation(c, prompt_of_all, settings.answer_tokens)
            cost.longest = max(cost.longest, prompt_of_all + settings.answer_tokens)
    return cost


def memory(c: Config, settings: Settings, width: int, longest: int) -> tuple[int, int]:
    """Bytes of the weights, and of the largest cache: of a batch of windows, or of a whole document's `longest` prompt;
    `width` bytes a number."""
    weights = width * sum(map(math.prod, tensor_shapes(c).values()))
    return weights, max(settings.batch * settings.window, longest) * 2 * c.layers * c.kv_heads * c.head_width * width


def peak_memory() -> float:
    """GiB: of the GPU's memory if there is one, of the process otherwise (0 if the system does not say)."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2 ** 30
    try:
        import resource
    except ImportError:                                           # Windows
        return 0.0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2 ** 30
