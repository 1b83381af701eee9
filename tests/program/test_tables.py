"""From answers to a line of predictions, a summary, and the cells of every table, next to the paper's figures."""
import itertools
import json
import re
import shutil
from pathlib import Path

import pytest
from runs import ROOT, run, table, write_lines

import eval
from core.disk import read_rows
from data import Answer, Document, Prepared, Question
from evaluation import datasets, metrics, tables
from evaluation.answers import Answers
from evaluation.runner import Runner
from evaluation.tables import cells, quantity
from pecan import Step

# --- by hand: all numbers differ, so that no mix-up goes unnoticed --------------------------------------------------

def test_a_line_of_predictions(tmp_path):
    """It holds all that a page needs, a table's rows what a table needs."""
    step = Step(3, 1, 2, .1, .2, 30, 40, 50, candidates=[(3, .5, .6)], verdict="Yes")
    answer = Answer("Lee Mara", [3, 4, 4], 6, 7, "yes", False, [step], {"room": 5}, {"calls": 8, "refused": 9})
    question = Question("q", "Who?", ["Tom", "Mara Lee", "Al"], {"options": ["a"], "gold": 0, "else": 1})
    document = Document("d", ["x"])
    answers = Answers(tmp_path / "p.jsonl", {})
    answers.add(document, question, Prepared(["x"], 10, counts={"calls": 11, "refused": 12}), answer, None)
    [line] = read_rows(answers.path)
    assert line.pop("trace") == [json.loads(json.dumps(vars(step)))] and line.pop("search") == {"room": 5}
    assert answers.rows == {("d", "q"): line}
    assert line.pop("hash") == document.hash
    assert line == json.loads("""{"id": "q", "document": "d", "question": "Who?",
        "prediction": "Lee Mara", "answers": ["Tom", "Mara Lee", "Al"], "nodes": 3, "flops": 6, "tokens": 7,
        "construction_flops": 10, "end": "yes", "cut": false, "counts": {"calls": 8, "refused": 9}, "graph": null,
        "construction_counts": {"calls": 11, "refused": 12}, "options": ["a"], "gold": 0}""")


# Each column and its cell for the four answers below (of the intervals, for others that are easier to read).
CELLS = """
F1             | 75.0
95 %           | 12.3-56.8
EM             | 25.0
accuracy       | 0.0
ROUGE-L        | 50.0
nodes          | 3.0
FLOPs/query    | 300
FLOPs          | 300
ratio          | 0.50x
FLOPs/document | 4.00
graph          | 4.00
cut            | 1/2
refused        | 24 of 68, 12 dropped, 8 cut
documents      | 2
n              | 4
F1 - PECAN     | -2.0 (-3.0 to +4.0)
F1 - first row | -2.0 (-3.0 to +4.0)
diff           | -2.0
"""


def row(n: int, document: str, text: str, nodes: int, cut: bool = False) -> dict:
    return json.loads("""{"document": "d", "answers": ["Mara Lee"], "counts": {"calls": 2, "refused": 1, "dropped": 3},
        "construction_counts": {"calls": 30, "refused": 10, "dropped": 0, "cut": 4}, "options": ["Al", "Tom"],
        "gold": 0, "graph": "g"}""") | {
        "id": n, "hash": document, "prediction": text, "nodes": nodes, "tokens": 10 * nodes, "flops": 100 * nodes,
        "construction_flops": {"a": 7, "b": 1}[document], "cut": cut}


ANSWERS = [row(1, "b", "Lee Mara", 9), row(2, "a", "Mara Lee", 1, True), row(3, "a", "Lee Mara", 1, True),
           row(4, "a", "No.", 1)]


