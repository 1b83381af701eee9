"""GraphReader (Li et al., Findings of EMNLP 2024): an agent that walks a graph of atomic facts with a notebook.

Once for a document: chunks of 2000 tokens; the model writes the atomic facts of each, with their key elements. Key
elements of one form are one node. Two nodes are neighbours if a fact lists both (section 3.2).

For a question: the model makes a plan and scores all nodes. From each of the 5 best it walks alone, 10 calls at most.
At a node it sees the facts and may read chunks, or their neighbours in the document; then it goes on to a neighbour or
stops. Its notebook goes with it. In the end it reasons over all notebooks (3.3, 3.4). The walks run as rows of a batch.

No code was published. What the paper leaves open:
- decoding is greedy, where the paper has temperature 0.2: a row must be the same each time. After a refused reply the
  prompt is repeated with a line that says what is wanted; three refused replies in a row end a walk
- the shared reader answers, from the reasoning (Figure 12) and the notebooks, so that rows differ by their method
  alone; `own_answer` takes what follows "Final answer:" instead
- an action counts if the text after the last "Chosen Action" names one function, which this stage offers. The prompts
  name them all, so the first name in a reply could be an echo
- key elements are normalised by rules: lower case, no possessive, no special characters, stemmed words. The paper cites
  #InsTag, whose other steps are made for 100,000 tags: they need tags seen 20 times, where a node has 2 facts, and
  clusters of vectors, which merge "North Carolina" with "South Carolina" before "Canada" with "Canadian"
- an edge needs two *listed* key elements of one fact, not a substring ("art" in "party")
- node names that do not fit one prompt are shown in parts, and the scores pooled. If facts or neighbours do not fit,
  the last are left out; then the oldest actions, then the plan
- lengths shrink with our chunks (`scaled`); the window is the run's, where the paper has 4096 tokens

snowballstemmer is an optional package: requirements-extra.txt.
"""
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from baselines.common import (
    ATTEMPTS,
    MissingPackage,
    Talk,
    answer_from_best,
    kept,
    pack_paragraphs,
    reminder,
    scaled,
)
from baselines.graphreader_prompts import CHUNK, EXTRACT, FACTS, NEIGHBOURS, PLAN, REASON, SELECT
from data import Document
from llama import Llama
from support.graph_file import file_name
from support.method import Answer, Prepared
from support.settings import Settings

CHUNK_TOKENS = 2000               # L
FACTS_TOKENS = 1024               # of the facts of a chunk (Figure 6)
PLAN_TOKENS = 256                 # the paper does not say
REPLY_TOKENS = 512                # of a reply on a walk: with it Figure 10 fits the paper's 4096
STARTS = 5                        # N
CALLS = 10                        # of a walk, at most

EXAMPLE = "One day, a father and his little son were going home."           # Figure 6's, which small models repeat
FORM = "Keep strictly to the format that is described above."
FINAL = "Final answer:"
OFFERED = {"facts": ("read_chunk", "stop_and_read_neighbor"),
           "chunk": ("search_more", "read_previous_chunk", "read_subsequent_chunk", "termination"),
           "neighbours": ("read_neighbor_node", "termination")}
PROMPTS = {"facts": FACTS, "chunk": CHUNK, "neighbours": NEIGHBOURS}


# --- the graph (section 3.2) ----------------------------------------------------------------------------------------

def form_of(element: str, stem) -> str:
    """The form by which key elements are compared; empty for special characters alone."""
    text = re.sub(r"['’]s?(?!\w)", "", element.lower())
    return " ".join(map(stem, re.sub(r"[\W_]+", " ", text).split()))


