"""From answers to a line of predictions, a summary and the cells of a table.

All numbers are chosen by hand, and all differ, so that no mix-up goes unnoticed.
"""
import json

from runs import table

from core.disk import unsealed
from data import Answer, Document, Prepared, Question
from evaluation import cost, metrics, tables
from evaluation.answers import Predictions
from evaluation.tables import Table, as_text, quantity
from llama import Cache
from pecan import Step


def test_a_line_of_predictions(tmp_path):
    """A line is scored against all gold answers. It leaves out the candidates of each step."""
    step = Step(3, 1, 2, .1, .2, 30, 40, 50, candidates=[(3, .5, .6)], verdict="Yes")
    answer = Answer("Lee Mara", [3, 4, 4], 6, 7, "yes", trace=[step], counts={"calls": 8, "refused": 9})
    question = Question("q", "Who?", ["Tom", "Mara Lee"], {"options": ["a"], "gold": 0, "else": 1})
    document = Document("d", ["x"])
    predictions = Predictions(tmp_path / "p.jsonl")
    predictions.add(document, question, Prepared(["x"], 10, counts={"calls": 11, "refused": 12}), answer, "g")
    line = unsealed(json.loads(predictions.path.read_text()), "the line")
    assert line.pop("hash") == document.hash and line.pop("trace") == [
        {name: value for name, value in vars(step).items() if name != "candidates"}]
    assert line == json.loads("""{"id": "q", "document": "d", "question": "Who?", "graph": "g",
        "prediction": "Lee Mara", "answers": ["Tom", "Mara Lee"], "nodes": 3, "flops": 6, "tokens": 7,
        "construction_flops": 10, "end": "yes", "cut": false, "counts": {"calls": 8, "refused": 9},
        "construction_counts": {"calls": 11, "refused": 12}, "options": ["a"], "gold": 0, "f1": 1, "rouge_l": 0.5}""")


def test_a_summary_by_hand():
    """Figures are means, not medians. A document counts once, however many of its questions were answered or cut."""
    def row(document, text, nodes, cut=False):
        return {"hash": document, "prediction": text, "answers": ["Mara Lee"], "nodes": nodes, "tokens": 10 * nodes,
                "flops": 100 * nodes, "construction_flops": {"a": 7, "b": 1}[document], "cut": cut,
                "counts": {"calls": 2, "refused": 1, "dropped": 3},
                "construction_counts": {"calls": 30, "refused": 10, "dropped": 0, "cut": 4},
                "options": ["Al", "Tom"], "gold": 0, "graph": "g"}
    found = metrics.summary([row("b", "Lee Mara", 9), row("a", "Mara Lee", 1, True), row("a", "Lee Mara", 1, True),
                             row("a", "Tom", 1)])
    assert found["tokens"] == 30 and [*found["histogram"].items()] == [(1, 3), (9, 1)]
    for name, values in (("nodes", [9, 1, 1, 1]), ("flops", [900, 100, 100, 100]), ("construction_flops", [1, 7])):
        assert found[f"{name}_interval"] == metrics.interval(values)
    interval = "{:.1f}-{:.1f}".format(*metrics.interval([100, 100, 100, 0]))
    run = found | {"ratio": 1.5, "difference": {"f1": -2, "interval": [-3, 4]}}
    assert dict(zip(tables.COLUMNS, tables.cells(run, tables.COLUMNS))) == {
        "F1": "75.0", "95 %": interval, "EM": "25.0", "accuracy": "0.0", "ROUGE-L": "50.0", "nodes": "3.0",
        "FLOPs/query": "300", "FLOPs": "300", "ratio": "1.50x", "FLOPs/document": "4.00", "graph": "4.00", "cut": "1/2",
        "refused": "24 of 68, 12 dropped, 8 cut", "documents": "2", "n": "4", "F1 - PECAN": "-2.0 (-3.0 to +4.0)",
        "F1 - first row": "-2.0 (-3.0 to +4.0)", "diff": "-2.0"}
    whole = found | {"nodes": 0, "graphs": 0, "counts": {}}            # without PECAN's run
    assert tables.cells(whole, ["nodes", "graph", "refused", "ratio", "diff"]) == ["-", "-", "none", "-", "-"]


def test_table_2_knows_its_models():
    """The paper's checkpoints are recognised with and without -Instruct. Pairs that were not run are the last rows."""
    label = "Meta-Llama-3.1-8B-Instruct + Llama-3.2-3B"
    run = {"label": label, "n": 11, "f1": 21.0, "f1_interval": [20.0, 22.0]}
    table = tables.tables_of("2", {"Qasper": {"runs": {"a": run}}})[0]
    assert (table.rows[0][0], table.rows[0][-1]) == (label, "49.6")
    assert [row[1] for row in table.rows[1:]] == ["not run"] * 4


def test_printed_numbers_and_tables():
    """FLOPs have three digits. Words are set left, numbers right."""
    for flops, printed in table("""
            0 | 0.00\n 999 | 999\n 999.5 | 1.00K\n 9.994 | 9.99\n 9.996 | 10.0\n 99.94 | 99.9\n 99.95 | 100
            1e3 | 1.00K\n 9.55e8 | 955M\n 9.9999e8 | 1.00G\n 1.6667e9 | 1.67G\n 3.1e13 | 31.0T\n 3.3619e15 | 3362T"""):
        assert quantity(float(flops)) == printed
    rows = [["a", "1.2", "1", "x"], ["bcdef", "785M", "none", "some"]]
    assert as_text(Table("t", ["data", "n", "n", "by"], rows)).splitlines() == [
        "t", "data      n     n    by", "a       1.2     1     x", "bcdef  785M  none  some"]


def test_the_cost_of_a_generation_is_what_it_costs(tiny, ids):
    """The estimate for a prompt and a reply of full length equals the model's own count."""
    before = tiny.flops
    cache = Cache(tiny, 1, 64)
    hidden, _ = tiny.read(cache, [[(None, ids(40))]])
    reply, _ = tiny.generate(cache, hidden, 9)
    assert len(reply[0]) == 9, "this reply ends early: choose another prompt"
    assert cost.generation(tiny.config, 40, 9) == tiny.flops - before
