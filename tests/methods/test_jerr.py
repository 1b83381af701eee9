"""JERR: six rounds of its search by hand, SimHash and the graph against packages, replies as models write them.

A whole conversation, and the embedded world by rules, are in test_story.py.
"""
from dataclasses import replace

import hypothesis
import networkx
import pytest
from hypothesis import strategies as st
from speaker import Script

from baselines import common, jerr
from baselines.jerr import (
    JERR,
    ROOT,
    TreeSearch,
    acyclic,
    join_names,
    keywords_of,
    names_of,
    pages_of,
    relations_of,
    simhash,
    synopsis_of,
)
from core.settings import Settings
from data import Answer, Document, Prepared, Question

# --- search ---------------------------------------------------------------------------------------------------------

TEXTS = ["Danko Jones made Never Too Loud", "Danko Jones comes from Toronto", "Toronto has a castle, Casa Loma",
         "Prague has a castle", "Rock music"]

# UCB of the roots 0, 3, 4 before each round; N and W of the nodes after it.
INF = float("inf")
BY_HAND = [((INF, INF, INF), [1, 1, 0, 0, 0], [1, 1, 0, 0, 0]),
           ((1, INF, INF), [1, 1, 0, 1, 0], [1, 1, 0, .5, 0]),
           ((2.1774, 1.6774, INF), [1, 1, 0, 1, 1], [1, 1, 0, .5, 0]),
           ((2.4823, 1.9823, 1.4823), [2, 2, 1, 1, 1], [2, 2, 1, .5, 0]),
           ((2.1774, 2.1651, 1.6651), [3, 3, 2, 1, 1], [3, 3, 2, .5, 0]),
           ((2.0358, 2.2941, 1.7941), [3, 3, 2, 2, 1], [3, 3, 2, 1, 0])]


def test_six_rounds_by_hand():
    tree = TreeSearch(TEXTS, [[0, 1, "comes from"], [1, 2, "has"]], ["never too loud", "castle"])
    assert tree.children[ROOT] == [0, 3, 4]
    for number, (ucb, N, W) in enumerate(BY_HAND):
        assert [tree.ucb(v, ROOT) for v in tree.children[ROOT]] == pytest.approx(ucb, abs=5e-5)
        tree.round()
        assert (tree.N[:ROOT], tree.W[:ROOT]) == (N, W), f"round {number + 1}"
    assert tree.best() == [0, 1, 2, 3, 4], "node 1, without a keyword, is above the single match 3"


def test_rollouts_are_short_and_follow_the_edges():
    """In a chain of 9 nodes, node 5 has the keyword. The first round does not reach it, the second does."""
    tree = TreeSearch([*"abcdexghi"], [[v, v + 1, ""] for v in range(8)], ["x"])
    for wins in (0, 1):                                     # root, a new node, and three steps: to node 4, to node 5
        tree.round()
        assert tree.W[0] == wins


def test_a_node_is_in_the_tree_once():
    """Node 3 can be reached from 1 and from 2, but is below one of them. The best nodes have the highest Q; then N, own
    keywords, and the lower id decide. There are five at most."""
    tree = TreeSearch([*"abxdefg"], [[0, 1, ""], [0, 2, ""], [1, 3, ""], [2, 3, ""]], ["x"])
    for _ in range(20):
        tree.round()
    assert sorted(sum(tree.children[:ROOT], [])) == [1, 2, 3]
    tree.N, tree.W = [1, 4, 4, 4, 0, 8, 8], [.5, 2, 2, 1, 0, 0, 0]
    assert tree.best() == [2, 1, 0, 3, 5]


# --- the graph ------------------------------------------------------------------------------------------------------

@hypothesis.given(st.text())
def test_simhash_equals_the_package(text):
    assert simhash(text) == pytest.importorskip("simhash").Simhash(text).value


def test_names_are_joined(monkeypatch):
    """Exact and near duplicates become one node, with the chunks of all of them."""
    nodes, node_of = join_names([["Casa Loma", "Heinkel HD 36"], ["casa  loma", "Casa-Loma"], ["Heinkel HD 38"]])
    assert nodes == [{"name": "Casa Loma", "chunks": [0, 1]}, {"name": "Heinkel HD 36", "chunks": [0, 2]}]

    # b joins a. c is near b only, and b is no node, so c becomes one. d is near both and joins c, the nearest. e is as
    # near to both and joins a, the earlier.
    monkeypatch.setattr(jerr, "simhash", {"a": 0b0, "b": 0b111, "c": 0b1111, "d": 0b1110, "e": 0b1100}.get)
    assert join_names([["a", "b", "c"], ["d", "e"]])[1] == {"a": 0, "b": 0, "c": 1, "d": 1, "e": 0}


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


