"""The benchmark runs, and its peer does the same work. (No test measures time.)"""
import benchmark
import pytest
from speed import reading


@pytest.mark.parametrize("part", benchmark.PARTS)
def test_each_part_of_the_benchmark_runs(part, capsys):
    """Before a part measures anything it asserts that replies, attention, verdicts and answers are transformers'."""
    benchmark.main([part, "--short"])
    lines = capsys.readouterr().out.splitlines()
    assert "cores" in lines[0] and len(lines) > 4 and all(line.endswith("x") for line in lines[3:])


def test_the_ratio_is_above_1_where_ours_is_better(capsys):
    """Whether less is better (seconds, MiB) or more (steps a second)."""
    for unit, ratio in (("s", "1.50x"), ("steps/s", "0.67x")):
        reading.line("what", "shape", 2, 3, unit)
        assert capsys.readouterr().out.endswith(f" {ratio}\n")
