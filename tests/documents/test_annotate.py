"""The annotated page in a browser: it shows every line of code of two files once, and every link leads to its line."""
import ast
import importlib
import inspect
import io
import re
import tokenize
from pathlib import Path

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from data import read_text
from pecan import Pecan, Search
from support.sbert import similarities
from view import annotate, walk
from view.page import FOLDER

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

ROOT = Path(__file__).parents[2]
FILES = ["pecan", "llama"]
SOURCES = {file: (ROOT / f"{file}.py").read_text(encoding="utf-8") for file in FILES}
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}

# The lowest contrast between a text on the page and its background, and that text.
CONTRAST = """
const numbers = color => color.match(/[\\d.]+/g).map(Number);
const linear = v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
function light(color) {
  const [red, green, blue] = numbers(color).map(v => linear(v / 255));
  return .2126 * red + .7152 * green + .0722 * blue;
}
function behind(element) {
  const color = getComputedStyle(element).backgroundColor;
  return numbers(color)[3] === 0 ? behind(element.parentElement) : color;
}
function ratio(element, style) {
  const [dark, bright] = [light(style.color), light(behind(element))].sort((a, b) => a - b);
  return (bright + .05) / (dark + .05);
}
const all = [];
for (const element of document.body.querySelectorAll("*:not(script)")) {
  const words = [...element.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim());
  if (words) all.push([ratio(element, getComputedStyle(element)), element.textContent]);
}
for (const element of document.querySelectorAll("[data-line], .silent, .says"))
  all.push([ratio(element, getComputedStyle(element, "::before")), "before " + element.textContent]);
return all.sort((a, b) => a[0] - b[0])[0];
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("annotated") / "made.html"
    annotate.main(["-o", str(path)])
    return path


@pytest.fixture
def page(browser, made):
    browser.get("about:blank")
    browser.get_log("browser")                               # messages of an earlier page
    browser.get(made.as_uri())
    yield browser
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert browser.get_log("browser") == []


def run(page, script: str, *arguments):
    return page.execute_script("return " + script, *arguments)


def line_of(name: str) -> int:
    """The number of the line that defines `name`, from Python's inspect; for a constant from the text of the file."""
    file, *parts = name.split(".")
    found = importlib.import_module(file)
    for part in parts:
        found = inspect.getattr_static(found, part)
    if isinstance(found, (str, tuple)) or name == "llama.Segment":
        return 1 + [line.startswith(f"{parts[0]} = ") for line in SOURCES[file].splitlines()].index(True)
    found = getattr(found, "func", getattr(found, "__func__", found))     # inside a cached property or a class method
    lines, start = inspect.getsourcelines(found)
    return start + [line.lstrip().startswith(("def ", "class ")) for line in lines].index(True)


def shown_line_of(page, name: str) -> int:
    """The number of the first line of a definition's block after its decorators."""
    return run(page, """Number([...document.getElementById(arguments[0]).querySelectorAll("[data-line]")]
        .find(line => !line.textContent.trim().startsWith("@")).dataset.line)""", name)


def squeezed(text: str) -> str:
    """A text without white space and without the marks that the page shows in another way."""
    return re.sub(r"[\s`_{}]", "", text)


def test_the_page_in_the_documents_is_the_one_that_is_made(made):
    """If it is not, run: python -m view.annotate -o docs/annotated.html"""
    assert made.read_bytes() == (ROOT / "docs" / "annotated.html").read_bytes()


def test_every_line_of_code_is_there_once_with_its_number(page):
    """A line of code is one with a token of Python's tokenizer that is no comment and no docstring."""
    for file, source in SOURCES.items():
        docstrings = {line for node in ast.walk(ast.parse(source))
                      if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node)
                      for line in range(node.body[0].lineno, node.body[0].end_lineno + 1)}
        shapeless = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
                     tokenize.ENDMARKER}
        code = {line for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type not in shapeless
                for line in range(token.start[0], token.end[0] + 1)} - docstrings
        shown = run(page, """[...document.querySelectorAll(`section[aria-label="${arguments[0]}.py"] [data-line]`)]
            .map(line => [Number(line.dataset.line), line.textContent])""", file)
        lines = source.splitlines()
        assert [text for _, text in shown] == [lines[number - 1] for number, _ in shown]
        assert [number for number, text in shown if text.strip()] == [n for n in sorted(code) if lines[n - 1].strip()]


