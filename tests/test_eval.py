"""Metrics against the packages that define them, and the evaluation as it is run: table, resume after a kill,
errors."""
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rouge_score.rouge_scorer import RougeScorer

from eval import f1, rouge_l, table

ROOT = Path(__file__).parents[1]


# prediction, reference, F1 as LongBench computes it, ROUGE-L as rouge_score does
WORKED = [("He went to the old mill by the river.", "to the old mill", .6, .6154),
          ("The old mill.", "the old mill", 1, 1), ("No, it is not.", "No", .4, .4), ("U.S. Army", "US Army", 1, .4),
          ("the cat saw the dog and the cat ran", "the cat and the dog ran", .8, .6667),
          ("a well-known author", "a well known author", .4, 1), ("The.", "the", 0, 1), ("", "the mill", 0, 0)]


@pytest.mark.parametrize("prediction, reference, wanted_f1, wanted_rouge", WORKED)
def test_metrics(prediction, reference, wanted_f1, wanted_rouge):
    assert f1(prediction, [reference]) == pytest.approx(wanted_f1, abs=5e-5)
    assert rouge_l(prediction, [reference]) == pytest.approx(wanted_rouge, abs=5e-5)
    assert rouge_l(prediction, [reference]) == pytest.approx(
        RougeScorer(["rougeL"]).score(reference, prediction)["rougeL"].fmeasure)
    assert f1(prediction, ["zzz", reference]) == f1(prediction, [reference]), "the best over the gold answers"


def run(*arguments, cwd=ROOT, **options):
    return subprocess.run([sys.executable, str(ROOT / "eval.py"), "--device", "cpu", *map(str, arguments)], cwd=cwd,
                          capture_output=True, text=True, **options)


def test_the_run_as_a_newcomer_sees_it(tmp_path):
    done = run("--limit", 2, "--output", tmp_path / "r")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:3] == ["method", "F1", "ROUGE-L"] and lines[1].startswith("PECAN") and len(lines) == 4
    assert lines[2].startswith("whole document") and str(tmp_path / "r" / "results.json") in lines[3]
    results = json.loads((tmp_path / "r" / "results.json").read_text())
    rows = [json.loads(line) for line in (tmp_path / "r" / "predictions-pecan.jsonl").read_text().splitlines()]
    n = results["results"]["pecan"]["n"]
    assert n == len(rows) == 12
    assert results["results"]["pecan"]["f1"] == pytest.approx(100 * sum(row["f1"] for row in rows) / n)
    assert results["results"]["pecan"]["flops"] == pytest.approx(sum(row["flops"] for row in rows) / n)
    assert all(row["nodes"] == len(row["trace"]) and row["trace"][-1]["flops"] <= row["flops"] for row in rows)
    assert results["results"]["pecan"]["construction_flops"] > 0 == results["results"]["whole"]["construction_flops"]
    # A second run answers nothing again and says the same.
    before = (tmp_path / "r" / "predictions-pecan.jsonl").stat().st_mtime_ns
    again = run("--limit", 2, "--output", tmp_path / "r")
    assert again.stdout == done.stdout
    assert (tmp_path / "r" / "predictions-pecan.jsonl").stat().st_mtime_ns == before


def test_a_killed_run_goes_on(tmp_path):
    """Killed with -9 after some answers, with a torn last line: the results are those of a run left alone."""
    whole = run("--limit", 2, "--output", tmp_path / "whole", "--method", "pecan")
    command = [sys.executable, str(ROOT / "eval.py"), "--device", "cpu", "--limit", "2", "--method", "pecan",
               "--output", str(tmp_path / "killed")]
    path = tmp_path / "killed" / "predictions-pecan.jsonl"
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(1200):                                     # a minute at most
        if path.exists() and path.read_text().count("\n") >= 3:
            break
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = path.read_text().splitlines()[:3]
    assert len(kept) == 3
    path.write_text("\n".join(kept) + '\n{"id": "world-0-3", "predic')
    resumed = run(*command[4:])
    assert resumed.returncode == 0 and resumed.stdout.splitlines()[1] == whole.stdout.splitlines()[1]
    assert path.read_text() == (tmp_path / "whole" / "predictions-pecan.jsonl").read_text()
    ours, theirs = (json.loads((tmp_path / d / "results.json").read_text()) for d in ("killed", "whole"))
    assert ours == theirs


