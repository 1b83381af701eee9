"""The bench: each measure by hand, what is captured against the program itself, and a short run."""
import json
import math
import shutil
from dataclasses import replace
from hashlib import sha256
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from oracle import ids_and_spans
from support.heads import head_weights, pairs_of, read_heads

import llama
import pecan
from core.files import InputError
from data import EMBEDDED, Document, Question, read_jsonl
from llama import Cache, Llama
from pecan import Graph, Node, Search, edge_matrix
from study import answers, capture, choices, edges, figures, progress, reading, retrieval, searches, truth
from study import settings as candidates
from study.__main__ import documents_of, main
from study.record import Asked, Record, best, best_single, how_many, on_sources
from study.report import report
from study.rows import DATA, hotpotqa, musique
from study.run import Bench
from support.trace import listening
from tiny.facts import facts_in

ROOT = DATA.parents[1]


@pytest.fixture(scope="module")
def built(tiny, document, settings):
    return capture.construct(tiny, document, settings)


def stated(text: str) -> set:
    """The facts that a text of the embedded world states."""
    return facts_in([text])


# --- what is captured -----------------------------------------------------------------------------------------------

def test_heads_of_a_construction_give_its_graph(built, graph):
    """The mean over layers and heads of what was captured is E."""
    E = choices.edges_of(built.pairs, built.e.mean((1, 2)), len(graph.nodes))
    assert [node.text for node in built.graph.nodes] == [node.text for node in graph.nodes]
    assert (E - graph.E.to_dense()).abs().max() < 1e-5
    assert built.e.shape[1:] == (6, 4)


def test_rows_that_end_at_different_times(tiny, document, settings):
    """In these windows the second of a batch goes on after the first has ended, so it moves to another place."""
    found = capture.construct(tiny, document, replace(settings, window=420))
    E = choices.edges_of(found.pairs, found.e.mean((1, 2)), len(found.graph.nodes))
    assert (E - found.graph.E.to_dense()).abs().max() < 1e-5


def test_heads_by_hand(tiny, document, settings, spy, monkeypatch):
    """Each head's e' of every bullet of one window, with and without the first token, from the attention itself."""
    calls, tokens = spy("attention"), []
    edge_weights = pecan.edge_weights
    monkeypatch.setattr(pecan, "edge_weights", lambda a, places: tokens.append(places) or edge_weights(a, places))
    found = capture.construct(tiny, Document("short", document.passages[:5]), settings)
    chunks = {i: node.text for i, node in enumerate(found.graph.nodes) if node.level == 1}
    _, spans = ids_and_spans(pecan.summary_prompt(tiny.tokenizer, chunks))

    weights = [torch.stack([result[1][0, :, :, 0].flatten(0, 1) for _, result in calls[start:start + 6]])
               for start in range(0, len(calls), 6)]                      # of each token: [L, H, P]
    for i, places in enumerate(tokens, len(chunks)):
        for j in chunks:
            row = (found.pairs == torch.tensor([i, j])).all(1)
            a = torch.stack([weights[x][:, :, list(spans[j])].mean(2) for x in places])
            rest = torch.stack([1 - weights[x][:, :, 0] for x in places])
            assert (found.e[row][0] - a.mean(0)).abs().max() < 1e-6
            assert (found.without_sink[row][0] - (a / rest).mean(0)).abs().max() < 1e-5
    assert len(tokens) == len(found.graph.nodes) - len(chunks) > 1


def test_attention_of_other_points_is_noticed(built):
    graph = built.graph
    first = sum(node.level == 1 for node in graph.nodes)
    window = graph.E.to_dense()[first].nonzero().flatten().tolist()
    with pytest.raises(AssertionError, match="does not give E"):
        capture.of_pairs(graph, [(window, torch.rand(2, 6, 4, len(window)))] * (len(graph.nodes) - first))


def test_r_of_heads_is_that_of_the_search(tiny, built, question, similarity, settings):
    """For the top level and for the first node that is read after it."""
    search = Search(tiny, built.graph, question, similarity(question), settings)
    search.start()
    search.next()
    a = capture.to_question(tiny, built.graph, question).mean((1, 2))
    for step in search.trace:
        assert abs(step.position * a[step.node].item() - step.r) < 1e-6


