"""Methods that ask the model in words: how they ask, how they read its replies, and what they build of a document.

What a method builds (a tree of summaries, a graph) is kept on disk, because the model took long to write it. A reply
without the wanted form is refused and counted, and the model is asked again.
"""
import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from baselines.common import Baseline, Reply, replies_to, scaled
from core.code import code_of_method
from core.disk import read_kept, write_kept
from core.files import InputError, reading
from core.settings import Settings
from core.text import split
from core.together import Memory, together
from data import Document, Prepared
from llama import Llama
from pecan import MARKER

ATTEMPTS = 3                      # a prompt is asked so often at most

# --- asking ---------------------------------------------------------------------------------------------------------

def user_turn(tokenizer, text: str) -> list[int]:
    """Token ids of a user's turn that says `text`, up to the start of the assistant's."""
    return [*tokenizer.frame.open, *tokenizer.user(text), *tokenizer.frame.close]


def reminder(wanted: str) -> str:
    """A line to put before a prompt whose reply was refused. After the prompt it would look like document text."""
    return f"Your last reply could not be used. {wanted}\n\n"


@dataclass
class Said:
    """The reply to one prompt, for the trace."""
    text: str


# --- reading replies ------------------------------------------------------------------------------------------------

# Models decorate what they write: **bold**, `code`, ### headings, > quotations. These signs begin a line, or touch a
# word on one side only. Each pattern here takes linear time in any reply.
DECORATION = re.compile(r"(?m)^[#> ]*+(?=\S)|(?<![^\W_])[*_`]++(?=\S)|(?<=\S)[*_`]++(?![^\W_])")
NUMBERED = r"^[^\w\n]{0,9}(?:\d{1,2}\b[^\w\n]{0,9})?"        # what may stand before a label at the start of a line

# The marker of a line in a list: that of a bullet, a letter, or a number as in "[1], ".
MARK = rf"\A(?:{MARKER.pattern}|\s*\(?[a-zA-Z]\)\s|\W{{0,4}}\d{{1,3}}\s?[]),.:|*]{{1,5}}(?:\s|(?=\[)))"

# What separates cells: a bracket that opens the next one, also if only the last on the line does, or a bar, maybe with
# a label from the prompt behind it.
CELLS = r"(?:\]\W{0,4}|[,;|]\s*|^)\[|\[(?=[^][]*\]\W*$)|\|(?:\W{0,3}[Kk]ey [Ee]lements?\W{0,3}:)?"


def cleaned(reply: str) -> str:
    """A reply without decoration and escapes. The markers of its lists stay."""
    return DECORATION.sub("", reply.replace("\\", ""))


def plain(text: str) -> str:
    """The first line of a piece of a reply, without the signs around it that decorate, quote or separate it."""
    text = text.partition("\n")[0].lstrip(" \t*_`,;|").rstrip(" \t*_`,;|([{–—-")
    quoted = re.fullmatch(r'\[+([^][]*)\]*|([^][]*)\]+|"([^"]*)"\W*|“([^“”]*)”', text)
    return plain(quoted[quoted.lastindex]) if quoted else text


def unmarked(line: str) -> str:
    """A line without the marker of a list, such as "* ", "a) " or "[1], "."""
    return re.sub(MARK, "", line)


def lines_of(reply: str) -> list[str]:
    """The lines of a list, each once, without markers. If lines are marked, only those count.

    Headings, which end with a colon, are left out.
    """
    lines = reply.splitlines()
    marked = list(filter(MARKER.match, lines))
    texts = dict.fromkeys(plain(unmarked(line)) for line in marked or lines)
    return [text for text in texts if text and not text.endswith(":")]


def cells_of(reply: str, least: int) -> list[list[str]]:
    """The cells of the lines "a | b | .." of a reply that have at least so many. A table's header is left out.

    A cell may stand in brackets, then without bars: "[a], [b]".
    """
    rows = []
    for line in reply.splitlines():
        rows.append(list(filter(None, map(plain, re.split(CELLS, unmarked(line))))))
        if "|" in line and not re.search(r"\w", line):       # the line below a header: |---|---|
            del rows[-2:]
    return [row for row in rows if len(row) >= least]


