"""docs/demo.ipynb runs on the embedded model and gives the numbers that it stores.

python tests/documents/test_demo.py      runs the notebook and stores its outputs
"""
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

PATH = Path(__file__).parents[2] / "docs" / "demo.ipynb"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?")


def assert_same(stored: str, fresh: str):
    """Two texts are the same but for the last digits of their numbers, which may differ between processors."""
    assert NUMBER.sub("0", stored) == NUMBER.sub("0", fresh)
    numbers, again = (list(map(float, NUMBER.findall(words))) for words in (stored, fresh))
    assert numbers == pytest.approx(again, rel=1e-2, abs=1e-9)


def executed():
    """The notebook after a run, without the bars that show progress."""
    book = nbformat.read(PATH, 4)
    NotebookClient(book, timeout=600, record_timing=False, resources={"metadata": {"path": str(PATH.parent)}}).execute()
    for cell in book.cells:
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return book


def said(book) -> str:
    """What the cells print, and the sizes of pictures."""
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    return "".join(output.get("text") or output.data["text/plain"] for output in outputs)


@pytest.mark.slow
def test_the_notebook_gives_what_it_stores():
    assert_same(said(nbformat.read(PATH, 4)), said(executed()))


if __name__ == "__main__":
    nbformat.write(executed(), PATH)
