"""A search in a notebook: as a table, as paths in the graph. Needs matplotlib."""
from itertools import pairwise

import torch
from matplotlib import pyplot

from data import Answer
from pecan import Graph
from view.page import fill_in

ORANGE, GREY = "#d55e00", "#b8b4aa"
ARROW = {"arrowstyle": "-|>", "color": ORANGE, "linewidth": 2, "shrinkA": 18, "shrinkB": 18}


def leaders(answer: Answer, graph: Graph) -> dict[int, int]:
    """For each node that attention led to, more than similarity: the visited i with the largest r_i e_ij.

    In the ablation without attention none is; there the score is c.
    """
    E = graph.E
    r = E.new_zeros(len(E), 1)
    found = {}
    for step in answer.trace:
        flows = r * E                                       # r_i e_ij [|V|, |V|]
        if step.candidates and step.score != step.c and step.z / flows.sum() > step.score / 2:
            found[step.node] = flows[:, step.node].argmax().item()
        r[step.node] = step.r
    return found


def table(answer: Answer, graph: Graph) -> str:
    """A search in HTML: a row for each node, why it was read, and the figures of its step."""
    return fill_in("table.html.jinja", steps=answer.trace, nodes=graph.nodes, leaders=leaders(answer, graph))


def paths(answers: dict[str, Answer], graph: Graph):
    """Draw the graph once for each answer, side by side: a column for each level, a heavier edge thicker.

    The nodes read are named as "12 · #33", the twelfth; an arrow leads there from the node that attention led from.
    """
    _, axes = pyplot.subplots(1, len(answers), figsize=(7 * len(answers), 9), sharey=True, squeeze=False)
    x = [node.level for node in graph.nodes]
    y = torch.arange(len(x)).double()
    for level in range(2, x[-1] + 1):                       # at the mean height of what it was made from, but apart
        points = [i for i, other in enumerate(x) if other == level]
        y[points] = graph.E[points] @ y
        for before, i in pairwise(sorted(points, key=y.__getitem__)):
            y[i] = max(y[i], y[before] + 1.4)
    points = list(zip(x, y.tolist()))

    for axis, (title, answer) in zip(axes[0], answers.items()):
        for i, j, e in graph.edges:
            axis.plot(*zip(points[i], points[j]), color=GREY, linewidth=2 * e)
        for j, i in leaders(answer, graph).items():
            axis.annotate("", points[j], points[i], arrowprops=ARROW)
        for n, step in enumerate(answer.trace, 1):
            axis.text(*points[step.node], f"{n} · #{step.node}", ha="center", va="center", fontsize=8,
                      bbox={"fc": "w", "pad": 1.5})
        axis.set(title=f"{title}: {answer.text!r}", xlabel="level", xticks=range(1, x[-1] + 1), xlim=(.6, x[-1] + .4))
    axes[0, 0].set(ylabel="chunk", ylim=(y[:x.count(1)].max() + 2, -1))
