"""Searches side by side: their forward passes run as rows of one cache.

A search is written as if it were alone. Here each has a thread, and a copy of the model whose forward pass waits for
those of the other searches. When all of them wait, one pass of the model runs those of one kind, nodes first. So a
search that ends waits with its answer until the others have read all their nodes, and then they answer together.

Only one thread runs at a time: the thread of one search, or the caller's, which runs the passes.
"""
import sys
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from queue import SimpleQueue

import torch
from torch.nn.utils.rnn import pad_sequence

from core.files import InputError


class Row:
    """One of the searches: its copy of the model, and what goes between its thread and the caller's."""

    def __init__(self, model):
        self.model = copy(model)
        self.model.forward = self.forward
        self.model.recorded = lambda *_: self.forward       # a step that waits for others cannot be recorded
        # The search's cache needs no memory, because a row of the shared one holds its keys and values. A cache that a
        # variant makes later has its own.
        self.model.zeros = lambda *shape: model.zeros(*shape if self.kind else [0])
        self.alone = model.forward
        self.kind = None                                    # of the pass that it waits for; None: of none
        self.passes = SimpleQueue()                         # from the search: the pass that it waits for
        self.results = SimpleQueue()                        # to the search: what came of it

    def forward(self, tokens, positions, cache, attended, ends, slots=0):
        """The forward pass of the copy: wait until it has run beside others."""
        if len(cache.keys[0]):                              # not the search's cache, but another with memory
            return self.alone(tokens, positions, cache, attended, ends, slots)
        # In this order: nodes, by what each layer adds to their attention; other text; a token of a reply.
        kind = not attended, ends is None, attended and id(cache.over)
        self.passes.put((kind, tokens[0], positions[0], cache, attended, ends))
        return self.results.get() or sys.exit()             # None ends the thread

    def run(self, search):
        try:
            return search(self.model)
        except InputError as error:
            return InputError(str(error))                   # without its frames, which hold tensors
        finally:
            self.passes.put([None])                         # of no kind: it has ended

    def go_on(self):
        """Wait while the search runs, for the pass that it wants next."""
        self.kind, *self.wanted = self.passes.get()


@torch.no_grad()
def side_by_side(model, cache, searches) -> list:
    """What search(model) returns for each search, or its InputError. An error of a pass is raised.

    The cache is empty and has a row for each search.
    """
    rows = [Row(model) for _ in searches]                   # always in the order of the cache

    # Trap: a new thread would take all cores, and so round otherwise.
    with ThreadPoolExecutor(len(rows), "search", torch.set_num_threads, [torch.get_num_threads()]) as pool:
        try:
            found = []
            for row, search in zip(rows, searches):
                found.append(pool.submit(row.run, search))
                row.go_on()

            while kinds := [row.kind for row in rows if row.kind]:
                places = [b for b, row in enumerate(rows) if row.kind == min(kinds)]
                # A pass runs the first rows. So each row of another kind among them changes places with the last row
                # of this kind.
                for b, last in zip([b for b in range(len(places)) if b not in places], reversed(places)):
                    rows[b], rows[last] = rows[last], rows[b]
                    for tensor in (*cache.keys, *cache.values):
                        tensor[[b, last]] = tensor[[last, b]]
                share_pass(model, cache, rows[:len(places)])
        finally:
            for row in rows:
                row.results.put(None)                       # after an error or an interruption, all searches end
    # Popped, because an error keeps this frame. If the frame kept the error, too, the cache would not be freed.
    return [found.pop(0).result() for _ in searches]


def share_pass(model, cache, rows):
    """Run the passes that these rows wait for, as one. They are the first of the cache, because the rest must not run.
    Then each search goes on, until it waits for its next pass or has ended.
    """
    tokens, positions, caches, attended, ends = zip(*(row.wanted for row in rows))
    cache = cache.part(0, len(rows))
    cache.lengths = [row.lengths[0] for row in caches]
    cache.over = caches[0].over

    # All padding goes into the slot behind the last.
    hidden, a = model.some_rows_at_a_time(pad_sequence(tokens, True), pad_sequence(positions, True, cache.capacity),
                                          cache, max(attended), None if ends[0] is None else torch.cat(ends))
    for b, row in enumerate(rows):
        T = len(tokens[b])                                  # without padding
        row.results.put((hidden[b, None, :T], a if a is None else a[b, None, :T, :attended[b]]))
        row.go_on()
