"""What the embedded model is trained on: sequences of token ids with targets, made from the world's truth.

Four kinds: `drill` (facts, then many questions and restatements: dense practice at finding whose fact it is),
`listing` (a summary without its prompt), `summary` (Table A1) and `search` (Table A2), the last two in the very
prompts of pecan.py.
"""
from dataclasses import dataclass, field

import torch

import pecan
from support.tokenizer import Tokenizer
from tiny import world as W


@dataclass
class Lesson:
    """One training sequence: a trunk of ids, and branches that continue a prefix of it but do not see each other.

    A branch (start, end, prefix) stands at ids[start:end] and sees ids[:prefix] and itself, at the positions behind the
    prefix: as the probe of a search, which is taken back. targets are (place, the id that is right next).
    """
    ids: list[int]
    targets: list[tuple[int, int]] = field(default_factory=list)
    branches: list[tuple[int, int, int]] = field(default_factory=list)

    def branch(self, prefix: int, ids: list[int]):
        self.branches.append((len(self.ids), len(self.ids) + len(ids), prefix))
        self.ids += ids

    def want(self, id: int):
        """`id` is right after the sequence as it stands."""
        self.targets.append((len(self.ids) - 1, id))


class Teacher:
    """Makes lessons from a random generator. It stands in for the tokenizer where pecan.py makes prompts."""

    def __init__(self, tokenizer: Tokenizer, eos: int):
        self.frame, self.first, self.encode, self.eos = tokenizer.frame, tokenizer.first, tokenizer.encode, eos

    def prompt(self, pieces) -> list[int]:
        return [i for _, ids in pieces for i in ids]

    def drill(self, rng, names=100, relations=6, facts=14, tasks=14, absent=0.0, hops=0.0) -> Lesson:
        """Facts in lines, then tasks: a question and its value (No where nothing is said of it), or a restatement."""
        relations = list(W.VALUES)[:relations]
        people = rng.sample(W.NAMES[:names], max(3, min(facts, 2 * facts // len(relations))))
        options = {(name, relation): [f for f in W.ALL[name, relation] if not f.held_out and (
            relation != "friend" or f.value in people)] for name in people for relation in relations}
        keys = [key for key, choice in options.items() if choice]
        rng.shuffle(keys)
        table = {key: rng.choice(options[key]) for key in keys[:facts]}
        lesson = Lesson([])
        for fact in table.values():
            verb = rng.choice(("is", "was"))
            if not lesson.ids or rng.random() < 0.5:
                lesson.ids += self.encode("\n*")
            elif verb == "is":
                lesson.ids += self.encode("and")
            lesson.ids += self.encode(fact.text(verb)) + self.encode("." if verb == "was" else "")
        lesson.ids += self.encode("\n\n")
        friends = [fact for fact in table.values() if fact.relation == "friend"]
        for _ in range(tasks):
            if friends and rng.random() < hops:
                friend, relation = rng.choice(friends), rng.choice(relations)
                subject, fact = f"{friend.name}'s friend", table.get((friend.value, relation))
            else:
                missing = keys[facts:] and rng.random() < absent
                subject, relation = rng.choice(keys[facts:] if missing else list(table))
                fact = table.get((subject, relation))
            if fact and subject == fact.name and rng.random() < 0.4:
                lesson.ids += self.encode(f"\n* {subject}'s {relation} is")
            else:
                lesson.ids += self.encode(f"{'Who' if relation == 'friend' else 'What'} is {subject}'s {relation}?")
            value, = self.encode(fact.value if fact else "No")
            lesson.want(value)
            lesson.ids.append(value)
        return lesson

    def levels(self, world, rng) -> tuple[list, list]:
        """True bullets of level 2, window by window, and of level 3."""
        width, low = rng.choice((5, 6, 7, 7, 7, 8)), []
        for i in range(0, len(world.passages), width):
            low += W.summarise([fact for stated in world.stated[i:i + width] for fact in stated], "was")
        return low, W.summarise([fact for bullet in low for fact in bullet], "is")

    def window(self, rng, level: int, width: int) -> tuple[list[str], list]:
        """The texts of a window and its true summary: `width` passages (level 1), or all the bullets above them (2)."""
        world = W.make_world(rng, rng.choice((7, 8, 9, 10, 10, 11)))
        if level == 2:
            low, top = self.levels(world, rng)
            chosen = {facts[0].name for facts in rng.sample(top, min(len(top), 2 * width))}
            low = [facts for facts in low if facts[0].name in chosen]
            return [W.bullet(facts) for facts in low], [facts for facts in top if facts[0].name in chosen]
        first = rng.randrange(max(1, len(world.passages) - width + 1))
        facts = [fact for stated in world.stated[first:first + width] for fact in stated]
        return world.passages[first:first + width], W.summarise(facts, "was")

    def reply(self, lesson: Lesson, bullets: list) -> Lesson:
        """Append a summary."""
        lines = [self.encode("* " + W.bullet(facts)) for facts in bullets]
        for token in [token for line in lines for token in [*line, *self.encode("\n")]][:-1] + [self.eos]:
            lesson.want(token)
            lesson.ids.append(token)
        return lesson

    def listing(self, rng, width: int) -> Lesson:
        """The texts of a window in lines, then its summary."""
        texts, bullets = self.window(rng, rng.choice((1, 1, 2)), width)
        ids = [i for text in texts for i in self.prompt(pecan.node_line(self, None, text))]
        return self.reply(Lesson(ids + self.encode("\n\n")), bullets)

    def summary(self, rng, level: int) -> Lesson:
        """Table A1 over a window."""
        texts, bullets = self.window(rng, level, rng.choice((3, 5, 7, 7)))
        return self.reply(Lesson(self.prompt(pecan.summary_prompt(self, dict(enumerate(texts))))), bullets)

    def search(self, rng, room: int) -> Lesson:
        """Table A2: a question, up to `room` tokens of visited nodes, verdicts after several of them, and the answer
        where all is known.

        Yes and No come equally often after any number of nodes, and the sets that lack a fact are full of others
        about the same people; otherwise the number of nodes, or the mention of a name, would give the verdict away.
        """
        world = W.make_world(rng, rng.choice((8, 9, 10, 10, 11)))
        low, top = self.levels(world, rng)
        kind = rng.choices((*W.VALUES, "hop"), (2, 2, 2, 1, 1, 1, 4))[0]
        question, answer, needed = W.ask(world, rng, kind)
        people = {fact.name for fact in needed}

        def holds(text, facts):
            return any(fact.stated_in(text) for fact in facts)
        top, low = [W.bullet(facts) for facts in top], [W.bullet(facts) for facts in low]
        case = rng.choices(("early", "never", "anywhere"), (0.5, 0.35, 0.15) if room >= 300 else (0.75, 0.25, 0))[0]
        if rng.random() < 0.1:                                    # the document alone, as the whole document is read
            top, others = [], world.passages
        else:
            if room < 300 or rng.random() < 0.2:
                top = rng.sample(top, rng.randrange(1, 1 + min(len(top), room // 60)))
            if case == "anywhere":                                # a summary may have left it out
                top = [text for text in top if not holds(text, needed)]
            urge = {text: rng.random() ** (0.25 if any(name in text for name in people) else 1)
                    for text in low + world.passages}
            others = sorted(urge, key=urge.get, reverse=True)
        if case == "never":
            missing = rng.choice([[fact] for fact in needed] + [needed])
            top, others = ([text for text in texts if not holds(text, missing)] for texts in (top, others))
        elif case == "early" and top:
            for fact in needed:
                holders = [text for text in others if holds(text, [fact])]
                if holders and not any(holds(text, [fact]) for text in top):
                    text = rng.choice(holders)
                    others.remove(text)
                    others.insert(rng.randrange(3 if room >= 300 else 2), text)

        lesson = Lesson(self.prompt(pecan.question_prompt(self, question)))
        checks, met = [], set()
        for n, text in enumerate(top + others):
            line = self.prompt(pecan.node_line(self, n, text))
            if len(lesson.ids) + len(line) > room:
                break
            lesson.ids += line
            met |= {fact for fact in needed if fact.stated_in(text)}
            if n + 1 >= len(top) or rng.random() < 0.1:
                checks.append((len(lesson.ids), met == set(needed)))
        for prefix, enough in rng.sample(checks, min(5, len(checks))):
            lesson.branch(prefix, self.frame.close)
            lesson.want(self.first("Yes" if enough else "No"))
        known = [prefix for prefix, enough in checks if enough]
        for prefix in rng.sample(known, min(2, len(known))):
            verdict = self.first("Yes" if rng.random() < 0.9 else "No")
            said, = self.encode(answer)
            lesson.branch(prefix, [*self.prompt(pecan.answer_turn(self, verdict)), said])
            lesson.targets.append((len(lesson.ids) - 2, said))
            lesson.want(self.eos)
        return lesson


def collate(lessons: list[Lesson], device):
    """Lessons as tokens [B, T], positions [B, T], mask [B, T, T] (None: causal), the places of the targets (rows,
    columns) and the ids that are right there, [targets]."""
    B, T = len(lessons), max(len(lesson.ids) for lesson in lessons)
    tokens, positions = torch.zeros(B, T, dtype=torch.long), torch.arange(T).repeat(B, 1)
    mask = torch.ones(T, T, dtype=torch.bool).tril().repeat(B, 1, 1) if any(x.branches for x in lessons) else None
    for b, lesson in enumerate(lessons):
        tokens[b, :len(lesson.ids)] = torch.tensor(lesson.ids)
        for start, end, prefix in lesson.branches:
            positions[b, start:end] = torch.arange(prefix, prefix + end - start)
            mask[b, start:end, prefix:start] = False
    rows = torch.tensor([b for b, lesson in enumerate(lessons) for _ in lesson.targets])
    columns = torch.tensor([place for lesson in lessons for place, _ in lesson.targets])
    right = torch.tensor([id for lesson in lessons for _, id in lesson.targets])
    return tokens.to(device), positions.to(device), None if mask is None else mask.to(device), \
        (rows.to(device), columns.to(device)), right.to(device)
