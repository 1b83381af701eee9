"""Traces and their page: they hold what ran, damage is refused, and a document's text is shown, never run."""
import itertools
import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from runs import run

from core.disk import beside, write_row
from core.files import InputError
from data import read_text
from encoders.token_mean import TokenMean
from evaluation.answers import row_of
from pecan import Pecan, final_scores
from view.ask import as_text, ask
from view.page import main, page, read_searches
from view.search import STORY

HOSTILE = ['</script><script>window.hacked = 1</script>', '<img src=x onerror="window.hacked = 1">',
           "{{ 7 * 7 }}${window.hacked = 1}", "<!--<script>", "é\u2028中\u2029🙂"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, tiny, settings, document):
    """A method, a prepared document, and the file of its graph."""
    path = tmp_path_factory.mktemp("view") / "graph.json"
    method = Pecan(tiny, TokenMean(tiny), settings)
    return method, method.prepare(document, path), path


# Six searches. The second and the last fill their window, the fourth ends after a number of nodes.
CHANGED = json.loads("""[
    {}, {"confidence": 0.999999, "similarity": false}, {"attention": false}, {"fixed_nodes": 14}, {"patience": 3},
    {"confidence": 0.999999}]""")


@pytest.fixture(scope="module")
def searched(prepared, question):
    """The questions, methods and answers of six searches, the second with its own question. Their file lies beside the
    graph."""
    method, document, path = prepared
    questions = [question, question.replace("drink", "play"), *[question] * 4]
    methods = [Pecan(method.model, method.encoder, replace(method.settings, **changed)) for changed in CHANGED]
    answers = [method.answer(document, asked) for method, asked in zip(methods, questions)]
    assert [answer.end for answer in answers][1::2] == ["the window was full", "the fixed number of nodes was read",
                                                           "the window was full"]

    file = path.with_name("trace.jsonl")
    for asked, answer in zip(questions, answers):
        write_row(file, row_of(asked, asked, answer, beside(file, path)))
    return questions, methods, answers


@pytest.fixture
def traces(searched, prepared):
    return read_searches(prepared[2].with_name("trace.jsonl"))


# --- traces ---------------------------------------------------------------------------------------------------------

def test_a_trace_holds_what_ran(searched, prepared, traces):
    """A row's own fields: test_a_line_of_predictions."""
    for trace, question, method, answer in zip(traces, *searched, strict=True):
        assert (trace["question"], trace["prediction"], trace["end"]) == (question, answer.text, answer.end)
        search = trace["search"]
        assert search["settings"] == asdict(method.settings)
        assert all(search["c"][step.node] == step.c for step in answer.trace if step.candidates)
        assert sum(search["lengths"][i] for i in answer.nodes) <= search["room"] < method.settings.window
    other = traces[0] | {"graph": traces[0]["graph"] | {"hash": "of another graph"}}
    assert [row["graph"] for row in data_of(page([*traces, other]))["questions"]] == [*[0] * 6, 1]


# --- the command ----------------------------------------------------------------------------------------------------

