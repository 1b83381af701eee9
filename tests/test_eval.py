"""The evaluation as it is run: tables, kills, several processes, two runs at once, mistakes."""
import contextlib
import fcntl
import gc
import http.server
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
import weakref
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from core.command import user_errors

import pytest
import torch
from hostile import files, short_set
from speed.measure import peak_of
from tqdm import tqdm

import eval as command_line
import pecan
from baselines import common, jerr
from baselines.whole import Whole
from core.checkpoint import read_config
from core.files import InputError, MemoryShortage, OutputError, reading
from core.settings import PAPER, Settings, resolve
from data import EMBEDDED, read_jsonl
from evaluation import cost, dry_run, metrics, paper, tables
from evaluation.cells import as_markdown, as_text, quantity
from evaluation.predictions import Predictions
from evaluation.runner import Runner, answer_all
from evaluation.runs import METHODS, Run, name_of, runs_of, top_k_of
from pecan import build

ROOT = Path(__file__).parents[1]
FIRST = json.loads(EMBEDDED.read_text().splitlines()[0])         # a document of the embedded set


def in_process(main, *arguments):
    """Run a command line in this process; the result has the fields of subprocess.run's."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = user_errors(lambda: main(["--device", "cpu", *map(str, arguments)]))
    return SimpleNamespace(returncode=code, stdout=stdout.getvalue(), stderr=stderr.getvalue())


def run(*arguments):
    """eval.py in this process, which saves the imports."""
    return in_process(command_line.main, *arguments)


def run_alone(*arguments, processes=None, **options):
    """eval.py as a user runs it, in its own process, or in several with torchrun."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)] if processes else []
    command = [sys.executable, *launcher, str(ROOT / "eval.py"), "--device", "cpu", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, **options)


def times_written(folder):
    return {path: path.stat().st_mtime_ns for path in folder.glob("*.json")}


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """The data set of most runs here: the beginnings of three embedded documents, with four questions each."""
    return short_set(tmp_path_factory.mktemp("three"), 3)


