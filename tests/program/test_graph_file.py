"""What is kept of a document: its graph, the summaries of an interrupted construction, and the vectors of its nodes."""
import json
import random
import re
import threading
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import save

import core.together
import pecan
from core.disk import node_vectors, read_kept
from core.files import InputError, OutputError
from core.together import Batches, Memory, Wanted, together
from data import Document
from encoders.token_mean import TokenMean
from pecan import Pecan


@pytest.fixture
def prepare(tiny, settings, document, monkeypatch):
    """A function that prepares the first 15 passages of the document, in batches of one group.

    Each group gives two IPs: its first words, behind the model's id, with an edge to its last node; and "Theo", without
    an edge. After `most` batches the run is killed. `prepare.batches` counts the batches of all calls.
    """
    def call(path, most=99, of=document.passages[:15], builder=tiny, **changes):
        end = call.batches + most

        def summarise(model, batch, limit, tree):
            if call.batches == end:
                raise KeyboardInterrupt
            call.batches += 1
            return [([(f"{id(model)} {limit} {tree} {texts[0][:20]}", [0.0] * (len(texts) - 1) + [1.0]),
                      ("Theo", [0.0] * len(texts))], 7) for texts in batch]
        monkeypatch.setattr(pecan, "summarise", summarise)
        method = Pecan(tiny, TokenMean(tiny), replace(settings, batch=1, **changes), builder)
        return method.prepare(Document("d", of), path)
    call.batches = 0
    return call


def test_an_interrupted_construction_goes_on(prepare, tmp_path):
    """It is killed after every batch, and a line is torn. Still no batch runs twice, and the graph is the same byte by
    byte. Nothing else stays but the vectors."""
    path = tmp_path / "g.json"
    prepare(tmp_path / "undisturbed.json")
    batches, prepare.batches = prepare.batches, 0
    for _ in range(batches - 1):
        with pytest.raises(KeyboardInterrupt):
            prepare(path, most=1)
        with open(f"{path}.summaries", "a") as torn:
            torn.write('["half a li')
    prepare(path, most=1)
    assert prepare.batches == batches > 3
    assert path.read_bytes() == (tmp_path / "undisturbed.json").read_bytes()
    assert {file.suffix for file in tmp_path.iterdir()} == {".json", ".vectors"}


def test_summaries_of_another_construction_are_not_taken(prepare, document, model, tmp_path):
    """Of another builder, another document or other settings, interrupted at the same place."""
    path = tmp_path / "g.json"
    prepare(tmp_path / "undisturbed.json")
    for other in ({"builder": model}, {"of": document.passages[15:]}, {"tree": True}):
        with pytest.raises(KeyboardInterrupt):
            prepare(path, most=2, **other)
    prepare(path)
    assert path.read_bytes() == (tmp_path / "undisturbed.json").read_bytes()


def test_a_full_disk_at_the_end_loses_no_summary(prepare, tmp_path, monkeypatch):
    path = tmp_path / "g.json"
    with monkeypatch.context() as patch:
        patch.setattr(core.together, "write_kept", Mock(side_effect=OutputError("full")))
        with pytest.raises(OutputError):
            prepare(path)
    prepare(path, most=0)
    assert path.exists()


def test_a_second_builder_is_refused(tmp_path):
    """It is refused whatever it builds. The first goes on and leaves no file; then another may build."""
    path = tmp_path / "g.json"
    for construction in ("a", "b"):
        first, second = Memory(construction, path), Memory("a", path)
        with pytest.raises(Wanted):
            first.ask(["?"])
        with pytest.raises(InputError, match="g.json: another run is writing there; wait for it"):
            second.ask(["?"])
        first.done()
        assert not list(tmp_path.iterdir())


def test_a_graph_that_another_run_builds_is_waited_for(tmp_path):
    """Others are built meanwhile. Two runs that share their graphs both get all of them."""
    path = tmp_path / "g.json"
    other_run = Memory("a", path)
    with pytest.raises(Wanted):
        other_run.ask(["?"])
    done = []
    constructions = [(lambda ask: ask(["?"]), Memory("a", path)),
                     (lambda ask: done.append("second"), Memory("a", None))]
    waiting = threading.Thread(target=lambda: done.append(together(constructions, Batches(4), lambda calls: calls)))
    waiting.start()
    waiting.join(1)
    assert done == ["second"] and waiting.is_alive()
    other_run.done()
    waiting.join(9)
    assert done == ["second", [["?"], None]] and not list(tmp_path.iterdir())


