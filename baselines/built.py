"""What is built once for a document by asking the model, and kept on disk: of trees of summaries, and of agents."""
import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from baselines.common import Baseline
from core.files import InputError, read_json, reading, write_file
from core.text import split
from data import Answer, Document, Prepared
from llama import Cache, length_of
from support.graph import check_place, file_name

FORMAT = "method file 2"
ATTEMPTS = 3                      # replies to one prompt that may be refused


class Built(Baseline):
    """A method that asks the model to build something of a document, and about a question.

    A subclass sets `limit`, the tokens of a reply, and says how by `build`, `ready` and `read`.
    """
    limit: int

    def build(self, document: Document, progress: bool) -> dict:
        """What is made of a document, as plain fields for JSON; its FLOPs are the model's."""

    def ready(self, content: dict) -> Prepared:
        """What was built, as questions need it; its FLOPs are those of an encoder."""

    # --- files

    def construction(self, document: Document) -> dict:
        """The settings that decide what is built of a document. All lengths follow from these."""
        return {"method": type(self).__name__, "chunk": self.settings.chunk, "window": self.settings.window}

    def file_name(self, document: Document) -> str:
        """Names what is built of this document, by this model, under these settings, on disk."""
        return file_name(document.hash, self.model.fingerprint, self.construction(document))

    def prepare(self, document: Document, path: str | Path | None = None, progress: bool = False) -> Prepared:
        """Read what was built of this document from `path`, or build it (and write it there), and ready it."""
        head = {"format": FORMAT, "document": document.hash, "model": self.model.fingerprint,
                "settings": self.construction(document)}
        if path is not None and Path(path).exists():
            content = read_json(path)
            for key, value in head.items():
                if content.get(key) != value:
                    raise InputError(f"{path}: is of another {key}; delete it, or choose another folder of graphs")
        else:
            check_place(path)
            before = self.model.flops
            content = head | {"calls": 0, "refused": 0} | self.build(document, progress)
            content["flops"] = self.model.flops - before
            if path is not None:
                write_file(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")

        before = self.flops()
        with reading(path or document.id, "not what was built of a document"):
            prepared = self.ready(content)
            prepared.flops = content["flops"] + self.flops() - before
            prepared.calls, prepared.refused = content["calls"], content["refused"]
        return prepared

    # --- the model

    def answer(self, prepared: Prepared, question: str) -> Answer:
        """All tokens that the model reads or writes for an answer count, not only the reader's."""
        before = self.model.tokens
        answer = super().answer(prepared, question)
        answer.tokens = self.model.tokens - before
        return answer

    def user_turn(self, text: str) -> list[int]:
        """Token ids of a user's turn that says `text`, up to the start of the assistant's."""
        tokenizer = self.model.tokenizer
        return [*tokenizer.frame.open, *tokenizer.encode(text), *tokenizer.frame.close]

    def fitting(self, texts: Iterable[str], again: str) -> str:
        """The first of these texts that leaves room for a reply, with `again` after it; the last if none does."""
        for text in texts:
            if len(self.user_turn(text + again)) + self.limit <= self.settings.window:
                break
        return text

    def say(self, texts: list[str], limit: int, progress: bool = False) -> list[str]:
        """The model's greedy reply, up to `limit` tokens, to each text as a user's turn; a batch of them runs together.

        InputError if the window has no room for a reply.
        """
        said = []
        batch = self.settings.batch
        for first in tqdm(range(0, len(texts), batch), "replies", unit="batch", leave=False, disable=not progress):
            rows = [[(None, self.user_turn(text))] for text in texts[first:first + batch]]
            longest = max(map(length_of, rows))
            self.check_room("a prompt", longest, limit)

            cache = Cache(self.model, len(rows), longest + limit)
            hidden, _ = self.model.read(cache, rows)
            ids, _ = self.model.generate(cache, hidden, limit)
            said += map(self.model.tokenizer.decode, ids)
        return said

    def check_room(self, what: str, prompt: int, limit: int):
        """InputError if a prompt and a reply of up to `limit`, both in tokens, do not fit the window."""
        window = self.settings.window
        if prompt + limit > window:
            raise InputError(f"window {window} is too small: {what} takes {prompt} tokens and its reply {limit}")


class TreeNode(NamedTuple):
    level: int                    # 1: a passage of the document; higher: a summary
    text: str
    children: list[int]           # ids, in document order


class Tree(Built):
    """A tree of summaries. A node's id is its place in the list of nodes, and levels come in order."""

    def ready(self, content: dict) -> Prepared:
        nodes = [TreeNode(*row) for row in content["nodes"]]
        return Prepared([node.text for node in nodes], graph=nodes)

    def summarise(self, nodes: list[TreeNode], groups: list[list[int]], prompt: str, progress: bool) -> list[TreeNode]:
        """The next level: a summary of each group of nodes.

        `prompt` asks for the summary, with the nodes' texts in place of its {}. If the model says nothing, the summary
        is the beginning of the texts, so that no node is empty.
        """
        sources = ["\n\n".join(nodes[i].text for i in group) for group in groups]
        said = self.say([prompt.format(source) for source in sources], self.limit, progress)
        texts = [" ".join(reply.split()) or split(self.model.tokenizer, source, self.limit)[0]
                 for reply, source in zip(said, sources, strict=True)]
        return [TreeNode(nodes[-1].level + 1, text, group) for text, group in zip(texts, groups, strict=True)]