def test_the_query_after_the_nodes(tiny, built, question):
    """By one pass over the whole prompt, for two nodes of the top level and one that is read after it."""
    graph, t = built.graph, tiny.tokenizer
    a = capture.from_question(tiny, graph, question)
    top = graph.top_level
    for read, node in ((top[:1], top[0]), (top, top[-1]), ([*top, 0], 0)):
        prompt = [(None, t.frame.open + t.encode(pecan.ASK[0].split("\n\n")[0] + pecan.ASK[1]))]
        for i in read:
            prompt += pecan.node_line(t, i, graph.nodes[i].text)
        asked = t.encode(question)
        prompt += [(None, t.encode("\n\nQuestion:\n")), ("q", asked)]

        ids = [token for _, part in prompt for token in part]
        cache = Cache(tiny, 1, len(ids))
        cache.register(0, prompt)
        start, end = cache.nodes[0][node]
        averaging = torch.zeros(1, len(ids), 1)
        averaging[0, start:end] = 1 / (end - start)
        mask = torch.ones(1, len(ids), len(ids)).tril().bool()
        with torch.no_grad():
            _, mean = tiny.forward(torch.tensor([ids]), torch.arange(len(ids))[None], mask, cache, averaging)
        assert abs(mean[0, -len(asked):, 0].mean() - a[node].mean()) < 1e-6


def test_watching_leaves_the_model_as_it_was(tiny, built):
    before = llama.attention, Llama.append, Cache.keep_rows
    with pytest.raises(KeyError), capture.watching(print):
        raise KeyError
    assert (llama.attention, Llama.append, Cache.keep_rows) == before


def test_the_gold_likelihood(tiny, question):
    """By one pass over conversation and answer; the cache and the count of FLOPs stay as they were."""
    t = tiny.tokenizer
    prompt = [*pecan.question_prompt(t, question), *pecan.node_line(t, 0, "Anna's job is baker")]
    turn = pecan.answer_turn(t, t.first("Yes"))
    gold = t.encode("baker") + t.encode(" tea")
    cache = Cache(tiny, 1, 512)
    tiny.read(cache, [prompt])
    before = list(cache.lengths), tiny.flops
    likelihood = reading.gold_likelihood(tiny, cache, "baker tea")
    assert (cache.lengths, tiny.flops) == before

    ids = [token for _, part in [*prompt, *turn] for token in part] + gold
    with torch.no_grad():
        hidden, _ = tiny.forward(torch.tensor([ids]), torch.arange(len(ids))[None])
        logits = tiny.logits(hidden[0]).log_softmax(-1)
    wanted = [logits[len(ids) - len(gold) - 1 + n, token].item() for n, token in enumerate(gold)]
    assert len(gold) == 2 and abs(likelihood - sum(wanted) / 2) < 1e-5


def test_rows_beyond_the_paper(tiny, built, document, similarity, settings, question):
    """With chosen heads, what is read is what a search reads in the graph that these heads build."""
    heads, asked = "1-0,1-3", Question("q", question, ["tea"])
    c = similarity(question)
    E = choices.weighted_edges(built.pairs, built.e, pairs_of(heads), len(built.graph.nodes))
    found = reading.extensions(tiny, built.graph, replace(built.graph, E=E), heads, asked, c, settings)

    program = replace(settings, edge_heads=heads, relevance_heads=heads)
    chosen = pecan.build(tiny, document, program)
    assert (chosen.E.to_dense() - E).abs().max() < 1e-5
    for name, changed in (("PECAN, chosen heads (not in the paper)", program),
                          ("PECAN, chosen heads, without similarity", replace(program, similarity=False))):
        answer = Search(tiny, chosen, question, c, changed).answer()
        assert (found[name]["nodes"], found[name]["answer"]) == (answer.nodes, answer.text)
        assert found[name]["verdicts"] == [step.verdict for step in answer.trace]
    assert len(found) == 3


def test_the_window_of_a_search(tiny, settings):
    """Larger than that of the construction if the model is made for it; t_p is the paper's for its data sets."""
    def of_search(model, data="own", **changes):
        return Bench(model, None, replace(settings, **changes), None, {}).of_search(data)

    large = SimpleNamespace(config=SimpleNamespace(max_length=4096))
    assert of_search(tiny) == settings and of_search(tiny, "musique").confidence == 0.55
    assert of_search(large).window == 2048 and of_search(large, window=3000).window == 3000


def test_r_above_its_mean(tiny, built, question, similarity, settings):
    """z of every choice comes from max(0, r - mean over S); the r of each node itself stays as it was."""
    seen = []
    search = reading.AboveMean(tiny, built.graph, question, similarity(question), settings, gold="tea")
    with listening(lambda what, values: seen.append(values["z"].clone()) if what == "choice" else None):
        search.start()
        for n in range(3):
            S = list(search.visited)
            r = torch.tensor([step.r for step in search.trace], dtype=torch.float64)
            search.next()
            above = torch.zeros(len(built.graph.nodes), dtype=torch.float64)
            above[S] = (r - r.mean()).clamp(min=0)
            assert (seen[n] - built.graph.E.to_dense().T @ above).abs().max() < 1e-12
    assert search.r[search.visited].tolist() == [step.r for step in search.trace]


