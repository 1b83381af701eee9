"""The bench: the attention of each head, the truth about each question, each figure by hand, and a short run."""
import itertools
import json
import math
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import pecan
from core.files import InputError, write_sealed
from data import EMBEDDED, Document, Question, read_jsonl
from evaluation.metrics import f1
from evaluation.paper import FIXED_NODES
from llama import Cache, length_of
from pecan import Search
from study import __main__ as study_command
from study import choose, collect, figures, seen, steps, truth
from study.__main__ import DATA, main
from study.choose import Chosen
from study.collect import Asked, Bench, Record
from support.graph import Node
from support.token_mean import TokenMean
from tiny.facts import facts_in


def stated(text: str) -> set:
    """The facts that a text of the embedded world states."""
    return facts_in([text])


# --- attention of each head -----------------------------------------------------------------------------------------

def test_heads_of_a_construction_give_its_graph(tiny, document, settings, monkeypatch):
    """The mean over layers and heads is E, even if the second reply is empty."""
    points, calls = pecan.information_points, itertools.count()
    monkeypatch.setattr(pecan, "information_points", lambda tokenizer, ids, *rest: points(
        tokenizer, [] if next(calls) == 1 else ids, *rest))
    graph, pairs, e = seen.construct(tiny, document, settings)
    E = collect.edges_of(pairs, e.mean((1, 2)), len(graph.nodes))
    assert e.shape[1:] == (6, 4) and (E - graph.E.to_dense()).abs().max() < 1e-5


def test_r_of_heads_is_that_of_the_search(tiny, graph, question, similarity, settings):
    """The mean over heads gives r of the top level and of the first node after it."""
    search = Search(tiny, graph, question, similarity(question), settings)
    search.start()
    search.next()
    a = seen.to_question(tiny, graph, question).mean((1, 2))
    for step in search.trace:
        assert abs(step.position * a[step.node].item() - step.r) < 1e-6


# --- truth ----------------------------------------------------------------------------------------------------------

NODES = [Node(1, "Ann A. Ann was born in"), Node(1, "Rome in 1901."), Node(1, "Bob Bob likes tea."),
         Node(2, "Ann's birth"), Node(2, "Bob's tea"), Node(3, "Both")]
EDGES = {(3, 0): .6, (3, 1): .4, (4, 1): .3, (4, 2): .7, (5, 3): .5, (5, 4): .5}


def asked(evidence, **extra):
    return Question("q", "Who?", ["Rome"], {"evidence": evidence, **extra})


def test_needed_chunks():
    """A sentence cut in two needs both chunks. Of equal ones the first counts. Evidence from elsewhere is an error."""
    document = Document("d", ["Ann A.\nAnn was born  in Rome in 1901.", "Bob\nBob likes tea."])
    chunks = [node.text for node in NODES[:3]]
    assert truth.needed_chunks(document, chunks, asked(["Ann was born in Rome in 1901."])) == [0, 1]
    assert truth.needed_chunks(document, chunks, asked(["Bob Bob likes tea.", "in"])) == [0, 2]
    with pytest.raises(InputError, match="question q: its evidence is not in the document: 'Eve"):
        truth.needed_chunks(document, chunks, asked(["Eve sings."]))
    assert truth.needed_chunks(Document("d", ["abcdefghi"]), list("abcdefghi"), asked(["i", "a"])) == [0, 8]


def test_what_leads_where():
    """A node leads along its heaviest edge, of equal ones the last. In the world, bullets lead by person."""
    E = [[EDGES.get((i, j), 0) for j in range(6)] for i in range(6)]
    assert truth.leading(NODES, E, asked([]), [0], None) == [True, False, False, True, False, False]
    assert truth.leading(NODES, E, asked([]), [2], None) == [False, False, True, False, True, True]
    world = [Node(1, "Mara is Sofia's baker."), Node(1, "Otto is Lima's cook. Mara has a goat."),
             Node(2, "Mara is Sofia's baker"), Node(2, "Otto is Lima's cook")]
    assert truth.leading(world, [], asked(["Mara has a goat."]), [1], stated) == [False, True, True, False]


def test_sources_of_a_bullet():
    """In the embedded world facts give the sources. Elsewhere words do, if they clearly point to one node."""
    assert truth.sources("Mara is Sofia's baker",
                         ["Mara is Sofia's baker.", "Mara has a goat.", "Bells rang. Mara is Sofia's baker."],
                         stated) == [0, 2]
    below = ["Victoria Falls is on the Zambezi River in Zambia.", "The Bubye River is in Zimbabwe."]
    assert truth.sources("Falls of the Zambezi: Victoria, Zambia", below, None) == [0]
    assert truth.sources("Falls and Zambezi River", below, None) == [], "two words are not enough, River is in both"
    assert truth.sources("Victoria Falls, Zambezi: of Bubye, Zimbabwe", below, None) == [], "no clear first"

    # Three words are enough, and so are four if the next text has two. A digit is a word; "sea" is too short for one.
    below = ["Ships of the old sea", "Anna Cora has 7 tall ships at sea", "Bert has two tall ships"]
    for text, wanted in (("ANNA: 7, tall", [1]), ("at sea: Anna, tall", []), ("anna: 7 tall, Bert", []),
                         ("Cora Anna: 7 tall, Bert", [1])):
        assert truth.sources(text, below, None) == wanted, text


