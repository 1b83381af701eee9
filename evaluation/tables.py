"""The tables and figures of the paper: measured results next to published ones.

Results are data set -> {"paper": the name that its figures have in the paper, "runs": name of a run -> its summary,
"needs --top": name -> label of rows that lack their X}; for Table A3 also "lengths". A run that failed is missing.
"not run": not measured. "none": no such number exists. "-": does not apply to this run. Scores are percentages with
95 % bootstrap intervals. FLOPs are counted; K M G T are powers of 1000.
"""
import re
from collections import Counter
from functools import partial

from evaluation import paper
from evaluation.methods import TABLES

NOT_RUN = "not run"
NEEDS_TOP = "needs --top"
NONE = "none"
LONGER = "{longer} of {encoded} texts are longer than the encoder reads; it never saw their ends"

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
    found = run.get("difference")                                 # None: the first row, or the first row was not run
    return "{:+.1f} ({:+.1f} to {:+.1f})".format(found["f1"], *found["interval"]) if found else "-"


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
    "FLOPs/document": lambda run: quantity(run["construction_flops"]) if run["graphs"] else "-",
    "cut": lambda run: f"{run['cut_documents']}/{run['documents']}",
    "refused": lambda run: ("{refused} of {calls}, {dropped} dropped, {cut} cut".format(**run["counts"])
                            if run["counts"].get("calls") else NONE),
    "documents": lambda run: str(run["documents"]),
    "n": lambda run: str(run["n"]),
    "F1 - PECAN": difference,
    "F1 - first row": difference,
}
# Short heads, so that the table without --table fits 80 columns.
COLUMNS |= {"FLOPs": COLUMNS["FLOPs/query"], "graph": COLUMNS["FLOPs/document"],
            "diff": lambda run: difference(run).split(" ")[0]}


def cells(run: dict | None, columns: list[str], missing: str = NOT_RUN) -> list[str]:
    """The cells of a run's summary (None: it was not run)."""
    return [missing if run is None else COLUMNS[column](run) for column in columns]


# --- printed form ---------------------------------------------------------------------------------------------------

def as_text(title: str, header: list[str], rows: list[list[str]]) -> str:
    """A table: its title, then the columns. Words in the first two columns are set left; the rest is set right."""
    columns = []
    for n, column in enumerate(zip(header, *rows)):
        words = n < 2 and not any(cell[:1].isdigit() for cell in column) or any("#" in cell for cell in column)
        width = max(map(len, column))
        columns.append([f"{cell:{'<' if words else '>'}{width}}" for cell in column])

    lines = ["  ".join(line) for line in zip(*columns)]
    return "\n".join([title, *lines] if title else lines)


# --- the tables -----------------------------------------------------------------------------------------------------

def tables_of(table: str | None, results: dict) -> list[str]:
    """The tables of --table (None: a run without it). Data sets of the paper that were not run come last."""
    if table is None:
        return [overview(dataset, entry) for dataset, entry in results.items() if entry["runs"]]
    others = {"patience": (), "systems": (*paper.DATASETS, *paper.OTHER_DATASETS)}         # Figure 4 has no numbers
    missing = dict.fromkeys(others.get(table, paper.DATASETS))
    for entry in results.values():
        missing.pop(entry["paper"], None)
    results = results | {dataset: {"paper": dataset, "runs": {}, NEEDS_TOP: {}} for dataset in missing}
    if table == "A3":
        return [table_a3(results)]
    show = {"A4": table_a4, "nodes": nodes}.get(table, partial(compared, table))
    return [show(dataset, entry["paper"], entry) for dataset, entry in results.items()]


def remarks(results: dict, question_again: bool | None) -> list[str]:
    """Sentences about some rows, for a reader of the tables."""
    found = []
    for name, entry in results.items():
        for run in entry["runs"].values():
            row = f"{run['label']} on {name}: "
            counts = run["counts"]

            if counts.get("calls"):
                found.append(f"{row}replies refused, parts of others dropped, replies at their limit: "
                             f"{COLUMNS['refused'](run)}")
            if counts.get("thinking"):
                found.append(f"{row}{counts['thinking']} replies end inside their thought and count as empty answers")
            if counts.get("longer"):
                found.append(row + LONGER.format(**counts))
            if 2 * run["first_word_again"] > run["n"] and not question_again:
                found.append(f"{row}{run['first_word_again']} of {run['n']} answers are only Yes or No, and no gold "
                             "answer is. The model repeats the first turn's word, which --question-again prevents.")
    return found


def overview(dataset: str, entry: dict) -> str:
    """The runs, without the paper's figures."""
    runs = entry["runs"]
    columns = ["F1", "95 %", "ROUGE-L", "nodes", "FLOPs", "graph", "cut", "n", "diff"]
    if any("accuracy" in run for run in runs.values()):
        columns.insert(2, "accuracy")
    rows = [[run["label"], *cells(run, columns)] for run in runs.values()]
    rows += [[label, *cells(None, columns, NEEDS_TOP)] for label in entry[NEEDS_TOP].values()]
    return as_text(dataset, ["method", *columns], rows)


# --- one table for each data set ------------------------------------------------------------------------------------

