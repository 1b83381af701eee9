"""The walk: what docs/walk.md shows is what runs, and every function is as it was afterwards."""
import re
from pathlib import Path

import pytest
import torch

import llama
import pecan
from support.token_mean import TokenMean
from view import walk

ROOT = Path(__file__).parents[1]


def rows(text: str) -> list[tuple]:
    """(section, function, name, shape, values, equation) of each tensor."""
    found = []
    section = function = None
    for line in text.splitlines():
        if line.startswith("## "):
            section = line
        elif re.match(r"\S+\.py  \S+$", line):
            function = line
        elif line.startswith("    "):
            found.append((section, function, *re.split(r"\s{2,}", line.strip())))
    return found


def numbers(values: str) -> list[float]:
    return [float(value) for value in values.removesuffix(" ..").split()]


@pytest.mark.slow
def test_the_walk_in_the_documents_is_the_one_that_is_made(capsys):
    """Refreshed by: python -m view.walk > docs/walk.md"""
    walk.main(["--device", "cpu"])
    made = rows(capsys.readouterr().out)
    written = rows((ROOT / "docs" / "walk.md").read_text(encoding="utf-8"))
    assert len(made) > 50

    for ours, theirs in zip(made, written, strict=True):
        assert ours[:4] == theirs[:4] and ours[5] == theirs[5]
        assert numbers(ours[4]) == pytest.approx(numbers(theirs[4]), rel=2e-3), ours


def test_whole_numbers_stay_whole():
    """Token ids have up to six digits; a decimal has four, and zeros are passed over."""
    assert walk.few(torch.tensor([19060, 0, 128256])) == "19060 0 128256"
    assert walk.few(torch.tensor([0, 0, 0.000123, 19060.5, 1, 2, 3])) == "0.000123 1.906e+04 1 2 .."
    assert walk.few(torch.zeros(3)) == "0" and walk.few(torch.tensor(7)) == "7"


def test_the_walk_leads_from_ids_to_the_next_node(tiny, settings, document, question):
    text = walk.walk(tiny, TokenMean(tiny), settings, document, question)
    found = rows(text)

    names = {name for _, _, name, *_ in found}
    assert {"ids", "q", "k", "v", "weights", "a(x, j)", "e'_ij", "e_ij", "E", "c", "p_yes", "r", "z", "score", "node",
            "r_i"} <= names
    makers = {(function, name) for _, function, name, *_ in found}
    assert {("pecan.py  edge_weights", "e'_ij"), ("pecan.py  final_scores", "z"), ("pecan.py  Search.check", "p_yes"),
            ("llama.py  attention", "weights"), ("pecan.py  Search.visit", "r_i")} <= makers

    # The nodes that it reads are those of a search that always says No.
    nodes = [int(row[4]) for row in found if row[2] == "node"]
    method = pecan.Pecan(tiny, TokenMean(tiny), settings)
    prepared = method.prepare(document)
    c = pecan.similarities(prepared.index, method.encoder.encode([question])[0])
    search = pecan.Search(tiny, prepared.graph, question, c, settings)
    search.start()
    start = len(search.visited)
    search.next()
    search.next()
    assert nodes == [search.visited[0], *search.visited[start:]]


def test_the_walk_leaves_every_function_as_it_was():
    class Stop(Exception):
        pass

    watched = [*walk.STAGE_1, *walk.STAGE_2, *walk.RETRIEVAL]
    before = [getattr(owner, name) for owner, name, _ in watched]
    attention = llama.attention
    with pytest.raises(Stop), walk.watching(walk.Walk(), watched):
        assert llama.attention is not attention
        raise Stop
    assert [getattr(owner, name) for owner, name, _ in watched] == before


@pytest.mark.slow
def test_the_walk_of_another_model_and_document(folder, tmp_path, capsys):
    (tmp_path / "doc.txt").write_text("Anna's home was Rome. " * 40)
    walk.main(["--model", str(folder), str(tmp_path / "doc.txt"), "Where is Anna?", "--window", "512", "--chunk", "32",
               "--device", "cpu"])
    assert len(rows(capsys.readouterr().out)) > 50
