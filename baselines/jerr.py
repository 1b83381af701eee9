"""JERR, a reconstruction: synopses for the whole, a graph of what belongs together, tree search for where to look.

JERR (Chen et al., Findings of EMNLP 2025). Once for a document: the model shortens each chunk to a synopsis and names
its entities and core elements; duplicates are joined; the model relates them, as a directed acyclic graph (sections
3.2, 3.3). For a question: Monte Carlo tree search finds the nodes whose paths hold its keywords (3.4, Appendix B). The
model sees these and all synopses, and names the chunks that it wants to read again; then it answers.

The text of the paper came to us without its formulas and prompts. The steps are its words; what follows is ours:
- equations are the standard ones: UCB1 with c = sqrt(2) (Browne et al. 2012, which it cites), reward in [0, 1]
- SYNOPSIS and LOOK_UP are ReadAgent's (Lee et al. 2024), which it names as its model; the other prompts are new
- Bloom filter and trie together are a set, so a set removes exact duplicates
- near duplicates are joined if their SimHash differs in 3 bits at most ("e.g., three bits"). That also joins "Heinkel
  HD 36" and "HD 38", so every join is listed in the file
- a node's text is its name and the sentences of synopses that hold it; with whole synopses all nodes of a chunk would
  match the same keywords
- the reward counts the different keywords on the whole path, from below the root. Without the node's own texts, a node
  with children would not profit from its own keyword
- if replies are refused, a chunk has no entities or relations, the question's words are its keywords, and no chunk is
  read again. Reading the nodes' chunks instead would leave to the graph what the paper leaves to the model
- questions with options (QuALITY) are not built
"""
import hashlib
import math
import random
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from baselines.common import Talk, answer_from, kept, line_ids, pack_paragraphs, reminder, scaled
from data import Document
from llama import Llama
from pecan import room_for_nodes
from support.graph_file import file_name
from support.method import Answer, Prepared
from support.settings import Settings
from support.text import split

SYNOPSIS = ("Please shorten the following passage.\nJust give me a shortened version. DO NOT explain your reason.\n\n"
            "Passage:\n")
ATOMS = ("List the entities of the following text: people, places, organisations, things, times. One a line, behind "
         "\"* \", by their full names.\n\nText:\n")
ELEMENTS = ("List the core elements of the following text: its key actions, states, causes and ideas, each as a short "
            "phrase. One a line, after \"* \".\n\nText:\n")
EDGES = ("Which of these entities are directly related in the text? One relation a line, in the form: entity | "
         "relation | entity. The first causes, owns, contains or acts on the second. Use exactly the words of the list."
         "\n\nEntities:\n")
KEYWORDS = "List the keywords of the question, one a line, after \"* \". Do not answer it.\n\nQuestion:\n"
LOOK_UP = """The following text is what you remember from reading an article and a question related to it.
You may read 1 to {most} page(s) of the article again to refresh your memory to prepare yourself for the question.
Please respond with which page(s) you would like to read.
For example, if you only need to read Page 8, respond with "I want to look up Page [8] to ..."; if you would like to \
read Page 7 and 12, respond with "I want to look up Page [7, 12] to ...".
DO NOT select more pages if you don't need to.
You don't need to answer the question yet.
Text:
{pages}
Related:
{related}
Question:
{question}"""
BULLETS = "One a line, after \"* \"."
RELATION = "One a line: entity | relation | entity, with the words of the list."
PAGES = "Respond with \"I want to look up Page [..] to ..\"."

CHUNK_TOKENS = 2000
SYNOPSIS_TOKENS = 512
REPLY_TOKENS = 512
LONGEST_NAME = 12                 # words; a longer line is prose
NEAR = 3                          # theta: bits in which the SimHash of near duplicates differs at most
FOUND = 5                         # k: nodes that the search returns
DEPTH = 3                         # d: random steps of a simulation
ROUNDS = 100                      # of the search, at least; 10 a node
LOOKED_UP = 3                     # chunks that may be read again: ReadAgent's number
DAMPING = 0.85
STOP = set("a an the of in on at to by for from with and or is are was were be do does did what which who whom whose "
           "when where why how".split())


