"""The compared methods of Table 1: retrieval, trees, walks, compression, the reader that they share, and FLOPs.

Their numbers are compared with the packages that define them: rank_bm25, scikit-learn, umap-learn, Hugging Face.
"""
import copy
import re
import textwrap
from collections import Counter
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import numpy as np
import pytest
import rank_bm25
import sklearn.mixture
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from speaker import Script, said

import pecan
from baselines import memwalker, raptor
from baselines.agent import TreeNode
from baselines.bm25 import BM25, Okapi
from baselines.common import NOTHING, pack_paragraphs, pack_sentences, units
from baselines.dense import Dense
from baselines.longllmlingua import LongLLMLingua, shares
from baselines.memwalker import MeMWalker
from baselines.raptor import Raptor
from core.files import InputError
from core.settings import Settings
from core.text import sentences, split, words
from data import Document, Prepared
from encoders.token_mean import TokenMean
from evaluation.datasets import Dataset
from llama import Llama, ids_of


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
    assert Okapi([[], []]).scores(query) == [0, 0], "no text has a word"


def test_bm25_reads_the_best_first(tiny, settings):
    """Of equal chunks the earlier is first. Case and punctuation make no difference."""
    texts = ["Ann has a cat.", "Bob lives in Rome.", "Ann lives in Paris.", "It rained.", "Rome!", "Cleo has a dog.",
             "The road was long.", "Ann has a cat."]
    prepared = Prepared(texts, index=Okapi(list(map(words, texts))))
    assert BM25(tiny, settings).answer(prepared, "where LIVES ann?").nodes == [2, 1, 0, 7, 3]


# Three texts; the question asks about the third. Thai vowels and decomposed accents are marks; Devanagari has both.
SCRIPTS = {
    "Chinese": ("山上的风很大。", "商人带来了盐。", "王丽在一九二一年搬到青岛，住在市场旁边。", "王丽哪一年搬到青岛？"),
    "Japanese": ("山の風が強い。", "商人は塩を運んだ。", "花子は1921年に青森へ引っ越した。", "花子はいつ青森へ？"),
    "Thai": ("ลมบนภูเขาแรงมาก", "พ่อค้านำเกลือมา", "มาลีย้ายไปเชียงใหม่ในปี ๒๔๖๔", "มาลีย้ายไปเชียงใหม่เมื่อไร"),
    "accents": ("The wind is strong.", "One brought salt.", "Rene\u0301 came to Orle\u0301ans.", "Who saw RENÉ?"),
    "Hindi": ("हवा तेज है।", "व्यापारी नमक लाया।", "मीना १९२१ में दिल्ली गई।", "मीना दिल्ली कब गई?"),
    "full width": ("The wind.", "Salt.", "ＲＯＭＥ １９２１", "Rome 1921?")}


@pytest.mark.parametrize("texts", SCRIPTS.values(), ids=SCRIPTS)
def test_words_of_any_script(texts):
    *texts, question = map(words, texts)
    scores = Okapi(texts).scores(question)
    assert scores[2] > max(scores[:2]) and all(texts)


@hypothesis.given(st.text("ab _1.,?!'-\n"))
def test_words_of_plain_english_are_those_of_python(text):
    assert words(text) == re.findall(r"\w+", text.lower())


@pytest.mark.parametrize("between, wanted", [
    ("\n", ["Who?", "She left!", "It has 3.5 points.", "Mr"]),
    ("", ["山上的风。", "盐……", "真的吗?", "「是的。」", "王丽"]),
    (" ", ["मीना दिल्ली गई।", "हवा तेज है।"]), (" ", ["هل رأيت ذلك؟", "نعم۔"])])
def test_sentences_of_any_script(between, wanted):
    """A sentence ends with its quotes and brackets; scripts without blanks need none behind it. Lines are joined."""
    assert sentences(between.join(wanted)) == wanted


