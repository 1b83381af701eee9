"""GraphReader: its prompts, the graph by hand, the walk of the paper's Figure 23, every branch, costs, the world."""
import hashlib
import json
import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from speaker import Script, Speaker, scripted  # noqa: F401

from baselines import graphreader, graphreader_prompts
from baselines.agent import Talk, kept
from baselines.common import pack_paragraphs, user_turn
from baselines.fact_graph import FactGraph, clusters, facts_of, form_of, scores_of, stemmer
from baselines.graphreader import GraphReader, Walk, action_of, notebook_of, run_together
from core.files import InputError
from core.settings import resolve
from data import EMBEDDED, Document, read_jsonl
from evaluation.cost import generation

pytest.importorskip("snowballstemmer")
STEM = stemmer()
NTL = "\"Never Too Loud\" is the fourth studio album by Canadian hard rock band Danko Jones."


@pytest.fixture(scope="module")
def settings(tiny):
    """Windows are large, since scripted replies have words that the embedded model does not know."""
    return replace(resolve(tiny.folder, tiny.config.max_length), window=100_000, chunk=300)


@pytest.mark.parametrize("name, digest", [
    ("EXTRACT", "569aeb699119f7a3"), ("PLAN", "ee34dc705ba9178f"), ("SELECT", "5efee7d3e6ea7d36"),
    ("FACTS", "86aa76e7a9204906"), ("CHUNK", "2dd097b24e6faff2"), ("NEIGHBOURS", "a9616477c52e2b16"),
    ("REASON", "818dd886a83e44d2")])
def test_prompts_are_the_figures_of_the_paper(name, digest):
    """Hashes of the texts as they were compared with the paper, word for word."""
    assert hashlib.sha256(getattr(graphreader_prompts, name).encode()).hexdigest()[:16] == digest


# --- the graph ------------------------------------------------------------------------------------------------------

BY_HAND = [[] for _ in range(14)]
BY_HAND[6] = [["f1", "Never Too Loud", "studio album", "Danko Jones"]]
BY_HAND[9] = [["f2", "danko jones", "Toronto"]]
BY_HAND[13] = [["f3", "Casa Loma", "Toronto"]]


def test_the_graph_by_hand():
    graph = FactGraph(BY_HAND, STEM)
    ntl, album, jones, toronto, casa = (graph.find(name) for name in (
        "Never Too Loud", "studio album", "Danko Jones'", "Toronto", "Casa Loma"))
    assert [ntl, album, jones, toronto, casa] == list(range(5)) and len(graph.names) == 5
    assert graph.facts[jones] == [(6, "f1"), (9, "f2")]
    assert graph.neighbours == [[album, jones], [ntl, jones], [ntl, album, toronto], [jones, casa], [toronto]]
    assert graph.find("Canada") is None


def test_forms_and_names():
    assert len({form_of(name, STEM) for name in ("danko jones", "Danko Jones'", "Danko Jones", "Danko Jones's")}) == 1
    assert form_of("bands", STEM) == form_of("band", STEM) != form_of("Canada", STEM) != form_of("Canadian", STEM)
    assert form_of("--", STEM) == ""
    graph = FactGraph([[["a", "band", "art"], ["b", "Bands", "party"], ["c", "Bands", "party", "--"]]], STEM)
    assert graph.names == ["Bands", "art", "party"], "the most frequent wording"
    assert graph.neighbours == [[2, 1], [0], [0]], "most facts shared first; art is not in party"


def test_facts_of_a_reply():
    reply = ("Facts:\n1. One day, a father and his little son were going home. | father | going home\n"
             "2. No key element\n3) Casa Loma is a castle. | Casa Loma | [castle] | \n- x | y\n[4], Toronto. | Toronto")
    assert facts_of(reply, "Casa Loma") == [["Casa Loma is a castle.", "Casa Loma", "castle"], ["Toronto.", "Toronto"]]
    story = "One day, a father and his little son were going home. They sang."
    assert facts_of(reply, story)[0][1:] == ["father", "going home"]


