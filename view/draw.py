"""A search in a notebook: as a table, as the curve of p_yes, as a path in the graph. Needs matplotlib."""
from matplotlib import pyplot

from core.settings import Settings
from data import Answer
from pecan import Graph
from view.page import fill_in

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#b8b4aa"        # colour-blind readers can tell them apart (Okabe and Ito)


def leaders(answer: Answer, graph: Graph) -> dict[int, int]:
    """For each node that attention led to, more than similarity in a score of both: the visited i with the largest
    r_i e_ij.
    """
    E = graph.E
    r = E.new_zeros(len(E), 1)
    found = {}
    for step in answer.trace:
        flows = r * E                                       # r_i e_ij [|V|, |V|]
        if step.candidates and step.z / flows.sum() > step.score / 2:
            found[step.node] = flows[:, step.node].argmax().item()
        r[step.node] = step.r
    return found


def table(answer: Answer, graph: Graph) -> str:
    """A search in HTML: a row for each node, why it was read, and the figures of its step."""
    return fill_in("table.html.jinja", steps=answer.trace, nodes=graph.nodes, leaders=leaders(answer, graph))


def curve(answer: Answer, settings: Settings):
    """Draw p_yes after each node, and the threshold t_p above which the search stops."""
    _, axis = pyplot.subplots(figsize=(6, 2.5))
    axis.plot(range(1, len(answer.trace) + 1), [step.p_yes for step in answer.trace], "o-", color=BLUE)
    axis.axhline(settings.confidence, color=ORANGE, linestyle="--")
    axis.set(xlabel="nodes read", ylabel="$p_{yes}$, and $t_p$ as a line", ylim=(-.05, 1.05))
    axis.locator_params("x", integer=True)


def path(answer: Answer, graph: Graph):
    """Draw the graph, a heavier edge thicker, a column for each level; the nodes read in order, and what led there."""
    _, axis = pyplot.subplots(figsize=(7, 8))
    x = [node.level for node in graph.nodes]
    y = [place if level == 1 else 0 for place, level in enumerate(x)]
    for i, j, e in graph.edges:                             # in the order of i, so y[j] is known
        y[i] += e * y[j]
    places = list(zip(x, y))
    for i, j, e in graph.edges:
        axis.plot(*zip(places[i], places[j]), color=GREY, linewidth=2 * e)
    for j, i in leaders(answer, graph).items():
        axis.annotate("", places[j], places[i], arrowprops={"color": ORANGE, "width": 1, "headwidth": 6})
    for n, step in enumerate(answer.trace, 1):
        axis.text(*places[step.node], n, ha="center", bbox={"fc": "w", "boxstyle": "circle"})
    axis.set(xlabel="level", ylabel="chunk", xticks=range(1, x[-1] + 1))
