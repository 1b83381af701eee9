"""The whole document in one pass.

Table 1's row "Llama-3.1-8B" gives the model all it can hold (100K tokens); here the window is that of the other
methods unless `--window` says otherwise, and a document that is cut is counted. The document goes into Table A2's
conversation in the place of PECAN's nodes, one passage a line, so that the reader's prompt is the same. What does not
fit is cut out of the middle, as LongBench does (Bai et al. 2024b). No check is made: the first assistant turn is
given as "Yes".
"""
from dataclasses import dataclass
from pathlib import Path

from data import Document
from llama import Cache, Llama
from pecan import Answer, Settings, answer_pieces, node_pieces, question_pieces, room_for_nodes, size


@dataclass
class Tokens:
    """A document as the token ids of its lines."""
    ids: list[int]
    flops: int = 0


class Whole:
    """Prepare a document (its tokens; costs nothing), answer a question (one pass over all of them)."""

    def __init__(self, model: Llama, encoder, settings: Settings, builder=None):
        self.model, self.settings = model, settings

    def key(self, document: Document) -> str | None:
        """Nothing is kept on disk."""
        return None

    def prepare(self, document: Document, path: str | Path | None = None, progress: bool = False) -> Tokens:
        lines = [node_pieces(self.model.tokenizer, None, " ".join(text.split())) for text in document.passages]
        return Tokens([i for line in lines for _, ids in line for i in ids])

    def answer(self, prepared: Tokens, question: str) -> Answer:
        model, tokenizer, flops = self.model, self.model.tokenizer, self.model.flops
        ids = cut_middle(prepared.ids, room_for_nodes(tokenizer, question, self.settings))
        prompt = [*question_pieces(tokenizer, question), (None, ids), *answer_pieces(tokenizer, tokenizer.first("Yes"))]
        cache = Cache(model, 1, size(prompt) + self.settings.answer_tokens)
        hidden, _ = model.read(cache, [prompt])
        said = model.generate(cache, hidden, self.settings.answer_tokens)[0][0]
        return Answer(tokenizer.decode(said).strip(), [], model.flops - flops, size(prompt) + len(said),
                      cut=len(ids) < len(prepared.ids))


def cut_middle(ids: list[int], room: int) -> list[int]:
    """At most `room` ids: the first half and the last half of the room."""
    return ids if len(ids) <= room else ids[:(room + 1) // 2] + ids[len(ids) - room // 2:]