def test_a_graph_that_is_there_is_loaded(model, prepare, tmp_path):
    """It serves every search. A graph of another document, builder or construction setting is refused."""
    path = tmp_path / "g.json"
    built = prepare(path)
    for loaded in (prepare(path, most=0), prepare(path, most=0, patience=3, attention=False)):
        assert (loaded.graph.nodes, loaded.flops) == (built.graph.nodes, built.flops)
        assert list(map(tuple, loaded.graph.edges)) == built.graph.edges and torch.equal(loaded.index, built.index)
    for other, name in (({"chunk": 31}, "settings"), ({"window": 500}, "settings"), ({"summary_share": .3}, "settings"),
                        ({"tree": True}, "settings"), ({"builder": model}, "model"), ({"of": ["x"]}, "document")):
        with pytest.raises(InputError, match=f"g.json: is of another {name}"):
            prepare(path, **other)


def test_a_kept_file_that_was_damaged_is_never_used(prepare, tiny, tmp_path):
    """A bit, a digit, a cut, a line: a graph is refused, vectors and summaries are made again. 40 of each kind."""
    path = tmp_path / "g.json"
    with pytest.raises(KeyboardInterrupt):
        prepare(path, most=3)
    summaries = Path(f"{path}.summaries").read_bytes()
    built = prepare(path)
    vectors, = tmp_path.glob("*.vectors")
    rng = random.Random(0)

    def damaged(content: bytes) -> bytes:
        """The content with one damage that is more than white space."""
        lines = content.splitlines(keepends=True)
        at = rng.randrange(len(content))
        number = rng.choice([m.start() for m in re.finditer(rb"[0-9]", content)])
        line = rng.randrange(len(lines))
        return rng.choice([
            content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1:], content[:at],
            content[:number] + b"%d" % ((content[number] - 47) % 10) + content[number + 1:],
            b"".join(lines[:line] + lines[line + 1:]), b"".join(lines[:line] + 2 * [lines[line]] + lines[line + 1:])])

    good = path.read_bytes(), vectors.read_bytes()
    refused = 0
    for _ in range(40):
        path.write_bytes(damaged(good[0]))
        try:
            assert json.loads(path.read_bytes()) == json.loads(good[0]) and read_kept(path)
        except (ValueError, AssertionError):
            with pytest.raises(InputError, match="g.json: .*; remove it, and it is built again"):
                read_kept(path)
            refused += 1
    assert refused > 30
    path.write_bytes(good[0])

    for _ in range(40):
        vectors.write_bytes(damaged(good[1]))
        assert torch.equal(prepare(path, most=0).index, built.index)

    for _ in range(40):
        path.unlink()
        Path(f"{path}.summaries").write_bytes(damaged(summaries))
        prepare(path)
        assert path.read_bytes() == good[0]


def test_vectors_are_kept_with_the_graph(tiny, tmp_path):
    """They are computed once for each encoder and list of texts, and again if the file is damaged. Later calls return
    the FLOPs of the first. A folder that cannot be written (here: none) changes nothing."""
    one, other = ["Mara has a goat", "Theo lives by the hill"], ["Otto is Lima's pilot"]

    def computed(texts, name, folder=tmp_path):
        encoder = TokenMean(tiny)
        encoder.fingerprint = name
        vectors, flops = node_vectors(folder / "g.json", encoder, texts)
        assert torch.equal(vectors, TokenMean(tiny).encode(texts)) and flops == 2 * len(texts) * vectors.shape[1] ** 2
        return encoder.flops > 0

    calls = (one, "a"), (one, "a"), (one, "b"), (other, "a"), (other, "a"), (one, "b")
    assert [computed(*call) for call in calls] == [True, False, True, True, False, False]
    assert computed(one, "a", tmp_path / "none") and computed(one, "a", tmp_path / "none")
    for damage in (b"damaged", save({"vectors": torch.zeros(1)}, {"note": "of another program"})):
        for file in tmp_path.iterdir():
            file.write_bytes(damage)
        assert computed(one, "b")
