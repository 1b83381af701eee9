"""What the compared methods share: the reader, prompts of their own, passages, and what is built once for a document.

A row of Table 1 differs from another by its method alone. Every method is read by the conversation of Table A2, with
what it found in the place of PECAN's nodes, in the same window, through the same forward pass and FLOP counter.
"""
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from core.files import InputError, read_json, reading, write_file
from core.settings import Settings
from core.text import fill, split
from data import Answer, Document, Method, Prepared
from llama import Cache, Llama, length_of
from pecan import answer_turn, node_line, question_prompt, room_for_nodes
from support.graph import check_place, file_name

FORMAT = "method file 2"          # of the files in which methods keep what they build
ATTEMPTS = 3                      # replies to one prompt that may be refused


def scaled(tokens: int, settings: Settings) -> int:
    """A length in tokens that a method's source gives, scaled to the size of our chunks.

    The sources assume large models, as the paper does with its chunks of 300 tokens. Small models have small chunks,
    and every length shrinks with them.
    """
    return max(1, tokens * settings.chunk // 300)


def highest(scores: Sequence[float], most: int, among: Iterable[int] | None = None) -> list[int]:
    """The places of the `most` highest scores, best first, of all or `among` these; ties go to the lower place."""
    return sorted(range(len(scores)) if among is None else among, key=lambda i: (-scores[i], i))[:most]


# --- the reader -----------------------------------------------------------------------------------------------------

def line_ids(tokenizer, text: str) -> list[int]:
    """Token ids of a text's line in the reader's prompt: the line that PECAN gives a node."""
    return [i for _, ids in node_line(tokenizer, None, " ".join(text.split())) for i in ids]


def answer_from(model: Llama, question: str, lines: list[int], settings: Settings) -> Answer:
    """Answer from lines, given as token ids. No check is made: the first assistant turn is "Yes"."""
    tokenizer = model.tokenizer
    start = model.spent()
    prompt = [*question_prompt(tokenizer, question), (None, lines), *answer_turn(tokenizer, tokenizer.first("Yes"))]

    cache = Cache(model, 1, length_of(prompt) + settings.answer_tokens)
    hidden, _ = model.read(cache, [prompt])
    [reply], _ = model.generate(cache, hidden, settings.answer_tokens)
    return Answer(tokenizer.decode(reply).strip(), [], *model.spent(start))


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


# --- prompts of their own -------------------------------------------------------------------------------------------

def user_turn(tokenizer, text: str) -> list[int]:
    """Token ids of a user's turn that says `text`, up to the start of the assistant's."""
    return [*tokenizer.frame.open, *tokenizer.encode(text), *tokenizer.frame.close]


def check_fits(what: str, prompt: int, limit: int, settings: Settings):
    """InputError if a prompt and a reply of up to `limit`, both in tokens, do not fit the window."""
    if prompt + limit > settings.window:
        raise InputError(f"window {settings.window} is too small: {what} takes {prompt} tokens and its reply {limit}")


def fitting(tokenizer, texts: Iterable[str], limit: int, settings: Settings, again: str = "") -> str:
    """The first of these prompts that leaves room for a reply, with `again` after it; the last if none does."""
    for text in texts:
        if len(user_turn(tokenizer, text + again)) + limit <= settings.window:
            break
    return text


def replies(model: Llama, texts: list[str], limit: int, settings: Settings, progress: bool = False) -> list[str]:
    """The model's greedy reply, of up to `limit` tokens, to each text as a user's turn; a batch of them runs together.

    InputError if a prompt leaves no room for its reply.
    """
    said = []
    batches = range(0, len(texts), settings.batch)
    for first in tqdm(batches, "replies", unit="batch", leave=False, disable=not progress):
        rows = [[(None, user_turn(model.tokenizer, text))] for text in texts[first:first + settings.batch]]
        longest = max(map(length_of, rows))
        check_fits("a prompt", longest, limit, settings)

        cache = Cache(model, len(rows), longest + limit)
        hidden, _ = model.read(cache, rows)
        ids, _ = model.generate(cache, hidden, limit)
        said += map(model.tokenizer.decode, ids)
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


# --- methods --------------------------------------------------------------------------------------------------------

class Baseline(Method):
    """A method whose FLOPs are those of its model and of the `others` that work for it: encoders, a scorer.

    A subclass says how by `make` and `read`; `prepare` and `answer` enter what they cost.
    """

    def __init__(self, model: Llama, settings: Settings, *others):
        self.model = model
        self.settings = settings
        self.counted = {model, *others}

    def make(self, document: Document) -> Prepared:
        """The document made ready for its questions."""

    def read(self, prepared: Prepared, question: str) -> Answer | None:
        """The answer to a question; None if there is nothing to answer from."""

    def prepare(self, document: Document, path: str | Path | None = None, progress: bool = False) -> Prepared:
        before = self.flops()
        prepared = self.make(document)
        prepared.flops = self.flops() - before
        return prepared

    def answer(self, prepared: Prepared, question: str) -> Answer:
        before = self.flops()
        answer = self.read(prepared, question) or Answer("", [], 0, 0, end="none")
        answer.flops = self.flops() - before
        return answer

    def flops(self) -> int:
        """FLOPs spent so far."""
        return sum(counted.flops for counted in self.counted)


class Built(Baseline):
    """A method that builds something of a document with its model, keeps it on disk, and asks the model of it.

    A subclass says how by `construction`, `build`, `ready` and `read`. All tokens that the model reads or writes for an
    answer count.
    """

    def construction(self, document: Document) -> dict:
        """The settings that decide what is built of a document."""

    def build(self, document: Document, progress: bool) -> dict:
        """What is made of a document, as plain fields for JSON; its FLOPs are the model's."""

    def ready(self, content: dict) -> Prepared:
        """What was built, as questions need it; its FLOPs are those of an encoder."""

    def file_name(self, document: Document) -> str:
        """Names what is built of this document, by this model, under these settings, on disk."""
        return file_name(document.hash, self.model.fingerprint, self.construction(document))

    def prepare(self, document: Document, path: str | Path | None = None, progress: bool = False) -> Prepared:
        """Read what was built of this document from `path`, or build it (and write it there), and ready it."""
        head = {"format": FORMAT, "document": document.hash, "model": self.model.fingerprint,
                "settings": self.construction(document)}
        if path is not None and Path(path).exists():
            content = read_json(path)
            for key, value in head.items():
                if content.get(key) != value:
                    raise InputError(f"{path}: is of another {key}; delete it, or choose another folder of graphs")
        else:
            check_place(path)
            before = self.model.flops
            content = head | {"calls": 0, "refused": 0} | self.build(document, progress)
            content["flops"] = self.model.flops - before
            if path is not None:
                write_file(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")

        before = self.flops()
        with reading(path or document.id, "not what was built of a document"):
            prepared = self.ready(content)
            prepared.flops = content["flops"] + self.flops() - before
            prepared.calls, prepared.refused = content["calls"], content["refused"]
        return prepared

    def answer(self, prepared: Prepared, question: str) -> Answer:
        before = self.model.tokens
        answer = super().answer(prepared, question)
        answer.tokens = self.model.tokens - before
        return answer


class TreeNode(NamedTuple):
    level: int                    # 1: a passage of the document; higher: a summary
    text: str
    children: list[int]           # ids, in document order


class Tree(Built):
    """A tree of summaries. A node's id is its place in the list of nodes, and levels come in order.

    A subclass sets `limit`, the tokens of a summary.
    """

    def ready(self, content: dict) -> Prepared:
        nodes = [TreeNode(*row) for row in content["nodes"]]
        return Prepared([node.text for node in nodes], graph=nodes)

    def summarise(self, nodes: list[TreeNode], groups: list[list[int]], prompt: str, progress: bool) -> list[TreeNode]:
        """The next level: a summary of each group of nodes.

        `prompt` asks for the summary, with the nodes' texts in place of its {}. If the model says nothing, the summary
        is the beginning of the texts, so that no node is empty.
        """
        sources = ["\n\n".join(nodes[i].text for i in group) for group in groups]
        said = replies(self.model, [prompt.format(source) for source in sources], self.limit, self.settings, progress)
        texts = [" ".join(reply.split()) or split(self.model.tokenizer, source, self.limit)[0]
                 for reply, source in zip(said, sources, strict=True)]
        return [TreeNode(nodes[-1].level + 1, text, group) for text, group in zip(texts, groups, strict=True)]
