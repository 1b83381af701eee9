"""GraphReader's graph of atomic facts (section 3.2): facts from replies, key elements as nodes, edges between them.

What the paper leaves open:
- key elements are normalised by rules: lower case, no possessive, no special characters, stemmed words. The paper cites
  #InsTag, which has more steps. They need 100,000 tags that each occur 20 times or more; a node here has about 2 facts
- #InsTag's semantic clusters are left out. The paper's Figure 23 joins "Canada" and "Canadian" (cosine .777 by MiniLM).
  A threshold that allows this also joins "North Carolina" and "South Carolina" (.848)
- an edge joins two key elements that one fact *lists*; a substring is not enough ("art" in "party")

snowballstemmer is an optional package: requirements-extra.txt.
"""
import re
from itertools import chain

from baselines.replies import cells_of, pairs_of
from core.files import optional

EXAMPLE = "One day, a father and his little son were going home."           # from Figure 6; small models repeat it


def stemmer():
    """Snowball's English stemmer, word to stem; InputError if it is not installed."""
    with optional("GraphReader stems key elements with snowballstemmer"):
        import snowballstemmer
    return snowballstemmer.stemmer("english").stemWord


def form_of(element: str, stem) -> str:
    """The form by which key elements are compared; empty if there are only special characters."""
    text = re.sub(r"['’]s\b", "", element.lower())
    return " ".join(map(stem, re.sub(r"[\W_]+", " ", text).split()))


def facts_of(reply: str, chunk: str) -> list[list[str]]:
    """The facts in a reply to Figure 6, each followed by its key elements. A line is "number. fact | element | .."."""
    facts = []
    for fact, *elements in cells_of(reply, 2):
        fact = re.sub(r"^\[?\d{1,3}[],:]+\s*", "", fact)          # a number that is no marker of a list
        elements = [element for element in (element.strip(" []") for element in elements) if element]
        if elements and (fact != EXAMPLE or EXAMPLE in chunk):
            facts.append([fact, *elements])
    return facts


class FactGraph:
    """Nodes with their facts and neighbours. `facts` has the facts of each chunk, each followed by its key elements.

    A node's name is its first wording. Its facts are in document order, its neighbours in order of appearance.
    """

    def __init__(self, facts: list[list[list[str]]], stem):
        self.stem = stem
        names = {}                                          # form -> its first wording
        for _, *elements in chain(*facts):
            for element in elements:
                names.setdefault(form_of(element, stem), element)
        names.pop("", None)

        # A node for each form, in order of appearance.
        self.node_of = {form: node for node, form in enumerate(names)}
        self.names = list(names.values())

        # Facts, and edges between the nodes that a fact lists.
        self.facts = [[] for _ in names]                    # of each node: (chunk, fact)
        neighbours = [set() for _ in names]                 # of each node: the nodes that a fact lists with it
        for chunk, in_chunk in enumerate(facts):
            for fact, *elements in in_chunk:
                listed = {self.find(element) for element in elements} - {None}
                for node in listed:
                    self.facts[node].append((chunk, fact))
                    neighbours[node] |= listed - {node}
        self.neighbours = list(map(sorted, neighbours))

    def find(self, name: str) -> int | None:
        """The node of this name, in any wording; None if there is none."""
        return self.node_of.get(form_of(name, self.stem))


def scores_of(reply: str, graph: FactGraph) -> dict[int, float]:
    """Node -> score in 0..100, from "Node: .., Score: ..". Unknown names are left out; the higher score counts."""
    scores = {}
    for name, said in pairs_of(reply, "node", "score"):
        score = re.match(r"\[?(-?\d+(?:\.\d+)?)", said)
        node = graph.find(name)                             # signs around the name do not matter
        if score and node is not None:
            scores[node] = max(scores.get(node, 0.0), min(100.0, float(score[1])))
    return scores
