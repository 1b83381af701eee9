"""Runs of the evaluation: tables, resuming, several processes, two runs at once, mistakes."""
import contextlib
import fcntl
import io
import json
import platform
import resource
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hostile import files, short_set

import eval as command_line
from baselines.dense import Dense
from baselines.whole import Whole
from support.command import user_errors
from core.files import InputError
from data import EMBEDDED, read_text
from evaluation import metrics
from evaluation.layouts import Dataset
from evaluation.plan import plan
from evaluation.predictions import Predictions, claim_file
from evaluation.runner import Runner, Team
from pecan import Pecan
from view import ask

ROOT = Path(__file__).parents[2]
FIRST = json.loads(EMBEDDED.read_text().splitlines()[0])         # a document of the embedded set


def in_process(main, *arguments):
    """Run a command line in this process; the result has the fields of subprocess.run's."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = user_errors(lambda: main(["--device", "cpu", *map(str, arguments)]))
    return SimpleNamespace(returncode=code, stdout=stdout.getvalue(), stderr=stderr.getvalue())


def run(*arguments):
    """Run eval.py in this process, which saves the time of the imports."""
    return in_process(command_line.main, *arguments)


def run_alone(*arguments, processes=None, **options):
    """Run eval.py as a user does: in its own process, or in several with torchrun."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)] if processes else []
    command = [sys.executable, *launcher, str(ROOT / "eval.py"), "--device", "cpu", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, **options)


def results_of(folder, dataset):
    return json.loads((folder / "results.json").read_text())["data"][dataset]["runs"]


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """The data set of most runs here: the beginnings of three embedded documents, with four questions each."""
    return short_set(tmp_path_factory.mktemp("three"), 3)


@pytest.fixture(scope="module")
def undisturbed(three, tmp_path_factory):
    """The folder of an uninterrupted run over `three`, and what the run printed."""
    folder = tmp_path_factory.mktemp("undisturbed") / "r"
    done = run("--dataset", three, "--output", folder)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


# --- runs -----------------------------------------------------------------------------------------------------------

def test_the_run_as_a_newcomer_sees_it(undisturbed):
    folder, printed = undisturbed
    lines = printed.splitlines()
    assert len(lines) == 6, "a header, three methods, the note and the place of the results"
    assert lines[0].split()[:3] == ["data", "method", "F1"] and str(folder / "results.json") in lines[-1]
    for line, label in zip(lines[1:], ("PECAN  ", "BM25 Top-5", "whole document")):
        assert line.startswith(f"embedded  {label}")

    kept = json.loads((folder / "results.json").read_text())
    assert (kept["python"], kept["torch"]) == (platform.python_version(), torch.__version__)
    runs = results_of(folder, "embedded")
    rows = lines_of(folder / "embedded" / "pecan.jsonl")
    assert runs["pecan"]["n"] == len(rows) == 12 and runs["pecan"]["documents"] == 3
    assert runs["pecan"]["f1"] == pytest.approx(100 * sum(row["f1"] for row in rows) / 12)
    assert runs["whole"]["ratio"] == runs["whole"]["flops"] / runs["pecan"]["flops"]
    assert all(row["nodes"] == len(row["trace"]) and row["trace"][-1]["flops"] <= row["flops"] for row in rows)


def test_a_second_run_answers_nothing_again(three, undisturbed):
    folder, printed = undisturbed
    before = files(folder)
    written = {path: path.stat().st_mtime_ns for path in (folder / "graphs").iterdir()}
    assert run("--dataset", three, "--output", folder).stdout == printed
    assert files(folder) == before
    assert {path: path.stat().st_mtime_ns for path in (folder / "graphs").iterdir()} == written


def test_a_torn_line_is_answered_again(three, undisturbed, tmp_path):
    """Killed processes may leave answers unordered, in three files, one line torn. The next run restores the file."""
    folder = shutil.copytree(undisturbed[0], tmp_path / "r")
    path = folder / "embedded" / "bm25.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[8:]) + lines[0][:40])
    for n in (1, 2):
        path.with_name(f"bm25.part-{n}.jsonl").write_bytes(b"".join(lines[2 + 2 * n:4 + 2 * n]))
    assert run("--dataset", three, "--output", folder).stdout.splitlines()[:4] == undisturbed[1].splitlines()[:4]
    assert files(folder / "embedded") == files(undisturbed[0] / "embedded")


