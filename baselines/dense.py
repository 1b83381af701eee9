"""Dense retrieval over chunks of the joined text (common.joined_chunks): SBERT and Dragon.

SBERT (Reimers and Gurevych 2019) and Dragon (Lin et al. 2023) differ only in their encoders (encoders/sbert.py). SBERT
has one encoder for questions and chunks; its vectors have length 1, so the dot product is the cosine. Dragon has an
encoder for questions and another for chunks, and its vectors are not normalised.

If no encoders are given, the mean of the model's own embeddings replaces them, normalised for SBERT only. Then the rows
say nothing about SBERT or Dragon.
"""
from baselines.common import Baseline, closeness, highest, joined_chunks
from core.settings import Settings
from data import Prepared
from llama import Llama


class Dense(Baseline):
    """Read the `top_k` chunks whose vectors have the largest dot product with the question's, the best first.

    Ties go to the earlier chunk. SBERT passes the same encoder twice.
    """

    def __init__(self, model: Llama, question_encoder, chunk_encoder, settings: Settings, top_k: int = 5):
        super().__init__(model, settings)
        self.question_encoder = question_encoder
        self.chunk_encoder = chunk_encoder
        self.top_k = top_k

    def ready(self, document):
        """Embed the chunks (`index`, [n, D])."""
        texts = joined_chunks(self.model.tokenizer, document, self.settings.chunk)
        return Prepared(texts, index=self.chunk_encoder.encode(texts), counts=self.chunk_encoder.cut(texts))

    def read(self, prepared, question):
        order = highest(closeness(self.question_encoder, prepared, question), self.top_k)
        return self.reading_of_best(question, prepared.texts, order)
