"""The command lines: help and examples, errors, terminals, and JSON for programs."""
import argparse
import importlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from core.files import InputError, OutputError
from data import Answer, read_text
from llama import Llama
from pecan import Pecan
from support import command
from support.command import user_errors
from support.token_mean import TokenMean
from view import ask
from view.trace import read_traces

ROOT = Path(__file__).parents[2]
COMMANDS = sorted(".".join(path.relative_to(ROOT).with_suffix("").parts)
                  for path in [*ROOT.glob("*.py"), *ROOT.glob("[!t]*/*.py"), *ROOT.glob("tiny/*.py")]
                  if "\nif __name__ == \"__main__\":\n" in path.read_text(encoding="utf-8"))
STORY = str(ROOT / "tiny" / "story.txt")


def main_of(command: str):
    """The function that runs a command; pecan.py's is in view/."""
    return importlib.import_module("view.ask" if command == "pecan" else command).main


class Parsed(Exception):
    """A command line was understood."""


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_that_are_understood(name, capsys, monkeypatch):
    """The first line and the commands of the text. Each is a command of this project with existing options."""
    with pytest.raises(SystemExit):
        main_of(name)(["--help"])
    text = capsys.readouterr().out
    examples = re.findall(r"^  ((?:python|torchrun) .*?)(?:  .*)?$", text.partition("\nexamples:\n")[2], re.M)
    module = sys.modules[main_of(name).__module__]
    written = getattr(module, "TEXT", module.__doc__)
    assert f"\n\n{written.splitlines()[0]}\n" in text
    assert examples and len(examples) == len(re.findall("(?m)^    (?:python|torchrun) ", written))

    understood = argparse.ArgumentParser.parse_args

    def stop(parser, argv):
        raise Parsed(understood(parser, argv))
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    for example in examples:
        command_line = re.sub("^(python -m|torchrun --nproc-per-node 2) ", "python ", example.split(" > ")[0])
        _, file, *arguments = shlex.split(command_line)
        with pytest.raises(Parsed):
            main_of(file.removesuffix(".py"))(arguments)


@pytest.mark.parametrize("raised, code, said", [
    (InputError("x is wrong"), 2, "error: x is wrong\n"),
    (OutputError("x: cannot be\nwritten"), 2, "error: x: cannot be written; go on\n"),
    (FileNotFoundError(2, "No such file", "x"), 2, "error: [Errno 2] No such file: 'x'\n"),
    (MemoryError(), 2, "error: out of memory (MemoryError); try --batch 4, 2 or 1"),
    (RuntimeError("CUDA out of memory. Tried"), 2, "error: out of memory (CUDA out of memory. Tried); try --batch"),
    (RuntimeError("DefaultCPUAllocator: not enough memory"), 2, "error: out of memory"),
    (OSError(12, "Cannot allocate memory"), 2, "error: out of memory"),
    (KeyboardInterrupt(), 130, "interrupted; go on\n")])
def test_what_a_user_can_mend_is_one_line(raised, code, said, capsys):
    def main():
        raise raised
    assert user_errors(main, "; go on") == code
    assert capsys.readouterr().err.startswith(said)


def test_a_bug_keeps_its_traceback():
    with pytest.raises(RuntimeError, match="a bug"):
        user_errors(lambda: exec("raise RuntimeError('a bug')"))


# --- terminals ------------------------------------------------------------------------------------------------------

class Full(io.StringIO):
    """An output that is full. Only the flush at the end says so, because output is buffered."""
    def flush(self):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("stdout, said", [(None, "error: standard output is closed"), (Full(), "error: [Errno 28] No")])
