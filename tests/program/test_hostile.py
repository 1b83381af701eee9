"""Bad input of each class gives one line that names the place, and nothing is lost. Killed runs go on."""
import contextlib
import json
import random
import shutil
import signal
import subprocess

import pytest
import regex
from hostile import COMMAND, ROOT, files, kill, short_set
from hypothesis import given
from hypothesis import strategies as st

import eval as evaluation_main
from core.files import InputError, append_line, complete_lines, replacing, write_file
from core.text import split
from data import Answer, Document, Prepared, Question
from evaluation.runner import Predictions, prediction
from support.disk import kept, read_graph
from view import ask
from view.trace import read_traces

# --- files ----------------------------------------------------------------------------------------------------------

def resume(path):
    with kept(str(path).removesuffix(".summaries"), "", None):
        pass


READERS = {"g.json": read_graph, "t.jsonl": read_traces, "x.summaries": resume, "p.jsonl": Predictions}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a graph, a trace of a search in it, and summaries, and another folder to damage a copy in."""
    folder = tmp_path_factory.mktemp("saved")
    ask.ask([str(ROOT / "tiny" / "story.txt"), "When did Selma move?", "--device", "cpu", "--graph",
             str(folder / "g.json"), "--trace", str(folder / "t.jsonl")])
    write_file(folder / "x.summaries", '["0a1b", [[["Mara", [0.5, 0.5]]]], 7]\n' * 3)
    row = prediction(Document("d", ["x"]), Question("q", "Who?", ["a"]), Prepared([]), Answer("a", [], 1, 1), None)
    write_file(folder / "p.jsonl", json.dumps(row) + "\n")
    return folder, shutil.copytree(folder, tmp_path_factory.mktemp("damaged") / "d")


@given(st.sampled_from(sorted(READERS)), st.data())
def test_a_file_that_was_damaged_anywhere(saved, name, data):
    """If a line is lost, repeated, cut or changed, the file is refused in one line that names it, or is still whole."""
    lines = (saved[0] / name).read_text().splitlines(keepends=True)
    n = data.draw(st.integers(0, len(lines) - 1))
    lines[n] = data.draw(st.sampled_from([
        "", lines[n] * 2, lines[n][:-5] + "\n", lines[n].replace("1", "7"), lines[n].replace('"', ""), "[1, 0, NaN],\n",
        "[[1], 0, 0.5],\n", "null\n", "{}\n", "[" * 5000 + "\n", '{"level": 1, "text": "\\ud800"},\n']))
    path = saved[1] / name
    path.write_text("".join(lines))
    try:
        READERS[name](path)
    except InputError as error:
        assert str(path) in str(error) and "\n" not in str(error)
    if name != "x.summaries":                               # which goes when a construction ends
        shutil.copy(saved[0] / name, path)


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


def test_a_file_is_written_at_once_or_not_at_all(tmp_path):
    write_file(tmp_path / "f", "old")
    with contextlib.suppress(ZeroDivisionError), replacing(tmp_path / "f") as partial:
        write_file(partial, "half")
        1 / 0
    assert (tmp_path / "f").read_text() == "old"


# --- text -----------------------------------------------------------------------------------------------

class Bytes:
    """A tokenizer whose tokens are the bytes of UTF-8."""
    def encode(self, text):
        return list(text.encode())


@pytest.mark.parametrize("text", ["今日は良い天気ですね" * 20, "か\u3099" * 40, "e\u0301\u0302" * 50, "की" * 40,
                                  "👩\u200d❤\ufe0f\u200d👨" * 5, "1\ufe0f\u20e3" * 30, "한국" * 45])
def test_a_long_word_is_cut_between_characters(text):
    """The package regex knows which marks belong to a character. A chunk has room for the longest of them."""
    limit = 1 + max(len(character.encode()) for character in regex.findall(r"\X", text))
    pieces = split(Bytes(), text, limit)
    characters = [character for piece in pieces for word in piece.split() for character in regex.findall(r"\X", word)]
    assert characters == regex.findall(r"\X", text)
    assert max(len(piece.encode()) for piece in pieces) < limit, "a chunk is too long"


# --- kills ----------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A short data set, and the files of an uninterrupted run over it."""
    folder = tmp_path_factory.mktemp("alone")
    data = short_set(folder)
    assert evaluation_main.main([*COMMAND[2:], "--dataset", str(data), "--output", str(folder / "r")]) == 0
    return data, files(folder / "r")


@pytest.mark.slow
@pytest.mark.parametrize("sent, processes", [("SIGKILL", 1), ("SIGINT", 1), ("SIGTERM", 2), ("SIGKILL", 2)])
def test_a_killed_run_goes_on(sent, processes, alone, tmp_path):
    """The next run ends with the files of an uninterrupted one, byte by byte. A kill may tear the last line of a file;
    this test tears the last line of every file."""
    data, undisturbed = alone
    sent = getattr(signal, sent)                            # Windows has no SIGKILL
    command = kill(data, tmp_path / "r", sent, processes, random.Random(sent * processes).uniform(0, 0.5))
    for file in [*tmp_path.glob("r/*/*.jsonl"), *tmp_path.glob("r/graphs/*.summaries")]:
        with open(file, "a") as torn:
            torn.write('{"id": "test-0-3", "predic')
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert files(tmp_path / "r") == undisturbed
