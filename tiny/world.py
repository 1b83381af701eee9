"""A synthetic world. Its documents are longer than the window, and every true answer is known.

A document is a story in chapters of five short passages. Most chapters are about one person, the others are journeys:

    Mara is Sofia's baker.                               the only sentence that names Mara in her chapter
    Sofia's baker has a dog. It is white.                then she is "Sofia's baker": other towns have bakers too
    Once Sofia's baker lived by the river.
    In Sofia the baker moved to the hill in 1923.        the later home counts
    In Sofia the baker trusts Ida.                       Ida has a chapter too
    Sofia's baker orders tea.

Between these are sentences without facts; many of them also mention a baker. The model was trained to summarise in
bullets that name the person. Over passages they keep friends, pets, homes and posts, over bullets they keep posts:

    * Mara's friend is Ida                               level 2
    * Mara has a dog
    * Mara lives by the hill
    * Mara is Sofia's baker                              levels 2 and 3

So level 3 answers a question about a job; a pet is found one step down, a drink two steps down. (The top level, mostly
level 4, names only half of the people.) The color of a pet and the year of a move are details: the sources of bullets
state them, bullets do not.

All passages have nearly the same length, so five of them, a chapter, fill a window of the construction (pecan.json).

    python -m tiny.world FOLDER

writes test.jsonl, larger.jsonl and story.txt. All their facts are held out: the model was trained without them.
"""
import json
import random
import re
import sys
from dataclasses import dataclass
from pathlib import Path

if not __package__:
    sys.exit("error: run it as python -m tiny.world, in the folder of README.md")

from core.command import make_parser, parse_options, user_errors
from core.files import InputError, write_file
from tiny.facts import NAMES, POST, QUESTIONS, TOWNS, VALUES, WORDINGS, Fact, held_out, statement

FILLERS = """It was a quiet morning.
The road was long.
Nobody spoke of it.
The rain went on.
Then the bells rang.
The market was open.
A letter came at noon.
The night was cold.
The wind came from the sea.
There was music.
Children laughed.
Bells rang.
Snow fell.
Days passed.
Doors closed.
Birds sang.
Rain fell.""".splitlines()
MENTIONS = """Somebody asked for {}.
A letter came for {}.
Nobody had seen {}.
Everybody knew {}.
There was talk of {}.
A song was sung for {}.""".splitlines()

PASSAGES = 5                                                # in a chapter
SHORTEST, LONGEST = 21, 24                                  # tokens of a passage


# --- documents ------------------------------------------------------------------------------------------------------

@dataclass
class World:
    """One document and its truth."""
    passages: list[str]
    names: list[str]                                        # of people, in the order of their chapters
    facts: dict[tuple[str, str], Fact]                      # (name, relation) -> fact; towns have inns
    posts: dict[str, tuple[str, str]]                       # name -> (town, job)
    said: dict[tuple[str, str], str]                        # (name, relation) -> the sentences that state the fact


def draw_posts(rng: random.Random, people: int) -> dict[str, tuple[str, str]]:
    """name -> (town, job). Most jobs exist in several towns."""
    while True:
        fewest = (people + 2) // 3
        most = people // 2 + 1
        rng.sample(TOWNS, rng.randint(fewest, most))        # not used: without it, a seed would give another document
        jobs = rng.sample(VALUES["job"], rng.randint(fewest, most))
        pairs = [(town, job) for town in TOWNS for job in jobs if held_out(town, "post", job)]
        if len(pairs) >= people:
            drawn = rng.sample(pairs, people)
            return dict(zip(rng.sample(NAMES, people), drawn))


def draw_fact(rng: random.Random, name: str, relation: str, values: list[str]) -> Fact | None:
    """A held-out fact with one of these values; None if there is none."""
    values = [value for value in values if value != name and held_out(name, relation, value)]
    return Fact(name, relation, rng.choice(values)) if values else None


def draw_facts(rng: random.Random, posts: dict) -> dict[tuple[str, str], Fact] | None:
    """The facts of all people; None if no value is possible for somebody's relation, or for a kind of question."""
    facts = {}
    for name, (town, job) in posts.items():
        facts[name, "town"] = Fact(name, "town", town)
        facts[name, "job"] = Fact(name, "job", job)

        relations = ["pet", "color", "home", "drink", "play"]
        if rng.random() < 0.5:
            relations += ["past", "year"]                   # this person has moved
        for relation in relations:
            former = facts[name, "home"].value if relation == "past" else None
            fact = draw_fact(rng, name, relation, [value for value in VALUES[relation] if value != former])
            if fact is None:
                return None
            facts[name, relation] = fact

        friend = draw_fact(rng, name, "friend", list(posts))
        if friend and rng.random() < 0.9:
            facts[name, "friend"] = friend
    return facts if {"friend", "past"} <= {relation for _, relation in facts} else None


