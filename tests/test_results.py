"""What becomes of answers: a line, a summary, the cells of a table. And the estimate of what all of it would cost.

All by hand: every number is another one, so that none can be taken for another.
"""

import pytest

import pecan
from core.settings import Settings
from data import EMBEDDED, Answer, Document, Prepared, Question, read_jsonl
from evaluation import cost, metrics, runner, tables
from evaluation.runner import summary
from llama import Cache, flops_of, length_of
from pecan import node_line

BASE = Settings(chunk=24, window=380, summary_share=0.3437, answer_tokens=4)        # tiny/pecan.json over the paper's

# --- from answers to a summary --------------------------------------------------------------------------------------


def prediction(document, prediction, nodes, **changes):
    """A row of predictions; the gold answer is "Mara Lee"."""
    return {"hash": document, "prediction": prediction, "answers": ["Mara Lee"], "nodes": nodes, "tokens": 10 * nodes,
            "flops": 100 * nodes, "construction_flops": {"a": 7, "b": 1}[document], "cut": False} | changes


def test_a_summary_by_hand():
    """Means, not medians; documents are counted once, however many of their questions were answered or cut."""
    rows = [prediction("a", "Mara Lee", 1, cut=True), prediction("a", "Lee Mara", 1, cut=True),
            prediction("a", "Tom", 1, cut=True), prediction("b", "Lee Mara", 9)]
    found = summary(rows)
    assert (found["nodes"], found["tokens"], found["flops"]) == (3, 30, 300)
    assert (found["construction_flops"], found["documents"], found["cut_documents"]) == (4, 2, 1)
    assert found["histogram"] == {"1": 3, "9": 1} and found["n"] == 4
    for name, values in (("nodes", [1, 1, 1, 9]), ("flops", [100, 100, 100, 900]), ("construction_flops", [7, 1])):
        assert found[f"{name}_interval"] == metrics.interval(values)
    assert (found["f1"], found["rouge_l"]) == (75, 50), "words in another order: F1 1, ROUGE-L 1/2"


def test_repeats_are_counted_once_a_document():
    """However many questions were asked about it; and said below the table, if there are any."""
    line = runner.prediction(Document("d", ["x"]), Question("q", "Who?", ["x"]), Prepared(["x"], repeats=5, loops=7),
                             Answer("x", [0], 2, 3), None)
    assert (line["construction_repeats"], line["construction_loops"]) == (5, 7)

    of_document = {"construction_repeats": 5, "construction_loops": 7}
    rows = [prediction("a", "Tom", 1, **of_document), prediction("a", "Lee", 1, **of_document), prediction("b", "x", 1)]
    found = summary(rows)
    assert (found["repeats"], found["loops"]) == (5, 7)
    runs = {"pecan": {"label": "PECAN"} | found, "bm25": {"label": "BM25", "repeats": 0, "loops": 0}}
    assert tables.remarks("A3", {"mine": {"runs": runs}}, None) == [
        "PECAN on mine: 5 repeated bullets left out, 7 replies looped."]


def test_each_score_is_its_own_metric():
    found = metrics.scores([prediction("a", "Lee Mara. Tom sat", 1)])
    answers = ["Mara Lee"]
    for name, metric in (("f1", metrics.f1), ("rouge_l", metrics.rouge_l), ("rouge", metrics.rouge_l_of_rouge)):
        assert found[name] == 100 * metric("Lee Mara. Tom sat", answers)
    assert len({found["f1"], found["rouge_l"], found["rouge"]}) == 3


def test_an_interval_is_that_of_its_metric():
    """All answers have the right words (F1 100, no interval to speak of), half of them in another order."""
    found = metrics.scores([prediction("a", text, 1) for text in ("Mara Lee", "Lee Mara") * 10])
    assert found["f1_interval"] == [100, 100]
    assert found["rouge_l_interval"] == pytest.approx(metrics.interval([100, 50] * 10))
    low, high = found["rouge_l_interval"]
    assert 50 < low < 75 < high < 100


def test_a_line_is_scored_against_all_gold_answers():
    question = Question("q", "Who?", ["Tom", "Mara Lee"])
    line = runner.prediction(Document("d", ["x"]), question, Prepared(["x"]), Answer("Lee Mara", [0], 2, 3), None)
    assert (line["f1"], line["rouge_l"]) == (1, .5)


# --- from the results to the tables ---------------------------------------------------------------------------------

RESULT = {"label": "x", "n": 11, "documents": 12, "f1": 21.0, "f1_interval": [20.0, 22.0], "rouge_l": 31.0,
          "rouge_l_interval": [30.0, 32.0], "rouge": 41.0, "bleu4": 51.0, "nodes": 61.0, "tokens": 71.0, "flops": 81e9,
          "construction_flops": 91e9, "cut_documents": 5, "histogram": {"60": 5, "62": 6}, "search by": "s",
          "graph by": "g", "calls": 13, "refused": 0, "repeats": 0, "loops": 0,
          "difference": {"n": 11, "f1": 2.5, "interval": [1.5, 3.5]}}
