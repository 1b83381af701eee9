"""Does r find the right visited node? For questions with nodes of both kinds, right and not.

A node is right if it leads to a chunk that the answer needs (truth.leading). Two sets of nodes are looked at: the top
level, as a search reads it first, and all bullets of level 2, each read right after the top level, all at one position.

    area      area under the ROC curve of r: how often r of a right node is above that of a wrong one
    share     share of the sum of r on right nodes; z weighs their edges with it
    lift      the share divided by that of a uniform r
    spread    standard deviation of r over its mean (coefficient of variation): without spread, z is that of a uniform r
"""
import numpy as np

from study.choices import RELEVANCE, position
from study.figures import Table, area
from study.record import Chosen, Record


def add_relevance(table: Table, record: Record, heads: Chosen):
    """Add a document."""
    top = record.graph.top_level
    bullets = [i for i, node in enumerate(record.graph.nodes) if node.level == 2]
    for asked in record.asked:
        add_nodes(table, record.document.id, asked, top, position(top), heads, "top level")
        add_nodes(table, record.document.id, asked, bullets, np.ones(len(bullets)), heads, "level 2")


def add_nodes(table: Table, document: str, asked, nodes: list[int], p: np.ndarray, heads: Chosen, where: str):
    """Add what every r is worth on these nodes at positions p."""
    right = asked.leads[nodes]
    if not 0 < right.sum() < len(nodes):
        return

    for name, relevance in RELEVANCE.items():
        r = relevance(asked, nodes, p, heads)
        share = r @ right / r.sum() if r.sum() > 0 else right.mean()
        spread = np.std(r) / np.mean(r) if r.any() else 0.0
        for column, value in (("area", area(r, right)), ("share", share), ("lift", share / right.mean()),
                              ("spread", spread)):
            table.add(name, f"{column}, {where}", document, value)