def test_other_choices_of_the_next_node(tiny, built, question, similarity, settings):
    """Without r, E or both: what is read follows from the graph, the visited nodes, and chance."""
    graph, c, V = built.graph, similarity(question), len(built.graph.nodes)
    alone = replace(settings, confidence=0.999)
    uniform = replace(graph, E=choices.edges_of(built.pairs, torch.ones(len(built.pairs)), V))
    chance = torch.rand(V, generator=torch.Generator().manual_seed(0))
    seen = []
    with listening(lambda what, values: seen.append(values["z"].clone()) if what == "choice" else None):
        found = reading.next_nodes(tiny, graph, uniform, Question("q", question, ["tea"]), c, chance, alone)

    # z is the sum of the edges from the visited nodes; what is read has the most of it.
    of_r = found["PECAN without similarity, r uniform"]["nodes"]
    start = len(graph.top_level)
    for n in range(start, start + 3):
        assert (seen[n - start] - graph.E.to_dense()[of_r[:n]].sum(0)).abs().max() < 1e-12
        left = [i for i in range(V) if i not in of_r[:n]]
        assert of_r[n] == max(left, key=lambda i: (seen[n - start][i], -i))

    of_E = Search(tiny, uniform, question, c, replace(alone, similarity=False)).answer()
    assert found["PECAN without similarity, E uniform"]["nodes"] == of_E.nodes != of_r
    others = [i for i in range(V) if i not in graph.top_level]
    by_chance = found["PECAN, next node at random"]["nodes"][start:]
    assert by_chance[:5] == sorted(others, key=lambda i: -chance[i])[:5]


# --- truth ----------------------------------------------------------------------------------------------------------

def graph_of(texts, edges, document="d") -> Graph:
    """A graph from (level, text) and edges."""
    nodes = [Node(level, text) for level, text in texts]
    return Graph(nodes, edge_matrix(edges, len(nodes)), document, "m", {})


REAL = graph_of([(1, "Ann A. Ann was born in"), (1, "Rome in 1901."), (1, "Bob Bob likes tea."), (2, "Ann's birth"),
                 (2, "Bob's tea"), (3, "Both")],
                [(3, 0, .6), (3, 1, .4), (4, 1, .3), (4, 2, .7), (5, 3, .5), (5, 4, .5)])


def asked(evidence, id="q"):
    return Question(id, "Who?", ["Rome"], {"evidence": evidence})


def test_a_post_that_was_not_read():
    """By town and job a fact counts once the post was read, by name without it."""
    texts = ["Otto has a goat", "Lima's cook has a goat.", "Otto is Lima's cook"]
    needs = Question("q", "?", ["goat"], {"evidence": [f"{texts[2]}.", texts[1]], "facts": texts[:1]})
    read = [[0], [1], [2], [1, 2]]
    assert [truth.enough(needs, texts, nodes, [], stated) for nodes in read] == [True, False, False, True]


def test_needed_chunks():
    """A sentence that a cut went through needs both chunks; one that is not there is refused."""
    document = Document("d", ["Ann A.\nAnn was born  in Rome in 1901.", "Bob\nBob likes tea."])
    assert truth.needed_chunks(document, REAL, asked(["Ann was born in Rome in 1901."])) == [0, 1]
    assert truth.needed_chunks(document, REAL, asked(["Bob likes tea.", "in 1901."])) == [1, 2]
    assert truth.needed_chunks(document, REAL, asked(["Ann A."])) == [0]
    with pytest.raises(InputError, match="question q: its evidence is not in the document: 'Eve"):
        truth.needed_chunks(document, REAL, asked(["Eve sings."]))


def test_what_leads_where():
    """By the heaviest edge; of equal ones the one to the later node."""
    assert truth.leading(REAL, asked([]), [0], None) == [True, False, False, True, False, False]
    assert truth.leading(REAL, asked([]), [2], None) == [False, False, True, False, True, True]
    world = graph_of([(1, "Mara is Sofia's baker."), (1, "Otto is Lima's cook. Mara has a goat."),
                      (2, "Mara is Sofia's baker"), (2, "Otto is Lima's cook")], [(2, 0, 1.0), (3, 1, 1.0)])
    needs = asked(["Mara has a goat."])
    assert truth.leading(world, needs, [1], stated) == [False, True, True, False]


def test_sources_of_a_bullet():
    """In the world by facts; elsewhere by words, and only if they point to one node."""
    assert truth.sources("Mara is Sofia's baker",
                         ["Mara is Sofia's baker.", "Mara has a goat.", "Bells rang. Mara is Sofia's baker."],
                         stated) == [0, 2]
    below = ["Victoria Falls is on the Zambezi River in Zambia.", "The Bubye River is in Zimbabwe."]
    assert truth.sources("Falls of the Zambezi: Victoria, Zambia", below, None) == [0]
    assert truth.sources("Falls and Zambezi River", below, None) == [], "two words are not enough, River is in both"
    assert truth.sources("Victoria Falls, Zambezi: of Bubye, Zimbabwe", below, None) == [], "no clear first"


