"""Bad input of each class gives one line that names the place, and nothing is lost. Killed runs go on."""
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from unittest.mock import Mock

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from runs import ROOT, files, short_set

import eval as evaluation_main
from core.command import user_errors
from core.disk import read_kept
from core.files import InputError, reading, write_file
from core.text import split
from data import Answer, Document, Prepared, Question
from evaluation.answers import Predictions
from model.tokenizer import Tokenizer
from view import ask
from view.trace import read_traces

# --- files ----------------------------------------------------------------------------------------------------------

READERS = {"g.json": read_kept, "t.jsonl": read_traces, "p.jsonl": Predictions}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a graph, a trace of a search in it, summaries and predictions; and the text of each file."""
    folder = tmp_path_factory.mktemp("saved")
    ask.ask([str(ROOT / "tiny" / "story.txt"), "When did Selma move?", "--device", "cpu", "--graph",
             str(folder / "g.json"), "--trace", str(folder / "t.jsonl")])
    Predictions(folder / "p.jsonl").add(Document("d", ["x"]), Question("q", "Who?", ["a"]), Prepared([]),
                                        Answer("a", [], 1, 1), None)
    return folder, {name: (folder / name).read_text() for name in READERS}


@given(st.sampled_from(sorted(READERS)), st.data())
def test_a_file_that_was_damaged_anywhere(saved, name, data):
    """If a line is lost, repeated, cut or changed, and the file is refused, then in one line that names it."""
    folder, texts = saved
    path = folder / name
    lines = texts[name].splitlines(keepends=True)
    n = data.draw(st.integers(0, len(lines) - 1))
    lines[n] = data.draw(st.sampled_from([
        "", lines[n] * 2, lines[n][:-5] + "\n", lines[n].replace("1", "7"), lines[n].replace('"', ""), "[1, 0, NaN],\n",
        "[[1], 0, 0.5],\n", "null\n", "{}\n", "[" * 5000 + "\n", '{"level": 1, "text": "\\ud800"},\n']))
    path.write_text("".join(lines))
    try:
        READERS[name](path)
    except InputError as error:
        assert str(path) in str(error) and "\n" not in str(error)
    path.write_text(texts[name])


def test_a_file_is_written_at_once_or_not_at_all(tmp_path, monkeypatch):
    """Nothing but its new name makes a half-written file the file."""
    write_file(tmp_path / "f", "old")
    monkeypatch.setattr(os, "replace", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(InputError, match=r"f: cannot be written \(No space"):
        write_file(tmp_path / "f", "new")
    assert (tmp_path / "f").read_text() == "old" and len(list(tmp_path.iterdir())) == 1, "half a file is left"

    replaced = []
    monkeypatch.setattr(os, "replace", lambda new, _: replaced.append(new))
    for process in (1, 2):
        monkeypatch.setattr(os, "getpid", lambda: process)
        write_file(tmp_path / "f", "new")
    assert len({*replaced}) == 2, "two processes write one file"


def test_whatever_a_file_makes_a_library_raise_names_the_file():
    """Also the panic of a library in Rust, which is no Exception, and a lack of memory. An interruption goes on."""
    panic = type("PanicException", (BaseException,), {})
    for error, said in ((panic("index"), "f: cannot be read .index"), (MemoryError(), "f: out of memory .*r.$")):
        with pytest.raises(InputError, match=said), reading("f"):
            raise error
    with pytest.raises(KeyboardInterrupt), reading("f"):
        raise KeyboardInterrupt


def test_a_document_does_not_take_over_the_terminal():
    said = ask.as_text(Answer("\x9b2J", [], 1, 1), "Who?\x1b]0;x\x07", [], steps=False)
    assert said.startswith("Who?\\x1b]0;x\\x07\n  \\x9b2J\n")


def test_answers_that_vanish_during_a_run_are_missed(tmp_path, monkeypatch, capsys):
    def finish(predictions, order):
        predictions.path.write_text(predictions.path.read_text().split("\n")[0] + "\n")

    monkeypatch.setattr(Predictions, "finish", finish)
    command = ["--device", "cpu", "--dataset", str(short_set(tmp_path)), "--method", "bm25", "--output", str(tmp_path)]
    assert evaluation_main.main(command) == 1
    assert "answers have vanished during the run" in capsys.readouterr().err


# --- text -----------------------------------------------------------------------------------------------

class Bytes:
    """A tokenizer whose tokens are the bytes of UTF-8."""
    def encode(self, text):
        return list(text.encode())


CHARACTERS = ["今", "日", "か\u3099", "e\u0301\u0302", "की", "👩\u200d❤\ufe0f\u200d👨", "1\ufe0f\u20e3", "한", "각",
              "👍🏽", "🇫🇷", "ｶﾞ", "。", "！」", "؟"]


@given(st.lists(st.sampled_from(CHARACTERS), min_size=40, max_size=90), st.integers(32, 60))
def test_a_text_without_blanks_is_cut_at_the_best_place(characters, limit):
    """At the end of a sentence in the second half of a chunk, else between two characters, as late as possible. The
    package regex knows both, and which marks belong to a character."""
    text = "".join(characters)
    pieces = split(Bytes(), text, limit)
    assert "".join(pieces) == text and len(pieces[-1].encode()) < limit
    for k, piece in enumerate(pieces[:-1]):
        rest = "".join(pieces[k:])
        most = max(n for n in range(len(rest)) if len(rest[:n].encode()) < limit)
        assert most // 2 <= len(piece) <= most
        if not regex.search(r"\p{STerm}」?$", piece):
            assert len((piece + regex.match(r"\X", pieces[k + 1])[0]).encode()) >= limit, "another character fits"
            assert not regex.search(r"\p{STerm}", piece[(most + 1) // 2:]), "a sentence ends in the second half"
    assert [c for piece in pieces for c in regex.findall(r"\X", piece)] == regex.findall(r"\X", text)


def test_a_line_that_ends_inside_a_chinese_sentence_leaves_no_blank():
    assert split(Bytes(), "今\r\n日、\nか 今\nA\n한\n국", 99) == ["今日、か 今 A 한 국"]


# --- thoughts -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("thinking, code, words", [
    ([True], 2, "error: PECAN on .*: every reply ends inside its thought, so nothing is answered; take a checkpoint"),
    ([False, True, False], 0, r"PECAN on .*: \d+ replies end inside their thought and count as empty answers")])
def test_replies_that_end_inside_their_thought_are_named(tmp_path, monkeypatch, capsys, thinking, code, words):
    """That the tokenizer sees them is shown in numerics/files/test_tokenizer.py."""
    flags = itertools.cycle(thinking)
    monkeypatch.setattr(Tokenizer, "thinking", lambda *_: next(flags))
    command = ["--device", "cpu", "--dataset", str(short_set(tmp_path)), "--method", "pecan", "--output", str(tmp_path)]
    assert user_errors(lambda: evaluation_main.main(command)) == code
    said = capsys.readouterr()
    assert re.search(words, said.out + said.err)


# --- kills ----------------------------------------------------------------------------------------------------------

ALONE = "--device", "cpu", "--batch", "1"                   # in other batches rows round differently


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A short data set, and the files of an uninterrupted run over it."""
    folder = tmp_path_factory.mktemp("alone")
    data = short_set(folder)
    assert evaluation_main.main([*ALONE, "--dataset", str(data), "--output", str(folder / "r")]) == 0
    return data, files(folder / "r")


@pytest.mark.slow
@pytest.mark.parametrize("sent, processes", [("SIGKILL", 1), ("SIGINT", 1), ("SIGTERM", 2), ("SIGKILL", 2)])
def test_a_killed_run_goes_on(sent, processes, alone, tmp_path):
    """The next run ends with the files of an uninterrupted one, byte by byte where each row runs alone. A kill may tear
    the last line of a file; this test tears the last line of every file."""
    data, undisturbed = alone
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)] if processes > 1 else []
    command = [sys.executable, *launcher, "eval.py", *ALONE, "--dataset", data, "--output", tmp_path / "r"]

    # The whole group gets the signal, as from a terminal, so torchrun's processes get it too.
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               start_new_session=True)
    while not any(tmp_path.glob("r/*/*.jsonl")):
        assert process.poll() is None, "the run had ended before the signal"
        time.sleep(.01)
    os.killpg(process.pid, getattr(signal, sent))           # Windows has no SIGKILL
    process.wait()

    for file in [*tmp_path.glob("r/*/*.jsonl"), *tmp_path.glob("r/graphs/*.summaries")]:
        with open(file, "a") as torn:
            torn.write('{"id": "test-0-3", "predic')
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert files(tmp_path / "r") == undisturbed
