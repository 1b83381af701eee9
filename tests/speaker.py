"""Rules in the place of an agent's model, for documents of the embedded world: an oracle of a method's machinery.

They answer the text of each prompt by what stands in it, and see neither document nor evidence nor answers. So if a
method with this speaker answers wrongly, its graph, walk, retrieval or search has a bug, or the rules have one.
It is no result of a method and has no row in any table.
"""
import json
import re

import pytest

from baselines import graphreader_prompts as figures
from baselines import jerr, mkrag
from baselines.agent import Talk
from tiny.world import facts_in, question


class Speaker(Talk):
    """Answers every prompt by rules. Unlike a model's replies, its own cost no FLOPs; tokens are the prompts'."""

    def say(self, texts, prompts, limit, progress):
        self.tokens += sum(map(len, prompts))
        return [reply_to(text) for text in texts]


class Script(Talk):
    """Says what a test has written down, and remembers the prompts."""
    replies: list[str] = []
    heard: list[str] = []

    def say(self, texts, prompts, limit, progress):
        self.heard.extend(texts)
        assert len(texts) <= len(self.replies), f"nothing is written down for {texts[-1][-200:]}"
        return [self.replies.pop(0) for _ in texts]


@pytest.fixture(name="script")
def scripted(monkeypatch):
    def write(*replies):
        monkeypatch.setattr(Script, "replies", list(replies))
        monkeypatch.setattr(Script, "heard", [])
        return Script
    return write


def reply_to(text: str) -> str:
    """The reply to a prompt."""
    for opening, rule in RULES.items():
        if text.startswith(opening):
            return rule(text.removeprefix(opening).strip())
    raise AssertionError(f"no rule for: {text[:200]}")


# --- what a text says -----------------------------------------------------------------------------------------------

def known(text: str) -> dict[tuple[str, str], str]:
    """(name, relation) -> value, of all facts that a text states in sentences, one or more a line."""
    text = re.sub(r"^(\[Chunk \d+\]|\d+\.)", "", text, flags=re.MULTILINE).replace("\n", ". ")
    return {(fact.name, fact.relation): fact.value for fact in facts_in(text)}


def asked(question: str) -> tuple[str, list[str]]:
    """"What is Mara's friend's pet?" as ("Mara", ["friend", "pet"])."""
    subject, *relations = re.search(r"(?:What|Who) is (.+)\?", question)[1].split("'s ")
    return subject, relations


def follow(question: str, facts: dict) -> tuple[list[str], str, str | None]:
    """The sentences among `facts` that lead to the answer, the last name or value reached, and the relation that is
    missing there (None: it is the answer)."""
    at, relations = asked(question)
    sentences = []
    for relation in relations:
        if (at, relation) not in facts:
            return sentences, at, relation
        sentences.append(f"{at}'s {relation} was {facts[at, relation]}.")
        at = facts[at, relation]
    return sentences, at, None


def field(text: str, name: str) -> str:
    """The rest of the line "name: .."."""
    return re.search(rf"^{name}: (.*)$", text, re.MULTILINE)[1]


# --- GraphReader ----------------------------------------------------------------------------------------------------

def extract(text):
    lines = [f"{n}. {name}'s {relation} was {value}. | {name} | {value}"
             for n, ((name, relation), value) in enumerate(known(text).items(), 1)]
    return "\n".join(lines)


def select(text):
    subject, _ = asked(field(text, "Question"))
    names = text.partition("Nodes:\n")[2].splitlines()
    return "\n".join(f"Node: {name}, Score: {100 if name == subject else 0}" for name in names if name == subject)


def notebook(text) -> tuple[str, str, str | None]:
    """The notebook with what the prompt shows, and where the question is with it."""
    before = field(text, "Notebook")
    sentences, at, missing = follow(field(text, "Question"), known(f"{before}\n{text.partition('Notebook: ')[2]}"))
    return " ".join(sentences), at, missing


