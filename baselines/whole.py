"""The whole document in one pass.

Table 1's row "Llama-3.1-8B" gives the model 100K tokens; eval.py gives it as many, or as many as it was made for where
those are fewer, unless `--window` asks for another number. The document goes into the reader's prompt one passage a
line. What does not fit is cut out of the middle, as LongBench does (Bai et al. 2024b), and the document counted as cut.
"""
from pathlib import Path

from baselines.common import line, read
from data import Document
from llama import Llama
from pecan import room_for_nodes
from support.method import Answer, Prepared
from support.settings import Settings


class Whole:
    """Prepare a document (its tokens; costs nothing), answer a question (one pass over all of them)."""

    def __init__(self, model: Llama, settings: Settings):
        self.model, self.settings = model, settings

    def file_name(self, document: Document) -> str | None:
        """Nothing is kept on disk."""
        return None

    def prepare(self, document: Document, path: str | Path | None = None, progress: bool = False) -> Prepared:
        """`index` is the token ids of all lines."""
        lines = [line(self.model.tokenizer, text) for text in document.passages]
        return Prepared(document.passages, index=[i for ids in lines for i in ids])

    def answer(self, prepared: Prepared, question: str) -> Answer:
        ids = cut_middle(prepared.index, room_for_nodes(self.model.tokenizer, question, self.settings))
        answer = read(self.model, question, ids, self.settings)
        answer.cut = len(ids) < len(prepared.index)
        return answer


def cut_middle(ids: list[int], room: int) -> list[int]:
    """At most `room` ids: the first half and the last half of the room."""
    return ids if len(ids) <= room else ids[:(room + 1) // 2] + ids[len(ids) - room // 2:]
