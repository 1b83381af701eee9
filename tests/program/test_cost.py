"""The dry run: what it says of a run is what the run does, and Table A4 at the paper's lengths."""
import json

import pytest
from oracle import write_checkpoint
from runs import ROOT, run

import pecan
from core.settings import Settings
from evaluation import cost
from llama import length_of


def test_the_levels_of_a_construction_by_hand():
    """A summary has .22 of its group's tokens, at most the limit, and is cut into nodes of 60. It climbs until a level
    has one node, or the next none. Here a group has room for 850 tokens of nodes, and a summary for 134."""
    settings = Settings(chunk=100, window=1134, summary_share=.1182)
    assert cost.construction(2010, settings) == [
        (150 + 800, 134), (150 + 800, 134), (150 + 410, 90), (150 + 358, 78), (150 + 78, 17)]
    assert cost.construction(100, settings) == []
    assert cost.construction(4, Settings(chunk=2, window=1134)) == [(154, 0)]


@pytest.mark.parametrize("options", [["--batch", 7], ["--batch", 99], ["--builder"]])
def test_a_run_does_what_the_dry_run_says(tmp_path, spy, options):
    """Prompts of level 1 are those with nothing but chunks; a batch's cache and its longest prompt are those of the
    formula, which ring 9 compares with the memory of a run. Another builder has its own settings, and its weights count
    too. Nothing is written by a dry run."""
    if "--builder" in options:
        other = write_checkpoint(tmp_path / "other")
        (other / "pecan.json").write_text('{"chunk": 10, "window": 500, "batch": 2}')
        options = ["--builder", other]
    command = "--limit", 2, "--method", "pecan", *options, "--output", tmp_path / "r"
    said = json.loads(run(*command, "--dry-run", "--json").stdout)["embedded"]
    assert not (tmp_path / "r").exists()
    assert (said["documents"], said["questions"]) == (2, 14)

    prompts, caches = spy("summary_prompt", pecan), spy("Cache", pecan)
    run(*command)
    said = said["runs"]["pecan"]
    graphs = [json.loads(file.read_text()) for file in (tmp_path / "r" / "graphs").glob("*.json")]
    texts = {node["text"] for graph in graphs for node in graph["nodes"] if node["level"] == 1}
    chunks = [length_of(prompt) for (_, nodes), prompt in prompts if nodes and texts.issuperset(nodes)]
    assert (said["groups"], said["prompt tokens"]) == (len(chunks), sum(chunks))

    calls = [call for call, _ in caches]
    builder, rows, capacity, _ = max((call for call in calls if len(call) == 4), key=lambda call: call[1] * call[2])
    model, searches, window = max((call for call in calls if len(call) == 3), key=lambda call: call[1])
    weights = sum(each.nbytes for one in {builder, model} for each in one.weights.values())
    assert said["batch"] == rows
    assert said["graph bytes"] == weights + cost.bytes_of_pass(builder.config, 4, rows, max(chunks), rows * capacity)
    assert said["search bytes"] == weights + cost.bytes_of_pass(model.config, 4, searches, window, searches * window,
                                                                   window)


def test_table_a4_at_the_papers_lengths():
    """It prints what evaluation/README.md says: the whole document's rows, and the least and largest ratio of a search.
    With all logits, one length of summaries fits every construction."""
    text = " ".join((ROOT / "evaluation" / "README.md").read_text(encoding="utf-8").split())
    done = run("--table", "A4", "--dry-run", "--model", ROOT / "tests" / "llama-3.1-8b")
    rows = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert sum(row in text for row in rows if "whole document" in row) == 4
    ratios = sorted(row.split()[-2] for row in rows if " search " in row)
    assert f"search is {ratios[0][1:-1]} to {ratios[-1][:-1]} times the published" in text
    built = [float(row.split()[-1][:-1]) for row in rows if " construction " in row]
    assert len(built) == 4 and all(.9 <= ratio <= 1.15 for ratio in built)
