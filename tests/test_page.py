"""The page of a trace, in a browser: every figure is the trace's, and what a document says is shown, never run."""
import json
import random

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from core.files import InputError
from pecan import Pecan
from support.graph import Fields
from support.token_mean import TokenMean
from support.trace import Recorder
from view.page import as_script, main, page
from view.trace_file import Trace, read_traces

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

HOSTILE = ['</script><script>window.hacked = 1</script>', '<img src=x onerror="window.hacked = 1">',
           '"; window.hacked = 1; //', "{{ 7 * 7 }}${window.hacked = 1}", "<!--<script>", "javascript:window.hacked=1"]


@pytest.fixture(scope="module")
def traces(tmp_path_factory, tiny, settings, document):
    """Two questions about one document."""
    folder = tmp_path_factory.mktemp("page")
    method = Recorder(Pecan(tiny, TokenMean(tiny), settings), folder / "trace.jsonl")
    prepared = method.prepare(document, folder / "graph.json")
    names = sorted({text.split("'s")[0].split()[-1] for text in prepared.texts if "'s" in text})
    for name in names[:2]:
        method.answer(prepared, f"What is {name}'s drink?")
    return read_traces(folder / "trace.jsonl")


def open_page(browser, folder, traces):
    path = folder / "page.html"
    path.write_text(page(traces), encoding="utf-8")
    browser.get("about:blank")
    browser.get_log("browser")                               # what an earlier page has left there
    browser.get(path.as_uri())


def figure(value: float) -> str:
    """As the page writes a figure: three significant digits; a whole number as it is."""
    return str(int(value)) if value == int(value) else repr(float(f"{value:.3g}"))


def texts(browser, selector: str) -> list[str]:
    return browser.execute_script("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)",
                                  selector)


def values(browser, selector: str) -> list[float]:
    """The full values of the figures that a selector finds, after a check of what is shown for each."""
    rows = browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map(e => [e.textContent, e.dataset.value])", selector)
    for text, value in rows:
        assert float(text) == pytest.approx(float(figure(float(value))), rel=1e-12)
    return [float(value) for _, value in rows]


def classes(browser, name: str) -> list[int]:
    """The nodes of the graph that have a class."""
    return browser.execute_script("return buttons.flatMap((b, i) => b.classList.contains(arguments[0]) ? [i] : [])",
                                  name)


def assert_shows(browser, trace, number: int):
    """Every figure on the page is that of this step."""
    step = trace.steps[number - 1]
    candidates = step["candidates"] or []
    assert texts(browser, "#step") == [f"step {number} of {len(trace.steps)}"]
    assert classes(browser, "now") == [step["node"]]
    assert texts(browser, "#reads") == [trace.graph.texts[step["node"]]]
    assert set(classes(browser, "read")) == {row["node"] for row in step["relevance"]}

    assert texts(browser, "#candidates li button") == [f"#{row['node']}" for row in candidates]
    assert values(browser, "#candidates .score") == [row["score"] for row in candidates]
    assert values(browser, "#candidates .z-value") == [row["z"] for row in candidates]
    assert values(browser, "#candidates .c-value") == [trace.header["nodes"][row["node"]]["c"] for row in candidates]

    newest_first = step["relevance"][::-1]
    assert texts(browser, "#relevance li button") == [f"#{row['node']}" for row in newest_first]
    assert values(browser, "#relevance .r") == [row["r"] for row in newest_first]
    assert values(browser, "#relevance .attention") == [row["attention"] for row in newest_first]

    assert values(browser, "#verdict .p_yes") == ([] if step["p_yes"] is None else [step["p_yes"]])
    assert texts(browser, "#verdict .word") == ([] if step["p_yes"] is None else [step["verdict"]])
    assert values(browser, "#spent .tokens, #spent .cached") == [step["tokens"], step["cached"]]
    assert values(browser, "#spent .flops") == [step["flops"] / 1e9]
    settings = trace.header["settings"]
    assert values(browser, "#settings .window, #settings .confidence, #settings .patience") == [
        settings["window"], settings["confidence"], settings["patience"]]


def test_every_figure_of_every_step(browser, tmp_path, traces):
    """By the button through the first question, by the arrow key through the second."""
    open_page(browser, tmp_path, traces)
    for n, trace in enumerate(traces):
        browser.find_element(By.ID, "questions").send_keys(trace.header["question"])
        assert texts(browser, "h1") == [trace.header["question"]] and classes(browser, "read") == []
        browser.execute_script("document.activeElement.blur()")

        def move():
            if n == 0:
                browser.find_element(By.ID, "forward").click()
            else:
                browser.find_element(By.TAG_NAME, "body").send_keys(Keys.ARROW_RIGHT)

        for number in range(1, len(trace.steps) + 1):
            move()
            assert_shows(browser, trace, number)
        assert not browser.find_element(By.ID, "answer").is_displayed()
        move()
        assert browser.find_element(By.ID, "answer").text == trace.answer["answer"]
        assert values(browser, "#spent .read, #spent .tokens") == [len(trace.steps), trace.answer["tokens"]]

        browser.find_element(By.TAG_NAME, "body").send_keys(Keys.ARROW_LEFT)
        assert_shows(browser, trace, len(trace.steps))
        browser.find_element(By.TAG_NAME, "body").send_keys(Keys.HOME)
        assert texts(browser, "#step") == ["start"]
    assert browser.get_log("browser") == []


