"""GraphReader: its prompts, the graph by hand, every branch of a walk.

The walk of its paper's Figure 23 is in test_story.py; replies are in test_replies.py.
"""
import hashlib
from dataclasses import replace

import pytest
from speaker import Script

from baselines import graphreader_prompts as figures
from baselines.agent import AGAIN, Talk
from baselines.graphreader import FactGraph, GraphReader, Walk, stems_of
from core.settings import Settings
from data import Document

pytest.importorskip("snowballstemmer")


@pytest.fixture
def method(tiny):
    """GraphReader with a large window, because scripted replies contain words that the embedded model does not know."""
    return GraphReader(tiny, Settings(window=100_000))


def test_prompts_are_the_figures_of_the_paper():
    """The texts with this hash were compared with Figures 6 to 12, word for word."""
    texts = [getattr(figures, name) for name in "EXTRACT PLAN SELECT FACTS CHUNK NEIGHBOURS REASON".split()]
    assert hashlib.sha256("\f".join(texts).encode()).hexdigest()[:16] == "62a739ceac39764a"


# --- the graph ------------------------------------------------------------------------------------------------------

NAMES = "Never Too Loud", "studio album", "Danko Jones", "Toronto", "Casa Loma"
FACTS = [[["f", "Never Too Loud"]] for _ in range(14)]                          # one in every chunk, and three more
FACTS[6] += [["f1", "Never Too Loud", "studio album", "Danko Jones"]]
FACTS[9] += [["f2", "danko jones", "Toronto"]]
FACTS[13] += [["f3", "Casa Loma", "Toronto", "--"]]


def test_the_graph_by_hand():
    """A node has its first wording. Special characters alone are no node."""
    graph = FactGraph(FACTS)
    album, studio, danko, toronto, castle = map(stems_of, NAMES)
    assert list(graph.names.items()) == [(stems_of(name), name) for name in NAMES]
    assert graph.facts[danko] == [(6, "f1"), (9, "f2")]
    assert graph.neighbours == {album: {studio, danko}, studio: {album, danko}, danko: {album, studio, toronto},
                                toronto: {danko, castle}, castle: {toronto}}


def test_forms():
    """Words are compared by their stems. Case, possessives and special characters do not matter."""
    assert len({stems_of(name) for name in ("d souza jones", "D'Souza Jones'", "D’Souza_Jones’s")}) == 1
    assert stems_of("bands") == stems_of("band") != stems_of("Canada") != stems_of("Canadian")


# --- walks ----------------------------------------------------------------------------------------------------------

def told(action, notebook=None):
    book = "" if notebook is None else f"*Updated Notebook*: {notebook}\n"
    return f"{book}*Rationale for Next Action*: because\n*Chosen Action*: {action}"


@pytest.fixture
def walk(method):
    """Runs one walk from a node of the graph by hand, over chunks c0 to c13, with scripted replies."""
    def go(start, *replies, facts=FACTS):
        method.talk = Talk(method)
        script = Script(method, *replies)
        graph = FactGraph(facts)
        one = Walk(method, graph, [f"c{n}" for n in range(14)], "Q?", "P.", stems_of(start))
        one.run()
        assert not script.replies and len(script.heard) == len(one.actions) + method.talk.counts["refused"]
        return one
    return go


