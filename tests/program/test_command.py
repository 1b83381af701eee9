"""The command lines: errors, terminals, threads."""
import io
import os
import shlex
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from runs import ROOT, table

from core.code import VERSION
from core.command import user_errors
from core.files import InputError
from data import Answer
from evaluation import models
from view import ask

STORY = str(ROOT / "tiny" / "story.txt")


@pytest.mark.slow
def test_eval_may_be_a_link_and_have_no_docstrings(tmp_path):
    """Python leaves docstrings out if it is told so."""
    (tmp_path / "eval.py").symlink_to(ROOT / "eval.py")
    done = subprocess.run([sys.executable, "-OO", tmp_path / "eval.py", "--version"], capture_output=True, text=True)
    assert done.stdout == f"eval.py {VERSION}\n"


@pytest.mark.parametrize("raised, code, said", [
    (InputError("x is wrong"), 2, "error: x is wrong\n"),
    (InputError("x is\nwrong"), 2, "error: x is wrong\n"),
    (FileNotFoundError(2, "No such file", "x"), 2, "error: [Errno 2] No such file: 'x'; go on\n"),
    (MemoryError(), 2, "error: out of memory (MemoryError); try a smaller --window"),
    (RuntimeError("CUDA out of memory. Tried"), 2, "error: out of memory (CUDA out of memory. Tried); try a smaller"),
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


@pytest.mark.parametrize("raised, said", [("KeyboardInterrupt", False), ("RuntimeError", True)])
@pytest.mark.parametrize("command", ["eval.py", "pecan.py"])
def test_ctrl_c_while_the_imports_run(command, raised, said, tmp_path):
    """It needs no traceback either; all else does."""
    (tmp_path / "torch.py").write_text(f"raise {raised}")
    done = subprocess.run([sys.executable, command], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path)},
                          capture_output=True, text=True)
    assert done.returncode and ("Traceback" in done.stderr) == said


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


# What follows pecan.py and the document, and what its error names. (A Latin-1 terminal's byte becomes half a surrogate
# pair.)
SLIPS = """
'Where?' ' '                        | a question is empty
'Where is Zo\udceb?'                | questions 'Where is Zo
--trace 'Who is Selma?'             | --trace: took 'Who is Selma?'
'Who is Selma?' --trace When?       | --trace: took 'When?'
'Who is Selma?' --confidence 2      | confidence is 2.0; it must be
'Who is Selma?' --trace there.jsonl | there.jsonl: exists and is not a trace
'Who is Selma?' --nothing           | --nothing
Who is Selma? --window 0            | the question 'Selma?' is one word; does it lack quotes?
'Who is Selma?' --model .           | /config.json:
"""


@pytest.mark.parametrize("line, said", table(SLIPS))
def test_slips_are_named_before_a_model_is_loaded(line, said, tmp_path, monkeypatch, capsys):
    """Above an error of the command line stands one line of usage."""
    monkeypatch.chdir(tmp_path)
    Path("there.jsonl").write_text("mine\n")
    if "--model" not in line:
        monkeypatch.setattr(ask, "load_models", None)       # it would fail
    try:
        assert ask.main([STORY, *shlex.split(line)]) == 2
    except SystemExit as end:                               # argparse's
        assert end.code == 2
    printed = capsys.readouterr()
    lines = printed.err.replace(os.sep, "/").splitlines()
    assert any(said in line for line in lines) and len(lines) <= (2 if "'" in line else 4)
    assert not printed.out and os.listdir() == ["there.jsonl"]


@pytest.mark.parametrize("file", ["view/page.py", "view/annotate.py", "view/search.py", "tiny/world.py"])
def test_a_file_that_must_be_run_as_a_module(file):
    done = subprocess.run([sys.executable, ROOT / file], capture_output=True, text=True)
    assert f"python -m {file[:-3].replace('/', '.')}" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("flops, said", table("""
    513e6     | 0.513 GFLOPs
    9.996e11  | 1 TFLOPs
    3.1e13    | 31 TFLOPs
    1.1468e15 | 1,150 TFLOPs"""))
def test_flops_are_three_digits_without_an_exponent(flops, said):
    assert f"nodes read, {said};" in ask.as_text(Answer("", [], int(float(flops)), 1, "all"), "?", [], False)


# --- threads --------------------------------------------------------------------------------------------------------

# The model's width, the builder's, OMP_NUM_THREADS, and the threads of the run where PyTorch has 3.
THREADS = """
255 |     |   | 1
256 |     |   | 3
255 | 256 |   | 3
256 |     | 2 | 2
"""


@pytest.mark.parametrize("width, builder, chosen, threads", table(THREADS))
def test_small_models_run_on_one_thread(monkeypatch, width, builder, chosen, threads):
    """If the model or the builder is wide, it has PyTorch's threads. OMP_NUM_THREADS overrides both."""
    found = [chosen]
    monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: found.append(str(n)))
    monkeypatch.setattr(models, "THREADS", 3)
    monkeypatch.setattr(models, "Llama", Mock(load=lambda width, *_: Mock(**{"config.width": int(width)})))
    monkeypatch.setattr(models, "load_encoder", Mock())
    models.load_models(Mock(model=width, builder=builder))
    assert found[-1] == threads
