"""The bench in the embedded world: bullets and searches against the truth, and the stage of other choices."""
import json
from dataclasses import replace

import pytest
import torch

from data import EMBEDDED, Document, Question, read_jsonl
from pecan import Graph, Node, edge_matrix
from study.__main__ import main
from study.choices import Attended, Chosen
from study.edges import add_edges
from study.figures import Table
from study.record import Record
from study.run import Bench, run_next_nodes
from study.truth import facts_reader, sources_of
from study.world import add_bullets, add_search, add_world, watch
from support.token_mean import TokenMean

EVIDENCE = ["Mara is Sofia's baker.", "Sofia's baker has a dog. It is white."]
QUESTION = Question("q", "What color is Mara's pet?", ["white"],
                    {"kind": "detail", "facts": ["Mara's pet is white"], "evidence": EVIDENCE})
PASSAGES = ["Mara is Sofia's baker. Bells rang. Once Sofia's baker lived by the river.",
            "Sofia's baker has a dog. It is white.", "Otto is Lima's baker.", "Lima's baker has a goat. It is red."]
BULLETS = [(2, "Mara has a dog"), (2, "Mara has a goat"), (2, "Mara"), (2, "Once Mara lived by the river"),
           (3, "Mara is Sofia's baker")]
EDGES = [(4, 0, 0.1), (4, 1, 0.6), (4, 3, 0.3), (5, 1, 0.5), (5, 3, 0.5), (6, 0, 1.0), (7, 0, 1.0), (8, 4, 1.0)]


@pytest.fixture
def small() -> Record:
    """A document, and a graph with a true bullet, a false one, one that says nothing, and one of the past."""
    document = Document("d", PASSAGES, [QUESTION])
    nodes = [*(Node(1, text) for text in PASSAGES), *(Node(*bullet) for bullet in BULLETS)]
    graph = Graph(nodes, edge_matrix(EDGES, len(nodes)), "", "", {})
    pairs = torch.tensor([[i, j] for i, j, _ in EDGES])
    e = torch.tensor([weight for _, _, weight in EDGES])[:, None, None]
    facts = facts_reader(document)
    raw = Attended(pairs, e, e, torch.zeros(len(nodes), 1), torch.ones(len(nodes)))
    return Record(document, facts, graph, raw, sources_of(graph, pairs, facts), [])


def test_bullets_against_the_truth(small):
    table = Table("")
    add_bullets(table, small.document, small.graph, small.facts)
    assert table.items["level 2", "true"]["d"] == [True, False, False, False]
    assert table.items["level 2", "state nothing"]["d"] == [False, False, True, False]
    assert table.items["all levels", "true"]["d"] == [True, False, False, False, True]
    assert table.items["level 2", "facts kept"]["d"] == [1 / 6]            # two posts of two facts, two pets
    assert table.items["level 3", "facts kept"]["d"] == [1 / 2]


def test_edges_against_the_truth(small):
    """The first bullet has one source in its window of three; the others have none, or no other node there."""
    table = Table("")
    add_edges(table, small, Chosen([(0, 0)], [(0, 0)]))
    assert table.items["the paper", "mass, level 2"]["d"] == pytest.approx([0.6])
    assert table.items["uniform", "mass, level 2"]["d"] == pytest.approx([1 / 3])
    assert {column for _, column in table.items} == {"precision at 1, level 2", "mass, level 2", "coverage of chunks",
                                                     "coverage of level 2"}


def test_a_search_against_the_truth(small):
    """Mara's color is known once her post and the passage about her pet were read."""
    table = Table("")
    row = {"f1": 1, "nodes": [1, 2, 3, 0, 4], "verdicts": ["Yes", "No", None, "No", "Yes"]}
    add_search(table, "PECAN", small.document, small.graph, QUESTION, row, small.facts)
    assert table.items["PECAN", "verdicts right, truth No"]["d"] == [False, True]
    assert table.items["PECAN", "verdicts right, truth Yes"]["d"] == [False, True]
    assert table.items["PECAN", "F1, all read"]["d"] == [100]

    early = {"f1": 0, "nodes": [1, 2], "verdicts": ["Yes", "No"]}
    add_search(table, "PECAN", small.document, small.graph, QUESTION, early, small.facts)
    assert table.items["PECAN", "all read"]["d"] == [True, False]
    assert table.items["PECAN", "F1"]["d"] == [100, 0] and table.items["PECAN", "F1, all read"]["d"] == [100]


def test_only_this_world_has_an_exact_truth(small):
    """Elsewhere nothing is added, and of the world no way of reading that is no search."""
    bullets, searches = Table(""), Table("")
    add_world(bullets, searches, small._replace(facts=None))
    assert not bullets.items and not searches.items


def test_what_is_random_depends_on_the_question_alone(tiny, settings, tmp_path):
    """A stage that is run again reads the same nodes; two questions, of one text, do not."""
    document = Document("d", PASSAGES * 3, [replace(QUESTION, id="a"), replace(QUESTION, id="b")])
    bench = Bench(tiny, TokenMean(tiny), replace(settings, confidence=0.999, answer_tokens=1), tmp_path, {})
    path = tmp_path / "own" / "d" / "next.json"

    run_next_nodes(bench, "own", document)
    first = json.loads(path.read_text())["rows"]
    path.unlink()
    run_next_nodes(bench, "own", document)
    again = json.loads(path.read_text())["rows"]
    nodes = [row["PECAN, next node at random"]["nodes"] for row in first]
    assert first == again and nodes[0] != nodes[1]


@pytest.mark.slow
def test_all_stages_of_a_short_document(tmp_path, capsys, tiny, settings):
    """Every table, with chosen heads too, from a file of one's own; the log of a training has the same figures."""
    document = read_jsonl(EMBEDDED, limit=1)[0]
    held = [question for question in document.questions
            if all(any(text in passage for passage in document.passages[:15]) for text in question.extra["evidence"])]
    rows = [{"question": question.text, "answers": question.answers, **question.extra} for question in held]
    assert held
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({"id": "d", "passages": document.passages[:15], "questions": rows}))

    output = tmp_path / "out"
    main(["--data", str(path), "--heads", "1-0,1-1", "--output", str(output), "--device", "cpu"])
    printed = capsys.readouterr().out
    for text in ("## own: Choosing the next node", "\n| z, chosen heads | ", "\n| random | ",
                 "| F1 alone: z, chosen heads less z, E uniform | "):
        assert text in printed

    found = json.loads((output / "report.json").read_text())["data"]["own"]["figures"]
    log = watch(tiny, read_jsonl(path), settings)
    assert log["PECAN"]["F1"] == pytest.approx(found["truth"]["PECAN"]["F1"]["value"] / 100, abs=1e-4)
    assert log["graphs"]["bullets that are true"] == pytest.approx(
        found["bullets"]["all levels"]["true"]["value"], abs=1e-4)
