"""Documents that are built together equal documents built alone, also after kills and when memory runs out."""
from dataclasses import replace

import pytest
import torch
from runs import Watched

from core.files import InputError, remark
from core.together import Batches
from data import EMBEDDED, Document
from encoders.token_mean import TokenMean
from evaluation.datasets import Dataset
from pecan import Pecan


@pytest.fixture(scope="module")
def documents():
    """The first chapters of three documents of the embedded set, of different lengths."""
    return [Document(document.id, document.passages[:n])
            for document, n in zip(Dataset(EMBEDDED, 3).documents, (40, 25, 15), strict=True)]


@pytest.fixture(scope="module")
def method(tiny, settings):
    """A function that makes a method of so many rows in a batch."""
    return lambda rows: Pecan(tiny, TokenMean(tiny), replace(settings, batch=rows))


@pytest.fixture(scope="module")
def alone(method, documents):
    """The graph of each document, from one group at a time."""
    return [method(1).prepare(document).graph for document in documents]


def assert_equal(prepared, wanted):
    """The same nodes and FLOPs. Rows that run beside others round differently, so edges are equal to 1e-6."""
    for graph, other in zip((each.graph for each in prepared), wanted, strict=True):
        assert (graph.nodes, graph.flops) == (other.nodes, other.flops)
        assert (graph.E - other.E).abs().max() < 1e-6


@pytest.mark.parametrize("rows", [2, 16])
def test_documents_that_share_batches_equal_documents_alone(method, documents, alone, rows):
    sizes = []
    together = method(1)
    together.batches = Watched(rows, lambda batch, work: sizes.append(len(batch)) or work(batch))
    assert_equal(together.prepare_all(documents, [None] * 3), alone)
    assert max(sizes) == rows and sum(sizes) > 3 * len(sizes) / 2, sizes


def test_killed_at_every_batch_it_goes_on(method, documents, alone, tmp_path):
    """Though the last line of each file is torn, no group is summarised twice. What is left on disk are graphs and
    vectors."""
    paths = [tmp_path / f"{document.id}.json" for document in documents]
    made = []

    def once(batch, work):
        if again.killed:
            raise KeyboardInterrupt
        again.killed = True
        made.extend(str(texts) for _, texts in batch)
        return work(batch)

    for kills in range(40):
        again = method(1)
        again.killed = False
        again.batches = Watched(4, once)
        try:
            prepared = again.prepare_all(documents, paths)
            break
        except KeyboardInterrupt:
            for replies in tmp_path.glob("*.replies"):
                with replies.open("a") as torn:
                    torn.write('["half a li')
    assert_equal(prepared, alone)
    assert kills > 4 and len(made) == len({*made})
    assert {file.suffix for file in tmp_path.iterdir()} == {".json", ".vectors"}


def test_a_document_that_fails_stops_no_other(method, documents, alone):
    one, blank, two = method(8).prepare_all([documents[0], Document("blank", [" "]), documents[1]], [None] * 3)
    assert_equal([one, two], alone[:2])
    assert isinstance(blank, InputError) and "blank" in str(blank)


# --- memory ---------------------------------------------------------------------------------------------------------

def test_out_of_memory_halves_the_batch(capsys):
    """16, 8 and 4 rows of length 10 do not fit, 2 do. One row of length 1,000 never fits: it alone has no result, and
    others go on together. That fewer rows run is said once. (Each item is its own length.)"""
    sizes = []

    def work(items):
        sizes.append(len(items))
        if sum(items) > 30:
            raise InputError("damaged") if 31 in items else torch.OutOfMemoryError("CUDA out of memory")
        return [-item for item in items]

    remark.cache_clear()                                    # it says a line once in a process
    batches = Batches(16)
    results = [result for _, result in batches.run([10] * 20, int, work)]
    assert sizes[:4] == [16, 8, 4, 2] and {*sizes[4:]} == {2} and results == [-10] * 20

    sizes.clear()
    found = list(batches.run([1000] + [1] * 40, int, work))
    assert [item for item, result in found if isinstance(result, InputError)] == [1000]
    assert sizes[0] == 1 and max(sizes) > 1, "one long row is no reason to run others alone"
    sizes.clear()
    assert len(list(Batches(4).run([31] + [1] * 7, int, work))) == 8 and sizes == [4, 1, 1, 1, 1, 4]
    assert capsys.readouterr().err.count("out of memory") == 1
