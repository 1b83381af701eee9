"""The pages of searches are those that are made, and the README's pictures show today's pages.

python tests/documents/test_images.py      makes both search.html and the pictures, light and dark
"""
import io
import sys
from base64 import b64decode
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from PIL import Image, PngImagePlugin

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]             # if this file is run
from chromium import open_browser  # noqa: E402
from test_demo import assert_same  # noqa: E402

from data import read_text  # noqa: E402
from view.annotate import annotated  # noqa: E402
from view.heat import heat  # noqa: E402
from view.page import page  # noqa: E402
from view.recorder import STORY, embedded_method  # noqa: E402
from view.search import searched  # noqa: E402
from view.trace import read_traces  # noqa: E402

DOCS = ROOT / "docs"
SEARCH = DOCS / "search.html"
REAL = DOCS / "real" / "search.html"                         # a real model's, from the trace beside it

def heat_page() -> str:
    """The heat table, of which the picture shows the last two bullets."""
    method = embedded_method()
    table = heat(method.model, method.prepare(read_text(STORY)).graph, 65, method.settings)
    return '<!doctype html><meta name="color-scheme" content="light dark">' + table


# What a picture shows: a part of a page, the width and height of the window, and a script that runs first.
PICTURES = {"search": (searched, "main", 1100, 640, ""),
            "annotated": (annotated, "[id='pecan.final_scores']", 1120, 900,
                          "part.querySelector('details').open = true"),
            "heat": (heat_page, "body", 900, 600, "part.style.cssText = 'margin: 0; padding: 8px';"
                     "document.querySelectorAll('tbody:not(:nth-last-child(-n+2))').forEach(body => body.remove())")}


def pictures(browser, folder: Path):
    """Yield the file of each picture, light and dark, the picture as a PNG, and its text."""
    for name, (html, selector, width, height, script) in PICTURES.items():
        (folder / "page.html").write_text(html(), encoding="utf-8")
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                {"width": width, "height": height, "deviceScaleFactor": 1.5, "mobile": False})
        for scheme, ending in (("light", ""), ("dark", "-dark")):
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia",
                                    {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
            browser.get("about:blank")
            browser.get((folder / "page.html").as_uri())
            clip, text = browser.execute_script(f"""const part = document.querySelector(arguments[0]);
                {script};
                part.scrollIntoView();
                const {{x, y, width, height}} = part.getBoundingClientRect();
                return [{{x: x + scrollX, y: y + scrollY, width, height, scale: 1}}, part.innerText];""", selector)
            shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip})
            yield DOCS / f"{name}{ending}.png", b64decode(shot["data"]), text


def real() -> str:
    return page(read_traces(REAL.with_suffix(".jsonl")))


def test_the_page_of_a_search_is_the_one_that_is_made():
    """If it is not, run this file."""
    assert REAL.read_text(encoding="utf-8") == real()
    assert_same(SEARCH.read_text(encoding="utf-8"), searched())


@pytest.mark.slow
def test_pictures_have_the_text_of_todays_pages(browser, tmp_path):
    """If they have not, run this file. The README shows each, light and dark."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for file, _, text in pictures(browser, tmp_path):
        assert f'"docs/{file.name}"' in readme
        assert_same(Image.open(file).text["Description"], text)


if __name__ == "__main__":
    REAL.write_text(real(), encoding="utf-8")
    SEARCH.write_text(searched(), encoding="utf-8")
    with TemporaryDirectory() as temporary:
        window = open_browser(temporary)
        for file, picture, text in pictures(window, Path(temporary)):
            note = PngImagePlugin.PngInfo()
            note.add_itxt("Description", text)              # so that a test sees whether a picture is of today
            Image.open(io.BytesIO(picture)).convert("RGB").save(file, optimize=True, pnginfo=note)
        window.quit()
