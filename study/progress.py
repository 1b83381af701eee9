"""Does the verdict know? p_yes after every check of a search that nothing stops, against "enough has been read".

Enough is: all needed chunks were read; in the embedded world, all needed facts are stated in nodes that were read
(truth.enough).

    area              area under the ROC curve of p_yes over all checks
    calibration       expected calibration error of p_yes, ten bins
    too early         share of the searches that stop before enough was read, for a threshold t_p and a patience t_n
    too late          share that read on although an earlier check already had enough
    never             share that no verdict stops
    nodes             nodes read when the search ends
    likelihood        mean log-likelihood per token of the gold answer at that point, in nats
"""
import itertools

import numpy as np

from study.figures import Table, area_of_items, calibration_error
from study.record import Asked, Record
from study.truth import enough

THRESHOLDS = (0.3, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 0.98)
PATIENCE = (1, 2, 3, 5)


def enough_after(record: Record, asked: Asked) -> list[bool]:
    """Whether enough has been read, at each check."""
    texts = [node.text for node in record.graph.nodes]
    nodes, first = asked.search["nodes"], asked.search["first check"]
    return [enough(asked.text, texts, nodes[:n + 1], asked.needed, record.facts)
            for n in range(first, len(nodes))]


def stop(p_yes: list[float], t_p: float, t_n: int) -> int | None:
    """The check at which a search stops: the t_n-th with p_yes above t_p; None if none does."""
    yes = [n for n, p in enumerate(p_yes) if p > t_p]
    return yes[t_n - 1] if len(yes) >= t_n else None


def add_progress(table: Table, sweep: Table, record: Record):
    """Add a document to the table of p_yes and to the sweep of t_p and t_n."""
    for asked in record.asked:
        if not asked.search:
            continue
        id = record.document.id
        p_yes, likelihood = asked.search["p_yes"], asked.search["likelihood"]
        truth = enough_after(record, asked)
        for p, right in zip(p_yes, truth, strict=True):
            table.add("p_yes", "area", id, (p, right), area_of_items)
            table.add("p_yes", "calibration", id, (p, right), calibration_error)
            table.add("p_yes", "mean when enough was read" if right else "mean before", id, p)
            table.add("p_yes", "enough was read", id, right)
        table.add("gold likelihood", "at the first check", id, likelihood[0])
        table.add("gold likelihood", "at the end", id, likelihood[-1])
        if any(truth) and not truth[0]:
            table.add("gold likelihood", "before enough was read", id, likelihood[truth.index(True) - 1])
            table.add("gold likelihood", "when enough was read", id, likelihood[truth.index(True)])

        for t_p, t_n in itertools.product(THRESHOLDS, PATIENCE):
            row = f"t_p {t_p}, t_n {t_n}"
            end = stop(p_yes, t_p, t_n)
            at = len(p_yes) - 1 if end is None else end
            sweep.add(row, "too early", id, end is not None and not truth[end])
            sweep.add(row, "too late", id, any(truth[:at]))
            sweep.add(row, "never", id, end is None)
            sweep.add(row, "nodes", id, asked.search["first check"] + at + 1)
            sweep.add(row, "likelihood", id, likelihood[at])


def curve(records: list[Record], points: int = 21) -> np.ndarray:
    """Mean gold log-likelihood along the search [points], from the first check to the end, by share of its checks."""
    places = np.linspace(0, 1, points)
    rows = [np.interp(places, np.linspace(0, 1, len(asked.search["likelihood"])), asked.search["likelihood"])
            for record in records for asked in record.asked if asked.search]
    return np.mean(rows, axis=0) if rows else np.zeros(0)
