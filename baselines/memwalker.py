"""MeMWalker (Chen et al. 2023): a tree of summaries that the model itself walks down, with reasons.

Segments of 1000 tokens are summarised one by one; up to 8 neighbouring summaries share a parent, which summarises them,
up to one root. On its way the model sees the summaries of a node's children and chooses one; at the end of it, it reads
the segment and says whether that answers the question (action -2) or not (-1), which takes it back to the parent and
the children that are left. Its working memory is the nodes on its way down, the oldest left out where they do not fit
the window. Three replies in a row without a valid action end the walk without an answer.

No code was published; PECAN wrote its own from the paper (section 4), as this is. Where it is not the paper's:
- the answer is not taken from the last reply: the shared reader gives it, from the segment and the working memory, so
  that rows of Table 1 differ by their method alone
- decoding is greedy, and the same prompt gets the same reply: a reply without a valid action is asked for again with a
  line that says so
- summaries and replies have up to 200 tokens (the paper does not say)
"""
import re
from pathlib import Path

from baselines.common import children, read_best, replies, scaled, sentences, summaries, tree, turn
from data import Document
from llama import Llama
from pecan import Graph
from support.files import InputError
from support.graph_file import file_name
from support.method import Answer, Prepared
from support.settings import Settings

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
BACK, ENOUGH, CHILDREN, ATTEMPTS = -1, -2, 8, 3


def groups(n: int) -> list[range]:
    """n neighbours as the least number of groups of at most 8, as even as can be."""
    number = -(-n // CHILDREN)
    ends = [n * i // number for i in range(number + 1)]
    return [range(a, b) for a, b in zip(ends, ends[1:])]


class Walk:
    """One walk. Nodes of level 1 are segments, those of level 2 the summary of one each, the last is the root."""

    def __init__(self, model: Llama, graph: Graph, question: str, limit: int, settings: Settings):
        self.model, self.graph, self.question, self.limit, self.settings = model, graph, question, limit, settings
        self.tokens = 0

    def run(self) -> list[int]:
        """The nodes from the root down to a segment that answers the question; [] where the model found none, or
        three replies in a row were not valid."""
        nodes, path, closed = self.graph.nodes, [len(self.graph.nodes) - 1], set()
        while path:
            below = [child for child in children(self.graph, path[-1]) if child not in closed]
            if nodes[path[-1]].level == 2:
                action = self.ask(READ, path[:-1], nodes[below[0]].text, [BACK, ENOUGH])
                if action == ENOUGH:
                    return [*path, below[0]]
            elif below:
                shown = "\n".join(f"Summary {n}: {nodes[child].text}" for n, child in enumerate(below))
                action = self.ask(TRIAGE, path[:-1], shown, list(range(len(below))))
            else:
                action = BACK
            if action is None:
                return []
            if action == BACK:
                closed.add(path.pop())
            else:
                path.append(below[action])
        return []

    def ask(self, prompt: str, memory: list[int], shown: str, actions: list[int]) -> int | None:
        """The action that the model chooses, of those that are valid; None after three replies without one."""
        tokenizer, again = self.model.tokenizer, ""
        for _ in range(ATTEMPTS):
            for first in range(len(memory) + 1):             # as much of the memory as fits, the latest of it
                text = " ".join(self.graph.nodes[i].text for i in memory[first:])
                ids = turn(tokenizer, prompt.format(memory=MEMORY.format(text) if text else "", question=self.question,
                                                    shown=shown, last=actions[-1]) + again)
                if len(ids) + self.limit <= self.settings.window:
                    break
            else:
                raise InputError(f"window {self.settings.window} is too small: a prompt of MeMWalker's takes "
                                 f"{len(ids)} tokens and its reply {self.limit}")
            said, = replies(self.model, [ids], self.limit)
            self.tokens += len(ids) + len(said)
            chosen = re.findall(r"Action:\s*(-?\d+)", tokenizer.decode(said))
            if chosen and int(chosen[-1]) in actions:
                return int(chosen[-1])
            again = AGAIN.format(", ".join(map(str, actions)))
        return None


class MeMWalker:
    """Prepare the tree, walk it for a question, and answer from the segment where the walk ended."""

    def __init__(self, model: Llama, settings: Settings):
        self.model, self.settings = model, settings
        self.segment, self.limit = scaled(1000, settings), scaled(200, settings)
        prompt, blank = len(turn(model.tokenizer, SEGMENT + SUMMARIES)), len(model.tokenizer.encode("\n\n"))
        longest = prompt + max(self.segment, CHILDREN * (self.limit + blank)) + self.limit
        if longest > settings.window:
            raise InputError(f"window {settings.window} is too small: a summary of MeMWalker's takes {longest} tokens")
        self.construction = {"method": "memwalker", "segment": self.segment, "summary": self.limit,
                             "children": CHILDREN}

    def file_name(self, document: Document) -> str:
        return file_name(document.hash, self.model.fingerprint, self.construction)

    def prepare(self, document: Document, path: str | Path | None = None, progress: bool = False) -> Prepared:
        """`index` is the tree."""
        levels = []

        def summarise(texts):
            levels.append(texts)
            if len(levels) == 1:
                below, prompt = [[i] for i in range(len(texts))], SEGMENT
            elif len(texts) > 1:
                below, prompt = [list(group) for group in groups(len(texts))], SUMMARIES
            else:
                return []
            together = ["\n\n".join(texts[i] for i in group) for group in below]
            return list(zip(summaries(self.model, together, prompt, self.limit, self.settings.batch, progress), below))
        graph = tree(path, document, self.model, self.construction,
                     lambda: sentences(self.model.tokenizer, document, self.segment), summarise)
        return Prepared([node.text for node in graph.nodes], graph.flops, graph)

    def answer(self, prepared: Prepared, question: str) -> Answer:
        flops, walk = self.model.flops, Walk(self.model, prepared.graph, question, self.limit, self.settings)
        path = walk.run()
        if not path:
            return Answer("", [], self.model.flops - flops, walk.tokens, end="none")
        *memory, _, segment = path                           # the segment's own summary says nothing new
        answer = read_best(self.model, question, prepared.texts, [segment, *reversed(memory)], self.settings)
        answer.flops, answer.tokens = self.model.flops - flops, answer.tokens + walk.tokens
        return answer
