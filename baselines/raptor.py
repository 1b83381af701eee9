"""RAPTOR (Sarthi et al. 2024): a tree of clustered and summarised chunks, and two ways of retrieving from it.

Chunks of 100 tokens are embedded, clustered and each cluster summarised in up to 100 tokens; the summaries are the next
layer, up to 5 of them, until one has no more than 11 nodes. *Tree traversal* takes the 5 nodes of the top layer closest
to the question, then the 5 closest of their children, and so on down; *collapsed tree* takes the `top` closest of all.

A layer is clustered twice over, as the published code does: UMAP to 10 dimensions with int(sqrt(n - 1)) neighbours and
a Gaussian mixture, then inside each cluster of more than 11 nodes UMAP with 10 neighbours and a mixture again. The
number of components has the least BIC; a node is of every cluster that it belongs to with a probability above 0.1. A
cluster of more than 3500 tokens is clustered again.

Where this is not the published code:
- a tree is the same each time: UMAP is seeded, and starts from principal components, because its spectral start draws
  random numbers that no seed governs
- a node is always of its likeliest cluster; there it is of none if no probability exceeds 0.1, and lost
- a cluster that clustering does not make smaller is cut in document order; there that never ends
- layers stand in document order, and one document's early end does not shorten the next one's tree
- a sentence longer than a chunk is cut at white space; there it is cut at , ; : into pieces of any length, which come
  before the chunk that is being filled
- only the best few are retrieved; its other mode, by a threshold, keeps those that are far away
- the collapsed tree stops at `top` nodes, as PECAN's Table 1 has it; there at 3500 tokens
- in other words than PECAN's section 4, traversal does not follow "a single path": it is the code's top 5 of a layer

scikit-learn and umap-learn are an optional extra: requirements-extra.txt.
"""
import math
import warnings
from pathlib import Path

import numpy as np
import torch

from baselines.common import (
    MissingPackage,
    children,
    read_best,
    scaled,
    sentences,
    summaries,
    tree,
    turn,
)
from data import Document
from llama import Llama
from pecan import Graph, pack
from support.files import InputError
from support.graph_file import file_name
from support.method import Answer, Prepared
from support.sbert import similarities
from support.settings import Settings

PROMPT = "Write a summary of the following, including as many key details as possible: {}:"
DIMENSIONS, NEIGHBOURS, SMALL = 10, 10, 11     # a layer or cluster of SMALL nodes is not clustered
COMPONENTS, MEMBER, LAYERS, SEED = 50, 0.1, 5, 0


# --- clustering -----------------------------------------------------------------------------------------------------

def reduce(vectors: np.ndarray, neighbours: int) -> np.ndarray:
    """UMAP by cosine to at most 10 dimensions, [n, D] to [n, 10]; float64, in which a mixture can tell apart what is
    close."""
    import umap
    if not np.ptp(vectors, axis=0).any():                    # all alike: there is nothing to tell apart
        return vectors[:, :DIMENSIONS].astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")                      # of the one thread that a seed asks for
        return umap.UMAP(n_neighbors=neighbours, n_components=min(DIMENSIONS, len(vectors) - 2), metric="cosine",
                         init="pca", random_state=SEED).fit_transform(vectors).astype(np.float64)


def mixture(points: np.ndarray) -> list[list[int]]:
    """Soft clusters of points [n, d]: the members of each component of the Gaussian mixture with the least BIC."""
    from sklearn.mixture import GaussianMixture
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")                      # of mixtures that have not converged
        fitted = [GaussianMixture(n, random_state=SEED).fit(points) for n in range(1, min(COMPONENTS, len(points)))]
        best = min(fitted, key=lambda model: model.bic(points))
    probability = best.predict_proba(points)                                               # [n, components]
    member = probability > MEMBER
    member[np.arange(len(points)), probability.argmax(1)] = True
    return [np.flatnonzero(column).tolist() for column in member.T if column.any()]


