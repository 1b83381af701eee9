"""Pictures show the numbers of the results."""
import sys
from argparse import Namespace

import pytest

import eval as command_line
from core.files import InputError
from evaluation.methods import PATIENCE

pytest.importorskip("matplotlib").use("Agg")


def summary(n):
    """The summary of a run, with numbers that no other `n` has."""
    return {"label": "PECAN", "n": 7, "documents": 3, "f1": 40 + n, "f1_interval": [38 + n, 43 + n], "flops": n,
            "flops_interval": [.9 * n, 1.2 * n], "nodes": 18 + n, "nodes_interval": [14 + n, 24 + n],
            "histogram": {10: 3, 30: 4}, "counts": {}, "first_word_again": 0}


@pytest.fixture
def draw(tmp_path, monkeypatch):
    """A function that shows the runs of data sets, and returns the figures. Their files are there, and no others."""
    def show(table, **runs):
        figures = []
        monkeypatch.setattr("matplotlib.pyplot.close", figures.append)
        options = Namespace(table=table, output=tmp_path, pictures=True, json=True, question_again=False)
        command_line.show(options, {name: {"runs": of, "needs --top": {}} for name, of in runs.items()}, [])
        assert {path.name for path in tmp_path.glob("*.svg")} == {
            f"picture-{table}-{name}.svg" for name in runs if runs[name]}
        return figures
    return show


def whiskers(axis) -> set:
    """Both ends of every whisker, as (x, y, x, y)."""
    return {tuple(segment.ravel().round(3)) for bars in axis.collections for segment in bars.get_segments()}


def test_the_sweep(draw):
    """Values of t_n that were not run are left out. A data set over which nothing was run has no picture.

    If all answers are alike, rounding may put an end of the interval past the mean. matplotlib refuses such a whisker.
    """
    runs = {row.name: summary(n) for n, row in enumerate(PATIENCE, 1) if n != 5}
    for run, rounding in zip(runs.values(), (1e-14, -1e-14)):
        run["f1_interval"] = [run["f1"] + rounding] * 2
    figure, = draw("patience", none={}, mine=runs)
    for axis, name in zip(figure.axes, ("f1", "flops"), strict=True):
        assert axis.containers[0].lines[0].get_xydata().tolist() == [
            [n, summary(n)[name]] for n in (1, 2, 3, 4, 6, 7, 8)]
        low, high = summary(8)[f"{name}_interval"]
        assert (8, low, 8, high) in whiskers(axis)


def test_the_histogram(draw):
    """Each data set has its own. The mean has its interval, and the published mean is next to it."""
    figures = draw("nodes", HotpotQA={"pecan": summary(0)}, mine={"pecan": summary(1)})
    for n, (figure, means) in enumerate(zip(figures, ({18, 17}, {19}), strict=True)):
        axis, = figure.axes
        assert {round(bar.get_center()[0], 6): bar.get_height() for bar in axis.patches} == {10: 3, 30: 4}
        assert {ends[0::2] for ends in whiskers(axis)} == {(14 + n, 24 + n)}
        assert means <= {x for line in axis.get_lines() for x in line.get_xdata()}


def test_a_missing_matplotlib_is_named_before_the_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match="requirements-extra.txt"):
        command_line.parse(["--pictures", "--table", "nodes"])
