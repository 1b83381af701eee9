"""Run a model over documents with known evidence, and keep what was seen: one file for each document.

What is there is never run again. The file's tensors are cosines [M], pairs [M, 2] and e [M, L, H] of the edges
(seen.py), and for question n n.c [|V|] and n.question [|V|, L, H]; its metadata has the nodes and the searches.
"""
import hashlib
import json
import math
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open

from baselines.bm25 import Okapi, words
from baselines.common import line_ids
from core.files import InputError, read_json, reading, write_file, write_tensors, writing
from core.settings import PAPER, Settings
from core.watch import watching
from data import Document, Question
from evaluation.metrics import f1
from llama import Cache, Llama, length_of
from pecan import Search, answer_turn, build, question_prompt, room_for_nodes
from study.seen import construct, to_question
from study.truth import facts_reader, leading, needed_chunks, sources
from support.graph import Graph, Node
from support.sbert import similarities

SEARCH_WINDOW = 2048              # a search of a model that is made for so many tokens may read at least as many
FIXED = {"hotpotqa": 17, "musique": 30}         # nodes without progress control (GARLIC 4.4)
READ = (2, 3, 5, 8, 11)           # nodes that BM25 may read
FOREVER = 1 << 24                 # a stop patience that no search reaches


class Bench(NamedTuple):
    """What a run needs besides documents."""
    model: Llama
    encoder: object
    settings: Settings            # of the construction
    folder: Path
    short: bool                   # no ablations

    def of_search(self, data: str) -> Settings:
        """The settings of a search: a larger window if the model allows it, and Appendix E's t_p."""
        paper = PAPER.get({"hotpotqa": "HotpotQA", "musique": "MuSiQue"}.get(data), {})
        window = self.settings.window
        if self.model.config.max_length >= SEARCH_WINDOW:
            window = max(window, SEARCH_WINDOW)
        return replace(self.settings, window=window, **paper)

    def check_setup(self):
        """Raise InputError if the folder holds results of another model, encoder, settings or form."""
        path = self.folder / "setup.json"
        setup = {"model": self.model.fingerprint, "encoder": self.encoder.fingerprint,
                 "settings": self.settings.of_pecan(), "short": self.short}
        with writing(path):
            self.folder.mkdir(parents=True, exist_ok=True)
        if path.exists() and (there := read_json(path)) != setup:
            other = next(name for name in setup if there.get(name) != setup[name])
            raise InputError(f"{self.folder}: holds results of another {other!r}; choose another --output")
        write_file(path, json.dumps(setup) + "\n")

    def path(self, data: str, document: Document) -> Path:
        """The file of a document; its name is a hash of the document with its questions."""
        identity = json.dumps([data, document.hash, [asdict(question) for question in document.questions]])
        return self.folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.safetensors"


# --- reading and answering ------------------------------------------------------------------------------------------

def gold_likelihood(model: Llama, cache: Cache, answer: str) -> float:
    """Mean log-likelihood of the gold answer's tokens in Table A2's second turn, in nats; the cache stays as it is.

    The first assistant turn is "Yes" for every way of reading, so that they can be compared. What this costs is not
    counted. At most as many tokens are asked as the cache has room for.
    """
    before, spent = list(cache.lengths), (model.flops, model.tokens)
    turn = answer_turn(model.tokenizer, model.tokenizer.first("Yes"))
    gold = model.tokenizer.encode(answer)[:cache.capacity - before[0] - length_of(turn)]
    hidden, _ = model.append(cache, [[*turn, (None, gold)]])

    logits = model.logits(hidden[0, -len(gold) - 1:-1])                                    # [tokens, vocabulary]
    cache.rollback(before)
    model.flops, model.tokens = spent
    return logits.double().log_softmax(-1)[range(len(gold)), gold].mean().item()


def searched(model: Llama, graph: Graph, question: Question, c: torch.Tensor, settings: Settings,
             at: str = "run") -> dict:
    """The row of a search. The gold answer's likelihood is asked at its end, or with at="check" after every check."""
    likelihoods = []

    def heard(_, search):
        likelihoods.append(gold_likelihood(model, search.cache, question.answers[0]))

    with watching(Search, at, heard):
        answer = Search(model, graph, question.text, c, settings).answer()
    return {"f1": f1(answer.text, question.answers), "likelihood": likelihoods, "nodes": answer.nodes,
            "tokens": answer.tokens, "p_yes": [step.p_yes for step in answer.trace]}


def read(model: Llama, question: Question, texts: list[str], order: list[int], room: float,
         settings: Settings) -> dict:
    """The row of reading these texts in this order, at least one, until one passes the room in tokens."""
    tokenizer = model.tokenizer
    nodes, lines = [], []
    for i in order:
        line = line_ids(tokenizer, texts[i])
        if nodes and len(lines) + len(line) > room:
            break
        nodes.append(i)
        lines += line

    prompt = [*question_prompt(tokenizer, question.text), (None, lines)]
    closing = answer_turn(tokenizer, tokenizer.first("Yes"))
    cache = Cache(model, 1, length_of([*prompt, *closing]) + settings.answer_tokens)
    model.read(cache, [prompt])
    likelihood = gold_likelihood(model, cache, question.answers[0])

    hidden, _ = model.read(cache, [closing])
    ids, _ = model.generate(cache, hidden, settings.answer_tokens)
    return {"f1": f1(tokenizer.decode(ids[0]).strip(), question.answers), "likelihood": [likelihood], "nodes": nodes}


