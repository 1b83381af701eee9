"""The annotated page shows every line of code of two files once. Links and rows of the paper lead to definitions.

The page is well-formed XML, so most is proven without a browser.
"""
import ast
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from chromium import CONTRAST
from test_demo import assert_same

from view import annotate
from view.page import FOLDER
from view.recorder import few

ROOT = Path(__file__).parents[2]
SOURCES = {file: (ROOT / f"{file}.py").read_text(encoding="utf-8") for file in ("pecan", "llama")}

OPEN = "document.getElementById('open').click();"           # show all values


@pytest.fixture(scope="module")
def html():
    return annotate.annotated()


@pytest.fixture(scope="module")
def ids(html):
    """The page's elements by their id."""
    body = re.sub("<!doctype html>|<(style|script)>.*?</\\1>", "", html, flags=re.S)
    return {element.get("id"): element for element in ElementTree.fromstring(body).iter()}


def text(element) -> str:
    return "".join(element.itertext())


def squeezed(words: str) -> str:
    """A text without white space and without the marks that the page shows in another way."""
    return re.sub(r"[\s`_{}]", "", words)


def links(element) -> list[str]:
    """The ids that its links lead to."""
    return [link.get("href")[1:] for link in element.iter("a") if link.get("href").startswith("#")]


@pytest.fixture(scope="module")
def blocks(ids):
    """The blocks of definitions, by their names."""
    return {name: block for name, block in ids.items() if block.tag == "article"}


def test_the_page_in_the_documents_is_the_one_that_is_made(html):
    """If it is not, run: python -m view.annotate -o docs/annotated.html"""
    assert_same((ROOT / "docs" / "annotated.html").read_text(encoding="utf-8"), html)


@pytest.mark.parametrize("file", SOURCES)
def test_every_line_is_there_once(blocks, file):
    """Code has its number; a docstring is in the block of its definition, a comment on the page."""
    page = {name: block for name, block in blocks.items() if name.startswith(file)}
    said = set()                                            # lines of docstrings
    for node in ast.walk(ast.parse(SOURCES[file])):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            said.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
            here = [text(block) for name, block in page.items() if name.split(".")[-1] == getattr(node, "name", file)]
            assert isinstance(node, ast.Module) or squeezed(ast.get_docstring(node)) in squeezed("".join(here))

    shown = squeezed("".join(map(text, page.values())))
    assert all(squeezed(comment) in shown for comment in re.findall("(?m)^ *# (?!---)(.*)", SOURCES[file]))
    lines = [(line.get("data-line"), text(line)) for block in page.values() for line in block.iter()]
    assert [(int(number), line) for number, line in lines if number and line.strip()] == [
        (number, line) for number, line in enumerate(SOURCES[file].splitlines(), 1)
        if number not in said and re.match(" *[^# ]", line)]


def test_every_row_of_the_paper_leads_to_its_definition(ids, blocks):
    """The README's rows name definitions. So do the statements that are ticked off, and the definitions show them."""
    table = (ROOT / "README.md").read_text(encoding="utf-8").split("\n| paper |")[1].split("\n\n")[0]
    *ways, _ = links(ids["by-paper"])
    assert ways == re.findall(r"`((?:pecan|llama)\.[\w.]+)`\]", table) and len(ways) > 15

    ticked = [(text(row[0]), name) for row in ids["ticked"].iter("tr") for name in links(row)]
    assert len(ticked) > 60
    for statement, name in ticked:
        assert statement in map(text, blocks[name].iter("li"))


def test_names_lead_to_their_definitions(ids, blocks):
    """Names that only look like a definition are no links. A formula belongs to a function that there is."""
    def named(block, word):
        return {link.get("href") for link in blocks[block].iter("a") if link.text == word}

    assert {target for element in ids.values() for target in links(element)} <= set(ids)
    assert named("pecan", "Cache") == {"#llama.Cache"}
    assert named("pecan.Search.visit", "read") == {"#llama.Llama.read"}
    assert not named("pecan.final_scores", "attention") | named("pecan.pack", "append")
    formulas = re.findall(r'(?m)^  "([\w.]+)": \[', (FOLDER / "formulas.jinja").read_text(encoding="utf-8"))
    assert set(formulas) == {name for name, block in blocks.items() if list(block.iter("math"))}


def test_values_that_are_left_out_are_named():
    """Eight values are shown, and only behind them "..", if there are more."""
    for n in (1, 8, 9):
        shown = few(np.arange(n))
        assert len(shown) == min(n, 8) + (n > 8) and (shown[-1] == "..") == (n > 8)


def values_of(block) -> dict[str, np.ndarray]:
    """The values that a definition shows, by their names."""
    rows = [row for row in block.iter("tr") if len(row) == 5]
    return {text(row[0]): np.array([float(value.text) for value in row[3]]) for row in rows}


def test_a_reader_can_compute_z_and_score_by_hand(blocks):
    """They follow from the shown r, edges and sums; the edges are those of E, r is that of relevance."""
    shown = values_of(blocks["pecan.final_scores"])
    z, c = shown["z_i"], shown["c_i"]
    assert z == pytest.approx(shown["r_j"] @ shown["e_ji"], rel=1e-3)
    assert shown["score"] == pytest.approx(z / shown["sum z"] + c.clip(0) / shown["sum max(c, 0)"], rel=1e-3)
    assert shown["e_ji"][0] in values_of(blocks["pecan.build"])[f"column {shown['i'][0]:.0f} of E"]

    attention, position, r = values_of(blocks["pecan.relevance"]).values()
    assert r == pytest.approx(attention * position, rel=1e-3)


def test_the_heat_table_gives_the_edges(blocks):
    """Each row of edges is the mean of the rows above it, divided by their sum."""
    table = blocks["pecan.edge_weights"].find(".//table[@class='heat']")
    for bullet in table.iter("tbody"):
        *tokens, last = ([float(cell.text or 0) for cell in row[1:]] for row in bullet)
        mean = np.mean(tokens, axis=0)
        assert last == pytest.approx(mean / mean.sum(), abs=.03)
        if text(bullet[-1][0]) == "e of #65":
            assert last == pytest.approx(values_of(blocks["pecan.build"])["row 65 of E"], abs=.006)


def test_only_what_the_paper_leaves_open_is_marked(blocks):
    """Each note that the paper does not say something is a marked sentence. No mark says what the paper does say."""
    said = sum(len(re.findall(r"paper[\s#]+does[\s#]+not[\s#]+say", source)) for source in SOURCES.values())
    marks = [text(mark) for block in blocks.values() for mark in block.findall(".//span[@class='silent']")]
    assert len(marks) == said >= 10
    assert all(re.search(r"not\s+say", mark) and "4.2" not in mark for mark in marks)


# --- in a browser ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(show, html, scheme):
    """Every text has a contrast of 4.5 to 1 or more, as WCAG demands for small text."""
    ratio, words = show(html, scheme=scheme)(OPEN + CONTRAST)
    assert ratio >= 4.5, words


@pytest.mark.parametrize("width", [390, 820, 1000, 1400, 1920])
def test_nothing_is_cut(show, html, width):
    """Nothing is wider than the window. No formula, paragraph or, but on a telephone, table of a docstring scrolls."""
    run = show(html, width=width)
    assert run(OPEN + "return document.documentElement.scrollWidth <= innerWidth")
    assert run("""return [...document.querySelectorAll("math, p, header pre, .prose pre")]
        .filter(part => part.scrollWidth > part.clientWidth && (innerWidth > 600 || !part.matches(".prose pre")))
        .map(part => part.textContent)""") == []
