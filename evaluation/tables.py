"""The tables and figures of the paper: measured results next to published ones (cells.py says how they are shown).

Results are data set -> {"runs": name of a run -> its summary, "not run": name -> {"label", "reason"}}.
"""
from evaluation import paper
from evaluation.cells import COLUMNS, NONE, NOT_RUN, Table, measured, one_decimal, quantity
from evaluation.methods import TABLE_1, rows_of


def tables_of(table: str | None, results: dict) -> list[Table]:
    """What --table shows (None: a run without it). The paper's data sets come last if they were not run."""
    if table is None:
        return [overview(results)]
    datasets = list(dict.fromkeys([*results, *paper.DATASETS]))
    if table == "A3":
        return [table_a3(datasets, results)]
    if table == "systems":
        datasets = dict.fromkeys([*datasets, *paper.OTHER_DATASETS])

    shown = []
    for dataset in datasets:
        entry = results.get(dataset, {})
        shown.append(SHOW[table](dataset, entry.get("runs", {}), entry.get("not run", {})))
    return shown


def reason(not_run: dict, name: str) -> list[str]:
    """The cell that says why a run could not be done, if it is among those that could not."""
    return [f"{NOT_RUN}: {not_run[name]['reason']}"] if name in not_run else []


def overview(results: dict) -> Table:
    """What was run, without the paper's figures."""
    columns = ["F1", "95 %", "accuracy", "ROUGE-L", "nodes", "FLOPs/query", "ratio", "FLOPs/document", "cut", "n",
               "F1 - PECAN"]
    if not any("accuracy" in run for entry in results.values() for run in entry["runs"].values()):
        columns.remove("accuracy")

    rows = []
    for dataset, entry in results.items():
        for run in entry["runs"].values():
            replies = f", refused {COLUMNS['refused'](run)}" if run["refused"] else ""
            rows.append([dataset, run["label"] + replies, *measured(run, columns)])
        for name, missing in entry["not run"].items():
            rows.append([dataset, missing["label"], *measured(None, columns), *reason(entry["not run"], name)])
    return Table("", ["data", "method", *columns], rows)


def remarks(table: str | None, encoder: str | None) -> list[str]:
    """The lines below a table: what its numbers are."""
    lines = []
    if table == "2" and not encoder:
        lines.append("Similarity: the mean of the searching model's own embeddings (--encoder takes a sentence "
                     "encoder).")
    if table != "A3":
        lines.append("F1 as LongBench defines it, ROUGE-L as rouge_score does, 95 % bootstrap intervals; FLOPs are "
                     "counted, not timed.")
    return lines


# --- tables ---------------------------------------------------------------------------------------------------------

def compared(title: str, header: list[str], columns: list[str], rows: list, runs: dict, not_run: dict) -> Table:
    """A table of runs; each of `rows` is a label, the name of its run, and published cells. `header` goes around
    `columns`: its first title above the labels, the others above what is published."""
    cells = [[label, *measured(runs.get(name), columns), *figures, *reason(not_run, name)]
             for label, name, figures in rows]
    return Table(title, [header[0], *columns, *header[1:]], cells)


def published(row: dict, dataset: str) -> list[str]:
    """F1, ROUGE-L, FLOPs and ratio of a row of the paper; the last two are in Table 1 only."""
    figures = row.get(dataset)
    if figures is None:
        return [NONE] * 4
    cost = [NONE] * 2 if figures.tflops is None else [f"{figures.tflops:.1f}T", f"{figures.ratio:.2f}x"]
    return [one_decimal(figures.f1), one_decimal(figures.rouge_l), *cost]


# The run of each row of Table 1. The paper calls the whole document by the name of its reader.
TABLE1_RUNS = {row.label: name for name, row in TABLE_1.items()} | {"Llama-3.1-8B": "whole"}


def table1(dataset: str, runs: dict, not_run: dict) -> Table:
    """Methods: F1, ROUGE-L, FLOPs of a query, ratio to PECAN's."""
    rows = []
    for label, row in paper.TABLE1.items():
        name = TABLE1_RUNS[label]
        rows.append((label_of_whole(dataset) if name == "whole" else label, name, published(row, dataset)))
    return compared(f"Table 1, {dataset}", ["method", "published F1", "ROUGE-L", "FLOPs", "ratio"],
                    ["F1", "95 %", "ROUGE-L", "FLOPs/query", "ratio", "cut", "n", "F1 - PECAN"], rows, runs, not_run)


def label_of_whole(dataset: str) -> str:
    """The label of the whole document's row, with the paper's if it has the data set."""
    cut = f", {paper.CUT[dataset]} % cut" if dataset in paper.CUT else ""
    return "whole document" + (f" (published: Llama-3.1-8B{cut})" if dataset in paper.DATASETS else "")


def systems(dataset: str, runs: dict, not_run: dict) -> Table:
    """Whole systems of several papers, each figure of theirs with the model that made it (it is not ours)."""
    rows = [(row.label, row.name, paper.SYSTEMS[row.name].get(dataset, (NONE, NONE))) for row in rows_of("systems")]
    return compared(f"Systems, {dataset}", ["system", "published", "by"],
                    ["F1", "95 %", "EM", "accuracy", "ROUGE-L", "FLOPs/query", "FLOPs/document", "refused", "n",
                     "F1 - PECAN"], rows, runs, not_run)


