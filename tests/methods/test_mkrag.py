"""MKRAG: pruning, retrieval against numpy, its two rounds.

A whole conversation, with all grains of pairs, for entities with 1 to 4 items, is in test_story.py; replies are in
test_replies.py.
"""
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from speaker import Script

from baselines import mkrag
from baselines.mkrag import MKRAG
from core.settings import Settings
from data import Document, Prepared
from encoders.token_mean import TokenMean
from pecan import Graph, Node, Search

# --- entities -------------------------------------------------------------------------------------------------------

@pytest.fixture
def method(tiny):
    """MKRAG with a large window, because scripted replies contain words that the embedded model does not know."""
    return MKRAG(tiny, TokenMean(tiny), Settings(window=100_000, chunk=10))


def test_pruning(method):
    """Entities with a weight of at least 0.5, or without one, are kept. Names are weighed in groups.

    Names that are equal in lower case are joined. A repeated item counts once, and so does a repeated pair.
    """
    names = "Danko Jones", "Paris", "Seine", "Villager"
    found = {name: {"Events": [name]} for name in names} | {"danko jones": {"Events": ["Danko Jones"]}}
    pairs = [f"Question: q{n}?\nAnswer: a{n}\nQuestion: Q0?\nAnswer: A0" for n in range(3)]
    script = Script(method, json.dumps(found), "Danko Jones | 0.7\nParis | 0.5", "Villager | 0.3", *pairs)
    prepared = method.prepare(Document("x", ["text"]))
    assert list(map(str.lower, prepared.texts)) == [f"q{n}? a{n}" for n in range(3)] and not script.replies
    assert script.heard[1:3] == [f"{mkrag.WEIGH}{names}" for names in ("Danko Jones\nParis\nSeine", "Villager")]
    assert [name for name in names for text in script.heard[3:] if f"{name} | {name}" in text] == list(names[:3])
    assert prepared.flops == method.encoder.flops > 0, "the script costs nothing"


# --- retrieval and loop ---------------------------------------------------------------------------------------------

def test_retrieval_equals_numpy(method):
    """Retrieval takes the 20 closest pairs, ties to the lower id, and of these the 5 that the re-ranker prefers."""
    scores = np.random.default_rng(0).permutation(np.arange(24) // 2 * 2.0)           # each score twice
    method.encoder = SimpleNamespace(encode=lambda texts: torch.tensor([[.5]]))
    prepared = Prepared([str(i) for i in range(24)], index=torch.tensor(scores)[:, None])
    closest = np.argsort(-scores, kind="stable")[:20].tolist()
    sure = {i: n // 3 for n, i in enumerate(closest)}
    method.p_yes = lambda query, texts: [sure[int(text)] for text in texts]
    assert method.retrieve(prepared, "q") == sorted(closest, key=lambda i: (-sure[i], i))[:5]


def test_the_reranker_is_pecans_check(tiny, method, settings):
    """It gives p_yes of a search that has read the pair as its only node."""
    texts = ["Mara has a goat", "a longer pair: Otto lives by the bridge"]
    graph = Graph([Node(1, text) for text in texts], [])
    wanted = []
    for i in range(2):
        search = Search(tiny, graph, "What is Mara's pet?", torch.zeros(2), replace(settings, window=512))
        search.check(search.visit([i], tiny.tokenizer.frame.before_reply))
        wanted.append(search.trace[-1].p_yes)
    assert method.p_yes("What is Mara's pet?", texts) == pytest.approx(wanted, abs=1e-5)


QUESTIONS = ["Who performed Never Too Loud?", "Which castle is there?", "From which city is Danko Jones?"]


@pytest.mark.parametrize("replies, read, refused", [
    # an answer; two rewritten questions; neither; an essay
    ((QUESTIONS[0], "Answer: Marie Curie"), [0, 1], 0),
    ((QUESTIONS[0], f"RewriteQ: {QUESTIONS[1]}\nRewriteQ: {QUESTIONS[2]}"), [0, 1, 2], 0),
    ((QUESTIONS[0], *["Casa Loma"] * 2), [0, 1], 2),
    ((*["an essay."] * 2, "Answer: x"), [2, 0], 2)])
def test_two_rounds(method, monkeypatch, replies, read, refused):
    """Each of three pairs is near one question; the last one is asked. A query finds its pair and one more; no pair is
    read twice. The model is asked once whether it can answer. The example's answer counts if it is known."""
    monkeypatch.setattr(mkrag, "RERANKED", 2)
    method.encoder = SimpleNamespace(encode=lambda texts: torch.eye(3)[list(map(QUESTIONS.index, texts))])
    method.p_yes = lambda query, texts: [query in text for text in texts]
    script = Script(method, *replies)
    pairs = [(q, "Marie Curie") for q in QUESTIONS]
    prepared = Prepared(list(map(" ".join, pairs)), graph=pairs, index=torch.eye(3))
    answer = method.answer(prepared, QUESTIONS[2])
    assert (answer.nodes, answer.counts["calls"], answer.counts["refused"]) == (read, len(replies), refused)
    assert not script.replies
