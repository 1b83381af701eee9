"""The compared methods: what they retrieve against the packages that define it, trees, walks, compression, equal
readers, FLOPs by hand."""
import sys
from dataclasses import replace

import hypothesis
import numpy as np
import pytest
import rank_bm25
import torch
from hypothesis import strategies as st
from sklearn.mixture import GaussianMixture

import pecan
from baselines import common, longllmlingua, memwalker, raptor
from baselines.bm25 import BM25, Okapi, words
from baselines.common import children, scaled, sentences
from baselines.dense import Dense
from baselines.longllmlingua import LongLLMLingua, shares
from baselines.memwalker import MeMWalker, Walk, groups
from baselines.raptor import Raptor
from baselines.whole import Whole
from data import EMBEDDED, Document, read_jsonl
from evaluation.cost import generation
from llama import Llama, flops_of
from pecan import Graph, Node
from support.files import InputError
from support.sbert import TokenMean
from support.settings import Settings, resolve


@pytest.fixture(scope="module")
def documents():
    return read_jsonl(EMBEDDED, 8)


@pytest.fixture(scope="module")
def document(documents):
    return documents[0]


@pytest.fixture(scope="module")
def long(documents):
    """Four documents in one: enough chunks of RAPTOR's for three layers."""
    return Document("long", [passage for document in documents[:4] for passage in document.passages])


@pytest.fixture
def settings(tiny):
    return resolve(tiny.folder, tiny.config.max_length)


@pytest.fixture
def encoder(tiny):
    return TokenMean(tiny)


def answer_of(method, document, question):
    return method.answer(method.prepare(document), question)


def prompt_of(tiny, question, texts):
    """The reader's prompt over these texts, as PECAN's search ends up with it when it has read them as nodes."""
    t = tiny.tokenizer
    pieces = [*pecan.question_prompt(t, question), *(p for text in texts for p in pecan.node_line(t, None, text)),
              *pecan.answer_turn(t, t.first("Yes"))]
    return [i for _, ids in pieces for i in ids]


# --- retrieval ------------------------------------------------------------------------------------------------------

@hypothesis.given(st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=12), min_size=1, max_size=9),
                  st.lists(st.sampled_from("abcdefghij"), max_size=6))
def test_okapi_equals_rank_bm25(texts, query):
    """Also where a word stands in more than half of the texts and its idf is negative."""
    assert Okapi(texts).scores(query) == pytest.approx(rank_bm25.BM25Okapi(texts).get_scores(query).tolist(), abs=1e-12)


def test_bm25_reads_the_best_first(tiny, settings):
    document = Document("d", ["Ann has a cat.", "Bob lives in Rome.", "Ann lives in Paris.", "It rained.", "Rome!",
                              "Cleo has a dog.", "The road was long."])
    method = BM25(tiny, settings, top=3)
    prepared = method.prepare(document)
    assert prepared.texts == document.passages and prepared.flops == 0
    answer = method.answer(prepared, "Where lives Ann?")
    wanted = rank_bm25.BM25Okapi([words(text) for text in document.passages]).get_scores(["where", "lives", "ann"])
    assert answer.nodes == np.argsort(-wanted, kind="stable")[:3].tolist() == [2, 0, 1]


def test_ties_go_to_the_earlier_chunk(tiny, settings, encoder):
    document = Document("d", ["The road was long."] * 3)
    assert answer_of(BM25(tiny, settings, top=2), document, "Who?").nodes == [0, 1]
    assert answer_of(Dense(tiny, encoder, encoder, settings, top=2), document, "Who?").nodes == [0, 1]


@pytest.mark.parametrize("unit", [True, False])
def test_dense_reads_what_numpy_ranks(tiny, settings, document, unit):
    """Cosine for unit vectors (SBERT), the dot product as it is for others (Dragon)."""
    encoder, question = TokenMean(tiny, unit), document.questions[0].text
    prepared = (method := Dense(tiny, encoder, encoder, settings, top=4)).prepare(document)
    vectors = TokenMean(tiny, unit=False).encode([*prepared.texts, question]).double().numpy()
    if unit:
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    wanted = np.argsort(-(vectors[:-1] @ vectors[-1]))[:4].tolist()
    assert method.answer(prepared, question).nodes == wanted


