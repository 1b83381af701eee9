"""Pictures show the numbers of the results."""
import sys

import pytest

import eval as command_line
from core.files import InputError
from evaluation import pictures
from evaluation.methods import PATIENCE

pytest.importorskip("matplotlib").use("Agg")


def summary(n):
    """The summary of a run, with numbers that no other `n` has."""
    return {"n": 7, "documents": 3, "f1": 40 + n, "f1_interval": [38 + n, 43 + n], "flops": n,
            "flops_interval": [.9 * n, 1.2 * n], "nodes": 18 + n, "nodes_interval": [14 + n, 24 + n],
            "histogram": {10: 3, 30: 4}}


@pytest.fixture
def axes(tmp_path, monkeypatch):
    """A function that draws a figure, and returns its parts."""
    def drawn(*arguments):
        figures = []
        monkeypatch.setattr("matplotlib.pyplot.close", figures.append)
        pictures.draw(*arguments, tmp_path / "picture")
        assert {path.suffix for path in tmp_path.iterdir()} == {".png", ".svg"}
        return figures[0].axes
    return drawn


def whiskers(axis) -> set:
    """Both ends of every whisker, as (x, y, x, y)."""
    return {tuple(segment.ravel().round(3)) for bars in axis.collections for segment in bars.get_segments()}


def test_the_sweep(axes):
    """Values of t_n that were not run are left out.

    If all answers are alike, rounding may put an end of the interval past the mean. matplotlib refuses such a whisker.
    """
    runs = {row.name: summary(n) for n, row in enumerate(PATIENCE, 1) if n != 5}
    runs["pecan"]["f1_interval"] = [41 + 1e-14] * 2
    for axis, name in zip(axes("patience", "mine", runs), ("f1", "flops"), strict=True):
        assert axis.containers[0].lines[0].get_xydata().tolist() == [
            [n, summary(n)[name]] for n in (1, 2, 3, 4, 6, 7, 8)]
        low, high = summary(8)[f"{name}_interval"]
        assert (8, low, 8, high) in whiskers(axis)


def test_the_histogram(axes):
    """The mean has its interval, and the published mean is next to it."""
    axis, = axes("nodes", "HotpotQA", {"pecan": summary(0)})
    assert {round(bar.get_center()[0], 6): bar.get_height() for bar in axis.patches} == {10: 3, 30: 4}
    assert {ends[0::2] for ends in whiskers(axis)} == {(14, 24)}
    assert {18, 17} <= {x for line in axis.get_lines() for x in line.get_xdata()}


def test_a_missing_matplotlib_is_named_before_the_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match="requirements-extra.txt"):
        command_line.parse(["--pictures", "--table", "nodes"])
