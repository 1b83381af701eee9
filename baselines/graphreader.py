"""GraphReader (Li et al., Findings of EMNLP 2024): an agent that walks a graph of atomic facts with a notebook.

Once for a document: the model writes the atomic facts of each chunk of 2000 tokens. Their key elements are the nodes of
a graph (section 3.2). For a question the model makes a plan and scores all nodes. From each of the 5 best nodes it
starts a walk of at most 10 calls, with a notebook: it sees a node's facts, may read chunks, and goes to a neighbour.
Then it reasons over all notebooks (3.3, 3.4).

No code was published. What the paper leaves open:
- decoding is greedy, so that a row is the same each time; the paper has temperature 0.2. After a refused reply the
  prompt is repeated, below a line that says what is wanted. Two refused replies in a row end a walk. They are not
  calls, because they call no function
- the facts of a chunk may take 1024 tokens, as Figure 6 says. They hold about 30 facts; Table 9 implies about 52
- the shared reader answers, from the reasoning (Figure 12) and the notebooks, so that rows differ only in their method
- key elements are equal if their words have the same stems; case, possessives and special characters do not matter.
  The paper cites #InsTag. Its other steps need 100,000 tags that occur 20 times or more; a node here has about 2 facts
- #InsTag's semantic clusters are left out. The paper's Figure 23 joins "Canada" and "Canadian" (cosine .777 by MiniLM).
  A threshold that allows this also joins "North Carolina" and "South Carolina" (.848)
- an edge joins two key elements that one fact *lists*; a substring is not enough ("art" in "party")
- Figure 6 describes the line of a fact in one way and shows another, "1. fact | element | element". We read what it
  shows
- a walk reads a chunk once. `read_chunk` counts for chunks of the node's own facts; if all of them were read, the walk
  goes on to the neighbours. A chunk before or after the present one is not read again
- a chunk before or after the present one is read next, before the rest of the queue. The paper "may insert" it
- visited neighbours are offered, as in Figure 23. The model decides whether to go back
- if the names of all nodes do not fit one prompt, several prompts show them, and all scores count. If facts or
  neighbours do not fit, the last ones are left out, then the oldest actions, then the plan

snowballstemmer is an optional package: requirements-extra.txt.
"""
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import chain

from baselines.agent import AGAIN, NUMBER, Agent, cells_of, fields_of, found_in, lines_of, numbers_of, plain, rated
from baselines.common import pack_paragraphs, scaled
from baselines.graphreader_prompts import EXTRACT, PLAN, REASON, SELECT, WALK
from core.files import optional
from core.settings import Settings
from core.text import fill, words
from data import Prepared
from llama import Llama

CHUNK_TOKENS = 2000               # L
FACTS_TOKENS = 1024               # of the facts of a chunk (Figure 6)
PLAN_TOKENS = 256                 # the paper does not say
STARTS = 5                        # N
CALLS = 10                        # of functions in a walk, at most

OFFERED = {"facts": "read_chunk|stop_and_read_neighbor",
           "chunk": "search_more|read_previous_chunk|read_subsequent_chunk|termination",
           "neighbours": "read_neighbor_node|termination"}
LABELS = "updated notebook|rationale for next action|chosen action"
RATED = rf"node:\W*(.+?)\W+score:\W*({NUMBER})\W*"
BESIDE = {"read_previous_chunk": -1, "read_subsequent_chunk": 1}

# --- the graph of atomic facts (section 3.2) --------------------------------------------------------------------------

@cache
def stemmer():
    """Snowball's English stemmer; InputError if it is not installed."""
    with optional("GraphReader stems key elements with snowballstemmer"):
        import snowballstemmer
    return snowballstemmer.stemmer("english")


def stems_of(element: str) -> str:
    """The form by which key elements are compared; empty if there are only special characters."""
    return " ".join(stemmer().stemWords(words(re.sub(r"(?i)['’]s\b", "", element))))


def facts_of(reply: str, _) -> list[list[str] | None]:
    """The facts in a reply to Figure 6, each followed by its key elements, from lines as in its example.

    "1. fact | element | element". None for each line of another form.
    """
    return [cells if len(cells) > 1 else None for cells in map(cells_of, lines_of(reply))]