def test_what_does_not_fit_the_window_is_not_read(tiny, encoder, document):
    """The best that fit, in their order; nothing at all is an error."""
    settings = Settings(chunk=32, window=120, answer_tokens=8)
    answer = answer_of(BM25(tiny, settings, top=9), document, document.questions[0].text)
    assert 0 < len(answer.nodes) < 9 and answer.tokens <= 120
    with pytest.raises(InputError, match="too small"):
        answer_of(BM25(tiny, Settings(chunk=32, window=70, answer_tokens=8)), document, document.questions[0].text)


# --- equal readers --------------------------------------------------------------------------------------------------

def methods(tiny, encoder, settings):
    return {"bm25": BM25(tiny, settings), "sbert": Dense(tiny, encoder, encoder, settings),
            "raptor-tt": Raptor(tiny, encoder, settings, collapsed=False), "raptor-ct": Raptor(tiny, encoder, settings),
            "memwalker": MeMWalker(tiny, settings), "longllmlingua": LongLLMLingua(tiny, tiny, settings),
            "whole": Whole(tiny, settings)}


@pytest.mark.parametrize("name", ["bm25", "sbert", "raptor-tt", "raptor-ct", "memwalker", "longllmlingua", "whole"])
def test_all_read_the_same_prompt(tiny, encoder, settings, document, monkeypatch, name):
    """The last prompt is Table A2's around the texts that were found, in a cache that leaves room for the answer."""
    read, prompts = type(tiny).read, []

    def spy(self, cache, rows, averaging=None):
        prompts.append(([i for _, ids in rows[0] for i in ids], cache.capacity))
        return read(self, cache, rows, averaging)
    monkeypatch.setattr(type(tiny), "read", spy)
    if name == "memwalker":                                  # its walk does not end at a segment with this model
        monkeypatch.setattr(Walk, "run", lambda self: [len(self.graph.nodes) - 1, 6, 1])
    method, question = methods(tiny, encoder, settings)[name], document.questions[0].text
    prepared = method.prepare(document)
    texts = method.compress(prepared.texts, question) if name == "longllmlingua" else prepared.texts
    prompts.clear()
    answer = method.answer(prepared, question)
    prompt, capacity = next(p for p in prompts if len(p[0]) > 1 and p[0][:8] == prompt_of(tiny, question, [])[:8]
                            and p[0][-4:] == prompt_of(tiny, question, [])[-4:])
    if name == "whole":
        whole = prompt_of(tiny, question, document.passages)
        assert answer.cut and prompt[:100] == whole[:100] and prompt[-100:] == whole[-100:]
    else:
        assert prompt == prompt_of(tiny, question, [texts[i] for i in answer.nodes])
    assert capacity == len(prompt) + settings.answer_tokens <= settings.window
    layers = prepared.graph.nodes[-1].level if name == "raptor-tt" else 1
    assert len(answer.nodes) == {"whole": 0, "memwalker": 2, "longllmlingua": len(texts)}.get(name, 5 * layers)


# --- RAPTOR ---------------------------------------------------------------------------------------------------------

def test_mixture_has_the_least_bic_and_soft_members():
    """Two clouds and a point between them, which belongs to both."""
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(-1, .4, (150, 2)), rng.normal(1, .4, (150, 2)), [[0, 0]]])
    found = raptor.mixture(points)
    bics = [GaussianMixture(n, random_state=0).fit(points).bic(points) for n in range(1, 50)]
    best = GaussianMixture(1 + int(np.argmin(bics)), random_state=0).fit(points)
    assert sorted(found) == sorted([i for i, p in enumerate(best.predict_proba(points)) if p[k] > 0.1]
                                   for k in range(best.n_components)) and len(found) == 2
    assert set(range(301)) == {i for cluster in found for i in cluster} and all(300 in cluster for cluster in found)