def test_the_embedded_world_has_exact_truth():
    """All needed chunks together are enough for a question. Without the first they are not."""
    document = read_jsonl(EMBEDDED, limit=1)[0]
    facts = truth.facts_reader(document)
    for question in document.questions:
        needed = truth.needed_chunks(document, document.passages, question)
        assert truth.enough(question, document.passages, needed, [], facts)
        assert not truth.enough(question, document.passages, needed[1:], [], facts)
    assert truth.facts_reader(read_jsonl(DATA / "musique.jsonl", limit=1)[0]) is None


def test_enough():
    """A fact about "Lima's cook" counts once the cook's name was read, a fact about a name at once. Elsewhere chunks
    count."""
    texts = ["Otto has a goat", "Lima's cook has a goat.", "Otto is Lima's cook"]
    needs = asked([f"{texts[2]}.", texts[1]], facts=texts[:1])
    assert [truth.enough(needs, texts, nodes, [], stated) for nodes in ([0], [1], [2], [1, 2])] == [
        True, False, False, True]
    assert not truth.enough(asked([texts[0], "Ida has a dog"]), texts, [0], [], stated), "one of two facts"
    assert truth.enough(needs, texts, [3, 7], [7], None) and not truth.enough(needs, texts, [3], [3, 7], None)


# --- figures --------------------------------------------------------------------------------------------------------

def test_the_area_under_the_curve():
    assert figures.area(np.array([(.9, 1), (.8, 0), (.3, 1), (.1, 0)])) == 0.75
    assert figures.area(np.array([(.5, 1), (.5, 0), (.1, 0)])) == 0.75, "a tie counts one half"
    assert np.isnan(figures.area(np.array([(.5, 1), (.1, 1)])))


def test_three_digits():
    assert [figures.number(x) for x in (-.05, .306, 1, -17.3, 19.9, 20, -1234)] == [
        "-.05", ".31", "1.0", "-17.3", "19.9", "20", "-1,234"]


def test_intervals_are_over_documents():
    """All items of a document are drawn together: two documents give three means, not many."""
    assert figures.figure([[1.0] * 50, [0.0] * 50]) == (.5, 0, 1, 100)
    assert figures.figure([[1.0, 1.0, 1.0], [0.0]]).value == .75, "each item weighs the same"

    # For a hundred documents the interval is nearly that of a normal distribution, 1.96 standard errors to each side.
    found = figures.figure([[float(d)] for d in range(100)])
    assert found.high - found.low == pytest.approx(2 * 1.96 * np.std(range(100)) / 10, rel=0.05)


# Two layers of one head. Bullet 4 is about chunks 0, 1 and 3; its source is 1.
PAIRS = torch.tensor([[4, 0], [4, 1], [4, 3], [5, 2], [5, 3], [6, 4], [6, 5]])
E_H = torch.tensor([[.1, .1], [.3, .5], [.2, .0], [.1, .1], [.1, .1], [.1, .1], [.1, .1]])[:, :, None]
COSINES = torch.tensor([.6, .2, -.5, .1, .1, .1, .1])


def record_of(**row) -> Record:
    """A document with four chunks, two bullets above them, and one above these."""
    nodes = [Node(level, f"text {i}") for i, level in enumerate((1, 1, 1, 1, 2, 2, 3))]
    attention = torch.tensor([[.1, .1], [.2, .2], [.1, .1], [.1, .1], [.5, .1], [0, .2], [.3, .1]])[:, :, None]
    row = Asked(asked([], kind="top"), attention, torch.tensor([.1, .3, -.2, 0, .2, .4, 0]), [0, 3],
                torch.tensor([1., 0, 0, 1, 1, 0, 1]), {}, {})._replace(**row)
    return Record(Document("d", ["-"]), None, nodes, PAIRS, E_H, COSINES, {4: [1]}, [row])


def found(step, record, chosen=Chosen([0], [1])) -> dict:
    """(figure, way) -> items."""
    items = {}
    for name, way, item in step(record, chosen):
        items.setdefault((name, way), []).append(item)
    return items


