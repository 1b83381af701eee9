"""MKRAG: entities, pruning, replies as models write them, retrieval against numpy, the ends of its loop.

A whole conversation, with all grains of pairs, is in test_story.py.
"""
import json
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from speaker import Script

from baselines import agent, mkrag
from baselines.agent import pairs_of
from baselines.mkrag import MKRAG, decision_of, entities_of, weights_of, without_general_time
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

    Names that are equal in lower case are joined, and a repeated item counts once.
    """
    names = "Danko Jones", "Paris", "Seine", "Villager"
    found = {name: {"Events": [name]} for name in names} | {"danko jones": {"Events": ["Danko Jones"]}}
    pairs = [f"1. Question: q{n}?\nAnswer: a{n}\n2. Question: one more?\nAnswer: x" for n in range(3)]
    script = Script(method, json.dumps(found), "* danko jones | 0.7\nParis | 0.5", "Villager | 0.3", *pairs)
    prepared = method.prepare(Document("x", ["text"]))
    assert prepared.texts == [f"q{n}? a{n}" for n in range(3)] and not script.replies
    assert script.heard[1:3] == [f"{mkrag.WEIGH}{names}" for names in ("Danko Jones\nParis\nSeine", "Villager")]
    assert [name for name in names for text in script.heard[3:] if f"{name} | {name}" in text] == list(names[:3])
    assert prepared.flops == method.encoder.flops > 0, "the script costs nothing"


@pytest.mark.parametrize("event, wanted", [
    *((f"{time} - won", "won") for time in ("one day", "15 days later", "The next morning", "Once upon a time",
                                            "a few years after that")),
    *((f"{time} - won", f"{time} - won") for time in (
        "1903", "3 May", "12:30", "5 月", "summer 800", "the band of his two friends", "Marie Curie", "Danko's day")),
    ("Discovery of radium - 1898", "Discovery of radium - 1898"), ("one day - Ann - won", "Ann - won")])
def test_general_times(event, wanted):
    """A general time is made of time words only. A name or a thing before the dash is no time."""
    assert without_general_time(event) == wanted


ANN = {"Attributes": {"job": "baker"}, "Events": ["}{\"]"]}
ITEMS = [("attributes", "job | baker"), ("events", "}{\"]")]
LOWER = {key.lower(): value for key, value in ANN.items()}


@pytest.mark.parametrize("value", [
    {"Ann": ANN}, {"Ann": LOWER}, [{"Ann": ANN}], {"x": {"Name": "Ann"} | ANN}, [{"entity": "Ann"} | LOWER],
    {"Name": "Ann"} | ANN, {"entities": [{"name": "Ann"} | LOWER]}, {"Entities": {"Ann": ANN}}])
def test_shapes_of_json(value):
    assert entities_of(f"Sure [see below]:\n{json.dumps(value, indent=1)}\ndone }}", "") == [("Ann", ITEMS)]


@pytest.mark.parametrize("reply", ["Ann is a baker.", "[1]", json.dumps(ANN), json.dumps({"Ann": "baker"}),
                                   json.dumps({"Ann": {"job": "baker"}}), "{\"Ann\": {\"Attr", "{'Ann': {}}", ""])
def test_json_that_describes_nothing_is_refused(reply):
    assert entities_of(reply, "") == []


def test_a_name_with_quotes():
    assert entities_of(json.dumps({'Ann "The Rock"': ANN}), "") == [('Ann "The Rock"', ITEMS)]


def test_a_reply_that_was_cut_keeps_its_complete_entities():
    """A cut anywhere after the first of two entities leaves the first. Only the whole reply has both."""
    reply = json.dumps({"Ann": ANN, "Ben": ANN})
    for end in range(reply.index("\"]}") + 3, len(reply) - 1):
        assert entities_of(reply[:end], "") == [("Ann", ITEMS)]
    assert [name for name, _ in entities_of(reply, "")] == ["Ann", "Ben"]


def test_an_echo_of_the_example_is_no_text(method):
    """This holds unless the text itself is about the Curies. The rest of a reply is kept."""
    echo = '{"Pierre Curie": {"Events": ["sang"]}, "Ben": {"Relationships": {"Wife": "Marie Curie"}}}'
    Script(method, echo, echo + '{"Ann": {"Events": ["sang"]}}', "Ann | 0.7", "Q: x?\nA: Curie\nQ: Who sang?\nA: Ann")
    prepared = method.prepare(Document("x", ["Ann sang."]))
    assert (prepared.texts, prepared.counts["refused"]) == (["Who sang? Ann"], 1)
    assert len(entities_of(echo, "Pierre Curie was.")) == 2
    rewritten = "RewriteQ: What did Marie Curie discover?"
    assert decision_of(rewritten, "Who is Ann?") is None != decision_of(rewritten, "Who is Pierre Curie?")


@pytest.mark.parametrize("reply", [
    "Question:\nWho sang?\nAnswer:\nDanko.\n\nQuestion:\nWhere?\nAnswer:\nIn Rome.",      # as A.4.2 prints it
    '[{"Question": "Who sang?", "Answer": "Danko."}, {"Question": "Where?", "Answer": "In Rome."}]',
    "Q: Who sang?\nA: Danko.\nQ: Where?\nA: In Rome.",                                     # as Table 9 does
    "1. Q: Who sang?; A: Danko.\n2. Q: Where?, A: In Rome.",
    "Here they are:\n\n1. **Question**: Who sang? **Answer**: Danko.\n2. **Q**: Where?\n   **A**: In Rome.",
    "### Question 1\nWho sang?\n### Answer 1\nDanko.\n---\n### Question 2\n**Where?**\n### Answer 2\nIn Rome.\n\nOK?",
    "(1) Question – Who sang?\n    Answer – Danko.\n(2) Q2: Where? A2: In Rome.\nQuestion: When?",
    "| Question: Who sang? | Answer: Danko. |\n| Question: Where? | Answer: In Rome. |"])
def test_pairs_as_models_write_them(reply):
    assert pairs_of(reply, "question|q", "answer|a") == [("Who sang?", "Danko."), ("Where?", "In Rome.")]


@pytest.mark.parametrize("reply", [
    "RewriteQ: Where is it?\nAnswer: x", "Answer: unknown\nRewriteQ: Where is it?", "**RewriteQ:** \"Where is it?\"",
    "Answer: It is not known.\nRewriteQ: Where is it?\nAnswer: x", "1. Answer: N/A\n2. Rewrite Question: Where is it?",
    "### Answer\nI don't know.\n### RewriteQ\nWhere is it?", "Answer: -\n(2) RewriteQ – **Where is it?**",
    *(f"Answer: {nothing}\nRewriteQ: Where is it?" for nothing in ("TBD", "Nobody knows", "It lacks this.", "不知道")),
    "Answer: \"unknown\" RewriteQ: Where is it?", "Answer: [unknown] Rewrite: Where is it?",
    "Answer: Rome\nReconstructed Question: Where is it?", "Rewrite the question: Where is it?",
    "RewriteQ: What did Marie Curie do?\nRewriteQ: Where is it?"])
def test_rewritings_as_models_write_them(reply):
    assert decision_of(reply, "") == ("RewriteQ", "Where is it?")


def test_a_rewriting_may_lack_its_question_mark():
    for question in ("Where is it", "in which city is it", "How is the river called"):
        for reply in (f"Answer: unknown\nRewriteQ: {question}", f"RewriteQ: {question}\nAnswer: N/A"):
            assert decision_of(reply, "") == ("RewriteQ", question)


@pytest.mark.parametrize("reply, wanted", [
    ("**Answer: not Rome** ", "not Rome"), ("Final Answer: **Rome**\n\nExplanation: x", "Rome"),
    ("### Answer\n\nRome", "Rome"), ("RewriteQ: none\nAnswer: Rome", "Rome"), ("Answer: unknown", "unknown"),
    ("RewriteQ: not needed. Answer: Rome", "Rome"), ("Rome", None), ("RewriteQ: ", None)])
def test_answers_as_models_write_them(reply, wanted):
    assert decision_of(reply, "") == (wanted and ("Answer", wanted))


@pytest.mark.parametrize("reply", [
    "x | 0.3 (generic)", "* **x** | **0.3**", "1. x | 0.3 – it is vague", "x | Weight: 0.3 | minor\ny | 0.9\nz | none",
    "| Entity | Weight |\n|---|---|\n| X | 0.3. |", "x | a painter, born 1 May 1921 | 0.3 of 1.0"])
def test_weights_as_models_write_them(reply):
    assert weights_of(reply) == {"x": .3}


def test_an_entity_of_300_items_is_built_whole_and_continued(tiny, tmp_path, monkeypatch):
    """Every item gets its micro pair, and no reply is refused. After a kill, no reply is asked for twice. Chunks have
    500 tokens, entities are asked for in 1024, all else in 512.

    A reply has a pair "k?", "v" for each line "a | k | v", and one more; it is cut at four letters per token.
    """
    method = MKRAG(tiny, TokenMean(tiny), Settings(window=2000, batch=4))
    document = Document("d", [" ".join(["road."] * 250 + ["town."] * 250)])     # of two tokens each
    mara = json.dumps({"Mara": {"Attributes": {f"key {n}": f"value {n}" for n in range(300)}}})
    asked, limits = [], []

    def replies(model, texts, limit):
        if len(asked) > kill:
            raise KeyboardInterrupt
        asked.extend(texts)
        limits.append(limit)
        lines = [[*re.findall(r"^Mara \| (.*) \| (.*)$", text, re.MULTILINE), ("one", "more")] for text in texts]
        pairs = ["\n".join(f"Question: {key}?\nAnswer: {value}" for key, value in some)[:4 * limit] for some in lines]
        return [f"{some}\nMara | 1.0\n{mara}" for some in pairs]

    monkeypatch.setattr(agent, "replies_to", replies)
    kill = 6
    with pytest.raises(KeyboardInterrupt):
        method.prepare(document, tmp_path / "m.json")
    kill = 10_000
    prepared = method.prepare(document, tmp_path / "m.json")
    assert {f"key {n}? value {n}" for n in range(300)} <= set(prepared.texts) and prepared.counts["refused"] == 0
    assert len(asked) == len(set(asked)) == prepared.counts["calls"]
    assert "one? more" not in prepared.texts, "no more pairs than lines"
    assert asked[0].count("road.") == 250 and "town." not in asked[0] and list(dict.fromkeys(limits)) == [1024, 512]


# --- retrieval and loop ---------------------------------------------------------------------------------------------

@dataclass(eq=False)
class Vectors:
    """An encoder with given vectors."""
    vectors: dict
    flops = 0

    def encode(self, texts):
        return torch.tensor([self.vectors[text] for text in texts])


def test_retrieval_equals_numpy(method):
    """Retrieval takes the 20 closest pairs, ties to the lower id, and of these the 5 that the re-ranker prefers."""
    scores = np.random.default_rng(0).permutation(np.arange(24) // 2 * 2.0)           # each score twice
    method.encoder = Vectors({"q": [.5]})
    prepared = Prepared([str(i) for i in range(24)], index=torch.tensor(scores)[:, None])
    closest = sorted(np.argsort(-scores, kind="stable")[:20].tolist())
    for sure, wanted in ((int, closest[:-6:-1]), (lambda text: 1, closest[:5])):
        method.p_yes = lambda query, texts, sure=sure: list(map(sure, texts))
        assert method.retrieve(prepared, "q") == wanted


def test_the_reranker_is_pecans_check(tiny, method, settings):
    """It gives p_yes of a search that has read the pair as its only node."""
    texts = ["Mara has a goat", "a longer pair: Otto lives by the bridge"]
    graph = Graph([Node(1, text) for text in texts], [])
    wanted = []
    for i in range(2):
        search = Search(tiny, graph, "What is Mara's pet?", torch.zeros(2), replace(settings, window=512))
        search.visit([i])
        search.check()
        wanted.append(search.trace[-1].p_yes)
    assert method.p_yes("What is Mara's pet?", texts) == pytest.approx(wanted, abs=1e-5)


QUESTIONS = ["Who performed Never Too Loud? (a band)", "Which castle is there?", "From which city is Danko Jones?"]


@pytest.mark.parametrize("replies, read, refused", [
    # an answer at once; no third round; a rewritten question that was asked before; neither word; an essay
    (("Which are they? See below.\n1. **Sub-question 1:** " + QUESTIONS[0], "Answer: x"), [0, 1], 0),
    ((QUESTIONS[0], "RewriteQ: From which city is Danko Jones?", "RewriteQ: other?"), [0, 1, 2], 0),
    ((QUESTIONS[0], f"RewriteQ: {QUESTIONS[0]}"), [0, 1], 0),
    ((QUESTIONS[0], *["Casa Loma"] * 3), [0, 1], 3),
    ((*["an essay."] * 3, "Answer: x"), [2, 0], 3)])
def test_ends_of_the_loop(tiny, monkeypatch, replies, read, refused):
    """Each of three pairs is near one question; the last one is asked. A query finds its pair and one more; no pair is
    read twice."""
    monkeypatch.setattr(mkrag, "RERANKED", 2)
    method = MKRAG(tiny, Vectors(dict(zip(QUESTIONS, torch.eye(3).tolist()))), Settings(window=100_000))
    method.p_yes = lambda query, texts: [query in text for text in texts]
    script = Script(method, *replies)
    prepared = Prepared([f"{q} x" for q in QUESTIONS], graph=[(q, "x") for q in QUESTIONS], index=torch.eye(3))
    answer = method.answer(prepared, QUESTIONS[2])
    assert answer.nodes == read and answer.counts == {"calls": len(replies), "refused": refused}
    assert not script.replies
