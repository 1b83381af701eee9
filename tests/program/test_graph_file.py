"""What is kept on disk: graphs, replies of an interrupted construction, vectors, answers; how damage is noticed."""
import os
import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from runs import ROOT, Watched, table

from core.disk import node_vectors, read_kept, read_rows
from core.files import InputError, lock
from data import Answer, Document, Prepared, Question
from encoders.token_mean import TokenMean
from evaluation.answers import Answers
from pecan import InformationPoint, Pecan, Summary, build
from view import ask
from view.page import read_searches


@pytest.fixture
def prepare(tiny, settings, document):
    """A function that prepares the first 15 passages of the document, without the model.

    Each group gives two IPs: its first words, with an edge to its last node, and "Theo", without an edge. After `most`
    groups the run is killed.
    """
    def call(path, most=99, of=document.passages[:15], builder=tiny, **changes):
        left = iter(range(most))

        def write(batch, work):
            if next(left, None) is None:
                raise SystemExit
            return [Summary([InformationPoint(texts[0][:20], [0.0] * (len(texts) - 1) + [1.0]),
                             InformationPoint("Theo", [0.0] * len(texts))], 7) for _, texts in batch]
        method = Pecan(tiny, TokenMean(tiny), replace(settings, **changes), builder)
        method.batches = Watched(1, write)
        return method.prepare(Document("d", of), path)
    return call


def test_a_graph_that_is_there_is_loaded(model, prepare, tmp_path, monkeypatch):
    """It serves every search. A graph, and replies for one, of another document, builder or construction setting are
    refused."""
    path = tmp_path / "g.json"
    half = tmp_path / "half.json"
    built = prepare(path)
    with pytest.raises(SystemExit):
        prepare(half, most=2)
    for other, name in (({"chunk": 31}, '"chunk": 24'), ({"builder": model}, "float32"), ({"of": ["x"]}, '"document"')):
        with pytest.raises(InputError, match=f"g.json: is of another setup .*{name}"):
            prepare(path, **other)
        with pytest.raises(InputError, match="half.json.replies: holds replies for another document, model"):
            prepare(half, **other)

    monkeypatch.setattr(Path, "unlink", Mock(side_effect=OSError))     # of a folder that is read-only, even if missing
    for loaded in (prepare(path, most=0), prepare(path, most=0, patience=3, attention=False)):
        assert (loaded.graph.nodes, loaded.flops) == (built.graph.nodes, built.flops)
        assert torch.equal(loaded.graph.E, built.graph.E) and torch.equal(loaded.index, built.index)


@pytest.mark.parametrize("error", [OSError, InputError])
def test_a_failure_at_the_end_loses_no_reply(prepare, tmp_path, monkeypatch, error):
    path = tmp_path / "g.json"
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", Mock(side_effect=error("x")))
        with pytest.raises(error):
            prepare(path)
    prepare(path, most=0)
    assert path.exists()


def test_a_graph_that_another_run_builds(tiny, settings, tmp_path):
    """It fails with this reason, and the others go on. What the other run has built meanwhile is taken."""
    method = Pecan(tiny, TokenMean(tiny), settings)
    documents = Document("a", ["Tom is here."]), Document("b", ["Ann is here."])
    paths = tmp_path / "a.json", tmp_path / "b.json"
    with lock(paths[0]):
        busy, other = method.prepare_all(documents, paths)
    assert isinstance(busy, InputError) and "a.json: another run is writing there" in str(busy) and other.texts
    method.prepare(documents[0], paths[0])
    with lock(paths[0]):
        assert method.prepare_all(documents, paths)[0].texts


def test_a_method_that_nothing_can_name_keeps_nothing(tiny, settings, tmp_path):
    """Another one could take what it has built."""
    method = Pecan(tiny, TokenMean(tiny), settings, build=partial(build, torch.ones(1)))
    document = Document("d", ["Tom is here."])
    assert method.file_name(document) is None
    with pytest.raises(InputError, match="g.json: nothing can be kept of a method that nothing can name"):
        method.prepare(document, tmp_path / "g.json")


