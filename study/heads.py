"""Which heads carry edges and relevance: chosen by their own figures on documents that no table reports.

They are written as support/heads.py says.
"""
import json

from support.heads import FILE

from core.files import write_file
from data import Document
from study.choices import Heads
from study.record import best, how_many, on_right_points, on_sources, read_record
from study.run import Bench, build_stage, heads_stage, place


def names_of(heads: Heads) -> list[str]:
    """Heads as in a file, best first."""
    return [f"{layer}-{head}" for layer, head in heads]


def choose(bench: Bench, data: dict[str, list[Document]]) -> str:
    """Build the graphs of these documents, choose heads by them, and write them next to the checkpoint.

    Edges: the share of attention on the sources of each information point. Relevance: the share of the attention to the
    question that comes from information points that lead to what it needs. Returns what was found, in words.
    """
    records = []
    for name, documents in data.items():
        for document in documents:
            heads_stage(bench, name, document, build_stage(bench, name, document))
            records.append(read_record(place(bench, name, document), document))

    k = how_many(bench.model.config.layers, bench.model.config.heads)
    attention = {"edges": [on_sources(record) for record in records],
                 "relevance": [on_right_points(record) for record in records]}
    found = {name: best(of_name, k) for name, of_name in attention.items()}
    points, questions = (sum(len(right) for right, _ in of_name) for of_name in attention.values())
    how = (f"python -m study heads: up to {k} heads whose attention together has the largest share on the sources of "
           f"{points} information points, or for {questions} questions on the right points, in {len(records)} "
           f"documents of {', '.join(data)} that no table reports")

    path = bench.model.folder / FILE
    names = {name: names_of(heads) for name, heads in found.items()}
    write_file(path, json.dumps({**names, "source": how}, allow_nan=False) + "\n")
    return f"{path}\n  edges      {','.join(names['edges'])}\n  relevance  {','.join(names['relevance'])}\n  {how}"
