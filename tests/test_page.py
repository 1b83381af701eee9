"""The page of a trace, in a browser: every figure is the trace's, and a document's text is shown, never run."""
import json
from dataclasses import replace

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from core.files import InputError
from pecan import Pecan
from support.graph import Node
from support.token_mean import TokenMean
from view.page import as_script, main, page
from view.trace import read_traces, tracing

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

HOSTILE = ['</script><script>window.hacked = 1</script>', '<img src=x onerror="window.hacked = 1">',
           '"; window.hacked = 1; //', "{{ 7 * 7 }}${window.hacked = 1}", "<!--<script>", "javascript:window.hacked=1"]


@pytest.fixture(scope="module")
def traces(tmp_path_factory, tiny, settings, document, graph):
    """Two questions about one document."""
    folder = tmp_path_factory.mktemp("page")
    graph.save(folder / "graph.json")
    method = Pecan(tiny, TokenMean(tiny), settings)
    prepared = method.prepare(document, folder / "graph.json")
    names = sorted({text.split("'s")[0].split()[-1] for text in prepared.texts if "'s" in text})
    with tracing(method, folder / "graph.json", folder / "trace.jsonl"):
        for name in names[:2]:
            method.answer(prepared, f"What is {name}'s drink?")
    return read_traces(folder / "trace.jsonl")


def open_page(browser, folder, traces):
    path = folder / "page.html"
    path.write_text(page(traces), encoding="utf-8")
    browser.get("about:blank")
    browser.get_log("browser")                               # drops what earlier pages have logged
    browser.get(path.as_uri())


def texts(browser, selector: str) -> list[str]:
    return browser.execute_script("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)",
                                  selector)


def values(browser, selector: str) -> list[float]:
    """The full values of the figures that a selector finds, each shown with three digits, or as a whole number."""
    rows = browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map(e => [e.textContent, e.dataset.value])", selector)
    full = [float(value) for _, value in rows]
    assert [float(text) for text, _ in rows] == [
        value if value.is_integer() else pytest.approx(float(f"{value:.3g}")) for value in full]
    return full


def classes(browser, name: str) -> list[int]:
    """The nodes of the graph that have a class."""
    return browser.execute_script("return buttons.flatMap((b, i) => b.classList.contains(arguments[0]) ? [i] : [])",
                                  name)


def assert_shows(browser, trace, number: int):
    """Assert that every figure on the page is that of this step."""
    step = trace.answer.trace[number - 1]
    candidates = step.candidates or []
    assert texts(browser, "#step") == [f"step {number} of {len(trace.answer.trace)}"]
    assert texts(browser, "#reads") == [trace.nodes[step.node].text]
    assert classes(browser, "now") == [step.node]
    assert classes(browser, "read") == sorted(trace.answer.nodes[:number])

    assert texts(browser, "#candidates li button") == [f"#{i}" for i, _, _ in candidates]
    assert values(browser, "#candidates .z-value") == [z for _, z, _ in candidates]
    assert values(browser, "#candidates .score") == [score for _, _, score in candidates]
    assert values(browser, "#candidates .c-value") == [trace.c[i] for i, _, _ in candidates]

    newest_first = trace.answer.trace[:number][::-1]
    assert texts(browser, "#relevance li button") == [f"#{row.node}" for row in newest_first]
    assert values(browser, "#relevance .r") == [row.r for row in newest_first]
    assert values(browser, "#relevance .attention") == [row.attention for row in newest_first]

    assert texts(browser, "#verdict .word") == ([step.verdict] if step.verdict else [])
    assert values(browser, "#verdict .p_yes") == ([step.p_yes] if step.verdict else [])
    assert values(browser, "#spent .tokens, #spent .flops, #spent .cached") == [
        step.tokens, step.flops / 1e9, step.cached]
    settings = trace.settings
    assert values(browser, "#settings .window, #settings .confidence, #settings .patience") == [
        settings.window, settings.confidence, settings.patience]