def test_the_bars_add_up(browser, tmp_path, traces):
    """The width of both bars together is the final score, over the best one."""
    open_page(browser, tmp_path, traces)
    number = next(step["step"] for step in traces[0].steps if step["candidates"])
    browser.execute_script("show(arguments[0])", number)
    widths = browser.execute_script("return [...document.querySelectorAll('#candidates .bar')].map(bar => "
                                    "[...bar.children].map(part => parseFloat(part.style.width)))")
    candidates = traces[0].steps[number - 1]["candidates"]
    c = [node["c"] for node in traces[0].header["nodes"]]
    for (of_z, of_c), row in zip(widths, candidates, strict=True):
        assert of_z + of_c == pytest.approx(100 * row["score"] / candidates[0]["score"], rel=1e-3)
        share = max(c[row["node"]], 0) / sum(max(x, 0) for x in c)
        assert of_c == pytest.approx(100 * share / candidates[0]["score"], rel=1e-3)


def test_a_node_shows_its_sources_and_its_passage(browser, tmp_path, traces):
    open_page(browser, tmp_path, traces)
    graph = traces[0].graph
    node = len(graph.levels) - 1
    browser.execute_script("buttons[arguments[0]].click()", node)
    below = sorted(((e, j) for i, j, e in graph.edges if i == node), key=lambda pair: -pair[0])
    assert texts(browser, "#details-text") == [graph.texts[node]]
    assert values(browser, "#sources .weight") == [e for e, _ in below]
    assert texts(browser, "#sources button") == [f"#{j} {graph.texts[j]}" for _, j in below]
    assert texts(browser, "#passage mark")[0] in graph.texts[:graph.levels.index(2)]

    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.ESCAPE)
    assert not browser.find_element(By.ID, "details").is_displayed()


def test_the_threshold_hides_weak_edges(browser, tmp_path, traces):
    open_page(browser, tmp_path, traces)
    drawn = []
    for value in ("0", "0.5", "1"):
        browser.execute_script("const t = document.getElementById('threshold'); t.value = arguments[0]; "
                               "t.dispatchEvent(new Event('input'))", value)
        path = browser.execute_script("return [...document.querySelectorAll('#edges path:not(.flow)')]"
                                      ".map(path => path.getAttribute('d')).join('')")
        drawn.append(path.count("M"))
    weights = [e for _, _, e in traces[0].graph.edges]
    assert drawn == [sum(e >= share * max(weights) for e in weights) for share in (0, 0.25, 1)]


def with_texts(trace, texts: list[str], question: str, answer: str) -> Trace:
    """A trace in which the first nodes, the question and the answer say something else."""
    graph = trace.graph._replace(texts=[*texts, *trace.graph.texts[len(texts):]])
    return trace._replace(graph=graph, header=trace.header | {"question": question},
                          answer=trace.answer | {"answer": answer})


@pytest.mark.parametrize("said", HOSTILE)
def test_hostile_text_is_shown_and_not_run(browser, tmp_path, traces, said):
    open_page(browser, tmp_path, [with_texts(traces[0], [said] * 5, said, said)])
    browser.execute_script("show(1e9); details(0)")
    assert texts(browser, "h1, #answer, #details-text") == [said, said, said] and browser.title == said
    assert browser.execute_script("return [typeof window.hacked, document.images.length, document.scripts.length]") \
        == ["undefined", 0, 2]
    assert browser.get_log("browser") == []


def test_the_policy_stops_a_script_that_got_in(browser, tmp_path, traces):
    """Even if a text became an element: nothing but the page's own script runs."""
    open_page(browser, tmp_path, traces)
    browser.execute_script("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked = 1\">');"
                           "const s = document.createElement('script'); s.textContent = 'window.hacked = 1';"
                           "document.body.append(s)")
    assert browser.execute_script("return typeof window.hacked") == "undefined"
    assert "Content Security Policy" in json.dumps(browser.get_log("browser"))


def large(trace, chunks=500, points=190, top=10) -> Trace:
    """The same steps on a graph of 700 nodes, with long texts in scripts of three directions."""
    random.seed(0)
    levels = [1] * chunks + [2] * points + [3] * top
    words = ["A long sentence about nothing. ", "جملة طويلة عن لا شيء. ", "关于虚无的长句。"]
    edges = []
    for i in range(chunks, len(levels)):
        lower = [j for j, level in enumerate(levels) if level == levels[i] - 1]
        at = random.randrange(max(1, len(lower) - 20))
        weights = [random.random() ** 3 + 1e-3 for _ in lower[at:at + 25]]
        edges += [(i, j, weight / sum(weights)) for j, weight in zip(lower[at:], weights)]
    texts_of = [words[i % 3] * (60 if i % 50 == 0 else 6) for i in range(len(levels))]
    graph = Fields(levels, texts_of, edges, "", "", {}, 0)
    nodes = trace.header["nodes"]
    return trace._replace(graph=graph, header=trace.header | {"nodes": [nodes[i % len(nodes)] for i in range(700)]})


