"""The tables and figures of the paper: how runs are shown, measured next to published.

A result that was not measured says "not run"; what the paper does not publish says "none". Scores are percentages with
95 % bootstrap intervals; FLOPs are counted, K M G T being powers of 1000.
"""
from pathlib import Path
from typing import NamedTuple

from evaluation import paper
from evaluation.runs import METHODS, runs_of

# --- how it is shown ------------------------------------------------------------------------------------------------

NOT_RUN = "not run"
NONE = "none"

# The rows of Table 1, and the run of each.
ROWS = {run.label: name for name, run in METHODS.items()} | {"Llama-3.1-8B": "whole"}


class Table(NamedTuple):
    title: str
    header: list[str]
    rows: list[list[str]]

    def without_blanks(self) -> "Table":
        """Less the rows in which nothing is measured and nothing published."""
        return self._replace(rows=[row for row in self.rows if set(row[1:]) - {NOT_RUN, NONE, ""}])


def quantity(flops: float) -> str:
    """Three digits and a power of 1000: 955M, 1.67G, 31.0T."""
    for unit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")):
        if flops >= .9995 * unit:
            break
    else:
        unit, letter = 1, ""
    value = flops / unit
    return f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f}{letter}"


def score(run: dict | None, name: str = "f1") -> list[str]:
    """A score and its interval."""
    if run is None:
        return [NOT_RUN, NOT_RUN]
    low, high = run[f"{name}_interval"]
    return [f"{run[name]:.1f}", f"{low:.1f}-{high:.1f}"]


def blocks(results: dict) -> list[tuple[str, dict]]:
    """(data set, its runs) of all data sets that were run, and then of the paper's that were not."""
    return [*((name, entry["runs"]) for name, entry in results.items()),
            *((name, {}) for name in paper.DATASETS if name not in results)]


def get(run: dict | None, show, *names):
    """show(run) of a run, or that it was not run."""
    return NOT_RUN if run is None else show(*(run[name] for name in names))


def overview(results: dict) -> list[Table]:
    """What was run, without the paper's figures."""
    rows = []
    for dataset, entry in results.items():
        base = entry["runs"].get("pecan", {}).get("flops")
        for r in entry["runs"].values():
            rows.append([dataset, r["label"], *score(r), f"{r['rouge_l']:.1f}",
                         f"{r['nodes']:.1f}" if r["nodes"] else "-", quantity(r["flops"]),
                         f"{r['flops'] / base:.2f}x" if base else "-",
                         quantity(r["construction_flops"]) if r["construction_flops"] else "-",
                         f"{r['cut_documents']}/{r['documents']}", str(r["n"])])
    return [Table("", ["data", "method", "F1", "95 %", "ROUGE-L", "nodes", "FLOPs/query", "ratio", "FLOPs/document",
                       "cut", "n"], rows)]


def table1(results: dict) -> list[Table]:
    """Methods: F1, ROUGE-L, FLOPs of a query, ratio to PECAN's."""
    tables = []
    for dataset, runs in blocks(results):
        rows, base = [], runs.get("pecan")
        for label, published in paper.TABLE1.items():
            r, p = runs.get(ROWS[label]), published.get(dataset)
            if ROWS[label] == "whole":
                cut = f", {paper.CUT[dataset]} % cut" if dataset in paper.CUT else ""
                label = f"whole document (published: {label}{cut})" if p else "whole document"
            row = [label, *score(r), get(r, "{:.1f}".format, "rouge_l"), get(r, quantity, "flops"),
                   get(r and base, lambda flops: f"{r['flops'] / flops:.2f}x", "flops"),
                   get(r, "{}/{}".format, "cut_documents", "documents"), get(r, str, "n")]
            figures = [f"{p.f1:.1f}", f"{p.rouge_l:.1f}", f"{p.tflops:.1f}T", f"{p.ratio:.2f}x"] if p else [NONE] * 4
            rows.append(row + figures)
        tables.append(Table(f"Table 1, {dataset}", ["method", "F1", "95 %", "ROUGE-L", "FLOPs/query", "ratio",
                                                    "cut", "n", "published F1", "ROUGE-L", "FLOPs", "ratio"], rows))
    return tables


