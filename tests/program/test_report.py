"""Every table, and the estimate of a run's cost: labels and cells of the right runs, next to the paper's figures."""
import json
import random
import re
import shutil
from dataclasses import replace

import pytest
from runs import ROOT, run, write_lines

import eval
import llama
from core.settings import resolve
from data import EMBEDDED
from evaluation import cost, datasets, metrics
from evaluation.runner import Runner
from evaluation.tables import cells, quantity
from llama import flops_of, length_of
from pecan import limit_and_room, node_line, question_prompt, room_for_nodes, summary_prompt

# --- raw rows -------------------------------------------------------------------------------------------------------

def raw(data: str, name: str) -> list[dict]:
    """Rows of a run: three questions about two documents, with random numbers. Only one data set has options.

    The whole document has no nodes and prepares nothing, and GARLIC asks for no form."""
    rng = random.Random(f"{name} on {data}")
    some, asked = name != "whole", name != "garlic"
    built = {d: some * rng.randrange(10**9, 10**13) for d in "ab"}
    return [{"id": str(n), "hash": d, "prediction": rng.choice(["Mara Lee", "Lee Mara", "(B) old Mara", "Tom"]),
             "answers": ["Mara Lee"], "nodes": some * rng.randrange(1, 40), "tokens": 1, "cut": rng.random() < .5,
             "flops": rng.randrange(10**8, 10**12), "construction_flops": built[d],
             "graph": "g" if some else None,
             "counts": {"calls": rng.randrange(9), "refused": 0, "dropped": 2, "cut": 0} if asked else {},
             "construction_counts": {"calls": 5, "refused": 1, "dropped": 0, "cut": 1} if asked else {},
             **({"options": ["Ann", "Bob"], "gold": 1} if data == "mine" else {})} for n, d in enumerate("aab")]


def wanted_cells(data: str, name: str, heads: list[str]) -> list[str]:
    """The cells of a run under these heads. (test_results.py proves the summary and its cells.)"""
    rows, first = raw(data, name), raw(data, "pecan")
    difference = None if name == "pecan" else metrics.difference(rows, first)
    ratio = sum(row["flops"] for row in rows) / sum(row["flops"] for row in first)
    return cells(metrics.summary(rows) | {"difference": difference, "ratio": ratio}, heads)


@pytest.fixture
def printed(tmp_path, monkeypatch):
    """A function that runs eval.py over two data sets, Qasper and mine, and returns {title: rows of cells}."""
    monkeypatch.setattr(Runner, "do", lambda self, run: (raw(run.dataset.name, run.row.name), {}, []))
    monkeypatch.setattr(datasets, "TAKEN", ())              # the file may have the paper's name
    paths = [tmp_path / "Qasper.jsonl", tmp_path / "mine.jsonl"]
    for path, words in zip(paths, (3, 5)):
        write_lines(path, [{"passages": ["Tom is here."] * words * n,
                            "questions": [{"question": "Who?", "answers": ["x"]}] * n} for n in (2, 1)])

    def tables_printed(*arguments):
        done = run(*arguments, "--dataset", *paths, "--output", tmp_path / "r")
        text = (tmp_path / "r" / f"{'-'.join(['table', *arguments[1:2]])}.txt").read_text()
        assert done.stdout.startswith(text)
        blocks = [[re.split("  +", line.strip()) for line in block.splitlines()] for block in text.split("\n\n")]
        return {title: lines for (title,), *lines in blocks}
    return tables_printed


