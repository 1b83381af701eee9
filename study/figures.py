"""A figure with its interval, and the statistics that figures are made of."""
from collections import defaultdict
from typing import NamedTuple

import numpy as np


class Figure(NamedTuple):
    """A statistic over n items of some documents, with its 95 % bootstrap interval."""
    value: float
    low: float
    high: float
    documents: int
    n: int


def mean(items: np.ndarray) -> float:
    return items.mean()


def figure(documents: list[list], statistic=mean, resamples: int = 1000, seed: int = 0) -> Figure | None:
    """The statistic of all items together; None without items.

    For the interval documents are drawn with replacement, not items, because what is in one document hangs together.
    A sample in which the statistic is not defined (NaN) does not count.
    """
    documents = [np.asarray(items, float) for items in documents if len(items)]
    if not documents:
        return None
    value = statistic(np.concatenate(documents))

    drawn = np.random.default_rng(seed).integers(0, len(documents), (resamples, len(documents)))
    if statistic is mean:                                   # from sums, which is hundreds of times as fast
        sums = np.array([items.sum() for items in documents])
        counts = np.array([len(items) for items in documents])
        samples = sums[drawn].sum(1) / counts[drawn].sum(1)
    else:
        samples = np.array([statistic(np.concatenate([documents[d] for d in row])) for row in drawn])
    samples = samples[np.isfinite(samples)]
    low, high = np.percentile(samples, [2.5, 97.5]) if len(samples) else (np.nan, np.nan)
    return Figure(float(value), float(low), float(high), len(documents), sum(map(len, documents)))


class Table:
    """Figures by row and column; items come in one by one."""

    def __init__(self, title: str):
        self.title = title
        self.items = defaultdict(lambda: defaultdict(list))          # (row, column) -> document -> items
        self.statistics = {}

    def add(self, row: str, column: str, document: str, item, statistic=mean):
        """Add an item: a number, or what the column's statistic takes."""
        self.items[row, column][document].append(item)
        self.statistics[column] = statistic

    def add_all(self, other: "Table"):
        """Add the items of another table, about other documents."""
        for key, documents in other.items.items():
            self.items[key].update(documents)
        self.statistics |= other.statistics

    def figures(self) -> dict[str, dict[str, Figure]]:
        """row -> column -> figure, in the order in which they came in."""
        found = defaultdict(dict)
        for (row, column), documents in self.items.items():
            value = figure(list(documents.values()), self.statistics[column])
            if value is not None and np.isfinite(value.value):
                found[row][column] = value
        return dict(found)


def ranks(scores: np.ndarray) -> np.ndarray:
    """The rank of each score from below, counted from 1; equal scores share the mean of their ranks."""
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[places]


def area(scores: np.ndarray, labels: np.ndarray) -> float:
    """Area under the ROC curve: how often a true item has a higher score than a false one, ties counting one half.

    NaN if all labels are the same.
    """
    labels = np.asarray(labels, bool)
    positive, negative = labels.sum(), (~labels).sum()
    if not positive or not negative:
        return float("nan")
    above = ranks(np.asarray(scores))[labels].sum() - positive * (positive + 1) / 2
    return float(above / (positive * negative))


def area_of_items(items: np.ndarray) -> float:
    """The area of items (score, label) [n, 2]."""
    return area(items[:, 0], items[:, 1])


def calibration_error(items: np.ndarray, bins: int = 10) -> float:
    """Expected calibration error of items (probability, label) [n, 2], over bins of equal width.

    The mean distance between the mean probability and the share of true labels in a bin, weighted by its items.
    """
    places = (items[:, 0] * bins).astype(int).clip(0, bins - 1)
    gaps = [abs(items[places == b].mean(0) @ [1, -1]) * (places == b).mean() for b in set(places)]
    return float(sum(gaps))
