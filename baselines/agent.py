"""Methods that ask the model in words: how they ask, how they read its replies, and what they build of a document.

What a method builds (a tree of summaries, a graph) is kept on disk, because the model took long to write it. Nothing is
lost in silence: replies that were refused, what was dropped from others, and replies at their limit are counted.
"""
import re
from collections.abc import Callable, Container, Generator, Iterable
from typing import NamedTuple

from baselines.common import Baseline, Reply, replies_to, scaled
from core.code import code_of_method
from core.files import InputError, attempt
from core.outline import MARKER
from core.settings import Settings
from core.text import split
from core.together import Batches, Construction, alone, batch_rows, together
from data import Document, Prepared
from llama import Llama

# --- reading replies ------------------------------------------------------------------------------------------------

# What all replies have in common. A reply is lines. What a model puts around its words is no content: a fence, the
# mark of a heading, a quotation or a list, the edge of a table, bold type, quotes and brackets around a value.
# Typographic signs are straight ones, and <br> ends a line. An empty line, a rule and what is repeated are nothing. The
# prompt's own words (examples, placeholders) are no content either, unless the text says the same.
#
# Each system says which fields it wants, in the format of its paper: lines, cells between bars, texts behind labels.
# Its parser lists what it finds, and None for what it drops. A reply without any field is refused.

STRAIGHT = str.maketrans("‘’‛“”„‟‐‑–—−：；｜？\u00a0", "'''\"\"\"\"-----:;|? ")
HEADER = r"(?m)^.*\n[ :|-]*\|[ :|-]*$"                # of a table, with the line below it

# Each pattern takes linear time in any reply. Decoration begins a line, or touches a word on one side only.
DECORATION = r"^[#> ]*+(?=\S)|(?<![^\W_])[*_`]++(?=\S)|(?<=\S)[*_`]++(?![^\W_])"
MARK = rf"\A(?:{MARKER.pattern})?(?:\s*\(?[a-zA-Z]\)\s|\W{{0,4}}\d{{1,3}}\s?[]),.:|*]{{1,5}}(?:\s|(?=\[)))?"
RATING = r"(?:relevance )?(?:score|weight)"
NUMBER = r"-?\d*\.?\d+"
COMMA = r"(?<!\b\d)(?<!\b\d\d),(?!\d{3}\b)|,(?!\s?\d{3,4}\b)|;|''"       # not the comma of a date or a number
BAR = r"(?:\]\W{0,4}|[,;|]\s*|^)\[|\[(?=[^][]*\]\W*$)|\|"       # or the beginning of a value in brackets

# A model that has nothing to say: "unknown", "same as before", or one sentence such as "The text does not
# mention it". "The same year as Ann" says something.
NOTHING = r"""(?isx) \W*+ (?: (?: n/?a | none | nothing | unknown | unclear | tbd ) \W* \Z
    | (?: (?: (?:the\ |my\ |updated\ )* notebook | it )\ (?:remains?|stays?|is)\ )? (?:the\ )? (?:same|unchanged)
      (?:\ notebook)? (?: \ as\ .{0,30} \b (?:before|above|earlier|previous\w*|last) \b .{0,30} )? \W* \Z
    | (?= [^.!?\n]*+ \W* \Z ) .* \b (?: no | not | nothing | nobody | cannot | lacks? | insufficient | \w+n't ) \b
      (?: \s\w+ ){0,3} \s (?: new | change[sd]? | updates? | to\ add | know[ns]? | says? | state[sd]? | mention\w*
      | given | provided? | information | specified | enough | found | available | determined | derived
      | answer(?:ed)? | additional | applicable | in\ the\ (?:knowledge|text|chunk|passage)
      | (?:sure|clear)(?=\W*\Z|\ (?:wh|how|if|from|in)) ) )"""


def form_of(text: str) -> str:
    """The form by which texts are compared: words in lower case."""
    return " ".join(re.findall(r"\w+", text.lower()))


def holds(text: str, phrase: str) -> bool:
    """Whether a text holds a phrase as whole words, in upper or lower case, with any punctuation."""
    return f" {form_of(phrase)} " in f" {form_of(text)} "


