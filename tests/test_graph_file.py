"""What is kept next to a graph: the finished windows of a construction, and the vectors of its nodes."""
import contextlib
import gc
from dataclasses import replace

import pytest
import torch
from support.journal import Batch, InformationPoint, Journal

import pecan
from core.files import InputError
from core.settings import resolve
from data import EMBEDDED, Document, read_jsonl
from pecan import Graph, Pecan, build
from support.graph import node_vectors
from support.token_mean import TokenMean


class Killed(Exception):
    pass


@pytest.fixture(scope="module")
def settings(tiny):
    return replace(resolve(tiny.folder, tiny.config.max_length), batch=1)


@pytest.fixture(scope="module")
def document():
    """The beginnings of three documents of the embedded set as one."""
    return Document("d", [passage for document in read_jsonl(EMBEDDED, 3) for passage in document.passages[:12]])


@pytest.fixture(scope="module")
def undisturbed(tiny, document, settings, tmp_path_factory):
    """The file of a graph that was built in one go, and how many batches that took."""
    path = tmp_path_factory.mktemp("graph") / "g.json"
    finished = []
    build(tiny, document, settings, finished=finished).save(path)
    return path.read_bytes(), len(finished)


def test_garbage_is_collected_again_after_a_graph_was_read(undisturbed, tmp_path):
    for content in (undisturbed[0], b"{}"):
        (tmp_path / "g.json").write_bytes(content)
        with contextlib.suppress(InputError):
            Graph.load(tmp_path / "g.json")
        assert gc.isenabled()


@pytest.mark.slow
@pytest.mark.parametrize("torn", [False, True], ids=["between two lines", "inside a line"])
def test_an_interrupted_construction_goes_on(tiny, document, settings, undisturbed, tmp_path, monkeypatch, torn):
    """Killed after each batch in turn: no batch runs twice, and the graph is that of one go, byte by byte."""
    path = tmp_path / "g.json"
    content, batches = undisturbed
    method = Pecan(tiny, TokenMean(tiny), settings)
    runs = []
    summarise = pecan.summarise

    def one_batch(*arguments):
        if len(runs) % 2:
            runs.append("killed")
            raise Killed
        runs.append("done")
        return summarise(*arguments)
    monkeypatch.setattr(pecan, "summarise", one_batch)

    def is_finished():
        try:
            method.prepare(document, path)
        except Killed:
            return False
        except InputError as error:
            pytest.fail(str(error))
        return True

    for _ in range(batches - 1):
        assert not is_finished()
        if torn:
            journal, = tmp_path.glob("g.json.*.windows")
            with open(journal, "a") as file:
                file.write('[1, [["half a li')
    assert is_finished(), "it began again"
    assert path.read_bytes() == content
    assert runs.count("done") == batches > 3, "a batch ran twice"
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".json", ".vectors"], "the journal is gone"


@pytest.mark.parametrize("line", ["{}", "[1]", "[1, [[1]], 2]", "[1, 2, 3]", "[1, [], 3]", "[1, [], 3, 0, 0, 0]", "x"])
def test_a_damaged_journal_is_named(tmp_path, line):
    (tmp_path / "g.json.c.windows").write_text(line + "\n")
    with pytest.raises(InputError, match="g.json.c.windows, line 1: .*; remove the file, and the graph is built from"):
        Journal(tmp_path / "g.json", "c")


class Counting(TokenMean):
    """An encoder that counts the sentences it has seen."""
    seen = 0

    def encode(self, sentences):
        self.seen += len(sentences)
        return super().encode(sentences)


def test_vectors_are_kept_with_the_graph(tiny, tmp_path):
    """Computed once for each encoder and these texts; the FLOPs are those of the first time."""
    path = tmp_path / "g.json"
    encoder = Counting(tiny)
    texts = ["Mara's job is baker", "Theo's home is Oslo"]
    first, flops = node_vectors(path, encoder, texts)
    again, flops_again = node_vectors(path, encoder, texts)
    assert encoder.seen == 2 and flops == flops_again > 0 and torch.equal(first, again)

    others, _ = node_vectors(path, encoder, texts[::-1])
    assert encoder.seen == 4 and torch.equal(others, first.flip(0)), "vectors of other texts"

    other = Counting(tiny)
    other.fingerprint = "another encoder"
    node_vectors(path, other, texts)
    assert other.seen == 2 and len(list(tmp_path.iterdir())) == 2

    for file in tmp_path.iterdir():
        file.write_bytes(b"damaged")
    again, _ = node_vectors(path, other, texts)
    assert other.seen == 4 and torch.equal(again, first), "a damaged file is computed again"


def test_a_graph_that_is_there_is_loaded(tiny, document, settings, tmp_path):
    method = Pecan(tiny, TokenMean(tiny), settings)
    built = method.prepare(document, tmp_path / "g.json")
    flops = tiny.flops
    loaded = method.prepare(document, tmp_path / "g.json")
    assert tiny.flops == flops and loaded.flops == built.flops and torch.equal(loaded.index, built.index)
    assert isinstance(loaded.graph, Graph) and loaded.graph.nodes == built.graph.nodes


def test_a_weight_of_0_is_no_edge(tiny, settings, tmp_path, monkeypatch):
    """Attention can round to 0. The graph is written and read again without that edge."""
    def summarise(model, nodes, windows, *_):
        points = [InformationPoint("Mara", window, [0.0] * (len(window) - 1) + [1.0]) for window in windows]
        return Batch(len(windows), points, 0, 0, 0)
    monkeypatch.setattr(pecan, "summarise", summarise)
    document = Document("d", ["Mara is Sofia's baker."] * 3)
    graph = build(tiny, document, settings)
    assert graph.E.values().tolist() == [1.0]
    graph.save(tmp_path / "g.json")
    assert torch.equal(Graph.load(tmp_path / "g.json").E.to_dense(), graph.E.to_dense())
