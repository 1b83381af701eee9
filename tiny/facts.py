"""Facts of the world, and the sentences that state them.

Most facts are about people, some about the inn of a town. Texts call people by name ("Mara") or by town and job
("Sofia's baker"). One sentence, the post, says who that is: "Mara is Sofia's baker".
"""
from hashlib import sha256
from typing import NamedTuple

NAMES = """Abel Ada Agnes Alba Alma Amos Anton Aron Axel Basil Berta Boris Bruno Carl Cora Cyrus Dana Daria Dora Edda
Edgar Edith Elias Elsa Emil Enid Erik Ezra Fay Felix Flora Frank Freya Gerda Gilda Greta Gus Hana Hedda Henk
Hilda Hugo Ida Igor Ingrid Iris Ivan Jana Jonas Josef Judith Karin Kate Klaus Lara Lena Leon Lida Linus Lotte
Lucas Luna Mabel Magnus Mara Marco Maya Milo Mona Nadia Nils Nina Nora Odin Olga Oscar Otto Paula Pedro Petra
Quinn Rafael Rita Rosa Ruben Runa Samir Selma Silas Sonja Stella Sven Tara Theo Tilda Tobias Ulla Uma Vera
Viktor""".split()

TOWNS = """Oslo Cairo Lima Paris Quito Delhi Tokyo Dublin Prague Havana Athens Seoul Tunis Riga Sofia Vienna Berne
           Minsk Dakar Accra Kyiv Lisbon Madrid Bogota""".split()

VALUES = {                                                  # relation -> the values that it can have
    "job": """baker pilot nurse tailor miner judge painter sailor teacher farmer singer potter dentist lawyer barber
              cook guard author jeweler plumber printer weaver banker driver""".split(),
    "town": TOWNS,
    "friend": NAMES,
    "pet": """goat cat dog horse parrot rabbit turtle hamster lizard canary ferret snake donkey pigeon spider beetle
              raven fox pony mouse""".split(),
    "home": """river hill harbor bridge market forest lake castle mill tower garden station beach abbey square gate
               school theater""".split(),
    "drink": "tea coffee milk cocoa cider lemonade water juice beer wine mead punch rum syrup".split(),
    "play": "violin flute drum harp piano trumpet guitar lute cello horn zither tuba banjo bell".split(),
    "color": "red blue green yellow purple orange black white brown gray pink golden silver spotted".split(),
    "year": [str(year) for year in range(1900, 1940)],
    "inn": "Swan Crown Anchor Lion Eagle Bear Star Moon Sun Rose Ship Bull Stag Dragon Falcon Wheel".split(),
}
VALUES["past"] = VALUES["home"]                              # an earlier home

# How texts state a relation: {0} is the person, {1} the value. Bullets use the first wording.
WORDINGS = {
    "friend": ("{0}'s friend is {1}", "{0} trusts {1}", "{0} visits {1}"),
    "pet": ("{0} has a {1}", "{0} keeps a {1}", "{0} feeds a {1}"),
    "color": ("It is {1}", "It was {1}", "It looks {1}"),   # directly after the pet
    "home": ("{0} lives by the {1}", "{0} stays by the {1}"),
    "move": ("{0} moved to the {1} in {2}", "{0} settled by the {1} in {2}"),               # to a home, in a year
    "past": ("Once {0} lived by the {1}",),
    "drink": ("{0} drinks {1}", "{0} likes {1}", "{0} orders {1}"),
    "play": ("{0} plays the {1}", "{0} practises the {1}", "{0} teaches the {1}"),
    "inn": ("The inn of {0} is the {1}",),
}
POST = "{0} is {1}'s {2}"                                   # name, town, job: the sentence that introduces a person
DETAILS = {"color": "{0}'s pet is {1}", "year": "{0} moved in {1}"}     # wordings that state a detail by name

QUESTIONS = {
    "job": "What is {}'s job?", "town": "Where does {} work?", "friend": "Who is {}'s friend?",
    "pet": "What is {}'s pet?", "home": "Where does {} live?", "drink": "What does {} drink?",
    "play": "What does {} play?", "color": "What color is {}'s pet?", "year": "When did {} move?",
    "inn": "What is the inn of {}?"}


class Fact(NamedTuple):
    """One fact, such as ("Mara", "pet", "dog"). A town has one too: ("Lima", "inn", "Swan")."""
    name: str
    relation: str
    value: str


def held_out(name: str, relation: str, value: str) -> bool:
    """Whether a fact is held out, as one in six is, chosen by hash. The model was trained without them.

    For a post, the pair of town and job is held out: ("Sofia", "post", "baker").
    """
    return sha256(f"{name} {relation} {value}".encode()).digest()[0] % 6 == 0


def statement(fact: Fact, post: tuple[str, str] | None = None) -> str:
    """The sentence, without a full stop, that states a fact as bullets do. `post` is the person's town and job."""
    if fact.relation in ("job", "town"):
        return POST.format(fact.name, *post)
    wording = DETAILS.get(fact.relation) or WORDINGS[fact.relation][0]
    return wording.format(fact.name, fact.value)
