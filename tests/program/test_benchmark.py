"""The benchmark runs, and transformers does the same work in it. No test measures time."""
import os
import subprocess
from pathlib import Path

import benchmark
import pytest
from speed.measure import line

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_benchmark_in_its_short_form(capsys):
    """Replies, nodes, attention and verdicts equal those of transformers' pass, or the parts themselves fail."""
    benchmark.main(["--short"])
    lines = capsys.readouterr().out.splitlines()
    assert "cores" in lines[0] and len(lines) == 11 and all(line.endswith("x") for line in lines[3:])


@pytest.mark.slow
def test_the_plan_for_a_gpu():
    """Without a GPU, tests/gpu.sh runs the parts that can run, names the others, and does not fail."""
    done = subprocess.run(["bash", "tests/gpu.sh"], cwd=ROOT, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
                          capture_output=True, text=True)
    page = done.stdout.split("## ")
    assert done.returncode == 0 and "GPU: none" in page[0] and len(page) == 6
    assert [part.rstrip().endswith(("exit code 0)", "(needs a GPU)")) for part in page[1:]] == [True] * 5, done.stdout


def test_a_ratio_above_1_is_in_our_favour(capsys):
    """This holds whether less is better (seconds, GiB) or more (tokens per second)."""
    for unit, ratio in (("s", "1.50x"), ("tokens/s", "0.67x")):
        line("what", "shape", 2, 3, unit)
        assert capsys.readouterr().out.endswith(f" {ratio}\n")
