"""The tables and figures of the paper: measured results next to published ones (cells.py says how they are shown)."""
from collections.abc import Callable
from functools import partial, wraps

from evaluation import paper
from evaluation.cells import (
    NONE,
    NOT_RUN,
    Table,
    cell,
    cut,
    datasets_of,
    difference,
    one_decimal,
    quantity,
    ratio,
    reason,
    score,
)
from evaluation.runs import METHODS, TABLE_1, runs_of


def for_each_dataset(table: Callable, others: tuple = ()) -> Callable:
    """What shows all results, from what shows one data set: table(name, its runs, those that could not be done).

    `others` are data sets that come after those of the paper, whether they were run or not.
    """
    @wraps(table)
    def show(results: dict) -> list[Table]:
        tables = []
        for dataset in dict.fromkeys([*datasets_of(results), *others]):
            entry = results.get(dataset, {})
            tables.append(table(dataset, entry.get("runs", {}), entry.get("not run", {})))
        return tables
    return show


def overview(results: dict) -> list[Table]:
    """What was run, without the paper's figures."""
    has_options = any("accuracy" in run for entry in results.values() for run in entry["runs"].values())
    header = ["data", "method", "F1", "95 %", *(["accuracy"] if has_options else []), "ROUGE-L", "nodes",
              "FLOPs/query", "ratio", "FLOPs/document", "cut", "n", "F1 - PECAN"]
    rows = []
    for dataset, entry in results.items():
        runs = entry["runs"]
        pecan = runs.get("pecan")
        for run in runs.values():
            nodes = one_decimal(run["nodes"]) if run["nodes"] else "-"
            construction = quantity(run["construction_flops"]) if run["construction_flops"] else "-"
            replies = f", refused {refused(run)}" if run["refused"] else ""
            rows.append([dataset, run["label"] + replies, *score(run), *([accuracy(run)] if has_options else []),
                         one_decimal(run["rouge_l"]), nodes, quantity(run["flops"]),
                         ratio(run, pecan) if pecan else "-", construction, cut(run), str(run["n"]), difference(run)])
        not_run = entry.get("not run", {})
        for name in not_run:
            rows.append([dataset, not_run[name]["label"], *[NOT_RUN] * (len(header) - 2), *reason(not_run, name)])

    return [Table("", header, rows)]


def remarks(table: str | None, results: dict, encoder: str | None) -> list[str]:
    """The lines below a table: what its numbers are, and each run whose summaries repeated themselves."""
    lines = []
    if table == "2" and not encoder:
        lines.append("Similarity: the mean of the searching model's own embeddings (--encoder takes a sentence "
                     "encoder).")
    if table != "A3":
        lines.append("F1 as LongBench defines it, ROUGE-L as rouge_score does, 95 % bootstrap intervals; FLOPs are "
                     "counted, not timed.")

    for dataset, entry in results.items():
        for run in entry["runs"].values():
            if run["repeats"] or run["loops"]:
                lines.append(f"{run['label']} on {dataset}: {run['repeats']} repeated bullets left out, {run['loops']} "
                             "replies looped.")
    return lines


# The run of each row of Table 1. The paper calls the whole document by the name of its reader.
TABLE1_RUNS = {METHODS[name].label: name for name in TABLE_1} | {"Llama-3.1-8B": "whole"}


@for_each_dataset
def table1(dataset: str, runs: dict, not_run: dict) -> Table:
    """Methods: F1, ROUGE-L, FLOPs of a query, ratio to PECAN's."""
    header = ["method", "F1", "95 %", "ROUGE-L", "FLOPs/query", "ratio", "cut", "n", "F1 - PECAN",
              "published F1", "ROUGE-L", "FLOPs", "ratio"]
    rows = []
    for name, published in paper.TABLE1.items():
        run = runs.get(TABLE1_RUNS[name])
        figures = published.get(dataset)
        label = label_of_whole(name, dataset) if TABLE1_RUNS[name] == "whole" else name

        row = [label, *score(run), cell(run, "rouge_l", one_decimal), cell(run, "flops", quantity),
               ratio(run, runs.get("pecan")), cut(run), cell(run, "n"), difference(run)]
        if figures:
            row += [one_decimal(figures.f1), one_decimal(figures.rouge_l), f"{figures.tflops:.1f}T",
                    f"{figures.ratio:.2f}x"]
        else:
            row += [NONE] * 4
        rows.append(row + reason(not_run, TABLE1_RUNS[name]))
    return Table(f"Table 1, {dataset}", header, rows)


