"""The compared methods: retrieval, trees, walks, compression, equal readers, and FLOPs by hand.

What they retrieve is compared with the packages that define it: rank_bm25, scikit-learn, umap-learn, Hugging Face.
"""
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import hypothesis
import numpy as np
import pytest
import rank_bm25
import sklearn.mixture
import torch
from hypothesis import strategies as st
from sklearn.mixture import GaussianMixture

import pecan
from baselines import common, longllmlingua, memwalker, raptor
from baselines.bm25 import BM25, Okapi, words
from baselines.common import children_of, pack_sentences, scaled, user_turn
from baselines.dense import Dense
from baselines.longllmlingua import LongLLMLingua, shares
from baselines.memwalker import MeMWalker, Walk, even_groups
from baselines.raptor import Raptor
from baselines.whole import Whole
from core.files import InputError
from core.settings import Settings, resolve
from data import EMBEDDED, Document, Method, Prepared, read_jsonl
from evaluation.cost import generation
from llama import Llama, flops_of
from pecan import Graph, Node
from support.token_mean import TokenMean


@pytest.fixture(scope="module")
def documents():
    return read_jsonl(EMBEDDED, 8)


@pytest.fixture(scope="module")
def document(documents):
    return documents[0]


@pytest.fixture(scope="module")
def question(document):
    return document.questions[0].text


@pytest.fixture(scope="module")
def long(documents):
    """Two documents in one: RAPTOR cuts them into enough chunks for three layers."""
    return joined(documents[:2])


@pytest.fixture(scope="module")
def settings(tiny):
    return resolve(tiny.folder, tiny.config.max_length)


@pytest.fixture(scope="module")
def settings_without_batches(settings):
    """The same, but nothing runs together. So nothing is padded, and FLOPs can be counted by hand."""
    return replace(settings, batch=1, answer_tokens=8)


@pytest.fixture
def encoder(tiny):
    return TokenMean(tiny)


def record(monkeypatch, owner, name):
    """Record the calls of owner.name: a list of (arguments, result)."""
    calls = []
    original = getattr(owner, name)

    def recorder(*arguments):
        result = original(*arguments)
        calls.append((arguments, result))
        return result

    monkeypatch.setattr(owner, name, recorder)
    return calls


def joined(documents):
    return Document("joined", [passage for document in documents for passage in document.passages])


def answer_of(method, document, question):
    return method.answer(method.prepare(document), question)


def prompt_of(tiny, question, texts):
    """The reader's prompt over these texts: that of a search of PECAN's which has read them as nodes."""
    tokenizer = tiny.tokenizer
    segments = pecan.question_prompt(tokenizer, question)
    for text in texts:
        segments += pecan.node_line(tokenizer, None, text)
    segments += pecan.answer_turn(tokenizer, tokenizer.first("Yes"))
    return [i for _, ids in segments for i in ids]


# --- trees that several tests share ---------------------------------------------------------------------------------

class Built(NamedTuple):
    """A tree, as it was built and as it is on disk."""
    method: Method
    prepared: Prepared
    path: Path
    summaries: list[tuple[list[int], list[int], int]]        # prompt, reply, limit of each, in the order of the nodes


def build(method, document, path):
    """Build a tree, save it at `path`, and record the model's replies."""
    summaries = []
    with pytest.MonkeyPatch.context() as patch:
        calls = record(patch, common, "replies")
        prepared = method.prepare(document, path)
    for (_, prompts, limit, *_), replies in calls:
        summaries += [(prompt, reply, limit) for prompt, reply in zip(prompts, replies, strict=True)]
    return Built(method, prepared, path, summaries)


@pytest.fixture(scope="module")
def raptor_tree(tiny, document, settings_without_batches, tmp_path_factory):
    method = Raptor(tiny, TokenMean(tiny), settings_without_batches)
    return build(method, document, tmp_path_factory.mktemp("raptor") / "tree.json")


@pytest.fixture(scope="module")
def long_raptor_tree(tiny, long, settings, tmp_path_factory):
    method = Raptor(tiny, TokenMean(tiny), settings)
    return build(method, long, tmp_path_factory.mktemp("long_raptor") / "tree.json")


@pytest.fixture(scope="module")
def memwalker_tree(tiny, document, settings_without_batches, tmp_path_factory):
    method = MeMWalker(tiny, settings_without_batches)
    return build(method, document, tmp_path_factory.mktemp("memwalker") / "tree.json")


def graph_of(levels, texts, children):
    """A tree by hand; `children` maps a node to its children."""
    edges = [(i, j, 1 / len(below)) for i, below in children.items() for j in below]
    nodes = [Node(level, text) for level, text in zip(levels, texts, strict=True)]
    return Graph(nodes, pecan.edge_matrix(edges, len(nodes)), "", "", {})