def check_facts(text):
    book, _, _ = notebook(text)
    useful = [line for line in re.findall(r"^\[Chunk \d+\] .*$", text, re.MULTILINE)
              if line.partition("] ")[2] in book and book]
    ids = sorted({int(re.search(r"\d+", line)[0]) for line in useful})
    action = f"read_chunk({ids})" if ids else "stop_and_read_neighbor()"
    return f"*Updated Notebook*: {book}\n*Rationale for Next Action*: ..\n*Chosen Action*: {action}"


def check_chunk(text):
    book, _, missing = notebook(text)
    action = "termination()" if missing is None else "search_more()"
    return f"*Updated Notebook*: {book}\n*Rationale for Next Action*: ..\n*Chosen Action*: {action}"


def check_neighbours(text):
    _, at, missing = notebook(text)
    names = text.partition("Neighbor nodes:\n")[2].splitlines()
    action = f"read_neighbor_node({at})" if missing and at in names else "termination()"
    return f"*Rationale for Next Action*: ..\n*Chosen Action*: {action}"


def reason(text):
    sentences, at, missing = follow(field(text, "Question"), known(text.partition("paths:\n")[2]))
    return f"Analyze:\n{' '.join(sentences)}\nFinal answer:\n{at if missing is None else 'unknown'}"


# --- MKRAG ----------------------------------------------------------------------------------------------------------

def entities(text):
    found = {}
    for (name, relation), value in known(text).items():
        found.setdefault(name, {"Attributes": {}})["Attributes"][relation] = value
    return f"Here it is:\n{json.dumps(found)}"


def weigh(text):
    return "\n".join(f"{name} | 0.7" for name in text.splitlines())


def write_pairs(text):
    """A pair for each line; for one that is to join them, all together."""
    lines = [line.split(" | ") for line in text.partition('Relationships:\n"\n')[2].strip('\n"').splitlines()]
    if "One pair for each line." in text:
        return "\n".join(f"Question: {question(name, relation)}\nAnswer: {name}'s {relation} is {value}"
                         for name, relation, value in lines)
    facts = " and ".join(f"{name}'s {relation} is {value}" for name, relation, value in lines)
    return f"Question: Who is {lines[0][0]}?\nAnswer: {facts}"


def split(text):
    """Of a question about two facts, the sub-question for the first."""
    at, relations = asked(text)
    return "\n".join([question(at, relations[0]), text.removeprefix("Question: ")][:len(relations)])


def loop(text):
    _, at, missing = follow(field(text, "Question"), known(re.sub(r"\?", ".", text.partition("Knowledge:")[2])))
    return f"Answer: {at}" if missing is None else f"RewriteQ: {question(at, missing)}"


# --- JERR -----------------------------------------------------------------------------------------------------------

def shorten(text):
    return " ".join(f"{name}'s {relation} was {value}." for (name, relation), value in known(text).items())


def atoms(text):
    return "\n".join(f"* {word}" for (name, _), value in known(text).items() for word in (name, value))


def relate(text):
    facts = known(text.partition("Text:\n")[2])
    return "\n".join(f"{name} | {relation} | {value}" for (name, relation), value in facts.items())


def key_words(text):
    subject, relations = asked(text)
    return "\n".join(f"* {word}" for word in (subject, *relations))


def look_up(text):
    """The pages of the nodes that the search has found, the best first."""
    pages = re.findall(r"^.+ \(Page ([\d, ]+)\):", text, re.MULTILINE)
    return f"I want to look up Page [{', '.join(pages)}] to see."


RULES = {jerr.SYNOPSIS: shorten, jerr.ATOMS: atoms, jerr.ELEMENTS: atoms, jerr.EDGES: relate, jerr.KEYWORDS: key_words,
         jerr.LOOK_UP.partition("{")[0]: look_up,
         mkrag.EXTRACT: entities, mkrag.WEIGH: weigh, mkrag.PAIRS.partition("{")[0]: write_pairs, mkrag.SPLIT: split,
         mkrag.LOOP: loop, figures.EXTRACT: extract, figures.PLAN: lambda question: f"Find what {question} needs.",
         figures.SELECT: select, figures.FACTS: check_facts, figures.CHUNK: check_chunk,
         figures.NEIGHBOURS: check_neighbours, figures.REASON: reason}
