"""MKRAG: entities, pruning and grains by hand, retrieval against numpy, the ends of its loop.

A whole conversation is in test_story.py.
"""
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from speaker import Script

from baselines import agent, mkrag
from baselines.agent import pairs_of
from baselines.common import line_ids
from baselines.mkrag import (
    MKRAG,
    decision_of,
    entities_of,
    joined,
    requests_of,
    weights_of,
    without_general_time,
)
from core.settings import Settings
from data import Document, Prepared
from llama import flops_of, length_of
from pecan import Graph, Node, Search, question_prompt
from support.token_mean import TokenMean

# --- entities -------------------------------------------------------------------------------------------------------

def test_pruning(tiny):
    """Entities with a weight of at least 0.5 are kept, and entities without one. Names are weighed in groups."""
    names = "Danko Jones", "Paris", "Seine", "Villager"
    found = {name: {"Events": [name]} for name in names}
    weights = "* danko jones | 0.7\nParis | 0.5", "Villager | 0.3"
    pairs = [f"1. Question: q{n}?\nAnswer: a{n}\n2. Question: one more?\nAnswer: x" for n in range(3)]
    method = MKRAG(tiny, TokenMean(tiny), Settings(window=100_000, chunk=10))
    script = Script(method, json.dumps(found), *weights, *pairs)
    prepared = method.prepare(Document("x", ["text"]))
    assert prepared.texts == [f"q{n}? a{n}" for n in range(3)] and not script.replies
    assert script.heard[1:3] == [f"{mkrag.WEIGH}{names}" for names in ("Danko Jones\nParis\nSeine", "Villager")]
    assert [name for name in names for text in script.heard[3:] if f"{name} | {name}" in text] == list(names[:3])
    assert prepared.flops == method.encoder.flops > 0, "the script costs nothing"


def test_grains_by_hand():
    """From tau_1 = 2 items on, each kind of item has a feature request; from tau_2 = 4 on, all items a micro one."""
    items = [("events", "fell ill"), ("attributes", "a | b"), ("events", "sang"), ("events", "left")]
    assert requests_of("e", items[:1]) == [("macro", ["e | fell ill"])]
    assert requests_of("e", items[:3]) == [("macro", ["e | fell ill", "e | sang", "e | a | b"]),
                                           ("feature", ["e | fell ill", "e | sang"]), ("feature", ["e | a | b"])]
    assert [grain for grain, _ in requests_of("e", items)] == ["macro", "feature", "feature", "micro"]


def test_entities_of_one_name_are_joined():
    """A repeated item counts once."""
    kind, city = ("attributes", "kind | band"), ("attributes", "city | Toronto")
    extracted = [[("Danko Jones", [kind])], [], [("danko jones", [kind, city])]]
    assert joined(extracted) == {"Danko Jones": [kind, city]}


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


@pytest.mark.parametrize("value", [{"Ann": ANN, "Ben": ANN}, [{"name": "Ann"} | ANN, {"name": "Ben"} | ANN]])
def test_a_reply_that_was_cut_keeps_its_complete_entities(value):
    """A cut anywhere after the first of two entities leaves the first. Only the whole reply has both."""
    reply = json.dumps(value)
    for end in range(reply.index("\"]}") + 3, reply.rindex("\"]}") + 3):
        assert entities_of(reply[:end], "") == [("Ann", ITEMS)]
    assert [name for name, _ in entities_of(reply, "")] == ["Ann", "Ben"]


