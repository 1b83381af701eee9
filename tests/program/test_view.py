"""Traces and their page: they hold what ran, damage is refused, and a document's text is shown, never run."""
import itertools
import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from chromium import CONTRAST
from runs import run, table

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


def plain(record) -> dict:
    """A dataclass as it comes back from JSON."""
    return json.loads(json.dumps(asdict(record)))


# --- traces ---------------------------------------------------------------------------------------------------------

def test_a_trace_holds_what_ran(searched, prepared, traces):
    for trace, question, method, answer in zip(traces, *searched, strict=True):
        assert trace == trace | {"question": question, "prediction": answer.text, "end": answer.end,
                                 "trace": plain(answer)["trace"], "graph": trace["graph"] | plain(prepared[1].graph)}
        search = trace["search"]
        assert search["settings"] == asdict(method.settings)
        assert all(search["c"][step.node] == step.c for step in answer.trace if step.candidates)
        assert sum(search["lengths"][i] for i in answer.nodes) <= search["room"] < method.settings.window

    file = prepared[2].with_name("trace.jsonl")
    assert read_searches(file, searched[0][1]) == traces[1:2]
    with pytest.raises(InputError, match="no search for the question 'other'"):
        read_searches(file, "other")
    other = traces[0] | {"graph": traces[0]["graph"] | {"hash": "of another graph"}}
    assert [row["graph"] for row in data_of(page([*traces, other]))["questions"]] == [*[0] * 6, 1]


def test_each_answer_is_on_disk_at_once(question, tmp_path):
    """If a later question cannot be answered, those before are there. Their graph is in another folder."""
    (tmp_path / "graphs").mkdir()
    file = tmp_path / "trace.jsonl"
    with pytest.raises(InputError):
        ask([str(STORY), question, "Who is it?", "Who " * 600, "--graph", f"{tmp_path}/graphs/g.json", "--trace",
             str(file)])
    assert [trace["question"] for trace in read_searches(file)] == [question, "Who is it?"]


def test_a_trace_is_of_its_graph_alone(prepared, traces, tmp_path):
    """Another file with the same nodes and edges may be of another code. (test_graph_file.py damages both files.)"""
    shutil.copytree(prepared[2].parent, tmp_path, dirs_exist_ok=True)
    (tmp_path / "graph.json").write_text(json.dumps(traces[0]["graph"]))
    with pytest.raises(InputError, match="graph.json: is not the graph of"):
        read_searches(tmp_path / "trace.jsonl")


def test_a_trace_is_appended_only_to_traces(tmp_path):
    """This is known before a model is loaded."""
    (tmp_path / "mine.jsonl").write_text('{"format": "mine"}\n')
    for name in ("mine.jsonl", "none/t.jsonl"):
        with pytest.raises((InputError, OSError), match=name):
            ask([str(STORY), "Who is it?", "--model", str(tmp_path), "--trace", f"{tmp_path}/{name}"])


# --- the command ----------------------------------------------------------------------------------------------------

def test_the_commands_of_view(tmp_path, monkeypatch, capsys, prepared):
    """The commands of view/README.md work in a folder with the story. The second time, the graph is reloaded, and the
    page has both searches. The answer is the method's own. A book of unknown words brings a warning. (test_readme.py
    has an answer in words.)"""
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
    Path("book.txt").write_text("It was the best of times, it was the worst of times.")
    assert ask(["book.txt", question]) == 0 and "warning: " in capsys.readouterr().err
    assert main(["selma.jsonl"]) == 0
    assert len(data_of(Path("selma.html").read_text("utf-8"))["questions"]) == 2


def test_an_answer_of_eval_as_a_page(tmp_path):
    """The page has this question alone, with the steps of its line and the graph of its document; no option of the run
    is said again."""
    run("--limit", 1, "--method", "pecan,bm25", "--window", 300, "--output", tmp_path)
    file = tmp_path / "embedded" / "pecan.jsonl"
    assert main([str(file), "--question", "test-0-1"]) == 0
    [shown] = data_of(file.with_suffix(".html").read_text("utf-8"))["questions"]
    [row] = [row for row in map(json.loads, file.read_text().splitlines()) if row["id"] == "test-0-1"]
    assert shown["steps"] == row["trace"] and shown["answer"]["text"] == row["prediction"]
    assert shown["settings"]["window"] == 300
    with pytest.raises(InputError, match="bm25.jsonl: holds no search"):
        main([str(file.with_stem("bm25"))])


def data_of(html: str) -> dict:
    """What a page shows: its block of JSON, which ends with its first tag."""
    return json.loads(re.search('<script id="data" type="application/json">([^<]*)</script>', html)[1])


# --- the page, in a browser -----------------------------------------------------------------------------------------

