"""The costs of a run of PECAN and of one of the whole document, estimated before the run, without weights.

Chunks, and the groups of level 1, are those of the run. The lengths of replies are assumed. The paper's own
figures (Table A4 next to Table A3) amount to summaries of about half of what they summarise, and to nodes of about 60
tokens (Table 1's TFLOPs over the nodes a query reads, GARLIC 4.4). For a data set that is not the paper's, 30 nodes a
query are assumed.
"""
import math
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

from core.checkpoint import Config, choose_device, locate, read_config, tensor_shapes
from core.settings import PAPER, PASS, WHOLE_DOCUMENT, Settings
from core.tokenizer import Tokenizer
from evaluation import paper
from evaluation.cells import Table, quantity
from evaluation.plan import Run
from llama import WEIGHTS, flops_of, length_of
from pecan import (
    answer_turn,
    chunks,
    node_line,
    pack,
    question_prompt,
    room_for_nodes,
    room_for_summary,
    summary_prompt,
)

SUMMARY = 0.5                     # length of a summary, of the tokens that it summarises
NODE = 60                         # tokens of a node
NODES = 30                        # nodes read for a query
CLOSE = 5                         # tokens that close the user's turn and open the reply
PROMPT = 150                      # tokens of template, instruction and question, and
ANSWER = 10                       # of an answer, at the published lengths

NOTE = (f"FLOPs of construction, of searches and of the whole document; bytes of the weights, and of what a batch of "
        f"groups, a search and the longest whole document add.\nAssumed: summaries of {SUMMARY:.0%} of what they "
        f"summarise, {NODE} tokens a node (no more than a chunk has), the paper's number of nodes a query ({NODES} for "
        "other data).\nThis is one run of PECAN and one of the whole document, without other methods and rows of a "
        "table.")

PUBLISHED = (f"The mean document of Table A3; summaries of {SUMMARY:.0%}, {NODE} tokens a node, GARLIC's number of "
             f"nodes, {PROMPT} tokens of prompt\nand {ANSWER} of answer. Ratios to the published figures, without and "
             "with all logits.")


def dry_run(pairs: list[list[Run]]) -> tuple[dict, list[Table]]:
    """The costs of runs, in numbers and as tables; each pair is PECAN's run and the whole document's.

    Reads text, config and tokenizer, but no weights.
    """
    costs = {run.dataset.name: expected(run, whole.settings.window) for run, whole in pairs}
    header = ["data", *next(iter(costs.values()))]
    rows = [[name, *(f"{n:,}" if n < 1e6 else quantity(n) for n in cost.values())] for name, cost in costs.items()]
    return costs, [Table("", header, rows)]


def at_published_lengths(config: Config) -> tuple[dict, list[Table]]:
    """The costs of Table A4, computed for the mean document of Table A3 and this model, next to the published ones.

    Twice, because the paper does not say how it counted: with the logits that are used, and with those of every token
    that is read, which a counter over a plain forward pass includes.
    """
    costs = {}
    for dataset, (tokens, *_) in paper.TABLE_A3.items():
        settings = Settings(**PAPER[dataset])
        limit = int(settings.window * settings.summary_share)
        chunks_of = [min(settings.chunk, tokens - start) for start in range(0, tokens, settings.chunk)]
        groups = [group for level in construction(chunks_of, settings.window - limit - PROMPT, limit, NODE)
                  for group in level]
        built = sum(generation(config, PROMPT + nodes, summary) for nodes, summary in groups)
        whole = PROMPT + min(tokens, WHOLE_DOCUMENT)
        nodes = paper.FIXED_NODES[dataset]
        search = PROMPT + min(nodes * NODE, tokens)
        searched = searching(config, search, ANSWER) + nodes * flops_of(config, CLOSE, search, 1)

        # FLOPs, and the tokens that are read.
        computed = {"whole document": (generation(config, whole, ANSWER), whole),
                    "construction": (built, sum(PROMPT + nodes for nodes, _ in groups)),
                    "search": (searched, search)}
        costs[dataset] = {row: {"flops": flops, "with all logits": flops + flops_of(config, 0, 0, read),
                                "published": 1e12 * published[dataset]}
                          for (row, (flops, read)), published in zip(computed.items(), paper.TABLE_A4.values())}

    rows = [[dataset, row, *map(quantity, cost.values()),
             *(f"{cost[way] / cost['published']:.2f}x" for way in ("flops", "with all logits"))]
            for dataset, of_rows in costs.items() for row, cost in of_rows.items()]
    return costs, [Table("", ["data", "FLOPs", "computed", "with all logits", "published", "ratio", "ratio"], rows)]


def unloaded(name: str) -> SimpleNamespace:
    """A checkpoint without its weights: config and tokenizer."""
    folder = locate(name)
    config = read_config(folder)
    return SimpleNamespace(config=config, tokenizer=Tokenizer(folder, config.vocab))