def test_a_summary_by_hand():
    """Figures are means, not medians. A document counts once, however many of its questions were answered or cut."""
    pecan = [row(4, "a", "Mara Lee", 2)]
    found = metrics.summary(ANSWERS, pecan)
    assert (found["tokens"], found["first_word_again"]) == (30, 1) and [*found["histogram"].items()] == [(1, 3), (9, 1)]
    for name, values in (("nodes", [9, 1, 1, 1]), ("flops", [900, 100, 100, 100]), ("construction_flops", [1, 7]),
                         ("f1", [100, 100, 100, 0])):
        assert found[f"{name}_interval"] == metrics.interval(values)
    assert found["difference"] == metrics.difference(ANSWERS, pecan) != metrics.summary(pecan, pecan)["difference"]

    given = found | {"difference": {"f1": -2, "interval": [-3, 4]}, "f1_interval": [12.34, 56.78]}
    assert dict(zip(tables.COLUMNS, cells(given, tables.COLUMNS), strict=True)) == dict(table(CELLS))
    whole = metrics.summary(ANSWERS) | {"nodes": 0, "graphs": 0, "counts": {}}            # without PECAN's run
    assert cells(whole, ["nodes", "graph", "refused", "ratio", "diff"]) == ["-", "-", "none", "-", "-"]


def test_predictions_are_scored_again(tmp_path):
    """Files in the given order. A file means those of its other processes, too. (Two would be compared.)"""
    files = {write_lines(tmp_path / f"{name}.jsonl", rows): rows
             for name, rows in (("y", ANSWERS), ("x", ANSWERS[1:]), ("z", ANSWERS))}
    write_lines(tmp_path / "y.jsonl", ANSWERS[:1])
    for process, rows in ((1, ANSWERS[1:2]), (12, ANSWERS[2:])):
        write_lines(tmp_path / f"y.{process}.jsonl", rows)
    header, *lines = (re.split("  +", line) for line in run("--score", *files).stdout.splitlines())
    assert header == ["predictions", "F1", "95 %", "ROUGE-L", "EM", "accuracy", "n"]
    assert lines == [[str(path), *cells(metrics.scores(rows), header[1:])] for path, rows in files.items()]


@pytest.mark.parametrize("flops, printed", table("""
    0         | 0.00
    999       | 999
    999.5     | 1.00K
    9.994     | 9.99
    9.996     | 10.0
    99.94     | 99.9
    99.95     | 100
    1e3       | 1.00K
    9.55e8    | 955M
    9.9999e8  | 1.00G
    1.6667e9  | 1.67G
    3.1e13    | 31.0T
    3.3619e15 | 3362T"""))
def test_flops_are_printed_with_three_digits(flops, printed):
    assert quantity(float(flops)) == printed


# --- from the runs to a printed table -------------------------------------------------------------------------------

# {options of eval.py: what it then prints over two data sets, Qasper and mine: some blocks of a table}.
TEXT = (Path(__file__).parent / "tables.txt").read_text(encoding="utf-8")
PRINTED = dict(part.split("\n\n", 1) for part in TEXT.strip().split("\n\neval.py")[1:])


def numbered(rows: list, pecan: list | None) -> dict:
    """The summary of a run that has one row, (k, whether there are options): k is in all figures."""
    [(k, options)] = rows
    found = {"f1": k, "f1_interval": [k - .5, k + .5], "em": k + .1, "rouge_l": k + .3, "nodes": k + .4, "graphs": k,
             "flops": k * 1e9, "construction_flops": k * 1e12, "cut_documents": k, "documents": 10 * k, "n": 100 * k,
             "counts": {"calls": k, "refused": 0, "dropped": 2, "cut": 0}, "histogram": {k: 1, k + 10: 41},
             "first_word_again": 0} | ({"accuracy": k + .2} if options else {})
    if pecan not in (None, rows):
        found |= {"ratio": k / pecan[0][0], "difference": {"f1": k - pecan[0][0], "interval": [0, k]}}
    return found


