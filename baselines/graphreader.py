"""GraphReader (Li et al., Findings of EMNLP 2024): an agent that walks a graph of atomic facts with a notebook.

Once for a document: the model writes the atomic facts of each chunk of 2000 tokens. Their key elements are the nodes of
a graph (section 3.2). For a question the model makes a plan and scores all nodes. From each of the 5 best nodes it
starts a walk of at most 10 calls, with a notebook: it sees a node's facts, may read chunks, and goes to a neighbour.
Then it reasons over all notebooks (3.3, 3.4).

No code was published. What the paper leaves open:
- decoding is greedy, so that a row is the same each time; the paper has temperature 0.2. After a refused reply the
  prompt is repeated, below a line that says what is wanted. Three refused replies in a row end a walk. They are not
  calls, because they call no function
- the shared reader answers, from the reasoning (Figure 12) and the notebooks, so that rows differ only in their method
- key elements are equal if their words have the same stems; case, possessives and special characters do not matter.
  The paper cites #InsTag. Its other steps need 100,000 tags that occur 20 times or more; a node here has about 2 facts
- #InsTag's semantic clusters are left out. The paper's Figure 23 joins "Canada" and "Canadian" (cosine .777 by MiniLM).
  A threshold that allows this also joins "North Carolina" and "South Carolina" (.848)
- an edge joins two key elements that one fact *lists*; a substring is not enough ("art" in "party")
- an action counts if the text after the last "Chosen Action" names exactly one function that the stage offers. (The
  first name in a reply could be an echo, because the prompts name all functions.) Arguments of several calls are joined
- a chunk before or after the present one is read next, before the rest of the queue. The paper "may insert" it
- visited neighbours are offered, as in Figure 23. The model decides whether to go back
- if the names of all nodes do not fit one prompt, several prompts show them, and all scores count. If facts or
  neighbours do not fit, the last ones are left out, then the oldest actions, then the plan

snowballstemmer is an optional package: requirements-extra.txt.
"""
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import chain

from baselines.agent import NUMBERED, Agent, cells_of, cleaned, numbers_of, pairs_of, parts_of, plain, reminder
from baselines.common import pack_paragraphs, scaled
from baselines.graphreader_prompts import EXTRACT, PLAN, REASON, SELECT, WALK
from core.files import optional
from core.settings import Settings
from core.text import fill
from data import Prepared
from llama import Llama

CHUNK_TOKENS = 2000               # L
FACTS_TOKENS = 1024               # of the facts of a chunk (Figure 6)
PLAN_TOKENS = 256                 # the paper does not say
STARTS = 5                        # N
CALLS = 10                        # of functions in a walk, at most

FORM = "Keep strictly to the format that is described above."
OFFERED = {"facts": "read_chunk|stop_and_read_neighbor",
           "chunk": "search_more|read_previous_chunk|read_subsequent_chunk|termination",
           "neighbours": "read_neighbor_node|termination"}
HEADINGS = (r"(?:here(?: is|['’]s) )?(?:my |the )?(?:updated |new )?notebook(?: update| content| entry)?"
            r"(?: \([^()\n]{0,40}\))?|(?:chosen |next )(?:action|step)s?|action|step|^(?:the|my) rationale[^\n]*|"
            r"(?:next action )?(?:rationale?|reason(?:ing)?|explanation|justification)"
            r"(?: (?:for|behind|of)[^\n:.]{0,40})?")
BESIDE = {"read_previous_chunk": -1, "read_subsequent_chunk": 1}
# Begins a second fact on a line. Behind a bracket it must have brackets, too: an element may be a number.
NEXT_FACT = r"(\|[^|\n]*?\s(?=\[?\d{1,3}[]),.]+\s+[\[\"“\w])|\][;,.]?\s(?=\[?\d{1,3}[]).]+,?\s+\[))"
EXPLANATION = r"(?i)\n[^\w\n]*+(?:explan|rational|reason|note\b)"           # behind an action
EXAMPLE = "One day, a father and his little son were going home."           # from Figure 6; small models repeat it

# --- the graph of atomic facts (section 3.2) --------------------------------------------------------------------------

@cache
def stemmer():
    """Snowball's English stemmer; InputError if it is not installed."""
    with optional("GraphReader stems key elements with snowballstemmer"):
        import snowballstemmer
    return snowballstemmer.stemmer("english")


