"""Traces and dumps: what is written can be computed again from outside, and what was changed is refused."""
import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from core.files import InputError
from data import EMBEDDED, read_jsonl
from pecan import Pecan, main
from support.token_mean import TokenMean
from support.trace import Recorder
from view.replay import UNCHECKED, checked_replay, scores
from view.replay import main as replay_main
from view.trace_file import read_traces

ROOT = Path(__file__).parents[1]


def record(folder, model, settings, document, questions, graph=None, **files) -> list:
    """Answer questions, write trace and dump into a folder, and return the answers. `graph` has a graph to take."""
    if graph is not None:
        shutil.copytree(graph, folder, ignore=shutil.ignore_patterns("trace*"), dirs_exist_ok=True)
    method = Recorder(Pecan(model, TokenMean(model), settings), folder / "trace.jsonl", files.get("dump"))
    prepared = method.prepare(document, folder / "graph.json")
    return [method.answer(prepared, question) for question in questions]


def recorded_of(document, folder, tiny, settings) -> tuple[Path, list]:
    """The folder with a trace of five questions about a document and the graph that they share, and the answers."""
    questions = [question.text for question in document.questions[:5]]
    return folder, record(folder, tiny, settings, document, questions)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory, tiny, settings):
    """Of the first embedded document."""
    return recorded_of(read_jsonl(EMBEDDED, 1)[0], tmp_path_factory.mktemp("trace"), tiny, settings)


def refused(path) -> str:
    """What view.replay says against a file; "" if everything follows."""
    try:
        for trace in read_traces(path):
            checked_replay(trace)
    except InputError as error:
        return str(error)
    return ""


# --- trace and replay -----------------------------------------------------------------------------------------------

@pytest.mark.slow
def test_traces_of_twenty_questions_follow(recorded, tmp_path_factory, tiny, settings, capsys):
    others = [recorded_of(document, tmp_path_factory.mktemp("trace"), tiny, settings)
              for document in read_jsonl(EMBEDDED, 4)[1:]]
    paths = [str(folder / "trace.jsonl") for folder, _ in (recorded, *others)]
    answers = [answer for _, of_document in (recorded, *others) for answer in of_document]
    assert [refused(path) for path in paths] == ["", "", "", ""]
    assert replay_main(paths) == 0
    printed = capsys.readouterr().out
    assert printed.count("follows") == 20 and UNCHECKED in printed

    traces = [trace for path in paths for trace in read_traces(path)]
    for trace, answer in zip(traces, answers, strict=True):
        assert trace.answer["answer"] == answer.text and trace.answer["nodes"] == answer.nodes
        for row, step in zip(trace.steps, answer.trace, strict=True):
            new = row["relevance"][-1]
            assert (row["p_yes"], row["verdict"], row["flops"]) == (step.p_yes, step.verdict, step.flops)
            assert (new["node"], new["r"]) == (step.node, step.r)
            if step.score is not None:
                assert row["candidates"][0] == {"node": step.node, "z": step.z, "score": step.score}


@pytest.mark.parametrize("changes", [{"confidence": 0.999999}, {"fixed_nodes": 11}, {"attention": False},
                                     {"similarity": False}, {"patience": 3}], ids=str)
def test_traces_with_other_settings_follow(recorded, tmp_path, tiny, settings, changes):
    """Every way to start, choose and end."""
    document = read_jsonl(EMBEDDED, 1)[0]
    [answer] = record(tmp_path, tiny, replace(settings, **changes), document, [document.questions[1].text], recorded[0])
    assert not refused(tmp_path / "trace.jsonl")
    assert len(answer.nodes) > 4


@pytest.mark.parametrize("window, end", [(125, "window"), (4000, "all")])
def test_traces_of_other_windows_follow(recorded, tmp_path, tiny, settings, window, end):
    """A top level that does not fit the window of the search, and a window that takes everything."""
    document = read_jsonl(EMBEDDED, 1)[0]
    method = Recorder(Pecan(tiny, TokenMean(tiny), settings), tmp_path / "trace.jsonl")
    prepared = method.prepare(document, recorded[0] / "graph.json")
    method.method.settings = replace(settings, window=window, confidence=0.9999999)
    answer = method.answer(prepared, document.questions[0].text)

    assert answer.end == end and not refused(tmp_path / "trace.jsonl")
    top_level = set(prepared.graph.top_level)
    assert (top_level <= set(answer.nodes[:len(top_level)])) == (end == "all")


def test_a_recorded_answer_is_the_same_answer(recorded, tmp_path, tiny, settings):
    document = read_jsonl(EMBEDDED, 1)[0]
    question = document.questions[0].text
    plain = Pecan(tiny, TokenMean(tiny), settings)
    wanted = plain.answer(plain.prepare(document, recorded[0] / "graph.json"), question)
    [answer] = record(tmp_path, tiny, settings, document, [question], dump=tmp_path / "dump.safetensors")
    assert answer == wanted


