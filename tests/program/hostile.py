"""A short data set, and a run that is killed at some moment."""
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, str(ROOT / "eval.py"), "--device", "cpu"]


def short_set(folder: Path, documents: int = 2) -> Path:
    """The beginnings of some documents of the embedded set with four questions each, under the set's own name.

    (Many answers are in the missing parts; these tests do not need them.)
    """
    path = folder / "embedded.jsonl"
    rows = [json.loads(line) for line in (ROOT / "tiny" / "test.jsonl").read_text().splitlines()[:documents]]
    short = [row | {"passages": row["passages"][:8], "questions": row["questions"][:4]} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in short))
    return path


def files(folder: Path) -> dict[str, bytes]:
    """The bytes of every file in a folder, except vectors: the order of a safetensors file's header varies."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*"))
            if path.is_file() and path.suffix != ".vectors"}


def kill(data: Path, output: Path, sent: signal.Signals, processes: int, after: float) -> list[str]:
    """Send a signal `after` seconds after the first file in `output`. Return the command."""
    command = [*COMMAND, "--dataset", str(data), "--output", str(output)]
    if processes > 1:
        command[1:1] = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]

    # The whole group gets the signal, as from a terminal, so torchrun's processes get it too.
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               start_new_session=True)
    while not any(output.glob("*/*")) and process.poll() is None:
        time.sleep(.01)
    time.sleep(after)
    assert process.poll() is None, "the run had ended before the signal"
    os.killpg(process.pid, sent)
    process.wait()
    return command
