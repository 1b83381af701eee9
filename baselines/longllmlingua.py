"""LongLLMLingua (Jiang et al. 2024): compress the document for the question before it is read.

A scorer, which can be any Llama, measures perplexity twice.

*Which parts.* A unit has 4 lines. Units are ranked by the mean -log p of the question after the unit. A fixed sentence
follows the question and counts with it; it says that the answer is there. Units are kept in this order until they
exceed 2000 + 100 tokens. The unit that exceeds the limit is kept, too.

*Which tokens.* In the kept units, those tokens stay that the question makes likelier. The contrast is
-log p(x) + log p(x | question), after the tokens that were kept before. Each unit keeps a share of its tokens: the
first unit 0.3 more than the mean, the last unit 0.3 less, the others linearly in between. At most 2000 tokens are kept.

All of this depends on the question. So nothing is prepared, and the scorer's FLOPs count as search.

Differences from the published code:
- kept units are read in the order of their rank. Its LongBench script keeps the document's order, but PECAN's section
  4.1 explains a result by the reordering
- the mean share is chosen so that the target is met. In the code it is met only if all units are equally long
- a window of 200 tokens ends with its unit. In the code, windows run on into the next unit
- the tokens of a letter and its accents are kept or dropped together, by their mean contrast. The code may halve it
- units of more than 300 tokens, such as the lines of some books, are cut. White space inside a unit becomes a blank, as
  in every chunk here
- if the document has at most 2000 tokens, nothing is scored
- PECAN's section 4 used Phi-2 (2.7B), which is no Llama. `--scorer` takes a checkpoint (default: the model itself).
  evaluation/README.md names Llama-3.2-3B, which is larger and costs more
"""
import unicodedata
from itertools import accumulate, chain, groupby

import torch
import torch.nn.functional as F

from baselines.common import Baseline, highest, scaled
from core.files import InputError
from core.settings import Settings
from core.text import split
from data import Prepared
from llama import Cache, Llama

HINT = " We can get the answer to this question in the given documents."
LINES = 4                                      # of a unit
TARGET = 2000                                  # tokens to keep
EXTRA = 100                                    # by which the kept units may exceed the target
WINDOW = 200                                   # tokens, or characters of several, that are scored together
SPREAD = 0.3                                   # between the mean share and the first or last unit's


def shares(lengths: list[int], target: int) -> list[float]:
    """The share of tokens that each unit keeps, the best unit first; `lengths` are the units' tokens.

    A share is the mean plus 0.3 for the first unit, the mean minus 0.3 for the last, linear in between, and cut to
    [0, 1]. Bisection finds the largest mean that keeps at most `target` tokens.
    """
    spread = SPREAD * torch.linspace(1, -1, len(lengths), dtype=torch.float64)             # [units]
    tokens = torch.tensor(lengths, dtype=torch.float64)                                    # [units]
    low = -SPREAD
    high = 1 + SPREAD
    for _ in range(50):
        middle = (low + high) / 2
        if (middle + spread).clamp(0, 1) @ tokens <= target:
            low = middle
        else:
            high = middle
    return (low + spread).clamp(0, 1).tolist()


def losses(scorer: Llama, hidden, ids: list[int]) -> torch.Tensor:
    """-log p [T] float32 of each of T tokens, from the hidden states [T, D] of the tokens before them."""
    logits = scorer.logits(hidden, slice(None))
    return F.cross_entropy(logits, torch.tensor(ids, device=scorer.device), reduction="none").cpu()