def table2(results: dict) -> list[Table]:
    """One model builds the graph, another searches it: F1."""
    tables = []
    for dataset, runs in blocks(results):
        published = {pair: f"{row[dataset]:.1f}" for pair, row in paper.TABLE2.items() if dataset in row}
        rows = [[r["graph by"], r["search by"], *score(r), str(r["n"]), published.pop(
            tuple(r[by].removesuffix("-Instruct").removeprefix("Meta-") for by in ("graph by", "search by")), NONE)]
            for r in runs.values()]
        rows += [[*pair, NOT_RUN, NOT_RUN, NOT_RUN, figure] for pair, figure in published.items()]
        tables.append(Table(f"Table 2, {dataset}", ["graph by", "search by", "F1", "95 %", "n", "published F1"], rows))
    return tables


def table3(results: dict) -> list[Table]:
    """Ablations: F1, ROUGE-L."""
    tables = []
    for dataset, runs in blocks(results):
        rows = []
        for run in runs_of("3"):
            r, p = runs.get(run.name), paper.TABLE3[run.label].get(dataset)
            rows.append([run.label, *score(r), get(r, "{:.1f}".format, "rouge_l"), get(r, "{:.1f}".format, "nodes"),
                         get(r, quantity, "flops"), get(r, str, "n"),
                         *([f"{p.f1:.1f}", f"{p.rouge_l:.1f}"] if p else [NONE] * 2)])
        tables.append(Table(f"Table 3, {dataset}", ["method", "F1", "95 %", "ROUGE-L", "nodes", "FLOPs/query", "n",
                                                    "published F1", "ROUGE-L"], rows))
    return tables


def table_a3(results: dict) -> list[Table]:
    """Tokens of a document: average, least, most; and how many questions there are, where the paper says so."""
    rows = []
    for dataset in [*results, *(name for name in paper.DATASETS if name not in results)]:
        measured, p = results.get(dataset, {}).get("lengths"), paper.TABLE_A3.get(dataset)
        names = "average", "least", "most", "documents", "questions"
        rows.append([dataset, *(f"{measured[name]:,.0f}" if measured else NOT_RUN for name in names),
                     *([f"{n:,}" for n in p] if p else [NONE] * 3),
                     f"{paper.QUESTIONS[dataset]:,}" if dataset in paper.QUESTIONS else NONE])
    return [Table("Table A3, tokens of a document", ["data", "average", "min", "max", "documents", "questions",
                                                     "published average", "min", "max", "questions"], rows)]


def table_a4(results: dict) -> list[Table]:
    """FLOPs: of construction for a document, of search for a query, and of both where a document has 1 to 8 queries."""
    tables = []
    for dataset, runs in blocks(results):
        whole, pecan, published = runs.get("whole"), runs.get("pecan"), paper.TABLE_A4
        name = "whole document" + " (published: Llama-3.1-8B)" * (dataset in paper.DATASETS)
        cut = get(whole, "{}/{} documents cut".format, "cut_documents", "documents")
        rows = [[f"{name}, {cut}" if whole else name, get(whole, quantity, "flops"), get(whole, str, "n")],
                ["PECAN Attention Graph Construction", get(pecan, quantity, "construction_flops"),
                 get(pecan, str, "documents")],
                ["PECAN Graph Search", get(pecan, quantity, "flops"), get(pecan, str, "n")]]
        for queries in (1, 2, 4, 8):
            rows.append([f"both, {queries} queries per document",
                         get(pecan, lambda search, build: quantity(search + build / queries), "flops",
                             "construction_flops"), get(pecan, str, "n")])
        for row, line in zip(rows, published.values()):
            row.append(f"{line[dataset]:.1f}T" if dataset in line else NONE)
        tables.append(Table(f"Table A4, {dataset}", ["FLOPs", "measured", "n", "published"], rows))
    return tables


