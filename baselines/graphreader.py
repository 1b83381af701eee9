"""GraphReader (Li et al., Findings of EMNLP 2024): an agent that walks a graph of atomic facts with a notebook.

Once for a document: the model writes the atomic facts of each chunk of 2000 tokens, which become a graph (section 3.2,
fact_graph.py). For a question it makes a plan and scores all nodes. From each of the 5 best it walks alone, with 10
calls at most and a notebook: it sees a node's facts, may read chunks, goes to a neighbour. Then it reasons (3.3, 3.4).

No code was published. What the paper leaves open:
- decoding is greedy, where the paper has temperature 0.2: a row must be the same each time. A refused prompt is
  repeated with a line that says what is wanted; three refused replies in a row end a walk
- the shared reader answers, from the reasoning (Figure 12) and the notebooks, so that rows differ by their method
  alone; `own_answer` takes what follows "Final answer:" instead
- an action counts if the text after the last "Chosen Action" names one function, which this stage offers. The prompts
  name them all, so the first name in a reply could be an echo
- node names that do not fit one prompt are shown in parts, and the scores pooled. If facts or neighbours do not fit,
  the last are left out; then the oldest actions, then the plan
"""
import contextlib
import random
import re
from dataclasses import dataclass, field

from baselines.agent import ATTEMPTS, Agent, Talk, reminder
from baselines.common import answer_from_best, pack_paragraphs, scaled
from baselines.fact_graph import FactGraph, facts_of, scores_of, stemmer
from baselines.graphreader_prompts import EXTRACT, PLAN, REASON, SELECT, WALK
from core.settings import Settings
from core.text import fill
from data import Answer, Document, Prepared
from llama import Llama

CHUNK_TOKENS = 2000               # L
FACTS_TOKENS = 1024               # of the facts of a chunk (Figure 6)
PLAN_TOKENS = 256                 # the paper does not say
REPLY_TOKENS = 512                # of a reply on a walk: with it Figure 10 fits the paper's 4096
STARTS = 5                        # N
CALLS = 10                        # of a walk, at most

FORM = "Keep strictly to the format that is described above."
OFFERED = {"facts": ("read_chunk", "stop_and_read_neighbor"),
           "chunk": ("search_more", "read_previous_chunk", "read_subsequent_chunk", "termination"),
           "neighbours": ("read_neighbor_node", "termination")}


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
    _, _, rest = reply.partition("Updated Notebook")
    kept = []
    for line in rest.lstrip("*: ").split("\n"):
        if kept and line.lstrip("* \t").startswith(("Rationale for", "Chosen Action")):
            break
        kept.append(line)

    # What marks the next heading may stand on a line of its own.
    while kept and not kept[-1].strip("* \t"):
        kept.pop()
    return "\n".join(kept).strip()


# --- a walk (section 3.3.2) -----------------------------------------------------------------------------------------

@dataclass
class WalkStep:
    """One call, for the trace."""
    walk: int                     # of the 5; -1 for plan, starts and reasoning
    stage: str
    node: str
    shown: str                    # what the prompt asks about: facts, a chunk, neighbours
    reply: str
    action: str = ""              # as it was parsed; "refused" if none was found
    notebook: str = ""            # after the call