@pytest.fixture(scope="module")
def undisturbed(three, tmp_path_factory):
    """A run over it that nothing has disturbed: its folder and what it printed."""
    folder = tmp_path_factory.mktemp("undisturbed") / "r"
    done = run_alone("--dataset", three, "--output", folder)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The beginnings of two embedded documents with two questions each, where the questions are of no interest."""
    path = tmp_path_factory.mktemp("small") / "small.jsonl"
    rows = [json.loads(line) for line in EMBEDDED.read_text().splitlines()[:2]]
    path.write_text("\n".join(json.dumps(row | {"passages": row["passages"][:6], "questions": row["questions"][:2]})
                              for row in rows))
    return path


# --- runs -----------------------------------------------------------------------------------------------------------

def test_the_run_as_a_newcomer_sees_it(undisturbed):
    folder, printed = undisturbed
    lines = printed.splitlines()
    assert lines[0].split()[:3] == ["data", "method", "F1"]
    labels = "PECAN  ", "PECAN, chosen heads (not in the paper)  ", "BM25 Top-5", "whole document"
    for line, label in zip(lines[1:], labels):
        assert line.startswith(f"embedded  {label}")
    assert str(folder / "results.json") in lines[-1]

    results = json.loads((folder / "results.json").read_text())
    pecan, whole = (results["data"]["embedded"]["runs"][name] for name in ("pecan", "whole"))
    rows = [json.loads(line) for line in (folder / "embedded" / "pecan.jsonl").read_text().splitlines()]
    assert pecan["n"] == len(rows) == 12 and pecan["documents"] == 3
    assert pecan["f1"] == pytest.approx(100 * sum(row["f1"] for row in rows) / 12)
    assert pecan["f1_interval"][0] <= pecan["f1"] <= pecan["f1_interval"][1]
    assert pecan["flops"] == pytest.approx(sum(row["flops"] for row in rows) / 12)
    assert all(row["nodes"] == len(row["trace"]) and row["trace"][-1]["flops"] <= row["flops"] for row in rows)
    assert sum(pecan["histogram"].values()) == 12
    assert pecan["construction_flops"] > 0 == whole["construction_flops"]


def test_a_second_run_answers_nothing_again(three, undisturbed):
    folder, printed = undisturbed
    before = files(folder)
    written = times_written(folder / "graphs")
    assert run("--dataset", three, "--output", folder).stdout == printed
    assert files(folder) == before and times_written(folder / "graphs") == written


@pytest.mark.slow
def test_killed_systems_go_on(three, tmp_path):
    """The same for methods that keep what they extracted in files of their own.

    GraphReader's prompts need a larger window than the embedded model was made for: a copy says that it has one.
    """
    pytest.importorskip("snowballstemmer")
    model = shutil.copytree(ROOT / "tiny", tmp_path / "model", ignore=shutil.ignore_patterns("*.py", "*.jsonl"))
    config = json.loads((model / "config.json").read_text()) | {"max_position_embeddings": 4096}
    (model / "config.json").write_text(json.dumps(config))

    def command(output):
        return ["--dataset", str(three), "--limit", "1", "--method", "mkrag,jerr,graphreader", "--model", str(model),
                "--window", "2048", "--chunk", "16", "--output", str(output)]
    assert run(*command(tmp_path / "whole")).returncode == 0
    kills = 0
    for answers in (1, 6):
        process = subprocess.Popen([sys.executable, str(ROOT / "eval.py"), "--device", "cpu",
                                    *command(tmp_path / "killed")], cwd=ROOT, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        while process.poll() is None:
            now = sum(path.read_bytes().count(b"\n") for path in tmp_path.glob("killed/embedded/*.jsonl*"))
            if now >= answers:
                process.kill()
                kills += 1
            time.sleep(.02)
        process.wait()
    assert kills, "the run was over too soon to be killed"
    assert run(*command(tmp_path / "killed")).returncode == 0
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
    results = json.loads((tmp_path / "whole" / "results.json").read_text())["data"]["embedded"]["runs"]
    assert all(results[name]["refused"] > 0 for name in ("mkrag", "jerr", "graphreader"))


@pytest.mark.parametrize("options, words", [(["--window", "100"], "window 100 is too small"),
                                            (["--graphs", "file"], "file: cannot be written")])
def test_a_run_that_failed_frees_its_folder(tmp_path, monkeypatch, options, words):
    """At once, though its frames live on in the exception: a second run in the same process gets as far."""
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    arguments = ["--limit", "1", "--method", "pecan", *options, "--output", str(tmp_path / "r")]
    with pytest.raises(InputError, match=words) as first:
        command_line.main(arguments)
    with pytest.raises(InputError) as second:
        command_line.main(arguments)
    assert str(second.value) == str(first.value)


def test_two_runs_on_one_folder(tmp_path):
    """The second run is refused. The lock goes with the process, so a killed one leaves none."""
    (tmp_path / "r").mkdir()
    with open(tmp_path / "r" / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        second = run("--limit", 1, "--output", tmp_path / "r")
    assert second.returncode == 2 and "another run is writing there" in second.stderr
    assert run("--limit", 1, "--method", "whole", "--output", tmp_path / "r").returncode == 0


def test_other_settings_do_not_mix(tmp_path):
    path = tmp_path / "r" / "embedded" / "pecan.jsonl"
    arguments = "--limit", 1, "--method", "pecan", "--output", tmp_path / "r"
    assert run(*arguments).returncode == 0
    kept = path.read_bytes()

    other = run(*arguments, "--patience", 2)
    assert other.returncode == 2 and "--overwrite" in other.stderr
    assert "pecan.jsonl holds answers of another patience (1 there, 2 here)" in other.stderr
    assert path.read_bytes() == kept, "earlier answers are lost"

    built = times_written(tmp_path / "r" / "graphs")
    again = run(*arguments, "--patience", 2, "--overwrite")
    assert again.returncode == 0 and path.read_bytes() != kept
    assert len(built) == 1 and times_written(tmp_path / "r" / "graphs") == built, "the graph was built again"


@pytest.mark.slow
def test_methods_run_one_after_the_other(three, undisturbed, tmp_path):
    """A method that ran before keeps its row and its ratio."""
    for method in ("pecan", "pecan-heads", "bm25"):
        run("--dataset", three, "--method", method, "--output", tmp_path / "r")
    assert run("--dataset", three, "--method", "whole", "--output", tmp_path / "r").returncode == 0
    assert files(tmp_path / "r") == files(undisturbed[0])


def test_a_row_of_other_settings_is_not_recalled(small, tmp_path):
    """PECAN's earlier row is shown next to another method's only if it was made under the same settings."""
    arguments = "--dataset", small, "--limit", 1, "--output", tmp_path / "r"
    assert run(*arguments, "--method", "pecan").returncode == 0
    assert "PECAN " in run(*arguments, "--method", "bm25").stdout
    assert "PECAN " not in run(*arguments, "--method", "bm25", "--patience", 2).stdout


def test_answers_belong_to_their_text(tmp_path):
    """The same ids over another text are refused, not mixed."""
    data = tmp_path / "mine.jsonl"
    arguments = "--dataset", data, "--method", "whole", "--output", tmp_path / "r"
    data.write_text(json.dumps(FIRST))
    assert run(*arguments).returncode == 0
    data.write_text(json.dumps(FIRST | {"passages": FIRST["passages"][:-1]}))
    other = run(*arguments)
    assert other.returncode == 2 and "answered for another text" in other.stderr


@pytest.mark.slow
def test_what_one_process_refuses_all_refuse(tmp_path):
    """The second process has another text under an old id; the first does not wait for it."""
    data = tmp_path / "mine.jsonl"
    rows = [{"id": name, "text": "Ann has a cat.", "questions": [{"question": "Who?", "answers": ["Ann"]}]}
            for name in "ab"]
    arguments = "--dataset", data, "--method", "whole,bm25", "--output", tmp_path / "r"

    def run_with(text):
        data.write_text("".join(json.dumps(row) + "\n" for row in (rows[0], rows[1] | {"text": text})))
        try:
            return run_alone(*arguments, processes=2, timeout=90)
        except subprocess.TimeoutExpired:
            pytest.fail("one process waits for the other")
    assert run_with("Bob has a dog.").returncode == 0
    second = run_with("Bob has a cow.")
    assert second.returncode != 0 and "answered for another text" in second.stderr


def test_one_bad_question_does_not_stop_the_others(tmp_path):
    bad = FIRST["questions"][0] | {"id": "long", "question": "Who " * 500}
    (tmp_path / "mine.jsonl").write_text(json.dumps(FIRST | {"questions": [bad, FIRST["questions"][1]]}))
    done = run("--dataset", tmp_path / "mine.jsonl", "--output", tmp_path / "r")
    assert done.returncode == 1
    assert done.stderr.count("not answered: question long of document test-0: window 380 is too small") == 3
    assert done.stdout.splitlines()[1].split()[-2:] == ["1", "-"]


MISTAKES = [
    (["--method", "magic"], "magic: unknown"),
    (["--method", ""], "method is empty"),
    (["--dataset", "no.jsonl"], "no.jsonl"),
    (["--dataset", EMBEDDED, EMBEDDED], "have the same name, embedded; run them one by one"),
    (["--model", "no/such/model"], "no such folder"),
    (["--encoder", "no/such/model"], "no such folder"),
    (["--window", "100", "--method", "pecan"], "window 100 is too small"),
    (["--window", "9999"], "made for 512"),
    (["--confidence", "2"], "confidence is 2"),
    (["--limit", "0"], "--limit is 0"),
    (["--nodes", "0"], "--nodes is 0"),
    (["--seed", "9" * 20], "--seed is 9"),
    (["--dtype", "int8"], "'int8' is unknown"),
    (["--device", "abacus"], "abacus"),
    (["--score", "no.jsonl"], "no.jsonl"),
    (["--output", ROOT / "README.md"], "README.md"),
    (["--top", "3", "--method", "bm25"], "--top 3"),
    (["--table", "2"], "--searcher"), (["--table", "systems", "--method", "bm25"], "--method bm25: unknown here"),
    (["--searcher", "m"], "--table 2"),
    (["--table", "3", "--nodes", "5"], "--nodes cannot be chosen with --table 3"),
    (["--table", "nodes", "--method", "whole"], "--method cannot be chosen"),
    (["--table", "patience", "--patience", "2"], "--patience cannot be chosen"),
]


@pytest.mark.parametrize("arguments, words", MISTAKES)
def test_mistakes_are_one_line_and_exit_code_2(tmp_path, arguments, words):
    if "--output" not in arguments:
        arguments = [*arguments, "--output", tmp_path / "r"]
    done = run("--limit", 1, *arguments)
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and words in errors[0]


@pytest.mark.slow
def test_a_mistake_on_the_command_line(tmp_path):
    """The same from the outside: one line, the exit code, no traceback."""
    done = run_alone("--limit", 1, "--window", 9999, "--output", tmp_path / "r")
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: window 9999 is too large")


@pytest.mark.slow
def test_command_line_of_pecan(tmp_path):
    """A text file and two questions: the graph is built once and found again."""
    text = tmp_path / "story.txt"
    text.write_text("\n\n".join(FIRST["passages"][:8]))
    question = FIRST["questions"][0]["question"]
    first = subprocess.run([sys.executable, str(ROOT / "pecan.py"), "--device", "cpu", str(text), question],
                           capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    assert "nodes read" in first.stdout and "built" in first.stderr

    again = in_process(pecan.main, text, question, "Who is it?", "--trace")
    assert again.stdout.splitlines()[:3] == first.stdout.splitlines()[:3], "the reloaded graph gives another answer"
    assert "reloaded" in again.stderr and "p_yes" in again.stdout

    graph, = tmp_path.glob("*.graph.json")
    other = tmp_path / "other.txt"
    other.write_text("The road was long.")
    wrong = in_process(pecan.main, other, "Who?", "--graph", graph)
    assert wrong.returncode == 2 and "another document" in wrong.stderr


# --- tables ---------------------------------------------------------------------------------------------------------

def result(f1, flops, **more):
    return {"label": "x", "n": 7, "documents": 2, "f1": f1, "f1_interval": [f1 - 1, f1 + 1], "rouge_l": f1 - 2,
            "em": f1 / 2, "nodes": 20.0, "tokens": 1.0, "flops": flops, "construction_flops": 4e13, "cut_documents": 1,
            "histogram": {"10": 3, "30": 4}, "calls": 0, "refused": 0, "repeats": 0, "loops": 0,
            "search by": "a", "graph by": "b"} | more


def cells(table, first):
    """The rows of a table whose first cell is `first`."""
    return [row for row in table.rows if row[0] == first]


def test_names_of_models():
    """Without the owner, the folders above, and a revision, which may hold slashes."""
    names = [name_of(model) for model in ("owner/Llama-3.1-8B", "a/b@main", "a/b@refs/pr/3", str(ROOT / "tiny"))]
    assert names == ["Llama-3.1-8B", "b", "b", "tiny"]


def test_the_peak_of_a_run_on_the_cpu_is_the_processs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 0)
    assert cost.peak_memory("cpu") > 0.1 and cost.peak_memory("cuda") == 0


def test_flops_have_three_digits():
    assert [quantity(x) for x in (0, 999, 1e3, 9.55e8, 9.9999e8, 1.6667e9, 3.1e13, 3.3619e15)] == [
        "0.00", "999", "1.00K", "955M", "1.00G", "1.67G", "31.0T", "3362T"]


def test_measured_next_to_published():
    """Table 1 shows what was run, the paper's figure of the same cell, and that the others were not run."""
    results = {"Qasper": {"runs": {"pecan": result(50.0, 2e13), "whole": result(40.0, 3e13)}}}
    qasper, *others = tables.table1(results)
    assert cells(qasper, "PECAN") == [["PECAN", "50.0", "49.0-51.0", "48.0", "20.0T", "1.00x", "1/2", "7", "-",
                                       "49.7", "47.9", "66.9T", "1.00x"]]

    whole, = cells(qasper, "whole document (published: Llama-3.1-8B)")
    assert whole[4:7] == ["30.0T", "1.50x", "1/2"] and whole[-2:] == ["92.5T", "1.38x"]
    assert cells(qasper, "MeMWalker")[0][1:9] == ["not run"] * 8 and cells(qasper, "MeMWalker")[0][9] == "39.0"
    assert len(qasper.rows) == 14 and [table.title for table in others] == [
        "Table 1, NarrativeQA", "Table 1, HotpotQA", "Table 1, MuSiQue"]
    assert cells(others[0], "PECAN")[0][1:10] == ["not run"] * 8 + ["61.1"]

    mine = tables.table1({"mine": {"runs": {"pecan": result(50.0, 2e13)}}})[0]
    assert cells(mine, "PECAN")[0][9:] == ["none"] * 4
    assert cells(mine, "BM25 Top-5")[0][1:] == ["not run"] * 8 + ["none"] * 4