def test_chunks_are_whole_paragraphs_and_lose_nothing(tiny):
    document = read_jsonl(EMBEDDED, 1)[0]
    long = Document("x", [" ".join(document.passages[:6]), "", *document.passages[6:]])
    tokenizer = tiny.tokenizer
    packed = pack_paragraphs(tokenizer, long, 60)
    assert " ".join(" ".join(packed).split()) == " ".join(" ".join(long.passages).split())
    assert all(len(tokenizer.encode(chunk)) <= 60 for chunk in packed) and len(packed) > 5
    for passage in document.passages[6:]:
        assert any(passage in chunk for chunk in packed), "a paragraph that fits is not cut"


# --- replies --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("stage, reply, wanted", [
    ("facts", "*Chosen Action*: read_chunk([6])", ("read_chunk", "[6]")),
    ("facts", "*Chosen Action*: read_chunk(List[6, 9])", ("read_chunk", "List[6, 9]")),
    ("chunk", "*Chosen Action*: search_more", ("search_more", "")),
    ("neighbours", "*Chosen Action*: read_neighbor_node(Danko Jones (band))",
     ("read_neighbor_node", "Danko Jones (band)")),
    ("chunk", "I take termination().\n*Chosen Action*: search_more()\n*Chosen Action*: termination()",
     ("termination", "")),
    ("facts", "read_chunk([6])", None),
    ("facts", "1. Read_chunk(List[ID]) or stop_and_read_neighbor()", None),
    ("facts", "*Chosen Action*: read_chunk(List[ID]) or stop_and_read_neighbor().", None),
    ("chunk", "*Chosen Action*: search_more() or read_previous_chunk() or read_subsequent_chunk() or termination().",
     None),
    ("neighbours", "*Chosen Action*: read_chunk([6])", None),
    ("neighbours", "*Chosen Action*: none", None)])
def test_actions(stage, reply, wanted):
    assert action_of(reply, stage) == wanted


def test_notebooks():
    reply = "*Updated Notebook*: Danko Jones\n* a band\n*Rationale for Next Action*: x\n*Chosen Action*: y"
    assert notebook_of(reply) == "Danko Jones\n* a band"
    assert notebook_of("*Chosen Action*: search_more()") == ""
    assert notebook_of("*Updated Notebook*:\n*Chosen Action*: x") == ""


def test_scores():
    graph = FactGraph(BY_HAND, STEM)
    reply = ("Node: Toronto, Score: 50\nNode: [danko jones], Score: [250]\nNode: Prague, Score: 99\nNode: toronto, "
             "Score: 70\nNode: Casa Loma, Score: -5")
    assert scores_of(reply, graph) == {3: 70, 2: 100, 4: 0}
    assert scores_of("The answer to this question is: Danko Jones", graph) == {}
    assert scores_of(reply.replace(", Score", " Score"), graph) == {}


# --- walks ----------------------------------------------------------------------------------------------------------

def said(action, notebook=None):
    book = "" if notebook is None else f"*Updated Notebook*: {notebook}\n"
    return f"{book}*Rationale for Next Action*: because\n*Chosen Action*: {action}"


@pytest.fixture
def walk(tiny, settings, script):
    """Makes one walk from a node of the graph by hand, over chunks c0 .. c13, runs it by a script."""
    def go(start, *replies, facts=BY_HAND):
        graph = FactGraph(facts, STEM)
        talk = script(*replies)(tiny, settings, "GraphReader")
        one = Walk(0, graph.find(start), graph, [f"c{n}" for n in range(14)], "Q?", "P.", talk, 512)
        run_together([one], talk, 512)
        assert not Script.replies, "the walk ended early"
        return one
    return go


