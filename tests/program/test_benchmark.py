"""The benchmark runs, and transformers does the same work in it. No test measures time."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_plan_for_a_gpu():
    """Without a GPU, tests/gpu.sh runs the parts that can run, names the others, and does not fail. The benchmark
    prints its three ratios. (It fails if replies, nodes, attention or verdicts are not transformers'.)"""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHON": sys.executable}
    done = subprocess.run(["bash", "tests/gpu.sh"], cwd=ROOT, env=environment, capture_output=True, text=True)
    page = done.stdout.split("## ")
    assert done.returncode == 0 and "GPU: none" in page[0] and len(page) == 7
    assert all(part.rstrip().endswith(("exit code 0)", "(needs a GPU)")) for part in page[1:]), done.stdout
    ratios = [line for line in done.stdout.splitlines() if " / " in line]
    assert len(ratios) == 3 and all(line.endswith("x") for line in ratios)
