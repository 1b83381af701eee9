"""The training sequences of the embedded model: token ids and what is right next, from the world's truth.

There are four kinds of lessons. `drill` is facts, then many questions and restatements: dense practice at finding
whose fact it is. `listing` is a summary without its prompt. `summary` (Table A1) and `search` (Table A2) use the very
prompts of pecan.py.
"""
import pecan
from support.tokenizer import Tokenizer
from tiny import world as W
from tiny.lesson import Lesson, joined


class Teacher:
    """Makes lessons from a random generator. `eos` ends a reply."""

    def __init__(self, tokenizer: Tokenizer, eos: int):
        self.tokenizer = tokenizer
        self.encode = tokenizer.encode
        self.eos = eos

    def drill(self, rng, names=100, relations=6, facts=14, tasks=14, absent=0.0, hops=0.0) -> Lesson:
        """`facts` facts in lines, then `tasks` questions with their answers, or restatements of a fact.

        They are about the first `names` names and `relations` relations. A task is a question about somebody's friend
        with probability `hops`, and one about a fact that is not stated with probability `absent`. The answer is No if
        the fact is not stated.
        """
        # Draw some people, and at most one fact for each (name, relation).
        relations = list(W.VALUES)[:relations]
        people = rng.sample(W.NAMES[:names], max(3, min(facts, 2 * facts // len(relations))))
        possible = W.possible_facts(people, relations)
        subjects = [subject for subject, options in possible.items() if options]          # (name, relation)
        rng.shuffle(subjects)
        stated = {subject: rng.choice(possible[subject]) for subject in subjects[:facts]}
        unstated = subjects[facts:]

        # The facts, in the forms that passages ("was", with a full stop) and bullets ("is", joined by "and") have.
        lesson = Lesson([])
        for fact in stated.values():
            verb = rng.choice(("is", "was"))
            if not lesson.ids or rng.random() < 0.5:
                lesson.ids += self.encode("\n*")
            elif verb == "is":
                lesson.ids += self.encode("and")
            lesson.ids += self.encode(fact.text(verb))
            if verb == "was":
                lesson.ids += self.encode(".")
        lesson.ids += self.encode("\n\n")

        friends = [fact for fact in stated.values() if fact.relation == "friend"]
        for _ in range(tasks):
            # Choose what the task is about: a friend's fact, or one of the person's own, stated or not.
            if friends and rng.random() < hops:
                friend = rng.choice(friends)
                relation = rng.choice(relations)
                name = f"{friend.name}'s friend"
                fact = stated.get((friend.value, relation))
            else:
                ask_unstated = unstated and rng.random() < absent
                name, relation = rng.choice(unstated if ask_unstated else list(stated))
                fact = stated.get((name, relation))

            # The task, and its answer as the only target. A stated fact is restated in two tasks of five.
            if fact and name == fact.name and rng.random() < 0.4:
                lesson.ids += self.encode(f"\n* {name}'s {relation} is")
            else:
                lesson.ids += self.encode(W.question(name, relation))
            [value] = self.encode(fact.value if fact else "No")
            lesson.add_target(value)
            lesson.ids.append(value)
        return lesson

    def levels(self, world: W.World, rng) -> tuple[list[list[W.Fact]], list[list[W.Fact]]]:
        """The true bullets of level 2, window by window, and those of level 3."""
        size = rng.choice((5, 6, 7, 7, 7, 8))               # passages in a window
        level_2 = []
        for first in range(0, len(world.passages), size):
            facts = [fact for stated in world.stated[first:first + size] for fact in stated]
            level_2 += W.summarise(facts, "was")

        level_3 = W.summarise([fact for bullet in level_2 for fact in bullet], "is")
        return level_2, level_3

    def window(self, rng, level: int, size: int) -> tuple[list[str], list[list[W.Fact]]]:
        """The texts of a window and its true summary.

        At level 1 these are `size` passages. At level 2 they are all bullets about up to 2 * size people.
        """
        world = W.make_world(rng, rng.choice((7, 8, 9, 10, 10, 11)))
        if level == 1:
            first = rng.randrange(max(1, len(world.passages) - size + 1))
            facts = [fact for stated in world.stated[first:first + size] for fact in stated]
            return world.passages[first:first + size], W.summarise(facts, "was")

        level_2, level_3 = self.levels(world, rng)
        people = {facts[0].name for facts in rng.sample(level_3, min(len(level_3), 2 * size))}
        texts = [W.bullet(facts) for facts in level_2 if facts[0].name in people]
        return texts, [facts for facts in level_3 if facts[0].name in people]

    def reply(self, lesson: Lesson, bullets: list[list[W.Fact]]) -> Lesson:
        """Append a summary; each of its tokens is a target."""
        ids = []
        for facts in bullets:
            ids += self.encode("* " + W.bullet(facts)) + self.encode("\n")

        for id in [*ids[:-1], self.eos]:                    # the end of the reply replaces the last newline
            lesson.add_target(id)
            lesson.ids.append(id)
        return lesson

    def listing(self, rng, size: int) -> Lesson:
        """The texts of a window in lines, then its summary."""
        texts, bullets = self.window(rng, rng.choice((1, 1, 2)), size)
        lesson = Lesson([])
        for text in texts:
            lesson.ids += joined(pecan.node_line(self.tokenizer, None, text))
        lesson.ids += self.encode("\n\n")
        return self.reply(lesson, bullets)

    def summary(self, rng, level: int) -> Lesson:
        """Table A1 over a window, then its summary."""
        texts, bullets = self.window(rng, level, rng.choice((3, 5, 7, 7)))
        prompt = pecan.summary_prompt(self.tokenizer, dict(enumerate(texts)))
        return self.reply(Lesson(joined(prompt)), bullets)

    def search(self, rng, room: int) -> Lesson:
        """Table A2: a question and visited nodes, up to `room` tokens; verdicts and answers are branches.

        Verdicts follow some of the nodes, and answers some of those nodes with which all needed facts are stated.
        """
        world = W.make_world(rng, rng.choice((8, 9, 10, 10, 11)))
        level_2, level_3 = self.levels(world, rng)
        kind = rng.choices((*W.VALUES, "hop"), (2, 2, 2, 1, 1, 1, 4))[0]
        question, answer, needed = W.ask(world, rng, kind)
        top_level, others = self.reading_order(
            rng, [W.bullet(facts) for facts in level_3], [W.bullet(facts) for facts in level_2], world.passages,
            needed, room)

        # The trunk: the visited nodes. As in a search, a verdict may follow the last node of the top level and every
        # node after it; some follow earlier nodes.
        lesson = Lesson(joined(pecan.question_prompt(self.tokenizer, question)))
        checks = []                                         # (tokens read, whether they are enough)
        seen = set()                                        # of the needed facts
        for n, text in enumerate(top_level + others):
            line = joined(pecan.node_line(self.tokenizer, n, text))
            if len(lesson.ids) + len(line) > room:
                break
            lesson.ids += line
            seen.update(fact for fact in needed if fact.stated_in(text))
            if n + 1 >= len(top_level) or rng.random() < 0.1:
                checks.append((len(lesson.ids), seen == set(needed)))

        # Verdicts: each is a probe on its own branch.
        for prefix, enough in rng.sample(checks, min(5, len(checks))):
            lesson.add_branch(prefix, self.tokenizer.frame.close)
            lesson.add_target(self.tokenizer.first("Yes" if enough else "No"))

        # Answers, one token each. The last verdict before an answer is mostly Yes; it is No if a search ran out of
        # nodes or room.
        complete = [prefix for prefix, enough in checks if enough]
        for prefix in rng.sample(complete, min(2, len(complete))):
            verdict = self.tokenizer.first("Yes" if rng.random() < 0.9 else "No")
            [answer_id] = self.encode(answer)
            lesson.add_branch(prefix, [*joined(pecan.answer_turn(self.tokenizer, verdict)), answer_id])
            lesson.targets.append((len(lesson.ids) - 2, answer_id))
            lesson.add_target(self.eos)
        return lesson

    def reading_order(self, rng, top_level: list[str], level_2: list[str], passages: list[str], needed: list[W.Fact],
                      room: int) -> tuple[list[str], list[str]]:
        """The texts that a search reads, in order: the top level, and the others.

        Yes and No come equally often after any number of nodes, and sets that lack a needed fact are full of others
        about the same people. Otherwise the number of nodes, or the mention of a name, would give the verdict away.
        """
        long = room >= 300
        case = rng.choices(("early", "never", "anywhere"), (0.5, 0.35, 0.15) if long else (0.75, 0.25, 0))[0]

        if rng.random() < 0.1:
            # The passages alone, as if the whole document were read.
            top_level = []
            others = passages
        else:
            # If there is little room, and at times anyway, only a part of the top level.
            if not long or rng.random() < 0.2:
                top_level = rng.sample(top_level, rng.randrange(1, 1 + min(len(top_level), room // 60)))
            # A summary may have left out the needed facts.
            if case == "anywhere":
                top_level = without(top_level, needed)

            # Random order, but texts that mention the people of the needed facts come early.
            people = {fact.name for fact in needed}
            score = {}
            for text in level_2 + passages:
                mentioned = any(name in text for name in people)
                score[text] = rng.random() ** (0.25 if mentioned else 1)
            others = sorted(score, key=score.get, reverse=True)

        # "never": a needed fact, or all of them, is stated nowhere.
        if case == "never":
            missing = rng.choice([[fact] for fact in needed] + [needed])
            return without(top_level, missing), without(others, missing)

        # "early": a text with each needed fact moves to the first places, unless the top level states it already.
        if case == "early" and top_level:
            for fact in needed:
                sources = [text for text in others if fact.stated_in(text)]
                if sources and not any(fact.stated_in(text) for text in top_level):
                    text = rng.choice(sources)
                    others.remove(text)
                    others.insert(rng.randrange(3 if long else 2), text)
        return top_level, others


def without(texts: list[str], facts: list[W.Fact]) -> list[str]:
    """The texts that state none of these facts."""
    return [text for text in texts if not any(fact.stated_in(text) for fact in facts)]
