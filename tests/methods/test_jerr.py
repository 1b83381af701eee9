"""JERR: six rounds of its search by hand, SimHash and the graph against packages, the embedded world by rules.

A whole conversation is in test_story.py.
"""
import random
from dataclasses import replace

import networkx
import pytest
from speaker import Script, by_rules, follow, known

from baselines import jerr
from baselines.common import line_ids
from baselines.jerr import (
    JERR,
    TreeSearch,
    acyclic,
    holds,
    join_names,
    keywords_of,
    names_of,
    pages_of,
    relations_of,
    simhash,
    synopsis_of,
)
from core.settings import Settings
from data import EMBEDDED, Answer, Document, Prepared, Question, read_jsonl
from pecan import room_for_nodes

# --- search ---------------------------------------------------------------------------------------------------------

TEXTS = ["Danko Jones made Never Too Loud", "Danko Jones comes from Toronto", "Toronto has a castle, Casa Loma",
         "Prague has a castle", "Rock music"]
HELD = [{keyword for keyword in ("never too loud", "castle") if holds(text, keyword)} for text in TEXTS]
AFTER = [[1], [2], [], [], []]

# UCB of the roots 0, 3, 4 before each round; N and W of the nodes after it.
INF = float("inf")
BY_HAND = [((INF, INF, INF), (1, 1, 0, 0, 0), (1, 1, 0, 0, 0)),
           ((1, INF, INF), (1, 1, 0, 1, 0), (1, 1, 0, .5, 0)),
           ((2.1774, 1.6774, INF), (1, 1, 0, 1, 1), (1, 1, 0, .5, 0)),
           ((2.4823, 1.9823, 1.4823), (2, 2, 1, 1, 1), (2, 2, 1, .5, 0)),
           ((2.1774, 2.1651, 1.6651), (3, 3, 2, 1, 1), (3, 3, 2, .5, 0)),
           ((2.0358, 2.2941, 1.7941), (3, 3, 2, 2, 1), (3, 3, 2, 1, 0))]


def test_six_rounds_by_hand():
    assert HELD == [{"never too loud"}, set(), {"castle"}, {"castle"}, set()]
    tree = TreeSearch(HELD, AFTER, 2)
    assert tree.roots == [0, 3, 4]
    for number, (ucb, N, W) in enumerate(BY_HAND):
        if number:
            assert [tree.ucb(v, tree.rounds) for v in tree.roots] == pytest.approx(ucb, abs=5e-5)
        tree.round()
        assert (tuple(tree.N), tuple(tree.W)) == (N, W), f"round {number + 1}"
    assert tree.best() == [0, 1, 2, 3, 4], "node 1, without a keyword, is above the single match 3"


def test_rollouts_are_short_and_follow_the_edges():
    """In a chain of 9 nodes, node 5 has the keyword. The first round does not reach it, the second does."""
    held = [set() for _ in range(9)]
    held[5] = {"x"}
    tree = TreeSearch(held, [*([v] for v in range(1, 9)), []], 1)
    for wins in (0, 1):                                     # root, a new node, and three steps: to node 4, to node 5
        tree.round()
        assert tree.W[0] == wins


def test_a_node_is_in_the_tree_once():
    """Node 3 can be reached from 1 and from 2, but is below one of them. The best nodes have the highest Q; then N, own
    keywords, and the lower id decide. There are five at most."""
    tree = TreeSearch([set(), set(), {"x"}, set(), set(), set(), set()], [[1, 2], [3], [3], [], [], [], []], 1)
    for _ in range(20):
        tree.round()
    assert sorted(sum(tree.children, [])) == [1, 2, 3]
    tree.N, tree.W = [1, 4, 4, 4, 0, 8, 8], [.5, 2, 2, 1, 0, 0, 0]
    assert tree.best() == [2, 1, 0, 3, 5]


# --- the graph ------------------------------------------------------------------------------------------------------

def test_simhash_equals_the_package():
    package = pytest.importorskip("simhash")
    rng = random.Random(0)
    texts = ["", "x", "Casa-Loma!", "日本語テキスト", "Never Too Loud " * 30]
    texts += ["".join(rng.choices("abcdeXYZ é-_.1", k=rng.randrange(60))) for _ in range(1000)]
    assert all(simhash(text) == package.Simhash(text).value for text in texts)


def test_names_are_joined(monkeypatch):
    """Exact and near duplicates become one node, with the chunks of all of them."""
    nodes, node_of = join_names([["Casa Loma", "Heinkel HD 36"], ["casa  loma", "Casa-Loma"], ["Heinkel HD 38"]])
    assert nodes == [{"name": "Casa Loma", "chunks": [0, 1]}, {"name": "Heinkel HD 36", "chunks": [0, 2]}]

    # b joins a. c is near b only, and b is no node, so c becomes one. d is near both and joins c, the nearest. e is as
    # near to both and joins a, the earlier.
    monkeypatch.setattr(jerr, "simhash", {"a": 0b0, "b": 0b111, "c": 0b1111, "d": 0b1110, "e": 0b1100}.get)
    assert join_names([["a", "b", "c"], ["d", "e"]])[1] == {"a": 0, "b": 0, "c": 1, "d": 1, "e": 0}


