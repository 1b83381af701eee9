"""The bench's tables from the raw tensors of a run: JSON and Markdown."""
import json
from pathlib import Path

from core.files import InputError, write_file
from data import Document
from study.answers import STEPS, add_answers
from study.edges import add_edges
from study.figures import Figure, Table
from study.progress import add_progress, curve
from study.record import Chosen, Record, chosen_by, how_many, on_right_points, on_sources, read_record
from study.relevance import add_relevance
from study.retrieval import add_retrieval
from study.searches import OVER, add_searches
from study.world import add_world

TITLES = {"edges": "Edges", "relevance": "Relevance", "retrieval": "Retrieval, replayed",
          "progress": "Progress control", "sweep": "Thresholds", "answers": "Answers",
          "kinds": "By kind of question (F1)", "errors": "Where answers went wrong (share)",
          "searches": "Choosing the next node", "bullets": "Bullets and the truth",
          "truth": "Searches and the truth"}

CHOSEN = "chosen heads"
ONE_BY_ONE = "the best heads one by one"
BOTH = "z, E and r by chosen heads"
WITHOUT = [f"PECAN without {part}" for part in ("attention", "similarity", "progress control", "IP-based graph")]
WITH_CHOSEN = "PECAN, chosen heads (not in the paper)"
SUMMARY = [                       # what the first table shows: figure, table, row, column; kind_rows follow
    ("bullets that are true", "bullets", "all levels", "true"),
    ("facts kept by level 2, of those to be kept", "bullets", "level 2", "facts kept"),
    ("... by level 3", "bullets", "level 3", "facts kept"),
    ("edges: precision at 1, level 2", "edges", "the paper", "precision at 1, level 2"),
    ("... uniform edges", "edges", "uniform", "precision at 1, level 2"),
    ("... similarity", "edges", "similarity", "precision at 1, level 2"),
    ("... chosen heads", "edges", CHOSEN, "precision at 1, level 2"),
    ("... the best heads one by one", "edges", ONE_BY_ONE, "precision at 1, level 2"),
    *((f"edges: precision at 1, level {level}", "edges", "the paper", f"precision at 1, level {level}")
      for level in (3, 4)),
    ("edges: mass on the sources, level 2", "edges", "the paper", "mass, level 2"),
    ("... uniform edges", "edges", "uniform", "mass, level 2"),
    ("... chosen heads", "edges", CHOSEN, "mass, level 2"),
    ("chunks that are a heaviest source", "edges", "the paper", "coverage of chunks"),
    ("r: area over the top level", "relevance", "the paper", "area, top level"),
    ("r: area over level 2", "relevance", "the paper", "area, level 2"),
    ("... query after the nodes", "relevance", "query after the nodes, without position", "area, level 2"),
    ("... divided by that of \"N/A\"", "relevance", "divided by that of \"N/A\"", "area, level 2"),
    ("... chosen heads", "relevance", CHOSEN, "area, level 2"),
    ("... the best heads one by one", "relevance", ONE_BY_ONE, "area, level 2"),
    ("r: lift over a uniform r, level 2", "relevance", "the paper", "lift, level 2"),
    ("... chosen heads", "relevance", CHOSEN, "lift, level 2"),
    ("rank of the needed chunk, random", "retrieval", "random", "rank"),
    ("... z", "retrieval", "z", "rank"),
    ("... z, r uniform", "retrieval", "z, r uniform", "rank"),
    ("... z, r above its mean", "retrieval", "z, r above its mean", "rank"),
    ("... z, E and r by chosen heads", "retrieval", BOTH, "rank"),
    ("... z, r an oracle's", "retrieval", "z, r an oracle's", "rank"),
    ("... z + c", "retrieval", "z + c", "rank"),
    ("... c", "retrieval", "c", "rank"),
    ("... BM25 over chunks", "retrieval", "BM25 over chunks", "rank"),
    ("steps to all needed chunks, random", "retrieval", "random", "steps"),
    ("... z", "retrieval", "z", "steps"),
    ("... z + c", "retrieval", "z + c", "steps"),
    ("... z, E and r by chosen heads", "retrieval", BOTH, "steps"),
    ("p_yes: area", "progress", "p_yes", "area"),
    ("p_yes: calibration error", "progress", "p_yes", "calibration"),
    ("verdicts right, truth No", "truth", "PECAN", "verdicts right, truth No"),
    ("verdicts right, truth Yes", "truth", "PECAN", "verdicts right, truth Yes"),
    ("t_p 0.5: stops too early", "sweep", "t_p 0.5, t_n 1", "too early"),
    ("t_p 0.9: stops too early", "sweep", "t_p 0.9, t_n 1", "too early"),
    *((f"gold likelihood: {way}", "answers", way, "likelihood") for way in (
        "nothing", "random chunks", "PECAN", "BM25", "similarity", "whole document", "needed chunks")),
    *((f"F1: {way}", "answers", way, "F1") for way in (
        "needed chunks", "PECAN", WITH_CHOSEN,
        "PECAN, r above its mean (not in the paper)", *WITHOUT, "BM25", "whole document")),
    *((f"gold likelihood less PECAN's: {way.removeprefix('PECAN').strip(', ')}", "answers", way, "likelihood - PECAN's")
      for way in (*WITHOUT, "PECAN, next node at random", WITH_CHOSEN)),
    ("all needed facts were read, PECAN", "truth", "PECAN", "all read"),
    ("... chosen heads", "truth", WITH_CHOSEN, "all read"),
    ("F1 of PECAN if they were", "truth", "PECAN", "F1, all read"),
    ("F1 with chosen heads if they were", "truth", WITH_CHOSEN, "F1, all read"),
    *((f"F1 alone: {way} less {other}", "searches", way, f"over {other}")
      for way in ("z", "z, chosen heads") for other in OVER[way]),
    *((f"nodes read: {way}", "answers", way, "nodes") for way in ("PECAN", WITH_CHOSEN)),
    *((f"PECAN: {step}", "errors", "PECAN", step) for step in STEPS),
]