def test_an_echo_of_the_example_is_no_text(tiny):
    """This holds unless the text itself is about the Curies. The rest of a reply is kept."""
    echo = '{"Pierre Curie": {"Events": ["sang"]}}'
    ann = json.dumps({"Ann": {"Attributes": {"job": "baker"}}})
    method = MKRAG(tiny, TokenMean(tiny), Settings(window=100_000))
    script = Script(method, echo, echo + ann, "Ann | 0.7", "Q: x?\nA: Curie\nQ: Who is Ann?\nA: a baker")
    prepared = method.prepare(Document("x", ["Ann is a baker."]))
    assert (prepared.texts, prepared.refused) == (["Who is Ann? a baker"], 1) and not script.replies
    assert len(entities_of(echo, "Pierre Curie was.")) == 1
    rewritten = "RewriteQ: What did Marie Curie discover?"
    assert decision_of(rewritten, "Who is Ann?") is None != decision_of(rewritten, "Who is Pierre Curie?")


@pytest.mark.parametrize("reply", [
    "Question:\nWho sang?\nAnswer:\nDanko.\n\nQuestion:\nWhere?\nAnswer:\nIn Rome.",      # as A.4.2 prints it
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
    "Answer: Rome\nReconstructed Question: Where is it?", "RewriteQ: What did Marie Curie do?\nRewriteQ: Where is it?"])
def test_rewritings_as_models_write_them(reply):
    assert decision_of(reply, "") == ("RewriteQ", "Where is it?")


@pytest.mark.parametrize("reply, wanted", [
    ("**Answer: not Rome** ", "not Rome"), ("Final Answer: **Rome**\n\nExplanation: x", "Rome"),
    ("### Answer\n\nRome", "Rome"), ("RewriteQ: none\nAnswer: Rome", "Rome"), ("Answer: unknown", "unknown"),
    ("RewriteQ: not needed. Answer: Rome", "Rome"), ("Rome", None), ("RewriteQ: ", None)])
def test_answers_as_models_write_them(reply, wanted):
    assert decision_of(reply, "") == (wanted and ("Answer", wanted))


@pytest.mark.parametrize("reply", [
    "x | 0.3 (generic)", "* **x** | **0.3**", "1. x | 0.3 – it is vague", "x | Weight: 0.3 | minor\ny | 0.9\nz | none",
    "| Entity | Weight |\n|---|---|\n| X | 0.3. |", "x | a painter, born 1921 | 0.3 of 1.0"])
def test_weights_as_models_write_them(reply):
    assert weights_of(reply) == {"x": .3}


def test_an_entity_of_300_items_is_built_whole_and_continued(tiny, settings, tmp_path, monkeypatch):
    """Every item gets its micro pair, and no reply is refused. After a kill, no reply is asked for twice.

    Rules write the replies: a line "a | k | v" becomes the pair "k?", "v". Replies are cut at four letters per token.
    """
    items = {f"key {n}": f"value {n}" for n in range(300)}
    method = MKRAG(tiny, TokenMean(tiny), replace(settings, chunk=300, window=2000, batch=4))
    asked = []

    def reply_to(text):
        if text.startswith(mkrag.EXTRACT):
            return json.dumps({"Mara": {"Attributes": items}})
        if text.startswith(mkrag.WEIGH):
            return "Mara | 1.0"
        lines = re.findall(r"^Mara \| (.*) \| (.*)$", text, re.MULTILINE)
        return "\n".join(f"Question: {key}?\nAnswer: {value}" for key, value in [*lines, ("one", "more")])

    def replies(model, texts, limit):
        if len(asked) > kill:
            raise KeyboardInterrupt
        asked.extend(texts)
        return [reply_to(text)[:4 * limit if text.startswith(mkrag.PAIRS[:20]) else None] for text in texts]

    monkeypatch.setattr(agent, "replies_to", replies)
    kill = 6
    with pytest.raises(KeyboardInterrupt):
        method.prepare(Document("d", ["text"]), tmp_path / "m.json")
    kill = 10_000
    prepared = method.prepare(Document("d", ["text"]), tmp_path / "m.json")
    assert {f"key {n}? value {n}" for n in range(300)} <= set(prepared.texts) and prepared.refused == 0
    assert len(asked) == len(set(asked)) == prepared.calls
    assert "one? more" not in prepared.texts, "no more pairs than lines"


