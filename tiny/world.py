"""A small synthetic world whose documents need PECAN, and in which the truth is known.

A document is a row of short passages about some ten people. Everybody has six facts in three pairs, and each pair
stands in another passage:

    Mara's job was baker. Mara's pet was goat.           a job is kept at every level
    Mara's home was Oslo. Mara's drink was tea.          a home is kept at level 2
    Mara's friend was Otto. Mara's color was red.        a friend is kept at level 2; a pet, drink or color nowhere

The true summary of passages ("was") has one bullet for everybody of whom the window says something that is kept, with
all of that; the summary of bullets ("is") keeps the job alone:

    * Mara's job is baker and Mara's home is Oslo        level 2
    * Mara's job is baker                                level 3

So a job is answered from the top, a home or friend one step down, a pet, drink or color two steps down, and
"What is Mara's friend's pet?" needs two facts from different places.

    python -m tiny.world FILE      writes the held-out test set
"""
import json
import random
import sys
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256

NAMES = """Abel Ada Agnes Alba Alma Amos Anton Aron Axel Basil Berta Boris Bruno Carl Cora Cyrus Dana Daria Dora Edda
Edgar Edith Elias Elsa Emil Enid Erik Ezra Fay Felix Flora Frank Freya Gerda Gilda Greta Gus Hana Hedda Henk
Hilda Hugo Ida Igor Ingrid Iris Ivan Jana Jonas Josef Judith Karin Kate Klaus Lara Lena Leon Lida Linus Lotte
Lucas Luna Mabel Magnus Mara Marco Maya Milo Mona Nadia Nils Nina Nora Odin Olga Oscar Otto Paula Pedro Petra
Quinn Rafael Rita Rosa Ruben Runa Samir Selma Silas Sonja Stella Sven Tara Theo Tilda Tobias Ulla Uma Vera
Viktor""".split()
VALUES = {relation: values.split() for relation, values in {
    "job": "baker pilot nurse tailor miner judge painter sailor teacher farmer singer potter dentist "
           "lawyer barber cook guard author jeweler plumber printer weaver banker driver",
    "home": "Oslo Cairo Lima Paris Quito Delhi Tokyo Dublin Prague Havana Athens Seoul Tunis Riga Sofia "
            "Vienna Berne Minsk Dakar Accra Kyiv Lisbon Madrid Bogota",
    "friend": " ".join(NAMES),
    "pet": "goat cat dog horse parrot rabbit turtle hamster lizard canary ferret snake donkey pigeon "
           "spider beetle",
    "drink": "tea coffee milk cocoa cider lemonade water juice beer wine mead punch",
    "color": "red blue green yellow purple orange black white brown gray pink golden",
}.items()}
KEPT = {"was": ("job", "home", "friend"), "is": ("job",)}         # by a summary, told by the verb of what it reads
DETAILS = ("pet", "drink", "color")
FILLERS = ["It was a quiet morning.", "The road was long.", "Nobody spoke of it.", "The rain went on.",
           "Then the bells rang.", "The market was open.", "A letter came at noon.", "The night was cold."]


@dataclass(frozen=True)
class Fact:
    """One fact, stated as "Mara's job was baker" in a passage and with "is" in a bullet."""
    name: str
    relation: str
    value: str

    def text(self, verb: str) -> str:
        return f"{self.name}'s {self.relation} {verb} {self.value}"

    @cached_property
    def held_out(self) -> bool:
        """One combination in six: training never states it, and the test set states no other."""
        return sha256(self.text("is").encode()).digest()[0] % 6 == 0

    def stated_in(self, text: str) -> bool:
        """Whether a passage or a bullet states this fact."""
        return self in facts_in(text)


@lru_cache(1 << 16)
def facts_in(text: str) -> frozenset[Fact]:
    """The facts that passages or bullets state; what is not of that form (fillers, slips of a model) is left out."""
    found = set()
    for sentence in text.replace(" and ", ".").split("."):
        words = sentence.split()
        if len(words) == 4 and words[0].endswith("'s") and words[2] in KEPT:
            found.add(Fact(words[0].removesuffix("'s"), words[1], words[3]))
    return frozenset(found)


