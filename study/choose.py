"""Choose heads for E and for r. A document's heads are chosen on the other documents."""
from typing import NamedTuple

import torch

from study.collect import Record

Heads = list[int]                                # layer x H + head, both counted from 0
Attention = list[tuple]                          # of each head: to the right nodes [L, H], and to all [L, H]


class Chosen(NamedTuple):
    """The heads chosen for a document."""
    edges: Heads
    relevance: Heads


def on_sources(record: Record) -> Attention:
    """For each IP with known sources: its attention to them, and to all nodes of its group."""
    found = []
    for i, known in record.known.items():
        of_point = record.pairs[:, 0] == i
        of_sources = of_point & torch.isin(record.pairs[:, 1], torch.tensor(known))
        found.append((record.e[of_sources].sum(0), record.e[of_point].sum(0)))
    return found


def on_right_points(record: Record) -> Attention:
    """For each question: the attention that it gets from the IPs that lead to a needed chunk, and from all IPs.

    Questions for which all IPs lead there are left out, because every head is right there.
    """
    points = [i for i, node in enumerate(record.nodes) if node.level > 1]
    found = []
    for asked in record.asked:
        leads = asked.leads[points].bool()
        if not leads.all():
            found.append((asked.attention[points][leads].sum(0), asked.attention[points].sum(0)))
    return found


def best_heads(attention: Attention) -> Heads:
    """The heads that together put the largest share of their attention on the right nodes; [] without `attention`.

    The choice is greedy. The head with the largest share comes first. Each next head is the one that raises the share
    most; the choice ends when none does. It counts attention, not ranks: E and r are means over heads, so one head with
    much attention in the wrong places spoils them. There are at most ten heads, or a sixth of the model's heads if it
    has fewer than sixty.
    """
    if not attention:
        return []
    right, all_ = (torch.stack(parts).flatten(1) for parts in zip(*attention))             # [n, L x H]
    heads, share = [], 0.0
    while len(heads) < max(1, min(10, right.shape[1] // 6)):
        r, a = (part + part[:, heads].sum(1, keepdim=True) for part in (right, all_))
        shares = (r / a.clamp(min=1e-30)).mean(0)                                          # [L x H]
        shares[heads] = 0
        if shares.max() <= share:
            break
        share = shares.max()
        heads.append(int(shares.argmax()))
    return heads


def chosen_on_others(records: list[Record]) -> list[Chosen]:
    """For each document, the best heads on all other documents; none if there is no other."""
    edges, relevance = [on_sources(record) for record in records], [on_right_points(record) for record in records]

    def others(rows, n):
        return sum(rows[:n] + rows[n + 1:], [])

    return [Chosen(best_heads(others(edges, n)), best_heads(others(relevance, n))) for n in range(len(records))]