# What differs in a run, an option, and the line below the table, if there is one.
REMARKS = """
{}                                                             |                  |
{"counts": {"calls": 9, "refused": 3, "dropped": 2, "cut": 1}} |                  | 3 of 9, 2 dropped, 1 cut
{"counts": {"thinking": 4}}                                    | --question-again | 4 replies end inside
{"counts": {"encoded": 7, "longer": 0}}                        |                  |
{"counts": {"encoded": 7, "longer": 2}}                        |                  | 2 of 7 texts are longer
{"first_word_again": 5}                                        |                  |
{"first_word_again": 6}                                        |                  | 6 of 10 answers .*--question-again
{"first_word_again": 6}                                        | --question-again |
"""


@pytest.mark.parametrize("changes, option, words", table(REMARKS))
def test_what_a_reader_of_a_table_has_to_know(changes, option, words):
    run = {"label": "BM25", "n": 10, "counts": {"thinking": 0}, "first_word_again": 0} | json.loads(changes)
    found = tables.remarks({"mine": {"runs": {"bm25": run}}, "none": {"runs": {}}}, bool(option))
    assert re.fullmatch(f"BM25 on mine: .*{words}.*" if words else "", "\n".join(found))


@pytest.mark.parametrize("options", PRINTED)
def test_each_table_shows_its_runs_and_the_papers_figures(options, tmp_path, monkeypatch, spy):
    """They are those of tables.txt: the k-th run, PECAN's first, has k in all its figures, and PECAN's of the same data
    to compare with. Words are set left, numbers right. Only data with options have accuracies. Lengths (Table A3) are
    those of --model's tokenizer. Table 2 recognises the paper's checkpoints with and without -Instruct; pairs that were
    not run are its last rows."""
    monkeypatch.chdir(tmp_path)
    numbers = itertools.count(1)
    monkeypatch.setattr(Runner, "do", lambda _, run: ([(next(numbers), run.dataset.name == "mine")], {}, []))
    monkeypatch.setattr(metrics, "summary", numbered)
    monkeypatch.setattr(datasets, "TAKEN", ())              # the file may have the paper's name
    unloaded = spy("unloaded", eval)
    for data, words in (("Qasper", 3), ("mine", 5)):
        write_lines(Path(f"{data}.jsonl"), [
            {"passages": ["Tom is here."] * words * n, "questions": [{"question": "Who?", "answers": ["x"]}] * n}
            for n in (2, 1)])
    for folder in ("Meta-Llama-3.1-8B-Instruct", "Llama-3.2-3B"):
        shutil.copytree(ROOT / "tiny", folder)

    model = "Meta-Llama-3.1-8B-Instruct/."
    done = run(*options.split(), "--model", model, "--dataset", "Qasper.jsonl", "mine.jsonl")
    path, = Path("results").glob("table*.txt")
    text = path.read_text(encoding="utf-8")
    for block in PRINTED[options].split("\n\n"):
        assert f"\n\n{block}\n\n" in f"\n\n{text}\n"
    assert done.stdout.startswith(text)
    assert [folder for (folder,), _ in unloaded] == [model] * ("A3" in options)


@pytest.mark.parametrize("name", ["1", "3", "A3", "A4", "nodes"])
def test_a_file_may_take_the_papers_settings_and_figures(name, tmp_path, monkeypatch):
    """With --dataset-settings it prints what the official file prints, each X and figure, but for its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Runner, "do", lambda _, run: ([(run.top_k or 9, False)], {}, []))
    monkeypatch.setattr(metrics, "summary", numbered)
    monkeypatch.setattr(datasets, "TAKEN", ())              # the file may have the paper's name
    printed = []
    for data, options in (("Qasper", ()), ("mine", ("--dataset-settings", "Qasper"))):
        write_lines(Path(f"{data}.jsonl"), [{"text": "Tom came.", "questions": [{"question": "?", "answers": ["x"]}]}])
        printed.append(run("--table", name, "--dataset", f"{data}.jsonl", "--output", data, *options).stdout)
    official, own = (text.split("Results:")[0].split() for text in printed)
    assert own == [word.replace("Qasper", "mine") for word in official] and "needs --top" not in printed[1]
