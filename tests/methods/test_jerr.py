"""JERR: six rounds of its search by hand, SimHash and the graph against packages.

A whole conversation is in test_story.py; replies are in test_replies.py.
"""
import json
from collections import Counter

import hypothesis
import networkx
import pytest
from hypothesis import strategies as st
from speaker import Script

from baselines import common, jerr
from baselines.common import Reading
from baselines.jerr import JERR, ROOT, TreeSearch, acyclic, join_names, simhash
from core.settings import Settings
from data import Document, Prepared, Question
from evaluation.runner import answers_of

# --- search ---------------------------------------------------------------------------------------------------------

TEXTS = ["Danko Jones made Never Too Loud", "Danko Jones comes from Toronto", "Toronto has a castle, Casa Loma",
         "Prague has a castle", "Rock music"]

# UCB of the roots 0, 3, 4 before each round; the nodes that it visits, and their reward.
BY_HAND = json.loads("""[
    [[Infinity, Infinity, Infinity], [0, 1],    1],
    [[1,        Infinity, Infinity], [3],       0.5],
    [[2.1774,   1.6774,   Infinity], [4],       0],
    [[2.4823,   1.9823,   1.4823],   [0, 1, 2], 1],
    [[2.1774,   2.1651,   1.6651],   [0, 1, 2], 1],
    [[2.0358,   2.2941,   1.7941],   [3],       0.5]]""")


def test_six_rounds_by_hand():
    tree = TreeSearch(TEXTS, [[0, 1, "comes from"], [1, 2, "has"]], ["never too loud", "castle"])
    assert tree.children[ROOT] == [0, 3, 4]
    N, W = Counter(), Counter()
    for ucb, path, reward in BY_HAND:
        assert [tree.ucb(v, ROOT) for v in tree.children[ROOT]] == pytest.approx(ucb, abs=5e-5)
        tree.round()
        N.update(path)
        W.update(dict.fromkeys(path, reward))
        assert (tree.N[:ROOT], tree.W[:ROOT]) == ([N[v] for v in range(5)], [W[v] for v in range(5)])
    assert tree.best() == [0, 2, 1, 3, 4], "node 1, without a keyword, is above the single match 3"


def test_rollouts_are_short_and_follow_the_edges():
    """In a chain of 9 nodes, node 5 has the keyword. The first round does not reach it, the second does."""
    tree = TreeSearch([*"abcdexghi"], [[v, v + 1, ""] for v in range(8)], ["x"])
    for wins in (0, 1):                                     # root, a new node, and three steps: to node 4, to node 5
        tree.round()
        assert tree.W[0] == wins


def test_a_node_is_in_the_tree_once():
    """Node 3 can be reached from 1 and from 2, but is below one of them. The best nodes have the highest Q; then own
    keywords, N, and the lower id decide. There are five at most."""
    tree = TreeSearch([*"abxdefg"], [[0, 1, ""], [0, 2, ""], [1, 3, ""], [2, 3, ""]], ["x"])
    for _ in range(20):
        tree.round()
    assert sorted(sum(tree.children[:ROOT], [])) == [1, 2, 3]
    tree.N, tree.W = [1, 4, 2, 4, 0, 8, 8], [.5, 2, 1, 1, 0, 0, 0]
    assert tree.best() == [2, 1, 0, 3, 5]


# --- the graph ------------------------------------------------------------------------------------------------------

@hypothesis.given(st.text("abCDeÉ 189.'-"))
def test_simhash_equals_the_package(text):
    assert simhash(text) == pytest.importorskip("simhash").Simhash(text).value