def patience(results: dict) -> list[Table]:
    """Figure 4's sweep over t_n; the paper prints a picture of it, and numbers for t_n = 1 in Table 1."""
    tables = []
    for dataset, runs in blocks(results):
        rows, p = [], paper.TABLE1["PECAN"].get(dataset)
        for n, run in enumerate(runs_of("patience"), 1):
            r = runs.get(run.name)
            rows.append([run.label, *score(r), get(r, quantity, "flops"), get(r, "{:.1f}".format, "nodes"),
                         get(r, str, "n"), *([f"{p.f1:.1f}", f"{p.tflops:.1f}T"] if p and n == 1 else [NONE] * 2)])
        tables.append(Table(f"Figure 4, {dataset}", ["stop patience", "F1", "95 %", "FLOPs/query", "nodes", "n",
                                                     "published F1", "FLOPs"], rows).without_blanks())
    return tables


def nodes(results: dict) -> list[Table]:
    """Figure 3's distribution of the nodes read for a query; the paper prints a picture, GARLIC 4.4 the averages."""
    tables = []
    for dataset, runs in blocks(results):
        r, known = runs.get("pecan"), paper.FIXED_NODES.get(dataset)
        rows = [["average", get(r, "{:.1f}".format, "nodes"), "", f"{known} (GARLIC)" if known else NONE]]
        if r:
            histogram = {int(n): count for n, count in r["histogram"].items()}
            width = max(1, -(-(max(histogram) + 1) // 20))                                 # at most 20 rows
            counts = [sum(histogram.get(n, 0) for n in range(first, first + width))
                      for first in range(0, max(histogram) + 1, width)]
            for i, count in enumerate(counts):
                first, last = i * width, (i + 1) * width - 1
                rows.append([f"{first}-{last}" if width > 1 else str(first), str(count),
                             "#" * -(-40 * count // max(counts)), NONE])
        tables.append(Table(f"Figure 3, {dataset}, queries by nodes read", ["nodes", "queries", "", "published"],
                            rows).without_blanks())
    return tables


SHOW = {None: overview, "1": table1, "2": table2, "3": table3, "A3": table_a3, "A4": table_a4, "patience": patience,
        "nodes": nodes}


def as_text(table: Table) -> str:
    """Columns aligned: words and bars to the left, numbers to the right."""
    columns = []
    for n, column in enumerate(zip(table.header, *table.rows)):
        numbers, bars = any(c[:1].isdigit() for c in column), any("#" in c for c in column)
        width, left = max(map(len, column)), bars or n < 2 and not numbers
        columns.append([cell.ljust(width) if left else cell.rjust(width) for cell in column])
    lines = ["  ".join(cells).rstrip() for cells in zip(*columns)]
    return "\n".join([table.title, *lines] if table.title else lines)


def as_markdown(table: Table) -> str:
    rule = "|" + "---|" * len(table.header)
    lines = ["| " + " | ".join(row) + " |" for row in [table.header, *table.rows]]
    return "\n".join([f"**{table.title}**\n"] * bool(table.title) + [lines[0], rule, *lines[1:]]) + "\n"


def draw(table: str, results: dict, folder: Path) -> str:
    """Figures 3 and 4 as pictures; returns where they are, or why not."""
    try:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return "no picture: matplotlib is not installed (pip install -r requirements-extra.txt)"
    entries = [(dataset, entry["runs"]) for dataset, entry in results.items()]
    figure, axes = pyplot.subplots(1, len(entries), figsize=(5 * len(entries), 3.5), squeeze=False)
    for (dataset, runs), axis in zip(entries, axes[0]):
        if table == "nodes":
            histogram = {int(n): count for n, count in runs["pecan"]["histogram"].items()}
            axis.bar(list(histogram), list(histogram.values()), width=1)
            axis.set(xlabel="nodes read", ylabel="queries", title=dataset)
        else:
            rows = [(n, runs[run.name]) for n, run in enumerate(runs_of("patience"), 1) if run.name in runs]
            axis.plot([n for n, _ in rows], [r["f1"] for _, r in rows], "o-", color="tab:blue")
            axis.set(xlabel="stop patience t_n", ylabel="F1 (%)", title=dataset)
            axis.yaxis.label.set_color("tab:blue")
            other = axis.twinx()
            other.plot([n for n, _ in rows], [r["flops"] for _, r in rows], "s--", color="tab:orange")
            other.set_ylabel("FLOPs/query", color="tab:orange")
    path = folder / f"figure-{3 if table == 'nodes' else 4}.png"
    figure.tight_layout()
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)
    return f"picture: {path}"
