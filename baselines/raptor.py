"""RAPTOR (Sarthi et al. 2024): a tree of clustered and summarised chunks, and two ways of retrieving from it.

Chunks of 100 tokens are embedded and clustered, and each cluster is summarised in up to 100 tokens. The summaries are
the next layer. There are at most 5 such layers; a layer of 11 or fewer nodes is the last. *Tree traversal* takes the 5
nodes of the top layer closest to the question, then the 5 closest of their children, and so on down. *Collapsed tree*
takes the `top_k` closest of all nodes.

A layer is clustered twice, as in the published code. First UMAP reduces it to 10 dimensions, with int(sqrt(n - 1))
neighbours, and a Gaussian mixture finds clusters. Each cluster of more than 11 nodes is then clustered in the same way,
with 10 neighbours. The mixture has the number of components with the least BIC. A node is in every cluster to which it
belongs with a probability above 0.1. A cluster of more than 3500 tokens is clustered again.

Differences from the published code:
- a tree is the same each time. UMAP is seeded, and starts from principal components, because its spectral start draws
  random numbers that no seed controls
- a node is always in its likeliest cluster. In the code it is in none, and lost, if no probability exceeds 0.1
- if clustering does not make a cluster smaller, it is cut in document order. In the code that never ends
- layers are in document order. If one document's tree ends early, the next document's tree is not shortened
- a sentence longer than a chunk is cut at white space. The code cuts it at , ; : into pieces of any length, and puts
  these before the chunk that is being filled
- only the best few nodes are retrieved. (The code can also retrieve by a threshold, but keeps the nodes far away.)
- the collapsed tree stops at `top_k` nodes, as in PECAN's Table 1. The code stops at 3500 tokens
- traversal takes the top 5 of each layer, as the code does. PECAN's section 4 says that it follows "a single path"

scikit-learn and umap-learn are optional packages: requirements-extra.txt.
"""
import importlib.util
import math
import warnings

import numpy as np
import torch

from baselines.agent import Tree, TreeNode
from baselines.common import closeness, highest, pack_sentences, scaled
from core.files import optional
from core.settings import Settings
from llama import Llama
from pecan import pack

PROMPT = "Write a summary of the following, including as many key details as possible: {}:"
CHUNK = 100                                    # tokens of a chunk, and of a summary
CLUSTER_TOKENS = 3500
DIMENSIONS = 10                                # of UMAP's points
NEIGHBOURS = 10                                # for UMAP inside a cluster
SMALL = 11                                     # a layer or cluster of so many nodes, or fewer, is not clustered
COMPONENTS = 50                                # a mixture has fewer components than this
MEMBER = 0.1                                   # probability above which a node is in a cluster
LAYERS = 5                                     # of summaries, at most
SEED = 0


# --- clustering -----------------------------------------------------------------------------------------------------

def reduce(vectors: np.ndarray, neighbours: int) -> np.ndarray:
    """UMAP by cosine to 10 dimensions, [n, D] to [n, 10]; n is at least 12.

    The result is float64, because in float32 a mixture cannot separate points that are close together.
    """
    import umap
    if not np.ptp(vectors, axis=0).any():                    # all vectors are equal: there is nothing to separate
        return vectors[:, :DIMENSIONS].astype(np.float64)

    threads = torch.get_num_threads()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")                      # a seed allows one thread only, and UMAP warns of it
        reducer = umap.UMAP(n_neighbors=neighbours, n_components=DIMENSIONS, metric="cosine",
                            init="pca", random_state=SEED)
        points = reducer.fit_transform(vectors)

    # UMAP's compiler lets PyTorch use all cores, which makes small models much slower.
    torch.set_num_threads(threads)
    return points.astype(np.float64)


def mixture(points: np.ndarray) -> list[list[int]]:
    """Soft clusters of points [n, d]: the components of a Gaussian mixture.

    The number of components is the one with the least BIC. A cluster is the indices of its members.
    """
    from sklearn.mixture import GaussianMixture
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")                      # some mixtures do not converge
        fitted = [GaussianMixture(n, random_state=SEED).fit(points) for n in range(1, min(COMPONENTS, len(points)))]
        best = min(fitted, key=lambda fit: fit.bic(points))

    probability = best.predict_proba(points)                                               # [n, components]
    member = probability > MEMBER
    member[np.arange(len(points)), probability.argmax(1)] = True
    return [np.flatnonzero(column).tolist() for column in member.T if column.any()]


