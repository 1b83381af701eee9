"""Speakers that replace a method's model: written replies, and rules for the embedded world.

The rules answer each prompt from its text alone. They see neither document nor evidence nor answers. So if a method
answers wrongly with them, its graph, walk, search or index has a bug, or the rules have one. (MKRAG's two rounds are
too few for questions about a friend.)

For the rules "Sofia's baker" is a separate entity, a post, with the facts that the text states about it. "Mara is
Sofia's baker" is a fact about Mara. So every question about Mara takes a step from her to her post, and one about her
friend takes two more: to the friend, and to the friend's post.
"""
import json
import re

from stated import statements

from baselines import graphreader_prompts as figures
from baselines import jerr, mkrag
from baselines.common import Reply
from tiny.facts import DETAILS, NAMES, QUESTIONS, Fact, statement


class Script:
    """Gives written replies in place of a method's model, and records the prompts and their limits."""

    def __init__(self, method, *replies):
        self.replies = [reply if isinstance(reply, Reply) else said(reply) for reply in replies]
        self.heard = []
        self.limits = []
        method.say = self.say

    def say(self, texts, limit):
        self.heard += texts
        self.limits += [limit] * len(texts)
        assert len(texts) <= len(self.replies), f"nothing is written down for {texts[-1][-200:]}"
        return [self.replies.pop(0) for _ in texts]


def said(text: str, cut: bool = False) -> Reply:
    """A reply that costs nothing."""
    return Reply(text, 0, 0, cut)


def by_rules(texts, limit):
    """The reply to each prompt by the rule for its opening."""
    return [next(said(rule(text.partition(opening)[2].strip())) for opening, rule in RULES.items() if opening in text)
            for text in texts]


# --- what a text says -----------------------------------------------------------------------------------------------

# The rules ask two more kinds. ("Who is Mara's friend?" comes before "Who is Mara?".)
QUESTIONS = QUESTIONS | {"post": "Who is {}?", "past": "Where did {} live?"}
BY_POST = {relation: wording.format(r"(\w+'s \w+)", r"(\w+)") for relation, wording in DETAILS.items()}


def known(text: str) -> dict[tuple[str, str], str]:
    """(entity, relation) -> value for all facts that the sentences of a text state.

    An entity is a name, a post or a town. Names have one relation, their post; a post has the others.
    """
    text = re.sub(r"[]:?]| and ", ".", text)
    found = {}
    for person, relation, value in statements(text):
        entity = person if isinstance(person, str) else "'s ".join(person)
        if relation == "job":
            found[entity, "post"] = f"{found.pop((entity, 'town'))}'s {value}"
        else:
            found[entity, relation] = value

    # The rules state details like this: "Sofia's baker's pet is white".
    for relation, wording in BY_POST.items():
        found |= {(entity, relation): value for entity, value in re.findall(wording, text)}
    return found


def sentence(entity: str, relation: str, value: str) -> str:
    """The sentence that states a fact, without its full stop."""
    if relation == "post":
        return f"{entity} is {value}"
    return statement(Fact(entity, relation, value))


def asked(question: str) -> tuple[str, list[str]]:
    """"What is Mara's friend's pet?" as ("Mara", ["friend", "pet"])."""
    for relation, wording in QUESTIONS.items():
        match = re.fullmatch(wording.replace("?", r"\?").format("(.+?)('s friend)?"), question)
        if match:
            return match[1], ["friend", relation] if match[2] else [relation]
    raise AssertionError(f"no rule for the question: {question}")


def follow(question: str, facts: dict) -> tuple[list[str], list[str], str | None]:
    """The sentences of `facts` that lead to the answer, the way there, and the relation that is missing at its end.

    The way starts with the entity of the question, then has each value that is reached. The missing relation is None if
    the last value is the answer.
    """
    entity, relations = asked(question)
    sentences = []
    way = [entity]
    while relations:
        relation = relations.pop(0)
        if way[-1] in NAMES and relation != "post":
            relations.insert(0, relation)
            relation = "post"                               # a name leads to everything else through its post

        if relation in ("town", "job"):                     # of a post: they stand in it
            way.append(way[-1].split("'s ")[relation == "job"])
        elif (way[-1], relation) in facts:
            value = facts[way[-1], relation]
            sentences.append(f"{sentence(way[-1], relation, value)}.")
            way.append(value)
        else:
            return sentences, way, relation
    return sentences, way, None


def field(text: str, name: str) -> str:
    """The rest of the line "name: .."."""
    return re.search(rf"^{name}: (.*)$", text, re.MULTILINE)[1]


# --- GraphReader ----------------------------------------------------------------------------------------------------

def extract(text):
    return "\n".join(f"{sentence(entity, relation, value)}. | {entity} | {value}"
                     for (entity, relation), value in known(text).items())


