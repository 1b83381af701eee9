"""The compared methods: retrieval, trees, walks, compression, the reader that they share, and FLOPs by hand.

Their numbers are compared with the packages that define them: rank_bm25, scikit-learn, umap-learn, Hugging Face.
"""
import copy
import json
import re
import textwrap
from dataclasses import replace
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import rank_bm25
import sklearn.mixture
import study
import torch
from hypothesis import strategies as st
from sklearn.mixture import GaussianMixture
from speaker import Script, generations

import pecan
from baselines import built, longllmlingua, memwalker, raptor
from baselines.bm25 import BM25, Okapi, words
from baselines.built import TreeNode
from baselines.dense import Dense
from baselines.longllmlingua import LongLLMLingua, shares
from baselines.memwalker import MeMWalker, even_groups
from baselines.mkrag import MKRAG
from baselines.passages import pack_paragraphs, pack_sentences, sentences, units
from baselines.raptor import Raptor
from baselines.replies import reminder
from baselines.whole import Whole
from core.files import InputError
from core.settings import Settings
from data import EMBEDDED, Document, Prepared, read_jsonl
from llama import Llama, flops_of
from support.token_mean import TokenMean


@pytest.fixture(scope="module")
def documents():
    return read_jsonl(EMBEDDED, 3)


@pytest.fixture(scope="module")
def document(documents):
    return documents[0]


@pytest.fixture(scope="module")
def question(document):
    return document.questions[0].text


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


# --- retrieval ------------------------------------------------------------------------------------------------------

@hypothesis.given(st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=12), min_size=1, max_size=9),
                  st.lists(st.sampled_from("abcdefghij"), max_size=6))
def test_okapi_equals_rank_bm25(texts, query):
    """Scores are equal, also if a word occurs in more than half of the texts and so has a negative idf."""
    wanted = rank_bm25.BM25Okapi(texts).get_scores(query).tolist()
    assert Okapi(texts).scores(query) == pytest.approx(wanted, abs=1e-12)


def test_bm25_reads_the_best_first(tiny, settings):
    """Of equal chunks the earlier is first. Case and punctuation make no difference."""
    document = Document("d", ["Ann has a cat.", "Bob lives in Rome.", "Ann lives in Paris.", "It rained.", "Rome!",
                              "Cleo has a dog.", "The road was long.", "Ann has a cat."])
    method = BM25(tiny, settings)
    answer = method.answer(method.prepare(document), "Where lives Ann?")
    scores = rank_bm25.BM25Okapi([words(text) for text in document.passages]).get_scores(["where", "lives", "ann"])
    assert answer.nodes == np.argsort(-scores, kind="stable")[:5].tolist() == [2, 1, 0, 7, 3]
    assert Okapi([[], []]).scores(["ann"]) == [0, 0], "no text has a word"


@pytest.mark.parametrize("unit", [True, False])
def test_dense_reads_what_numpy_ranks(tiny, settings, document, question, unit):
    """Unit vectors (SBERT) are ranked by the cosine, others (Dragon) by the dot product. The FLOPs of both encoders
    count."""
    questions = TokenMean(tiny, unit)
    passages = questions if unit else TokenMean(tiny, unit)
    method = Dense(tiny, questions, passages, settings)
    prepared = method.prepare(document)
    assert prepared.flops == passages.flops > 0

    vectors = TokenMean(tiny, unit=False).encode([*prepared.texts, question]).double().numpy()
    if unit:
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    wanted = np.argsort(-(vectors[:-1] @ vectors[-1]))[:5].tolist()
    before = tiny.flops + questions.flops
    answer = method.answer(prepared, question)
    assert answer.nodes == wanted and answer.flops == tiny.flops + questions.flops - before

    whole = Document("d", [" ".join(document.passages)])
    for other in (method, BM25(tiny, settings)):
        assert other.prepare(whole).texts == pecan.chunks(tiny.tokenizer, whole, 24), "the same chunks as PECAN's"


# --- the reader -----------------------------------------------------------------------------------------------------

