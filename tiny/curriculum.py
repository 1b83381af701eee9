"""What the embedded model learns at which stage: the lessons of a step.

Stages of drill come first, each harder than the one before. Then texts of documents are read, then passages summarised
without a prompt, then bullets. At last all kinds of lessons are mixed.
"""
from random import Random

from tiny import world as W
from tiny.lesson import Lesson
from tiny.lessons import Teacher

# Options of Teacher.drill, stage by stage; and those of a drill about friends.
BARE = ("friend", "pet", "color", "home", "drink", "play")
DRILLS = [dict(people=8, names=16, tasks=12),
          dict(people=8, tasks=12),
          dict(people=5, relations=("pet", "drink", "friend"), tasks=16),
          dict(people=5, relations=("pet",), posts=True, tasks=16),
          dict(people=4, relations=("pet", "drink", "home"), posts=True, tasks=20),
          dict(people=4, relations=BARE, posts=True, tasks=20, absent=0.2),
          dict(people=4, relations=BARE, posts=True, tasks=20, absent=0.2, hops=0.5)]
HOPS = dict(people=6, relations=("friend", "pet", "home"), tasks=20, hops=0.6)

# Lessons of a step by kind, stage by stage; of searches, their tokens. A number in a name is the level of the bullets.
STAGES = [*[{"drill": 24}] * len(DRILLS),
          {"drill": 4, "hops": 10, "reading": 16},
          {"drill": 4, "hops": 10, "reading": 16},
          {"hops": 10, "reading": 8, "listing 2": 20},
          {"hops": 6, "reading": 4, "listing 2": 4, "listing 3": 16, "listing 4": 4}]
MIXED = [{"hops": 4, "reading": 4, "summary 2": 4, "summary 3": 6, "summary 4": 3, "search": 5000},
         {"hops": 2, "reading": 3, "summary 2": 3, "summary 3": 5, "summary 4": 3, "search": 8000}]

# Tokens of a search, by mixed stage. Short ones teach more at first; long ones are as long as real searches.
ROOMS = [(160, 220, 280, 340), (220, 280, 340, 340)]


def lessons(teacher: Teacher, rng: Random, stage: int) -> dict[str, list[Lesson]]:
    """The lessons of one step, by kind. Stages from len(STAGES) on are mixed."""
    mixed = stage - len(STAGES)
    counts = dict(MIXED[mixed] if mixed >= 0 else STAGES[stage])

    # A few documents serve all lessons of the step. What needs long ones comes late.
    worlds = []
    if stage >= len(DRILLS):
        worlds = [W.make_world(rng, rng.randint(6, 14)) for _ in range(5)]
    if stage >= len(STAGES) - 1:
        worlds += [W.make_world(rng, rng.randint(14, 27)) for _ in range(2)]
    if mixed >= 0:
        room = rng.choice(ROOMS[mixed])
        counts["search"] //= room + 100                     # about 100 tokens are its verdicts and answers

    def make(kind: str) -> Lesson:
        if kind == "drill":
            return teacher.drill(rng, **DRILLS[min(stage, len(DRILLS) - 1)])
        if kind == "hops":
            return teacher.drill(rng, **HOPS)
        if kind == "reading":
            texts = 4 if stage == len(DRILLS) else 8
            return teacher.reading(rng, rng.choice(worlds[:5]), texts, hops=0.3 if mixed >= 0 else 0.2)
        if kind == "search":
            return teacher.search(rng, rng.choice(worlds), room)

        # A listing is a summary without its prompt.
        name, level = kind.split()
        summarise = teacher.listing if name == "listing" else teacher.summary
        world = rng.choice(worlds)
        if level == "2":
            return summarise(rng, world, 1, 1)
        if level == "3":
            return summarise(rng, world, 2, rng.choice((3, 5, 5, 6)))
        return summarise(rng, world, 3, 27)

    return {kind: [make(kind) for _ in range(n)] for kind, n in counts.items()}