# --- replies --------------------------------------------------------------------------------------------------------

TEXT = ("Danko Jones is a hard rock trio from Toronto, Ontario, Canada. Rich Knox released Casa Loma in 1911. Many "
        "people liked it.")


@pytest.mark.parametrize("reply", [
    "* Danko Jones\n* Toronto", "● Danko Jones\n● Toronto", "(1) Danko Jones\n(2) Toronto",
    "**1.** Danko Jones\n**2.** Toronto.", "Danko Jones\nToronto\nI hope this helps.", "* \"Danko Jones\"\n* `Toronto`",
    "1. **Danko Jones**: a hard rock trio\n2. **Toronto**: A city. It is large.",
    "* Danko Jones – a trio\n* Toronto – a city", "People: Danko Jones\nPlaces: Toronto",
    "People:\nDanko Jones\n\nPlaces:\nToronto",
    "- **Danko Jones** (a trio, from Canada)\n- **Toronto** [city]", "* **Danko Jones** is a trio\n* Toronto, a city",
    "Here they are:\n\n### People\n* Danko Jones\n\n### Places\n* Toronto\n* Prague",
    "* **People:** Danko Jones\n* **Places:** Toronto and Prague", "Entities: Danko Jones, Toronto.",
    "a) Danko Jones\nb) Toronto", "* [Danko Jones](https://x.org)\n* [Toronto](y)",
    "{\"names\": [\"Danko Jones\", \"Toronto\"]}", "{\"people\": [\"Danko Jones\"], \"places\": [\"Toronto\"]}",
    "* People\n  * Danko Jones\n* Places\n  * Toronto", "Danko Jones (band: rock), Toronto (Ontario, Canada",
    "Danko Jones and Toronto", "Entities: Danko Jones, and Toronto", "['Danko Jones', 'Toronto']",
    "[\"Danko Jones\", \"Toronto\"]", "{\"people\":[\"Danko Jones\",\"Toronto\"]}",
    "| Entity | Type |\n|---|---|\n| Danko Jones | band |\n| Toronto | city |"])
def test_names_as_models_write_them(reply):
    assert names_of(reply, TEXT) == ["Danko Jones", "Toronto"]


@pytest.mark.parametrize("reply", [
    "I'm sorry, but I can't help with that.", "* None", "No entities found.", "Sure! Here they are:", "* Prague", "",
    "Danko Jones is a hard rock trio from Toronto, Ontario, Canada.", "* Rich Knox released Casa Loma in 1911",
    "The text mentions Danko Jones, a hard rock trio from Toronto.", "* Danko Jones is a hard rock trio", "* Jone",
    "Danko Jones, a hard rock trio, comes from Toronto.",
    "Danko Jones is a trio (from Canada) and Casa Loma, in 1911. Many people, Toronto, liked it."])
def test_what_names_nothing_is_refused(reply):
    """Apologies, sentences and names that the text does not hold."""
    assert names_of(reply, TEXT) == []


def test_other_replies():
    assert names_of("* Toronto, Ontario, Canada", TEXT) == ["Toronto, Ontario, Canada"]
    chinese = "孙悟空三次打败了白骨精,唐僧却不信他。"
    assert names_of("* 孙悟空\n* **白骨精**:妖怪", chinese) == ["孙悟空", "白骨精"], "there are no blanks between words"
    assert synopsis_of("孙悟空打败了\n白骨精。", chinese) == "孙悟空打败了 白骨精。"
    apology = "I cannot fulfill your request. I'm just an AI and must not write about people who suffer violence."
    assert [synopsis_of(reply, TEXT) for reply in ("No", "I'm sorry, I can't help.", apology, "")] == [""] * 4
    reply = ("* Casa Loma | is in | Toronto.\n1. **toronto** | has | \"Casa Loma\"\nToronto - has - Casa Loma\n"
             "Toronto | has | Prague\nToronto | Casa Loma\n(Toronto | has | Casa Loma)\n"
             "Casa Loma (1911) | is in | Toronto (a city)\n> Rex (dog) | is in | Toronto")
    assert relations_of(reply, {"casa loma": 0, "toronto": 1, "rex (dog)": 2}) == [
        (0, "is in", 1), (1, "has", 0), (1, "has", 0), (0, "is in", 1), (2, "is in", 1)]


