"""What each way of reading is worth: the gold answer's log-likelihood after it, and the answer that the model gives."""
import random
from dataclasses import replace

import torch

from baselines.bm25 import Okapi, words
from baselines.common import line_ids
from baselines.whole import cut_middle
from core.settings import Settings
from evaluation.metrics import f1
from llama import Cache, Llama, length_of
from pecan import Graph, Search, answer_turn, question_prompt, room_for_nodes

FOREVER = 1 << 24                 # a stop patience that no search reaches


def gold_likelihood(model: Llama, cache: Cache, answer: str) -> float:
    """Mean log-likelihood of the gold answer's tokens in Table A2's second turn, in nats; the cache stays as it is.

    The first assistant turn is "Yes" for every way of reading, so that they can be compared. What the probe costs is
    not counted. At most as many tokens are asked as the cache has room for.
    """
    before, spent = list(cache.lengths), model.flops
    turn = answer_turn(model.tokenizer, model.tokenizer.first("Yes"))
    gold = model.tokenizer.encode(answer)[:cache.capacity - before[0] - length_of(turn)]
    hidden, _ = model.append(cache, [[*turn, (None, gold)]])

    logits = model.logits(hidden[0, -len(gold) - 1:-1])                                    # [tokens, vocabulary]
    cache.rollback(before)
    model.flops = spent
    return logits.double().log_softmax(-1)[range(len(gold)), gold].mean().item()


class Watched(Search):
    """A search that asks for the gold answer's log-likelihood where reading ends, and after every check if wanted."""

    def __init__(self, *arguments, gold: str, each_step: bool = False):
        super().__init__(*arguments)
        self.gold = gold
        self.each_step = each_step
        self.likelihoods = []

    def check(self):
        said = super().check()
        if self.each_step:
            self.likelihoods.append(gold_likelihood(self.model, self.cache, self.gold))
        return said

    def run(self):
        end = super().run()
        if not self.each_step:
            self.likelihoods.append(gold_likelihood(self.model, self.cache, self.gold))
        return end


class AboveMean(Watched):
    """A search whose z comes from r above its mean over S, 0 elsewhere."""

    def next(self):
        r = self.r
        self.r = (r - r[self.visited].mean()).clamp(min=0)
        found = super().next()
        last = self.trace[-1]
        r[last.node] = last.r                               # what the new node adds is kept as it is
        self.r = r
        return found


class UniformR(Watched):
    """A search whose r is 1 for every visited node."""

    def next(self):
        self.r[self.visited] = 1.0
        return super().next()


def searched(model: Llama, graph: Graph, question, c: torch.Tensor, settings: Settings, kind=Watched) -> dict:
    """The row of a search; verdicts are those after each of its nodes, None where no check was made."""
    search = kind(model, graph, question.text, c, settings, gold=question.answers[0])
    answer = search.answer()
    return {"answer": answer.text, "f1": f1(answer.text, question.answers), "likelihood": search.likelihoods[-1],
            "tokens": answer.tokens, "flops": answer.flops, "nodes": answer.nodes, "end": answer.end,
            "verdicts": [step.verdict for step in answer.trace]}


def full_search(model: Llama, graph: Graph, question, c: torch.Tensor, settings: Settings) -> dict:
    """A search that no verdict stops: nodes, p_yes and gold log-likelihood after each check, until nothing fits.

    Thresholds change when PECAN stops and nothing else, so every t_p and t_n can be read off it.
    """
    search = Watched(model, graph, question.text, c, replace(settings, patience=FOREVER),
                     gold=question.answers[0], each_step=True)
    end = search.run()
    checks = [n for n, step in enumerate(search.trace) if step.p_yes is not None]
    return {"nodes": search.visited, "first check": checks[0], "end": end,
            "p_yes": [search.trace[n].p_yes for n in checks], "likelihood": search.likelihoods,
            "tokens": [search.trace[n].tokens for n in checks]}


def read_lines(model: Llama, question, lines: list[list[int]], settings: Settings, nodes: list[int]) -> dict:
    """The row of reading these lines, given as token ids; `nodes` says which they are."""
    tokenizer = model.tokenizer
    before = model.flops
    prompt = [*question_prompt(tokenizer, question.text), (None, [token for line in lines for token in line])]
    closing = answer_turn(tokenizer, tokenizer.first("Yes"))
    cache = Cache(model, 1, length_of([*prompt, *closing]) + settings.answer_tokens)
    model.read(cache, [prompt])
    likelihood = gold_likelihood(model, cache, question.answers[0])

    hidden, _ = model.read(cache, [closing])
    ids, _ = model.generate(cache, hidden, settings.answer_tokens)
    answer = tokenizer.decode(ids[0]).strip()
    return {"answer": answer, "f1": f1(answer, question.answers), "likelihood": likelihood,
            "tokens": length_of([*prompt, *closing]) + len(ids[0]), "flops": model.flops - before, "nodes": nodes}