@pytest.mark.parametrize("unit", [True, False])
def test_dense_reads_what_numpy_ranks(tiny, settings, document, question, unit):
    """Unit vectors (SBERT) are ranked by the cosine, others (Dragon) by the dot product. The FLOPs of both encoders
    count."""
    questions, passages = TokenMean(tiny, unit), TokenMean(tiny, unit)
    settings = replace(settings, chunk=20)
    method = Dense(tiny, questions, passages, settings)
    prepared = method.prepare(document)
    assert prepared.flops == passages.flops > 0
    assert prepared.texts == BM25(tiny, settings).prepare(document).texts == split(
        tiny.tokenizer, "\n".join(document.passages), 20)

    *vectors, query = TokenMean(tiny, unit=False).encode([*prepared.texts, question]).double().numpy()
    length = np.linalg.norm(vectors, axis=1) if unit else 1
    before = tiny.flops
    answer = method.answer(prepared, question)
    assert answer.nodes == np.argsort(-(vectors @ query) / length)[:5].tolist()
    assert answer.flops == tiny.flops - before + questions.flops


# --- the reader -----------------------------------------------------------------------------------------------------

def test_the_reader_reads_what_pecan_would(tiny, settings, question):
    """The prompt equals that of a search that has read the same texts as nodes. A text that just fits is read; with one
    token more, the next best is read instead. If none of the texts fits, that is an error."""
    t = tiny.tokenizer
    start = pecan.question_prompt(t, question)
    room = pecan.room_for_nodes(t, start, question, settings) - 2         # a line has two more tokens, "\n*"
    method = BM25(tiny, settings)
    texts = ["Ann has a cat.", "Bob  lives\nin Rome.", "road " * room, "road " * (room + 1)]
    for order, read in (([1, 0], [1, 0]), ([2, 0], [2]), ([3, 0], [0]), ([], [])):
        lines = [pecan.node_line(t, None, " ".join(texts[i].split())) for i in read]
        prompt = [*start, *chain(*lines), *pecan.answer_turn(t, t.first("Yes"))]
        reading = method.reading_of_best(question, texts, order)
        assert (reading.nodes, ids_of(reading.prompt)) == (read, ids_of(prompt))
    with pytest.raises(InputError, match="too small"):
        method.reading_of_best(question, texts, [3])


# --- cutting a document ---------------------------------------------------------------------------------------------

# A tokenizer whose tokens are words, punctuation marks and newlines.
WORDS = SimpleNamespace(encode=re.compile(r"\w+|[^\w ]").findall)


@pytest.mark.parametrize("pack, limit", [(pack_paragraphs, 600), (pack_paragraphs, 125), (pack_sentences, 150)])
@pytest.mark.parametrize("wrapped", [False, True], ids=["paragraphs with titles", "hard line breaks"])
def test_no_chunk_ends_after_a_title_or_inside_a_sentence(pack, limit, wrapped):
    """The document is ten paragraphs of HotpotQA, as they are or as one text with headings and lines of 60 letters."""
    path = Path(__file__).parents[1] / "hotpotqa_3.json"
    passages = [passage for document in Dataset(path).documents for passage in document.passages]
    ends = {passage.split()[-1] for passage in passages}
    if wrapped:
        passages = ["\n\n".join(textwrap.fill(part, 60) for passage in passages for part in passage.split("\n"))]
    chunks = pack(WORDS, Document("d", passages), limit)
    assert " ".join(chunks).split() == " ".join(passages).split()
    assert len(chunks) > 1 and max(map(len, map(WORDS.encode, chunks))) <= limit
    assert not [chunk for chunk in chunks if chunk.split()[-1] not in ends and chunk[-1] not in ".!?"]
    assert units(Document("d", ["Ann\n\nShe left.\n\nWhy?", "Bob"])) == ["Ann\nShe left.", "Why?", "Bob"]


# --- RAPTOR ---------------------------------------------------------------------------------------------------------