def test_the_reader_reads_what_pecan_would(tiny, settings, question, monkeypatch):
    """The prompt equals that of a search that has read the same texts as nodes. The cache has room for the answer."""
    tokenizer = tiny.tokenizer
    texts = ["Ann has a cat.", "Bob  lives\nin Rome."]
    prompt = pecan.question_prompt(tokenizer, question)
    for text in (texts[1], texts[0]):
        prompt += pecan.node_line(tokenizer, None, " ".join(text.split()))
    prompt += pecan.answer_turn(tokenizer, tokenizer.first("Yes"))

    reads = record(monkeypatch, tiny, "read")
    assert BM25(tiny, settings).answer_from_best(question, texts, [1, 0]).nodes == [1, 0]
    (cache, [read]), _ = reads[0]
    assert [i for _, ids in read for i in ids] == [i for _, ids in prompt for i in ids]
    assert cache.capacity == pecan.length_of(prompt) + settings.answer_tokens


def test_a_text_that_just_fits_is_read(tiny, question, settings):
    """With one token more, the next best text is read instead. If no text fits, that is an error."""
    room = pecan.room_for_nodes(tiny.tokenizer, question, settings)
    text = " ".join(["road"] * (room - 2))                    # a line has two more tokens, "\n*"
    method = BM25(tiny, settings)
    for longer, read in (("", [0]), (" road", [1])):
        assert method.answer_from_best(question, [text + longer, "The road was long."], [0, 1]).nodes == read
    with pytest.raises(InputError, match="too small"):
        method.answer_from_best(question, [text + " road"], [0])
    assert method.answer_from_best(question, [], []).nodes == [], "no text is no error"


# --- RAPTOR ---------------------------------------------------------------------------------------------------------

def test_mixture_has_the_least_bic_and_soft_members(monkeypatch):
    """There are two clouds of points. One more point lies between them and belongs to both clusters."""
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(-1, .4, (50, 2)), rng.normal(1, .4, (50, 2)), [[0, 0]]])

    # We score the fitted mixtures again, but do not fit them again, which would take seconds.
    fits = record(monkeypatch, GaussianMixture, "fit")
    found = raptor.mixture(points)
    mixtures = [mixture for _, mixture in fits]
    assert [(mixture.n_components, mixture.random_state) for mixture in mixtures] == [(n, 0) for n in range(1, 50)]
    assert all(fitted_points is points for (_, fitted_points), _ in fits)

    best = mixtures[int(np.argmin([mixture.bic(points) for mixture in mixtures]))]
    probability = best.predict_proba(points)
    wanted = [np.flatnonzero(probability[:, k] > 0.1).tolist() for k in range(best.n_components)]
    assert sorted(found) == sorted(wanted) and len(found) == 2
    assert all(100 in cluster for cluster in found)


def test_a_node_below_the_threshold_keeps_its_likeliest_cluster(monkeypatch):
    """A dozen components or more share each point evenly, so that no probability is above 0.1."""
    class Flat:
        def __init__(self, n, random_state):
            assert n < 20
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
    assert np.array_equal(points, reference.fit_transform(vectors)) and points.dtype == np.float64


@pytest.mark.slow
def test_texts_that_are_almost_or_wholly_the_same_are_clustered():
    """In float32 a mixture of almost equal vectors fails. Equal vectors are cut in order, and this ends."""
    for seed in range(8):                                    # 3 of these seeds fail in float32
        rng = np.random.default_rng(seed)
        vectors = np.repeat(rng.normal(size=(4, 16)), 5, axis=0) + rng.normal(scale=1e-4, size=(20, 16))
        found = raptor.clusters(vectors.astype(np.float32), [10] * 20, 100)
        assert {i for cluster in found for i in cluster} == set(range(20))

    found = raptor.clusters(np.arange(640).reshape(40, 16) % 16, [10] * 40, 100)
    assert sorted(i for cluster in found for i in cluster) == list(range(40))
    assert all(len(cluster) <= 10 and cluster == sorted(cluster) for cluster in found)


