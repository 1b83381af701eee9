"""Five variants of PECAN, one for each place of pecan.py that is made to be changed; methods.VARIANTS has their rows.

    python eval.py --method pecan,late-edges,siblings,softmax-r,two-nodes,falling

Stage 1 is a function like pecan.build, and one like pecan.summarise with another `over` or `edges`. Stage 2 is a class
like pecan.Search. functools.partial gives arguments. A variant of stage 2 alone takes PECAN's graphs.
"""
from pecan import Search, build

# --- stage 1: graphs of their own -----------------------------------------------------------------------------------

def late_layers(A, layer: int, layers: int):
    """`over`: the mean over heads of the last third of the layers; the others add nothing. r stays as it is."""
    return A.mean((1, 2)) * (layer >= layers * 2 / 3)


def with_siblings(model, document, settings, weight: float):
    """`build`: edges of this weight, both ways, between neighbours that are below the same information point."""
    graph = yield from build(model, document, settings)
    below = {(i, j) for i, j, _ in graph.edges}
    pairs = sorted({(j, j + 1) for i, j in below if (i, j + 1) in below})
    graph.edges += [(*pair, weight) for i, j in pairs for pair in ((i, j), (j, i))]
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


class Falling(Search):
    """Ends, too, when p_yes has fallen twice in a row."""

    def stop(self, hidden):
        end = super().stop(hidden)
        p = [step.p_yes for step in self.trace if step.p_yes is not None][-3:]
        if not end and len(p) == 3 and p[0] > p[1] > p[2]:
            return "p_yes has fallen twice in a row"
        return end