def test_every_definition_has_its_docstring_and_begins_at_its_line(page):
    """Each definition is on the page once. Its line is the one that Python's inspect reports."""
    for file, source in SOURCES.items():
        module = importlib.import_module(file)
        holders = [(file, ast.parse(source))]
        holders += [(f"{file}.{node.name}", node) for node in holders[0][1].body if isinstance(node, ast.ClassDef)]
        nodes = {place: node for place, node in holders} | {
            f"{place}.{node.name}": node for place, holder in holders for node in holder.body
            if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        assert len(nodes) > 20 and module.__doc__ == ast.get_docstring(nodes[file], clean=False)
        for name, node in nodes.items():
            blocks = page.find_elements(By.CSS_SELECTOR, f"[id='{name}']")
            assert len(blocks) == 1
            prose = run(page, """[...arguments[0].querySelectorAll(".prose > *")]
                .map(part => part.textContent).join("")""", blocks[0])
            assert name == file or shown_line_of(page, name) == line_of(name)
            assert squeezed(ast.get_docstring(node) or "") in squeezed(prose)


def test_every_comment_stands_beside_its_code(page):
    """A comment that fills a line is in the row that begins with the next line of code."""
    for file, source in SOURCES.items():
        rows = dict(run(page, """[...document.querySelectorAll(`section[aria-label="${arguments[0]}.py"] .row`)]
            .filter(row => row.querySelector("[data-line]"))
            .map(row => [Number(row.querySelector("[data-line]").dataset.line), row.textContent])""", file))
        lines = source.splitlines()
        comments = [(n, line.strip("# ")) for n, line in enumerate(lines) if re.match(" *# (?!---)", line)]
        assert len(comments) > 10
        for n, words in comments:
            below = next(m for m in range(n, len(lines)) if re.match(" *[^# ]", lines[m]))
            assert squeezed(words) in squeezed(rows.get(below + 1, ""))


def test_every_row_of_the_paper_leads_to_its_line(page):
    """The README's rows name file and line. The statements that are ticked off name definitions, which show them."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = [row for row in readme.splitlines() if row.startswith("| ") and re.search(r"\((pecan|llama)\.py#L", row)]
    ways = run(page, """[...document.querySelectorAll("#by-paper li")]
        .map(row => [...row.querySelectorAll("a")].map(a => a.hash.slice(1)))""")
    assert len(ways) == len(rows) + 1 > 15
    for row, way in zip(rows, ways):
        links = re.findall(r"\((pecan|llama)\.py#L(\d+)\)", row)
        assert [(name.split(".")[0], str(shown_line_of(page, name))) for name in way] == links

    ticked = (ROOT / "tests" / "README.md").read_text(encoding="utf-8").split("## The paper, ticked off")[1]
    names = [re.findall(r"`((?:pecan|llama)\.[\w.]+)`", row.split(" | ")[1])
             for row in ticked.splitlines() if row.startswith("| ")]
    names = [found for found in names if found]
    assert run(page, """[...document.querySelectorAll("#ticked tr")].slice(1)
        .map(row => [...row.querySelectorAll("a")].map(a => a.hash.slice(1)))""") == names
    for name in {name for found in names for name in found}:
        assert shown_line_of(page, name) == line_of(name)
        says = page.find_elements(By.CSS_SELECTOR, f"[id='{name}'] .says li")
        assert len(says) == sum(name in found for found in names)


def test_names_in_the_code_lead_to_their_definitions(page):
    """Names that only look like a definition are no links."""
    def links(block, text):
        return run(page, """[...document.getElementById(arguments[0]).querySelectorAll(".code a")]
            .filter(a => a.textContent === arguments[1]).map(a => a.hash.slice(1))""", block, text)

    assert run(page, """[...document.querySelectorAll("a[href^='#']")].map(a => a.hash.slice(1))
        .filter(id => !document.getElementById(id))""") == []
    assert run(page, """[...document.querySelectorAll(".code a")]
        .filter(a => a.hash.split(".").at(-1) !== a.textContent && a.hash.slice(1) !== a.textContent).length""") == 0
    assert links("pecan", "Cache") == ["llama.Cache"]
    assert links("pecan.Search.visit", "read") == ["llama.Llama.read"]
    assert links("pecan.Search.visit", "averaging_matrix") == ["llama.Cache.averaging_matrix"]
    assert links("pecan.Search.run", "next") == ["pecan.Search.next"]
    assert links("pecan.Pecan.answer", "answer") == ["pecan.Search.answer"]
    assert links("llama.Llama.append", "register") == ["llama.Cache.register"]
    assert set(links("llama.Llama.read", "length_of")) == {"llama.length_of"}
    assert links("pecan.Search.visit", "attention") == links("pecan.final_scores", "attention") == []
    assert links("pecan.pack", "append") == []


def test_tensors_are_those_of_the_walk(page):
    """A function shows the tensors of the first section of docs/walk.md that has it."""
    recorded = {}
    for section, function, *tensor in walk.rows((ROOT / "docs" / "walk.md").read_text(encoding="utf-8")):
        first, tensors = recorded.setdefault(function.replace(".py  ", "."), (section, []))
        if section == first:
            tensors.append(tensor)
    recorded = {name: tensors for name, (_, tensors) in recorded.items() if name.split(".")[0] in FILES}
    assert {"pecan.final_scores", "llama.Llama.forward"} <= set(recorded)
    assert run(page, "document.querySelectorAll('details').length") == len(recorded)

    assert not any(e.is_displayed() for e in page.find_elements(By.CSS_SELECTOR, "details table"))
    page.find_element(By.ID, "open").click()
    assert all(e.is_displayed() for e in page.find_elements(By.CSS_SELECTOR, "details table"))
    for name, tensors in recorded.items():
        shown = run(page, """[...document.getElementById(arguments[0]).querySelectorAll("details tr")]
            .map(row => [...row.children].map(cell => cell.textContent))""", name)
        assert [[label, shape, values, f"{what} {letters}".strip()]
                for label, letters, shape, values, what in shown] == tensors


def test_the_scores_are_those_of_four_nodes(page):
    """Each column of final_scores is one node. Its score follows from its z and c, and r is 0 outside S."""
    rows = run(page, """[...document.getElementById("pecan.final_scores").querySelectorAll("details tr")]
        .map(row => [...row.querySelectorAll("span")].map(value => Number(value.textContent)))""")
    nodes, r, c, z, score = rows
    assert len(set(nodes)) == 4 and {len(row) for row in rows} == {4}
    assert [value > 0 for value in r] == [True, True, False, False]

    # z and the sums over all nodes come from another run.
    method = Pecan.load(walk.EMBEDDED_MODEL)
    prepared = method.prepare(read_text(walk.STORY))
    similarity = similarities(prepared.index, method.encoder.encode([walk.QUESTION])[0])
    search = Search(method.model, prepared.graph, walk.QUESTION, similarity, method.settings)
    search.start()
    assert r[:2] == pytest.approx(search.r[[int(node) for node in nodes[:2]]].tolist(), rel=2e-3)
    sum_c = sum(max(ours, 0) for ours in similarity.tolist())
    flows = [row @ search.r.numpy() for row in prepared.graph.E.to_dense().T.numpy()]
    sum_z = sum(flows)
    assert max(z) > 0 and z == pytest.approx([flows[int(node)] for node in nodes], rel=2e-3)
    assert score == pytest.approx([flow / sum_z + max(ours, 0) / sum_c for ours, flow in zip(c, z)], rel=2e-3)


def test_every_silent_choice_is_marked(page):
    """The page has one mark for each note in the two files that the paper does not say something."""
    said = sum(len(re.findall(r"paper[\s#]+does[\s#]+not[\s#]+say", source)) for source in SOURCES.values())
    marked = run(page, "[...document.querySelectorAll('article .silent')].map(p => p.textContent).join(' ')")
    assert len(re.findall(r"paper\s+does\s+not\s+say", marked)) == said >= 10


def test_every_formula_is_on_the_page(page):
    """A formula that belongs to no function would be missing. None is wider than its column."""
    keys = re.findall(r'(?m)^  "([\w.]+)": \[', (FOLDER / "formulas.jinja").read_text(encoding="utf-8"))
    shown = run(page, "[...document.querySelectorAll('article')].filter(a => a.querySelector('math')).map(a => a.id)")
    assert sorted(shown) == sorted(keys) and len(keys) >= 10
    assert run(page, "[...document.querySelectorAll('math')].filter(m => m.scrollWidth > m.clientWidth).length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(page, scheme):
    """Every text has a contrast of 4.5 to 1 or more, as WCAG demands for small text."""
    preference = {"name": "prefers-color-scheme", "value": scheme}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [preference]})
    ratio, text = page.execute_script(CONTRAST)
    assert ratio >= 4.5, text


def test_the_current_place_is_marked_in_both_orders(page):
    for name in ("pecan.share", "pecan.Search.visit", "llama.Llama.forward"):
        page.execute_script("location.hash = arguments[0]", name)
        page.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
        for way in ("by-code", "by-paper"):
            marked = page.find_elements(By.CSS_SELECTOR, f"#{way} [aria-current]")
            assert [link.get_attribute("href").split("#")[1] for link in marked] == [name]
            link, nav = run(page, """[arguments[0], arguments[0].closest("nav")]
                .map(part => part.getBoundingClientRect()).map(box => [box.top, box.bottom])""", marked[0])
            assert nav[0] <= link[0] and link[1] <= nav[1]


def test_by_keyboard(page):
    """The first stop of the Tab key is a link past the two tables of contents. The next stops go through them."""
    def press(key):
        ActionChains(page).send_keys(key).perform()
        return run(page, "[document.activeElement.id, document.activeElement.hash]")

    assert press(Keys.TAB) == ["skip", "#pecan"]
    assert run(page, "document.activeElement.getBoundingClientRect().top > 0")
    press(Keys.ENTER)
    assert press(Keys.TAB) == ["", "#llama.Cache"], "the first link of the code"
    assert run(page, "getComputedStyle(document.activeElement).outlineStyle") == "solid"
    run(page, "document.getElementById('skip').focus()")
    assert [press(Keys.TAB)[1] for _ in range(2)] == ["#pecan", "#pecan.SUMMARISE"]


def test_nothing_is_cut_at_1400_pixels(page):
    """Code, tensors and formulas fit their columns; a link to a stage's first function shows the stage's name."""
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE | {"width": 1400, "mobile": False})
    page.find_element(By.ID, "open").click()
    assert run(page, """[...document.querySelectorAll("pre, details, math, p, #ticked table")]
        .filter(part => part.scrollWidth > part.clientWidth).map(part => part.textContent)""") == []
    stages = run(page, "[...document.querySelectorAll('h3')].map(stage => stage.closest('article').id)")
    assert len(stages) > 5
    for name in stages:
        page.execute_script("location.hash = arguments[0]", name)
        assert run(page, "document.querySelector('article:target h3').getBoundingClientRect().top") > 0


def test_in_print(page):
    """A4 paper shows no tables of contents, no buttons and no closed tensors. No line is cut or broken."""
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE | {"width": 718, "mobile": False})
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    page.execute_script("document.querySelector('details').open = true")
    assert run(page, """[...document.querySelectorAll("nav, button, #skip, details")]
        .filter(part => part.checkVisibility()).map(part => part.tagName)""") == ["DETAILS"]
    assert run(page, "document.documentElement.scrollWidth <= innerWidth")
    lines = run(page, """[...document.querySelectorAll("pre.code [data-line]")]
        .map(line => line.getBoundingClientRect().height)""")
    assert max(lines) < 2 * min(lines), "a line of code that is broken in two"


def test_on_a_telephone(page):
    """Nothing is wider than the screen. Prose is above its code. Both tables of contents open and lead to the code."""
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    drawing = page.find_element(By.CSS_SELECTOR, "header pre")
    assert drawing.get_property("scrollWidth") == drawing.get_property("clientWidth")
    page.find_element(By.ID, "open").click()
    assert run(page, "[document.documentElement.scrollWidth, innerWidth]") == [390, 390]
    assert run(page, """[...document.querySelectorAll(".row")]
        .map(row => [...row.children].filter(part => part.checkVisibility()))
        .every(parts => parts.slice(1).every((part, i) =>
            parts[i].getBoundingClientRect().bottom <= part.getBoundingClientRect().top))""")

    for way, name in (("by-code", "pecan.build"), ("by-paper", "pecan.Search.next")):
        nav = page.find_element(By.ID, way)
        assert not nav.is_displayed()
        page.find_element(By.CSS_SELECTOR, f"[popovertarget={way}]").click()
        assert nav.is_displayed()
        nav.find_element(By.CSS_SELECTOR, f"[href='#{name}']").click()
        assert not nav.is_displayed()
        assert 0 <= run(page, "document.getElementById(arguments[0]).getBoundingClientRect().top", name) < 60