def test_the_embedded_world_has_exact_truth():
    """The needed facts of every question are stated by its evidence, and by its chunks together."""
    for document in read_jsonl(EMBEDDED, limit=3):
        facts = truth.facts_reader(document)
        assert facts is not None
        graph = graph_of([(1, passage) for passage in document.passages], [])
        for question in document.questions:
            needed = truth.needed_chunks(document, graph, question)
            texts = [node.text for node in graph.nodes]
            assert truth.enough(question, texts, needed, needed, facts)
            assert not truth.enough(question, texts, needed[1:], needed, facts)
    assert truth.facts_reader(read_jsonl(DATA / "musique.jsonl", limit=1)[0]) is None


def test_enough():
    texts = [None, "Mara's friend is Otto", "Otto has a goat. Otto is Lima's cook."]
    needs = asked(["Mara trusts Otto.", "Otto keeps a goat."])
    assert not truth.enough(needs, texts, [1], [7], stated)
    assert truth.enough(needs, texts, [2, 1], [7], stated), "facts count, chunks do not"
    assert truth.enough(needs, texts, [3, 7], [7], None)
    assert not truth.enough(needs, texts, [3], [3, 7], None)


# --- measures -------------------------------------------------------------------------------------------------------

def test_the_area_under_the_curve():
    assert figures.area(np.array([.9, .8, .3, .1]), [1, 0, 1, 0]) == 0.75
    assert figures.area(np.array([.5, .5, .1]), [1, 0, 0]) == 0.75, "a tie counts one half"
    assert math.isnan(figures.area(np.array([.5, .1]), [1, 1]))
    assert figures.ranks(np.array([3., 1., 3.])).tolist() == [2.5, 1.0, 2.5]


def test_calibration():
    """Two bins: .75 claimed and .5 true for two items (gap .25), .1 claimed and 1 true for one (gap .9)."""
    items = np.array([(.75, 1), (.75, 0), (.1, 1)])
    assert abs(figures.calibration_error(items) - (2 / 3 * .25 + 1 / 3 * .9)) < 1e-12
    assert figures.calibration_error(np.array([(1.0, 1), (0.0, 0)])) == 0


def test_intervals_are_over_documents():
    """All items of a document are drawn together: two documents give three means, not many."""
    found = figures.figure([[1.0] * 50, [0.0] * 50])
    assert (found.value, found.low, found.high, found.documents, found.n) == (.5, 0, 1, 2, 100)
    assert figures.figure([[], []]) is None
    assert figures.figure([[1.0, 1.0, 1.0], [0.0]]).value == .75, "each item weighs the same"

    # Of a hundred documents the interval is nearly that of a normal distribution, 1.96 standard errors to each side.
    found = figures.figure([[float(d)] for d in range(100)])
    assert found.high - found.low == pytest.approx(2 * 1.96 * np.std(range(100)) / 10, rel=0.05)

    # Means have a way of their own, from sums; any other statistic gets the items.
    documents = [[d / 9] * (d + 1) for d in range(9)]
    assert figures.figure(documents) == pytest.approx(figures.figure(documents, lambda items: items.mean()))


def test_edges_by_hand():
    """Two layers of one head; a window of two nodes and a bullet: e' .1 .3 and .5 .1, mean .3 .2."""
    pairs = torch.tensor([[2, 0], [2, 1]])
    e = torch.tensor([[[.1], [.5]], [[.3], [.1]]])
    raw = choices.Attended(pairs, e, e * 2, torch.tensor([[1., 0], [0, 1], [.6, .8]]), torch.tensor([10, 30, 5]))
    found = {name: E[2, :2].tolist() for name, E in choices.edge_choices(raw, choices.Chosen(
        [(0, 0), (1, 0)], [(1, 0)])).items()}
    wanted = {"the paper": [.6, .4], "uniform": [.5, .5], "similarity": [.6 / 1.4, .8 / 1.4],
              "upper half of the layers": [5 / 6, 1 / 6], "chosen heads": [.6, .4],
              "half of the chosen heads": [.25, .75], "the best heads one by one": [5 / 6, 1 / 6],
              "sum over the node, by characters": [3 / 9, 6 / 9],
              "without the first token's sink": [.6, .4]}
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        assert np.allclose(found[name], values, atol=1e-6), name


QUESTION = np.array([[[.1, .1]], [[.2, .4]], [[.1, .3]]])              # a_h of three nodes, one layer of two heads
ASKED = SimpleNamespace(question=QUESTION, after=QUESTION / 2, empty=np.full((3, 1, 2), .1),
                        leads=np.array([0., 1., 0.]), c=np.array([.3, -.1, .2]))