# For each table: measured columns, published columns, and its rows: name, label, and for some the paper's figures on
# Qasper. (test_paper.py proves all figures. Table 2 has other models; Figure 4 is a picture, but for t_n = 1.)
TABLES = {
    "1": ("F1|95 %|ROUGE-L|FLOPs/query|ratio|cut|n|F1 - PECAN", "published F1|ROUGE-L|FLOPs|ratio", """
        bm25           BM25 Top-5
        sbert          SBERT Top-5      44.4|42.4|26.0T|0.39x
        dragon         Dragon Top-5
        memwalker      MeMWalker
        raptor-tt      RAPTOR-TT
        raptor-ct      RAPTOR-CT Top-5
        longllmlingua  LongLLMLingua
        bm25-x         BM25 Top-X
        sbert-x        SBERT Top-X
        dragon-x       Dragon Top-X
        raptor-ct-x    RAPTOR-CT Top-X
        whole          whole document (published: Llama-3.1-8B)  49.4|47.6|92.5T|1.38x
        pecan          PECAN
        garlic         GARLIC"""),
    "2": ("F1|95 %|n|F1 - first row", "published F1", """
        pecan              tiny + tiny    none
        pecan-small-small  small + small
        pecan-tiny-small   tiny + small"""),
    "3": ("F1|95 %|ROUGE-L|nodes|FLOPs/query|n|F1 - PECAN", "published F1|ROUGE-L", """
        pecan                     PECAN                           49.7|47.9
        pecan-without-attention   w/o Attention-Guided Retrieval
        pecan-without-progress    w/o Dynamic Progress Control    37.7|36.4
        pecan-without-graph       w/o IP-based Graph
        pecan-without-similarity  w/o Embedding Similarity"""),
    "patience": ("F1|95 %|FLOPs/query|nodes|n|F1 - first row", "published F1|FLOPs", """
        pecan             t_n = 1   49.7|66.9T
        pecan-patience-2  t_n = 2   none|none
        pecan-patience-3  t_n = 3
        pecan-patience-4  t_n = 4
        pecan-patience-5  t_n = 5
        pecan-patience-6  t_n = 6
        pecan-patience-7  t_n = 7
        pecan-patience-8  t_n = 8"""),
    "systems": ("F1|95 %|EM|accuracy|ROUGE-L|FLOPs/query|FLOPs/document|refused|n|F1 - PECAN", "published|on|by", """
        pecan        PECAN
        garlic       GARLIC   F1 49.7|official file|Llama-3.1-8B
        graphreader  GraphReader
        mkrag        MKRAG (reconstruction)
        jerr         JERR (reconstruction)  none|none|none""")}


@pytest.mark.parametrize("table", TABLES)
def test_a_table_from_raw_rows(printed, tmp_path, table):
    """Each row shows its label, the figures of its raw rows, and the paper's figures."""
    heads, published, rows = TABLES[table]
    heads = heads.split("|")
    rows = [re.split("  +", row.strip()) for row in rows.strip().splitlines()]
    small = shutil.copytree(ROOT / "tiny", tmp_path / "small")          # a second checkpoint, for Table 2
    found = printed("--table", table, *(["--searcher", small] if table == "2" else []))
    word = {"patience": "Figure 4", "systems": "Systems"}.get(table, f"Table {table}")
    for data in ("Qasper", "mine"):
        (_, *header), *lines = found[f"{word}, {data}"]
        assert header == [*heads, *published.split("|")] and len(lines) >= len(rows)
        for (label, *line), (name, wanted, *figures) in zip(lines, rows):
            assert label == (wanted if data == "Qasper" else wanted.removesuffix(" (published: Llama-3.1-8B)"))
            assert line[:len(heads)] == wanted_cells(data, name, heads)
            if data == "mine":
                assert {*line[len(heads):]} == {"none"}
            elif figures:
                assert "|".join(line[len(heads):]) == figures[0]
        assert all(set(line[1:len(heads) + 1]) == {"not run"} for line in lines[len(rows):])


def test_the_table_of_a_run_without_table(printed):
    """Only data with options has a column of accuracies."""
    for data, (header, *lines) in printed().items():
        accuracy = ["accuracy"] if data == "mine" else []
        assert header == ["method", "F1", "95 %", *accuracy, "ROUGE-L", "nodes", "FLOPs", "graph", "cut", "n", "diff"]
        assert lines == [[label, *wanted_cells(data, name, header[1:])] for name, label in (
            ("pecan", "PECAN"), ("bm25", "BM25 Top-5"), ("whole", "whole document"))]


