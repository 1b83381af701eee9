"""LongLLMLingua (Jiang et al. 2024): compress the document for the question before it is read.

A scorer, which can be any Llama, measures perplexity twice.

*Which parts.* Units of 4 lines are ranked by the mean -log p of the question after the unit, with a sentence after the
question that says that the answer is there. Units are kept in this order until they exceed 2000 + 100 tokens; the unit
that exceeds them is kept, too.

*Which tokens.* Tokens of the kept units stay if the question makes them likelier. The contrast is
-log p(x) + log p(x | question), after the tokens that were kept before. The first unit may keep a share of its tokens
that is 0.3 above the mean, the last one 0.3 below, linearly in between, so that at most 2000 tokens are kept.

All of this depends on the question. So nothing is prepared, and the scorer's FLOPs count as search.

Differences from the published code:
- kept units are read in the order of their rank; its LongBench script keeps the document's order, but PECAN's section
  4.1 explains a result by the reordering
- the mean share is chosen so that the target holds; in the code it holds only if units are equally long
- tokens are dropped in windows of up to 200 tokens that end with their unit; in the code windows run on past its end
- units of more than 300 tokens, such as the lines of some books, are cut, and white space inside a unit becomes a
  blank, as in every chunk here; if 2000 tokens hold everything, nothing is scored
- the paper's scorer is Phi-2, which is no Llama: `--scorer` takes a checkpoint, by default the model itself
"""
import torch
import torch.nn.functional as F

from baselines.common import Baseline, scaled
from core.files import InputError
from core.settings import Settings
from core.text import split
from data import Answer, Document, Prepared
from llama import Cache, Llama, at_least_float32

HINT = " We can get the answer to this question in the given documents."
LINES = 4                                      # of a unit
TARGET = 2000                                  # tokens to keep
EXTRA = 100                                    # by which the kept units may exceed the target
WINDOW = 200                                   # tokens that are scored, and dropped, together
SPREAD = 0.3                                   # between the mean share and the first or last unit's


def shares(lengths: list[int], target: int) -> list[float]:
    """The share of tokens that each unit of `lengths` keeps, the best unit first.

    The shares are a mean plus 0.3 for the first unit to minus 0.3 for the last, linearly, cut to [0, 1]. The mean is
    the largest that keeps no more than `target` tokens, found by bisection.
    """
    spread = SPREAD * torch.linspace(1, -1, len(lengths), dtype=torch.float64)             # [units]
    low, high = -SPREAD, 1 + SPREAD
    for _ in range(50):
        middle = (low + high) / 2
        kept = (middle + spread).clamp(0, 1) @ torch.tensor(lengths, dtype=torch.float64)
        if kept <= target:
            low = middle
        else:
            high = middle
    return (low + spread).clamp(0, 1).tolist()


def losses(scorer: Llama, hidden, ids: list[int]) -> torch.Tensor:
    """-log p [T] float32 of each of T tokens, from the hidden states [T, D] of the tokens before them."""
    logits = at_least_float32(scorer.logits(hidden))
    return F.cross_entropy(logits, torch.tensor(ids, device=scorer.device), reduction="none").cpu()


class Context:
    """A growing prompt of the scorer: its cache, and the hidden state [1, D] of its last token."""

    def __init__(self, scorer: Llama, ids: list[int], room: int):
        if len(ids) + room > scorer.config.max_length:
            raise InputError(f"LongLLMLingua's scorer reads up to {len(ids) + room} tokens and was made for "
                             f"{scorer.config.max_length}; take another --scorer")
        self.scorer = scorer
        self.cache = Cache(scorer, 1, len(ids) + room)
        self.append(ids)

    def append(self, ids: list[int]):
        """Read more tokens."""
        if ids:
            self.last, _ = self.scorer.read(self.cache, [[(None, ids)]])

    def losses(self, ids: list[int]) -> torch.Tensor:
        """-log p [T] of tokens that might come next; they are rolled back."""
        before = list(self.cache.lengths)
        hidden, _ = self.scorer.append(self.cache, [[(None, ids)]])
        self.cache.rollback(before)

        # A token is predicted by the hidden state of the token before it, the first one by that of the context.
        return losses(self.scorer, torch.cat((self.last, hidden[0, :-1])), ids)


