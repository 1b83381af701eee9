"""Methods that ask the model in words.

A reply without the wanted form is refused and counted, and the model is asked again.
"""
from collections.abc import Iterable

from tqdm import tqdm

from baselines.common import Baseline, scaled
from baselines.replies import Reply, reminder, replies_to, user_turn
from core.files import InputError
from core.settings import Settings
from data import Answer, Prepared
from llama import Llama

ATTEMPTS = 3                      # a prompt is asked so often at most


class Agent(Baseline):
    """A method that asks the model about a document or a question, and reads its replies."""
    reply_tokens = 512            # before scaling; GraphReader's Figure 10 then fits its paper's window of 4096

    def __init__(self, model: Llama, settings: Settings, *others):
        super().__init__(model, settings, *others)
        self.limit = scaled(self.reply_tokens, settings)
        self.begin()

    def begin(self, replies=replies_to, progress: bool = False):
        """Begin with a document or a question: `replies` makes the model's replies, `progress` shows a bar."""
        self.replies, self.progress = replies, progress
        self.trace: list[Reply] = []                        # one for each call
        self.refused = 0

    def answer(self, prepared: Prepared, question: str) -> Answer:
        self.begin()
        answer = super().answer(prepared, question)
        answer.trace = self.trace
        answer.calls = len(self.trace)
        answer.refused = self.refused
        return answer

    def length(self, text: str) -> int:
        """Tokens of a user's turn that says `text`."""
        return len(user_turn(self.model.tokenizer, text))

    def check_room(self, what: str, prompt: int, limit: int):
        """InputError if a prompt of so many tokens and a reply of up to `limit` do not fit the window."""
        window = self.settings.window
        if prompt + limit > window:
            raise InputError(f"window {window} is too small: {what} takes {prompt} tokens and its reply {limit}")

    def say(self, texts: list[str], limit: int) -> list[str]:
        """The reply, of up to `limit` tokens, to each text as a user's turn; InputError if the window has no room."""
        for text in texts:
            self.check_room("a prompt", self.length(text), limit)

        said = []
        batch = self.settings.batch
        for first in tqdm(range(0, len(texts), batch), "replies", unit="batch", leave=False, disable=not self.progress):
            said += self.replies(self.model, texts[first:first + batch], limit)
        return said

    def ask(self, texts: list[str], limit: int | None = None) -> list[str]:
        """The reply to each text, entered into the trace."""
        said = self.say(texts, limit or self.limit)
        self.trace += map(Reply, said)
        return said

    def ask_until(self, texts: list[str], parse, wanted: str, limit: int | None = None) -> list:
        """For each text n: what parse(n, reply) finds in the reply. If it finds nothing, the reply is refused.

        A prompt is asked three times at most. From the second time on, a line before it says what is `wanted`: decoding
        is greedy, so the same prompt would get the same reply.
        """
        found = [None] * len(texts)
        again = ""
        for _ in range(ATTEMPTS):
            left = [n for n, value in enumerate(found) if not value]
            for n, reply in zip(left, self.ask([again + texts[n] for n in left], limit)):
                found[n] = parse(n, reply)
                self.refused += not found[n]
            again = reminder(wanted)
        return found

    def ask_fitting(self, texts: Iterable[str], parse, wanted: str):
        """Ask with the first text that fits the window; if none fits, with the last. Return what parse(reply) finds."""
        for text in texts:
            if self.length(reminder(wanted) + text) + self.limit <= self.settings.window:
                break
        [found] = self.ask_until([text], lambda n, reply: parse(reply), wanted)
        return found
