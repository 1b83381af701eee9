"""The command lines: help, examples, JSON for programs, Ctrl-C."""
import argparse
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from core.command import user_errors

import pytest
from hostile import short_set
from test_house import files

ROOT = Path(__file__).parents[1]
COMMANDS = sorted(
    file.removesuffix(".py").replace("/", ".") for file in files()
    if "\nif __name__ == \"__main__\":\n    sys.exit(user_errors(" in (ROOT / file).read_text(encoding="utf-8"))
STORY = str(ROOT / "tiny" / "story.txt")


class Parsed(Exception):
    """A command line was understood."""


def help_of(command, capsys) -> str:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(command).main(["--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_commands_are_found():
    assert {"pecan", "eval", "support.convert", "evaluation.layouts.__main__", "view.replay", "view.page", "view.walk",
            "tiny.world", "tiny.train", "tiny.compare"} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_that_are_understood(command, capsys, monkeypatch):
    """Each example is a command of this project, with options that it has."""
    text = help_of(command, capsys)
    examples = re.findall(r"^  ((?:python|torchrun) .*?)(?:  .*)?$", text.partition("\nexamples:\n")[2], re.M)
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
            importlib.import_module(name).main(arguments)


def test_answers_as_json(tmp_path, capsys):
    """A line for each question, nothing else on stdout; the figures of the text."""
    main = importlib.import_module("pecan").main
    arguments = [STORY, "What color is Selma's pet?", "Where does Selma live?", "--device", "cpu", "--graph",
                 str(tmp_path / "g.json")]
    main([*arguments, "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["answer"] for row in rows] == ["red", "market"] and rows[0]["question"] == arguments[1]
    for row in rows:
        assert [step["node"] for step in row["steps"]] == row["nodes"] and row["end"] == "yes"
        assert row["steps"][-1]["verdict"] == "Yes" and row["steps"][-1]["flops"] < row["flops"]
    assert rows[0]["steps"][-1]["text"] .startswith("Seoul's farmer drinks wine.")

    main([*arguments, "--trace"])
    printed = capsys.readouterr().out
    assert f"({len(rows[0]['nodes'])} of {rows[0]['of']} nodes read, {rows[0]['flops'] / 1e9:,.3g} GFLOPs; " in printed
    assert printed.count("    #") == sum(len(row["steps"]) for row in rows)


def test_results_as_json(tmp_path, capsys):
    """A run, its scores again, and an estimate: stdout is one JSON object, of the numbers that the table shows."""
    main = importlib.import_module("eval").main
    output = tmp_path / "r"

    def numbers(*arguments):
        assert main([*arguments, "--json", "--device", "cpu"]) == 0
        printed = capsys.readouterr().out
        assert printed.startswith("{") and printed.endswith("}\n")
        return json.loads(printed)

    run = numbers("--limit", "1", "--method", "whole", "--output", str(output), "--pictures")
    assert run == json.loads((output / "results.json").read_text())
    whole = run["data"]["embedded"]["runs"]["whole"]
    assert (output / "picture.png").exists() and (output / "picture.svg").exists()

    path = str(output / "embedded" / "whole.jsonl")
    scored = numbers("--score", path)
    assert list(scored) == [path] and scored[path]["f1_interval"] == whole["f1_interval"]
    assert scored[path]["f1"] == whole["f1"]

    cost = numbers("--dry-run", "--limit", "1")["embedded"]
    assert cost["documents"] == 1 and cost["questions"] == 7 and cost["memory"] > 1e6
    assert cost["whole"] == pytest.approx(6 * whole["flops"], rel=0.2)


def test_a_report_as_json(capsys):
    main = importlib.import_module("evaluation.layouts.__main__").main
    path = str(ROOT / "tiny" / "test.jsonl")
    main([path, "--limit", "2", "--json"])
    found = json.loads(capsys.readouterr().out)
    main([path, "--limit", "2"])
    printed = capsys.readouterr().out
    assert (found["documents"], found["questions"], found["problems"]) == (20, 134, {})
    assert f"average {found['words']['average']:,.0f}, min {found['words']['min']:,}, max" in printed


def test_an_option_that_is_empty_is_refused():
    for command, arguments in (("view.page", ["x.jsonl", "-o", ""]), ("view.replay", [""]), ("view.walk", [""])):
        assert user_errors(lambda: importlib.import_module(command).main(arguments)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("command", [["pecan.py"], ["eval.py"], ["-m", "view.walk"], ["-m", "tiny.train"],
                                     ["-m", "evaluation.layouts"]], ids=str)
def test_an_interruption_during_the_imports(tmp_path, command):
    """A word, no traceback. A module in the place of torch, or of csv, interrupts for us at the right moment."""
    # A shell ignores Ctrl-C in what it runs in the background, and so would the command if the tests run there.
    module = "csv.py" if "evaluation.layouts" in command else "torch.py"             # the data command needs no torch
    (tmp_path / module).write_text("import os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
                                       "os.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run([sys.executable, *command, "--help"], cwd=ROOT, capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert done.returncode == -2 and done.stderr == "interrupted\n" and done.stdout == ""


@pytest.mark.slow
def test_no_progress_bar_without_a_terminal(tmp_path):
    """stderr has the lines that matter, and not one carriage return."""
    done = subprocess.run([sys.executable, str(ROOT / "pecan.py"), STORY, "What color is Selma's pet?",
                           "--device", "cpu", "--graph", str(tmp_path / "g.json")], capture_output=True)
    assert done.returncode == 0 and b"\r" not in done.stderr and len(done.stderr.splitlines()) == 2
    done = subprocess.run([sys.executable, str(ROOT / "eval.py"), "--dataset", short_set(tmp_path, 1), "--device",
                           "cpu", "--output", str(tmp_path / "r")], capture_output=True)
    assert done.returncode == 0 and b"\r" not in done.stderr and b"question/s" not in done.stderr