def facts_of(reply: str, chunk: str) -> list[list[str]]:
    """The facts of a reply to Figure 6, each followed by its key elements: lines "number. fact | element | .."."""
    facts = []
    for line in reply.splitlines():
        match = re.match(r"\s*\[?\d+\]?[.,:)]?\s+(\S.*\|.*)", line)
        if match is None:
            continue

        fact, *elements = [part.strip(" []") for part in match[1].split("|")]
        elements = [element for element in elements if element]
        is_example = fact == EXAMPLE and EXAMPLE not in chunk
        if fact and elements and not is_example:
            facts.append([fact, *elements])
    return facts


class FactGraph:
    """Nodes with their facts and neighbours. `facts` are those of each chunk, with their key elements.

    A node's name is its most frequent wording, of equals the first. Its facts are in document order; its neighbours in
    order of the facts they share with it, then of their first appearance.
    """

    def __init__(self, facts: list[list[list[str]]], stem):
        self.stem = stem
        self.node_of: dict[str, int] = {}                   # form -> node
        self.facts: list[list[tuple[int, str]]] = []        # of each node: (chunk, fact)
        wordings: list[Counter] = []
        shared: list[Counter] = []                          # of each node: neighbour -> facts that list both

        for chunk, in_chunk in enumerate(facts):
            for fact, *elements in in_chunk:
                listed = []                                 # the nodes of this fact
                for element in elements:
                    form = form_of(element, stem)
                    if not form:
                        continue
                    if form not in self.node_of:
                        self.node_of[form] = len(self.node_of)
                        self.facts.append([])
                        wordings.append(Counter())
                        shared.append(Counter())
                    node = self.node_of[form]
                    wordings[node][element] += 1
                    if node not in listed:
                        listed.append(node)

                for node in listed:
                    self.facts[node].append((chunk, fact))
                    shared[node].update(other for other in listed if other != node)

        self.names = [counts.most_common(1)[0][0] for counts in wordings]
        self.neighbours = [sorted(counts, key=lambda j, counts=counts: (-counts[j], j)) for counts in shared]

    def find(self, name: str) -> int | None:
        """The node that a reply names, in whatever wording."""
        return self.node_of.get(form_of(name, self.stem))


# --- a walk (section 3.3.2) -----------------------------------------------------------------------------------------

@dataclass
class WalkStep:
    """One call of a walk, for the trace."""
    walk: int                     # of the 5; -1 for plan, starts and reasoning
    stage: str
    node: str
    shown: str                    # what the prompt asks about: facts, a chunk, neighbours
    reply: str
    action: str                   # as it was parsed; "refused" if none was found
    notebook: str                 # after the call


def action_of(reply: str, stage: str) -> tuple[str, str] | None:
    """The function that a reply calls and what is in its parentheses; None unless exactly one is named, of the stage.

    Only the text after the last "Chosen Action" counts.
    """
    _, found, chosen = reply.rpartition("Chosen Action")
    names = {name for offered in OFFERED.values() for name in offered}
    calls = re.findall(rf"\b({'|'.join(sorted(names))})\b(?:\s*\(((?:[^()]|\([^()]*\))*)\))?", chosen)
    if not found or len({name for name, _ in calls}) != 1 or calls[0][0] not in OFFERED[stage]:
        return None
    return calls[-1]


def notebook_of(reply: str) -> str:
    """The updated notebook in a reply, empty if there is none: up to the next heading."""
    match = re.search(r"Updated Notebook[*: ]*(.*?)(?=\n[*\s]*(?:Rationale for|Chosen Action)|\Z)", reply, re.DOTALL)
    return match[1].strip() if match else ""