def parts_of(reply: str, labels: str) -> list[tuple[str, str]]:
    """(label in lower case, text) of each labelled part of a reply. `labels` is a regular expression.

    A label starts a line, before a colon, a dash or the line's end: "2. Score 1: 9", "### Score". It may also stand
    between a sign such as a comma or a quote and a colon: "Node: x, Score: 9".
    """
    inside = rf"(?<=[\[\]\"”,;.?!|()–—-])[* ]{{0,3}}(?=(?:{labels}) ?\d{{0,3}}[^\w\n:]{{0,9}}:)"
    label = rf"(?:{NUMBERED}|{inside})({labels})(?: ?\d{{1,3}})?[^\w\n:]{{0,9}}(?::|(?<=[–—-])\s|$)"
    _, *parts = re.split(f"(?im){label}", cleaned(reply))
    return [(name.lower(), text.strip()) for name, text in zip(parts[::2], parts[1::2])]


def sections(reply: str, labels: str) -> list[tuple[str, str]]:
    """(label, first line of the text) of each labelled part of a reply."""
    return [(label, plain(text)) for label, text in parts_of(reply, labels)]


def pairs_of(reply: str, first: str, second: str) -> list[tuple[str, str]]:
    """The texts (a, b) of each "first: a, second: b", on one line or on several."""
    found = sections(reply, f"{first}|{second}")
    return [(a, b) for (label, a), (other, b) in pairwise(found)
            if a and b and re.fullmatch(first, label) and re.fullmatch(second, other)]


def numbers_of(text: str, known: Container[int]) -> list[int]:
    """The `known` numbers in a text, each once, in the order of the text."""
    numbers = map(int, re.findall(r"(?<!\d)\d{1,9}(?!\d)", text))
    return [number for number in dict.fromkeys(numbers) if number in known]


# --- a method that asks ---------------------------------------------------------------------------------------------

