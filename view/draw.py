"""Pictures for the notebook: how attention becomes an edge, and searches as paths in the graph. Needs matplotlib."""
from itertools import pairwise
from textwrap import fill

import torch
from matplotlib import pyplot

from data import Answer
from pecan import Graph

ORANGE = "#d55e00"
GREY = "#b8b4aa"
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


def heat(graph: Graph, written: dict[int, list]):
    """Draw how attention became the edges of the information points of a group, or some of them (heat.tokens_written).

    A row is a token that the model wrote, a column is a node of the group, a cell is a(x, j) times 10,000. The last row
    has the edges e_ij: the mean of the rows above, scaled so that they add up to 1. Colours grow with the root of a
    value, so that small values can be seen.
    """
    E = graph.E[[*written]]
    group = E.sum(0).nonzero()[:, 0].tolist()
    most = max(max(row) for tokens in written.values() for _, row in tokens)

    heights = [n for tokens in written.values() for n in (len(tokens), 1)]
    figure, axes = pyplot.subplots(len(heights), figsize=(9, 1.5 + .3 * sum(heights)), height_ratios=heights,
                                   layout="constrained")
    figure.get_layout_engine().set(h_pad=.02, hspace=0)
    for n, (i, tokens) in enumerate(written.items()):
        tokens, a = zip(*tokens)
        cells = [[f"{1e4 * value:.0f}" if value > .5e-4 else "" for value in row] for row in a]
        edges = E[n, group]
        paint(axes[2 * n], torch.tensor(a) / most, tokens, cells, "Blues")
        paint(axes[2 * n + 1], edges[None], [f"e of #{i}"], [[f"{e:.2f}" for e in edges]], "Oranges", weight="bold")
    axes[0].xaxis.tick_top()
    axes[0].set_xticks(range(len(group)), [fill(f"#{j} {graph.nodes[j].text}", 22, max_lines=7) for j in group])


def paint(axis, values, names: list[str], cells: list[list[str]], colours: str, **font):
    """Values from 0 to 1 as coloured cells with their texts; `names` are those of the rows."""
    axis.imshow(values.sqrt(), colours, vmin=0, vmax=1.5, aspect="auto")
    axis.set_yticks(range(len(names)), names, **font)
    axis.set_xticks([])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    for y, row in enumerate(cells):
        for x, cell in enumerate(row):
            axis.text(x, y, cell, ha="center", va="center", **font)