# --- retrieval ------------------------------------------------------------------------------------------------------

@hypothesis.given(st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=12), min_size=1, max_size=9),
                  st.lists(st.sampled_from("abcdefghij"), max_size=6))
def test_okapi_equals_rank_bm25(texts, query):
    """Also if a word occurs in more than half of the texts, so that its idf is negative."""
    wanted = rank_bm25.BM25Okapi(texts).get_scores(query).tolist()
    assert Okapi(texts).scores(query) == pytest.approx(wanted, abs=1e-12)


def test_bm25_reads_the_best_first(tiny, settings):
    document = Document("d", ["Ann has a cat.", "Bob lives in Rome.", "Ann lives in Paris.", "It rained.", "Rome!",
                              "Cleo has a dog.", "The road was long."])
    method = BM25(tiny, settings, top_k=3)
    prepared = method.prepare(document)
    assert prepared.texts == document.passages
    assert prepared.flops == 0

    answer = method.answer(prepared, "Where lives Ann?")
    reference = rank_bm25.BM25Okapi([words(text) for text in document.passages])
    scores = reference.get_scores(["where", "lives", "ann"])
    assert answer.nodes == np.argsort(-scores, kind="stable")[:3].tolist() == [2, 0, 1]


def test_ties_go_to_the_earlier_chunk(tiny, settings, encoder):
    document = Document("d", ["The road was long."] * 3)
    assert answer_of(BM25(tiny, settings, top_k=2), document, "Who?").nodes == [0, 1]
    assert answer_of(Dense(tiny, encoder, encoder, settings, top_k=2), document, "Who?").nodes == [0, 1]


@pytest.mark.parametrize("unit", [True, False])
def test_dense_reads_what_numpy_ranks(tiny, settings, document, question, unit):
    """By the cosine for unit vectors (SBERT), by the dot product as it is for others (Dragon)."""
    encoder = TokenMean(tiny, unit)
    method = Dense(tiny, encoder, encoder, settings, top_k=4)
    prepared = method.prepare(document)

    vectors = TokenMean(tiny, unit=False).encode([*prepared.texts, question]).double().numpy()
    if unit:
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    wanted = np.argsort(-(vectors[:-1] @ vectors[-1]))[:4].tolist()
    assert method.answer(prepared, question).nodes == wanted


def test_what_does_not_fit_the_window_is_not_read(tiny, document, question):
    """The best that fit are read, in their order. If nothing fits, that is an error."""
    settings = Settings(chunk=32, window=120, answer_tokens=8)
    answer = answer_of(BM25(tiny, settings, top_k=9), document, question)
    assert 0 < len(answer.nodes) < 9
    assert answer.tokens <= 120

    with pytest.raises(InputError, match="too small"):
        answer_of(BM25(tiny, Settings(chunk=32, window=70, answer_tokens=8)), document, question)


def test_a_text_that_just_fits_is_read(tiny, question, settings):
    """To the token: one more, and the next best is read in its place."""
    room = pecan.room_for_nodes(tiny.tokenizer, question, settings)
    text = " ".join(["road"] * (room - 2))                    # a line has two more tokens, "\n*"
    for longer, read in (("", [0]), (" road", [1])):
        answer = common.answer_from_best(tiny, question, [text + longer, "The road was long."], [0, 1], settings)
        assert answer.nodes == read


# --- equal readers --------------------------------------------------------------------------------------------------

def method_of(name, tiny, encoder, settings):
    """The method under one of the names that --method takes."""
    match name:
        case "bm25":
            return BM25(tiny, settings)
        case "sbert":
            return Dense(tiny, encoder, encoder, settings)
        case "raptor-tt":
            return Raptor(tiny, encoder, settings, collapsed=False)
        case "raptor-ct":
            return Raptor(tiny, encoder, settings)
        case "memwalker":
            return MeMWalker(tiny, settings)
        case "longllmlingua":
            return LongLLMLingua(tiny, tiny, settings)

    assert name == "whole"
    return Whole(tiny, settings)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bm25", "sbert", "raptor-tt", "raptor-ct", "memwalker", "longllmlingua", "whole"])