def form_of(element: str) -> str:
    """The form by which key elements are compared; empty if there are only special characters."""
    text = re.sub(r"['’]s\b", "", element.lower())
    return " ".join(stemmer().stemWords(re.sub(r"[\W_]+", " ", text).split()))


def facts_of(reply: str, chunk: str) -> list[list[str]]:
    """The facts in a reply to Figure 6, each followed by its key elements.

    A line is "1. fact | element | ..", as in the figure's example, or "[1], [fact], [element | ..]", as in its text.
    """
    facts = []
    for fact, *elements in cells_of(re.sub(NEXT_FACT, r"\1\n", reply), 2):
        if fact != EXAMPLE or EXAMPLE in chunk:
            elements = elements if len(elements) > 1 else re.split("[,;]|''", elements[0])
            facts.append([fact, *filter(None, map(plain, elements))])
    return facts


class FactGraph:
    """Nodes with their facts and neighbours. `facts` has the facts of each chunk, each followed by its key elements.

    A node's name is its first wording. Its facts are in document order, its neighbours in order of appearance.
    """

    def __init__(self, facts: list[list[list[str]]]):
        names = {}                                          # form -> its first wording
        for _, *elements in chain(*facts):
            for element in elements:
                names.setdefault(form_of(element), element)
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
        return self.node_of.get(form_of(name))


def scores_of(reply: str, graph: FactGraph) -> dict[int, float]:
    """Node -> score in 0..100, from "Node: .., Score: ..". Unknown names are left out; the higher score counts."""
    scores = {}
    for name, said in pairs_of(reply, "(?:starting )?node", "(?:relevance )?score"):
        score = re.search(r"-?\d+(?:\.\d+)?", said)
        node = graph.find(name)                             # signs around the name do not matter
        if score and node is not None:
            scores[node] = max(scores.get(node, 0.0), min(100.0, float(score[0])))
    return scores


# --- replies on a walk ------------------------------------------------------------------------------------------------

def action_of(reply: str, stage: str) -> tuple[str, str] | None:
    """The function that a reply calls, and its argument; None unless the reply names exactly one of the stage.

    Only the paragraph after the last "Chosen Action" counts; what an explanation names, only if nothing stands before
    it. Arguments of several calls are joined.
    """
    chosen = re.match(rf"(?ims).*(?:(?:chosen|selected) action|{NUMBERED}(?:next )?action\b)[\W_]*+(.*?)"
                      r"(?:\n[^\S\n]*\n|\Z)", cleaned(reply))
    said = chosen[1] if chosen else ""
    call = rf"\b({OFFERED[stage]}|(?i:{OFFERED[stage]})(?=\())\b(?:\s*\(((?:[^()]|\([^()]*\))*)\))?"
    calls = re.findall(call, re.split(EXPLANATION, said)[0]) or re.findall(call, said)
    names = {name.lower() for name, _ in calls}
    if len(names) != 1:
        return None
    return names.pop(), ", ".join(dict.fromkeys(argument for _, argument in calls if argument))


def notebook_of(reply: str) -> str:
    """The notebook in a reply, the updated one if there are two, up to the next heading; empty if there is none."""
    books = {"updated" in label: text for label, text in parts_of(reply, HEADINGS) if "notebook" in label and text}
    return books.get(True, books.get(False, "")).strip("*#-` \n")


# --- a walk (section 3.3.2) -----------------------------------------------------------------------------------------