def test_the_graph_stays_acyclic():
    """A relation is left out only if it would close a cycle; those of one pair of nodes share an edge."""
    assert acyclic([(0, "r", 1), (1, "s", 2), (2, "t", 0), (0, "a", 1), (0, "r", 1)], 3) == [
        [0, 1, "r; a"], [1, 2, "s"]]
    rng = random.Random(0)
    for _ in range(100):
        relations = [(rng.randrange(8), "r", rng.randrange(8)) for _ in range(30)]
        graph = networkx.DiGraph([(a, b) for a, b, _ in acyclic(relations, 8)])
        assert networkx.is_directed_acyclic_graph(graph)
        assert all(graph.has_edge(a, b) or networkx.has_path(graph, b, a) for a, _, b in relations)


# --- replies --------------------------------------------------------------------------------------------------------

TEXT = ("Danko Jones is a hard rock trio from Toronto, Ontario, Canada. Rich Knox released Casa Loma in 1911. Many "
        "people liked it.")


@pytest.mark.parametrize("reply", [
    "* Danko Jones\n* Toronto", "● Danko Jones\n● Toronto", "(1) Danko Jones\n(2) Toronto",
    "**1.** Danko Jones\n**2.** Toronto.", "Danko Jones\nToronto\nI hope this helps.", "* \"Danko Jones\"\n* `Toronto`",
    "1. **Danko Jones**: a hard rock trio\n2. **Toronto**: A city. It is large.",
    "* Danko Jones – a trio\n* Toronto – a city", "People: Danko Jones\nPlaces: Toronto",
    "- **Danko Jones** (a trio, from Canada)\n- **Toronto** [city]", "* **Danko Jones** is a trio\n* Toronto, a city",
    "Here they are:\n\n### People\n* Danko Jones\n\n### Places\n* Toronto\n* Prague",
    "* **People:** Danko Jones\n* **Places:** Toronto and Prague", "Entities: Danko Jones, Toronto.",
    "a) Danko Jones\nb) Toronto", "* [Danko Jones](https://x.org)\n* [Toronto](y)",
    "{\"names\": [\"Danko Jones\", \"Toronto\"]}", "{\"people\": [\"Danko Jones\"], \"places\": [\"Toronto\"]}",
    "Danko Jones and Toronto", "[\"Danko Jones\", \"Toronto\"]",
    "| Entity | Type |\n|---|---|\n| Danko Jones | band |\n| Toronto | city |"])
def test_names_as_models_write_them(reply):
    assert names_of(reply, TEXT) == ["Danko Jones", "Toronto"]


@pytest.mark.parametrize("reply", [
    "I'm sorry, but I can't help with that.", "* None", "No entities found.", "Sure! Here they are:", "* Prague", "",
    "Danko Jones is a hard rock trio from Toronto, Ontario, Canada.", "* Rich Knox released Casa Loma in 1911",
    "The text mentions Danko Jones, a hard rock trio from Toronto.", "* Danko Jones is a hard rock trio", "* Jone"])
def test_what_names_nothing_is_refused(reply):
    """Apologies, sentences and names that the text does not hold."""
    assert names_of(reply, TEXT) == []


def test_other_replies():
    assert names_of("* Toronto, Ontario, Canada", TEXT) == ["Toronto, Ontario, Canada"]
    chinese = "孙悟空三次打败了白骨精,唐僧却不信他。"
    assert names_of("* 孙悟空\n* **白骨精**:妖怪", chinese) == ["孙悟空", "白骨精"], "there are no blanks between words"
    assert synopsis_of("孙悟空打败了\n白骨精。", chinese) == "孙悟空打败了 白骨精。"
    assert [synopsis_of(reply, TEXT) for reply in ("No", "I'm sorry, I can't help.", "")] == [""] * 3
    reply = ("* Casa Loma | is in | Toronto\n1. **toronto** | has | \"Casa Loma\"\nToronto - has - Casa Loma\n"
             "Toronto | has | Prague\nToronto | Casa Loma")
    assert relations_of(reply, {"casa loma": 0, "toronto": 1}) == [(0, "is in", 1), (1, "has", 0)]


@pytest.mark.parametrize("reply, wanted", [
    ("I want to look up Page [0, 2] to see.", [0, 2]), ("Pages [8], then Page [1]", [8]), ("[Page 3, Page 1]", [3, 1]),
    ("Danko Jones (Page 1, 2): none", []), ("Page 2 and 3", []), ("Page [2", []),
    ("Page [0, 1, 2, 3, 4, 5, 6]", [0, 1, 2]), ("Page [999, 10000000007]", []), ("Page [999, 998, 998]", [998])])
def test_pages(reply, wanted):
    assert pages_of(reply, 999, 3) == wanted


