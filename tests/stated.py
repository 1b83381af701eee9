"""Reads facts of the embedded model's world back from texts, by the wordings of tiny/facts.py."""
import re
from functools import lru_cache

from tiny.facts import DETAILS, NAMES, POST, TOWNS, VALUES, WORDINGS, Fact


def group(name: str, values: list[str]) -> str:
    """A group of a regular expression for one of these values."""
    return f"(?P<{name}>{'|'.join(values)})"


def patterns() -> list[re.Pattern]:
    """A pattern for every wording. The groups `name`, `in_town` and `as_job` are the person, the others relations."""
    name = group("name", NAMES)
    person = f"(?:{name}|(?:In )?{group('in_town', TOWNS)}(?:'s| the) {group('as_job', VALUES['job'])})"
    found = [POST.format(name, group("town", TOWNS), group("job", VALUES["job"]))]

    for relation, wordings in WORDINGS.items():
        values = [group(of, VALUES[of]) for of in (("home", "year") if relation == "move" else (relation,))]
        subject = group("name", TOWNS) if relation == "inn" else person
        found += [wording.format(subject, *values) for wording in wordings]
    for relation, wording in DETAILS.items():
        found.append(wording.format(name, group(relation, VALUES[relation])))
    return [re.compile(pattern) for pattern in found]


PATTERNS = patterns()


@lru_cache(1 << 16)
def statements(text: str) -> tuple[tuple, ...]:
    """The facts that a text states, as (person, relation, value). A person is a name or (town, job).

    Sentences of other forms (fillers, slips of a model) state nothing.
    """
    found = []
    owner = None                                            # of the pet in the sentence before
    for sentence in re.split(r"[.\n*]+", text):
        match = next(filter(None, (pattern.fullmatch(sentence.strip()) for pattern in PATTERNS)), None)
        values = match.groupdict() if match else {}
        by_name = values.pop("name", None)
        by_post = values.pop("in_town", None), values.pop("as_job", None)

        # "It is white" is about the pet of the sentence before.
        person = by_name or (by_post if by_post[0] else owner)
        if person:
            found += [(person, relation, value) for relation, value in values.items()]
        owner = person if "pet" in values else None
    return tuple(found)


def posts_in(texts: list[str]) -> dict[tuple[str, str], str]:
    """The people that these texts introduce: (town, job) -> name."""
    stated = {(person, relation): value for text in texts for person, relation, value in statements(text)}
    return {(value, stated[name, "job"]): name for (name, relation), value in stated.items() if relation == "town"}


def facts_in(texts: list[str], posts: dict[tuple[str, str], str] | None = None) -> set[Fact]:
    """The facts that these texts state together.

    "Sofia's baker drinks tea" is a fact about Mara if `posts` says that she is Sofia's baker. By default, `posts` are
    read from these texts.
    """
    posts = posts_in(texts) if posts is None else posts
    told = [(posts.get(person) if isinstance(person, tuple) else person, relation, value)
            for text in texts for person, relation, value in statements(text)]
    return {Fact(*fact) for fact in told if fact[0]}
