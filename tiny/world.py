"""A small synthetic world whose documents need PECAN, and in which every true answer is known.

A document is a list of short passages about some ten people. Each person has six facts. They come in three pairs, and
each pair is in a different passage:

    Mara's job was baker. Mara's pet was goat.           a job is kept at every level
    Mara's home was Oslo. Mara's drink was tea.          a home is kept at level 2
    Mara's friend was Otto. Mara's color was red.        a friend is kept at level 2; a pet, drink or color nowhere

Passages say "was", bullets say "is". The true summary of passages has one bullet for each person of whom the window
states something to keep, with all of that. The true summary of bullets keeps the job alone:

    * Mara's job is baker and Mara's home is Oslo        level 2
    * Mara's job is baker                                level 3

So a question about a job is answered from the top level, about a home or a friend one step down, about a pet, drink or
color two steps down. "What is Mara's friend's pet?" needs two facts from different places.

    python -m tiny.world test.jsonl      writes the held-out test set
"""
import json
import random
import sys
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256

from support.command import make_parser, parse_options, user_errors

NAMES = """Abel Ada Agnes Alba Alma Amos Anton Aron Axel Basil Berta Boris Bruno Carl Cora Cyrus Dana Daria Dora Edda
Edgar Edith Elias Elsa Emil Enid Erik Ezra Fay Felix Flora Frank Freya Gerda Gilda Greta Gus Hana Hedda Henk
Hilda Hugo Ida Igor Ingrid Iris Ivan Jana Jonas Josef Judith Karin Kate Klaus Lara Lena Leon Lida Linus Lotte
Lucas Luna Mabel Magnus Mara Marco Maya Milo Mona Nadia Nils Nina Nora Odin Olga Oscar Otto Paula Pedro Petra
Quinn Rafael Rita Rosa Ruben Runa Samir Selma Silas Sonja Stella Sven Tara Theo Tilda Tobias Ulla Uma Vera
Viktor""".split()

VALUES = {                                                  # relation -> the values that it can have
    "job": """baker pilot nurse tailor miner judge painter sailor teacher farmer singer potter dentist lawyer barber
              cook guard author jeweler plumber printer weaver banker driver""".split(),
    "home": """Oslo Cairo Lima Paris Quito Delhi Tokyo Dublin Prague Havana Athens Seoul Tunis Riga Sofia Vienna Berne
               Minsk Dakar Accra Kyiv Lisbon Madrid Bogota""".split(),
    "friend": list(NAMES),
    "pet": """goat cat dog horse parrot rabbit turtle hamster lizard canary ferret snake donkey pigeon spider
              beetle""".split(),
    "drink": "tea coffee milk cocoa cider lemonade water juice beer wine mead punch".split(),
    "color": "red blue green yellow purple orange black white brown gray pink golden".split(),
}

KEPT = {"was": ("job", "home", "friend"),                   # relations that a summary of passages keeps
        "is": ("job",)}                                     # and those that a summary of bullets keeps
DETAILS = ("pet", "drink", "color")                         # relations that no summary keeps
FILLERS = ["It was a quiet morning.", "The road was long.", "Nobody spoke of it.", "The rain went on.",
           "Then the bells rang.", "The market was open.", "A letter came at noon.", "The night was cold."]


# --- facts ----------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Fact:
    """One fact: a passage states "Mara's job was baker", a bullet "Mara's job is baker"."""
    name: str
    relation: str
    value: str

    def text(self, verb: str) -> str:
        return f"{self.name}'s {self.relation} {verb} {self.value}"

    @cached_property
    def held_out(self) -> bool:
        """Whether the fact is held out, as one in six is. Training states no such fact, the test set no other."""
        return sha256(self.text("is").encode()).digest()[0] % 6 == 0

    def stated_in(self, text: str) -> bool:
        """Whether a passage or a bullet states this fact."""
        return self in facts_in(text)


@lru_cache(1 << 16)
def facts_in(text: str) -> frozenset[Fact]:
    """The facts that passages or bullets state. Other sentences (fillers, slips of a model) are left out."""
    facts = set()
    for sentence in text.replace(" and ", ".").split("."):
        words = sentence.split()
        if len(words) == 4 and words[0].endswith("'s") and words[2] in ("was", "is"):
            facts.add(Fact(words[0].removesuffix("'s"), words[1], words[3]))
    return frozenset(facts)


# Every fact that there can be, by (name, relation). Nobody is their own friend.
ALL = {(name, relation): [Fact(name, relation, value) for value in values if value != name]
       for relation, values in VALUES.items() for name in NAMES}


def possible_facts(names, relations, held_out: bool = False) -> dict[tuple[str, str], list[Fact]]:
    """The facts that a text about `names` may state, for each (name, relation).

    They are all held out, or none of them is. A friend is one of `names`, so that somebody's list can be empty.
    """
    possible = {}
    for name in names:
        for relation in relations:
            facts = [fact for fact in ALL[name, relation] if fact.held_out == held_out]
            if relation == "friend":
                facts = [fact for fact in facts if fact.value in names]
            possible[name, relation] = facts
    return possible