def test_relevance_by_hand():
    """S = (1, 2): the means .3 and .2, the positions 2 and 3."""
    found = {name: relevance(ASKED, [1, 2], choices.position([1, 2]), choices.Chosen([(0, 1)], [(0, 0)]))
             for name, relevance in choices.RELEVANCE.items()}
    wanted = {"the paper": [.6, .6], "without position": [.3, .2], "uniform": [1, 1],
              "query after the nodes, without position": [.15, .1], "minus that of \"N/A\"": [.4, .3],
              "divided by that of \"N/A\"": [3, 2], "above its mean": [0, 0], "squared": [.36, .36],
              "to the fourth power": [.6 ** 4, .6 ** 4], "chosen heads": [.8, .9],
              "the best heads one by one": [.4, .3],
              "chosen heads, above its mean": [0, .05], "an oracle's": [1, 0]}
    for name, values in wanted.items():
        assert np.allclose(found.pop(name), values), name
    assert list(found) == ["heads weighted by concentration"]


def test_concentrated_heads():
    """Head 0 has shares 2/3 and 1/3 over S, head 1 4/7 and 3/7; weights are their squared divergences."""
    def divergence(p):
        return sum(x * math.log(2 * x) for x in p)

    shares = [(2 / 3, 1 / 3), (4 / 7, 3 / 7)]
    weights = [divergence(p) ** 2 for p in shares]
    wanted = [sum(w * p[n] for w, p in zip(weights, shares)) / sum(weights) for n in range(2)]
    assert np.allclose(choices.concentrated(QUESTION[[1, 2]]), wanted)
    assert np.allclose(choices.concentrated(np.ones((4, 2, 3))), [.25] * 4), "all heads alike and flat"


def test_a_replay_chooses_as_the_search_does(tiny, built, question, similarity, settings):
    """The first choice is the program's: r and E by the paper, z and c joined as the paper has it, and each alone."""
    c = similarity(question)
    E = choices.edges_of(built.pairs, built.e.mean((1, 2)), len(built.graph.nodes)).numpy()
    raw = SimpleNamespace(question=capture.to_question(tiny, built.graph, question).numpy(), c=c.numpy())
    for join, changes in (("z + c", {}), ("z", {"similarity": False})):
        search = Search(tiny, built.graph, question, c, replace(settings, **changes))
        search.start()
        top = list(search.visited)
        search.next()
        score = retrieval.by_attention(raw, E, choices.paper, retrieval.JOINED[join], ())
        every = np.ones(len(E), bool)
        assert retrieval.replay(score, top, [search.visited[-1]], every) == [search.visited[-1]]


def test_joining_by_hand():
    z, c = np.array([3., 1., 0.]), np.array([-.5, .5, .5])
    found = {name: join(z, c).round(6).tolist() for name, join in retrieval.JOINED.items()}
    assert found["z + c"] == [.75, .75, .5] and found["z"] == [3, 1, 0]
    assert found["z + c by maximum"] == [.75, .5, .5]
    assert np.allclose(found["z + c by ranks"], [1 / 61 + 1 / 63, 1 / 62 + 1 / 61.5, 1 / 63 + 1 / 61.5], atol=1e-6)


def test_the_order_of_a_replay():
    """Ties go to the lower id, only candidates are read, and the last one is the last that was needed."""
    score, every = retrieval.constant([.1, .5, .5, 9]), np.ones(4, bool)
    assert retrieval.replay(score, [3], [0], every) == [1, 2, 0]
    assert retrieval.replay(score, [3], [0], np.array([True, False, True, True])) == [2, 0]
    assert retrieval.replay(score, [3], [1], every) == [1] and retrieval.replay(score, [], [2, 1], every) == [3, 1, 2]


def record_of(asked_rows, raw=None, known=None) -> Record:
    return Record(Document("d", ["-"]), None, REAL, raw, known or {}, asked_rows)


def row_of(search=None, ways=None, needed=(0, 2)) -> Asked:
    return Asked(asked([]), None, None, None, None, list(needed), None, search or {}, ways or {})


def test_retrieval_by_hand(monkeypatch):
    """Needed are chunks 0 and 2; read are 4, 2, 3, 1, 0: their places among the chunks are 3 and 1."""
    monkeypatch.setattr(retrieval, "orders", lambda *_: {
        "x": [4, 2, 3, 1, 0], "random": [0, 1, 2, 3, 4], "c": [2, 0, 1, 3, 4]})
    monkeypatch.setattr(retrieval, "edge_choices", lambda *_: {})
    table = figures.Table("")
    retrieval.add_retrieval(table, record_of([row_of()]), [], [])
    found = {column: value.value for column, value in table.figures()["x"].items()}
    assert found == {"rank": 2, "recall at 1": .5, "recall at 2": .5, "recall at 5": 1, "recall at 10": 1, "steps": 5,
                     "steps - random's": 2, "steps - c's": 3}