def test_edges_by_hand():
    """Bullet 4's means are .1, .4 and .1; head 0 alone has .1, .3 and .2. A negative cosine counts as 0. All ways are
    equal for 5 and 6."""
    ways = "the paper", "uniform", "similarity", "chosen heads"
    for known, level, masses, precisions, *others in (
            ({4: [1]}, 2, (4 / 6, 1 / 3, .25, .5), (1, 1 / 3, 0, 1)),
            ({4: [0, 1], 5: [3]}, 2, (5 / 6, 2 / 3, 1, 4 / 6), (1, 2 / 3, 1, 1), .5),
            ({6: [5]}, 3, [.5] * 4, [.5] * 4)):
        items = found(steps.edges, record_of()._replace(known=known))
        assert items == {(f"edges: {what}, level {level}", way): pytest.approx([item, *others])
                         for what, row in (("mass on the sources", masses), ("precision at 1", precisions))
                         for way, item in zip(ways, row)}


def test_relevance_by_hand():
    """Bullet 4 is right and 5 is not: by attention (.3, .1) it is found, by similarity (.2, .4) and head 1 not."""
    items = found(steps.relevance, record_of())
    assert items == {("r: area over level 2", way): [area] for way, area in (
        ("the paper", 1), ("uniform", .5), ("similarity", 0), ("an oracle's", 1), ("chosen heads", 0))}
    negative = found(steps.relevance, record_of(c=-torch.arange(7.)))
    assert negative["r: area over level 2", "similarity"] == [.5], "negative cosines count as 0"
    r = torch.tensor([.5, .1, .2])
    assert steps.positioned("the paper", r, [2, 0]).tolist() == pytest.approx([.4, 1.5])


def test_a_replay_chooses_as_the_search_does(tiny, graph, question, similarity, settings):
    """A replay's first choice is that of the program's search."""
    c, pairs = similarity(question), graph.E.indices().T
    row = Asked(Question("q", question, []), seen.to_question(tiny, graph, question), c, [], c, {}, {})
    record = Record(None, None, graph.nodes, pairs, graph.E.values()[:, None, None], c[pairs[:, 1]], {}, [])
    for name, changes in (("z + c", {}), ("z", {"similarity": False}), ("c", {"attention": False})):
        search = Search(tiny, graph, question, c, replace(settings, **changes))
        search.start()
        search.next()
        choice = search.visited[-1:]
        assert steps.orders(record, row._replace(needed=choice), Chosen([], []))[name] == choice


def test_every_order_by_loops():
    """For each way, loops over its E and r give the order in which its replay reads. Random orders stay the same."""
    record = record_of(question=Question("q", "3, 3 or 0?", []))
    row, = record.asked

    def order(e, r, position=0, similarity=None):
        """Read from the top until chunks 0 and 3 were read; `position` is the exponent of the place in S."""
        sums = {i: sum(x for (k, _), x in zip(PAIRS.tolist(), e) if k == i) for i in (4, 5, 6)}
        S = [6]
        while not {0, 3} <= set(S):
            z = [0.] * 7
            for (i, j), x in zip(PAIRS.tolist(), e):
                if i in S:
                    z[j] += x / sums[i] * r[i] * (S.index(i) + 2) ** position
            if similarity:
                z = [x / sum(z) + y / sum(similarity) for x, y in zip(z, similarity)]
            S.append(max(set(range(7)) - set(S), key=lambda i: (round(z[i], 9), -i)))
        return S[1:]

    e, uniform = E_H.mean((1, 2)).tolist(), [1] * 7
    r, c = row.attention.mean((1, 2)).tolist(), [max(x, 0) for x in row.c.tolist()]
    wanted = {"z": order(e, r, 1), "z + c": order(e, r, 1, c), "z, E uniform": order(uniform, r, 1),
              "z, r uniform": order(e, uniform), "z, r an oracle's": order(e, row.leads.tolist()),
              "z, E and r by chosen heads": order(E_H[:, 0, 0].tolist(), row.attention[:, 1, 0].tolist(), 1),
              "c": [5, 1, 4, 0, 3], "BM25 over all nodes": [3, 0]}
    found, again = (steps.orders(record, row, Chosen([0], [1])) for _ in range(2))
    assert found.keys() == {*wanted, "random"} and found == again
    assert {way: found[way] for way in wanted} == wanted and len(set(map(tuple, wanted.values()))) > 4


def test_the_order_of_a_replay(monkeypatch):
    """Ties go to the lower id. A replay ends when all needed nodes were read."""
    scores = torch.tensor([.1, .5, .5, 9])
    assert steps.replay(lambda S: scores, [3], [0]) == [1, 2, 0]
    assert steps.replay(lambda S: scores, [3], [1]) == [1] and steps.replay(lambda S: scores, [], [2, 1]) == [3, 1, 2]

    # Chunks 0 and 3 are needed. Of the chunks, 0 is read third and 3 second.
    monkeypatch.setattr(steps, "orders", lambda *_: {"x": [4, 2, 3, 5, 0]})
    assert found(steps.retrieval, record_of()) == {("rank of the needed chunk", "x"): [3, 2],
                                                   ("steps to all needed chunks", "x"): [5]}

    # Without IPs the chunks are the top level, so nothing is retrieved.
    short = record_of()
    assert not found(steps.retrieval, short._replace(nodes=short.nodes[:4], pairs=PAIRS[:0]))