class Walk:
    """One walk from one node: notebook, queue of chunks, visited nodes. It shares nothing with other walks."""

    def __init__(self, number: int, node: int, graph: FactGraph, chunks: list[str], question: str, plan: str,
                 talk: Talk, limit: int):
        self.number = number
        self.node = node
        self.graph = graph
        self.chunks = chunks
        self.question = question
        self.plan = plan
        self.talk = talk
        self.limit = limit                                  # tokens of a reply
        self.notebook = ""
        self.actions: list[str] = []
        self.visited = {node}
        self.queue: list[int] = []                          # chunks to be read, the next one first
        self.read: list[int] = []
        self.steps: list[WalkStep] = []

    def run(self):
        """Walk to the end: a generator that yields prompts and receives replies."""
        while True:
            # Facts of the node: which chunks are worth reading?
            facts = sorted(self.graph.facts[self.node], key=lambda fact: fact[0])
            shown = [f"[Chunk {chunk}] {fact}" for chunk, fact in facts]
            if (yield from self.choose("facts", "Atomic facts:", shown)) is None:
                return

            # Chunks, the first of the queue first. What is put at its front is read before the others.
            while self.queue and len(self.steps) < CALLS:
                chunk = self.queue.pop(0)
                self.read.append(chunk)
                action = yield from self.choose("chunk", f"Chunk {chunk}:", [self.chunks[chunk]])
                if action in (None, "termination"):
                    return

            # A neighbour that this walk has not visited.
            left = [j for j in self.graph.neighbours[self.node] if j not in self.visited]
            if not left:
                return
            action = yield from self.choose("neighbours", "Neighbor nodes:", [self.graph.names[j] for j in left])
            if action in (None, "termination"):
                return

    def choose(self, stage: str, label: str, shown: list[str]):
        """Ask until a reply is accepted; returns its function, or None if the walk is to end.

        That is after its 10th call, and after three refused replies. They count as calls, because the limit bounds
        the cost.
        """
        again = ""
        for _ in range(ATTEMPTS):
            if len(self.steps) == CALLS:
                return None
            lines, prompt = self.prompt(stage, label, shown, again)
            reply = yield stage, prompt
            name = self.graph.names[self.node]
            action = self.act(stage, reply)

            if action is not None and stage != "neighbours":
                self.notebook = notebook_of(reply) or self.notebook
            called = "refused" if action is None else self.actions[-1]
            self.steps.append(WalkStep(self.number, stage, name, "\n".join([label, *lines]), reply, called,
                                       self.notebook))
            if action is not None:
                return action
            self.talk.refused += 1
            again = reminder(FORM)
        return None

    def act(self, stage: str, reply: str) -> str | None:
        """Do what a reply calls for; returns its function, None if the reply is refused and nothing is done."""
        action = action_of(reply, stage)
        if action is None:
            return None
        name, argument = action
        call = f"{name}()"
        taken = {*self.queue, *self.read}

        if name == "read_chunk":
            ids = [int(number) for number in re.findall(r"\d+", argument)]
            ids = [i for i in dict.fromkeys(ids) if i < len(self.chunks)]
            if not ids:
                return None
            self.queue = [i for i in ids if i not in taken]       # all were read: as stop_and_read_neighbor
            call = f"{name}({ids})"

        if name in ("read_previous_chunk", "read_subsequent_chunk"):
            chunk = self.read[-1] + (1 if name == "read_subsequent_chunk" else -1)
            if 0 <= chunk < len(self.chunks) and chunk not in self.read:
                self.queue = [chunk, *(i for i in self.queue if i != chunk)]

        if name == "read_neighbor_node":
            node = self.graph.find(argument)
            if node in self.visited or node not in self.graph.neighbours[self.node]:
                return None
            self.node = node
            self.visited.add(node)
            call = f"{name}({self.graph.names[node]})"

        self.actions.append(call)
        return name

    def prompt(self, stage: str, label: str, shown: list[str], again: str) -> tuple[list[str], str]:
        """The lines that fit and the prompt with them. InputError if not even the shortest prompt fits the window."""
        lines, actions, plan = list(shown), list(self.actions), self.plan
        while True:
            node = "" if stage == "chunk" else f"\nNode: {self.graph.names[self.node]}"
            text = "\n".join([f"{PROMPTS[stage]}\n\nQuestion: {self.question}\nPlan: {plan or 'none'}\n"
                              f"Previous actions: {'; '.join(actions) or 'none'}\n"
                              f"Notebook: {self.notebook or 'none'}{node}\n{label}", *lines]) + again
            length = self.talk.length(text)
            if length + self.limit <= self.talk.settings.window:
                return lines, text

            if len(lines) > 1:
                lines.pop()
            elif actions:
                actions.pop(0)
            elif plan:
                plan = ""
            else:
                self.talk.check(stage, length, self.limit)        # raises


