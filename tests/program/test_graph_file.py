"""The files next to a graph: the summaries of an interrupted construction, and the vectors of its nodes."""
import os
import subprocess
import sys
import time
from dataclasses import replace
from random import Random

import pytest
import torch
from hostile import ROOT
from safetensors import safe_open
from view.watch import watching

import pecan
from core.files import InputError, write_tensors
from core.settings import resolve
from data import EMBEDDED, Document, read_jsonl
from pecan import Pecan, build
from pecan import Graph, node_vectors
from support.kept import kept, place_of
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
    """The file of a graph that was built without interruption, and how many batches that took."""
    path = tmp_path_factory.mktemp("graph") / "g.json"
    batches = []
    with watching(pecan, "summarise", lambda _, *arguments: batches.append(arguments)):
        build(tiny, document, settings, pecan.summarise).save(path)
    return path.read_bytes(), len(batches)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["", '["half a li', "doubled"])
def test_an_interrupted_construction_goes_on(tiny, document, settings, undisturbed, tmp_path, monkeypatch, damage):
    """Construction is killed after every batch. Still no batch runs twice, and the file is the same byte by byte."""
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

    for _ in range(batches - 1):
        with pytest.raises(Killed):
            method.prepare(document, path)
        file = place_of(path)
        lines = file.read_text()
        file.write_text(lines + (lines if damage == "doubled" else damage))
    try:
        method.prepare(document, path)
    except Killed:
        pytest.fail("a batch on disk runs again")
    assert path.read_bytes() == content
    assert runs.count("done") == batches > 3, "a batch ran twice"
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".json", ".vectors"], "the file of summaries stays"


def test_summaries_of_other_texts_are_not_taken(tiny, document, settings, undisturbed, tmp_path):
    """Lines of other texts, settings or models in the same file, and a lost line, do not change the graph."""
    path = tmp_path / "g.json"
    method = Pecan(tiny, TokenMean(tiny), settings)
    other = Document("other", document.passages[::-1])
    with pytest.raises(Killed), kept(path, method.file_name(document), pecan.summarise) as kept_or_new:
        build(tiny, other, settings, kept_or_new)
        build(tiny, document, replace(settings, tree=True), kept_or_new)
        build(tiny, document, settings, kept_or_new)
        raise Killed
    lines = place_of(path).read_text().splitlines(keepends=True)

    def of_another_model(model, batch, limit, tree):
        return [[("Mara", [1.0] + [0.0] * (len(texts) - 1))] for texts in batch]
    with pytest.raises(Killed), kept(path, "another model", of_another_model) as kept_or_new:
        build(tiny, document, settings, kept_or_new)
        raise Killed
    of_others = place_of(path).read_text().splitlines(keepends=True)[len(lines):]
    assert of_others
    place_of(path).write_text("".join([*lines[::-1][:2], *lines[::-1][3:], *of_others]))
    method.prepare(document, path)
    assert path.read_bytes() == undisturbed[0]


@pytest.mark.parametrize("line", ["{}", "[1]", "x"])
def test_a_damaged_file_of_summaries_is_named(tmp_path, line):
    (tmp_path / "g.json.summaries").write_text(line + "\n")
    with pytest.raises(InputError, match="g.json.summaries: .*; remove the file, and the graph is built from"):
        with kept(tmp_path / "g.json", "c", pecan.summarise):
            pass


def test_a_second_builder_is_refused(tmp_path):
    """It is refused whatever it builds. The first goes on and leaves no file; then another may build."""
    path = tmp_path / "g.json"
    for construction in ("a", "b"):
        with kept(path, construction, pecan.summarise):
            with pytest.raises(InputError, match="g.json.summaries: another run is writing there; wait for it"):
                with kept(path, "a", pecan.summarise):
                    pass
            assert place_of(path).exists()
        assert not list(tmp_path.iterdir())
    with pytest.raises(Killed), kept(path, "a", pecan.summarise):
        raise Killed
    assert not list(tmp_path.iterdir()), "an empty file stays"


