"""JERR (Chen et al., Findings of EMNLP 2025), a reconstruction: synopses, a graph of entities, and tree search in it.

Once for a document: the model shortens each chunk to a synopsis, then lists its entities and core elements. Duplicates
are joined. The model names their relations, which become the edges of a directed acyclic graph (sections 3.2, 3.3). For
a question: Monte Carlo tree search finds the nodes whose paths hold its keywords (3.4). The model sees these nodes and
all synopses, and says which chunks it wants to read again. Then it answers.

Our copy of the paper has no formulas and no prompts. We follow its words; the rest is our choice.

Chunks and names:
- chunks do not overlap. The paper mentions "an overlap line count", but gives no number
- a set removes exact duplicates. The paper's Bloom filter and trie together do the same
- near duplicates are joined if their SimHash differs in at most 3 bits (the paper: "below a set threshold (e.g., three
  bits)"), although this also joins "Heinkel HD 36" and "HD 38"
- a line is a name if the synopsis holds its words. ("Marie Curie" is one of "Marie and Pierre Curie".)

Graph and search:
- a node's text is its name and the sentences of the synopses that hold all its words. With whole synopses, all nodes
  of a chunk would match the same keywords
- an edge has the words of its relations, and no other attributes. The paper does not describe any
- one call asks for all relations of a chunk. One call for each pair of entities would exceed the paper's token counts
- children are selected by UCB1 with c = sqrt(2) (Browne et al. 2012, which the paper cites). Appendix B says UCB,
  section 3.4 "win/visit ratio"
- a search has 100 rounds, or 10 for each node if that is more. A simulation has 3 steps. The paper gives no number
- a relation that would close a cycle is dropped
- a node is expanded, by all its successors, when it is first selected without children. Appendix B goes on until
  a "sufficient visit count", but gives no number
- of equal average rewards, the node with more keywords of its own is better. Visits decide only after that: they say
  how often a node was tried
- the reward is the share of the keywords that occur on the whole path below the root. The selected nodes count, too:
  otherwise a node with children would gain nothing by its own keyword
- the paper's Table 4 compares the search with PageRank, which is left out

Answers:
- the reader gets synopses and chunks, as 3.1 says. 3.4 names the retrieved nodes instead of synopses, but their texts
  are sentences of synopses
- after two refused replies a chunk's beginning is its synopsis, the chunk has no names or relations, the question's
  words are the keywords, and no chunk is read again. (The nodes' chunks could be read instead. But in the paper the
  model makes this choice, not the graph.)
- options are lines "(A) .." of the question, as the layout of QuALITY writes them. They may give keywords
"""
import hashlib
import math
import random
import re
from collections.abc import Iterable
from functools import cache
from itertools import chain

from baselines.agent import Agent, cells_of, form_of, found_in, lines_of, numbers_of, plain
from baselines.common import pack_paragraphs, scaled
from baselines.jerr_prompts import ATOMS, EDGES, ELEMENTS, KEYWORDS, LOOK_UP, SYNOPSIS
from core.text import sentences, split, words
from data import Document, Prepared

CHUNK_TOKENS = 2000
OPTIONS_TOKENS = 600              # of a chunk, if questions have options (QuALITY)
NEAR = 3                          # theta: the SimHashes of near duplicates differ in at most so many bits
LOOKED_UP = 3                     # chunks that may be read again: ReadAgent's numbers
OPTIONS_LOOKED_UP = 5
OPTION = r"(?m)^\([A-Z]\) "       # the beginning of an option's line
ROUNDS = 100                      # of the search, at least; 10 for each node if that is more
FOUND = 5                         # k: nodes that the search returns
DEPTH = 3                         # d: random steps of a simulation
ROOT = -1                         # of the search tree

# Words that do not tell one text from another.
STOP = set("a an the of in on at to by for from with and or but as is are was were be do does did has have had can "
           "cannot not no yes this that it i you he she we they me him her us them my your his its our their m s t "
           "what which who whom whose when where why how".split())
NAME = 12                         # words of a name, at most


# --- synopses and names (sections 3.2, 3.3) -------------------------------------------------------------------------

def words_of(text: str) -> set[str]:
    """The words of a text except very common ones."""
    return {*words(text)} - STOP


def synopsis_of(reply: str, _) -> list[str]:
    """A reply on one line."""
    return list(filter(None, [plain(reply)]))


def names_of(reply: str, text: str) -> list[str | None]:
    """The lines of a reply of at most NAME words, which the text holds; None for others."""
    return [line if words_of(line) and words_of(line) <= words_of(text) and len(line.split()) <= NAME else None
            for line in lines_of(reply)]


# --- nodes and edges (section 3.3) ----------------------------------------------------------------------------------

@cache
def simhash(text: str) -> int:
    """The 64-bit SimHash of a text's words: shingles of 4 characters, MD5.

    It is that of the package simhash, for Latin letters. The package drops the vowels of Hindi or Burmese.
    """
    content = "".join(words(text))
    hashes = [int.from_bytes(hashlib.md5(content[i:i + 4].encode()).digest()[-8:])
              for i in range(max(len(content) - 3, 1))]
    return sum(1 << bit for bit in range(64) if 2 * sum(value >> bit & 1 for value in hashes) > len(hashes))


