"""The command lines: errors and terminals."""
import io
import os
import shlex
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from runs import ROOT, table

import eval as evaluate
from core.command import user_errors
from core.files import InputError
from data import EMBEDDED
from view import ask

STORY = str(ROOT / "tiny" / "story.txt")


@pytest.mark.parametrize("raised, code, said", [
    (InputError("x is wrong"), 2, "error: x is wrong\n"),
    (InputError("x is\nwrong"), 2, "error: x is wrong\n"),
    (FileNotFoundError(2, "No such file", "x"), 2, "error: [Errno 2] No such file: 'x'; go on\n"),
    (MemoryError(), 2, "error: out of memory (MemoryError); try a smaller --window"),
    (torch.OutOfMemoryError("CUDA out of memory"), 2, "error: out of memory (CUDA out of memory); try a smaller"),
    (KeyboardInterrupt(), 130, "interrupted; go on\n")])
def test_what_a_user_can_mend_is_one_line(raised, code, said, capsys):
    assert user_errors(Mock(side_effect=raised), "; go on") == code
    assert capsys.readouterr().err.startswith(said)


def test_a_bug_keeps_its_traceback():
    with pytest.raises(RuntimeError, match="a bug"):
        user_errors(Mock(side_effect=RuntimeError("a bug")))


# --- terminals ------------------------------------------------------------------------------------------------------

def test_an_answer_that_cannot_be_printed(capsys, monkeypatch):
    """Output is buffered, so only the flush at the end says so."""
    full = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(full.buffer, "write", Mock(side_effect=OSError(28, "No space left on device")))
    monkeypatch.setattr(sys, "stdout", full)
    assert user_errors(lambda: print("an answer")) == 2
    assert capsys.readouterr().err.startswith("error: [Errno 28] No")
    assert sys.stdout is None, "what is left would be printed again at the end, with a traceback"


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_a_terminal_need_not_know_every_character(encoding, monkeypatch):
    """It gets the numbers of those that it does not know; and each answer at once, so a kill loses none."""
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding, newline="\n"))

    def main():
        print("Zoë, 東京 👍🏽")
        return sys.stdout.buffer.getvalue()
    assert user_errors(main) == "Zoë, 東京 👍🏽\n".encode(encoding, "backslashreplace")


# --- mistakes -------------------------------------------------------------------------------------------------------

# A command line, and what its error says. (A Latin-1 terminal's byte becomes half a surrogate pair.)
MISTAKES = f"""
pecan.py {STORY} 'Where?' ' '                        | a question is empty
pecan.py {STORY} 'Where is Zo\udceb?'                | questions 'Where is Zo
pecan.py {STORY} --trace 'Who is Selma?'             | --trace: took 'Who is Selma?'
pecan.py {STORY} 'Who is Selma?' --trace When?       | --trace: took 'When?'
pecan.py {STORY} 'Who is Selma?' --confidence 2      | confidence is 2.0; it must be
pecan.py {STORY} 'Who is Selma?' --trace there.jsonl | there.jsonl, line 1
pecan.py {STORY} 'Who is Selma?' --nothing           | --nothing
pecan.py {STORY} 'Who is Selma?' --model .           | /config.json:
eval.py --method magic                            | magic: unknown
eval.py --dataset no.jsonl                        | no.jsonl
eval.py --limit -3                                | --limit is -3
eval.py --dataset {EMBEDDED} {EMBEDDED}           | have the same name; run them one by one
eval.py --dry-run --dragon no/such/model .        | no such folder
eval.py --dry-run --encoder no/such/m             | no such folder
eval.py --scorer no/such/m                        | no such folder
eval.py --window 100 --method pecan --limit 1     | window 100 is too small
eval.py --score no.jsonl                          | no.jsonl
eval.py --score no.jsonl --limit 2                | with --limit
eval.py --top 3 --method bm25                     | --top 3
eval.py --top 0 --method bm25-x                   | --top is 0
eval.py --graphs there.jsonl                      | there.jsonl
eval.py --output there.jsonl                      | there.jsonl
eval.py --table 2                                 | --searcher
eval.py --searcher m                              | --searcher cannot
eval.py --method bm25-x                           | BM25 Top-X needs --top
eval.py --table systems --method bm25             | --method bm25: unknown here
eval.py --model '' --json                         | model is blank
eval.py --table 2 --searcher x/m --searcher y/m@v | x/m y/m@v have the same name
eval.py --model .                                 | config.json: cannot
eval.py --pictures --table A3                     | --pictures draws --table patience or nodes
eval.py --table 1 --nodes 5                       | --nodes cannot
eval.py --table patience --patience 2             | --patience cannot
eval.py --table 3 --method pecan                  | --method cannot
eval.py --nodes 3 --patience 4                    | --nodes reads a fixed number
eval.py --nodes 3 --confidence 0                  | --nodes reads a fixed number
eval.py --confidence nan                          | confidence is nan
eval.py --without attention --without similarity  | cannot both be off
eval.py --table nodes --without graph             | --without cannot
eval.py --table 2 --searcher s --builder m        | --builder cannot
"""


@pytest.mark.parametrize("line, said", table(MISTAKES))
def test_a_mistake_is_one_line_and_exit_code_2(line, said, tmp_path, monkeypatch, capsys):
    """Above it may stand a line of usage, a warning, or how far the run came. pecan.py has not loaded a model yet."""
    monkeypatch.chdir(tmp_path)
    Path("there.jsonl").write_text("mine\n")
    if "--model" not in line:
        monkeypatch.setattr(ask, "load_models", None)       # it would fail
    program, *arguments = shlex.split(line)
    try:
        code = user_errors(lambda: {"eval.py": evaluate.main, "pecan.py": ask.ask}[program](arguments))
    except SystemExit as end:                               # argparse's
        code = end.code
    printed = capsys.readouterr()
    lines = printed.err.replace(os.sep, "/").splitlines()
    assert code == 2 and not printed.out and len(lines) <= 5
    assert printed.err.count("error: ") == 1 and "error: " in lines[-1] and said in " ".join(lines[-2:])
    assert {*os.listdir()} <= {"there.jsonl", "results"}
