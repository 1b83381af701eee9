"""Draws Figures 3 and 4 of the paper, a PNG and an SVG for each data set, with matplotlib (requirements-extra.txt).

Whiskers are 95 % bootstrap intervals. Colour-blind readers can tell the colours apart; they are from Okabe and Ito
(jfly.uni-koeln.de/color).
"""
from pathlib import Path

from core.files import InputError, optional
from evaluation import paper
from evaluation.methods import PATIENCE
from evaluation.tables import quantity

VERMILION = "#d55e00"
BLUE = "#0072b2"
BLACK = "#000000"
SKY = "#56b4e9"
STYLE = {"font.size": 9, "axes.grid": True, "grid.color": "#e4e4e4", "axes.axisbelow": True, "errorbar.capsize": 2.5}


def check(table: str | None):
    """Raise InputError if a table has no picture, or if matplotlib is not installed."""
    if table not in DRAW:
        raise InputError(f"--pictures draws --table {' or '.join(DRAW)}, the paper's figures")
    with optional("--pictures draws with matplotlib"):
        import matplotlib
    matplotlib.use("Agg")


def draw(table: str, dataset: str, runs: dict, path: Path):
    """Draw the figure of `table` for a data set; write path.png and path.svg."""
    from matplotlib import pyplot
    with pyplot.rc_context(STYLE):
        figure = pyplot.figure(figsize=(5, 4), layout="constrained")
        first = next(iter(runs.values()))
        figure.suptitle(f"{dataset}: {first['n']:,} questions, {first['documents']:,} documents")
        DRAW[table](figure, dataset, runs)
        for ending in ("png", "svg"):
            figure.savefig(f"{path}.{ending}", dpi=200)
        pyplot.close(figure)


def whiskers(runs: list[dict], name: str) -> list[list[float]]:
    """Intervals for matplotlib: the distances below and above the means. (Rounding may put an end past its mean.)"""
    return [[abs(run[f"{name}_interval"][end] - run[name]) for run in runs] for end in (0, 1)]


def paint_nodes(figure, dataset: str, runs: dict):
    """Figure 3: queries by the number of nodes read."""
    run = runs["pecan"]
    axis = figure.subplots()
    queries = run["histogram"].values()
    axis.bar(list(run["histogram"]), list(queries), color=SKY)

    above = 1.1 * max(queries)
    axis.errorbar(run["nodes"], above, xerr=whiskers([run], "nodes"), fmt="D", color=VERMILION, label="mean")
    if dataset in paper.FIXED_NODES:
        axis.plot(paper.FIXED_NODES[dataset], above, "^", color=BLACK, label="published mean (GARLIC)")
    axis.set(xlabel="nodes read for a query", ylabel="queries", xlim=(0, None))
    axis.locator_params(integer=True)
    axis.legend()


def paint_patience(figure, dataset: str, runs: dict):
    """Figure 4: F1 and FLOPs by stop patience."""
    sweep = {n: runs[row.name] for n, row in enumerate(PATIENCE, 1) if row.name in runs}
    top, bottom = figure.subplots(2, sharex=True)
    for axis, name, marker, color in ((top, "f1", "o-", VERMILION), (bottom, "flops", "s--", BLUE)):
        means = [run[name] for run in sweep.values()]
        axis.errorbar(list(sweep), means, whiskers(sweep.values(), name), fmt=marker, color=color)

    top.set(ylabel="F1 (%)")
    bottom.set(xlabel="stop patience $t_n$", ylabel="FLOPs of a query", xticks=list(sweep))
    bottom.yaxis.set_major_formatter(lambda value, _: quantity(value))


# --table -> the function that paints it.
DRAW = {"patience": paint_patience, "nodes": paint_nodes}
