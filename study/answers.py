"""What the answers are worth after each way of reading, and at which step the wrong ones went wrong.

    F1            in percent, as everywhere
    likelihood    mean log-likelihood of the gold answer's tokens, in nats: tells ways apart where F1 is 0
    - PECAN's     difference to PECAN, question by question
    tokens        all that ran through the model for the question

F1 is also shown by kind of question, if the data says which kind each is of.

An answer is wrong if its F1 is below one half. Then the first of these steps that fits counts:

    read and answered wrong      enough had been read (truth.enough)
    lost in the summaries        a needed chunk that was not read: no node of the top level leads down to it
    stopped early                a verdict stopped the search
    not retrieved                the search went on to its end, and read other nodes
"""
from study.figures import Table
from study.record import Asked, Record
from study.truth import enough, leading

STEPS = ("right", "lost in the summaries", "not retrieved", "stopped early", "read and answered wrong")


def add_answers(table: Table, kinds: Table, errors: Table, record: Record):
    """Add a document to the tables of ways, all questions and by kind, and the searches to the table of errors."""
    for asked in record.asked:
        kind = asked.text.extra.get("kind")
        for name, row in asked.ways.items():
            id = record.document.id
            table.add(name, "F1", id, 100 * row["f1"])
            table.add(name, "F1 - PECAN's", id, 100 * (row["f1"] - asked.ways["PECAN"]["f1"]))
            table.add(name, "likelihood", id, row["likelihood"])
            table.add(name, "likelihood - PECAN's", id, row["likelihood"] - asked.ways["PECAN"]["likelihood"])
            table.add(name, "tokens", id, row["tokens"])
            table.add(name, "GFLOPs", id, row["flops"] / 1e9)
            table.add(name, "nodes", id, len(row["nodes"]))

            if kind:
                kinds.add(name, str(kind), id, 100 * row["f1"])
            if name.startswith("PECAN") and "IP-based" not in name:
                step = step_of(record, asked, row)
                for other in STEPS:
                    errors.add(name, other, id, other == step)


def step_of(record: Record, asked: Asked, row: dict) -> str:
    """Where the answer of a search went wrong, one of STEPS."""
    texts = [node.text for node in record.graph.nodes]
    if row["f1"] >= 0.5:
        return "right"
    if enough(asked.text, texts, row["nodes"], asked.needed, record.facts):
        return "read and answered wrong"

    for i in asked.needed:
        leads = leading(record.graph, asked.text, [i], record.facts)
        if i not in row["nodes"] and not any(leads[top] for top in record.graph.top_level):
            return "lost in the summaries"
    return "stopped early" if row["end"] == "yes" else "not retrieved"
