"""Every table, and the estimate of a run's cost, computed a second time: each cell from raw rows or from the text."""
import json
import random
import re
import shutil

import numpy as np
import pytest
import tokenizers
from test_eval import ROOT, run

import eval as command_line
from core.settings import resolve
from data import EMBEDDED
from evaluation import cost, datasets, paper
from evaluation.metrics import interval
from evaluation.tables import quantity
from llama import flops_of, length_of
from model.checkpoint import read_config
from pecan import answer_turn, node_line, question_prompt, room_for_summary, summary_prompt

# --- raw rows -------------------------------------------------------------------------------------------------------

# A prediction; its F1, ROUGE-L and exact match against Mara Lee; and whether it names option B.
WORKED = (("Mara Lee", 1, 1, 1, 0), ("Lee Mara", 1, .5, 0, 0), ("(B) old Mara", .4, .4, 0, 1), ("Tom", 0, 0, 0, 0))


def raw(data: str, name: str) -> list[dict]:
    """Rows of a run: three questions about two documents. Only one data set has options.

    The whole document has no nodes and prepares nothing, and GARLIC asks for no form."""
    rng = random.Random(f"{name} on {data}")
    some, asked = name != "whole", name != "garlic"
    documents = {d: {"hash": d, "construction_flops": some * rng.randrange(10**9, 10**13),
                     "construction_calls": asked * rng.randrange(1, 9), "construction_refused": asked} for d in "ab"}
    rows = []
    for n, document in enumerate("aab"):
        prediction, *worked = rng.choice(WORKED)
        rows.append({"id": str(n), "prediction": prediction, "answers": ["Mara Lee"], "gold": 1, "worked": worked,
                     "nodes": some * rng.randrange(1, 40), "tokens": 1, "flops": rng.randrange(10**8, 10**12),
                     "cut": rng.random() < .5, "calls": asked * rng.randrange(9), "refused": 0,
                     **({"options": ["Ann", "Bob"]} if data == "mine" else {})} | documents[document])
    return rows


def columns(data: str, name: str) -> dict[str, str]:
    """The cell of each column for a run."""
    rows, first = raw(data, name), raw(data, "pecan")
    documents = rows[1:]                                    # one row of each
    f1, rouge_l, em, right = 100 * np.array([row["worked"] for row in rows]).T
    less = f1 - 100 * np.array([row["worked"][0] for row in first])
    difference = "-" if name == "pecan" else "{:+.1f} ({:+.1f} to {:+.1f})".format(less.mean(), *interval(less))

    def total(what):
        return sum(row[what] for row in rows) + sum(row[f"construction_{what}"] for row in documents)

    flops = sum(row["flops"] for row in rows) / 3
    built = sum(row["construction_flops"] for row in documents) / 2
    return {"F1": f"{f1.mean():.1f}", "95 %": "{:.1f}-{:.1f}".format(*interval(f1)), "ROUGE-L": f"{rouge_l.mean():.1f}",
            "EM": f"{em.mean():.1f}", "accuracy": f"{right.mean():.1f}" if data == "mine" else "none", "n": "3",
            "FLOPs/query": quantity(flops),
            "ratio": f"{3 * flops / sum(row['flops'] for row in first):.2f}x",
            "nodes": f"{sum(row['nodes'] for row in rows) / 3:.1f}" if name != "whole" else "-",
            "FLOPs/document": quantity(built) if name != "whole" else "-",
            "cut": f"{len({row['hash'] for row in rows if row['cut']})}/2",
            "refused": f"{total('refused')} of {total('calls')}" if name != "garlic" else "none",
            "F1 - PECAN": difference, "F1 - first row": difference, "diff": difference.split(" ")[0],
            "FLOPs": quantity(flops), "graph": quantity(built) if name != "whole" else "-"}


class Recorded:
    """Replaces eval.py's Runner: returns the rows of `raw`."""

    def __init__(self, *_):
        pass

    def do(self, run):
        return raw(run.dataset.name, run.row.name), {}, []


