"""Which heads carry edges and relevance: chosen by their own figures on documents that no table reports.

They are written as support/heads.py says.
"""
import json

from data import Document
from study.choices import Heads
from study.record import area_of_heads, best, how_many, mass_of_heads, read_record
from study.run import Bench, build_stage, heads_stage, place
from support.files import write_file
from support.heads import FILE


def names_of(heads: Heads) -> list[str]:
    """Heads as in a file, best first."""
    return [f"{layer}-{head}" for layer, head in heads]


def choose(bench: Bench, data: dict[str, list[Document]]) -> str:
    """Build the graphs of these documents, choose heads by them, and write them next to the checkpoint.

    Edges: the head's share of attention on the sources of each information point. Relevance: the area under the ROC
    curve of the head's attention to the question, over all information points. Returns what was found, in words.
    """
    records = []
    for name, documents in data.items():
        for document in documents:
            heads_stage(bench, name, document, build_stage(bench, name, document))
            records.append(read_record(place(bench, name, document), document))

    k = how_many(bench.model.config.layers, bench.model.config.heads)
    scores = {"edges": [mass_of_heads(record) for record in records],
              "relevance": [area_of_heads(record) for record in records]}
    found = {name: best(of_name, k) for name, of_name in scores.items()}
    points, questions = (sum(n for _, n in of_name) for of_name in scores.values())
    how = (f"python -m study heads: the {k} heads with the largest mass on the sources of {points} information points, "
           f"and the largest area of r over these points for {questions} questions, on {len(records)} documents of "
           f"{', '.join(data)} that no table reports")

    path = bench.model.folder / FILE
    names = {name: names_of(heads) for name, heads in found.items()}
    write_file(path, json.dumps({**names, "source": how}) + "\n")
    return f"{path}\n  edges      {','.join(names['edges'])}\n  relevance  {','.join(names['relevance'])}\n  {how}"