def test_every_figure_of_every_step(browser, tmp_path, traces):
    """The button steps through the first question, the arrow key through the second."""
    open_page(browser, tmp_path, traces)
    body = browser.find_element(By.TAG_NAME, "body")
    by_button = browser.find_element(By.ID, "forward").click
    for trace, move in zip(traces, (by_button, lambda: body.send_keys(Keys.ARROW_RIGHT)), strict=True):
        browser.find_element(By.ID, "questions").send_keys(trace.question)
        assert texts(browser, "h1") == [trace.question] and classes(browser, "read") == []
        browser.execute_script("document.activeElement.blur()")
        steps = len(trace.answer.trace)
        for number in range(1, steps + 1):
            move()
            assert_shows(browser, trace, number)

        assert not browser.find_element(By.ID, "answer").is_displayed()
        move()
        assert browser.find_element(By.ID, "answer").text == trace.answer.text
        assert values(browser, "#spent .read, #spent .tokens") == [steps, trace.answer.tokens]
        body.send_keys(Keys.ARROW_LEFT)
        assert_shows(browser, trace, steps)
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("changes", [{}, {"attention": False}, {"similarity": False}], ids=str)
def test_the_bars_of_a_candidate_are_its_score(browser, tmp_path, tiny, settings, document, graph, question, changes):
    """The bars of z and c together are as long as the score. An ablation's score is z alone or c alone."""
    graph.save(tmp_path / "graph.json")
    method = Pecan(tiny, TokenMean(tiny), settings)
    prepared = method.prepare(document, tmp_path / "graph.json")
    method.settings = replace(settings, confidence=0.9999999, **changes)
    with tracing(method, tmp_path / "graph.json", tmp_path / "trace.jsonl"):
        method.answer(prepared, question)
    trace, = read_traces(tmp_path / "trace.jsonl")
    open_page(browser, tmp_path, [trace])
    number = next(n for n, step in enumerate(trace.answer.trace, 1) if step.candidates)
    for _ in range(number):
        browser.find_element(By.ID, "forward").click()

    total = sum(max(c, 0) for c in trace.c)
    candidates = trace.answer.trace[number - 1].candidates
    highest = max(score for _, _, score in candidates)
    of_z, of_c = (browser.execute_script(
        "return [...document.querySelectorAll('#candidates .bar ." + kind + "')].map(e => parseFloat(e.style.width))")
        for kind in "zc")
    for (node, z, score), z_bar, c_bar in zip(candidates, of_z, of_c, strict=True):
        c = max(trace.c[node], 0)
        by_c = {"{}": c / total, "{'attention': False}": c, "{'similarity': False}": 0}[str(changes)]
        assert c_bar == pytest.approx(100 * by_c / highest, abs=.01)
        assert z_bar == pytest.approx(100 * max(score - by_c, 0) / highest, abs=.01)


def test_a_node_shows_its_sources_and_its_passage(browser, tmp_path, traces):
    open_page(browser, tmp_path, traces)
    nodes = traces[0].nodes
    browser.execute_script("buttons.at(-1).click()")
    below = sorted(((e, j) for i, j, e in traces[0].edges if i == len(nodes) - 1), key=lambda pair: -pair[0])
    assert texts(browser, "#details-text") == [nodes[-1].text]
    assert values(browser, "#sources .weight") == [e for e, _ in below]
    assert texts(browser, "#sources button") == [f"#{j} {nodes[j].text}" for _, j in below]
    assert texts(browser, "#passage mark")[0] in [node.text for node in nodes if node.level == 1]


def test_hostile_text_is_shown_and_not_run(browser, tmp_path, traces):
    trace = traces[0]
    for said in [*HOSTILE, "é\u2028中\u2029🙂"]:
        assert json.loads(as_script({"said": said})) == {"said": said} and not set("<>&") & set(as_script(said))
        nodes = [Node(1, said), *trace.nodes[1:]]
        open_page(browser, tmp_path, [trace._replace(nodes=nodes, question=said)])
        browser.execute_script("details(0)")
        assert texts(browser, "h1, #details-text") == [said, said] and browser.title == said
        assert browser.execute_script("return [typeof window.hacked, document.images.length, "
                                      "document.scripts.length]") == ["undefined", 0, 2]
        assert browser.get_log("browser") == []


def test_the_policy_stops_a_script_that_got_in(browser, tmp_path, traces):
    """Even if a text became an element, only the page's own script would run."""
    open_page(browser, tmp_path, traces)
    browser.execute_script("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked = 1\">');"
                           "const s = document.createElement('script'); s.textContent = 'window.hacked = 1';"
                           "document.body.append(s)")
    assert browser.execute_script("return typeof window.hacked") == "undefined"
    assert "Content Security Policy" in json.dumps(browser.get_log("browser"))


def test_no_node_covers_another(browser, tmp_path, traces):
    """Nodes of a column do not overlap, whatever their height."""
    open_page(browser, tmp_path, traces)
    for height in (1, 6, 24, 56):
        boxes = browser.execute_script("by('height').value = arguments[0]; draw(); return boxes", height)
        corners = sorted((round(box["x"]), box["y"]) for box in boxes)
        assert all(y - above > height for (x, above), (column, y) in zip(corners, corners[1:]) if x == column)


def test_a_graph_of_chunks_alone(browser, tmp_path, traces):
    """A document of one chunk, or one whose summary did not get shorter, has no edges."""
    flat = [Node(1, node.text) for node in traces[0].nodes]
    open_page(browser, tmp_path, [traces[0]._replace(nodes=flat, edges=[])])
    browser.execute_script("show(1); details(0)")
    assert texts(browser, "#passage mark") == [flat[0].text] and texts(browser, "#sources li") == []
    assert browser.get_log("browser") == []


def test_a_page_never_replaces_a_trace(tmp_path):
    with pytest.raises(InputError, match="end with .html"):
        main(["t.jsonl", "-o", str(tmp_path / "t.jsonl")])