def test_an_answer_that_cannot_be_printed(stdout, said, capsys, monkeypatch):
    """It is an error. That nobody reads stderr is none."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", None)
        assert user_errors(lambda: print("東", file=sys.stderr)) is None
    monkeypatch.setattr(sys, "stdout", stdout)
    assert user_errors(lambda: print("an answer")) == 2
    assert capsys.readouterr().err.startswith(said)
    assert sys.stdout is None, "what is left would be printed again at the end, with a traceback"


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_a_terminal_need_not_know_every_character(encoding, monkeypatch):
    """It gets the numbers of those that it does not know. JSON is JSON on each."""
    answer = Answer("Zoë, 東京 👍🏽", [], 1, 1, "all")
    printed = {}
    for name in ("as_text", "as_json"):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
        show = getattr(ask, name)
        assert user_errors(lambda: print(show(answer, "?", [], *[False] * (show is ask.as_text)))) is None  # noqa: B023
        printed[name] = sys.stdout.buffer.getvalue().decode(encoding)
    assert answer.text.encode(encoding, "backslashreplace").decode(encoding) in printed["as_text"]
    assert json.loads(printed["as_json"])["answer"] == answer.text


def test_a_question_that_is_no_utf_8_is_one_line(tmp_path):
    """Before a model is loaded or a graph is built."""
    question = "Where is Zo\udceb?"                         # what Python makes of a Latin-1 terminal's byte
    done = subprocess.run([sys.executable, str(ROOT / "pecan.py"), STORY, question], cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert done.stderr.startswith(b"error: questions 'Where is Zo") and not os.listdir(tmp_path)


@pytest.mark.parametrize("flops, said", [(513e6, "0.513 GFLOPs"), (9.996e11, "1 TFLOPs"), (3.1e13, "31 TFLOPs"),
                                         (1.1468e15, "1,150 TFLOPs")])
def test_flops_are_three_digits_without_an_exponent(flops, said):
    assert f"nodes read, {said};" in ask.as_text(Answer("", [], int(flops), 1, "all"), "?", [], False)


# --- what runs, and what is printed of it ---------------------------------------------------------------------------

@pytest.mark.parametrize("width, chosen, threads", [(255, None, 1), (256, None, 3), (255, "2", 2)])
def test_a_small_model_runs_on_one_thread(monkeypatch, tiny, width, chosen, threads):
    """A wide model has PyTorch's threads. OMP_NUM_THREADS overrides both."""
    found = [2]
    monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": chosen} if chosen else {})
    monkeypatch.setattr(torch, "set_num_threads", found.append)
    monkeypatch.setattr(command, "THREADS", 3)
    model = Llama(replace(tiny.config, width=width), tiny.weights, tiny.tokenizer, tiny.folder)
    monkeypatch.setattr(command.Llama, "load", lambda *_: model)
    command.load_models(argparse.Namespace(model="m", device="cpu", dtype="auto", encoder=None, builder=None))
    assert found[-1] == threads


def test_a_command_line_runs_what_it_names(tmp_path, folder, settings, capsys):
    """Two models, other settings and a dtype: stdout and trace hold what the method itself answers, one line of JSON
    for each question. The trace names the model that searched, and finds a graph in another folder."""
    (tmp_path / "traces").mkdir()
    trace = tmp_path / "traces" / "t.jsonl"
    questions = ["When did Selma move?", "Where does Selma live?"]
    options = "--json --chunk 32 --window 380 --patience 2 --without attention --dtype float64 --device cpu".split()
    assert ask.main([STORY, *questions, *options, "--graph", str(tmp_path / "g.json"), "--trace", str(trace),
                     "--builder", str(folder)]) == 0

    searching, building = (Llama.load(path, "cpu", "float64") for path in (ROOT / "tiny", folder))
    settings = replace(settings, chunk=32, patience=2, attention=False)
    method = Pecan(searching, TokenMean(searching), settings, building, replace(settings, summary_share=.25))
    prepared = method.prepare(read_text(STORY))
    assert json.loads(trace.read_text().splitlines()[0])["model"] == searching.fingerprint
    lines = capsys.readouterr().out.splitlines()
    for line, question, traced in zip(lines, questions, read_traces(trace), strict=True):
        answer = method.answer(prepared, question)
        assert line == ask.as_json(answer, question, prepared.texts)
        assert line == ask.as_json(traced.answer, traced.question, prepared.texts) and traced.settings == settings
