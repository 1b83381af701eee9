"""Traces and their replay: a trace holds what ran and passes the replay; a changed trace is refused."""
import json
import os
import re
import shutil
from dataclasses import asdict, replace
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace

import pytest
from view.replay import UNCHECKED, ending, replay, scores, start
from view.replay import main as replay_main
from view.walk import walk

import pecan
from core.files import InputError, sha256
from data import EMBEDDED, Answer, Document, Step, read_jsonl
from pecan import Pecan
from support.token_mean import TokenMean
from view.ask import as_json, as_text, ask, check_files, describe
from view.page import main as page_main
from view.trace import read_traces, tracing

ROOT = Path(__file__).parents[2]


def record(folder, model, settings, document, questions, **changes) -> list:
    """Answer questions with changed settings, write a trace into a folder, and return the answers."""
    method = Pecan(model, TokenMean(model), settings)
    prepared = method.prepare(document, folder / "graph.json")
    method.settings = replace(settings, **changes)
    with tracing(method, folder / "graph.json", folder / "trace.jsonl"):
        return [method.answer(prepared, question.text) for question in questions]


@pytest.fixture(scope="session")
def recorded(tmp_path_factory, tiny, settings):
    """The folder with the traces of five questions about the first embedded document."""
    document, = read_jsonl(EMBEDDED, 1)
    folder = tmp_path_factory.mktemp("trace")
    record(folder, tiny, settings, document, document.questions[:5])
    return folder


def refused(path) -> str:
    """The error of view.replay for a file, or "" if the file passes."""
    try:
        for trace in read_traces(path):
            replay(trace)
    except InputError as error:
        return str(error)
    return ""


# --- what is written ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("changes, end", [
    ({}, "yes"), ({"confidence": 0.999999}, "window"), ({"fixed_nodes": 11}, "nodes"), ({"fixed_nodes": 2}, "nodes"),
    ({"attention": False}, "yes"),
    ({"similarity": False}, "window"), ({"patience": 3}, "yes"), ({"window": 125, "confidence": 0.9999999}, "window"),
    ({"window": 125, "chunk": 2, "confidence": 0.9999999}, "window"),
    ({"window": 4000, "confidence": 0.9999999}, "all")], ids=str)
def test_traces_with_other_settings_follow(recorded, tmp_path, tiny, settings, changes, end):
    """A trace passes for every way to start, choose and end, and holds the whole answer. The window of 125 is too small
    for the top level; room for five chunks stays free, or half of it."""
    shutil.copy(recorded / "graph.json", tmp_path)
    document, = read_jsonl(EMBEDDED, 1)
    answer, = record(tmp_path, tiny, settings, document, document.questions[1:2], **changes)
    assert answer.end == end and len(answer.nodes) >= changes.get("fixed_nodes", 5)
    assert not refused(tmp_path / "trace.jsonl")
    trace, = read_traces(tmp_path / "trace.jsonl")
    assert asdict(trace.answer) == json.loads(json.dumps(asdict(answer)))


def test_a_node_may_fill_the_window(recorded, tmp_path, tiny, settings):
    """In a window for just the first nodes of a longer search, these are read."""
    shutil.copy(recorded / "graph.json", tmp_path)
    document, = read_jsonl(EMBEDDED, 1)
    window = settings.window
    nodes = []
    for _ in range(2):
        answer, = record(tmp_path, tiny, settings, document, document.questions[:1], confidence=.9999999, window=window)
        trace, = read_traces(tmp_path / "trace.jsonl")
        replay(trace)
        nodes.append(answer.nodes)
        window -= trace.room - sum(trace.lengths[i] for i in nodes[0][:-2])
    assert window < settings.window and nodes[1] == nodes[0][:-2]


def test_a_search_of_chunks_alone_follows(recorded, tmp_path, tiny, settings):
    """Without edges z is 0, and the cosines alone choose."""
    graph = json.loads((recorded / "graph.json").read_text())
    graph |= {"nodes": [node for node in graph["nodes"] if node["level"] == 1], "edges": []}
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    document, = read_jsonl(EMBEDDED, 1)
    record(tmp_path, tiny, settings, document, document.questions[:1], window=250, confidence=.9999999)
    trace, = read_traces(tmp_path / "trace.jsonl")
    replay(trace)
    assert {step.z for step in trace.answer.trace} == {None, 0}


