"""Searches side by side: what they want of the model runs as rows of one cache.

A search is written as if it were alone. Here each has a thread, but only one thread runs at a time: until its search
wants something read or written. When all of them want something, one pass serves those that want the same, nodes first:
a search that ends waits with its answer until the others have read all their nodes.
"""
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.nn.utils.rnn import pad_sequence

from core.files import InputError

NODES, TEXT, REPLY = range(3)                               # what is wanted, in the order in which it is served


class Row:
    """The model, as one of several searches sees it."""

    def __init__(self, lockstep: "Lockstep", place: int):
        self.lockstep = lockstep
        self.place = place                                  # in the shared cache; it changes
        self.wants = None                                   # NODES, TEXT or REPLY, and up to which limit
        self.go = threading.Semaphore(0)
        self.paused = threading.Semaphore(0)

    def __getattr__(self, name):
        return getattr(self.lockstep.model, name)           # config, tokenizer, logits: these need nobody else

    def new_cache(self, window: int, over):
        """A cache with this row's lengths and nodes. Its keys and values are where `place` says."""
        shared = self.lockstep
        if shared.cache is None:
            shared.cache = shared.model.new_cache(shared.window, over, len(shared.rows))
        self.cache = shared.cache.part(self.place, self.place + 1)
        return self.cache

    def read(self, cache, segments, averaging=None, probes=((),)):
        return self.ask((TEXT if averaging is None else NODES, 0), *segments, averaging, *probes)

    def generate(self, cache, hidden, limit):
        return self.ask((REPLY, limit), hidden)

    def ask(self, wants: tuple, *arguments):
        """Wait until a pass has served this search. Returns what came of it for this row."""
        self.wants = wants
        self.arguments = arguments
        self.paused.release()
        self.go.acquire()
        if self.lockstep.failed:
            raise InputError("the pass has failed")
        return self.found

    def resume(self):
        """Let the search go on until it wants something again or has ended."""
        self.wants = None
        self.go.release()
        self.paused.acquire()

    def run(self, search: Callable):
        self.go.acquire()
        try:
            return search(self)
        except InputError as error:
            return InputError(str(error))                   # without its frames, which hold tensors
        finally:
            self.paused.release()


class Lockstep:
    """Runs searches that share a cache of `window` slots a row."""

    def __init__(self, model, window: int, searches: list[Callable]):
        self.model = model
        self.window = window
        self.searches = searches
        self.rows = [Row(self, place) for place in range(len(searches))]
        self.cache = None                                   # made by the first search
        self.failed = False

    def results(self) -> list:
        """What search(model) returns for each search, or its InputError. An error of a pass is raised."""
        # Trap: a new thread would take all cores, and so round otherwise.
        with ThreadPoolExecutor(len(self.rows), "search", torch.set_num_threads, [torch.get_num_threads()]) as pool:
            try:
                found = [pool.submit(row.run, search) for row, search in zip(self.rows, self.searches)]
                for row in self.rows:
                    row.resume()

                while wanted := {row.wants for row in self.rows} - {None}:
                    what = min(wanted)
                    rows = [row for row in self.rows if row.wants == what]
                    self.serve(rows, *what)
                    for row in rows:
                        row.resume()
            except BaseException:                           # of a pass, or an interruption: all searches end
                self.failed = True
                for row in self.rows:
                    row.go.release(2)                       # one that has not begun waits twice
                raise
        return [each.result() for each in found]

    def serve(self, rows: list[Row], what: int, limit: int):
        """One pass for rows that want the same."""
        cache = self.cache_of(rows)
        arguments = [*zip(*(row.arguments for row in rows))]
        if what == REPLY:                                   # its last wish, so the cache may lose rows
            replies, _ = self.model.generate(cache, torch.cat(arguments[0]), limit)
            for row, reply in zip(rows, replies, strict=True):
                row.found = [reply], None
            return

        segments, averaging, probes = arguments
        averaging = pad_sequence([M[0] for M in averaging], batch_first=True) if what == NODES else None
        hidden, a = self.model.read(cache, segments, averaging, probes)                    # [B, D], [B, T, N]
        a = a if a is None else a.cpu()                     # once for all rows; each search would wait for its own
        for b, row in enumerate(rows):
            row.found = hidden[b:b + 1], a if a is None else a[b:b + 1]
            row.cache.lengths = [cache.lengths[b]]
            row.cache.nodes = [cache.nodes[b]]

    def cache_of(self, rows: list[Row]):
        """The cache of these rows alone. They move to its beginning, because a row that wants nothing must not run."""
        for b, row in enumerate(rows):
            if row.place != b:
                other = next(other for other in self.rows if other.place == b)
                for tensor in (*self.cache.keys, *self.cache.values):
                    tensor[[b, row.place]] = tensor[[row.place, b]]
                other.place = row.place
                row.place = b
        cache = self.cache.part(0, len(rows))
        cache.lengths = [row.cache.lengths[0] for row in rows]
        cache.nodes = [row.cache.nodes[0] for row in rows]
        return cache
