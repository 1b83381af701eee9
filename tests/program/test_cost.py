"""The dry run: what a run will cost, next to what it costs, and Table A4 at the paper's lengths."""
import json
import re
from dataclasses import replace

import pytest
from oracle import write_checkpoint
from runs import ROOT, run, write_lines

from data import EMBEDDED
from evaluation import cost
from llama import Llama, flops_of


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
    said = estimate(*command)
    assert not (tmp_path / "r").exists()
    for name, done in json.loads(run(*command, "--json").stdout)["data"]["embedded"]["runs"].items():
        spent = {"graphs": done["construction_flops"] * done["documents"] if name == "pecan" else 0,
                 "answers": done["flops"] * done["n"]}
        for part, factor in (("graphs", 4), ("answers", 10 if name == "pecan" else 4 if name == "bm25" else 1.1)):
            least, most = said[name][part]
            assert least <= spent[part] <= most <= factor * least, (name, part)
        if name == "pecan":
            assert most + said[name]["graphs"][1] <= 4 * (least + said[name]["graphs"][0])
            assert (spent["answers"] > .9 * most) == ("--nodes" in options)


def test_minutes_are_flops_of_passes_times_what_they_take(monkeypatch):
    """Every method has them, and their ends differ by at most a factor of 10. If all passes had the same speed, twice
    the most FLOPs would be the most minutes."""
    monkeypatch.setattr(cost, "seconds_a_flop", lambda device, dtype, model, *kind: 6e-9)
    for table in ("1", "systems"):
        for name, costs in estimate("--limit", 1, "--table", table).items():
            least, most = costs["minutes"]
            flops = costs["graphs"][1] + costs["answers"][1]
            assert most == pytest.approx(2e-10 * flops) and most / 10.01 < least < most, name


def test_the_builder_builds_with_its_own_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "seconds_a_flop", lambda *kind: 6e-9)
    other = write_checkpoint(tmp_path / "other")
    (other / "pecan.json").write_text('{"chunk": 10, "window": 500, "batch": 1}')
    tiny, alone, both = (estimate("--limit", 1, "--method", "pecan", *options)["pecan"]["graphs"]
                         for options in ([], ["--model", other], ["--builder", other]))
    assert tiny != both == alone


@pytest.mark.parametrize("rows, length, cached", [(1, 512, 0), (1, 60, 512), (4, 1, 512)])
def test_a_pass_is_measured_as_it_runs(tiny, monkeypatch, spy, rows, length, cached):
    """Its rows and tokens are those of the run; what follows a prompt attends to it. The embedded model is small enough
    to be measured whole; of a large one one layer is."""
    calls = spy("forward", Llama)
    monkeypatch.setattr("timeit.Timer.autorange", lambda timer: (4, timer.timeit(4) * 0 + 8.0))
    for least, layers in ((2 ** 28, 6), (1, 1)):
        monkeypatch.setattr(cost, "LAYERS", least)
        cost.seconds_a_flop.cache_clear()
        flops = flops_of(replace(tiny.config, layers=layers), length, cached + length)
        seconds = cost.seconds_a_flop(tiny.device, tiny.dtype, tiny.folder, rows, length)
        assert seconds == 2 / (rows * flops)
    cost.seconds_a_flop.cache_clear()
    for (_, tokens, positions, memory, keys, *_), _ in calls:
        assert tokens.shape == (rows, length) and memory.lengths == [cached] * rows and keys == cached
        assert positions[0].tolist() == [*range(cached, cached + length)]


@pytest.mark.parametrize("method, dtype, batch", [
    ("pecan", "float32", 7), ("pecan", "float32", 99), ("whole", "float16", 16)])
def test_the_dry_run_counts_bytes(tmp_path, spy, method, dtype, batch):
    """Those of the weights and of the largest pass of the run: a batch of summaries, or the whole document."""
    row = json.loads(EMBEDDED.read_text().splitlines()[1])
    data = write_lines(tmp_path / "mine.jsonl", [row | {"questions": row["questions"][:1]}])
    command = "--dataset", data, "--method", method, "--dtype", dtype, "--chunk", 50, "--batch", batch
    devices = spy("choose_device", cost)
    said = estimate(*command, "--device=cpu:0")[method]["bytes"]
    assert devices[0][0][:2] == ("cpu:0", dtype)

    calls = spy("forward", Llama)
    run(*command, "--output", tmp_path / "r")
    model = calls[0][0][0]
    width = model.dtype.itemsize
    passes = [cost.bytes_of_pass(model.config, width, *tokens.shape, len(tokens) * memory.capacity, *keys[:1])
              for (_, tokens, _, memory, *keys), _ in calls]
    assert said == [sum(weight.nbytes for weight in model.weights.values()) + max(passes)]


def test_table_a4_at_the_papers_lengths():
    """It prints what evaluation/README.md says: the whole document's rows, and the least and largest other ratios."""
    text = " ".join((ROOT / "evaluation" / "README.md").read_text(encoding="utf-8").split())
    done = run("--table", "A4", "--dry-run", "--model", ROOT / "tests" / "llama-3.1-8b")
    rows = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert sum(row in text for row in rows if "whole document" in row) == 4
    for word in ("construction", "search"):
        ratios = sorted(row.split()[-2] for row in rows if f" {word} " in row)
        assert re.search(rf"(?i){word}[a-z ]* {ratios[0][1:-1]} to {ratios[-1][:-1]} times", text)