def test_other_settings_do_not_mix(tmp_path):
    assert run("--limit", 1, "--method", "pecan", "--output", tmp_path / "r").returncode == 0
    kept = (tmp_path / "r" / "predictions-pecan.jsonl").read_bytes()
    other = run("--limit", 1, "--method", "pecan", "--output", tmp_path / "r", "--patience", 2)
    assert other.returncode == 2 and "another settings" in other.stderr and "--overwrite" in other.stderr
    assert (tmp_path / "r" / "predictions-pecan.jsonl").read_bytes() == kept, "nothing written before is lost"
    graph, = (tmp_path / "r" / "graphs").iterdir()
    built = graph.stat().st_mtime_ns
    anew = run("--limit", 1, "--method", "pecan", "--output", tmp_path / "r", "--patience", 2, "--overwrite")
    assert anew.returncode == 0 and (tmp_path / "r" / "predictions-pecan.jsonl").read_bytes() != kept
    assert list((tmp_path / "r" / "graphs").iterdir()) == [graph] and graph.stat().st_mtime_ns == built, "rebuilt"


def test_methods_run_one_after_the_other(tmp_path):
    """A method that ran before keeps its row, and its ratio."""
    run("--limit", 1, "--method", "pecan", "--output", tmp_path / "r")
    one_by_one = run("--limit", 1, "--method", "whole", "--output", tmp_path / "r")
    assert one_by_one.stdout.replace("/r/", "/t/") == run("--limit", 1, "--output", tmp_path / "t").stdout


def test_answers_belong_to_their_text(tmp_path):
    """The same ids over another text: refused, not mixed."""
    row = json.loads((ROOT / "tiny" / "test.jsonl").read_text().splitlines()[0])
    data = tmp_path / "mine.jsonl"
    data.write_text(json.dumps(row))
    assert run("--dataset", data, "--method", "whole", "--output", tmp_path / "r").returncode == 0
    row["passages"].pop()
    data.write_text(json.dumps(row))
    other = run("--dataset", data, "--method", "whole", "--output", tmp_path / "r")
    assert other.returncode == 2 and "answered for another text" in other.stderr


def test_one_bad_question_does_not_stop_the_others(tmp_path):
    row = json.loads((ROOT / "tiny" / "test.jsonl").read_text().splitlines()[0])
    row["questions"] = row["questions"][:2]
    row["questions"][0] |= {"id": "long", "question": "Who " * 500}
    (tmp_path / "mine.jsonl").write_text(json.dumps(row))
    done = run("--dataset", tmp_path / "mine.jsonl", "--output", tmp_path / "r")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.count("not answered: question long of document world-0: window 512 is too small") == 2
    assert done.stdout.splitlines()[1].split()[-1] == "1"


@pytest.mark.parametrize("arguments, words", [
    (["--method", "magic"], "magic: unknown"), (["--dataset", "no.jsonl"], "no.jsonl: cannot be read"),
    (["--model", "no/such/model"], "no such folder"), (["--window", "100"], "window 100 is too small"),
    (["--window", "9999"], "made for 512"),
    (["--limit", "0"], "--limit is 0"), (["--confidence", "2"], "confidence is 2"),
    (["--dtype", "int8"], "'int8' is unknown"), (["--device", "abacus"], "abacus"),
    (["--encoder", "no/such/model"], "no such folder"), (["--output", "README.md"], "README.md")])
def test_mistakes_are_one_line_and_exit_code_2(tmp_path, arguments, words):
    if "--output" not in arguments:
        arguments = [*arguments, "--output", tmp_path / "r"]
    done = run("--limit", 1, *arguments)
    assert done.returncode == 2, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and words in errors[0] and "Traceback" not in done.stderr


def test_command_line_of_pecan(tmp_path):
    """A text file, two questions: the graph is built once and found again."""
    document = json.loads((ROOT / "tiny" / "test.jsonl").read_text().splitlines()[0])
    text = tmp_path / "story.txt"
    text.write_text("\n\n".join(document["passages"]))
    question = document["questions"][0]["question"]
    command = [sys.executable, str(ROOT / "pecan.py"), "--device", "cpu", str(text), question]
    first = subprocess.run(command, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    assert "nodes read" in first.stdout and "built" in first.stderr
    again = subprocess.run([*command, "Who is it?", "--trace"], capture_output=True, text=True)
    assert again.stdout.splitlines()[:3] == first.stdout.splitlines()[:3], "the reloaded graph gives another answer"
    assert "reloaded" in again.stderr and "p_yes" in again.stdout
    graph, = tmp_path.glob("*.graph.json")
    other = tmp_path / "other.txt"
    other.write_text("The road was long.")
    wrong = subprocess.run([*command[:4], str(other), "Who?", "--graph", str(graph)], capture_output=True, text=True)
    assert wrong.returncode == 2 and "another document" in wrong.stderr and "Traceback" not in wrong.stderr


def test_table_units():
    row = {"n": 3, "documents": 2, "f1": 50.0, "rouge_l": 49.0, "nodes": 20.0, "tokens": 1.0,
           "construction_flops": 4e13, "cut_documents": 1}
    text = table({"pecan": row | {"flops": 2e13}, "whole": row | {"flops": 3e13, "nodes": 0, "construction_flops": 0}})
    assert "TFLOPs/query" in text and "1.50x" in text and "1/2" in text and "40.0" in text