@partial(for_each_dataset, others=paper.OTHER_DATASETS)
def systems(dataset: str, runs: dict, not_run: dict) -> Table:
    """Whole systems of several papers, each figure of theirs with the model that made it (it is not ours)."""
    header = ["system", "F1", "95 %", "EM", "accuracy", "ROUGE-L", "FLOPs/query", "FLOPs/document", "refused", "n",
              "F1 - PECAN", "published", "by"]

    rows = []
    for row_run in runs_of("systems"):
        run = runs.get(row_run.name)
        published, model = paper.SYSTEMS.get(row_run.name, {}).get(dataset, (NONE, NONE))
        rows.append([row_run.label, *score(run), cell(run, "em", one_decimal), accuracy(run),
                     cell(run, "rouge_l", one_decimal), cell(run, "flops", quantity),
                     cell(run, "construction_flops", quantity), refused(run), cell(run, "n"), difference(run),
                     published, model, *reason(not_run, row_run.name)])
    return Table(f"Systems, {dataset}", header, rows)


def accuracy(run: dict | None) -> str:
    """Percent of the questions whose right option was named; none if they have no options."""
    if run is None:
        return NOT_RUN
    return one_decimal(run["accuracy"]) if "accuracy" in run else NONE


def refused(run: dict | None) -> str:
    """How many of the replies to a method's prompts did not have the form that was asked for."""
    if run is None:
        return NOT_RUN
    return f"{run['refused']} of {run['calls']}" if run.get("calls") else NONE


def label_of_whole(published: str, dataset: str) -> str:
    """The label of the whole document's row, with the published one if there is one."""
    if dataset not in paper.DATASETS:
        return "whole document"
    if dataset in paper.CUT:
        published = f"{published}, {paper.CUT[dataset]} % cut"
    return f"whole document (published: {published})"


@for_each_dataset
def table2(dataset: str, runs: dict, not_run: dict) -> Table:
    """One model builds the graph, another searches it: F1."""
    header = ["graph by", "search by", "F1", "95 %", "n", "F1 - first row", "published F1"]
    published = {pair: one_decimal(row[dataset]) for pair, row in paper.TABLE2.items() if dataset in row}

    # A published figure moves to the row of its run; the others get their own rows below.
    rows = []
    for run in runs.values():
        pair = name_in_paper(run["graph by"]), name_in_paper(run["search by"])
        rows.append([run["graph by"], run["search by"], *score(run), str(run["n"]), difference(run),
                     published.pop(pair, NONE)])
    for pair, figure in published.items():
        rows.append([*pair, NOT_RUN, NOT_RUN, NOT_RUN, NOT_RUN, figure])
    for name in not_run:
        label = not_run[name]["label"]
        rows.append([label, label, *[NOT_RUN] * 4, NONE, *reason(not_run, name)])
    return Table(f"Table 2, {dataset}", header, rows)


def name_in_paper(model: str) -> str:
    """The name that the paper gives a checkpoint: Llama-3.1-8B for Meta-Llama-3.1-8B-Instruct."""
    return model.removesuffix("-Instruct").removeprefix("Meta-")


@for_each_dataset
def table3(dataset: str, runs: dict, not_run: dict) -> Table:
    """Ablations: F1, ROUGE-L."""
    header = ["method", "F1", "95 %", "ROUGE-L", "nodes", "FLOPs/query", "n", "F1 - PECAN", "published F1", "ROUGE-L"]
    rows = []
    for row_run in runs_of("3"):
        run = runs.get(row_run.name)
        figures = paper.TABLE3.get(row_run.label, {}).get(dataset)
        row = [row_run.label, *score(run), cell(run, "rouge_l", one_decimal), cell(run, "nodes", one_decimal),
               cell(run, "flops", quantity), cell(run, "n"), difference(run)]
        row += [one_decimal(figures.f1), one_decimal(figures.rouge_l)] if figures else [NONE] * 2
        rows.append(row + reason(not_run, row_run.name))
    return Table(f"Table 3, {dataset}", header, rows)


def table_a3(results: dict) -> list[Table]:
    """Lengths: average, least and most tokens of a document, and how many there are."""
    rows = []
    for dataset in datasets_of(results):
        lengths = results.get(dataset, {}).get("lengths")
        row = [dataset]
        for name in ("average", "least", "most", "documents", "questions"):
            row.append(cell(lengths, name, "{:,.0f}".format))

        published = paper.TABLE_A3.get(dataset)
        row += [f"{tokens:,}" for tokens in published] if published else [NONE] * 3
        row.append(f"{paper.QUESTIONS[dataset]:,}" if dataset in paper.QUESTIONS else NONE)
        rows.append(row)

    header = ["data", "average", "min", "max", "documents", "questions",
              "published average", "min", "max", "questions"]
    return [Table("Table A3, tokens of a document", header, rows)]


