"""Tables as pictures, a PNG and an SVG for each data set. matplotlib is an optional extra: requirements-extra.txt.

Whiskers are 95 % bootstrap intervals. No meaning depends on colour alone: each series has its own marker or line as
well. The colours are those of Okabe and Ito (jfly.uni-koeln.de/color), which the colour-blind tell apart.
"""
from pathlib import Path

from core.files import InputError, optional, writing
from evaluation import paper
from evaluation.cells import quantity
from evaluation.methods import rows_of

VERMILION, BLUE, ORANGE, GREEN, PURPLE, BLACK, SKY = COLOURS = (
    "#d55e00", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#000000", "#56b4e9")
MARKERS = "*osD^v<>PXpdH+x1234"                               # hollow, so that each is seen where some coincide
STYLE = {"font.size": 9, "axes.grid": True, "grid.color": "#e4e4e4", "axes.axisbelow": True, "errorbar.capsize": 2.5}


def check(table: str | None):
    """Raise InputError if a table has no picture, or if matplotlib is not installed."""
    if table not in DRAW:
        raise InputError(f"--pictures: --table {table} has no picture; choose from "
                         f"{', '.join(name for name in DRAW if name)}, or leave --table out")
    with optional("--pictures draws with matplotlib"):
        import matplotlib
    matplotlib.use("Agg")


def draw(table: str | None, dataset: str, runs: dict, path: Path):
    """Draw what `table` shows of a data set, and write path.png and path.svg."""
    from matplotlib import pyplot
    with pyplot.rc_context(STYLE):
        figure = pyplot.figure(figsize=(5, 4), layout="constrained")
        first = next(iter(runs.values()))
        figure.suptitle(f"{dataset}: {first['n']:,} questions, {first['documents']:,} documents")
        DRAW[table](figure, dataset, runs)

        for ending in ("png", "svg"):
            with writing(f"{path}.{ending}"):
                figure.savefig(f"{path}.{ending}", dpi=200)
        pyplot.close(figure)


def whiskers(runs: list[dict], name: str) -> list[list[float]]:
    """Intervals as matplotlib wants them: distances below and above the means, not negative by a rounding error."""
    ends = [(run[name], *run[f"{name}_interval"]) for run in runs]
    return [[max(0.0, mean - low) for mean, low, _ in ends], [max(0.0, high - mean) for mean, _, high in ends]]


def flops_axis(axis):
    """Write FLOPs as the tables do."""
    axis.set_major_formatter(lambda value, _: quantity(value))
    axis.set_minor_formatter(lambda value, _: "")


# --- one for each table ---------------------------------------------------------------------------------------------

def paint_nodes(figure, dataset: str, runs: dict):
    """Figure 3: queries by the number of nodes read."""
    run = runs["pecan"]
    axis = figure.subplots()
    axis.bar(list(run["histogram"]), list(run["histogram"].values()), color=SKY)

    above = 1.1 * max(run["histogram"].values())
    axis.errorbar(run["nodes"], above, xerr=whiskers([run], "nodes"), fmt="D", color=VERMILION, label="mean")
    if dataset in paper.FIXED_NODES:
        axis.plot(paper.FIXED_NODES[dataset], above, "^", color=BLACK, label="published mean (GARLIC)")
    axis.set(xlabel="nodes read for a query", ylabel="queries", xlim=(0, None))
    axis.legend()


def paint_patience(figure, dataset: str, runs: dict):
    """Figure 4: F1 and FLOPs by stop patience."""
    sweep = {n: runs[row.name] for n, row in enumerate(rows_of("patience"), 1) if row.name in runs}
    top, bottom = figure.subplots(2, sharex=True)
    for axis, name, look in ((top, "f1", {"color": VERMILION, "marker": "o"}),
                             (bottom, "flops", {"color": BLUE, "marker": "s"})):
        axis.errorbar(list(sweep), [run[name] for run in sweep.values()], whiskers(sweep.values(), name), **look)

    top.set(ylabel="F1 (%)")
    bottom.set(xlabel="stop patience $t_n$", ylabel="FLOPs/query", xticks=list(sweep))
    flops_axis(bottom.yaxis)


def paint_cost(figure, dataset: str, runs: dict):
    """Table A4: what a query costs if 1 to 8 queries share the construction of a document's graph."""
    axis = figure.subplots()
    shared = range(1, 9)
    if "pecan" in runs:
        search, construction = runs["pecan"]["flops"], runs["pecan"]["construction_flops"]
        axis.plot(shared, [search + construction / queries for queries in shared], "o-", color=VERMILION,
                  label="PECAN, search and construction")
    for name, label, colour, line in (("pecan", "PECAN, search", ORANGE, "--"), ("whole", "whole document", BLUE, ":")):
        if name in runs:
            axis.errorbar(shared, [runs[name]["flops"]] * 8, whiskers([runs[name]] * 8, "flops"), color=colour,
                          linestyle=line, label=label)

    axis.set(xlabel="queries that share a document's graph", ylabel="FLOPs/query", xticks=shared, ylim=(0, None))
    flops_axis(axis.yaxis)
    axis.legend()


def paint_methods(figure, dataset: str, runs: dict):
    """F1 against FLOPs of all methods; the upper left is best."""
    from matplotlib.ticker import LogLocator
    axis = figure.subplots()
    for n, run in enumerate(runs.values()):
        axis.errorbar(run["flops"], run["f1"], whiskers([run], "f1"), whiskers([run], "flops"), label=run["label"],
                      color=COLOURS[n % len(COLOURS)], marker=MARKERS[n], fillstyle="none")

    axis.set(xlabel="FLOPs/query, without construction", ylabel="F1 (%)", xscale="log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    flops_axis(axis.xaxis)
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)


# --table -> what paints it.
DRAW = {None: paint_methods, "1": paint_methods, "systems": paint_methods, "A4": paint_cost, "patience": paint_patience,
        "nodes": paint_nodes}