def test_all_read_the_same_prompt(tiny, encoder, settings, document, question, raptor_tree, memwalker_tree, monkeypatch,
                                  name):
    """The last prompt is Table A2's around the texts that were found, in a cache that leaves room for the answer."""
    method = method_of(name, tiny, encoder, settings)
    path = {"raptor-tt": raptor_tree.path, "raptor-ct": raptor_tree.path, "memwalker": memwalker_tree.path}.get(name)
    prepared = method.prepare(document, path)
    texts = prepared.texts
    if name == "memwalker":                                  # a walk of this model does not end at a segment
        monkeypatch.setattr(Walk, "run", lambda walk: [len(walk.graph.nodes) - 1, 6, 1])
    if name == "longllmlingua":
        compressions = record(monkeypatch, method, "compress")

    reads = record(monkeypatch, type(tiny), "read")
    answer = method.answer(prepared, question)
    if name == "longllmlingua":
        (_, texts), = compressions

    # The reader's prompt is the first one that begins and ends as it does without any text.
    empty = prompt_of(tiny, question, [])
    for (_, cache, rows, *_), _ in reads:
        prompt = [i for _, ids in rows[0] for i in ids]
        if len(prompt) > 1 and prompt[:8] == empty[:8] and prompt[-4:] == empty[-4:]:
            break
    else:
        pytest.fail("the reader's prompt was not read")
    assert cache.capacity == len(prompt) + settings.answer_tokens <= settings.window

    if name == "whole":
        whole = prompt_of(tiny, question, document.passages)
        assert answer.cut
        assert prompt[:100] == whole[:100] and prompt[-100:] == whole[-100:]
    else:
        assert prompt == prompt_of(tiny, question, [texts[i] for i in answer.nodes])

    wanted = {"whole": 0, "memwalker": 2, "longllmlingua": len(texts)}.get(name, 5)
    if name == "raptor-tt":                                  # five of each layer, or all if it has fewer below them
        layers = prepared.graph.nodes[-1].level
        assert layers > 1 and 5 * (layers - 1) < len(answer.nodes) <= 5 * layers
    else:
        assert len(answer.nodes) == wanted


# --- RAPTOR ---------------------------------------------------------------------------------------------------------

def test_mixture_has_the_least_bic_and_soft_members(monkeypatch):
    """Two clouds and a point between them, which belongs to both."""
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(-1, .4, (50, 2)), rng.normal(1, .4, (50, 2)), [[0, 0]]])

    # The mixtures that were fitted are scored again, rather than fitted again: that takes seconds.
    fits = record(monkeypatch, GaussianMixture, "fit")
    found = raptor.mixture(points)
    mixtures = [mixture for _, mixture in fits]
    assert [(mixture.n_components, mixture.random_state) for mixture in mixtures] == [(n, 0) for n in range(1, 50)]
    assert all(fitted_points is points for (_, fitted_points), _ in fits)

    best = mixtures[int(np.argmin([mixture.bic(points) for mixture in mixtures]))]
    probability = best.predict_proba(points)
    wanted = [np.flatnonzero(probability[:, k] > 0.1).tolist() for k in range(best.n_components)]
    assert sorted(found) == sorted(wanted)
    assert len(found) == 2

    assert {i for cluster in found for i in cluster} == set(range(101))
    assert all(100 in cluster for cluster in found)


def test_a_node_below_the_threshold_keeps_its_likeliest_cluster(monkeypatch):
    """A dozen components share a point evenly: none is above 0.1."""
    class Flat:
        def __init__(self, n, random_state):
            self.n = n

        def fit(self, points):
            return self

        def bic(self, points):
            return -self.n

        def predict_proba(self, points):
            return np.full((len(points), self.n), 1 / self.n)

    monkeypatch.setattr(sklearn.mixture, "GaussianMixture", Flat)
    assert raptor.mixture(np.zeros((20, 2))) == [list(range(20))]


@pytest.mark.slow
def test_reduction_is_umap():
    import umap
    vectors = np.random.default_rng(0).normal(size=(20, 16))
    reference = umap.UMAP(n_neighbors=4, n_components=10, metric="cosine", init="pca", random_state=0, n_jobs=1)
    points = raptor.reduce(vectors, 4)
    assert np.array_equal(points, reference.fit_transform(vectors))
    assert points.dtype == np.float64


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_chunks_in_tight_groups_are_clustered(seed):
    """Texts that are almost the same: in float32 a mixture of them has no covariance (3 of these 8 fail)."""
    rng = np.random.default_rng(seed)
    vectors = np.repeat(rng.normal(size=(4, 16)), 5, axis=0) + rng.normal(scale=1e-4, size=(20, 16))
    found = raptor.clusters(vectors.astype(np.float32), [10] * 20, 100)
    assert {i for cluster in found for i in cluster} == set(range(20))


