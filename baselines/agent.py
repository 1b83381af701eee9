"""What GraphReader, MKRAG and JERR share: they ask a model in words, keep what they make of a document, and count.

A reply that has not the form that was asked for is refused, asked for again, and counted.
"""
import json
from pathlib import Path

from baselines.common import line_ids, replies, user_turn
from core.files import NUMBER, InputError, check_values, read_json, reading, write_file
from core.settings import Settings
from data import Answer, Document, Prepared
from llama import Cache, Llama, length_of
from pecan import question_prompt
from support.graph import check_place, file_name

ATTEMPTS = 3                      # replies to one prompt that may be refused, as in MeMWalker


def reminder(wanted: str) -> str:
    """The line that is added to a prompt after a refused reply."""
    return f"\n\nYour last reply could not be used. {wanted}"


class Talk:
    """What a method asks the model for: one user turn each, greedy. Counts tokens, replies and refused replies.

    A subclass may put another speaker in the model's place (`say`).
    """

    def __init__(self, model: Llama, settings: Settings, method: str):
        self.model = model
        self.settings = settings
        self.method = method                                # its name in messages
        self.tokens = 0                                     # of prompts and replies
        self.calls = 0
        self.refused = 0
        self.trace: list = []                               # what a method enters, step by step

    def length(self, text: str) -> int:
        """Tokens of a user's turn that says `text`."""
        return len(user_turn(self.model.tokenizer, text))

    def check(self, stage: str, prompt: int, reply: int):
        """InputError if a prompt and its reply, both in tokens, do not fit the window."""
        window = self.settings.window
        if prompt + reply > window:
            raise InputError(f"window {window} is too small: {stage} of {self.method} takes {prompt} tokens and its "
                             f"reply {reply}")

    def shortened(self, text, shown: list, limit: int, wanted: str) -> str:
        """text(shown), without as many of the last of `shown` as the window has no room for.

        There is room for a reply of `limit` tokens, and for the reminder of what is `wanted`.
        """
        shown = list(shown)
        while shown and self.length(text(shown) + reminder(wanted)) + limit > self.settings.window:
            shown.pop()
        return text(shown)

    def ask(self, stage: str, texts: list[str], limit: int, progress: bool = False) -> list[str]:
        """The reply to each text, up to `limit` tokens; `settings.batch` of them run together."""
        prompts = [user_turn(self.model.tokenizer, text) for text in texts]
        for prompt in prompts:
            self.check(stage, len(prompt), limit)
        self.calls += len(texts)
        return self.say(texts, prompts, limit, progress)

    def say(self, texts: list[str], prompts: list[list[int]], limit: int, progress: bool) -> list[str]:
        """What the model says to each prompt; `texts` are the same prompts in words."""
        said = replies(self.model, prompts, limit, self.settings.batch, progress)
        self.tokens += sum(map(len, prompts)) + sum(map(len, said))
        return [self.model.tokenizer.decode(ids) for ids in said]

    def ask_until(self, stage: str, texts: list[str], limit: int, parse, wanted: str, progress: bool = False) -> list:
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

            said = self.ask(stage, [texts[n] + again for n in left], limit, progress)
            for n, reply in zip(left, said, strict=True):
                found[n] = parse(n, reply)
                self.refused += found[n] is None
            again = reminder(wanted)
        return found

    def p_yes(self, question: str, texts: list[str]) -> list[float]:
        """How sure the model is that each text alone can answer the question.

        It is the first turn of Table A2, with the text as its only node; `settings.batch` texts run together.
        """
        model = self.model
        tokenizer = model.tokenizer
        batch = self.settings.batch
        close = tokenizer.frame.close
        yes_no = [tokenizer.first("Yes"), tokenizer.first("No")]

        sure = []
        for first in range(0, len(texts), batch):
            rows = [[*question_prompt(tokenizer, question), (None, line_ids(tokenizer, text))]
                    for text in texts[first:first + batch]]
            self.tokens += sum(map(length_of, rows)) + len(rows) * len(close)

            cache = Cache(model, len(rows), max(map(length_of, rows)) + len(close))
            hidden, _ = model.read(cache, rows, probe=close)
            logits = model.logits(hidden)                                                  # [rows, vocabulary]
            sure += logits[:, yes_no].cpu().double().softmax(1)[:, 0].tolist()
        return sure


