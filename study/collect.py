"""Run a model over documents with known evidence, and keep the measurements: one file for each document.

A file's name is a hash of everything that the file depends on, so an existing file is never computed again. The file
has pairs [M, 2], e [M, L, H] and cosines [M] of the edges (seen.py). For question 0 it has 0.c [|V|] and 0.question
[|V|, L, H], and so on. Its text has the nodes and the answers.
"""
import json
import math
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import torch

from baselines.bm25 import Okapi, words
from baselines.common import line_ids
from core.files import read_sealed, reading, write_sealed, writing
from core.settings import PAPER, Settings
from core.watch import watching
from data import Document, Question
from evaluation.metrics import f1
from llama import Cache, Llama, length_of
from pecan import Search, answer_turn, build, question_prompt
from study.seen import construct, to_question
from study.truth import facts_reader, leading, needed_chunks, sources
from support.graph import Graph, Node, file_name
from support.sbert import similarities

SEARCH_WINDOW = 2048              # tokens; a search's window is at least this if the model allows it
FIXED = {"hotpotqa": 17, "musique": 30}         # nodes without progress control (GARLIC 4.4)
READ = 8                          # nodes that BM25 reads; the best of 2, 3, 5, 8 and 11 in the embedded world
FOREVER = 1 << 24                 # a stop patience that no search reaches


class Bench(NamedTuple):
    """Everything that a run needs besides documents."""
    model: Llama
    encoder: object
    settings: Settings            # of the construction
    folder: Path
    short: bool                   # no ablations

    def of_search(self, data: str) -> Settings:
        """The settings of a search: a larger window if the model allows it, and Appendix E's t_p for this data set."""
        paper = {name.lower(): values for name, values in PAPER.items()}.get(data, {})
        window = self.settings.window
        if self.model.config.max_length >= SEARCH_WINDOW:
            window = max(window, SEARCH_WINDOW)
        return replace(self.settings, window=window, **paper)

    def path(self, data: str, document: Document) -> Path:
        """The file of a document. Another model, encoder, data set or other settings give another name."""
        identity = {"settings": self.settings.of_pecan(), "encoder": self.encoder.fingerprint,
                    "ablations": not self.short, "data": data, "questions": list(map(asdict, document.questions))}
        return self.folder / f"{file_name(document.hash, self.model.fingerprint, identity)}.safetensors"


# --- reading and answering ------------------------------------------------------------------------------------------

def gold_likelihood(model: Llama, cache: Cache, answer: str) -> float:
    """Mean log-likelihood of the gold answer's tokens in Table A2's second turn, in nats.

    The cache stays as it is, and the FLOPs are not counted. The first assistant turn is always "Yes", so that ways of
    reading can be compared. If the cache is too small for the whole answer, only its first tokens count.
    """
    before, spent = list(cache.lengths), (model.flops, model.tokens)
    turn = answer_turn(model.tokenizer, model.tokenizer.first("Yes"))
    gold = model.tokenizer.encode(model.tokenizer.reply_prefix + answer)[:cache.capacity - before[0] - length_of(turn)]
    hidden, _ = model.append(cache, [[*turn, (None, gold)]])

    logits = model.logits(hidden[0, -len(gold) - 1:-1])                                    # [tokens, vocabulary]
    cache.rollback(before)
    model.flops, model.tokens = spent
    return logits.double().log_softmax(-1)[range(len(gold)), gold].mean().item()


def searched(model: Llama, graph: Graph, question: Question, c: torch.Tensor, settings: Settings,
             r: torch.Tensor | None = None) -> dict:
    """The row of a search. The gold answer's likelihood is measured after the last node.

    If `r` [|V|] is given, each visited node has this relevance instead of the search's own.
    """
    likelihoods = []

    def heard(end, search):
        likelihoods.append(gold_likelihood(model, search.cache, question.answers[0]))

    def visited(_, search, nodes, **why):
        if r is not None:
            search.r[nodes] = r[nodes]

    with watching(Search, "run", heard), watching(Search, "visit", visited):
        answer = Search(model, graph, question.text, c, settings).answer()
    return {"f1": f1(answer.text, question.answers), "likelihood": likelihoods[0], "nodes": answer.nodes,
            "tokens": answer.tokens, "p_yes": [step.p_yes for step in answer.trace]}


