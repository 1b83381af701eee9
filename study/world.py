"""What can be seen in the embedded world only, where it is known which sentence states which fact.

Of the bullets of a level:

    true             all that it states is stated by the document, and nothing of the past (a former home)
    state nothing    it is no sentence of a fact's form; such a bullet is not true
    facts kept       share of the document's facts that summaries of this level should keep (KEPT) and do

Of a search:

    all read         share of the questions whose needed facts were all read when the search ended
    F1, all read     F1 of these questions, in percent
    verdicts right   share of the checks that say No while a needed fact is missing (truth No), or Yes after that
"""
from collections import defaultdict
from collections.abc import Callable

from core.settings import Settings
from data import Document, Question
from llama import Llama
from pecan import Graph, build
from study.figures import Table
from study.reading import searched
from study.record import Record
from study.truth import enough, facts_reader
from support.sbert import similarities
from support.token_mean import TokenMean

KEPT = {2: ("friend", "pet", "home", "town", "job", "road"), 3: ("town", "job")}


def add_bullets(table: Table, document: Document, graph: Graph, facts: Callable):
    """Add the bullets of a document, level by level and together."""
    truth = set().union(*map(facts, document.passages))
    past = {fact for fact in truth if fact.relation == "past"}
    of_level = defaultdict(set)
    for node in graph.nodes:
        if node.level > 1:
            stated = facts(node.text)
            of_level[node.level] |= stated
            for row in ("all levels", f"level {node.level}"):
                table.add(row, "true", document.id, bool(stated) and stated <= truth - past)
                table.add(row, "state nothing", document.id, not stated)

    for level, relations in KEPT.items():
        kept = {fact for fact in truth if fact.relation in relations}
        if kept:
            table.add(f"level {level}", "facts kept", document.id, len(kept & of_level[level]) / len(kept))


def add_search(table: Table, name: str, document: Document, graph: Graph, question: Question, row: dict,
               facts: Callable):
    """Add a search (reading.searched)."""
    texts = [node.text for node in graph.nodes]

    def complete(nodes):
        return enough(question, texts, nodes, [], facts)

    table.add(name, "all read", document.id, complete(row["nodes"]))
    table.add(name, "F1", document.id, 100 * row["f1"])
    if complete(row["nodes"]):
        table.add(name, "F1, all read", document.id, 100 * row["f1"])

    for n, verdict in enumerate(row["verdicts"], 1):
        if verdict:
            truth = "Yes" if complete(row["nodes"][:n]) else "No"
            table.add(name, f"verdicts right, truth {truth}", document.id, verdict == truth)


def add_world(bullets: Table, searches: Table, record: Record):
    """Add a document, if it is of this world."""
    if not record.facts:
        return
    add_bullets(bullets, record.document, record.graph, record.facts)
    for asked in record.asked:
        for name, row in asked.ways.items():
            if "verdicts" in row and "IP-based" not in name:          # a tree has other nodes
                add_search(searches, name, record.document, record.graph, asked.text, row, record.facts)


# --- a model in training --------------------------------------------------------------------------------------------

# In a training's log, where all figures are shares: name -> row and column, divided by.
LOGGED = {
    "graphs": {"bullets that are true": ("all levels", "true", 1),
               "facts to be kept that level 2 states": ("level 2", "facts kept", 1),
               "facts to be kept that level 3 states": ("level 3", "facts kept", 1)},
    "PECAN": {"F1": ("PECAN", "F1", 100), "F1 if all needed facts were read": ("PECAN", "F1, all read", 100),
              "all needed facts read": ("PECAN", "all read", 1),
              "verdicts that are right where the truth is No": ("PECAN", "verdicts right, truth No", 1),
              "verdicts that are right where the truth is Yes": ("PECAN", "verdicts right, truth Yes", 1)}}


def watch(model: Llama, documents: list[Document], settings: Settings) -> dict[str, dict[str, float]]:
    """The figures of LOGGED for these documents of the world, without those that are not defined."""
    encoder = TokenMean(model)
    tables = {name: Table("") for name in LOGGED}
    for document in documents:
        graph = build(model, document, settings)
        facts = facts_reader(document)
        add_bullets(tables["graphs"], document, graph, facts)

        vectors = encoder.encode([node.text for node in graph.nodes])
        for question in document.questions:
            c = similarities(vectors, encoder.encode([question.text])[0])
            row = searched(model, graph, question, c, settings)
            add_search(tables["PECAN"], "PECAN", document, graph, question, row, facts)

    found = {name: table.figures() for name, table in tables.items()}
    return {of: {name: round(found[of][row][column].value / scale, 4)
                 for name, (row, column, scale) in names.items() if column in found[of].get(row, {})}
            for of, names in LOGGED.items()}
