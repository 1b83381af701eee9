"""Dense retrieval over the chunks that PECAN's graph has at its bottom: SBERT (Reimers and Gurevych 2019) and Dragon
(Lin et al. 2023), which differ by their encoders alone (sbert.py).

SBERT has one encoder for questions and chunks, whose unit vectors make the dot product the cosine. Dragon has one for
each and takes the dot product as it is. Where no encoders are given, the mean of the model's own embeddings stands in,
for SBERT at length 1, for Dragon as it is: those rows tell of that, and of neither. Only what is retrieved is read, the
best first.
"""
from pathlib import Path

from baselines.common import read_best
from data import Document
from llama import Llama
from pecan import chunks
from support.method import Answer, Prepared
from support.sbert import similarities
from support.settings import Settings


class Dense:
    """Read the `top` chunks whose vectors have the largest dot product with the question's; of equal ones the
    earlier."""

    def __init__(self, model: Llama, questions, passages, settings: Settings, top: int = 5):
        self.model, self.questions, self.passages = model, questions, passages
        self.settings, self.top = settings, top

    def file_name(self, document: Document) -> str | None:
        """Nothing is kept on disk: a document is embedded once for all its questions."""
        return None

    def prepare(self, document: Document, path: str | Path | None = None, progress: bool = False) -> Prepared:
        """`index` is the chunks' vectors [n, D]."""
        texts = chunks(self.model.tokenizer, document, self.settings.chunk)
        flops = self.passages.flops
        vectors = self.passages.encode(texts)
        return Prepared(texts, self.passages.flops - flops, index=vectors)

    def answer(self, prepared: Prepared, question: str) -> Answer:
        flops = self.questions.flops
        scores = similarities(prepared.index, self.questions.encode([question])[0])        # [n]
        order = scores.argsort(descending=True, stable=True)[:self.top].tolist()
        answer = read_best(self.model, question, prepared.texts, order, self.settings)
        answer.flops += self.questions.flops - flops
        return answer