@pytest.mark.slow
def test_every_figure_of_every_step(show, prepared, searched, traces):
    """Each figure is there with four digits, amounts of attention in units of a power of ten. What enters a node adds
    up to its z, and z, c and the sums to its score.
    """
    document = prepared[1]
    E = document.graph.E.tolist()
    run = show(page(traces))

    def texts(selector):
        return run("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector)

    def values(selector, unit=1):
        return [pytest.approx(float(text) * unit, rel=6e-4) for text in texts(selector)]

    for n, (trace, method, answer) in enumerate(zip(traces, *searched[1:])):
        run(f"choose({n})")
        unit = 10 ** run("return exponent")
        assert all(row.r < 100 * unit for row in answer.trace)
        attention, similarity = method.settings.attention, method.settings.similarity
        for number, step in enumerate(answer.trace, 1):
            run(f"show({number})")
            read = answer.trace[:number][::-1]
            candidates = step.candidates or []
            assert texts("#reads") == [document.texts[step.node]]
            assert values("#candidates .score", 1 if similarity else unit) == [score for _, _, score in candidates]
            assert values("#candidates .z-value", unit) == [z for _, z, _ in candidates]
            assert values("#candidates .c-value") == [trace["search"]["c"][i] for i, _, _ in candidates]
            assert values("#relevance .r", unit) == [row.r for row in read]
            assert values("#relevance .attention", unit) == [row.to_query for row in read]
            assert values("#verdict .p_yes") == [step.p_yes] * bool(step.verdict)
            assert values("#spent span") == [number, step.tokens, step.flops / 1e9, step.cached]

            entering = [(row.r * E[row.node][step.node], row.node) for row in read[1:] if candidates]
            parts = sorted((part for part in entering if part[0]), reverse=True)
            assert values("#inflow .part", unit) == [part for part, _ in parts]
            assert values("#inflow-sum .z-sum", unit) == [step.z] * bool(parts)
            if candidates and attention and similarity:
                sum_z, sum_c = map(float, texts("#formula .sum-z, #formula .sum-c"))
                for i, z, score in candidates:
                    assert z / unit / sum_z + max(trace["search"]["c"][i], 0) / sum_c == pytest.approx(score, rel=2e-3)
                if parts and parts[0][0] > .99 * step.z and step.c <= 0:
                    assert f"above all from #{parts[0][1]}" in texts("#says")[0]
        run(f"show({number + 1})")
        assert texts("#answer, #end") == [answer.text, answer.end]


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


@pytest.mark.slow
def test_where_reading_would_end(show, prepared, question, traces):
    """For fifty pairs of t_p and t_n, reading ends where a search with them ends. Some t_p equal a p_yes."""
    method, document, _ = prepared
    checks = [step["p_yes"] for step in traces[-1]["trace"] if step["p_yes"] is not None]
    thresholds = [0, .5, .9, .99, .9999, *sorted(checks)[-5:]]
    run = show(page(traces[-1:]))
    for confidence, patience in itertools.product(thresholds, (1, 2, 3, 5, 8)):
        search = method.search(document, question)
        search.settings = replace(method.settings, confidence=confidence, patience=patience)
        search.run()
        assert run(f"return stop({{confidence: {confidence}, patience: {patience}}})") == len(search.visited)


@pytest.mark.parametrize("said, texts, stands", table("""
    No         | Nobody came. / No.                                    |
    N/A        | n/a                                                   |
    .          | x.                                                    |
    wine.      | He sells swine. / Ann drinks wine, they say. / Red Wine | 1 2
    U.S. (old) | in the u.s. (old) times                               | 0
    Zoë        | Zoës / an \u00e9 and Zoë                              | 1"""))
def test_where_the_answer_stands(show, traces, said, texts, stands):
    """In the read nodes that have it as whole words, the one with the largest r first; Yes and No stand nowhere."""
    trace = traces[0]
    trace["prediction"] = said
    nodes = [step["node"] for step in sorted(trace["trace"], key=lambda step: -step["r"])]
    for i, text in itertools.zip_longest(nodes, texts.split(" / "), fillvalue="-"):
        trace["graph"]["nodes"][i]["text"] = text
    run = show(page([trace]))
    assert run("return evidence().nodes") == [nodes[int(k)] for k in stands.split()]
    says = run("show(query.steps.length + 1); return by('says').textContent")
    assert (" stands in " in says) == bool(stands)


def test_a_link_leads_to_a_step(show, traces):
    """The address names question and step, and follows them."""
    where = "return [data.questions.indexOf(query), at]"
    run = show(page(traces), "#question=2&step=3")
    assert run(where) == [1, 3]
    assert run("show(4); return location.hash") == "#question=2&step=4"
    assert show(page(traces), "#question=9&step=x")(where) == [0, 0]


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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(show, traces, scheme):
    """Every text has a contrast of 4.5 to 1 or more, at every step and at the answer."""
    run = show(page(traces), scheme=scheme)
    for number in (0, 3, 8, 100):
        ratio, words = run(f"show({number}); {CONTRAST}")
        assert ratio >= 4.5, (number, words)


@pytest.mark.parametrize("width", [390, 820])
def test_the_winner_is_on_the_screen_with_the_chips(show, traces, width):
    run = show(page(traces), "#question=1&step=8", width)
    for name in ("attention", "similarity", "position"):
        seen = run("""document.querySelector("[value=" + arguments[0] + "]").click();
            const bar = document.querySelector("nav").getBoundingClientRect().top;
            return [by("chips"), buttons[winner()]].filter(Boolean).map(part => part.getBoundingClientRect())
                .every(({top, bottom}) => top >= 0 && bottom <= bar);""", name)
        assert seen, name
        run("document.querySelector('[value=' + arguments[0] + ']').click()", name)
