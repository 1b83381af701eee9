"""The compared methods of Table 1: retrieval, trees, walks, compression, the reader that they share, and FLOPs by hand.

Their numbers are compared with the packages that define them: rank_bm25, scikit-learn, umap-learn, Hugging Face.
"""
import copy
import json
import random
import re
import textwrap
from dataclasses import replace
from itertools import chain, groupby
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import rank_bm25
import sklearn.mixture
import torch
from hypothesis import strategies as st
from speaker import Script, generations

import pecan
from baselines import longllmlingua, memwalker, raptor
from baselines.agent import TreeNode
from baselines.bm25 import BM25, Okapi, words
from baselines.common import pack_paragraphs, pack_sentences
from baselines.dense import Dense
from baselines.longllmlingua import LongLLMLingua, shares
from baselines.memwalker import MeMWalker
from baselines.raptor import Raptor
from core.files import InputError
from core.settings import Settings
from data import Document, Prepared
from llama import Llama, flops_of
from support.token_mean import TokenMean
from tiny.world import make_world


@pytest.fixture
def encoder(tiny):
    return TokenMean(tiny)


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
    scores = rank_bm25.BM25Okapi([words(text) for text in document.passages]).get_scores(["where", "lives", "ann"])
    wanted = np.argsort(-scores, kind="stable")[:5].tolist()
    assert method.answer(method.prepare(document), "Where lives Ann?").nodes == wanted == [2, 1, 0, 7, 3]
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
    before = tiny.flops + questions.flops
    answer = method.answer(prepared, question)
    assert answer.nodes == np.argsort(-(vectors[:-1] @ vectors[-1]))[:5].tolist()
    assert answer.flops == tiny.flops + questions.flops - before
    assert prepared.texts == BM25(tiny, settings).prepare(document).texts
    assert prepared.texts == pecan.chunks(tiny.tokenizer, document, 24), "the chunks of PECAN"


# --- the reader -----------------------------------------------------------------------------------------------------

def test_the_reader_reads_what_pecan_would(tiny, settings, question, spy):
    """The prompt equals that of a search that has read the same texts as nodes. The cache has room for the answer."""
    tokenizer = tiny.tokenizer
    prompt = pecan.question_prompt(tokenizer, question)
    for text in ("Bob lives in Rome.", "Ann has a cat."):
        prompt += pecan.node_line(tokenizer, None, text)
    prompt += pecan.answer_turn(tokenizer, tokenizer.first("Yes"))

    reads = spy("read", tiny)
    texts = ["Ann has a cat.", "Bob  lives\nin Rome."]
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


# --- cutting a document ---------------------------------------------------------------------------------------------

class Words:
    """A tokenizer whose tokens are words, punctuation marks and newlines."""
    def encode(self, text):
        return re.findall(r"\w+|[^\w ]", text)


@pytest.mark.parametrize("pack, limit", [(pack_paragraphs, 600), (pack_paragraphs, 250), (pack_sentences, 150)])
@pytest.mark.parametrize("wrapped", [False, True], ids=["paragraphs with titles", "hard line breaks"])
def test_no_chunk_ends_after_a_title_or_inside_a_sentence(pack, limit, wrapped):
    """The document is ten paragraphs of HotpotQA, as they are or as one text with headings and lines of 60 letters."""
    rows = json.loads((Path(__file__).parents[1] / "hotpotqa_3.json").read_text(encoding="utf-8"))
    paragraphs = [(title, "".join(parts)) for row in rows for title, parts in row["context"]]
    passages = list(map("\n".join, paragraphs))
    if wrapped:
        passages = ["\n\n".join(f"{title}\n\n{textwrap.fill(text, 60)}" for title, text in paragraphs)]
    chunks = pack(Words(), Document("d", passages), limit)
    assert " ".join(chunks).split() == " ".join(passages).split()
    assert len(chunks) > 1 and all(len(Words().encode(chunk)) <= limit for chunk in chunks)
    ends = {" ".join(text.split())[-40:] for _, text in paragraphs}
    for chunk in map(" ".join, map(str.split, chunks)):
        assert chunk[-40:] in ends or re.search(r"[.!?]$", chunk), chunk[-80:]


# --- RAPTOR ---------------------------------------------------------------------------------------------------------

def test_mixture_has_the_least_bic_and_soft_members(spy):
    """There are two clouds of points. One more point lies between them and belongs to both clusters."""
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(-1, .4, (50, 2)), rng.normal(1, .4, (50, 2)), [[0, 0]]])

    # We score the fitted mixtures again, but do not fit them again, which would take seconds.
    fits = spy("fit", sklearn.mixture.GaussianMixture)
    found = raptor.mixture(points)
    assert [(mixture.n_components, mixture.random_state) for (mixture, _), _ in fits] == [(n, 0) for n in range(1, 50)]
    assert all(fitted is points for (_, fitted), _ in fits)

    best = min((mixture for _, mixture in fits), key=lambda mixture: mixture.bic(points))
    probability = best.predict_proba(points)
    assert sorted(found) == sorted(np.flatnonzero(column > .1).tolist() for column in probability.T)
    assert len(found) == 2 and all(100 in cluster for cluster in found)


