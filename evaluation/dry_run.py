"""What `eval.py --dry-run` prints: the cost of PECAN, of the whole document, and of agents, before a run.

PECAN and the whole document are estimated by cost.py. GraphReader, MKRAG and JERR are, if they are among the methods:
their calls with the length of each prompt, if replies are half as long as they may be and none is refused.
"""
import argparse
import math
from collections.abc import Iterator
from dataclasses import asdict
from types import SimpleNamespace

from baselines import graphreader_prompts as figures
from baselines import jerr, mkrag
from baselines.graphreader import STARTS, GraphReader
from core.checkpoint import Config, choose_device, locate, read_config
from core.files import InputError
from core.settings import PAPER, WHOLE_DOCUMENT, Settings, resolve
from core.tokenizer import Tokenizer
from data import Document
from evaluation import cells, cost, paper
from evaluation.layouts import Dataset
from evaluation.runs import METHODS
from support.memory import fitting_batch
from support.options import chosen_settings, max_length

REPLY = 0.5                       # length of a reply, of what it may have
WALK_CALLS = 3.4                  # of a walk: the mean of GraphReader's Table 8
NODE_LIST = 0.2                   # tokens of the names of all nodes, of the document's (its Table 9)
ENTITIES = 5                      # of a chunk of MKRAG's; the paper does not say
REQUESTS = 3                      # for pairs about an entity; likewise
ROUNDS = 1.34                     # of MKRAG's loop (its Table 6)
QUERIES = 3                       # of MKRAG's, rewritten ones included; likewise ours
LINE = 30                         # tokens of a question, or of a question-answer pair
READER = 130                      # tokens of Table A2 with a question

ASSUMED = (f"Agents: replies of {REPLY:.0%} of what they may have, none refused; GraphReader with {STARTS} walks of "
           f"{WALK_CALLS} calls, MKRAG with {ENTITIES} entities a chunk, {REQUESTS} requests for pairs an entity, "
           f"{QUERIES} sub-questions and {ROUNDS} rounds.")

BATCH = " The batch is as large as fits into half of the memory that is free now (--batch)."

Calls = list[tuple[float, float, float]]                         # how many, tokens of a prompt, tokens of its reply


# --- agents ---------------------------------------------------------------------------------------------------------

def graphreader_calls(method: GraphReader, document: Document, tokens: int, length) -> tuple[Calls, Calls]:
    """The calls for a document of `tokens` tokens, and for one question."""
    chunks = math.ceil(tokens / method.chunk)
    plan, reply = REPLY * method.plan, REPLY * method.reply
    names = NODE_LIST * tokens
    room = method.settings.window - method.reply - length(figures.SELECT)
    parts = math.ceil(names / max(1, room))
    walk = length(figures.CHUNK) + LINE + plan + reply + tokens / chunks

    return [(chunks, length(figures.EXTRACT) + tokens / chunks, REPLY * method.extract)], [
        (1, length(figures.PLAN) + LINE, plan), (parts, length(figures.SELECT) + LINE + plan + names / parts, reply),
        (STARTS * WALK_CALLS, walk, reply), (1, length(figures.REASON) + LINE + STARTS * reply, reply),
        (1, READER + (STARTS + 1) * reply, method.settings.answer_tokens)]


def mkrag_calls(method: mkrag.MKRAG, document: Document, tokens: int, length) -> tuple[Calls, Calls]:
    """The calls for a document of `tokens` tokens, and for one question. A check by the re-ranker has no reply."""
    chunks = math.ceil(tokens / method.chunk)
    reply = REPLY * method.reply
    entities = ENTITIES * chunks
    pairs = QUERIES * mkrag.RERANKED * LINE

    return [(chunks, length(mkrag.EXTRACT) + tokens / chunks, REPLY * method.extract),
            (math.ceil(entities / mkrag.NAMES), length(mkrag.WEIGH) + min(entities, mkrag.NAMES) * 5, reply),
            (REQUESTS * entities, length(mkrag.PAIRS) + LINE, reply)], [
        (1, length(mkrag.SPLIT) + LINE, reply), (QUERIES * mkrag.RETRIEVED, READER + LINE, 0),
        (ROUNDS, length(mkrag.LOOP) + LINE + pairs, reply), (1, READER + pairs, method.settings.answer_tokens)]


def jerr_calls(method: jerr.JERR, document: Document, tokens: int, length) -> tuple[Calls, Calls]:
    """The calls for a document of `tokens` tokens, and for one question."""
    chunks = math.ceil(tokens / method.construction(document)["chunk"])
    reply = REPLY * method.reply
    window = method.settings.window
    read = chunks * reply + min(chunks, max(jerr.LOOKED_UP.values())) * tokens / chunks

    return [(chunks, length(jerr.SYNOPSIS) + tokens / chunks, reply),
            (2 * chunks, length(jerr.ATOMS) + reply, reply), (chunks, length(jerr.EDGES) + 2 * reply, reply)], [
        (1, length(jerr.KEYWORDS) + LINE, reply),
        (1, min(length(jerr.LOOK_UP) + chunks * reply, window - method.reply), reply),
        (1, min(READER + read, window - method.settings.answer_tokens), method.settings.answer_tokens)]


