"""Chosen heads, the extension beyond the paper: the paper's mean is untouched, and what is chosen is what counts."""
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from oracle import TINY, TOLERANCE, ids_and_spans, relative, token_ids
from support.heads import chosen_heads, head_weights, in_order, read_heads

import eval as command
import pecan
from core.files import InputError
from core.settings import Settings
from data import EMBEDDED
from evaluation import runs, tables
from llama import Cache
from pecan import Pecan, Search, build
from support.token_mean import TokenMean
from support.trace import Recorder
from view.replay import checked_replay
from view.trace_file import read_traces

SOME = ["0-0", "2-7", "0-5,1-1,2-0", "1-0,1-1,1-2,1-3,1-4,1-5,1-6,1-7"]          # of 3 layers with 8 heads


@torch.no_grad()
def of_heads(hf, ids: list[int], heads: str) -> torch.Tensor:
    """[T, T] float64: the mean of a few heads' attention in Hugging Face, after all of them were kept."""
    layers = hf(torch.tensor([ids]), output_attentions=True).attentions
    pairs = [map(int, name.split("-")) for name in heads.split(",")]
    return torch.stack([layers[layer][0, head].double() for layer, head in pairs]).mean(0)


# --- the forward pass -----------------------------------------------------------------------------------------------

def test_all_heads_are_the_papers_mean(model, ids, spy):
    """The same numbers as the mean over layers and heads of what attention() gave, to 1e-7 of weights up to 1."""
    calls = spy("attention")
    cache = Cache(model, 1, 200)
    model.read(cache, [[(None, ids(20)), (0, ids(50, seed=1)), (1, ids(60, seed=2))]])
    averaging = cache.averaging_matrix([[0, 1]])
    calls.clear()
    _, a = model.append(cache, [[(None, ids(40, seed=3))]], averaging)

    mean = torch.stack([weights.double().mean((1, 2)) for _, (_, weights) in calls]).mean(0)       # [1, T, P]
    assert len(calls) == model.config.layers and mean.sum(-1).allclose(torch.ones(1, 40, dtype=torch.float64))
    wanted = mean[:, :, :130] @ averaging.double()
    assert (a - wanted).abs().max() < 1e-7 < wanted.min() / 100


@pytest.mark.parametrize("heads", SOME)
def test_chosen_heads_as_in_hugging_face(model, hf, ids, heads):
    """Both stages: tokens that are generated, and a node that is read. Of a batch the longest row ends early."""
    segments = [[(None, ids(20)), ("v", ids(15, seed=1)), ("w", ids(9, seed=2))], [("v", ids(30, seed=3)), ("w", [7])]]
    replies = []
    for stop in (lambda so_far: False, lambda so_far: so_far == replies[0][:5]):
        cache = Cache(model, 2, 100, heads)
        hidden, _ = model.read(cache, segments)
        averaging = cache.averaging_matrix([["v", "w"]] * 2)
        replies, attention = model.generate(cache, hidden, 30, averaging, stop=stop)
    assert len(replies[0]) == 5 < len(replies[1])
    for row, reply, a in zip(segments, replies, attention):
        prompt, spans = ids_and_spans(row)
        rows = of_heads(hf, prompt + reply, heads)[len(prompt):]
        wanted = torch.stack([rows[:, spans[node].start:spans[node].stop].mean(1) for node in ("v", "w")], 1)
        assert relative(a, wanted) < TOLERANCE

    cache = Cache(model, 1, 100, heads)
    model.read(cache, [[(None, ids(10)), ("q", ids(8, seed=1)), (None, ids(20, seed=2))]])
    _, a = model.read(cache, [[("node", ids(12, seed=4))]], cache.averaging_matrix([["q"]]))
    read = ids(10) + ids(8, seed=1) + ids(20, seed=2) + ids(12, seed=4)
    wanted = of_heads(hf, read, heads)[38:, 10:18].mean(1, keepdim=True)
    assert relative(a[0], wanted) < 1e-6


def test_what_a_head_counts():
    assert head_weights(None, 3, 8).tolist() == [[1 / 24] * 8] * 3
    assert head_weights("0-1,2-0", 3, 2).tolist() == [[0, .5], [0, 0], [.5, 0]]
    for heads, name in (("1-0,3-0", "3-0"), ("2-8", "2-8")):
        with pytest.raises(InputError, match=f"head {name} is not there: the checkpoint has 3 layers of 8 heads, both"):
            head_weights(heads, 3, 8)