def echoes(value: str, prompt: str, text: str = "") -> bool:
    """Whether a value is only the prompt's own words, and the text has nothing of the kind."""
    return holds(prompt, value) and not holds(text, value)


def says_nothing(value: str) -> bool:
    return bool(re.match(NOTHING, value))


def plain(text: str) -> str:
    """A value on one line, without the signs around it that separate, quote or bracket it; "" for signs alone."""
    text = " ".join(text.split()).strip(" *_`,;|").rstrip(" ([{-")
    inner = re.fullmatch(r"""\[+([^][]*)\]*|([^][]*)\]+|"([^"]*)"\W*|'([^']*)'""", text)
    if inner:
        return plain(inner[inner.lastindex])
    return text if re.search(r"\w", text) else ""


def lines_of(reply: str) -> list[str]:
    """The lines of a reply without marks, in the order of the reply; "" for a line without words."""
    text = re.sub(r"(?m)^\s*(?:```|~~~).*$|<br */?>", "\n", reply.replace("\\", "").translate(STRAIGHT))
    lines = [re.sub(MARK, "", re.sub(DECORATION, "", line)).strip() for line in text.splitlines()]
    return [line if re.search(r"\w", line) else "" for line in lines]


def items_of(reply: str, content=lambda line: False) -> list[str]:
    """The lines of a list. The header of a table introduces others, and so does a line that ends with a colon, unless
    it is `content`."""
    lines = lines_of(re.sub(HEADER, "", reply))
    return [line for line in lines if line and (not line.endswith(":") or content(line))]


def cells_of(line: str, between: str = BAR) -> list[str]:
    """The values in a line, between bars or in brackets: "a | b" or "[a], [b | c]"."""
    return list(filter(None, map(plain, re.split(between, line))))


def listed(text: str) -> list[str]:
    """The values in a list such as "a, b; and c"."""
    return cells_of(text, rf"(?:{COMMA}|\A)(?:\s*and\s)?")


def fields_of(reply: str, labels: str) -> list[tuple[str, str]]:
    """(label in lower case, text) of each labelled part of a reply. `labels` is a regular expression.

    A label begins a line, or stands behind a sign, before a colon, a dash, a bracket, a bar or the line's end:
    "2. Score 1: 9", "[Score] 9", "### Score", "Node: x, Score: 9". Text before the first label, and behind an empty
    line after the last one, has the label "".
    """
    label = (rf"(?:^\W{{0,9}}|(?<=[][\",;.?!|()-])\s{{0,3}})({labels})"
             r"(?: ?\d{1,3})?(?: ?\([^()]{0,40}\))?[^\w\n:]{0,9}")
    *parts, last = re.split(rf"(?im){label}(?::|(?<=[]|-])\s|$)", "\n".join(lines_of(reply)))
    said, _, rest = last.strip().partition("\n\n")
    parts = ["", *parts, said, "", rest]
    return [(name.lower(), text.strip()) for name, text in zip(parts[::2], parts[1::2])
            if name or re.search(r"\w[^:]*\s*\Z", text)]


def rated(reply: str, names: Iterable[str]) -> list[tuple[str, float] | None]:
    """(name, number) for each line that says one of the names, then a number; None for others.

    For example "Node: x, Score: 9", "x | 0.3", "x: 9 of 10" (9). A line "Score: 9" goes on with the line before it. The
    longest name counts, and the first number behind a sign, or else the first one; a year is none. Names alone,
    one or several in a line, have the number 0, so they come after all others.
    """
    name_of = {form_of(name): name for name in names}
    lines = "\n".join(items_of(reply, lambda line: form_of(line) in name_of))
    found = []
    for line in dict.fromkeys(re.sub(rf"(?i)\n(?={RATING}\b[^\w\n]*(?:[:=]|-\s))", " ", lines).splitlines()):
        said = form_of(re.sub(r"(?i)^\W*(?:starting )?node\W*(?:\d+\W*:)?", "", line)) + " "
        form = max((form for form in name_of if said.startswith(form + " ")), key=len, default="")
        rest = re.split("(?i)" + r"\W+".join(form.split()) + rf"\b(?:.*?{RATING}\b)?", line, maxsplit=1)[-1]
        numbers = re.findall(rf"(?:\A|[|:,;=(])[^\w|:,;=(]*?({NUMBER})", rest) or re.findall(NUMBER, rest)
        numbers = [number for number in map(float, numbers) if abs(number) < 1000]
        alone = [form] if said == form + " " else map(form_of, listed(line))
        if form and numbers:
            found.append((name_of[form], numbers[0]))
        else:
            names = list(map(name_of.get, alone))
            found += [(name, 0.0) for name in names] if all(names) else [None]
    return found


