"""docs/demo.ipynb runs on the embedded model and gives the numbers that it stores; they are those of pecan.py.

python tests/documents/test_demo.py      runs the notebook and stores its outputs
"""
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "documents")]
from test_annotate import NUMBER, assert_same  # noqa: E402

from data import read_text  # noqa: E402
from pecan import Pecan  # noqa: E402

PATH = ROOT / "docs" / "demo.ipynb"


def executed():
    """The notebook after a run, without the bars that show progress."""
    book = nbformat.read(PATH, 4)
    NotebookClient(book, timeout=600, record_timing=False, resources={"metadata": {"path": str(PATH.parent)}}).execute()
    for cell in book.cells:
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return book


def said(book) -> str:
    """What the cells print and the tables that they show."""
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    return "".join(output.get("text") or output.data.get("text/html", "") for output in outputs)


@pytest.mark.slow
def test_the_notebook_gives_what_it_stores():
    assert_same(said(nbformat.read(PATH, 4)), said(executed()))


def test_its_numbers_are_those_of_a_search():
    book = nbformat.read(PATH, 4)
    assert sum("image/png" in output.get("data", {}) for cell in book.cells for output in cell.get("outputs", [])) == 2
    method = Pecan.load(ROOT / "tiny")
    answer = method.answer(method.prepare(read_text(ROOT / "tiny" / "story.txt")), "When did Selma move?")
    shown = [pytest.approx(float(number), rel=6e-3) for number in NUMBER.findall(said(book))]
    for step in answer.trace:
        for value in (step.r, step.z, step.c, step.p_yes):
            assert value is None or value in shown


if __name__ == "__main__":
    nbformat.write(executed(), PATH)
