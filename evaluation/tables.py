"""The tables and figures of the paper: measured results next to published ones.

Results are data set -> {"runs": name of a run -> its summary}; for Table A3, data set -> {"lengths": ...}. A run that
failed is missing. "not run": not measured. "none": no such number exists. "-": does not apply to this run. Scores are
percentages with 95 % bootstrap intervals. FLOPs are counted; K M G T are powers of 1000.
"""
from collections import Counter
from typing import NamedTuple

from evaluation import paper
from evaluation.methods import rows_of

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


def difference(run: dict) -> str:
    """F1 minus the F1 of the first row (PECAN) on the same questions, with its interval."""
    if not run.get("difference"):                                 # the first row, or the first row was not run
        return "-"
    low, high = run["difference"]["interval"]
    return f"{run['difference']['f1']:+.1f} ({low:+.1f} to {high:+.1f})"


# The cell of each column, from a run's summary.
COLUMNS = {
    "F1": lambda run: f"{run['f1']:.1f}",
    "95 %": lambda run: "{:.1f}-{:.1f}".format(*run["f1_interval"]),
    "EM": lambda run: f"{run['em']:.1f}",
    "accuracy": lambda run: f"{run['accuracy']:.1f}" if "accuracy" in run else NONE,
    "ROUGE-L": lambda run: f"{run['rouge_l']:.1f}",
    "nodes": lambda run: f"{run['nodes']:.1f}" if run["nodes"] else "-",
    "FLOPs/query": lambda run: quantity(run["flops"]),
    "ratio": lambda run: f"{run['ratio']:.2f}x" if "ratio" in run else "-",
    "FLOPs/document": lambda run: quantity(run["construction_flops"]) if run["construction_flops"] else "-",
    "cut": lambda run: f"{run['cut_documents']}/{run['documents']}",
    "refused": lambda run: f"{run['refused']} of {run['calls']}" if run["calls"] else NONE,
    "documents": lambda run: str(run["documents"]),
    "n": lambda run: str(run["n"]),
    "F1 - PECAN": difference,
    "F1 - first row": difference,
}
# Short heads, so that the table without --table fits 80 columns.
COLUMNS |= {"FLOPs": COLUMNS["FLOPs/query"], "graph": COLUMNS["FLOPs/document"],
            "diff": lambda run: difference(run).split(" ")[0]}


def measured(run: dict | None, columns: list[str]) -> list[str]:
    """The cells of a run's summary (None: it was not run)."""
    return [NOT_RUN if run is None else COLUMNS[column](run) for column in columns]


# --- printed form ---------------------------------------------------------------------------------------------------

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


# --- the tables -----------------------------------------------------------------------------------------------------

def tables_of(table: str | None, results: dict) -> list[Table]:
    """The tables of --table (None: a run without it). Data sets of the paper that were not run come last."""
    if table is None:
        return [overview(dataset, entry["runs"]) for dataset, entry in results.items() if entry["runs"]]
    others = {"patience": (), "systems": (*paper.DATASETS, *paper.OTHER_DATASETS)}         # Figure 4 has no numbers
    datasets = dict.fromkeys([*results, *others.get(table, paper.DATASETS)])
    if table == "A3":
        return [table_a3(datasets, results)]
    return [SHOW[table](dataset, results.get(dataset, {"runs": {}})["runs"]) for dataset in datasets]


def overview(dataset: str, runs: dict) -> Table:
    """The runs, without the paper's figures."""
    columns = ["F1", "95 %", "ROUGE-L", "nodes", "FLOPs", "graph", "cut", "n", "diff"]
    if any("accuracy" in run for run in runs.values()):
        columns.insert(2, "accuracy")
    return Table(dataset, ["method", *columns], [[run["label"], *measured(run, columns)] for run in runs.values()])


# --- one table for each data set ------------------------------------------------------------------------------------

def compared(title: str, header: str, rows: list[tuple], runs: dict) -> Table:
    """A table of runs. `header` is "LABEL | MEASURED, .. | PUBLISHED, ..".

    Each row has a label, the name of its run, and the published cells. The measured cells come between them.
    """
    label, measured_columns, published_columns = (part.split(", ") for part in header.split(" | "))
    cells = [[text, *measured(runs.get(name), measured_columns), *figures] for text, name, figures in rows]
    return Table(title, label + measured_columns + published_columns, cells)


def published(row: dict, dataset: str) -> list[str]:
    """The published F1, ROUGE-L, FLOPs and ratio of a row. Only Table 1 has the last two."""
    figures = row.get(dataset)
    if figures is None:
        return [NONE] * 4
    cost = [NONE] * 2 if figures.tflops is None else [f"{figures.tflops:.1f}T", f"{figures.ratio:.2f}x"]
    return [f"{figures.f1:.1f}", f"{figures.rouge_l:.1f}", *cost]


def label_of_whole(dataset: str) -> str:
    """The label of the whole document's row, with the paper's label if the paper has the data set."""
    cut = f", {paper.CUT[dataset]} % cut" if dataset in paper.CUT else ""
    return "whole document" + (f" (published: Llama-3.1-8B{cut})" if dataset in paper.DATASETS else "")


def table1(dataset: str, runs: dict) -> Table:
    """Methods: F1, ROUGE-L, FLOPs of a query, ratio to PECAN's."""
    header = ("method | F1, 95 %, ROUGE-L, FLOPs/query, ratio, cut, n, F1 - PECAN | "
              "published F1, ROUGE-L, FLOPs, ratio")
    rows = [(label_of_whole(dataset) if row.name == "whole" else row.label, row.name,
             published(paper.TABLE1[row.label], dataset)) for row in rows_of("1")]
    return compared(f"Table 1, {dataset}", header, rows, runs)


