"""Runs of the evaluation: what a user sees, resuming, several processes, failures, kills."""
import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from functools import partial
from operator import itemgetter
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from filelock import FileLock
from runs import ROOT, run, table, write_lines

import eval as command_line
from baselines.bm25 import BM25
from baselines.dense import Dense
from core.disk import read_rows
from data import EMBEDDED
from evaluation.runner import Runner
from model.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """The data set of most runs here: the beginnings of three embedded documents, with four questions each.

    (Many answers are in the missing parts; these tests do not need them.)
    """
    rows = map(json.loads, EMBEDDED.read_text().splitlines()[:3])
    return write_lines(tmp_path_factory.mktemp("three") / "embedded.jsonl", [
        row | {"passages": row["passages"][:8], "questions": row["questions"][:4]} for row in rows])


@pytest.fixture(scope="module")
def undisturbed(three, tmp_path_factory):
    """The folder of an uninterrupted run over `three`, and what the run printed. Each row runs alone: in other batches
    rows round differently."""
    folder = tmp_path_factory.mktemp("undisturbed") / "r"
    return folder, run("--dataset", three, "--batch", 1, "--output", folder).stdout


@pytest.fixture
def go(three, tmp_path):
    """A function that runs eval.py over `three`, with the output folder r."""
    return partial(run, "--dataset", three, "--output", tmp_path / "r")


def answers(folder: Path) -> dict[str, list[dict]]:
    """The rows of all answers of each method, in the order of their questions."""
    found = defaultdict(list)
    for path in folder.glob("*/*.jsonl"):
        found[path.name.split(".")[0]] += read_rows(path)
    return {name: sorted(rows, key=itemgetter("id")) for name, rows in found.items()}


def graphs(folder: Path) -> dict[str, bytes]:
    """The files of all graphs, except vectors: the order of a safetensors file's header varies."""
    return {path.name: path.read_bytes() for path in folder.glob("graphs/*") if path.suffix != ".vectors"}


def launch(processes: int, *command):
    """Run a command to its end, with torchrun if it has several processes."""
    torchrun = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)
    launcher = torchrun if processes > 1 else ()
    return subprocess.run([sys.executable, *launcher, *command], cwd=ROOT, capture_output=True, text=True)


# --- runs -----------------------------------------------------------------------------------------------------------

def test_results_say_where_they_are_and_which_code_made_them(undisturbed):
    folder, printed = undisturbed
    assert printed.splitlines()[-1] == f"Results: {folder / 'results-embedded.json'}"
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    for done in json.loads((folder / "results-embedded.json").read_text())["data"]["embedded"]["runs"].values():
        setup = done["setup"]
        assert f"\nversion: {setup['version']}\n" in (ROOT / "CITATION.cff").read_text()
        assert (setup["commit"] or "").removesuffix("-dirty") == head and len(setup["code"]) == 16


def test_a_run_goes_on_where_it_stopped(go, undisturbed, tmp_path):
    """Killed processes may leave answers in any order, in three files, one line torn. The next run says how many it
    found, answers the others, and prepares no document whose questions are answered. A limit counts only its own
    questions, and the size of a batch may change."""
    folder = shutil.copytree(undisturbed[0], tmp_path / "r")
    shutil.rmtree(folder / "graphs")
    path = folder / "embedded" / "bm25.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[8:]) + lines[0][:40])
    for n, part in ((1, lines[4:6]), (12, lines[6:8])):
        path.with_name(f"bm25.{n}.jsonl").write_bytes(b"".join(part))
    done = go()
    assert done.stdout.splitlines()[:-1] == undisturbed[1].splitlines()[:-1]
    assert "PECAN: 12 of 12 answers, 0 of 3 graphs found\n" in done.stderr
    assert "BM25 Top-5: 8 of 12 answers found\n" in done.stderr
    assert answers(folder) == answers(undisturbed[0]) and not graphs(folder)
    fewer = json.loads(go("--limit", 1, "--batch", 3, "--json").stdout)
    assert answers(folder) == answers(undisturbed[0]), "answers beyond the limit are lost"
    assert fewer == json.loads((folder / "results-limit-1-embedded.json").read_text())
    assert [done["n"] for done in fewer["data"]["embedded"]["runs"].values()] == [4] * 3