class LongLLMLingua(Baseline):
    """Prepare a document (its units; costs nothing), compress and read it for a question."""

    def __init__(self, model: Llama, scorer: Llama, settings: Settings):
        super().__init__(model, settings, scorer)
        self.scorer = scorer
        self.target = scaled(TARGET, settings)
        self.most_of_units = scaled(TARGET + EXTRA, settings)              # tokens of the kept units
        self.window = scaled(WINDOW, settings)
        self.start = scorer.tokenizer.bos or scorer.tokenizer.encode("\n")                 # before the first token

    def make(self, document: Document) -> Prepared:
        """Cut the document into units."""
        lines = [line for passage in document.passages for line in passage.splitlines() if line.strip()]
        units = []
        for first in range(0, len(lines), LINES):
            units += split(self.scorer.tokenizer, "\n".join(lines[first:first + LINES]), self.settings.chunk)
        return Prepared(units)

    def read(self, prepared: Prepared, question: str) -> Answer:
        """Compress the units for this question and read what is left."""
        texts = self.compress(prepared.texts, question)
        return self.answer_from_best(question, texts, range(len(texts)))

    def compress(self, units: list[str], question: str) -> list[str]:
        """The kept units without their dropped tokens, the best first."""
        ids = [self.scorer.tokenizer.encode(unit) for unit in units]
        if sum(map(len, ids)) <= self.target:
            return units

        # Which parts: the best units, up to the one that exceeds the limit.
        perplexity = self.rank(ids, question)
        kept = []
        for i in sorted(range(len(units)), key=lambda i: perplexity[i]):
            kept.append(ids[i])
            if sum(map(len, kept)) > self.most_of_units:
                break

        # Which tokens of them.
        return self.drop(kept, question)

    def rank(self, units: list[list[int]], question: str) -> list[float]:
        """Mean -log p of question and hint after each unit (token ids); `batch` units run together."""
        asked = self.scorer.tokenizer.encode("\n" + question + HINT)
        means = []
        for first in range(0, len(units), self.settings.batch):
            rows = [[*self.start, *unit, *asked] for unit in units[first:first + self.settings.batch]]
            cache = Cache(self.scorer, len(rows), max(map(len, rows)))
            hidden, _ = self.scorer.append(cache, [[(None, ids)] for ids in rows])         # [B, T, D]

            # The states that predict `asked` are one token earlier than its own.
            for h, ids in zip(hidden, rows):
                means.append(losses(self.scorer, h[len(ids) - len(asked) - 1:len(ids) - 1], asked).mean().item())
        return means

    def drop(self, units: list[list[int]], question: str) -> list[str]:
        """The units (token ids) without their dropped tokens; a unit that loses all its tokens is left out."""
        tokenizer = self.scorer.tokenizer
        newline = tokenizer.encode("\n")
        room = self.target + len(units) * len(newline) + self.window                       # what is kept, and a window
        given = Context(self.scorer, [*self.start, *tokenizer.encode(question), *newline], room)
        alone = Context(self.scorer, self.start, room)

        texts = []
        for unit, share in zip(units, shares(list(map(len, units)), self.target)):
            left = []
            for first in range(0, len(unit), self.window):
                # Of a window the tokens with the highest contrast stay, in their order.
                ids = unit[first:first + self.window]
                contrast = alone.losses(ids) - given.losses(ids)                           # [T]
                best = contrast.argsort(descending=True, stable=True)[:int(share * len(ids))]
                kept = [ids[i] for i in best.sort().values.tolist()]
                left += kept

                # Later tokens are scored after those that were kept.
                given.append(kept)
                alone.append(kept)
            given.append(newline)
            alone.append(newline)
            texts.append(tokenizer.decode(left).strip())
        return [text for text in texts if text]
