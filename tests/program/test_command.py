"""The command lines: help and examples, errors, and JSON for programs."""
import argparse
import importlib
import io
import json
import re
import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

import eval as evaluation_main
from support.command import user_errors
from core.files import InputError, OutputError
from data import read_text
from llama import Llama
from pecan import Pecan
from support.token_mean import TokenMean
from view import ask
from view.trace import read_traces

ROOT = Path(__file__).parents[2]
COMMANDS = sorted(".".join(path.relative_to(ROOT).with_suffix("").parts)
                  for path in [*ROOT.glob("*.py"), *ROOT.glob("*/*.py")] if path.parent.name != "tests"
                  and "\nif __name__ == \"__main__\":\n" in path.read_text(encoding="utf-8"))
STORY = str(ROOT / "tiny" / "story.txt")


def main_of(command: str):
    """The function that runs a command; pecan.py's is in view/."""
    return importlib.import_module("view.ask" if command == "pecan" else command).main


class Parsed(Exception):
    """A command line was understood."""


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_that_are_understood(command, capsys, monkeypatch):
    """The first line and the commands of the text. Each is a command of this project with existing options."""
    with pytest.raises(SystemExit):
        main_of(command)(["--help"])
    text = capsys.readouterr().out
    examples = re.findall(r"^  ((?:python|torchrun) .*?)(?:  .*)?$", text.partition("\nexamples:\n")[2], re.M)
    module = sys.modules[main_of(command).__module__]
    written = getattr(module, "TEXT", module.__doc__)
    assert f"\n\n{written.splitlines()[0]}\n" in text
    assert len(examples) == len(re.findall("(?m)^    (?:python|torchrun) ", written))
    assert examples and all(len(line) <= 130 for line in text.splitlines())

    understood = argparse.ArgumentParser.parse_args

    def stop(parser, argv):
        raise Parsed(understood(parser, argv))
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    for example in examples:
        words = shlex.split(example.split(" > ")[0])
        place = next(n for n, word in enumerate(words) if word in ("-m", "pecan.py", "eval.py"))
        module = words[place + 1] if words[place] == "-m" else words[place].removesuffix(".py")
        arguments = words[place + (2 if words[place] == "-m" else 1):]
        name = module if module in COMMANDS else f"{module}.__main__"
        assert name in COMMANDS
        with pytest.raises(Parsed):
            main_of(name)(arguments)


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


class Full(io.StringIO):
    """An output that is full. Only the flush at the end says so, because output is buffered."""
    def flush(self):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("stdout, said", [(None, "error: standard output is closed"), (Full(), "error: [Errno 28] No")])
def test_an_answer_that_cannot_be_printed(stdout, said, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdout", stdout)
    assert user_errors(lambda: print("an answer")) == 2
    assert capsys.readouterr().err.startswith(said)
    assert sys.stdout is None, "what is left would be printed again at the end, with a traceback"


def test_a_closed_stderr_is_no_error(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert user_errors(lambda: print("an answer", sys.stderr.isatty())) is None
    assert capsys.readouterr().out == "an answer False\n"


def test_questions_without_quotes(capsys):
    ask.parse(["s.txt", *"Who sings?".split()])
    assert "around each question" in capsys.readouterr().err
    ask.parse(["s.txt", "What color is it?", "Who?"])
    ask.parse(["s.txt", "Who?"])
    assert not capsys.readouterr().err


def test_a_bug_keeps_its_traceback():
    with pytest.raises(RuntimeError, match="a bug"):
        user_errors(lambda: exec("raise RuntimeError('a bug')"))


def test_answers_as_json(tmp_path, capsys):
    """Stdout has one line for each question and nothing else."""
    arguments = [STORY, "When did Selma move?", "Where does Selma live?", "--device", "cpu", "--graph",
                 str(tmp_path / "g.json")]
    ask.main([*arguments, "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["answer"] for row in rows] == ["1921", "market"]
    for row in rows:
        assert [step["node"] for step in row["steps"]] == row["nodes"] and row["end"] == "yes"
        assert row["steps"][-1]["verdict"] == "Yes" and row["steps"][-1]["flops"] < row["flops"]


def test_a_command_line_runs_what_it_names(tmp_path, folder, settings, capsys):
    """Two models, other settings and a dtype: stdout, trace and dump hold what the method itself answers. The trace
    names the model that searched, and finds a graph in another folder."""
    (tmp_path / "traces").mkdir()
    trace, dump = tmp_path / "traces" / "t.jsonl", tmp_path / "d.safetensors"
    questions = ["When did Selma move?", "Where does Selma live?"]
    assert ask.main([STORY, *questions, "--json", "--graph", str(tmp_path / "g.json"), "--trace", str(trace),
                     "--dump", str(dump), "--builder", str(folder), "--chunk", "32", "--patience", "2", "--without",
                     "attention", "--dtype", "float64", "--device", "cpu"]) == 0

    searching, building = (Llama.load(path, "cpu", "float64") for path in (ROOT / "tiny", folder))
    settings = replace(settings, chunk=32, patience=2, attention=False)
    method = Pecan(searching, TokenMean(searching), settings, building)
    prepared = method.prepare(read_text(STORY))
    visited = load_file(dump)
    raw = [json.loads(line) for line in trace.read_text().splitlines()]
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert "float64" in printed.err
    for n, (line, question, traced) in enumerate(zip(lines, questions, read_traces(trace), strict=True)):
        wanted = json.loads(json.dumps(asdict(method.answer(prepared, question))))
        assert asdict(traced.answer) == wanted and (traced.question, traced.settings) == (question, settings)
        assert visited[f"query.{n}.visited"].tolist() == wanted["nodes"]
        assert json.loads(line) == {"question": question, "answer": wanted["text"], "of": len(prepared.texts)} | {
            name: wanted[name] for name in ("end", "nodes", "tokens", "flops")} | {
            "steps": [step | {"text": prepared.texts[step["node"]]} for step in wanted["trace"]]}
        assert (raw[n]["model"], raw[n]["encoder"]) == (searching.fingerprint, method.encoder.fingerprint)


def test_results_as_json(tmp_path, capsys):
    """For a run and for its scores, stdout is one JSON object with the numbers that are kept."""
    output = tmp_path / "new" / "r"

    def numbers(*arguments):
        assert evaluation_main.main([*arguments, "--json", "--device", "cpu"]) == 0
        printed = capsys.readouterr().out
        assert printed.startswith("{") and printed.endswith("}\n")
        return printed

    printed = numbers("--limit", "1", "--method", "whole", "--output", str(output))
    assert printed == (output / "results.json").read_text()
    path = str(output / "embedded" / "whole.jsonl")
    run, scored = map(json.loads, (printed, numbers("--score", path)))
    assert list(scored) == [path] and scored[path]["f1"] == run["data"]["embedded"]["runs"]["whole"]["f1"]