def best_first(lines: list[list[int]], scores: list[float], budget: int) -> list[int]:
    """Places of the lines with the highest scores, best first, until one passes the budget in tokens; at least one."""
    chosen = []
    for i in sorted(range(len(lines)), key=lambda i: -scores[i]):
        budget -= len(lines[i])
        if chosen and budget < 0:
            break
        chosen.append(i)
    return chosen


def ways(model: Llama, document, graph: Graph, question, c: torch.Tensor, needed: list[int],
         settings: Settings) -> dict[str, dict]:
    """A row for each way of reading without a graph, and for PECAN.

    BM25, similarity and random chunks get as many tokens as ran through the model in PECAN's search, its probes
    included, so that they cost as many FLOPs. The whole document is cut in its middle if it exceeds the model.
    """
    tokenizer = model.tokenizer
    chunks = [node.text for node in graph.nodes if node.level == 1]
    lines = [line_ids(tokenizer, text) for text in chunks]
    found = {"PECAN": searched(model, graph, question, c, settings)}

    frame = [*question_prompt(tokenizer, question.text), *answer_turn(tokenizer, tokenizer.first("Yes"))]
    budget = found["PECAN"]["tokens"] - length_of(frame)
    rng = random.Random(question.id)
    orders = {"BM25": Okapi([words(text) for text in chunks]).scores(words(question.text)),
              "similarity": c[:len(chunks)].tolist(), "random chunks": [rng.random() for _ in chunks]}
    for name, scores in orders.items():
        nodes = best_first(lines, scores, budget)
        found[name] = read_lines(model, question, [lines[i] for i in nodes], settings, nodes)

    room = room_for_nodes(tokenizer, question.text, replace(settings, window=model.config.max_length))
    whole = cut_middle([token for text in document.passages for token in line_ids(tokenizer, text)], room)
    found["nothing"] = read_lines(model, question, [], settings, [])
    found["needed chunks"] = read_lines(model, question, [lines[i] for i in needed], settings, needed)
    found["whole document"] = read_lines(model, question, [whole], settings, list(range(len(chunks))))
    return found


# --- ablations, and what is beyond the paper ------------------------------------------------------------------------

def ablations(model: Llama, graph: Graph, tree: Graph, question, c: torch.Tensor, tree_c, fixed: int,
              settings: Settings) -> dict[str, dict]:
    """A row for each ablation of section 4.2. Without progress control, `fixed` nodes are read."""
    return {"PECAN without attention": searched(model, graph, question, c, replace(settings, attention=False)),
            "PECAN without similarity": searched(model, graph, question, c, replace(settings, similarity=False)),
            "PECAN without progress control": searched(model, graph, question, c, replace(settings, fixed_nodes=fixed)),
            "PECAN without IP-based graph": searched(model, tree, question, tree_c, settings)}


def next_nodes(model: Llama, graph: Graph, uniform: Graph, question, c: torch.Tensor, chance: torch.Tensor,
               settings: Settings) -> dict[str, dict]:
    """A row for each search that chooses the next node without r, without E, or without both.

    `uniform` has equal weights on the edges of every node; `chance` takes the place of c [|V|].
    """
    alone = replace(settings, similarity=False)
    return {"PECAN without similarity, r uniform": searched(model, graph, question, c, alone, UniformR),
            "PECAN without similarity, E uniform": searched(model, uniform, question, c, alone),
            "PECAN, next node at random": searched(model, graph, question, chance, replace(settings, attention=False))}


def extensions(model: Llama, graph: Graph, chosen: Graph, relevance_heads: str, question, c: torch.Tensor,
               settings: Settings) -> dict[str, dict]:
    """A row for each search beyond the paper; `chosen` has the edges of chosen heads."""
    with_heads = replace(settings, relevance_heads=relevance_heads)
    alone = replace(with_heads, similarity=False)
    return {"PECAN, r above its mean (not in the paper)": searched(model, graph, question, c, settings, AboveMean),
            "PECAN, chosen heads (not in the paper)": searched(model, chosen, question, c, with_heads),
            "PECAN, chosen heads, without similarity": searched(model, chosen, question, c, alone)}