@pytest.mark.slow
def test_raptors_tree(tiny, settings, encoder, documents, tmp_path, monkeypatch):
    """Every chunk can be reached from the top, layers end, and each summary is made from its children. A tree that is
    built again or read from its file is the same."""
    long = Document("two in one, for three layers or more", documents[0].passages + documents[1].passages)
    method = Raptor(tiny, encoder, settings)
    asked = record(monkeypatch, method, "say")
    clustered = record(monkeypatch, raptor, "clusters")
    prepared = method.prepare(long, tmp_path / "tree.json")
    nodes = prepared.graph
    levels = [node.level for node in nodes]
    sizes = [levels.count(level) for level in range(1, levels[-1] + 1)]
    assert len(sizes) >= 3 and (sizes[-1] <= 11 or len(sizes) == 6)
    assert all(size > 11 for size in sizes[:-1])
    chunks = [node.text for node in nodes if node.level == 1]
    assert chunks == pack_sentences(tiny.tokenizer, long, 8)
    lengths = [len(tiny.tokenizer.encode(f"\n\n{chunk}")) for chunk in chunks]
    assert lengths in [tokens for (_, tokens, _), _ in clustered]

    reached = set()
    layer = {i for i, level in enumerate(levels) if level == levels[-1]}
    while layer:
        reached |= layer
        layer = {child for i in layer for child in nodes[i].children}
    assert reached == set(range(len(nodes)))

    prompts = []
    for node in nodes[sizes[0]:]:
        below = [nodes[j] for j in node.children]
        assert {child.level for child in below} == {node.level - 1}
        assert sum(len(tiny.tokenizer.encode(f"\n\n{child.text}")) for child in below) <= method.most
        prompts.append(raptor.PROMPT.format("\n\n".join(child.text for child in below)))
    assert [text for (texts, limit), _ in asked for text in texts] == prompts and asked[0][0][1] == 8

    for path in (None, tmp_path / "tree.json"):              # build it again, then read its file
        again = Raptor(tiny, encoder, settings).prepare(long, path)
        assert (again.graph, again.flops) == (nodes, prepared.flops) and torch.equal(again.index, prepared.index)