def test_a_node_that_belongs_nowhere_keeps_its_likeliest_cluster(monkeypatch):
    """Twenty components share each of 21 points evenly, so that no probability is above 0.1."""
    flat = type("Flat", (), {"__init__": lambda self, n, random_state: setattr(self, "n", n),
                             "fit": lambda self, points: self, "bic": lambda self, points: -self.n,
                             "predict_proba": lambda self, points: np.full((len(points), self.n), 1 / self.n)})
    monkeypatch.setattr(sklearn.mixture, "GaussianMixture", flat)
    assert raptor.mixture(np.zeros((21, 2))) == [list(range(21))]


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
        assert set(chain(*found)) == set(range(20))
    assert raptor.clusters(np.ones((40, 16)), [10] * 40, 100) == [list(range(n, n + 10)) for n in range(0, 40, 10)]


def test_clusters_inside_of_clusters(monkeypatch):
    """A cluster of more than 11 nodes is clustered inside. What then has too many tokens is clustered again, or cut in
    order if it has 11 nodes or fewer. Here three mixtures are given; UMAP and real ones would take half a minute."""
    heard = []
    monkeypatch.setattr(raptor, "reduce", lambda vectors, neighbours: heard.append((len(vectors), neighbours)))
    given = [[range(14), range(14, 25), range(25, 30)], [range(2), range(2, 14)], [range(6), range(6, 12)]]
    monkeypatch.setattr(raptor, "mixture", lambda points: given.pop(0))
    found = raptor.clusters(np.zeros((30, 2)), [10] * 30, 100)
    ends = [0, 2, 8, 14, 24, 25, 30]
    assert found == [list(range(start, end)) for start, end in zip(ends, ends[1:])]
    assert heard == [(30, 5), (14, 10), (12, 3)], "int(sqrt(n - 1)) neighbours, inside a cluster 10"


@pytest.mark.slow
def test_raptors_tree(tiny, settings, encoder, tmp_path, spy):
    """Every chunk can be reached from the top, layers end, and each summary is made from its children. A tree that is
    built again or read from its file is the same."""
    long = Document("three layers", make_world(random.Random(4), 10, new=True).passages)
    method = Raptor(tiny, encoder, settings)
    asked = spy("say", method)
    prepared = method.prepare(long, tmp_path / "tree.json")
    nodes = prepared.graph
    layers = [list(layer) for _, layer in groupby(nodes, key=lambda node: node.level)]
    *below, top = map(len, layers)
    assert len(layers) >= 3 and top <= 11 < min(below)
    assert [node.text for node in layers[0]] == pack_sentences(tiny.tokenizer, long, 8)
    assert {child for node in nodes for child in node.children} == set(range(len(nodes) - top))

    prompts = []
    for node in chain(*layers[1:]):
        children = [nodes[j] for j in node.children]
        assert {child.level for child in children} == {node.level - 1}
        assert sum(len(tiny.tokenizer.encode(f"\n\n{child.text}")) for child in children) <= method.most
        prompts.append(raptor.PROMPT.format("\n\n".join(child.text for child in children)))
    assert [text for (texts, limit), _ in asked for text in texts] == prompts

    for path in (None, tmp_path / "tree.json"):              # build it again, then read its file
        again = Raptor(tiny, encoder, settings).prepare(long, path)
        assert (again.graph, again.flops) == (nodes, prepared.flops) and torch.equal(again.index, prepared.index)


def test_raptor_ends_after_five_layers_of_summaries(tiny, encoder, settings, document, monkeypatch):
    """Building ends even if clustering makes no layer smaller."""
    monkeypatch.setattr(raptor, "clusters", lambda vectors, *_: [[i] for i in range(len(vectors))])
    method = Raptor(tiny, encoder, settings)
    method.say = lambda texts, limit: [" a\nroad"] * len(texts)
    nodes = method.prepare(document).graph
    chunks = sum(node.level == 1 for node in nodes)
    assert [node.level for node in nodes] == [level for level in range(1, 7) for _ in range(chunks)]
    assert {node.text for node in nodes[chunks:]} == {"a road"}


def test_a_cluster_of_raptor_fits_its_prompt(tiny, encoder):
    """It has up to 3500 tokens, fewer if the window has no room for prompt and summary."""
    method = Raptor(tiny, encoder, Settings())
    assert method.most == 3500 and Raptor(tiny, encoder, Settings(chunk=150)).most == 1750
    assert Raptor(tiny, encoder, Settings(window=1000)).most == 1000 - method.length(raptor.PROMPT) - 100