ALL = {(name, relation): [Fact(name, relation, value) for value in values if value != name]
       for relation, values in VALUES.items() for name in NAMES}


@dataclass
class World:
    """One document: its passages, the facts that each of them states, and all facts by (name, relation)."""
    passages: list[str]
    stated: list[list[Fact]]
    facts: dict[tuple[str, str], Fact]
    names: list[str]


def make_world(rng: random.Random, people: int, held_out: bool = False) -> World:
    """A random document, of held-out facts only or of none."""
    while True:
        names = rng.sample(NAMES, people)
        choices = {(name, relation): [fact for fact in ALL[name, relation] if fact.held_out == held_out
                                      and (relation != "friend" or fact.value in names)]
                   for name in names for relation in VALUES}
        if all(choices.values()):                                 # everybody has a friend in the document
            break
    facts = {key: rng.choice(options) for key, options in choices.items()}
    pairs = [(facts[name, kept], facts[name, detail]) for name in names
             for kept, detail in zip(KEPT["was"], rng.sample(DETAILS, 3))]
    while True:                                                   # no passage holds two pairs of one person
        rng.shuffle(pairs)
        groups = [pairs[i:i + 2] for i in range(0, len(pairs), 2)]
        if all(len({pair[0].name for pair in group}) == len(group) for group in groups):
            break
    passages, stated = [], [[fact for pair in group for fact in pair] for group in groups]
    for facts_here in stated:
        sentences = [fact.text("was") + "." for fact in facts_here]
        if rng.random() < 0.5:
            sentences.insert(rng.choice((0, 2, len(sentences))), rng.choice(FILLERS))
        passages.append(" ".join(sentences))
    return World(passages, stated, facts, names)


def summarise(facts: list[Fact], verb: str) -> list[list[Fact]]:
    """The true summary of a window: for everybody of whom something is kept one bullet, its facts in the order of KEPT.

    The people come in alphabetical order. A small model can keep to that from the last name it wrote; whom it has
    written about already, in any other order, it could not tell (random order was tried: names were repeated and left
    out).
    """
    bullets = {}
    for fact in sorted(facts, key=lambda fact: list(VALUES).index(fact.relation)):
        if fact.relation in KEPT[verb]:
            bullets.setdefault(fact.name, []).append(fact)
    return [bullets[name] for name in sorted(bullets)]


def bullet(facts: list[Fact]) -> str:
    """The text of a bullet."""
    return " and ".join(fact.text("is") for fact in facts)


def ask(world: World, rng: random.Random, kind: str) -> tuple[str, str, list[Fact]]:
    """A question of this kind (a relation, or "hop" for a friend's), its answer and the facts it needs."""
    name, relation = rng.choice(world.names), kind
    if kind == "hop":
        first, relation = world.facts[name, "friend"], rng.choice([r for r in VALUES if r != "friend"])
        fact = world.facts[first.value, relation]
        return f"What is {name}'s friend's {relation}?", fact.value, [first, fact]
    fact = world.facts[name, relation]
    return f"{'Who' if relation == 'friend' else 'What'} is {name}'s {relation}?", fact.value, [fact]


KINDS = {"top": ("job",), "one step": ("home", "friend"), "two steps": DETAILS, "two facts": ("hop",)}


def write_test_set(path: str, documents: int = 30, seed: int = 2025):
    """30 documents of held-out facts in the format of data.py, six questions each; `evidence` is what the answer
    needs."""
    rng = random.Random(seed)
    with open(path, "w", encoding="utf-8") as file:
        for number in range(documents):
            world, questions, asked = make_world(rng, 10, held_out=True), [], set()
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


if __name__ == "__main__":
    write_test_set(*sys.argv[1:2])
