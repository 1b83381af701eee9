"""Trees of summaries and graphs of agents. The model builds them once for a document; they are kept on disk."""
import json
from pathlib import Path
from typing import NamedTuple

from baselines.agent import Agent
from baselines.replies import replies_to
from core.files import InputError, read_json, reading, write_file
from core.text import split
from data import Document, Prepared
from support.disk import file_name, kept

FORMAT = 3                        # of the files


class Built(Agent):
    """A method that builds something from a document, once, and answers from it. A subclass defines `read` and

        build(document) -> dict         what is built, in JSON's types; the model does the work
        ready(content) -> Prepared      the same in the form that questions need; an encoder may do some work
    """

    def construction(self, document: Document) -> dict:
        """The settings that decide what is built from a document. All lengths follow from these."""
        return {"method": type(self).__name__, "format": FORMAT, "chunk": self.settings.chunk,
                "window": self.settings.window}

    def file_name(self, document: Document) -> str:
        """The name on disk of what this model builds from this document with these settings."""
        return file_name(document.hash, self.model.fingerprint, self.construction(document))

    def prepare(self, document: Document, path: str | Path | None = None, progress: bool = False) -> Prepared:
        """Load `path`, or build what it should hold and write it there. Then make it ready for questions."""
        name = self.file_name(document)
        if path is not None and Path(path).exists():
            content = read_json(path)
            if content.get("of") != name:
                raise InputError(f"{path}: is of another document, model or settings; choose another name")
        else:
            before = self.model.flops
            with kept(path, name, replies_to) as kept_or_new:
                self.begin(kept_or_new, progress)
                content = {"of": name} | self.build(document)
                content |= {"calls": len(self.trace), "refused": self.refused, "flops": self.model.flops - before}
                if path is not None:
                    write_file(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")

        before = self.flops()
        with reading(path or document.id, "not what was built from a document"):
            prepared = self.ready(content)
            prepared.flops = content["flops"] + self.flops() - before
            prepared.calls, prepared.refused = content["calls"], content["refused"]
        return prepared


class TreeNode(NamedTuple):
    level: int                    # 1: a passage of the document; higher: a summary
    text: str
    children: list[int]           # ids, in document order


class Tree(Built):
    """A tree of summaries. A node's id is its place in the list of nodes, and levels come in order."""

    def ready(self, content: dict) -> Prepared:
        nodes = [TreeNode(*row) for row in content["nodes"]]
        return Prepared([node.text for node in nodes], graph=nodes)

    def summarise(self, nodes: list[TreeNode], groups: list[list[int]], prompt: str) -> list[TreeNode]:
        """The next level: a summary of each group of nodes.

        `prompt` asks for the summary; the nodes' texts replace its {}. If the model says nothing, the summary is the
        beginning of the texts, so that no node is empty.
        """
        sources = ["\n\n".join(nodes[i].text for i in group) for group in groups]
        said = self.say([prompt.format(source) for source in sources], self.limit)
        texts = [" ".join(reply.split()) or split(self.model.tokenizer, source, self.limit)[0]
                 for reply, source in zip(said, sources)]
        return [TreeNode(nodes[-1].level + 1, text, group) for text, group in zip(texts, groups)]