# --- nodes and edges (section 3.3) ----------------------------------------------------------------------------------

def simhash(text: str) -> int:
    """The 64-bit SimHash of a text, as the package simhash computes it: shingles of 4 characters, MD5."""
    content = "".join(re.findall(r"[\w\u4e00-\u9fcc]+", text.lower()))
    shingles = Counter(content[i:i + 4] for i in range(max(len(content) - 3, 1)))
    votes = [0] * 64
    for shingle, count in shingles.items():
        value = int.from_bytes(hashlib.md5(shingle.encode()).digest()[-8:], "big")
        for bit in range(64):
            votes[bit] += count * (value >> bit & 1)
    return sum(1 << bit for bit in range(64) if 2 * votes[bit] > shingles.total())


def names_of(reply: str) -> list[str]:
    """The names in a reply, one a line, with or without bullets; prose is left out."""
    names = [re.sub(r"^\s*(?:[*•-]|\d+[.)])\s*", "", line).strip() for line in reply.splitlines()]
    return list(dict.fromkeys(name for name in names if name and len(name.split()) <= LONGEST_NAME))


def form_of(name: str) -> str:
    return " ".join(name.lower().split())


def holds(text: str, phrase: str) -> bool:
    """Whether a text holds a phrase as whole words, in upper or lower case."""
    return bool(re.search(rf"(?<!\w){re.escape(form_of(phrase))}(?!\w)", form_of(text)))


def join_names(candidates: list[list[str]]) -> tuple[list[dict], dict[str, int], list[list[str]]]:
    """Nodes (name, chunks), form -> node, and the near duplicates that were joined, from the candidates of each chunk.

    A near duplicate joins the nearest node, of equals the earliest (equations 3, 4).
    """
    nodes = []
    node_of = {}
    hashes = []
    merges = []
    for chunk, names in enumerate(candidates):
        for name in names:
            form = form_of(name)
            if form not in node_of:
                own = simhash(name)
                distances = [(own ^ other).bit_count() for other in hashes]
                nearest = min(distances, default=NEAR + 1)
                if nearest <= NEAR:
                    node_of[form] = distances.index(nearest)
                    merges.append([name, nodes[node_of[form]]["name"]])
                else:
                    node_of[form] = len(nodes)
                    nodes.append({"name": name, "chunks": []})
                    hashes.append(own)

            chunks = nodes[node_of[form]]["chunks"]
            if chunk not in chunks:
                chunks.append(chunk)
    return nodes, node_of, merges


def relations_of(reply: str, node_of: dict[str, int]) -> list[tuple[int, str, int]]:
    """The relations (node, relation, node) in a reply, from lines "a | relation | b" between known entities."""
    relations = []
    for line in reply.splitlines():
        parts = [part.strip() for part in re.sub(r"^\s*(?:[*•-]|\d+[.)])\s*", "", line).split("|")]
        if len(parts) == 3 and form_of(parts[0]) in node_of and form_of(parts[2]) in node_of:
            relations.append((node_of[form_of(parts[0])], parts[1], node_of[form_of(parts[2])]))
    return relations


def acyclic(relations: list[tuple[int, str, int]]) -> tuple[list[list], int]:
    """Edges [a, b, relations] of a directed acyclic graph, and how many relations would have closed a cycle.

    A further relation of the same two nodes is added to their edge.
    """
    edges = {}
    after = {}                                              # node -> the nodes that its edges lead to
    refused = 0
    for a, relation, b in relations:
        if reaches(after, b, a):
            refused += 1
            continue
        of_edge = edges.setdefault((a, b), [])
        if relation not in of_edge:
            of_edge.append(relation)
        after.setdefault(a, set()).add(b)
    return [[a, b, "; ".join(of_edge)] for (a, b), of_edge in edges.items()], refused


def reaches(after: dict[int, set[int]], start: int, end: int) -> bool:
    """Whether edges lead from start to end; every node reaches itself."""
    seen = set()
    left = [start]
    while left:
        node = left.pop()
        if node == end:
            return True
        if node not in seen:
            seen.add(node)
            left += after.get(node, ())
    return False