def expected(run: Run, whole_window: int) -> dict[str, int]:
    """The cost of a run of PECAN, and of the whole document in one pass, summed over documents and questions.

    InputError as in the run.
    """
    of, settings = run.checkpoints, run.settings
    model, builder = (unloaded(name) for name in (of.model, of.builder or of.model))
    config, tokenizer = model.config, model.tokenizer
    limit, room = room_for_summary(builder.tokenizer, settings)
    instruction = length_of(summary_prompt(builder.tokenizer, []))       # Table A1 without nodes
    turn = length_of(answer_turn(tokenizer, 0))
    node = min(NODE, settings.chunk)
    nodes = settings.fixed_nodes or paper.FIXED_NODES.get(run.dataset.name, NODES)

    sums = Counter()
    batches, searches, wholes = [], [], []                   # tokens of a pass, slots of its cache (and keys seen)
    for document in run.dataset.documents:
        texts = chunks(builder.tokenizer, document, settings.chunk)
        tokens = sum(length_of(node_line(tokenizer, None, text)) for text in texts)
        sums += Counter(documents=1, tokens=tokens)

        # Stage 1, level by level.
        level = [length_of(node_line(builder.tokenizer, None, text)) for text in texts]
        for groups in construction(level, room, limit, node):
            prompts = [instruction + nodes for nodes, _ in groups]
            flops = sum(generation(builder.config, prompt, summary)
                        for prompt, (_, summary) in zip(prompts, groups))
            sums += Counter(windows=len(groups), calls=len(groups), construction=flops)
            rows = min(settings.batch, len(groups))
            batches.append((rows * max(prompts), rows * (max(prompts) + limit)))

        for question in document.questions:
            # Stage 2: a search that reads the assumed number of nodes.
            opening = length_of(question_prompt(tokenizer, question.text))
            read = min(nodes * node, tokens, room_for_nodes(tokenizer, question.text, settings))
            prompt = opening + read + turn
            searches.append((min(read, max(PASS, settings.chunk)), settings.window, prompt))
            checks = 0 if settings.fixed_nodes else max(1, read // node)
            search = searching(config, prompt, settings.answer_tokens)
            search += checks * flops_of(config, len(tokenizer.frame.close), opening + read, 1)

            # The whole document, cut to its window.
            prompt = min(opening + tokens + turn, whole_window - settings.answer_tokens)
            wholes.append((prompt, prompt + settings.answer_tokens))
            sums += Counter(questions=1, calls=checks + 1, search=search,
                            whole=generation(config, prompt, settings.answer_tokens))

    _, dtype = choose_device(of.device, of.dtype, config.dtype)
    shapes = [*tensor_shapes(config).values(), *(tensor_shapes(builder.config).values() if of.builder else ())]
    return {**sums, "batch": settings.batch, "bytes of weights": dtype.itemsize * sum(map(math.prod, shapes)),
            "of a batch": max(bytes_of_pass(builder.config, dtype.itemsize, *batch) for batch in batches),
            "of a search": max(bytes_of_pass(config, dtype.itemsize, *search) for search in searches),
            "of the whole": max(bytes_of_pass(config, dtype.itemsize, *whole) for whole in wholes)}


def construction(level: list[int], room: int, limit: int, node: int) -> Iterator[list[tuple[int, int]]]:
    """The groups of each level, from the tokens of each chunk: (tokens of a group's nodes, tokens of its summary)."""
    while True:
        groups = [sum(level[i] for i in group) for group in pack(level, room)]
        summaries = [min(limit, max(1, int(SUMMARY * nodes))) for nodes in groups]
        yield list(zip(groups, summaries))
        if len(groups) == 1:
            return

        # The next level: each summary is divided into nodes; the last one is what remains.
        level = [min(node, summary - start) for summary in summaries for start in range(0, summary, node)]


def searching(config: Config, prompt: int, tokens: int) -> int:
    """FLOPs of a search without its checks: a prompt read node by node, so that a token sees half of it on average; and
    an answer of `tokens` tokens."""
    return flops_of(config, prompt, prompt // 2) + sum(flops_of(config, 1, prompt + n, 1) for n in range(tokens))


def generation(config: Config, prompt: int, tokens: int) -> int:
    """FLOPs of reading a prompt and writing `tokens` tokens."""
    return flops_of(config, prompt, prompt, 1) + sum(flops_of(config, 1, prompt + n, 1) for n in range(1, tokens))


def bytes_of_pass(config: Config, width: int, tokens: int, slots: int, keys: int = 0) -> int:
    """Bytes that a pass over `tokens` tokens adds to the weights, with its cache of `slots`, at `width` bytes a number.

    Added are the cache, and what the forward pass holds at its peak: x and h, the queries and the output of attention,
    RoPE's tables, and three tensors of the hidden width, in the SwiGLU of a layer. If attention to `keys` keys is
    written out, the peak is there: a gate, three float32 copies of a block's weights, and its scores.
    """
    cached = 2 * config.layers * config.kv_heads * config.head_width                       # numbers of a slot
    computed = 2 * config.width + 2 * config.heads * config.head_width + 2 * config.head_width
    computed += config.hidden * (1 if keys else 3)
    weights = min(config.heads * tokens * keys, WEIGHTS // 4)
    of_weight = 12 + (width if width < 4 else 0)                      # the scores
    return width * (cached * slots + computed * tokens) + of_weight * weights