def test_systems_show_published_figures_with_their_model_and_refused_replies():
    results = {"HotpotQA": {"runs": {"garlic": result(50.0, 1e12, calls=540, refused=412)}}}
    table = tables.systems(results)[0]
    assert cells(table, "GARLIC")[0][-5:] == ["412 of 540", "7", "-", "F1 43.5", "Llama-3.1-8B"]
    assert tables.overview(results)[0].rows[0][1] == "x, refused 412 of 540"
    assert cells(table, "PECAN")[0][1:11] == ["not run"] * 10
    by_title = {table.title: table for table in tables.systems(results)}
    assert cells(by_title["Systems, QuALITY"], "JERR (reconstruction)")[0][-2:] == ["accuracy 86.39", "qwen-plus-128k"]
    quality = tables.systems({"QuALITY": {"runs": {"garlic": result(50.0, 1e12, accuracy=25.0)}}})[0]
    assert cells(quality, "GARLIC")[0][4] == "25.0" and cells(table, "GARLIC")[0][4] == "none"


def test_questions_with_options(tmp_path):
    """QuALITY from the file to the table: what was predicted is matched with the options, and scored again."""
    document = read_jsonl(EMBEDDED, 1)[0]
    questions = [{"question": question.text, "options": [*question.answers, "x", "y", "z"], "gold_label": 1,
                  "difficult": n} for n, question in enumerate(document.questions[:2])]
    row = {"article_id": "a", "set_unique_id": "w", "title": "t", "article": document.passages[0],
           "questions": questions}
    (tmp_path / "q.jsonl").write_text(json.dumps(row))
    done = run("--dataset", tmp_path / "q.jsonl", "--method", "whole,jerr", "--output", tmp_path / "r")
    assert done.returncode == 0 and done.stdout.splitlines()[0].split()[5:7] == ["accuracy", "ROUGE-L"]

    of_run = json.loads((tmp_path / "r" / "results.json").read_text())["data"]["QuALITY"]["runs"]["whole"]
    rows = [json.loads(line) for line in (tmp_path / "r" / "QuALITY" / "whole.jsonl").read_text().splitlines()]
    wanted = [100.0 * (metrics.option_of(row["prediction"], row["options"]) == 0) for row in rows]
    assert (of_run["accuracy"], of_run["accuracy_difficult"]) == (sum(wanted) / 2, wanted[1])
    assert "\n(A) " in rows[0]["question"] and rows[0]["answers"] == questions[0]["options"][:1]
    again = run("--score", tmp_path / "r" / "QuALITY" / "whole.jsonl").stdout.splitlines()
    assert again[0].split()[-2:] == ["accuracy", "n"] and again[1].split()[-2] == f"{of_run['accuracy']:.1f}"