def read(model: Llama, question: Question, texts: list[str], order: list[int], budget: float,
         limit: int) -> dict:
    """The row of reading texts in this order, as many as fit the budget of tokens. The first is always read."""
    tokenizer = model.tokenizer
    opening, closing = question_prompt(tokenizer, question.text), answer_turn(tokenizer, tokenizer.first("Yes"))
    used = length_of([*opening, *closing])
    nodes, lines = [], []
    for i in order:
        line = line_ids(tokenizer, texts[i])
        if nodes and used + len(line) > budget:
            break
        nodes.append(i)
        lines += line
        used += len(line)

    cache = Cache(model, 1, used + limit)
    model.read(cache, [[*opening, (None, lines)]])
    likelihood = gold_likelihood(model, cache, question.answers[0])

    hidden, _ = model.read(cache, [closing])
    ids, _ = model.generate(cache, hidden, limit)
    return {"f1": f1(tokenizer.decode(ids[0]).strip(), question.answers), "likelihood": likelihood, "nodes": nodes}


def without_search(model: Llama, graph: Graph, question: Question, c: torch.Tensor, needed: list[int], tokens: int,
                   settings: Settings) -> dict[str, dict]:
    """A row for each way of reading without a search.

    "chunks by similarity" and "random chunks" may read `tokens` tokens, as many as PECAN's search has read. So they
    cost about as many FLOPs. BM25 ranks all nodes and reads the READ best ones, as many as fit the window.
    """
    texts = [node.text for node in graph.nodes]
    chunks = [i for i, node in enumerate(graph.nodes) if node.level == 1]

    def best(scores):
        return sorted(range(len(scores)), key=lambda i: -scores[i])

    rng = random.Random(question.id)
    of_bm25 = Okapi([words(text) for text in texts]).scores(words(question.text))
    orders = {"random chunks": (best([rng.random() for _ in chunks]), tokens),
              "chunks by similarity": (best(c[chunks].tolist()), tokens),
              "BM25 over all nodes": (best(of_bm25)[:READ], settings.window - settings.answer_tokens),
              "needed chunks": (needed, math.inf)}
    return {name: read(model, question, texts, order, budget, settings.answer_tokens)
            for name, (order, budget) in orders.items()}


# --- one document ---------------------------------------------------------------------------------------------------

def collect(bench: Bench, data: str, document: Document) -> "Record":
    """Load the file of a document. If it does not exist, write it first."""
    path = bench.path(data, document)
    if not path.exists():
        with writing(path):
            bench.folder.mkdir(parents=True, exist_ok=True)             # an error now, not after hours
        run(bench, data, document, path)
    return load(path, document)


def run(bench: Bench, data: str, document: Document, path: Path):
    """Build the graph, search and answer, and write the file."""
    model, encoder = bench.model, bench.encoder
    settings = bench.of_search(data)
    graph, pairs, e = construct(model, document, bench.settings)
    vectors = encoder.encode([node.text for node in graph.nodes])                          # [|V|, D]
    i, j = pairs.T
    tensors = {"pairs": pairs, "e": e, "cosines": similarities(vectors[i], vectors[j])}
    if not bench.short:
        tree = build(model, document, replace(bench.settings, tree=True))
        tree_vectors = encoder.encode([node.text for node in tree.nodes])
        even = replace(graph, E=edges_of(pairs, torch.ones(len(pairs)), len(graph.nodes)))

    facts = facts_reader(document)
    chunks = [node.text for node in graph.nodes if node.level == 1]
    rows = []
    for n, question in enumerate(document.questions):
        of_question = encoder.encode([question.text])[0]
        c = tensors[f"{n}.c"] = similarities(vectors, of_question)
        tensors[f"{n}.question"] = to_question(model, graph, question.text)
        needed = needed_chunks(document, chunks, question)

        # No verdict stops this search, so it shows where any t_p would have stopped.
        endless = searched(model, graph, question, c, replace(settings, patience=FOREVER))
        ways = {"PECAN": searched(model, graph, question, c, settings)}
        if not bench.short:
            for part, change in (("attention", {"attention": False}), ("similarity", {"similarity": False}),
                                 ("progress control", {"fixed_nodes": FIXED.get(data, 20)})):
                ways[f"PECAN without {part}"] = searched(model, graph, question, c, replace(settings, **change))
            tree_c = similarities(tree_vectors, of_question)
            ways["PECAN without IP-based graph"] = searched(model, tree, question, tree_c, settings)
            ways["PECAN, E uniform"] = searched(model, even, question, c, settings)
            leads = torch.tensor(leading(graph.nodes, graph.E.to_dense().tolist(), question, needed, facts))
            ways["PECAN, r an oracle's"] = searched(model, graph, question, c, settings, leads.double())
        ways |= without_search(model, graph, question, c, needed, ways["PECAN"]["tokens"], settings)
        rows.append({"endless": endless, "ways": ways})

    record = json.dumps({"nodes": [asdict(node) for node in graph.nodes], "rows": rows}, allow_nan=False)
    write_sealed(path, {name: tensor.contiguous() for name, tensor in tensors.items()}, record)


