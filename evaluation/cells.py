"""A table, its cells, and how it is shown as text and as Markdown.

A result that was not measured says "not run"; one that the paper does not publish says "none". Scores are percentages
with 95 % bootstrap intervals. FLOPs are counted; K M G T are powers of 1000.

Results are data set -> {"runs": name of a run -> its summary}. A run that was not done is missing.
"""
from typing import NamedTuple

from evaluation import paper

NOT_RUN = "not run"
NONE = "none"


class Table(NamedTuple):
    """A row may have one cell more than the header: why it was not run."""
    title: str
    header: list[str]
    rows: list[list[str]]

    def without_empty_rows(self) -> "Table":
        """The table without the rows in which nothing is measured and nothing published."""
        return self._replace(rows=[row for row in self.rows if set(row[1:]) - {NOT_RUN, NONE, ""}])


def quantity(flops: float) -> str:
    """Three digits and a power of 1000: 955M, 1.67G, 31.0T."""
    unit, letter = 1, ""
    for power, its_letter in ((1e3, "K"), (1e6, "M"), (1e9, "G"), (1e12, "T")):
        if flops >= .9995 * power:                               # 999.6M is rounded to 1.00G
            unit, letter = power, its_letter

    value = flops / unit
    decimals = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{decimals}f}{letter}"


def one_decimal(value: float) -> str:
    return f"{value:.1f}"


def cell(run: dict | None, name: str, form=str) -> str:
    """A number of a run's summary, as `form` writes it."""
    return NOT_RUN if run is None else form(run[name])


def score(run: dict | None, name: str = "f1") -> list[str]:
    """A score and its interval, two cells."""
    if run is None:
        return [NOT_RUN, NOT_RUN]
    low, high = run[f"{name}_interval"]
    return [one_decimal(run[name]), f"{low:.1f}-{high:.1f}"]


def ratio(run: dict | None, pecan: dict | None) -> str:
    """FLOPs of a query over those of PECAN's."""
    if run is None or pecan is None:
        return NOT_RUN
    return f"{run['flops'] / pecan['flops']:.2f}x"


def difference(run: dict | None) -> str:
    """F1 minus PECAN's on the same questions, and the 95 % interval of the difference."""
    if run is None:
        return NOT_RUN
    if not run.get("difference", {}).get("n"):                    # PECAN's own row, or PECAN was not run
        return "-"
    low, high = run["difference"]["interval"]
    return f"{run['difference']['f1']:+.1f} ({low:+.1f} to {high:+.1f})"


def cut(run: dict | None) -> str:
    """How many of the documents did not fit the window."""
    return NOT_RUN if run is None else f"{run['cut_documents']}/{run['documents']}"


def datasets_of(results: dict) -> list[str]:
    """The data sets that were run, then the paper's that were not."""
    return [*results, *(dataset for dataset in paper.DATASETS if dataset not in results)]


def reason(not_run: dict, name: str) -> list[str]:
    """The cell that says why a run could not be done, if it is among those that could not."""
    return [f"{NOT_RUN}: {not_run[name]['reason']}"] if name in not_run else []


# --- text, Markdown --------------------------------------------------------------------------------------------------

def as_text(table: Table) -> str:
    """The table in aligned columns, below its title."""
    columns = []
    for n, column in enumerate(zip(table.header, *table.rows)):
        columns.append(aligned(column, first_two=n < 2))
    reasons = ["", *("  " + row[-1] if len(row) > len(table.header) else "" for row in table.rows)]
    lines = ["  ".join(cells).rstrip() + reason for cells, reason in zip(zip(*columns), reasons, strict=True)]
    return "\n".join([table.title, *lines] if table.title else lines)


def aligned(column: tuple[str, ...], first_two: bool) -> list[str]:
    """The cells of a column at one width.

    Bars, and the words of the first two columns, are aligned to the left, numbers to the right.
    """
    has_bars = any("#" in cell for cell in column)
    has_numbers = any(cell[:1].isdigit() for cell in column)
    to_the_left = has_bars or (first_two and not has_numbers)

    width = max(len(cell) for cell in column)
    return [cell.ljust(width) if to_the_left else cell.rjust(width) for cell in column]


def as_markdown(table: Table) -> str:
    title = [f"**{table.title}**\n"] if table.title else []
    width = len(table.header)
    rows = [[*row[:width - 1], " ".join(row[width - 1:])] for row in table.rows]      # a reason joins the last cell
    header, *rows = ["| " + " | ".join(row) + " |" for row in [table.header, *rows]]
    rule = "|" + "---|" * len(table.header)
    return "\n".join([*title, header, rule, *rows]) + "\n"