def select(text):
    entity, _ = asked(field(text, "Question"))
    return f"Node: {entity}, Score: 100"


def on_walk(text):
    """At a node: the chunks of its useful facts. At a chunk: whether the answer is known. Then the neighbour that is
    furthest on the way."""
    sentences, way, missing = follow(field(text, "Question"), known(text.partition("Notebook: ")[2]))
    book = " ".join(sentences)
    if "Atomic facts:" in text:
        facts = re.findall(r"^\[Chunk (\d+)\] (.*)$", text, re.MULTILINE)
        ids = ", ".join(sorted({chunk for chunk, fact in facts if fact in book}))
        action = f"read_chunk([{ids}])" if ids else "stop_and_read_neighbor()"
    elif missing and "Neighbor nodes:" in text:
        names = text.partition("Neighbor nodes:\n")[2].splitlines()
        action = f"read_neighbor_node({[entity for entity in way if entity in names][-1]})"
    else:
        action = "search_more()" if missing else "termination()"
    return f"*Updated Notebook*: {book}\n*Rationale for Next Action*: ..\n*Chosen Action*: {action}"


def reason(text):
    sentences, way, missing = follow(field(text, "Question"), known(text.partition("paths:\n")[2]))
    return f"Analyze:\n{' '.join(sentences)}\nFinal answer:\n{way[-1] if missing is None else 'unknown'}"


# --- JERR -----------------------------------------------------------------------------------------------------------

KEPT = ("post", "friend", "pet", "home", "inn")             # relations that a synopsis keeps
ABOUT = "There is more about {}."                           # of other facts it says whom they are about


def shorten(text):
    facts = known(text)
    kept = [f"{sentence(entity, relation, value)}." for (entity, relation), value in facts.items() if relation in KEPT]
    others = dict.fromkeys(ABOUT.format(entity) for entity, relation in facts if relation not in KEPT)
    return " ".join([*kept, *others]) or text.split()[0]


def atoms(text):
    words = [word for (entity, _), value in known(text).items() for word in (entity, value)]
    return "\n".join(f"* {word}" for word in words + re.findall(ABOUT.format("([^.]+)"), text))


def relate(text):
    facts = known(text.partition("Text:\n")[2])
    return "\n".join(f"{entity} | {relation} | {value}" for (entity, relation), value in facts.items())


def key_words(text):
    entity, relations = asked(text)
    return "\n".join(f"* {word}" for word in (entity, *relations))


def look_up(text):
    """The pages of the last post on the way. The search names them if it found the node; else the synopses do."""
    _, way, _ = follow(text.rpartition("Question:\n")[2], known(text))
    last = [entity for entity in way if "'s " in entity or entity == way[0]][-1]
    found = re.findall(rf"^{last} \(Page ([\d, ]+)\):", text, re.MULTILINE)
    pages = found or re.findall(rf"^Page (\d+): .*{last}", text, re.MULTILINE)
    return f"I want to look up Page [{', '.join(pages)}] to see."


# --- MKRAG ----------------------------------------------------------------------------------------------------------

def entities(text):
    found = {}
    for (entity, relation), value in known(text).items():
        found.setdefault(entity, {"Attributes": {}})["Attributes"][relation] = value
    return json.dumps(found)


def weigh(text):
    return "\n".join(f"{name} | 1.0" for name in text.splitlines())


def pairs(text):
    lines = re.findall(r"^(.*) \| (.*) \| (.*)$", text.rpartition("Relationships:")[2], re.MULTILINE)
    return "\n".join(f"Question: {QUESTIONS[relation].format(entity)}\nAnswer: {sentence(entity, relation, value)}."
                     for entity, relation, value in lines)


def ask_first(text):
    entity, _ = asked(field(text, "Question"))
    return f"{QUESTIONS['post'].format(entity)}\n{field(text, 'Question')}"


def decide(text):
    question, _, knowledge = text.rpartition("Question: ")[2].partition("\nKnowledge:")
    _, way, missing = follow(question, known(knowledge))
    return f"RewriteQ: {QUESTIONS[missing].format(way[-1])}" if missing else f"Answer: {way[-1]}"


RULES = {mkrag.EXTRACT: entities, mkrag.WEIGH: weigh, mkrag.PAIRS.partition("{")[0]: pairs,
         mkrag.SPLIT: ask_first, mkrag.LOOP.partition("{")[0]: decide,
         jerr.SYNOPSIS: shorten, jerr.ATOMS: atoms, jerr.ELEMENTS: atoms, jerr.EDGES: relate, jerr.KEYWORDS: key_words,
         jerr.LOOK_UP.partition("{")[0]: look_up,
         figures.EXTRACT: extract, figures.PLAN: lambda question: f"Find what {question} needs.",
         figures.SELECT: select, figures.REASON: reason, **dict.fromkeys(figures.WALK.values(), on_walk)}
