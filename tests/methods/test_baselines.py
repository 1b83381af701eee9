"""The compared methods of Table 1: retrieval, trees, walks, compression, the reader that they share, and FLOPs.

Their numbers are compared with the packages that define them: rank_bm25, scikit-learn, umap-learn, Hugging Face.
"""
import copy
import textwrap
from collections import Counter
from dataclasses import replace
from itertools import accumulate, chain, count, pairwise
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import rank_bm25
import regex
import sklearn.mixture
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from speaker import Script

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


# Texts, each with a question about it. Some texts differ in the order of characters, or in marks (vowels) alone; what
# Arabic, Hebrew and hyphenation may leave out (short vowels, long strokes) makes no difference, nor do unseen signs.
ASKED = {"上海": "上海？", "海上": "海上", "山上的风": "山？", "花子は1921年に青森へ引っ越した。": "花子はいつ青森へ？",
         "มาลีย้ายไปเชียงใหม่ในปี ๒๔๖๔": "มาลีย้ายไปเชียงใหม่เมื่อไร", "दाल": "दाल?", "दिल": "दिल।", "Rene\u0301": "RENÉ",
         "ＲＯＭＥ １９２２": "Rome, 1922", "road 1": "\"road\"_1", "왕리는 부산으로 이사했다.": "왕리가 언제 부산에?",
         "မန္တလေးမြို့သို့ပြောင်းခဲ့သည်။": "မန္တလေးသို့ဘယ်တုန်းက", "ལྷ་སར་ཕྱིན།": "ལྷ་སར་?", "में सड़क": "सड\u093cक",
         "اِنْتَقَلَتْ لَيْلَى": "انتقلت ليلـــى؟", "רָחֵל": "רחל", "Kinder\u00adgarten": "kindergarten",
         "می\u200cخواهم": "میخواهم", "葛\U000e0100城市": "葛城市はどこ？", "ශ්\u200dරී": "ශ්රී?",
         "\u200fשל\ufeffום": "שלום"}


def test_words_of_any_script():
    index = Okapi(list(map(words, ASKED)))
    for n, question in enumerate(ASKED.values()):
        scores = index.scores(words(question))
        *_, second, best = sorted(scores)
        assert scores[n] == best > second


@pytest.mark.parametrize("between, wanted", [
    ("\n", ["Who?", "She left!", "It has 3.5 points.", "Mr"]),
    ("", ["山上的风。", "盐……", "真的吗?", "「是的！！」", "王丽"]), ("", ["သွားသည်။", "လာသည်။", "အိမ်"]),
    (" ", ["मीना दिल्ली गई।", "हवा तेज है।"]), (" ", ["هل رأيت ذلك؟", "نعم۔"]),
    (" ", ["왕리가 갔다.", "왜?"]), ("", ["ទៅ។", "មក៕"])])
def test_sentences_of_any_script(between, wanted):
    """A sentence ends with its quotes and brackets; scripts without blanks need none behind it. Lines are joined."""
    assert sentences(between.join(wanted)) == wanted


@pytest.mark.parametrize("unit", [True, False])
def test_dense_reads_what_numpy_ranks(tiny, settings, document, question, unit):
    """Unit vectors (SBERT) are ranked by the cosine, others (Dragon) by the dot product."""
    encoder = TokenMean(tiny, unit)
    method = Dense(tiny, encoder, encoder, settings)
    prepared = method.prepare(document)
    assert prepared.texts == BM25(tiny, settings).prepare(document).texts == split(
        tiny.tokenizer, "\n".join(document.passages), settings.chunk)
    *vectors, query = TokenMean(tiny, unit=False).encode([*prepared.texts, question]).double().numpy()
    length = np.linalg.norm(vectors, axis=1) if unit else 1
    assert method.answer(prepared, question).nodes == np.argsort(-(vectors @ query) / length)[:5].tolist()


# --- the reader -----------------------------------------------------------------------------------------------------