# --- retrieval and loop ---------------------------------------------------------------------------------------------

class Vectors:
    """An encoder with given vectors."""
    fingerprint = "given"
    flops = 0

    def __init__(self, vectors):
        self.vectors = vectors

    def encode(self, texts):
        self.flops += 1000 * len(texts)
        return torch.tensor([self.vectors[text] for text in texts])


def test_retrieval_equals_numpy(tiny, settings):
    """Retrieval takes the 20 closest pairs, ties to the lower id, and of these the 5 that the re-ranker prefers."""
    scores = np.random.default_rng(0).permutation(np.arange(24) // 2 * 2.0)           # each score twice
    method = MKRAG(tiny, Vectors({"q": [.5]}), settings)
    prepared = Prepared([str(i) for i in range(24)], index=torch.tensor(scores)[:, None])
    closest = np.argsort(-scores, kind="stable")[:20].tolist()
    method.p_yes = lambda query, texts: list(map(int, texts))
    assert method.retrieve(prepared, "q") == sorted(closest)[:-6:-1]
    method.p_yes = lambda query, texts: [1] * len(texts)
    assert method.retrieve(prepared, "q") == sorted(closest)[:5]


def test_the_reranker_is_pecans_check(tiny, settings):
    """It gives p_yes of a search that has read the pair as its only node. Each pair costs one pass."""
    question = "What is Mara's pet?"
    texts = ["Mara has a goat", "a longer pair: Otto lives by the bridge"]
    graph = Graph([Node(1, text) for text in texts], [])
    wanted = []
    for i in range(2):
        search = Search(tiny, graph, question, torch.zeros(2), replace(settings, window=512))
        search.visit([i])
        search.check()
        wanted.append(search.trace[-1].p_yes)

    start = tiny.spent()
    method = MKRAG(tiny, None, settings)
    assert method.p_yes(question, texts) == pytest.approx(wanted, abs=1e-5)
    tokenizer = tiny.tokenizer
    fixed = length_of(question_prompt(tokenizer, question)) + len(tokenizer.frame.close)
    lengths = [fixed + len(line_ids(tokenizer, text)) for text in texts]
    assert tiny.spent(start) == (sum(flops_of(tiny.config, n, n, 1) for n in lengths), sum(lengths))


QUESTIONS = ["Who performed Never Too Loud? (a band)", "Which castle is there?", "From which city is Danko Jones?"]


@pytest.mark.parametrize("replies, read, refused", [
    # An answer at once; no third round; a rewritten question that was asked before; neither word; an essay
    (("1. **Sub-question 1:** " + QUESTIONS[0], "Answer: x"), [0], 0),
    ((QUESTIONS[0], "RewriteQ: Which castle is there?", "RewriteQ: other?"), [0, 1], 0),
    ((QUESTIONS[0], f"RewriteQ: {QUESTIONS[0]}"), [0], 0),
    ((QUESTIONS[0], *["Casa Loma"] * 3), [0], 3),
    ((*["an essay."] * 3, "Answer: x"), [2], 3)])
def test_ends_of_the_loop(tiny, monkeypatch, replies, read, refused):
    """Each of three pairs is near one question; the last one is asked. Every vector that is made counts."""
    monkeypatch.setattr(mkrag, "RERANKED", 1)
    method = MKRAG(tiny, Vectors(dict(zip(QUESTIONS, torch.eye(3).tolist()))), Settings(window=100_000))
    method.p_yes = lambda query, texts: [query in text for text in texts]
    script = Script(method, *replies)
    prepared = Prepared([f"{q} x" for q in QUESTIONS], graph=[(q, "x") for q in QUESTIONS], index=torch.eye(3))
    before = tiny.flops
    answer = method.answer(prepared, QUESTIONS[2])
    assert answer.flops == tiny.flops - before + method.encoder.flops > tiny.flops - before
    assert (answer.nodes, answer.calls, answer.refused) == (read, len(replies), refused) and not script.replies