def join_names(candidates: Iterable[Iterable[str]]) -> tuple[list[dict], dict[str, int]]:
    """Nodes (name, chunks) and form -> node, from the candidate names of each chunk (equations 3, 4).

    A near duplicate joins the first node that it is near.
    """
    nodes = []
    node_of = {}
    for chunk, names in enumerate(candidates):
        for name in names:
            form = form_of(name)
            if form not in node_of:
                near = [v for v, node in enumerate(nodes)
                        if (simhash(name) ^ simhash(node["name"])).bit_count() <= NEAR]
                node_of[form] = near[0] if near else len(nodes)
                if not near:
                    nodes.append({"name": name, "chunks": []})

            chunks = nodes[node_of[form]]["chunks"]
            if chunk not in chunks:
                chunks.append(chunk)
    return nodes, node_of


def relations_of(reply: str, node_of: dict[str, int]) -> list[tuple[int, str, int] | None]:
    """The relations (node, relation, node) in a reply, from lines "a | relation | b"; None for others."""
    found = []
    for line in lines_of(reply):
        cells = cells_of(line)
        nodes = [node_of.get(form_of(cell)) for cell in cells[::2]]
        found.append((nodes[0], cells[1], nodes[1]) if len(cells) == 3 and None not in nodes else None)
    return found


def acyclic(relations: Iterable[tuple[int, str, int]], number: int) -> list[list]:
    """Edges [a, b, relations] of a directed acyclic graph of `number` nodes.

    A relation that would close a cycle is left out. Another relation of the same two nodes is added to their edge.
    """
    edges = {}
    reached = [{node} for node in range(number)]            # from each node, along edges
    for a, relation, b in relations:
        if a not in reached[b]:
            edges.setdefault((a, b), {})[relation] = None
            for others in reached:
                if a in others:
                    others |= reached[b]
    return [[a, b, "; ".join(joined)] for (a, b), joined in edges.items()]


# --- search (section 3.4, Appendix B) ---------------------------------------------------------------------------------

class TreeSearch:
    """Monte Carlo tree search for the nodes (texts) whose paths along edges [a, b, relations] hold the keywords.

    A node is in the tree at most once, with visits N and rewards W. The root is ROOT, the last index of each list; the
    nodes that no edge leads to are below it.
    """

    def __init__(self, texts: list[str], edges: list[list], keywords: set[str]):
        forms = [f" {form_of(text)} " for text in (*texts, "")]
        self.held = [{keyword for keyword in keywords if f" {form_of(keyword)} " in form} for form in forms]
        self.after = [[b for a, b, _ in edges if a == v] for v in range(len(self.held))]
        self.keywords = keywords
        self.rng = random.Random(0)
        self.children = [[] for _ in self.held]             # of each node, in the tree
        self.children[ROOT] = sorted(set(range(len(texts))) - {b for _, b, _ in edges})
        self.N = [0] * len(self.held)
        self.W = [0.0] * len(self.held)

    def ucb(self, v: int, parent: int) -> float:
        """Q(v) + c sqrt(ln N(parent) / N(v)), c = sqrt(2); infinite for a node that was never visited (equation 8)."""
        if self.N[v] == 0:
            return math.inf
        return self.W[v] / self.N[v] + math.sqrt(2 * math.log(self.N[parent]) / self.N[v])

    def round(self):
        """Select, expand, simulate, propagate back (equations 9 to 13)."""
        # Selection: down the tree by UCB, ties to the lower id.
        path = [ROOT]
        while self.children[path[-1]]:
            path.append(max(self.children[path[-1]], key=lambda v: (self.ucb(v, path[-1]), -v)))

        # Expansion: all successors that are not in the tree; one of them is next.
        new = [v for v in self.after[path[-1]] if v not in chain(*self.children)]
        if new:
            self.children[path[-1]] = new
            path.append(self.rng.choice(new))

        # Simulation: random steps along edges. The reward is the share of the keywords on the whole path.
        walked = list(path)
        while self.after[walked[-1]] and len(walked) < len(path) + DEPTH:
            walked.append(self.rng.choice(self.after[walked[-1]]))
        found = set().union(*(self.held[v] for v in walked))
        for v in path:
            self.N[v] += 1
            self.W[v] += len(found) / max(1, len(self.keywords))

    def best(self) -> list[int]:
        """The k visited nodes with the highest Q; then own keywords, N, and the lower id decide (equations 14, 15)."""
        visited = [v for v in range(len(self.held) - 1) if self.N[v]]
        return sorted(visited, key=lambda v: (-self.W[v] / self.N[v], -len(self.held[v]), -self.N[v], v))[:FOUND]


# --- questions (section 3.4) ----------------------------------------------------------------------------------------

