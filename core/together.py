"""Constructions that run together: what they ask the model shares batches, and is kept on disk until they are done.

A construction makes a graph or a tree of one document. It is cheap but for what it asks the model, and it does the same
whenever it is called. So we call all of them until each asks for something that nobody has answered yet, answer these
calls in batches, whatever documents they come from, and call the constructions again. An interrupted construction goes
on in the same way: its answers are on disk, so it asks for the rest only.
"""
import contextlib
import json
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from core.disk import hash_of, read_kept, sealed, unsealed, write_kept
from core.files import (
    Busy,
    InputError,
    OutOfMemory,
    append_line,
    attempt,
    complete_lines,
    enough_memory,
    lock,
    parse_json,
    remark,
)
from core.settings import Settings


class Wanted(Exception):
    """The calls that a construction needs next."""


class Memory:
    """The answers to the calls of one construction, in PATH.summaries if it has a path, until it is done.

    `name` is a hash of all that the answers depend on besides the call; None if that is not known, and nothing may be
    kept. Only one process may build at PATH.
    """

    def __init__(self, name: str | None, path: str | Path | None):
        if path is not None and name is None:
            raise InputError(f"{path}: a method from outside of the project keeps nothing on disk, because its code is "
                             "not known; leave the path out")
        self.name = name
        self.path = path
        self.answers = None                                 # hash of a call -> its answer; None before the first call
        self.held = contextlib.ExitStack()                  # the lock of PATH, from the first call on

    @property
    def file(self) -> Path:
        return Path(f"{self.path}.summaries")

    def ask(self, calls: list) -> list:
        """The answers to calls (values of JSON's types). Raises Wanted with those that nobody has answered yet.

        Busy if another process builds at PATH.
        """
        if self.answers is None:
            self.begin()
        wanted = [call for call in calls if hash_of(self.name, call) not in self.answers]
        if wanted:
            raise Wanted(wanted)
        return [self.answers[hash_of(self.name, call)] for call in calls]

    def begin(self, wait: bool = False):
        """Lock PATH, and read the answers of an interrupted construction. What a damaged line held is asked again."""
        if self.path is not None:
            self.held.enter_context(lock(self.path, wait))
        self.answers = {}
        if self.path is not None:
            for line in complete_lines(self.file) if self.file.exists() else ():
                with contextlib.suppress(InputError):
                    row = unsealed(parse_json(line, self.file, dict), self.file)
                    self.answers[row["call"]] = row["answer"]

    def keep(self, call, answer):
        """Write an answer to the disk before returning."""
        call = hash_of(self.name, call)
        if self.path is not None:
            row = sealed({"call": call, "answer": answer})
            append_line(self.file, json.dumps(row, ensure_ascii=False, allow_nan=False))
        self.answers[call] = answer

    def done(self, failed: bool = False):
        """Let others build at PATH. Remove the file, unless what it is for could not be made."""
        if self.path is not None and not failed and self.file.exists():
            self.file.unlink()
        self.held.close()


def batch_rows(settings: Settings, device: str, most: int = 32) -> int:
    """The rows of a batch. Rows round differently in other batches, so the default depends on what is known beforehand.

    On a CUDA device a step takes about the same time for any number of rows. Elsewhere only short rows gain from others
    beside them, and a batch that is too large may get the process killed without an error. So a batch has at most
    `most` rows and 16,384 tokens there.
    """
    return settings.batch or (32 if device == "cuda" else max(1, min(most, 16384 // settings.window)))


class Batches:
    """Runs what is wanted as rows of batches, at most `rows` in each, those of like length together.

    If memory runs out, the batch is run again with half as many rows times length, and so are all later ones, down to a
    row alone.
    """

    def __init__(self, rows: int):
        self.rows = rows
        self.most = None                                    # rows times length that fit; None: never too many so far

    def run(self, items: list, length: Callable, work: Callable, progress: bool = False):
        """Yield (item, its result) for each item; work(items) gives a list of results.

        `length` gives the length of an item, in one unit for all calls of `run`. The result is InputError if an item
        does not fit alone, or if it fails alone.
        """
        left = sorted(items, key=length, reverse=True)
        alone = 0                                           # items that run alone, because their batch has failed
        with tqdm(total=len(left), unit="call", leave=False, disable=not progress) as bar:
            while left:
                longest = max(1, length(left[0]))
                rows = min(self.rows, len(left), max(1, (self.most or longest * self.rows) // longest))
                rows = 1 if alone else rows

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


def kept(path: str | Path | None, wanted: dict, head: dict, build: Callable) -> Callable:
    """The construction that takes what is at `path`, whose head must say what is `wanted`, or builds and writes it."""
    def construct(ask):
        if path is not None and Path(path).exists():
            return read_kept(path, wanted)
        content = build(ask)
        if path is not None:
            write_kept(path, head, content)
        return content

    return construct


def together(constructions: list[tuple[Callable, Memory]], batches: Batches, work: Callable,
             progress: bool = False) -> list:
    """The results of constructions, each called as construct(ask); an InputError in place of one that failed.

    `work` answers a list of calls in one batch.
    """
    results = {}                                            # the number of a construction -> its result

    def run(n: int) -> list:
        """Call a construction. Returns what it wants next."""
        construct, memory = constructions[n]
        try:
            result = attempt(construct, memory.ask)
            if not isinstance(result, Busy):
                results[n] = result
                memory.done(isinstance(result, InputError))
        except Wanted as error:
            return [(n, call) for call in error.args[0]]
        return []

    with contextlib.ExitStack() as stack:
        for _, memory in constructions:
            stack.enter_context(memory.held)
        while len(results) < len(constructions):
            left = [n for n in range(len(constructions)) if n not in results]
            wanted = [item for n in left for item in run(n)]
            busy = [n for n in left if n not in results]
            if busy and not wanted:                         # others build the rest; we hold no lock they wait for
                remark(f"{constructions[busy[0]][1].path}: waiting for another run that builds it")
                constructions[busy[0]][1].begin(wait=True)
            for (n, call), answer in batches.run(wanted, lambda item: len(json.dumps(item[1])),
                                                 lambda items: work([call for _, call in items]), progress):
                if isinstance(answer, InputError):
                    results[n] = answer
                else:
                    constructions[n][1].keep(call, answer)
            for n in busy:
                if n in results:                            # it failed: another run may build it
                    constructions[n][1].done(failed=True)
    return [results[n] for n in range(len(constructions))]