def test_mixture_has_the_least_bic_and_soft_members(spy, monkeypatch):
    """There are two clouds of points. One more point lies between them and belongs to both clusters. If no probability
    were high enough, it would belong to the likelier."""
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(-1, .4, (50, 2)), rng.normal(1, .4, (50, 2)), [[0, 0]]])

    # We score the fitted mixtures again, but do not fit them again, which would take seconds.
    fits = spy("fit", sklearn.mixture.GaussianMixture)
    found = raptor.mixture(points)
    mixtures = [mixture for _, mixture in fits]
    assert [(mixture.n_components, mixture.random_state) for mixture in mixtures] == [(n, 0) for n in range(1, 50)]
    probability = min(mixtures, key=lambda mixture: mixture.bic(points)).predict_proba(points)
    assert found == [np.flatnonzero(column > .1).tolist() for column in probability.T]
    assert len(found) == 2 and all(100 in cluster for cluster in found)
    monkeypatch.setattr(raptor, "MEMBER", 1)
    assert raptor.mixture(points) == [np.flatnonzero(probability.argmax(1) == n).tolist() for n in range(2)]


@pytest.mark.slow
def test_reduction_is_umap():
    import umap
    vectors = np.random.default_rng(0).normal(size=(20, 16))
    reference = umap.UMAP(n_neighbors=4, n_components=10, metric="cosine", init="pca", random_state=0, n_jobs=1)
    points = raptor.reduce(vectors, 4)
    assert np.array_equal(points, reference.fit_transform(vectors))
    assert points.dtype == np.float64, "in float32 a mixture cannot separate points that are close together"


def test_texts_that_are_the_same_are_cut_in_order():
    assert raptor.clusters(np.ones((40, 16)), [10] * 40, 100) == [list(range(n, n + 10)) for n in range(0, 40, 10)]


def test_clusters_inside_of_clusters(monkeypatch):
    """A cluster of more than 11 nodes is clustered inside. What then has too many tokens is clustered again, or cut in
    order if it has 11 nodes or fewer. Here three mixtures are given; UMAP and real ones would take half a minute."""
    heard = []
    monkeypatch.setattr(raptor, "reduce", lambda vectors, neighbours: heard.append((len(vectors), neighbours)))
    given = [[range(14), range(14, 25), range(25, 36)], [range(2), range(2, 14)], [range(6), range(6, 12)]]
    monkeypatch.setattr(raptor, "mixture", lambda points: given.pop(0))
    found = raptor.clusters(np.zeros((36, 2)), [10] * 36, 100)
    assert found == [[*range(*ends)] for ends in pairwise([0, 2, 8, 14, 24, 25, 35, 36])]
    assert heard == [(36, 5), (14, 10), (12, 3)], "int(sqrt(n - 1)) neighbours, inside a cluster 10"


@pytest.mark.parametrize("size, small, layers", [(4, 11, [94, 24, 6]), (4, 24, [94, 24]), (1, 11, [94] * 6)])
def test_raptors_tree(tiny, settings, encoder, document, tmp_path, monkeypatch, size, small, layers):
    """Each summary is made from its children, up to a layer of `small` nodes or fewer. If clustering makes no layer
    smaller, there are five layers of summaries. Clusters are `size` neighbours here. The file has the same tree."""
    monkeypatch.setattr(raptor, "SMALL", small)
    monkeypatch.setattr(raptor, "clusters", lambda vectors, *_: [
        list(range(len(vectors)))[first:first + size] for first in range(0, len(vectors), size)])
    method = Raptor(tiny, encoder, settings)
    script = Script(method, *(f"road {n}" for n in range(sum(layers[1:]))))
    nodes = method.prepare(document, tmp_path / "tree.json").graph
    assert list(Counter(node.level for node in nodes).items()) == list(enumerate(layers, 1))
    assert [node.text for node in nodes[:94]] == pack_sentences(tiny.tokenizer, document, 8)
    assert script.heard == [raptor.PROMPT.format("\n\n".join(nodes[j].text for j in node.children))
                            for node in nodes[94:]]
    assert [j for node in nodes for j in node.children] == list(range(len(nodes) - layers[-1]))
    assert method.prepare(document, tmp_path / "tree.json").graph == nodes
    encoder.fingerprint = "other"
    with pytest.raises(InputError, match="of another encoder"):
        method.prepare(document, tmp_path / "tree.json")