def test_seven_hundred_nodes(browser, tmp_path, traces):
    open_page(browser, tmp_path, [large(traces[0])])
    assert len(classes(browser, "node")) == 700
    browser.execute_script("show(3)")
    node = traces[0].steps[2]["node"]
    visible = browser.execute_script("const b = buttons[arguments[0]].getBoundingClientRect(), "
                                     "v = by('scroll').getBoundingClientRect(); "
                                     "return b.top >= v.top - 1 && b.bottom <= v.bottom + 1", node)
    assert visible and browser.get_log("browser") == []


def test_a_graph_of_chunks_alone(browser, tmp_path, traces):
    """A document of one chunk, or one whose summary did not get shorter, has no edges."""
    graph = traces[0].graph
    flat = graph._replace(levels=[1] * len(graph.levels), edges=[])
    open_page(browser, tmp_path, [traces[0]._replace(graph=flat)])
    browser.execute_script("show(1); details(0)")
    assert texts(browser, "#passage mark") == [graph.texts[0]] and texts(browser, "#sources li") == []
    assert browser.get_log("browser") == []


def test_nodes_by_the_keyboard(browser, tmp_path, traces):
    """The tab key reaches one node; arrows up and down lead to all, column by column, and Enter opens one."""
    open_page(browser, tmp_path, traces)
    reached = "return buttons.flatMap((b, i) => b.tabIndex === 0 ? [i] : [])"
    assert len(browser.execute_script(reached)) == 1
    browser.execute_script("show(2)")
    assert browser.execute_script(reached) == [traces[0].steps[1]["node"]]

    levels = traces[0].graph.levels
    seen = []
    browser.execute_script("buttons[walkOrder[0]].focus()")
    for _ in levels:
        seen.append(browser.execute_script("return buttons.indexOf(document.activeElement)"))
        browser.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    assert sorted(seen) == list(range(len(levels))) and [levels[i] for i in seen] == levels
    assert [i for i in seen if levels[i] == 1] == list(range(levels.count(1)))

    browser.switch_to.active_element.send_keys(Keys.ARROW_UP)
    assert browser.execute_script(reached) == [seen[-2]]
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert texts(browser, "#details-title") == [f"Node #{seen[-2]} of level {levels[seen[-2]]}"]
    assert texts(browser, "#step") == [f"step 2 of {len(traces[0].steps)}"]


@pytest.mark.parametrize("height", [1, 6, 24, 56])
def test_no_node_covers_another(browser, tmp_path, traces, height):
    """In a column, whatever the height."""
    open_page(browser, tmp_path, [large(traces[0])])
    boxes = browser.execute_script("by('height').value = arguments[0]; draw(); return boxes", height)
    columns = {}
    for box in boxes:
        columns.setdefault(round(box["x"]), []).append(box["y"])
    assert sorted(map(len, columns.values())) == [10, 190, 500]
    for column in columns.values():
        column.sort()
        assert all(b - a > height for a, b in zip(column, column[1:]))


def test_heights_by_hand(browser, tmp_path, traces):
    """10, 20 and 21 are too close for a pitch of 10: apart by it they are 7, 17 and 27, as near as can be."""
    open_page(browser, tmp_path, traces)
    heights = browser.execute_script("const heights = [10, 20, 100, 21, 101]; spread([0, 1, 3, 2, 4], heights, 10, "
                                     "false); return heights")
    assert heights == [7, 17, 95.5, 27, 105.5]


def test_every_control_has_a_name(browser, tmp_path, traces):
    open_page(browser, tmp_path, traces)
    browser.execute_script("show(1)")
    nameless = browser.execute_script(
        "return [...document.querySelectorAll('button, select, input')].filter(e => "
        "!(e.getAttribute('aria-label') || e.closest('label') || e.textContent.trim())).length")
    assert nameless == 0
    node = traces[0].steps[0]["node"]
    label = browser.execute_script("return buttons[arguments[0]].getAttribute('aria-label')", node)
    assert label.startswith(f"Node {node} of level ") and "read now" in label


def test_data_in_a_script_tag_is_the_same_data():
    for said in [*HOSTILE, "\u2028 \u2029 é 中 🙂"]:
        assert json.loads(as_script({"said": said})) == {"said": said}
        assert not set("<>&") & set(as_script({"said": said}))


def test_the_command_line_of_the_page(tmp_path, traces):
    main([traces[0].path, traces[0].path, "-o", str(tmp_path / "out.html")])
    assert "What is" in (tmp_path / "out.html").read_text()
    with pytest.raises(InputError, match="end with .html"):
        main([traces[0].path, "-o", str(tmp_path / "out.txt")])