SEARCHED = {"nodes": [5, 0, 1, 2, 3], "first check": 0, "p_yes": [.2, .9, .4, .6, .7],
            "likelihood": [-5, -4, -3, -1, -2]}


def test_where_a_search_stops():
    assert progress.stop([.2, .9, .4, .6], .5, 1) == 1 and progress.stop([.2, .9, .4, .6], .5, 2) == 3
    assert progress.stop([.2, .9], .5, 2) is None and progress.stop([.5], .5, 1) is None


def test_progress_by_hand():
    """Enough is read at the fourth check (chunks 0 and 2). The first Yes at t_p .5 is the second: too early."""
    table, sweep = figures.Table(""), figures.Table("")
    record = record_of([row_of(SEARCHED)])
    assert progress.enough_after(record, record.asked[0]) == [False, False, False, True, True]
    progress.add_progress(table, sweep, record)
    found = table.figures()
    assert abs(found["p_yes"]["area"].value - 4 / 6) < 1e-12
    assert found["gold likelihood"]["before enough was read"].value == -3
    assert found["gold likelihood"]["when enough was read"].value == -1

    stops = {row: {column: value.value for column, value in columns.items()}
             for row, columns in sweep.figures().items()}
    assert len(stops) == len(progress.THRESHOLDS) * len(progress.PATIENCE) == 32
    assert stops["t_p 0.5, t_n 1"] == {"too early": 1, "too late": 0, "never": 0, "nodes": 2, "likelihood": -4}
    assert stops["t_p 0.5, t_n 2"] == {"too early": 0, "too late": 0, "never": 0, "nodes": 4, "likelihood": -1}
    assert stops["t_p 0.5, t_n 3"] == {"too early": 0, "too late": 1, "never": 0, "nodes": 5, "likelihood": -2}
    assert stops["t_p 0.7, t_n 2"] == {"too early": 0, "too late": 1, "never": 1, "nodes": 5, "likelihood": -2}
    assert stops["t_p 0.98, t_n 1"] == {"too early": 0, "too late": 1, "never": 1, "nodes": 5, "likelihood": -2}


@pytest.mark.parametrize("row, step", [
    ({"f1": .5, "nodes": [], "end": "yes"}, "right"),
    ({"f1": 0, "nodes": [5, 0, 2], "end": "yes"}, "read and answered wrong"),
    ({"f1": 0, "nodes": [5, 2], "end": "yes"}, "lost in the summaries"),
    ({"f1": 0, "nodes": [5, 0], "end": "yes"}, "stopped early"),
    ({"f1": 0, "nodes": [5, 0], "end": "window"}, "not retrieved"),
])
def test_where_an_answer_went_wrong(row, step):
    """The top node leads to chunk 2 by its heaviest edges (of equal ones the later), so chunk 0 is lost."""
    assert answers.step_of(record_of([]), row_of(), row) == step


def test_f1_by_kind_of_question():
    """Each way and each kind has its own mean; a question without a kind is in none."""
    def of_kind(kind, pecan, bm25):
        extra = {"evidence": [], **({"kind": kind} if kind else {})}
        ways = {name: {"f1": f1, "likelihood": 0, "tokens": 0, "flops": 0, "nodes": [], "end": "yes"}
                for name, f1 in (("PECAN", pecan), ("BM25", bm25))}
        return row_of(ways=ways)._replace(text=Question("q", "?", ["x"], extra))

    kinds = figures.Table("")
    record = record_of([of_kind("comparison", 1, 0), of_kind("bridge", .5, 1), of_kind("bridge", 0, 1),
                        of_kind(None, 1, 1)])
    answers.add_answers(figures.Table(""), kinds, figures.Table(""), record)
    found = {way: {kind: (value.value, value.n) for kind, value in columns.items()}
             for way, columns in kinds.figures().items()}
    assert found == {"PECAN": {"comparison": (100, 1), "bridge": (25, 2)},
                     "BM25": {"comparison": (0, 1), "bridge": (100, 2)}}
    assert list(found["PECAN"]) == ["comparison", "bridge"], "in the order of the data"


def test_what_z_is_worth():
    """Differences are paired: z gains 100 and 0 over chance, 50 and -50 over a uniform r."""
    def ways(**f1):
        return row_of(ways={searches.WAYS[name]: {"f1": value, "nodes": [1] * 3} for name, value in f1.items()})

    table = figures.Table("")
    rows = [{"random": 0, "z": 1, "z, r uniform": .5, "c": .5}, {"random": .5, "z": .5, "z, r uniform": 1, "c": .5}]
    searches.add_searches(table, record_of([ways(**row) for row in rows]))
    assert dict(table.items["z", "over random"]) == {"d": [100, 0]}
    assert dict(table.items["z", "over z, r uniform"]) == {"d": [50, -50]}
    assert dict(table.items["c", "over random"]) == {"d": [50, 0]}
    assert table.figures()["z"]["F1"].value == 75 and table.figures()["random"]["nodes"].value == 3
    assert not {("z", "over z, E uniform"), ("random", "over random"), ("c", "over z, r uniform")} & set(table.items)


