"""The page of a trace, in a browser: every figure is the trace's, and a document's text is shown, never run."""
import json
import re
from dataclasses import replace
from operator import itemgetter

import numpy as np
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from core.files import InputError
from data import ENDS, Document
from pecan import Pecan
from pecan import Node
from support.token_mean import TokenMean
from view import annotate
from view.page import as_script, main, page
from view.trace import read_traces, tracing

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

HOSTILE = ['</script><script>window.hacked = 1</script>', '<img src=x onerror="window.hacked = 1">',
           '"; window.hacked = 1; //', "{{ 7 * 7 }}${window.hacked = 1}", "<!--<script>", "javascript:window.hacked=1"]


@pytest.fixture(scope="module")
def traces(tmp_path_factory, tiny, settings, document, graph):
    """A question about each of two documents. One search ends with a Yes, the other with a full window."""
    found = []
    for passages, name in ((document.passages, "Cairo"), (document.passages[12::-1], "Dakar")):
        folder = tmp_path_factory.mktemp("page")
        method = Pecan(tiny, TokenMean(tiny), settings)
        prepared = method.prepare(Document("d", passages), folder / "graph.json")
        with tracing(method, folder / "graph.json", folder / "trace.jsonl"):
            method.answer(prepared, f"What is {name}'s drink?")
        found += read_traces(folder / "trace.jsonl")
    return found


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


def drawn(browser) -> list:
    """What is drawn of the edges from the current node and of p_yes.

    Each edge has its end nodes and its width. Each check has its height, 0 at the lower axis and 1 at the upper, and
    its classes, in the order of the steps; the threshold's height comes last. Then follow the numbers of checks that
    the two lines join.
    """
    return browser.execute_script("""
        const [svg, ...middles] = [by("edges"), ...buttons].map(part => part.getBoundingClientRect());
        const nodeAt = (path, length, side) => middles.findIndex(box => {
          const point = path.getPointAtLength(length);
          return Math.hypot(svg.left + point.x - box[side], svg.top + point.y - (box.top + box.bottom) / 2) < 1;
        });
        const y = line => Number(line.getAttribute(line.tagName === "line" ? "y1" : "cy"));
        const all = selector => [...document.querySelectorAll(selector)], axes = all("#curve .axis").map(y);
        const height = part => (Math.max(...axes) - y(part)) / Math.abs(axes[0] - axes[1]);
        const checks = all("#curve circle").sort((a, b) => a.getAttribute("cx") - b.getAttribute("cx"));
        return [all("#edges .flow").map(path => [nodeAt(path, 0, "left"), nodeAt(path, path.getTotalLength(), "right"),
                                                 parseFloat(path.style.strokeWidth)]),
                [...checks, ...all("#curve .limit")].map(height), checks.map(check => check.getAttribute("class")),
                all("#curve .line").map(line => line.getAttribute("d").split(/[ML]/).length - 1)]""")


