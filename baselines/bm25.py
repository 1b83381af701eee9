"""BM25 (Robertson and Zaragoza 2009) over the chunks that PECAN's graph has at its bottom.

Okapi's formula with the constants of the package rank_bm25, k1 = 1.5, b = 0.75, epsilon = 0.25. PECAN does not say
what a word is; here it is a lower-cased run of letters, digits and underscores (Python's \\w, which breaks words at
combining marks). No matrix product: retrieval costs nothing.
"""
import math
import re
from collections import Counter
from pathlib import Path

from baselines.common import read_best
from data import Document
from llama import Llama
from pecan import chunks
from support.method import Answer, Prepared
from support.settings import Settings


class Okapi:
    """Scores of n texts, given as lists of words, for a query.

        score(t) = sum over the words w of the query of  idf(w) f (k1 + 1) / (f + k1 (1 - b + b |t| / mean |t|))

    f is how often w stands in t, idf(w) = ln(n - n_w + .5) - ln(n_w + .5), n_w of the n texts holding w. Where that is
    negative (w in more than half of them), epsilon times the mean idf stands in.
    """

    def __init__(self, texts: list[list[str]], k1: float = 1.5, b: float = 0.75, epsilon: float = 0.25):
        self.counts, self.k1 = [Counter(text) for text in texts], k1
        mean = sum(map(len, texts)) / len(texts)
        self.norms = [k1 * (1 - b + b * len(text) / mean) if mean else k1 for text in texts]
        holding = Counter(word for count in self.counts for word in count)
        idf = {word: math.log(len(texts) - n + 0.5) - math.log(n + 0.5) for word, n in holding.items()}
        floor = epsilon * sum(idf.values()) / len(idf) if idf else 0.0
        self.idf = {word: value if value >= 0 else floor for word, value in idf.items()}

    def scores(self, query: list[str]) -> list[float]:
        return [sum(self.idf[word] * count[word] * (self.k1 + 1) / (count[word] + norm)
                    for word in query if word in count) for count, norm in zip(self.counts, self.norms)]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


class BM25:
    """Read the `top` chunks with the highest scores; of equal ones the earlier."""

    def __init__(self, model: Llama, settings: Settings, top: int = 5):
        self.model, self.settings, self.top = model, settings, top

    def file_name(self, document: Document) -> str | None:
        """Nothing is kept on disk: counting words is quicker than reading counts."""
        return None

    def prepare(self, document: Document, path: str | Path | None = None, progress: bool = False) -> Prepared:
        texts = chunks(self.model.tokenizer, document, self.settings.chunk)
        return Prepared(texts, index=Okapi([words(text) for text in texts]))

    def answer(self, prepared: Prepared, question: str) -> Answer:
        scores = prepared.index.scores(words(question))
        order = sorted(range(len(scores)), key=lambda i: -scores[i])[:self.top]
        return read_best(self.model, question, prepared.texts, order, self.settings)