def clusters(vectors: np.ndarray, tokens: list[int], most: int) -> list[list[int]]:
    """Clusters of a layer's nodes, none of more than `most` tokens, sorted.

    vectors [n, D] and tokens [n] are the nodes' embeddings and lengths. A cluster is a list of indices in the layer, in
    document order.
    """
    found = []
    for members in mixture(reduce(vectors, int(math.sqrt(len(vectors) - 1)))):
        # Cluster a second time, inside this cluster. The new indices count in `members`.
        inside = [range(len(members))] if len(members) <= SMALL else mixture(reduce(vectors[members], NEIGHBOURS))
        for part in inside:
            cluster = [members[i] for i in part]
            lengths = [tokens[i] for i in cluster]

            # Too many tokens: cluster again. If that would not help, cut in document order.
            if sum(lengths) > most and SMALL < len(cluster) < len(vectors):
                parts = clusters(vectors[cluster], lengths, most)
            else:
                parts = pack(lengths, most)
            found += [[cluster[i] for i in part] for part in parts]
    return sorted(found)


# --- the method -----------------------------------------------------------------------------------------------------

class Raptor(Tree):
    """Read the `top_k` closest nodes of the tree (`collapsed`) or of each layer (tree traversal)."""
    instructed = False
    reply_tokens = CHUNK
    only_read = "top_k", "collapsed"

    def __init__(self, model: Llama, encoder, settings: Settings, top_k: int = 5, collapsed: bool = True):
        with optional("RAPTOR clusters with scikit-learn and umap-learn"):
            if importlib.util.find_spec("umap") is None:    # found, but not loaded: that takes seconds
                raise ImportError(name="umap-learn")

        super().__init__(model, settings)
        self.encoder = encoder
        self.top_k = top_k
        self.collapsed = collapsed

        # The prompt of a summary must fit the window, so a smaller window means smaller clusters.
        self.most = min(scaled(CLUSTER_TOKENS, settings), settings.window - self.length(PROMPT) - self.limit)

    def cluster(self, texts: list[str]) -> list[list[int]]:
        """The clusters of a layer's texts."""
        tokens = [len(self.model.tokenizer.encode(f"\n\n{text}")) for text in texts]
        return clusters(self.encoder.encode(texts).numpy(), tokens, self.most)

    def build(self, document, talk):
        """The nodes, layer by layer."""
        nodes = [TreeNode(1, text, []) for text in pack_sentences(self.model.tokenizer, document, self.limit)]
        layer = range(len(nodes))
        for _ in range(LAYERS):
            if len(layer) <= SMALL:
                break

            # Cluster the layer; a summary of each cluster is a node of the next one.
            found = self.cluster([nodes[i].text for i in layer])
            nodes += yield from self.summarise(nodes, [[layer[k] for k in cluster] for cluster in found], PROMPT, talk)
            layer = range(layer.stop, len(nodes))
        return {"nodes": nodes}

    def ready(self, content):
        """The tree and the vectors of its nodes (`index`, [|V|, D]); their FLOPs count here, once."""
        prepared = super().ready(content)
        prepared.index = self.encoder.encode(prepared.texts)
        prepared.counts = self.encoder.cut(prepared.texts)
        return prepared

    def read(self, prepared, question):
        order = self.retrieve(prepared.graph, closeness(self.encoder, prepared, question))
        return self.reading_of_best(question, prepared.texts, order)

    def retrieve(self, nodes: list[TreeNode], scores: list[float]) -> list[int]:
        """The nodes to read: the best of the whole tree, or of each layer the best children of nodes taken above."""
        chosen = []
        layer = [i for i, node in enumerate(nodes) if self.collapsed or node.level == nodes[-1].level]
        while layer:
            taken = highest(scores, self.top_k, layer)
            chosen += taken
            layer = [] if self.collapsed else set().union(*(nodes[i].children for i in taken))
        return chosen