@dataclass
class Walk:
    """One walk from one node. It shares nothing with other walks."""
    number: int
    node: int
    graph: FactGraph
    chunks: list[str]
    question: str
    plan: str
    talk: Talk
    limit: int                    # tokens of a reply
    rng: random.Random | None = None                        # draws neighbours in the place of the model
    notebook: str = ""
    actions: list[str] = field(default_factory=list)
    visited: list[int] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)          # chunks to be read, the next one first
    read: list[int] = field(default_factory=list)
    steps: list[WalkStep] = field(default_factory=list)

    def run(self):
        """Walk to the end: a generator that yields prompts and receives replies."""
        while len(self.steps) < CALLS:
            # Facts of the node: which chunks are worth reading?
            self.visited.append(self.node)
            shown = [f"[Chunk {chunk}] {fact}" for chunk, fact in self.graph.facts[self.node]]
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
            if self.rng:
                self.node = self.rng.choice(left)
            else:
                action = yield from self.choose("neighbours", "Neighbor nodes:", [self.graph.names[j] for j in left])
                if action in (None, "termination"):
                    return

    def choose(self, stage: str, label: str, shown: list[str]):
        """Ask until a reply is accepted; returns its function, or None if the walk is to end.

        It ends after three refused replies, and after its 10th call, a refused one included: that bounds the cost.
        """
        again = ""
        for _ in range(min(ATTEMPTS, CALLS - len(self.steps))):
            lines, prompt = self.prompt(stage, label, shown, again)
            reply = yield prompt
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

    def act(self, stage: str, reply: str) -> str | None:
        """Do what a reply calls for; returns its function, None if the reply is refused and nothing is done."""
        action = action_of(reply, stage)
        if action is None:
            return None
        name, argument = action
        call = f"{name}()"

        if name == "read_chunk":
            ids = dict.fromkeys(map(int, re.findall(r"\d+", argument)))
            ids = [i for i in ids if i < len(self.chunks)]
            if not ids:
                return None
            self.queue = [i for i in ids if i not in self.read]   # all were read: as stop_and_read_neighbor
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
            call = f"{name}({self.graph.names[node]})"

        self.actions.append(call)
        return name

    def prompt(self, stage: str, label: str, shown: list[str], again: str) -> tuple[list[str], str]:
        """The lines that fit and the prompt with them. InputError if not even the shortest prompt fits the window."""
        lines = list(shown)
        memory = [*self.actions, self.plan]                 # gives way when a single line is left, from its start
        node = [] if stage == "chunk" else [f"Node: {self.graph.names[self.node]}"]
        while True:
            *actions, plan = memory or [""]
            text = "\n".join([f"{WALK[stage]}\n\n{asked(self.question, plan)}",
                              f"Previous actions: {'; '.join(actions) or 'none'}",
                              f"Notebook: {self.notebook or 'none'}", *node, label, *lines]) + again
            length = self.talk.length(text)
            if length + self.limit <= self.talk.settings.window:
                return lines, text

            if len(lines) > 1:
                lines.pop()
            elif memory:
                memory.pop(0)
            else:
                self.talk.check(stage, length, self.limit)        # raises


def asked(question: str, plan: str) -> str:
    """The question and the plan, if there is one, as prompts show them."""
    return f"Question: {question}\nPlan: {plan}" if plan else f"Question: {question}"


def run_together(walks: list[Walk], talk: Talk, limit: int):
    """Run walks side by side: each round, the next prompts of all that have not ended are rows of a batch."""
    running = {walk.run(): None for walk in walks}          # generator -> the reply to its latest prompt
    while running:
        prompts = {}
        for generator, reply in running.items():
            with contextlib.suppress(StopIteration):
                prompts[generator] = generator.send(reply)
        running = dict(zip(prompts, talk.ask("a walk", list(prompts.values()), limit), strict=True))


# --- the method -----------------------------------------------------------------------------------------------------