def run_together(walks: list[Walk], talk: Talk, limit: int):
    """Run walks side by side: each round, the next prompts of all that have not ended are rows of a batch."""
    running = {}                                            # generator -> its next prompt
    for walk in walks:
        generator = walk.run()
        running[generator] = next(generator)

    while running:
        said = talk.ask("a walk", [prompt for _, prompt in running.values()], limit)
        for generator, reply in zip(list(running), said, strict=True):
            try:
                running[generator] = generator.send(reply)
            except StopIteration:
                del running[generator]


# --- the method -----------------------------------------------------------------------------------------------------

class GraphReader:
    """Extract facts once; then plan, choose starts, walk from each, reason, and answer.

    `own_answer` gives Figure 12's final answer instead of the shared reader's. `talk` is the class that asks the model.
    """

    def __init__(self, model: Llama, settings: Settings, own_answer: bool = False, talk: type[Talk] = Talk):
        self.stem = stemmer()
        self.model = model
        self.settings = settings
        self.own_answer = own_answer
        self.talk = talk
        self.chunk = scaled(CHUNK_TOKENS, settings)
        self.extract = scaled(FACTS_TOKENS, settings)
        self.plan = scaled(PLAN_TOKENS, settings)
        self.reply = scaled(REPLY_TOKENS, settings)

        # The longest prompts must fit: Figure 6 with its chunk, Figure 9 or 10 with plan, notebook and chunk.
        check = talk(model, settings, "GraphReader")
        again = reminder(FORM)
        check.check("extraction", check.length(EXTRACT + again) + self.chunk, self.extract)
        for stage, prompt in PROMPTS.items():
            memory = self.plan + self.reply
            shown = self.chunk if stage == "chunk" else 0
            check.check(stage, check.length(prompt + again) + memory + shown, self.reply)

        self.construction = {"method": "graphreader", "chunk": self.chunk, "facts": self.extract}

    def file_name(self, document: Document) -> str:
        """Names the facts of this document, this model and these lengths on disk."""
        return file_name(document.hash, self.model.fingerprint, self.construction)

    def prepare(self, document: Document, path: str | Path | None = None, progress: bool = False) -> Prepared:
        """Load the facts at `path`, or extract them (and save them there), and link them to a graph."""
        chunks = pack_paragraphs(self.model.tokenizer, document, self.chunk)
        content = kept(path, document, self.model, self.construction, lambda: self.extracted(chunks, progress))
        graph = FactGraph(content["facts"], self.stem)
        return Prepared(chunks, content["flops"], graph, calls=content["calls"], refused=content["refused"])

    def extracted(self, chunks: list[str], progress: bool) -> dict:
        """The facts of each chunk (Figure 6); a chunk whose replies are refused has none."""
        flops_before = self.model.flops
        talk = self.talk(self.model, self.settings, "GraphReader")
        found = talk.ask_until("extraction", [f"{EXTRACT}\n\n{chunk}" for chunk in chunks], self.extract,
                               lambda n, reply: facts_of(reply, chunks[n]) or None, FORM, progress)
        return {"facts": [facts or [] for facts in found], "flops": self.model.flops - flops_before,
                "calls": talk.calls, "refused": talk.refused}

    def answer(self, prepared: Prepared, question: str) -> Answer:
        """Plan, walk and reason, then read. `nodes` are the chunks that walks have read.

        If the model names no node to start from, the answer is empty.
        """
        flops_before = self.model.flops
        talk = self.talk(self.model, self.settings, "GraphReader")
        graph = prepared.graph
        plan = talk.ask("the plan", [f"{PLAN}\n\n{question}"], self.plan)[0].strip()
        starts = self.starts(graph, question, plan, talk) if graph.names else []
        trace = [WalkStep(-1, "plan", "", question, plan, "", ""),
                 WalkStep(-1, "starts", "", "", "; ".join(graph.names[node] for node in starts), "", "")]

        walks = [Walk(number, node, graph, prepared.texts, question, plan, talk, self.reply)
                 for number, node in enumerate(starts)]
        run_together(walks, talk, self.reply)
        trace += [step for walk in walks for step in walk.steps]

        if walks:
            read = list(dict.fromkeys(chunk for walk in walks for chunk in walk.read))
            answer = self.reason(question, [walk.notebook for walk in walks], talk, trace)
            answer.nodes = read
        else:
            answer = Answer(text="", nodes=[], flops=0, tokens=0, end="none")
        answer.flops = self.model.flops - flops_before
        talk.enter(answer, trace)
        return answer

    def starts(self, graph: FactGraph, question: str, plan: str, talk: Talk) -> list[int]:
        """The 5 nodes with the highest scores (Figure 8), of equals the first named."""
        head = f"{SELECT}\n\nQuestion: {question}\nPlan: {plan}\nNodes:\n"
        space = self.settings.window - self.reply - talk.length(head + reminder(FORM))
        parts = [[]]                                        # names that are shown together
        used = 0
        for name in graph.names:
            length = len(self.model.tokenizer.encode(f"\n{name}"))
            if parts[-1] and used + length > space:
                parts.append([])
                used = 0
            parts[-1].append(name)
            used += length

        found = talk.ask_until("starts", [head + "\n".join(part) for part in parts], self.reply,
                               lambda n, reply: scores_of(reply, graph) or None, FORM)
        scores = {}
        for of_part in found:
            for node, score in (of_part or {}).items():
                scores[node] = max(score, scores.get(node, 0))
        return sorted(scores, key=lambda node: -scores[node])[:STARTS]

    def reason(self, question: str, notebooks: list[str], talk: Talk, trace: list[WalkStep]) -> Answer:
        """Reason over the notebooks (Figure 12), and answer from the reasoning and the notebooks."""
        shown = "\n".join(f"{n}. {notebook or 'none'}" for n, notebook in enumerate(notebooks, 1))
        prompt = f"{REASON}\n\nQuestion: {question}\nNotebook of different exploration paths:\n{shown}"
        reply = talk.ask("reasoning", [prompt], self.reply)[0].strip()
        trace.append(WalkStep(-1, "reasoning", "", shown, reply, "", ""))

        analysis, found, final = reply.rpartition(FINAL)
        own = final.strip() if found else reply
        if self.own_answer:
            return Answer(text=own, nodes=[], flops=0, tokens=0)
        lines = [line for line in (analysis, own, *notebooks) if line.strip()]
        return answer_from_best(self.model, question, lines, list(range(len(lines))), self.settings)


def scores_of(reply: str, graph: FactGraph) -> dict[int, float]:
    """Node -> score in 0..100, from lines "Node: .., Score: ..". What is no node is left out.

    If a node is named twice, the higher score counts.
    """
    scores = {}
    for name, score in re.findall(r"Node:\s*(.+?)\s*,\s*Score:\s*\[?(-?\d+(?:\.\d+)?)", reply):
        node = graph.find(name)
        if node is not None:
            scores[node] = max(scores.get(node, 0.0), min(100.0, float(score)))
    return scores


def stemmer():
    """Snowball's English stemmer, word to stem; MissingPackage if it is not installed."""
    try:
        import snowballstemmer
    except ImportError:
        raise MissingPackage("GraphReader stems key elements with snowballstemmer, which is not installed (pip install "
                             "-r requirements-extra.txt)") from None
    return snowballstemmer.stemmer("english").stemWord