def test_keywords():
    question = "What is the nick-name of the castle in the city of Danko Jones?"
    assert keywords_of(question, ["castle", "danko jones", "astle", "cast", "Castle"]) == ["castle", "danko jones"]
    assert keywords_of(question, ["Prague"]) == ["nick-name", "castle", "city", "danko", "jones"]
    assert keywords_of("Where?\n(A) Rome\n(B) Plan B", []) == ["rome", "plan", "b"]


# --- the method -----------------------------------------------------------------------------------------------------

def test_questions_with_options(tiny, monkeypatch):
    """With options, chunks have 600 tokens, the prompt says "multiple choice", and five pages may be read again."""
    question = "Which castle?\n(A) Casa Loma\n(B) Prague"
    method = JERR(tiny, Settings(window=100_000, chunk=9))
    limits = []
    monkeypatch.setattr(jerr, "pack_paragraphs",
                        lambda tokenizer, document, limit: limits.append(limit) or document.passages)
    replies = ["a castle"] * 7 + ["* castle"] * 14
    script = Script(method, *replies, *replies, "* castle\n* casa loma", "Page [1, 0, 2, 3, 4, 5]")
    for text in ("Which (A) castle?", question):
        prepared = method.prepare(Document("x", [f"A castle {n}." for n in range(7)], [Question("q", text, ["a"])]))
    answer = method.answer(prepared, question)
    assert limits == [60, 18] and answer.nodes == [1, 0, 2, 3, 4] and script.heard[-1].endswith(question)
    assert "a multiple choice question related" in script.heard[-1] and "1 to 5 page(s)" in script.heard[-1]


def test_look_up_refused(tiny, settings):
    """Without names, pages and synopses ("No" is none), only the beginnings of the chunks are read."""
    prose = "These are the words of a sentence that goes on for more than twelve words in a line."
    method = JERR(tiny, replace(settings, window=10_000))
    script = Script(method, "No", "  ", "No.", *[prose] * 6, *[prose] * 3, *["The answer is: Casa Loma."] * 3)
    chunk = "first words" + " road" * 60
    prepared = method.prepare(Document("x", [chunk]))
    answer = method.answer(prepared, "Who is Mara?")
    [synopsis] = prepared.graph["synopses"]
    assert chunk.startswith(synopsis) and len(tiny.tokenizer.encode(f" {synopsis}")) == method.limit
    assert (prepared.refused, answer.refused, answer.nodes) == (9, 6, []) and not script.replies


def test_what_does_not_fit_is_cut(tiny, settings):
    """Synopses get half of the window, those of chunks with result nodes first. Chunks get the rest, in the order in
    which the model named them. A chunk that does not fit keeps its synopsis."""
    synopses = [f"{n} " + "word " * 20 for n in range(4)]
    prepared = Prepared(["chunk " * 30] * 4, graph={"synopses": synopses, "edges": [], "nodes": [
        {"name": "castle", "chunks": [n], "text": "castle"} for n in (3, 2)]})
    ids = [line_ids(tiny.tokenizer, text) for text in synopses]
    chunk = line_ids(tiny.tokenizer, prepared.texts[0])
    one = len(ids[0])
    method = JERR(tiny, settings)
    method.names = lambda *_: [["castle"]]
    read = []
    method.answer_from = lambda question, ids: read.append(ids) or Answer("", [], 0, 0)

    # In chunks 3 and 2 are castles, so their synopses are read first.
    for room, pages, wanted, nodes in ((8 * one, [], sum(ids, []), []), (4 * one, [], ids[2] + ids[3], []),
                                       (4 * one, [3, 1], ids[0] + ids[2] + chunk, [3]),
                                       (2 * one, [1], ids[1] + ids[3], [])):
        fixed = settings.window - room_for_nodes(tiny.tokenizer, "Q?", settings)
        method.settings = replace(settings, window=fixed + room)
        method.look_up = lambda *_, pages=pages: pages
        answer = method.answer(prepared, "Q?")
        assert (read.pop(), answer.nodes, answer.cut) == (wanted, nodes, room < 8 * one)


@pytest.mark.slow
def test_every_question_of_the_world_is_answered_by_rules(tiny):
    """The rules see what the reader would. Synopses lack some facts, so the right chunk must be read again."""
    def reader(question, ids):
        _, way, missing = follow(question, known(tiny.tokenizer.decode(ids)))
        return Answer(way[-1] if missing is None else "unknown", [], 0, 0)
    method = JERR(tiny, Settings(chunk=8, window=100_000))
    method.say, method.answer_from = by_rules, reader
    for document in read_jsonl(EMBEDDED)[::2]:
        prepared = method.prepare(document)
        for question in document.questions:
            answer = method.answer(prepared, question.text)
            assert [answer.text] == question.answers and answer.refused == 0, f"{question.id}: {answer.trace}"
            assert any(question.extra["evidence"][-1] in prepared.texts[chunk] for chunk in answer.nodes)