def test_a_damaged_answer_graph_and_reply_are_refused_by_name(go, undisturbed, tmp_path):
    """The other methods, and the other documents, go on."""
    folder = shutil.copytree(undisturbed[0], tmp_path / "r")
    bm25 = folder / "embedded" / "bm25.jsonl"
    lines = bm25.read_bytes().splitlines(keepends=True)
    bm25.write_bytes(b"".join([*lines[:4], lines[4].replace(b'"flops": ', b'"flops": 1'), *lines[5:]]))
    (folder / "embedded" / "pecan.jsonl").unlink()
    graph, other, _ = folder.glob("graphs/*.json")
    graph.write_bytes(graph.read_bytes().replace(b'"level": 2', b'"level": 1', 1))
    reply = other.rename(f"{other}.replies")
    reply.write_text('{"seal": "0"}\n')
    done = go(code=1)
    assert f"BM25 Top-5 on embedded: {bm25}, line 5: has changed since it was written" in done.stderr
    for damaged in (graph, f"{reply}, line 1"):
        assert re.search(f"PECAN on embedded: document .*, its questions \\(4\\): {damaged}: has changed", done.stderr)
    assert len([*read_rows(folder / "embedded" / "pecan.jsonl")]) == 4 and done.stderr.count("not answered") == 3


@pytest.mark.slow
def test_what_one_process_refuses_all_refuse(tmp_path):
    """If only the second process finds a changed text, the first does not wait for it. Reasons are in the order of the
    data."""
    data = tmp_path / "mine.jsonl"
    questions = [{"question": text, "answers": ["Ann"]} for text in ("Who?", "Who " * 500)]
    rows = [{"id": name, "text": f"Ann has a cat {name}.", "questions": questions} for name in "abc"]

    def run_with(text):
        write_lines(data, (rows[0], rows[1] | {"text": text}, rows[2]))
        return launch(2, "eval.py", "--device", "cpu", "--dataset", data, "--method", "whole", "--output",
                      tmp_path / "r")
    assert re.findall("question (.)-1 of", run_with("Bob has a dog.").stderr) == ["a", "b", "c"]
    second = run_with("Bob has a cow.")
    assert second.returncode != 0 and "answered for another text" in second.stderr


def test_two_runs_on_one_folder(tmp_path, monkeypatch):
    """The second run is refused. A run holds the lock until it ends."""
    arguments = "--limit", 1, "--method", "bm25", "--output", tmp_path
    file = tmp_path / "results.lock"
    with FileLock(file):
        assert "another run is writing there" in run(*arguments, code=2).stderr

    held = []
    monkeypatch.setattr(command_line, "show", lambda *_: held.append(file.exists()))
    run(*arguments)
    assert held == [True] and not file.exists()


def test_other_settings_do_not_mix(tmp_path):
    """Answers of other settings are refused, and stay as they are."""
    arguments = "--limit", 1, "--method", "bm25", "--output", tmp_path / "r", "--chunk"
    run(*arguments, 24)
    first = answers(tmp_path / "r")
    said = run(*arguments, 25, code=2).stderr
    assert 'bm25.jsonl: is of another setup (-"chunk": 24, +"chunk": 25,); choose another --output' in said
    assert answers(tmp_path / "r") == first and run(*arguments, 24)


DATA = ('{"id": "d", "passages": ["Ann came."], "questions": [{"id": "q", "question": "Who?", '
        '"answers": ["Ann", "x\\u2028y\\u0085z"], "options": ["Ann", "Tom"], "gold": 1}]}')


@pytest.mark.parametrize("old, new", table("""
    Ann came.      | Bob came.
    Who?           | Who else?
    ["Ann", "x     | ["Tom", "x
    ["Ann", "Tom"] | ["Tom", "Ann"]
    "gold": 1      | "gold": 0"""))
def test_answers_belong_to_their_question_gold_answers_and_text(tmp_path, old, new):
    """A change of any of them is refused. (U+2028 and U+0085 are characters of a text, not line ends.)"""
    data = tmp_path / "mine.jsonl"
    for text, code in ((DATA, 0), (DATA, 0), (DATA.replace(old, new), 2)):
        data.write_text(text)
        done = run("--dataset", data, "--method", "whole", "--output", tmp_path / "r", code=code)
    assert "answered for another text" in done.stderr


# --- what can go wrong ----------------------------------------------------------------------------------------------

