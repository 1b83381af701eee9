"""What is built once for a document by asking the model, and kept on disk: of trees of summaries, and of agents."""
import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from baselines.common import Baseline
from core.files import InputError, read_json, reading, write_file
from core.text import split
from data import Answer, Document, Prepared
from llama import Cache, Llama, length_of
from support.graph import file_name
from support.kept import kept

FORMAT = 2                        # of the files
ATTEMPTS = 3                      # replies to one prompt that may be refused


def replies(model: Llama, texts: list[str], limit: int) -> list[str]:
    """The greedy reply, of up to `limit` tokens, to each text as a user's turn; they run together."""
    rows = [[(None, user_turn(model.tokenizer, text))] for text in texts]
    cache = Cache(model, len(rows), max(map(length_of, rows)) + limit)
    hidden, _ = model.read(cache, rows)
    ids, _ = model.generate(cache, hidden, limit)
    return list(map(model.tokenizer.decode, ids))


def user_turn(tokenizer, text: str) -> list[int]:
    """Token ids of a user's turn that says `text`, up to the start of the assistant's."""
    return [*tokenizer.frame.open, *tokenizer.encode(text), *tokenizer.frame.close]


class Built(Baseline):
    """A method that asks the model to build something of a document, and about a question.

    A subclass sets `limit`, the tokens of a reply, and says how by `read` and
        build(document) -> dict         what is made of a document, as plain fields for JSON; its FLOPs are the model's
        ready(content) -> Prepared      the same as questions need it; its FLOPs are those of an encoder
    """
    limit: int
    progress = False              # whether a bar shows how many replies are there
    replies = staticmethod(replies)

    # --- files

    def construction(self, document: Document) -> dict:
        """The settings that decide what is built of a document. All lengths follow from these."""
        return {"method": type(self).__name__, "format": FORMAT, "chunk": self.settings.chunk,
                "window": self.settings.window}

    def file_name(self, document: Document) -> str:
        """Names what is built of this document, by this model, under these settings, on disk."""
        return file_name(document.hash, self.model.fingerprint, self.construction(document))

    def prepare(self, document: Document, path: str | Path | None = None, progress: bool = False) -> Prepared:
        """Read what was built of this document from `path`, or build it (and write it there), and ready it."""
        name = self.file_name(document)
        if path is not None and Path(path).exists():
            content = read_json(path)
            if content.get("of") != name:
                raise InputError(f"{path}: is of another document, model or settings; choose another name")
        else:
            before = self.model.flops
            with self.building(path, name, progress):
                content = {"of": name, "calls": 0, "refused": 0} | self.build(document)
                content["flops"] = self.model.flops - before
                if path is not None:
                    write_file(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")

        before = self.flops()
        with reading(path or document.id, "not what was built of a document"):
            prepared = self.ready(content)
            prepared.flops = content["flops"] + self.flops() - before
            prepared.calls, prepared.refused = content["calls"], content["refused"]
        return prepared

    @contextlib.contextmanager
    def building(self, path: str | Path | None, name: str, progress: bool):
        """Within the block, replies are kept on disk, and a bar may show how many are there."""
        with kept(path, name, replies) as self.replies:
            self.progress = progress
            try:
                yield
            finally:
                del self.replies, self.progress

    # --- the model

    def answer(self, prepared: Prepared, question: str) -> Answer:
        """All tokens that the model reads or writes for an answer count, not only the reader's."""
        before = self.model.tokens
        answer = super().answer(prepared, question)
        answer.tokens = self.model.tokens - before
        return answer

    def user_turn(self, text: str) -> list[int]:
        return user_turn(self.model.tokenizer, text)

    def fitting(self, texts: Iterable[str], again: str) -> str:
        """The first of these texts that leaves room for a reply, with `again` before it; the last if none does."""
        for text in texts:
            if len(self.user_turn(again + text)) + self.limit <= self.settings.window:
                break
        return text

    def say(self, texts: list[str], limit: int) -> list[str]:
        """The model's greedy reply, up to `limit` tokens, to each text as a user's turn; a batch of them runs together.

        InputError if the window has no room for a reply.
        """
        for text in texts:
            self.check_room("a prompt", len(self.user_turn(text)), limit)

        said = []
        batch = self.settings.batch
        batches = range(0, len(texts), batch)
        for first in tqdm(batches, "replies", unit="batch", leave=False, disable=not self.progress):
            said += self.replies(self.model, texts[first:first + batch], limit)
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

    def summarise(self, nodes: list[TreeNode], groups: list[list[int]], prompt: str) -> list[TreeNode]:
        """The next level: a summary of each group of nodes.

        `prompt` asks for the summary, with the nodes' texts in place of its {}. If the model says nothing, the summary
        is the beginning of the texts, so that no node is empty.
        """
        sources = ["\n\n".join(nodes[i].text for i in group) for group in groups]
        said = self.say([prompt.format(source) for source in sources], self.limit)
        texts = [" ".join(reply.split()) or split(self.model.tokenizer, source, self.limit)[0]
                 for reply, source in zip(said, sources)]
        return [TreeNode(nodes[-1].level + 1, text, group) for text, group in zip(texts, groups)]