class FactGraph:
    """Nodes with their facts and neighbours. `facts` has the facts of each chunk, each followed by its key elements.

    A node is the form of its names (stems_of). What is shown of it is its first wording.
    """

    def __init__(self, facts: list[list[list[str]]]):
        self.names = {}                                     # node -> its first wording, in order of appearance
        self.facts = defaultdict(list)                      # node -> (chunk, fact), in document order
        self.neighbours = defaultdict(set)                  # node -> the nodes that a fact lists with it
        for chunk, in_chunk in enumerate(facts):
            for fact, *elements in in_chunk:
                for element in elements:
                    self.names.setdefault(stems_of(element), element)
                nodes = set(map(stems_of, elements)) - {""}
                for node in nodes:
                    self.facts[node].append((chunk, fact))
                    self.neighbours[node] |= nodes - {node}
        self.names.pop("", None)


# --- replies on a walk ------------------------------------------------------------------------------------------------

def move_of(reply: str, stage: str) -> tuple[str, str, str]:
    """The notebook, the function and its argument in a reply to Figures 9 to 11; "" for what is missing.

    The last text behind each label counts. "Chosen Action" must be one call of a function that the stage offers.
    """
    fields = dict(fields_of(reply, LABELS))
    call = re.fullmatch(rf"\W*({OFFERED[stage]})\(((?:[^()]|\([^()]*\))*)\)\W*", fields.get("chosen action", ""), re.I)
    name, argument = (call[1].lower(), plain(call[2])) if call else ("", "")
    return fields.get("updated notebook", ""), name, argument


# --- a walk (section 3.3.2) -----------------------------------------------------------------------------------------

@dataclass
class Walk:
    """One walk from one node. It shares nothing with other walks."""
    method: Agent
    graph: FactGraph
    chunks: list[str]
    question: str
    plan: str
    node: str
    notebook: str = ""
    actions: list[str] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)          # chunks to be read, the next one first
    read: list[int] = field(default_factory=list)

    def run(self):
        while True:
            # Facts of the node: which chunks are worth reading?
            shown = [f"[Chunk {chunk}] {fact}" for chunk, fact in self.graph.facts[self.node]]
            if not self.goes_on("facts", "Atomic facts:", shown):
                return

            # The chunks of the queue. An action may put another chunk at its front.
            while self.queue:
                chunk = self.queue.pop(0)
                self.read.append(chunk)
                if not self.goes_on("chunk", f"Chunk {chunk}:", [self.chunks[chunk]]):
                    return

            # A neighbour, visited or not.
            names = [name for node, name in self.graph.names.items() if node in self.graph.neighbours[self.node]]
            if not names or not self.goes_on("neighbours", "Neighbor nodes:", names):
                return

    def goes_on(self, stage: str, label: str, shown: list[str]) -> bool:
        """Ask, and do what the reply calls for.

        The walk ends after "termination", two refused replies, or the tenth call.
        """
        texts = self.prompts(stage, label, shown)
        found = self.method.ask_fitting(texts, lambda reply, _: self.act(stage, reply))
        return found not in ([], ["termination"]) and len(self.actions) < CALLS

    def act(self, stage: str, reply: str) -> list[str | None]:
        """Do what a reply calls for. Returns its function, and None for each part that is dropped.

        There is no function if the reply is refused. Its notebook is kept all the same.
        """
        notebook, name, argument = move_of(reply, stage)
        self.notebook = notebook or self.notebook
        dropped = []

        if name == "read_chunk":
            ids = numbers_of(argument, {chunk for chunk, _ in self.graph.facts[self.node]})
            if not found_in(ids):
                return []
            dropped = [None] * ids.count(None)
            self.queue = [i for i in found_in(ids) if i not in self.read]   # all were read: as stop_and_read_neighbor

        if name in BESIDE:
            chunk = self.read[-1] + BESIDE[name]
            if 0 <= chunk < len(self.chunks) and chunk not in self.read:
                self.queue = [chunk, *(i for i in self.queue if i != chunk)]

        if name == "read_neighbor_node":
            node = stems_of(argument)
            if node not in self.graph.neighbours[self.node]:
                return []
            self.node = node

        if not name:
            return []
        self.actions.append(f"{name}({argument})")
        return [name, *dropped]

    def prompts(self, stage: str, label: str, shown: list[str]) -> Iterator[str]:
        """The prompt, and shorter ones: without the last lines, then the oldest actions, then the plan."""
        lines = list(shown)
        memory = [*self.actions, self.plan]
        node = [] if stage == "chunk" else [f"Node: {self.graph.names[self.node]}"]
        while True:
            *actions, plan = memory or [""]
            yield "\n".join([f"{WALK[stage]}\n\nQuestion: {self.question}\nPlan: {plan or 'none'}",
                             f"Previous actions: {'; '.join(actions) or 'none'}",
                             f"Notebook: {self.notebook or 'none'}", *node, label, *lines])
            if len(lines) > 1:
                lines.pop()
            elif memory:
                memory.pop(0)
            else:
                return


