"""The pages of searches and the README's pictures are those that are made today.

python tests/documents/test_images.py      makes both search.html and the pictures
"""
import io
import sys
from base64 import b64decode
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib
import pytest
from PIL import Image, PngImagePlugin

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]             # if this file is run
from chromium import open_browser  # noqa: E402
from test_demo import assert_same  # noqa: E402

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

from data import read_text  # noqa: E402
from view.draw import heat  # noqa: E402
from view.heat import tokens_written  # noqa: E402
from view.page import page, read_searches  # noqa: E402
from view.search import STORY, embedded_method, searched  # noqa: E402

DOCS = ROOT / "docs"
SEARCH = DOCS / "search.html"
REAL = DOCS / "real" / "search.html"                         # a real model's, from the trace beside it


def heat_picture() -> tuple[Image.Image, str]:
    """The attention behind two bullets, and the texts in this picture."""
    method = embedded_method()
    graph = method.prepare(read_text(STORY)).graph
    written = tokens_written(method.model, graph, 65, method.settings)
    heat(graph, {i: written[i] for i in (65, 66)})
    text = "\n".join(each.get_text() for each in pyplot.gcf().findobj(matplotlib.text.Text))
    pyplot.savefig(stored := io.BytesIO(), dpi=130)
    return Image.open(stored), text


def search_pictures(browser, folder: Path):
    """Yield the file of the search's picture, light and dark, the picture, and its text."""
    (folder / "page.html").write_text(searched(), encoding="utf-8")
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                            {"width": 1100, "height": 640, "deviceScaleFactor": 1.5, "mobile": False})
    for scheme, ending in (("light", ""), ("dark", "-dark")):
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia",
                                {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        browser.get("about:blank")
        browser.get((folder / "page.html").as_uri())
        clip, text = browser.execute_script("""const part = document.querySelector("main");
            const {x, y, width, height} = part.getBoundingClientRect();
            return [{x: x + scrollX, y: y + scrollY, width, height, scale: 1}, part.innerText];""")
        shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip})
        yield DOCS / f"search{ending}.png", Image.open(io.BytesIO(b64decode(shot["data"]))), text


def real() -> str:
    return page(read_searches(REAL.with_suffix(".jsonl")))


def assert_today(file: Path, text: str):
    """A stored picture has the text of today's; the README shows it."""
    assert f'"docs/{file.name}"' in (ROOT / "README.md").read_text(encoding="utf-8")
    assert_same(Image.open(file).text["Description"], text)


def test_the_page_of_a_search_is_the_one_that_is_made():
    """If it is not, run this file."""
    assert REAL.read_text(encoding="utf-8") == real()
    assert_same(SEARCH.read_text(encoding="utf-8"), searched())


def test_the_heat_picture_is_the_one_that_is_made():
    """If it is not, run this file."""
    assert_today(DOCS / "heat.png", heat_picture()[1])


@pytest.mark.slow
def test_pictures_of_the_search_have_the_text_of_todays_page(browser, tmp_path):
    """If they have not, run this file."""
    for file, _, text in search_pictures(browser, tmp_path):
        assert_today(file, text)


if __name__ == "__main__":
    REAL.write_text(real(), encoding="utf-8")
    SEARCH.write_text(searched(), encoding="utf-8")
    with TemporaryDirectory() as temporary:
        window = open_browser(temporary)
        for file, picture, text in [*search_pictures(window, Path(temporary)), (DOCS / "heat.png", *heat_picture())]:
            note = PngImagePlugin.PngInfo()
            note.add_itxt("Description", text)              # so that a test sees whether a picture is of today
            picture.convert("RGB").save(file, optimize=True, pnginfo=note)
        window.quit()
