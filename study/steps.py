"""Measure each step of the method: one function for each step.

Each yields (figure, way, item): the name of a figure, the paper's way or another one, and an item. A figure is the mean
of its items. `chosen` are heads that were chosen on other documents (choose.py).
"""
import random
from collections.abc import Iterator

import torch

from baselines.bm25 import Okapi, words
from pecan import final_scores
from study.choose import Chosen, Heads
from study.collect import Asked, Record, edges_of
from study.figures import area
from study.truth import enough

THRESHOLDS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.98)
P_YES = "p_yes: area"             # the only figure that is not the mean of its items
Items = Iterator[tuple[str, str, object]]


def of_heads(a: torch.Tensor, heads: Heads) -> torch.Tensor:
    """The mean over some heads [n], from a [n, L, H]."""
    return a.flatten(1)[:, heads].mean(1)


# --- edges ----------------------------------------------------------------------------------------------------------

def edge_choices(record: Record, heads: Heads) -> dict[str, torch.Tensor]:
    """Name -> E [|V|, |V|]. The paper's is the mean over all layers and heads."""
    values = {"the paper": record.e.mean((1, 2)), "uniform": torch.ones(len(record.pairs)),
              "similarity": record.cosines.clamp(min=0)}
    if heads:
        values["chosen heads"] = of_heads(record.e, heads)
    return {name: edges_of(record.pairs, value, len(record.nodes)) for name, value in values.items()}


def edges(record: Record, chosen: Chosen) -> Items:
    """Do edges lead to the sources? For each IP whose sources are known and are not its whole group:

    precision at 1   whether the heaviest edge leads to a source; the share that does, if several are equally heavy
    mass             the total weight of the edges to sources, at most 1
    """
    for name, E in edge_choices(record, chosen.edges).items():
        for i, known in record.known.items():
            level = f"level {record.nodes[i].level}"
            group = record.pairs[record.pairs[:, 0] == i, 1].tolist()
            heaviest = [j for j in group if E[i, j] == E[i].max()]
            yield f"edges: precision at 1, {level}", name, sum(j in known for j in heaviest) / len(heaviest)
            yield f"edges: mass on the sources, {level}", name, E[i, known].sum().item()


# --- relevance ------------------------------------------------------------------------------------------------------

def relevance_choices(asked: Asked, heads: Heads) -> dict[str, torch.Tensor]:
    """Name -> r without the position factor [|V|]. The paper's is the mean over all layers and heads."""
    found = {"the paper": asked.attention.mean((1, 2)), "uniform": torch.ones(len(asked.c)),
             "similarity": asked.c.clamp(min=0), "an oracle's": asked.leads}
    if heads:
        found["chosen heads"] = of_heads(asked.attention, heads)
    return {name: r.double() for name, r in found.items()}


def positioned(name: str, r: torch.Tensor, S: list[int]) -> torch.Tensor:
    """r of the visited nodes S. Attention is multiplied by the position, where the query has position 1 (App. C)."""
    return r[S] * torch.arange(2, len(S) + 2) if name in ("the paper", "chosen heads") else r[S]


def relevance(record: Record, chosen: Chosen) -> Items:
    """Does r find the right visited nodes, those that lead to a needed chunk (truth.leading)?

    The figure is the area under the ROC curve. It is measured over the top level, in the order of a search, and over
    level 2. There the attention counts without the position: each of these nodes is read directly after the top level.
    (In a graph of two levels they are the top level; then the two figures differ in the position alone.)
    """
    for asked in record.asked:
        for where, S in (("the top level", record.level(-1)), ("level 2", record.level(2))):
            right = asked.leads[S]
            if not 0 < right.sum() < len(S):
                continue
            for name, r in relevance_choices(asked, chosen.relevance).items():
                r = positioned(name, r, S) if where == "the top level" else r[S]
                yield f"r: area over {where}", name, area(torch.stack((r, right), 1).numpy())


# --- retrieval ------------------------------------------------------------------------------------------------------

def replay(score, start: list[int], needed: list[int]) -> list[int]:
    """The nodes read after `start`, in order: always the best node outside S, until S has all needed nodes.

    score(S) gives the scores [|V|]. Ties go to the lower id.
    """
    S = list(start)
    while not set(needed) <= set(S):
        scores = score(S).clone()
        scores[S] = -torch.inf
        S.append(int((scores == scores.max()).nonzero()[0]))
    return S[len(start):]