# --- both stages ----------------------------------------------------------------------------------------------------

def test_edges_and_relevance_take_their_own_heads(tiny, tiny_hf, document, graph, question, settings):
    """E from one list, r from the other, each as in Hugging Face; the nodes are those of the paper's graph."""
    chosen = replace(settings, edge_heads="1-0,1-3", relevance_heads="4-2")
    ours = build(tiny, document, chosen)
    assert ours.nodes == graph.nodes and ours.settings == graph.settings | {"edge_heads": "1-0,1-3"}
    assert not ours.E.to_dense().allclose(graph.E.to_dense(), rtol=.1)

    i = next(i for i, node in enumerate(graph.nodes) if node.level == 2)
    window = ours.E.to_dense()[i].nonzero().flatten().tolist()
    ids, spans = ids_and_spans(pecan.summary_prompt(tiny.tokenizer, {j: graph.nodes[j].text for j in window}))
    bullet = tiny.tokenizer.encode("* " + graph.nodes[i].text)
    rows = of_heads(tiny_hf, ids + bullet, "1-0,1-3")[len(ids) + 1:]
    e = torch.stack([rows[:, spans[j].start:spans[j].stop].mean() for j in window])
    assert ours.E.to_dense()[i, window].tolist() == pytest.approx((e / e.sum()).tolist(), rel=TOLERANCE, abs=1e-6)

    search = Search(tiny, ours, question, torch.zeros(len(ours.nodes)), chosen)
    search.start()
    first = search.visited[0]
    segments = [*pecan.question_prompt(tiny.tokenizer, question), *search.lines[first]]
    _, spans = ids_and_spans(segments)
    rows = of_heads(tiny_hf, token_ids(segments), "4-2")[spans[first].start:spans[first].stop]
    wanted = 2 * rows[:, spans["q"].start:spans["q"].stop].mean().item()
    assert search.r[first].item() == pytest.approx(wanted, rel=TOLERANCE)


def test_heads_that_are_not_there_are_refused_before_the_work(tiny, model, settings):
    """Those of E are the builder's (3 layers of 8), those of r the searcher's (6 of 4)."""
    with pytest.raises(InputError, match="head 5-3 is not there: the checkpoint has 3 layers of 8 heads"):
        Pecan(tiny, None, replace(settings, edge_heads="5-3"), model)
    with pytest.raises(InputError, match="head 2-7 is not there: the checkpoint has 6 layers of 4 heads"):
        Pecan(tiny, None, replace(settings, relevance_heads="2-7"), model)
    Pecan(tiny, None, replace(settings, edge_heads="2-7", relevance_heads="5-3"), model)


def test_heads_name_a_graph_and_the_papers_graphs_keep_their_names(tiny, document, settings):
    def name(**changes):
        return Pecan(tiny, None, replace(settings, **changes)).file_name(document)
    assert len({name(), name(edge_heads="1-0"), name(edge_heads="1-1")}) == 3
    assert name(relevance_heads="1-0") == name(), "r is no part of a graph"
    assert set(settings.of_construction()) == {"chunk", "window", "summary_share", "tree"}


# --- lists and files ------------------------------------------------------------------------------------------------

def test_a_list_is_put_in_order():
    assert in_order("10-0,2-11,2-9,10-0") == "2-9,2-11,10-0"
    assert chosen_heads("1-1,1-0") == {"edge_heads": "1-0,1-1", "relevance_heads": "1-0,1-1"}
    assert chosen_heads(None) == {}


@pytest.mark.parametrize("text", ["", "1", "1-", "1-0,", "1-0;1-1", "a-b", "-1-0", "1-0, 1-1", "no.json", "1-0-2"])
def test_what_is_no_list(text):
    with pytest.raises(InputError, match="--heads .*: no list of layer-head, both counted from 0, such as 1-0,1-1"):
        chosen_heads(text)


