"""A table, the cells of a run in its columns, and its printed form.

"not run" means not measured. "none" means that there is no such number, published or measured. Scores are percentages
with 95 % bootstrap intervals. FLOPs are counted; K M G T are powers of 1000.
"""
from typing import NamedTuple

NOT_RUN = "not run"
NONE = "none"


class Table(NamedTuple):
    title: str
    header: list[str]
    rows: list[list[str]]


# --- cells ----------------------------------------------------------------------------------------------------------

def quantity(flops: float) -> str:
    """Three digits and a power of 1000: 955M, 1.67G, 31.0T."""
    for letter in ("", "K", "M", "G", "T"):
        if flops < 999.5 or letter == "T":                       # 999.6M is rounded to 1.00G
            break
        flops /= 1000

    decimals = 0 if flops >= 99.95 else 1 if flops >= 9.995 else 2
    return f"{flops:.{decimals}f}{letter}"


def one_decimal(value: float) -> str:
    return f"{value:.1f}"


def difference(run: dict) -> str:
    """F1 minus the F1 of the first row (PECAN) on the same questions, with its interval."""
    if not run.get("difference"):                                 # the first row, or the first row was not run
        return "-"
    low, high = run["difference"]["interval"]
    return f"{run['difference']['f1']:+.1f} ({low:+.1f} to {high:+.1f})"


# The cell of each column, from a run's summary.
COLUMNS = {
    "F1": lambda run: one_decimal(run["f1"]),
    "95 %": lambda run: "{:.1f}-{:.1f}".format(*run["f1_interval"]),
    "EM": lambda run: one_decimal(run["em"]),
    "accuracy": lambda run: one_decimal(run["accuracy"]) if "accuracy" in run else NONE,
    "ROUGE-L": lambda run: one_decimal(run["rouge_l"]),
    "nodes": lambda run: one_decimal(run["nodes"]) if run["nodes"] else "-",
    "FLOPs/query": lambda run: quantity(run["flops"]),
    "ratio": lambda run: f"{run['ratio']:.2f}x" if "ratio" in run else "-",
    "FLOPs/document": lambda run: quantity(run["construction_flops"]) if run["construction_flops"] else "-",
    "cut": lambda run: f"{run['cut_documents']}/{run['documents']}",
    "refused": lambda run: f"{run['refused']} of {run['calls']}" if run["calls"] else NONE,
    "documents": lambda run: str(run["documents"]),
    "n": lambda run: str(run["n"]),
    **dict.fromkeys(("F1 - PECAN", "F1 - first row"), difference),
}


def measured(run: dict | None, columns: list[str]) -> list[str]:
    """The cells of a run's summary (None: it was not run)."""
    return [NOT_RUN if run is None else COLUMNS[column](run) for column in columns]


# --- text -----------------------------------------------------------------------------------------------------------

def as_text(table: Table) -> str:
    """The title, then the columns. Bars, and words in the first two columns, are set left; the rest is set right."""
    columns = []
    for n, column in enumerate(zip(table.header, *table.rows)):
        words = n < 2 and not any(cell[:1].isdigit() for cell in column)
        to_the_left = words or any("#" in cell for cell in column)
        width = max(map(len, column))
        columns.append([cell.ljust(width) if to_the_left else cell.rjust(width) for cell in column])

    lines = ["  ".join(cells) for cells in zip(*columns)]
    return "\n".join([table.title, *lines] if table.title else lines)