def test_a_node_below_the_threshold_keeps_its_likeliest_cluster(monkeypatch):
    """A dozen components share a point evenly: none is above 0.1."""
    class Flat:
        def __init__(self, n, random_state): self.n = n
        def fit(self, points): return self
        def bic(self, points): return -self.n
        def predict_proba(self, points): return np.full((len(points), self.n), 1 / self.n)
    monkeypatch.setattr("sklearn.mixture.GaussianMixture", Flat)
    assert raptor.mixture(np.zeros((20, 2))) == [list(range(20))]


def test_reduction_is_umap():
    import umap
    vectors = np.random.default_rng(0).normal(size=(20, 16))
    wanted = umap.UMAP(n_neighbors=4, n_components=10, metric="cosine", init="pca", random_state=0, n_jobs=1)
    wanted, ours = wanted.fit_transform(vectors), raptor.reduce(vectors, 4)
    assert np.array_equal(ours, wanted) and ours.dtype == np.float64


@pytest.mark.parametrize("seed", range(8))
def test_chunks_in_tight_groups_are_clustered(seed):
    """Texts that are all but the same: in float32 a mixture of them has no covariance (3 of these 8 fail)."""
    rng = np.random.default_rng(seed)
    vectors = np.repeat(rng.normal(size=(4, 16)), 5, axis=0) + rng.normal(scale=1e-4, size=(20, 16))
    found = raptor.clusters(vectors.astype(np.float32), [10] * 20, 100)
    assert {i for cluster in found for i in cluster} == set(range(20))


@pytest.fixture(scope="module")
def tree(tiny, long, tmp_path_factory):
    """The tree of the long document, and where it is kept."""
    method = Raptor(tiny, TokenMean(tiny), resolve(tiny.folder, tiny.config.max_length))
    path = tmp_path_factory.mktemp("raptor") / "tree.json"
    return method.prepare(long, path), path


def test_every_chunk_is_reachable_and_layers_end(tree, tiny, long, settings):
    graph = tree[0].graph
    levels = [node.level for node in graph.nodes]
    sizes = [levels.count(level) for level in range(1, levels[-1] + 1)]
    assert len(sizes) >= 3 and (sizes[-1] <= 11 or len(sizes) == 6) and all(n > 11 for n in sizes[:-1])
    leaves = [node.text for node in graph.nodes if node.level == 1]
    assert leaves == sentences(tiny.tokenizer, long, 10)
    assert all(len(tiny.tokenizer.encode(" " + text)) <= 10 for text in leaves)
    reached, layer = set(), set(graph.top_level)
    while layer:
        reached |= layer
        layer = {child for i in layer for child in children(graph, i)}
    assert reached == set(range(len(levels)))
    most = Raptor(tiny, TokenMean(tiny), settings).most
    for i, level in enumerate(levels):
        below = children(graph, i)
        assert (level == 1) == (not below) and all(levels[j] == level - 1 for j in below)
        assert sum(len(tiny.tokenizer.encode(f"\n\n{graph.nodes[j].text}")) for j in below) <= most


def test_a_tree_is_the_same_each_time(tree, tiny, long, documents, encoder, settings):
    """Read from disk, or built again behind another document: text, edges, vectors and FLOPs."""
    (prepared, path), method = tree, Raptor(tiny, encoder, settings)
    method.prepare(Document("short", documents[5].passages[:2]))
    for other in (method.prepare(long, path), method.prepare(long)):
        graph, vectors, wanted, wanted_vectors = other.graph, other.index, prepared.graph, prepared.index
        assert torch.equal(graph.E.to_dense(), wanted.E.to_dense())
        assert graph.nodes == wanted.nodes and graph.flops == wanted.flops
        assert torch.equal(vectors, wanted_vectors) and other.flops == prepared.flops


def test_a_tree_belongs_to_its_settings_and_encoder(tree, tiny, long, encoder, settings):
    one = Raptor(tiny, encoder, settings)
    other = Raptor(tiny, TokenMean(tiny), Settings(chunk=64, window=512, answer_tokens=8))
    assert one.file_name(long) != other.file_name(long)
    with pytest.raises(InputError, match="was built with"):
        other.prepare(long, tree[1])
    encoder.fingerprint = "another"
    assert one.file_name(long) != Raptor(tiny, encoder, settings).file_name(long)