@dataclass
class Walk:
    """One walk from one node. It shares nothing with other walks."""
    method: Agent
    graph: FactGraph
    chunks: list[str]
    question: str
    plan: str
    node: int
    notebook: str = ""
    actions: list[str] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)          # chunks to be read, the next one first
    read: list[int] = field(default_factory=list)

    def run(self):
        while len(self.actions) < CALLS:
            # Facts of the node: which chunks are worth reading?
            shown = [f"[Chunk {chunk}] {fact}" for chunk, fact in self.graph.facts[self.node]]
            if self.choose("facts", "Atomic facts:", shown) == "termination":
                return

            # The chunks of the queue. An action may put another chunk at its front.
            while self.queue and len(self.actions) < CALLS:
                chunk = self.queue.pop(0)
                self.read.append(chunk)
                if self.choose("chunk", f"Chunk {chunk}:", [self.chunks[chunk]]) == "termination":
                    return

            # A neighbour, visited or not.
            names = [self.graph.names[j] for j in self.graph.neighbours[self.node]]
            if not names or len(self.actions) == CALLS:
                return
            if self.choose("neighbours", "Neighbor nodes:", names) == "termination":
                return

    def choose(self, stage: str, label: str, shown: list[str]) -> str:
        """Ask until a reply is accepted, and do what it calls for. Returns its function.

        After three refused replies this is "termination".
        """
        text = self.prompts(stage, label, shown)
        return self.method.ask_fitting(text, lambda reply: self.act(stage, reply), FORM) or "termination"

    def act(self, stage: str, reply: str) -> str | None:
        """Do what a reply calls for. Returns its function; None if the reply is refused."""
        action = action_of(reply, stage)
        if action is None:
            return None
        name, argument = action

        if name == "read_chunk":
            ids = numbers_of(argument, {chunk for chunk, _ in self.graph.facts[self.node]})
            if not ids:
                return None
            self.queue = [i for i in ids if i not in self.read]   # all were read: as stop_and_read_neighbor

        if name in BESIDE:
            chunk = self.read[-1] + BESIDE[name]
            if 0 <= chunk < len(self.chunks) and chunk not in self.read:
                self.queue = [chunk, *(i for i in self.queue if i != chunk)]

        if name == "read_neighbor_node":
            # The argument is Toronto, node="Toronto", or key element of node: Toronto.
            node = self.graph.find(re.sub(r"(?i)^\s*(?:\w+\s*=|(?:key element|node)[\w\s]*:)", "", argument))
            if node not in self.graph.neighbours[self.node]:
                return None
            self.node = node

        self.actions.append(f"{name}({argument})")
        if stage != "neighbours":
            self.notebook = notebook_of(reply) or self.notebook
        return name

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
        self.chunk, self.extract = scaled(CHUNK_TOKENS, settings), scaled(FACTS_TOKENS, settings)
        self.check_room("extraction of GraphReader", self.length(f"{reminder(FORM)}{EXTRACT}\n\n") + self.chunk,
                        self.extract)

    def build(self, document):
        """The facts of each chunk (Figure 6); a chunk whose replies are refused has none."""
        chunks = pack_paragraphs(self.model.tokenizer, document, self.chunk)
        return {"chunks": chunks, "facts": self.ask_until(f"{EXTRACT}\n\n", chunks, facts_of, FORM, self.extract)}

    def ready(self, content):
        return Prepared(content["chunks"], graph=FactGraph(content["facts"]))

    def read(self, prepared, question):
        """Plan, walk and reason, then read. `nodes` are the chunks that walks have read."""
        graph = prepared.graph
        plan = self.ask([f"{PLAN}\n\n{question}"], scaled(PLAN_TOKENS, self.settings))[0].strip()
        starts = self.starts(graph, question, plan)
        if not starts:
            return None

        walks = [Walk(self, graph, prepared.texts, question, plan, node) for node in starts]
        for walk in walks:
            walk.run()

        # Reason over the notebooks (Figure 12), and answer from the reasoning and the notebooks.
        notebooks = [walk.notebook for walk in walks]
        shown = "\n".join(f"{n}. {notebook or 'none'}" for n, notebook in enumerate(notebooks, 1))
        [reply] = self.ask([f"{REASON}\n\nQuestion: {question}\nNotebook of different exploration paths:\n{shown}"])
        lines = [line for line in (reply, *notebooks) if line.strip()]
        reading = self.reading_of_best(question, lines, range(len(lines)))
        return reading._replace(nodes=list(dict.fromkeys(chunk for walk in walks for chunk in walk.read)))

    def starts(self, graph: FactGraph, question: str, plan: str) -> list[int]:
        """The 5 nodes with the highest scores (Figure 8). Ties go to the node that was named first."""
        head = f"{SELECT}\n\nQuestion: {question}\nPlan: {plan}\nNodes:\n"
        room = self.settings.window - self.limit - self.length(reminder(FORM) + head)
        parts = fill(self.model.tokenizer, graph.names, room, "\n")

        # Scores are read twice: to accept a reply, and from all replies together.
        said = self.ask_until(head, parts, lambda reply, _: scores_of(reply, graph) and reply, FORM)
        scores = scores_of("\n".join(filter(None, said)), graph)
        return sorted(scores, key=scores.get, reverse=True)[:STARTS]
