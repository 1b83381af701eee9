"""Bad input of each class gives one line that names the place, and nothing is lost. Killed runs go on."""
import contextlib
import json
import os
import random
import resource
import signal

import pytest
import regex
import torch
from hostile import COMMAND, answers, go_on, kill, short_set
from hypothesis import assume, given
from hypothesis import strategies as st
from test_datasets import longbench, musique

import eval as evaluation_main
from baselines.fact_graph import FactGraph, scores_of
from baselines.graphreader import notebook_of
from baselines.jerr import pages_of
from baselines.mkrag import entities_of, weights_of
from baselines.replies import pairs_of
from support.command import user_errors
from core.files import (
    InputError,
    OutputError,
    append_line,
    complete_lines,
    read_sealed,
    replacing,
    sha256,
    write_file,
    write_json,
    write_sealed,
    write_tensors,
)
from core.settings import RULES, Settings, resolve
from core.text import bullets, split
from data import read_jsonl
from evaluation.datasets import Dataset
from evaluation.metrics import read_predictions
from model.checkpoint import read_tensors
from pecan import Graph
from view.trace import read_traces

# --- files ----------------------------------------------------------------------------------------------------------

@given(st.sampled_from(sorted(RULES)), st.sampled_from([0, -1, "8", 1.5, [], 1e999, 10 ** 20, True]))
def test_a_bad_value_in_pecan_json(tmp_path_factory, name, value):
    """True is no 1."""
    assume((name, value) != ("confidence", 0) and not (value is True and type(getattr(Settings, name)) is bool))
    folder = tmp_path_factory.getbasetemp()
    (folder / "pecan.json").write_text(json.dumps({name: value}))
    with pytest.raises(InputError, match=rf"pecan.json: ({name} is|not valid JSON)"):
        resolve(folder, 512)


@pytest.fixture(scope="module")
def saved(tmp_path_factory, graph):
    path = tmp_path_factory.mktemp("graph") / "g.json"
    graph.save(path)
    return path, path.read_text()


@given(st.data())
def test_a_graph_that_was_damaged_anywhere(saved, graph, data):
    """If a line is lost, repeated, cut or changed, the file is refused in one line, or is still a graph."""
    path, text = saved
    lines = text.splitlines(keepends=True)
    n = data.draw(st.integers(0, len(lines) - 1))
    lines[n] = data.draw(st.sampled_from([
        "", lines[n] * 2, lines[n][:-5], lines[n].replace("1", "7"), lines[n].replace('"', ""), "[[1], 0, 0.5],\n",
        "[1, 0, NaN],\n", "null,\n", "[" * 5000, '{"level": 1, "text": "\\ud800"},\n']))
    path.write_text("".join(lines))
    try:
        loaded = Graph.load(path)
        sums = loaded.E.to_dense().sum(1)
        assert ((sums - 1).abs().lt(1e-4) | sums.eq(0)).all()
    except InputError as error:
        assert str(error).startswith(str(path)) and "remove it" in str(error) and "\n" not in str(error)


@pytest.mark.parametrize("line", ["", "{", "[" * 5000, '{"answers": ["x"]}', '{"pred": 1, "answers": ["x"]}',
                                  '{"pred": "x", "answers": "Ann"}', '{"pred": "\\ud800", "answers": ["x"]}'])
def test_a_bad_file_to_score(line, tmp_path):
    (tmp_path / "p.jsonl").write_text(line + "\n")
    with pytest.raises(InputError, match="p.jsonl, line 1: "):
        read_predictions(tmp_path / "p.jsonl")


@pytest.mark.parametrize("bad, good", [
    (musique(id="bad", answer_aliases="Ann Lee"), musique()),
    (musique(id="bad", paragraphs=[{"idx": 0, "title": None, "paragraph_text": "x"}]), musique()),
    (longbench(_id="bad", answers={"a": 1}), longbench()),
    (longbench(_id="bad", answers=[None]), longbench())])
def test_a_bad_row_drops_itself_alone(tmp_path, bad, good):
    """A text is no list of letters, and null is no text. The report counts the row that is left out."""
    (tmp_path / "x.jsonl").write_text(json.dumps(good) + "\n" + json.dumps(bad) + "\n")
    dataset = Dataset(tmp_path / "x.jsonl")
    assert len(dataset.questions) == 1 and "bad" not in dataset.questions[0]
    assert sum(entry["count"] for entry in dataset.report.skipped.values()) == 1