def test_a_trace_has_each_answer_at_once(recorded, tmp_path, tiny, settings):
    """If a later question cannot be answered, the traces of the earlier ones are on disk."""
    shutil.copy(recorded / "graph.json", tmp_path)
    document, = read_jsonl(EMBEDDED, 1)
    too_long = replace(document.questions[1], text="Who " * 600)
    with pytest.raises(InputError):
        record(tmp_path, tiny, settings, document, [document.questions[0], too_long])
    assert (tmp_path / "trace.jsonl").exists()
    trace, = read_traces(tmp_path / "trace.jsonl")
    assert trace.question == document.questions[0].text


def test_a_trace_in_a_linked_folder_finds_its_graph(recorded, tmp_path, tiny, settings):
    """The trace names its graph as seen from the folder that the link leads to. Its last line needs no line feed."""
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "near").symlink_to(tmp_path / "far" / "away")
    shutil.copy(recorded / "graph.json", tmp_path)
    document, = read_jsonl(EMBEDDED, 1)
    method = Pecan(tiny, TokenMean(tiny), settings)
    prepared = method.prepare(document, tmp_path / "graph.json")
    path = tmp_path / "near" / "trace.jsonl"
    with tracing(method, tmp_path / "graph.json", path):
        method.answer(prepared, document.questions[0].text)
    path.write_text(path.read_text().rstrip("\n"))
    assert not refused(path)


def test_an_answer_in_words_and_for_a_program():
    """Both forms show every figure of the steps and the text of each node read."""
    steps = [Step(2, 2, 2, .5, 1.5e-7, 40, 10, 9, p_yes=0.0, verdict="No"),
             Step(0, 1, 3, .1, .3, 60, 20, 30, z=.0625, c=.5, score=.75, candidates=[(0, .0625, .75)], p_yes=.9,
                  verdict="Yes")]
    answer = Answer("Rome", [2, 0], 3_210_000_000, 77, "yes", trace=steps)
    texts = ["Ann lives in Rome.", "Bob likes tea.", "Ann"]
    words = ["Where?", "  Rome", "  (2 of 3 nodes read, 3.21 GFLOPs; the model said it knows enough)",
             "    #2 of level 2  top level  r 1.5e-07  p_yes 0.000 No", "        Ann",
             "    #0 of level 1  score 0.750 (z 0.0625, c 0.500)  r 0.3  p_yes 0.900 Yes",
             "        Ann lives in Rome."]
    assert [as_text(answer, "Where?", texts, steps).splitlines() for steps in (True, False)] == [words, words[:3]]
    assert "score 0.000 (z 0.0625" in describe(replace(steps[1], score=0.0))
    not_chosen = dict.fromkeys(("z", "c", "score", "candidates"))
    assert json.loads(as_json(answer, "Where?", texts)) == {
        "question": "Where?", "answer": "Rome", "end": "yes", "nodes": [2, 0], "of": 3, "tokens": 77,
        "flops": 3_210_000_000, "steps": [
            {"node": 2, "level": 2, "position": 2, "attention": .5, "r": 1.5e-7, "cached": 40, "flops": 10, "tokens": 9,
             "p_yes": 0, "verdict": "No", "text": "Ann"} | not_chosen,
            {"node": 0, "level": 1, "position": 3, "attention": .1, "r": .3, "cached": 60, "flops": 20, "tokens": 30,
             "z": .0625, "c": .5, "score": .75, "candidates": [[0, .0625, .75]], "p_yes": .9, "verdict": "Yes",
             "text": "Ann lives in Rome."}]}


# --- what was changed -----------------------------------------------------------------------------------------------

@pytest.fixture
def copied(recorded, tmp_path):
    """A long trace that ends with a Yes, a copy of its graph's file, and a function that writes and replays the trace.
    """
    rows = [json.loads(line) for line in (recorded / "trace.jsonl").read_text().splitlines()]
    row = max((row for row in rows if row["answer"]["end"] == "yes"), key=lambda row: len(row["answer"]["nodes"]))
    row["question"] += "\u2028\u2029\x85\x0b"                  # line ends for Python, not for JSON
    shutil.copy(recorded / "graph.json", tmp_path)

    def check():
        (tmp_path / "trace.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n")
        return refused(tmp_path / "trace.jsonl")
    assert check() == ""
    return row, tmp_path / "graph.json", check


def scale(row, *keys):
    for key in keys:
        row[key] *= 1 + 3e-9


def swap(rows, a, b):
    rows[a], rows[b] = rows[b], rows[a]


