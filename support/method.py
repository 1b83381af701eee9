"""What PECAN and every compared method have in common: the contract that eval.py runs, and what an answer is."""
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from data import Document

# Why reading ended.
ENDS = {"yes": "the model said it knows enough", "nodes": "the fixed number of nodes was read",
        "all": "there was no more to read", "window": "the window was full", "read": "everything was read at once",
        "none": "nothing was found to answer from"}


@dataclass
class Step:
    """One node that a search has visited, why it was read, and what was known after it."""
    node: int
    level: int
    position: int                 # in the prompt; the query has position 1
    r: float                      # relevance to the query, position factor included
    z: float | None = None        # E^T r, when it was chosen; None for the nodes the search starts with
    similarity: float | None = None       # c
    score: float | None = None            # final score
    runner_up: int | None = None
    runner_up_score: float | None = None
    p_yes: float | None = None    # None if no check was made
    verdict: str | None = None    # "Yes" or "No"
    tokens: int = 0               # read so far, probes included
    flops: int = 0                # spent so far; nodes that were read in one pass have its end

    def describe(self) -> str:
        """The step in words, for the printed trace."""
        why = "top level"
        if self.score is not None:
            why = f"score {self.score:.3f} (z {self.z:.4f}, c {self.similarity:.3f})"
        check = "" if self.p_yes is None else f"  p_yes {self.p_yes:.3f} {self.verdict}"
        return f"#{self.node} of level {self.level}  {why}  r {self.r:.4f}{check}"


@dataclass
class Prepared:
    """A document made ready for its questions."""
    texts: list[str]              # what can be retrieved: chunks, nodes or passages
    flops: int = 0                # what preparing cost, the construction of a graph included
    graph: object = None          # pecan.Graph: PECAN's graph, or a tree
    index: object = None          # what finds the texts: their vectors [n, D], word counts, token ids
    calls: int = 0                # replies that preparing took, for methods that can refuse one
    refused: int = 0
    repeats: int = 0              # bullets that were left out, because their reply had them before
    loops: int = 0                # replies that were ended, because a line came three times in succession


@dataclass
class Answer:
    """What a method answers to a question, and what the answer cost."""
    text: str
    nodes: list[int]              # places in Prepared.texts of what was read, in this order
    flops: int
    tokens: int                   # prompt, nodes, probes and answer
    end: str = "read"             # why reading ended, a key of ENDS
    cut: bool = False             # the document did not fit the window and was cut
    trace: list = field(default_factory=list)         # PECAN's has a Step for each visited node
    calls: int = 0                # replies that were asked for, the reader's not counted
    refused: int = 0              # of these, replies that did not have the form that was asked for

    def as_text(self, question: str, texts: list[str], steps: bool) -> str:
        """The answer for a reader, with its steps if they are wanted; `texts` are those that could be retrieved."""
        lines = [question, f"  {self.text}", f"  ({len(self.nodes)} of {len(texts)} nodes read, "
                 f"{self.flops / 1e9:,.3g} GFLOPs; {ENDS[self.end]})"]
        if steps:
            lines += [f"    {step.describe()}  {texts[step.node]}" for step in self.trace]
        return "\n".join(lines)

    def as_json(self, question: str, texts: list[str]) -> str:
        """The answer for a program: one line, the steps and the texts that were read included."""
        steps = [asdict(step) | {"text": texts[step.node]} for step in self.trace]
        found = {"question": question, "answer": self.text, "end": self.end, "nodes": self.nodes, "of": len(texts),
                 "tokens": self.tokens, "flops": self.flops, "steps": steps}
        return json.dumps(found, ensure_ascii=False, allow_nan=False)


class Method(Protocol):
    """A method answers questions about a document that it has prepared once."""

    def file_name(self, document: Document) -> str | None:
        """The name, without an ending, under which the prepared graph is kept on disk.

        None if nothing is kept, as by a method that does not say otherwise.
        """

    def prepare(self, document: Document, path: Path | None = None, progress: bool = False) -> Prepared:
        """Prepare a document. If `path` is given, the graph is read from there, or built and written there.

        Raises InputError if the document or the file cannot be used, OutputError if the file cannot be written.
        """

    def answer(self, prepared: Prepared, question: str) -> Answer:
        """Answer one question; InputError if this question cannot be answered, for example if it is too long."""
