"""The training sequences of the embedded model: token ids and the right next tokens, from the world's truth.

There are three kinds. `reading` has texts in lines, then many questions with short answers: dense practice at finding
whose fact it is; drills are readings of a few bare facts. `summary` (Table A1) and `search` (Table A2) use the prompts
of pecan.py. A lesson has right words only. What training asks of attention is in train.py: a head that finds nothing
should rest on the first token (sink_loss); no cost says which node to look at.
"""
from dataclasses import dataclass, field
from random import Random

import torch

import pecan
from llama import ids_of
from model.tokenizer import Tokenizer
from tiny.facts import POST, QUESTIONS, VALUES, Fact, facts_in, statement
from tiny.world import KINDS, PASSAGES, World, ask, draw_fact, draw_posts, groups_about, make_world, summarise

TASKS = 14                        # questions of a drill or a reading, at most
NEEDED = {"two facts": "friend", "changed": "past"}       # the relation that a question of this kind also needs
DISGUISES = ("town", "job"), ("pet", "home"), ("drink", "play"), ("color", "inn")
ROOMS = 160, 220, 280, 340        # tokens of question and nodes in a search; real ones take up to 360


@dataclass
class Lesson:
    """One training sequence: a trunk of token ids, branches of it, and targets.

    A branch (start, end, prefix) is ids[start:end]. It continues ids[:prefix] and sees that prefix and itself, but no
    other branch, like a check in a search, which is rolled back. Its positions follow the prefix. A target
    (place, id) says that `id` is right after ids[place].
    """
    ids: list[int]
    targets: list[tuple[int, int]] = field(default_factory=list)
    branches: list[tuple[int, int, int]] = field(default_factory=list)

    def add_branch(self, prefix: int, ids: list[int]):
        start = len(self.ids)
        self.ids += ids
        self.branches.append((start, len(self.ids), prefix))

    def add_target(self, id: int):
        """`id` is right after the last token so far."""
        self.targets.append((len(self.ids) - 1, id))


def collate(lessons: list[Lesson]):
    """One batch of lessons, padded at the end: tokens, positions, mask, rows, columns and right.

    tokens and positions are [B, T]; mask [B, T, T] is True where a token may see another. The token in row rows[n] and
    column columns[n] is followed by the id right[n]; all three are [targets].
    """
    B = len(lessons)
    T = max(len(lesson.ids) for lesson in lessons)
    tokens = torch.zeros(B, T, dtype=torch.long)
    positions = torch.arange(T).repeat(B, 1)
    mask = torch.ones(T, T, dtype=torch.bool).tril().repeat(B, 1, 1)

    # A branch sees neither the rest of the trunk nor the branches before it.
    for b, lesson in enumerate(lessons):
        tokens[b, :len(lesson.ids)] = torch.tensor(lesson.ids)
        for start, end, prefix in lesson.branches:
            positions[b, start:end] = torch.arange(prefix, prefix + end - start)
            mask[b, start:end, prefix:start] = False

    targets = [(b, place, id) for b, lesson in enumerate(lessons) for place, id in lesson.targets]
    return tokens, positions, mask, *torch.tensor(targets).T


