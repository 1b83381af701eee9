"""Tables as pictures, a PNG and an SVG of each. matplotlib is an optional extra: requirements-extra.txt.

Whiskers and bands are 95 % bootstrap intervals. No meaning depends on colour alone: each series has its own marker or
line as well. The colours are those of Okabe and Ito (jfly.uni-koeln.de/color), which the colour-blind tell apart.
"""
from pathlib import Path

from core.files import InputError, optional, writing
from evaluation import paper
from evaluation.cells import quantity
from evaluation.methods import rows_of

BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = (
    "#000000", "#e69f00", "#56b4e9", "#009e73", "#0072b2", "#d55e00", "#cc79a7")
COLOURS = [VERMILION, BLUE, ORANGE, GREEN, PURPLE, BLACK, SKY]
MARKERS = "*osD^v<>PXpdH+x1234"                               # hollow, so that each is seen where some coincide
WIDTH, HEIGHT = 4.6, 4.0                                      # of a data set's part, inches
STYLE = {"font.size": 9, "axes.grid": True, "grid.color": "#e4e4e4", "axes.axisbelow": True, "legend.frameon": False,
         "errorbar.capsize": 2.5}


def check(table: str | None):
    """Raise InputError if a table has no picture, or if matplotlib is not installed."""
    if table not in DRAW:
        raise InputError(f"--pictures: --table {table} has no picture; choose from "
                         f"{', '.join(name for name in DRAW if name)}, or leave --table out")
    with optional("--pictures draws with matplotlib"):
        import matplotlib
    matplotlib.use("Agg")


def draw(table: str | None, results: dict, path: Path) -> list[Path]:
    """Draw what `table` shows, a part for each data set that was run, and write path.png and path.svg."""
    check(table)
    from matplotlib import pyplot
    drawn = {dataset: entry["runs"] for dataset, entry in results.items() if entry["runs"]}
    columns = min(len(drawn), 2)
    rows = -(-len(drawn) // 2)

    with pyplot.rc_context(STYLE):
        figure = pyplot.figure(figsize=(WIDTH * columns, HEIGHT * rows), layout="constrained")
        parts = figure.subfigures(rows, columns, squeeze=False).flat
        for part, (dataset, runs) in zip(parts, drawn.items()):
            first = next(iter(runs.values()))
            part.suptitle(f"{dataset}: {first['n']:,} questions, {first['documents']:,} documents")
            DRAW[table](part, dataset, runs)

        files = [path.with_suffix(".png"), path.with_suffix(".svg")]
        for file in files:
            with writing(file):
                figure.savefig(file, dpi=200)
        pyplot.close(figure)
    return files


def whiskers(run: dict, name: str) -> list[list[float]]:
    """A mean's interval as matplotlib wants it: distances below and above, not negative by a rounding error."""
    low, high = run[f"{name}_interval"]
    return [[max(0.0, run[name] - low)], [max(0.0, high - run[name])]]


def flops_axis(axis):
    """Write FLOPs as the tables do."""
    axis.set_major_formatter(lambda value, _: quantity(value) if value else "0")
    axis.set_minor_formatter(lambda value, _: "")


# --- a part ---------------------------------------------------------------------------------------------------------

def paint_nodes(part, dataset: str, runs: dict):
    """Figure 3: queries by the number of nodes read."""
    run = runs["pecan"]
    histogram = run["histogram"]
    axis = part.subplots()
    axis.bar(list(histogram), list(histogram.values()), color=SKY)

    highest = max(histogram.values())
    axis.errorbar(run["nodes"], 1.08 * highest, xerr=whiskers(run, "nodes"), fmt="D", color=VERMILION,
                  label=f"mean {run['nodes']:.1f}")
    if dataset in paper.FIXED_NODES:
        axis.plot(paper.FIXED_NODES[dataset], 1.08 * highest, "^", color=BLACK,
                  label=f"published mean {paper.FIXED_NODES[dataset]} (GARLIC)")
    axis.set(xlabel="nodes read for a query", ylabel="queries", xlim=(0, None), ylim=(0, 1.35 * highest))
    axis.legend()


def paint_patience(part, dataset: str, runs: dict):
    """Figure 4: F1 and FLOPs by stop patience."""
    sweep = {n: runs[row.name] for n, row in enumerate(rows_of("patience"), 1) if row.name in runs}
    top, bottom = part.subplots(2, sharex=True)
    for axis, name, colour, marker in ((top, "f1", VERMILION, "o"), (bottom, "flops", BLUE, "s")):
        for n, run in sweep.items():
            axis.errorbar(n, run[name], whiskers(run, name), color=colour)
        axis.plot(list(sweep), [run[name] for run in sweep.values()], marker=marker, color=colour)

    top.set(ylabel="F1 (%)")
    bottom.set(xlabel="stop patience $t_n$", ylabel="FLOPs/query", xticks=list(sweep))
    flops_axis(bottom.yaxis)


def paint_cost(part, dataset: str, runs: dict):
    """Table A4: what a query costs if 1 to 8 queries share the construction of a document's graph.

    Long documents cost more in construction and in search, so the two intervals are added end to end, which is the
    widest that they can be together.
    """
    axis = part.subplots()
    shared = range(1, 9)
    pecan = runs.get("pecan")
    if pecan:
        search = (pecan["flops"], *pecan["flops_interval"])           # the mean, and the ends of its interval
        construction = (pecan["construction_flops"], *pecan["construction_flops_interval"])
        value, low, high = ([s + c / q for q in shared] for s, c in zip(search, construction))
        axis.fill_between(shared, low, high, color=VERMILION, alpha=0.2)
        axis.plot(shared, value, "o-", color=VERMILION, label="PECAN, search and construction")

    for name, label, colour, line in (("pecan", "PECAN, search", ORANGE, "--"), ("whole", "whole document", BLUE, ":")):
        if name in runs:
            axis.axhspan(*runs[name]["flops_interval"], color=colour, alpha=0.2)
            axis.axhline(runs[name]["flops"], color=colour, linestyle=line, label=label)
    axis.set(xlabel="queries that share a document's graph", ylabel="FLOPs/query", xticks=shared, ylim=(0, None))
    flops_axis(axis.yaxis)
    axis.legend()


def paint_methods(part, dataset: str, runs: dict):
    """F1 against FLOPs of all methods; the upper left is best."""
    from matplotlib.ticker import LogLocator
    axis = part.subplots()
    for n, run in enumerate(runs.values()):                       # PECAN is the first
        look = {"color": COLOURS[n % len(COLOURS)], "marker": MARKERS[n], "fillstyle": "none"}
        axis.errorbar(run["flops"], run["f1"], whiskers(run, "f1"), whiskers(run, "flops"), label=run["label"], **look)

    axis.set(xlabel="FLOPs/query, without construction", ylabel="F1 (%)", xscale="log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    flops_axis(axis.xaxis)
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)


# --table -> what paints a data set's part.
DRAW = {None: paint_methods, "1": paint_methods, "systems": paint_methods, "A4": paint_cost, "patience": paint_patience,
        "nodes": paint_nodes}