@pytest.mark.parametrize("reply, wanted", [
    ("I want to look up Page [0, 2] to see.", [0, 2]), ("Pages [8], then Page [1]", [8]), ("[Page 3, Page 1]", [3, 1]),
    ("Danko Jones (Page 1, 2): none", []), ("Page [2", []), ("Page [0, 1, 2, 3, 4]", [0, 1, 2]),
    ("Page [999, 10000000007, 998, 998]", [998])])
def test_pages(reply, wanted):
    assert pages_of(reply, 999, 3) == wanted


def test_keywords():
    assert keywords_of("Where is Casa Loma?", ["Casa  Loma", "casa loma"]) == {"casa loma"}
    assert keywords_of("What is the nick-name of Danko Jones?", []) == {"nick-name", "danko", "jones"}
    assert keywords_of("Where?\n(A) Rome\n(B) Plan B", []) == {"rome", "plan", "b"}


# --- the method -----------------------------------------------------------------------------------------------------

def test_questions_with_options(tiny):
    """With options, chunks have 600 tokens, the prompt says "multiple choice", and five pages may be read again."""
    method = JERR(tiny, Settings(window=100_000, chunk=9))
    heard = []
    method.say = lambda texts, limit: heard.extend(texts) or ["* castle\n\nPage [1, 0, 2, 3, 4, 5]"] * len(texts)
    for question, chunks, most in (("Which (A) castle?", 3, 3), ("Which castle?\n(A) Casa Loma\n(B) Prague", 7, 5)):
        document = Document("x", ["castle" + " road" * 16] * 7, [Question("q", question, ["a"])])
        prepared = method.prepare(document)
        answer = method.answer(prepared, question)
        assert (len(prepared.texts), answer.nodes) == (chunks, [1, 0, 2, 3, 4][:most])
        assert ("a multiple choice question related" in heard[-1]) == (most == 5)
        assert f"1 to {most} page(s)" in heard[-1] and heard[-1].endswith(question)


def test_look_up_refused(tiny, settings):
    """Without names, pages and synopses ("No" is none), only the beginnings of the chunks are read."""
    method = JERR(tiny, replace(settings, window=10_000))
    script = Script(method, "No", "  ", "No.", *["These words are in no synopsis."] * 12)
    chunk = "first words" + " road" * 60
    prepared = method.prepare(Document("x", [chunk]))
    answer = method.answer(prepared, "Who is Mara?")
    [synopsis] = prepared.graph["synopses"]
    assert chunk.startswith(synopsis) and len(tiny.tokenizer.encode(f" {synopsis}")) == method.limit
    assert (prepared.counts["refused"], answer.counts["refused"], answer.nodes) == (9, 6, []) and not script.replies


@pytest.mark.parametrize("room, pages, lines, nodes", [
    (8, [], "s0 s1 s2 s3", []), (4, [], "s2 s3", []), (5, [3, 1], "s0 s1 s2 c3 c3", [3]), (2, [1], "s1 s2", [])])
def test_what_does_not_fit_is_cut(tiny, settings, monkeypatch, room, pages, lines, nodes):
    """Synopses get half of the window, those of chunks with result nodes (2 and 3) first. Chunks get the rest, in the
    order in which the model named them. A chunk that does not fit keeps its synopsis. A word is a token here."""
    monkeypatch.setattr(common, "line_ids", lambda tokenizer, text: text.split())
    monkeypatch.setattr(jerr.JERR, "room", lambda *_: room)
    method = JERR(tiny, settings)
    method.ask_until = lambda *_: [["castle"]]
    method.look_up = lambda *_: pages
    method.answer_from = lambda question, ids: Answer(" ".join(ids), [], 0, 0)
    answer = method.answer(Prepared([f"c{n} c{n}" for n in range(4)], graph={
        "synopses": [f"s{n}" for n in range(4)], "edges": [],
        "nodes": [{"name": "castle", "chunks": [n], "text": "castle"} for n in (3, 2)]}), "Q?")
    assert (answer.text, answer.nodes, answer.cut) == (lines, nodes, room < 8)