def table2(dataset: str, runs: dict, not_run: dict) -> Table:
    """One model builds the graph, another searches it: F1."""
    columns = ["F1", "95 %", "n", "F1 - first row"]
    figures = {pair: one_decimal(row[dataset]) for pair, row in paper.TABLE2.items() if dataset in row}

    # A published figure moves to the row of its run; the others get their own rows below.
    rows = []
    for run in runs.values():
        pair = run["graph by"], run["search by"]
        rows.append([*pair, *measured(run, columns), figures.pop(tuple(map(name_in_paper, pair)), NONE)])
    for pair, figure in figures.items():
        rows.append([*pair, *measured(None, columns), figure])
    for name, missing in not_run.items():
        rows.append([missing["label"], "", *measured(None, columns), NONE, *reason(not_run, name)])
    return Table(f"Table 2, {dataset}", ["graph by", "search by", *columns, "published F1"], rows)


def name_in_paper(model: str) -> str:
    """The name that the paper gives a checkpoint: Llama-3.1-8B for Meta-Llama-3.1-8B-Instruct."""
    return model.removesuffix("-Instruct").removeprefix("Meta-")


def table3(dataset: str, runs: dict, not_run: dict) -> Table:
    """Ablations: F1, ROUGE-L."""
    rows = [(row.label, row.name, published(paper.TABLE3[row.label], dataset)[:2]) for row in rows_of("3")]
    return compared(f"Table 3, {dataset}", ["method", "published F1", "ROUGE-L"],
                    ["F1", "95 %", "ROUGE-L", "nodes", "FLOPs/query", "n", "F1 - PECAN"], rows, runs, not_run)


def table_a3(datasets: list[str], results: dict) -> Table:
    """Lengths: average, least and most tokens of a document, and how many there are."""
    rows = []
    for dataset in datasets:
        lengths = results.get(dataset, {}).get("lengths")
        figures = [*paper.TABLE_A3.get(dataset, [None] * 3), paper.QUESTIONS.get(dataset)]
        rows.append([dataset, *([NOT_RUN] * 5 if lengths is None else [f"{n:,.0f}" for n in lengths.values()]),
                     *(NONE if figure is None else f"{figure:,}" for figure in figures)])
    return Table("Table A3, tokens of a document", ["data", "average", "min", "max", "documents", "questions",
                                                    "published average", "min", "max", "questions"], rows)


def table_a4(dataset: str, runs: dict, not_run: dict) -> Table:
    """FLOPs: construction of a document, search of a query, both for 1 to 8 queries."""
    whole, pecan = runs.get("whole"), runs.get("pecan")
    cut = f", {COLUMNS['cut'](whole)} documents cut" if whole else ""
    rows = [[label_of_whole(dataset) + cut, *measured(whole, ["FLOPs/query", "n"])],
            ["PECAN Attention Graph Construction", *measured(pecan, ["FLOPs/document", "documents"])],
            ["PECAN Graph Search", *measured(pecan, ["FLOPs/query", "n"])]]
    for queries in (1, 2, 4, 8):
        both = NOT_RUN if pecan is None else quantity(pecan["flops"] + pecan["construction_flops"] / queries)
        rows.append([f"both, {queries} queries per document", both, *measured(pecan, ["n"])])

    # The rows are in the order of the paper's.
    for row, figures in zip(rows, paper.TABLE_A4.values(), strict=True):
        row.append(f"{figures[dataset]:.1f}T" if dataset in figures else NONE)
    return Table(f"Table A4, {dataset}", ["FLOPs", "measured", "n", "published"], rows)


def patience(dataset: str, runs: dict, not_run: dict) -> Table:
    """Figure 4: F1 and FLOPs for t_n from 1 to 8.

    The paper prints a picture. Its numbers for t_n = 1 are in Table 1.
    """
    rows = []
    for row in rows_of("patience"):
        figures = published(paper.TABLE1["PECAN"] if row.name == "pecan" else {}, dataset)
        rows.append((row.label, row.name, figures[0:3:2]))
    return compared(f"Figure 4, {dataset}", ["stop patience", "published F1", "FLOPs"],
                    ["F1", "95 %", "FLOPs/query", "nodes", "n", "F1 - first row"], rows, runs, not_run)


def nodes(dataset: str, runs: dict, not_run: dict) -> Table:
    """Figure 3: queries by the number of nodes read.

    The paper prints a picture. GARLIC 4.4 has the averages.
    """
    run = runs.get("pecan")
    average = f"{paper.FIXED_NODES[dataset]} (GARLIC)" if dataset in paper.FIXED_NODES else NONE
    rows = [["average", *measured(run, ["nodes"]), "", average], *(histogram_rows(run["histogram"]) if run else [])]
    return Table(f"Figure 3, {dataset}, queries by nodes read", ["nodes", "queries", "", "published"], rows)


def histogram_rows(histogram: dict[int, int]) -> list[list[str]]:
    """A row with a bar for each number of nodes; for ranges of numbers, if there are more than 20."""
    end = max(histogram) + 1
    width = -(-end // 20)                                         # of a range, rounded up
    counts = {first: sum(histogram.get(n, 0) for n in range(first, first + width)) for first in range(0, end, width)}

    rows = []
    for first, count in counts.items():
        label = str(first) if width == 1 else f"{first}-{first + width - 1}"
        bar = "#" * -(-40 * count // max(counts.values()))       # rounded up; the longest has 40 signs
        rows.append([label, str(count), bar, NONE])
    return rows


# --table -> what shows a data set.
SHOW = {"1": table1, "2": table2, "3": table3, "A4": table_a4, "patience": patience, "nodes": nodes,
        "systems": systems}
TABLES = [*SHOW, "A3"]