def test_a_file_has_a_list_for_each_stage(tmp_path):
    path = tmp_path / "heads.json"
    path.write_text('{"edges": ["3-1", "1-0"], "relevance": ["2-2"], "source": "by hand"}')
    assert chosen_heads(str(path)) == {"edge_heads": "1-0,3-1", "relevance_heads": "2-2"}


@pytest.mark.parametrize("content", ["", "[]", "3", "{}", '{"edges": ["1-0"]}', '{"edges": ["1-0"], "relevance": []}',
                                     '{"edges": "1-0", "relevance": "1-0"}', '{"edges": ["1-0"], "relevance": [10]}',
                                     '{"edges": ["1-0"], "relevance": ["1-0,"]}', '{"edges": null, "relevance": []}'])
def test_a_bad_file_is_named(tmp_path, content):
    path = tmp_path / "heads.json"
    path.write_text(content)
    with pytest.raises(InputError, match="heads.json: "):
        read_heads(path)


@pytest.mark.parametrize("heads", ["1-1,1-0", "1-0,1-0", "x", "", 3])
def test_a_setting_is_a_list_in_order(heads):
    with pytest.raises(InputError, match="heads is .*; it must be a list in order of layer-head"):
        Settings(edge_heads=heads)


def test_the_embedded_models_own_heads(tiny):
    for heads in read_heads(TINY / "heads.json"):
        head_weights(heads, tiny.config.layers, tiny.config.heads)
    assert "no table reports" in json.loads((TINY / "heads.json").read_text())["source"], "on which documents"


@pytest.mark.parametrize("path", sorted((TINY.parent / "study" / "chosen").glob("*.json")), ids=lambda path: path.stem)
def test_published_lists_are_read(path):
    """--heads takes them as they are, and the models that they were found for have these heads."""
    shapes = {"-8B-": (32, 32), "-3B-": (28, 24), "-1B-": (16, 32), "-135M-": (30, 9)}
    layers, heads = next(shape for size, shape in shapes.items() if size in path.stem)
    for chosen in chosen_heads(str(path)).values():
        assert abs(head_weights(chosen, layers, heads).sum() - 1) < 1e-12


# --- from the command line ------------------------------------------------------------------------------------------

@pytest.fixture
def made(monkeypatch):
    """The settings that the rows of a command are made with: (name of the row, settings)."""
    settings = []
    make = runs.make

    def remember(run, models, *arguments):
        settings.append((run.name, arguments[0]))
        return make(run, models, *arguments)
    monkeypatch.setattr("evaluation.runner.make", remember)
    return settings


@pytest.fixture
def short(tmp_path):
    """The beginning of a document, with one question."""
    row = json.loads(EMBEDDED.read_text().splitlines()[0])
    path = tmp_path / "short.jsonl"
    path.write_text(json.dumps(row | {"passages": row["passages"][:15], "questions": row["questions"][:1]}))
    return path


def evaluate(*arguments) -> int:
    return command.main([*map(str, arguments), "--device", "cpu"])


def test_a_row_of_its_own(tmp_path, short, made, capsys):
    """By the default command, with the checkpoint's own heads; PECAN's row stays the paper's."""
    assert evaluate("--dataset", short, "--output", tmp_path / "r") == 0
    rows = dict(made)
    edges, relevance = read_heads(TINY / "heads.json")
    assert list(rows) == ["pecan", "pecan-heads", "bm25", "whole"]
    assert (rows["pecan"].edge_heads, rows["pecan"].relevance_heads) == (None, None)
    assert rows["pecan-heads"] == replace(rows["pecan"], edge_heads=edges, relevance_heads=relevance)
    assert "PECAN, chosen heads (not in the paper)" in capsys.readouterr().out
    assert len(list((tmp_path / "r" / "graphs").glob("*.json"))) == 2


def test_the_option_chooses_for_that_row_alone(tmp_path, short, made, capsys):
    arguments = ["--dataset", short, "--output", tmp_path / "r", "--heads", "2-3,0-1"]
    assert evaluate(*arguments, "--method", "pecan,pecan-heads") == 0
    rows = dict(made)
    assert rows["pecan"].edge_heads is None
    assert (rows["pecan-heads"].edge_heads, rows["pecan-heads"].relevance_heads) == ("0-1,2-3", "0-1,2-3")
    setup = json.loads((tmp_path / "r" / "short" / "pecan-heads.setup.json").read_text())
    assert (setup["edge_heads"], setup["relevance_heads"]) == ("0-1,2-3", "0-1,2-3")
    assert evaluate(*arguments[:-1], "2-3", "--method", "pecan-heads") == 1
    assert "answers of another edge_heads and relevance_heads (0-1,2-3 there, 2-3 here)" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--method", "pecan"], ["--table", "1"], ["--table", "patience"]])