def test_progress_by_hand():
    """The first pass reads two nodes, the top level. At the third check enough was read (chunks 0 and 3)."""
    items = found(steps.progress, record_of(endless={
        "nodes": [6, 5, 0, 3, 1], "p_yes": [None, .3, .55, .65, .7]}))
    assert items["p_yes: area", ""] == [(.3, False), (.55, False), (.65, True), (.7, True)]
    stops = {t_p: [items[name, f"t_p {t_p}"] for name in ("stops too early", "stops too late", "never stops")]
             for t_p in steps.THRESHOLDS}
    assert stops[.3] == stops[.5] == [[True], [False], [False]]
    assert stops[.6] == [[False], [False], [False]]
    assert stops[.7] == stops[.98] == [[False], [True], [True]], "p_yes equal to the threshold is not a Yes"

    # In the embedded world facts count, and node 1 states the needed one.
    record = record_of(question=asked(["Mara has a goat."]), endless={"nodes": [0, 3, 1], "p_yes": [.1, .2, .3]})
    record.nodes[1] = Node(1, "Mara has a goat.")
    items = found(steps.progress, record._replace(facts=stated))
    assert items["p_yes: area", ""] == [(.1, False), (.2, False), (.3, True)]
    assert items["stops too late", "t_p 0.3"] == [False], "nothing is read after the last check"


def test_answers_by_hand():
    """The kinds of questions are PECAN's and those without attention."""
    other = "PECAN without similarity"
    ways = {"PECAN": {"f1": .5, "likelihood": -2}, other: {"f1": 1, "likelihood": -.5}}
    without = found(steps.answers, record_of(ways=ways | {"PECAN without attention": {"f1": .25, "likelihood": -3}}))
    assert without["F1 of kind 'top'", "PECAN without attention"] == [25]
    assert found(steps.answers, record_of(ways=ways)) == {
        ("F1", "PECAN"): [50], ("F1", other): [100], ("F1 of kind 'top'", "PECAN"): [50],
        ("F1 less PECAN's", other): [50], ("gold likelihood", "PECAN"): [-2],
        ("gold likelihood", other): [-.5], ("gold likelihood less PECAN's", other): [1.5]}


def test_heads_are_chosen_by_their_mass():
    """Half of head 2's attention is right. Adding head 1 makes it .6 (5 of 10, 14 of 20), adding head 0 too .68."""
    rest = [0.] * 15, [1.] * 15
    first = torch.tensor([[9, 0, 5, *rest[0]], [10, 0, 10, *rest[1]]])
    second = torch.tensor([[0, 9, 5, *rest[0]], [1, 10, 10, *rest[1]]])
    assert choose.best_heads([first, second]) == [2, 1, 0]
    assert choose.best_heads([first]) == [0], "no other head raises .9, and head 1 leaves it"
    second[0, 1] = 0
    assert choose.best_heads([first, second]) == [2, 0], "no head counts twice"
    assert choose.best_heads([]) == []

    # Each head finds another node, so each raises the share: one, a sixth of the heads, or ten.
    for heads, most in ((5, 1), (12, 2), (90, 10)):
        assert len(set(choose.best_heads([(row, row) for row in torch.eye(heads)[:, None]]))) == most

    first, second = choose.on_sources(record_of()._replace(known={4: [1, 3], 5: [2]}))
    assert torch.allclose(torch.stack(first), torch.tensor([[[.5], [.5]], [[.6], [.6]]]))
    assert torch.allclose(torch.stack(second), torch.tensor([[[.1], [.1]], [[.2], [.2]]]))
    (right, all_), = choose.on_right_points(record_of())
    assert torch.allclose(right, torch.tensor([[.8], [.2]])) and torch.allclose(all_, torch.tensor([[.8], [.4]]))
    assert choose.on_right_points(record_of(leads=torch.ones(7))) == []


def test_heads_are_chosen_on_other_documents():
    """Each document gets the heads that are best on the other one. A single document gets none."""
    first = record_of()
    second = record_of(attention=first.asked[0].attention.flip(1))._replace(e=E_H.flip(1))
    assert choose.chosen_on_others([first, second]) == [Chosen([0], [1]), Chosen([1], [0])]
    assert choose.chosen_on_others([first]) == [Chosen([], [])]