def test_a_torn_line_is_cut_off_before_the_next(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"{")
    for line in ("one\u2028", "two"):
        append_line(path, line)
    with open(path, "ab") as file:
        file.write(b'{"torn')
    assert complete_lines(path) == ["one\u2028".encode(), b"two"]
    append_line(path, "three")
    assert complete_lines(path)[2:] == [b"three"]


def test_a_full_disk_is_named_and_what_was_there_stays(tmp_path):
    """A limit of 4 KiB per file takes the place of a full disk."""
    path = tmp_path / "x.json"
    write_json(path, {"é": 1})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        for write, content in ((write_file, "x" * 10_000), (write_tensors, {"a": torch.zeros(10_000)})):
            with pytest.raises(OutputError, match="x.json: cannot be written .*File too large"):
                write(path, content)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == '{\n  "é": 1\n}\n'


# The functions that read files which anybody may have written.
READERS = {
    "graph": lambda path: Graph.load(path), "trace": read_traces, "summaries": complete_lines,
    "hash": lambda path: sha256([path]), "data set": Dataset, "own data": read_jsonl,
    "weights": lambda path: read_tensors(path, "cpu", None, ""), "sealed": read_sealed}


@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_or_a_device_is_refused(tmp_path, reader):
    """Opening this pipe would wait for ever, because nobody writes into it. /dev/zero has no end."""
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")

    def refused():
        for name in ("pipe.jsonl", "zero.jsonl"):
            with pytest.raises(InputError, match=f"{name}: not a regular file"):
                READERS[reader](tmp_path / name)
        return True
    assert holds_soon(refused)


@given(st.data())
def test_a_sealed_file_that_was_changed_anywhere(tmp_path_factory, data):
    """The file is refused, or its content is unchanged."""
    path = tmp_path_factory.getbasetemp() / "sealed"
    tensors = {"b": torch.arange(3.), "a": torch.zeros(2, 2, dtype=torch.int64)}
    write_sealed(path, tensors, "é x")
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        found, note = read_sealed(path)
    except InputError as error:
        assert str(error).startswith(f"{path}: ")
    else:
        assert note == "é x" and found.keys() == tensors.keys()
        assert all(torch.equal(found[name], tensors[name]) for name in found)


def test_two_processes_write_one_file(tmp_path):
    """The second writes while the first does. Neither fails, and the file of the one that ends last stays."""
    with contextlib.suppress(OutputError), replacing(tmp_path / "f") as partial:
        write_file(partial, "first")
        assert holds_soon(lambda: write_file(tmp_path / "f", "second") is None)
        assert (tmp_path / "f").read_text() == "second"
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("f", "first")]


def test_files_have_the_mode_that_the_user_wants(tmp_path):
    before = os.umask(0o027)
    try:
        write_tensors(tmp_path / "t", {"a": torch.zeros(1)})
        write_file(tmp_path / "f", "x")
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o640, 0o640]


# --- options --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("options, words", [
    (["--model", ""], "model is blank"), (["--limit", "-3"], "--limit is -3"), (["--nodes", "0"], "--nodes is 0"),
    (["--method", "pecan,bm25-x", "--top", "0"], "--top is 0"),
    (["--nodes", "3", "--patience", "4"], "--nodes reads a fixed number"),
    (["--nodes", "3", "--confidence", "0"], "--nodes reads a fixed number"), (["--window", "9999"], "made for 512"),
    (["--confidence", "nan"], "confidence is nan"), (["--chunk", "500"], "window 380 is too small"),
    (["--without", "attention", "--without", "similarity"], "cannot both be off"),
    (["--model", "/nowhere"], "/nowhere"), (["--model", "tests"], "config.json: cannot be read")])
def test_bad_options(options, words, tmp_path, capsys, monkeypatch):
    (tmp_path / "tests").mkdir()
    monkeypatch.chdir(tmp_path)
    argv = ["--dry-run", "--limit", "1", "--device", "cpu", *options]
    assert user_errors(lambda: evaluation_main.main(argv)) == 2
    errors = capsys.readouterr().err.splitlines()
    assert errors[-1].startswith("error: ") and words in errors[-1]


# --- text -----------------------------------------------------------------------------------------------------------

class Bytes:
    """A tokenizer whose tokens are the bytes of UTF-8."""
    def encode(self, text):
        return list(text.encode())


