"""The bench's pictures. matplotlib is an optional extra: requirements-extra.txt."""
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

PANELS = {"rank of the needed chunk": "mean rank of the needed chunk among chunks",
          "r: area over level 2": "area of r over the bullets of level 2",
          "gold likelihood": "gold answer's log-likelihood per token"}
STOPS = {"stops too early": "tab:red", "stops too late": "tab:orange", "never stops": "0.4"}
ALONG = "gold likelihood along a search"


def draw(data: str, rows: dict, folder: Path) -> list[Path]:
    """Draw the two pictures of a data set from its figures; returns where they are."""
    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(6.5 * len(PANELS), 4))
    for axis, (name, label) in zip(axes, PANELS.items(), strict=True):
        draw_ways(axis, {way: value for (of, way), value in rows.items() if of == name}, "rank" in name)
        axis.set(xlabel=label)
    steps = save(figure, f"{data}: 95 % intervals over documents", folder / f"{data}-steps.png")

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4))
    for name, color in STOPS.items():
        draw_line(axes[0], rows, name, color)
    axes[0].set(xlabel="threshold t_p", ylabel="share of the searches", ylim=(-0.03, 1.03))
    axes[0].legend()
    draw_line(axes[1], rows, ALONG, "tab:blue")
    axes[1].set(xlabel="share of the search, in %", ylabel="gold answer's log-likelihood per token")
    title = f"{data}: progress control, and the answer along a search that nothing stops"
    return [steps, save(figure, title, folder / f"{data}-progress.png")]


def save(figure, title: str, path: Path) -> Path:
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    return path


def draw_ways(axis, ways: dict, low_is_good: bool):
    """A point and its interval for each way, the best on top; the paper's is blue."""
    names = sorted(ways, key=lambda way: ways[way].value, reverse=low_is_good)
    for place, name in enumerate(names):
        value = ways[name]
        color = "tab:blue" if name in ("the paper", "z + c", "PECAN") else "0.4"
        axis.plot([value.low, value.high], [place, place], color=color)
        axis.plot(value.value, place, "o", color=color)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.grid(axis="x", alpha=0.3)


def draw_line(axis, rows: dict, name: str, color: str):
    """A figure whose ways are numbers, as a line with its intervals."""
    points = {float(way.removeprefix("t_p").removesuffix("%")): value for (of, way), value in rows.items() if of == name}
    axis.plot(list(points), [value.value for value in points.values()], "o-", color=color, label=name)
    axis.fill_between(list(points), [value.low for value in points.values()],
                      [value.high for value in points.values()], color=color, alpha=0.15)