def test_clusters_that_do_not_get_smaller_are_cut_in_order():
    """All vectors alike: clustering cannot tell them apart, and would go on for ever."""
    found = raptor.clusters(np.ones((40, 16)), [10] * 40, 100)
    assert sorted(i for cluster in found for i in cluster) == list(range(40))
    assert all(len(cluster) <= 10 and cluster == sorted(cluster) for cluster in found)


def hand_made():
    """Two roots above three summaries above four chunks; nodes 4 to 6 and 7 to 8."""
    E = torch.zeros(9, 9, dtype=torch.float64)
    for i, below in {4: [0, 1], 5: [1, 2], 6: [3], 7: [4, 5], 8: [6]}.items():
        E[i, below] = 1 / len(below)
    return Graph([Node(level, f"text {i}") for i, level in enumerate([1] * 4 + [2] * 3 + [3] * 2)], E, "", "", {})


def test_traversal_and_collapsed_tree(tiny, encoder, settings):
    scores = [.1, .9, .2, .8, .3, .7, .6, .5, .4]
    assert Raptor(tiny, encoder, settings, top=3).retrieve(hand_made(), scores) == [1, 3, 5]
    assert Raptor(tiny, encoder, settings, top=1, collapsed=False).retrieve(hand_made(), scores) == [7, 5, 1]
    assert Raptor(tiny, encoder, settings, top=2, collapsed=False).retrieve(hand_made(), scores) == [7, 8, 5, 6, 1, 3]