@pytest.mark.slow
def test_what_one_process_refuses_all_refuse(tmp_path):
    """If only the second process finds a changed text, the first does not wait for it.

    Questions that the processes could not answer are reported in the order of the data.
    """
    data = tmp_path / "mine.jsonl"
    questions = [{"question": text, "answers": ["Ann"]} for text in ("Who?", "Who " * 500)]
    rows = [{"id": name, "text": f"Ann has a cat {name}.", "questions": questions} for name in "abc"]
    arguments = "--dataset", data, "--method", "whole,bm25", "--output", tmp_path / "r"

    def run_with(text):
        data.write_text("".join(json.dumps(row) + "\n" for row in (rows[0], rows[1] | {"text": text}, rows[2])))
        return run_alone(*arguments, processes=2, timeout=90)
    first = run_with("Bob has a dog.")
    assert (first.stderr.count(": own, "), first.stdout.count("Results: ")) == (1, 1), "one process alone prints"
    reasons = json.loads((tmp_path / "r" / "results.json").read_text())["not answered"]
    assert [reason.split(":")[0] for reason in reasons] == [f"question {d}-1 of document {d}" for d in "abcabc"]
    second = run_with("Bob has a cow.")
    assert second.returncode != 0 and "answered for another text" in second.stderr


def test_processes_share_the_documents(three, tmp_path):
    """Of two processes the first answers the first and the third document. The second has a file of its own, which is
    enough to go on from."""
    class Half(Team):
        """One of two processes, alone."""
        def together(self, function):
            return [function()]
    arguments = ["--dataset", str(three), "--method", "bm25", "--device", "cpu", "--output", str(tmp_path)]
    run, = plan(command_line.parse(arguments), [Dataset(three)])
    run = replace(run, file=run.file.with_stem("a[1]"))
    team = Half()
    team.size = 2
    for team.rank in (0, 1):
        Runner(team).do(run)
    for name, documents in (("a[1].jsonl", "02"), ("a[1].part-1.jsonl", "1")):
        assert [row["document"] for row in lines_of(run.file.with_name(name))] == [
            f"test-{d}" for d in documents for _ in range(4)]
    run.file.unlink()
    with pytest.raises(InputError, match="another chunk"):
        claim_file(run.file, {"chunk": 99}, False)
    Predictions(run.file).finish(run.dataset.questions)
    assert [file.name for file in run.file.parent.glob("*.jsonl")] == ["a[1].jsonl"]
    assert [row["document"] for row in lines_of(run.file)] == ["test-1"] * 4


