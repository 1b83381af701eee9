"""Which chunk and window suit a small model? Graphs of documents that the bench does not report, compared.

    coverage     share of the chunks that are the heaviest source of some information point (edges.py)
    repeats      share of the bullets that were left out, because their reply had them before
    loops        for each chunk, replies that were cut because a line came three times in a row
    points       information points of all levels, for each chunk
    TFLOPs       of a construction

Coverage chooses: a chunk that nothing covers is found by similarity alone. (Repeats and loops are also counted in a
level that was built and given up, because it was no shorter than the one below.)
"""
from dataclasses import replace

from core.files import InputError
from data import Document
from pecan import Graph
from study.edges import covered
from study.figures import Table
from study.report import table_lines
from study.run import Bench, build_stage

# Tokens of a chunk and of a window, one to three chunks each. With more, small models leave most of them out.
CANDIDATES = [(100, 480), (200, 640), (200, 900), (300, 900), (300, 1500)]
SHARE = 0.3                       # of the window, for the summary


def add_graph(table: Table, row: str, document: str, graph: Graph):
    """Add a document's graph by one candidate."""
    chunks = [i for i, node in enumerate(graph.nodes) if node.level == 1]
    main_sources = covered(graph.E.to_dense())
    for i in chunks:
        table.add(row, "coverage", document, i in main_sources)

    points = len(graph.nodes) - len(chunks)
    for left_out in [False] * points + [True] * graph.repeats:
        table.add(row, "repeats", document, left_out)
    table.add(row, "loops", document, graph.loops / len(chunks))
    table.add(row, "points", document, points / len(chunks))
    table.add(row, "TFLOPs", document, graph.flops / 1e12)


def compare(bench: Bench, data: dict[str, list[Document]]) -> str:
    """Build the graphs of these documents by every candidate; returns a Markdown table. Graphs that are there are kept.

    InputError if the model cannot hold the window of any candidate.
    """
    longest = bench.model.config.max_length
    candidates = [(chunk, window) for chunk, window in CANDIDATES if window <= longest]
    if not candidates:
        raise InputError(f"{bench.model.folder}: the model holds {longest} tokens, fewer than any window that is "
                         "compared")

    table = Table("Settings of a construction")
    for chunk, window in candidates:
        settings = replace(bench.settings, chunk=chunk, window=window, summary_share=SHARE)
        by_candidate = bench._replace(settings=settings, folder=bench.folder / f"{chunk}-{window}")
        for name, documents in data.items():
            for document in documents:
                add_graph(table, f"{chunk} of {window}", document.id, build_stage(by_candidate, name, document))

    rows = {row: {column: value._asdict() for column, value in columns.items()}
            for row, columns in table.figures().items()}
    return "\n".join(table_lines(rows))
