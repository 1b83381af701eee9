"""MKRAG: pruning, retrieval by hand, its two rounds.

A whole conversation, with all grains of pairs, for entities with 1 to 4 items, is in test_story.py; replies are in
test_replies.py.
"""
import json
from dataclasses import replace
from types import SimpleNamespace

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
    found = {name: {"Events": [name.title()]} for name in (*names, "danko jones")}
    pairs = [f"Question: q{n}?\nAnswer: a{n}\nQuestion: Q0?\nAnswer: A0" for n in range(3)]
    script = Script(method, json.dumps(found), "Danko Jones | 0.7\nParis | 0.5", "Villager | 0.3", *pairs)
    prepared = method.prepare(Document("x", ["text"]))
    assert [text.lower() for text in prepared.texts] == ["q0? a0", "q1? a1", "q2? a2"] and not script.replies
    assert script.heard[1:3] == [f"{mkrag.WEIGH}Danko Jones\nParis\nSeine", f"{mkrag.WEIGH}Villager"]
    for name, prompt in zip(names, script.heard[3:]):
        assert prompt.count(f"{name} | {name}") == 1
    assert prepared.flops == method.encoder.flops > 0, "the script costs nothing"


# --- retrieval and loop ---------------------------------------------------------------------------------------------

def test_the_best_five_of_the_closest_twenty(method):
    """Vectors of two neighbours are equal, as are their p_yes, which prefer distant pairs; ties go to the lower id."""
    method.encoder = SimpleNamespace(encode=lambda texts: torch.ones(1, 1))
    method.p_yes = lambda query, texts: [-((int(text) + 1) // 2) for text in texts]
    index = torch.arange(1, 25)[:, None] // 2
    assert method.retrieve(Prepared(list(map(str, range(24))), index=index.float()), "q") == [3, 5, 6, 7, 8]


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


@pytest.mark.parametrize("replies, read", [
    # an answer; two rewritten questions; neither; an essay
    ((QUESTIONS[0], "Answer: Marie Curie"), [0, 1]),
    ((QUESTIONS[0], f"RewriteQ: {QUESTIONS[1]}\nRewriteQ: {QUESTIONS[2]}"), [0, 1, 2]),
    ((QUESTIONS[0], "Casa Loma", "Casa Loma"), [0, 1]),
    (("an essay.", "an essay.", "Answer: x"), [2, 0])])
def test_two_rounds(method, monkeypatch, replies, read):
    """Each of three pairs is near one question; the last one is asked. A query finds its pair and one more; no pair is
    read twice. The model is asked once whether it can answer."""
    monkeypatch.setattr(mkrag, "RERANKED", 2)
    method.encoder = SimpleNamespace(encode=lambda texts: torch.eye(3)[list(map(QUESTIONS.index, texts))])
    method.p_yes = lambda query, texts: [query in text for text in texts]
    script = Script(method, *replies)
    pairs = [(each, "x") for each in QUESTIONS]
    prepared = Prepared(list(map(" ".join, pairs)), graph=pairs, index=torch.eye(3))
    assert method.answer(prepared, QUESTIONS[2]).nodes == read and not script.replies