def kind_rows(data: dict[str, dict]) -> list[tuple]:
    """Rows of the first table, as in SUMMARY: F1 of PECAN and with chosen heads by each kind of question."""
    kinds = dict.fromkeys(kind for entry in data.values() for kind in entry["figures"]["kinds"].get("PECAN", {}))
    return [row for kind in kinds for row in ((f"F1 of PECAN, {kind}", "kinds", "PECAN", kind),
                                              ("... chosen heads", "kinds", WITH_CHOSEN, kind))]


def other_heads(records: list[Record]) -> list[tuple[Chosen, Chosen]]:
    """For each document the heads chosen on all others, for edges and for r."""
    k = how_many(*records[0].raw.e.shape[1:])
    edges = [on_sources(record) for record in records]
    relevance = [on_right_points(record) for record in records]
    return [tuple(chosen_by(parts[:n] + parts[n + 1:] or parts, k) for parts in (edges, relevance))
            for n in range(len(records))]


def tables_of(records: list[Record], heads: list[tuple[Chosen, Chosen]]) -> dict[str, Table]:
    """Every table of a data set; `heads` are those for E and r of each document."""
    tables = {name: Table(title) for name, title in TITLES.items()}
    for record, (edge_heads, r_heads) in zip(records, heads, strict=True):
        add_edges(tables["edges"], record, edge_heads)
        add_relevance(tables["relevance"], record, r_heads)
        add_retrieval(tables["retrieval"], record, edge_heads, r_heads)
        add_progress(tables["progress"], tables["sweep"], record)
        add_answers(tables["answers"], tables["kinds"], tables["errors"], record)
        add_searches(tables["searches"], record)
        add_world(tables["bullets"], tables["truth"], record)
    return tables


