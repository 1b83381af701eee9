"""The attention that edges come from: what each token of an information point looked at while it was written."""
from unittest.mock import patch

import pecan
from core.settings import Settings
from llama import Llama


def tokens_written(model: Llama, graph: pecan.Graph, node: int, settings: Settings) -> dict[int, list]:
    """For each information point of the summary that has `node`, by its id: its tokens as [(text, row), ..]; a row
    holds a(x, j) for each node j that was summarised [N].

    `model` built the graph with `settings`; it writes this summary once more.
    """
    sources = [j for i, j, _ in graph.edges if i == node]
    group = range(min(sources), max(sources) + 1)
    points = sorted({i for i, j, _ in graph.edges if j in group})
    divide = pecan.information_points
    found = []

    def edge_weights(a, x):
        found.append((a, x))
        return pecan.edge_weights(a, x)

    def information_points(tokenizer, ids, *rest):
        divided = divide(tokenizer, ids, *rest)
        text, spans = tokenizer.spans(ids)
        found[:] = [[(text[slice(*spans[k])], a[k].tolist()) for k in x] for a, x in found]
        return divided

    with patch.object(pecan, "information_points", information_points):
        pecan.summarise(model, [[graph.nodes[j].text for j in group]], settings, edges=edge_weights)
    return dict(zip(points, found, strict=True))
