"""What is kept of a document: its graph, the summaries of an interrupted construction, and the vectors of its nodes."""
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save

import pecan
from core.files import InputError
from data import Document
from pecan import Pecan
from support.disk import kept, node_vectors, read_graph
from support.token_mean import TokenMean


@pytest.fixture
def prepare(tiny, settings, document, monkeypatch):
    """A function that prepares the first 15 passages of the document, in batches of one group.

    A summary is the first words of its group, a model's name before them. After `most` batches the run is killed.
    `prepare.batches` counts the batches of all calls.
    """
    def call(path, most=99, of=document.passages[:15], builder=tiny, **changes):
        left = [None] * most

        def summarise(model, batch, limit, tree):
            if not left:
                raise KeyboardInterrupt
            left.pop()
            call.batches += 1
            model.flops += 7
            return [[(f"{id(model)} {limit} {tree} {texts[0][:20]}", [1 / len(texts)] * len(texts))] for texts in batch]
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
        assert torch.equal(loaded.graph.E.to_dense(), built.graph.E.to_dense())
        assert torch.equal(loaded.index, built.index)
    for other, name in (({"chunk": 31}, "settings"), ({"window": 500}, "settings"), ({"summary_share": .3}, "settings"),
                        ({"tree": True}, "settings"), ({"builder": model}, "model"), ({"of": ["x"]}, "document")):
        with pytest.raises(InputError, match=f"g.json: is of another {name}"):
            prepare(path, **other)


def test_attention_that_rounds_to_0_is_no_edge(tiny, settings, tmp_path, monkeypatch):
    """Attention may round to 0 for one node or for all. The graph is saved and loaded without these edges."""
    monkeypatch.setattr(pecan, "summarise", lambda model, batch, limit, tree: [
        [("Mara", [0.0] * (len(texts) - 1) + [1.0]), ("Theo", [0.0] * len(texts))] for texts in batch])
    path = tmp_path / "g.json"
    graph = Pecan(tiny, TokenMean(tiny), settings).prepare(Document("d", ["Mara is Sofia's baker."] * 3), path).graph
    assert list(map(tuple, read_graph(path)["edges"])) == graph.edges == [(3, 2, 1.0)]


def test_vectors_are_kept_with_the_graph(tiny, tmp_path):
    """They are computed once for each encoder and list of texts, and again if the file is damaged. Later calls return
    the FLOPs of the first."""
    path = tmp_path / "g.json"
    seen = []

    def vectors_of(texts, name):
        encoder = TokenMean(tiny)
        encoder.fingerprint = name
        encoder.encode = lambda some: seen.append(name) or TokenMean.encode(encoder, some)
        vectors, flops = node_vectors(path, encoder, texts)
        assert torch.equal(vectors, TokenMean(tiny).encode(texts)) and flops == 2 * len(texts) * vectors.shape[1] ** 2

    one, other = ["Mara has a goat", "Theo lives by the hill"], ["Otto is Lima's pilot"]
    for texts, name in ((one, "a"), (one, "a"), (one, "b"), (other, "a"), (other, "a"), (one, "b")):
        vectors_of(texts, name)
    assert seen == ["a", "b", "a"]
    for damage in (b"damaged", save({"vectors": torch.zeros(1)}, {"note": "of another program"})):
        for file in tmp_path.iterdir():
            file.write_bytes(damage)
        vectors_of(one, "b")
    assert seen == ["a", "b", "a", "b", "b"]