def test_a_cluster_of_raptor_fits_its_prompt(tiny, encoder):
    """It has up to 3500 tokens (at chunks of 300), fewer if the window has no room for prompt and summary."""
    method = Raptor(tiny, encoder, Settings(window=1000))
    assert method.most == 1000 - method.length(raptor.PROMPT) - 100
    assert Raptor(tiny, encoder, Settings(chunk=150)).most == 1750


def test_traversal_and_collapsed_tree(tiny, encoder, settings):
    """The tree has chunks 0 to 3, summaries 4 to 6, and roots 7 and 8. Chunk 1 has two parents and is read once."""
    children = [[]] * 4 + [[0, 1], [1, 2], [3], [4, 5], [6]]
    nodes = list(map(TreeNode, [1, 1, 1, 1, 2, 2, 2, 3, 3], [""] * 9, children))
    scores = [.1, .9, .2, .8, .3, .7, .75, .5, .4]
    for top_k, collapsed, wanted in ((3, True, [1, 3, 6]), (1, False, [7, 5, 1]), (3, False, [7, 8, 6, 5, 4, 1, 3, 2])):
        assert Raptor(tiny, encoder, settings, top_k, collapsed).retrieve(nodes, scores) == wanted


# --- MeMWalker ------------------------------------------------------------------------------------------------------

def test_memwalkers_tree(tiny, settings):
    """The tree has segments, a summary of each, parents of up to 8 neighbours, and one root. An empty summary is the
    beginning of its text."""
    document = Document("d", [f"Page {n}" + " road" * 74 for n in range(9)])
    method = MeMWalker(tiny, replace(settings, window=10_000))
    texts = [f"{letter} road road road road" for letter in "abcdefghi"]
    left, right = "\n\n".join(texts[:4]), "\n\n".join(texts[4:])
    script = Script(method, *texts, "left", "  ", said(" the\n root ", cut=True))
    prepared = method.prepare(document)
    assert prepared.counts == {"calls": 12, "refused": 1, "dropped": 0, "cut": 1}
    start = split(tiny.tokenizer, right, method.limit)[0]
    assert len(start) < len(right)
    assert script.heard == [*map(memwalker.SEGMENT.format, document.passages),
                            *map(memwalker.SUMMARIES.format, (left, right, f"left\n\n{start}"))]
    assert prepared.texts == [*document.passages, *texts, "left", start, "the root"]
    assert [(node.level, node.children) for node in prepared.graph] == [
        *[(1, [])] * 9, *((2, [i]) for i in range(9)), (3, [*range(9, 13)]), (3, [*range(13, 18)]), (4, [18, 19])]
    assert [[len(group) for group in memwalker.even_groups(range(m))] for m in (8, 17)] == [[8], [5, 6, 6]]


# Segments 0 to 2, their summaries 3 to 5, inner nodes 6 (over 3 and 4) and 7 (over 5), root 8.
TOWN = list(map(TreeNode, [1, 1, 1, 2, 2, 2, 3, 3, 4], "seg0 seg1 seg2 sum0 sum1 sum2 left right root".split(),
                [[], [], [], [0], [1], [2], [3, 4], [5], [6, 7]]))


@pytest.mark.parametrize("actions, read, shown", [
    # an action that is not offered is refused; the last one of a reply counts: a model that compares names several
    ("2 > 1 would do\naction: **0** > 1 > -2", [1, 6, 8],
     {1: "left right 0 to 1", 2: "root sum0 sum1 0 to 1", 3: "root left seg1"}),
    # -1 leads back to the parent and its remaining children; if none remain, the walk goes up once more
    ("0 > 1 > -1 > 0 > -1 > 0 > 0 > -2", [2, 7, 8], {3: "root sum0 0 to 0", 4: "root left seg0", 5: "right 0 to 0"}),
    # there is no answer anywhere
    ("0 > 0 > -1 > 0 > -1 > 0 > 0 > -1", [], {}),
    # two replies in a row without an action that is offered, at a segment
    ("0 > 0 > 7 > 7", [], {}), ("0 > 0 > -1 or -2 > **-1** or **-2**", [], {})])