@pytest.mark.parametrize("text", ["今日は良い天気ですね" * 20, "か\u3099" * 40, "e\u0301\u0302" * 50, "की" * 40,
                                  "👩\u200d🚀" * 30, "👩\u200d❤\ufe0f\u200d👨" * 5, "1\ufe0f\u20e3" * 30, "한국" * 45,
                                  "e\u0301\u0302\u0303x"])
def test_a_long_word_is_cut_between_characters(text):
    """The package regex knows which marks belong to a character. A chunk has room for the longest of them."""
    limit = 1 + max(len(character.encode()) for character in regex.findall(r"\X", text))
    pieces = split(Bytes(), text, limit)
    characters = [character for piece in pieces for word in piece.split() for character in regex.findall(r"\X", word)]
    assert characters == regex.findall(r"\X", text)
    assert max(len(piece.encode()) for piece in pieces) < limit, "a chunk is too long"


def holds_soon(check) -> bool:
    """Whether check() holds, in a process that the kernel kills after 5 seconds of CPU time, or 30 seconds in all.

    Linear time takes a second at most on a slow machine, quadratic time many minutes. Only a kill stops a regular
    expression.
    """
    child = os.fork()
    if child == 0:
        holds = False
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
            signal.alarm(30)
            holds = check()
        finally:
            os._exit(not holds)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("text", [" " * 10 ** 6 + "x", "1" * 10 ** 6, "x" + " " * 10 ** 6 + "*" * 9, "* " * 10 ** 6])
def test_bullets_take_linear_time(text):
    assert holds_soon(lambda: all(text[start:end] == text[start:end].strip() != "" for start, end in bullets(text)))


# For each reader of replies in baselines/: replies that a careless pattern would search again and again.
REPLIES = {
    "weights": (lambda reply: weights_of(reply) == {}, [" " * 10 ** 6 + "x|", "|" * 10 ** 6]),
    "notebook": (lambda reply: len(notebook_of(reply)) < len(reply), [
        "Updated Notebook" + filler * 10 ** 6 for filler in ("\n", "\n*")]),
    "scores": (lambda reply: scores_of(reply, FactGraph([], str)) == {}, [
        "Node: " * 10 ** 5, "Node: x" + " " * 10 ** 6]),
    "pages": (lambda reply: pages_of(reply, 1, 1) == [], ["[" * 10 ** 6, "[" + "9" * 10 ** 6 + "]"]),
    "entities": (lambda reply: entities_of(reply, "") == [], [
        "[" + " " * 10 ** 6, "{" * 10 ** 5, "{\"" + "\\" * 10 ** 6, "{\"a\": " * 10 ** 5]),
    "pairs": (lambda reply: pairs_of(reply, "question|q", "answer|a") == [], [
        "Question: x\n" * 10 ** 5, "Question:" + " " * 10 ** 6, "Q: x" + "? " * 10 ** 6])}


@pytest.mark.parametrize("reader", REPLIES)
def test_replies_to_the_systems_take_linear_time(reader):
    check, replies = REPLIES[reader]
    assert all(holds_soon(lambda reply=reply: check(reply)) for reply in replies)


# --- kills ----------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A short data set, and the answers of an uninterrupted run over it."""
    folder = tmp_path_factory.mktemp("alone")
    data = short_set(folder)
    assert evaluation_main.main([*COMMAND[2:], "--dataset", str(data), "--output", str(folder / "r")]) == 0
    return data, answers(folder / "r")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_killed_run_goes_on(sent, processes, alone, tmp_path):
    """After each of three signals, to one process or to torchrun, the next run ends like an uninterrupted one.

    It has two processes after kill -9 of two. Otherwise it runs in this process, which saves the imports. A kill may
    tear the last line of a file; this test tears the last line of every file.
    """
    data, undisturbed = alone
    command, in_time = kill(data, tmp_path / "r", sent, processes, random.Random(sent * processes).uniform(0, 0.5))
    assert in_time, "the run had ended before the signal"
    for file in [*tmp_path.glob("r/*/*.jsonl"), *tmp_path.glob("r/graphs/*.summaries")]:
        with open(file, "a") as torn:
            torn.write('{"id": "test-0-3", "predic')
    if (sent, processes) == (signal.SIGKILL, 2):
        go_on(command)
    else:
        assert evaluation_main.main([*COMMAND[2:], "--dataset", str(data), "--output", str(tmp_path / "r")]) == 0
    assert answers(tmp_path / "r") == undisturbed