def test_garlic_has_no_confidence_threshold():
    """Whatever t_p the data set or the user gives PECAN, GARLIC follows the likelier word."""
    class Fixed(Runner):
        def __init__(self):
            self.args = command_line.parse(["--confidence", "0.9", "--method", "pecan,garlic"])

        def models_of(self, run):
            return SimpleNamespace(model=SimpleNamespace(folder=Path("nowhere"),
                                                         config=SimpleNamespace(max_length=2048)), builder=None)

    dataset = SimpleNamespace(name="Qasper")
    values = [Fixed().settings_of(dataset, METHODS[name], {}).confidence for name in ("pecan", "garlic")]
    assert values == [0.9, 0.5]


def test_table_2_knows_its_models():
    """A checkpoint's name with and without -Instruct is the paper's. The pairs that were not run come last."""
    by = {"graph by": "Llama-3.1-8B-Instruct", "search by": "Llama-3.2-3B-Instruct"}
    table = tables.table2({"Qasper": {"runs": {"a": result(50.0, 1e12, **by), "b": result(40.0, 1e12)}}})[0]
    assert len(table.rows) == 2 + 4
    assert [row[-1] for row in table.rows[:2]] == ["49.6", "none"]
    assert all(row[2] == "not run" for row in table.rows[2:])


@pytest.mark.parametrize("name", [name for name in tables.SHOW if name])
def test_nothing_is_blank(name):
    """Every cell of every table has text, with runs and without, in text and in Markdown."""
    runs = {run.name: result(50.0, 2e13, label=run.label) for run in runs_of(name, 3, ["m/b"], "m/a")}
    lengths = {"average": 4866.4, "least": 9, "most": 10, "documents": 3, "questions": 7}
    measured = {"runs": runs, "lengths": lengths}
    for results in ({}, {"Qasper": measured}, {"mine": measured}):
        shown = tables.SHOW[name](results)
        for table in shown:
            assert all(len(row) == len(table.header) for row in table.rows)
            assert all(cell for row in table.rows for title, cell in zip(table.header, row) if title)
            assert len(as_text(table).splitlines()) == len(table.rows) + 2
            assert as_markdown(table).count("|") >= (len(table.rows) + 2) * 2
        assert any("published" in " ".join(table.header) for table in shown)


