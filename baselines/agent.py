"""What GraphReader, MKRAG and JERR share: they ask the model in words, read its replies, and count.

A reply that has not the form that was asked for is refused, asked for again, and counted.
"""
import re
from collections.abc import Iterable
from dataclasses import dataclass

from baselines.built import ATTEMPTS, Built
from baselines.common import scaled
from core.settings import Settings
from core.text import MARKER, bullets
from data import Answer, Document, Prepared
from llama import Llama

REPLY_TOKENS = 512                # of most replies: with it GraphReader's Figure 10 fits its paper's 4096


def reminder(wanted: str) -> str:
    """The line that comes before a prompt after a refused reply: at its end it would be taken for the document."""
    return f"Your last reply could not be used. {wanted}\n\n"


def lines_of(reply: str) -> list[str]:
    """The lines of a list, each once, without markers and stars: those of its bullets, or all if it has none.

    Headings are left out: lines that end with a colon, and unmarked ones in bold type.
    """
    lines = {}
    for start, end in bullets(reply):
        for line in reply[reply.rfind("\n", 0, start) + 1:end].splitlines():
            marker = MARKER.match(line)
            text = line[marker.end() if marker else 0:].strip()
            bold = not marker and re.fullmatch(r"\*\*[^*]*\*\*", text)
            if not bold and not text.rstrip("*").endswith(":"):
                lines[text.strip("* ")] = None
    return [line for line in lines if line]


def cells_of(reply: str, number: int) -> list[list[str]]:
    """The lines of a reply that have so many cells, "a | b | ..", as lists of these."""
    rows = [[cell.strip() for cell in line.split("|")] for line in lines_of(reply)]
    return [row for row in rows if len(row) == number]


def numbers_of(text: str, known: Iterable[int]) -> list[int]:
    """The `known` numbers that a text names, each once, in its order."""
    known = {str(number): number for number in known}
    return list(dict.fromkeys(known[digits] for digits in re.findall(r"\d+", text) if digits in known))


@dataclass
class Reply:
    """What the model said to one prompt, for the trace."""
    text: str


class Agent(Built):
    """A method that builds something of a document, and answers from it, by asking the model.

    A subclass adds `construct`, which is Built.build.
    """

    def __init__(self, model: Llama, settings: Settings, *others):
        super().__init__(model, settings, *others)
        self.limit = scaled(REPLY_TOKENS, settings)
        self.begin()

    def begin(self):
        """Forget the last document or question."""
        self.trace: list[Reply] = []                        # one for each call
        self.refused = 0

    def build(self, document: Document) -> dict:
        self.begin()
        return self.construct(document) | {"calls": len(self.trace), "refused": self.refused}

    def answer(self, prepared: Prepared, question: str) -> Answer:
        self.begin()
        answer = super().answer(prepared, question)
        answer.trace, answer.calls, answer.refused = self.trace, len(self.trace), self.refused
        return answer

    def ask(self, texts: list[str], limit: int | None = None) -> list[str]:
        """The reply to each text, up to `limit` tokens."""
        said = self.say(texts, limit or self.limit)
        self.trace += map(Reply, said)
        return said

    def ask_until(self, texts: list[str], parse, wanted: str, limit: int | None = None, most: int = ATTEMPTS) -> list:
        """What parse(n, reply) makes of the reply to text n; None if it refused three replies, or `most` if fewer.

        Decoding is greedy, so the same prompt gets the same reply. After a refused one the prompt is repeated after
        a line that says what is `wanted`.
        """
        found = [None] * len(texts)
        again = ""
        for _ in range(min(most, ATTEMPTS)):
            left = [n for n, value in enumerate(found) if value is None]
            if not left:
                break

            said = self.ask([again + texts[n] for n in left], limit)
            for n, reply in zip(left, said, strict=True):
                found[n] = parse(n, reply)
                self.refused += found[n] is None
            again = reminder(wanted)
        return found
