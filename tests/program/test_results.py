"""From answers to a line of predictions, a summary and the cells of a table. And the estimate of a run's cost.

All numbers are chosen by hand, and all differ, so that no mix-up goes unnoticed.
"""

import pytest

import pecan
from core.settings import Settings
from data import EMBEDDED, Answer, Document, Prepared, Question, Step, read_jsonl
from evaluation import cost, metrics, paper, tables
from evaluation.cells import Table, as_text, quantity
from evaluation.methods import Checkpoints, rows_of
from evaluation.plan import Run
from evaluation.predictions import prediction
from llama import Cache, flops_of, length_of
from pecan import node_line

BASE = Settings(chunk=24, window=380, summary_share=0.3437, answer_tokens=4)  # the paper's, changed by tiny/pecan.json

# --- from answers to a summary --------------------------------------------------------------------------------------


def test_a_line_of_predictions():
    """A line is scored against all gold answers. It leaves out the candidates of each step."""
    step = Step(3, 1, 2, .1, .2, 30, 40, 50, candidates=[(3, .5, .6)], verdict="Yes")
    answer = Answer("Lee Mara", [3, 4, 4], 6, 7, "yes", calls=8, refused=9, trace=[step])
    question = Question("q", "Who?", ["Tom", "Mara Lee"], {"options": ["a"], "gold": 0, "else": 1})
    line = prediction(Document("d", ["x"]), question, Prepared(["x"], 10, calls=11, refused=12), answer, "g")
    assert (line["f1"], line["rouge_l"]) == (1, .5)
    wanted = {"id": "q", "document": "d", "hash": Document("", ["x"]).hash, "question": "Who?", "graph": "g",
              "prediction": "Lee Mara", "answers": ["Tom", "Mara Lee"], "nodes": 3, "flops": 6, "tokens": 7,
              "construction_flops": 10, "end": "yes", "cut": False, "calls": 8, "refused": 9, "construction_calls": 11,
              "construction_refused": 12, "options": ["a"], "gold": 0}
    assert line.items() >= wanted.items() and set(line) == {*wanted, "f1", "rouge_l", "trace"}
    assert line["trace"] == [{name: value for name, value in vars(step).items() if name != "candidates"}]


def test_a_summary_by_hand():
    """Figures are means, not medians. A document counts once, however many of its questions were answered or cut."""
    def row(document, text, nodes, cut=False):
        return {"hash": document, "prediction": text, "answers": ["Mara Lee"], "nodes": nodes, "tokens": 10 * nodes,
                "flops": 100 * nodes, "construction_flops": {"a": 7, "b": 1}[document], "cut": cut, "calls": 2,
                "refused": 1, "construction_calls": 30, "construction_refused": 10}
    found = metrics.summary([row("b", "Lee Mara", 9), row("a", "Mara Lee", 1, True), row("a", "Lee Mara", 1, True),
                             row("a", "Tom", 1)])
    assert (found["nodes"], found["tokens"], found["flops"]) == (3, 30, 300)
    assert (found["construction_flops"], found["documents"], found["cut_documents"]) == (4, 2, 1)
    assert (found["calls"], found["refused"]) == (4 * 2 + 2 * 30, 4 + 2 * 10)
    assert [*found["histogram"].items()] == [(1, 3), (9, 1)] and found["n"] == 4
    for name, values in (("nodes", [9, 1, 1, 1]), ("flops", [900, 100, 100, 100]), ("construction_flops", [1, 7])):
        assert found[f"{name}_interval"] == metrics.interval(values)
    assert (found["f1"], found["rouge_l"]) == (75, 50), "words in another order: F1 1, ROUGE-L 1/2"


# --- from the results to the tables ---------------------------------------------------------------------------------

RESULT = {"label": "x", "n": 11, "documents": 12, "f1": 21.0, "f1_interval": [20.0, 22.0], "rouge_l": 31.0,
          "rouge_l_interval": [30.0, 32.0], "em": 41.0, "nodes": 61.0, "flops": 81e9, "construction_flops": 91e9,
          "cut_documents": 5, "histogram": {60: 5, 62: 6}, "calls": 13, "refused": 7, "ratio": 1.5,
          "difference": {"f1": 2.5, "interval": [1.5, 3.5]}}
WHERE = {"F1": "21.0", "95 %": "20.0-22.0", "ROUGE-L": "31.0", "EM": "41.0", "accuracy": "none", "nodes": "61.0",
         "FLOPs/query": "81.0G", "FLOPs/document": "91.0G", "ratio": "1.50x", "cut": "5/12", "refused": "7 of 13",
         "n": "11", "F1 - PECAN": "+2.5 (+1.5 to +3.5)", "F1 - first row": "+2.5 (+1.5 to +3.5)"}