def test_two_runs_on_one_folder(tmp_path, monkeypatch):
    """The second run is refused. A run holds the lock until it ends, even if it fails."""
    (tmp_path / "r").mkdir()
    arguments = "--limit", 1, "--method", "bm25", "--output", tmp_path / "r"
    with open(tmp_path / "r" / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        second = run(*arguments)
    assert second.returncode == 2 and "another run is writing there" in second.stderr
    (tmp_path / "file").touch()
    failed = run(*arguments, "--graphs", tmp_path / "file")
    assert failed.returncode == 2 and "file: cannot be written" in failed.stderr

    def show(*_):
        with open(tmp_path / "r" / "lock") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    monkeypatch.setattr(command_line, "show", show)
    assert run(*arguments).returncode == 0


def test_other_settings_do_not_mix(tmp_path):
    path = tmp_path / "r" / "embedded" / "pecan.jsonl"
    arguments = "--limit", 1, "--method", "pecan", "--output", tmp_path / "r"
    assert run(*arguments).returncode == 0
    kept = path.read_bytes()
    built = set((tmp_path / "r" / "graphs").glob("*.json"))

    other = run(*arguments, "--patience", 2)
    assert other.returncode == 2 and path.read_bytes() == kept, "earlier answers are lost"
    assert "pecan.jsonl holds answers of another patience (1 there, 2 here)" in other.stderr

    part = path.with_name("pecan.part-1.jsonl")              # of a killed process
    part.write_bytes(kept.splitlines(keepends=True)[0])
    assert run(*arguments, "--patience", 2, "--overwrite", "--batch", 3).returncode == 0
    assert not part.exists() and path.with_name("pecan.part-1.jsonl.old").exists()
    assert path.read_bytes() != kept and path.with_name("pecan.jsonl.old").read_bytes() == kept
    setups = {file.name: json.loads(file.read_text())["patience"] for file in path.parent.glob("pecan.setup.json*")}
    assert setups == {"pecan.setup.json": 2, "pecan.setup.json.old": 1}, "the old answers have lost their setup"

    second = path.read_bytes()
    assert run(*arguments, "--patience", 3, "--overwrite").returncode == 0
    assert path.with_name("pecan.jsonl.old").read_bytes() == kept, "the first answers are lost"
    assert path.with_name("pecan.jsonl.old2").read_bytes() == second
    assert "float32 there" in (failed := run(*arguments, "--dtype", "float64").stderr) and "float64 here" in failed

    assert set((tmp_path / "r" / "graphs").glob("*.json")) == built, "the graph was built again"
    path.with_name("pecan.setup.json").write_text("{}")
    assert "pecan.jsonl holds answers of another model (None there" in run(*arguments).stderr
    path.with_name("pecan.setup.json").unlink()
    path.rename(part)
    assert "pecan.setup.json: cannot be read" in run(*arguments).stderr
    assert run(*arguments, "--overwrite").returncode == 0


@pytest.mark.parametrize("changes", [{"question": "Who else?"}, {"answers": ["Tom"]}, {}])
def test_answers_belong_to_their_question_gold_answers_and_text(tmp_path, changes):
    """A change of any of them is refused. (U+2028 and U+0085 are characters of a text, not line ends.)"""
    def write(passages, **changes):
        question = {"id": "q", "question": "Who?", "answers": ["Ann", "x\u2028y\u0085z"]} | changes
        (tmp_path / "mine.jsonl").write_text(json.dumps({"passages": passages, "questions": [question]}))
    arguments = "--dataset", tmp_path / "mine.jsonl", "--method", "whole", "--output", tmp_path / "r"
    write(["Ann came."])
    assert run(*arguments).returncode == run(*arguments).returncode == 0
    write(["Ann came."] if changes else ["Bob came."], **changes)
    other = run(*arguments)
    assert other.returncode == 2 and "answered for another text" in other.stderr


def test_a_row_counts_the_questions_of_its_call(three, undisturbed, tmp_path):
    """A call with fewer documents than before counts only their questions. A later call may add documents."""
    folder = shutil.copytree(undisturbed[0], tmp_path / "r")
    for limit in (1, 2):
        assert run("--dataset", three, "--limit", limit, "--output", folder).returncode == 0
        assert [summary["n"] for summary in results_of(folder, "embedded").values()] == [4 * limit] * 3
    assert len(lines_of(folder / "embedded" / "bm25.jsonl")) == 12


MISTAKES = [
    (["--method", "magic"], "magic: unknown"), (["--dataset", "no.jsonl"], "no.jsonl"),
    (["--dataset", EMBEDDED, EMBEDDED], "have the same name; run them one by one"),
    (["--model", "no/such/model"], "no such folder"), (["--encoder", "no/such/model"], "no such folder"),
    (["--dragon", EMBEDDED.parent, "no/such/model"], "no such folder"),
    (["--dragon", "no/such/model", EMBEDDED.parent], "no such folder"),
    (["--scorer", "no/such/model"], "no such folder"),
    (["--window", "100", "--method", "pecan"], "window 100 is too small"), (["--window", "9999"], "made for 512"),
    (["--confidence", "1"], "confidence is 1"), (["--score", "no.jsonl"], "no.jsonl"),
    (["--output", ROOT / "README.md"], "README.md"), (["--top", "3", "--method", "bm25"], "--top 3"),
    (["--table", "2"], "--searcher"), (["--table", "systems", "--method", "bm25"], "--method bm25: unknown here"),
    (["--searcher", "m"], "--table 2"), (["--method", "bm25-x"], "run PECAN too"),
    (["--dataset", ""], "dataset is blank"),
    (["--table", "2", "--searcher", "x/m", "--searcher", "y/m"], "x/m y/m have the same name")]


@pytest.mark.parametrize("arguments, words", MISTAKES)
def test_mistakes_are_one_line_and_exit_code_2(tmp_path, arguments, words):
    if "--output" not in arguments:
        arguments = [*arguments, "--output", tmp_path / "r"]
    done = run("--limit", 1, *arguments)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2 and done.stdout == "" and len(errors) == 1 and words in errors[0]


# For each table, which of these options may be chosen with it.
OPTIONS = {"patience": 2, "method": "pecan", "builder": "m", "top": 3, "nodes": 5, "without": "graph"}
MAY = {"1": "patience method builder top", "2": "patience", "3": "patience builder", "A3": "patience builder",
       "A4": "patience builder", "patience": "builder", "nodes": "patience builder",
       "systems": "patience method builder"}


@pytest.mark.parametrize("table, option", [(table, option) for table in MAY for option in OPTIONS])
def test_a_table_decides_what_is_run(table, option):
    arguments = ["--table", table, f"--{option}", str(OPTIONS[option]), *["--searcher", "s"] * (table == "2")]
    with contextlib.nullcontext() if option in MAY[table] else pytest.raises(InputError, match=f"--{option}"):
        command_line.parse(arguments)


@pytest.mark.slow
def test_command_line_of_pecan(tmp_path, monkeypatch):
    """The graph of a text file is built once, in the working directory, and reloaded by the next call."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "story.txt").write_text("\n\n".join(FIRST["passages"][:8]))
    arguments = tmp_path / "story.txt", FIRST["questions"][0]["question"]
    first = subprocess.run([sys.executable, ROOT / "pecan.py", *arguments, "--device", "cpu"], capture_output=True,
                           text=True)
    assert "nodes read" in first.stdout and "built" in first.stderr, first.stderr
    again = in_process(ask.main, *arguments, "Who is it?")
    assert again.stdout.splitlines()[:4] == [*first.stdout.splitlines(), "Who is it?"], "the graph on disk is another"
    graph, = tmp_path.glob("*.graph.json")
    assert graph.name == f"story.txt.{Pecan.load(ROOT / 'tiny').file_name(read_text('story.txt'))}.graph.json"
    levels = Counter(node["level"] for node in json.loads(graph.read_text())["nodes"])
    by_level = [levels[level] for level in sorted(levels)]
    assert f"reloaded {graph.name}: {levels.total()} nodes, by level {by_level}\n" in again.stderr


def test_pecan_takes_the_settings_of_a_data_set(tmp_path):
    """The search of the README stops at a Yes with a p_yes of .75. With Qasper's t_p of .98 it goes on."""
    done = in_process(ask.main, ROOT / "tiny" / "story.txt", "When did Selma move?", "--json", "--graph",
                      tmp_path / "story.graph.json", "--dataset-settings", "Qasper")
    steps = [step for step in json.loads(done.stdout)["steps"] if step["verdict"]]
    assert len(steps) > 5 and .7 < max(step["p_yes"] for step in steps) < .98
    assert {step["verdict"] for step in steps} == {"No"}


# --- tables ---------------------------------------------------------------------------------------------------------

@pytest.mark.slow
def test_the_tables_of_the_paper_are_run(three, tmp_path):
    """They share one graph. Only the ablation without information points builds its own."""
    output = tmp_path / "r"
    for table, last in (("3", "pecan-without-similarity"), ("patience", "pecan-patience-8"), ("nodes", "pecan")):
        done = run("--dataset", three, "--limit", 1, "--table", table, "--output", output)
        assert done.returncode == 0, done.stderr
        assert (output / "embedded" / f"{last}.jsonl").exists()
        assert (output / f"table-{table}.txt").read_text().strip() in done.stdout
    assert len(list((output / "graphs").glob("*.json"))) == 2
    data = json.loads((output / "results-patience.json").read_text())["data"]["embedded"]["runs"]
    assert [run["setup"]["patience"] for run in data.values()] == list(range(1, 9))


@pytest.mark.slow
def test_every_row_of_table_1_is_run(three, tmp_path):
    pytest.importorskip("umap")
    done = run("--dataset", three, "--limit", 1, "--table", "1", "--output", tmp_path / "r")
    assert done.returncode == 0, done.stderr
    rows = done.stdout.split("\n\n")[0].splitlines()[2:]
    assert len(rows) == 14 and not any("not run" in row for row in rows)


def test_the_dry_run_estimates_the_cost(three, undisturbed, tmp_path):
    """It needs no weights and writes nothing, and its estimates are right to a factor of 2.

    The layers and the tokens of another builder count in construction, not in searches.
    """
    done = run("--dataset", three, "--dry-run", "--json", "--output", tmp_path / "r")
    assert done.returncode == 0 and not (tmp_path / "r").exists(), done.stderr
    estimate = json.loads(done.stdout)["embedded"]
    measured = results_of(undisturbed[0], "embedded")["pecan"]
    assert (estimate["documents"], estimate["questions"], estimate["batch"]) == (3, 12, 8)
    assert .5 < estimate["construction"] / (measured["construction_flops"] * 3) < 2
    assert .5 < estimate["search"] / (measured["flops"] * 12) < 2

    other = shutil.copytree(ROOT / "tiny", tmp_path / "other", ignore=shutil.ignore_patterns("*.safetensors", "*.py"))
    config = json.loads((other / "config.json").read_text()) | {"num_hidden_layers": 30}
    (other / "config.json").write_text(json.dumps(config))
    tokenizer = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(tokenizer.replace("\\\\w+|", "\\\\w{1,7}|"))    # long words have two tokens
    both, large = (json.loads(run("--dataset", three, "--dry-run", "--json", option, other).stdout)["embedded"]
                   for option in ("--builder", "--model"))
    for name in ("construction", "of a batch"):
        assert both[name] == large[name] > 2 * estimate[name]
    for name in ("search", "whole"):                              # there are more chunks, and each has a bullet
        assert 1 < both[name] / estimate[name] < 1.02
    assert both["bytes of weights"] == estimate["bytes of weights"] + large["bytes of weights"]
    assert "construction" in run("--dataset", three, "--dry-run", "--table", 3).stdout.splitlines()[0]


def test_predictions_are_scored_again(undisturbed, tmp_path):
    """Files in this project's format and in LongBench's are scored without a model. U+2028 ends no line."""
    folder, printed = undisturbed
    rows = [{"pred": "the old\u2028mill", "answers": ["old mill"]}, {"pred": "a cat", "answers": ["dog"]}]
    (tmp_path / "lb.jsonl").write_text("\n".join(
        json.dumps(row | {"all_classes": None, "length": 9}, ensure_ascii=False) for row in rows))
    done = run("--score", tmp_path / "lb.jsonl", folder / "embedded" / "pecan.jsonl")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].split()[1] == "50.0" and lines[2].split()[1] == printed.splitlines()[1].split()[2]


