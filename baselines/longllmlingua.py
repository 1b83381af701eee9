"""LongLLMLingua (Jiang et al. 2024): compress the document, question in hand, before it is read.

A scorer, any Llama, measures perplexity twice. *Which parts*: units of 4 lines are ranked by the mean -log p of the
question, and of a sentence behind it that says that the answer is there, given the unit; units are kept in this order
until 2000 + 100 tokens are passed, the unit that passes them included. *Which tokens*: of the kept units those tokens
stay that the question makes likelier, by the contrast -log p(x) + log p(x | question), given what was kept before; the
first unit may keep a share of its tokens that is 0.3 above the mean, the last one 0.3 below, linearly between, so that
at most 2000 tokens are kept. All of it happens for a question, so nothing is prepared, and the scorer's FLOPs count as
search.

Where this is not the published code:
- kept units are read in the order of their rank; its LongBench script keeps the document's, but PECAN's section 4.1
  explains a result by the reordering
- the mean share is such that the target holds; there it holds where units are equally long
- tokens are dropped in windows of up to 200 tokens that end where a unit ends; there windows run on
- units of more than 300 tokens, as lines of books can be, are cut, and white space inside of one becomes a blank, as in
  every chunk here; where 2000 tokens hold everything, nothing is scored
- the paper's scorer is Phi-2, which is no Llama: `--scorer` takes a checkpoint, by default the model itself
"""
from pathlib import Path

import torch

from baselines.common import read_best, scaled
from data import Document
from llama import Cache, Llama
from support.files import InputError
from support.method import Answer, Prepared
from support.settings import Settings
from support.text import split

HINT = " We can get the answer to this question in the given documents."
LINES, TARGET, MORE, WINDOW, SPREAD = 4, 2000, 100, 200, 0.3


def shares(lengths: list[int], target: int) -> list[float]:
    """The share of tokens that each unit keeps, best unit first: one mean for all, +0.3 to -0.3 linearly, within 0 and
    1, so that as many of the target's tokens are kept as can be and not one more."""
    n = len(lengths)
    spread = [SPREAD * (n - 1 - 2 * i) / (n - 1) if n > 1 else 0.0 for i in range(n)]

    def of(mean):
        return [min(1.0, max(0.0, mean + delta)) for delta in spread]
    low, high = -SPREAD, 1 + SPREAD
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(s * m for s, m in zip(of(middle), lengths)) <= target else (low, middle)
    return of(low)


def check_length(scorer: Llama, tokens: int):
    if tokens > scorer.config.max_length:
        raise InputError(f"LongLLMLingua's scorer reads up to {tokens} tokens and was made for "
                         f"{scorer.config.max_length}; take another --scorer")


class Context:
    """A growing prompt of the scorer's: what stands in its cache, and the hidden state [1, D] of its last token."""

    def __init__(self, scorer: Llama, ids: list[int], room: int):
        check_length(scorer, len(ids) + room)
        self.scorer, self.cache = scorer, Cache(scorer, 1, len(ids) + room)
        self.append(ids)

    def append(self, ids: list[int]):
        if ids:
            self.last, _ = self.scorer.read(self.cache, [[(None, ids)]])

    def losses(self, ids: list[int]) -> torch.Tensor:
        """-log p [T] of tokens that might come next; they are taken back."""
        before = list(self.cache.lengths)
        hidden, _ = self.scorer.append(self.cache, [[(None, ids)]])
        self.cache.rollback(before)
        return self.scorer.losses(torch.cat((self.last, hidden[0, :-1])), ids)


class LongLLMLingua:
    """Prepare a document (its units; costs nothing), compress and read it for a question."""

    def __init__(self, model: Llama, scorer: Llama, settings: Settings):
        self.model, self.scorer, self.settings = model, scorer, settings
        self.target, self.most = scaled(TARGET, settings), scaled(TARGET + MORE, settings)
        self.window = scaled(WINDOW, settings)
        self.start = scorer.tokenizer.bos or scorer.tokenizer.encode("\n")                 # before the first token

    def file_name(self, document: Document) -> str | None:
        """Nothing is kept on disk."""
        return None

    def prepare(self, document: Document, path: str | Path | None = None, progress: bool = False) -> Prepared:
        lines = [line for passage in document.passages for line in passage.splitlines() if line.strip()]
        units = ["\n".join(lines[i:i + LINES]) for i in range(0, len(lines), LINES)]
        return Prepared([part for unit in units
                         for part in split(self.scorer.tokenizer, unit, self.settings.chunk)])

    def answer(self, prepared: Prepared, question: str) -> Answer:
        flops = self.scorer.flops
        texts = self.compress(prepared.texts, question)
        scoring = self.scorer.flops - flops
        answer = read_best(self.model, question, texts, list(range(len(texts))), self.settings)
        answer.flops += scoring
        return answer

    def compress(self, units: list[str], question: str) -> list[str]:
        """The kept units, the best first, in what is left of their tokens."""
        encode = self.scorer.tokenizer.encode
        lengths = [len(encode(unit)) for unit in units]
        if sum(lengths) <= self.target:
            return units
        perplexity, kept = self.rank(units, question), []
        for i in sorted(range(len(units)), key=lambda i: perplexity[i]):
            kept.append(i)
            if sum(lengths[k] for k in kept) > self.most:
                break
        return self.drop([encode(units[i]) for i in kept], question)

    def rank(self, units: list[str], question: str) -> list[float]:
        """Mean -log p of the question's tokens, and the hint's, behind each unit; `batch` units run together."""
        encode, means = self.scorer.tokenizer.encode, []
        asked = encode("\n" + question + HINT)
        for first in range(0, len(units), self.settings.batch):
            rows = [[*self.start, *encode(unit), *asked] for unit in units[first:first + self.settings.batch]]
            check_length(self.scorer, max(map(len, rows)))
            cache = Cache(self.scorer, len(rows), max(map(len, rows)))
            hidden, _ = self.scorer.append(cache, [[(None, ids)] for ids in rows])         # [B, T, D]
            means += [self.scorer.losses(h[len(ids) - len(asked) - 1:len(ids) - 1], asked).mean().item()
                      for h, ids in zip(hidden, rows)]
        return means

    def drop(self, units: list[list[int]], question: str) -> list[str]:
        """What is left of units of token ids; a unit of which nothing is left is left out."""
        tokenizer, texts = self.scorer.tokenizer, []
        newline = tokenizer.encode("\n")
        room = self.target + len(units) * len(newline) + self.window                       # what is kept, and a window
        given = Context(self.scorer, [*self.start, *tokenizer.encode(question), *newline], room)
        alone = Context(self.scorer, self.start, room)
        for unit, share in zip(units, shares(list(map(len, units)), self.target)):
            left = []
            for first in range(0, len(unit), self.window):
                ids = unit[first:first + self.window]
                contrast = alone.losses(ids) - given.losses(ids)                           # [T]
                best = contrast.argsort(descending=True, stable=True)[:int(share * len(ids))]
                kept = [ids[i] for i in best.sort().values.tolist()]
                left += kept
                for context in (given, alone):
                    context.append(kept)
            for context in (given, alone):
                context.append(newline)
            texts.append(tokenizer.decode(left).strip())
        return [text for text in texts if text]
