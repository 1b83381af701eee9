"""A figure with its interval, and the statistics behind it."""
from typing import NamedTuple

import numpy as np


class Figure(NamedTuple):
    """A statistic over n items of some documents, with its 95 % bootstrap interval."""
    value: float
    low: float
    high: float
    n: int

    def __str__(self):
        """.62 [.58, .67]"""
        return f"{number(self.value)} [{number(self.low)}, {number(self.high)}]"


def figure(documents: list[list], statistic=np.mean) -> Figure:
    """The statistic of all items together.

    The interval resamples documents with replacement, not items, because the items of one document are not independent.
    A sample for which the statistic is not defined (NaN) is left out.
    """
    documents = [np.asarray(items, float) for items in documents]
    drawn = np.random.default_rng(0).integers(0, len(documents), (1000, len(documents)))
    samples = np.array([statistic(np.concatenate([documents[d] for d in row])) for row in drawn])
    samples = samples[np.isfinite(samples)]

    low, high = np.percentile(samples, [2.5, 97.5]) if len(samples) else (np.nan, np.nan)
    return Figure(float(statistic(np.concatenate(documents))), float(low), float(high), sum(map(len, documents)))


def area(items: np.ndarray) -> float:
    """Area under the ROC curve of items (score, label) [n, 2]; NaN if all labels are the same.

    The area is the share of pairs in which the true item scores higher than the false one. Ties count one half.
    """
    true, false = (np.sort(items[items[:, 1] == label, 0]) for label in (1, 0))
    if not len(true) or not len(false):
        return float("nan")
    below = np.searchsorted(false, true, "left") + np.searchsorted(false, true, "right")
    return float(below.mean() / 2 / len(false))


def number(x: float) -> str:
    """Three digits at most: .62, 7.3, 62, 1,234."""
    if abs(x) < 1:
        return f"{x:.2f}".replace("0.", ".", 1)
    return f"{x:.1f}" if abs(x) < 20 else f"{x:,.0f}"