def assert_shows(browser, trace, number: int):
    """Assert that every figure on the page is that of this step."""
    step = trace.answer.trace[number - 1]
    candidates = step.candidates or []
    assert texts(browser, "#canvas button") == [f"#{i}{node.text}" for i, node in enumerate(trace.nodes)]
    assert classes(browser, "candidate") == sorted(i for i, *_ in candidates[1:])
    said, = texts(browser, "#says")
    assert re.findall(r"\d+", said) == [str(step.node), str(step.level)] and ("top level" in said) != bool(candidates)

    assert texts(browser, "li.now button") == [f"#{step.node}"] * (1 + bool(candidates))

    flow, heights, verdicts, joined = drawn(browser)
    edges = sorted(edge for edge in trace.edges if edge[0] == step.node)
    assert [(i, j) for i, j, _ in sorted(flow)] == [(i, j) for i, j, _ in edges]
    assert [j for _, j, _ in sorted(flow, key=itemgetter(2))] == [j for _, j, _ in sorted(edges, key=itemgetter(2))]
    checks = [(n, row) for n, row in enumerate(trace.answer.trace, 1) if row.verdict]
    assert heights == pytest.approx([*(row.p_yes for _, row in checks), trace.settings.confidence], abs=1e-6)
    before = sum(n <= number for n, _ in checks)
    assert joined == [before, len(checks) - max(before - 1, 0)], "the line of what comes begins at the last check"
    assert verdicts == [row.verdict.lower() + " later" * (n > number) for n, row in checks]

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
    assert [int(re.search(r"= (\d+) ", text)[1]) for text in texts(browser, "#relevance .figure")] == [
        row.position for row in newest_first]
    widths = browser.execute_script(
        "return [...document.querySelectorAll('#relevance .bar i')].map(bar => parseFloat(bar.style.width))")
    highest = max(row.r for row in newest_first)
    assert widths == pytest.approx([100 * row.r / highest for row in newest_first], abs=.01)

    assert texts(browser, "#verdict .word") == ([step.verdict] if step.verdict else [])
    assert values(browser, "#verdict .p_yes") == ([step.p_yes] if step.verdict else [])
    assert values(browser, "#spent span") == [number, step.tokens, step.flops / 1e9, step.cached]
    settings = trace.settings
    assert values(browser, "#settings span") == [
        settings.window, settings.chunk, settings.confidence, settings.patience]


def test_every_figure_of_every_step(browser, tmp_path, traces):
    """The button steps through the first question, the arrow key through the second."""
    open_page(browser, tmp_path, traces)
    body = browser.find_element(By.TAG_NAME, "body")
    by_button = browser.find_element(By.ID, "forward").click
    for trace, move in zip(traces, (by_button, lambda: body.send_keys(Keys.ARROW_RIGHT)), strict=True):
        browser.find_element(By.ID, "questions").send_keys(trace.question)
        assert texts(browser, "h1") == [trace.question] == [browser.title] and classes(browser, "read") == []
        browser.execute_script("document.activeElement.blur()")
        steps = len(trace.answer.trace)
        for number in range(1, steps + 1):
            move()
            assert_shows(browser, trace, number)

        assert not browser.find_element(By.ID, "answer").is_displayed()
        move()
        assert [browser.find_element(By.ID, part).text for part in ("answer", "end")] == [
            trace.answer.text, ENDS[trace.answer.end]]
        assert drawn(browser)[0] == [], "r flows on after the end"
        assert values(browser, "#spent .read, #spent .tokens") == [steps, trace.answer.tokens]
        body.send_keys(Keys.ARROW_LEFT)
        assert_shows(browser, trace, steps)
    assert browser.get_log("browser") == []


def test_every_way_to_a_step(browser, tmp_path, traces):
    """Buttons and keys lead to the start, to the answer and one step on or back, and no further."""
    open_page(browser, tmp_path, traces)
    n = len(traces[0].answer.trace)
    body = browser.find_element(By.TAG_NAME, "body")
    keys = {"first": Keys.HOME, "back": Keys.ARROW_LEFT, "forward": Keys.ARROW_RIGHT, "last": Keys.END}
    for go in (lambda way: browser.find_element(By.ID, way).click(), lambda way: body.send_keys(keys[way])):
        for way, place, ended in (("last", "answer", ["forward", "last"]),
                                  ("forward", "answer", ["forward", "last"]), ("back", f"step {n} of {n}", []),
                                  ("first", "start", ["first", "back"]),
                                  ("back", "start", ["first", "back"]), ("forward", f"step 1 of {n}", [])):
            go(way)
            assert texts(browser, "#step") == [place]
            assert browser.execute_script("return [...document.querySelectorAll(':disabled')].map(e => e.id)") == ended
    browser.execute_script("details(0)")
    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert texts(browser, "#step") == [place], "an open node was left by its key"