def test_traversal_and_collapsed_tree(tiny, encoder, settings):
    """The tree has chunks 0 to 3, summaries 4 to 6, and roots 7 and 8."""
    children = [[]] * 4 + [[0, 1], [1, 2], [3], [4, 5], [6]]
    nodes = [TreeNode(level, "", below) for level, below in zip([1, 1, 1, 1, 2, 2, 2, 3, 3], children)]
    scores = [.1, .9, .2, .8, .3, .7, .75, .5, .4]
    for top_k, collapsed, wanted in ((3, True, [1, 3, 6]), (1, False, [7, 5, 1]), (2, False, [7, 8, 6, 5, 1, 3])):
        assert Raptor(tiny, encoder, settings, top_k, collapsed).retrieve(nodes, scores) == wanted


def test_what_names_the_file_of_a_tree(tiny, model, settings, encoder, document):
    """The name depends on document, method, model, lengths and the encoder that clusters, because the tree does."""
    def name(method=Raptor, model=tiny, others=(encoder,), document=document, **changes):
        return method(model, *others, replace(settings, **changes)).file_name(document)
    assert len({name(), name(document=Document("d", ["x"])), name(MeMWalker, others=()), name(model=model),
                name(chunk=31), name(window=500), name(others=[TokenMean(model)])}) == 7
    assert name() == name(confidence=.9, batch=1), "settings of a search change no tree"


# --- MeMWalker ------------------------------------------------------------------------------------------------------

