"""The benchmark runs, and its peer does the same work. (No test measures time.)"""
import benchmark
import pytest
from speed.measure import line


@pytest.mark.slow
def test_the_benchmark_in_its_short_form(capsys):
    """Before a part measures anything it asserts that replies, attention, verdicts and answers are transformers'."""
    benchmark.main(["--short"])
    lines = capsys.readouterr().out.splitlines()
    assert "cores" in lines[0] and len(lines) == 16 and all(line.endswith("x") for line in lines[3:])


def test_a_ratio_above_1_is_in_our_favour(capsys):
    """Whether less is better (seconds, MiB) or more (steps a second)."""
    for unit, ratio in (("s", "1.50x"), ("steps/s", "0.67x")):
        line("what", "shape", 2, 3, unit)
        assert capsys.readouterr().out.endswith(f" {ratio}\n")