def other_position(step):
    """Another position, with an attention that gives the same r."""
    step.update(position=step["position"] + 1, attention=step["r"] / (step["position"] + 1))


def before_check(t) -> int:
    """The tokens of the question, the nodes and the answer: a window of this size has no room for a check."""
    opening = t.steps[0]["cached"] - t.row["lengths"][t.steps[0]["node"]]
    return opening + t.row["room"] + t.row["settings"]["answer_tokens"]


def swap_weights(path: Path):
    """Exchange the first and the last weight of a node of the top level; its row still sums to 1."""
    graph = json.loads(path.read_text())
    row = [edge for edge in graph["edges"] if edge[0] == len(graph["nodes"]) - 1]
    row[0][2], row[-1][2] = row[-1][2], row[0][2]
    path.write_text(json.dumps(graph))


# How each kind of tampering changes t.row (a trace), t.steps (its steps) or t.chosen (the first chosen step).
TAMPERING = {
    "r": lambda t: scale(t.steps[2], "r"),
    "r and attention together": lambda t: scale(t.steps[2], "r", "attention"),
    "z": lambda t: scale([candidate for candidate in t.chosen["candidates"][1:] if candidate[1]][-1], 1),
    "score": lambda t: scale(t.chosen["candidates"][9], 2),
    "cosine": lambda t: scale(t.row["c"], t.row["c"].index(max(t.row["c"]))),
    "order of the candidates": lambda t: swap(t.chosen["candidates"], 1, 2),
    "a candidate left out": lambda t: t.chosen["candidates"].pop(),
    "the node that is read": lambda t: t.chosen.update(node=t.chosen["candidates"][1][0]),
    "position": lambda t: t.steps[2].update(position=t.steps[2]["position"] + 1),
    "position and attention together": lambda t: other_position(t.steps[-1]),
    "level": lambda t: t.steps[2].update(level=1),
    "a check during the start": lambda t: t.steps[0].update(p_yes=.5),
    "a step left out": lambda t: t.steps.pop(1),
    "verdict": lambda t: t.steps[-1].update(verdict="No"),
    "a threshold that p_yes only equals": lambda t: t.row["settings"].update(confidence=t.steps[-1]["p_yes"]),
    "patience": lambda t: t.row["settings"].update(patience=2),
    "cached length": lambda t: t.steps[2].update(cached=t.steps[2]["cached"] - 1),
    "room": lambda t: t.row.update(room=t.row["lengths"][t.steps[0]["node"]]),
    "end": lambda t: t.row["answer"].update(end="all"),
    "nodes of the answer": lambda t: t.row["answer"]["nodes"].pop(),
    "a word for a figure": lambda t: t.steps[2].update(attention="much"),
    "a larger room": lambda t: t.row.update(room=t.row["room"] + 100),
    "a smaller window": lambda t: t.row["settings"].update(window=before_check(t)),
    "no nodes": lambda t: t.row["answer"].update(nodes=None),
    "a whole number of 400 digits": lambda t: t.steps[2].update(attention=10 ** 400),
    "a figure left out": lambda t: t.steps[2].pop("r"),
}


@pytest.mark.parametrize("kind", TAMPERING)
def test_tampering_is_refused(copied, kind):
    row, graph, check = copied
    folder = graph.parent
    steps = row["answer"]["trace"]
    TAMPERING[kind](SimpleNamespace(row=row, steps=steps, chosen=next(filter(itemgetter("candidates"), steps))))
    said = check()
    assert said and "\n" not in said
    with pytest.raises(InputError) as error:
        page_main([str(folder / "trace.jsonl"), "-o", str(folder / "t.html")])
    assert str(error.value) == said, "the page gives another error"


def test_a_top_level_that_just_fits(recorded):
    """All of it starts if it fills the room exactly; with one token less, room for later nodes stays free. Of equal
    cosines, the first ones start."""
    trace = read_traces(recorded / "trace.jsonl")[0]
    top = [i for i, node in enumerate(trace.nodes) if node.level == trace.nodes[-1].level]
    room = sum(trace.lengths[i] for i in top)
    assert start(trace._replace(room=room)) == top and len(start(trace._replace(room=room - 1))) < len(top) - 1
    assert start(trace._replace(room=room - 1, c=[.5] * len(trace.nodes)))[:3] == top[:3]


def test_a_changed_graph_is_refused(copied):
    """A changed graph is refused even with its new hash, because the scores do not follow from it."""
    row, graph, check = copied
    swap_weights(graph)
    assert "its hash" in check()
    row["graph"]["hash"] = sha256([graph])
    assert "z of candidate" in check()