def test_the_commands_of_view(tmp_path, monkeypatch, capsys, prepared):
    """The commands of view/README.md work in a folder with the story. The second time, the graph is reloaded. Each
    answer is on disk at once, and the page has all. A book of unknown words brings a warning, as does an encoder that
    does not read all of a node."""
    (tmp_path / "tiny").mkdir()
    shutil.copy(STORY, tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    method, question = prepared[0], "When did Selma move?"
    story = method.prepare(read_text("tiny/story.txt"))
    answer = method.answer(story, question)
    for verb in ("built", "reloaded"):
        assert ask(["tiny/story.txt", question, "--trace", "selma.jsonl"]) == 0
        out, err = capsys.readouterr()
        assert f"{verb} story.txt." in err and "warning" not in err
        assert out == as_text(answer, question, story.texts, False) + "\n"
    with pytest.raises(InputError):
        ask(["tiny/story.txt", "Who is it?", "Who " * 600, "--trace", "selma.jsonl"])
    assert main(["selma.jsonl"]) == 0
    shown = data_of(Path("selma.html").read_text("utf-8"))["questions"]
    assert [each["question"] for each in shown] == [question, question, "Who is it?"]
    Path("book.txt").write_text("It was the best of times, it was the worst of times.")
    assert ask(["book.txt", question]) == 0 and "warning: " in capsys.readouterr().err
    monkeypatch.setattr(TokenMean, "cut", lambda _, texts: {"encoded": len(texts), "longer": 1})
    assert ask(["tiny/story.txt", question]) == 0
    assert f"warning: 1 of {len(story.texts)} texts are longer" in capsys.readouterr().err


def test_an_answer_of_eval_as_a_page(tmp_path):
    """The page has this question alone, with the steps of its line and the graph of its document; no option of the run
    is said again. Another graph, with the same nodes and edges, may be of another code: it is refused."""
    run("--limit", 1, "--method", "pecan,bm25", "--window", 300, "--output", tmp_path)
    file = tmp_path / "embedded" / "pecan.jsonl"
    assert main([str(file), "--question", "test-0-1"]) == 0
    [shown] = data_of(file.with_suffix(".html").read_text("utf-8"))["questions"]
    [row] = [row for row in map(json.loads, file.read_text().splitlines()) if row["id"] == "test-0-1"]
    assert shown["steps"] == row["trace"] and shown["answer"]["text"] == row["prediction"]
    assert shown["settings"]["window"] == 300
    other = file.with_stem("other")
    write_row(other, {name: value for name, value in row.items() if name != "seal"} | {"graph": None})
    graph, = tmp_path.glob("graphs/*.json")
    graph.write_text(graph.read_text() + "\n")
    for name, said in (("pecan", f"{graph.name}: is not the graph of"), ("bm25", "bm25.jsonl: holds no search"),
                       ("other", "none whose graph was kept")):
        with pytest.raises(InputError, match=said):
            main([str(file.with_stem(name))])


def data_of(html: str) -> dict:
    """What a page shows: its block of JSON, which ends with its first tag."""
    return json.loads(re.search('<script id="data" type="application/json">([^<]*)</script>', html)[1])


# --- the page, in a browser -----------------------------------------------------------------------------------------

FIGURES = """#reads; #answer, #end; #candidates .score; #candidates .z-value; #candidates .c-value; #relevance .r;
    #relevance .attention; #verdict .p_yes; #spent span; #inflow .part; #inflow-sum .z-sum; #formula .sum-z;
    #formula .sum-c"""


@pytest.mark.slow
def test_every_figure_of_every_step(show, prepared, searched, traces):
    """Each figure is there with four digits, amounts of attention in units of a power of ten. What enters a node adds
    up to its z, and z, c and the sums to its score.
    """
    document = prepared[1]
    E = document.graph.E.tolist()
    run = show(page(traces))
    for n, (trace, method, answer) in enumerate(zip(traces, *searched[1:])):
        exponent, steps = run("""choose(arguments[0]);
            return [exponent, [...query.steps, query.answer].map((_, k) => {
                show(k + 1);
                return Object.fromEntries(arguments[1].map(selector =>
                    [selector, [...document.querySelectorAll(selector)].map(e => e.textContent)]));
            })]""", n, [selector.strip() for selector in FIGURES.split(";")])
        unit = 10 ** exponent
        c = trace["search"]["c"]
        attention, similarity = method.settings.attention, method.settings.similarity
        assert all(row.r < 100 * unit for row in answer.trace)
        assert steps.pop()["#answer, #end"] == [answer.text, answer.end]

        for number, (step, shown) in enumerate(zip(answer.trace, steps, strict=True), 1):
            read = answer.trace[:number][::-1]
            candidates = step.candidates or []
            entering = [row.r * E[row.node][step.node] for row in read[1:] if candidates]
            parts = sorted(filter(None, entering), reverse=True)
            assert shown["#reads"] == [document.texts[step.node]]
            for selector, factor, numbers in (
                    ("#candidates .score", 1 if similarity else unit, [score for _, _, score in candidates]),
                    ("#candidates .z-value", unit, [z for _, z, _ in candidates]),
                    ("#candidates .c-value", 1, [c[i] for i, _, _ in candidates]),
                    ("#relevance .r", unit, [row.r for row in read]),
                    ("#relevance .attention", unit, [row.to_query for row in read]),
                    ("#verdict .p_yes", 1, [step.p_yes] * bool(step.verdict)),
                    ("#spent span", 1, [number, step.tokens, step.flops / 1e9, step.cached]),
                    ("#inflow .part", unit, parts), ("#inflow-sum .z-sum", unit, [step.z] * bool(parts))):
                assert [float(text) * factor for text in shown[selector]] == pytest.approx(numbers, rel=6e-4), selector
            if candidates and attention and similarity:
                [sum_z], [sum_c] = (map(float, shown[f"#formula .sum-{name}"]) for name in "zc")
                for i, z, score in candidates:
                    assert z / unit / sum_z + max(c[i], 0) / sum_c == pytest.approx(score, rel=2e-3)


NAMES = "attention", "similarity", "position", "edge"
CHIPS = [set(chips) for n in range(5) for chips in itertools.combinations(NAMES, n)]


def would_be_read(search, node, struck):
    """The node that pecan.final_scores puts first, of those that fit, without what is struck out. `node` was read."""
    if {"attention", "similarity"} <= struck:
        return None
    E, r = search.E.clone(), search.r.clone()
    if "edge" in struck:
        E[(r * E[:, node]).argmax(), node] = 0
    if "position" in struck:
        for step in search.trace:
            r[step.node] = step.to_query
    _, score = final_scores(E, r, search.c, "attention" not in struck, "similarity" not in struck)
    fit = [i for i, length in enumerate(search.lengths) if length <= search.room and i not in search.visited]
    return max(fit, key=lambda i: score[i])


def test_what_would_be_read_if_something_were_struck_out(show, prepared, searched, traces):
    """The page's winner is that of pecan.final_scores, for every step and all chips. With none struck out it is the
    node that was read.
    """
    run = show(page(traces))
    for n, (question, method, answer) in enumerate(zip(*searched)):
        found = run("""choose(arguments[0]);
            return query.steps.map((step, k) => arguments[1].map(chips => {
                [at, struck] = [k + 1, new Set(chips)];
                return step.candidates ? winner() ?? null : -1;
            }))""", n, list(map(list, CHIPS)))
        off = {name for name in ("attention", "similarity") if not getattr(method.settings, name)}
        search = method.search(prepared[1], question)
        search.start()
        for step, winners in zip(answer.trace, found):
            if step.candidates:
                assert winners == [would_be_read(search, step.node, struck) for struck in CHIPS]
                assert winners[CHIPS.index(off)] == step.node
                search.next()


def test_where_reading_would_end(show, prepared, question, searched, traces):
    """The page of a long search says where a search with other t_p and t_n ends."""
    run = show(page(traces[-1:]))
    checks = sorted(step.p_yes for step in searched[2][-1].trace if step.p_yes is not None)
    found = set()
    for confidence, patience in itertools.product((checks[-6], checks[-1]), (1, 2, 4)):
        search = prepared[0].search(prepared[1], question)
        search.settings = replace(search.settings, confidence=confidence, patience=patience)
        search.run()
        found.add(len(search.visited))
        assert run(f"return stop({{confidence: {confidence}, patience: {patience}}})") == len(search.visited)
    assert len(found) > 3


def test_hostile_text_is_shown_and_not_run(show, traces):
    """The texts of documents and models stand in JSON without "<", which alone could end the block. The policy asks
    nothing of the network. It allows the page's own style and script, or the console would complain."""
    traces[0]["graph"]["nodes"][0]["text"] = everything = "".join(HOSTILE)
    html = page([traces[0] | {"question": said} for said in HOSTILE])
    assert "Policy\" content=\"default-src 'none'; style-src 'sha256-" in html
    assert [row["question"] for row in data_of(html)["questions"]] == HOSTILE
    run = show(html)
    for n, said in enumerate(HOSTILE):
        run(f"choose({n}); details(0)")
        shown = run("return [document.title, by('question').textContent, by('details-text').textContent]")
        assert shown == [said, said, everything]
    assert run("return [typeof window.hacked, document.images.length, document.scripts.length]") == ["undefined", 0, 2]
