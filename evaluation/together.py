"""Several questions about one document at once: their searches advance together, as rows of one cache.

pecan.Search is written for one query: read, choose, read again. Here each search of a group runs in a thread, and its
model is a Seat, which runs nothing itself: it says what it wants and waits. When all searches of the group wait, what
they want runs as one batch, and each goes on with its row. One thread runs at a time, in a fixed order. So an answer
depends on the group, whose shapes decide the last bits of rounding, but never on timing.
"""
import copy
import threading
from queue import SimpleQueue

import torch
import torch.nn.functional as F

from core.files import InputError, enough_memory
from data import Answer, Method, Prepared
from llama import Cache, Llama, Segment, flops_of, length_of
from pecan import Pecan


def group_size(method: Method) -> int:
    """How many questions of a document run together: as many as windows of a level do, if the method is PECAN.

    The others read most of a window in one pass, which fills the processor by itself.
    """
    return method.settings.batch if isinstance(method, Pecan) else 1


def answer_together(method: Method, prepared: Prepared, questions: list[str]) -> list[Answer | InputError]:
    """What method.answer returns for each question, or the InputError that it raises."""
    if len(questions) > 1:
        outcomes = Group(method, prepared, questions).run()
        if outcomes is not None:
            return outcomes
    return [outcome_of(method, prepared, question) for question in questions]


def outcome_of(method: Method, prepared: Prepared, question: str) -> Answer | InputError:
    try:
        with enough_memory():
            return method.answer(prepared, question)
    except InputError as error:
        return error


class Seat(Llama):
    """The model as one search of a group sees it. It counts what this search would have spent alone."""

    def __init__(self, model: Llama):
        super().__init__(model.config, model.weights, model.tokenizer, model.folder)
        self.row = Cache(self, 1, 0)                        # lengths and nodes; the group has the keys and values
        self.wishes = SimpleQueue()
        self.replies = SimpleQueue()

    def ask(self, *wish):
        """Wait until the group has run this, and return its result. An exception there is raised here."""
        self.wishes.put(wish)
        reply = self.replies.get()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def new_cache(self, *args) -> Cache:
        return self.row

    def append(self, cache: Cache, rows: list[list[Segment]], averaging=None):
        segments, = rows
        count = length_of(segments)
        self.flops += flops_of(self.config, count, cache.lengths[0] + count)
        return self.ask("append", segments, averaging)

    def logits(self, hidden):
        self.flops += flops_of(self.config, 0, 0, len(hidden))
        return self.ask("logits", hidden)


class Group:
    """The searches of some questions, and the cache whose rows they are."""

    def __init__(self, method: Pecan, prepared: Prepared, questions: list[str]):
        self.model = method.model
        self.seats = [Seat(self.model) for _ in questions]                # of the rows of the cache, in order
        self.cache = Cache(self.model, len(questions), 0, method.settings.relevance_heads)
        self.outcomes = dict.fromkeys(self.seats)
        for seat, question in zip(self.seats, questions):
            threading.Thread(target=self.search, args=(seat, method, prepared, question), daemon=True).start()

    def search(self, seat: Seat, method: Pecan, prepared: Prepared, question: str):
        """One search, in its thread, from its first turn to its end."""
        alone = copy.copy(method)
        alone.model = seat
        seat.replies.get()
        try:
            self.outcomes[seat] = outcome_of(alone, prepared, question)
        except Exception as error:
            self.outcomes[seat] = error
        seat.wishes.put(("end",))

    def run(self) -> list[Answer | InputError] | None:
        """The outcomes of all searches; None if a pass failed, which is then the failure of an unknown row."""
        wishes = {}
        replies = dict.fromkeys(self.seats)                               # those that go on now
        failed = False
        while replies:
            for seat, reply in replies.items():
                seat.replies.put(reply)
                wishes[seat] = seat.wishes.get()

            # Logits first: then all that are left want to read, and no row is idle.
            running = {seat: wish for seat, wish in wishes.items() if wish[0] != "end"}
            logits = {seat: wish for seat, wish in running.items() if wish[0] == "logits"}
            try:
                with enough_memory():
                    replies = self.logits(logits) if logits else self.append(running)
            except InputError as error:
                replies = dict.fromkeys(running, error)
                failed = True

        outcomes = list(self.outcomes.values())
        for outcome in outcomes:
            if isinstance(outcome, Exception) and not isinstance(outcome, InputError):
                raise outcome
        if failed:
            self.cache = None                       # its memory is needed by those that are asked again
            return None
        return outcomes

    def logits(self, wishes: dict) -> dict:
        """Next-token logits for each seat that wants them."""
        logits = self.model.logits(torch.cat([hidden for _, hidden in wishes.values()]))
        return dict(zip(wishes, logits.split(1)))

    def append(self, wishes: dict) -> dict:
        """Read what each seat wants into its row; rows whose search has ended leave the cache."""
        if not wishes:
            return {}
        if len(wishes) < len(self.seats):
            self.cache.keep_rows([b for b, seat in enumerate(self.seats) if seat in wishes])
            self.seats = list(wishes)

        rows = [segments for _, segments, _ in wishes.values()]
        counts = [length_of(segments) for segments in rows]
        self.cache.lengths = [seat.row.lengths[0] for seat in wishes]
        self.cache.nodes = [seat.row.nodes[0] for seat in wishes]
        self.reserve(max(self.cache.lengths) + max(counts))
        hidden, a = self.model.append(self.cache, rows, padded([averaging for _, _, averaging in wishes.values()]))

        replies = {}
        for b, (seat, count) in enumerate(zip(wishes, counts)):
            seat.row.lengths = [self.cache.lengths[b]]
            replies[seat] = hidden[b:b + 1, :count], None if a is None else a[b:b + 1, :count]
        return replies

    def reserve(self, capacity: int):
        """Make room in every row for so many tokens, and for the next passes too."""
        more = capacity - self.cache.capacity
        if more > 0:
            more += capacity // 2
            for tensors in (self.cache.keys, self.cache.values):
                tensors[:] = [F.pad(tensor, (0, 0, 0, more)) for tensor in tensors]
            self.cache.capacity += more


def padded(matrices: list) -> torch.Tensor | None:
    """Averaging matrices [1, P, N] of single rows as one [B, P, N]; None if no row has one."""
    given = [matrix for matrix in matrices if matrix is not None]
    if not given:
        return None
    P, N = (max(matrix.shape[axis] for matrix in given) for axis in (1, 2))
    together = given[0].new_zeros(len(matrices), P, N)
    for b, matrix in enumerate(matrices):
        if matrix is not None:
            together[b, :matrix.shape[1], :matrix.shape[2]] = matrix[0]
    return together
