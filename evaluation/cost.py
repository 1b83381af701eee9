"""What can be said of a run's cost before it begins, from texts, configs and tokenizers, without weights.

Exact are chunks, the groups of level 1, their prompts, and the memory of a batch of them and of searches. How much a
model will write, and how many nodes a search will read, nobody knows; so nothing is said of them.

At the paper's lengths they have to be assumed, to compare with its figures. Table 1's TFLOPs and the number of nodes
read for a query (GARLIC 4.4) suggest about 60 tokens a node. If a graph climbs until a level has a single node, one
length of summaries fits the construction of all four data sets of Table A4.
"""
import argparse
import math

from core.settings import PAPER, PASS, Settings
from core.together import batch_rows, search_rows
from evaluation import paper
from evaluation.datasets import Dataset
from evaluation.methods import Run, pecan_of, plan
from evaluation.models import unloaded
from evaluation.tables import as_text, quantity
from llama import BLOCK_BYTES, flops_of, flops_of_reply, length_of, rows_together
from model.checkpoint import Config, choose_device, tensor_shapes
from pecan import chunks, limit_and_room, node_line, pack, summary_prompt

SUMMARY = 0.22                    # tokens of a summary / tokens of the nodes that it summarises
NODE = 60                         # tokens of a node
CLOSE = 5                         # tokens that close the user's turn and open the reply
PROMPT = 150                      # tokens of template, instruction and question
ANSWER = 10                       # tokens of an answer

NOTE = """Groups: the summaries of level 1; higher levels depend on the replies, and so do
searches. Memory: the weights, and a batch of groups, or of searches. If it runs
out, a batch is halved."""

PUBLISHED = (f"Computed for the mean document of Table A3. Assumed: summaries of {SUMMARY:.0%}, {NODE} tokens a node, "
             f"GARLIC's number of nodes,\n{PROMPT} tokens of prompt and {ANSWER} of answer. The ratios are computed / "
             "published, without and with all logits.")


def dry_run(args: argparse.Namespace, datasets: list[Dataset]) -> tuple[dict, str]:
    """The cost of each of the command's runs of PECAN, as numbers and as a table for each data set."""
    costs = {}
    tables = []
    for dataset in datasets:
        runs = {run.row.name: expected(run) for run in plan(args, [dataset]) if run.row.make is pecan_of}
        costs[dataset.name] = {"documents": len(dataset.documents), "questions": len(dataset.questions), "runs": runs}
        title = f"{dataset.name}: {len(dataset.documents):,} documents, {len(dataset.questions):,} questions"
        rows = [[name, f"{run['groups']:,}", quantity(run["prompt tokens"]), str(run["batch"]),
                 *(f"{run[stage] / 1e9:.2f}" for stage in ("graph bytes", "search bytes"))]
                for name, run in runs.items()]
        tables.append(as_text(title, ["method", "groups", "prompt tokens", "batch", "GB: graphs", "searches"], rows))
    return costs, "\n\n".join(tables)


def expected(run: Run) -> dict[str, int]:
    """The groups of level 1 and the tokens of their prompts, and the bytes of a batch of them and of searches, with the
    weights. InputError if the window is too small.
    """
    options = run.options
    settings = run.construction or run.settings              # that build
    builder, tokenizer = unloaded(options.builder or options.model)
    searcher, _ = unloaded(options.model)

    limit, room = limit_and_room(tokenizer, settings)
    instruction = length_of(summary_prompt(tokenizer, []))   # Table A1 without nodes
    prompts = []                                             # tokens of each
    for document in run.dataset.documents:
        lengths = [length_of(node_line(tokenizer, None, text)) for text in chunks(tokenizer, document, settings.chunk)]
        prompts += [instruction + sum(lengths[i] for i in group) for group in pack(lengths, room)]

    def width(config):                                       # bytes of a number
        return choose_device(options.device, options.dtype, config.dtype)[1].itemsize

    models = [builder, searcher] if options.builder else [searcher]
    weights = sum(width(config) * sum(map(math.prod, tensor_shapes(config).values())) for config in models)

    device, _ = choose_device(options.device, options.dtype, builder.dtype)
    rows = min(batch_rows(settings, device.type), len(prompts))
    longest = max(prompts)
    window = run.settings.window
    batch = bytes_of_pass(builder, width(builder), rows, longest, rows * (longest + limit))
    searches = min(search_rows(run.settings, device.type, searcher.width), len(run.dataset.questions))
    search = bytes_of_pass(searcher, width(searcher), searches, min(window, PASS), searches * window, window)
    return {"groups": len(prompts), "prompt tokens": sum(prompts), "batch": rows, "graph bytes": weights + batch,
            "search bytes": weights + search}