def test_memwalkers_tree(tiny, settings, tmp_path):
    """The tree has segments, a summary of each, parents of up to 8 neighbours, and one root. An empty summary is the
    beginning of its text. A file that is damaged or belongs to another document is refused."""
    document = Document("d", [f"Page {n}" + " road" * 74 for n in range(9)])
    path = tmp_path / "tree.json"
    method = MeMWalker(tiny, replace(settings, window=10_000))
    segments = pack_sentences(tiny.tokenizer, document, 1000 * 24 // 300)
    n = len(segments)
    left, right = range(n // 2), range(n // 2, n)
    said = [f"s{i} road road road road" for i in range(n)]
    script = Script(method, *said, "left", "  ", " the\n root ")
    nodes = method.prepare(document, path).graph
    assert script.heard[:n] == [memwalker.SEGMENT.format(segment) for segment in segments]
    assert script.heard[n + 1] == memwalker.SUMMARIES.format("\n\n".join(said[i] for i in right))

    start = nodes[-2].text
    assert " ".join(said[i] for i in right).startswith(start) and len(tiny.tokenizer.encode(f" {start}")) == 16
    assert nodes == [*(TreeNode(1, text, []) for text in segments), *(TreeNode(2, said[i], [i]) for i in range(n)),
                     TreeNode(3, "left", [n + i for i in left]), TreeNode(3, start, [n + i for i in right]),
                     TreeNode(4, "the root", [2 * n, 2 * n + 1])]
    assert [[len(group) for group in memwalker.even_groups(range(m))] for m in (8, 9, 17)] == [[8], [4, 5], [5, 6, 6]]

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
    def go(*replies):
        method = MeMWalker(tiny, Settings(window=10_000))
        script = Script(method, *replies)
        path = method.walk(TOWN, "who?", [8])
        assert not script.replies
        return path, script.heard
    return go


def test_a_walk_straight_to_the_answer(walk, tiny, settings):
    """The last action of a reply counts: a model that compares its choices names several. The reader gets the segment,
    then the nodes on the way to it, the last first, without the segment's own summary."""
    path, (first, second, leaf) = walk("Action: 1 would do\nAction: 0", "Action: 1", "Reasoning: ok\nAction: -2")
    assert path == [8, 6, 4, 1]
    assert "Summary 0: left\nSummary 1: right" in first and "0 to 1" in first and "read on the way" not in first
    assert "Summary 0: sum0\nSummary 1: sum1" in second and "read on the way: root\n" in second
    assert "seg1" in leaf and "sum1" not in leaf and "read on the way: root left\n" in leaf and "-1 or -2" in leaf

    method = MeMWalker(tiny, settings)
    method.walk = lambda *_: path
    assert method.answer(Prepared([node.text for node in TOWN], graph=TOWN), "Who?").nodes == [1, 6, 8]


def test_a_walk_turns_back(walk):
    """-1 leads back to the parent and its remaining children. If none remain, the walk goes up once more."""
    path, prompts = walk("Action: 0", "Action: 1", "Action: -1", "Action: 0", "Action: -1", "Action: 0", "Action: 0",
                         "Action: -2")
    assert path == [8, 7, 5, 2]
    assert "Summary 0: sum0" in prompts[3] and "sum1" not in prompts[3] and "from 0 to 0" in prompts[3]
    assert "Summary 0: right" in prompts[5] and "left" not in prompts[5].split("Question")[1]
    down_and_back = ["Action: 0", "Action: -1"]
    assert walk("Action: 0", *down_and_back * 2, "Action: 0", *down_and_back)[0] == [], "there is no answer anywhere"


# --- LongLLMLingua --------------------------------------------------------------------------------------------------

@hypothesis.given(st.lists(st.integers(1, 300), min_size=1, max_size=30), st.floats(0, 1))
def test_shares_keep_the_target(lengths, part):
    target = int(part * sum(lengths))
    kept = shares(lengths, target)
    total = sum(share * length for share, length in zip(kept, lengths))
    assert target - 1e-6 * len(lengths) <= total <= target + 1e-6
    assert kept == sorted(kept, reverse=True) and 0 <= kept[-1] and kept[0] <= 1
    assert shares([100] * 3, 150) == pytest.approx([.8, .5, .2]), "+0.3, 0, -0.3"


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


def test_dropping_equals_hugging_face(tiny, tiny_hf, settings, document, question):
    """The same tokens are kept. Windows are shorter than a unit, and each is scored after the tokens kept before it.

    Both run in float64, because contrasts of the embedded model can differ by less than the rounding of float32."""
    tokenizer = tiny.tokenizer
    tiny_hf = copy.deepcopy(tiny_hf).double()
    method = LongLLMLingua(tiny, Llama.load(tiny.folder, "cpu", "float64"), settings)
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


def test_compression_keeps_within_its_target(tiny, settings, document, spy):
    """Each kept text is a subsequence of its unit, the best unit first. Units that fit are not compressed."""
    encode = tiny.tokenizer.encode
    method = LongLLMLingua(tiny, tiny, settings)
    rankings, drops = spy("rank", method), spy("drop", method)
    units = method.prepare(document).texts
    texts = method.compress(units, "Who?")
    assert method.target // 2 < sum(len(encode(text)) for text in texts) <= method.target == 160

    [(_, perplexity)] = rankings
    kept = [encode(units[i]) for i in np.argsort(perplexity, kind="stable")]
    totals = np.cumsum(list(map(len, kept)))
    assert drops[0][0][0] == kept[:(totals <= 168).sum() + 1], "up to the unit that exceeds 2100 tokens"
    for text, unit in zip(texts, kept):
        left = iter(unit)
        assert all(token in left for token in encode(text))

    method.target = sum(len(encode(unit)) for unit in units[:2])
    assert method.compress(units[:2], "Who?") == units[:2] and len(rankings) == 1
    method.target -= 1
    assert method.compress(units[:2], "Who?") != units[:2] and len(rankings) == 2


def test_a_scorer_is_read_no_further_than_it_was_made_for(tiny, settings, document, question, folder):
    short = Llama.load(folder, "cpu")
    short.config = replace(short.config, max_length=100)
    method = LongLLMLingua(tiny, short, settings)
    with pytest.raises(InputError, match="was made for 100; choose another --scorer"):
        method.answer(method.prepare(document), question)


def test_units_are_four_lines(tiny, settings):
    """The scorer counts their tokens. A unit has no more of them than a chunk."""
    method = LongLLMLingua(tiny, tiny, settings)
    method.scorer = copy.copy(tiny)
    method.scorer.tokenizer = Words()
    texts = method.prepare(Document("d", ["a\nb\n\nc", "d\ne", "f " * 40])).texts
    assert texts == ["a b c d", "e " + " ".join(["f"] * 23), " ".join(["f"] * 17)]


# --- FLOPs by hand --------------------------------------------------------------------------------------------------

@pytest.mark.slow
def test_flops_of_trees(tiny, encoder, settings, document, question, monkeypatch):
    """FLOPs count summaries, walks and the reader. For each vector of a text or question they count the product with
    the whitening matrix. The walk ends without an answer after three replies that name no action."""
    document = replace(document, passages=document.passages[:8])
    whitening = 2 * tiny.config.width ** 2
    said = generations(tiny, monkeypatch)
    for method, vectors, calls in ((Raptor(tiny, encoder, settings), 1, 1), (MeMWalker(tiny, settings), 0, 3)):
        said.clear()
        prepared = method.prepare(document)
        assert said and prepared.flops == sum(flops for flops, _ in said) + vectors * len(prepared.texts) * whitening
        said.clear()
        answer = method.answer(prepared, question)
        assert len(said) == calls and answer.end == ("none" if calls == 3 else "read")
        assert answer.flops == sum(flops for flops, _ in said) + vectors * whitening
        assert answer.tokens == sum(tokens for _, tokens in said)


@pytest.mark.parametrize("own", [False, True])
def test_flops_of_compression(tiny, model, settings, document, question, spy, monkeypatch, own):
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
    rankings = spy("rank", method)
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