def test_the_walk_of_figure_23(walk):
    one = walk("Never Too Loud", said("read_chunk(ID-6)", "n1"), said("search_more()", "n2"),
               said("read_neighbor_node(Danko Jones)"), said("read_chunk([9])", "n3"), said("search_more()", "n4"),
               said("read_neighbor_node(Toronto)"), said("read_chunk([13])", "n5"), said("termination()", "Casa Loma"))
    assert one.read == [6, 9, 13] and one.notebook == "Casa Loma" and len(one.steps) == 8
    assert [step.node for step in one.steps] == ["Never Too Loud"] * 3 + ["Danko Jones"] * 3 + ["Toronto"] * 2
    head = "\n\nQuestion: Q?\nPlan: P.\nPrevious actions: "
    done = ["read_chunk([6])", "search_more()", "read_neighbor_node(Danko Jones)", "read_chunk([9])"]
    assert Script.heard[0] == (graphreader_prompts.FACTS + head + "none\nNotebook: none\nNode: Never Too Loud\n"
                               "Atomic facts:\n[Chunk 6] f1")
    assert Script.heard[1] == (graphreader_prompts.CHUNK + head + "read_chunk([6])\nNotebook: n1\nChunk 6:\nc6")
    assert Script.heard[2] == (graphreader_prompts.NEIGHBOURS + head + "; ".join(done[:2]) + "\nNotebook: n2\n"
                               "Node: Never Too Loud\nNeighbor nodes:\nstudio album\nDanko Jones")
    assert Script.heard[3].endswith("; ".join(done[:3]) + "\nNotebook: n2\nNode: Danko Jones\nAtomic facts:\n"
                                    "[Chunk 6] f1\n[Chunk 9] f2")
    assert Script.heard[5].endswith("Notebook: n4\nNode: Danko Jones\nNeighbor nodes:\nstudio album\nToronto"), \
        "a visited node is not offered again"


@pytest.mark.parametrize("replies, read, calls", [
    ((said("stop_and_read_neighbor()"), said("termination()")), [], 2),
    # what is inserted goes before the queue; the queue is read from its front
    ((said("read_chunk([6, 9])"), said("read_subsequent_chunk()"), said("search_more()"), said("termination()")),
     [6, 7, 9], 4),
    ((said("read_chunk([6, 9])"), said("read_previous_chunk()"), said("search_more()"), said("termination()")),
     [6, 5, 9], 4),
    # beyond both ends, and read already: nothing is added
    ((said("read_chunk([0])"), said("read_previous_chunk()"), said("termination()")), [0], 3),
    ((said("read_chunk([13])"), said("read_subsequent_chunk()"), said("termination()")), [13], 3),
    ((said("read_chunk([6])"), said("read_subsequent_chunk()"), said("read_previous_chunk()"), said("termination()")),
     [6, 7], 4),
    # ids: unknown ones are left out, repeated ones are read once; none that exists is refused
    ((said("read_chunk([99, 6, 6])"), said("search_more()"), said("termination()")), [6], 3),
    ((said("read_chunk([99])"), said("read_chunk([ID])"), said("x")), [], 3),
    # read already: as stop_and_read_neighbor
    ((said("read_chunk([6])"), said("search_more()"), said("read_neighbor_node(Danko Jones)"), said("read_chunk([6])"),
      said("termination()")), [6], 5),
    # neighbours: invented, or visited; three refusals end the walk, two do not
    ((said("stop_and_read_neighbor()"), said("read_neighbor_node(Prague)"), said("read_neighbor_node(Casa Loma)"),
      said("read_neighbor_node(Never Too Loud)")), [], 4),
    (("x", "y", said("read_chunk([6])"), said("search_more()"), said("termination()")), [6], 5)])
def test_branches_of_a_walk(walk, replies, read, calls):
    one = walk("Never Too Loud", *replies)
    assert one.read == read and len(one.steps) == calls
    assert one.talk.refused == sum(step.action == "refused" for step in one.steps)


def test_no_neighbour_is_left(walk):
    one = walk("a", said("stop_and_read_neighbor()", "kept"), facts=[[["f", "a"]]])
    assert one.notebook == "kept" and len(one.steps) == 1