def test_the_reader_reads_what_pecan_would(tiny, settings, question):
    """The prompt equals that of a search that has read the same texts as nodes. A text that just fits is read; with one
    token more, the next best is read instead. If none of the texts fits, that is an error."""
    t = tiny.tokenizer
    start = pecan.question_prompt(t, question)
    room = pecan.room_for_nodes(t, start, question, settings) - 2         # a line has two more tokens, "\n*"
    texts = ["Ann has a cat.", "Bob  lives\nin Rome.", "road " * room, "road " * (room + 1)]
    read = BM25(tiny, settings).reading_of_best
    for order, nodes in (([1, 0], [1, 0]), ([2, 0], [2]), ([3, 0], [0]), ([], [])):
        lines = chain(*(pecan.node_line(t, None, " ".join(texts[i].split())) for i in nodes))
        reading = read(question, texts, order)
        assert reading.nodes == nodes
        assert ids_of(reading.prompt) == ids_of([*start, *lines, *pecan.answer_turn(t, t.first("Yes"))])
    with pytest.raises(InputError, match="too small"):
        read(question, texts, [3])


# --- cutting a document ---------------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("pack, limit", [(pack_paragraphs, 3000), (pack_paragraphs, 650), (pack_sentences, 750)])
def test_no_chunk_ends_after_a_title_or_inside_a_sentence(pack, limit):
    """The document is ten paragraphs of HotpotQA, then the same as one text with headings and lines of 60 letters."""
    path = Path(__file__).parents[1] / "hotpotqa_3.json"
    passages = [passage for document in Dataset(path).documents for passage in document.passages]
    parts = "\n".join(passages).split("\n")                                    # a title, a paragraph, ..
    passages = [*passages, "\n\n".join(textwrap.fill(part, 60) for part in parts)]
    chunks = pack(Bytes(), Document("d", passages), limit)
    assert " ".join(chunks).split() == " ".join(passages).split()
    assert max(len(chunk.encode()) for chunk in chunks) <= limit
    ends = {part.split()[-1] for part in parts[1::2]}
    assert not [chunk for chunk in chunks if chunk.split()[-1] not in ends and chunk[-1] not in ".!?"]
    assert units(Document("d", ["Ann\n\nShe\nleft\n\nWhy?", "Bob"])) == ["Ann\nShe\nleft", "Why?", "Bob"]
    assert len(units(Document("d", ["သွားသည်။\n\nមក៕\n\nབོད།\n\nगई।\n\n走了。"]))) == 5


# --- RAPTOR ---------------------------------------------------------------------------------------------------------

def test_mixture_has_the_least_bic_and_soft_members(monkeypatch):
    """There are two clouds of points. One more point lies between them and belongs to both clusters. If no probability
    were high enough, it would belong to the likelier."""
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(-1, .4, (50, 2)), rng.normal(1, .4, (50, 2)), [[0, 0]]])
    monkeypatch.setattr(raptor, "COMPONENTS", 22)              # 50 would take seconds; from 21 on AIC chooses another
    mixtures = [sklearn.mixture.GaussianMixture(n, random_state=0).fit(points) for n in range(1, 22)]
    probability = min(mixtures, key=lambda mixture: mixture.bic(points)).predict_proba(points)
    found = raptor.mixture(points)
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
    assert points.dtype == np.float64


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