def own_lines(text: str, prompt: str) -> list[str | None]:
    """The lines of a free text; None for each that is a sentence of the prompt."""
    return [None if echoes(line, prompt) and len(line.split()) > 3 else line for line in lines_of(text) if line]


def numbers_of(text: str, known: Container[int]) -> list[int | None]:
    """The `known` numbers in a text, each once, in the order of the text; None for others. "2-4" is 2, 3, 4."""
    text = re.sub(r"\b(\d{1,3})(?: ?- ?| to )(\d{1,3})\b",
                  lambda ends: str([*range(int(ends[1]), int(ends[2]) + 1)] if int(ends[2]) in known else ends[0]),
                  text.translate(STRAIGHT))
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

    def __init__(self, agent: "Agent"):
        self.agent = agent
        self.trace = []                                     # the text of each reply, as {"text": ..}
        # Replies that were asked for; those without any wanted field; what others had and was not used; cut replies.
        self.counts = dict.fromkeys(("calls", "refused", "dropped", "cut"), 0)
        self.flops = 0                                      # of the replies

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
        self.flops += sum(reply.flops for reply in replies)
        return replies

    def ask(self, prompt: str, texts: list[str], parse: Callable, limit: int | None = None) -> Generator:
        """Ask `prompt` about each text; return what parse(reply, text) finds, without its Nones.

        A None is something that is dropped, and so is the last of several lines if the limit cut it, unless nothing is
        found in the others. A reply in which nothing is found is refused, and the prompt is asked once more below
        AGAIN: decoding is greedy, so the same prompt would get the same reply.
        """
        found = [[]] * len(texts)
        for again in ("", AGAIN):
            left = [n for n, values in enumerate(found) if not values]
            replies = yield from self.say([again + prompt + texts[n] for n in left], limit or self.agent.limit)
            for n, reply in zip(left, replies):
                whole = reply.text.rpartition("\n")[0] if reply.cut else ""
                for text in (whole, reply.text, whole) if whole else [reply.text]:      # what a parser keeps is whole
                    values = parse(text, texts[n])
                    found[n] = found_in(values)
                    if found[n]:
                        self.counts["dropped"] += len(values) - len(found[n]) + (text != reply.text)
                        break
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
        make(content) -> Prepared       the same in the form that questions need; an encoder may do some work
    """
    at_once = 1                   # an answer took long; a kill must not lose it
    instructed = True             # whether the model must follow instructions; RAPTOR only asks for summaries
    reply_tokens = 512            # before scaling; GraphReader's Figure 10 then fits its paper's window of 4096

    def __init__(self, model: Llama, settings: Settings, **others):
        super().__init__(model, settings, **others)
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

    def identity(self, document: Document) -> dict:
        """What is built depends on; its file says so. All lengths follow from the settings."""
        return {"method": type(self).__name__, "document": document.hash, "model": self.model.fingerprint,
                "settings": self.settings.construction_settings(), "code": code_of_method(type(self))}

    def construct(self, document: Document) -> Generator:
        """What is built of a document, as its file holds it."""
        talk = Talk(self)
        built = yield from self.build(document, talk)
        return built | {"counts": talk.counts, "flops": talk.flops}

    def prepare_all(self, documents, paths, progress=False):
        """Load what was built of each document, or build it and write it to its path; then make it ready."""
        contents = together([Construction(self.construct(document), path, self.identity(document))
                             for document, path in zip(documents, paths, strict=True)],
                            self.asking, self.replies_to, progress)
        return [content if isinstance(content, InputError) else attempt(self.prepared, content)
                for content in contents]

    def prepared(self, content):
        made = super().prepared(content)
        made.flops += content["flops"]
        made.counts = content["counts"]
        return made

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

    def make(self, content):
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
