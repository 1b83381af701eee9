"""Draw the study's pictures. Needs matplotlib (requirements-extra.txt)."""
from pathlib import Path

import matplotlib
import numpy as np

from study.figures import Figure

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

WAYS = ("rank of the needed chunk", "r: area over level 2", "gold likelihood")
STOPS = ("stops too early", "stops too late", "never stops")


def draw(data: str, found: dict[str, dict[str, Figure]], folder: Path) -> list[Path]:
    """Draw the two pictures of a data set from its figures; return their paths."""
    names = [name for name in WAYS if name in found]
    steps, axes = pyplot.subplots(1, len(names), figsize=(6.5 * len(names), 4), squeeze=False)
    for axis, name in zip(axes[0], names):
        ways = sorted(found[name].items(), key=lambda item: item[1].value, reverse="rank" in name)    # the best on top
        value, error = points([way for _, way in ways])
        axis.errorbar(value, range(len(ways)), xerr=error, fmt="o")
        axis.set_yticks(range(len(ways)), [way for way, _ in ways], fontsize=8)
        axis.set(xlabel=name)

    progress, axis = pyplot.subplots(figsize=(6.5, 4))
    for name in STOPS:
        value, error = points(found[name].values())
        axis.errorbar([float(way.removeprefix("t_p ")) for way in found[name]], value, yerr=error, fmt="o-", label=name)
    axis.set(xlabel="threshold t_p", ylabel="share of the searches")
    axis.legend()

    paths = []
    for what, figure in (("steps", steps), ("progress", progress)):
        figure.suptitle(f"{data}: {what}, with 95 % intervals over documents")
        figure.tight_layout()
        paths.append(folder / f"{data}-{what}.png")
        figure.savefig(paths[-1], dpi=110, metadata={"Software": None})
        pyplot.close(figure)
    return paths


def points(figures) -> tuple[np.ndarray, np.ndarray]:
    """Values [n], and the distances to the lower and upper ends of their intervals [2, n]."""
    value, low, high, _ = np.array(list(figures)).T
    return value, np.stack((value - low, high - value)).clip(0)