def test_clusters_inside_of_clusters(monkeypatch):
    """Clusters of more than 11 nodes are clustered inside. What has too many tokens is clustered again or cut in order.

    Instead of UMAP and mixtures, which take half a minute, each vector says in which cluster it is, first of the whole
    layer, then inside a cluster, then if that is clustered again.
    """
    vectors = [*((0, i % 2, i // 2 % 2) for i in range(24)), *((2, 0, i % 2) for i in range(13)),
               *((first, i, i % 2) for first, number in ((1, 11), (3, 3), (4, 2), (5, 11)) for i in range(number))]
    vectors = np.random.default_rng(0).permutation(vectors)
    monkeypatch.setattr(raptor, "reduce", lambda vectors, neighbours: vectors[:, {7: 0, 10: 1}.get(neighbours, 2)])
    monkeypatch.setattr(raptor, "mixture", lambda points: [np.flatnonzero(points == k).tolist() for k in set(points)])
    tokens = [{2: 20, 3: 50, 5: 20}.get(first, 10) for first, _, _ in vectors]
    wanted = {}
    for i, (first, inside, again) in enumerate(vectors.tolist()):
        wanted.setdefault((first, inside * (first == 0), again * (first == 2)), []).append(i)
    for key, fit in (((2, 0, 0), 6), ((3, 0, 0), 2), ((5, 0, 0), 6)):       # 140, 150 and 220 tokens
        wanted |= {(*key, "begins"): wanted[key][:fit], key: wanted[key][fit:]}
    assert raptor.clusters(vectors, tokens, 120) == sorted(wanted.values())


def test_what_names_the_file_of_a_tree(tiny, model, settings, encoder, documents, monkeypatch):
    """The name depends on document, method, model, lengths and the encoder that clusters, because the tree does."""
    def name(method=Raptor, model=tiny, others=(encoder,), document=documents[0], **changes):
        return method(model, *others, replace(settings, **changes)).file_name(document)
    others = [name(document=documents[1]), name(MKRAG), name(MeMWalker, others=()), name(model=model), name(chunk=31),
              name(window=500), name(others=[TokenMean(model)])]
    first = name()
    assert len({first, *others}) == 8
    assert first == name(patience=3, confidence=.9, batch=1), "settings of a search change no tree"
    monkeypatch.setattr(built, "FORMAT", 0)
    assert name() not in (first, *others)


def test_raptor_ends_after_five_layers_of_summaries(tiny, encoder, settings, documents, monkeypatch):
    """Building ends even if clustering makes no layer smaller."""
    monkeypatch.setattr(raptor, "clusters", lambda vectors, *_: [[i] for i in range(len(vectors))])
    monkeypatch.setattr(Raptor, "say", lambda self, texts, limit: [f"{text[-30:]}  a\nroad" for text in texts])
    method = Raptor(tiny, encoder, settings)
    prepared = method.prepare(documents[0])
    nodes = prepared.graph
    chunks = sum(node.level == 1 for node in nodes)
    assert [node.level for node in nodes] == [level for level in range(1, 7) for _ in range(chunks)]
    assert all(node.text.endswith(" a road") for node in nodes[chunks:])
    monkeypatch.setattr(raptor, "SMALL", chunks)
    assert len(method.prepare(documents[0]).graph) == chunks

    question = documents[0].questions[0].text
    *vectors, query = encoder.encode([*(node.text for node in nodes), question]).double().numpy()
    scores = np.array([vector @ query for vector in vectors]).round(9)
    assert method.answer(prepared, question).nodes == np.argsort(-scores, kind="stable")[:5].tolist()


def test_a_cluster_of_raptor_fits_its_prompt(tiny, encoder):
    """It has up to 3500 tokens, fewer if the window has no room for prompt and summary."""
    method = Raptor(tiny, encoder, Settings())
    assert method.most == 3500 and Raptor(tiny, encoder, Settings(chunk=150)).most == 1750
    assert [Raptor(tiny, encoder, Settings(chunk=chunk)).limit for chunk in (1, 8)] == [1, 2]
    assert Raptor(tiny, encoder, Settings(window=1000)).most == 1000 - method.length(raptor.PROMPT) - 100


def test_traversal_and_collapsed_tree(tiny, encoder, settings):
    """The tree has chunks 0 to 3, summaries 4 to 6, and roots 7 and 8."""
    children = [[]] * 4 + [[0, 1], [1, 2], [3], [4, 5], [6]]
    nodes = [TreeNode(level, "", below) for level, below in zip([1, 1, 1, 1, 2, 2, 2, 3, 3], children)]
    scores = [.1, .9, .2, .8, .3, .7, .75, .5, .4]
    assert Raptor(tiny, encoder, settings, top_k=3).retrieve(nodes, scores) == [1, 3, 6]
    assert Raptor(tiny, encoder, settings, top_k=1, collapsed=False).retrieve(nodes, scores) == [7, 5, 1]
    assert Raptor(tiny, encoder, settings, top_k=2, collapsed=False).retrieve(nodes, scores) == [7, 8, 6, 5, 1, 3]
    assert Raptor(tiny, encoder, settings, top_k=3, collapsed=False).retrieve(nodes, scores) == [7, 8, 6, 5, 4, 1, 3, 2]


# --- passages -------------------------------------------------------------------------------------------------------

class Words:
    """A tokenizer whose tokens are words, punctuation marks and newlines."""
    def encode(self, text):
        return re.findall(r"\w+|[^\w ]", text)


@pytest.mark.parametrize("pack, limit", [(pack_paragraphs, 600), (pack_paragraphs, 250), (pack_sentences, 200)])
@pytest.mark.parametrize("wrapped", [False, True], ids=["paragraphs with titles", "hard line breaks"])
def test_no_chunk_ends_after_a_title_or_inside_a_sentence(pack, limit, wrapped):
    """The documents are HotpotQA's paragraphs, as they are or as one text with headings and lines of 60 characters."""
    for document in read_jsonl(Path(study.__file__).parent / "data" / "hotpotqa.jsonl", 8):
        passages = document.passages
        ends = {" ".join(passage.split())[-40:] for passage in passages}
        if wrapped:
            lines = ["\n\n".join([title, textwrap.fill(text, 60, break_on_hyphens=False)]) for title, text in
                     (passage.split("\n", 1) for passage in passages)]
            document = Document("wrapped", ["\n\n".join(lines)])
        chunks = pack(Words(), document, limit)
        assert " ".join(chunks).split() == " ".join(passages).split() and len(chunks) > 1
        assert all(len(Words().encode(chunk)) <= limit for chunk in chunks)
        for chunk in map(" ".join, map(str.split, chunks)):
            assert chunk[-40:] in ends or re.search(r"[.!?]$", chunk), chunk[-80:]


def test_parts_of_a_document_by_hand():
    """A heading stays with what follows: one line, up to 12 words, no stop at its end. Sentences end after . ! or ?"""
    twelve = " ".join(["word"] * 12)
    passages = ["Title\n\nIt rained! Who came?\n \nAnn", "Bob sat.", twelve, "One\ntwo",
                *(f"a{stop}" for stop in ".!?:;,\"'”’"), f"{twelve} word", "b"]
    assert units(Document("d", passages)) == [
        "Title\nIt rained! Who came?", "Ann\nBob sat.", f"{twelve}\nOne\ntwo", *passages[4:]]
    assert sentences("Title\nIt rained! Who came?  Ann.") == ["Title It rained!", "Who came?", "Ann."]

    def packed(pack, limit, *passages):
        return pack(Words(), Document("d", [*passages]), limit)
    assert packed(pack_paragraphs, 4, "a\nb") == ["a\nb"] and packed(pack_paragraphs, 3, "a\nb") == ["a b"]
    assert packed(pack_paragraphs, 6, "a,", "b,") == ["a,\nb,"]
    assert packed(pack_sentences, 3, "a,\n\nb c") == ["a,", "b c"]


# --- MeMWalker ------------------------------------------------------------------------------------------------------

def test_children_share_parents_evenly():
    for n, sizes in ((1, [1]), (8, [8]), (9, [4, 5]), (17, [5, 6, 6]), (64, [8] * 8)):
        groups = even_groups(range(100, 100 + n))
        assert [len(group) for group in groups] == sizes and sum(groups, []) == list(range(100, 100 + n))


def test_memwalkers_tree(tiny, settings, tmp_path):
    """The tree has segments, a summary of each, parents of up to 8 neighbours, and one root. Its file is read again. It
    is refused if it is damaged or belongs to another document."""
    document = Document("d", [f"Page {n}" + " road" * 70 for n in range(9)])
    path = tmp_path / "tree.json"
    method = MeMWalker(tiny, replace(settings, window=10_000))
    segments = pack_sentences(tiny.tokenizer, document, 1000 * 24 // 300)
    n = len(segments)
    assert 8 < n <= 16
    said = [f"s{i} road road road road" for i in range(n)]
    script = Script(method, *said, "left", "  ", " the\n root ")
    nodes = method.prepare(document, path).graph

    half = n // 2
    right = memwalker.SUMMARIES.format("\n\n".join(said[half:]))
    assert script.heard[:n] == [memwalker.SEGMENT.format(segment) for segment in segments]
    assert script.heard[n + 1] == right and len(script.heard) == n + 3
    assert nodes[:n] == [TreeNode(1, segment, []) for segment in segments]
    assert nodes[n:2 * n] == [TreeNode(2, said[i], [i]) for i in range(n)]
    assert nodes[2 * n] == TreeNode(3, "left", list(range(n, n + half)))
    start = nodes[2 * n + 1].text
    assert " ".join(said[half:]).startswith(start) and len(tiny.tokenizer.encode(f" {start}")) == 200 * 24 // 300
    assert nodes[2 * n + 2:] == [TreeNode(4, "the root", [2 * n, 2 * n + 1])]
    assert method.prepare(document, path).graph == nodes and not script.replies

    with pytest.raises(InputError, match="tree.json: is of another document"):
        method.prepare(Document("d", ["Another."]), path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"nodes": [[1]]}))
    with pytest.raises(InputError, match="tree.json: not what was built from a document"):
        method.prepare(document, path)


# Segments 0 to 2, their summaries 3 to 5, inner nodes 6 (over 3 and 4) and 7 (over 5), root 8.
TOWN = [TreeNode(1, "seg0", []), TreeNode(1, "seg1", []), TreeNode(1, "seg2", []), TreeNode(2, "sum0", [0]),
        TreeNode(2, "sum1", [1]), TreeNode(2, "sum2", [2]), TreeNode(3, "left", [3, 4]), TreeNode(3, "right", [5]),
        TreeNode(4, "root", [6, 7])]


@pytest.fixture
def walk(tiny):
    """A function that walks TOWN with scripted replies and returns the path and the prompts."""
    def go(*replies, window=10_000):
        method = MeMWalker(tiny, Settings(chunk=32, window=window, answer_tokens=8))
        script = Script(method, *replies)
        path = method.walk(TOWN, "who?")
        assert not script.replies
        return path, script.heard
    return go


def test_a_walk_straight_to_the_answer(walk):
    path, (first, second, leaf) = walk("Reasoning: because\nAction: 0", "Action: 1", "Reasoning: ok\nAction: -2")
    assert path == [8, 6, 4, 1]
    assert "Summary 0: left\nSummary 1: right" in first and "0 to 1" in first and "read on the way" not in first
    assert "Summary 0: sum0\nSummary 1: sum1" in second and "read on the way: root\n" in second
    assert "seg1" in leaf and "sum1" not in leaf and "read on the way: root left\n" in leaf and "-1 or -2" in leaf


def test_a_walk_turns_back(walk):
    """-1 leads back to the parent and its remaining children. If none remain, the walk goes up once more."""
    path, prompts = walk("Action: 0", "Action: 1", "Action: -1", "Action: 0", "Action: -1", "Action: 0", "Action: 0",
                         "Action: -2")
    assert path == [8, 7, 5, 2]
    assert "Summary 0: sum0" in prompts[3] and "sum1" not in prompts[3] and "from 0 to 0" in prompts[3]
    assert "Summary 0: right" in prompts[5] and "left" not in prompts[5].split("Question")[1]
    down_and_back = ["Action: 0", "Action: -1"]
    assert walk("Action: 0", *down_and_back * 2, "Action: 0", *down_and_back)[0] == [], "there is no answer anywhere"


def test_the_last_action_of_a_reply_counts(walk):
    """A model that first compares its choices names several actions."""
    assert walk("Action: 1 would do \n Action: 0", "Action: 0 \n Action: 1", "Action: -1 Action: -2")[0] == [8, 6, 4, 1]


def test_three_invalid_replies_end_a_walk(walk):
    """The count begins again with a valid reply."""
    path, prompts = walk("Action: 2", "I would take the first .", "Action: -1")
    assert path == [] and "last reply" not in prompts[0]
    assert prompts[2].startswith("Your last reply could not be used. Action is one of 0, 1.\n\n")
    assert walk("No.", "No.", "Action: 1", "No.", "No.", "Action: 0", "Action: 0", "Action: -2")[0] == [8, 7, 5, 2]


def test_memory_gives_way_to_the_window(tiny, walk):
    """If the prompt is one token too long, the oldest node is left out of the memory."""
    replies = "Action: 0", "Action: 1", "Action: -2"
    method = MeMWalker(tiny, Settings(chunk=32))
    full = method.length(reminder("Action is one of -1, -2.") + walk(*replies)[1][2]) + method.limit
    assert "read on the way: root left\n" in walk(*replies, window=full)[1][2]
    assert "read on the way: left\n" in walk(*replies, window=full - 1)[1][2]

    # Not even one node fits the second prompt.
    bare = walk(*replies)[1][1].replace("What you have read on the way: root\n", "")
    window = method.length(reminder("Action is one of 0, 1.") + bare) + method.limit
    assert walk(*replies, window=window)[1][1] == bare


def test_the_latest_memory_is_read_first(tiny, settings, monkeypatch):
    """The reader gets the segment, then the nodes on the way to it, the last first, without the segment's summary."""
    method = MeMWalker(tiny, settings)
    prepared = Prepared([node.text for node in TOWN], graph=TOWN)
    monkeypatch.setattr(method, "walk", lambda nodes, question: [8, 6, 4, 1])
    assert method.answer(prepared, "Who?").nodes == [1, 6, 8]


# --- LongLLMLingua --------------------------------------------------------------------------------------------------

@hypothesis.given(st.lists(st.integers(1, 300), min_size=1, max_size=30), st.floats(0, 1))
def test_shares_keep_the_target(lengths, part):
    target = int(part * sum(lengths))
    kept = shares(lengths, target)
    total = sum(share * length for share, length in zip(kept, lengths))
    assert target - 1e-6 * len(lengths) <= total <= target + 1e-6

    assert kept == sorted(kept, reverse=True) and 0 <= kept[-1] and kept[0] <= 1
    inside = [share for share in kept if 0 < share < 1]
    assert max(inside, default=0) - min(inside, default=0) <= 0.6 + 1e-9


def test_the_ends_of_the_shares():
    assert shares([100] * 3, 150) == pytest.approx([.8, .5, .2])                           # +0.3, 0, -0.3
    assert shares([100], 25) == pytest.approx([.25])


def losses_of(hf, ids):
    """-log p of ids[1:] by Hugging Face."""
    with torch.no_grad():
        logits = hf(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return -logits[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


@pytest.mark.parametrize("bos", [True, False])
def test_ranking_equals_hugging_face(tiny, tiny_hf, settings, document, question, monkeypatch, bos):
    """Both run in float32. Units of different lengths in one batch get the same values as alone. If the scorer has no
    BOS, a line feed is before the unit."""
    tokenizer = tiny.tokenizer
    start = tokenizer.bos if bos else tokenizer.encode("\n")
    if not bos:
        monkeypatch.setattr(tokenizer, "special_names", {})
    method = LongLLMLingua(tiny, tiny, settings)
    units = [tokenizer.encode(unit) for unit in method.prepare(document).texts]
    assert len(units) > settings.batch

    asked = tokenizer.encode("\n" + question + " We can get the answer to this question in the given documents.")
    wanted = [losses_of(tiny_hf, [*start, *unit, *asked])[-len(asked):].mean().item() for unit in units]
    assert method.rank(units, question) == pytest.approx(wanted, rel=1e-5)


def test_dropping_equals_hugging_face(tiny, tiny_hf, settings, document):
    """The same tokens are kept. Windows are shorter than a unit, and each is scored after the tokens kept before it.

    Both run in float64, because contrasts of the embedded model can differ by less than the rounding of float32."""
    tokenizer = tiny.tokenizer
    tiny_hf = copy.deepcopy(tiny_hf).double()
    method = LongLLMLingua(tiny, Llama.load(tiny.folder, "cpu", "float64"), settings)
    question = document.questions[1].text
    units = [tokenizer.encode(unit) for unit in method.prepare(document).texts[:4]]
    method.target = sum(map(len, units)) // 4

    newline = tokenizer.encode("\n")
    alone = [*tokenizer.bos]
    given = [*alone, *tokenizer.encode(question), *newline]
    wanted = []
    for unit, share in zip(units, shares(list(map(len, units)), method.target)):
        left = []
        for first in range(0, len(unit), 16):                  # 200 tokens at chunks of 300
            ids = unit[first:first + 16]
            contrast = losses_of(tiny_hf, alone + ids)[-len(ids):] - losses_of(tiny_hf, given + ids)[-len(ids):]
            places = contrast.argsort(descending=True)[:int(share * len(ids))].tolist()
            kept = [ids[i] for i in sorted(places)]
            left += kept
            given = given + kept
            alone = alone + kept
        given = given + newline
        alone = alone + newline
        wanted.append(tokenizer.decode(left).strip())

    assert "" in wanted and method.drop(units, question) == [text for text in wanted if text]
    assert 0 < sum(len(tokenizer.encode(text)) for text in wanted) <= method.target


def test_compression_keeps_within_its_target(tiny, settings, documents, monkeypatch):
    """Each kept text is a subsequence of its unit, the best unit first. Units that fit are not compressed."""
    encode = tiny.tokenizer.encode
    method = LongLLMLingua(tiny, tiny, settings)
    rankings, drops = record(monkeypatch, method, "rank"), record(monkeypatch, method, "drop")
    for document in documents:
        units = method.prepare(document).texts
        texts = method.compress(units, document.questions[0].text)
        assert method.target // 2 < sum(len(encode(text)) for text in texts) <= method.target == 160

        _, perplexity = rankings[-1]
        kept = sorted(range(len(units)), key=perplexity.__getitem__)
        totals = np.cumsum([len(encode(units[i])) for i in kept])
        assert drops[-1][0][0] == [encode(units[i]) for i in kept[:(totals <= 168).sum() + 1]]       # 2100 tokens
        for text, i in zip(texts, kept):
            left = iter(encode(units[i]))
            assert all(token in left for token in encode(text))

    method.target = sum(len(encode(unit)) for unit in units[:2])
    assert method.compress(units[:2], "Who?") == units[:2] and len(rankings) == len(documents)
    method.target -= 1
    assert method.compress(units[:2], "Who?") != units[:2] and len(rankings) == len(documents) + 1

    monkeypatch.setattr(method, "rank", lambda ids, question: [*range(len(ids))])
    method.most_of_units = sum(len(encode(unit)) for unit in units[:3])
    method.compress(units, "Who?")
    assert len(drops[-1][0][0]) == 4, "three units do not exceed the limit"


def test_a_scorer_is_read_no_further_than_it_was_made_for(tiny, settings, document, question, folder):
    short = Llama.load(folder, "cpu")
    short.config = replace(short.config, max_length=100)
    method = LongLLMLingua(tiny, short, settings)
    with pytest.raises(InputError, match="was made for 100; choose another --scorer") as error:
        method.answer(method.prepare(document), question)
    most = int(re.search(r"up to (\d+)", str(error.value))[1])
    short.config = replace(short.config, max_length=most)
    assert method.answer(method.prepare(document), question).nodes


def test_units_are_four_lines(tiny, settings):
    method = LongLLMLingua(tiny, tiny, settings)
    texts = method.prepare(Document("d", ["a\nb\n\nc", "d\ne", "f " * 40])).texts
    assert texts == ["a b c d", "e " + " ".join(["f"] * 23), " ".join(["f"] * 17)]

    method.scorer = copy.copy(tiny)                          # it counts the tokens
    method.scorer.tokenizer = Words()
    assert method.prepare(Document("d", ["Selma's " * 9])).texts[1:] == ["Selma's"]


# --- FLOPs by hand --------------------------------------------------------------------------------------------------

@pytest.mark.slow
@pytest.mark.parametrize("name, of_texts, of_query", [("bm25", 0, 0), ("sbert", 1, 1), ("raptor", 1, 1),
                                                      ("memwalker", 0, 0), ("whole", 0, 0)])
def test_costs_are_those_of_the_calls(tiny, encoder, settings, documents, monkeypatch, name, of_texts, of_query):
    """FLOPs count summaries, walks and the reader. For each vector of a text or question they count the product with
    the whitening matrix."""
    method = {"bm25": lambda: BM25(tiny, settings), "sbert": lambda: Dense(tiny, encoder, encoder, settings),
              "raptor": lambda: Raptor(tiny, encoder, settings), "memwalker": lambda: MeMWalker(tiny, settings),
              "whole": lambda: Whole(tiny, settings)}[name]()
    document = replace(documents[0], passages=documents[0].passages[:8])
    whitening = 2 * tiny.config.width ** 2
    said = generations(tiny, monkeypatch)
    prepared = method.prepare(document)
    assert (len(said) > 0) == (name in ("raptor", "memwalker"))
    assert prepared.flops == sum(flops for flops, _ in said) + of_texts * len(prepared.texts) * whitening

    said.clear()
    answer = method.answer(prepared, document.questions[0].text)
    assert len(said) == (3 if name == "memwalker" else 1), "three replies without an action, or one of the reader"
    assert (answer.end == "none") == (name == "memwalker")
    assert answer.flops == sum(flops for flops, _ in said) + of_query * whitening
    assert answer.tokens == sum(tokens for _, tokens in said)


@pytest.mark.parametrize("own", [False, True])
def test_flops_of_compression(tiny, model, settings, document, question, monkeypatch, own):
    """FLOPs count ranking and dropping by the model or another scorer (random, with the same tokenizer), and reading.

    Ranking runs each unit followed by the question. Dropping has two contexts. Each context runs a window, rolls it
    back, and runs the kept tokens again; after each unit it runs a newline.
    """
    scorer = tiny if own else model
    config = scorer.config
    encode = tiny.tokenizer.encode
    method = LongLLMLingua(tiny, scorer, settings)
    method.window = settings.chunk                           # so that a unit is one window
    prepared = method.prepare(document)
    rankings = record(monkeypatch, method, "rank")
    said = generations(tiny, monkeypatch)
    answer = method.answer(prepared, question)
    ((units, _), perplexity), = rankings

    wanted, tokens = said[0]
    assert own or answer.tokens == tokens, "the tokens of the reader"
    asked = len(encode("\n" + question + longllmlingua.HINT))
    for unit in units:
        row = 1 + len(unit) + asked
        wanted += flops_of(config, row, row, asked)

    order = sorted(range(len(units)), key=perplexity.__getitem__)
    lengths = [len(units[i]) for i in order[:len(answer.nodes)]]
    for context in (1 + len(encode(question)) + 1, 1):
        wanted += flops_of(config, context, context)
        for length, share in zip(lengths, shares(lengths, method.target)):
            left = int(share * length)
            wanted += flops_of(config, length, context + length, length)
            wanted += flops_of(config, left, context + left)
            wanted += flops_of(config, 1, context + left + 1)
            context += left + 1
    assert answer.flops == wanted