@pytest.mark.parametrize("size, layers", [(8, [94, 12, 2]), (9, [94, 11]), (1, [94] * 6)])
def test_raptors_tree(tiny, settings, encoder, document, tmp_path, monkeypatch, size, layers):
    """Each summary is made from its children, up to a layer of 11 nodes or fewer. If clustering makes no layer smaller,
    there are five layers of summaries. An empty summary is the beginning of its text. Clusters are `size` neighbours
    here. The file serves the same encoder alone."""
    monkeypatch.setattr(raptor, "clusters", lambda vectors, *_: [
        list(range(len(vectors)))[first:first + size] for first in range(0, len(vectors), size)])
    method = Raptor(tiny, encoder, settings)
    script = Script(method, *(f"road {n}" for n in range(sum(layers[1:]) - 1)), "")
    nodes = method.prepare(document, tmp_path / "tree.json").graph
    assert list(Counter(node.level for node in nodes).items()) == list(enumerate(layers, 1))
    assert [node.text for node in nodes[:94]] == pack_sentences(tiny.tokenizer, document, 8)
    sources = ["\n\n".join(nodes[j].text for j in node.children) for node in nodes[94:]]
    assert script.heard == list(map(raptor.PROMPT.format, sources)) and not script.replies
    assert nodes[-1].text == split(tiny.tokenizer, sources[-1], 8)[0]
    assert [j for node in nodes for j in node.children] == list(range(len(nodes) - layers[-1]))
    encoder.unit = "other"
    with pytest.raises(InputError, match="whitened mean"):
        method.prepare(document, tmp_path / "tree.json")


def test_a_cluster_of_raptor_fits_its_prompt(tiny, encoder, settings):
    """It has up to 3500 tokens (at chunks of 300), fewer if the window has no room for prompt and summary."""
    method = Raptor(tiny, encoder, Settings(window=1000))
    assert method.length(raptor.PROMPT) + method.most + method.limit == 1000
    assert Raptor(tiny, encoder, Settings(chunk=150)).most == 1750


def test_traversal_and_collapsed_tree(tiny, encoder, settings):
    """The tree has chunks 0 to 2, summaries 3 and 4, and roots 5 and 6. Chunk 1 has two parents and is read once."""
    nodes = list(map(TreeNode, [1, 1, 1, 2, 2, 3, 3], [""] * 7, [[], [], [], [0, 1], [1, 2], [3], [4]]))
    scores = [.1, .9, .2, .3, .7, .5, .4]
    for top_k, collapsed, wanted in ((3, True, [1, 4, 5]), (1, False, [5, 3, 1]), (2, False, [5, 6, 4, 3, 1, 2])):
        assert Raptor(tiny, encoder, settings, top_k, collapsed).retrieve(nodes, scores) == wanted


# --- MeMWalker ------------------------------------------------------------------------------------------------------

def test_memwalkers_tree(tiny):
    """The tree has segments, a summary of each, parents of up to 8 neighbours, evenly filled, and one root.
    (test_story.py: prompts and texts.)"""
    method = MeMWalker(tiny, Settings(window=10_000, chunk=24))
    script = Script(method, *map(str, range(12)))
    nodes = method.prepare(Document("d", [f"Page {n}" + " road" * 74 for n in range(9)])).graph
    assert [node.children for node in nodes[9:]] == [
        *([i] for i in range(9)), [*range(9, 13)], [*range(13, 18)], [18, 19]] and not script.replies
    assert [[len(group) for group in memwalker.even_groups(range(m))] for m in (8, 17)] == [[8], [5, 6, 6]]


# Segments 0 to 2, their summaries 3 to 5, inner nodes 6 (over 3 and 4) and 7 (over 5), root 8.
TOWN = list(map(TreeNode, [1, 1, 1, 2, 2, 2, 3, 3, 4], "seg0 seg1 seg2 sum0 sum1 sum2 left right root".split(),
                [[], [], [], [0], [1], [2], [3, 4], [5], [6, 7]]))


@pytest.mark.parametrize("actions, read", [
    # an action that is not offered is refused; the last one of a reply counts: a model that compares names several
    ("2 > 1 would do\naction: **0** > 1 > -2", [1, 6, 8]),
    # -1 leads back to the parent and its remaining children; if none remain, the walk goes up once more
    ("0 > 1 > -1 > 0 > -1 > 0 > 0 > -2", [2, 7, 8]),
    # there is no answer anywhere
    ("0 > 0 > -1 > 0 > -1 > 0 > 0 > -1", []),
    # two replies in a row without an action that is offered, at a segment
    ("0 > 0 > 7 > 7", []), ("0 > 0 > -1 or -2 > **-1** or **-2**", [])])