def test_the_option_is_refused_where_nothing_would_use_it(arguments):
    with pytest.raises(InputError, match="--heads 1-0 is for the row of chosen heads: --method pecan-heads"):
        evaluate(*arguments, "--heads", "1-0", "--limit", "1")


def test_a_checkpoint_without_heads(tmp_path, short, folder, capsys):
    """The row says why it was not run. That is a failure only if somebody asked for it."""
    arguments = ["--dataset", short, "--model", folder, "--chunk", 32, "--window", 512, "--output", tmp_path / "r"]
    assert evaluate(*arguments) == 0
    printed = capsys.readouterr()
    row, = (line for line in printed.out.splitlines() if "chosen heads" in line)
    assert "not run: " in row and "has no heads.json; choose heads with --heads" in row
    assert "not answered" not in printed.err
    assert evaluate(*arguments, "--method", "pecan,pecan-heads") == 1
    assert "not answered" in capsys.readouterr().err


def test_the_command_with_heads(tmp_path, capsys):
    arguments = ["--heads", str(TINY / "heads.json"), "--graph", str(tmp_path / "g.json"), "--device", "cpu"]
    assert pecan.main([str(TINY / "story.txt"), "What color is Selma's pet?", *arguments]) == 0
    assert "\n  red\n" in capsys.readouterr().out
    edges, _ = read_heads(TINY / "heads.json")
    assert json.loads((tmp_path / "g.json").read_text())["settings"]["edge_heads"] == edges


def test_builder_and_searcher_have_their_own_heads(tmp_path):
    """Table 2's kind of run: E from the builder's heads.json, r from the searcher's."""
    folders = {}
    for name, edges, relevance in (("builder", "2-7", "2-6"), ("model", "5-3", "5-2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "heads.json").write_text(json.dumps({"edges": [edges], "relevance": [relevance]}))
        folders[name] = SimpleNamespace(folder=tmp_path / name)
    models = SimpleNamespace(args=command.parse([]), **folders)
    assert runs.heads_of(runs.METHODS["pecan-heads"], models) == {"edge_heads": "2-7", "relevance_heads": "5-2"}
    assert all(runs.heads_of(run, models) == {} for run in runs.METHODS.values() if run.name != "pecan-heads")


def test_table_3_shows_the_row_and_nothing_published():
    assert [run.name for run in runs.runs_of("3")][-1] == "pecan-heads"
    row = tables.table3({})[0].rows[-1]
    assert row[0] == "PECAN, chosen heads (not in the paper)" and row[-2:] == ["none", "none"]
    assert "pecan-heads" not in runs.TABLE_1 and "pecan-heads" not in runs.SYSTEMS


# --- trace and dump -------------------------------------------------------------------------------------------------

def test_trace_and_dump_say_which_heads_count(tmp_path, tiny, document, question, settings):
    """A trace whose heads are not those of its graph is refused."""
    chosen = replace(settings, edge_heads="1-0,1-3", relevance_heads="4-2")
    method = Recorder(Pecan(tiny, TokenMean(tiny), chosen), tmp_path / "t.jsonl", tmp_path / "d.safetensors")
    method.answer(method.prepare(document, tmp_path / "g.json"), question)
    assert method.tensors["heads.edges"].nonzero().tolist() == [[1, 0], [1, 3]]
    assert method.tensors["heads.relevance"].nonzero().tolist() == [[4, 2]]

    trace, = read_traces(tmp_path / "t.jsonl")
    checked_replay(trace)
    assert (trace.header["settings"]["edge_heads"], trace.header["settings"]["relevance_heads"]) == ("1-0,1-3", "4-2")
    trace.header["settings"]["edge_heads"] = None
    with pytest.raises(InputError, match="the heads that made E is None; recomputed: 1-0,1-3"):
        checked_replay(trace)