def test_a_walk_has_ten_calls(walk):
    """At each stage: the notebook of the 10th call is kept, and there is no 11th."""
    chunks = said("read_chunk([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])", "n")
    one = walk("Toronto", chunks, *[said("search_more()", f"n{n}") for n in range(9)])
    assert len(one.steps) == 10 and one.notebook == "n8" and one.queue == [9, 10, 11] and len(one.read) == 9
    line = [[[f"f{n}", f"k{n}", f"k{n + 1}"] for n in range(9)]]
    hops = [part for n in range(5) for part in (said("stop_and_read_neighbor()", f"n{n}"),
                                                said(f"read_neighbor_node(k{n + 1})"))]
    assert len(walk("k0", *hops, facts=line).steps) == 10

    # The 10th call is about facts: after nine, one of them refused, the queue that it makes is not read.
    last = walk("k0", "x", *hops[:8], said("read_chunk([0])", "tenth"), facts=line)
    assert [step.stage for step in last.steps][-1] == "facts" and last.notebook == "tenth"
    assert (last.read, last.queue, len(last.steps)) == ([], [0], 10)


def test_a_missing_notebook_leaves_the_old_one(walk):
    assert walk("Toronto", said("read_chunk([9])", "old"), said("termination()")).notebook == "old"


def test_memory_gives_way_to_the_window(tiny, settings, script):
    """First the last facts, then the oldest actions, then the plan; then it is an error that names all."""
    graph = FactGraph([[[f"fact {n} of a", "a", "b"] for n in range(5)]], STEM)
    seen = []
    for window in range(4000, 0, -1):
        talk = script()(tiny, replace(settings, window=window), "GraphReader")
        one = Walk(0, 0, graph, ["c0"], "Q?", "PLAN of many words", talk, 5)
        one.actions = ["first()", "second()"]
        try:
            lines, text = one.prompt("facts", "Atomic facts:", [f"fact {n}" for n in range(3)], "")
        except InputError as error:
            assert "facts of GraphReader" in str(error) and str(window) in str(error)
            break
        state = len(lines), "first()" in text, "second()" in text, "PLAN" in text
        if state not in seen:
            seen.append(state)
    assert seen == [(3, True, True, True), (2, True, True, True), (1, True, True, True), (1, False, True, True),
                    (1, False, False, True), (1, False, False, False)]


# --- the method -----------------------------------------------------------------------------------------------------

STORY = Document("story", [NTL, "Danko Jones is a Canadian hard rock trio from Toronto.",
                           "Casa Loma is a castle in midtown Toronto."])
EXTRACTED = ["1. Never Too Loud is by Danko Jones. | Never Too Loud | Danko Jones\n"
             "2. Danko Jones is from Toronto. | Danko Jones | Toronto\n"
             "3. Casa Loma is in Toronto. | Casa Loma | Toronto"]


def test_scripted_runs_of_the_whole_method(tiny, settings, script, tmp_path):
    walks = [said("read_chunk([0])", "one"), said("stop_and_read_neighbor()", "two"),      # first round of both walks
             said("termination()", "Casa Loma"), said("termination()")]
    talk = script(*EXTRACTED, "the plan", "Node: Toronto, Score: 10\nNode: Casa Loma, Score: 90", *walks,
                  "Analyze: x\nFinal answer:\nCasa Loma")
    method = GraphReader(tiny, settings, own_answer=True, talk=talk)
    path = tmp_path / "facts.json"
    prepared = method.prepare(STORY, path)
    answer = method.answer(prepared, "Which castle?")
    assert answer.text == "Casa Loma" and answer.nodes == [0] and not Script.replies
    assert "1. Casa Loma\n2. two" in Script.heard[-1], "walks do not see each other's notebooks"
    assert "Notebook: none" in Script.heard[3] and "Notebook: none" in Script.heard[4]
    assert (answer.calls, answer.refused, prepared.calls, prepared.refused) == (7, 0, 1, 0)

    # Nothing is extracted again, and the file is the same byte for byte.
    before = path.read_bytes()
    again = GraphReader(tiny, settings, talk=script()).prepare(STORY, path)
    assert again.graph.names == prepared.graph.names and path.read_bytes() == before
    path.unlink()
    GraphReader(tiny, settings, talk=script(*EXTRACTED)).prepare(STORY, path)
    assert path.read_bytes() == before
    with pytest.raises(InputError, match="another document"):
        method.prepare(Document("x", ["other"]), path)


