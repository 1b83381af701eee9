"""MeMWalker (Chen et al. 2023): a tree of summaries that the model itself walks down, giving reasons.

Segments of 1000 tokens are summarised one by one. Then up to 8 neighbouring summaries get a parent that summarises
them, and so on up to one root.

On its way down the model sees the summaries of a node's children and chooses one. At the bottom it reads the segment
and says whether the segment answers the question (action -2) or not (-1). After -1 it is back at the parent, with the
children that are left. Its working memory is the nodes on its way down. If they do not fit the window, the oldest are
left out. Two replies in a row without a valid action end the walk without an answer.

No code was published; PECAN wrote its own from the paper (section 4), and so did we. Differences from the paper:
- the answer is not taken from the last reply. The shared reader gives it, from the segment and the working memory, so
  that rows of Table 1 differ only in their method
- after a reply without a valid action, the prompt is asked once more, below a line that asks for the format. (The
  paper tries three times; decoding is greedy here, so a third reply would be the second)
- summaries and replies have up to 200 tokens (the paper does not say)
"""
import re

from baselines.agent import Tree, TreeNode, fields_of
from baselines.common import pack_sentences, scaled

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
SEGMENT_TOKENS = 1000
CHILDREN = 8                                   # of a parent, at most
BACK = "-1"                                    # actions at a segment
ENOUGH = "-2"


def even_groups(nodes: range) -> list[list[int]]:
    """Neighbouring nodes in as few groups of at most 8 as possible, all of nearly the same size."""
    n = len(nodes)
    number = -(-n // CHILDREN)                              # n / 8, rounded up
    return [list(nodes[n * k // number:n * (k + 1) // number]) for k in range(number)]


def action_of(reply: str, actions: list[str]) -> list[str]:
    """The action behind the last "Action:" of a reply, if it is one of `actions`."""
    named = re.fullmatch(r"[^\w-]*(-?\d+)\W*", dict(fields_of(reply, "reasoning|action")).get("action", ""))
    return [named[1]] if named and named[1] in actions else []


class MeMWalker(Tree):
    """Prepare the tree, walk it for a question, and answer from the segment at the end of the walk."""
    reply_tokens = 200            # of a summary, and of a reply on the walk

    def build(self, document, talk):
        """The nodes: segments, a summary of each segment, then summaries of summaries up to the root."""
        segments = pack_sentences(self.model.tokenizer, document, scaled(SEGMENT_TOKENS, self.settings))
        nodes = [TreeNode(1, text, []) for text in segments]
        groups = [[i] for i in range(len(nodes))]
        prompt = SEGMENT
        while True:
            start = len(nodes)
            nodes += yield from self.summarise(nodes, groups, prompt, talk)
            if len(groups) == 1:
                return {"nodes": nodes}
            groups = even_groups(range(start, len(nodes)))
            prompt = SUMMARIES

    def read(self, prepared, question):
        """Walk to a segment, then read it and the working memory, the latest first."""
        path = self.walk(prepared.graph, question, [len(prepared.graph) - 1])
        if not path:
            return None

        # The segment's own summary comes just before the segment. It adds nothing.
        *memory, _, segment = path
        return self.reading_of_best(question, prepared.texts, [segment, *reversed(memory)])

    def walk(self, nodes: list[TreeNode], question: str, path: list[int]) -> list[int] | None:
        """`path`, which leads down from the root, with the nodes from its end to a segment that answers the question.

        [] if there is no such segment below; None if two replies in a row were not valid, which ends the whole walk.
        """
        memory = [nodes[i].text for i in path[:-1]]
        below = list(nodes[path[-1]].children)
        if nodes[path[-1]].level == 2:
            chosen = self.choose(READ, question, memory, nodes[below[0]].text, [BACK, ENOUGH])
            return {BACK: [], ENOUGH: path + below}.get(chosen)

        while below:
            shown = "\n".join(f"Summary {n}: {nodes[child].text}" for n, child in enumerate(below))
            chosen = self.choose(TRIAGE, question, memory, shown, list(map(str, range(len(below)))))
            found = chosen and self.walk(nodes, question, [*path, below.pop(int(chosen))])
            if found != []:
                return found
        return []

    def choose(self, template: str, question: str, memory: list[str], shown: str, actions: list[str]) -> str | None:
        """The action that the model chooses; None after two replies without a valid action.

        If the memory does not fit the prompt, only its latest part is shown.
        """
        latest = [" ".join(memory[first:]) for first in range(len(memory) + 1)]
        texts = [template.format(memory=MEMORY.format(text) if text else "", question=question, shown=shown,
                                 last=actions[-1]) for text in latest]

        return (self.ask_fitting(texts, lambda reply, _: action_of(reply, actions)) or [None])[0]