def test_costs_lengths_and_nodes_from_raw_rows(printed, tiny, spy):
    """Raw rows give Tables A4 and A3 and Figure 3. Lengths are those of --model's tokenizer."""
    found = printed("--table", "A4")
    assert found["Table A4, NarrativeQA"][1][0] == "whole document (published: Llama-3.1-8B, 22.3 % cut)"
    pecan = metrics.summary(raw("mine", "pecan"))
    both = [quantity(pecan["flops"] + pecan["construction_flops"] / queries) for queries in (1, 2, 4, 8)]
    flops = [*wanted_cells("mine", "whole", ["FLOPs"]), *wanted_cells("mine", "pecan", ["graph", "FLOPs"]), *both]
    assert [line[1:] for line in found["Table A4, mine"][1:]] == [
        [cell, n, "none"] for cell, n in zip(flops, "3233333")]
    assert [line[-1] for line in found["Table A4, Qasper"][1:]] == [
        "92.5T", "136.6T", "66.9T", "203.5T", "135.2T", "101.1T", "84.0T"]

    length = len(tiny.tokenizer.encode("Tom is here."))
    unloaded = spy("unloaded", eval)
    _, *lines = printed("--table", "A3", "--model", f"{ROOT}/tiny/.")["Table A3, tokens of a document"]
    assert [name for (name,), _ in unloaded] == [f"{ROOT}/tiny/."]
    assert [line[1:] for line in lines[:2]] == [
        [*(f"{n * length:,.0f}" for n in lengths), "2", "3", *figures.split()]
        for lengths, figures in (((4.5, 3, 6), "4,866 918 29,408 1,451"), ((7.5, 5, 10), "none " * 4))]

    found = printed("--table", "nodes")
    assert found["Figure 3, Qasper, queries by nodes read"][1][-1] == "36 (GARLIC)"
    _, average, *bars = found["Figure 3, mine, queries by nodes read"]
    assert average == ["average", f"{pecan['nodes']:.1f}", "none"]
    nodes = pecan["histogram"]
    assert [bar[:2] for bar in bars] == [[f"{n}-{n + 4}", str(sum(nodes.get(n + k, 0) for k in range(5)))]
                                         for n in range(0, max(nodes) + 1, 5)]


def test_predictions_are_scored_again(tmp_path):
    paths = [write_lines(tmp_path / f"{name}.jsonl", raw("mine", name)) for name in "yx"]
    header, *lines = (re.split("  +", line) for line in run("--score", *paths).stdout.splitlines())
    assert header == ["predictions", "F1", "95 %", "ROUGE-L", "EM", "accuracy", "n"]
    assert lines == [[str(path), *wanted_cells("mine", path.stem, header[1:])] for path in paths]


# --- the dry run ----------------------------------------------------------------------------------------------------

def test_the_levels_of_a_construction_by_hand():
    """A summary has half of its group's tokens, at most the limit, and is cut into nodes of 60."""
    assert list(cost.construction([100, 100, 100, 50], room=250, limit=80, node=60)) == [
        [(200, 80), (150, 75)], [(60 + 20 + 60 + 15, 77)]]


def estimate(*options) -> dict:
    """The numbers of a dry run: method -> costs. Each table fits 80 columns, and has a row for each method."""
    printed = run(*options, "--dry-run").stdout
    assert max(map(len, printed.splitlines())) <= 80
    runs, = json.loads(run(*options, "--dry-run", "--json").stdout).values()
    assert [line.split()[0] for line in printed.splitlines()[2:2 + len(runs)]] == [*runs]
    return runs


@pytest.mark.parametrize("options", [[], ["--nodes", 99]])
def test_a_real_run_costs_what_the_dry_run_says(tmp_path, options):
    """The FLOPs lie in their range, of each stage too, and the range is narrow enough to be of use. A search that reads
    until its window is full costs nearly the most. Nothing is written."""
    command = "--limit", 2, *options, "--method", "pecan,bm25,whole", "--output", tmp_path / "r"
    costs = estimate(*command)
    said = {name: [sum(ends) for ends in zip(cost["graphs"], cost["answers"])] for name, cost in costs.items()}
    assert not (tmp_path / "r").exists()
    runs = json.loads(run(*command, "--json").stdout)["data"]["embedded"]["runs"]
    spent = {name: done["flops"] * done["n"] for name, done in runs.items()}
    said |= {"construction": costs["pecan"]["graphs"], "search": costs["pecan"]["answers"]}
    spent["construction"], spent["search"] = (runs["pecan"]["construction_flops"] * runs["pecan"]["documents"],
                                              spent["pecan"])
    spent["pecan"] += spent["construction"]
    for name, factor in (("construction", 4), ("search", 10), ("pecan", 4), ("bm25", 4), ("whole", 1.1)):
        assert said[name][0] <= spent[name] <= said[name][1] <= factor * said[name][0], name
    assert (spent["search"] > .9 * said["search"][1]) == ("--nodes" in options)


def test_minutes_are_flops_of_passes_times_what_they_take(monkeypatch):
    """Every method has them, and their ends differ by at most a factor of 10. If all passes had the same speed, twice
    the most FLOPs would be the most minutes."""
    monkeypatch.setattr(cost, "seconds_a_flop", lambda device, dtype, model, *kind: 6e-9)
    for table in ("1", "systems"):
        for name, costs in estimate("--limit", 1, "--table", table).items():
            least, most = costs["minutes"]
            flops = costs["graphs"][1] + costs["answers"][1]
            assert most == pytest.approx(2e-10 * flops) and most / 10.01 < least < most, name