def test_heads_are_chosen_by_their_mass():
    """Bullet 3 comes from 0: head 0 has 3/4 of its attention there, head 1 a quarter; bullet 4 has no known source."""
    pairs = torch.tensor([[3, 0], [3, 1], [4, 1], [4, 2]])
    e = torch.tensor([[.3, .1], [.1, .3], [.0, .9], [.1, .0]])[:, None]
    record = record_of([], choices.Attended(pairs, e, e, torch.zeros(6, 1), torch.zeros(6)), {3: [0], 4: []})
    right, all_ = on_sources(record)
    assert np.allclose(right, [[[.3, .1]]]) and np.allclose(all_, [[[.4, .4]]])
    assert best([(right, all_)], 1) == [(0, 0)] and best([(right[..., ::-1], all_)], 2) == [(0, 1)]

    # Half of head 2's attention is right. With head 0 it is .58 (14 of 20, 5 of 11), with head 1 too .67 (14 of 21).
    right, all_ = np.array([[[9, 0, 5]], [[0, 9, 5]]]), np.array([[[10, 1, 10]], [[1, 10, 10]]])
    assert best([(right, all_)], 3) == [(0, 2), (0, 0), (0, 1)] and best([(right, all_)], 2) == [(0, 2), (0, 0)]
    assert best([(right[:1], all_[:1])], 3) == [(0, 0)], "no other head raises .9"
    assert best([(right[:0], right[:0])], 1) == [(0, 0), (0, 1), (0, 2)], "nothing is known"

    # Each on its own: .45 for heads 0 and 1, .5 for head 2.
    assert best_single([(right, all_)], 2) == [(0, 2), (0, 0)] and best_single([(right[1:], all_[1:])], 1) == [(0, 1)]
    assert best_single([(right[:0], right[:0])], 1) == [(0, 0), (0, 1), (0, 2)]
    assert (how_many(6, 4), how_many(30, 9), how_many(1, 2)) == (4, 10, 1)


def test_settings_by_hand():
    """Three chunks, two points: one has a heaviest source, the other two of equal weight; two bullets were repeats."""
    nodes = [Node(level, "") for level in (1, 1, 1, 2, 2)]
    E = edge_matrix([(3, 0, .6), (3, 1, .4), (4, 1, .5), (4, 2, .5)], 5)
    table = figures.Table("")
    candidates.add_graph(table, "row", "d", Graph(nodes, E, "", "", {}, flops=3 * 10 ** 12, repeats=2, loops=2))
    row = {column: (value.value, value.n) for column, value in table.figures()["row"].items()}
    assert row == {"coverage": (1 / 3, 3), "repeats": (1 / 2, 4), "loops": (2 / 3, 1), "points": (2 / 3, 1),
                   "TFLOPs": (3, 1)}
    assert edges.covered(torch.zeros(1, 1)) == set()


# --- data and the command -------------------------------------------------------------------------------------------

def test_the_rows_that_ship():
    """Forty of each, every piece of evidence in its document; the checksums are those in the README."""
    for name in ("hotpotqa", "musique"):
        documents = read_jsonl(DATA / f"{name}.jsonl")
        assert len(documents) == 40
        assert sha256((DATA / f"{name}.jsonl").read_bytes()).hexdigest() in (DATA / "README.md").read_text()
        for document in documents:
            whole = truth.bare(" ".join(document.passages))
            assert all(truth.bare(s) in whole for s in document.questions[0].extra["evidence"])


def test_evidence_of_official_rows():
    row = {"_id": "x", "question": "Who?", "answer": "Ann", "type": "bridge", "supporting_facts": [["B", 1]],
           "context": [["A", ["One."]], ["B", ["Two.", " Ann did."]]]}
    assert hotpotqa(row)["questions"][0]["evidence"] == ["Ann did."]
    assert hotpotqa(row)["passages"] == ["A\nOne.", "B\nTwo. Ann did."]
    assert hotpotqa({**row, "supporting_facts": [["B", 2]]}) is None

    row = {"id": "2hop__1", "question": "Who?", "answer": "Ann", "answer_aliases": ["Ann"], "paragraphs": [
        {"idx": 1, "title": "B", "paragraph_text": "First. Then ANN came. Ann left."},
        {"idx": 0, "title": "A", "paragraph_text": "Nothing of it. At all."}], "question_decomposition": [
        {"answer": "Bob", "paragraph_support_idx": 0}, {"answer": "Ann", "paragraph_support_idx": 1}]}
    assert musique(row)["questions"][0]["evidence"] == ["Nothing of it. At all.", "Then ANN came."]
    assert musique(row)["passages"][0] == "A\nNothing of it. At all."