def test_without_a_plan(tiny, settings, script):
    """The paper's "w/o rational plan": Figure 7 is not asked, and no prompt has a line for the plan."""
    talk = script(*EXTRACTED, "Node: Toronto, Score: 10", said("stop_and_read_neighbor()"), said("termination()"), "x")
    method = GraphReader(tiny, settings, own_answer=True, talk=talk, planned=False)
    answer = method.answer(method.prepare(STORY), "Which castle?")
    assert answer.text == "x" and not Script.replies
    assert not any("\nPlan: " in text.rpartition("#####")[2] for text in Script.heard)
    assert Script.heard[1].startswith(f"{graphreader_prompts.SELECT}\n\nQuestion: Which castle?\nNodes:\n")


def test_without_node_selection(tiny, settings, script):
    """The paper's "w/o node selection": starts and neighbours are drawn, the same each time; all else is as it was."""
    facts = ["\n".join(f"{n}. f{n}. | k{n} | k{n + 1} | k{n + 2}" for n in range(9))]
    walks = [said("stop_and_read_neighbor()", "n")] * 5 * 10
    runs = []
    for _ in range(2):
        method = GraphReader(tiny, settings, own_answer=True, talk=script(*facts, "plan", *walks, "x"), chance=True)
        answer = method.answer(method.prepare(STORY), "Which castle?")
        steps = [step for step in answer.trace if step.walk >= 0]
        assert {step.stage for step in steps} == {"facts"} and {step.walk for step in steps} == set(range(5))
        runs.append([step.node for step in steps])
        assert not any(text.startswith((graphreader_prompts.SELECT, graphreader_prompts.NEIGHBOURS))
                       for text in Script.heard)
    assert runs[0] == runs[1] and len(set(runs[0][:5])) == 5
    for number in range(5):
        walked = [step.node for step in steps if step.walk == number]
        assert len(set(walked)) == len(walked) > 1, "a neighbour is drawn among those that were not visited"


def test_semantic_clusters_equal_dbscan(tiny, settings, script):
    """Connected components of near names, as DBSCAN with min_samples 1 finds them; the graph has a node for each."""
    cluster = pytest.importorskip("sklearn.cluster")
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(6, 4))
    V = np.concatenate([centre + rng.normal(size=(5, 4)) * .12 for centre in centres])
    order = rng.permutation(len(V))
    names = {f"form{n}": f"name {n}" for n in order}

    class Given:
        flops = 0

        def encode(self, texts):
            self.flops += 7
            numbers = [int(text.split()[-1]) for text in texts]
            return torch.tensor(V[numbers] * (1 + np.array(numbers)[:, None]))

    wanted = cluster.DBSCAN(eps=.05, min_samples=1, metric="cosine").fit(V[order]).labels_
    found = clusters(names, Given())
    leaders = list(dict.fromkeys(found.values()))
    assert [leaders.index(found[form]) for form in names] == wanted.tolist() and 6 <= len(leaders) < 20
    assert all(list(names).index(leader) == wanted.tolist().index(n) for n, leader in enumerate(leaders))

    graph = FactGraph([[["f", *(f"word {n}" for n in order)]]], STEM, Given())
    assert len(graph.names) == len(leaders) and graph.names[0] == f"word {order[0]}"
    assert graph.find(f"WORD'S {order[-1]}") == wanted[-1] and len(graph.facts[0]) == 1
    assert FactGraph([[]], STEM, Given()).names == []
    given = Given()
    method = GraphReader(tiny, settings, talk=script("1. f | word 1 | word 2"), encoder=given)
    prepared = method.prepare(Document("x", ["text"]))
    assert prepared.flops == given.flops == 7, "the encoder's work belongs to the construction"