# --- documents ------------------------------------------------------------------------------------------------------

@dataclass
class World:
    """One document and its truth."""
    passages: list[str]
    stated: list[list[Fact]]                                # the facts of each passage
    facts: dict[tuple[str, str], Fact]                      # (name, relation) -> fact
    names: list[str]


def make_world(rng: random.Random, people: int, held_out: bool = False) -> World:
    """A random document about `people` people, of held-out facts only or of none."""
    # Draw people until each of them can have a friend in the document.
    while True:
        names = rng.sample(NAMES, people)
        possible = possible_facts(names, VALUES, held_out)
        if all(possible.values()):
            break
    facts = {subject: rng.choice(options) for subject, options in possible.items()}

    # Each person has three pairs: a fact that a summary keeps, and a detail.
    pairs = []
    for name in names:
        for kept, detail in zip(KEPT["was"], rng.sample(DETAILS, 3), strict=True):
            pairs.append((facts[name, kept], facts[name, detail]))

    # A passage takes two pairs, of different people: no passage states two pairs of one person.
    while True:
        rng.shuffle(pairs)
        groups = [pairs[i:i + 2] for i in range(0, len(pairs), 2)]
        if all(len({kept.name for kept, _ in group}) == len(group) for group in groups):
            break
    stated = [[fact for pair in group for fact in pair] for group in groups]

    # In half of the passages a filler is before, between or after the pairs.
    passages = []
    for facts_here in stated:
        sentences = [fact.text("was") + "." for fact in facts_here]
        if rng.random() < 0.5:
            place = rng.choice((0, 2, len(sentences)))
            sentences.insert(place, rng.choice(FILLERS))
        passages.append(" ".join(sentences))
    return World(passages, stated, facts, names)


def summarise(facts: list[Fact], verb: str) -> list[list[Fact]]:
    """The true summary of a window that states `facts`: the facts of each bullet.

    `verb` is the one of the texts in the window, "was" or "is"; KEPT says what it keeps. Each person of whom something
    is kept has one bullet, with the facts in the order of KEPT.

    The people come in alphabetical order. A small model can follow it, because it only needs the last name it wrote.
    Random order was tried: the model lost track of whom it had written about, repeated names and left others out.
    """
    bullets = {}
    for relation in KEPT[verb]:
        for fact in facts:
            if fact.relation == relation:
                bullets.setdefault(fact.name, []).append(fact)
    return [bullets[name] for name in sorted(bullets)]


def bullet(facts: list[Fact]) -> str:
    """The text of a bullet."""
    return " and ".join(fact.text("is") for fact in facts)


# --- questions ------------------------------------------------------------------------------------------------------

def question(subject: str, relation: str) -> str:
    """The text of a question; the subject is a name or "Mara's friend"."""
    return f"{'Who' if relation == 'friend' else 'What'} is {subject}'s {relation}?"


def ask(world: World, rng: random.Random, kind: str) -> tuple[str, str, list[Fact]]:
    """A question of this kind, its answer, and the facts it needs.

    The kind is a relation, or "hop" for a relation of somebody's friend.
    """
    name = rng.choice(world.names)
    if kind != "hop":
        fact = world.facts[name, kind]
        return question(name, kind), fact.value, [fact]

    friend = world.facts[name, "friend"]
    relation = rng.choice([relation for relation in VALUES if relation != "friend"])
    fact = world.facts[friend.value, relation]
    return question(f"{name}'s friend", relation), fact.value, [friend, fact]


# Where the answer to a question of this kind is: the group's name in the test set -> kinds of ask.
KINDS = {"top": ("job",), "one step": ("home", "friend"), "two steps": DETAILS, "two facts": ("hop",)}


def write_test_set(path: str, documents: int = 30, seed: int = 2025):
    """Write documents of held-out facts, six questions each, in the format of data.py.

    A question also has its `kind`, a group of KINDS, and its `evidence`, the sentences that the answer needs.
    """
    rng = random.Random(seed)
    with open(path, "w", encoding="utf-8") as file:
        for number in range(documents):
            world = make_world(rng, 10, held_out=True)
            questions = []
            asked = set()                                   # no question twice in one document

            for kind in ("top", "one step", "one step", "two steps", "two steps", "two facts"):
                while True:
                    text, answer, needed = ask(world, rng, rng.choice(KINDS[kind]))
                    if text not in asked:
                        break
                asked.add(text)
                questions.append({"id": f"world-{number}-{len(questions)}", "question": text, "answers": [answer],
                                  "kind": kind, "evidence": [fact.text("was") + "." for fact in needed]})

            row = {"id": f"world-{number}", "passages": world.passages, "questions": questions}
            file.write(json.dumps(row) + "\n")


def main(argv=None):
    parser = make_parser("python -m tiny.world", __doc__)
    parser.add_argument("file", help="the file to write")
    write_test_set(parse_options(parser, argv).file)


if __name__ == "__main__":
    sys.exit(user_errors(main))