def orders(record: Record, asked: Asked, chosen: Chosen) -> dict[str, list[int]]:
    """Name -> nodes read after the top level, in order, for every way of choosing the next node.

    Searches are replayed without the model: each node's attention was measured once (seen.to_question), and its
    position follows from the replay.
    """
    V = len(record.nodes)
    E = edge_choices(record, chosen.edges)
    R = relevance_choices(asked, chosen.relevance)

    def by_edges(edges, relevance, similarity=False):
        def score(S):
            r = torch.zeros(V, dtype=torch.float64)
            r[S] = positioned(relevance, R[relevance], S)
            return final_scores(E[edges], r, asked.c.double(), similarity=similarity)[1]
        return score

    rng = random.Random(asked.question.id)
    okapi = Okapi([words(node.text) for node in record.nodes]).scores(words(asked.question.text))
    fixed = {"random": [rng.random() for _ in range(V)], "c": asked.c.tolist(), "BM25 over all nodes": okapi}

    scores = {name: lambda S, values=values: torch.tensor(values, dtype=torch.float64)
              for name, values in fixed.items()}
    scores |= {"z + c": by_edges("the paper", "the paper", True), "z": by_edges("the paper", "the paper"),
               "z, E uniform": by_edges("uniform", "the paper"), "z, r uniform": by_edges("the paper", "uniform"),
               "z, r an oracle's": by_edges("the paper", "an oracle's")}
    if "chosen heads" in E and "chosen heads" in R:
        scores["z, E and r by chosen heads"] = by_edges("chosen heads", "chosen heads")
    return {name: replay(score, record.level(-1), asked.needed) for name, score in scores.items()}


def retrieval(record: Record, chosen: Chosen) -> Items:
    """Does z find the needed chunk?

    rank    place of a needed chunk among the chunks, in the order of reading
    steps   nodes read after the top level until all needed chunks are read
    """
    if not len(record.pairs):                               # without IPs there are no edges
        return
    for asked in record.asked:
        for name, order in orders(record, asked, chosen).items():
            chunks = [i for i in order if record.nodes[i].level == 1]
            for i in asked.needed:
                yield "rank of the needed chunk", name, chunks.index(i) + 1
            yield "steps to all needed chunks", name, len(order)


# --- progress control -----------------------------------------------------------------------------------------------

def progress(record: Record, chosen: Chosen) -> Items:
    """Is the verdict right? Compares p_yes with "enough was read" at each check of a search that no verdict stops.

    With threshold t_p and t_n = 1, the search would

    stop too early   before enough was read (truth.enough)
    stop too late    because it reads on although enough was read
    never stop
    """
    texts = [node.text for node in record.nodes]
    for asked in record.asked:
        nodes = asked.endless["nodes"]
        checks = [(p, enough(asked.question, texts, nodes[:n], asked.needed, record.facts))
                  for n, p in enumerate(asked.endless["p_yes"], 1) if p is not None]
        for check in checks:
            yield P_YES, "", check

        for t_p in THRESHOLDS:
            end = next((n for n, (p, _) in enumerate(checks) if p > t_p), None)
            yield "stops too early", f"t_p {t_p}", end is not None and not checks[end][1]
            yield "stops too late", f"t_p {t_p}", any(right for _, right in checks[:-1 if end is None else end])
            yield "never stops", f"t_p {t_p}", end is None


# --- answers --------------------------------------------------------------------------------------------------------

def answers(record: Record, chosen: Chosen) -> Items:
    """How good are the answers after each way of reading?

    F1 is in percent. The gold answer's mean log-likelihood per token, in nats, shows differences even where F1 is 0.
    Differences to PECAN are taken for each question.
    """
    for asked in record.asked:
        pecan = asked.ways["PECAN"]
        for name, row in asked.ways.items():
            yield "F1", name, 100 * row["f1"]
            yield "gold likelihood", name, row["likelihood"]
            if name != "PECAN":
                yield "F1 less PECAN's", name, 100 * (row["f1"] - pecan["f1"])
                yield "gold likelihood less PECAN's", name, row["likelihood"] - pecan["likelihood"]
            if name in ("PECAN", "PECAN without attention") and "kind" in asked.question.extra:
                yield f"F1 of kind {asked.question.extra['kind']!r}", name, 100 * row["f1"]