def table2(dataset: str, runs: dict) -> Table:
    """F1 if one model builds the graph and another searches it. Pairs that only the paper has come last."""
    figures = {pair: f"{row[dataset]:.1f}" for pair, row in paper.TABLE2.items() if dataset in row}
    rows = [(run["label"], name, [figures.pop(run["label"].replace("-Instruct", "").replace("Meta-", ""), NONE)])
            for name, run in runs.items()]
    rows += [(pair, None, [figure]) for pair, figure in figures.items()]
    return compared(f"Table 2, {dataset}", "graph by + search by | F1, 95 %, n, F1 - first row | published F1", rows,
                    runs)


def table3(dataset: str, runs: dict) -> Table:
    """Ablations: F1, ROUGE-L."""
    header = "method | F1, 95 %, ROUGE-L, nodes, FLOPs/query, n, F1 - PECAN | published F1, ROUGE-L"
    rows = [(row.label, row.name, published(paper.TABLE3[row.label], dataset)[:2]) for row in rows_of("3")]
    return compared(f"Table 3, {dataset}", header, rows, runs)


def patience(dataset: str, runs: dict) -> Table:
    """Figure 4: F1 and FLOPs for t_n from 1 to 8.

    The paper prints a picture. Its numbers for t_n = 1 are in Table 1.
    """
    header = "stop patience | F1, 95 %, FLOPs/query, nodes, n, F1 - first row | published F1, FLOPs"
    figures = {"pecan": paper.TABLE1["PECAN"]}
    rows = [(row.label, row.name, published(figures.get(row.name, {}), dataset)[::2]) for row in rows_of("patience")]
    return compared(f"Figure 4, {dataset}", header, rows, runs)


def systems(dataset: str, runs: dict) -> Table:
    """Whole systems of several papers. Published figures name their metric, data and model, because these differ."""
    header = ("system | F1, 95 %, EM, accuracy, ROUGE-L, FLOPs/query, FLOPs/document, refused, n, F1 - PECAN | "
              "published, on, by")
    rows = [(row.label, row.name, paper.SYSTEMS.get(row.name, {}).get(dataset, [NONE] * 3))
            for row in rows_of("systems")]
    return compared(f"Systems, {dataset}", header, rows, runs)


def table_a3(datasets: dict, results: dict) -> Table:
    """Lengths: average, least and most tokens of a document, and the numbers of documents and questions."""
    rows = []
    for dataset in datasets:
        lengths = results[dataset]["lengths"].values() if dataset in results else [None] * 5
        figures = [*paper.TABLE_A3.get(dataset, [None] * 3), paper.QUESTIONS.get(dataset)]
        rows.append([dataset, *(NOT_RUN if n is None else f"{n:,.0f}" for n in lengths),
                     *(NONE if figure is None else f"{figure:,}" for figure in figures)])
    return Table("Table A3, tokens of a document", ["data", "average", "min", "max", "documents", "questions",
                                                    "published average", "min", "max", "questions"], rows)


def table_a4(dataset: str, runs: dict) -> Table:
    """FLOPs: the whole document, construction, search, and both stages per query for 1 to 8 queries a document."""
    whole = runs.get("whole")
    pecan = runs.get("pecan")
    rows = [[label_of_whole(dataset), *measured(whole, ["FLOPs/query", "n"])],
            ["PECAN Attention Graph Construction", *measured(pecan, ["FLOPs/document", "documents"])],
            ["PECAN Graph Search", *measured(pecan, ["FLOPs/query", "n"])]]
    for queries in (1, 2, 4, 8):
        both = pecan and pecan | {"flops": pecan["flops"] + pecan["construction_flops"] / queries}
        rows.append([f"both, {queries} queries per document", *measured(both, ["FLOPs/query", "n"])])

    # The rows are in the paper's order.
    for row, figures in zip(rows, paper.TABLE_A4.values(), strict=True):
        row.append(f"{figures[dataset]:.1f}T" if dataset in figures else NONE)
    return Table(f"Table A4, {dataset}", ["FLOPs", "measured", "n", "published"], rows)


def nodes(dataset: str, runs: dict) -> Table:
    """Figure 3: queries by the number of nodes read, with a bar for each range of five; the longest has 40 signs.

    The paper prints a picture. GARLIC 4.4 has the averages.
    """
    run = runs.get("pecan")
    average = f"{paper.FIXED_NODES[dataset]} (GARLIC)" if dataset in paper.FIXED_NODES else NONE
    rows = [["average", *measured(run, ["nodes"]), "", average]]
    counts = Counter(n // 5 for n in Counter(run["histogram"]).elements()) if run else Counter()
    for place in range(max(counts, default=-1) + 1):
        bar = "#" * -(-40 * counts[place] // max(counts.values()))       # rounded up: one query shows
        rows.append([f"{5 * place}-{5 * place + 4}", str(counts[place]), bar, NONE])
    return Table(f"Figure 3, {dataset}, queries by nodes read", ["nodes", "queries", "", "published"], rows)


# --table -> the function that makes a data set's table.
SHOW = {"1": table1, "2": table2, "3": table3, "A4": table_a4, "patience": patience, "nodes": nodes,
        "systems": systems}
TABLES = [*SHOW, "A3"]