# --- reading and answering ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("prefix", ["", " Mara "])
def test_the_gold_likelihood(tiny, question, monkeypatch, prefix):
    """One pass over conversation and answer gives the same, with and without a prefix. Cache and counters stay.
    What does not fit into the cache does not count."""
    t = tiny.tokenizer
    monkeypatch.setattr(t, "reply_prefix", prefix)
    prompt = [*pecan.question_prompt(t, question), *pecan.node_line(t, 0, "Anna's job is baker")]
    turn = pecan.answer_turn(t, t.first("Yes"))
    gold = t.encode(f"{prefix}baker tea")
    likelihoods = []
    for fit in (len(gold), len(gold) - 1):
        cache = Cache(tiny, 1, length_of([*prompt, *turn]) + fit)
        tiny.read(cache, [prompt])
        before = list(cache.lengths), tiny.spent()
        likelihoods.append(collect.gold_likelihood(tiny, cache, "baker tea"))
        assert (cache.lengths, tiny.spent()) == before

    ids = [token for _, part in [*prompt, *turn] for token in part] + gold
    with torch.no_grad():
        hidden, _ = tiny.forward(torch.tensor([ids]), torch.arange(len(ids))[None])
    logits = tiny.logits(hidden[0]).log_softmax(-1)
    of_gold = logits[range(-len(gold) - 1, -1), gold]
    assert likelihoods == pytest.approx([of_gold.mean().item(), of_gold[:-1].mean().item()], abs=1e-5)


def test_what_is_read_without_a_search(tiny, settings, monkeypatch):
    """A way reads as many texts as fit its budget with the prompt, but at least one. BM25 reads its best eight nodes
    that fit the window. Random chunks are the same each time."""
    t = tiny.tokenizer
    question, texts = Question("q", "Who likes tea?", ["Bob"]), [f"{node.text} {n}" for n, node in enumerate(NODES)]
    used = length_of([*pecan.question_prompt(t, question.text), *pecan.answer_turn(t, t.first("Yes"))])
    last, first = (length_of(pecan.node_line(t, None, texts[i])) for i in (2, 0))
    for budget, count in ((0, 1), (used + last + first - 1, 1), (used + last + first, 2), (math.inf, 3)):
        assert collect.read(tiny, question, texts, [2, 0, 1], budget, 4)["nodes"] == [2, 0, 1][:count]

    monkeypatch.setattr(collect, "read", lambda model, question, texts, *rest: rest)
    nodes = [*(Node(1, f"text {n}" + " tea" * (n % 3)) for n in range(30)), Node(2, "tea tea tea")]
    found, again = (collect.without_search(tiny, SimpleNamespace(nodes=nodes), question, torch.arange(31.).sin(), [7],
                                           99, settings) for _ in range(2))
    assert found == again
    chunks, *limits = found.pop("random chunks")
    assert sorted(chunks) == list(range(30)) != chunks and limits == [99, 4]
    assert found == {"chunks by similarity": (sorted(range(30), key=lambda i: -np.sin(i)), 99, 4),
                     "BM25 over all nodes": ([30, *range(2, 23, 3)], settings.window - 4, 4),
                     "needed chunks": ([7], math.inf, 4)}


def test_what_is_known_of_a_bullet(tmp_path):
    """A bullet's sources are known if it has some and they are not its whole group. Each question has its own numbers.

    In a document of the embedded world, bullets lead by person. If one piece of evidence states no fact, the document
    is not from that world, and bullets lead along their heaviest edges.
    """
    nodes = [Node(1, "Bells rang."), Node(1, "Mara is Sofia's baker."), Node(1, "Mara has a goat."),
             Node(2, "Mara has a goat"), Node(2, "Mara is Sofia's baker. Mara has a goat"), Node(2, "Bells rang")]
    texts = [node.text for node in nodes[:3]]
    tensors = {"pairs": torch.tensor([[i, j] for i in (3, 4, 5) for j in (1, 2)]), "cosines": torch.ones(6),
               "e": torch.tensor([1., 2, 2, 1, 1, 2])[:, None, None].expand(6, 2, 1).contiguous(),
               **{f"{n}.c": torch.full((6,), n) for n in (0, 1)},
               **{f"{n}.question": torch.full((6, 2, 1), n) for n in (0, 1)}}
    write_sealed(tmp_path / "r", tensors, json.dumps({"nodes": list(map(vars, nodes)), "rows": [
        {"endless": {"n": n}, "ways": {}} for n in (0, 1)]}))
    for needed, known, leads in (((1, 2), {3: [2]}, ([0, 1, 0, 1, 1, 0], [0, 0, 1, 1, 1, 0])),
                                 ((2, 0), {}, ([0, 0, 1, 1, 0, 1], [1, 0, 0, 0, 0, 0]))):
        record = collect.load(tmp_path / "r", Document("d", [" ".join(texts)], [asked([texts[n]]) for n in needed]))
        assert record.nodes == nodes and record.known == known
        for n, row in enumerate(record.asked):
            assert (row.needed, row.leads.tolist(), row.endless) == ([needed[n]], leads[n], {"n": n})
            assert row.c.tolist() == row.attention[:, 0, 0].tolist() == [n] * 6