# --- what can go wrong ----------------------------------------------------------------------------------------------

def test_one_bad_question_does_not_stop_the_others(tmp_path):
    bad = FIRST["questions"][0] | {"id": "long", "question": "Who " * 500}
    (tmp_path / "mine.jsonl").write_text(json.dumps(FIRST | {"questions": [bad, FIRST["questions"][1]]}))
    done = run("--dataset", tmp_path / "mine.jsonl", "--method", "bm25,whole", "--output", tmp_path / "r")
    assert done.returncode == 1
    assert done.stderr.count("not answered: question long of document test-0: window") == 2
    assert done.stdout.splitlines()[1].split()[-2:] == ["1", "-"]
    reasons = json.loads((tmp_path / "r" / "results.json").read_text())["not answered"]
    assert [f"not answered: {reason}" for reason in reasons] == done.stderr.splitlines()[-2:]


def test_one_method_that_fails_does_not_end_the_run(tmp_path, monkeypatch):
    """The other methods and data sets go on, the table is printed, and the exit code is 1. Each data set is reported.

    Two of the three failing methods ask for a petabyte of memory. If no question at all is answered, there is no table,
    and the exit code is 2.
    """
    monkeypatch.setitem(sys.modules, "umap", None)
    for method, name in ((Whole, "answer"), (Dense, "prepare")):
        monkeypatch.setattr(method, name, lambda *_, **__: torch.empty(1 << 50))
    mine, long = tmp_path / "mine.jsonl", tmp_path / "long.jsonl"
    first, second, *_ = FIRST["questions"]
    for path, questions in ((mine, [first, second]), (long, [first | {"question": "Who " * 500}])):
        path.write_text(json.dumps(FIRST | {"questions": questions}))
    arguments = "--dataset", mine, long, EMBEDDED, "--limit", 1, "--output", tmp_path / "r"
    done = run(*arguments, "--method", "raptor-ct,whole,sbert,bm25")
    assert done.returncode == 1 and (tmp_path / "r" / "results.json").exists(), "the run ended early"
    found = json.loads((tmp_path / "r" / "results.json").read_text())["data"]
    for path, name, questions in ((mine, "mine", 2), (long, "long", 1), (EMBEDDED, "embedded", 134)):
        report = found[name]["report"]
        assert (report["path"], report["questions"]) == (str(path), questions)
        assert f"\n{path}: own, " in f"\n{done.stderr}"
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:3]] == [
        ["mine", "BM25"], ["embedded", "BM25"]]
    assert not [*tmp_path.glob("r/long/*.jsonl")], "answers of no question would bind the next run to these settings"
    for words in ("RAPTOR-CT Top-5 on mine: RAPTOR clusters", "whole document on mine: question test-0-0 of document"):
        assert f"not answered: {words}" in done.stderr
    assert "out of memory (" in done.stderr and "--batch" in done.stderr

    nothing = run(*arguments[:-1], tmp_path / "s", "--method", "raptor-ct")
    assert nothing.returncode == 2 and nothing.stdout == ""
    assert nothing.stderr.splitlines()[-1].startswith("error: RAPTOR-CT Top-5 on mine: ")


