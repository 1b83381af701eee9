"""BM25 (Robertson and Zaragoza 2009) over chunks, the same ones as level 1 of PECAN's graph.

Okapi's formula with the constants of the package rank_bm25: k1 = 1.5, b = 0.75, epsilon = 0.25. PECAN does not say
what a word is. Here it is a lower-cased run of letters, digits and underscores (Python's \\w, which breaks words at
combining marks). No matrix product is involved, so retrieval costs no FLOPs.
"""
import math
import re
from collections import Counter
from pathlib import Path

from baselines.common import answer_from_best
from core.settings import Settings
from data import Answer, Document, Method, Prepared
from llama import Llama
from pecan import chunks


class Okapi:
    """Scores n texts t, given as lists of words, for a query.

        score(t) = sum over the words w of the query of  idf(w) f (k1 + 1) / (f + k1 (1 - b + b |t| / mean |t|))

    f is how often w occurs in t, and idf(w) = ln(n - n_w + .5) - ln(n_w + .5) if n_w of the n texts contain w. This is
    negative for a word of more than half of the texts; its idf is then epsilon times the mean of the formula's values.
    """

    def __init__(self, texts: list[list[str]], k1: float = 1.5, b: float = 0.75, epsilon: float = 0.25):
        self.k1 = k1
        self.counts = [Counter(text) for text in texts]                   # f of each word, text by text

        # The part of the denominator that depends on the length of the text alone.
        mean = sum(map(len, texts)) / len(texts)
        self.norms = [k1 * (1 - b + b * len(text) / mean) if mean else k1 for text in texts]

        n_w = Counter(word for count in self.counts for word in count)
        idf = {word: math.log(len(texts) - n + 0.5) - math.log(n + 0.5) for word, n in n_w.items()}
        floor = epsilon * sum(idf.values()) / len(idf) if idf else 0.0
        self.idf = {word: value if value >= 0 else floor for word, value in idf.items()}

    def scores(self, query: list[str]) -> list[float]:
        """The score of each text."""
        scores = []
        for f, norm in zip(self.counts, self.norms):
            terms = [self.idf[word] * f[word] * (self.k1 + 1) / (f[word] + norm) for word in query if word in f]
            scores.append(sum(terms))
        return scores


def words(text: str) -> list[str]:
    """The words of a text, in order."""
    return re.findall(r"\w+", text.lower())


class BM25(Method):
    """Read the `top_k` chunks with the highest scores; of equal ones the earlier."""

    def __init__(self, model: Llama, settings: Settings, top_k: int = 5):
        self.model = model
        self.settings = settings
        self.top_k = top_k

    def prepare(self, document: Document, path: str | Path | None = None, progress: bool = False) -> Prepared:
        """Count the words of each chunk (`index`, Okapi)."""
        texts = chunks(self.model.tokenizer, document, self.settings.chunk)
        index = Okapi([words(text) for text in texts])
        return Prepared(texts=texts, index=index)

    def answer(self, prepared: Prepared, question: str) -> Answer:
        """Rank the chunks by the question's words and read the best."""
        scores = prepared.index.scores(words(question))
        order = sorted(range(len(scores)), key=lambda i: -scores[i])[:self.top_k]
        return answer_from_best(self.model, question, prepared.texts, order, self.settings)
