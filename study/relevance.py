"""Does r find the right visited node? After the top level is read, for questions with top nodes of both kinds.

A node is right if it leads to a chunk that the answer needs (truth.leading).

    area      area under the ROC curve of r over the top level: how often r of a right node is above that of a wrong one
    share     share of the sum of r on right nodes; z weighs their edges with it
    lift      the share divided by that of a uniform r
    spread    standard deviation of r over its mean (coefficient of variation): without spread, z is that of a uniform r
"""
import numpy as np

from study.choices import RELEVANCE
from study.figures import Table, area
from study.record import Heads, Record


def add_relevance(table: Table, record: Record, heads: Heads):
    """Add a document; `heads` were chosen on other documents."""
    top = record.graph.top_level
    for asked in record.asked:
        right = asked.leads[top]
        if 0 < right.sum() < len(top):
            for name, relevance in RELEVANCE.items():
                r = relevance(asked, top, heads)
                share = r @ right / r.sum() if r.sum() > 0 else right.mean()
                mean = np.mean(r)
                for column, value in (("area", area(r, right)), ("share", share), ("lift", share / right.mean()),
                                      ("spread", np.std(r) / mean if mean > 0 else 0.0)):
                    table.add(name, column, record.document.id, value)
