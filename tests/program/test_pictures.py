"""Pictures show the numbers of the results."""
import json
import sys
from argparse import Namespace

import pytest
from view.watch import watching

import eval as command_line
from core.files import InputError
from evaluation import pictures
from evaluation.methods import rows_of


def summary(n):
    """The summary of a run, with numbers that no other `n` has."""
    return {"label": f"run {n}", "n": 7, "documents": 3, "f1": 40.0 + n, "f1_interval": [38.0 + n, 43.0 + n],
            "flops": 1e9 * (n + 1), "flops_interval": [0.9e9 * (n + 1), 1.2e9 * (n + 1)], "construction_flops": 8e9,
            "nodes": 18.0, "nodes_interval": [14.0, 24.0], "histogram": {10: 3, 30: 4}}


@pytest.fixture
def figure():
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot
    yield pyplot.figure()
    pyplot.close("all")


def drawn(axis) -> dict:
    """Label -> x and y, of each series with a label."""
    series = [(bars.get_label(), bars.lines[0]) for bars in axis.containers if hasattr(bars, "lines")]
    series += [(line.get_label(), line) for line in axis.get_lines()]
    return {label: (list(line.get_xdata()), list(line.get_ydata())) for label, line in series
            if not str(label).startswith("_")}


def spans(axis) -> set:
    """Both ends of every whisker, as (x, y, x, y)."""
    segments = [segment for bars in axis.collections for segment in getattr(bars, "get_segments", list)()]
    return {tuple(round(float(value), 3) for point in segment for value in point) for segment in segments}


def test_the_sweep(figure):
    """Values of t_n that were not run are left out."""
    runs = {row.name: summary(n) for n, row in enumerate(rows_of("patience"), 1) if n != 5}
    pictures.paint_patience(figure, "mine", runs)
    wanted = [1, 2, 3, 4, 6, 7, 8]
    for axis, name in zip(figure.axes, ("f1", "flops"), strict=True):
        line = axis.containers[0].lines[0]
        assert (list(line.get_xdata()), list(line.get_ydata())) == (wanted, [summary(n)[name] for n in wanted])
        low, high = summary(8)[f"{name}_interval"]
        assert (8, low, 8, high) in spans(axis)
    assert list(axis.get_xticks()) == wanted


def test_the_histogram(figure):
    pictures.paint_nodes(figure, "HotpotQA", {"pecan": summary(0)})
    axis, = figure.axes
    bars = {round(bar.get_x() + bar.get_width() / 2, 6): bar.get_height() for bar in axis.patches}
    assert axis.get_xlim()[0] == 0 and bars == {10: 3, 30: 4}
    assert {span[0::2] for span in spans(axis)} == {(14.0, 24.0)}
    assert drawn(axis)["mean"][0] == [18.0] and drawn(axis)["published mean (GARLIC)"][0] == [17]


def test_both_files_of_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure
    titles = []
    with watching(Figure, "suptitle", lambda _, figure, title: titles.append(title)):
        pictures.draw("nodes", "HotpotQA", {"pecan": summary(0)}, tmp_path / "a")
    assert titles == ["HotpotQA: 7 questions, 3 documents"]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG") and b"<svg" in (tmp_path / "a.svg").read_bytes()


def test_each_data_set_has_its_own_picture(tmp_path, monkeypatch, capsys):
    """A data set over which nothing was run has none. Stdout holds the numbers alone."""
    drawn = []
    monkeypatch.setattr(pictures, "draw", lambda *arguments: drawn.append(arguments))
    results = {name: {"runs": {"pecan": summary(n) | {"refused": 0}} if n else {}} for n, name in enumerate("xab")}
    command_line.show(Namespace(table="nodes", output=tmp_path, pictures=True, json=True), results, [])
    assert json.loads(capsys.readouterr().out)["data"].keys() == results.keys()
    assert drawn == [("nodes", name, results[name]["runs"], tmp_path / f"picture-nodes-{name}") for name in "ab"]


def test_what_cannot_be_drawn_is_refused_before_the_run(monkeypatch):
    with pytest.raises(InputError, match="--pictures draws --table patience or nodes"):
        command_line.parse(["--pictures", "--table", "A3"])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match="requirements-extra.txt"):
        command_line.parse(["--pictures", "--table", "nodes"])