@pytest.fixture
def printed(tmp_path, monkeypatch):
    """A function that runs eval.py over two data sets, Qasper and mine, and returns {title: rows of cells}."""
    monkeypatch.setattr(command_line, "Runner", Recorded)
    monkeypatch.setattr(datasets, "TAKEN", ())              # the file may have the paper's name
    paths = [tmp_path / f"{name}.jsonl" for name in ("Qasper", "mine")]
    for path, words in zip(paths, (3, 5)):
        rows = [{"passages": ["Tom is here."] * words * n, "questions": [{"question": "Who?", "answers": ["x"]}] * n}
                for n in (2, 1)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def tables(*arguments):
        done = run(*arguments, "--dataset", *paths, "--output", tmp_path / "r")
        assert done.returncode == 0, done.stderr
        table = "-".join(["table", *arguments[1:2]])
        text = (tmp_path / "r" / f"{table}.txt").read_text()
        assert done.stdout.startswith(text)
        found = {}
        for block in text.split("\n\n"):
            lines = [re.split("  +", line.strip()) for line in block.splitlines()]
            found[lines.pop(0)[0]] = lines
        return found
    return tables


# For each table its measured columns, then its rows' names and labels.
TOP = ["bm25 BM25", "sbert SBERT", "dragon Dragon", "raptor-ct RAPTOR-CT"]
TOP_5, TOP_X = ([row.replace(" ", f"{end} ", 1) + f" Top-{x}" for row in TOP] for end, x in (("", 5), ("-x", "X")))
TABLES = {
    None: ("F1|95 %|accuracy|ROUGE-L|nodes|FLOPs|graph|cut|n|diff",
           ["pecan PECAN", "bm25 BM25 Top-5", "whole whole document"]),
    "1": ("F1|95 %|ROUGE-L|FLOPs/query|ratio|cut|n|F1 - PECAN",
          [*TOP_5[:3], "memwalker MeMWalker", "raptor-tt RAPTOR-TT", TOP_5[3], "longllmlingua LongLLMLingua", *TOP_X,
           "whole whole document", "pecan PECAN", "garlic GARLIC"]),
    "2": ("F1|95 %|n|F1 - first row",
          ["pecan tiny + tiny", "pecan-small-small small + small", "pecan-tiny-small tiny + small"]),
    "3": ("F1|95 %|ROUGE-L|nodes|FLOPs/query|n|F1 - PECAN",
          ["pecan PECAN", "pecan-without-attention w/o Attention-Guided Retrieval",
           "pecan-without-progress w/o Dynamic Progress Control", "pecan-without-graph w/o IP-based Graph",
           "pecan-without-similarity w/o Embedding Similarity"]),
    "patience": ("F1|95 %|FLOPs/query|nodes|n|F1 - first row",
                 ["pecan t_n = 1", *(f"pecan-patience-{n} t_n = {n}" for n in range(2, 9))]),
    "systems": ("F1|95 %|EM|accuracy|ROUGE-L|FLOPs/query|FLOPs/document|refused|n|F1 - PECAN",
                ["pecan PECAN", "garlic GARLIC", "graphreader GraphReader", "mkrag MKRAG (reconstruction)",
                 "jerr JERR (reconstruction)"])}


def published(table, name: str, label: str) -> list[str]:
    """The cells of the paper's figures on Qasper. Table 2 has other models; Figure 4 is a picture, but for t_n = 1."""
    if table == "systems":
        return ["F1 49.7", "official file", "Llama-3.1-8B"] if name in ("pecan", "garlic") else ["none"] * 3
    if table in ("1", "3"):
        f1, rouge_l, tflops, ratio = {"1": paper.TABLE1, "3": paper.TABLE3}[table][label]["Qasper"]
        return [f"{f1:.1f}", f"{rouge_l:.1f}", *([f"{tflops:.1f}T", f"{ratio:.2f}x"] if table == "1" else [])]
    return {"2": ["none"], "patience": ["49.7", "66.9T"] if name == "pecan" else ["none"] * 2}[table]


@pytest.mark.parametrize("table", TABLES)
def test_a_table_from_raw_rows(printed, tmp_path, table):
    """Each row shows its label, the figures of its raw rows, and the paper's figures."""
    titles, names = TABLES[table]
    titles = titles.split("|")
    small = shutil.copytree(ROOT / "tiny", tmp_path / "small")          # a second checkpoint, for Table 2
    found = printed(*(["--table", table] if table else []), *(["--searcher", small] if table == "2" else []))
    names = [row.split(" ", 1) for row in names]
    wanted = {data: [[label, *(columns(data, name)[title] for title in titles)] for name, label in names]
              for data in ("Qasper", "mine")}
    if table is None:
        for data, rows in wanted.items():                   # a column without a number in any row is left out
            rows = [["method", *titles], *rows]
            assert found[data] == [[cell for cell, *column in zip(row, *rows[1:]) if set(column) != {"none"}]
                                   for row in rows]
        return

    word = {"patience": "Figure 4", "systems": "Systems"}.get(table, f"Table {table}")
    for data, rows in wanted.items():
        (_, *header), *lines = found[f"{word}, {data}"]
        size = len(titles)
        assert header[:size] == titles and header[size].startswith("published")
        for (label, *cells), row, name in zip(lines, rows, names):
            assert [label.removesuffix(" (published: Llama-3.1-8B)"), *cells[:size]] == row
            assert set(cells[size:]) == {"none"} if data == "mine" else cells[size:] == published(table, *name)
        assert all(set(cells[:size]) == {"not run"} for _, *cells in lines[len(rows):])


def test_costs_lengths_and_nodes_from_raw_rows(printed):
    """Raw rows give Tables A4 and A3 and Figure 3."""
    rows = raw("mine", "pecan")
    flops, built, whole = (columns("mine", name)[title] for name, title in (
        ("pecan", "FLOPs"), ("pecan", "graph"), ("whole", "FLOPs")))
    found = printed("--table", "A4")
    assert "whole document (published: Llama-3.1-8B, 22.3 % cut)" == found["Table A4, NarrativeQA"][1][0]
    search = sum(row["flops"] for row in rows) / 3
    construction = sum(row["construction_flops"] for row in rows[1:]) / 2
    assert [line[1:] for line in found["Table A4, mine"][1:]] == [
        [whole, "3", "none"], [built, "2", "none"], [flops, "3", "none"],
        *([quantity(search + construction / queries), "3", "none"] for queries in (1, 2, 4, 8))]
    assert [line[-1] for line in found["Table A4, Qasper"][1:]] == [
        "92.5T", "136.6T", "66.9T", "203.5T", "135.2T", "101.1T", "84.0T"]

    encode = tokenizers.Tokenizer.from_file(str(ROOT / "tiny" / "tokenizer.json")).encode
    length = len(encode("Tom is here.", add_special_tokens=False).ids)
    _, *lines = printed("--table", "A3")["Table A3, tokens of a document"]
    for (_, *cells), lengths, figures in zip(lines, ((4.5, 3, 6), (7.5, 5, 10)),
                                             ("4,866 918 29,408 1,451", "none " * 4)):
        assert cells == [*(f"{n * length:,.0f}" for n in lengths), "2", "3", *figures.split()]

    found = printed("--table", "nodes")
    assert found["Figure 3, Qasper, queries by nodes read"][1][-1] == "36 (GARLIC)"
    _, average, *bars = found["Figure 3, mine, queries by nodes read"]
    assert average == ["average", columns("mine", "pecan")["nodes"], "none"]
    nodes = [row["nodes"] for row in rows]
    assert [bar[:2] for bar in bars] == [[f"{n}-{n + 4}", str(sum(n <= node < n + 5 for node in nodes))]
                                         for n in range(0, max(nodes) + 1, 5)]


def test_predictions_are_scored_again(tmp_path):
    """Files are scored without a model. U+2028 ends no line."""
    paths = [tmp_path / f"{name}.jsonl" for name in "yx"]
    for path in paths:
        path.write_text("".join(json.dumps(row | {"more": "\u2028"}, ensure_ascii=False) + "\n"
                                for row in raw("mine", path.stem)))
    header, *lines = (re.split("  +", line) for line in run("--score", *paths).stdout.splitlines())
    assert header == ["predictions", "F1", "95 %", "ROUGE-L", "EM", "accuracy", "n"]
    assert lines == [[str(path), *(columns("mine", path.stem)[title] for title in header[1:])] for path in paths]


# --- the dry run ----------------------------------------------------------------------------------------------------

def searched(config, prompt: int, checks: int, close: int, seen: int, tokens: int) -> int:
    """FLOPs of a search: its prompt, whose tokens see half of it on average; checks of `close` tokens; its answer."""
    return (flops_of(config, prompt, prompt // 2) + checks * flops_of(config, close, seen, 1)
            + sum(flops_of(config, 1, prompt + n, 1) for n in range(tokens)))


def levels(lengths: list[int], room: int, limit: int, node: int):
    """The groups of each level, each as (tokens of its nodes, tokens of its summary: half, at most `limit`)."""
    groups = []
    while len(groups) != 1:
        groups = [[]]
        for length in lengths:
            if sum(groups[-1]) + length > room:
                groups.append([])
            groups[-1].append(length)
        groups = [(sum(group), min(limit, sum(group) // 2)) for group in groups]
        yield groups
        lengths = [part for _, n in groups for part in [node] * (n // node) + [n % node] if part]


@pytest.mark.parametrize("name, options, nodes, changes", [
    ("HotpotQA", [], 17, {"answer_tokens": 32}), ("mine", ["--dtype", "float16", "--batch", 2], 30, {"batch": 2}),
    ("fixed", ["--nodes", 4], 4, {"fixed_nodes": 4})], ids=["HotpotQA", "mine", "fixed"])
def test_the_dry_run_estimates_the_cost(tiny, tmp_path, monkeypatch, name, options, nodes, changes):
    """The estimate follows from the text of a document of several levels. (Each passage is a chunk.)

    A search reads GARLIC's 17 nodes on HotpotQA, 30 on other data, as many as the window holds, or --nodes, without
    checks. The whole document has its own window. Nothing is loaded or written."""
    monkeypatch.setattr(datasets, "TAKEN", ())
    row = json.loads(EMBEDDED.read_text().splitlines()[1])
    question, = row["questions"] = row["questions"][:1]
    data = tmp_path / f"{name}.jsonl"
    data.write_text(json.dumps(row))
    done = run("--dataset", data, *options, "--chunk", 60, "--dry-run", "--json", "--output", tmp_path / "r")
    assert not (tmp_path / "r").exists()

    config, t = tiny.config, tiny.tokenizer
    s = resolve(tiny.folder, config.max_length, None, {"chunk": 60} | changes)
    width = 2 if "float16" in options else 4
    lengths = [length_of(node_line(t, None, text)) for text in row["passages"]]
    limit, room = room_for_summary(t, s)
    instruction = length_of(summary_prompt(t, []))
    by_level = list(levels(lengths, room, limit, 60))
    groups = sum(by_level, [])

    opening, turn = length_of(question_prompt(t, question["question"])), length_of(answer_turn(t, 0))
    read = min(60 * nodes, sum(lengths), s.window - opening - turn - s.answer_tokens)
    checks = 0 if name == "fixed" else -(-read // 60)
    prompt, whole = opening + read + turn, min(opening + sum(lengths) + turn, 512 - s.answer_tokens)
    search = searched(config, prompt, checks, len(t.frame.close), opening + read, s.answer_tokens)
    wanted = {
        "documents": 1, "questions": 1, "tokens": sum(lengths), "windows": len(groups), "batch": s.batch,
        "calls": len(groups) + checks + 1, "search": search, "whole": cost.generation(config, whole, s.answer_tokens),
        "construction": sum(cost.generation(config, instruction + tokens, summary) for tokens, summary in groups),
        "of a search": cost.bytes_of_pass(config, width, min(read, 512), s.window, prompt),
        "of the whole": cost.bytes_of_pass(config, width, whole, whole + s.answer_tokens)}
    assert len(by_level) > 2 and wanted.items() <= json.loads(done.stdout)[name].items()


def test_table_a4_at_the_papers_lengths():
    """The dry run computes Table A4 for the 8B shape: chunks of 300 tokens, nodes of 60, prompts of 150, answers of 10,
    and GARLIC's numbers of nodes; and again with the logits of every token that is read."""
    folder = ROOT / "tests" / "llama-3.1-8b"
    config = read_config(folder)
    found = json.loads(run("--table", "A4", "--dry-run", "--json", "--model", folder).stdout)
    for (data, (tokens, *_)), nodes in zip(paper.TABLE_A3.items(), (48, 36, 17, 30), strict=True):
        groups = sum(levels([300] * (tokens // 300) + [tokens % 300], 8192 - 2048 - 150, 2048, 60), [])
        whole, prompt = 150 + tokens, 150 + 60 * nodes
        flops = [cost.generation(config, whole, 10),
                 sum(cost.generation(config, 150 + n, summary) for n, summary in groups),
                 searched(config, prompt, nodes, 5, prompt, 10)]
        read = [whole, sum(150 + n for n, _ in groups), prompt]
        assert [(row["flops"], row["with all logits"]) for row in found[data].values()] == [
            (some, some + 2 * n * 4096 * 128256) for some, n in zip(flops, read)]