def ways(model: Llama, graph: Graph, question: Question, c: torch.Tensor, needed: list[int],
         settings: Settings) -> dict[str, dict]:
    """A row for PECAN and for each way of reading without edges.

    Similarity and random chunks get as many tokens as ran through the model in PECAN's search, so that they cost as
    many FLOPs. BM25 ranks all nodes of the graph and reads the first few: how many is chosen in the report.
    """
    tokenizer = model.tokenizer
    texts = [node.text for node in graph.nodes]
    chunks = [i for i, node in enumerate(graph.nodes) if node.level == 1]
    found = {"PECAN": searched(model, graph, question, c, settings)}

    def best(scores):
        return sorted(range(len(scores)), key=lambda i: -scores[i])

    frame = [*question_prompt(tokenizer, question.text), *answer_turn(tokenizer, tokenizer.first("Yes"))]
    budget = found["PECAN"]["tokens"] - length_of(frame)
    rng = random.Random(question.id)
    of_bm25 = best(Okapi([words(text) for text in texts]).scores(words(question.text)))
    room = room_for_nodes(tokenizer, question.text, settings)
    orders = {"random chunks": (best([rng.random() for _ in chunks]), budget),
              "chunks by similarity": (best(c[chunks].tolist()), budget),
              **{f"BM25 {k}": (of_bm25[:k], room) for k in READ},
              "needed chunks": (needed, math.inf)}
    return found | {name: read(model, question, texts, order, room, settings)
                    for name, (order, room) in orders.items()}


def ablations(bench: Bench, data: str, graph: Graph, tree: Graph, question: Question, c: torch.Tensor,
              tree_c: torch.Tensor) -> dict[str, dict]:
    """A row for each ablation of section 4.2; `tree` is the graph without IPs, with its own similarities."""
    settings = bench.of_search(data)
    changes = {"attention": {"attention": False}, "similarity": {"similarity": False},
               "progress control": {"fixed_nodes": FIXED.get(data, 20)}}
    found = {f"PECAN without {part}": searched(bench.model, graph, question, c, replace(settings, **change))
             for part, change in changes.items()}
    return found | {"PECAN without IP-based graph": searched(bench.model, tree, question, tree_c, settings)}


# --- one document ---------------------------------------------------------------------------------------------------

def collect(bench: Bench, data: str, document: Document):
    """Write the file of a document, unless it is there."""
    path = bench.path(data, document)
    if path.exists():
        return
    model, encoder = bench.model, bench.encoder
    settings = bench.of_search(data)
    graph, pairs, e = construct(model, document, bench.settings)
    vectors = encoder.encode([node.text for node in graph.nodes])                          # [|V|, D]
    i, j = pairs.T
    tensors = {"pairs": pairs, "e": e, "cosines": similarities(vectors[i], vectors[j])}
    if not bench.short:
        tree = build(model, document, replace(bench.settings, tree=True))
        tree_vectors = encoder.encode([node.text for node in tree.nodes])

    chunks = [node.text for node in graph.nodes if node.level == 1]
    rows = []
    for n, question in enumerate(document.questions):
        of_question = encoder.encode([question.text])[0]
        c = tensors[f"{n}.c"] = similarities(vectors, of_question)
        tensors[f"{n}.question"] = to_question(model, graph, question.text)

        # A search that no verdict stops: every t_p can be read off it.
        endless = searched(model, graph, question, c, replace(settings, patience=FOREVER), "check")
        row = ways(model, graph, question, c, needed_chunks(document, chunks, question), settings)
        if not bench.short:
            row |= ablations(bench, data, graph, tree, question, c, similarities(tree_vectors, of_question))
        rows.append({"endless": endless, "ways": row})

    metadata = json.dumps({"nodes": [asdict(node) for node in graph.nodes], "rows": rows}, allow_nan=False)
    write_tensors(path, {name: tensor.contiguous() for name, tensor in tensors.items()}, {"record": metadata})


class Asked(NamedTuple):
    """A question and what is known of it."""
    question: Question
    attention: torch.Tensor       # of each node to the question, in every head [|V|, L, H]
    c: torch.Tensor               # cosine of the question and each node [|V|]
    needed: list[int]             # ids of the chunks that the answer needs
    leads: torch.Tensor           # whether each node leads to one of them, 1 or 0 [|V|]
    endless: dict                 # row of the search that no verdict stops
    ways: dict[str, dict]         # row of each way of reading


class Record(NamedTuple):
    """A document, its nodes and edges, its questions."""
    document: Document
    facts: Callable | None        # finds facts in texts of the embedded world, None elsewhere
    nodes: list[Node]
    pairs: torch.Tensor           # [M, 2]
    e: torch.Tensor               # e'_ij of every head [M, L, H]
    cosines: torch.Tensor         # of the nodes of a pair [M]
    known: dict[int, list[int]]   # the known sources of each IP that are not its whole group
    asked: list[Asked]


def edges_of(pairs: torch.Tensor, values: torch.Tensor, V: int) -> torch.Tensor:
    """E [|V|, |V|] from a value for each pair [M]: each row divided by its sum."""
    E = torch.zeros(V, V, dtype=torch.float64)
    E[pairs[:, 0], pairs[:, 1]] = values.double()
    sums = E.sum(1, keepdim=True)
    return E / sums.where(sums > 0, 1)


def load(path: Path, document: Document) -> Record:
    """What `collect` has written, with what is known to be true of it."""
    with reading(path, "not a file of this bench", "; remove it, and the document runs again"):
        with safe_open(path, framework="pt") as stored:
            content = json.loads(stored.metadata()["record"])
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}
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