class Teacher:
    """Makes lessons from a random generator. `eos` ends a reply."""

    def __init__(self, tokenizer: Tokenizer, eos: int):
        self.tokenizer = tokenizer
        self.encode = tokenizer.encode
        self.eos = eos

    def line(self, text: str) -> list[int]:
        """A text as a line of a prompt."""
        return ids_of(pecan.node_line(self.tokenizer, None, text))

    def disguise(self, rng: Random, lesson: Lesson):
        """Swap the words of two relations, such as towns and jobs; what is true stays true.

        One post in six is held out. So the model cannot rely on which posts never occur.
        """
        swap = {}
        for relations in DISGUISES:
            for pair in zip(*(rng.sample(VALUES[relation], len(VALUES[relation])) for relation in relations)):
                one, other = self.encode(" ".join(pair))
                swap |= {one: other, other: one}
        lesson.ids = [swap.get(id, id) for id in lesson.ids]
        lesson.targets = [(place, swap.get(id, id)) for place, id in lesson.targets]

    # --- whose fact it is -------------------------------------------------------------------------------------------

    def drill(self, rng: Random, kind: str) -> Lesson:
        """Bare facts, then tasks."""
        if kind == "pets":
            lines = [statement(draw_fact(rng, name, "pet", VALUES["pet"])) for name in draw_posts(rng, 5).values()]
            return self.reading(rng, lines, 0)

        # All facts of a small world, by name or in the words of its documents.
        world = make_world(rng, 6)
        if kind == "facts":
            lines = {statement(fact, world.post(fact.name)) for fact in world.facts.values()}
        else:
            lines = [group for name in world.names for group in groups_about(rng, world, name)]
            lines += [statement(fact) for fact in world.facts.values() if fact.relation == "inn"]
        return self.reading(rng, sorted(lines), 0.2)

    def reading(self, rng: Random, lines: list[str], hard: float) -> Lesson:
        """Lines in random order, posts first, as in a search. Then tasks, each in a branch, whose target is its answer.

        `hard` is the share of hard tasks: half ask about somebody's friend, half about any relation. If the fact is
        not stated, the answer is No. Many of the other tasks are the beginning of a bullet, to be completed.
        """
        rng.shuffle(lines)
        lines.sort(key=lambda text: not summarise([text]))
        stated = {(fact.name, fact.relation): fact for fact in sorted(facts_in(lines), key=str)}
        subjects = [(name, relation) for name, relation in stated if relation in QUESTIONS]
        friends = [fact for fact in stated.values() if fact.relation == "friend"]

        lesson = Lesson([id for text in lines for id in self.line(text)] + self.encode("\n\n"))
        prefix = len(lesson.ids)
        for name, relation in rng.sample(subjects, min(TASKS, len(subjects))):
            asked = name
            draw = rng.random()
            if draw < hard / 2 and friends:
                friend = rng.choice(friends)
                asked = f"{friend.name}'s friend"
                name = friend.value
            elif draw < hard:
                relation = rng.choice(list(QUESTIONS))
            fact = stated.get((name, relation))

            # A task sees no other. Otherwise their answers would leave fewer values to choose from.
            text = QUESTIONS[relation].format(asked)
            if fact and asked == name and rng.random() < 0.4:
                post = [stated[name, of].value for of in ("town", "job") if (name, of) in stated]
                text = "\n* " + statement(fact, post)
                text = text[:text.rindex(fact.value)].rstrip()
            lesson.add_branch(prefix, self.encode(text))
            [value] = self.encode(fact.value if fact else "No")
            lesson.add_target(value)
        return lesson

    # --- Table A1 ---------------------------------------------------------------------------------------------------

    def summary(self, rng: Random, world: World) -> Lesson:
        """Table A1 over a window, then its true summary, each token of which is a target.

        As in the construction, a window has the passages of a chapter, or bullets of a few chapters, or posts. The last
        window of a level may be short.
        """
        draw = rng.random()
        if draw < 0.3:
            n = rng.randrange(len(world.chapters))
            texts = world.passages[n * PASSAGES:(n + 1) * PASSAGES]
            summary = world.chapters[n]
        else:
            bullets = sum(world.chapters, [])
            if draw < 0.6:
                bullets = summarise(bullets)
            summary = []
            while not summary:                              # journeys alone have no post
                # Many windows begin with the first bullet. 22 bullets fill one.
                start = max(0, rng.randrange(-10, len(bullets)))
                texts = bullets[start:start + 22]
                summary = summarise(texts)

        lesson = Lesson(ids_of(pecan.summary_prompt(self.tokenizer, texts)))
        for id in [*self.encode("\n".join("* " + bullet for bullet in summary)), self.eos]:
            lesson.add_target(id)
            lesson.ids.append(id)
        return lesson

    # --- Table A2 ---------------------------------------------------------------------------------------------------

    def search(self, rng: Random, world: World, room: int) -> Lesson:
        """Table A2: a question and visited nodes, up to `room` tokens; verdicts and answers are branches.

        Verdicts follow some of the nodes. Answers follow only nodes after which all needed facts are stated.
        """
        relations = {relation for _, relation in world.facts}
        kinds = [kind for kind in KINDS if NEEDED.get(kind, "job") in relations]
        question, answer, needed = ask(world, rng, rng.choice(kinds))
        top_level, others = self.reading_order(rng, world, needed, room)

        # The trunk: the visited nodes. As in a search, a verdict may follow the last node of the top level and every
        # node after it; some follow earlier nodes.
        lesson = Lesson(ids_of(pecan.question_prompt(self.tokenizer, question)))
        checks = []                                         # (tokens read, whether they are enough)
        read = []
        for text in top_level + others:
            line = self.line(text)
            if len(lesson.ids) + len(line) > room:
                break
            lesson.ids += line
            read.append(text)
            if len(read) >= len(top_level) or rng.random() < 0.1:
                checks.append((len(lesson.ids), set(needed) <= facts_in(read)))

        # Verdicts: each check has a separate branch.
        for prefix, enough in rng.sample(checks, min(12, len(checks))):
            lesson.add_branch(prefix, self.tokenizer.frame.close)
            lesson.add_target(self.tokenizer.first("Yes" if enough else "No"))

        # Answers, one token each. The last verdict before an answer is mostly Yes; it is No if a search ran out of
        # nodes or room.
        complete = [prefix for prefix, enough in checks if enough]
        for prefix in rng.sample(complete, min(2, len(complete))):
            verdict = self.tokenizer.first("Yes" if rng.random() < 0.9 else "No")
            [answer_id] = self.encode(answer)
            lesson.add_branch(prefix, [*ids_of(pecan.answer_turn(self.tokenizer, verdict)), answer_id])
            lesson.targets.append((len(lesson.ids) - 2, answer_id))
            lesson.add_target(self.eos)
        return lesson

    def reading_order(self, rng: Random, world: World, needed: list[Fact], room: int) -> tuple[list[str], list[str]]:
        """The texts that a search reads, in order: the top level, and the others.

        Sets that lack a needed fact have many other facts about the same people. Otherwise a name would give the
        verdict away.
        """
        level_2 = sum(world.chapters, [])
        named = list(dict.fromkeys(fact.name for fact in needed))
        people = [name for name in named if name in world.names]
        posts = [POST.format(name, *world.post(name)) for name in people]

        # If there is little room, use a part of the top level, with the people of the needed facts in it.
        top_level = summarise(level_2)
        most = max(2, room // 20)
        if len(top_level) > most:
            chosen = {*posts, *rng.sample(top_level, most - len(posts))}
            top_level = [post for post in top_level if post in chosen]

        # The others come in random order, but as in a search by similarity, texts that mention the people or the town
        # of the needed facts come early. So do other inns, if one is asked for. Other people's facts do not: after a
        # search has read a drink, it is mostly the right one, and p_yes depends on how often that is so.
        mentions = [*named, *(way.format(*world.post(name)) for name in people for way in ("{}'s {}", "{} the {}"))]
        if not people:
            mentions.append("The inn of")
        order = {}
        for text in level_2 + world.passages:
            near = any(mention in text for mention in mentions)
            order[text] = rng.random() ** (0.2 if near else 1)
        others = sorted(order, key=order.get, reverse=True)
        if rng.random() < 0.15:
            # Passages alone, as if they had been retrieved from the document; the posts are among the first.
            others = [text for text in others if text in world.passages]
            others.sort(key=lambda text: not text.startswith(tuple(posts)))
            top_level = []

        def without(texts, facts):
            return [text for text in texts if not facts & facts_in([text], world.posts)]

        case = rng.choices(("early", "never", "anywhere"), (0.5, 0.35, 0.15))[0]
        if case == "never":                                 # a needed fact, or all of them, is stated nowhere
            missing = set(rng.choice([[fact] for fact in needed] + [needed]))
            return without(top_level, missing), without(others, missing)
        if case == "early":                                 # a text with each needed fact is among the first
            for fact in needed:
                if fact not in facts_in(top_level, world.posts):
                    text = rng.choice([text for text in others if fact in facts_in([text], world.posts)])
                    others.remove(text)
                    others.insert(rng.randrange(4), text)
        return top_level, others


# --- the lessons of a step ------------------------------------------------------------------------------------------

# Up to this share of the training's tokens: the number of lessons of each kind in a step. A kind of value that comes in
# no drill is never learnt: its embeddings become equal before the model can copy them.
STAGES = {0.01: {"pets": 24},
          0.1: {"facts": 24},
          0.25: {"facts": 4, "sentences": 8, "reading": 12},
          1: {"facts": 2, "sentences": 2, "reading": 4, "summary": 10, "search": 24}}
MIXED = sorted(STAGES)[-2]        # from here on the lessons of all kinds are mixed


def lessons(teacher: Teacher, rng: Random, share: float) -> dict[str, list[Lesson]]:
    """The lessons of one step, by kind, after this share of the training."""
    counts = STAGES[min(end for end in STAGES if share < end)]
    worlds = [make_world(rng, rng.randint(6, 27)) for _ in range(6 if "reading" in counts else 0)]
    room = rng.choice(ROOMS)

    def make(kind: str) -> Lesson:
        if kind in ("pets", "facts", "sentences"):
            return teacher.drill(rng, kind)
        world = rng.choice(worlds)
        if kind == "summary":
            return teacher.summary(rng, world)
        if kind == "search":
            return teacher.search(rng, world, room)
        return teacher.reading(rng, summarise(sum(world.chapters, [])) + rng.sample(world.passages, 8), 0.4)

    found = {kind: [make(kind) for _ in range(n)] for kind, n in counts.items()}
    for lesson in sum(found.values(), []):
        if rng.random() < 0.5:
            teacher.disguise(rng, lesson)
    return found