@for_each_dataset
def table_a4(dataset: str, runs: dict, not_run: dict) -> Table:
    """FLOPs: construction of a document, search of a query, both for 1 to 8 queries."""
    whole, pecan = runs.get("whole"), runs.get("pecan")
    label = "whole document"
    if dataset in paper.DATASETS:
        label += " (published: Llama-3.1-8B)"
    if whole:
        label += f", {cut(whole)} documents cut"

    rows = [[label, cell(whole, "flops", quantity), cell(whole, "n")],
            ["PECAN Attention Graph Construction", cell(pecan, "construction_flops", quantity),
             cell(pecan, "documents")],
            ["PECAN Graph Search", cell(pecan, "flops", quantity), cell(pecan, "n")]]
    for queries in (1, 2, 4, 8):
        both = NOT_RUN if pecan is None else quantity(pecan["flops"] + pecan["construction_flops"] / queries)
        rows.append([f"both, {queries} queries per document", both, cell(pecan, "n")])

    # The rows are in the order of the paper's.
    for row, published in zip(rows, paper.TABLE_A4.values(), strict=True):
        row.append(f"{published[dataset]:.1f}T" if dataset in published else NONE)
    return Table(f"Table A4, {dataset}", ["FLOPs", "measured", "n", "published"], rows)


@for_each_dataset
def patience(dataset: str, runs: dict, not_run: dict) -> Table:
    """Figure 4: F1 and FLOPs for t_n from 1 to 8.

    The paper prints a picture. Its numbers for t_n = 1 are in Table 1.
    """
    header = ["stop patience", "F1", "95 %", "FLOPs/query", "nodes", "n", "F1 - t_n = 1", "published F1", "FLOPs"]
    rows = []
    for row_run in runs_of("patience"):
        run = runs.get(row_run.name)
        rows.append([row_run.label, *score(run), cell(run, "flops", quantity), cell(run, "nodes", one_decimal),
                     cell(run, "n"), difference(run), NONE, NONE, *reason(not_run, row_run.name)])

    figures = paper.TABLE1["PECAN"].get(dataset)
    if figures:
        rows[0][7:9] = [one_decimal(figures.f1), f"{figures.tflops:.1f}T"]
    return Table(f"Figure 4, {dataset}", header, rows).without_empty_rows()


@for_each_dataset
def nodes(dataset: str, runs: dict, not_run: dict) -> Table:
    """Figure 3: queries by the number of nodes read.

    The paper prints a picture. GARLIC 4.4 has the averages.
    """
    run = runs.get("pecan")
    average = f"{paper.FIXED_NODES[dataset]} (GARLIC)" if dataset in paper.FIXED_NODES else NONE
    rows = [["average", cell(run, "nodes", one_decimal), "", average]]
    if run:
        rows += histogram_rows(histogram_of(run))

    table = Table(f"Figure 3, {dataset}, queries by nodes read", ["nodes", "queries", "", "published"], rows)
    return table.without_empty_rows()


def histogram_of(run: dict) -> dict[int, int]:
    """Number of nodes -> number of queries. (JSON turned the numbers of nodes into text.)"""
    return {int(n): queries for n, queries in run["histogram"].items()}


def histogram_rows(histogram: dict[int, int]) -> list[list[str]]:
    """A row with a bar for each number of nodes; for ranges of numbers, if there are more than 20."""
    end = max(histogram) + 1
    width = -(-end // 20)                                         # of a range, rounded up
    ranges = [range(first, first + width) for first in range(0, end, width)]
    counts = [sum(histogram.get(n, 0) for n in numbers) for numbers in ranges]

    rows = []
    for numbers, count in zip(ranges, counts):
        label = str(numbers[0]) if width == 1 else f"{numbers[0]}-{numbers[-1]}"
        bar = "#" * -(-40 * count // max(counts))                # rounded up; the longest has 40 signs
        rows.append([label, str(count), bar, NONE])
    return rows


# --table -> what shows it; None is the table of a run without --table.
SHOW = {None: overview, "1": table1, "2": table2, "3": table3, "A3": table_a3, "A4": table_a4, "patience": patience,
        "nodes": nodes, "systems": systems}
