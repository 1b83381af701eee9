"""What a run of PECAN and one of the whole document would cost: an estimate before the run, without weights.

Chunks, and the groups of level 1, are those of the run. What a model has yet to write is assumed. The paper's own
figures (Table A4 next to Table A3) amount to summaries of about half of what they summarise, and to nodes of about 60
tokens (Table 1's TFLOPs over the nodes a query reads, GARLIC 4.4). For a data set that is not the paper's, 30 nodes a
query are assumed.
"""
import math
from collections import Counter
from types import SimpleNamespace

from core.checkpoint import Config, choose_device, locate, read_config, tensor_shapes
from core.tokenizer import Tokenizer
from evaluation import paper
from evaluation.cells import Table, quantity
from evaluation.plan import Run
from llama import flops_of, length_of
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

NOTE = (f"FLOPs of construction, of searches and of the whole document; bytes of the weights, and of what a batch of "
        f"groups and the longest whole document add.\nAssumed: summaries of {SUMMARY:.0%} of what they summarise, "
        f"{NODE} tokens a node (no more than a chunk has), the paper's number of nodes a query ({NODES} for other "
        "data).\nThis is one run of PECAN and one of the whole document, without other methods and rows of a table.")


def dry_run(pairs: list[list[Run]]) -> tuple[dict, list[Table]]:
    """What runs would cost, in numbers and as tables; each pair is PECAN's run and the whole document's.

    Reads text, config and tokenizer, but no weights.
    """
    costs = {run.dataset.name: expected(run, whole.settings.window) for run, whole in pairs}
    header = ["data", *next(iter(costs.values()))]
    rows = [[name, *(f"{n:,}" if n < 1e6 else quantity(n) for n in cost.values())] for name, cost in costs.items()]
    return costs, [Table("", header, rows)]


def unloaded(name: str) -> SimpleNamespace:
    """What is known of a checkpoint without its weights."""
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
    batches, wholes = [], []                                 # tokens of their prompts, and slots of their caches
    for document in run.dataset.documents:
        texts = chunks(builder.tokenizer, document, settings.chunk)
        tokens = sum(length_of(node_line(tokenizer, None, text)) for text in texts)
        sums += Counter(documents=1, tokens=tokens)

        # Stage 1, level by level: each group is read, and its summary is written.
        level = [length_of(node_line(builder.tokenizer, None, text)) for text in texts]
        while True:
            groups = pack(level, room)
            prompts = [instruction + sum(level[i] for i in group) for group in groups]
            summaries = [min(limit, max(1, int(SUMMARY * (prompt - instruction)))) for prompt in prompts]
            flops = sum(generation(builder.config, *of_group) for of_group in zip(prompts, summaries))
            sums += Counter(windows=len(groups), calls=len(groups), construction=flops)
            rows = min(settings.batch, len(groups))
            batches.append((rows * max(prompts), rows * (max(prompts) + limit)))
            if len(groups) == 1:
                break

            # The next level: each summary is divided into nodes; the last one is what remains.
            level = [min(node, summary - start) for summary in summaries for start in range(0, summary, node)]

        for question in document.questions:
            # Stage 2: a search that reads the assumed number of nodes. A token sees half of the prompt on average,
            # because nodes are read one by one.
            opening = length_of(question_prompt(tokenizer, question.text))
            read = min(nodes * node, tokens, room_for_nodes(tokenizer, question.text, settings))
            prompt = opening + read + turn
            checks = 0 if settings.fixed_nodes else max(1, read // node)
            search = flops_of(config, prompt, prompt // 2)
            search += checks * flops_of(config, len(tokenizer.frame.close), opening + read, 1)
            search += sum(flops_of(config, 1, prompt + n, 1) for n in range(settings.answer_tokens))

            # The whole document, cut to its window.
            prompt = min(opening + tokens + turn, whole_window - settings.answer_tokens)
            wholes.append((prompt, prompt + settings.answer_tokens))
            sums += Counter(questions=1, calls=checks + 1, search=search,
                            whole=generation(config, prompt, settings.answer_tokens))

    _, dtype = choose_device(of.device, of.dtype, config.dtype)
    shapes = [*tensor_shapes(config).values(), *(tensor_shapes(builder.config).values() if of.builder else ())]
    return {**sums, "batch": settings.batch, "bytes of weights": dtype.itemsize * sum(map(math.prod, shapes)),
            "of a batch": max(bytes_of_pass(builder.config, *batch, dtype.itemsize) for batch in batches),
            "of the whole": max(bytes_of_pass(config, *whole, dtype.itemsize) for whole in wholes)}


def generation(config: Config, prompt: int, tokens: int) -> int:
    """FLOPs of reading a prompt and writing `tokens` tokens."""
    return flops_of(config, prompt, prompt, 1) + sum(flops_of(config, 1, prompt + n, 1) for n in range(1, tokens))


def bytes_of_pass(config: Config, tokens: int, slots: int, width: int) -> int:
    """Bytes that a pass over `tokens` tokens adds to the weights, with its cache of `slots`, at `width` bytes a number.

    Added are the cache, and what the forward pass holds at its peak, in the SwiGLU of a layer: three tensors of the
    hidden width, x and h, the queries and the output of attention, and RoPE's tables.
    """
    cached = 2 * config.layers * config.kv_heads * config.head_width                       # numbers of a slot
    computed = 3 * config.hidden + 2 * config.width + 2 * config.heads * config.head_width + 2 * config.head_width
    return width * (cached * slots + computed * tokens)

