"""The training sequences of the embedded model: token ids and what is right next, from the world's truth.

There are five kinds of lessons. `drill` is bare facts, then many questions and restatements: dense practice at finding
whose fact it is. `reading` is the same with texts of a document. `listing` is a summary without its prompt. `summary`
(Table A1) and `search` (Table A2) use the very prompts of pecan.py.
"""
import pecan
from core.tokenizer import Tokenizer
from tiny import world as W
from tiny.facts import Fact, facts_in, posts_in, statement
from tiny.lesson import Lesson, joined
from tiny.world import World


class Teacher:
    """Makes lessons from a random generator. `eos` ends a reply."""

    def __init__(self, tokenizer: Tokenizer, eos: int):
        self.tokenizer = tokenizer
        self.encode = tokenizer.encode
        self.eos = eos

    def lines(self, texts: list[str]) -> list[int]:
        """The texts as the lines of a prompt."""
        return [id for text in texts for id in joined(pecan.node_line(self.tokenizer, None, text))]

    def drill(self, rng, people: int = 4, relations: tuple[str, ...] = ("pet",), names: int = 100, posts: bool = False,
              tasks: int = 14, absent: float = 0.0, hops: float = 0.0) -> Lesson:
        """Bare facts in lines, then `tasks` questions with their answers, or restatements of a fact.

        They are about people among the first `names` names and these relations; with `posts`, everybody is introduced
        first, and most facts speak of the person by town and job. See `tasks` for the other options.
        """
        people = W.draw_posts(rng, people, names=W.NAMES[:names])
        introductions = []
        others = []
        facts = {}
        for (town, job), name in people.items():
            if posts:
                facts[name, "town"] = Fact(name, "town", town)
                facts[name, "job"] = Fact(name, "job", job)
                introductions.append(W.POST.format(name, town, job))

            # Most of the relations; a color needs a pet, and half of the homes are moves.
            stated = [relation for relation in relations if rng.random() < 0.85]
            for relation in stated:
                fact = W.draw_fact(rng, name, relation, list(people.values()) if relation == "friend"
                                   else W.VALUES[relation])
                year = W.draw_fact(rng, name, "year", W.VALUES["year"])
                if fact is None or relation == "color" and "pet" not in stated:
                    continue
                facts[name, relation] = fact
                moves = relation == "home" and rng.random() < 0.5
                if moves:
                    facts[name, "year"] = year

                by_name = not posts or rng.random() < 0.3
                wordings = W.WORDINGS["move" if moves else relation][relation == "friend" and not by_name:]
                text = rng.choice(wordings).format(name if by_name else W.person(rng, town, job), fact.value,
                                                   year.value)
                if relation == "color":
                    others[-1] += f". {text}"
                else:
                    others.append(text)

        rng.shuffle(introductions)
        rng.shuffle(others)
        full_stop = rng.choice((".", ""))
        lesson = Lesson(self.lines([text + full_stop for text in introductions + others]))
        asked = [*relations, *["job", "town"] * posts, *["year"] * ("home" in relations)]
        return self.tasks(lesson, rng, list(people.values()), asked, facts, tasks, absent, hops)

    def reading(self, rng, world: World, texts: int, tasks: int = 14, absent: float = 0.2, hops: float = 0.2) -> Lesson:
        """Everybody's post and some texts of a document in lines, then tasks as in a drill."""
        pool = [*world.passages, *(bullet for chapter in world.chapters for bullet in chapter[:-1])]
        lines = rng.sample(world.names, len(world.names))
        lines = [W.POST.format(name, *world.post(name)) for name in lines] + rng.sample(pool, texts)
        stated = {(fact.name, fact.relation): fact for fact in sorted(facts_in(lines), key=str)}
        relations = [relation for relation in W.QUESTIONS if relation != "inn"]
        return self.tasks(Lesson(self.lines(lines)), rng, world.names, relations, stated, tasks, absent, hops)

    def tasks(self, lesson: Lesson, rng, names, relations, stated, tasks, absent, hops) -> Lesson:
        """Append tasks about facts that are `stated`, each with its answer as a target.

        A task is about something unstated with probability `absent` (the answer is No), and about somebody's friend
        with probability `hops`. Two of five are restatements: the beginning of a bullet.
        """
        lesson.ids += self.encode("\n\n")
        subjects = [subject for subject in stated if subject[1] in relations]
        friends = [fact for fact in stated.values() if fact.relation == "friend"]
        for _ in range(tasks):
            relation = rng.choice(relations)
            name = rng.choice(names)
            asked = name
            if friends and relation != "friend" and rng.random() < hops:
                friend = rng.choice(friends)
                asked = f"{friend.name}'s friend"
                name = friend.value
            elif subjects and rng.random() >= absent:
                name, relation = rng.choice(subjects)
                asked = name
            fact = stated.get((name, relation))

            if fact and asked == name and rng.random() < 0.4:
                post = (stated[name, "town"].value, stated[name, "job"].value) if (name, "job") in stated else ("", "")
                text = statement(fact, post)
                lesson.ids += self.encode("\n* " + text[:text.rindex(fact.value)].rstrip())
            else:
                lesson.ids += self.encode(W.QUESTIONS[relation].format(asked))
            [value] = self.encode(fact.value if fact else "No")
            lesson.add_target(value)
            lesson.ids.append(value)
        return lesson

    def window(self, rng, world: World, level: int, size: int) -> tuple[list[str], list[str]]:
        """The texts of a window and its true summary: `size` chapters, of passages or of bullets.

        At level 1 that is one chapter, as in the construction, and at level 3 the posts of all.
        """
        first = rng.randrange(max(1, len(world.chapters) - size + 1))
        chapters = world.chapters[first:first + size]
        if level == 1:
            texts = world.passages[first * W.PASSAGES:(first + size) * W.PASSAGES]
            return texts, [bullet for chapter in chapters for bullet in chapter]

        texts = [bullet for chapter in chapters for bullet in chapter]
        if level == 3:
            texts = W.summarise(texts)
        elif rng.random() < 0.5:
            # Windows of the construction cut chapters.
            texts = texts[rng.randrange(4):len(texts) - rng.randrange(4)]
        return texts, W.summarise(texts)

    def reply(self, lesson: Lesson, bullets: list[str]) -> Lesson:
        """Append a summary; each of its tokens is a target."""
        ids = []
        for bullet in bullets:
            ids += self.encode("* " + bullet) + self.encode("\n")

        for id in [*ids[:-1], self.eos]:                    # the end of the reply replaces the last newline
            lesson.add_target(id)
            lesson.ids.append(id)
        return lesson

    def listing(self, rng, world: World, level: int, size: int) -> Lesson:
        """The texts of a window in lines, then its summary."""
        texts, bullets = self.window(rng, world, level, size)
        return self.reply(Lesson(self.lines(texts) + self.encode("\n\n")), bullets)

    def summary(self, rng, world: World, level: int, size: int) -> Lesson:
        """Table A1 over a window, then its summary."""
        texts, bullets = self.window(rng, world, level, size)
        prompt = pecan.summary_prompt(self.tokenizer, dict(enumerate(texts)))
        return self.reply(Lesson(joined(prompt)), bullets)

    def search(self, rng, world: World, room: int) -> Lesson:
        """Table A2: a question and visited nodes, up to `room` tokens; verdicts and answers are branches.

        Verdicts follow some of the nodes, and answers some of those nodes with which all needed facts are stated.
        """
        kind = rng.choices(list(W.KINDS), (2, 2, 3, 3, 3, 1, 2))[0]
        if kind == "changed" and not any((name, "past") in world.facts for name in world.names):
            kind = "two facts"
        if kind == "two facts" and not any((name, "friend") in world.facts for name in world.names):
            kind = "detail"
        question, answer, needed = W.ask(world, rng, kind)
        top_level, others = self.reading_order(rng, world, needed, room)

        # The trunk: the visited nodes. As in a search, a verdict may follow the last node of the top level and every
        # node after it; some follow earlier nodes.
        lesson = Lesson(joined(pecan.question_prompt(self.tokenizer, question)))
        checks = []                                         # (tokens read, whether they are enough)
        read = []
        posts = {}
        seen = set()
        for text in top_level + others:
            line = joined(pecan.node_line(self.tokenizer, None, text))
            if len(lesson.ids) + len(line) > room:
                break
            lesson.ids += line
            read.append(text)

            # A post may be read after what it explains.
            found = posts_in([text])
            posts |= found
            seen |= facts_in(read if found else [text], posts)
            if len(read) >= len(top_level) or rng.random() < 0.1:
                checks.append((len(lesson.ids), set(needed) <= seen))

        # Verdicts: each is a probe on its own branch.
        for prefix, enough in rng.sample(checks, min(8, len(checks))):
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

    def reading_order(self, rng, world: World, needed: list[Fact], room: int) -> tuple[list[str], list[str]]:
        """The texts that a search reads, in order: the top level, and the others.

        Yes and No come about equally often after any number of nodes, and sets that lack a needed fact are full of
        others about the same people. Otherwise the number of nodes, or the mention of a name, would give the verdict
        away.
        """
        long = room >= 260
        case = rng.choices(("early", "never", "anywhere"), (0.5, 0.35, 0.15))[0]
        level_2 = [bullet for chapter in world.chapters for bullet in chapter]
        top_level = W.summarise(level_2)
        people = list(dict.fromkeys(fact.name for fact in needed if (fact.name, "job") in world.facts))

        if rng.random() < 0.15:
            # Passages alone, as if they had been retrieved from the document: among them who the people are.
            top_level = []
            others = rng.sample(world.passages, len(world.passages))
            for name in people:
                post = W.POST.format(name, *world.post(name))
                [introduction] = [text for text in others if text.startswith(post)]
                others.remove(introduction)
                others.insert(rng.randrange(5), introduction)
        else:
            # If there is little room, a part of the top level; the people of the needed facts are mostly in it.
            most = max(2, room // 20)
            if len(top_level) > most:
                chosen = {post for post in top_level if post.split("'s ")[0].split(" is ")[0] in people}
                chosen |= set(rng.sample(top_level, most - len(chosen)))
                top_level = [post for post in top_level if post in chosen]
            others = level_2 + world.passages

        # Random order, but texts that mention the people of the needed facts come early.
        mentions = [*people, *("{}'s {}".format(*world.post(name)) for name in people),
                    *("{} the {}".format(*world.post(name)) for name in people)]
        if top_level:
            score = {text: rng.random() ** (0.2 if any(mention in text for mention in mentions) else 1)
                     for text in others}
            others = sorted(score, key=score.get, reverse=True)

        def without(texts, facts):
            return [text for text in texts if not facts & facts_in([text], world.posts)]

        # "never": a needed fact, or all of them, is stated nowhere.
        if case == "never":
            missing = set(rng.choice([[fact] for fact in needed] + [needed]))
            return without(top_level, missing), without(others, missing)

        # "early": a text with each needed fact moves to the first places, unless the top level states it already.
        if case == "early":
            for fact in needed:
                if len(without(top_level, {fact})) == len(top_level):
                    text = rng.choice([text for text in others if fact in facts_in([text], world.posts)])
                    others.remove(text)
                    others.insert(rng.randrange(4 if long else 2), text)
        return top_level, others