def test_a_point_is_beside_its_sources(browser, tmp_path, traces):
    """A level is a column, level 1 the left one. Its points have the order of their sources' mean heights, and all of
    them together the mean of these. Arrow down leads through every node, column by column."""
    for trace in traces:
        open_page(browser, tmp_path, [trace])
        left, y = zip(*browser.execute_script("""return buttons.map(button => button.getBoundingClientRect())
            .map(box => [box.left, (box.top + box.bottom) / 2])"""))
        levels = [node.level for node in trace.nodes]
        column = [left[levels.index(level)] for level in range(1, levels[-1] + 1)]
        assert column == sorted(set(column)) and list(left) == [column[level - 1] for level in levels]
        heads = browser.execute_script("""return [...document.querySelectorAll("#heads span")]
            .map(head => [head.getBoundingClientRect().left, head.textContent])""")
        assert [x - heads[0][0] for x, _ in heads] == pytest.approx([x - column[0] for x in column], abs=.1)
        assert [re.findall(r"\d+", text) for _, text in heads] == [
            [str(level), str(levels.count(level))] for level in range(1, levels[-1] + 1)]

        order = [i for i, level in enumerate(levels) if level == 1]
        assert [y[i] for i in order] == sorted(y[i] for i in order)
        for level in range(2, levels[-1] + 1):
            nodes = [i for i, other in enumerate(levels) if other == level]
            wanted = {i: sum(e * y[j] for k, j, e in trace.edges if k == i) for i in nodes}
            order += (by_height := sorted(nodes, key=lambda i: y[i]))
            assert by_height == sorted(nodes, key=lambda i: wanted[i])
            assert np.mean([y[i] for i in nodes]) == pytest.approx(np.mean([*wanted.values()]), abs=.1)

        browser.execute_script("buttons[0].focus()")
        reached = [0]
        for key in [Keys.ARROW_DOWN] * len(order) + [Keys.ARROW_UP]:
            browser.switch_to.active_element.send_keys(key)
            reached.append(browser.execute_script("return buttons.indexOf(document.activeElement)"))
        assert reached == [*order, order[-1], order[-2]]


def test_the_edges_above_a_threshold(browser, tmp_path, traces):
    """At first about as many edges are shown as there are nodes."""
    open_page(browser, tmp_path, traces)
    weights = [e for *_, e in traces[0].edges]
    for wanted in (None, 0, .3, .7, 1):
        least, paths = browser.execute_script("""
            if (arguments[0] !== null) by("threshold").value = arguments[0];
            by("threshold").dispatchEvent(new Event("input"));
            const paths = [...document.querySelectorAll("#edges path:not(.flow)")];
            return [Number(by("threshold-value").textContent), paths.map(path =>
                [parseFloat(path.style.strokeWidth), path.getAttribute("d").split("M").length - 1])]""", wanted)
        assert sum(count for _, count in paths) == pytest.approx(sum(e > .998 * least for e in weights), abs=1)
        if wanted is None:
            assert sum(count for _, count in paths) == pytest.approx(len(traces[0].nodes), rel=.2)
        else:
            assert least == pytest.approx(wanted ** 2 * max(weights), rel=.01)
    assert [count for _, count in sorted(paths)][-1] == 1, "the heaviest edge has the widest line"


@pytest.mark.parametrize("changes", [
    {}, {"attention": False}, {"similarity": False}, {"fixed_nodes": 12, "tree": True}], ids=str)