def test_refused_replies(tiny, settings, script):
    """Extraction that echoes its example; starts that are no nodes; reasoning without its heading."""
    echo = "1. One day, a father and his little son were going home. | father | little son | going home"
    method = GraphReader(tiny, settings, own_answer=True, talk=script(*[echo] * 3, "plan"))
    prepared = method.prepare(STORY)
    answer = method.answer(prepared, "Which castle?")
    assert (prepared.refused, answer.text, answer.end) == (3, "", "none")
    assert Script.heard[1].startswith(Script.heard[0]) and Script.heard[1] != Script.heard[0]

    talk = script(*EXTRACTED, "plan", *["The answer to this question is: Danko Jones"] * 3)
    answer = GraphReader(tiny, settings, own_answer=True, talk=talk)
    answer = answer.answer(answer.prepare(STORY), "Which castle?")
    assert (answer.refused, answer.text, answer.end) == (3, "", "none")

    talk = script(*EXTRACTED, "plan", "Node: Toronto, Score: 1", *["x"] * 3, "The answer is: Casa Loma.\n#####")
    method = GraphReader(tiny, settings, own_answer=True, talk=talk)
    answer = method.answer(method.prepare(STORY), "Which castle?")
    assert answer.refused == 3 and answer.text == "The answer is: Casa Loma.\n#####"


def test_starts_are_the_best_five_of_all_parts(tiny, settings, script):
    """A list of nodes that does not fit one prompt is shown in parts; scores are pooled, ties go to the first named."""
    graph = FactGraph([[["f", *(f"k{n}" for n in range(12))]]], STEM)
    talk = script("Node: k1, Score: 5\nNode: k0, Score: 5\nNode: k2, Score: 9",
                  "Node: k7, Score: 8\nNode: k8, Score: 5\nNode: k9, Score: 5\nNode: k1, Score: 1")
    method = GraphReader(tiny, settings, talk=talk)
    head = f"{graphreader_prompts.SELECT}\n\nQuestion: Q?\nPlan: p\nNodes:\n"
    line = len(tiny.tokenizer.encode("\nk0"))
    reminder = graphreader.reminder(graphreader.FORM)
    tight = method.reply + len(user_turn(tiny.tokenizer, head + reminder)) + 6 * line
    method.settings = replace(settings, window=tight)
    starts = method.starts(graph, "Q?", "p", talk(tiny, method.settings, "GraphReader"))
    assert len(Script.heard) == 2 and Script.heard[1].endswith("k6\nk7\nk8\nk9\nk10\nk11")
    assert [graph.names[node] for node in starts] == ["k2", "k7", "k1", "k0", "k8"]


def test_it_cannot_run_on_a_small_window(tiny):
    with pytest.raises(InputError, match=r"window 380 is too small: extraction of GraphReader takes \d+ tokens"):
        GraphReader(tiny, resolve(tiny.folder, tiny.config.max_length))


def test_costs_are_those_of_the_calls(tiny, settings, monkeypatch):
    """FLOPs and tokens of the model's own replies, one at a time; construction is not charged to questions."""
    small = replace(settings, chunk=8, batch=1, answer_tokens=4, window=4000)
    document = read_jsonl(EMBEDDED, 1)[0]
    del document.passages[15:]                              # three chapters are enough
    heard = []
    original = graphreader.Talk.say

    def say(self, texts, prompts, limit, progress):
        said = original(self, texts, prompts, limit, progress)
        heard.extend((len(prompt), limit) for prompt in prompts)
        return said
    monkeypatch.setattr(graphreader.Talk, "say", say)
    method = GraphReader(tiny, small)
    prepared = method.prepare(document)
    assert prepared.flops > 0 and prepared.calls == len(heard) and prepared.refused == prepared.calls
    built = len(heard)
    answer = method.answer(prepared, "Q?")
    least = sum(generation(tiny.config, prompt, 1) for prompt, _ in heard[built:])
    most = sum(generation(tiny.config, prompt, limit + 1) for prompt, limit in heard[built:])
    assert answer.end == "none" and least <= answer.flops <= most
    assert answer.calls == len(heard) - built == 1, "a plan, and no node to start from"