def test_walks(tiny, actions, read, shown):
    """What is read after a walk through TOWN, and the nodes and actions that some prompts show.

    The segment is read, then the nodes on the way to it, the last first, without the segment's own summary."""
    method = MeMWalker(tiny, Settings(window=10_000))
    script = Script(method, *(f"Reasoning: ok\nAction: {action}" for action in actions.split(" > ")))
    answer = method.answer(Prepared([node.text for node in TOWN], graph=TOWN), "who?")
    assert answer.nodes == read and (answer.end == NOTHING) == (not read) and not script.replies
    for n, wanted in shown.items():
        assert " ".join(re.findall(r"root|left|right|sum\d|seg\d|\d to \d", script.heard[n])) == wanted


def test_of_a_memory_that_does_not_fit_the_oldest_is_left_out(tiny, settings):
    method = MeMWalker(tiny, settings)
    method.ask_fitting = lambda texts, _: [[re.findall("root|left|late", text) for text in texts]]
    assert method.choose(memwalker.TRIAGE, "?", ["root", "left", "late"], "x", ["0"]) == [
        ["root", "left", "late"], ["left", "late"], ["late"], []]


# --- LongLLMLingua --------------------------------------------------------------------------------------------------

@hypothesis.given(st.lists(st.integers(1, 300), min_size=1, max_size=30), st.floats(0, 1))
def test_shares_keep_the_target(lengths, part):
    target = int(part * sum(lengths))
    kept = shares(lengths, target)
    total = sum(share * length for share, length in zip(kept, lengths))
    assert target - 1e-6 * len(lengths) <= total <= target + 1e-6
    assert kept == sorted(kept, reverse=True) and 0 <= kept[-1] and kept[0] <= 1
    assert shares([100] * 3, 150) == pytest.approx([.8, .5, .2]), "+0.3, 0, -0.3"


def losses_of(hf, before, ids):
    """-log p of each of these ids, after those before them, by Hugging Face."""
    with torch.no_grad():
        logits = hf(torch.tensor([before + ids])).logits[0, len(before) - 1:-1]
        return F.cross_entropy(logits.double(), torch.tensor(ids), reduction="none")


def test_ranking_equals_hugging_face(tiny, tiny_hf, settings, document, question, monkeypatch):
    """Both run in float32. Units of different lengths in one batch get the same values as alone. If the scorer has no
    BOS, a line feed is before the unit."""
    tokenizer = tiny.tokenizer
    method = LongLLMLingua(tiny, tiny, replace(settings, batch=16))
    units = [tokenizer.encode(unit) for unit in method.prepare(document).texts]
    assert len(units) > method.batches.rows

    asked = tokenizer.encode("\n" + question + " We can get the answer to this question in the given documents.")
    wanted = [losses_of(tiny_hf, tokenizer.bos + unit, asked).mean().item() for unit in units]
    assert method.rank(units, question) == pytest.approx(wanted, rel=1e-5)
    monkeypatch.setattr(tokenizer, "special_names", {})
    assert LongLLMLingua(tiny, tiny, settings).start == tokenizer.encode("\n")