@pytest.mark.parametrize("name", [None, "1", "2", "3", "patience", "systems"])
def test_each_number_is_under_its_header(name):
    """Each cell shows the number that its header names. All numbers of this summary differ."""
    table = tables.tables_of(name, {"mine": {"runs": {"pecan": RESULT}}})[0]
    row, = (row for row in table.rows if "21.0" in row)
    found = dict(zip(table.header[::-1], row[::-1]))          # if two have one name, the first, which is measured
    assert {title: found[title] for title in found if title in WHERE}.items() <= WHERE.items()
    assert {"F1", "95 %", "n"} <= found.keys()


def of(table, first):
    """The row of a table whose first cell is `first`."""
    row, = (row for row in table.rows if row[0] == first)
    return row


def test_measured_next_to_published():
    """Table 1 shows each run next to the paper's figures, and "not run" in all other rows."""
    results = {"Qasper": {"runs": {"pecan": RESULT, "whole": RESULT}}}
    qasper, *others = tables.tables_of("1", results)
    assert of(qasper, "PECAN")[-4:] == ["49.7", "47.9", "66.9T", "1.00x"]
    assert of(qasper, "whole document (published: Llama-3.1-8B)")[-2:] == ["92.5T", "1.38x"]
    assert of(qasper, "MeMWalker")[1:10] == ["not run"] * 8 + ["39.0"] and len(qasper.rows) == 14
    assert [table.title for table in others] == ["Table 1, NarrativeQA", "Table 1, HotpotQA", "Table 1, MuSiQue"]
    assert of(others[0], "PECAN")[1:10] == ["not run"] * 8 + ["61.1"]
    mine = tables.tables_of("1", {"mine": {"runs": {}}})[0]
    assert of(mine, "PECAN")[1:] == ["not run"] * 8 + ["none"] * 4


def test_systems_show_published_figures_with_their_data_and_model():
    by_title = {table.title: table for table in tables.tables_of("systems", {})}
    hotpotqa = by_title["Systems, HotpotQA"]
    assert of(hotpotqa, "GARLIC")[-3:] == ["F1 43.5", "official file", "Llama-3.1-8B"]
    assert of(hotpotqa, "GraphReader")[-3:] == ["F1 70.0, EM 55.0", "LongBench-E, 300 rows", "GPT-4-128k, window 4k"]
    assert of(by_title["Systems, QuALITY"], "JERR (reconstruction)")[-3:] == [
        "accuracy 86.39", "official dev set", "qwen-plus-128k"]
    quality = tables.tables_of("systems", {"QuALITY": {"runs": {"garlic": RESULT | {"accuracy": 25.0}}}})[0]
    assert of(quality, "GARLIC")[4] == "25.0"


def test_table_2_knows_its_models():
    """The paper's checkpoints are recognised with and without -Instruct. Pairs that were not run are the last rows."""
    label = "Meta-Llama-3.1-8B-Instruct + Llama-3.2-3B-Instruct"
    table = tables.tables_of("2", {"Qasper": {"runs": {"a": RESULT | {"label": label}, "b": RESULT}}})[0]
    assert [(row[0], row[-1]) for row in table.rows[:2]] == [(label, "49.6"), ("x", "none")]
    assert len(table.rows) == 2 + 4 and all(row[1] == "not run" for row in table.rows[2:])


def test_amortised_costs():
    """Table A4: search + construction / queries, next to the paper's rows."""
    runs = {"pecan": RESULT | {"flops": 2e13, "construction_flops": 4e13}, "whole": RESULT | {"flops": 9e13}}
    table = tables.tables_of("A4", {"Qasper": {"runs": runs}})[0]
    assert [row[1] for row in table.rows] == ["90.0T", "40.0T", "20.0T", "60.0T", "40.0T", "30.0T", "25.0T"]
    assert [row[3] for row in table.rows] == ["92.5T", "136.6T", "66.9T", "203.5T", "135.2T", "101.1T", "84.0T"]


def test_lengths_are_under_their_headers():
    lengths = {"average": 2.6, "least": 1, "most": 5, "documents": 7, "questions": 9}
    table, = tables.tables_of("A3", {"Qasper": {"lengths": lengths}})
    assert table.header[1:6] == ["average", "min", "max", "documents", "questions"]
    assert table.rows[0] == ["Qasper", "3", "1", "5", "7", "9", "4,866", "918", "29,408", "1,451"]


def test_a_histogram_loses_no_query():
    """The bar of the most queries has 40 signs; others are rounded up, so one query shows."""
    rows = tables.histogram_rows({5: 1, 9: 2, 10: 1, 61: 81})
    assert [[row[0], row[1], len(row[2])] for row in rows if row[1] != "0"] == [
        ["5-9", "3", 2], ["10-14", "1", 1], ["60-64", "81", 40]]
    assert len(rows) == 13


