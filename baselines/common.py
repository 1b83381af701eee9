"""What the compared methods share: the reader, summaries, passages that end at sentence ends, trees on disk.

A row of Table 1 differs from another by its method alone. Every method is read by the conversation of Table A2, with
what it found in the place of PECAN's nodes, in the same window, through the same forward pass and FLOP counter.
"""
import re
from typing import NamedTuple

from tqdm import tqdm

from core.files import InputError
from core.settings import Settings
from core.text import fill, split
from data import Answer, Document
from llama import Cache, Llama, length_of
from pecan import Graph, Node, answer_turn, edge_matrix, node_line, question_prompt, room_for_nodes


def scaled(tokens: int, settings: Settings) -> int:
    """A length in tokens that a method's source gives, scaled to the size of our chunks.

    The sources assume large models, as the paper does with its chunks of 300 tokens. Small models have small chunks,
    and every length shrinks with them.
    """
    return max(1, tokens * settings.chunk // 300)


# --- the reader -----------------------------------------------------------------------------------------------------

def line_ids(tokenizer, text: str) -> list[int]:
    """Token ids of a text's line in the reader's prompt: the line that PECAN gives a node."""
    ids = []
    for _, part in node_line(tokenizer, None, " ".join(text.split())):
        ids += part
    return ids


def answer_from(model: Llama, question: str, lines: list[int], settings: Settings) -> Answer:
    """Answer from lines, given as token ids.

    No check is made: the first assistant turn is "Yes".
    """
    tokenizer = model.tokenizer
    flops_before = model.flops
    opening = question_prompt(tokenizer, question)
    closing = answer_turn(tokenizer, tokenizer.first("Yes"))
    prompt = [*opening, (None, lines), *closing]

    cache = Cache(model, 1, length_of(prompt) + settings.answer_tokens)
    hidden, _ = model.read(cache, [prompt])
    replies, _ = model.generate(cache, hidden, settings.answer_tokens)
    reply = replies[0]
    return Answer(text=tokenizer.decode(reply).strip(), nodes=[], flops=model.flops - flops_before,
                  tokens=length_of(prompt) + len(reply))


def answer_from_best(model: Llama, question: str, texts: list[str], order: list[int], settings: Settings) -> Answer:
    """Answer from the texts at these places, the best first.

    A text that does not fit the window is passed over; the answer's `nodes` are the places of the others. The papers
    do not say in which order to read; RAPTOR's retrievers put the best first. InputError if something was found and
    none of it fits.
    """
    room = room_for_nodes(model.tokenizer, question, settings)
    lines = []
    nodes = []
    for i in order:
        line = line_ids(model.tokenizer, texts[i])
        if len(lines) + len(line) <= room:
            lines += line
            nodes.append(i)
    if order and not nodes:
        raise InputError(f"window {settings.window} is too small for what was found")

    answer = answer_from(model, question, lines, settings)
    answer.nodes = nodes
    return answer


# --- other prompts --------------------------------------------------------------------------------------------------

def user_turn(tokenizer, text: str) -> list[int]:
    """Token ids of a user's turn that says `text`, up to the start of the assistant's."""
    return [*tokenizer.frame.open, *tokenizer.encode(text), *tokenizer.frame.close]


def replies(model: Llama, prompts: list[list[int]], limit: int, batch: int = 1,
            progress: bool = False) -> list[list[int]]:
    """The model's greedy reply to each prompt, up to `limit` token ids; `batch` prompts run together."""
    said = []
    with tqdm(desc="summaries", total=len(prompts) * limit, unit="token", leave=False, disable=not progress) as bar:
        while len(said) < len(prompts):
            rows = [[(None, ids)] for ids in prompts[len(said):len(said) + batch]]
            cache = Cache(model, len(rows), max(map(length_of, rows)) + limit)
            hidden, _ = model.read(cache, rows)
            ids, _ = model.generate(cache, hidden, limit, progress=bar.update)
            said += ids
            bar.total = bar.n + (len(prompts) - len(said)) * limit        # at most
    return said


# --- passages -------------------------------------------------------------------------------------------------------

def pack_sentences(tokenizer, document: Document, limit: int) -> list[str]:
    """Passages of whole sentences, each with as many as `limit` tokens hold.

    A sentence ends after . ! or ?, at a newline and at the end of a passage of the document. Only a sentence longer
    than the limit is cut, at white space. Sentences of different passages may share one of these, because the methods
    that use them were written for a single text.
    """
    parts = []                                              # sentences, and pieces of those that are too long
    for sentence in re.split(r"(?<=[.!?])\s+|\n+", "\n".join(document.passages)):
        parts += split(tokenizer, sentence, limit)
    return fill(tokenizer, parts, limit, " ")


def pack_paragraphs(tokenizer, document: Document, limit: int) -> list[str]:
    """Chunks of whole paragraphs, each with as many as `limit` tokens hold.

    A paragraph is a line of the document. One that is longer than the limit is cut at sentence ends. Paragraphs of
    different passages may share a chunk.
    """
    parts = []
    for paragraph in "\n".join(document.passages).splitlines():
        whole = " ".join(paragraph.split())
        if len(tokenizer.encode("\n" + whole)) <= limit:
            parts += [whole] if whole else []
        else:
            parts += pack_sentences(tokenizer, Document("", [paragraph]), limit)
    return fill(tokenizer, parts, limit, "\n")


# --- trees ----------------------------------------------------------------------------------------------------------

class TreeNode(NamedTuple):
    """A node of a tree that is being built."""
    text: str
    children: list[int]           # their places in the level below; [] for a leaf


def summaries(model: Llama, below: list[str], groups: list[list[int]], prompt: str, limit: int, settings: Settings,
              progress: bool) -> list[TreeNode]:
    """The next level of a tree: a summary, in up to `limit` tokens, of each group.

    `below` holds the texts of the level below, and a group is places in it. `prompt` asks for the summary, with the
    texts in place of its {}. If the model says nothing, the node gets the beginning of the texts instead, so that no
    node is empty.
    """
    tokenizer = model.tokenizer
    sources = ["\n\n".join(below[i] for i in group) for group in groups]
    prompts = [user_turn(tokenizer, prompt.format(source)) for source in sources]
    said = replies(model, prompts, limit, settings.batch, progress)

    level = []
    for source, group, ids in zip(sources, groups, said, strict=True):
        summary = " ".join(tokenizer.decode(ids).split())
        level.append(TreeNode(summary or split(tokenizer, source, limit)[0], group))
    return level


def tree_graph(levels: list[list[TreeNode]], document: Document, model: Llama, construction: dict,
               flops: int) -> Graph:
    """The tree as a Graph like PECAN's, which can be saved; `levels` from the leaves up.

    E[i, j] is 1 / (number of children of i) for each child j of node i. `construction` names the settings of the
    tree, `flops` is what building it cost.
    """
    nodes = []
    first_of = []                                           # id of the first node of each level
    for height, level in enumerate(levels, 1):
        first_of.append(len(nodes))
        nodes += [Node(height, node.text) for node in level]

    edges = []
    for height in range(1, len(levels)):
        for i, node in enumerate(levels[height], first_of[height]):
            edges += [(i, first_of[height - 1] + place, 1 / len(node.children)) for place in node.children]
    return Graph(nodes, edge_matrix(edges, len(nodes)), document.hash, model.fingerprint, construction, flops)


def children_of(graph: Graph, i: int) -> list[int]:
    """Children of node i, in document order."""
    return graph.E[i].coalesce().indices()[0].tolist()
