"""BM25 (Robertson and Zaragoza 2009) over chunks of the joined text (common.joined_chunks).

This is Okapi's formula with the constants of the package rank_bm25. PECAN does not say what a word
is; here core.text.words does. Retrieval costs no FLOPs, because it has no matrix product.
"""
import math
from collections import Counter

from baselines.common import Baseline, highest, joined_chunks
from core.settings import Settings
from core.text import words
from data import Prepared
from llama import Llama

K1 = 1.5
B = 0.75
EPSILON = 0.25


class Okapi:
    """Scores n texts t, given as lists of words, for a query.

        score(t) = sum over the words w of the query of  idf(w) f (k1 + 1) / (f + k1 (1 - b + b |t| / mean |t|))

    f is how often w occurs in t. If n_w of the n texts contain w, idf(w) = ln(n - n_w + .5) - ln(n_w + .5). This is
    negative for a word of more than half of the texts. Such a word gets epsilon times the mean of all these values.
    """

    def __init__(self, texts: list[list[str]]):
        self.counts = [Counter(text) for text in texts]                   # f of each word, text by text

        # The part of the denominator that depends only on the length of the text.
        mean = sum(map(len, texts)) / len(texts) or 1                     # 0 if no text has a word
        self.norms = [K1 * (1 - B + B * len(text) / mean) for text in texts]

        n_w = Counter(word for count in self.counts for word in count)
        idf = {word: math.log(len(texts) - n + 0.5) - math.log(n + 0.5) for word, n in n_w.items()}
        floor = EPSILON * sum(idf.values()) / max(1, len(idf))
        self.idf = {word: value if value >= 0 else floor for word, value in idf.items()}

    def scores(self, query: list[str]) -> list[float]:
        return [sum(self.idf[word] * f[word] * (K1 + 1) / (f[word] + norm) for word in query if word in f)
                for f, norm in zip(self.counts, self.norms)]


class BM25(Baseline):
    """Read the `top_k` chunks with the highest scores; of equal ones the earlier."""

    def __init__(self, model: Llama, settings: Settings, top_k: int = 5):
        super().__init__(model, settings)
        self.top_k = top_k

    def ready(self, document):
        """Count the words of each chunk (`index`, Okapi)."""
        texts = joined_chunks(self.model.tokenizer, document, self.settings.chunk)
        return Prepared(texts, index=Okapi([words(text) for text in texts]))

    def read(self, prepared, question):
        order = highest(prepared.index.scores(words(question)), self.top_k)
        return self.reading_of_best(question, prepared.texts, order)
