"""Run a model over documents with known evidence, and keep the raw tensors: what is there is never run again.

Each document has a folder with a file for each stage, and no stage starts before the one above it is complete:

    graph.json           the graph, as pecan.py writes it (a tree's: tree.json)
    edges.safetensors    pairs [M, 2], e and without_sink [M, L, H] (capture.py), vectors of the nodes [|V|, D]
    heads.safetensors    by question n: n.c [|V|], n.question, n.empty and n.after [|V|, L, H] (capture.py)
    search.json          by question: a search that no verdict stops
    ways.json            by question: each way of reading
    ablations.json       by question: each ablation
    next.json            by question: searches that choose the next node in other ways
    extensions.json      by question: what is beyond the paper, if there are chosen heads
"""
import json
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
from support.heads import pairs_of

from core.files import write_file, write_tensors
from core.settings import PAPER, Settings
from data import Document
from llama import Llama
from pecan import Graph, build
from study.capture import construct, from_question, to_question
from study.choices import edges_of, weighted_edges
from study.reading import ablations, extensions, full_search, next_nodes, ways
from study.truth import needed_chunks
from support.sbert import similarities

SEARCH_WINDOW = 2048              # a search of a model that is made for so many tokens may read at least as many
EMPTY = "N/A"                     # the question without content
FIXED = {"hotpotqa": 17, "musique": 30}         # nodes without progress control (GARLIC 4.4)


class Bench(NamedTuple):
    """What a run needs besides documents."""
    model: Llama
    encoder: object
    settings: Settings            # of the construction
    folder: Path
    heads: dict                   # settings that choose heads (support/heads.py); empty if nobody has chosen any

    def of_search(self, data: str) -> Settings:
        """The settings of a search: a larger window if the model allows it, and Appendix E's t_p."""
        paper = PAPER.get({"hotpotqa": "HotpotQA", "musique": "MuSiQue"}.get(data), {})
        window = self.settings.window
        if self.model.config.max_length >= SEARCH_WINDOW:
            window = max(window, SEARCH_WINDOW)
        return replace(self.settings, window=window, **paper)


def place(bench: Bench, data: str, document: Document) -> Path:
    """The folder of a document."""
    folder = bench.folder / data / document.id
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def build_stage(bench: Bench, data: str, document: Document) -> Graph:
    """graph.json and edges.safetensors."""
    folder = place(bench, data, document)
    if not (folder / "edges.safetensors").exists():
        found = construct(bench.model, document, bench.settings, sys.stderr.isatty())
        found.graph.save(folder / "graph.json")
        vectors = bench.encoder.encode([node.text for node in found.graph.nodes])
        write_tensors(folder / "edges.safetensors", {
            "pairs": found.pairs, "e": found.e, "without_sink": found.without_sink,
            "vectors": vectors.float().contiguous()})
    return Graph.load(folder / "graph.json", document, bench.settings.of_construction(), bench.model)


def heads_stage(bench: Bench, data: str, document: Document, graph: Graph) -> dict[str, torch.Tensor]:
    """heads.safetensors."""
    path = place(bench, data, document) / "heads.safetensors"
    if not path.exists():
        vectors = safetensors.torch.load_file(path.with_name("edges.safetensors"))["vectors"]
        tensors = {}
        for n, question in enumerate(document.questions):
            tensors[f"{n}.c"] = similarities(vectors, bench.encoder.encode([question.text])[0])
            tensors[f"{n}.question"] = to_question(bench.model, graph, question.text)
            tensors[f"{n}.after"] = from_question(bench.model, graph, question.text)
        empty = to_question(bench.model, graph, EMPTY)
        write_tensors(path, {"empty": empty, **tensors})
    return safetensors.torch.load_file(path)


def stage(name: str) -> Callable:
    """Put on a function, makes it a stage that writes file `name`, a row for each question, unless it is there.

    The function gets what the stages above have made (folder, graph, heads.safetensors) and returns row(n, question).
    """
    def decorate(rows_of):
        @wraps(rows_of)
        def run(bench: Bench, data: str, document: Document):
            folder = place(bench, data, document)
            if not (folder / name).exists():
                graph = build_stage(bench, data, document)
                tensors = heads_stage(bench, data, document, graph)
                row = rows_of(bench, data, document, folder, graph, tensors)
                rows = [row(n, question) for n, question in enumerate(document.questions)]
                write_file(folder / name, json.dumps({"rows": rows}, allow_nan=False) + "\n")
        return run
    return decorate


def run_document(bench: Bench, data: str, document: Document):
    """The stages that --short has too. A graph that was built with other settings is refused, whatever is there."""
    build_stage(bench, data, document)
    run_search(bench, data, document)
    run_ways(bench, data, document)


@stage("search.json")
def run_search(bench, data, document, folder, graph, tensors):
    def row(n, question):
        return full_search(bench.model, graph, question, tensors[f"{n}.c"], bench.of_search(data))
    return row


@stage("ways.json")
def run_ways(bench, data, document, folder, graph, tensors):
    def row(n, question):
        needed = needed_chunks(document, graph, question)
        return ways(bench.model, document, graph, question, tensors[f"{n}.c"], needed, bench.of_search(data))
    return row


@stage("ablations.json")
def run_ablations(bench, data, document, folder, graph, tensors):
    if not (folder / "tree.json").exists():
        built = build(bench.model, document, replace(bench.settings, tree=True), sys.stderr.isatty())
        built.save(folder / "tree.json")
    tree = Graph.load(folder / "tree.json", document)
    vectors = bench.encoder.encode([node.text for node in tree.nodes])

    def row(n, question):
        c = tensors[f"{n}.c"]
        tree_c = similarities(vectors, bench.encoder.encode([question.text])[0])
        return ablations(bench.model, graph, tree, question, c, tree_c, FIXED.get(data, 20), bench.of_search(data))
    return row


@stage("next.json")
def run_next_nodes(bench, data, document, folder, graph, tensors):
    """What is random depends on document and question alone, so that a run that goes on gets the same."""
    pairs = safetensors.torch.load_file(folder / "edges.safetensors")["pairs"]
    uniform = replace(graph, E=edges_of(pairs, torch.ones(len(pairs)), len(graph.nodes)))

    def row(n, question):
        rng = random.Random(f"{document.id} {question.id}")
        chance = torch.tensor([rng.random() for _ in graph.nodes])
        return next_nodes(bench.model, graph, uniform, question, tensors[f"{n}.c"], chance, bench.of_search(data))
    return row


@stage("extensions.json")
def run_extensions(bench, data, document, folder, graph, tensors):
    """PECAN with chosen heads in E and r, and with r above its mean; for a bench that has chosen heads."""
    edges = safetensors.torch.load_file(folder / "edges.safetensors")
    E = weighted_edges(edges["pairs"], edges["e"], pairs_of(bench.heads["edge_heads"]), len(graph.nodes))

    def row(n, question):
        return extensions(bench.model, graph, replace(graph, E=E), bench.heads["relevance_heads"], question,
                          tensors[f"{n}.c"], bench.of_search(data))
    return row
