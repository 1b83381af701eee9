"""Searches side by side: their forward passes run as rows of one cache.

A search is written as if it were alone. Here each has a thread, and a copy of the method, whose model's forward pass
waits for the other searches. When all of them wait, one pass of the model runs all of one kind, nodes first. So a
search that ends waits with its answer until the others have read all their nodes, and then they answer together.

Only one thread runs at a time: the thread of one search, or the caller's, which runs the passes.
"""
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from queue import SimpleQueue

import torch
from torch.nn.utils.rnn import pad_sequence


class Row:
    """One of the searches: what goes between its thread and the caller's."""

    def __init__(self):
        self.passes = SimpleQueue()                         # from the search: the pass that it waits for
        self.results = SimpleQueue()                        # to the search: what came of it

    def run(self, method, asked):
        """The thread of the search. (Only it holds the copies, so nothing keeps the model when it has ended.)"""
        try:
            model = copy(method.model)
            method = copy(method)
            method.model = model
            model.forward = self.forward
            model.recorded = lambda *_: self.forward        # a step that waits for others cannot be recorded
            # The search's cache needs no memory, because a row of the shared one holds its keys and values.
            empty = [model.zeros(0)] * 2 * model.config.layers
            model.zeros = lambda *_: empty.pop()            # for one cache: a search with another needs --batch 1
            return method.answer(*asked)
        finally:
            self.passes.put([None])                         # of no kind: it has ended

    def forward(self, tokens, positions, cache, attended, ends):
        """The forward pass of the copy: wait until it has run beside others."""
        # Kinds run in this order: nodes, by what makes their attention; other text; a token of a reply. Long ones run
        # before short ones, whose padding would cost more than a pass. (The paper's chunks have 300 tokens, its points
        # about 60.)
        self.passes.put([(attended and -id(cache.over), ends is None, tokens.numel() < 256), tokens[0], positions[0],
                         cache, attended, ends])
        return self.results.get()                           # None, which cannot be unpacked, ends the thread

    def go_on(self):
        """Wait while the search runs, for the pass that it wants next."""
        self.kind, *self.wanted = self.passes.get()


def side_by_side(method, cache, asked) -> list:
    """The answers method.answer(*each), each by a copy of the method. An error of a pass or of a search is raised.

    The cache is empty and has a row for each.
    """
    rows = [Row() for _ in asked]                           # in the order of the cache

    # Trap: a new thread would take all cores, and so round otherwise.
    with ThreadPoolExecutor(len(rows), "search", torch.set_num_threads, [torch.get_num_threads()]) as pool:
        try:
            found = []
            for row, each in zip(rows, asked):
                found.append(pool.submit(row.run, method, each))
                row.go_on()

            # A pass runs the first rows of the cache. So rows of its kind come first, and rows that have ended leave.
            while going := sorted((row for row in rows if row.kind), key=lambda row: row.kind):
                if going != rows:
                    cache.keep_rows([*map(rows.index, going)])
                    rows = going
                share_pass(method.model, cache, [row for row in rows if row.kind == rows[0].kind])
        finally:
            for row in rows:
                row.results.put(None)                       # after an error or an interruption, all searches end
    # Popped, because an error keeps this frame. If the frame kept the error, too, the cache would not be freed.
    return [found.pop(0).result() for _ in asked]


def share_pass(model, cache, rows):
    """Run the passes that these rows wait for, as one. They are the first rows of the cache; the others do not run.
    Then each search goes on, until it waits for its next pass or has ended.
    """
    tokens, positions, caches, attended, ends = zip(*(row.wanted for row in rows))
    cache = cache.part(0, len(rows))
    cache.lengths = [row.lengths[0] for row in caches]
    cache.over = caches[0].over

    # All padding goes into the slot behind the last.
    hidden, a = model.forward(pad_sequence(tokens, True), pad_sequence(positions, True, cache.capacity), cache,
                              max(attended), None if ends[0] is None else torch.cat(ends))
    for b, row in enumerate(rows):
        T = len(tokens[b])                                  # without padding
        row.results.put((hidden[b, None, :T], a if a is None else a[b, None, :T, :attended[b]]))
        row.go_on()
