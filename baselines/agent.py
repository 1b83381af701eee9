"""What GraphReader, MKRAG and JERR share: they ask the model in words, read its replies, and count.

A reply that has not the form that was asked for is refused, asked for again, and counted.
"""
from collections.abc import Iterable
from dataclasses import dataclass

from baselines.common import ATTEMPTS, Built, fitting, replies, scaled, user_turn
from core.settings import Settings
from data import Answer, Document, Prepared
from llama import Llama

REPLY_TOKENS = 512                # of most replies: with it GraphReader's Figure 10 fits its paper's 4096


def reminder(wanted: str) -> str:
    """The line that is added to a prompt after a refused reply."""
    return f"\n\nYour last reply could not be used. {wanted}"


@dataclass
class Note:
    """One stage of a question, for the trace."""
    stage: str
    text: str                     # what was said or found
    action: str = ""              # how the method understood it


class Agent(Built):
    """A method that builds something of a document, and answers from it, by asking the model.

    A subclass adds `construct`, which is Built.build.
    """

    def __init__(self, model: Llama, settings: Settings, *others):
        super().__init__(model, settings, *others)
        self.limit = scaled(REPLY_TOKENS, settings)
        self.begin()

    def begin(self, progress: bool = False):
        """Forget the last document or question."""
        self.progress = progress
        self.calls = 0                                      # replies that were asked for
        self.refused = 0
        self.trace: list[Note] = []

    def build(self, document: Document, progress: bool) -> dict:
        self.begin(progress)
        return self.construct(document) | {"calls": self.calls, "refused": self.refused}

    def answer(self, prepared: Prepared, question: str) -> Answer:
        self.begin()
        answer = super().answer(prepared, question)
        answer.trace, answer.calls, answer.refused = self.trace, self.calls, self.refused
        return answer

    def length(self, text: str) -> int:
        """Tokens of a user's turn that says `text`."""
        return len(user_turn(self.model.tokenizer, text))

    def fitting(self, texts: Iterable[str], again: str) -> str:
        """The first of these prompts that leaves room for a reply, with `again` after it; the last if none does."""
        return fitting(self.model.tokenizer, texts, self.limit, self.settings, again)

    def ask(self, texts: list[str], limit: int | None = None) -> list[str]:
        """The reply to each text, up to `limit` tokens."""
        self.calls += len(texts)
        return self.say(texts, limit or self.limit)

    def say(self, texts: list[str], limit: int) -> list[str]:
        """What the model says to each text."""
        return replies(self.model, texts, limit, self.settings, self.progress)

    def ask_until(self, texts: list[str], parse, wanted: str, limit: int | None = None) -> list:
        """What parse(n, reply) makes of the reply to text n; None if it refused three replies.

        Decoding is greedy, so the same prompt gets the same reply. After a refused one the prompt is repeated with a
        line that says what is `wanted`.
        """
        found = [None] * len(texts)
        again = ""
        for _ in range(ATTEMPTS):
            left = [n for n, value in enumerate(found) if value is None]
            if not left:
                break

            said = self.ask([texts[n] + again for n in left], limit)
            for n, reply in zip(left, said, strict=True):
                found[n] = parse(n, reply)
                self.refused += found[n] is None
            again = reminder(wanted)
        return found