AGENTS = {"graphreader": (GraphReader, graphreader_calls), "jerr": (jerr.JERR, jerr_calls),
          "mkrag": (lambda model, settings: mkrag.MKRAG(model, None, settings), mkrag_calls)}


def flops(calls: Calls, c: Config) -> float:
    """FLOPs of calls, each alone."""
    return sum(number * cost.generation(c, round(prompt), round(reply)) for number, prompt, reply in calls)


def agent(name: str, documents: Iterator[Document], c: Config, tokenizer: Tokenizer, settings: Settings) -> dict:
    """The cost of an agent over a data set: sums of calls and of FLOPs, of construction and of questions.

    InputError if the agent cannot run in this window.
    """
    make, calls_of = AGENTS[name]
    method = make(SimpleNamespace(tokenizer=tokenizer), settings)
    found = {"construction calls": 0, "calls": 0, "construction": 0, "questions": 0}
    for document in documents:
        tokens = sum(len(tokenizer.encode(passage)) for passage in document.passages)
        building, answering = calls_of(method, document, tokens, method.conversation().length)
        number = len(document.questions)
        found["construction calls"] += sum(call[0] for call in building)
        found["calls"] += number * sum(call[0] for call in answering)
        found["construction"] += flops(building, c)
        found["questions"] += number * flops(answering, c)
    return {key: round(value) for key, value in found.items()}


# --- tables ---------------------------------------------------------------------------------------------------------

def unloaded(name: str, args: argparse.Namespace) -> SimpleNamespace:
    """What is known of a checkpoint without its weights."""
    folder = locate(name)
    config = read_config(folder)
    device, dtype = choose_device(args.device, args.dtype, config.dtype)
    return SimpleNamespace(folder=folder, config=config, tokenizer=Tokenizer(folder, config.vocab), dtype=dtype,
                           device=device)


def dry_run(args: argparse.Namespace, datasets: list[Dataset]) -> tuple[dict, list[cells.Table], list[str]]:
    """What the runs would cost: numbers, tables and notes. Reads text, config and tokenizer, but no weights."""
    model = unloaded(args.model, args)
    builder = unloaded(args.builder, args) if args.builder else model
    config, width = model.config, model.dtype.itemsize
    other = builder.config if args.builder else None
    weights, _ = cost.memory(config, cost.Cost(), width, other)
    longest = max_length(model, builder)

    rows = []
    of_agents = []
    costs = {}
    for dataset in datasets:
        settings = resolve(model.folder, longest, PAPER.get(dataset.name), chosen_settings(args),
                           size=lambda settings: fitting_batch(settings, [model, builder], weights=weights))
        whole_window = args.window or min(WHOLE_DOCUMENT, config.max_length)
        c = cost.expected(dataset.documents(), model, builder, settings, paper.FIXED_NODES.get(dataset.name),
                          whole_window)
        counts = [f"{n:,}" for n in (c.documents, c.questions, c.tokens, c.windows, c.calls)]
        quantities = [cells.quantity(n) for n in (c.construction, c.search, c.most, c.whole)]
        memory = sum(cost.memory(config, c, width, other))
        costs[dataset.name] = asdict(c) | {"memory": memory, "at once": settings.batch}
        rows.append([dataset.name, *counts, *quantities, str(settings.batch), f"{memory / 2 ** 30:.2f} GiB"])

        for name in filter(AGENTS.get, args.methods):
            try:
                found = agent(name, dataset.documents(), config, model.tokenizer, settings)
            except InputError as error:
                of_agents.append([dataset.name, METHODS[name].label, *[cells.NOT_RUN] * 4, f"not run: {error}"])
                continue
            costs[dataset.name][name] = found
            of_agents.append([dataset.name, METHODS[name].label, f"{found['construction calls']:,}",
                              f"{found['calls']:,}", cells.quantity(found["construction"]),
                              cells.quantity(found["questions"])])

    header = ["data", "documents", "questions", "tokens", "windows", "calls", "construction", "search", "at most",
              "whole", "batch", "memory"]
    shown = [cells.Table("", header, rows)]
    notes = [cost.ASSUMED + ("" if args.batch else BATCH)]
    if of_agents:
        header = ["data", "agent", "calls to build", "calls to answer", "construction", "questions"]
        shown.append(cells.Table("", header, of_agents))
        notes.append(ASSUMED)
    return costs, shown, [*notes, "This is one run of PECAN and one of the whole document. The other methods, and the "
                          "further runs of a table, are not included."]
