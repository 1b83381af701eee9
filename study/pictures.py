"""The bench's pictures. matplotlib is an optional extra: requirements-extra.txt."""
from pathlib import Path

import numpy as np

from study.figures import Figure

PANELS = [("retrieval", "rank", "mean rank of the needed chunk among chunks"),
          ("relevance", "area, level 2", "area of r over the bullets of level 2"),
          ("answers", "likelihood", "gold answer's log-likelihood per token")]
MOST = 14                         # rows of a panel, and a few more: those that are always shown
ALWAYS = ("z + c", "z", "c", "random", "BM25 over chunks", "z, r uniform", "PECAN", "whole document", "needed chunks")


def draw(found: dict, folder: Path) -> list[str]:
    """Draw two pictures for each data set; returns lines for the user: where they are, or why there are none."""
    try:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return ["no pictures: matplotlib is not installed (pip install -r requirements-extra.txt)"]

    lines = []
    for name, entry in found["data"].items():
        panels = [panel for panel in PANELS if entry["figures"][panel[0]]]
        figure, axes = pyplot.subplots(1, len(panels), figsize=(6.5 * len(panels), 5), squeeze=False)
        for (key, column, label), axis in zip(panels, axes[0], strict=True):
            draw_rows(axis, entry["figures"][key], column, label)
        figure.suptitle(f"{name}: {entry['documents']} documents, {entry['questions']} questions; 95 % intervals")
        lines.append(save(pyplot, figure, folder / f"{name}-steps.png"))

        if not entry["curve"]:
            continue
        figure, axes = pyplot.subplots(1, 2, figsize=(11, 4))
        draw_sweep(axes[0], entry["figures"]["sweep"])
        axes[1].plot(np.linspace(0, 1, len(entry["curve"])), entry["curve"])
        axes[1].set(xlabel="share of the search", ylabel="gold answer's log-likelihood per token")
        figure.suptitle(f"{name}: progress control, and the answer along a search that nothing stops")
        lines.append(save(pyplot, figure, folder / f"{name}-progress.png"))
    return lines


def save(pyplot, figure, path: Path) -> str:
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    return f"picture: {path}"


def draw_rows(axis, rows: dict, column: str, label: str):
    """A point and its interval for each row, the best on top; the paper's is blue.

    If there are many, MOST of them, spread over all, and those of ALWAYS are shown.
    """
    figures = {row: Figure(**columns[column]) for row, columns in rows.items() if column in columns}
    names = sorted(figures, key=lambda row: figures[row].value)
    if len(names) > MOST:
        places = np.linspace(0, len(names) - 1, MOST).round().astype(int)
        always = [row for row in names if row in ALWAYS]
        names = sorted({*always, *(names[n] for n in places)}, key=lambda row: figures[row].value)
    if column == "rank":
        names = names[::-1]

    for place, row in enumerate(names):
        value = figures[row]
        color = "tab:blue" if row in ("the paper", "z + c", "z", "PECAN") else "0.4"
        axis.plot([value.low, value.high], [place, place], color=color)
        axis.plot(value.value, place, "o", color=color)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set(xlabel=label)
    axis.grid(axis="x", alpha=0.3)


def draw_sweep(axis, rows: dict):
    """Share of the searches that stop too early or too late, by t_p at t_n = 1."""
    swept = {float(row.split()[1].rstrip(",")): columns for row, columns in rows.items() if row.endswith("t_n 1")}
    for column, color in (("too early", "tab:red"), ("too late", "tab:orange"), ("never", "0.4")):
        values = [Figure(**columns[column]) for columns in swept.values()]
        axis.plot(list(swept), [value.value for value in values], "o-", color=color, label=column)
        axis.fill_between(list(swept), [value.low for value in values], [value.high for value in values], color=color,
                          alpha=0.15)
    axis.set(xlabel="threshold t_p", ylabel="share of the searches", ylim=(-0.03, 1.03))
    axis.legend()