def test_words_to_the_left_and_numbers_to_the_right():
    rows = [["a", "1.2", "1", "##", "x"], ["bcdef", "785M", "none", "#", "some"]]
    table = Table("t", ["data", "n", "n", "", "by"], rows)
    assert as_text(table).splitlines() == [
        "t", "data      n     n        by", "a       1.2     1  ##     x", "bcdef  785M  none  #   some"]


@pytest.mark.parametrize("name", tables.TABLES)
def test_nothing_is_blank(name):
    """With and without runs, every cell has text, and every table has a column of published figures."""
    runs = {row.name: RESULT for row in rows_of(name, "", "m/a", ["m/b"])}
    measured = {"runs": runs, "lengths": dict.fromkeys("abcde", 9)}
    for results in ({}, {"Qasper": measured}, {"mine": measured}):
        for table in tables.tables_of(name, results):
            assert all(len(row) == len(table.header) for row in table.rows)
            assert all(cell for row in table.rows for title, cell in zip(table.header, row) if title)
            assert len(as_text(table).splitlines()) == len(table.rows) + 2 and "published" in " ".join(table.header)


def test_flops_have_three_digits():
    flops = (0, 999, 999.5, 9.994, 9.996, 99.94, 99.95, 1e3, 9.55e8, 9.9999e8, 1.6667e9, 3.1e13, 3.3619e15)
    assert [quantity(x) for x in flops] == [
        "0.00", "999", "1.00K", "9.99", "10.0", "99.9", "100", "1.00K", "955M", "1.00G", "1.67G", "31.0T", "3362T"]


# --- what a run would cost ------------------------------------------------------------------------------------------

def test_the_cost_of_a_generation_is_what_it_costs(tiny, ids):
    """The estimate for a prompt and a reply of full length equals the model's own count."""
    before = tiny.flops
    cache = Cache(tiny, 1, 64)
    hidden, _ = tiny.read(cache, [[(None, ids(40))]])
    reply, _ = tiny.generate(cache, hidden, 9)
    assert len(reply[0]) == 9, "this reply ends early: choose another prompt"
    assert cost.generation(tiny.config, 40, 9) == tiny.flops - before


def test_memory_of_attention_grows_with_the_keys(tiny):
    """Up to the size of a block: three float32 copies of the weights and the scores, for each head, token and key."""
    few, many = (cost.bytes_of_pass(tiny.config, 2, 5, 99, keys) for keys in (7, 17))
    assert many - few == (3 * 4 + 2) * tiny.config.heads * 5 * 10


class Data:
    """A data set of one document."""

    def __init__(self, document, name="mine"):
        self.documents = [document]
        self.name = name


def planned(data, settings=BASE):
    checkpoints = Checkpoints(str(EMBEDDED.parent), None, None, None, None, "cpu", "auto")
    return Run(data, None, "", checkpoints, settings, None, None, None)


@pytest.mark.parametrize("passages", [read_jsonl(EMBEDDED, 1)[0].passages[:3], ["Mara is a baker."]], ids=len)
def test_the_estimate_counts_every_part(tiny, monkeypatch, passages):
    """Every part is right for a document of one window, or of less than one node, with one question."""
    monkeypatch.setitem(paper.FIXED_NODES, "mine", 9)
    monkeypatch.setattr(cost, "PASS", 5)
    document = Document("d", passages, [Question("q", "Who is it?", ["x"])])
    t, c = tiny.tokenizer, tiny.config
    found = cost.expected(planned(Data(document)), 400)
    opening = length_of(pecan.question_prompt(t, "Who is it?"))
    turn = length_of(pecan.answer_turn(t, 0))
    read = found["tokens"]
    assert read == sum(length_of(node_line(t, None, text)) for text in pecan.chunks(t, document, 24)) < 9 * 24
    assert read % 24 > 0, "the last node is shorter"
    checked = read // 24 + 1
    assert [found[name] for name in ("documents", "questions", "windows", "calls")] == [1, 1, 1, 1 + checked + 1]

    instruction = length_of(pecan.summary_prompt(t, []))
    assert found["construction"] == cost.generation(c, instruction + read, read // 2)
    limit, _ = pecan.room_for_summary(t, BASE)
    assert found["of a batch"] == cost.bytes_of_pass(c, 4, instruction + read, instruction + read + limit)

    prompt = opening + read + turn
    assert found["whole"] == cost.generation(c, prompt, 4)
    assert found["of the whole"] == cost.bytes_of_pass(c, 4, prompt, prompt + 4)
    assert found["of a search"] == cost.bytes_of_pass(c, 4, 5, 380, prompt)
    cut = cost.expected(planned(Data(document)), prompt)        # this window must hold the answer too
    assert cut["whole"] == cost.generation(c, prompt - 4, 4)

    answer = sum(flops_of(c, 1, prompt + n, 1) for n in range(4))
    checks = checked * flops_of(c, len(t.frame.close), opening + read, 1)
    assert found["search"] == flops_of(c, prompt, prompt // 2) + checks + answer