class Agent:
    """A method that builds something of a document, and answers from it, by asking the model.

    A subclass says how: `construction`, `build`, `ready`, `reply_to`. `own_answer` gives the answer of the method's own
    last prompt in the place of the shared reader's. `talk` is the class that asks the model.
    """
    name: str                     # in messages
    encoder = None                # of a method that needs one

    def __init__(self, model: Llama, settings: Settings, own_answer: bool = False, talk: type[Talk] = Talk):
        self.model = model
        self.settings = settings
        self.own_answer = own_answer
        self.talk = talk

    def conversation(self) -> Talk:
        return self.talk(self.model, self.settings, self.name)

    def must_fit(self, stage: str, prompt: str, shown: int, reply: int):
        """InputError if a prompt with `shown` more tokens, and its reply, do not fit the window."""
        talk = self.conversation()
        talk.check(stage, talk.length(prompt) + shown, reply)

    def spent(self) -> int:
        """FLOPs of the model and of the encoder so far."""
        return self.model.flops + (self.encoder.flops if self.encoder else 0)

    def construction(self, document: Document) -> dict:
        """The settings that decide what is built of a document."""
        raise NotImplementedError

    def build(self, document: Document, talk: Talk, progress: bool) -> dict:
        """What is made of a document, as plain fields for JSON."""
        raise NotImplementedError

    def ready(self, content: dict) -> Prepared:
        """What `build` has made, as questions need it; costs are entered by `prepare`."""
        raise NotImplementedError

    def reply_to(self, prepared: Prepared, question: str, talk: Talk) -> Answer | None:
        """The answer to a question; None if there is nothing to answer from."""
        raise NotImplementedError

    def file_name(self, document: Document) -> str:
        """Names what was built of this document, by this model, under these settings, on disk."""
        return file_name(document.hash, self.model.fingerprint, self.construction(document))

    def prepare(self, document: Document, path: str | Path | None = None, progress: bool = False) -> Prepared:
        """Read what `build` made of this document from `path`, or make it (and write it there), and ready it."""
        def make():
            spent = self.spent()
            talk = self.conversation()
            content = self.build(document, talk, progress)
            return content | {"flops": self.spent() - spent, "calls": talk.calls, "refused": talk.refused}

        content = kept(path, document, self.model, self.construction(document), make)
        spent = self.spent()
        with reading(path or self.name, "not what was kept of a document"):
            prepared = self.ready(content)
        prepared.flops = content["flops"] + self.spent() - spent
        prepared.calls = content["calls"]
        prepared.refused = content["refused"]
        return prepared

    def answer(self, prepared: Prepared, question: str) -> Answer:
        """Answer, and enter how it was found and what it cost. The answer is empty if there is nothing to read."""
        spent = self.spent()
        talk = self.conversation()
        answer = self.reply_to(prepared, question, talk) or Answer(text="", nodes=[], flops=0, tokens=0, end="none")

        answer.flops = self.spent() - spent
        answer.tokens += talk.tokens
        answer.trace = talk.trace
        answer.calls = talk.calls
        answer.refused = talk.refused
        return answer


# --- files ----------------------------------------------------------------------------------------------------------

KEPT = "method file 1"            # format of the files of `kept`


def kept(path: str | Path | None, document: Document, model: Llama, construction: dict, make) -> dict:
    """What a method has made of a document: read from `path`, or made and written there.

    make() returns a dict of plain fields, among them flops, calls and refused. The file is readable JSON. InputError if
    it is damaged, or belongs to another document, model or construction.
    """
    head = {"format": KEPT, "document": document.hash, "model": model.fingerprint, "settings": construction}
    if path is None or not Path(path).exists():
        check_place(path)
        content = make()
        if path is not None:
            write_file(path, json.dumps(head | content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        return content

    content = read_json(path)
    for key, value in head.items():
        if content.pop(key, None) != value:
            raise InputError(f"{path}: is of another {key}; delete it, or choose another folder of graphs")
    check_values(content, dict.fromkeys(("flops", "calls", "refused"), NUMBER), f"{path}: ")
    return content