def test_a_better_node_that_was_left_out_is_refused(copied):
    """The eleventh node in place of the tenth candidate is refused, with its true score and with the tenth's."""
    row, graph, check = copied
    trace, = read_traces(graph.parent / "trace.jsonl")
    n = next(n for n, step in enumerate(trace.answer.trace) if step.candidates)
    z, final = scores(trace, {step.node: step.r for step in trace.answer.trace[:n]})

    candidates = row["answer"]["trace"][n]["candidates"]
    known = [*trace.answer.nodes[:n], *(i for i, _, _ in candidates)]
    eleventh = max(set(range(len(z))) - set(known), key=lambda i: final[i])
    for score, said in ((final[eleventh], "list of candidates"), (candidates[9][2], f"score of candidate {eleventh}")):
        candidates[9] = [eleventh, z[eleventh], score]
        assert said in check()


def test_another_start_is_refused(recorded, tmp_path, tiny, settings):
    """Two exchanged nodes are refused even if the search ends after its start, so that no score contradicts them."""
    shutil.copy(recorded / "graph.json", tmp_path)
    document, = read_jsonl(EMBEDDED, 1)
    record(tmp_path, tiny, settings, document, document.questions[:1], confidence=0.0)
    path = tmp_path / "trace.jsonl"
    row = json.loads(path.read_text())
    answer = row["answer"]
    assert not refused(path) and not any(step["candidates"] for step in answer["trace"])

    swap(answer["nodes"], 0, 1)
    first, second = answer["trace"][:2]
    first["node"], second["node"] = second["node"], first["node"]
    path.write_text(json.dumps(row) + "\n")
    assert "starts with" in refused(path)


def test_a_search_that_went_on_after_its_end_is_refused(recorded, tmp_path, tiny, settings):
    """One node too many is refused, although every figure of its step follows."""
    shutil.copy(recorded / "graph.json", tmp_path)
    document, = read_jsonl(EMBEDDED, 1)
    record(tmp_path, tiny, settings, document, document.questions[:1], confidence=0.0, patience=2)
    path = tmp_path / "trace.jsonl"
    row = json.loads(path.read_text())
    assert not refused(path) and sum(step["candidates"] is not None for step in row["answer"]["trace"]) == 1
    row["settings"]["patience"] = 1
    path.write_text(json.dumps(row) + "\n")
    assert "why reading ended before" in refused(path)


@pytest.mark.parametrize("text, said", [("", "holds no trace"), ("x\n", "line 1: not valid JSON"), ("[]\n", "a list"),
                                        ('{"format": "pecan trace 1"}\n', "this version reads"),
                                        ('{"format": "pecan trace 2"}\n', "line 1: not a whole")])
def test_what_is_no_trace_is_refused(tmp_path, text, said):
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(InputError, match=said):
        read_traces(tmp_path / "t.jsonl")


# --- the command lines ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("graph, trace, dump", [
    ("new", "mine.jsonl", None), ("new", "none/t.jsonl", None), ("new", "t.txt", None), ("t.jsonl", "t.jsonl", None),
    ("new", "link.jsonl", None), ("mine", None, None), ("new", None, "mine.safetensors"), ("mine.json", None,
    "d.safetensors"), ("d.json", None, "d.safetensors"), ("new", None, "d.pt"), ("config.json", None, None),
    ("new", None, "tokenizer.safetensors"), ("new", None, "model.safetensors"), ("new", None, "pecan.safetensors"),
    ("new", "pipe.jsonl", None)])
def test_no_file_is_lost(tmp_path, graph, trace, dump):
    """Refused: a file that exists and is no trace, a missing folder, a wrong ending, one file under two names, the name
    of a checkpoint's file, a pipe; for a dump, any file that exists.

    mine.json would be the description of mine.safetensors.
    """
    for name in ("mine", "mine.jsonl", "mine.json"):
        (tmp_path / name).write_text('{"format": "mine"}\n')
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "new")
    os.mkfifo(tmp_path / "pipe.jsonl")
    trace, dump = (name and str(tmp_path / name) for name in (trace, dump))
    with pytest.raises(InputError):
        check_files(str(tmp_path / "mine"), tmp_path / graph, trace, dump)
    check_files(str(tmp_path / "mine"), tmp_path / "g", str(tmp_path / "t.jsonl"), str(tmp_path / "d.safetensors"))


