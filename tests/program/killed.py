"""eval.py, killed with SIGKILL while it writes the third line of a file: half of the line is on the disk.

    python tests/program/killed.py ENDING ..     ENDING is that of the file's name; behind it are eval.py's arguments

Under torchrun each process kills itself so. Nothing in the program is changed, because its answers belong to its code:
a hook sees the file opened.
"""
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
import eval as command_line  # noqa: E402

ending, *arguments = sys.argv[1:]
lines = 3


def hook(event, values):
    global lines
    if event == "open" and str(values[0]).endswith(ending) and "a" in str(values[1]):
        lines -= 1
        if lines == 0:
            with open(values[0], "a") as file:
                file.write('{"half a li')
            os.kill(os.getpid(), signal.SIGKILL)


sys.addaudithook(hook)
sys.exit(command_line.main(arguments))