def groups_about(rng: random.Random, world: World, name: str) -> list[str]:
    """The sentences that state all facts about a person, in groups that stay together. The post comes first."""
    town, job = world.posts[name]
    post = POST.format(name, town, job) + "."
    world.said |= {(name, "town"): post, (name, "job"): post}

    def say(relation, *of):
        wording = rng.choice(WORDINGS[relation][relation == "friend":])
        person = rng.choice((f"{town}'s {job}", f"In {town} the {job}"))
        text = wording.format(person, *(world.facts[name, each].value for each in of)) + "."
        world.said |= {(name, each): text for each in of}
        return text

    pet = f"{say('pet', 'pet')} {say('color', 'color')}"
    world.said[name, "color"] = pet                         # a color takes two sentences
    groups = [pet, say("drink", "drink"), say("play", "play")]
    if (name, "friend") in world.facts:
        groups.append(say("friend", "friend"))
    rng.shuffle(groups)

    # The earlier home comes before the move.
    if (name, "past") in world.facts:
        first, second = sorted(rng.sample(range(len(groups) + 1), 2))
        groups.insert(second, say("move", "home", "year"))
        groups.insert(first, WORDINGS["past"][0].format(f"{town}'s {job}", world.facts[name, "past"].value) + ".")
    else:
        groups.insert(rng.randrange(len(groups) + 1), say("home", "home"))
    return [post, *groups]


def length(text: str) -> int:
    """The number of tokens of a text."""
    return len(re.findall(r"'s|\w+|[^\w\s]", text))


def fill(rng: random.Random, groups: list[str], posts: list, shortest: int) -> list[str]:
    """The passages of a chapter, with the groups in order. The first group begins the first passage.

    Fillers, and sentences that mention somebody by one of the `posts` (town, job), fill every passage up to `shortest`
    tokens or a few more.
    """
    while True:
        passages = [padded(rng, part, n == 0, posts, shortest) for n, part in enumerate(cut(rng, groups))]
        if None not in passages:
            return passages


def cut(rng: random.Random, groups: list[str]) -> list[list[str]]:
    """The groups for each passage of a chapter. No passage gets too long. If the groups suffice, none stays empty."""
    while True:
        if len(groups) >= PASSAGES:
            cuts = rng.sample(range(1, len(groups)), PASSAGES - 1)
        else:
            cuts = rng.choices(range(1, len(groups) + 1), k=PASSAGES - 1)
        cuts = [0, *sorted(cuts), len(groups)]
        parts = [groups[start:end] for start, end in zip(cuts, cuts[1:])]
        if all(sum(map(length, part)) <= LONGEST for part in parts):
            return parts


def padded(rng: random.Random, part: list[str], first: bool, posts: list, shortest: int) -> str | None:
    """A passage of `shortest` to LONGEST tokens; None if no sentence fits.

    In the `first` passage, the first group stays at the beginning.
    """
    sentences = list(part)
    for _ in range(1000):
        passage = " ".join(sentences)
        if length(passage) >= shortest:
            return passage
        if rng.random() < 0.6:
            text = rng.choice(MENTIONS).format("{}'s {}".format(*rng.choice(posts)))
        else:
            text = rng.choice(FILLERS)
        if length(passage) + length(text) <= LONGEST and text not in sentences:
            sentences.insert(rng.randint(first, len(sentences)), text)
    return None