def test_a_dump_of_an_interrupted_construction_is_refused(tmp_path, monkeypatch):
    """The summaries that were kept hold no attention, so a dump would lack it."""
    class Killed(Exception):
        pass

    def killed(*_):
        if asked:
            raise Killed
        asked.append(True)
        return summarise(*_)
    summarise = pecan.summarise
    asked = []
    arguments = [str(ROOT / "tiny" / "story.txt"), "Who?", "--device", "cpu", "--batch", "1", "--graph",
                 str(tmp_path / "g.json")]
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(pecan, "summarise", killed)
        ask(arguments)
    with pytest.raises(InputError, match="exists; a dump needs new names for itself and for the graph"):
        ask([*arguments, "--dump", str(tmp_path / "d.safetensors")])


def test_a_walk_without_summaries(tiny, settings, tmp_path):
    """A document of two sentences is one chunk, and its reply may be empty."""
    text = walk(tiny, TokenMean(tiny), settings, Document("d", ["Mara is a baker. Theo lives in Oslo."]), "Who?")
    assert "## Stage 2: retrieval 2" in text


def test_all_has_been_read_only_after_the_last_node(recorded):
    trace = read_traces(recorded / "trace.jsonl")[0]
    trace = trace._replace(room=sum(trace.lengths) - 1)
    steps = [SimpleNamespace(node=i, verdict="No") for i in range(len(trace.nodes))]
    assert [ending(trace, steps[:n]) for n in (-2, -1, None)] == [None, "window", "all"]


def test_every_question_of_every_file(recorded, tmp_path, capsys):
    """Every question is replayed and is on the page, in order. An error in any line of the last file is found."""
    path, output = str(recorded / "trace.jsonl"), tmp_path / "t.html"
    shutil.copytree(recorded, tmp_path / "again")
    again = tmp_path / "again" / "trace.jsonl"
    lines = again.read_text().splitlines(keepends=True)
    again.write_text("".join(lines[::-1]))
    files = [path, str(again)]
    traces = [(file, trace) for file in files for trace in read_traces(file)]
    assert len(traces) == 10 and replay_main(files) == page_main([*files, "-o", str(output)]) == 0
    said = capsys.readouterr()
    assert re.findall(r"\d+", said.err.removeprefix(str(output))) == ["10"]
    assert said.out == "".join(
        f"{file}: {trace.question!r} follows, {len(trace.answer.nodes)} steps\n" for file, trace in traces
    ) + f"{UNCHECKED}\n"
    data = output.read_text().partition('type="application/json">')[2].partition("</script>")[0]
    assert [question["question"] for question in json.loads(data)["questions"]] == [
        trace.question for _, trace in traces]

    row = json.loads(lines[1])
    row["graph"]["hash"] = "x"
    again.write_text(lines[0] + json.dumps(row) + "\n")
    assert "line 2: its hash is different" in refused(again)

    row = json.loads(lines[0])
    row["answer"]["end"] = "all"
    wrong = json.dumps(row) + "\n"
    for number, text in ((1, [wrong, *lines[1:]]), (5, [*lines[1:], wrong])):
        again.write_text("".join(text))
        for main, options in ((replay_main, []), (page_main, ["-o", str(output)])):
            with pytest.raises(InputError, match=f"trace.jsonl, line {number}: why reading ended is all"):
                main([*files, *options])


@pytest.mark.slow
def test_the_commands_of_view(tmp_path, monkeypatch, capsys):
    """The commands of view/README.md work in a folder with the story. The first runs twice and replaces its trace."""
    (tmp_path / "tiny").mkdir()
    shutil.copy(ROOT / "tiny" / "story.txt", tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    asked = ["tiny/story.txt", "When did Selma move?"]
    for command, options in ((ask, [*asked, "--trace", "selma.jsonl"]), (ask, [*asked, "--trace", "selma.jsonl"]),
                             (ask, [*asked, "--graph", "dumped.graph.json", "--dump", "selma.safetensors"]),
                             (replay_main, ["selma.jsonl"]), (page_main, ["selma.jsonl", "-o", "selma.html"])):
        assert command(options) == 0
        printed = capsys.readouterr().out
        if command is ask:
            assert len(printed.splitlines()) == 3, "a trace that is written is not printed"
        if command is replay_main:
            assert f"follows, 12 steps\n{UNCHECKED}" in printed
    assert Path("selma.safetensors").exists() and Path("selma.json").exists()
    assert "When did Selma move?" in Path("selma.html").read_text()
