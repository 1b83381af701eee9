"""Pictures: what is drawn are the numbers of the results, and no two methods look the same."""
import sys

import pytest

import eval as command_line
from core.files import InputError
from evaluation import pictures
from evaluation.runs import METHODS, runs_of


def summary(n, **changes):
    """The summary of a run, with numbers that no other `n` has."""
    return {"label": f"run {n}", "n": 7, "documents": 3, "cut_documents": 2, "f1": 40.0 + n,
            "f1_interval": [38.0 + n, 43.0 + n], "flops": 1e9 * (n + 1),
            "flops_interval": [0.9e9 * (n + 1), 1.2e9 * (n + 1)], "construction_flops": 8e9,
            "construction_flops_interval": [6e9, 10e9], "nodes": 18.0, "nodes_interval": [14.0, 24.0],
            "histogram": {"10": 3, "30": 4}} | changes


@pytest.fixture
def part():
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot
    yield pyplot.figure()
    pyplot.close("all")


def lines(axis) -> dict:
    """Label -> x and y of each line that has one."""
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axis.get_lines()
            if not line.get_label().startswith("_")}


def spans(axis) -> set:
    """Both ends of every whisker, as (x, y, x, y)."""
    found = set()
    for bars in axis.collections:
        for segment in getattr(bars, "get_segments", list)():
            found.add(tuple(round(float(value), 3) for point in segment for value in point))
    return found


def test_f1_against_flops_of_all_methods(part):
    """Each at its place with both intervals; shape and colour together differ, and without colour the shapes do."""
    runs = {name: summary(n) for n, name in enumerate(METHODS)}
    pictures.paint_methods(part, "mine", runs)
    axis, = part.axes
    drawn = lines(axis)
    assert drawn == {run["label"]: ([run["flops"]], [run["f1"]]) for run in runs.values()}
    for run in runs.values():
        assert (run["flops"], run["f1_interval"][0], run["flops"], run["f1_interval"][1]) in spans(axis)
        assert (run["flops_interval"][0], run["f1"], run["flops_interval"][1], run["f1"]) in spans(axis)

    markers = [line.get_marker() for line in axis.get_lines() if line.get_label() in drawn]
    assert len(set(markers)) == len(METHODS) == len(markers)


def test_the_cost_that_queries_share(part):
    """Table A4's rows, and the queries between them."""
    pictures.paint_cost(part, "mine", {"pecan": summary(1), "whole": summary(4)})
    drawn = lines(part.axes[0])
    assert drawn["PECAN, search and construction"] == (list(range(1, 9)), [2e9 + 8e9 / n for n in range(1, 9)])
    assert drawn["PECAN, search"][1] == [2e9, 2e9] and drawn["whole document, 2/3 cut"][1] == [5e9, 5e9]
    band = part.axes[0].collections[0].get_paths()[0].vertices.tolist()
    assert [2, 1.8e9 + 6e9 / 2] in band and [2, 2.4e9 + 10e9 / 2] in band


def test_the_sweep(part):
    """t_n that were not run are left out."""
    runs = {run.name: summary(n) for n, run in enumerate(runs_of("patience"), 1) if n != 5}
    pictures.paint_patience(part, "mine", runs)
    wanted = [1, 2, 3, 4, 6, 7, 8]
    for axis, name in zip(part.axes, ("f1", "flops"), strict=True):
        drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in axis.get_lines() if
                 len(line.get_xdata()) > 1]
        assert drawn == [(wanted, [summary(n)[name] for n in wanted])]
        for n in wanted:
            assert (n, summary(n)[f"{name}_interval"][0], n, summary(n)[f"{name}_interval"][1]) in spans(axis)


def test_the_histogram(part):
    pictures.paint_nodes(part, "HotpotQA", {"pecan": summary(0)})
    axis, = part.axes
    bars = {bar.get_x() + bar.get_width() / 2: bar.get_height() for bar in axis.patches}
    assert {round(middle, 6): height for middle, height in bars.items()} == {10: 3, 30: 4}
    assert {span[0::2] for span in spans(axis)} == {(14.0, 24.0)}
    words = [text.get_text() for text in axis.get_legend().get_texts()]
    assert sorted(words) == ["mean 18.0 (14.0 to 24.0)", "published mean 17 (GARLIC)"]


@pytest.mark.parametrize("table", pictures.DRAW)
def test_both_files_of_every_picture(tmp_path, table):
    """Several data sets; two runs write the same bytes (tried with one table)."""
    pytest.importorskip("matplotlib")
    runs = {"pecan": summary(0), "whole": summary(1)}
    results = {name: {"runs": runs} for name in ("mine", "HotpotQA", "third")} | {"empty": {"runs": {}}}
    first = pictures.draw(table, results, tmp_path / "a")
    assert [path.name for path in first] == ["a.png", "a.svg"]
    if table == "patience":
        second = pictures.draw(table, results, tmp_path / "b")
        assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert first[0].read_bytes().startswith(b"\x89PNG") and b"<svg" in first[1].read_bytes()


def test_what_cannot_be_drawn_is_refused_before_the_run(monkeypatch):
    for table in ("2", "3", "A3"):
        with pytest.raises(InputError, match=f"--table {table} has no picture; choose from 1, systems"):
            pictures.check(table)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match="requirements-extra.txt"):
        command_line.parse(["--pictures"])
