"""The benchmark runs, and transformers does the same work in it. No test measures time."""
import os
import subprocess
import sys
from pathlib import Path

import benchmark
import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_benchmark_in_its_short_form(capsys):
    """The command prints its page. (Its parts fail if replies, nodes, attention or verdicts are not transformers'.)"""
    benchmark.main(["--short"])
    first, _, _, *ratios = capsys.readouterr().out.splitlines()
    assert "cores" in first and len(ratios) == 5 and all(line.endswith("x") for line in ratios)


@pytest.mark.slow
def test_the_plan_for_a_gpu():
    """Without a GPU, tests/gpu.sh runs the parts that can run, names the others, and does not fail."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHON": sys.executable}
    done = subprocess.run(["bash", "tests/gpu.sh"], cwd=ROOT, env=environment, capture_output=True, text=True)
    page = done.stdout.split("## ")
    assert done.returncode == 0 and "GPU: none" in page[0] and len(page) == 7
    assert all(part.rstrip().endswith(("exit code 0)", "(needs a GPU)")) for part in page[1:]), done.stdout