# --- damage ---------------------------------------------------------------------------------------------------------

STRANGE = rb"""
[1, 0, NaN],
[[1], 0, 0.5],
{"level": 1, "text": "\ud800"},
null
{}""".splitlines(keepends=True)


def damages(content: bytes):
    """Yield the content with a bit or a line changed, or cut off."""
    rng = random.Random(0)
    lines = content.splitlines(keepends=True)
    for _ in range(10):
        at = rng.randrange(len(content))
        yield content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1:]
        yield content[:at]
        n = rng.randrange(len(lines))
        for line in (b"", 2 * lines[n], b"[" * 5000 + b"\n", *STRANGE):
            yield b"".join([*lines[:n], line, *lines[n + 1:]])


def test_what_a_damaged_file_gives_was_there_or_is_refused_in_one_line(prepare, tmp_path):
    """A graph, replies of an interrupted construction, a trace of a search, and answers."""
    files = {tmp_path / "g.json": lambda path: [read_kept(path)], tmp_path / "t.jsonl": read_searches,
             tmp_path / "half.json.replies": read_rows,
             tmp_path / "r" / "p.jsonl": lambda path: Answers(path, {"code": "a"}).rows.values()}
    graph, trace, _, answers = files
    ask.ask([str(ROOT / "tiny" / "story.txt"), "When did Selma move?", "--device", "cpu", "--graph", str(graph),
             "--trace", str(trace)])
    with pytest.raises(SystemExit):
        prepare(tmp_path / "half.json", most=2)
    Answers(answers, {"code": "a"}).add(Document("d", ["x"]), Question("q", "Who?", ["a"]), Prepared([]),
                                        Answer("a", [], 1, 1), None)
    for path, read in files.items():
        content = path.read_bytes()
        good = [*read(path)]
        refused = 0
        for damaged in damages(content):
            path.write_bytes(damaged)
            try:
                assert all(found in good for found in read(path))
            except InputError as error:
                assert str(path) in str(error) and "\n" not in str(error)
                refused += 1
        assert refused > 35
        path.write_bytes(content)


def test_damaged_vectors_are_made_again(prepare, tmp_path):
    path = tmp_path / "g.json"
    built = prepare(path)
    vectors, = tmp_path.glob("*.vectors")
    content = vectors.read_bytes()
    at = content.index(b'"note":"') + 8                       # of the FLOPs
    for damaged in (*damages(content), content[:at] + b"9" + content[at + 1:]):
        vectors.write_bytes(damaged)
        again = prepare(path, most=0)
        assert torch.equal(again.index, built.index) and again.flops == built.flops


# The folder, the encoder, the texts, and whether their vectors are computed.
VECTORS = """
.    | a | Mara has a goat, Theo lives by the hill | True
.    | a | Mara has a goat, Theo lives by the hill | False
.    | b | Mara has a goat, Theo lives by the hill | True
.    | a | Otto is Lima's pilot                    | True
.    | a | Otto is Lima's pilot                    | False
.    | b | Mara has a goat, Theo lives by the hill | False
none | a | Otto is Lima's pilot                    | True
none | a | Otto is Lima's pilot                    | True
"""


def test_vectors_are_kept_with_the_graph(tiny, tmp_path):
    """They are computed once for each encoder and list of texts. Later calls return the FLOPs of the first. A folder
    that cannot be written (here: none) changes nothing."""
    for folder, name, texts, computed in table(VECTORS):
        texts = texts.split(", ")
        encoder = TokenMean(tiny)
        encoder.unit = name                                    # two encoders with equal vectors
        vectors, flops = node_vectors(tmp_path / folder / "g.json", encoder, texts)
        assert torch.equal(vectors, TokenMean(tiny).encode(texts)) and flops == 2 * len(texts) * vectors.shape[1] ** 2
        assert str(encoder.flops > 0) == computed
