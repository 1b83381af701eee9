"""The annotated page, in a browser: every line of two files once, and every way to it leads there."""
import ast
import importlib
import inspect
import io
import re
import tokenize
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from view import annotate, walk
from view.page import FOLDER

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "annotated.html"
FILES = ["pecan", "llama"]
SOURCES = {file: (ROOT / f"{file}.py").read_text(encoding="utf-8") for file in FILES}
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}

# The least contrast of a text with what is behind it, of all texts that are shown, and the text.
CONTRAST = """
const numbers = color => color.match(/[\\d.]+/g).map(Number);
const light = color => numbers(color).slice(0, 3).map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
const behind = e => { const c = getComputedStyle(e).backgroundColor; return numbers(c)[3] === 0 ? behind(e.parentElement) : c; };
const ratio = (e, style) => { const [a, b] = [light(style.color), light(behind(e))].sort(); return (b + .05) / (a + .05); };
const shown = [...document.body.querySelectorAll("*:not(script)")].filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()));
const all = shown.map(e => [ratio(e, getComputedStyle(e)), e.textContent]);
for (const e of document.querySelectorAll("[data-line], .silent, .says")) all.push([ratio(e, getComputedStyle(e, "::before")), "before"]);
return all.sort((a, b) => a[0] - b[0])[0];
"""


@pytest.fixture
def page(browser):
    browser.get("about:blank")
    browser.get_log("browser")                               # what an earlier page has left there
    browser.get(PAGE.as_uri())
    yield browser
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert browser.get_log("browser") == []


def run(page, script: str, *arguments):
    return page.execute_script("return " + script, *arguments)


def start_of(name: str) -> int:
    """The line where a definition begins, by its full name: Python's word for it, or the text of a constant."""
    file, *parts = name.split(".")
    found = importlib.import_module(file)
    for part in parts:
        found = inspect.getattr_static(found, part)
    if isinstance(found, (str, tuple)) or name == "llama.Segment":
        return 1 + [line.startswith(f"{parts[0]} = ") for line in SOURCES[file].splitlines()].index(True)
    found = getattr(found, "func", getattr(found, "__func__", found))     # inside a cached property or a class method
    return inspect.getsourcelines(found)[1]


def squeezed(text: str) -> str:
    """A text without white space, and without what the page turns into another shape."""
    return re.sub(r"[\s`_{}]", "", text)


def test_the_page_in_the_documents_is_the_one_that_is_made(tmp_path):
    """Refreshed by: python -m view.annotate -o docs/annotated.html"""
    annotate.main(["-o", str(tmp_path / "made.html")])
    assert (tmp_path / "made.html").read_bytes() == PAGE.read_bytes()


def test_every_line_of_code_is_there_once_with_its_number(page):
    """What Python's tokenizer calls code, and no comment or docstring."""
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
    """By Python's inspect; each is there once."""
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
            first, prose = run(page, """[arguments[0].querySelector("[data-line]").dataset.line,
                [...arguments[0].querySelectorAll(".prose > p, .prose > pre")].map(p => p.textContent).join()]""", blocks[0])
            assert name == file or int(first) == start_of(name)
            assert squeezed(ast.get_docstring(node) or "") in squeezed(prose)


def test_every_comment_is_there(page):
    """Those that have a line of their own, each with the code below it."""
    shown = squeezed(run(page, "[...document.querySelectorAll('.prose')].map(p => p.textContent).join('')"))
    for source in SOURCES.values():
        comments = re.findall(r"(?m)^ *# (?!---)(.*)", source)
        assert len(comments) > 10 and all(squeezed(comment) in shown for comment in comments)


