"""The heat table: what the model looked at while it wrote a summary, and the edges that come of it."""
from contextlib import contextmanager

import pecan
from core.settings import Settings
from llama import Llama
from view.page import fill_in
from view.recorder import pieces, summarise_again, watching


@contextmanager
def points_written():
    """A list that gets, for each information point written within the block, its edges e_ij to the nodes of its group
    and its tokens: [(token, a(x, j) of it [N]), ...].
    """
    weighed = []                                            # of the reply that is being divided
    points = []

    def divided(_, tokenizer, ids, *rest):
        tokens = pieces(tokenizer, ids)
        points.extend((e.tolist(), [(tokens[k], a[k].tolist()) for k in x]) for e, a, x in weighed)
        weighed.clear()

    with (watching(pecan, "edge_weights", lambda *call: weighed.append(call)),
          watching(pecan, "information_points", divided)):
        yield points


def heat(model: Llama, graph: pecan.Graph, node: int, settings: Settings, style: bool = True) -> str:
    """The table in HTML, for the summary that has information point `node`.

    A row is a token that the model wrote, a column is a node of the group, a cell is a(x, j). Below the tokens of each
    information point stand its edges e_ij. `model` built the graph with `settings`; it writes the summary once more.
    Without `style`, the page that holds the table has view/heat.css.
    """
    with points_written() as written:
        group = summarise_again(model, graph, node, settings)
    numbers = sorted({i for i, j, _ in graph.edges if j in group})
    points = [(i, *point) for i, point in zip(numbers, written, strict=True)]
    return fill_in("heat.html.jinja", group=[(j, graph.nodes[j].text) for j in group], points=points, style=style)