# --- search (section 3.4, Appendix B) -------------------------------------------------------------------------------

class TreeSearch:
    """Monte Carlo tree search. held[v]: keywords in the text of node v; after[v]: where its edges lead.

    A node is in the tree at most once, with visits N and rewards W. Children of the virtual root are the nodes that no
    edge leads to: from these every node of an acyclic graph is reached.
    """

    def __init__(self, held: list[set[str]], after: list[list[int]], keywords: int, rng: random.Random):
        self.held = held
        self.after = after
        self.keywords = keywords
        self.rng = rng
        entered = {v for targets in after for v in targets}
        self.roots = [v for v in range(len(held)) if v not in entered]
        self.children: dict[int, list[int]] = {}
        self.in_tree = set(self.roots)
        self.N = [0] * len(held)
        self.W = [0.0] * len(held)
        self.rounds = 0                                     # N of the root

    def ucb(self, v: int, parent: int) -> float:
        """Q(v) + c sqrt(ln N(parent) / N(v)), c = sqrt(2); infinite for a node that was never visited (equation 9)."""
        if self.N[v] == 0:
            return math.inf
        return self.W[v] / self.N[v] + math.sqrt(2 * math.log(parent) / self.N[v])

    def round(self):
        """Select, expand, simulate, propagate back (equations 8 to 13)."""
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
        reward = len(found) / self.keywords if self.keywords else 0.0

        self.rounds += 1
        for v in path:
            self.N[v] += 1
            self.W[v] += reward

    def best(self) -> list[int]:
        """The k visited nodes with the highest Q; then N, own keywords, and the lower id decide (equations 14, 15)."""
        visited = [v for v in range(len(self.N)) if self.N[v]]
        return sorted(visited, key=lambda v: (-self.W[v] / self.N[v], -self.N[v], -len(self.held[v]), v))[:FOUND]


def pagerank(held: list[set[str]], after: list[list[int]]) -> list[float]:
    """Personalised PageRank, which replaces the search in the paper's ablation (Table 4).

    It restarts at nodes by their share of the keyword matches; without these, every question of a document would get
    the same nodes. What a node without successors has goes to the restart.
    """
    matches = [len(keywords) for keywords in held]
    restart = [n / (sum(matches) or 1) for n in matches]
    rank = list(restart)
    for _ in range(100):
        new = [(1 - DAMPING) * share for share in restart]
        for v, targets in enumerate(after):
            for target in targets:
                new[target] += DAMPING * rank[v] / len(targets)
            if not targets:
                new = [value + DAMPING * rank[v] * share for value, share in zip(new, restart)]
        rank = new
    return rank


# --- questions (section 3.4) ----------------------------------------------------------------------------------------

def keywords_of(question: str, reply: list[str] | None) -> list[str]:
    """The keywords of a reply that are in the question; if there are none, its words without those of a fixed list."""
    found = [name for name in reply or [] if holds(question, name)]
    return found or [word for word in re.findall(r"[\w'-]+", question) if word.lower() not in STOP]


def pages_of(reply: str, number: int) -> list[int] | None:
    """The pages, of `number`, that a reply names after "Page", the first 3; None if it names none."""
    groups = re.findall(r"Pages?\s*\[?\s*(\d+(?:\s*(?:,|and|&)\s*\d+)*)", reply)
    pages = [int(page) for group in groups for page in re.findall(r"\d+", group)]
    return [page for page in dict.fromkeys(pages) if page < number][:LOOKED_UP] or None


@dataclass
class JerrStep:
    """One stage of a question, for the trace."""
    stage: str
    result: str                   # keywords; nodes with their Q and N; pages