def test_the_window_of_a_search(tiny, settings):
    """A search's window is larger than the construction's if the model allows it. The paper's data sets have the
    paper's settings."""
    def of_search(model, data="own", **changes):
        return Bench(model, None, replace(settings, **changes), None, False).of_search(data)

    large, larger = (SimpleNamespace(config=SimpleNamespace(max_length=most)) for most in (2048, 4096))
    assert of_search(tiny) == settings
    assert of_search(tiny, "musique") == replace(settings, confidence=.55, answer_tokens=32)
    assert of_search(large).window == 2048 and of_search(larger, window=3000).window == 3000
    assert collect.FIXED == {name.lower(): FIXED_NODES[name] for name in ("HotpotQA", "MuSiQue")}


@pytest.mark.slow
def test_ways_of_a_short_document(tiny, settings, tmp_path, monkeypatch):
    """Every way equals a search of its graph with its settings. Stored results are reused.

    After every way, one pass over what was read gives the gold answer's likelihood. Chunks cost as many tokens as
    PECAN's search, and BM25's nodes fill the window.

    HotpotQA's settings are a short answer and GARLIC's 17 nodes. Graph and tree have the window of the construction,
    searches have a larger one.
    """
    monkeypatch.setattr(collect, "SEARCH_WINDOW", 460)
    monkeypatch.setattr(collect, "READ", 99)
    document = read_jsonl(EMBEDDED, limit=1)[0]
    question = document.questions[1]                        # all its searches read different nodes
    document.questions[:] = [replace(question, answers=["no one", *question.answers])]
    bench = Bench(tiny, TokenMean(tiny), settings, tmp_path, False)
    record = collect.collect(bench, "hotpotqa", document)
    written = bench.path("hotpotqa", document).stat().st_mtime_ns
    row, = record.asked

    graph, tree = (pecan.build(tiny, document, replace(settings, tree=tree)) for tree in (False, True))
    assert record.nodes == graph.nodes
    E = collect.edges_of(record.pairs, record.e.mean((1, 2)), len(graph.nodes))
    assert (E - graph.E.to_dense()).abs().max() < 1e-5
    assert (row.attention - seen.to_question(tiny, graph, row.question.text)).abs().max() < 1e-6
    vectors, tree_vectors = (TokenMean(tiny).encode([row.question.text, *(node.text for node in of.nodes)])
                             for of in (graph, tree))
    i, j = 1 + record.pairs.T
    assert torch.allclose(record.cosines, (vectors[i] * vectors[j]).sum(1), atol=1e-6)
    c = vectors[1:] @ vectors[0]
    assert torch.allclose(row.c, c, atol=1e-6)

    # An even share of each IP's edge to every node of its group; and 1 for every visited node that leads to the answer.
    members = record.pairs[:, 0].tolist()
    even = torch.zeros_like(E)
    for i, j in record.pairs.tolist():
        even[i, j] = 1 / members.count(i)

    class Oracle(Search):
        def next(self):
            for i in self.visited:
                self.r[i] = row.leads[i]
            return super().next()

    for name, of, kind in (("E uniform", replace(graph, E=even), Search), ("r an oracle's", graph, Oracle)):
        answer = kind(tiny, of, row.question.text, row.c, replace(settings, window=460, answer_tokens=32)).answer()
        assert row.ways[f"PECAN, {name}"]["nodes"] == answer.nodes != row.ways["PECAN"]["nodes"]

    read = set()
    for found, changes in ((row.endless, {"patience": 10 ** 6}), (row.ways["PECAN"], {}),
                           (row.ways["PECAN without attention"], {"attention": False}),
                           (row.ways["PECAN without similarity"], {"similarity": False}),
                           (row.ways["PECAN without progress control"], {"fixed_nodes": 17}),
                           (row.ways["PECAN without IP-based graph"], None)):
        of, of_c = (graph, row.c) if changes is not None else (tree, tree_vectors[1:] @ tree_vectors[0])
        of_search = replace(settings, window=460, answer_tokens=32, **changes or {})
        answer = Search(tiny, of, row.question.text, of_c, of_search).answer()
        assert (found["nodes"], found["tokens"]) == (answer.nodes, answer.tokens)
        assert found["f1"] == f1(answer.text, row.question.answers)
        assert found["p_yes"] == [step.p_yes for step in answer.trace]
        read.add(tuple(answer.nodes))
    assert len(read) == 6 and row.ways["PECAN"]["f1"] == 1, "the second gold answer"
    assert row.ways["needed chunks"]["nodes"] == row.needed

    t = tiny.tokenizer
    opening, turn = pecan.question_prompt(t, row.question.text), pecan.answer_turn(t, t.first("Yes"))
    tokens, gold = row.ways["PECAN"]["tokens"], t.encode("no one")
    budgets = {"random chunks": tokens, "chunks by similarity": tokens, "BM25 over all nodes": 460 - 32}
    for way, found in (row.ways | {"endless": row.endless}).items():
        nodes = (tree if "IP-based" in way else graph).nodes
        all_lines = [pecan.node_line(t, None, node.text) for node in nodes]
        lines = [all_lines[i] for i in found["nodes"]]
        ids = [id for _, part in [*opening, *sum(lines, []), *turn] for id in part]
        with torch.no_grad():
            logits = tiny.logits(tiny.forward(torch.tensor([ids + gold]), torch.arange(len(ids + gold))[None])[0][0])
        likelihoods = logits.log_softmax(-1)[range(len(ids) - 1, len(ids + gold) - 1), gold]
        assert found["likelihood"] == pytest.approx(likelihoods.mean().item(), abs=1e-4), way
        if "PECAN" not in way and way != "endless":         # an answer is a single word
            assert found["f1"] == f1(t.decode([logits[len(ids) - 1].argmax().item()]), row.question.answers)
        if way in budgets:
            more = max(length_of(line) for line in all_lines if line not in lines)
            assert len(ids) <= budgets[way] < len(ids) + more, way

    collect.collect(bench, "hotpotqa", document)
    path = bench.path("hotpotqa", document)
    assert path.stat().st_mtime_ns == written
    others = [bench._replace(settings=replace(settings, window=460)), bench._replace(short=True),
              bench._replace(encoder=SimpleNamespace(fingerprint="another")),
              bench._replace(model=SimpleNamespace(fingerprint="another"))]
    changed = [replace(document, passages=document.passages[1:]), *(
        replace(document, questions=[replace(row.question, **change)])
        for change in ({"text": "Who?"}, {"answers": ["x"]}, {"extra": {}}))]
    paths = {path, bench.path("own", document), *(bench.path("hotpotqa", other) for other in changed),
             *(other.path("hotpotqa", document) for other in others)}
    assert len(paths) == 10, "results of other options have other names"
    assert bench.path("hotpotqa", replace(document, id="../../victim")) == path, "an id is not part of the path"

    # Any damage gives an error of one line.
    content = path.read_bytes()
    for n in (0, 100, len(content) // 2, len(content) - 1):
        for damaged in (content[:n], content[:n] + bytes([content[n] ^ 1]) + content[n + 1:]):
            path.write_bytes(damaged)
            with pytest.raises(InputError, match=f"{path}: .*; remove it, and the document runs again"):
                collect.collect(bench, "hotpotqa", document)


# --- data and the command -------------------------------------------------------------------------------------------

def test_the_rows_that_ship():
    """Each data set has forty documents, which hold their evidence. The README has the files' checksums."""
    for name in ("hotpotqa", "musique"):
        documents = read_jsonl(DATA / f"{name}.jsonl")
        assert len(documents) == 40
        assert sha256((DATA / f"{name}.jsonl").read_bytes()).hexdigest() in (DATA / "README.md").read_text()
        for document in documents:
            assert truth.needed_chunks(document, document.passages, document.questions[0])


def test_what_the_options_choose(tmp_path, monkeypatch, settings):
    """Options choose documents and questions, or the short form. The settings are the model's own."""
    seen = []
    monkeypatch.setattr(study_command, "report", lambda records: {})
    monkeypatch.setattr(study_command, "collect", lambda bench, data, document: seen.append(
        (bench.settings, bench.short, bench.folder, data, document.id, len(document.questions))))
    documents = read_jsonl(EMBEDDED, 3)
    for option, short, counts in ((["--limit", "3"], False, [len(document.questions) for document in documents]),
                                  (["--short"], True, [2, 2])):
        seen.clear()
        assert main([*option, "--output", str(tmp_path), "--device", "cpu"]) == 0
        assert seen == [(settings, short, tmp_path, "embedded", document.id, n)
                        for document, n in zip(documents, counts)]
    with pytest.raises(SystemExit):
        main(["--short", "--limit", "3", "--output", str(tmp_path), "--device", "cpu"])


def test_what_is_read_of_the_data(tmp_path):
    """Each name has its documents. One without questions is left out. A question without evidence is an error, and so
    are two files of one name."""
    line = EMBEDDED.read_text().splitlines()[0]
    path, other = tmp_path / "d.jsonl", tmp_path / "a" / "d.jsonl"
    path.write_text(line + "\n" + json.dumps(json.loads(line) | {"id": "other", "questions": []}))
    known = {name: read_jsonl(DATA / f"{name}.jsonl") for name in ("hotpotqa", "musique")}
    found = study_command.documents_of(["musique", str(path), "hotpotqa"], None)
    assert found == known | {"d": read_jsonl(EMBEDDED, 1)}

    other.parent.mkdir()
    other.write_text(line.replace("evidence", "proof"))
    blank = json.loads(line)
    blank["questions"][1]["answers"] = [""]
    (tmp_path / "blank.jsonl").write_text(json.dumps(blank))
    for files, message in ((["--data", other], "question test-0-0: .*evidence"),
                           (["--data", tmp_path / "blank.jsonl"], "question test-0-1: answers is"),
                           (["--data", path, path], "--data: two of .* have the same name")):
        with pytest.raises(InputError, match=message):
            main([*map(str, files), "--output", str(tmp_path / "r")])


def test_a_report_by_hand(monkeypatch):
    """Documents of two data sets may have one id. Heads belong to their document."""
    def record(*items):
        return SimpleNamespace(document=SimpleNamespace(id="1"), items=items)
    monkeypatch.setattr(study_command, "chosen_on_others", lambda records: records)
    monkeypatch.setattr(study_command, "STEPS", [lambda record, chosen: chosen.items])
    assert study_command.markdown(study_command.report({
        "a": [record(("f", "x", 0), ("f", "x", 2))],
        "b": [record(("f", "x", 4), ("f", "y", 1), (steps.P_YES, "", (.2, 1)), (steps.P_YES, "", (.1, 0)))],
    })) == """| figure | way | a | b | together |
|---|---|---|---|---|
| f; n 2, 1, 3 | x | 1.0 [1.0, 1.0] | 4.0 [4.0, 4.0] | 2.0 [1.0, 4.0] |
|  | y |  | 1.0 [1.0, 1.0] | 1.0 [1.0, 1.0] |
| p_yes: area; n 2, 2 |  |  | 1.0 [1.0, 1.0] | 1.0 [1.0, 1.0] |"""


def test_the_pictures(tmp_path, monkeypatch):
    """Pictures show every way with figure and interval, the best on top, and three shares for each threshold."""
    pytest.importorskip("matplotlib")
    from study import draw
    drawn = []
    monkeypatch.setattr(draw.pyplot, "close", drawn.append)
    values = {"a": .2, "b": .9, "c": .5}
    ways = {way: figures.Figure(x, x - .1, x + .2, 4) for way, x in values.items()}
    stops = {name: {"t_p 0.5": figures.Figure(n, n - .1, n + .2, 4), "t_p 0.8": figures.Figure(n + .5, n, n + 1, 4)}
             for n, name in enumerate(draw.STOPS)}
    paths = draw.draw("d", dict.fromkeys(draw.WAYS, ways) | stops, tmp_path)
    assert [path.name for path in paths] == ["d-steps.png", "d-progress.png"] and all(map(Path.exists, paths))

    progress, = drawn[1].axes
    for axis, name in zip(drawn[0].axes, draw.WAYS, strict=True):
        order = [label.get_text() for label in axis.get_yticklabels()]
        assert axis.get_xlabel() == name and order == list("bca" if "rank" in name else "acb")
        assert axis.lines[0].get_xydata().tolist() == [[values[way], y] for y, way in enumerate(order)]
        assert [line.tolist() for line in axis.collections[0].get_segments()] == [
            [[pytest.approx(values[way] - .1), y], [pytest.approx(values[way] + .2), y]] for y, way in enumerate(order)]
    assert [label.get_text() for label in progress.get_legend().get_texts()] == list(draw.STOPS)
    assert [line.lines[0].get_xydata().tolist() for line in progress.containers] == [
        [[.5, n], [.8, n + .5]] for n in range(3)] and all(line.has_yerr for line in progress.containers)

    # Rounding may put a figure just outside its interval.
    assert draw.points([figures.Figure(.5, .6, .4, 1)])[1].tolist() == [[0], [0]]

    # A figure that the data do not have is left out.
    draw.draw("e", dict.fromkeys(draw.WAYS[1:], ways) | stops, tmp_path)
    assert [axis.get_xlabel() for axis in drawn[2].axes] == list(draw.WAYS[1:])


@pytest.mark.slow
def test_the_short_form(tmp_path, capsys):
    """python -m study --short prints all figures for two data sets and both together, and draws two pictures each."""
    names = ["one", "two"]
    for name, line in zip(names, EMBEDDED.read_text().splitlines()):
        (tmp_path / f"{name}.jsonl").write_text(line)
    files = [str(tmp_path / f"{name}.jsonl") for name in names]
    assert main(["--short", "--data", *files, "--output", str(tmp_path), "--device", "cpu", "--pictures"]) == 0

    printed, printed_err = capsys.readouterr()
    for text in ("| figure | way | one | two | together |", "| edges: precision at 1, level 2; n ",
                 "| r: area over level 2; n ", "|  | z + c | ", "| p_yes: area; n ", "| F1; n 2, 2, 4 | PECAN | "):
        assert text in printed
    assert "one: test-0 is done\n" in printed_err
    assert set(printed.split("picture: ")[1:]) == {
        f"{tmp_path / name}-{what}.png\n" for name in (*names, "together") for what in ("steps", "progress")}
    assert len(list(tmp_path.glob("*.png"))) == 6