class LongLLMLingua(Baseline):
    """Cut a document into units, which costs nothing; compress and read it for a question."""

    def __init__(self, model: Llama, scorer: Llama, settings: Settings):
        super().__init__(model, settings)
        self.scorer = scorer
        self.target = scaled(TARGET, settings)
        self.most_of_units = scaled(TARGET + EXTRA, settings)              # tokens of the kept units
        self.window = scaled(WINDOW, settings)
        self.start = scorer.tokenizer.bos or scorer.tokenizer.encode("\n")                 # before the first token

    def ready(self, document):
        """Cut the document into units."""
        lines = [line for passage in document.passages for line in passage.splitlines() if line.strip()]
        units = []
        for first in range(0, len(lines), LINES):
            units += split(self.scorer.tokenizer, "\n".join(lines[first:first + LINES]), self.settings.chunk)
        return Prepared(units)

    def read(self, prepared, question):
        """Compress the units for this question and read what is left."""
        texts = self.compress(prepared.texts, question)
        return self.reading_of_best(question, texts, range(len(texts)))

    def compress(self, units: list[str], question: str) -> list[str]:
        """The kept units without their dropped tokens, the best first."""
        ids = [self.scorer.tokenizer.encode(unit) for unit in units]
        if sum(map(len, ids)) <= self.target:
            return units

        # Which parts: the best units, up to the one that exceeds the limit.
        perplexity = self.rank(ids, question)
        kept = []
        for i in sorted(range(len(units)), key=perplexity.__getitem__):
            kept.append(ids[i])
            if sum(map(len, kept)) > self.most_of_units:
                break

        # Which tokens.
        return self.drop(kept, question)

    def rank(self, units: list[list[int]], question: str) -> list[float]:
        """Mean -log p of question and hint after each unit (token ids), in batches."""
        asked = self.scorer.tokenizer.encode("\n" + question + HINT)

        def means(rows):
            cache = Cache(self.scorer, len(rows), max(map(len, rows)))
            hidden, _ = self.scorer.append(cache, [[(None, ids)] for ids in rows])         # [B, T, D]

            # A hidden state predicts the next token, so the states are one position before `asked`.
            return [losses(self.scorer, h[len(ids) - len(asked) - 1:len(ids) - 1], asked).mean().item()
                    for h, ids in zip(hidden, rows)]

        return self.batches.all([[*self.start, *unit, *asked] for unit in units], len, means)

    def drop(self, units: list[list[int]], question: str) -> list[str]:
        """The units (token ids) without their dropped tokens; a unit that loses all its tokens is left out."""
        scorer = self.scorer
        tokenizer = scorer.tokenizer
        newline = tokenizer.encode("\n")
        contexts = [[*self.start, *tokenizer.encode(question), *newline], self.start]
        most = len(contexts[0]) + sum(len(unit) + len(newline) for unit in units)          # if nothing were dropped
        if most > scorer.config.max_length:
            raise InputError(f"LongLLMLingua's scorer reads up to {most} tokens and was made for "
                             f"{scorer.config.max_length}; choose another --scorer")

        # Two rows of one cache: the context with the question, and the one without. A row's last hidden state [D]
        # predicts the first token of a window, and the state of each token the next one.
        cache = Cache(scorer, 2, most)
        last, _ = scorer.read(cache, [[(None, ids)] for ids in contexts])                  # [2, D]
        texts = []
        for unit, share in zip(units, shares(list(map(len, units)), self.target)):
            # The tokens of each character. An accent or other mark has the number of the letter before it. (The blank
            # is for a unit of tokens that have no text, such as <unk>.)
            text, spans = tokenizer.spans(unit)
            number = list(accumulate(unicodedata.category(c)[0] != "M" for c in text + " "))
            characters = [[unit[i] for i in tokens]
                          for _, tokens in groupby(range(len(unit)), lambda i: number[spans[i][0]])]
            left = []
            for first in range(0, len(characters), self.window):
                window = characters[first:first + self.window]
                ids = [*chain(*window)]
                before = cache.lengths
                hidden, _ = scorer.append(cache, [[(None, ids)]] * 2)                      # [2, T, D]
                cache.rollback(before)
                states = torch.cat((last[:, None], hidden[:, :-1]), 1)
                given, alone = (losses(scorer, row, ids) for row in states)

                # The characters with the lowest mean contrast go; the others keep their order.
                means = [part.mean().item() for part in (alone - given).split(list(map(len, window)))]
                best = highest(means, len(means))
                while sum(len(window[n]) for n in best) > share * len(ids):
                    best.pop()
                kept = [*chain(*(window[n] for n in sorted(best)))]
                left += kept

                # Later tokens are scored after those that were kept.
                if kept:
                    last, _ = scorer.read(cache, [[(None, kept)]] * 2)
            last, _ = scorer.read(cache, [[(None, newline)]] * 2)
            texts.append(tokenizer.decode(left).strip())
        return [text for text in texts if text]