def test_a_missing_package_is_named(tiny, encoder, settings, monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(InputError, match="umap is not installed .pip install -r requirements-extra.txt"):
        Raptor(tiny, encoder, settings)


# --- MeMWalker ------------------------------------------------------------------------------------------------------



class Script:
    """A model that says what is written: replies in order, prompts kept."""

    def __init__(self, monkeypatch, *said):
        self.tokenizer, self.said, self.prompts, self.known = self, list(said), [], []
        self.frame = type("Frame", (), {"open": [], "close": []})
        monkeypatch.setattr(memwalker, "replies", self.replies)

    def encode(self, text):
        """A word or a newline is a token."""
        self.known += [word for word in text.replace("\n", " \n ").split(" ") if word and word not in self.known]
        return [self.known.index(word) for word in text.replace("\n", " \n ").split(" ") if word]

    def decode(self, ids):
        return " ".join(self.known[i] for i in ids)

    def replies(self, model, prompts, limit):
        self.prompts.append(self.decode(prompts[0]))
        return [self.encode(self.said.pop(0))]


def town():
    """Segments 0 to 2, their summaries 3 to 5, inner nodes 6 (over 3 and 4) and 7 (over 5), root 8."""
    E = torch.zeros(9, 9, dtype=torch.float64)
    for i, below in {3: [0], 4: [1], 5: [2], 6: [3, 4], 7: [5], 8: [6, 7]}.items():
        E[i, below] = 1 / len(below)
    return Graph([Node(level, text) for level, text in zip(
        [1, 1, 1, 2, 2, 2, 3, 3, 4], "seg0 seg1 seg2 sum0 sum1 sum2 left right root".split())], E, "", "", {})


def walk(script, window=500):
    return Walk(script, town(), "who?", 10, Settings(chunk=32, window=window, answer_tokens=8))


def test_a_walk_straight_to_the_answer(monkeypatch):
    script = Script(monkeypatch, "Reasoning: because\nAction: 0", "Action: 1", "Reasoning: ok\nAction: -2")
    w = walk(script)
    assert w.run() == [8, 6, 4, 1] and not script.said
    first, second, leaf = script.prompts
    assert "Summary 0: left \n Summary 1: right" in first and "0 to 1" in first and "read on the way" not in first
    assert "Summary 0: sum0 \n Summary 1: sum1" in second and "read on the way: root" in second
    assert "seg1" in leaf and "sum1" not in leaf and "read on the way: root left" in leaf and "-1 or -2" in leaf
    assert w.tokens == sum(len(script.encode(prompt)) for prompt in script.prompts) + len(script.encode(
        "Reasoning: because\nAction: 0 Action: 1 Reasoning: ok\nAction: -2"))


def test_a_walk_turns_back(monkeypatch):
    """-1 leads to the parent and the children that are left; a parent without any is left too."""
    script = Script(monkeypatch, "Action: 0", "Action: 1", "Action: -1", "Action: 0", "Action: -1", "Action: 0",
                    "Action: 0", "Action: -2")
    assert walk(script).run() == [8, 7, 5, 2] and not script.said
    assert "Summary 0: sum0" in script.prompts[3] and "sum1" not in script.prompts[3]
    assert "Summary 0: right" in script.prompts[5] and "left" not in script.prompts[5].split("Question")[1]


def test_a_walk_that_finds_nothing(monkeypatch):
    script = Script(monkeypatch, *["Action: 0", "Action: 0", "Action: -1", "Action: 0", "Action: -1"],
                    *["Action: 0", "Action: 0", "Action: -1"])
    assert walk(script).run() == [] and not script.said


def test_three_invalid_replies_end_a_walk(monkeypatch):
    script = Script(monkeypatch, "Action: 2", "I would take the first .", "Action: -1")
    assert walk(script).run() == [] and not script.said
    assert "no valid action" not in script.prompts[0]
    assert "Your last reply had no valid action. Action is one of 0, 1." in script.prompts[2]
    script = Script(monkeypatch, "No.", "No.", "Action: 1", "No.", "No.", "Action: 0", "Action: 0", "Action: -2")
    assert walk(script).run() == [8, 7, 5, 2]                # the count begins anew with a valid reply


def test_memory_gives_way_to_the_window(monkeypatch):
    """The oldest of it first; a prompt that does not fit even without any is an error."""
    said = "Action: 0", "Action: 1", "Action: -2"
    script = Script(monkeypatch, *said)
    walk(script).run()
    full = len(script.encode(script.prompts[2])) + 10
    script = Script(monkeypatch, *said)
    assert walk(script, full - 1).run() == [8, 6, 4, 1]
    assert "read on the way: left" in script.prompts[2]
    with pytest.raises(InputError, match="MeMWalker's takes .* tokens and its reply 10"):
        walk(Script(monkeypatch, *said), 60).run()


def test_a_window_too_small_for_summaries(tiny, encoder):
    for method in (lambda s: MeMWalker(tiny, s), lambda s: Raptor(tiny, encoder, s)):
        with pytest.raises(InputError, match="window .* is too small"):
            method(Settings(chunk=150, window=60, answer_tokens=8))
    with pytest.raises(InputError, match="a summary of MeMWalker's takes"):
        MeMWalker(tiny, Settings(chunk=150, window=512, answer_tokens=8))


@pytest.mark.parametrize("n, sizes", [(1, [1]), (8, [8]), (9, [4, 5]), (17, [5, 6, 6]), (64, [8] * 8)])
def test_children_share_parents_evenly(n, sizes):
    assert [len(group) for group in groups(n)] == sizes
    assert [i for group in groups(n) for i in group] == list(range(n))


def test_memwalkers_tree(tiny, settings, long, tmp_path):
    """Segments, a summary of each, parents of up to 8 neighbours, one root; the same from disk."""
    method, path = MeMWalker(tiny, settings), tmp_path / "tree.json"
    graph = method.prepare(long, path).graph
    levels = [node.level for node in graph.nodes]
    leaves = levels.count(1)
    assert leaves > 8 and levels.count(2) == leaves and levels.count(levels[-1]) == 1
    assert all(children(graph, leaves + i) == [i] for i in range(leaves))
    for i in range(2 * leaves, len(levels)):
        below = children(graph, i)
        assert len(below) <= 8 and below == list(range(below[0], below[-1] + 1))
    assert [n.text for n in graph.nodes[:leaves]] == sentences(tiny.tokenizer, long, scaled(1000, settings))
    again = method.prepare(long, path)
    assert again.graph.nodes == graph.nodes and again.flops == graph.flops
    one = method.prepare(Document("one", ["The road was long."])).graph
    assert [node.level for node in one.nodes] == [1, 2]


def test_no_answer_scores_nothing(tiny, settings, document):
    """The embedded model cannot give reasons and actions: three invalid replies, an empty answer, its cost counted."""
    answer = answer_of(MeMWalker(tiny, settings), document, document.questions[0].text)
    assert (answer.text, answer.end, answer.nodes) == ("", "none", []) and answer.flops > 0 and answer.tokens > 0


# --- LongLLMLingua --------------------------------------------------------------------------------------------------

@hypothesis.given(st.lists(st.integers(1, 300), min_size=1, max_size=30), st.floats(0, 1))
def test_shares_keep_the_target(lengths, part):
    target = int(part * sum(lengths))
    kept = shares(lengths, target)
    total = sum(share * length for share, length in zip(kept, lengths))
    assert total <= target + 1e-6 and total >= target - 1e-6 * len(lengths)
    assert kept == sorted(kept, reverse=True) and all(0 <= share <= 1 for share in kept)
    inside = [share for share in kept if 0 < share < 1]
    assert max(inside, default=0) - min(inside, default=0) <= 0.6 + 1e-9


def test_the_ends_of_the_shares():
    assert shares([100] * 3, 150) == pytest.approx([.8, .5, .2])                           # +0.3, 0, -0.3
    assert shares([100], 25) == pytest.approx([.25]) and shares([10, 10], 20) == pytest.approx([1, 1])


def nll(hf, ids):
    """-log p of ids[1:] by Hugging Face."""
    with torch.no_grad():
        logits = hf(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return -logits[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def test_ranking_equals_hugging_face(tiny, tiny_hf, settings, document):
    """float32 both; the batch of units of different lengths gives what each gives alone."""
    method, question, t = LongLLMLingua(tiny, tiny, settings), document.questions[0].text, tiny.tokenizer
    units = method.prepare(document).texts
    asked = t.encode("\n" + question + " We can get the answer to this question in the given documents.")
    wanted = [nll(tiny_hf, [*t.bos, *t.encode(unit), *asked])[-len(asked):].mean().item() for unit in units]
    assert len(units) > settings.batch and method.rank(units, question) == pytest.approx(wanted, rel=1e-5)


def test_dropping_equals_hugging_face(tiny, tiny_hf, settings, document):
    """Token for token, in windows shorter than a unit, each behind what was kept before it."""
    method, question, t = LongLLMLingua(tiny, tiny, settings), document.questions[1].text, tiny.tokenizer
    units = [t.encode(unit) for unit in method.prepare(document).texts[:4]]
    method.target, method.window = sum(map(len, units)) // 2, 8
    start, newline, wanted = [*t.bos], t.encode("\n"), []
    given, alone = [*start, *t.encode(question), *newline], start
    for unit, share in zip(units, shares(list(map(len, units)), method.target)):
        left = []
        for first in range(0, len(unit), 8):
            ids = unit[first:first + 8]
            gain = nll(tiny_hf, alone + ids)[-len(ids):] - nll(tiny_hf, given + ids)[-len(ids):]
            best = sorted(gain.argsort(descending=True)[:int(share * len(ids))].tolist())
            kept = [ids[i] for i in best]
            left, given, alone = left + kept, given + kept, alone + kept
        given, alone = given + newline, alone + newline
        wanted.append(t.decode(left).strip())
    assert method.drop(units, question) == [text for text in wanted if text]
    assert 0 < sum(len(t.encode(text)) for text in wanted) <= method.target


def test_compression_keeps_within_its_target(tiny, settings, documents):
    method, t = LongLLMLingua(tiny, tiny, settings), tiny.tokenizer
    for document in documents[:3]:
        units, question = method.prepare(document).texts, document.questions[0].text
        texts = method.compress(units, question)
        assert method.target // 2 < sum(len(t.encode(text)) for text in texts) <= method.target == 213
        kept = sorted(range(len(units)), key=method.rank(units, question).__getitem__)[:len(texts)]
        for text, i in zip(texts, kept):                     # each is a subsequence of the unit of its rank
            left = iter(t.encode(units[i]))
            assert all(token in left for token in t.encode(text))


def test_what_fits_is_not_compressed(tiny, settings, document):
    method = LongLLMLingua(tiny, tiny, settings)
    short = Document("s", document.passages[:2])
    prepared, before = method.prepare(short), tiny.flops
    assert method.compress(prepared.texts, "Who?") == prepared.texts and tiny.flops == before


def test_a_scorer_is_read_no_further_than_it_was_made_for(tiny, settings, document, folder):
    short = Llama.load(folder, "cpu")
    short.config = replace(short.config, max_length=60)
    question = document.questions[0].text
    with pytest.raises(InputError, match="scorer reads up to .* tokens and was made for 60; take another --scorer"):
        answer_of(LongLLMLingua(tiny, short, settings), document, question)
    short.config = replace(short.config, max_length=100)     # enough for ranking
    with pytest.raises(InputError, match="was made for 100"):
        answer_of(LongLLMLingua(tiny, short, settings), document, question)


def test_units_are_four_lines(tiny, settings):
    method = LongLLMLingua(tiny, tiny, settings)
    texts = method.prepare(Document("d", ["a\nb\n\nc", "d\ne", "f " * 40])).texts
    assert texts == ["a b c d", "e " + " ".join(["f"] * 31), " ".join(["f"] * 9)]


# --- FLOPs by hand --------------------------------------------------------------------------------------------------

def reading(tiny, settings, question, texts, answer):
    """FLOPs of the reader: the prompt, and the tokens that were said and one for the end, where there was room."""
    said = len(tiny.tokenizer.encode(answer.text))
    prompt = len(prompt_of(tiny, question, texts))
    assert 0 < said < settings.answer_tokens and answer.tokens == prompt + said
    return generation(tiny.config, prompt, said + 1)


def embedding(tiny):
    """FLOPs of a text's vector: the product with the whitening matrix, of which no direction is dropped here."""
    return 2 * tiny.config.width ** 2


def test_flops_of_retrieval(tiny, settings, document):
    """BM25: the reader's alone. Dense: and the encoder's over the question; over the chunks it is construction."""
    question = document.questions[0].text
    method = BM25(tiny, settings)
    prepared = method.prepare(document)
    answer = method.answer(prepared, question)
    assert answer.flops == reading(tiny, settings, question, [prepared.texts[i] for i in answer.nodes], answer)

    method = Dense(tiny, TokenMean(tiny), TokenMean(tiny), settings)
    prepared = method.prepare(document)
    assert prepared.flops == embedding(tiny) * len(prepared.texts)
    answer = method.answer(prepared, question)
    texts = [prepared.texts[i] for i in answer.nodes]
    assert answer.flops == embedding(tiny) + reading(tiny, settings, question, texts, answer)


def test_flops_of_the_whole_document(tiny, settings, document):
    short = Document("s", document.passages[:3])
    question = document.questions[0].text
    answer = answer_of(Whole(tiny, settings), short, question)
    assert not answer.cut and answer.flops == reading(tiny, settings, question, short.passages, answer)


def test_flops_of_retrieval_from_a_tree(tiny, encoder, settings, document):
    """The question's vector and the reader; the walk's prompts are in a test of their own."""
    method, question = Raptor(tiny, encoder, settings), document.questions[0].text
    prepared = method.prepare(document)
    answer = method.answer(prepared, question)
    texts = [prepared.texts[i] for i in answer.nodes]
    assert answer.flops == embedding(tiny) + reading(tiny, settings, question, texts, answer)


def test_flops_of_a_walk_that_ends_well(tiny, settings, document, monkeypatch):
    """What the walk cost, and then the reader over the segment and the memory."""
    method, question = MeMWalker(tiny, settings), document.questions[0].text
    prepared = method.prepare(document)

    def run(walk):
        walk.tokens = 100
        tiny.flops += 1000
        return [len(prepared.texts) - 1, 6, 1]
    monkeypatch.setattr(Walk, "run", run)
    answer = method.answer(prepared, question)
    answer.tokens -= 100
    texts = [prepared.texts[i] for i in (1, len(prepared.texts) - 1)]
    assert answer.nodes == [1, len(prepared.texts) - 1]
    assert answer.flops == 1000 + reading(tiny, settings, question, texts, answer)


def test_another_scorers_flops_count(tiny, model, settings, document):
    """model: a random checkpoint with the embedded model's tokenizer."""
    method, question = LongLLMLingua(tiny, model, settings), document.questions[0].text
    prepared, before, scored = method.prepare(document), tiny.flops, model.flops
    answer = method.answer(prepared, question)
    assert answer.flops == tiny.flops - before + model.flops - scored and model.flops > scored and tiny.flops > before


def test_flops_of_trees(tiny, encoder, document):
    """Each summary is a prompt and what was said, one at a time (batch 1: no padding)."""
    settings, t = Settings(chunk=32, window=512, answer_tokens=8, batch=1), tiny.tokenizer
    for method, limit in ((Raptor(tiny, encoder, settings), 10), (MeMWalker(tiny, settings), 21)):
        prepared, wanted = method.prepare(document), 0
        graph = prepared.graph
        for i, node in enumerate(graph.nodes):
            if node.level > 1:
                text = "\n\n".join(graph.nodes[j].text for j in children(graph, i))
                template = raptor.PROMPT if isinstance(method, Raptor) else (
                    memwalker.SEGMENT if node.level == 2 else memwalker.SUMMARIES)
                ids = common.turn(t, template.format(text))
                said, = common.replies(tiny, [ids], limit)
                wanted += generation(tiny.config, len(ids), min(len(said) + 1, limit))
        assert graph.flops == wanted > 0
        assert prepared.flops == wanted + isinstance(method, Raptor) * embedding(tiny) * len(graph.nodes)


def test_flops_of_a_walk(tiny, settings, document):
    """Three prompts and their replies, which take all the room they have or end before."""
    method = MeMWalker(tiny, settings)
    prepared = method.prepare(document)
    seen, original = [], memwalker.replies
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memwalker, "replies", lambda model, prompts, limit: seen.append(
            (len(prompts[0]), original(model, prompts, limit))) or seen[-1][1])
        answer = method.answer(prepared, document.questions[0].text)
    assert len(seen) == 3
    assert answer.tokens == sum(prompt + len(said) for prompt, (said,) in seen)
    assert answer.flops == sum(generation(tiny.config, prompt, min(len(said) + 1, 21)) for prompt, (said,) in seen)


def test_flops_of_compression(tiny, document):
    """Ranking: each unit with the question behind it. Dropping: two contexts, each window run, taken back and what is
    left of it run again, and the newline behind each unit. Then the reader."""
    settings, t, c = Settings(chunk=32, window=512, answer_tokens=8, batch=1), tiny.tokenizer, tiny.config
    method, question = LongLLMLingua(tiny, tiny, settings), document.questions[0].text
    method.window = settings.chunk                           # a unit's tokens
    prepared = method.prepare(document)
    answer, ids = method.answer(prepared, question), [t.encode(unit) for unit in prepared.texts]
    asked = t.encode("\n" + question + longllmlingua.HINT)
    wanted = sum(flops_of(c, 1 + len(unit) + len(asked), 1 + len(unit) + len(asked), len(asked)) for unit in ids)
    order = sorted(range(len(ids)), key=method.rank(prepared.texts, question).__getitem__)
    kept = [ids[i] for i in order[:len(answer.nodes)]]
    for length in (1 + len(t.encode(question)) + 1, 1):
        wanted += flops_of(c, length, length)
        for unit, share in zip(kept, shares(list(map(len, kept)), method.target)):
            left = int(share * len(unit))
            wanted += flops_of(c, len(unit), length + len(unit), len(unit))
            wanted += flops_of(c, left, length + left) + flops_of(c, 1, length + left + 1)
            length += left + 1
    texts = method.compress(prepared.texts, question)
    assert len(texts) == len(answer.nodes)
    assert answer.flops == wanted + reading(tiny, settings, question, texts, answer)
