"""What the compared methods share: the reader, summaries, passages that end at sentence ends, trees on disk.

A row of Table 1 differs from another by its method alone: all read Table A2's conversation, with what the method found
in the place of PECAN's nodes, in the same window, through the same forward pass and counter.
"""
import re
from pathlib import Path

import torch
from tqdm import tqdm

from data import Document
from llama import Cache, Llama, length_of
from pecan import Graph, Node, answer_turn, node_line, question_prompt, room_for_nodes
from support.files import InputError
from support.graph_file import check_place
from support.method import Answer
from support.settings import Settings
from support.text import split


class MissingPackage(InputError):
    """A method cannot run, because an optional package is not installed."""


def scaled(tokens: int, settings: Settings) -> int:
    """A length in tokens that a method's source gives, for chunks of other than the paper's 300 tokens: small models
    have small chunks, and every length shrinks alike."""
    return max(1, tokens * settings.chunk // 300)


# --- the reader -----------------------------------------------------------------------------------------------------

def line(tokenizer, text: str) -> list[int]:
    """Token ids of a text's line in the reader's prompt, as a node of PECAN's stands there."""
    return [i for _, ids in node_line(tokenizer, None, " ".join(text.split())) for i in ids]


def read(model: Llama, question: str, ids: list[int], settings: Settings) -> Answer:
    """Answer from the lines `ids`. No check is made: the first assistant turn is given as "Yes"."""
    tokenizer, flops = model.tokenizer, model.flops
    prompt = [*question_prompt(tokenizer, question), (None, ids), *answer_turn(tokenizer, tokenizer.first("Yes"))]
    cache = Cache(model, 1, length_of(prompt) + settings.answer_tokens)
    hidden, _ = model.read(cache, [prompt])
    said = model.generate(cache, hidden, settings.answer_tokens)[0][0]
    return Answer(tokenizer.decode(said).strip(), [], model.flops - flops, length_of(prompt) + len(said))


def read_best(model: Llama, question: str, texts: list[str], order: list[int], settings: Settings) -> Answer:
    """Answer from texts in this order, the best first, as many as the window has room for; `nodes` are those read.

    The papers do not say in which order; the best first, as RAPTOR's retrievers put them.
    """
    room, ids, nodes = room_for_nodes(model.tokenizer, question, settings), [], []
    for i in order:
        more = line(model.tokenizer, texts[i])
        if len(ids) + len(more) <= room:
            ids, nodes = ids + more, [*nodes, i]
    if order and not nodes:
        raise InputError(f"window {settings.window} is too small for what was found")
    answer = read(model, question, ids, settings)
    answer.nodes = nodes
    return answer


# --- other prompts --------------------------------------------------------------------------------------------------

def turn(tokenizer, text: str) -> list[int]:
    """A user's turn that says `text`."""
    return [*tokenizer.frame.open, *tokenizer.encode(text), *tokenizer.frame.close]


def replies(model: Llama, prompts: list[list[int]], limit: int, batch: int = 1,
            progress: bool = False) -> list[list[int]]:
    """Token ids of what the model says to each prompt, greedy, up to `limit` of them; `batch` prompts run together."""
    said = []
    for start in tqdm(range(0, len(prompts), batch), "summaries", unit="batch", leave=False, disable=not progress):
        rows = [[(None, ids)] for ids in prompts[start:start + batch]]
        cache = Cache(model, len(rows), max(map(length_of, rows)) + limit)
        hidden, _ = model.read(cache, rows)
        said += model.generate(cache, hidden, limit)[0]
    return said


def summaries(model: Llama, texts: list[str], prompt: str, limit: int, batch: int, progress: bool) -> list[str]:
    """A summary of each text, asked for by `prompt` with the text in it. Where the model says nothing, the beginning of
    the text stands in, so that no node is empty."""
    tokenizer = model.tokenizer
    said = replies(model, [turn(tokenizer, prompt.format(text)) for text in texts], limit, batch, progress)
    said = [" ".join(tokenizer.decode(ids).split()) for ids in said]
    return [summary or split(tokenizer, text, limit)[0] for summary, text in zip(said, texts)]


# --- trees ----------------------------------------------------------------------------------------------------------

def sentences(tokenizer, document: Document, limit: int) -> list[str]:
    """Passages of whole sentences, as many as `limit` tokens hold; only a longer sentence is cut, at white space.

    Sentences end behind . ! ?, at newlines and where a passage ends; passages of a document may share a chunk, because
    the methods that want this were written for a single text.
    """
    packed, held, used = [], [], 0
    for sentence in re.split(r"(?<=[.!?])\s+|\n+", "\n".join(document.passages)):
        for part in split(tokenizer, sentence, limit):
            tokens = len(tokenizer.encode(" " + part))
            if held and used + tokens > limit:
                packed.append(" ".join(held))
                held, used = [], 0
            held, used = [*held, part], used + tokens
    return packed + [" ".join(held)]


def tree(path: str | Path | None, document: Document, model: Llama, construction: dict, leaves, summarise) -> Graph:
    """The tree at `path`, or a new one, saved there: levels of nodes, each over nodes of the level below.

    A tree is a Graph like PECAN's: E[i, j] is 1 / (number of children) for each child j of i. `leaves()` gives the
    texts of level 1, `summarise(texts)` the next level as [(text, children)], children being places in `texts`, or []
    where there is none.
    """
    if path is not None and Path(path).exists():
        return Graph.load(path, document, construction, model)
    check_place(path)
    flops, nodes, children = model.flops, [Node(1, text) for text in leaves()], {}
    first = 0                                               # of the level that is summarised
    while made := summarise([node.text for node in nodes[first:]]):
        start, below = len(nodes), first
        for text, places in made:
            children[len(nodes)] = [below + place for place in places]
            nodes.append(Node(nodes[start - 1].level + 1, text))
        first = start
    E = torch.zeros(len(nodes), len(nodes), dtype=torch.float64)
    for i, below in children.items():
        E[i, below] = 1 / len(below)
    graph = Graph(nodes, E, document.hash, model.fingerprint, construction, model.flops - flops)
    if path is not None:
        graph.save(path)
    return graph


def children(graph: Graph, i: int) -> list[int]:
    """Children of node i, in document order."""
    return graph.E[i].nonzero().flatten().tolist()
