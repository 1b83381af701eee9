"""Methods that ask the model in words: how they ask, how they read its replies, and what they build of a document.

What a method builds (a tree of summaries, a graph) is kept on disk, because the model took long to write it. Nothing is
lost in silence: replies that were refused, what was dropped from others, and replies at their limit are counted.
"""
import re
from collections.abc import Callable, Container, Generator, Iterable
from typing import NamedTuple

from baselines.common import Baseline, Reply, replies_to, scaled
from core.code import identity_of
from core.files import InputError, attempt
from core.settings import Settings
from core.text import split, words
from core.together import Batches, Construction, alone, batch_rows, together
from data import Document, Prepared
from llama import Llama

# --- reading replies ------------------------------------------------------------------------------------------------

# Each system reads the format that its prompt asks for: lines, cells between bars, texts behind labels. One list mark,
# bold type, quotes, and upper or lower case around a value are nothing. A parser lists what it finds, and None for each
# part of another form. A reply in which it finds nothing is refused.

MARK = r"(?:(?:[*+•-]|\d+[.)])\s+)?"                  # of a list
QUOTED = r"""["“]([^"“”]*)["”]|['‘]([^'‘’]*)['’]"""
NUMBER = r"\d*\.?\d+"


def form_of(text: str) -> str:
    """The form by which texts are compared: their words."""
    return " ".join(words(text))


def plain(text: str) -> str:
    """A value on one line, without bold type and the quotes around it."""
    text = " ".join(text.replace("**", "").split())
    quoted = re.fullmatch(QUOTED, text)
    return quoted[quoted.lastindex] if quoted else text


def lines_of(reply: str) -> list[str]:
    """The lines of a reply that are not empty, each once, without their list marks."""
    lines = (plain(re.sub(rf"\A{MARK}", "", plain(line))) for line in reply.splitlines())
    return list(dict.fromkeys(filter(None, lines)))


def cells_of(line: str) -> list[str]:
    """The values in a line "a | b"."""
    return list(filter(None, map(plain, line.split("|"))))


def fields_of(reply: str, labels: str) -> list[tuple[str, str]]:
    """(label in lower case, text) of each part of a reply that begins with a label, as "Label: text".

    `labels` is a regular expression. Text before the first label has the label "".
    """
    before, *parts = re.split(rf"(?im)^[ \t]*{MARK}\**({labels})\**:\**", reply)
    found = [("", before)] if before.strip() else []
    return found + [(label.lower(), text.strip()) for label, text in zip(parts[::2], parts[1::2])]


def rated(reply: str, form: str, names: Iterable[str]) -> list[tuple[str, float] | None]:
    """(name, number) for each line of this form, a regular expression with both, whose name is one of the names."""
    name_of = {form_of(name): name for name in names}
    lines = [re.fullmatch(form, line, re.IGNORECASE) for line in lines_of(reply)]
    return [(name_of[form_of(line[1])], float(line[2])) if line and form_of(line[1]) in name_of else None
            for line in lines]


def numbers_of(text: str, known: Container[int]) -> list[int | None]:
    """The `known` numbers in a text, each once, in the order of the text; None for others."""
    numbers = dict.fromkeys(map(int, re.findall(r"(?<!\d)\d{1,9}(?!\d)", text)))
    return [number if number in known else None for number in numbers]


def found_in(values: list) -> list:
    """The values that are not None."""
    return [value for value in values if value is not None]


# --- a method that asks ---------------------------------------------------------------------------------------------

# Goes before a prompt whose reply was refused. After the prompt it would look like document text.
AGAIN = "Your last reply could not be used. Keep strictly to the format that is described.\n\n"


class Talk:
    """What the model is asked about one document or for one question, and what became of its replies.

    `say` and `ask` are generators (core.together): they yield calls (text, limit) and are sent the replies.
    """
    fingerprint = ""              # for core.code: no result depends on what was asked before

    def __init__(self, agent: "Agent"):
        self.agent = agent
        self.trace = []                                     # the text of each reply, as {"text": ..}
        # Replies that were asked for; those without any wanted field; what others had and was not used; cut replies.
        self.counts = dict.fromkeys(("calls", "refused", "dropped", "cut"), 0)
        self.cost = 0                  # FLOPs of the replies; not `flops`, because Baseline.flops would add them again

    def say(self, texts: list[str], limit: int) -> Generator:
        """The reply, of up to `limit` tokens, to each text as a user's turn; InputError if the window has no room."""
        window = self.agent.settings.window
        for text in texts:
            length = self.agent.length(text)
            if length + limit > window:
                raise InputError(f"window {window} is too small: a prompt of {type(self.agent).__name__} takes "
                                 f"{length} tokens and its reply {limit}")

        replies = yield [(text, limit) for text in texts]
        replies = [Reply(*reply) for reply in replies]      # those from the disk are lists
        self.cost += sum(reply.flops for reply in replies)
        return replies

    def ask(self, prompt: str, texts: list[str], parse: Callable, limit: int | None = None) -> Generator:
        """Ask `prompt` about each text; return what parse(reply, text) finds, without its Nones.

        A None is something that is dropped, and so is the last of several lines if the limit cut it. A reply in which
        nothing is found is refused, and the prompt is asked once more below AGAIN: decoding is greedy, so the same
        prompt would get the same reply.
        """
        found = [[]] * len(texts)
        for again in ("", AGAIN):
            left = [n for n, values in enumerate(found) if not values]
            replies = yield from self.say([again + prompt + texts[n] for n in left], limit or self.agent.limit)
            for n, reply in zip(left, replies):
                text = reply.cut and reply.text.rpartition("\n")[0] or reply.text
                values = parse(text, texts[n])
                found[n] = found_in(values)
                if found[n]:
                    self.counts["dropped"] += len(values) - len(found[n]) + (text != reply.text)
                self.note(reply, not found[n])
        return found

    def note(self, reply: Reply, refused: bool):
        self.trace.append({"text": reply.text})
        self.counts["calls"] += 1
        self.counts["cut"] += reply.cut
        self.counts["refused"] += refused