@pytest.mark.parametrize("kind", [(1, 64, 0, False), (1, 8, 128, True), (4, 1, 64, True), (4, 1, 64, False)], ids=str)
def test_a_pass_is_measured_as_it_runs(tiny, monkeypatch, kind):
    """Its rows and tokens, the tokens in the cache and the attention to them are those of the run. The embedded model
    is small enough to be measured whole; of a large one one layer is."""
    passes = []

    def forward(self, tokens, positions, memory, attended=0):
        passes.append((*tokens.shape, *set(memory.lengths), attended > 0))
        assert attended in (0, memory.lengths[0]) and positions[0].tolist() == [
            memory.lengths[0] + n for n in range(tokens.shape[1])]
        return real(self, tokens, positions, memory, attended)

    real = llama.Llama.forward
    monkeypatch.setattr(llama.Llama, "forward", forward)
    monkeypatch.setattr("timeit.Timer.autorange", lambda timer: (4, timer.timeit(4) * 0 + 8.0))
    for least, layers in ((2 ** 28, 6), (1, 1)):
        monkeypatch.setattr(cost, "LAYERS", least)
        cost.seconds_a_flop.cache_clear()
        flops = flops_of(replace(tiny.config, layers=layers), kind[1], kind[2] + kind[1])
        assert cost.seconds_a_flop(tiny.device, tiny.dtype, tiny.folder, *kind) == 2 / (kind[0] * flops)
    cost.seconds_a_flop.cache_clear()
    assert set(passes) == {kind}


@pytest.mark.parametrize("options, width, batch", [([], 4, 16), (["--dtype", "float16", "--batch", 99], 2, 99)])
def test_the_dry_run_counts_bytes(tiny, tmp_path, spy, options, width, batch):
    """Those of the weights and of the largest pass: of a construction, a search, or the whole document, whose window is
    its own. (Each passage is a chunk, and both the search and the whole document fill their windows.)"""
    row = json.loads(EMBEDDED.read_text().splitlines()[1])
    row["questions"] = row["questions"][:1]
    data = write_lines(tmp_path / "mine.jsonl", [row])
    devices = spy("choose_device", cost)
    said = estimate("--dataset", data, *options, "--chunk", 50, "--device=cpu:0")

    config, t = tiny.config, tiny.tokenizer
    assert devices[0][0] == ("cpu:0", "float16" if options else "auto", config.dtype)
    s = resolve(tiny.folder, config.max_length, None, {"chunk": 50})
    lengths = [length_of(node_line(t, None, text)) for text in row["passages"]]
    limit, room = limit_and_room(t, s)
    levels = list(cost.construction(lengths, room, limit, 50))
    instruction = length_of(summary_prompt(t, []))
    batches = [(min(batch, len(level)), instruction + max(tokens for tokens, _ in level)) for level in levels]
    question = row["questions"][0]["question"]
    read = room_for_nodes(t, question_prompt(t, question), question, s)
    prompt = s.window - s.answer_tokens
    assert len(levels) > 2

    weights = width * sum(weight.numel() for weight in tiny.weights.values())
    pecan = [cost.bytes_of_pass(config, width, n * tokens, n * (tokens + limit)) for n, tokens in batches]
    pecan.append(cost.bytes_of_pass(config, width, read, s.window, prompt))
    whole = cost.bytes_of_pass(config, width, 512 - s.answer_tokens, 512)
    assert (said["pecan"]["bytes"], said["whole"]["bytes"]) == ([weights + max(pecan)], [weights + whole])


def test_table_a4_at_the_papers_lengths():
    """It prints what evaluation/README.md says: the whole document's rows, and the least and largest other ratios."""
    text = " ".join((ROOT / "evaluation" / "README.md").read_text(encoding="utf-8").split())
    done = run("--table", "A4", "--dry-run", "--model", ROOT / "tests" / "llama-3.1-8b")
    rows = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert sum(row in text for row in rows if "whole document" in row) == 4
    for word in ("construction", "search"):
        ratios = sorted(row.split()[-2] for row in rows if f" {word} " in row)
        assert re.search(rf"(?i){word}[a-z ]* {ratios[0][1:-1]} to {ratios[-1][:-1]} times", text)
