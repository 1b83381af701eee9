"""The walk: docs/walk.md shows what runs, and the walk leaves every function as it was."""
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import llama
import pecan
from core.files import InputError
from data import read_text
from support.token_mean import TokenMean
from view import walk

ROOT = Path(__file__).parents[1]


def numbers(values: str) -> list[float]:
    return [float(value) for value in values.removesuffix(" ..").split()]


@pytest.mark.slow
def test_the_walk_in_the_documents_is_the_one_that_is_made(capsys):
    """docs/walk.md equals a new walk. It is made by: python -m view.walk > docs/walk.md"""
    walk.main(["--device", "cpu"])
    made = walk.rows(capsys.readouterr().out)
    written = walk.rows((ROOT / "docs" / "walk.md").read_text(encoding="utf-8"))
    assert len(made) > 50

    for ours, theirs in zip(made, written, strict=True):
        assert ours[:4] == theirs[:4] and ours[5] == theirs[5]
        assert numbers(ours[4]) == pytest.approx(numbers(theirs[4]), rel=2e-3), ours


def test_the_walk_is_of_the_whole_method():
    for option in (["--nodes", "5"], ["--without", "attention"]):
        with pytest.raises(InputError, match="the walk shows the whole method"):
            walk.main(option)


def test_whole_numbers_stay_whole():
    """Token ids keep up to six digits, decimals four. Zeros among many decimals are left out."""
    assert walk.few(torch.tensor([19060, 0, 128256, 7])) == "19060 0 128256 7"
    assert walk.few(torch.tensor([0, 1, 2, 3, 4])) == "0 1 2 3 .."
    assert walk.few(torch.tensor([0, 0, 0.000123, 19060.5, 1, 2, 3])) == "0.000123 1.906e+04 1 2 .."
    assert [walk.few(x) for x in (torch.zeros(5), torch.zeros(4), torch.tensor(7))] == ["0", "0 0 0 0", "7"]


def test_the_walk_is_a_search_that_always_says_no(tiny, settings, document, graph, question, similarity):
    """The walk's tensors are those of such a search, and the watched functions are restored."""
    watched = [(owner, name) for owner, name, *_ in (*walk.STAGE_1, *walk.START)]
    before = [getattr(owner, name) for owner, name in watched]
    found = walk.rows(walk.walk(tiny, TokenMean(tiny), settings, document, question))
    assert [getattr(owner, name) for owner, name in watched] == before

    made = {(function, name): values for _, function, name, _, values, _ in found}
    assert {("pecan.py  edge_weights", "e_ij"), ("pecan.py  final_scores", "z"), ("llama.py  attention", "weights"),
            ("pecan.py  Search.visit", "r_i")} <= set(made)
    search = pecan.Search(tiny, graph, question, similarity(question), settings)
    search.start()
    start = len(search.visited)
    search.check()
    search.next()
    search.check()
    nodes = [int(node) for node in made["pecan.py  final_scores", "nodes"].split()]
    z, score = pecan.final_scores(search.graph.E, search.r, search.c)
    for name, x in (("r", search.r), ("c", search.c), ("z", z), ("score", score)):
        assert numbers(made["pecan.py  final_scores", name]) == pytest.approx(x[nodes].tolist(), rel=1e-3), name
    assert nodes[:2] == sorted(search.visited)[:2] and not set(nodes[2:]) & set(search.visited)
    search.next()
    assert [int(row[4]) for row in found if row[2] == "node"] == [search.visited[0], *search.visited[start:]]
    assert float(made["pecan.py  Search.check", "p_yes"]) == pytest.approx(search.trace[-2].p_yes, rel=1e-3)


def test_the_walk_of_two_models(tiny, settings, tmp_path, question, folder, model, capsys):
    """Stage 1 is the builder's, stage 2 the searching model's. The command shows the walk that it names."""
    path = tmp_path / "d.txt"
    path.write_text((ROOT / "tiny" / "story.txt").read_text()[:900])
    settings = replace(settings, chunk=32)
    encoder = TokenMean(tiny)
    builder = model
    texts = []

    def tensors(model, builder=None):
        found = {}
        texts.append(walk.walk(model, encoder, settings, read_text(path), question, builder))
        for _, function, _, _, values, _ in walk.rows(texts[-1]):
            found.setdefault(function, []).append(values)
        return found
    alone, other, both = tensors(tiny), tensors(builder), tensors(tiny, builder)
    assert both["pecan.py  edge_weights"] == other["pecan.py  edge_weights"] != alone["pecan.py  edge_weights"]
    assert both["pecan.py  Search.visit"] != other["pecan.py  Search.visit"]
    walk.main([str(path), question, "--builder", str(folder), "--chunk", "32", "--device", "cpu"])
    assert capsys.readouterr().out == texts[-1]


def test_watching_ends_with_an_error():
    attention = llama.attention
    with pytest.raises(ZeroDivisionError), walk.section([], "", "", walk.FORWARD):
        assert llama.attention is not attention
        1 / 0
    assert llama.attention is attention