def test_the_bars_of_a_candidate_are_its_score(browser, tmp_path, tiny, settings, document, graph, question, changes):
    """The bars of z and c together are as long as the score. An ablation's score is z alone or c alone."""
    graph.save(tmp_path / "graph.json")
    method = Pecan(tiny, TokenMean(tiny), settings)
    prepared = method.prepare(document, tmp_path / "graph.json")
    method.settings = replace(settings, confidence=0.9999999, patience=2, **changes)
    with tracing(method, tmp_path / "graph.json", tmp_path / "trace.jsonl"):
        method.answer(prepared, question)
    trace, = read_traces(tmp_path / "trace.jsonl")
    open_page(browser, tmp_path, [trace])
    number = next(n for n, step in enumerate(trace.answer.trace, 1) if step.candidates)
    for _ in range(number):
        browser.find_element(By.ID, "forward").click()

    total = sum(max(c, 0) for c in trace.c)
    candidates = trace.answer.trace[number - 1].candidates
    stops = [12] if "fixed_nodes" in changes else [.9999999, 2]
    assert values(browser, "#settings span") == [settings.window, settings.chunk, *stops]
    without, = texts(browser, "#without")
    assert [word in without for word in ("attention", "similarity", "graph")] == [
        changes.get("attention") is False, changes.get("similarity") is False, "tree" in changes]
    highest = max(score for _, _, score in candidates)
    of_z, of_c = (browser.execute_script(
        "return [...document.querySelectorAll('#candidates .bar ." + kind + "')].map(e => parseFloat(e.style.width))")
        for kind in "zc")
    for (node, z, score), z_bar, c_bar in zip(candidates, of_z, of_c, strict=True):
        c = max(trace.c[node], 0)
        by_c = c if "attention" in changes else 0 if "similarity" in changes else c / total
        assert c_bar == pytest.approx(100 * by_c / highest, abs=.01)
        assert z_bar == pytest.approx(100 * max(score - by_c, 0) / highest, abs=.01)


def test_a_node_shows_its_sources_and_its_passage(browser, tmp_path, traces):
    """It also shows what was made from it, and its figures, r only if it was read. The passage is the chunk down the
    heaviest edges, between its neighbours."""
    trace = traces[0]
    nodes, edges = trace.nodes, trace.edges
    open_page(browser, tmp_path, traces)
    chunks = sum(node.level == 1 for node in nodes)
    *read, _ = trace.answer.trace
    browser.execute_script("show(arguments[0])", len(read))
    r = {step.node: step.r for step in read}
    for node in (0, 1, chunks - 1, chunks, len(nodes) - 1, *trace.answer.nodes[-2:]):
        browser.execute_script("by('details').close(); buttons[arguments[0]].click()", node)
        assert re.findall(r"\d+", texts(browser, "#details-title")[0]) == [str(node), str(nodes[node].level)]
        assert texts(browser, "#details-text") == [nodes[node].text]
        figures = [float(n) for n in re.findall(r"-?\d[\d.e-]*", texts(browser, "#details-figures")[0])]
        wanted = [trace.c[node], trace.lengths[node], r.get(node)]
        assert figures == pytest.approx([figure for figure in wanted if figure is not None], rel=5e-3)

        below, above = ({end: e for start, end, e in rows if start == node}
                        for rows in (edges, [(j, i, e) for i, j, e in edges]))
        for kind, ends in (("sources", below), ("targets", above)):
            ends = sorted(ends.items(), key=lambda pair: -pair[1])
            assert values(browser, f"#{kind} .weight") == [e for _, e in ends]
            assert texts(browser, f"#{kind} button") == [f"#{j} {nodes[j].text}" for j, _ in ends]

        chunk = node
        while nodes[chunk].level > 1:
            chunk = max((e, j) for i, j, e in edges if i == chunk)[1]
        assert texts(browser, "#passage mark") == [nodes[chunk].text]
        if below:
            browser.find_element(By.CSS_SELECTOR, "#sources button").click()
            assert texts(browser, "#details-text") == [nodes[max(below, key=below.get)].text]
            browser.execute_script("details(arguments[0])", node)
        around = " ".join(near.text for near in nodes[max(0, chunk - 1):chunk + 2] if near.level == 1)
        assert texts(browser, "#passage")[0].split() == around.split()


def test_hostile_text_is_shown_and_not_run(browser, tmp_path, traces):
    trace = traces[0]
    for said in [*HOSTILE, "é\u2028中\u2029🙂"]:
        assert json.loads(as_script({"said": said})) == {"said": said} and "<" not in as_script(said)
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


def test_a_page_replaces_only_pages(tmp_path):
    name = str(tmp_path / "t.jsonl")
    for command, arguments in ((main, ["t.jsonl", "-o", name]), (annotate.main, ["-o", name])):
        with pytest.raises(InputError, match="end with .html"):
            command(arguments)