def keywords_of(question: str, names: list[str]) -> set[str]:
    """The names that the model found in the question; if there are none, its words, except very common ones (STOP)."""
    return set(map(form_of, names)) or words_of(re.sub(OPTION, "", question))


def pages_of(reply: str, number: int, most: int) -> list[int | None]:
    """The pages (below `number`) that a reply names as "Page [3, 1]", at most `most`; None for others."""
    pages = numbers_of("; ".join(re.findall(r"(?i)page \[([\d, ]+)\]", reply)), range(number))
    return [page if page in found_in(pages)[:most] else None for page in pages]


# --- the method -----------------------------------------------------------------------------------------------------

class JERR(Agent):
    """Write synopses and a graph once. For a question: search, look up chunks, answer from synopses and chunks."""

    def identity(self, document):
        return super().identity(document) | {"chunk": self.chunk(document)}

    def chunk(self, document: Document) -> int:
        """The tokens of a chunk. Chunks are shorter if a question has options."""
        options = any(re.search(OPTION, question.text) for question in document.questions)
        return scaled(OPTIONS_TOKENS if options else CHUNK_TOKENS, self.settings)

    def build(self, document, talk):
        """Synopses, nodes (name, chunks, text) and edges [a, b, relations]."""
        tokenizer = self.model.tokenizer
        chunks = pack_paragraphs(tokenizer, document, self.chunk(document))
        said = yield from talk.ask(SYNOPSIS, chunks, synopsis_of)
        synopses = [(some or split(tokenizer, chunk, self.limit))[0] for some, chunk in zip(said, chunks)]

        # Entities and core elements of each chunk, joined over all chunks.
        atoms = yield from talk.ask(ATOMS, synopses, names_of)
        elements = yield from talk.ask(ELEMENTS, synopses, names_of)
        nodes, node_of = join_names(map(chain, atoms, elements))
        whole = list(chain(*map(sentences, synopses)))
        for node in nodes:
            about = [sentence for sentence in whole if words_of(node["name"]) <= words_of(sentence)]
            node["text"] = " ".join([node["name"], *about])

        # Relations, one call a chunk.
        names = [[node["name"] for node in nodes if chunk in node["chunks"]] for chunk in range(len(chunks))]
        texts = ["\n".join(some) + "\n\nText:\n" + synopsis for some, synopsis in zip(names, synopses) if len(some) > 1]
        found = yield from talk.ask(EDGES, texts, lambda reply, _: relations_of(reply, node_of))
        return {"chunks": chunks, "synopses": synopses, "nodes": nodes, "edges": acyclic(chain(*found), len(nodes))}

    def ready(self, content):
        return Prepared(content["chunks"], graph=content)

    def read(self, prepared, question):
        """Search, look chunks up, read. `nodes` are the chunks that were looked up and fit.

        Synopses get room first, up to half of it, those of the result's chunks before others; then the chunks, in the
        model's order, in place of their synopses. All are read in the order of the document.
        """
        memory = prepared.graph
        nodes = memory["nodes"]
        synopses = memory["synopses"]
        [names] = self.ask(KEYWORDS, [question], names_of)
        tree = TreeSearch([node["text"] for node in nodes], memory["edges"], keywords_of(question, names))
        for _ in range(max(ROUNDS, 10 * len(nodes))):
            tree.round()
        found = tree.best()

        first = {chunk for v in found for chunk in nodes[v]["chunks"]}
        priority = sorted(range(len(synopses)), key=lambda chunk: chunk not in first)
        pages = self.look_up(memory, question, found, priority)

        room = self.room(question)
        lines = self.lines_that_fit(synopses, priority, room // 2)
        read = self.lines_that_fit(prepared.texts, pages, room - sum(map(len, lines.values())))
        lines |= read
        return self.reading(question, [i for chunk in sorted(lines) for i in lines[chunk]], list(read),
                            len(lines) < len(priority) or list(read) != pages)

    def look_up(self, memory: dict, question: str, found: list[int], priority: list[int]) -> list[int]:
        """The chunks that the model wants to read again; none if its replies are refused.

        If not all synopses fit the prompt, those of the least priority are left out.
        """
        nodes = memory["nodes"]
        synopses = memory["synopses"]
        related = []
        for v in found:
            relations = [f"{relation} {nodes[b]['name']}" for a, b, relation in memory["edges"] if a == v]
            pages = ", ".join(map(str, nodes[v]["chunks"]))
            related.append(f"{nodes[v]['name']} (Page {pages}): {'; '.join(relations) or 'none'}")

        options = re.search(OPTION, question)
        kind, most = ("multiple choice ", OPTIONS_LOOKED_UP) if options else ("", LOOKED_UP)
        texts = (LOOK_UP.format(kind=kind, most=most, question=question,
                                pages="\n".join(f"Page {chunk}: {synopses[chunk]}" for chunk in sorted(priority[:n])),
                                related="\n".join(related)) for n in range(len(priority), -1, -1))
        return self.ask_fitting(texts, lambda reply, _: pages_of(reply, len(synopses), most))
