"""Kills a run at random moments, lets it go on, and compares its answers with those of a run left alone.

    python tests/hostile.py [60]                  so many kills; kill -9, SIGINT and SIGTERM, one process and torchrun
"""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, str(ROOT / "eval.py"), "--device", "cpu"]


def short_set(folder: Path, documents: int = 2) -> Path:
    """The beginnings of some documents of the embedded set with four questions each, under the set's own name.

    (The answers to many of the questions come later in the documents; that is of no interest here.)
    """
    path = folder / "embedded.jsonl"
    rows = [json.loads(line) for line in (ROOT / "tiny" / "test.jsonl").read_text().splitlines()[:documents]]
    short = [row | {"passages": row["passages"][:8], "questions": row["questions"][:4]} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in short))
    return path


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a folder and its bytes, but the empty lock."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*"))
            if path.is_file() and path.name != "lock"}


def answers(folder: Path) -> dict[str, list]:
    """The rows of every file of answers in an output folder, and its results."""
    found = {str(path.relative_to(folder)): [json.loads(line) for line in path.read_text().splitlines()]
             for path in folder.glob("*/*.jsonl")}
    return found | {"results": json.loads((folder / "results.json").read_text())}


def kill(data: Path, output: Path, sent: signal.Signals, processes: int, after: float) -> tuple[list[str], bool]:
    """Send a signal `after` seconds past the first file in `output`; returns the command, and whether it still ran."""
    command = [*COMMAND, "--dataset", str(data), "--output", str(output)]
    if processes > 1:
        command[1:1] = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]

    # torchrun's own processes get the signal as a terminal would send it, to the whole group.
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               start_new_session=True)
    while not any(output.glob("*/*")) and process.poll() is None:
        time.sleep(.01)
    time.sleep(after)
    in_time = process.poll() is None
    if in_time:
        os.killpg(process.pid, sent)
    process.wait()
    return command, in_time


def go_on(command: list[str]):
    """Run a command again to its end."""
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr


def main(kills: int) -> int:
    folder = Path(tempfile.mkdtemp())
    data = short_set(folder)
    subprocess.run([*COMMAND, "--dataset", data, "--output", folder / "alone"], cwd=ROOT, check=True,
                   capture_output=True)
    rng = random.Random(kills)
    for n in range(kills):
        sent = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)[n % 3]
        processes = 1 + n % 2
        after = rng.uniform(0, 3)
        moment = f"{n + 1}: {sent.name} after {after:.2f} s, {processes} processes"
        command, in_time = kill(data, folder / str(n), sent, processes, after)
        go_on(command)
        assert answers(folder / str(n)) == answers(folder / "alone"), f"{moment}: other answers"
        print(f"{moment}: every answer is the same{'' if in_time else ' (it had ended before)'}", flush=True)
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 60))