class JERR:
    """Synopses and graph once; then keywords, search, pages, and the answer from synopses and chunks.

    `ranked` replaces the tree search by PageRank, as in the paper's ablation.
    """

    def __init__(self, model: Llama, settings: Settings, ranked: bool = False, talk: type[Talk] = Talk):
        self.model = model
        self.settings = settings
        self.ranked = ranked
        self.talk = talk
        self.chunk = scaled(CHUNK_TOKENS, settings)
        self.synopsis = scaled(SYNOPSIS_TOKENS, settings)
        self.reply = scaled(REPLY_TOKENS, settings)

        check = talk(model, settings, "JERR")
        check.check("a synopsis", check.length(SYNOPSIS) + self.chunk, self.synopsis)
        for prompt in (ATOMS, ELEMENTS):
            check.check("extraction", check.length(prompt + reminder(BULLETS)) + self.synopsis, self.reply)
        self.construction = {"method": "jerr", "chunk": self.chunk, "synopsis": self.synopsis, "reply": self.reply}

    def file_name(self, document: Document) -> str:
        """Names the synopses and the graph of this document, this model and these lengths on disk."""
        return file_name(document.hash, self.model.fingerprint, self.construction)

    def prepare(self, document: Document, path: str | Path | None = None, progress: bool = False) -> Prepared:
        """Load synopses and graph from `path`, or make them (and save them there)."""
        chunks = pack_paragraphs(self.model.tokenizer, document, self.chunk)
        content = kept(path, document, self.model, self.construction, lambda: self.build(chunks, progress))
        return Prepared(chunks, content["flops"], content, calls=content["calls"], refused=content["refused"])

    def build(self, chunks: list[str], progress: bool) -> dict:
        """Synopses, nodes (name, chunks, text) and edges [a, b, relations]; also what was joined or left out."""
        flops_before = self.model.flops
        talk = self.talk(self.model, self.settings, "JERR")
        said = talk.ask("a synopsis", [SYNOPSIS + chunk for chunk in chunks], self.synopsis, progress)
        synopses = [" ".join(reply.split()) or split(self.model.tokenizer, chunk, self.synopsis)[0]
                    for reply, chunk in zip(said, chunks, strict=True)]

        # Entities and core elements of each chunk, joined over all chunks.
        atoms, elements = (talk.ask_until("extraction", [prompt + synopsis for synopsis in synopses], self.reply,
                                          lambda n, reply: names_of(reply) or None, BULLETS, progress)
                           for prompt in (ATOMS, ELEMENTS))
        nodes, node_of, merges = join_names([[*(a or []), *(e or [])] for a, e in zip(atoms, elements, strict=True)])
        sentences = [sentence for synopsis in synopses for sentence in re.split(r"(?<=[.!?])\s+", synopsis)]
        for node in nodes:
            node["text"] = " ".join([node["name"], *(s for s in sentences if holds(s, node["name"]))])

        # Relations, one call a chunk.
        names = [[node["name"] for node in nodes if chunk in node["chunks"]] for chunk in range(len(chunks))]
        related = [chunk for chunk in range(len(chunks)) if len(names[chunk]) > 1]
        texts = [f"{EDGES}{chr(10).join(names[chunk])}\n\nText:\n{synopses[chunk]}" for chunk in related]
        found = talk.ask_until("relations", texts, self.reply, lambda n, reply: relations_of(reply, node_of) or None,
                               RELATION, progress)
        edges, cycles = acyclic([relation for of_chunk in found for relation in of_chunk or []])
        return {"synopses": synopses, "nodes": nodes, "edges": edges, "merges": merges, "left out as cycles": cycles,
                "flops": self.model.flops - flops_before, "calls": talk.calls, "refused": talk.refused}

    def answer(self, prepared: Prepared, question: str) -> Answer:
        """Search, look chunks up, read. `nodes` are the chunks that were looked up; `cut` if something did not fit."""
        flops_before = self.model.flops
        talk = self.talk(self.model, self.settings, "JERR")
        memory = prepared.graph
        [said] = talk.ask_until("keywords", [KEYWORDS + question], self.reply,
                                lambda n, reply: names_of(reply) or None, BULLETS)
        keywords = list(dict.fromkeys(form_of(keyword) for keyword in keywords_of(question, said)))
        trace = [JerrStep("keywords", "; ".join(keywords))]

        found = self.search(memory, keywords, trace)
        first = {chunk for v in found for chunk in memory["nodes"][v]["chunks"]}
        priority = sorted(range(len(prepared.texts)), key=lambda chunk: (chunk not in first, chunk))
        pages = self.look_up(memory, question, found, priority, talk)
        trace.append(JerrStep("pages", ", ".join(map(str, pages)) or "refused"))

        lines, cut = self.lines(prepared, question, pages, priority)
        answer = answer_from(self.model, question, [i for line in lines for i in line], self.settings)
        answer.nodes = pages
        answer.cut = cut
        answer.flops = self.model.flops - flops_before
        talk.enter(answer, trace)
        return answer

    def search(self, memory: dict, keywords: list[str], trace: list[JerrStep]) -> list[int]:
        """The k nodes that are most relevant to the keywords."""
        nodes = memory["nodes"]
        held = [{keyword for keyword in keywords if holds(node["text"], keyword)} for node in nodes]
        after = [[] for _ in nodes]
        for a, b, _ in memory["edges"]:
            after[a].append(b)

        if self.ranked:
            ranks = pagerank(held, after)
            found = sorted(range(len(nodes)), key=lambda v: (-ranks[v], v))[:FOUND]
            shown = [f"{nodes[v]['name']} {ranks[v]:.4f}" for v in found]
        else:
            tree = TreeSearch(held, after, len(keywords), random.Random(0))
            for _ in range(max(ROUNDS, 10 * len(nodes)) if nodes else 0):
                tree.round()
            found = tree.best()
            shown = [f"{nodes[v]['name']} {tree.W[v] / tree.N[v]:.3f} of {tree.N[v]}" for v in found]
        matched = "" if any(held) else "no node holds a keyword: "
        trace.append(JerrStep("search", matched + "; ".join(shown)))
        return found

    def look_up(self, memory: dict, question: str, found: list[int], priority: list[int], talk: Talk) -> list[int]:
        """The chunks that the model wants to read again; none if its replies are refused.

        Synopses that do not fit the prompt are left out, those of the least priority first.
        """
        nodes = memory["nodes"]
        related = []
        for v in found:
            where = ", ".join(map(str, nodes[v]["chunks"]))
            relations = [f"{relation} {nodes[b]['name']}" for a, b, relation in memory["edges"] if a == v]
            related.append(f"{nodes[v]['name']} (Page {where}): {'; '.join(relations) or 'none'}")

        shown = list(priority)
        while True:
            pages = "\n".join(f"Page {chunk}: {memory['synopses'][chunk]}" for chunk in sorted(shown))
            text = LOOK_UP.format(most=LOOKED_UP, pages=pages, related="\n".join(related), question=question)
            fits = talk.length(text + reminder(PAGES)) + self.reply <= self.settings.window
            if fits or not shown:
                break
            shown.pop()
        [chosen] = talk.ask_until("the look-up", [text], self.reply,
                                  lambda n, reply: pages_of(reply, len(memory["synopses"])), PAGES)
        return chosen or []

    def lines(self, prepared: Prepared, question: str, pages: list[int],
              priority: list[int]) -> tuple[list[list[int]], bool]:
        """The reader's lines in document order, as token ids, and whether something was left out.

        A chunk that is looked up takes the place of its synopsis. Synopses have up to half of the window, chunks the
        rest; both in order of priority, chunks in the model's order.
        """
        tokenizer = self.model.tokenizer
        room = room_for_nodes(tokenizer, question, self.settings)
        synopses = {chunk: line_ids(tokenizer, prepared.graph["synopses"][chunk]) for chunk in priority}
        lines = {}
        used = 0
        for chunk in priority:
            if chunk not in pages and used + len(synopses[chunk]) <= room // 2:
                lines[chunk] = synopses[chunk]
                used += len(synopses[chunk])

        # A chunk that does not fit keeps its synopsis, if that fits.
        cut = len(lines) + len(pages) < len(priority)
        for chunk in pages:
            whole = line_ids(tokenizer, prepared.texts[chunk])
            cut = cut or used + len(whole) > room
            for line in (whole, synopses[chunk]):
                if used + len(line) <= room:
                    lines[chunk] = line
                    used += len(line)
                    break
        return [lines[chunk] for chunk in sorted(lines)], cut