class GraphReader(Agent):
    """Extract facts once; then plan, choose starts, walk from each, reason, and answer.

    The paper's ablations: without `planned` there is no plan; `chance` draws starts and neighbours at random, always
    the same (Table 7). `encoder` makes semantic clusters of the key elements.
    """
    name = "GraphReader"

    def __init__(self, model: Llama, settings: Settings, own_answer: bool = False, talk: type[Talk] = Talk,
                 planned: bool = True, chance: bool = False, encoder=None):
        super().__init__(model, settings, own_answer, talk)
        self.stem = stemmer()
        self.planned = planned
        self.chance = chance
        self.encoder = encoder
        lengths = (CHUNK_TOKENS, FACTS_TOKENS, PLAN_TOKENS, REPLY_TOKENS)
        self.chunk, self.extract, self.plan, self.reply = (scaled(tokens, settings) for tokens in lengths)

        # The longest prompts must fit: Figure 6 with its chunk, Figure 9 or 10 with plan, notebook and chunk.
        self.must_fit("extraction", EXTRACT + reminder(FORM), self.chunk, self.extract)
        for stage, prompt in WALK.items():
            shown = self.plan + self.reply + (self.chunk if stage == "chunk" else 0)
            self.must_fit(stage, prompt + reminder(FORM), shown, self.reply)

    def construction(self, document: Document) -> dict:
        return {"method": "graphreader", "chunk": self.chunk, "facts": self.extract}

    def build(self, document: Document, talk: Talk, progress: bool) -> dict:
        """The facts of each chunk (Figure 6); a chunk whose replies are refused has none."""
        chunks = pack_paragraphs(self.model.tokenizer, document, self.chunk)
        found = talk.ask_until("extraction", [f"{EXTRACT}\n\n{chunk}" for chunk in chunks], self.extract,
                               lambda n, reply: facts_of(reply, chunks[n]) or None, FORM, progress)
        return {"chunks": chunks, "facts": [facts or [] for facts in found]}

    def ready(self, content: dict) -> Prepared:
        return Prepared(content["chunks"], graph=FactGraph(content["facts"], self.stem, self.encoder))

    def reply_to(self, prepared: Prepared, question: str, talk: Talk) -> Answer | None:
        """Plan, walk and reason, then read. `nodes` are the chunks that walks have read."""
        graph = prepared.graph
        plan = talk.ask("the plan", [f"{PLAN}\n\n{question}"], self.plan)[0].strip() if self.planned else ""
        starts = self.starts(graph, question, plan, talk)
        talk.trace += [WalkStep(-1, "plan", "", question, plan),
                       WalkStep(-1, "starts", "", "", "; ".join(graph.names[node] for node in starts))]
        if not starts:
            return None

        walks = [Walk(number, node, graph, prepared.texts, question, plan, talk, self.reply,
                      random.Random(number) if self.chance else None)
                 for number, node in enumerate(starts)]
        run_together(walks, talk, self.reply)
        talk.trace += [step for walk in walks for step in walk.steps]

        answer = self.reason(question, [walk.notebook for walk in walks], talk)
        answer.nodes = list(dict.fromkeys(chunk for walk in walks for chunk in walk.read))
        return answer

    def starts(self, graph: FactGraph, question: str, plan: str, talk: Talk) -> list[int]:
        """The 5 nodes with the highest scores (Figure 8), of equals the first named."""
        if self.chance:
            return random.Random(0).sample(range(len(graph.names)), min(STARTS, len(graph.names)))
        head = f"{SELECT}\n\n{asked(question, plan)}\nNodes:\n"
        room = self.settings.window - self.reply - talk.length(head + reminder(FORM))
        parts = fill(self.model.tokenizer, graph.names, room, "\n")

        found = talk.ask_until("starts", [head + part for part in parts], self.reply,
                               lambda n, reply: reply if scores_of(reply, graph) else None, FORM)
        scores = scores_of("\n".join(filter(None, found)), graph)
        return sorted(scores, key=lambda node: -scores[node])[:STARTS]

    def reason(self, question: str, notebooks: list[str], talk: Talk) -> Answer:
        """Reason over the notebooks (Figure 12), and answer from the reasoning and the notebooks."""
        shown = "\n".join(f"{n}. {notebook or 'none'}" for n, notebook in enumerate(notebooks, 1))
        prompt = f"{REASON}\n\nQuestion: {question}\nNotebook of different exploration paths:\n{shown}"
        reply = talk.ask("reasoning", [prompt], self.reply)[0].strip()
        talk.trace.append(WalkStep(-1, "reasoning", "", shown, reply))

        analysis, found, final = reply.rpartition("Final answer:")
        own = final.strip() if found else reply
        if self.own_answer:
            return Answer(text=own, nodes=[], flops=0, tokens=0)
        lines = [line for line in (analysis, own, *notebooks) if line.strip()]
        return answer_from_best(self.model, question, lines, list(range(len(lines))), self.settings)
