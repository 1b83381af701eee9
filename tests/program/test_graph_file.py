"""What is kept of a document: its graph, the summaries of an interrupted construction, and the vectors of its nodes."""
import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save

import pecan
from core.disk import kept, node_vectors, read_graph
from core.files import InputError
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
            model.flops += 7
            return [[(f"{id(model)} {limit} {tree} {texts[0][:20]}", [0.0] * (len(texts) - 1) + [1.0]),
                     ("Theo", [0.0] * len(texts))] for texts in batch]
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


def test_a_second_builder_is_refused(tmp_path):
    """It is refused whatever it builds. The first goes on and leaves no file; then another may build."""
    path = tmp_path / "g.json"
    for construction in ("a", "b"):
        with kept(path, construction, None):
            with pytest.raises(InputError, match="g.json: another run is writing there; wait for it"):
                with kept(path, "a", None):
                    pass
        assert not list(tmp_path.iterdir())


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


@pytest.mark.parametrize("key, i, value", [
    ("nodes", 0, {"level": 2, "text": "Ann"}), ("nodes", 1, {"level": 1, "text": ""}), ("nodes", 1, {"text": "Ann"}),
    ("nodes", 1, {"level": 1, "text": "Ann", "x": 1}), ("edges", 0, [0, 1, 1.0]), ("edges", 0, [99, 0, 1.0]),
    ("edges", 0, [15, 0, .5]), ("edges", 0, [15, False, 1.0]), ("edges", 0, [15, 0, "x"]), (None, "nodes", []),
    (None, "edges", {})], ids=str)
def test_a_damaged_graph_is_refused(prepare, tmp_path, key, i, value):
    """Levels rise from 1, nodes have a text, edges lead one level down and sum to 1 for each node."""
    path = tmp_path / "g.json"
    prepare(path)
    graph = json.loads(path.read_text())
    (graph[key] if key else graph)[i] = value
    path.write_text(json.dumps(graph))
    with pytest.raises(InputError, match="g.json: .*(node|edge|level).*; remove it, and it is built again"):
        read_graph(path)


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