def test_amortised_costs():
    """Table A4: search + construction / queries, next to the paper's rows."""
    table = tables.table_a4({"Qasper": {"runs": {"pecan": result(50.0, 2e13), "whole": result(1.0, 9e13)}}})[0]
    assert [row[1] for row in table.rows] == ["90.0T", "40.0T", "20.0T", "60.0T", "40.0T", "30.0T", "25.0T"]
    assert [row[3] for row in table.rows] == ["92.5T", "136.6T", "66.9T", "203.5T", "135.2T", "101.1T", "84.0T"]


@pytest.mark.slow
def test_the_tables_of_the_paper_are_run(small, tmp_path):
    """The ablations, the sweep and the distribution, on one document.

    Its graph is built once for all of them; the ablation without information points and chosen heads build their own.
    """
    output = tmp_path / "r"
    for table, last in (("3", "pecan-without-similarity"), ("patience", "pecan-patience-8"), ("nodes", "pecan")):
        done = run("--dataset", small, "--limit", 1, "--table", table, "--output", output)
        assert done.returncode == 0, done.stderr
        assert "small" in done.stdout and "published" in done.stdout
        assert (output / "small" / f"{last}.jsonl").exists()
        for suffix in ("txt", "md", "json"):
            assert (output / f"table-{table}.{suffix}").read_text()
        assert (output / f"table-{table}.txt").read_text().strip() in done.stdout

    assert len(list((output / "graphs").glob("*.json"))) == 3
    patience = json.loads((output / "results-patience.json").read_text())["data"]["small"]["runs"]
    assert [run["setup"]["patience"] for run in patience.values()] == list(range(1, 9))


def test_two_models_side_by_side(small, tmp_path, folder):
    """Table 2 with a random checkpoint, which searches its own graphs and the embedded model's."""
    folder = shutil.copytree(folder, tmp_path / "random")
    shutil.copy(ROOT / "tiny" / "pecan.json", folder)
    done = run("--dataset", small, "--limit", 1, "--table", "2", "--searcher", folder, "--output", tmp_path / "r")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[2:5]]
    assert [row[:2] for row in rows] == [["tiny", "tiny"], [folder.name] * 2, ["tiny", folder.name]]


def test_settings_of_the_papers_data_sets():
    """t_p and the length of an answer are the paper's for its data sets; so is the ablation's number of nodes."""
    assert PAPER["Qasper"] == {"confidence": .98, "answer_tokens": 128}
    assert PAPER["MuSiQue"] == {"confidence": .55, "answer_tokens": 32} and "mine" not in PAPER
    fixed = [run for run in runs_of("3", paper.FIXED_NODES["HotpotQA"], [], "") if run.changes][1]
    assert fixed == Run("pecan-without-progress", "w/o Dynamic Progress Control", changes={"fixed_nodes": 17})


def test_the_dry_run_estimates_the_cost(three, undisturbed, tmp_path):
    """It reads text only, writes nothing, and its assumptions are right to a factor of 2."""
    done = run("--dataset", three, "--dry-run", "--output", tmp_path / "r")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "r").exists()
    header, row = (line.split() for line in done.stdout.splitlines()[:2])
    estimate = dict(zip(header, row))
    measured = json.loads((undisturbed[0] / "results.json").read_text())["data"]["embedded"]["runs"]["pecan"]

    def number(text):
        return float(text[:-1]) * {"M": 1e6, "G": 1e9}[text[-1]]

    assert estimate["documents"] == "3" and estimate["questions"] == "12"
    assert .5 < number(estimate["construction"]) / (measured["construction_flops"] * 3) < 2
    assert .5 < number(estimate["search"]) / (measured["flops"] * 12) < 2