def test_names_are_joined(monkeypatch):
    """Exact and near duplicates become one node, with the chunks of all of them."""
    nodes, node_of = join_names([["Casa Loma", "Heinkel HD 36"], ["casa  loma", "Casa-Loma"], ["Heinkel HD 38"]])
    assert nodes == [{"name": "Casa Loma", "chunks": [0, 1]}, {"name": "Heinkel HD 36", "chunks": [0, 2]}]
    assert len(join_names([["राम", "रमा"]])[0]) == 2, "the vowels of a name count"

    # b joins a. c is near b only, and b is no node, so c becomes one. d is near both and joins a, the earlier.
    monkeypatch.setattr(jerr, "simhash", {"a": 0b0, "b": 0b111, "c": 0b1111, "d": 0b1110}.get)
    assert join_names([["a", "b", "c"], ["d"]])[1] == {"a": 0, "b": 0, "c": 1, "d": 0}


@hypothesis.given(st.lists(st.tuples(st.integers(0, 5), st.just("r"), st.integers(0, 5)), max_size=30))
def test_the_graph_stays_acyclic(relations):
    """A relation is left out only if it would close a cycle; those of one pair of nodes share an edge."""
    graph = networkx.DiGraph()
    for a, _, b in relations:
        graph.add_edge(a, b)
        if not networkx.is_directed_acyclic_graph(graph):
            graph.remove_edge(a, b)
    assert {(a, b) for a, b, _ in acyclic(relations, 6)} == set(graph.edges)
    assert acyclic([(0, "r", 1), (0, "a", 1), (0, "r", 1)], 2) == [[0, 1, "r; a"]]


# --- the method -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("question, chunks, kind, most", [
    ("Which (A) castle?", 3, "", 3), ("Which castle?\n(A) Casa Loma\n(B) Prague", 7, "multiple choice ", 5)])
def test_questions_with_options(tiny, question, chunks, kind, most):
    """In a run with options, chunks have 600 tokens, the prompt says "multiple choice", and five pages may be read
    again."""
    method = JERR(tiny, Settings(window=100_000, chunk=9))
    script = Script(method, *["castle.\nPage [1, 0, 2, 3, 4, 5]"] * 99)
    document = Document("x", ["castle road." + " road" * 14] * 7, [Question("q", question, ["a"])])
    [(_, _, prepared, answer)] = answers_of(method, [(document, document.questions)], {"x": None}, False)
    assert (len(prepared.texts), answer.nodes) == (chunks, [1, 0, 2, 3, 4][:most])
    assert f"a {kind}question related" in script.heard[-1] and f"1 to {most} page(s)" in script.heard[-1]


# The room in tokens, the pages that the model names, what the reader gets, and the chunks among it.
@pytest.mark.parametrize("room, pages, lines, nodes", [
    (8, [], "s0 s1 s2 s3", []), (8, [3, 1, 0], "s0 c1 c1 s2 c3 c3", [3, 1]), (6, [3], "s0 s2 c3 c3", [3]),
    (2, [1], "s2", []), (10, [3, 1, 0], "c0 c0 c1 c1 s2 c3 c3", [3, 1, 0])])
def test_what_does_not_fit_is_cut(tiny, settings, monkeypatch, spy, room, pages, lines, nodes):
    """Synopses get half of the window, those of chunks with result nodes (2 and 3) first. Chunks get the rest, in the
    order in which the model named them. A chunk that does not fit keeps its synopsis. A word is a token here."""
    monkeypatch.setattr(common, "line_ids", lambda tokenizer, text: text.split())
    monkeypatch.setattr(jerr, "ROUNDS", 5)
    rounds = spy("round", TreeSearch)
    method = JERR(tiny, settings)
    method.room = lambda question: room
    method.ask = lambda *_: [["castle"]]
    method.look_up = lambda *_: pages
    method.reading = lambda question, lines, *about: Reading(" ".join(lines), *about)
    reading = method.read(Prepared([f"c{n} c{n}" for n in range(4)], graph={
        "synopses": ["s0", "s1", "s2", "s3"], "edges": [],
        "nodes": [{"name": "", "chunks": [n], "text": "castle"} for n in (3, 2)]}), "Q?")
    assert reading == (lines, nodes, room < 8 or nodes != pages)
    assert len(rounds) == 20, "10 for each node"
