"""What is kept on disk: graphs, summaries of an interrupted construction, vectors; how damage is noticed."""
import os
import random
import threading
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from runs import ROOT, table

import core.together
import pecan
from core.disk import any_of, node_vectors, read_kept
from core.files import InputError
from core.together import Batches, Memory, Wanted, together
from data import Answer, Document, Prepared, Question
from encoders.token_mean import TokenMean
from evaluation.answers import Predictions
from pecan import Pecan
from view import ask
from view.trace import read_searches


@pytest.fixture
def prepare(tiny, settings, document, monkeypatch):
    """A function that prepares the first 15 passages of the document, in batches of one group.

    Each group gives two IPs: its first words, behind the model's id, with an edge to its last node; and "Theo", without
    an edge. After `most` batches the run is killed.
    """
    def call(path, most=99, of=document.passages[:15], builder=tiny, **changes):
        batches = iter(range(most))

        def summarise(model, batch, limit, tree):
            if next(batches, None) is None:
                raise SystemExit
            return [([(f"{id(model)} {limit} {tree} {texts[0][:20]}", [0.0] * (len(texts) - 1) + [1.0]),
                      ("Theo", [0.0] * len(texts))], 7) for texts in batch]
        monkeypatch.setattr(pecan, "summarise", summarise)
        method = Pecan(tiny, TokenMean(tiny), replace(settings, batch=1, **changes), builder)
        return method.prepare(Document("d", of), path)
    return call


def test_summaries_of_another_construction_are_not_taken(prepare, document, model, tmp_path):
    """Of another builder, another document or other settings, interrupted at the same place."""
    path = tmp_path / "g.json"
    prepare(tmp_path / "undisturbed.json")
    for other in ({"builder": model}, {"of": document.passages[15:]}, {"tree": True}):
        with pytest.raises(SystemExit):
            prepare(path, most=2, **other)
    prepare(path)
    assert path.read_bytes() == (tmp_path / "undisturbed.json").read_bytes()


@pytest.mark.parametrize("error", [OSError, InputError])
def test_a_failure_at_the_end_loses_no_summary(prepare, tmp_path, monkeypatch, error):
    path = tmp_path / "g.json"
    with monkeypatch.context() as patch:
        patch.setattr(core.together, "write_kept", Mock(side_effect=error("x")))
        with pytest.raises(error):
            prepare(path)
    prepare(path, most=0)
    assert path.exists()


def test_graphs_of_any_code(tiny, settings, tmp_path):
    """The newest of another code is taken, if there is none of this code; what is built says its own code."""
    method = Pecan(tiny, TokenMean(tiny), settings)
    method.any_code = True
    document = Document("d", ["Tom is here."])
    path = tmp_path / f"{method.file_name(document)}.json"
    others = [path.with_name(f"{path.stem[:-16]}{code * 16}.json") for code in "abc"]
    for time, other in zip((1, 3, 2), others):
        other.write_text("")
        os.utime(other, (time, time))
    assert any_of(path) == others[1]
    method.prepare(document, path)
    assert any_of(path) == path and read_kept(path)["code"] == method.code()


def test_a_graph_that_another_run_builds_is_waited_for(tmp_path):
    """Others are built meanwhile; one that fails here is left to the other run, which may wait for it. Two runs that
    share their graphs both get all of them."""
    path, failing = tmp_path / "g.json", tmp_path / "f.json"
    other_run = Memory("a", path)
    with pytest.raises(Wanted):
        other_run.ask(["?"])
    done = []
    constructions = [(lambda ask: ask(["?"]), Memory("a", path)), (lambda ask: ask([0]), Memory("a", failing)),
                     (lambda ask: done.append("third"), Memory("a", None))]
    waiting = threading.Thread(target=lambda: done.append(together(
        constructions, Batches(4), lambda calls: calls if all(calls) else Mock(side_effect=MemoryError)())))
    waiting.start()
    waiting.join(1)
    assert done == ["third"] and waiting.is_alive()
    with pytest.raises(Wanted):
        Memory("a", failing).ask(["?"])
    other_run.done()
    waiting.join(9)
    assert done[1][::2] == [["?"], None] and isinstance(done[1][1], InputError) and not list(tmp_path.glob("g.*"))


def test_a_graph_that_is_there_is_loaded(model, prepare, tmp_path, monkeypatch):
    """It serves every search. A graph of another document, builder or construction setting is refused."""
    path = tmp_path / "g.json"
    built = prepare(path)
    monkeypatch.setattr(Path, "unlink", Mock(side_effect=OSError))     # of a folder that is read-only, even if missing
    for loaded in (prepare(path, most=0), prepare(path, most=0, patience=3, attention=False)):
        assert (loaded.graph.nodes, loaded.flops) == (built.graph.nodes, built.flops)
        assert torch.equal(loaded.graph.E, built.graph.E) and torch.equal(loaded.index, built.index)
    for other, name in (({"chunk": 31}, "settings"), ({"builder": model}, "model"), ({"of": ["x"]}, "document")):
        with pytest.raises(InputError, match=f"g.json: is of another {name}"):
            prepare(path, **other)


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


def test_what_a_damaged_file_gives_was_there_or_is_refused_in_one_line(tmp_path):
    """A graph, a trace of a search in it, and predictions."""
    files = {tmp_path / "g.json": lambda path: [read_kept(path)], tmp_path / "t.jsonl": read_searches,
             tmp_path / "p.jsonl": lambda path: Predictions(path).rows.values()}
    graph, trace, predictions = files
    ask.ask([str(ROOT / "tiny" / "story.txt"), "When did Selma move?", "--device", "cpu", "--graph", str(graph),
             "--trace", str(trace)])
    Predictions(predictions).add(Document("d", ["x"]), Question("q", "Who?", ["a"]), Prepared([]),
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


def test_damaged_vectors_and_summaries_are_made_again(prepare, tmp_path):
    path = tmp_path / "g.json"
    summaries = tmp_path / "g.json.summaries"
    with pytest.raises(SystemExit):
        prepare(path, most=3)
    kept = summaries.read_bytes()
    built = prepare(path)
    graph = path.read_bytes()
    vectors, = tmp_path.glob("*.vectors")
    content = vectors.read_bytes()
    at = content.index(b'"note":"') + 8                       # of the FLOPs
    for damaged in (*damages(content), content[:at] + b"9" + content[at + 1:]):
        vectors.write_bytes(damaged)
        again = prepare(path, most=0)
        assert torch.equal(again.index, built.index) and again.flops == built.flops
    for damaged in damages(kept):
        path.unlink()
        summaries.write_bytes(damaged)
        prepare(path)
        assert path.read_bytes() == graph


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
        encoder.fingerprint = name
        vectors, flops = node_vectors(tmp_path / folder / "g.json", encoder, texts)
        assert torch.equal(vectors, TokenMean(tiny).encode(texts)) and flops == 2 * len(texts) * vectors.shape[1] ** 2
        assert str(encoder.flops > 0) == computed