def test_the_dry_run_of_agents(tiny):
    """JERR by hand, the others by what must hold; one that cannot run says why, and numbers are there as JSON."""
    settings = resolve(tiny.folder, tiny.config.max_length)
    whole = read_jsonl(EMBEDDED, 1)[0]
    document = replace(whole, passages=whole.passages[:15])           # three chunks for JERR
    found = {name: dry_run.agent(name, iter([document]), tiny.config, tiny.tokenizer,
                                 replace(settings, window=4000)) for name in dry_run.AGENTS}

    def tokens_of(document):
        return sum(len(tiny.tokenizer.encode(passage)) for passage in document.passages)
    size = 2000 * settings.chunk // 300                               # of JERR's chunks
    tokens = tokens_of(document)
    chunks = -(-tokens // size)
    reply = 512 * settings.chunk // 300 / 2

    def length(text):
        return len(common.user_turn(tiny.tokenizer, text))

    def generation(prompt, reply):
        return cost.generation(tiny.config, round(prompt), round(reply))
    building = generation(length(jerr.SYNOPSIS) + tokens / chunks, reply)
    building += 2 * generation(length(jerr.ATOMS) + reply, reply) + generation(length(jerr.EDGES) + 2 * reply, reply)
    assert (found["jerr"]["construction calls"], found["jerr"]["construction"]) == (4 * chunks, chunks * building)
    answering = generation(length(jerr.KEYWORDS) + 30, reply) + generation(length(jerr.LOOK_UP) + chunks * reply, reply)
    answering += generation(130 + chunks * reply + tokens, settings.answer_tokens)
    assert found["jerr"]["calls"] == 3 * len(document.questions)
    assert found["jerr"]["questions"] == len(document.questions) * answering

    assert found["graphreader"]["calls"] == len(document.questions) * 21, "5 walks of 3.4 calls, and four"
    assert found["mkrag"]["construction calls"] > 15 * (tokens // (500 * settings.chunk // 300))
    done = run("--limit", 1, "--dry-run", "--method", "graphreader,jerr", "--json")
    numbers = json.loads(done.stdout)["embedded"]
    assert numbers["jerr"]["construction calls"] == 4 * -(-tokens_of(whole) // size) and "graphreader" not in numbers
    table = run("--limit", 1, "--dry-run", "--method", "graphreader,jerr").stdout
    assert "not run: window 380 is too small: extraction of GraphReader" in table and "JERR" in table


@pytest.mark.slow
def test_the_memory_of_a_run_is_what_the_dry_run_says(tiny):
    """What building a graph, or a whole document, adds to the loaded model, as PyTorch allocates it: within 10 %."""
    whole = read_jsonl(EMBEDDED, 1)[0]
    documents = [replace(whole, passages=whole.passages[:15])]
    settings = resolve(tiny.folder, tiny.config.max_length)
    expected = cost.expected(iter(documents), tiny, tiny, settings, None, settings.window)
    weights, added = cost.memory(tiny.config, expected, 4)
    assert weights == sum(4 * weight.numel() for weight in tiny.weights.values())

    measured = max(peak_of(lambda: build(tiny, document, settings)) for document in documents)
    assert added == pytest.approx(measured, rel=.1)

    without_graph = replace(expected, batch=0, slots=0)
    method = Whole(tiny, settings)
    prepared = [method.prepare(document) for document in documents]
    measured = max(peak_of(lambda: method.answer(prepared[n], document.questions[0].text))
                   for n, document in enumerate(documents))
    assert cost.memory(tiny.config, without_graph, 4)[1] == pytest.approx(measured, rel=.1)


# --- scoring --------------------------------------------------------------------------------------------------------

def test_predictions_are_scored_again(undisturbed, tmp_path):
    """Without a model, in this project's format and in LongBench's."""
    folder, printed = undisturbed
    ours = run("--score", folder / "embedded" / "pecan.jsonl")
    assert ours.returncode == 0
    again = float(ours.stdout.splitlines()[1].split()[1])
    before = float(printed.splitlines()[1].split()[2])
    assert again == pytest.approx(before, abs=.051), "one decimal in the table, two here"

    rows = [{"pred": "the old mill", "answers": ["old mill"]}, {"pred": "a cat", "answers": ["dog"]}]
    (tmp_path / "lb.jsonl").write_text("\n".join(json.dumps(row | {"all_classes": None, "length": 9}) for row in rows))
    theirs = run("--score", tmp_path / "lb.jsonl", folder / "embedded" / "whole.jsonl")
    assert theirs.stdout.splitlines()[1].split()[1] == "50.00" and len(theirs.stdout.splitlines()) == 3


# --- what can go wrong ----------------------------------------------------------------------------------------------

class Hub(http.server.BaseHTTPRequestHandler):
    """A hub that refuses a gated repository, or breaks off every download."""

    def do_GET(self):
        if self.server.gated:
            self.send_response(403)
            self.send_header("X-Error-Code", "GatedRepo")
            self.end_headers()
        else:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"{")

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("gated, words", [(True, "hf auth login"), (False, "without sending complete message")])
def test_a_gated_repository_and_an_interrupted_download(tmp_path, gated, words):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as hub:
        hub.gated = gated
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        address = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(tmp_path)}
        done = run_alone("--model", "a/b", "--output", tmp_path / "r", env=os.environ | address)
        hub.shutdown()

    assert done.returncode == 2
    _, error = done.stderr.splitlines()                           # the first line describes the data set
    assert error.startswith("error: a/b: cannot be fetched from the hub (") and words in error
    assert ("gated" in error.split(");")[0]) is gated


@pytest.mark.slow
def test_a_full_disk_loses_nothing(three, undisturbed, tmp_path):
    """Files may grow to 4,000 bytes only, which is enough for the first answers; then the limit is lifted."""
    # --patience is PECAN's alone, so it changes nothing here.
    arguments = "--dataset", three, "--method", "whole", "--patience", 3, "--output", tmp_path / "r"
    stopped = run_alone(*arguments, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000)))
    assert stopped.returncode == 2 and "Traceback" not in stopped.stderr
    assert "(File too large); what was finished is kept" in stopped.stderr.splitlines()[-1]
    part = tmp_path / "r" / "embedded" / "whole.jsonl.part-0"
    assert 0 < part.read_bytes().count(b"\n") < 18

    assert run(*arguments).returncode == 0
    for name in ("embedded/whole.jsonl", "embedded/whole.setup.json"):
        assert (tmp_path / "r" / name).read_bytes() == (undisturbed[0] / name).read_bytes()


def test_out_of_memory_is_one_line(capsys):
    """The allocators' own refusals of a petabyte."""
    for allocate in (lambda: torch.empty(1 << 50), lambda: bytearray(1 << 50)):
        assert user_errors(allocate) == 2
        assert capsys.readouterr().err.startswith("error: out of memory (")

    def bug():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal"):            # a bug is not a shortage
        user_errors(bug)


def test_what_ran_out_of_memory_is_free_again():
    """Although the error is kept, and without the garbage collector."""
    held = []

    def run():
        large = torch.empty(1000)
        held.append(weakref.ref(large))
        torch.empty(1 << 50)

    gc.disable()
    try:
        with pytest.raises(InputError) as kept, reading("model.safetensors", "no file of tensors"):
            run()
        assert kept.type is MemoryShortage and held[0]() is None
    finally:
        gc.enable()