def report(folder: Path, data: dict[str, list[Document]], about: dict) -> dict:
    """Write report.json and report.md of what is in `folder`, and return what report.json holds.

    Documents that were not run to their heads are left out. Several data sets have a further entry, "together". Heads
    are chosen on the other documents of all data sets; with a single document they are chosen on itself, and their
    rows mean nothing.
    """
    records = {}
    for name, documents in data.items():
        found = [read_record(folder / name / document.id, document) for document in documents]
        records[name] = [record for record in found if record is not None and len(record.raw.pairs)]
    together = sum(records.values(), [])
    if not together:
        raise InputError(f"{folder}: holds no document that was run; leave --report out")

    heads = iter(other_heads(together))
    tables_of_all = {key: Table(title) for key, title in TITLES.items()}
    content = {**about, "data": {}}
    for name, of_data in records.items():
        if of_data:
            tables = tables_of(of_data, [next(heads) for _ in of_data])
            content["data"][name] = entry_of(of_data, tables)
            for key, table in tables.items():
                tables_of_all[key].add_all(table)
    if len(content["data"]) > 1:
        content["data"]["together"] = entry_of(together, tables_of_all)

    write_file(folder / "report.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
    write_file(folder / "report.md", markdown(content))
    return content


def entry_of(records: list[Record], tables: dict[str, Table]) -> dict:
    """What report.json holds of a data set."""
    figures = {key: table.figures() for key, table in tables.items()}
    return {"documents": len(records), "questions": sum(len(record.asked) for record in records),
            "levels": sum(record.graph.nodes[-1].level for record in records) / len(records),
            "nodes": sum(len(record.graph.nodes) for record in records) / len(records),
            "repeats": sum(record.graph.repeats for record in records),
            "loops": sum(record.graph.loops for record in records),
            "figures": {key: {row: {column: value._asdict() for column, value in columns.items()}
                              for row, columns in rows.items()} for key, rows in figures.items()},
            "curve": list(curve(records))}


def markdown(found: dict) -> str:
    """The report: for each data set, a table for each kind of figure."""
    lines = [f"# The bench: {found['model']}, similarity by {found['encoder']}", ""]
    lines += ["## Summary", "", *summary_lines(found), ""]
    for name, entry in found["data"].items():
        lines += [f"{name}: {entry['documents']} documents, {entry['questions']} questions; {entry['nodes']:.0f} nodes "
                  f"in {entry['levels']:.1f} levels a document; {entry['repeats']} bullets were left out because they "
                  f"repeat another one, {entry['loops']} replies were ended because they go round in a loop. "
                  "95 % bootstrap intervals over documents.", ""]
        for key, rows in entry["figures"].items():
            if rows:
                lines += [f"## {name}: {TITLES[key]}", "", *table_lines(rows), ""]
    return "\n".join(lines)


def summary_lines(found: dict) -> list[str]:
    """A Markdown table of SUMMARY and kind_rows, a column for each data set.

    The first row says how many documents and questions there are. A row whose n is not that of the questions has its n;
    rows that begin with dots have the n of the row above them.
    """
    data = found["data"]
    lines = ["| | " + " | ".join(data) + " |", "|---" * (len(data) + 1) + "|",
             "| documents, questions | " + " | ".join(f"{entry['documents']}, {entry['questions']}"
                                                      for entry in data.values()) + " |"]
    for label, key, row, column in SUMMARY + kind_rows(data):
        figures = [entry["figures"][key].get(row, {}).get(column) for entry in data.values()]
        n = [figure["n"] for figure in figures if figure]
        if n and n != [entry["questions"] for entry in data.values()] and not label.startswith("..."):
            label += f"; n {', '.join(map(str, n))}"
        if n:
            lines.append(f"| {label} | {' | '.join(map(cell, figures))} |")
    return lines


def table_lines(rows: dict[str, dict]) -> list[str]:
    """A Markdown table. The first row is n, unless it differs from row to row: then each cell has its own."""
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    sizes = {column: {row[column]["n"] for row in rows.values() if column in row} for column in columns}
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|",
             "| n | " + " | ".join(str(*of) if len(of) == 1 else "" for of in sizes.values()) + " |"]
    for name, row in rows.items():
        cells = [cell(row.get(column), len(sizes[column]) > 1) for column in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def cell(figure: dict | None, with_n: bool = False) -> str:
    """A figure and its interval: .62 [.58, .67]."""
    if figure is None:
        return ""
    value = Figure(**figure)
    text = f"{number(value.value)} [{number(value.low)}, {number(value.high)}]"
    return f"{text}, n {value.n}" if with_n else text


def number(x: float) -> str:
    """Three digits at most: .62, 7.3, 62, 1,234."""
    if abs(x) < 1:
        return f"{x:.2f}".replace("0.", ".", 1)
    return f"{x:.1f}" if abs(x) < 20 else f"{x:,.0f}"
