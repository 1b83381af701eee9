"""The page of a trace: every figure is the trace's, and a document's text is shown, never run."""
import json
import re
from dataclasses import replace

import pytest

from core.files import InputError
from data import ENDS
from pecan import Node, Pecan
from support.token_mean import TokenMean
from view import annotate
from view.page import main, page, source_hash
from view.trace import read_traces, tracing

HOSTILE = ['</script><script>window.hacked = 1</script>', '<img src=x onerror="window.hacked = 1">',
           "{{ 7 * 7 }}${window.hacked = 1}", "<!--<script>", "é\u2028中\u2029🙂"]


@pytest.fixture(scope="module")
def traces(tmp_path_factory, tiny, settings, document, question):
    """A search that ends with a Yes; one by attention alone that ends with a full window."""
    folder = tmp_path_factory.mktemp("page")
    method = Pecan(tiny, TokenMean(tiny), settings)
    prepared = method.prepare(document, folder / "graph.json")
    found = []
    for method.settings in (settings, replace(settings, confidence=.999999, similarity=False)):
        with tracing(method, folder / "graph.json", folder / "trace.jsonl"):
            method.answer(prepared, question)
        found += read_traces(folder / "trace.jsonl")
    return found


# --- without a browser ----------------------------------------------------------------------------------------------

def test_a_text_cannot_leave_its_block(traces):
    """The texts of documents and models stand in JSON without "<", which alone could end the block."""
    html = page([traces[0]._replace(question=said) for said in HOSTILE])
    block = re.search('<script id="data" type="application/json">(.*?)</script>', html, re.S)[1]
    assert "<" not in block and [row["question"] for row in json.loads(block)["questions"]] == HOSTILE


@pytest.mark.parametrize("kind", ["page", "annotate"])
def test_nothing_is_asked_of_the_network(traces, kind):
    """The policy allows nothing but the page's own style and script, which it names by their hashes."""
    html = page(traces) if kind == "page" else annotate.annotated()
    policy = dict(part.split(" ", 1) for part in re.search('Policy" content="(.*?)"', html)[1].split("; "))
    hashes = {f"{of}-src": source_hash(re.search(f"<{of}>(.*?)</{of}>", html, re.S)[1]) for of in ("style", "script")}
    assert policy == hashes | {"default-src": "'none'", "img-src": "data:", "base-uri": "'none'",
                               "form-action": "'none'"}


def test_a_page_replaces_only_pages(tmp_path):
    name = str(tmp_path / "t.jsonl")
    for command, arguments in ((main, ["t.jsonl", "-o", name]), (annotate.main, ["-o", name])):
        with pytest.raises(InputError, match="end with .html"):
            command(arguments)


# --- in a browser ---------------------------------------------------------------------------------------------------

@pytest.fixture
def opened(browser, tmp_path):
    """A function that opens the page of some traces, and returns a function that evaluates an expression there."""
    def open_page(traces, fragment=""):
        (tmp_path / "page.html").write_text(page(traces), encoding="utf-8")
        browser.get("about:blank")
        browser.get((tmp_path / "page.html").as_uri() + fragment)
        return lambda expression, *arguments: browser.execute_script(f"return {expression}", *arguments)
    browser.get_log("browser")                              # messages of an earlier page
    yield open_page
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert browser.get_log("browser") == []


def test_every_figure_of_every_step(opened, traces):
    """Each figure is there with three digits. What enters a node adds up to its z, and is drawn."""
    run = opened(traces)

    def texts(selector):
        return run("[...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector)

    def values(selector):
        return [pytest.approx(float(text), rel=6e-3) for text in texts(selector)]

    assert run("data.graphs.length") == 1, "a graph of two questions is there twice"
    for n, trace in enumerate(traces):
        run("choose(arguments[0])", n)
        nodes = trace.answer.nodes
        for number, step in enumerate(trace.answer.trace, 1):
            run("show(arguments[0])", number)
            read = trace.answer.trace[:number][::-1]
            candidates = step.candidates or []
            assert texts("#step") == [f"step {number} of {len(nodes)}"]
            assert texts("#reads") == [trace.nodes[step.node].text]
            assert values("#candidates .score") == [score for _, _, score in candidates]
            assert values("#candidates .z-value") == [z for _, z, _ in candidates]
            assert values("#candidates .c-value") == [trace.c[i] for i, _, _ in candidates]
            assert values("#relevance .r") == [row.r for row in read]
            assert values("#relevance .attention") == [row.to_query for row in read]
            assert values("#verdict .p_yes") == [step.p_yes] * bool(step.verdict)
            assert values("#spent span") == [number, step.tokens, step.flops / 1e9, step.cached]
            assert run("buttons.map(b => b.dataset.order)") == [
                str(nodes.index(i) + 1) if i in nodes[:number] else "" for i in range(len(trace.nodes))]

            r = {row.node: row.r for row in read[1:] if candidates}
            parts = sorted(((r[i] * e, i, e) for i, j, e in trace.edges if j == step.node and i in r), reverse=True)
            assert values("#inflow .part") == [part for part, _, _ in parts]
            assert values("#inflow-sum .z-sum") == [step.z] * bool(parts)
            assert run("document.querySelectorAll('#edges .flow').length") == len(parts)
            if parts and parts[0][0] > .99 * step.z and step.c <= 0:
                assert f"#{step.node} is read because #{parts[0][1]} matters" in texts("#says")[0]
        run("show(arguments[0])", number + 1)
        assert texts("#answer, #end") == [trace.answer.text, ENDS[trace.answer.end]]
        assert [text.lower() for text in texts("#reads mark")] in ([], [trace.answer.text.lower()])


def test_a_link_leads_to_a_step(opened, traces):
    """The address names question and step, and follows them."""
    run = opened(traces, "#question=2&step=3")
    assert run("[query === data.questions[1], at]") == [True, 3]
    run("show(4)")
    assert run("location.hash") == "#question=2&step=4"
    assert opened(traces, "#question=9&step=x")("[data.questions.indexOf(query), at]") == [0, 0]


@pytest.mark.parametrize("said", HOSTILE)
def test_hostile_text_is_shown_and_not_run(opened, traces, said):
    run = opened([traces[0]._replace(nodes=[Node(1, said), *traces[0].nodes[1:]], question=said)])
    run("details(0)")
    assert run("[document.title, by('question').textContent, by('details-text').textContent]") == [said] * 3
    assert run("[typeof window.hacked, document.images.length, document.scripts.length]") == ["undefined", 0, 2]


@pytest.mark.parametrize("width", [390, 820, 1000, 1400])
def test_no_node_covers_another_and_nothing_is_cut(opened, browser, traces, width):
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                            {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600})
    flat = traces[0]._replace(nodes=[Node(1, node.text) for node in traces[0].nodes], edges=[])
    for trace in (traces[0], flat):
        run = opened([trace])
        run("show(query.steps.length)")
        assert run("document.documentElement.scrollWidth <= innerWidth")
        for height in (1, 24, 56):
            boxes = run("(by('height').value = arguments[0], draw(), boxes)", height)
            corners = sorted((round(box["x"]), box["y"]) for box in boxes)
            assert all(y - above > height for (x, above), (column, y) in zip(corners, corners[1:]) if x == column)