@pytest.mark.slow
def test_table_1_with_and_without_an_optional_package(small, tmp_path, monkeypatch):
    """Without umap-learn RAPTOR's rows say not run, and why. With it, the same folder is completed."""
    data = "--dataset", small, "--limit", 1
    arguments = *data, "--table", "1", "--output", tmp_path / "r"
    with monkeypatch.context() as uninstalled:
        uninstalled.setitem(sys.modules, "umap", None)
        without = run(*arguments)
        chosen = run(*data, "--method", "raptor-ct", "--output", tmp_path / "s")
    assert without.returncode == 1
    assert without.stderr.count("umap is not installed (pip install -r requirements-extra.txt)") == 3
    assert chosen.returncode == 2 and chosen.stderr.splitlines()[-1].startswith("error: RAPTOR clusters with")

    kept = files(tmp_path / "r" / "small")
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    for printed, missing in ((without.stdout, 3), (done.stdout, 0)):
        rows = printed.split("\n\n")[0].splitlines()[2:]
        assert len(rows) == 14 and sum("not run" in row for row in rows) == missing
    now = files(tmp_path / "r" / "small")
    assert len(now) == 28 and all(now[name] == content for name, content in kept.items())


def test_top_x_is_the_papers():
    """On other data it follows from PECAN's FLOPs, which on the paper's data gives about the paper's."""
    config = read_config(ROOT / "tests" / "llama-3.1-8b")
    models = SimpleNamespace(model=SimpleNamespace(config=config))

    def top(run, name, pecan, option=None):
        return top_k_of(METHODS[run], models, Settings(), name, pecan, option)

    for name, known in paper.TOP_X.items():
        pecan = {"flops": paper.TABLE1["PECAN"][name].tflops * 1e12}
        for run, published in (("bm25-x", known.chunks), ("raptor-ct-x", known.nodes)):
            assert top(run, name, None) == published
            assert top(run, "mine", pecan) == pytest.approx(published, rel=.15)
        assert top("dragon", name, None) == 5 and top("memwalker", name, None) is None
        assert top("sbert-x", name, None, option=3) == 3
    with pytest.raises(InputError, match="run PECAN over mine first, or say how much with --top"):
        top("sbert-x", "mine", None)


def test_another_scorer_is_another_setup(small, tmp_path):
    """What a method uses is recognised by its content: the same weights elsewhere are the same setup."""
    scorer = shutil.copytree(ROOT / "tiny", tmp_path / "scorer", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    arguments = "--dataset", small, "--limit", 1, "--method", "longllmlingua,bm25", "--output", tmp_path / "r"
    assert run(*arguments).returncode == 0
    before = files(tmp_path / "r" / "small")
    assert run(*arguments, "--scorer", scorer).returncode == 0
    assert files(tmp_path / "r" / "small") == before

    (scorer / "config.json").write_text((scorer / "config.json").read_text() + "\n")
    done = run(*arguments, "--scorer", scorer)
    assert done.returncode == 1 and "longllmlingua.jsonl holds answers of another scorer" in done.stderr


@pytest.mark.slow
def test_batch_and_limit_may_change(small, tmp_path):
    """After a run was out of memory, fewer windows may run together; more documents may follow.

    If PECAN's run decides how much a method reads, another amount is another run. Top-X is not shown without PECAN's.
    """
    arguments = "--dataset", small, "--output", tmp_path / "r"
    assert run(*arguments, "--limit", 1, "--method", "pecan,bm25-x").returncode == 0
    assert run(*arguments, "--limit", 1, "--method", "pecan", "--batch", 2).returncode == 0
    done = run(*arguments, "--limit", 2, "--method", "whole")
    assert done.returncode == 0 and "BM25" not in done.stdout, done.stderr

    assert run(*arguments, "--limit", 2, "--method", "pecan,bm25-x").returncode == 0
    names = sorted(path.name for path in (tmp_path / "r" / "small").glob("bm25-x-*.jsonl"))
    assert 1 <= len(names) <= 2

    for limit in (1, 1, 2):
        assert run(*arguments, "--limit", limit, "--table", "3").returncode == 0


def test_other_line_ends_inside_a_text(tmp_path):
    """U+2028 and its like are characters of a text, not ends of a line of JSON."""
    first, second = FIRST["questions"][:2]
    row = FIRST | {"questions": [first | {"answers": ["x\u2028y\u0085z"]}, second]}
    (tmp_path / "mine.jsonl").write_text(json.dumps(row, ensure_ascii=False), encoding="utf-8")
    for _ in range(2):
        done = run("--dataset", tmp_path / "mine.jsonl", "--method", "whole", "--output", tmp_path / "r")
        assert done.returncode == 0, done.stderr
    scored = run("--score", tmp_path / "r" / "mine" / "whole.jsonl")
    assert scored.returncode == 0 and scored.stdout.splitlines()[1].split()[-1] == "2"


def test_a_document_that_cannot_be_prepared_is_reported_once(three, undisturbed, tmp_path):
    folder = shutil.copytree(undisturbed[0], tmp_path / "r")
    first = json.loads((folder / "embedded" / "pecan.jsonl").read_text().splitlines()[0])
    (folder / "graphs" / f"{first['graph']}.json").write_text("{}")
    (folder / "embedded" / "pecan.jsonl").unlink()
    done = run("--dataset", three, "--method", "pecan", "--output", folder)
    assert done.returncode == 1 and done.stderr.count("not answered") == 1, done.stderr
    assert "not answered: document test-0, questions left 4: " in done.stderr


def test_a_graph_that_cannot_be_written_ends_the_run(tmp_path):
    """Otherwise it would be built again for every question. A document that cannot be read is tried once."""
    built = []

    class Method:
        def __init__(self, error):
            self.error = error

        def file_name(self, document):
            return "k"

        def prepare(self, document, path, progress):
            built.append(document.id)
            raise self.error

    documents = read_jsonl(EMBEDDED, 2)
    predictions = Predictions(tmp_path / "p.jsonl")
    bar = tqdm(disable=True)
    with pytest.raises(OutputError, match="no room"):
        answer_all(Method(OutputError("no room")), documents, predictions, tmp_path, bar)
    assert built == [documents[0].id]

    failures = answer_all(Method(InputError("too long")), documents, predictions, tmp_path, bar)
    assert built[1:] == [document.id for document in documents]
    assert list(failures) == [q.id for document in documents for q in document.questions]


@pytest.mark.slow
def test_failures_are_reported_in_the_order_of_the_questions(tmp_path):
    """Also if two processes share them."""
    rows = [json.loads(line) for line in EMBEDDED.read_text().splitlines()[:4]]
    for row in rows[:3]:
        row["questions"][0]["question"] = "Who " * 500
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))

    arguments = "--dataset", tmp_path / "mine.jsonl", "--method", "whole", "--output"
    one = run(*arguments, tmp_path / "one")
    two = run_alone(*arguments, tmp_path / "two", processes=2)
    assert one.returncode == 1 and two.returncode != 0
    assert files(tmp_path / "one") == files(tmp_path / "two")
    failed = json.loads((tmp_path / "one" / "results.json").read_text())["not answered"]
    assert [reason.split(":")[0] for reason in failed] == [
        f"question {row['questions'][0]['id']} of document {row['id']}" for row in rows[:3]]


