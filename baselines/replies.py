"""Ask the model in words, and find lists, cells, pairs and numbers in its replies."""
import re
from collections.abc import Container
from dataclasses import dataclass

from llama import Cache, Llama, length_of
from pecan import MARKER

# --- asking ---------------------------------------------------------------------------------------------------------

def replies_to(model: Llama, texts: list[str], limit: int) -> list[str]:
    """The greedy reply, of up to `limit` tokens, to each text as a user's turn; they run together."""
    rows = [[(None, user_turn(model.tokenizer, text))] for text in texts]
    cache = Cache(model, len(rows), max(map(length_of, rows)) + limit)
    hidden, _ = model.read(cache, rows)
    ids, _ = model.generate(cache, hidden, limit)
    return list(map(model.tokenizer.decode, ids))


def user_turn(tokenizer, text: str) -> list[int]:
    """Token ids of a user's turn that says `text`, up to the start of the assistant's."""
    return [*tokenizer.frame.open, *tokenizer.encode(text), *tokenizer.frame.close]


def reminder(wanted: str) -> str:
    """A line to put before a prompt whose reply was refused. After the prompt it would look like document text."""
    return f"Your last reply could not be used. {wanted}\n\n"


@dataclass
class Reply:
    """The reply to one prompt, for the trace."""
    text: str


# --- reading --------------------------------------------------------------------------------------------------------

def lines_of(reply: str) -> list[str]:
    """The lines of a list, each once, without markers and stars. If lines are marked, only those count.

    Headings, which end with a colon, are left out.
    """
    marked = [line[marker.end():] for line in reply.splitlines() if (marker := MARKER.match(line))]
    lines = dict.fromkeys(line.strip("* \t") for line in marked or reply.splitlines())
    return [line for line in lines if line and not line.endswith(":")]


def cells_of(reply: str, least: int) -> list[list[str]]:
    """The lines "a | b | .." of a reply that have at least so many cells, as lists of cells."""
    rows = []
    for line in reply.splitlines():
        marker = MARKER.match(line)
        rows.append([cell.strip("* \t") for cell in line[marker.end() if marker else 0:].strip("| \t").split("|")])
    return [row for row in rows if len(row) >= least]


def pairs_of(reply: str, first: str, second: str) -> list[tuple[str, str]]:
    """The texts (a, b) of each "first: a, second: b", on one line or on two, numbered or not, bold or not.

    The labels are regular expressions. On the same line, the second label must follow a comma, a semicolon or "?".
    """
    sign = r"[\W\d]{0,9}"                                   # a limit, so that the time is linear in any reply
    form = rf"^{sign}(?:{first}){sign}?:[\s*]*+(.+?)(?:(?<=[,;?])\s|\n){sign}(?:{second}){sign}?:[\s*]*+(.+)"
    found = re.findall(form, reply, re.IGNORECASE | re.MULTILINE)
    return [(a.strip("*,; \t"), b.strip("* \t")) for a, b in found]


def numbers_of(text: str, known: Container[int]) -> list[int]:
    """The `known` numbers in a text, each once, in the order of the text."""
    numbers = map(int, re.findall(r"(?<!\d)\d{1,9}(?!\d)", text))
    return [number for number in dict.fromkeys(numbers) if number in known]
