"""Figures 3 and 4 as pictures. matplotlib is an optional extra: requirements-extra.txt."""
from pathlib import Path

from evaluation.runs import runs_of
from evaluation.tables import histogram_of


def draw(table: str, results: dict, folder: Path) -> str:
    """Draw Figure 3 ("nodes") or 4 ("patience"), one panel for each data set.

    Returns a line for the user: where the picture is, or why there is none.
    """
    try:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return "no picture: matplotlib is not installed (pip install -r requirements-extra.txt)"

    drawn = {dataset: entry["runs"] for dataset, entry in results.items() if entry["runs"]}
    figure, axes = pyplot.subplots(1, len(drawn), figsize=(5 * len(drawn), 3.5), squeeze=False)
    for (dataset, runs), axis in zip(drawn.items(), axes[0], strict=True):
        axis.set(title=dataset)
        if table == "nodes":
            draw_nodes(axis, runs["pecan"])
        else:
            draw_patience(axis, runs)

    path = folder / f"figure-{3 if table == 'nodes' else 4}.png"
    figure.tight_layout()
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)
    return f"picture: {path}"


def draw_nodes(axis, run: dict):
    """Figure 3: queries by the number of nodes read."""
    histogram = histogram_of(run)
    axis.bar(list(histogram), list(histogram.values()), width=1)
    axis.set(xlabel="nodes read", ylabel="queries")


def draw_patience(axis, runs: dict):
    """Figure 4: F1 (left axis) and FLOPs (right axis) by stop patience."""
    t_n, f1, flops = [], [], []
    for n, row_run in enumerate(runs_of("patience"), 1):
        if row_run.name in runs:
            t_n.append(n)
            f1.append(runs[row_run.name]["f1"])
            flops.append(runs[row_run.name]["flops"])

    axis.plot(t_n, f1, "o-", color="tab:blue")
    axis.set(xlabel="stop patience t_n", ylabel="F1 (%)")
    axis.yaxis.label.set_color("tab:blue")
    right = axis.twinx()
    right.plot(t_n, flops, "s--", color="tab:orange")
    right.set_ylabel("FLOPs/query", color="tab:orange")
