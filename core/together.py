"""Constructions side by side: what they ask the model shares batches, whatever documents they come from.

A construction makes a graph or a tree of one document. It is a generator: it yields the list of calls that it needs
next, is sent the list of their replies, and returns its result. Each reply is on disk as soon as it is there, so an
interrupted construction goes on with the calls that have no reply yet.
"""
import contextlib
import json
from collections.abc import Callable, Generator
from pathlib import Path

from core.command import progress_bar
from core.disk import read_kept, read_rows, write_kept, write_row
from core.files import InputError, OutOfMemory, attempt, enough_memory, hash_of, lock, remark
from core.settings import SMALL, Settings

# --- batches --------------------------------------------------------------------------------------------------------

def batch_rows(settings: Settings, device: str, most: int = 32) -> int:
    """The rows of a batch. Rows round differently in other batches, so the default depends on what is known beforehand.

    On a CUDA device a step takes about the same time for any number of rows. Elsewhere only short rows gain from others
    beside them, and a batch that is too large may get the process killed without an error. So a batch has at most
    `most` rows and 16,384 tokens there.
    """
    return settings.batch or (32 if device == "cuda" else max(1, min(most, 16384 // settings.window)))


def search_rows(settings: Settings, device: str, width: int) -> int:
    """The searches that run side by side. On a processor only small models gain: others read a node alone as fast."""
    return settings.batch or (16 if device == "cuda" else 8 if width < SMALL else 1)


class Batches:
    """Runs what is wanted as rows of batches, at most `rows` in each, those of like length together.

    If memory runs out, the batch is run again with half as many rows times length, and so are all later ones, down to a
    row alone.
    """

    fingerprint = ""                                        # for core.code: no result depends on it

    def __init__(self, rows: int):
        self.rows = rows
        self.most = None                                    # rows times length that fit; None: memory never ran out

    def run(self, items: list, length: Callable, work: Callable, progress: bool = False):
        """Yield (item, its result) for each item; work(items) gives a list of results.

        `length` gives the length of an item, in one unit for all calls of `run`. The result is InputError if an item
        does not fit alone, or if it fails alone.
        """
        left = sorted(items, key=length, reverse=True)
        alone = 0                                           # items that run alone, because their batch has failed
        with progress_bar(len(left), "call", desc="building", disable=not progress) as bar:
            while left:
                longest = max(1, length(left[0]))
                fit = self.most // longest if self.most else self.rows
                rows = 1 if alone else max(1, min(self.rows, fit, len(left)))

                try:
                    with enough_memory():
                        results = work(left[:rows])
                except InputError as error:
                    # Only the text is kept: the frames of an exception hold tensors.
                    results = [InputError(str(error))] if rows == 1 else None
                    short = isinstance(error, OutOfMemory)

                if results is None and short:
                    remark("out of memory: going on with fewer rows in a batch")
                    self.most = rows * longest // 2
                elif results is None:
                    alone = rows
                else:
                    yield from zip(left[:rows], results, strict=True)
                    left = left[rows:]
                    alone = max(0, alone - 1)
                    bar.update(rows)

    def all(self, items: list, length: Callable, work: Callable) -> list:
        """The results of items in their order; InputError if one has none."""
        found = dict(self.run(range(len(items)), lambda n: length(items[n]),
                              lambda numbers: work([items[n] for n in numbers])))
        for result in found.values():
            if isinstance(result, InputError):
                raise result
        return [found[n] for n in range(len(items))]


# --- constructions --------------------------------------------------------------------------------------------------

class Construction:
    """A construction, and what is kept of it at a path: its result, and until then its replies.

    Calls, replies and the result are values of JSON's types. `of` is all that they depend on. Without a path nothing is
    kept.
    """

    def __init__(self, steps: Generator, path: str | Path | None = None, of: dict | None = None):
        self.steps = steps
        self.path = path and Path(path)
        self.of = of
        self.calls = None                                   # that it waits for; None before it has begun
        self.replies = {}                                   # hash of a call -> its reply
        self.result = None                                  # an InputError if it failed

    @property
    def file(self) -> Path:
        return Path(f"{self.path}.replies")

    def begin(self, locks: contextlib.ExitStack) -> dict | None:
        """The result, if it is kept. If it is still to build, no other run may until `locks` end.

        InputError if another run is building it, or if a file is damaged or of something else.
        """
        if self.path is None:
            return None
        if self.of["code"] is None:
            raise InputError(f"{self.path}: nothing can be kept of a method that nothing can name; leave the path out")
        if not self.path.exists():
            locks.enter_context(lock(self.path))
        if self.path.exists():                              # asked again: another run may have built it just now
            return read_kept(self.path, self.of)

        for row in read_rows(self.file):
            if row["of"] != hash_of(self.of):
                raise InputError(f"{self.file}: holds replies for another document, model, settings or code; choose "
                                 "another name, or remove it")
            self.replies[row["call"]] = row["reply"]
        return None

    def open_calls(self) -> list:
        """The calls that have no reply yet."""
        return [call for call in self.calls or () if hash_of(call) not in self.replies]

    def keep(self, call, reply):
        """Write a reply to the disk before returning."""
        key = hash_of(call)
        if self.path:
            write_row(self.file, {"of": hash_of(self.of), "call": key, "reply": reply})
        self.replies[key] = reply

    def go_on(self) -> dict | None:
        """Run until a reply is missing, or to the end; only then there is a result."""
        while not self.open_calls():
            replies = None if self.calls is None else [self.replies[hash_of(call)] for call in self.calls]
            try:
                self.calls = self.steps.send(replies)
            except StopIteration as end:
                if self.path:
                    write_kept(self.path, self.of, end.value)
                    self.file.unlink(missing_ok=True)
                return end.value
        return None


def together(constructions: list[Construction], batches: Batches, work: Callable, progress: bool = False) -> list:
    """The results of constructions; an InputError in place of one that failed. `work` replies to a list of calls."""
    with contextlib.ExitStack() as locks:
        for each in constructions:
            each.result = attempt(each.begin, locks)
        while left := [each for each in constructions if each.result is None]:
            for each in left:
                each.result = attempt(each.go_on)
            wanted = [(each, call) for each in left if each.result is None for call in each.open_calls()]
            for (each, call), reply in batches.run(wanted, lambda item: len(json.dumps(item[1])),
                                                   lambda items: work([call for _, call in items]), progress):
                if isinstance(reply, InputError):
                    each.result = reply
                else:
                    each.keep(call, reply)
    return [each.result for each in constructions]


def alone(steps: Generator, work: Callable):
    """The result of one construction; work(calls) gives all replies that it waits for."""
    replies = None
    while True:
        try:
            calls = steps.send(replies)
        except StopIteration as end:
            return end.value
        replies = work(calls)
