"""The whole document in one pass: the row "Llama-3.1-8B" of Table 1.

The document goes into Table A2's conversation in the place of PECAN's nodes, one passage a line, so that the reader's
prompt is the same for both. What does not fit the window is cut out of the middle, as LongBench does (Bai et al.
2024b). No check is made: the first assistant turn is given as "Yes".
"""
from pathlib import Path

from data import Document
from llama import Cache, Llama
from pecan import Answer, Settings, answer_pieces, node_pieces, question_pieces, size


class Whole:
    """Prepare a document (its tokens; costs nothing), answer a question (one pass over all of them)."""

    def __init__(self, model: Llama, encoder, settings: Settings):
        self.model, self.settings = model, settings

    def key(self, document: Document) -> str | None:
        """Nothing is kept on disk."""
        return None

    def prepare(self, document: Document, path: str | Path | None = None, progress: bool = False) -> "Tokens":
        lines = [node_pieces(self.model.tokenizer, None, " ".join(text.split())) for text in document.passages]
        return Tokens([i for line in lines for _, ids in line for i in ids])

    def answer(self, prepared: "Tokens", question: str) -> Answer:
        model, settings, flops = self.model, self.settings, self.model.flops
        opening = question_pieces(model.tokenizer, question)
        turn = answer_pieces(model.tokenizer, model.tokenizer.first("Yes"))
        ids = cut_middle(prepared.ids, settings.window - size(opening) - size(turn) - settings.answer_tokens)
        cache = Cache(model, 1, settings.window)
        hidden, _ = model.read(cache, [[*opening, (None, ids), *turn]])
        said = model.generate(cache, hidden, settings.answer_tokens)[0][0]
        tokens = size(opening) + len(ids) + size(turn) + len(said)
        return Answer(model.tokenizer.decode(said).strip(), [], model.flops - flops, tokens,
                      cut=len(ids) < len(prepared.ids))


class Tokens:
    """The document as token ids."""
    flops = 0

    def __init__(self, ids: list[int]):
        self.ids = ids


def cut_middle(ids: list[int], room: int) -> list[int]:
    """At most `room` ids: the first half and the last half of the room."""
    return ids if len(ids) <= room else ids[:(room + 1) // 2] + ids[len(ids) - room // 2:]