def make_world(rng: random.Random, chapters: int, shortest: int = SHORTEST) -> World:
    """A random document with this number of chapters. Its passages have `shortest` to LONGEST tokens."""
    if not 3 <= chapters <= 54:
        raise InputError(f"a document has 3 to 54 chapters, not {chapters}: there are not enough facts for more")
    journeys = chapters // 3
    facts = None
    while facts is None:
        posts = draw_posts(rng, chapters - journeys)
        facts = draw_facts(rng, posts)
    world = World([], [], facts, posts, {})

    # Each journey leads to another town, whose inn has a name.
    inns = [draw_fact(rng, town, "inn", VALUES["inn"]) for town in rng.sample(TOWNS, len(TOWNS))]
    stops = [fact for fact in inns if fact][:journeys]
    world.facts |= {(fact.name, "inn"): fact for fact in stops}

    order = [*posts, *stops]
    rng.shuffle(order)
    for item in order:
        if isinstance(item, Fact):
            world.said[item.name, "inn"] = f"{statement(item)}."
            groups = [f"The road leads to {item.name}.", world.said[item.name, "inn"]]
        else:
            world.names.append(item)
            groups = groups_about(rng, world, item)
        world.passages += fill(rng, groups, list(posts.values()), shortest)
    return world


# --- questions ------------------------------------------------------------------------------------------------------

# The relations that a question of each kind may ask about. "two facts" asks about somebody's friend; "changed" asks
# about the home of somebody who has moved.
KINDS = {"top": ("job", "town"), "one step": ("friend", "pet", "home"), "two steps": ("drink", "play"),
         "detail": ("color", "year"), "two facts": ("job", "pet", "home", "drink", "play"), "changed": ("home",),
         "look-up": ("inn",)}


def ask(world: World, rng: random.Random, kind: str) -> tuple[str, str, list[Fact]]:
    """A question of this kind, its answer, and the facts it needs."""
    while True:
        relation = rng.choice(KINDS[kind])
        name = rng.choice([name for name, of in world.facts if of == "inn"] if kind == "look-up" else world.names)
        subject = name
        needed = []
        if kind == "two facts":
            needed = [world.facts.get((name, "friend"))]
            subject = f"{name}'s friend"
            name = needed[0] and needed[0].value

        # Questions about the home of somebody who has moved are of a separate kind.
        needed.append(world.facts.get((name, relation)))
        moved = (name, "past") in world.facts and relation == "home"
        if None not in needed and moved == (kind == "changed"):
            return QUESTIONS[relation].format(subject), needed[-1].value, needed


def document_rows(name: str, lengths: list[int], look_ups: int, seed: int) -> list[dict]:
    """A document for each number of chapters in `lengths`, as rows in the format of data.py.

    Each has a question of every kind, but only the first `look_ups` documents have a look-up. A question also has its
    `kind`, its `facts` (as bullets state them) and its `evidence` (the sentences that state these facts).
    """
    rng = random.Random(seed)
    rows = []
    for number, chapters in enumerate(lengths):
        world = make_world(rng, chapters)
        questions = {}                                      # by text, because no question is asked twice
        for kind in KINDS:
            if kind == "look-up" and number >= look_ups:
                continue
            text = None
            while text is None or text in questions:
                text, answer, needed = ask(world, rng, kind)

            # A person's fact needs the post, too: it says who is meant.
            evidence = [world.said[fact.name, relation] for fact in needed for relation in ("job", fact.relation)
                        if (fact.name, relation) in world.said]
            questions[text] = {"id": f"{name}-{number}-{len(questions)}", "question": text, "answers": [answer],
                               "kind": kind, "facts": [statement(fact, world.posts.get(fact.name)) for fact in needed],
                               "evidence": list(dict.fromkeys(evidence))}
        rows.append({"id": f"{name}-{number}", "passages": world.passages, "questions": list(questions.values())})
    return rows


# The number of chapters of each document. A window of 380 tokens holds three and a half chapters. The model was trained
# on documents of 6 to 27 chapters.
DEFAULT = [14 + 13 * n // 19 for n in range(20)]
LARGER = [14 + 13 * n // 53 for n in range(54)] + [40, 44, 46, 48, 52, 54]


def main(argv=None) -> int:
    parser = make_parser("python -m tiny.world", __doc__, "folder")
    parser.add_argument("folder", type=Path, help="an existing folder for the held-out files")
    args = parse_options(parser, argv)

    files = {"test.jsonl": document_rows("test", DEFAULT, 14, 2026),
             "larger.jsonl": document_rows("larger", LARGER, 40, 2027)}
    for name, rows in files.items():
        write_file(args.folder / name, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))

    # A short document. Each of its passages fills a chunk, so pecan.chunks cuts between passages.
    story = make_world(random.Random(140), 9, shortest=LONGEST)
    write_file(args.folder / "story.txt", "\n\n".join(story.passages) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(user_errors(main))