def test_a_document_that_cannot_be_prepared_is_reported_once(three, undisturbed, tmp_path):
    """One question about the first document is answered, all about the second. So the second is not prepared."""
    folder = shutil.copytree(undisturbed[0], tmp_path / "r")
    path = folder / "embedded" / "pecan.jsonl"
    rows = lines_of(path)
    damaged, unused = (folder / "graphs" / f"{rows[n]['graph']}.json" for n in (0, 4))
    damaged.write_text("{}")
    unused.unlink()
    path.write_text("".join(json.dumps(row) + "\n" for row in (rows[0], *rows[4:8])))
    done = run("--dataset", three, "--table", "nodes", "--json", "--output", folder)
    assert done.returncode == 1 and done.stderr.count("not answered") == 1, done.stderr
    assert json.loads(done.stdout) == json.loads((folder / "results-nodes.json").read_text())
    assert "not answered: document test-0, questions left 3: " in done.stderr
    assert [row["id"] for row in lines_of(path)] == [row["id"] for row in (rows[0], *rows[4:])]
    assert not unused.exists()


def test_a_full_disk_ends_the_run(three, tmp_path):
    """No other method is begun. A limit of 4 KiB per file, less than a graph has, takes the place of a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        done = run("--dataset", three, "--method", "pecan,bm25", "--output", tmp_path / "r")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert done.returncode == 2 and "File too large" in done.stderr
    assert not (tmp_path / "r" / "embedded" / "bm25.setup.json").exists()


def test_a_line_of_answers_without_one_of_its_fields(three, undisturbed, tmp_path):
    """It is refused, or nothing needs the field."""
    row, path = lines_of(undisturbed[0] / "embedded" / "pecan.jsonl")[0], tmp_path / "x.jsonl"
    document = Dataset(three).documents[0]
    for name in row:
        path.write_text(json.dumps({other: row[other] for other in row if other != name}) + "\n")
        try:
            found = Predictions(path)
        except InputError as error:
            assert "x.jsonl, line 1: " in str(error)
            continue
        assert found.holds(document, document.questions[0])
        assert metrics.summary([*found.rows.values()]) == metrics.summary([row])