class Agent(Baseline):
    """A method that builds something of a document by asking the model, once, and answers from it.

    A subclass defines `read` (see Baseline) and
        build(document, talk)           a generator: it asks with `yield from talk.ask(...)`, and returns what is built,
                                        in JSON's types
        ready(content) -> Prepared      the same in the form that questions need; an encoder may do some work
    """
    only_read = ()                # names of the attributes that building does not need
    at_once = 1                   # an answer took long; a kill must not lose it
    instructed = True             # whether the model must follow instructions; RAPTOR only asks for summaries
    reply_tokens = 512            # before scaling; GraphReader's Figure 10 then fits its paper's window of 4096

    def __init__(self, model: Llama, settings: Settings):
        super().__init__(model, settings)
        if self.instructed and not settings.instructions:
            raise InputError(f"{type(self).__name__} asks in words, and this checkpoint follows no instructions but "
                             "PECAN's (its pecan.json says so)")
        self.limit = scaled(self.reply_tokens, settings)
        self.asking = Batches(batch_rows(settings, model.device.type))
        self.talk = Talk(self)                              # for the question that is read

    def replies_to(self, calls: list) -> list[Reply]:
        """The replies to calls (text, limit); those with the same limit run together."""
        replies = {}
        for limit in {limit for _, limit in calls}:
            some = [call for call in calls if call[1] == limit]
            prompts = [[(None, self.turn(text))] for text, _ in some]
            replies |= zip(some, replies_to(self.model, prompts, limit))
        return [replies[call] for call in calls]

    def identity(self, document):
        """A construction depends on the class, on all that it holds but `only_read`, and on the document's text.

        A subclass that builds by something else, too, such as its questions, says so here.
        """
        parts = vars(self) | {"settings": self.settings.construction_settings()}
        return {"document": document.hash} | identity_of(
            method=type(self), parts={name: part for name, part in parts.items() if name not in self.only_read})

    def construct(self, document: Document) -> Generator:
        """Build something of a document, in the form of its file."""
        talk = Talk(self)
        built = yield from self.build(document, talk)
        return built | {"counts": talk.counts, "flops": talk.cost}

    def prepare_all(self, documents, paths, progress=False):
        """Load what was built of each document, or build it and write it to its path; then make it ready."""
        contents = together([Construction(self.construct(document), path, self.identity(document))
                             for document, path in zip(documents, paths, strict=True)],
                            self.asking, self.replies_to, progress)
        return [content if isinstance(content, InputError) else attempt(self.ready_with_cost, content)
                for content in contents]

    def ready_with_cost(self, content):
        prepared = super().ready_with_cost(content)
        prepared.flops += content["flops"]
        prepared.counts |= content["counts"]
        return prepared

    def find(self, prepared, question):
        self.talk = Talk(self)
        answer, reading = super().find(prepared, question)
        answer.trace = self.talk.trace
        answer.counts = self.talk.counts
        return answer, reading

    def ask(self, *arguments) -> list[list]:
        """What `Talk.ask` finds, for the question that is read."""
        return alone(self.talk.ask(*arguments),
                     lambda calls: self.asking.all(calls, lambda call: len(call[0]), self.replies_to))

    def turn(self, text: str) -> list[int]:
        """Token ids of a user's turn that says `text`, up to the start of the assistant's."""
        tokenizer = self.model.tokenizer
        return [*tokenizer.frame.before_user, *tokenizer.user(text), *tokenizer.frame.before_reply]

    def length(self, text: str) -> int:
        return len(self.turn(text))

    def ask_fitting(self, texts: Iterable[str], parse) -> list:
        """Ask with the first text that fits the window; if none fits, with the last."""
        for text in texts:
            if self.length(AGAIN + text) + self.limit <= self.settings.window:
                break
        return self.ask("", [text], parse)[0]


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

    def summarise(self, nodes: list[TreeNode], groups: list[list[int]], prompt: str, talk: Talk) -> Generator:
        """The next level: a summary of each group of nodes.

        `prompt` asks for the summary; the nodes' texts replace its {}. If the model says nothing, the summary is the
        beginning of the texts, so that no node is empty, and the reply counts as refused.
        """
        sources = ["\n\n".join(nodes[i].text for i in group) for group in groups]
        replies = yield from talk.say([*map(prompt.format, sources)], self.limit)
        found = []
        for reply, source, group in zip(replies, sources, groups):
            text = " ".join(reply.text.split())
            talk.note(reply, not text)
            text = text or split(self.model.tokenizer, source, self.limit)[0]
            found.append(TreeNode(nodes[-1].level + 1, text, group))
        return found
