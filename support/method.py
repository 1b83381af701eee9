"""What every method gives: an answer, and what it cost."""
from dataclasses import dataclass, field


@dataclass
class Answer:
    """What a method says to a question, and what it cost."""
    text: str
    nodes: list[int]              # ids of the nodes that were read, in order
    flops: int
    tokens: int                   # prompt, nodes, probes and answer
    end: str = "read"             # why reading ended: a key of ENDS
    cut: bool = False             # the document did not fit and was cut
    trace: list = field(default_factory=list)


ENDS = {"yes": "the model said it knows enough", "nodes": "the fixed number of nodes was read",
        "all": "there was no more to read", "window": "the window was full", "read": "everything was read at once",
        "none": "nothing was found to answer from"}
