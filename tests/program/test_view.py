"""A trace holds what ran, and is refused if it or its graph has changed. What pecan.py prints and overwrites."""
import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from core.files import InputError
from data import Answer
from pecan import Pecan, Step
from support.token_mean import TokenMean
from view.ask import as_json, as_text, ask, check_files, describe
from view.page import main as page_main
from view.trace import read_traces, tracing

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, tiny, settings, document):
    """A prepared document, and the file of its graph."""
    path = tmp_path_factory.mktemp("trace") / "graph.json"
    return Pecan(tiny, TokenMean(tiny), settings).prepare(document, path), path


@pytest.fixture
def traced(prepared, tiny, settings, question, tmp_path):
    """A function that answers a question with changed settings. It returns the answer and the trace's path."""
    graph = Path(shutil.copy(prepared[1], tmp_path))

    def answer(*questions, **changes):
        method = Pecan(tiny, TokenMean(tiny), replace(settings, **changes))
        with tracing(method, graph, tmp_path / "trace.jsonl"):
            answers = [method.answer(prepared[0], text) for text in questions or (question,)]
        return answers[-1], tmp_path / "trace.jsonl"
    return answer


@pytest.mark.parametrize("changes, end", [
    ({"confidence": .5}, "yes"), ({"confidence": .999999}, "window"), ({"fixed_nodes": 12}, "nodes"),
    ({"confidence": .999999, "window": 4000}, "all")], ids=str)
def test_a_trace_holds_what_ran(traced, changes, end):
    """The file alone explains every choice: z and scores follow from its r, its c and its graph's edges."""
    answer, path = traced(**changes)
    trace, = read_traces(path)
    assert asdict(trace.answer) == json.loads(json.dumps(asdict(answer))) and answer.end == end
    assert trace.room >= sum(trace.lengths[i] for i in answer.nodes)

    sum_c = sum(max(c, 0) for c in trace.c)
    r = dict.fromkeys(range(len(trace.nodes)), 0)
    for step in answer.trace:
        if step.candidates:
            z = [sum(r[i] * e for i, j, e in trace.edges if j == node) for node in r]
            for node, z_shown, score in step.candidates:
                assert z_shown == pytest.approx(z[node])
                assert score == pytest.approx(z[node] / sum(z) + max(trace.c[node], 0) / sum_c)
            assert [step.node, step.z, step.score] == list(step.candidates[0]) and step.c == trace.c[step.node]
        r[step.node] = step.r


def test_each_answer_is_on_disk_at_once(traced, question, tmp_path):
    """If a later question cannot be answered, the trace of the earlier one is there."""
    with pytest.raises(InputError):
        traced(question, "Who " * 600)
    assert [trace.question for trace in read_traces(tmp_path / "trace.jsonl")] == [question]


@pytest.mark.parametrize("change", [
    lambda row, step: step.update(node=999), lambda row, step: row["graph"].update(hash="x"),
    lambda row, step: row["graph"].update(file="none.json")])
def test_a_damaged_trace_gives_one_line_and_no_page(traced, tmp_path, change):
    _, path = traced()
    row = json.loads(path.read_text())
    change(row, row["answer"]["trace"][-1])
    path.write_text(json.dumps(row))
    with pytest.raises(InputError, match=r"trace.jsonl, line 1|none.json") as error:
        page_main([str(path), "-o", str(tmp_path / "page.html")])
    assert "\n" not in str(error.value) and not (tmp_path / "page.html").exists()


def test_an_answer_in_words_and_for_a_program():
    """Both forms show every figure of the steps and the text of each node read."""
    steps = [Step(2, 2, 2, .5, 1.5e-7, 40, 10, 9, p_yes=0.0, verdict="No"),
             Step(0, 1, 3, .1, .3, 60, 20, 30, z=.0625, c=.5, score=0.0, candidates=[(0, .0625, 0.0)], p_yes=.9,
                  verdict="Yes")]
    answer = Answer("Rome", [2, 0], 3_210_000_000, 77, "yes", trace=steps)
    texts = ["Ann lives in Rome.", "Bob likes tea.", "Ann"]
    words = ["Where?", "  Rome", "  (2 of 3 nodes read, 3.21 GFLOPs; the model said it knows enough)",
             "  #2 level 2  top level  r 1.5e-07  p_yes 0.000 No", "      Ann",
             "  #0 level 1  score 0.000 (z 0.0625, c 0.500)  r 0.3  p_yes 0.900 Yes", "      Ann lives in Rome."]
    assert [as_text(answer, "Where?", texts, steps).splitlines() for steps in (True, False)] == [words, words[:3]]

    long = Step(1234, 4, 99, .1, .000123, 1, 1, 1, z=1.23e-6, c=-.123, score=.123, p_yes=.999, verdict="Yes")
    assert len("  " + describe(long)) <= 80
    row = json.loads(as_json(answer, "Where?", texts))
    assert row.pop("steps") == [json.loads(json.dumps(asdict(step) | {"text": texts[step.node]})) for step in steps]
    assert row == {"question": "Where?", "answer": "Rome", "end": "yes", "nodes": [2, 0], "of": 3, "tokens": 77,
                   "flops": 3_210_000_000}


@pytest.mark.parametrize("graph, trace", [
    ("new", "mine.jsonl"), ("new", "none/t.jsonl"), ("new", "t.txt"), ("t.jsonl", "t.jsonl"), ("new", "link.jsonl"),
    ("mine", None)])
def test_no_file_is_lost(tmp_path, graph, trace):
    """Refused: a file that exists and is no trace, a missing folder, a wrong ending, one file under two names."""
    for name in ("mine", "mine.jsonl"):
        (tmp_path / name).write_text('{"format": "mine"}\n')
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "new")
    with pytest.raises(InputError):
        check_files(str(tmp_path / "mine"), tmp_path / graph, trace and str(tmp_path / trace))
    check_files(str(tmp_path / "mine"), tmp_path / "graph", str(tmp_path / "t.jsonl"))


def test_the_commands_of_view(tmp_path, monkeypatch, capsys):
    """The commands of view/README.md work in a folder with the story. The second time, the graph is reloaded and the
    trace replaced; the answer is the same."""
    (tmp_path / "tiny").mkdir()
    shutil.copy(ROOT / "tiny" / "story.txt", tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    printed = []
    for verb in ("built", "reloaded"):
        assert ask(["tiny/story.txt", "When did Selma move?", "--trace", "selma.jsonl"]) == 0
        out, err = capsys.readouterr()
        printed.append(out)
        assert len(out.splitlines()) == 3 and f"{verb} story.txt." in err, "a trace that is written is not printed"
    assert printed[0] == printed[1]
    assert page_main(["selma.jsonl", "-o", "selma.html"]) == 0
    assert "When did Selma move?" in Path("selma.html").read_text("utf-8")
