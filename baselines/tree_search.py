"""The search of JERR (section 3.4, Appendix B): which nodes of its graph are relevant to a question's keywords.

Our copy of the paper lacks the formulas. We take the standard ones: UCB1 with c = sqrt(2) (Browne et al. 2012, which
the paper cites), and a reward from 0 to 1. The reward is the share of the keywords that occur on the whole path below
the root. This includes a node's own text: otherwise a node with children would gain nothing by its own keyword.

Section 3.4 selects by the "win/visit ratio", Appendix B by UCB; we follow Appendix B. It stops expanding at a
"sufficient visit count", but gives no number. We expand a node when it is first selected without children.
"""
import math
import random
import re

ROUNDS = 100                      # of the search, at least; 10 for each node if that is more
FOUND = 5                         # k: nodes that the search returns
DEPTH = 3                         # d: random steps of a simulation


def form_of(name: str) -> str:
    """The form by which names are compared."""
    return " ".join(name.lower().split())


def holds(text: str, phrase: str) -> bool:
    """Whether a text holds a phrase as whole words, in upper or lower case."""
    return bool(re.search(rf"(?<!\w){re.escape(form_of(phrase))}(?!\w)", form_of(text)))


def search(nodes: list[dict], edges: list[list], keywords: list[str]) -> list[int]:
    """The k nodes (of name, text) that are most relevant to the keywords. An edge is [a, b, relations]."""
    held = [{keyword for keyword in keywords if holds(node["text"], keyword)} for node in nodes]
    after = [[b for a, b, _ in edges if a == v] for v in range(len(nodes))]
    tree = TreeSearch(held, after, len(keywords))
    for _ in range(max(ROUNDS, 10 * len(nodes)) if nodes else 0):
        tree.round()
    return tree.best()


class TreeSearch:
    """Monte Carlo tree search. held[v]: keywords in the text of node v; after[v]: the nodes that its edges lead to.

    A node is in the tree at most once, with visits N and rewards W. Nodes that no edge leads to are below the root.
    """

    def __init__(self, held: list[set[str]], after: list[list[int]], keywords: int):
        self.held = held
        self.after = after
        self.keywords = keywords
        self.rng = random.Random(0)
        entered = {v for targets in after for v in targets}
        self.roots = [v for v in range(len(held)) if v not in entered]
        self.children = {}                                  # node -> its children in the tree
        self.in_tree = set(self.roots)
        self.N = [0] * len(held)
        self.W = [0.0] * len(held)
        self.rounds = 0                                     # N of the root

    def ucb(self, v: int, parent: int) -> float:
        """Q(v) + c sqrt(ln N(parent) / N(v)), c = sqrt(2); infinite for a node that was never visited (equation 8)."""
        if self.N[v] == 0:
            return math.inf
        return self.W[v] / self.N[v] + math.sqrt(2 * math.log(parent) / self.N[v])

    def round(self):
        """Select, expand, simulate, propagate back (equations 9 to 13)."""
        # Selection: down the tree by UCB, ties to the lower id.
        path = []
        options, parent = self.roots, self.rounds
        while options:
            path.append(max(options, key=lambda v: (self.ucb(v, parent), -v)))
            options, parent = self.children.get(path[-1], []), self.N[path[-1]]

        # Expansion: all successors that are not in the tree; one of them is next.
        new = [v for v in self.after[path[-1]] if v not in self.in_tree]
        if new:
            self.children[path[-1]] = new
            self.in_tree.update(new)
            path.append(self.rng.choice(new))

        # Simulation: random steps along edges. The reward is the share of the keywords on the whole path.
        walked = list(path)
        while self.after[walked[-1]] and len(walked) < len(path) + DEPTH:
            walked.append(self.rng.choice(self.after[walked[-1]]))
        found = set().union(*(self.held[v] for v in walked))
        reward = len(found) / max(1, self.keywords)

        self.rounds += 1
        for v in path:
            self.N[v] += 1
            self.W[v] += reward

    def best(self) -> list[int]:
        """The k visited nodes with the highest Q; then N, own keywords, and the lower id decide (equations 14, 15)."""
        visited = [v for v in range(len(self.N)) if self.N[v]]
        return sorted(visited, key=lambda v: (-self.W[v] / self.N[v], -self.N[v], -len(self.held[v]), v))[:FOUND]
