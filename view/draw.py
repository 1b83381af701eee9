"""A search in a notebook: as a table, as the curve of p_yes, as a path in the graph. Needs matplotlib."""
import torch
from matplotlib import pyplot

from core.settings import Settings
from data import Answer
from pecan import Graph
from view.page import fill_in

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#b8b4aa"        # colour-blind readers can tell them apart (Okabe and Ito)


def leaders(answer: Answer, graph: Graph) -> dict[int, int]:
    """For each node that attention led to, more than similarity: the visited node i with the largest r_i e_ij."""
    E = graph.E.to_dense()
    r = torch.zeros(len(E), dtype=E.dtype)
    found = {}
    for step in answer.trace:
        if step.candidates and step.z / (r @ E).sum() > step.score / 2:
            found[step.node] = (r * E[:, step.node]).argmax().item()
        r[step.node] = step.r
    return found


def table(answer: Answer, graph: Graph) -> str:
    """A search in HTML: a row for each node, why it was read, and the figures of its step."""
    return fill_in("table.html.jinja", steps=answer.trace, nodes=graph.nodes, leaders=leaders(answer, graph))


def curve(answer: Answer, settings: Settings):
    """Draw p_yes after each node, and the threshold t_p above which the search stops."""
    axis = pyplot.figure(figsize=(6, 2.5), layout="constrained").subplots()
    axis.plot(*zip(*[(n, step.p_yes) for n, step in enumerate(answer.trace, 1) if step.verdict]), "o-", color=BLUE)
    axis.axhline(settings.confidence, color=ORANGE, linestyle="--")
    axis.set(xlabel="nodes read", ylabel="$p_{yes}$, and $t_p$ as a line", ylim=(-.05, 1.05))
    axis.locator_params("x", integer=True)


def path(answer: Answer, graph: Graph):
    """Draw the graph with its heavier edges, a column for each level; the nodes read in order, and what led there."""
    axis = pyplot.figure(figsize=(7, 8), layout="constrained").subplots()
    x = [node.level for node in graph.nodes]
    y = [place if level == 1 else 0 for place, level in enumerate(x)]
    for i, j, e in graph.edges:                             # in the order of i, so y[j] is known
        y[i] += e * y[j]
    for i, j, e in graph.edges:
        if e > .1:
            axis.plot([x[i], x[j]], [y[i], y[j]], color=GREY, linewidth=2 * e)
    for j, i in leaders(answer, graph).items():
        axis.annotate("", (x[j], y[j]), (x[i], y[i]), arrowprops={"color": ORANGE, "width": 1, "headwidth": 6})
    for n, step in enumerate(answer.trace, 1):
        axis.text(x[step.node], y[step.node], n, ha="center", bbox={"fc": "w", "boxstyle": "circle"})
    axis.set(xlabel="level", ylabel="chunk", xticks=range(1, x[-1] + 1))