class Asked(NamedTuple):
    """A question, its truth and its measurements."""
    question: Question
    attention: torch.Tensor       # of each node to the question, in every head [|V|, L, H]
    c: torch.Tensor               # cosine of the question and each node [|V|]
    needed: list[int]             # ids of the chunks that the answer needs
    leads: torch.Tensor           # whether each node leads to one of them, 1 or 0 [|V|]
    endless: dict                 # row of the search that no verdict stops
    ways: dict[str, dict]         # row of each way of reading


class Record(NamedTuple):
    """A document with its nodes, edges and questions."""
    document: Document
    facts: Callable | None        # finds facts in texts of the embedded world, None elsewhere
    nodes: list[Node]
    pairs: torch.Tensor           # [M, 2]
    e: torch.Tensor               # e'_ij of every head [M, L, H]
    cosines: torch.Tensor         # of the two nodes of each pair [M]
    known: dict[int, list[int]]   # the known sources of each IP that are not its whole group
    asked: list[Asked]

    def level(self, n: int) -> list[int]:
        """Ids of the nodes of level n; of the top level if n is -1."""
        n = self.nodes[-1].level if n == -1 else n
        return [i for i, node in enumerate(self.nodes) if node.level == n]


def edges_of(pairs: torch.Tensor, values: torch.Tensor, V: int) -> torch.Tensor:
    """E [|V|, |V|] from a value for each pair [M]: each row divided by its sum."""
    E = torch.zeros(V, V, dtype=torch.float64)
    E[pairs[:, 0], pairs[:, 1]] = values.double()
    sums = E.sum(1, keepdim=True)
    return E / sums.where(sums > 0, 1)


def load(path: Path, document: Document) -> Record:
    """Load a file that `collect` wrote, and add the truth (truth.py)."""
    with reading(path, remedy="; remove it, and the document runs again"):
        tensors, record = read_sealed(path)
    content = json.loads(record)
    nodes = [Node(**node) for node in content["nodes"]]
    pairs, e = tensors["pairs"], tensors["e"]

    facts = facts_reader(document)
    known = {}
    for i, node in enumerate(nodes):
        group = pairs[pairs[:, 0] == i, 1].tolist()
        found = [group[n] for n in sources(node.text, [nodes[j].text for j in group], facts)] if group else []
        if 0 < len(found) < len(group):
            known[i] = found

    E = edges_of(pairs, e.mean((1, 2)), len(nodes)).tolist()
    chunks = [node.text for node in nodes if node.level == 1]
    asked = []
    for n, (question, row) in enumerate(zip(document.questions, content["rows"], strict=True)):
        needed = needed_chunks(document, chunks, question)
        leads = torch.tensor(leading(nodes, E, question, needed, facts), dtype=torch.float64)
        asked.append(Asked(question, tensors[f"{n}.question"], tensors[f"{n}.c"], needed, leads, **row))
    return Record(document, facts, nodes, pairs, e, tensors["cosines"], known, asked)
