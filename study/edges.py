"""Do edges lead to the sources? Precision at 1, mass and coverage of E, for the paper's reading and alternatives.

An information point counts if its sources are known (truth.sources) and are not its whole window.

    precision at 1   whether the heaviest edge of an information point leads to one of its sources; ties count in part
    mass             the weight of its edges on its sources; they sum to 1
    coverage         share of the nodes of a level that are the heaviest source of some information point. What is not
                     covered can be found by similarity only, or by edges of little weight
"""
import torch

from study.choices import edge_choices
from study.figures import Table
from study.record import Chosen, Record


def covered(E: torch.Tensor) -> set[int]:
    """The nodes that are the one heaviest source of some information point. E is [|V|, |V|], dense."""
    found = set()
    for row in E:
        heaviest = (row == row.max()).nonzero().flatten().tolist()
        if len(heaviest) == 1 and row.max() > 0:
            found.add(heaviest[0])
    return found


def add_edges(table: Table, record: Record, heads: Chosen):
    """Add a document, each level on its own."""
    graph = record.graph
    for name, E in edge_choices(record.raw, heads).items():
        for i, known in record.known.items():
            window = record.raw.pairs[record.raw.pairs[:, 0] == i, 1].tolist()
            weights = E[i, window]
            heaviest = [window[n] for n in (weights == weights.max()).nonzero().flatten().tolist()]
            if known and len(known) < len(window):
                level = f"level {graph.nodes[i].level}"
                table.add(name, f"precision at 1, {level}", record.document.id,
                          sum(j in known for j in heaviest) / len(heaviest))
                table.add(name, f"mass, {level}", record.document.id, E[i, known].sum().item())

        main_sources = covered(E)
        for j, node in enumerate(graph.nodes):
            if node.level < graph.nodes[-1].level:
                level = "chunks" if node.level == 1 else f"level {node.level}"
                table.add(name, f"coverage of {level}", record.document.id, j in main_sources)