def at_published_lengths(config: Config) -> tuple[dict, str]:
    """The costs of Table A4, computed for the mean document of Table A3 and this model, next to the published ones.

    The paper does not say which logits it counted. So we compute each cost twice: with only the logits that are used,
    and with those of every token that is read, because a plain forward pass computes them all.
    """
    costs = {}
    rows = []
    for dataset, (tokens, *_) in paper.TABLE_A3.items():
        groups = construction(tokens, Settings(**PAPER[dataset]))
        nodes = paper.FIXED_NODES[dataset]
        whole = PROMPT + tokens
        search = PROMPT + nodes * NODE

        # FLOPs, and the number of tokens that are read. A token of a search sees half of its prompt on average; the
        # last token of a reply does not run.
        searching = flops_of(config, search, search // 2) + nodes * flops_of(config, CLOSE, search, 1)
        searching += sum(flops_of(config, 1, search + n, 1) for n in range(ANSWER))
        computed = {"whole document": (flops_of_reply(config, whole, ANSWER - 1), whole),
                    "construction": (sum(flops_of_reply(config, prompt, summary - 1) for prompt, summary in groups),
                                     sum(prompt for prompt, _ in groups)),
                    "search": (searching, search)}
        costs[dataset] = {}
        for (row, (flops, read)), figures in zip(computed.items(), paper.TABLE_A4.values()):
            with_logits = flops + flops_of(config, 0, 0, read)
            published = 1e12 * figures[dataset]
            costs[dataset][row] = {"flops": flops, "with all logits": with_logits, "published": published}
            rows.append([dataset, row, *map(quantity, (flops, with_logits, published)),
                         f"{flops / published:.2f}x", f"{with_logits / published:.2f}x"])
    header = ["data", "FLOPs", "computed", "with all logits", "published", "ratio", "ratio"]
    return costs, as_text("", header, rows)


def construction(tokens: int, settings: Settings) -> list[tuple[int, int]]:
    """The groups of a document of so many tokens, level after level: (tokens of the prompt, tokens of the summary)."""
    limit = int(settings.window * settings.summary_share)
    room = settings.window - limit - PROMPT
    level = lengths(tokens, settings.chunk)                  # tokens of each node
    found = []
    while len(level) > 1:
        groups = [sum(level[i] for i in group) for group in pack(level, room)]
        summaries = [min(limit, int(SUMMARY * nodes)) for nodes in groups]
        found += [(PROMPT + nodes, summary) for nodes, summary in zip(groups, summaries)]
        above = [length for summary in summaries for length in lengths(summary, NODE)]
        if not 0 < sum(above) < sum(level):
            break
        level = above
    return found


def lengths(tokens: int, most: int) -> list[int]:
    """A text in parts of `most` tokens; the last has the rest."""
    return [min(most, tokens - start) for start in range(0, tokens, most)]


def bytes_of_pass(config: Config, width: int, batch: int, length: int, slots: int, keys: int = 0) -> int:
    """Bytes that a pass over a batch of rows, each with `length` tokens, needs besides the weights; a number takes
    `width` bytes.

    Searches run together, but only as many groups as llama.rows_together says. The pass holds a cache of `slots` slots,
    x and h, the queries with their keys, the output of attention, and RoPE's tables. Its peak is in a layer's SwiGLU,
    which adds three tensors of the hidden width. If attention weights for `keys` keys are computed, the peak is there:
    one tensor of the hidden width (a gate), two float32 copies of a block's weights; in 16 bits also a third copy of
    them, and the keys in float32.
    """
    cached = 2 * config.layers * config.kv_heads * config.head_width                       # numbers in a slot
    computed = 2 * config.width + (2 * config.heads + config.kv_heads + 2) * config.head_width
    computed += config.intermediate * (1 if keys else 3)
    together = batch if keys else min(batch, rows_together(length))
    computed *= together
    weights = min(config.heads * batch * length * keys, BLOCK_BYTES // 4)
    in_16_bits = width * weights + 4 * config.kv_heads * config.head_width * together * keys if width < 4 else 0
    return width * (cached * slots + computed * length) + 8 * weights + in_16_bits