# --- the method -----------------------------------------------------------------------------------------------------

class GraphReader(Agent):
    """Extract facts once; then plan, choose starts, walk from each, reason, and answer."""

    def __init__(self, model: Llama, settings: Settings):
        super().__init__(model, settings)
        stemmer()
        self.chunk = scaled(CHUNK_TOKENS, settings)

    def build(self, document, talk):
        """The facts of each chunk (Figure 6); a chunk whose replies are refused has none."""
        chunks = pack_paragraphs(self.model.tokenizer, document, self.chunk)
        facts = yield from talk.ask(f"{EXTRACT}\n\n", chunks, facts_of, scaled(FACTS_TOKENS, self.settings))
        return {"chunks": chunks, "facts": facts}

    def ready(self, content):
        return Prepared(content["chunks"], graph=FactGraph(content["facts"]))

    def read(self, prepared, question):
        """Plan, walk and reason, then read. `nodes` are the chunks that walks have read."""
        graph = prepared.graph
        plan = self.tell(PLAN, question, scaled(PLAN_TOKENS, self.settings))
        starts = self.starts(graph, question, plan)
        if not starts:
            return None

        walks = [Walk(self, graph, prepared.texts, question, plan, node) for node in starts]
        for walk in walks:
            walk.run()

        # Reason over the notebooks (Figure 12), and answer from the reasoning and the notebooks.
        notebooks = [walk.notebook for walk in walks]
        shown = "\n".join(f"{n}. {' '.join(notebook.split()) or 'none'}" for n, notebook in enumerate(notebooks, 1))
        reply = self.tell(REASON, f"Question: {question}\nNotebook of different exploration paths:\n{shown}")
        lines = [line for line in (reply, *notebooks) if line]
        reading = self.reading_of_best(question, lines, range(len(lines)))
        return reading._replace(nodes=list(dict.fromkeys(chunk for walk in walks for chunk in walk.read)))

    def tell(self, prompt: str, text: str, limit: int | None = None) -> str:
        """The reply to a prompt that asks for free text; "" if there is none."""
        [found] = self.ask(f"{prompt}\n\n", [text], lambda reply, _: list(filter(None, [reply.strip()])), limit)
        return "".join(found)

    def starts(self, graph: FactGraph, question: str, plan: str) -> list[str]:
        """The 5 nodes with the highest scores (Figure 8). Of equal scores the one that was given first counts."""
        head = f"{SELECT}\n\nQuestion: {question}\nPlan: {plan}\nNodes:\n"
        room = self.settings.window - self.limit - self.length(AGAIN + head)
        names = graph.names.values()
        parts = fill(self.model.tokenizer, names, room, "\n")
        found = self.ask(head, parts, lambda reply, _: rated(reply, RATED, names))
        best = sorted(chain(*found), key=lambda rate: rate[1], reverse=True)
        return list(dict.fromkeys(stems_of(name) for name, _ in best))[:STARTS]