# --table -> title, head of the labels, measured columns, published columns, label -> data set -> published figures.
# Figure 4 is a picture; its numbers for t_n = 1 are in Table 1. Figures of systems name their metric, data and model,
# because these differ.
COMPARED = {
    "1": ("Table 1", "method", "F1, 95 %, ROUGE-L, FLOPs/query, ratio, cut, n, F1 - PECAN",
          "published F1, ROUGE-L, FLOPs, ratio", paper.TABLE1),
    "2": ("Table 2", "graph by + search by", "F1, 95 %, n, F1 - first row", "published F1", paper.TABLE2),
    "3": ("Table 3", "method", "F1, 95 %, ROUGE-L, nodes, FLOPs/query, n, F1 - PECAN", "published F1, ROUGE-L",
          paper.TABLE3),
    "patience": ("Figure 4", "stop patience", "F1, 95 %, FLOPs/query, nodes, n, F1 - first row",
                 "published F1, FLOPs", {"t_n = 1": paper.TABLE1["PECAN"]}),
    "systems": ("Systems", "system", "F1, 95 %, EM, accuracy, ROUGE-L, FLOPs/query, FLOPs/document, refused, n, "
                "F1 - PECAN", "published, on, by", paper.SYSTEMS),
}
# The cell of each published column, from a row's figures.
PUBLISHED = {"published F1": "{0.f1:.1f}", "ROUGE-L": "{0.rouge_l:.1f}", "FLOPs": "{0.tflops:.1f}T",
             "ratio": "{0.ratio:.2f}x", "published": "{0[0]}", "on": "{0[1]}", "by": "{0[2]}"}


def compared(table: str, title: str, dataset: str, entry: dict) -> str:
    """A table of COMPARED: a row for each run that belongs there, next to the paper's figures.

    Rows that only the paper has come last: in Table 2 the pairs of models that were not run.
    """
    runs = entry["runs"]
    name_of_table, head, *columns, figures = COMPARED[table]
    measured, published = (names.split(", ") for names in columns)
    fixed = TABLES[table][0]
    labels = {} if callable(fixed) else {row.name: row.label for row in fixed}
    labels |= {name: run["label"] for name, run in runs.items()}
    known = {name: re.sub("Meta-|-Instruct", "", label) for name, label in labels.items()}
    labels |= {label: label for label in figures if dataset in figures[label] and label not in known.values()}

    rows = []
    for name, label in labels.items():
        found = figures.get(known.get(name, name), {}).get(dataset)
        missing = NEEDS_TOP if name in entry[NEEDS_TOP] else NOT_RUN
        rows.append([label_of_whole(dataset) if name == "whole" else label, *cells(runs.get(name), measured, missing),
                     *(PUBLISHED[column].format(found) if found else NONE for column in published)])
    return as_text(f"{name_of_table}, {title}", [head, *measured, *published], rows)


def label_of_whole(dataset: str) -> str:
    """The label of the whole document's row, with the paper's label if the paper has the data set."""
    cut = f", {paper.CUT[dataset]} % cut" if dataset in paper.CUT else ""
    return "whole document" + (f" (published: Llama-3.1-8B{cut})" if dataset in paper.DATASETS else "")


def table_a3(results: dict) -> str:
    """Lengths: average, least and most tokens of a document, and the numbers of documents and questions."""
    rows = []
    for dataset, entry in results.items():
        lengths = entry["lengths"].values() if "lengths" in entry else [None] * 5
        figures = [*paper.TABLE_A3.get(entry["paper"], [None] * 3), paper.QUESTIONS.get(entry["paper"])]
        rows.append([dataset, *(NOT_RUN if n is None else f"{n:,.0f}" for n in lengths),
                     *(NONE if figure is None else f"{figure:,}" for figure in figures)])
    return as_text("Table A3, tokens of a document", ["data", "average", "min", "max", "documents", "questions",
                                                    "published average", "min", "max", "questions"], rows)


def table_a4(title: str, dataset: str, entry: dict) -> str:
    """FLOPs: the whole document, construction, search, and both stages per query for 1 to 8 queries a document."""
    whole = entry["runs"].get("whole")
    pecan = entry["runs"].get("pecan")
    rows = [[label_of_whole(dataset), *cells(whole, ["FLOPs/query", "n"])],
            ["PECAN Attention Graph Construction", *cells(pecan, ["FLOPs/document", "documents"])],
            ["PECAN Graph Search", *cells(pecan, ["FLOPs/query", "n"])]]
    for queries in (1, 2, 4, 8):
        both = pecan and pecan | {"flops": pecan["flops"] + pecan["construction_flops"] / queries}
        rows.append([f"both, {queries} queries per document", *cells(both, ["FLOPs/query", "n"])])

    # The rows are in the paper's order.
    for row, figures in zip(rows, paper.TABLE_A4.values(), strict=True):
        row.append(f"{figures[dataset]:.1f}T" if dataset in figures else NONE)
    return as_text(f"Table A4, {title}", ["FLOPs", "measured", "n", "published"], rows)


def nodes(title: str, dataset: str, entry: dict) -> str:
    """Figure 3: queries by the number of nodes read, with a bar for each range of five; the longest has 40 signs.

    The paper prints a picture. GARLIC 4.4 has the averages.
    """
    run = entry["runs"].get("pecan")
    average = f"{paper.FIXED_NODES[dataset]} (GARLIC)" if dataset in paper.FIXED_NODES else NONE
    rows = [["average", *cells(run, ["nodes"]), "", average]]
    counts = Counter(n // 5 for n in Counter(run["histogram"]).elements()) if run else Counter()
    for n in range(max(counts, default=-1) + 1):
        bar = "#" * -(-40 * counts[n] // max(counts.values()))           # rounded up: one query shows
        rows.append([f"{5 * n}-{5 * n + 4}", str(counts[n]), bar, NONE])
    return as_text(f"Figure 3, {title}, queries by nodes read", ["nodes", "queries", "", "published"], rows)