def chosen_or_none(rows) -> int | None:
    """The place of the first step after the start, among the lines of a trace."""
    return next((n for n, row in enumerate(rows) if row.get("candidates")), None)


def chosen(rows) -> int:
    place = chosen_or_none(rows)
    assert place is not None
    return place


def other_position(row):
    """Another position, with an attention that gives the same r."""
    row["position"] += 1
    row["relevance"][-1]["attention"] = row["relevance"][-1]["r"] / row["position"]


def scale(row, key, factor=1.001):
    row[key] *= factor


def swap(rows, a, b):
    rows[a], rows[b] = rows[b], rows[a]


# A kind of tampering: what it does to the lines of a trace (header, steps, answer) and to the graph's file.
TAMPERING = {
    "r": lambda rows, graph: scale(rows[3]["relevance"][-1], "r"),
    "r of a node read before": lambda rows, graph: scale(rows[chosen(rows)]["relevance"][0], "r"),
    "attention": lambda rows, graph: scale(rows[2]["relevance"][-1], "attention"),
    "r and attention together": lambda rows, graph: [
        scale(row["relevance"][1], key) for row in rows[2:-1] for key in ("r", "attention")],
    "z": lambda rows, graph: scale(rows[chosen(rows)]["candidates"][0], "z"),
    "z of the tenth": lambda rows, graph: scale(rows[chosen(rows)]["candidates"][9], "z"),
    "score": lambda rows, graph: scale(rows[chosen(rows)]["candidates"][0], "score"),
    "cosine": lambda rows, graph: scale(max(rows[0]["nodes"], key=lambda node: node["c"]), "c"),
    "order of the candidates": lambda rows, graph: swap(rows[chosen(rows)]["candidates"], 1, 2),
    "a candidate left out": lambda rows, graph: rows[chosen(rows)]["candidates"].pop(4),
    "the node that is read": lambda rows, graph: rows[chosen(rows)].update(
        node=rows[chosen(rows)]["candidates"][1]["node"]),
    "position": lambda rows, graph: rows[3].update(position=rows[3]["position"] + 1),
    "position and attention together": lambda rows, graph: other_position(rows[-2]),
    "level": lambda rows, graph: rows[3].update(level=1),
    "a step left out": lambda rows, graph: rows.pop(2),
    "order of the steps": lambda rows, graph: swap(rows, 2, 3),
    "verdict": lambda rows, graph: rows[-2].update(verdict="No"),
    "confidence": lambda rows, graph: rows[0]["settings"].update(confidence=0.9999999),
    "patience": lambda rows, graph: rows[0]["settings"].update(patience=2),
    "ablation": lambda rows, graph: rows[0]["settings"].update(similarity=False),
    "cached length": lambda rows, graph: rows[3].update(cached=rows[3]["cached"] - 1),
    "room": lambda rows, graph: rows[0].update(room=rows[1]["cached"]),
    "end": lambda rows, graph: rows[-1].update(end="all"),
    "nodes of the answer": lambda rows, graph: rows[-1]["nodes"].pop(),
    "FLOPs that shrink": lambda rows, graph: rows[3].update(flops=1),
    "no figure": lambda rows, graph: rows[chosen(rows)]["candidates"][0].update(z=float("nan")),
    "a word for a figure": lambda rows, graph: rows[2]["relevance"][-1].update(attention="much"),
    "a weight of the graph": lambda rows, graph: swap_weights(graph),
    "the graph's hash": lambda rows, graph: rows[0]["graph"].update(sha256="0" * 64),
}


def swap_weights(path: Path):
    """Exchange the first and the last weight of a node of the top level; its row still sums to 1."""
    graph = json.loads(path.read_text())
    row = [edge for edge in graph["edges"] if edge[0] == len(graph["nodes"]) - 1]
    row[0][2], row[-1][2] = row[-1][2], row[0][2]
    path.write_text(json.dumps(graph))


@pytest.fixture
def copied(recorded, tmp_path):
    """The lines of one long trace and the file of its graph, copied, and a function that writes and checks them."""
    folder, _ = recorded
    ended_by_yes = [trace for trace in read_traces(folder / "trace.jsonl") if trace.answer["end"] == "yes"]
    trace = max(ended_by_yes, key=lambda trace: len(trace.steps))
    shutil.copy(folder / "graph.json", tmp_path)
    rows = json.loads(json.dumps([trace.header, *trace.steps, trace.answer]))

    def check():
        path = tmp_path / "trace.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return refused(path)
    return rows, tmp_path / "graph.json", check


def test_the_copy_itself_is_accepted(copied):
    _, _, check = copied
    assert check() == ""