def test_every_question_of_the_world_is_answered_by_rules(tiny, settings):
    """Those of ten documents, with rules in the place of the agent's model; the rules see the prompts alone.

    One about two facts goes to a name, to the post, to the friend's name and the friend's post, which takes all calls.
    """
    small = replace(settings, chunk=8)
    method = GraphReader(tiny, small, own_answer=True, talk=Speaker)
    lengths = set()
    for document in read_jsonl(EMBEDDED)[::2]:
        prepared = method.prepare(document)
        for question in document.questions:
            answer = method.answer(prepared, question.text)
            assert [answer.text] == question.answers, f"{question.id}: {answer.trace}"
            assert answer.refused == 0
            lengths.add(answer.calls - 3)
    assert min(lengths) == 2 and max(lengths) == 10, "without plan, starts and reasoning"


def test_walks_side_by_side_equal_walks_alone(tiny, settings):
    """Random actions: whatever the other rows of the batch are, a walk reads the same."""
    facts = [[[f"f{c}{n}", *random.Random(f"{c}{n}").sample("abcdefgh", 2)] for n in range(3)] for c in range(6)]
    graph = FactGraph(facts, STEM)

    class Dice(Talk):
        def say(self, texts, prompts, limit, progress):
            return [self.roll(random.Random(text)) for text in texts]

        def roll(self, rng):
            return said(rng.choice([f"read_chunk([{rng.randrange(6)}, {rng.randrange(6)}])", "stop_and_read_neighbor()",
                                    "search_more()", "read_subsequent_chunk()", "read_previous_chunk()",
                                    f"read_neighbor_node({rng.choice('abcdefgh')})"]), f"n{rng.random()}")

    def walks(numbers):
        return [Walk(n, n, graph, [f"c{c}" for c in range(6)], f"Q{n}?", "p", Dice(tiny, settings, "x"), 9)
                for n in numbers]
    together = walks(range(5))
    run_together(together, Dice(tiny, settings, "x"), 9)
    for n, walk in enumerate(together):
        alone = walks([n])
        run_together(alone, Dice(tiny, settings, "x"), 9)
        assert alone[0].steps == walk.steps and len(walk.steps) <= 10
    assert any(len(walk.read) > 1 for walk in together) and all(a.read is not b.read for a, b in pairwise(together))


def test_kept_files_are_checked(tiny, tmp_path):
    def again():
        pytest.fail("made again")

    document = Document("d", ["text"])
    path = tmp_path / "f.json"
    content = {"facts": [], "flops": 1, "calls": 2, "refused": 0}
    assert kept(path, document, tiny, {"a": 1}, lambda: content) == content
    assert kept(path, document, tiny, {"a": 1}, again) == content
    for construction, other, message in (({"a": 2}, document, "another settings"),
                                         ({"a": 1}, Document("d", ["x"]), "another document")):
        with pytest.raises(InputError, match=message):
            kept(path, other, tiny, construction, again)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"flops": -1}))
    with pytest.raises(InputError, match="flops is -1"):
        kept(path, document, tiny, {"a": 1}, again)


@pytest.mark.parametrize("changes", [{"facts": 3}, {"facts": [[["f", 5]]]}, {"chunks": None}])
def test_a_damaged_file_is_named(tiny, settings, script, tmp_path, changes):
    path = tmp_path / "facts.json"
    method = GraphReader(tiny, settings, talk=script(*EXTRACTED))
    method.prepare(STORY, path)
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
    with pytest.raises(InputError, match="facts.json: not what was kept of a document"):
        method.prepare(STORY, path)