@pytest.mark.parametrize("actions, read, refused", [
    # an inserted chunk goes to the front of the queue, which is read first; it comes once, if it is queued already
    ("read_chunk([1, 9]) > read_previous_chunk() > search_more() > termination()", [1, 0, 9], 0),
    ("read_chunk([12,9,13]) > read_subsequent_chunk() > search_more() > search_more() > termination()", [12, 13, 9], 0),
    # a chunk beyond an end, or one that was read already, is not added
    ("read_chunk([0]) > read_previous_chunk() > termination()", [0], 0),
    ("read_chunk([13]) > read_subsequent_chunk() > termination()", [13], 0),
    ("read_chunk([6]) > read_subsequent_chunk() > read_previous_chunk() > termination()", [6, 7], 0),
    # ids of other nodes' facts are left out; a reply without any other id is refused
    ("stop_and_read_neighbor() > read_neighbor_node(danko jones) > read_chunk([0, 9]) > termination()",
     [9], 0),
    ("read_chunk([99]) > x", [], 2),
    # if all chunks were read already, the walk goes on as after stop_and_read_neighbor
    ("read_chunk([6]) > search_more() > read_neighbor_node(Danko Jones) > read_chunk([6]) > termination()", [6], 0),
    # a walk may go back; an invented node, one that is no neighbour and the node itself are refused; the second refusal
    # in a row ends the walk
    ("stop_and_read_neighbor() > read_neighbor_node(Danko Jones) > stop_and_read_neighbor() > "
     "read_neighbor_node(Never Too Loud) > stop_and_read_neighbor() > termination()", [], 0),
    ("stop_and_read_neighbor() > read_neighbor_node(Prague) > read_neighbor_node(Casa Loma)", [], 2),
    ("stop_and_read_neighbor() > read_neighbor_node(Never Too Loud) > termination()", [], 1),
    ("x > read_chunk([6]) > y > search_more() > termination()", [6], 2),
    # the tenth call ends a walk, also if it goes to a neighbour or leaves chunks unread; a refused reply is no call
    (" > ".join(["x", f"read_chunk({[*range(10)]})", *["search_more()"] * 9]), [*range(9)], 1),
    (" > ".join(f"stop_and_read_neighbor() > read_neighbor_node({node})"
                for node in ("Danko Jones", "Toronto", "Casa Loma", "Toronto", "Danko Jones")), [], 0)])
def test_branches_of_a_walk(walk, actions, read, refused):
    one = walk("Never Too Loud", *map(told, actions.split(" > ")))
    assert (one.read, one.method.talk.counts["refused"]) == (read, refused)


def test_a_walk_ends_at_a_node_without_neighbours(walk):
    """Its notebook is kept."""
    assert walk("a", told("stop_and_read_neighbor()", "kept"), facts=[[["f", "a"]]]).notebook == "kept"


def test_memory_gives_way_to_the_window(method):
    """The last facts are left out first, then the oldest actions, then the plan."""
    one = Walk(method, FactGraph([[["f", "a", "b"]]]), ["c0"], "Q?", "PLAN", "a", actions=["first()", "second()"])
    texts = one.prompts("facts", "Atomic facts:", ["FACT", "LAST"])
    words = "LAST", "first", "second", "PLAN", "FACT"
    assert [[word for word in words if word in text] for text in texts] == [
        list(words[n:]) for n in range(4)] + [["FACT"]]


# --- the method -----------------------------------------------------------------------------------------------------

def test_walks_do_not_see_each_other(method):
    """The walk from the better node is first. A chunk that both read counts once. Facts and plan have own limits."""
    script = Script(method, "1. Fact. | Toronto | Danko Jones", "2. Two. | Casa Loma | Toronto", "It",
                    "Node: Toronto, Score: 10\nNode: Casa Loma, Score: 90",
                    told("read_chunk([1])", "one"), told("termination()", "Casa Loma"),
                    told("read_chunk([1, 0])"), told("search_more()"), told("termination()"), "Analyze: x")
    method.chunk = 3                                        # so that each passage is a chunk
    answer = method.answer(method.prepare(Document("story", ["road.", "town."])), "Which castle?")
    assert answer.nodes == [1, 0]
    assert "1. Casa Loma\n2. none" in script.heard[-1] and "Notebook: none" in script.heard[6]
    assert script.limits == [1024, 1024, 256, *[512] * 7]


def test_starts_are_the_best_five_of_all_parts(tiny, method):
    """A list of nodes that does not fit one prompt is shown in parts; scores are pooled, ties go to the first named."""
    graph = FactGraph([[["f", *(f"k{n}" for n in range(12))]]])
    script = Script(method, "Node: k1, Score: 5\nNode: k0, Score: 5\nNode: k2, Score: 9",
                    "Node: k7, Score: 8\nNode: k8, Score: 5\nNode: k9, Score: 5\nNode: k1, Score: 7")
    head = f"{AGAIN}{figures.SELECT}\n\nQuestion: Q?\nPlan: p\nNodes:\n"
    line = len(tiny.tokenizer.encode("\nk0"))
    method.settings = replace(method.settings, window=method.limit + method.length(head) + 6 * line)
    assert method.starts(graph, "Q?", "p") == ["k2", "k7", "k1", "k0", "k8"]
    assert len(script.heard) == 2 and script.heard[1].endswith("k6\nk7\nk8\nk9\nk10\nk11")
