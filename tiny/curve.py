"""Draw the training of the embedded model from its log: right targets, and the figures of watched documents.

    python -m tiny.curve trained

It writes curve.png into the folder of the training. matplotlib is an optional extra: requirements-extra.txt.
"""
import sys
from pathlib import Path

from core.command import make_parser, parse_options, user_errors

from core.files import InputError, optional, parse_json

FIGURES = {"F1": ("PECAN", "F1"), "F1 if all was read": ("PECAN", "F1 if all needed facts were read"),
           "verdicts, truth Yes": ("PECAN", "verdicts that are right where the truth is Yes"),
           "verdicts, truth No": ("PECAN", "verdicts that are right where the truth is No"),
           "facts kept, level 2": ("graphs", "facts to be kept that level 2 states"),
           "bullets true": ("graphs", "bullets that are true")}


def read_log(path: Path) -> list[dict]:
    """The lines of log.jsonl, of each step the last one; InputError if there are none."""
    if not path.exists():
        raise InputError(f"{path}: is not there; run python -m tiny.train --output {path.parent} first")
    rows = [parse_json(line, f"{path}, line {n}", dict) for n, line in enumerate(path.read_text().splitlines(), 1)]
    if not rows:
        raise InputError(f"{path}: holds no line")

    # A training that was interrupted repeats the steps after its last checkpoint.
    return [row for _, row in sorted({(row["step"], "figures" in row): row for row in rows}.items())]


def draw(rows: list[dict], path: Path):
    """Two parts, one above the other, over millions of tokens."""
    with optional("the curve is drawn with matplotlib"):
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, figsize=(7, 7), sharex=True, layout="constrained")
    above.set_prop_cycle(color=pyplot.get_cmap("tab20").colors)        # there are more kinds than usual colors
    for kind in dict.fromkeys(kind for row in rows for kind in row["right"]):
        points = [(row["done"] / 1e6, row["right"][kind]) for row in rows if kind in row["right"]]
        above.plot(*zip(*points), label=kind)
    above.set_ylabel("right targets in training")

    watched = [row for row in rows if "figures" in row]
    for (label, (of, name)), marker in zip(FIGURES.items(), "osD^v<"):
        points = [(row["done"] / 1e6, row["figures"][of].get(name)) for row in watched]
        points = [point for point in points if point[1] is not None]
        if points:
            below.plot(*zip(*points), marker=marker, label=label)
    below.set_ylabel("on watched documents")
    below.set_xlabel("million tokens")

    for part in (above, below):
        part.set_ylim(0, 1.02)
        part.grid(color="#e4e4e4")
        if part.get_legend_handles_labels()[0]:
            part.legend(fontsize=7, ncols=2)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main(argv=None) -> int:
    parser = make_parser("python -m tiny.curve", __doc__)
    parser.add_argument("folder", type=Path, help="the output of python -m tiny.train")
    args = parse_options(parser, argv)

    path = args.folder / "curve.png"
    draw(read_log(args.folder / "log.jsonl"), path)
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(user_errors(main))
