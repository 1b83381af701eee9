"""What is z worth in searches that run? Ways to choose the next node, question by question.

Retrieval is replayed without the model (retrieval.py). Here the model reads, stops by its verdict, and answers.

    F1, nodes         in percent, and nodes read
    over random       difference of F1 to a search that chooses the next node at random; likewise for the others
"""
from study.figures import Table
from study.record import Record

WAYS = {"random": "PECAN, next node at random", "c": "PECAN without attention", "z": "PECAN without similarity",
        "z, r uniform": "PECAN without similarity, r uniform", "z, E uniform": "PECAN without similarity, E uniform",
        "z, chosen heads": "PECAN, chosen heads, without similarity"}
OVER = {**dict.fromkeys(WAYS, ["random"]), **dict.fromkeys(("z", "z, chosen heads"), ["random", "z, r uniform",
                                                                                   "z, E uniform"])}


def add_searches(table: Table, record: Record):
    """Add what a document has of these searches; the short form of a run has none."""
    id = record.document.id
    for asked in record.asked:
        rows = {name: asked.ways[way] for name, way in WAYS.items() if way in asked.ways}
        for name, row in rows.items():
            table.add(name, "F1", id, 100 * row["f1"])
            table.add(name, "nodes", id, len(row["nodes"]))
            for other in OVER[name]:
                if other in rows and other != name:
                    table.add(name, f"over {other}", id, 100 * (row["f1"] - rows[other]["f1"]))