@pytest.mark.slow
def test_every_chunk_is_reachable_and_layers_end(tiny, long, long_raptor_tree):
    graph = long_raptor_tree.prepared.graph
    levels = [node.level for node in graph.nodes]

    # At least three layers; the last one is small, or the last that is allowed.
    sizes = [levels.count(level) for level in range(1, levels[-1] + 1)]
    assert len(sizes) >= 3
    assert sizes[-1] <= 11 or len(sizes) == 6
    assert all(size > 11 for size in sizes[:-1])

    chunks = [node.text for node in graph.nodes if node.level == 1]
    assert chunks == pack_sentences(tiny.tokenizer, long, 8)
    assert all(len(tiny.tokenizer.encode(" " + text)) <= 8 for text in chunks)

    # Walk down from the top layer.
    reached = set()
    layer = set(graph.top_level)
    while layer:
        reached |= layer
        layer = {child for i in layer for child in children_of(graph, i)}
    assert reached == set(range(len(levels)))

    # Children are one layer lower, and a cluster fits its summary's prompt.
    for i, level in enumerate(levels):
        below = children_of(graph, i)
        assert (level == 1) == (not below)
        assert all(levels[j] == level - 1 for j in below)
        lengths = [len(tiny.tokenizer.encode(f"\n\n{graph.nodes[j].text}")) for j in below]
        assert sum(lengths) <= long_raptor_tree.method.most


@pytest.mark.slow
def test_a_tree_is_the_same_each_time(long_raptor_tree, tiny, long, documents, encoder, settings):
    """Text, edges, vectors and FLOPs: from disk, and from a second construction after another document's."""
    wanted = long_raptor_tree.prepared
    method = Raptor(tiny, encoder, settings)
    method.prepare(Document("short", documents[5].passages[:2]))

    for other in (method.prepare(long, long_raptor_tree.path), method.prepare(long)):
        assert other.graph.nodes == wanted.graph.nodes
        assert torch.equal(other.graph.E.to_dense(), wanted.graph.E.to_dense())
        assert other.graph.flops == wanted.graph.flops
        assert torch.equal(other.index, wanted.index)
        assert other.flops == wanted.flops


@pytest.mark.slow
def test_a_tree_belongs_to_its_settings_and_encoder(long_raptor_tree, tiny, long, encoder, settings):
    method = Raptor(tiny, encoder, settings)
    other = Raptor(tiny, TokenMean(tiny), Settings(chunk=64, window=512, answer_tokens=8))
    assert method.file_name(long) != other.file_name(long)
    with pytest.raises(InputError, match="another settings"):
        other.prepare(long, long_raptor_tree.path)

    encoder.fingerprint = "another"
    assert method.file_name(long) != Raptor(tiny, encoder, settings).file_name(long)


@pytest.mark.slow
def test_clusters_that_do_not_get_smaller_are_cut_in_order():
    """All vectors are equal: clustering cannot separate them, and would go on for ever."""
    found = raptor.clusters(np.ones((40, 16)), [10] * 40, 100)
    assert sorted(i for cluster in found for i in cluster) == list(range(40))
    assert all(len(cluster) <= 10 and cluster == sorted(cluster) for cluster in found)


def test_traversal_and_collapsed_tree(tiny, encoder, settings):
    """Chunks 0 to 3, summaries 4 to 6, roots 7 and 8."""
    graph = graph_of([1, 1, 1, 1, 2, 2, 2, 3, 3], [f"text {i}" for i in range(9)],
                     {4: [0, 1], 5: [1, 2], 6: [3], 7: [4, 5], 8: [6]})
    scores = [.1, .9, .2, .8, .3, .7, .6, .5, .4]
    assert Raptor(tiny, encoder, settings, top_k=3).retrieve(graph, scores) == [1, 3, 5]
    assert Raptor(tiny, encoder, settings, top_k=1, collapsed=False).retrieve(graph, scores) == [7, 5, 1]
    assert Raptor(tiny, encoder, settings, top_k=2, collapsed=False).retrieve(graph, scores) == [7, 8, 5, 6, 1, 3]