def test_dropping_equals_hugging_face(tiny, tiny_hf, settings, document, question):
    """The same tokens are kept. Windows are shorter than a unit, and each is scored after the tokens kept before it.

    Both run in float64, because contrasts of the embedded model can differ by less than the rounding of float32."""
    tokenizer = tiny.tokenizer
    tiny_hf = copy.deepcopy(tiny_hf).double()
    reader = copy.copy(tiny)
    reader.tokenizer = None                                  # the tokens are the scorer's
    method = LongLLMLingua(reader, Llama.load(tiny.folder, "cpu", "float64"), settings)
    units = [tokenizer.encode(unit) for unit in method.prepare(document).texts[:4]]
    method.target = sum(map(len, units)) // 4

    newline = tokenizer.encode("\n")
    contexts = [tokenizer.bos, [*tokenizer.bos, *tokenizer.encode(question), *newline]]
    wanted = []
    for unit, share in zip(units, shares(list(map(len, units)), method.target)):
        left = []
        for first in range(0, len(unit), 16):                  # 200 tokens at chunks of 300
            ids = unit[first:first + 16]
            alone, given = (losses_of(tiny_hf, context, ids) for context in contexts)
            best = (alone - given).argsort(descending=True)[:int(share * len(ids))].tolist()
            kept = [ids[i] for i in sorted(best)]
            left += kept
            contexts = [context + kept for context in contexts]
        contexts = [context + newline for context in contexts]
        wanted.append(tokenizer.decode(left).strip())

    assert "" in wanted and method.drop(units, question) == [text for text in wanted if text]


class Bytes:
    """A tokenizer whose tokens are bytes, so that a character has up to four."""
    bos = []

    def encode(self, text):
        return list(text.encode())

    def decode(self, ids):
        return bytes(ids).decode(errors="replace")

    def spans(self, ids):
        ends = accumulate(token & 0xC0 != 0x80 for token in ids)               # the first byte of a character
        return self.decode(ids), [(end - 1, end) for end in ends]


@hypothesis.settings(max_examples=25)
@hypothesis.given(st.text("a \n字盐山ก็ñ🐐Жn\u0303\ufffd", min_size=16), st.sampled_from([1, 16]))
def test_no_character_is_halved(tiny, settings, text, window):
    """The tokens of a character are kept or dropped together: what is left are characters of the text, in its order."""
    scorer = copy.copy(tiny)
    scorer.tokenizer = Bytes()
    method = LongLLMLingua(tiny, scorer, settings)
    method.target = len(text.encode()) // 2
    method.window = window
    for left in method.drop([scorer.tokenizer.encode(text)], "Who?"):
        source = iter(text)
        assert all(character in source for character in left)


def test_compression_keeps_within_its_target(tiny, settings, document, spy, monkeypatch):
    """Units are kept, the best first, up to the one that exceeds 2100 tokens (at chunks of 300). A scorer that was made
    for less refuses."""
    compressor = LongLLMLingua(tiny, tiny, settings)
    encode = tiny.tokenizer.encode
    rankings, drops = spy("rank", compressor), spy("drop", compressor)
    units = compressor.prepare(document).texts
    texts = compressor.compress(units, "Who?")
    assert compressor.target // 2 < sum(map(len, map(encode, texts))) <= compressor.target == 160

    [(_, perplexity)] = rankings
    kept = [encode(units[i]) for i in np.argsort(perplexity, kind="stable")]
    totals = np.cumsum(list(map(len, kept)))
    assert drops[0][0][0] == kept[:(totals <= 168).sum() + 1]
    monkeypatch.setattr(tiny, "config", replace(tiny.config, max_length=100))
    with pytest.raises(InputError, match="was made for 100; choose another --scorer"):
        compressor.compress(units, "Who?")


@pytest.mark.parametrize("own", [False, True])
def test_flops_of_compression(tiny, model, settings, document, question, own):
    """Compression is part of a question's cost: what its scorer spends, the model itself or another one, counts once.

    (test_8_flops.py: what a pass costs.)"""
    models = [tiny] if own else [tiny, model]
    method = LongLLMLingua(tiny, models[-1], settings)
    prepared = method.prepare(document)
    before = [each.flops for each in models]
    tokens = tiny.tokens
    answer = method.answer(prepared, question)
    spent = [each.flops - flops for each, flops in zip(models, before)]
    assert prepared.flops == 0 < min(spent) and answer.flops == sum(spent)
    assert answer.tokens == tiny.tokens - tokens, "those of another scorer do not count"
