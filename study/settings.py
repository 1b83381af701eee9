"""Which chunk, window and share of the summary suit a small model? Graphs of documents that no table reports, compared.

    coverage     share of the chunks that are the heaviest source of some information point (edges.py)
    repeats      share of the bullets that were left out, because their reply had them before
    loops        replies that were ended, because a line came three times in succession, for each chunk
    points       information points of all levels, for each chunk

Coverage and repeats choose. Chunks that nothing covers are found by similarity alone; repeats are tokens for nothing.
"""
from dataclasses import replace

from data import Document
from pecan import Graph
from study.edges import covered
from study.figures import Table
from study.report import table_lines
from study.run import Bench, build_stage
from support.files import InputError

# Tokens of a chunk and of a window, share of the summary: one to three chunks a window. With more, small models leave
# most of them out.
CANDIDATES = [(100, 480, .3), (200, 640, .3), (200, 900, .3), (300, 900, .3), (300, 1500, .3)]


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


def compare(bench: Bench, data: dict[str, list[Document]]) -> str:
    """Build the graphs of these documents by every candidate; returns a Markdown table. Graphs that are there are kept.

    InputError if the model cannot hold the window of any candidate.
    """
    table = Table("Settings of a construction")
    for chunk, window, share in CANDIDATES:
        if window > bench.model.config.max_length:
            continue
        settings = replace(bench.settings, chunk=chunk, window=window, summary_share=share)
        row = f"{chunk} of {window}, {share}"
        by_candidate = bench._replace(settings=settings, folder=bench.folder / f"{chunk}-{window}-{share}")
        for name, documents in data.items():
            for document in documents:
                add_graph(table, row, document.id, build_stage(by_candidate, name, document))

    if not table.items:
        raise InputError(f"{bench.model.folder}: the model holds {bench.model.config.max_length} tokens, fewer than "
                         "any window that is compared")
    rows = {row: {column: value._asdict() for column, value in columns.items()}
            for row, columns in table.figures().items()}
    return "\n".join(table_lines(rows))