def test_every_row_of_the_paper_leads_to_its_line(page):
    """The README's rows name file and line; the statements that are ticked off name a definition."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = [row for row in readme.splitlines() if row.startswith("| ") and re.search(r"\((pecan|llama)\.py#L", row)]
    ways = run(page, "[...document.querySelectorAll('#by-paper li')].map(li => [...li.querySelectorAll('a')].map(a => a.hash))")
    assert len(ways) == len(rows) + 1 > 15
    for row, way in zip(rows, ways):
        links = re.findall(r"\((pecan|llama)\.py#L(\d+)\)", row)
        assert [(hash[1:].split(".")[0], str(start_of(hash[1:]))) for hash in way] == links

    ticked = (ROOT / "tests" / "README.md").read_text(encoding="utf-8").split("## The paper, ticked off")[1]
    names = [re.findall(r"`((?:pecan|llama)\.[\w.]+)`", row.split(" | ")[1])
             for row in ticked.splitlines() if row.startswith("| ")]
    names = [found for found in names if found]
    assert run(page, """[...document.querySelectorAll("#ticked tr")].slice(1)
        .map(row => [...row.querySelectorAll("a")].map(a => a.hash.slice(1)))""") == names
    for name in {name for found in names for name in found}:
        assert run(page, "document.getElementById(arguments[0]).querySelector('[data-line]').dataset.line",
                   name) == str(start_of(name))
        says = page.find_elements(By.CSS_SELECTOR, f"[id='{name}'] .says li")
        assert len(says) == sum(name in found for found in names)


def test_names_in_the_code_lead_to_their_definitions(page):
    """And those that only look like one do not."""
    def links(block, text):
        return run(page, """[...document.getElementById(arguments[0]).querySelectorAll(".code a")]
            .filter(a => a.textContent === arguments[1]).map(a => a.hash.slice(1))""", block, text)

    assert run(page, """[...document.querySelectorAll("a[href^='#']")].map(a => a.hash.slice(1))
        .filter(id => !document.getElementById(id))""") == []
    assert run(page, """[...document.querySelectorAll(".code a")]
        .filter(a => a.hash.split(".").at(-1) !== a.textContent && a.hash.slice(1) !== a.textContent).length""") == 0
    assert links("pecan", "Cache") == ["llama.Cache"]
    assert links("pecan.Search.visit", "read") == ["llama.Llama.read"]
    assert links("pecan.Search.run", "next") == ["pecan.Search.next"]
    assert links("pecan.Pecan.answer", "answer") == ["pecan.Search.answer"]
    assert links("llama.Llama.append", "register") == ["llama.Cache.register"]
    assert set(links("llama.Llama.read", "length_of")) == {"llama.length_of"}
    assert links("pecan.Search.visit", "attention") == links("pecan.final_scores", "attention") == []
    assert links("pecan.pack", "append") == []


def test_tensors_are_those_of_the_walk(page):
    """The first time that a function is in docs/walk.md."""
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
        assert [[label, shape, values, f"{what} {letters}".strip()] for label, letters, shape, values, what in shown] == tensors


def test_every_silent_choice_is_marked(page):
    """As often as the two files say that the paper does not say."""
    said = sum(len(re.findall(r"paper[\s#]+does[\s#]+not[\s#]+say|# Silent:", source)) for source in SOURCES.values())
    marked = run(page, "[...document.querySelectorAll('article .silent')].map(p => p.textContent).join(' ')")
    assert len(re.findall(r"paper\s+does\s+not\s+say|Silent:", marked)) == said > 10


def test_every_formula_is_on_the_page(page):
    """One that belongs to no function would be missing. None is wider than its column."""
    keys = re.findall(r'(?m)^  "([\w.]+)": \[', (FOLDER / "formulas.jinja").read_text(encoding="utf-8"))
    shown = run(page, "[...document.querySelectorAll('article')].filter(a => a.querySelector('math')).map(a => a.id)")
    assert sorted(shown) == sorted(keys) and len(keys) >= 10
    assert run(page, "[...document.querySelectorAll('math')].filter(m => m.scrollWidth > m.clientWidth).length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(page, scheme):
    """4.5 to 1, as WCAG wants it for small text."""
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    ratio, text = page.execute_script(CONTRAST)
    assert ratio >= 4.5, text


def test_the_current_place_is_marked_in_both_orders(page):
    for name in ("pecan.share", "pecan.Search.visit", "llama.Llama.forward"):
        page.execute_script("location.hash = arguments[0]", name)
        page.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
        for way in ("by-code", "by-paper"):
            marked = page.find_elements(By.CSS_SELECTOR, f"#{way} [aria-current]")
            assert [link.get_attribute("href").split("#")[1] for link in marked] == [name]
            assert run(page, """(({ top, bottom }, nav) => top >= nav.top && bottom <= nav.bottom)(
                arguments[0].getBoundingClientRect(), arguments[0].closest("nav").getBoundingClientRect())""", marked[0])


def test_by_keyboard(page):
    """The first stop leads past the two tables of contents, the next ones go down the page."""
    def stop():
        page.switch_to.active_element.send_keys(Keys.TAB)
        return run(page, "[document.activeElement.id, document.activeElement.hash]")

    assert stop() == ["skip", "#pecan"] and page.switch_to.active_element.is_displayed()
    assert stop() == ["", "#pecan"] and stop()[1] == "#pecan.SUMMARISE"
    page.find_element(By.ID, "skip").send_keys(Keys.ENTER)
    assert stop()[1] == "#llama.Cache", "the first link of the code"
    focused = run(page, "getComputedStyle(document.activeElement)")
    assert focused["outlineStyle"] == "solid"


def test_on_a_telephone(page):
    """Nothing is wider than the screen, prose stands above its code, and both ways in open and lead on."""
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    page.find_element(By.ID, "open").click()
    assert run(page, "[document.documentElement.scrollWidth, innerWidth]") == [390, 390]
    assert run(page, "[...document.querySelectorAll('.row')].every(row => row.children[0].getBoundingClientRect().bottom "
                     "<= row.children[1].getBoundingClientRect().top)")

    for way, name in (("by-code", "pecan.build"), ("by-paper", "pecan.Search.next")):
        nav = page.find_element(By.ID, way)
        assert not nav.is_displayed()
        page.find_element(By.CSS_SELECTOR, f"[popovertarget={way}]").click()
        assert nav.is_displayed()
        nav.find_element(By.CSS_SELECTOR, f"[href='#{name}']").click()
        assert not nav.is_displayed()
        assert 0 <= run(page, "document.getElementById(arguments[0]).getBoundingClientRect().top", name) < 60
