"""MeMWalker (Chen et al. 2023): a tree of summaries that the model itself walks down, giving reasons.

Segments of 1000 tokens are summarised one by one. Up to 8 neighbouring summaries share a parent that summarises them,
level by level, up to one root.

On its way down the model sees the summaries of a node's children and chooses one. At the bottom it reads the segment
and says whether the segment answers the question (action -2) or not (-1). After -1 it is back at the parent, with the
children that are left. Its working memory is the nodes on its way down; the oldest are left out if they do not fit the
window. Three replies in a row without a valid action end the walk without an answer.

No code was published; PECAN wrote its own from the paper (section 4), and so did we. Differences from the paper:
- the answer is not taken from the last reply: the shared reader gives it, from the segment and the working memory, so
  that rows of Table 1 differ by their method alone
- decoding is greedy, so the same prompt gets the same reply: after a reply without a valid action the prompt is
  repeated with a line that says so
- summaries and replies have up to 200 tokens (the paper does not say)
"""
import re
from pathlib import Path

from baselines.common import (
    TreeNode,
    answer_from_best,
    children_of,
    pack_sentences,
    replies,
    scaled,
    summaries,
    tree_graph,
    user_turn,
)
from core.files import InputError
from core.settings import Settings
from data import Answer, Document, Prepared
from llama import Llama
from pecan import Graph
from support.graph import check_place, file_name

SEGMENT = "{}\n\nSummarize the above text comprehensively into a fluent passage."
SUMMARIES = "{}\n\nCompress each summary into a much shorter summary."
TRIAGE = """The following are summaries of different parts of a document.
{memory}Question: {question}

{shown}

Which summary is most likely to contain information about the answer? First compare the summaries, then choose one. \
Reply in the format:
Reasoning: ...
Action: the number of one summary, from 0 to {last}"""
READ = """Read the following text of a document and decide whether it answers the question.
{memory}Question: {question}

{shown}

Reply with action -2 if the answer can be inferred from the text, and with action -1 if it cannot. Reply in the format:
Reasoning: ...
Action: -1 or -2"""
MEMORY = "What you have read on the way: {}\n"
AGAIN = "\n\nYour last reply had no valid action. Action is one of {}."
SEGMENT_TOKENS = 1000
REPLY_TOKENS = 200                             # of a summary, and of a reply on the walk
CHILDREN = 8                                   # of a parent, at most
ATTEMPTS = 3                                   # replies in a row that may have no valid action
BACK = -1                                      # actions at a segment
ENOUGH = -2