class Agent(Baseline):
    """A method that builds something of a document by asking the model, once, and answers from it.

    A subclass defines `read` (see Baseline) and
        build(document) -> dict         what is built, in JSON's types; the model does the work
        ready(content) -> Prepared      the same in the form that questions need; an encoder may do some work
    """
    reply_tokens = 512            # before scaling; GraphReader's Figure 10 then fits its paper's window of 4096

    def __init__(self, model: Llama, settings: Settings, *others):
        super().__init__(model, settings, *others)
        self.limit = scaled(self.reply_tokens, settings)
        self.begin()

    def begin(self, ask=None):
        """Begin with a document or a question. `ask` makes the model's replies to calls [text, limit]."""
        self.ask_model = ask or self.reply_now
        self.trace: list[Said] = []                         # one for each call
        self.counts = {"calls": 0, "refused": 0}            # replies that were asked for; those without the wanted form
        self.spent = 0                                      # FLOPs of the replies

    def reply_to_batch(self, calls: list) -> list[Reply]:
        """The replies to calls [text, limit] in one batch, or in one for each limit."""
        replies = {}
        for limit in dict.fromkeys(limit for _, limit in calls):
            some = [n for n, call in enumerate(calls) if call[1] == limit]
            prompts = [[(None, user_turn(self.model.tokenizer, calls[n][0]))] for n in some]
            replies |= zip(some, replies_to(self.model, prompts, limit))
        return [replies[n] for n in range(len(calls))]

    def reply_now(self, calls: list) -> list[Reply]:
        """The replies to calls, in batches."""
        replies = {}
        for (n, _), reply in self.batches.run(list(enumerate(calls)), lambda item: len(item[1][0]),
                                              lambda items: self.reply_to_batch([call for _, call in items])):
            if isinstance(reply, InputError):
                raise reply
            replies[n] = reply
        return [replies[n] for n in range(len(calls))]

    def identity(self, document: Document) -> dict:
        """What is built depends on; its file says so. All lengths follow from the settings."""
        return {"method": type(self).__name__, "document": document.hash, "model": self.model.fingerprint,
                "settings": self.settings.construction_settings()}

    def code(self) -> str | None:
        return code_of_method(type(self))

    def prepare_all(self, documents, paths, progress=False):
        """Load what was built of each document, or build it and write it to its path; then make it ready.

        Replies about all documents share batches (core.together).
        """
        constructions = [(partial(self.content, document, path), Memory(self.file_name(document), path))
                         for document, path in zip(documents, paths, strict=True)]
        contents = together(constructions, self.batches, self.reply_to_batch, progress)
        return [content if isinstance(content, InputError) else self.made_ready(content, path or document.id)
                for content, path, document in zip(contents, paths, documents)]

    def content(self, document: Document, path: str | Path | None, ask) -> dict:
        """What was built of a document: from `path`, or built, with replies by `ask`, and written there."""
        if path is not None and Path(path).exists():
            return read_kept(path, self.wanted(document))

        self.begin(ask)
        content = self.build(document)
        content |= {"counts": self.counts, "flops": self.spent}
        if path is not None:
            write_kept(path, self.identity(document) | {"code": self.code()}, content)
        return content

    def made_ready(self, content: dict, where) -> Prepared | InputError:
        """What questions need; an InputError if the content of the file is not what was built."""
        before = self.flops()
        try:
            with reading(where, "not what was built from a document"):
                prepared = self.ready(content)
                prepared.flops = content["flops"] + self.flops() - before
                prepared.counts = content["counts"]
        except InputError as error:
            return InputError(str(error))
        return prepared

    def about(self):
        return {"trace": self.trace, "counts": self.counts}

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

        replies = [Reply(*reply) for reply in self.ask_model([[text, limit] for text in texts])]
        self.spent += sum(reply.flops for reply in replies)
        return [reply.text for reply in replies]

    def ask(self, texts: list[str], limit: int | None = None) -> list[str]:
        """The reply to each text, entered into the trace."""
        said = self.say(texts, limit or self.limit)
        self.trace += map(Said, said)
        self.counts["calls"] += len(said)
        return said

    def ask_until(self, prompt: str, texts: list[str], parse, wanted: str, limit: int | None = None) -> list:
        """Ask `prompt` about each text; return what parse(reply, text) finds. If that is nothing, the reply is refused.

        A prompt is asked three times at most. From the second time on, a line before it says what is `wanted`: decoding
        is greedy, so the same prompt would get the same reply.
        """
        found = [None] * len(texts)
        again = ""
        for _ in range(ATTEMPTS):
            left = [n for n, value in enumerate(found) if not value]
            for n, reply in zip(left, self.ask([again + prompt + texts[n] for n in left], limit)):
                found[n] = parse(reply, texts[n])
                self.counts["refused"] += not found[n]
            again = reminder(wanted)
        return found

    def ask_fitting(self, texts: Iterable[str], parse, wanted: str):
        """Ask with the first text that fits the window; if none fits, with the last. Return what parse(reply) finds."""
        for text in texts:
            if self.length(reminder(wanted) + text) + self.limit <= self.settings.window:
                break
        return self.ask_until("", [text], lambda reply, _: parse(reply), wanted)[0]


# --- trees of summaries ---------------------------------------------------------------------------------------------

class TreeNode(NamedTuple):
    level: int                    # 1: a passage of the document; higher: a summary
    text: str
    children: list[int]           # ids, in document order


class Tree(Agent):
    """A tree of summaries. A node's id is its index in the list of nodes, and levels come in order."""

    def ready(self, content):
        nodes = [TreeNode(*row) for row in content["nodes"]]
        return Prepared([node.text for node in nodes], graph=nodes)

    def summarise(self, nodes: list[TreeNode], groups: list[list[int]], prompt: str) -> list[TreeNode]:
        """The next level: a summary of each group of nodes.

        `prompt` asks for the summary; the nodes' texts replace its {}. If the model says nothing, the summary is the
        beginning of the texts, so that no node is empty.
        """
        sources = ["\n\n".join(nodes[i].text for i in group) for group in groups]
        said = self.say([prompt.format(source) for source in sources], self.limit)
        texts = [" ".join(reply.split()) or split(self.model.tokenizer, source, self.limit)[0]
                 for reply, source in zip(said, sources)]
        return [TreeNode(nodes[-1].level + 1, text, group) for text, group in zip(texts, groups)]