def test_what_fails_does_not_end_the_run(tmp_path, monkeypatch):
    """The other methods, questions and data sets go on, the tables are printed, and the exit code is 1.

    For two of the failing methods memory runs out. PECAN fails on one of the two data sets, whose table then
    comes without a comparison.
    """
    monkeypatch.setitem(sys.modules, "umap", None)
    for method, name in ((BM25, "read"), (Dense, "ready")):
        monkeypatch.setattr(method, name, Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory")))
    asked = {"good": ["Who came?", "Who " * 500], "bad": ["Who " * 350]}
    paths = [write_lines(tmp_path / f"{name}.jsonl", [{"id": "d", "text": "Ann came.", "questions": [
        {"question": text, "answers": ["Ann"]} for text in texts]}]) for name, texts in asked.items()]
    done = run("--dataset", *paths, "--output", tmp_path / "r", "--method", "pecan,raptor-ct,whole,sbert,bm25",
               "--json", code=1)
    found = json.loads(done.stdout)
    good, bad = (found["data"][name]["runs"] for name in ("good", "bad"))
    assert [*good] == ["pecan", "whole"] and good["whole"]["difference"]
    assert [*bad] == ["whole"] and "difference" not in bad["whole"] and bad["whole"]["n"] == 1
    for words in ("RAPTOR-CT Top-5 on good: RAPTOR clusters", "BM25 Top-5 on good: question d-0 of document d",
                  "PECAN on good: question d-1 of document d: window", "PECAN on bad: question d-0 of document d"):
        assert f"\nnot answered: {words}" in done.stderr and words in str(found["not answered"])
    assert "out of memory (" in done.stderr
    assert not (tmp_path / "r" / "bad" / "pecan.jsonl").exists(), "it would bind the next run to these settings"


def test_a_full_disk_ends_the_run(go, tmp_path):
    """It is said, and no other method is begun. A limit of 4 KiB per file, less than a graph has, takes the place of a
    full disk."""
    resource = pytest.importorskip("resource")              # Windows has none
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        done = go("--method", "pecan,bm25", code=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "File too large" in done.stderr
    assert not (tmp_path / "r" / "embedded" / "bm25.setup.json").exists()


def test_replies_that_all_end_inside_their_thought_are_no_answers(go, monkeypatch):
    """A table says how many do (test_tables.py), the tokenizer sees them (test_tokenizer.py)."""
    monkeypatch.setattr(Tokenizer, "thinking", Mock(return_value=True))
    assert "PECAN on embedded: every reply ends inside its thought" in go("--method", "pecan", code=2).stderr
    rows = {1: {"counts": {"thinking": 1}}, 2: {"counts": {}}}
    some = Runner(Mock(each=lambda share: [(rows, {}, {})])).do(Mock(**{"dataset.questions": [1, 2]}))
    assert some == ([*rows.values()], {}, []), "one that does is an answer like others"


# --- kills ----------------------------------------------------------------------------------------------------------

@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("written", [".replies", ".jsonl"])
def test_a_killed_run_goes_on(written, processes, three, undisturbed, tmp_path):
    """Killed in the middle of a reply or of an answer, the next run ends with the graphs and answers of an
    uninterrupted one. One process alone prints, and each writes its own file."""
    arguments = "--device", "cpu", "--batch", "1", "--dataset", three, "--output", tmp_path / "r"
    assert launch(processes, "tests/program/killed.py", written, *arguments).returncode not in (0, 2)
    assert b"half" in b"".join(path.read_bytes() for path in tmp_path.rglob(f"*{written}"))
    again = launch(processes, "eval.py", *arguments)
    assert again.returncode == 0 and again.stdout.count("Results: ") == 1, again.stderr
    assert answers(tmp_path / "r") == answers(undisturbed[0]) and graphs(tmp_path / "r") == graphs(undisturbed[0])
    assert len([*tmp_path.glob("r/embedded/pecan*.jsonl")]) == processes


@pytest.mark.slow
def test_a_killed_wave_of_searches_is_searched_again(three, undisturbed, tmp_path):
    """With the same words, nodes and costs; other searches stand beside, so the rest may differ by rounding."""
    arguments = "--device", "cpu", "--method", "pecan", "--dataset", three, "--output", tmp_path / "r"
    assert launch(1, "tests/program/killed.py", ".jsonl", *arguments).returncode not in (0, 2)
    assert "pecan.jsonl" in [path.name for path in tmp_path.rglob("*.jsonl")]
    assert "PECAN: 2 of 12 answers" in launch(1, "eval.py", *arguments).stderr
    one, other = ([[row[name] for name in ("id", "document", "prediction", "nodes", "end", "flops", "tokens")]
                   for row in answers(folder)["pecan"]] for folder in (tmp_path / "r", undisturbed[0]))
    assert sorted(one) == sorted(other)