@pytest.mark.slow
def test_the_short_form(tmp_path, capsys):
    """python -m study --short: tables with intervals; a second run reads what the first one left."""
    assert main(["--short", "--output", str(tmp_path), "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert printed == (tmp_path / "report.md").read_text() + "\n" and "| z + c | " in printed
    for title in ("Edges", "Relevance", "Retrieval, replayed", "Progress control", "Thresholds", "Answers",
                  "By kind of question (F1)", "Bullets and the truth", "Searches and the truth"):
        assert f"## embedded: {title}" in printed
    assert "| F1 of PECAN, top; n 2 |" in printed and "Choosing the next node" not in printed
    heads = next(tmp_path.glob("embedded/*/heads.safetensors"))
    written = heads.stat().st_mtime_ns

    main(["--short", "--report", "--output", str(tmp_path), "--device", "cpu", "--pictures"])
    assert heads.stat().st_mtime_ns == written
    assert {path.name for path in tmp_path.glob("*.png")} == {"embedded-steps.png", "embedded-progress.png"}

    # Two data sets are together what one with all their documents is.
    first, second = documents_of(["embedded"], 2, 2)["embedded"]
    (tmp_path / "other").mkdir()
    (tmp_path / "embedded" / second.id).rename(tmp_path / "other" / second.id)
    alone = json.loads((tmp_path / "report.json").read_text())
    split = report(tmp_path, {"embedded": [first], "other": [second]}, alone)["data"]
    assert split["together"] == alone["data"]["embedded"] != split["embedded"]


@pytest.mark.slow
def test_heads_of_the_embedded_model(tiny, tmp_path, capsys):
    """python -m study heads: on documents of another seed, heads of one layer carry both, by far."""
    folder = tmp_path / "model"
    shutil.copytree(tiny.folder, folder, ignore=shutil.ignore_patterns("__pycache__", "*.jsonl", "heads.json"))
    main(["heads", "--model", str(folder), "--output", str(tmp_path / "out"), "--short", "--device", "cpu"])
    assert all(head.startswith("1-") for heads in read_heads(folder / "heads.json") for head in heads.split(","))
    assert "in 2 documents of embedded that no table reports" in capsys.readouterr().out

    reported = {document.hash for document in read_jsonl(EMBEDDED)}
    assert not reported & {document.hash for document in documents_of(["embedded"], None, None, True)["embedded"]}


@pytest.mark.parametrize("name, layers, heads", [
    ("Llama-3.1-8B-Instruct", 32, 32), ("Llama-3.1-8B-Instruct.LongMemEval", 32, 32),
    ("Llama-3.2-3B-Instruct", 28, 24), ("Llama-3.2-1B-Instruct", 16, 32)])
def test_the_published_lists(name, layers, heads):
    path = DATA.parent / "chosen" / f"{name}.json"
    edges, relevance = read_heads(path)
    assert edges == relevance and (head_weights(edges, layers, heads) > 0).sum() == 16
    assert {"source", "licence", "note"} < json.loads(path.read_text()).keys()


def test_heads_are_chosen_on_rows_that_no_table_reports():
    for name in ("hotpotqa", "musique"):
        reported, others = (documents_of([name], None, None, for_heads)[name] for for_heads in (False, True))
        assert (len(reported), len(others)) == (30, 10)
        assert not {document.hash for document in reported} & {document.hash for document in others}


@pytest.mark.slow
def test_settings_of_the_embedded_model(tmp_path, capsys, monkeypatch):
    """python -m study settings: a row for each candidate that the model can hold, on documents of another seed."""
    arguments = ["settings", "--limit", "1", "--output", str(tmp_path), "--device", "cpu"]
    assert main(arguments) == 0
    (chunk, window), *larger = candidates.CANDIDATES
    assert all(other > 512 for _, other in larger)
    table = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in table[-2:]] == ["| n", f"| {chunk} of {window}"]

    path, = tmp_path.glob(f"{chunk}-{window}/embedded/heads-*/graph.json")
    assert json.loads(path.read_text())["settings"].items() >= {
        ("chunk", chunk), ("window", window), ("summary_share", candidates.SHARE)}

    monkeypatch.setattr(candidates, "CANDIDATES", larger)
    with pytest.raises(InputError, match="tiny: the model holds 512 tokens, fewer than any window that is compared"):
        main(arguments)


def test_a_question_without_evidence(tmp_path):
    document = read_jsonl(EMBEDDED, limit=1)[0]
    row = {"id": "d", "passages": document.passages, "questions": [{"question": "Who?", "answers": ["x"]}]}
    (tmp_path / "own.jsonl").write_text(json.dumps(row))
    with pytest.raises(InputError, match="question d-0: key 'evidence' is missing"):
        main(["--data", str(tmp_path / "own.jsonl"), "--output", str(tmp_path)])
