"""The truth to compare with: the chunks that an answer needs, the sources of a bullet, the nodes that lead to a chunk.

Every question has `evidence`: the sentences of the document that the answer needs. The embedded world states facts in
sentences of fixed forms, so the sources of every bullet are exact. Elsewhere a bullet has a known source only if its
words clearly point to one node.
"""
import re
from collections.abc import Callable
from functools import cache

from core.files import InputError
from data import Document, Question
from support.graph import Node
from tiny.facts import facts_in, posts_in


def facts_reader(document: Document) -> Callable[[str], frozenset] | None:
    """A function that returns the facts of a text; None if the document is not from the embedded world.

    A document is from that world if every piece of its evidence states a fact. A fact's `name` says whom it is about.
    """
    evidence = [text for question in document.questions for text in question.extra["evidence"]]
    posts = posts_in(document.passages)

    @cache
    def stated(text):
        return frozenset(facts_in([text], posts))

    return stated if all(map(stated, evidence)) else None


def bare(text: str) -> str:
    """A text without white space."""
    return "".join(text.split())


def needed_chunks(document: Document, chunks: list[str], question: Question) -> list[int]:
    """Places of the chunks that hold a sentence of the question's evidence, or a part of one.

    Raises InputError if the evidence is not in the document.
    """
    whole = "".join(map(bare, document.passages))
    needed = set()
    for sentence in question.extra["evidence"]:
        start = whole.find(bare(sentence))
        if start < 0:
            raise InputError(f"question {question.id}: its evidence is not in the document: {sentence!r:.60}")

        end = start + len(bare(sentence))
        chunk_start = 0
        for i, chunk in enumerate(chunks):
            chunk_end = chunk_start + len(bare(chunk))
            if chunk_start < end and start < chunk_end:
                needed.add(i)
            chunk_start = chunk_end
    return sorted(needed)


def sources(text: str, below: list[str], facts: Callable | None) -> list[int]:
    """Places of the texts in `below` that are a bullet's sources; none if they are not known.

    In the embedded world, the sources are all texts that state a fact of the bullet. Elsewhere the source is the text
    that shares most words with the bullet. It must share at least three, and twice as many as any other text. Only
    numbers and words of at least four characters count, and no word that all texts have.
    """
    if facts:
        return [n for n, other in enumerate(below) if facts(text) & facts(other)]

    def content_words(text):
        return {word for word in re.findall(r"\w+", text.lower()) if len(word) >= 4 or word.isdigit()}

    bags = [content_words(other) for other in below]
    common = set.intersection(*bags)
    shared = [len(content_words(text) & bag - common) for bag in bags]
    best = max(range(len(shared)), key=shared.__getitem__)
    runner_up = max((count for n, count in enumerate(shared) if n != best), default=0)
    return [best] if shared[best] >= 3 and shared[best] >= 2 * runner_up else []


def leading(nodes: list[Node], E: list[list[float]], question: Question, needed: list[int],
            facts: Callable | None) -> list[bool]:
    """Whether each node leads down to one of these needed chunks [|V|].

    A chunk leads to itself. An information point leads where its heaviest edge does (of equal ones, the last). But in
    the embedded world it leads to a needed chunk if it is about a person of the question's evidence. A summary of a
    summary keeps the person and drops most facts, so a bullet seldom states the fact itself.
    """
    leads = [i in needed for i in range(len(nodes))]
    if facts:
        people = {fact.name for sentence in question.extra["evidence"] for fact in facts(sentence)}
        return [leads[i] or node.level > 1 and any(fact.name in people for fact in facts(node.text))
                for i, node in enumerate(nodes)]

    for i, row in enumerate(E):                             # levels come in order, so lower nodes are known before i
        if any(row):
            leads[i] = leads[max(range(len(row)), key=lambda j: (row[j], j))]
    return leads


def enough(question: Question, texts: list[str], nodes: list[int], needed: list[int], facts: Callable | None) -> bool:
    """Whether the nodes that were read are enough for the answer.

    In the embedded world the nodes together must state all needed facts. Elsewhere all needed chunks must have been
    read. The needed facts come from the question's `facts`, which state them by name and need no post; without `facts`,
    they come from its evidence.
    """
    if facts:
        wanted = facts_in(question.extra.get("facts", question.extra["evidence"]))
        return wanted <= facts_in([texts[i] for i in nodes])
    return set(needed) <= set(nodes)