@pytest.mark.parametrize("kind", TAMPERING)
def test_tampering_is_refused(copied, kind):
    rows, graph, check = copied
    TAMPERING[kind](rows, graph)
    said = check()
    assert said and "\n" not in said


def test_a_graph_changed_together_with_its_hash_is_refused(copied):
    rows, graph, check = copied
    swap_weights(graph)
    rows[0]["graph"]["sha256"] = hashlib.sha256(graph.read_bytes()).hexdigest()
    assert "z of candidate" in check()


def test_a_better_node_that_was_left_out_is_refused(copied):
    """The eleventh node, with its true figures, in the place of the tenth."""
    rows, graph, check = copied
    assert check() == ""
    trace = read_traces(graph.parent / "trace.jsonl")[0]
    n = chosen(rows)
    r = {row["node"]: row["r"] for row in rows[n - 1]["relevance"]}
    z, final = scores(trace, r)
    listed = [candidate["node"] for candidate in rows[n]["candidates"]]
    rest = [i for i in range(len(z)) if i not in r and i not in listed]
    eleventh = max(rest, key=lambda i: final[i])
    rows[n]["candidates"][9] = {"node": eleventh, "z": z[eleventh], "score": final[eleventh]}
    assert "scores more" in check()


def test_another_start_is_refused(recorded, tmp_path, tiny, settings):
    """A search that ends after its start, with two of its nodes exchanged: no score speaks against it."""
    document = read_jsonl(EMBEDDED, 1)[0]
    record(tmp_path, tiny, replace(settings, confidence=0.0), document, [document.questions[0].text], recorded[0])
    path = tmp_path / "trace.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert not refused(path) and chosen_or_none(rows) is None

    first, second = rows[1]["node"], rows[2]["node"]
    exchange = {first: second, second: first}
    rows[-1]["nodes"] = [exchange.get(node, node) for node in rows[-1]["nodes"]]
    for row in rows[1:-1]:
        for part in (row, *row["relevance"]):
            part["node"] = exchange.get(part["node"], part["node"])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "starts with" in refused(path)


HEADER = '{"format": "pecan trace 1", "graph": {}, "settings": {}, "question": "", "room": 1, "nodes": []}\n'


@pytest.mark.parametrize("text, said", [("", "before an answer"), ("x\n", "not valid JSON"),
                                        ("[]\n", "line 1: holds a list"),
                                        ('{"answer": 1}\n', "begins with a header"),
                                        ('{"format": "pecan trace 1"}\n', "key 'graph' is missing"),
                                        (HEADER + '{"step": 1}\n', "line 2: key 'node' is missing"),
                                        (HEADER + '{"answer": "x"}\n', "line 2: key 'end' is missing")])
def test_what_is_no_trace_is_refused(tmp_path, text, said):
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(InputError, match=said):
        read_traces(tmp_path / "t.jsonl")


def test_the_command_line_writes_a_trace(tmp_path, capsys):
    trace = tmp_path / "selma.jsonl"
    main([str(ROOT / "tiny" / "story.txt"), "What color is Selma's pet?", "Where does Selma live?", "--device", "cpu",
          "--trace", str(trace), "--graph", str(tmp_path / "graph.json")])
    assert "top level" not in capsys.readouterr().out
    assert [trace.answer["answer"] for trace in read_traces(trace)] == ["red", "market"]
    assert not refused(trace)

    for wrong in (tmp_path / "trace.txt", tmp_path / "none" / "t.jsonl"):
        with pytest.raises(InputError, match=str(wrong)):
            main([str(ROOT / "tiny" / "story.txt"), "Why?", "--device", "cpu", "--trace", str(wrong)])


@pytest.mark.slow
def test_the_commands_of_view(tmp_path):
    """Those of view/README.md, in a folder with a copy of the story."""
    (tmp_path / "tiny").mkdir()
    shutil.copy(ROOT / "tiny" / "story.txt", tmp_path / "tiny")
    for command in (["pecan.py", "tiny/story.txt", "What color is Selma's pet?", "--trace", "selma.jsonl"],
                    ["pecan.py", "tiny/story.txt", "What color is Selma's pet?", "--graph", "dumped.graph.json",
                     "--dump", "selma.safetensors"],
                    ["-m", "view.replay", "selma.jsonl"], ["-m", "view.page", "selma.jsonl", "-o", "selma.html"]):
        program = [str(ROOT / command[0]), *command[1:]] if command[0] == "pecan.py" else command
        run = subprocess.run([sys.executable, *program], cwd=tmp_path, capture_output=True, text=True,
                             env=os.environ | {"PYTHONPATH": str(ROOT)})
        assert run.returncode == 0, run.stderr
    assert (tmp_path / "selma.safetensors").exists() and (tmp_path / "selma.json").exists()
    assert "What color is Selma&#39;s pet?" in (tmp_path / "selma.html").read_text()
