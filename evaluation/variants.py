"""Five variants of PECAN, one for each place of pecan.py that is made to be changed; methods.VARIANTS has their rows.

    python eval.py --method pecan,late-edges,siblings,softmax-r,two-nodes,budget

Stage 1 is a function like pecan.build, and one like pecan.summarise with another `over` or `edges`. Stage 2 is a class
like pecan.Search. functools.partial gives arguments. A variant of stage 2 alone takes PECAN's graphs.
"""
from pecan import Search, build

# --- stage 1: graphs of their own -----------------------------------------------------------------------------------

def late_layers(A, layer: int, layers: int):
    """`over`: the mean over heads of the last third of the layers; the others add nothing. r stays as it is."""
    return A.mean((1, 2)) * (layer >= layers * 2 / 3)


def with_siblings(model, document, settings, weight: float):
    """`build`: an edge of this weight from each node to the next that is below the same information point."""
    graph = yield from build(model, document, settings)
    below = {(i, j) for i, j, _ in graph.edges}
    graph.edges += [(j, j + 1, weight) for j in sorted({j for i, j in below if (i, j + 1) in below})]
    return graph


# --- stage 2: PECAN's graphs ----------------------------------------------------------------------------------------

class SoftmaxR(Search):
    """r is the softmax, over the visited nodes, of position x attention."""

    def relevance(self):
        r = super().relevance()
        r[self.visited] = r[self.visited].softmax(0)
        return r


class TwoNodes(Search):
    """The two best nodes are read before a check; the second one only if it fits."""

    def choose(self, best):
        return best[:2]


class Budget(Search):
    """Ends, too, when it has read so many tokens."""
    most = 250

    def stop(self, hidden):
        return super().stop(hidden) or ("its tokens are spent" if self.model.tokens >= self.most else None)