def test_a_missing_package_is_named(tiny, encoder, settings, monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(InputError, match="umap is not installed .pip install -r requirements-extra.txt"):
        Raptor(tiny, encoder, settings)


# --- MeMWalker ------------------------------------------------------------------------------------------------------

class Script:
    """A model that gives the replies that are written here, in order, and keeps its prompts."""

    def __init__(self, monkeypatch, *script):
        self.script = list(script)                           # the replies that are left
        self.prompts = []
        self.vocabulary = []
        self.tokenizer = self
        self.frame = type("Frame", (), {"open": [], "close": []})
        monkeypatch.setattr(memwalker, "replies", self.replies)

    def encode(self, text):
        """A word or a newline is a token."""
        tokens = [word for word in text.replace("\n", " \n ").split(" ") if word]
        for token in tokens:
            if token not in self.vocabulary:
                self.vocabulary.append(token)
        return [self.vocabulary.index(token) for token in tokens]

    def decode(self, ids):
        return " ".join(self.vocabulary[i] for i in ids)

    def replies(self, model, prompts, limit):
        self.prompts.append(self.decode(prompts[0]))
        assert self.script, "the walk asks more often than it should"
        return [self.encode(self.script.pop(0))]


def town():
    """Segments 0 to 2, their summaries 3 to 5, inner nodes 6 (over 3 and 4) and 7 (over 5), root 8."""
    texts = "seg0 seg1 seg2 sum0 sum1 sum2 left right root".split()
    return graph_of([1, 1, 1, 2, 2, 2, 3, 3, 4], texts, {3: [0], 4: [1], 5: [2], 6: [3, 4], 7: [5], 8: [6, 7]})


def walk_of(script, window=500):
    return Walk(script, town(), "who?", 10, Settings(chunk=32, window=window, answer_tokens=8))


def test_a_walk_straight_to_the_answer(monkeypatch):
    script = Script(monkeypatch, "Reasoning: because\nAction: 0", "Action: 1", "Reasoning: ok\nAction: -2")
    walk = walk_of(script)
    assert walk.run() == [8, 6, 4, 1]
    assert not script.script

    first, second, leaf = script.prompts
    assert "Summary 0: left \n Summary 1: right" in first and "0 to 1" in first and "read on the way" not in first
    assert "Summary 0: sum0 \n Summary 1: sum1" in second and "read on the way: root" in second
    assert "seg1" in leaf and "sum1" not in leaf and "read on the way: root left" in leaf and "-1 or -2" in leaf

    replies = "Reasoning: because\nAction: 0 Action: 1 Reasoning: ok\nAction: -2"
    assert walk.tokens == sum(len(script.encode(text)) for text in [*script.prompts, replies])


def test_a_walk_turns_back(monkeypatch):
    """-1 leads to the parent and the children that are left; a parent without any is left too."""
    script = Script(monkeypatch, "Action: 0", "Action: 1", "Action: -1", "Action: 0", "Action: -1", "Action: 0",
                    "Action: 0", "Action: -2")
    assert walk_of(script).run() == [8, 7, 5, 2]
    assert not script.script
    assert "Summary 0: sum0" in script.prompts[3] and "sum1" not in script.prompts[3]
    assert "Summary 0: right" in script.prompts[5] and "left" not in script.prompts[5].split("Question")[1]


def test_the_last_action_of_a_reply_counts(monkeypatch):
    """A model that compares first names several."""
    script = Script(monkeypatch, "Action: 1 would do \n Action: 0", "Action: 0 \n Action: 1", "Action: -1 Action: -2")
    assert walk_of(script).run() == [8, 6, 4, 1]


def test_the_latest_memory_is_read_first(tiny, settings, monkeypatch):
    """The segment, then the nodes on the way to it from the last to the first, without the segment's own summary."""
    method = MeMWalker(tiny, settings)
    prepared = Prepared([node.text for node in town().nodes], graph=town())
    monkeypatch.setattr(Walk, "run", lambda walk: [8, 6, 4, 1])
    assert method.answer(prepared, "Who?").nodes == [1, 6, 8]


def test_a_walk_that_finds_nothing(monkeypatch):
    script = Script(monkeypatch, *["Action: 0", "Action: 0", "Action: -1", "Action: 0", "Action: -1"],
                    *["Action: 0", "Action: 0", "Action: -1"])
    assert walk_of(script).run() == []
    assert not script.script


def test_three_invalid_replies_end_a_walk(monkeypatch):
    """The count begins again with a valid reply."""
    script = Script(monkeypatch, "Action: 2", "I would take the first .", "Action: -1")
    assert walk_of(script).run() == []
    assert not script.script
    assert "no valid action" not in script.prompts[0]
    assert "Your last reply had no valid action. Action is one of 0, 1." in script.prompts[2]

    script = Script(monkeypatch, "No.", "No.", "Action: 1", "No.", "No.", "Action: 0", "Action: 0", "Action: -2")
    assert walk_of(script).run() == [8, 7, 5, 2]


def test_memory_gives_way_to_the_window(monkeypatch):
    """The oldest is left out first. A prompt that does not fit without any memory is an error."""
    replies = "Action: 0", "Action: 1", "Action: -2"
    script = Script(monkeypatch, *replies)
    walk_of(script).run()
    full = len(script.encode(script.prompts[2])) + 10

    script = Script(monkeypatch, *replies)
    assert walk_of(script, full - 1).run() == [8, 6, 4, 1]
    assert "read on the way: left" in script.prompts[2]

    with pytest.raises(InputError, match="MeMWalker's takes .* tokens and its reply 10"):
        walk_of(Script(monkeypatch, *replies), 60).run()


def test_a_window_too_small_for_summaries(tiny, encoder):
    small = Settings(chunk=150, window=60, answer_tokens=8)
    with pytest.raises(InputError, match="window .* is too small"):
        MeMWalker(tiny, small)
    with pytest.raises(InputError, match="window .* is too small"):
        Raptor(tiny, encoder, small)
    with pytest.raises(InputError, match="a summary of MeMWalker's takes"):
        MeMWalker(tiny, Settings(chunk=150, window=512, answer_tokens=8))


@pytest.mark.parametrize("n, sizes", [(1, [1]), (8, [8]), (9, [4, 5]), (17, [5, 6, 6]), (64, [8] * 8)])
def test_children_share_parents_evenly(n, sizes):
    assert [len(group) for group in even_groups(n)] == sizes
    assert [i for group in even_groups(n) for i in group] == list(range(n))


def test_memwalkers_tree(tiny, settings, documents, tmp_path):
    """Segments, a summary of each, parents of up to 8 neighbours, one root; the same from disk."""
    long = joined(documents[:3])
    method = MeMWalker(tiny, settings)
    path = tmp_path / "tree.json"
    prepared = method.prepare(long, path)
    graph = prepared.graph
    levels = [node.level for node in graph.nodes]

    segments = levels.count(1)
    assert segments > 8
    texts = [node.text for node in graph.nodes[:segments]]
    assert texts == pack_sentences(tiny.tokenizer, long, scaled(1000, settings))
    assert levels.count(2) == segments
    assert all(children_of(graph, segments + i) == [i] for i in range(segments))
    assert levels.count(levels[-1]) == 1

    for i in range(2 * segments, len(levels)):
        below = children_of(graph, i)
        assert len(below) <= 8
        assert below == list(range(below[0], below[-1] + 1))

    again = method.prepare(long, path)
    assert again.graph.nodes == graph.nodes
    assert again.flops == graph.flops

    # A single segment's summary is the root.
    one = method.prepare(Document("one", ["The road was long."])).graph
    assert [node.level for node in one.nodes] == [1, 2]


def test_no_answer_scores_nothing(tiny, settings, document, question, memwalker_tree):
    """The embedded model gives no actions: after three invalid replies the answer is empty, and its cost counts."""
    method = MeMWalker(tiny, settings)
    answer = method.answer(method.prepare(document, memwalker_tree.path), question)
    assert (answer.text, answer.end, answer.nodes) == ("", "none", [])
    assert answer.flops > 0
    assert answer.tokens > 0


# --- LongLLMLingua --------------------------------------------------------------------------------------------------

@hypothesis.given(st.lists(st.integers(1, 300), min_size=1, max_size=30), st.floats(0, 1))
def test_shares_keep_the_target(lengths, part):
    target = int(part * sum(lengths))
    kept = shares(lengths, target)
    total = sum(share * length for share, length in zip(kept, lengths))
    assert total <= target + 1e-6
    assert total >= target - 1e-6 * len(lengths)

    assert kept == sorted(kept, reverse=True)
    assert all(0 <= share <= 1 for share in kept)
    inside = [share for share in kept if 0 < share < 1]
    assert max(inside, default=0) - min(inside, default=0) <= 0.6 + 1e-9


def test_the_ends_of_the_shares():
    assert shares([100] * 3, 150) == pytest.approx([.8, .5, .2])                           # +0.3, 0, -0.3
    assert shares([100], 25) == pytest.approx([.25])
    assert shares([10, 10], 20) == pytest.approx([1, 1])


def losses_of(hf, ids):
    """-log p of ids[1:] by Hugging Face."""
    with torch.no_grad():
        logits = hf(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return -logits[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def test_ranking_equals_hugging_face(tiny, tiny_hf, settings, document, question):
    """Both in float32. Units of different lengths in a batch get what each gets alone."""
    method = LongLLMLingua(tiny, tiny, settings)
    units = method.prepare(document).texts
    assert len(units) > settings.batch

    tokenizer = tiny.tokenizer
    asked = tokenizer.encode("\n" + question + " We can get the answer to this question in the given documents.")
    wanted = []
    for unit in units:
        losses = losses_of(tiny_hf, [*tokenizer.bos, *tokenizer.encode(unit), *asked])
        wanted.append(losses[-len(asked):].mean().item())
    assert method.rank(units, question) == pytest.approx(wanted, rel=1e-5)


def test_dropping_equals_hugging_face(tiny, tiny_hf, settings, document):
    """Token for token, in windows shorter than a unit, each after what was kept before it."""
    tokenizer = tiny.tokenizer
    method = LongLLMLingua(tiny, tiny, settings)
    question = document.questions[1].text
    units = [tokenizer.encode(unit) for unit in method.prepare(document).texts[:4]]
    method.target = sum(map(len, units)) // 2
    method.window = 8

    newline = tokenizer.encode("\n")
    alone = [*tokenizer.bos]
    given = [*alone, *tokenizer.encode(question), *newline]
    wanted = []
    for unit, share in zip(units, shares(list(map(len, units)), method.target)):
        left = []
        for first in range(0, len(unit), 8):
            ids = unit[first:first + 8]
            contrast = losses_of(tiny_hf, alone + ids)[-len(ids):] - losses_of(tiny_hf, given + ids)[-len(ids):]
            places = contrast.argsort(descending=True)[:int(share * len(ids))].tolist()
            kept = [ids[i] for i in sorted(places)]
            left += kept
            given = given + kept
            alone = alone + kept
        given = given + newline
        alone = alone + newline
        wanted.append(tokenizer.decode(left).strip())

    assert method.drop(units, question) == [text for text in wanted if text]
    assert 0 < sum(len(tokenizer.encode(text)) for text in wanted) <= method.target


def test_compression_keeps_within_its_target(tiny, settings, documents, monkeypatch):
    """And what is left of a unit is a subsequence of it, best unit first."""
    encode = tiny.tokenizer.encode
    method = LongLLMLingua(tiny, tiny, settings)
    rankings = record(monkeypatch, method, "rank")
    for document in documents[:3]:
        units = method.prepare(document).texts
        texts = method.compress(units, document.questions[0].text)
        assert method.target // 2 < sum(len(encode(text)) for text in texts) <= method.target == 160

        _, perplexity = rankings[-1]
        kept = sorted(range(len(units)), key=perplexity.__getitem__)[:len(texts)]
        for text, i in zip(texts, kept):
            left = iter(encode(units[i]))
            assert all(token in left for token in encode(text))


def test_what_fits_is_not_compressed(tiny, settings, document):
    method = LongLLMLingua(tiny, tiny, settings)
    prepared = method.prepare(Document("s", document.passages[:2]))
    flops_before = tiny.flops
    assert method.compress(prepared.texts, "Who?") == prepared.texts
    assert tiny.flops == flops_before


def test_a_scorer_is_read_no_further_than_it_was_made_for(tiny, settings, document, question, folder):
    short = Llama.load(folder, "cpu")
    short.config = replace(short.config, max_length=60)
    with pytest.raises(InputError, match="scorer reads up to .* tokens and was made for 60; take another --scorer"):
        answer_of(LongLLMLingua(tiny, short, settings), document, question)

    short.config = replace(short.config, max_length=100)     # enough for ranking, not for dropping
    with pytest.raises(InputError, match="was made for 100"):
        answer_of(LongLLMLingua(tiny, short, settings), document, question)


def test_units_are_four_lines(tiny, settings):
    method = LongLLMLingua(tiny, tiny, settings)
    texts = method.prepare(Document("d", ["a\nb\n\nc", "d\ne", "f " * 40])).texts
    assert texts == ["a b c d", "e " + " ".join(["f"] * 23), " ".join(["f"] * 17)]


# --- FLOPs by hand --------------------------------------------------------------------------------------------------

def flops_of_reading(tiny, settings, question, texts, answer):
    """FLOPs of the reader: the prompt, the answer's tokens, and one token for the end, if there was room for it."""
    written = len(tiny.tokenizer.encode(answer.text))
    prompt = len(prompt_of(tiny, question, texts))
    assert 0 < written < settings.answer_tokens
    assert answer.tokens == prompt + written
    return generation(tiny.config, prompt, written + 1)


def flops_of_embedding(tiny):
    """FLOPs of a text's vector: the product with the whitening matrix, which keeps all directions here."""
    return 2 * tiny.config.width ** 2


def test_flops_of_retrieval(tiny, settings, document, question):
    """BM25: the reader's alone. Dense: also the encoder's, over the chunks as construction, over the question."""
    method = BM25(tiny, settings)
    prepared = method.prepare(document)
    answer = method.answer(prepared, question)
    texts = [prepared.texts[i] for i in answer.nodes]
    assert answer.flops == flops_of_reading(tiny, settings, question, texts, answer)

    method = Dense(tiny, TokenMean(tiny), TokenMean(tiny), settings)
    prepared = method.prepare(document)
    assert prepared.flops == flops_of_embedding(tiny) * len(prepared.texts)
    answer = method.answer(prepared, question)
    texts = [prepared.texts[i] for i in answer.nodes]
    assert answer.flops == flops_of_embedding(tiny) + flops_of_reading(tiny, settings, question, texts, answer)


def test_flops_of_the_whole_document(tiny, settings, document, question):
    short = Document("s", document.passages[:3])
    answer = answer_of(Whole(tiny, settings), short, question)
    assert not answer.cut
    assert answer.flops == flops_of_reading(tiny, settings, question, short.passages, answer)


@pytest.mark.slow
def test_flops_of_retrieval_from_a_tree(tiny, encoder, settings, document, question, raptor_tree):
    """The question's vector and the reader."""
    method = Raptor(tiny, encoder, settings)
    prepared = method.prepare(document, raptor_tree.path)
    answer = method.answer(prepared, question)
    texts = [prepared.texts[i] for i in answer.nodes]
    assert answer.flops == flops_of_embedding(tiny) + flops_of_reading(tiny, settings, question, texts, answer)


def test_flops_of_a_walk_that_ends_well(tiny, settings, document, question, memwalker_tree, monkeypatch):
    """The walk's FLOPs, then the reader's over the segment and the memory."""
    method = MeMWalker(tiny, settings)
    prepared = method.prepare(document, memwalker_tree.path)
    root = len(prepared.texts) - 1

    def run(walk):
        walk.tokens = 100
        tiny.flops += 1000
        return [root, 6, 1]

    monkeypatch.setattr(Walk, "run", run)
    answer = method.answer(prepared, question)
    assert answer.nodes == [1, root]

    answer.tokens -= 100
    texts = [prepared.texts[i] for i in (1, root)]
    assert answer.flops == 1000 + flops_of_reading(tiny, settings, question, texts, answer)


def test_another_scorers_flops_count(tiny, model, settings, document, question):
    """model: a random checkpoint with the embedded model's tokenizer."""
    method = LongLLMLingua(tiny, model, settings)
    prepared = method.prepare(document)
    reader_before = tiny.flops
    scorer_before = model.flops
    answer = method.answer(prepared, question)
    assert tiny.flops > reader_before
    assert model.flops > scorer_before
    assert answer.flops == tiny.flops - reader_before + model.flops - scorer_before


@pytest.mark.slow
def test_flops_of_trees(tiny, raptor_tree, memwalker_tree):
    """Each summary costs its prompt and its reply, one at a time; RAPTOR's nodes are embedded as well."""
    for tree, limit in ((raptor_tree, 8), (memwalker_tree, 16)):
        graph = tree.prepared.graph
        parents = [i for i, node in enumerate(graph.nodes) if node.level > 1]
        wanted = 0
        for i, (prompt, reply, limit_of_reply) in zip(parents, tree.summaries, strict=True):
            if tree is raptor_tree:
                template = raptor.PROMPT
            else:
                template = memwalker.SEGMENT if graph.nodes[i].level == 2 else memwalker.SUMMARIES
            text = "\n\n".join(graph.nodes[j].text for j in children_of(graph, i))
            assert prompt == user_turn(tiny.tokenizer, template.format(text))
            assert limit_of_reply == limit
            wanted += generation(tiny.config, len(prompt), min(len(reply) + 1, limit))
        assert graph.flops == wanted > 0

        embedded = len(graph.nodes) if tree is raptor_tree else 0
        assert tree.prepared.flops == wanted + embedded * flops_of_embedding(tiny)


def test_flops_of_a_walk(tiny, settings, document, question, memwalker_tree, monkeypatch):
    """Three prompts and their replies, which take all the room they have or end before."""
    method = MeMWalker(tiny, settings)
    prepared = method.prepare(document, memwalker_tree.path)
    calls = record(monkeypatch, memwalker, "replies")
    answer = method.answer(prepared, question)
    assert len(calls) == 3

    tokens = 0
    flops = 0
    for (_, (prompt,), _), (reply,) in calls:
        tokens += len(prompt) + len(reply)
        flops += generation(tiny.config, len(prompt), min(len(reply) + 1, 21))
    assert answer.tokens == tokens
    assert answer.flops == flops


def test_flops_of_compression(tiny, settings_without_batches, document, question, monkeypatch):
    """Ranking, dropping and reading.

    Ranking runs each unit with the question after it. Dropping has two contexts; each runs a window, rolls it back,
    runs what is left of it again, and a newline after each unit.
    """
    settings = settings_without_batches
    config = tiny.config
    encode = tiny.tokenizer.encode
    method = LongLLMLingua(tiny, tiny, settings)
    method.window = settings.chunk                           # a unit's tokens
    prepared = method.prepare(document)
    rankings = record(monkeypatch, method, "rank")
    compressions = record(monkeypatch, method, "compress")
    answer = method.answer(prepared, question)
    (_, perplexity), = rankings
    (_, texts), = compressions
    assert len(texts) == len(answer.nodes)

    wanted = 0
    units = [encode(unit) for unit in prepared.texts]
    asked = len(encode("\n" + question + longllmlingua.HINT))
    for unit in units:
        row = 1 + len(unit) + asked
        wanted += flops_of(config, row, row, asked)

    order = sorted(range(len(units)), key=perplexity.__getitem__)
    lengths = [len(units[i]) for i in order[:len(texts)]]
    for context in (1 + len(encode(question)) + 1, 1):
        wanted += flops_of(config, context, context)
        for length, share in zip(lengths, shares(lengths, method.target)):
            left = int(share * length)
            wanted += flops_of(config, length, context + length, length)
            wanted += flops_of(config, left, context + left)
            wanted += flops_of(config, 1, context + left + 1)
            context += left + 1

    assert answer.flops == wanted + flops_of_reading(tiny, settings, question, texts, answer)