def test_walks(tiny, actions, read):
    """What is read after a walk through TOWN: the segment, then the nodes on the way to it, the last first, without the
    segment's own summary."""
    method = MeMWalker(tiny, Settings(window=10_000))
    script = Script(method, *(f"Reasoning: ok\nAction: {action}" for action in actions.split(" > ")))
    answer = method.answer(Prepared([node.text for node in TOWN], graph=TOWN), "who?")
    assert answer.nodes == read and (answer.end == NOTHING) == (not read) and not script.replies


# --- LongLLMLingua --------------------------------------------------------------------------------------------------

@hypothesis.given(st.lists(st.integers(1, 300), min_size=1, max_size=30), st.floats(0, 1))
def test_shares_keep_the_target(lengths, part):
    target = int(part * sum(lengths))
    kept = shares(lengths, target)
    total = np.dot(kept, lengths)
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
    assert method.drop([tokenizer.encode("👍👍👍")], question) == [], "tokens without text"


@hypothesis.settings(max_examples=25)
@hypothesis.given(st.text("a字盐山ก็ñ🐐Жn\u0303\u093c\ufffd", min_size=16), st.sampled_from([1, 16]))
def test_no_character_is_halved(tiny, settings, text, window):
    """The tokens of a letter with its accents are kept or dropped together: what is left are characters of the text, in
    its order."""
    scorer = copy.copy(tiny)
    scorer.tokenizer = Bytes()
    method = LongLLMLingua(tiny, scorer, settings)
    method.target = len(text.encode()) // 2
    method.window = window
    for left in method.drop([scorer.tokenizer.encode(text)], "Who?"):
        source = iter(regex.findall(r"\X", text))
        assert all(character in source for character in regex.findall(r"\X", left))


def test_compression_keeps_within_its_target(tiny, settings, document, monkeypatch):
    """Units are kept, the best first, up to the one that exceeds 2100 tokens (at chunks of 300). A scorer that was made
    for less refuses."""
    method = LongLLMLingua(tiny, tiny, settings)
    encode = tiny.tokenizer.encode
    texts = method.prepare(document).texts
    assert method.target // 2 < sum(map(len, map(encode, method.compress(texts, "Who?")))) <= method.target == 160

    units = list(map(encode, texts))
    ranked = [units[i] for i in np.argsort(method.rank(units, "Who?"), kind="stable")]
    monkeypatch.setattr(tiny, "config", replace(tiny.config, max_length=100))
    with pytest.raises(InputError, match="was made for 100"):
        method.compress(texts, "Who?")
    method.drop = lambda kept, question: kept
    assert method.compress(texts, "Who?") == ranked[:(np.cumsum(list(map(len, ranked))) <= 168).sum() + 1]


def test_all_that_is_spent_counts_once(tiny, model, settings, document, question):
    """FLOPs of encoders and of a scorer, the model itself or another one, count; tokens of another scorer do not, nor
    do FLOPs of what else a method holds.

    Compression is part of a question's cost. (test_8_flops.py: what a pass costs.)"""
    models = tiny, model, TokenMean(tiny), TokenMean(tiny)

    def spent():
        return sum(each.flops for each in models)

    for method in (Dense(tiny, *models[2:], settings), LongLLMLingua(tiny, tiny, settings),
                   LongLLMLingua(tiny, model, settings)):
        before = spent()
        method.held = type("Held", (), {"flops": property(lambda _, n=count(): next(n))})()              # they grow
        prepared = method.prepare(document)
        assert prepared.flops == spent() - before
        before, tokens = spent(), tiny.tokens
        answer = method.answer(prepared, question)
        assert (answer.flops, answer.tokens) == (spent() - before, tiny.tokens - tokens)
    assert all(each.flops for each in models)
