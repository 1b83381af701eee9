"""The cost of the method, side by side with transformers in the same process; BENCHMARK.md explains the figures.

    python tests/benchmark.py [PART ...] [--short]        parts: stage_1, one_search, full_size (default: all)

Times are compared inside one run, because machines differ and are shared. --short takes seconds. Its small
sizes show that everything runs and that both sides compute the same.
"""
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch  # noqa: E402
from speed.full_size import full_size  # noqa: E402
from speed.reading import one_search, stage_1  # noqa: E402

PARTS = {part.__name__: part for part in (stage_1, one_search, full_size)}


def main(words: list[str]):
    if not {*words} <= {*PARTS, "--short"}:
        sys.exit(__doc__)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{device}, {os.cpu_count()} cores, torch {torch.__version__}\n")
    print(f"{'what':60}{'ours':>12}{'peer':>22}{'ratio':>9}")
    for name in [word for word in words if word != "--short"] or PARTS:
        PARTS[name](device, "--short" in words)


if __name__ == "__main__":
    main(sys.argv[1:])
