"""What all compared methods share: how they prepare and answer, the reader, and ways to cut a document.

Rows of a table differ only in their method. Every method answers in the conversation of Table A2, and what it found
replaces PECAN's nodes. Forward pass and FLOP counter are the same, and so is the window; only the whole document has a
longer one.
"""
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from core.files import InputError, attempt
from core.settings import Settings
from core.text import STOPS, fill, sentences, split
from core.together import Batches, batch_rows
from data import Answer, Document, Method, Prepared
from encoders.sbert import similarities
from llama import Cache, Llama, Segment, flops_of_reply, ids_of, length_of
from pecan import answer_turn, chunks, node_line, question_prompt, room_for_nodes

HEADING = 12                      # words of a heading at most
READERS = 8                       # rows on a processor: readers write little, and more rows leave its caches
NO_HEADING = ".!?:;,\"'”’：；，、」』" + STOPS            # ends a line that is no heading
NOTHING = "nothing was found to answer from"


def scaled(tokens: int, settings: Settings) -> int:
    """A length in tokens from a method's paper or code, scaled to the size of our chunks.

    Published lengths are for large models, like PECAN's chunks of 300 tokens. Small models have smaller chunks, so
    every length is scaled as the chunk is.
    """
    return max(1, tokens * settings.chunk // 300)


def highest(scores, most: int, among: Iterable[int] | None = None) -> list[int]:
    """The indices of the `most` highest scores, best first; ties go to the lower index.

    `scores` is a list, or a dict from indices. `among`: only these indices (None: all).
    """
    return sorted(range(len(scores)) if among is None else among, key=lambda i: (-scores[i], i))[:most]


class Reply(NamedTuple):
    """The model's words after a prompt, and their cost."""
    text: str
    flops: int
    tokens: int                   # of the prompt and the reply
    cut: bool = False             # at its limit


def replies_to(model: Llama, prompts: list[list[Segment]], limit: int) -> list[Reply]:
    """The greedy reply, of up to `limit` tokens, to each prompt; they run together."""
    cache = Cache(model, len(prompts), max(map(length_of, prompts)) + limit)
    hidden, _ = model.read(cache, prompts)
    replies, _ = model.generate(cache, hidden, limit)

    # The token at the limit does not run (Llama.generate).
    return [Reply(model.tokenizer.reply(ids), flops_of_reply(model.config, length_of(prompt), min(len(ids), limit - 1)),
                  length_of(prompt) + len(ids), len(ids) == limit) for prompt, ids in zip(prompts, replies)]


class Reading(NamedTuple):
    """The part of a document that the reader gets for a question."""
    prompt: list[Segment]         # the conversation of Table A2 up to the answer
    nodes: list[int] = ()         # see data.Answer
    cut: bool = False


class Baseline(Method):
    """A method that counts the FLOPs of the models that it holds: its model, encoders, a scorer.

    A subclass defines two methods, and what they cost is added:
        ready(document) -> Prepared                         the document made ready for its questions
        read(prepared, question) -> Reading | None          None if there is nothing to answer from
    """
    at_once = None                # questions whose readers run together; None: as many as a batch has rows

    def __init__(self, model: Llama, settings: Settings):
        self.model = model
        self.settings = settings
        self.batches = Batches(batch_rows(settings, model.device.type, READERS))

    def prepare_all(self, documents, paths, progress=False):
        return [attempt(self.ready_with_cost, document) for document in documents]

    def ready_with_cost(self, content) -> Prepared:
        """The result of `ready`, with its cost."""
        before = self.flops()
        prepared = self.ready(content)
        prepared.flops = self.flops() - before
        return prepared

    def answer(self, prepared: Prepared, question: str) -> Answer:
        [(_, answer)] = self.answer_all([(prepared, question)])
        if isinstance(answer, InputError):
            raise answer
        return answer

    def answer_all(self, asked):
        """Answers with all FLOPs and tokens. What is read for a question is found alone; the readers run together."""
        waiting = []                                        # (n, its answer without text, its prompt)
        for n, (prepared, question) in enumerate(asked):
            found = attempt(self.find, prepared, question)
            if isinstance(found, InputError):
                yield n, found
            elif found[0].end == NOTHING:
                yield n, found[0]
            else:
                waiting.append((n, *found))
            if len(waiting) == (self.at_once or self.batches.rows):
                yield from self.read_together(waiting)
                waiting = []
        yield from self.read_together(waiting)

    def find(self, prepared: Prepared, question: str) -> tuple[Answer, list[Segment]]:
        """The answer without its text, and the prompt that asks for it; [] if there is nothing to answer from."""
        flops = self.flops()
        tokens = self.model.tokens
        prompt, nodes, cut = self.read(prepared, question) or Reading([])
        answer = Answer("", list(nodes), self.flops() - flops, self.model.tokens - tokens, cut=cut)
        if not prompt:
            answer.end = NOTHING
        return answer, prompt

    def read_together(self, waiting: list) -> Iterable:
        """Yield (n, answer) for all that are waiting."""
        def replies(some):
            return replies_to(self.model, [prompt for *_, prompt in some], self.settings.answer_tokens)

        for (n, answer, _), reply in self.batches.run(waiting, lambda item: length_of(item[2]), replies):
            if isinstance(reply, InputError):
                answer = reply
            else:
                answer.text = reply.text.strip()
                answer.flops += reply.flops
                answer.tokens += reply.tokens
                answer.counts["thinking"] = int(reply.cut and not reply.text)
            yield n, answer

    def flops(self) -> int:
        """FLOPs spent so far by the model, encoders and other models; only they have both attributes."""
        models = {part for part in vars(self).values() if hasattr(part, "flops") and hasattr(type(part), "fingerprint")}
        return sum(model.flops for model in models)

    # --- the reader

    def reading(self, question: str, lines: list[int], *about) -> Reading:
        """The reading of lines, given as token ids. There is no check: the first assistant turn is "Yes"."""
        tokenizer = self.model.tokenizer
        return Reading([*question_prompt(tokenizer, question), (None, lines),
                        *answer_turn(tokenizer, tokenizer.first("Yes"), self.settings.again(question))], *about)

    def reading_of_best(self, question: str, texts: list[str], order: Iterable[int]) -> Reading:
        """The reading of the texts at these indices, the best first; its `nodes` are those that fit the window.

        The papers do not say in which order to read; RAPTOR's retrievers put the best first. InputError if there are
        texts, but none that fits.
        """
        lines = self.lines_that_fit(texts, order, self.room(question))
        if order and not lines:
            raise InputError(f"window {self.settings.window} is too small for what was found")
        return self.reading(question, [*chain(*lines.values())], list(lines))

    def room(self, question: str) -> int:
        """The tokens that texts may take after the question's prompt."""
        tokenizer = self.model.tokenizer
        return room_for_nodes(tokenizer, question_prompt(tokenizer, question), question, self.settings)

    def lines_that_fit(self, texts: list[str], order: Iterable[int], room: int) -> dict[int, list[int]]:
        """Index -> line, as token ids, of the texts at these indices. A text that does not fit is skipped."""
        lines = {}
        for i in order:
            line = line_ids(self.model.tokenizer, texts[i])
            if len(line) <= room:
                lines[i] = line
                room -= len(line)
        return lines


def closeness(encoder, prepared: Prepared, query: str) -> list[float]:
    """The dot products of a query's vector with those of the prepared texts (`index`, [n, D])."""
    return similarities(prepared.index, encoder.encode([query])[0]).tolist()


def line_ids(tokenizer, text: str) -> list[int]:
    """Token ids of a text's line in the reader's prompt: the line that PECAN gives a node."""
    return ids_of(node_line(tokenizer, None, " ".join(text.split())))


# --- cutting a document ----------------------------------------------------------------------------------------------

def joined_chunks(tokenizer, document: Document, most: int) -> list[str]:
    """Chunks of at most `most` tokens, cut like PECAN's, but from the joined text: one may hold parts of two passages.

    The paper's retrieval must have read such chunks. By the TFLOPs of its Table 1, a further chunk costs 273 to 288
    tokens on MuSiQue, whose paragraphs have 113. (On HotpotQA 164 to 182: documents end after about five.)
    """
    return chunks(tokenizer, replace(document, passages=["\n".join(document.passages)]), most)


def units(document: Document) -> list[str]:
    """The parts of a document that a chunk should not break: its passages, cut at empty lines.

    A heading stays with the part that follows it. A heading is a single line of at most HEADING words that does not end
    with a stop.
    """
    found = []
    after_heading = False
    for passage in document.passages:
        for unit in filter(None, re.split(r"\n\s*\n", passage.strip())):
            if after_heading:
                found[-1] += f"\n{unit}"
            else:
                found.append(unit)
            after_heading = "\n" not in unit and len(unit.split()) <= HEADING and unit[-1] not in NO_HEADING
    return found


def pack_sentences(tokenizer, document: Document, limit: int) -> list[str]:
    """Passages of whole sentences, each with as many as `limit` tokens hold.

    Only a sentence longer than the limit is cut, at white space. Sentences of different units may share a passage,
    because the methods that use them were written for a single text.
    """
    parts = [part for unit in units(document) for sentence in sentences(unit)
             for part in split(tokenizer, sentence, limit)]
    return fill(tokenizer, parts, limit, " ")


def pack_paragraphs(tokenizer, document: Document, limit: int) -> list[str]:
    """Chunks of whole units, each with as many as `limit` tokens hold. A unit longer than that is cut at sentences."""
    parts = []
    for unit in units(document):
        fits = len(tokenizer.encode(f"\n{unit}")) <= limit
        parts += [unit] if fits else pack_sentences(tokenizer, Document("", [unit]), limit)
    return fill(tokenizer, parts, limit, "\n")