def test_the_window_of_the_whole_document(tmp_path):
    """The model's length, but at most 100,000 tokens, and not the other methods' window; or what --window gives."""
    class Fixed(Runner):
        def __init__(self, **options):
            self.args = Namespace(**vars(command_line.parse([])) | options)

        def models_of(self, run):
            return SimpleNamespace(model=SimpleNamespace(config=config, folder=tmp_path), builder=None)

    config = replace(read_config(ROOT / "tests" / "llama-3.1-8b"), max_length=131072)
    dataset = SimpleNamespace(name="mine")
    for option, windows in ((None, [100_000, 8192, 8192]), (4096, [4096, 4096, 4096])):
        runner = Fixed(window=option)
        methods = [METHODS[name] for name in ("whole", "pecan", "bm25")]
        assert [runner.settings_of(dataset, method, {}).window for method in methods] == windows

    config = replace(config, max_length=2048)
    assert Fixed().settings_of(dataset, METHODS["whole"], {}).window == 2048


def test_one_method_that_fails_does_not_end_the_run(tmp_path, monkeypatch):
    """Its row says why, the other methods and data sets go on, the table is printed, exit code 1.

    If nothing at all could be answered, there is no table, and the exit code is 2.
    """
    monkeypatch.setitem(sys.modules, "umap", None)
    mine = tmp_path / "mine.jsonl"
    mine.write_text(json.dumps(FIRST | {"questions": FIRST["questions"][:2]}))
    arguments = "--dataset", mine, EMBEDDED, "--limit", 1, "--output", tmp_path / "r"
    done = run(*arguments, "--method", "raptor-ct,whole")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith(("mine", "embedded"))]
    assert [line.split()[:2] for line in rows] == [["mine", "whole"], ["mine", "RAPTOR-CT"], ["embedded", "whole"],
                                                   ["embedded", "RAPTOR-CT"]]
    for line in rows[1::2]:
        assert "not run: RAPTOR clusters with scikit-learn and umap-learn, and umap is not installed" in line
    written = json.loads((tmp_path / "r" / "results.json").read_text())["data"]["mine"]
    assert list(written["runs"]) == ["whole"] and list(written["not run"]) == ["raptor-ct"]
    assert "| not run: RAPTOR" not in (tmp_path / "r" / "table.md").read_text(), "no cell more than the header has"

    nothing = run(*arguments[:-1], tmp_path / "s", "--method", "raptor-ct")
    assert nothing.returncode == 2 and nothing.stdout == "" and nothing.stderr.splitlines()[-1].startswith("error: ")


def test_a_shortage_of_memory_does_not_end_the_run(small, tmp_path, monkeypatch):
    """A method that asks for a petabyte has no row; the others have theirs."""
    monkeypatch.setattr(Whole, "answer", lambda *_: torch.empty(1 << 50))
    done = run("--dataset", small, "--method", "whole,bm25", "--output", tmp_path / "r")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("small")]
    assert "BM25" in rows[0] and "not run: " not in rows[0]
    assert "whole document" in rows[1] and "not run: " in rows[1] and "out of memory (" in rows[1]


def test_a_row_that_an_earlier_call_left_damaged_does_not_end_the_run(small, tmp_path):
    """A method that is not asked for this time has answers there, but their setup is gone."""
    assert run("--dataset", small, "--method", "bm25,whole", "--output", tmp_path / "r").returncode == 0
    (tmp_path / "r" / "small" / "whole.setup.json").unlink()
    done = run("--dataset", small, "--method", "bm25", "--output", tmp_path / "r")
    assert done.returncode == 1 and "whole.setup.json" in done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("small")]
    assert any("BM25" in row for row in rows) and any("not run: " in row for row in rows)
