"""The heat table: what the model looked at while it wrote a summary, and the edges that come of it."""
import pecan
from core.settings import Settings
from llama import Llama
from view.page import fill_in
from view.recorder import pieces, summarise_again, watching


def heat(model: Llama, graph: pecan.Graph, node: int, settings: Settings, style: bool = True) -> str:
    """The table in HTML, for the summary that has information point `node`.

    A row is a token that the model wrote, a column is a node of the group, a cell is a(x, j). Below the tokens of each
    information point stand its edges e_ij. `model` built the graph with `settings`; it writes the summary once more.
    Without `style`, the page that holds the table has view/heat.css.
    """
    replies = []
    edges = []
    with (watching(pecan, "information_points", lambda _, tokenizer, ids, *rest: replies.append(ids)),
          watching(pecan, "edge_weights", lambda e, a, x: edges.append((e.tolist(), a[x].tolist(), x)))):
        group = summarise_again(model, graph, node, settings)

    points = sorted({i for i, j, _ in graph.edges if j in group})
    tokens = pieces(model.tokenizer, replies[0])
    bullets = [(i, e, [(tokens[x], row) for x, row in zip(written, rows)])
               for i, (e, rows, written) in zip(points, edges, strict=True)]
    return fill_in("heat.html.jinja", group=[(j, graph.nodes[j].text) for j in group], bullets=bullets, style=style)