WHERE = {"F1": "21.0", "95 %": "20.0-22.0", "ROUGE-L": "31.0", "FLOPs/query": "81.0G", "n": "11", "nodes": "61.0",
         "ratio": "1.00x", "FLOPs/document": "91.0G", "cut": "5/12", "graph by": "g", "search by": "s",
         "F1 - PECAN": "+2.5 (+1.5 to +3.5)"}


@pytest.mark.parametrize("name", [None, "1", "2", "3", "patience"])
def test_each_number_is_under_its_header(name):
    """Every number of a summary is another one here, so that none can be shown for another."""
    table = tables.SHOW[name]({"mine": {"runs": {"pecan": RESULT}}})[0]
    row, = (row for row in table.rows if "21.0" in row)
    found = dict(zip(table.header[::-1], row[::-1]))          # of two columns of one name the first, the measured one
    assert {title: found[title] for title in WHERE if title in found} == {
        title: WHERE[title] for title in WHERE if title in found}
    assert found["F1"] == "21.0" and found["n"] == "11"


def test_lengths_are_under_their_headers():
    lengths = {"average": 3, "least": 1, "most": 5, "documents": 7, "questions": 9}
    table, = tables.table_a3({"mine": {"runs": {}, "lengths": lengths}})
    assert table.header[1:6] == ["average", "min", "max", "documents", "questions"]
    assert table.rows[0][:6] == ["mine", "3", "1", "5", "7", "9"]


def test_a_histogram_loses_no_query():
    """Ranges of numbers, if there are many: each query is in one row, that of its number of nodes."""
    assert [row[:2] for row in tables.histogram_rows({0: 1, 2: 4})] == [["0", "1"], ["1", "0"], ["2", "4"]]
    rows = tables.histogram_rows({0: 1, 3: 2, 4: 4, 61: 8})
    assert [row[:2] for row in rows if row[1] != "0"] == [["0-3", "3"], ["4-7", "4"], ["60-63", "8"]]


# --- what a run would cost ------------------------------------------------------------------------------------------

def test_the_cost_of_a_generation_is_what_it_costs(tiny, ids):
    """A prompt and a reply that is not ended early, counted by the model."""
    before = tiny.flops
    cache = Cache(tiny, 1, 64)
    hidden, _ = tiny.read(cache, [[(None, ids(40))]])
    reply, _ = tiny.generate(cache, hidden, 9)
    assert len(reply[0]) == 9, "another prompt is needed: this reply ends"
    assert cost.generation(tiny.config, 40, 9) == tiny.flops - before


def test_the_memory_of_a_run_is_that_of_the_larger_part(model):
    """A batch of windows, or a longer whole document; weights and caches have the bytes of their tensors."""
    c = model.config
    weights = sum(tensor.nbytes for tensor in model.weights.values())
    for slots, longest in ((3 * 512, 0), (512, 700)):
        cache = Cache(model, 1, max(slots, longest))
        kept = sum(tensor.nbytes for tensor in (*cache.keys, *cache.values))
        computed = 4 * longest * (3 * c.hidden + 2 * c.width + 2 * c.heads * c.head_width + 2 * c.head_width)
        assert cost.memory(c, cost.Cost(slots=slots, longest=longest), 4) == (weights, kept + computed)



def test_the_estimate_counts_every_part(tiny):
    """A document of one window and one question, part by part."""
    document = Document("d", read_jsonl(EMBEDDED, 1)[0].passages[:3], [Question("q", "Who is it?", ["x"])])
    t = tiny.tokenizer
    c = tiny.config
    found = cost.expected([document], tiny, tiny, BASE, 9, 400)
    opening = length_of(pecan.question_prompt(t, "Who is it?"))
    turn = length_of(pecan.answer_turn(t, 0))
    close = len(t.frame.close)
    read = found.tokens
    assert read == sum(length_of(node_line(t, None, text)) for text in pecan.chunks(t, document, 24)) < 9 * 24
    assert (found.documents, found.questions, found.windows, found.calls) == (1, 1, 1, 1 + read // 24 + 1)

    instruction = length_of(pecan.summary_prompt(t, {}))
    assert found.construction == cost.generation(c, instruction + read, read // 2)
    prompt = opening + read + turn
    assert found.whole == cost.generation(c, prompt, 4) and found.longest == prompt + 4

    cut = cost.expected([document], tiny, tiny, BASE, 9, prompt)    # the whole document's window holds the answer too
    assert cut.whole == cost.generation(c, prompt - 4, 4) and cut.longest == prompt

    answer = sum(flops_of(c, 1, prompt + n, 1) for n in range(4))
    checks = read // 24 * flops_of(c, close, opening + read, 1)
    assert found.search == flops_of(c, prompt, prompt // 2) + checks + answer

    full = 380 - 4
    room = full - opening - turn
    checks = room // 24 * flops_of(c, close, opening + room, 1)
    answer = sum(flops_of(c, 1, full + n, 1) for n in range(4))
    assert found.most == flops_of(c, full, full) + checks + answer