def clusters(vectors: np.ndarray, tokens: list[int], most: int) -> list[list[int]]:
    """Clusters of the nodes of a layer, by their places, in document order; none of more than `most` tokens."""
    found = []
    for members in mixture(reduce(vectors, int(math.sqrt(len(vectors) - 1)))):
        inside = [range(len(members))] if len(members) <= SMALL else mixture(reduce(vectors[members], NEIGHBOURS))
        for places in inside:
            cluster = [members[place] for place in places]
            own = [tokens[i] for i in cluster]
            if sum(own) <= most:
                parts = [range(len(cluster))]
            elif SMALL < len(cluster) < len(vectors):
                parts = clusters(vectors[cluster], own, most)
            else:
                parts = pack(own, most)
            found += [[cluster[k] for k in part] for part in parts]
    return sorted(found)


# --- the method -----------------------------------------------------------------------------------------------------

class Raptor:
    """`collapsed`: the `top` nodes of all; otherwise tree traversal, the `top` nodes of each layer."""

    def __init__(self, model: Llama, encoder, settings: Settings, top: int = 5, collapsed: bool = True):
        try:
            import sklearn.mixture  # noqa: F401
            import umap  # noqa: F401
        except ImportError as error:
            raise MissingPackage(f"RAPTOR clusters with scikit-learn and umap-learn, and {error.name} is not installed "
                                     "(pip install -r requirements-extra.txt)") from None
        self.model, self.encoder, self.settings, self.top, self.collapsed = model, encoder, settings, top, collapsed
        self.length, prompt = scaled(100, settings), len(turn(model.tokenizer, PROMPT))   # of a chunk, of a summary
        self.most = min(scaled(3500, settings), settings.window - prompt - self.length)   # tokens of a cluster
        if self.most < 2 * self.length:
            raise InputError(f"window {settings.window} is too small for RAPTOR's summaries")
        self.construction = {"method": "raptor", "chunk": self.length, "cluster": self.most,
                             "encoder": encoder.fingerprint}

    def file_name(self, document: Document) -> str:
        return file_name(document.hash, self.model.fingerprint, self.construction)

    def prepare(self, document: Document, path: str | Path | None = None, progress: bool = False) -> Prepared:
        """The tree, and vectors of its nodes [|V|, D]. `index` is both. (Vectors are not kept on disk.)"""
        encoder, vectors, flops = self.encoder, [], self.encoder.flops

        def summarise(texts):
            vectors.append(encoder.encode(texts))
            if len(texts) <= SMALL or len(vectors) > LAYERS:
                return []
            tokens = [len(self.model.tokenizer.encode(f"\n\n{text}")) for text in texts]
            found = clusters(vectors[-1].numpy(), tokens, self.most)
            together = ["\n\n".join(texts[i] for i in cluster) for cluster in found]
            return list(zip(summaries(self.model, together, PROMPT, self.length, self.settings.batch, progress),
                            found))
        graph = tree(path, document, self.model, self.construction,
                     lambda: sentences(self.model.tokenizer, document, self.length), summarise)
        texts, levels = [node.text for node in graph.nodes], [node.level for node in graph.nodes]
        if not vectors:                                      # read from disk; layer by layer, as when it is built
            vectors = [encoder.encode([node.text for node in graph.nodes if node.level == level])
                       for level in range(1, levels[-1] + 1)]
        return Prepared(texts, graph.flops + encoder.flops - flops, graph, torch.cat(vectors))

    def answer(self, prepared: Prepared, question: str) -> Answer:
        flops = self.encoder.flops
        scores = similarities(prepared.index, self.encoder.encode([question])[0]).tolist()
        answer = read_best(self.model, question, prepared.texts, self.retrieve(prepared.graph, scores), self.settings)
        answer.flops += self.encoder.flops - flops
        return answer

    def retrieve(self, graph: Graph, scores: list[float]) -> list[int]:
        """The nodes to be read, in this order, by their scores; of equal ones the lower id comes first."""
        def best(nodes):
            return sorted(nodes, key=lambda i: (-scores[i], i))[:self.top]
        if self.collapsed:
            return best(range(len(scores)))
        chosen, layer = [], graph.top_level
        while layer:
            taken = best(layer)
            chosen += taken
            layer = sorted({child for i in taken for child in children(graph, i)})
        return chosen