def even_groups(n: int) -> list[list[int]]:
    """n neighbours in the least number of groups of at most 8, as even as possible."""
    number = -(-n // CHILDREN)                              # n / 8, rounded up
    ends = [n * k // number for k in range(number + 1)]
    return [list(range(start, end)) for start, end in zip(ends, ends[1:])]


class Walk:
    """One walk. Nodes of level 1 are segments, each of level 2 is the summary of one, the last node is the root."""

    def __init__(self, model: Llama, graph: Graph, question: str, limit: int, settings: Settings):
        self.model = model
        self.graph = graph
        self.question = question
        self.limit = limit                                  # tokens of a reply
        self.settings = settings
        self.tokens = 0                                     # of prompts and replies

    def run(self) -> list[int]:
        """The nodes from the root down to a segment that answers the question.

        [] if the model found none, or if three replies in a row were not valid.
        """
        nodes = self.graph.nodes
        path = [len(nodes) - 1]                             # from the root down to where the walk is
        closed = set()                                      # nodes that the walk has turned back from
        while path:
            below = [child for child in children_of(self.graph, path[-1]) if child not in closed]
            memory = path[:-1]

            if nodes[path[-1]].level == 2:
                segment = below[0]
                action = self.ask(READ, memory, nodes[segment].text, [BACK, ENOUGH])
                if action == ENOUGH:
                    return [*path, segment]
            elif below:
                shown = "\n".join(f"Summary {n}: {nodes[child].text}" for n, child in enumerate(below))
                action = self.ask(TRIAGE, memory, shown, list(range(len(below))))
            else:
                action = BACK                               # no child is left

            if action is None:
                return []
            if action == BACK:
                closed.add(path.pop())
            else:
                path.append(below[action])
        return []

    def ask(self, template: str, memory: list[int], shown: str, actions: list[int]) -> int | None:
        """The action that the model chooses; None after three replies without a valid one."""
        tokenizer = self.model.tokenizer
        reminder = ""
        for _ in range(ATTEMPTS):
            prompt = self.prompt(template, memory, shown, actions, reminder)
            reply = replies(self.model, [prompt], self.limit)[0]
            self.tokens += len(prompt) + len(reply)

            # The last action that the reply names counts.
            chosen = re.findall(r"Action:\s*(-?\d+)", tokenizer.decode(reply))
            if chosen and int(chosen[-1]) in actions:
                return int(chosen[-1])
            reminder = AGAIN.format(", ".join(map(str, actions)))
        return None

    def prompt(self, template: str, memory: list[int], shown: str, actions: list[int], reminder: str) -> list[int]:
        """Token ids of a prompt, with the latest part of the memory that fits.

        `memory` holds nodes, and `shown` is what the prompt asks about. InputError if not even the prompt without any
        memory leaves room for a reply in the window.
        """
        for first in range(len(memory) + 1):
            remembered = " ".join(self.graph.nodes[i].text for i in memory[first:])
            text = template.format(memory=MEMORY.format(remembered) if remembered else "", question=self.question,
                                   shown=shown, last=actions[-1])
            ids = user_turn(self.model.tokenizer, text + reminder)
            if len(ids) + self.limit <= self.settings.window:
                return ids
        raise InputError(f"window {self.settings.window} is too small: a prompt of MeMWalker's takes {len(ids)} tokens "
                         f"and its reply {self.limit}")


class MeMWalker:
    """Prepare the tree, walk it for a question, and answer from the segment at the end of the walk."""

    def __init__(self, model: Llama, settings: Settings):
        self.model = model
        self.settings = settings
        self.segment = scaled(SEGMENT_TOKENS, settings)
        self.limit = scaled(REPLY_TOKENS, settings)

        # The longest prompt of a summary must fit: a segment's, or that of 8 summaries with blank lines between them.
        prompt = len(user_turn(model.tokenizer, SEGMENT + SUMMARIES))
        blank_line = len(model.tokenizer.encode("\n\n"))
        longest = prompt + max(self.segment, CHILDREN * (self.limit + blank_line)) + self.limit
        if longest > settings.window:
            raise InputError(f"window {settings.window} is too small: a summary of MeMWalker's takes {longest} tokens")

        self.construction = {"method": "memwalker", "segment": self.segment, "summary": self.limit,
                             "children": CHILDREN}

    def file_name(self, document: Document) -> str:
        """Names the tree of this document, this model and these lengths on disk."""
        return file_name(document.hash, self.model.fingerprint, self.construction)

    def prepare(self, document: Document, path: str | Path | None = None, progress: bool = False) -> Prepared:
        """Load the tree at `path`, or build it (and save it there)."""
        if path is not None and Path(path).exists():
            graph = Graph.load(path, document, self.construction, self.model)
        else:
            check_place(path)
            graph = self.build(document, progress)
            if path is not None:
                graph.save(path)

        texts = [node.text for node in graph.nodes]
        return Prepared(texts=texts, flops=graph.flops, graph=graph)

    def build(self, document: Document, progress: bool) -> Graph:
        """Build the tree: segments, a summary of each, then summaries of summaries up to the root."""
        flops_before = self.model.flops
        segments = pack_sentences(self.model.tokenizer, document, self.segment)
        one_by_one = [[i] for i in range(len(segments))]
        levels = [[TreeNode(text, []) for text in segments], self.summarise(segments, one_by_one, SEGMENT, progress)]

        while len(levels[-1]) > 1:
            below = [node.text for node in levels[-1]]
            levels.append(self.summarise(below, even_groups(len(below)), SUMMARIES, progress))

        return tree_graph(levels, document, self.model, self.construction, self.model.flops - flops_before)

    def summarise(self, below: list[str], groups: list[list[int]], prompt: str, progress: bool) -> list[TreeNode]:
        """The next level of the tree: a summary of each group."""
        return summaries(self.model, below, groups, prompt, self.limit, self.settings, progress)

    def answer(self, prepared: Prepared, question: str) -> Answer:
        """Walk to a segment, then read it and the working memory, the latest first.

        If the walk ends without a segment, the answer is empty.
        """
        flops_before = self.model.flops
        walk = Walk(self.model, prepared.graph, question, self.limit, self.settings)
        path = walk.run()
        if not path:
            return Answer(text="", nodes=[], flops=self.model.flops - flops_before, tokens=walk.tokens, end="none")

        # The segment's own summary, which comes just before it, adds nothing to it.
        *memory, _, segment = path
        order = [segment, *reversed(memory)]
        answer = answer_from_best(self.model, question, prepared.texts, order, self.settings)
        answer.flops = self.model.flops - flops_before
        answer.tokens += walk.tokens
        return answer