@pytest.mark.slow
def test_two_builders_that_are_killed(document, tmp_path):
    """Three times, two builders of one graph are killed at a random moment. The graph is that of one builder alone."""
    (tmp_path / "d.txt").write_text("\n".join(document.passages * 3))

    def builder(graph):
        command = [sys.executable, ROOT / "pecan.py", tmp_path / "d.txt", "Who?", "--device", "cpu", "--batch", "1",
                   "--graph", tmp_path / graph]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def written():
        file = place_of(tmp_path / "g.json")
        return file.stat().st_size if file.exists() else 0

    random = Random(1)
    for _ in range(3):
        before = written()
        two = builder("g.json"), builder("g.json")
        while written() == before and any(one.poll() is None for one in two):
            time.sleep(.01)
        time.sleep(random.uniform(0, .5))
        for one in two:
            one.kill()
        assert not (tmp_path / "g.json").exists() and written() > before
        assert all(line.startswith("error: ") is ("another run is writing" in line)
                   for one in two for line in one.communicate()[1].splitlines())
    for graph in ("g.json", "alone.json"):
        said = builder(graph).communicate()[1]
        assert f"built {tmp_path / graph}" in said
    assert (tmp_path / "g.json").read_bytes() == (tmp_path / "alone.json").read_bytes()


class Counting(TokenMean):
    """An encoder that counts the sentences it has seen."""
    seen = 0

    def encode(self, sentences):
        self.seen += len(sentences)
        return super().encode(sentences)


def test_vectors_are_kept_with_the_graph(tiny, tmp_path):
    """They are computed once for each encoder and list of texts. Later calls return the FLOPs of the first."""
    path = tmp_path / "g.json"
    encoder = Counting(tiny)
    texts = ["Mara's job is baker", "Theo's home is Oslo"]
    first, flops = node_vectors(path, encoder, texts)
    again, flops_again = node_vectors(path, encoder, texts)
    assert encoder.seen == 2 and flops == flops_again > 0 and torch.equal(first, again)

    others, _ = node_vectors(path, encoder, texts[::-1])
    assert encoder.seen == 4 and torch.equal(others, first.flip(0)), "vectors of other texts"

    before = set(tmp_path.iterdir())
    other = Counting(tiny)
    other.fingerprint = "another encoder"
    node_vectors(path, other, texts)
    file, = set(tmp_path.iterdir()) - before
    assert other.seen == 2 and len(before) == 1

    def cut():
        write_tensors(file, {"vectors": first[:, :-1].contiguous()}, safe_open(file, "pt").metadata())

    def pipe():
        file.unlink()
        os.mkfifo(file)

    for n, damage in enumerate((lambda: file.write_bytes(b"damaged"), cut, pipe,
                                lambda: file.write_bytes(file.read_bytes()[:-4] + b"\xff\xff\xff\x7f")), 2):
        damage()
        again, _ = node_vectors(path, other, texts)
        assert other.seen == 2 * n and torch.equal(again, first), "a damaged file is computed again"


def test_a_graph_that_is_there_is_loaded(model, tiny, document, settings, tmp_path):
    """It serves every search. A graph of another document, builder or construction setting is refused."""
    method = Pecan(tiny, TokenMean(tiny), settings)
    built = method.prepare(document, tmp_path / "g.json")
    flops = tiny.flops
    loaded = method.prepare(document, tmp_path / "g.json")
    assert tiny.flops == flops and loaded.flops == built.flops and torch.equal(loaded.index, built.index)
    assert isinstance(loaded.graph, Graph) and loaded.graph.nodes == built.graph.nodes

    def prepare(of=document, builder=tiny, **changes):
        return Pecan(tiny, TokenMean(tiny), replace(settings, **changes), builder).prepare(of, tmp_path / "g.json")
    assert prepare(patience=3, attention=False, batch=2).graph.nodes == built.graph.nodes
    for other, name in (({"chunk": 31}, "settings"), ({"window": 500}, "settings"), ({"summary_share": .3}, "settings"),
                        ({"tree": True}, "settings"), ({"builder": model}, "model"),
                        ({"of": Document("d", ["x"])}, "document")):
        with pytest.raises(InputError, match=f"g.json: is of another {name}"):
            prepare(**other)


def test_attention_that_rounds_to_0_is_no_edge(tiny, settings, tmp_path):
    """Attention may round to 0 for one node or for all. The graph is saved and loaded without these edges."""
    def summarise(model, batch, limit, tree):
        return [[("Mara", [0.0] * (len(texts) - 1) + [1.0]), ("Theo", [0.0] * len(texts))] for texts in batch]
    graph = build(tiny, Document("d", ["Mara is Sofia's baker."] * 3), settings, summarise)
    assert graph.E.values().tolist() == [1.0] and len(graph.nodes) == 5
    graph.save(tmp_path / "g.json")
    assert torch.equal(Graph.load(tmp_path / "g.json").E.to_dense(), graph.E.to_dense())
