"""MKRAG: entities, pruning and grains by hand, retrieval against numpy, the loop by scripts, the world by rules."""
import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from speaker import Script, Speaker, asked, known, scripted  # noqa: F401

from baselines import mkrag
from baselines.agent import Talk
from baselines.mkrag import (
    MKRAG,
    decision_of,
    items_of,
    joined,
    json_object,
    pairs_of,
    requests_of,
    sub_questions,
    weights_of,
    without_general_time,
)
from core.settings import resolve
from data import EMBEDDED, Document, Prepared, read_jsonl
from evaluation.cost import generation
from pecan import Graph, Node, Search, edge_matrix
from support.token_mean import TokenMean


@pytest.fixture(scope="module")
def settings(tiny):
    return replace(resolve(tiny.folder, tiny.config.max_length), window=100_000)


# --- entities -------------------------------------------------------------------------------------------------------

PIERRE = {"Attributes": {"Occupation": "Physicist", "Nationality": "French", "Fields": ["physics", "chemistry"]},
          "Relationships": {"Wife": "Marie Curie"}, "Events": ["1903 - Nobel Prize", "one day - fell ill"]}
MARIE = {"Events": ["1911 - Nobel Prize", "moved to Paris"]}
FOUND = {"Pierre Curie": PIERRE, "Marie Curie": MARIE, "Paris": {"Attributes": {"River": "Seine"}},
         "villager": {"Attributes": {"age": 40, "mood": "glad"}}}


def test_grains_by_hand(tiny, settings, script):
    """Four entities: 1 + 3 + 7 pairs, 1 + 1, 1, and one that is pruned; 14 in all."""
    weights = "Pierre Curie | 1.0\n* marie curie | 0.7\nParis | 0.5\nvillager | 0.3"

    def pairs(n):
        return "\n".join(f"{k}. Question: q{k}?\nAnswer: a{k}" for k in range(n))
    talk = script(json.dumps(FOUND), weights, *map(pairs, (1, 1, 2, 1, 7, 1, 1, 9)))
    method = MKRAG(tiny, TokenMean(tiny), settings, talk=talk)
    built = method.build(Document("x", ["text"]), method.conversation(), False)
    assert not Script.replies and len(built["pairs"]) == 14, "feature and macro take one pair"
    by = [(grain, name) for grain, name, _, _ in built["pairs"]]
    assert by.count(("micro", "Pierre Curie")) == 7 and by.count(("feature", "Pierre Curie")) == 3
    assert by[-3:] == [("macro", "Marie Curie"), ("feature", "Marie Curie"), ("macro", "Paris")]
    values = [value for _, _, value, _ in built["entities"][0]["items"]]
    assert values[-2:] == ["1903 - Nobel Prize", "fell ill"]


def test_thresholds():
    def grains(n):
        return [grain for grain, _ in requests_of("e", [("Attributes", "k", str(i), 0) for i in range(n)])]
    assert [grains(n) for n in (1, 2, 3, 4)] == [["macro"], ["macro", "feature"], ["macro", "feature"],
                                                 ["macro", "feature", "micro"]]


def test_one_weight_an_entity():
    """Two attributes of 0.3 do not add up to 0.6."""
    names = ["villager", "Sun Wukong", "Zhu"]
    assert weights_of("villager | 0.3\nsun wukong | 1\nBuddha | 0.7\nZhu | 0.9", names) == {"villager": .3,
                                                                                          "Sun Wukong": 1.0}
    assert weights_of("They are all important.", names) == {}


def test_entities_of_one_name_are_joined():
    first = {"Danko  Jones": {"Attributes": {"kind": "band"}, "Events": ["one day - sang"]}}
    second = {"danko jones": {"Attributes": {"kind": "band", "city": "Toronto"}}, "x": ["a list"], "": {}}
    assert joined([first, {}, second]) == {"Danko  Jones": [
        ("Attributes", "kind", "band", 0), ("Events", "", "sang", 0), ("Attributes", "city", "Toronto", 2)]}


def test_items_of_malformed_entities():
    assert items_of({"Attributes": {"a": 3, "b": {"c": ["d", "e"]}, "n": None}, "Events": "one", "Other": 1}) == [
        ("Attributes", "a", "3"), ("Attributes", "b", "c: d"), ("Attributes", "b", "c: e"), ("Events", "", "one")]
    assert items_of({"Attributes": ["x", ""], "Relationships": "y"}) == [("Attributes", "", "x"),
                                                                         ("Relationships", "", "y")]


@pytest.mark.parametrize("event, wanted", [
    ("1903 - won", "1903 - won"), ("one day - won", "won"), ("3 May - won", "3 May - won"),
    ("5 days later - won", "won"),
    ("January 1903 - won", "January 1903 - won"), ("12:30 - won", "12:30 - won"), ("5 月 - won", "5 月 - won"),
    ("the band of his two friends - won", "the band of his two friends - won"), ("won", "won")])
def test_general_times(event, wanted):
    assert without_general_time(event) == wanted


@pytest.mark.parametrize("reply, wanted", [
    ("Sure: {\"a\": {\"Events\": [\"}{\"]}} done {", {"a": {"Events": ["}{"]}}), ("{\"a\": {\"Attr", None),
    ("Danko Jones is a band from Toronto.", None), ("[1, 2]", None), ("[{\"a\": 1}]", {"a": 1}), ("{a: 1}", None)])
def test_json_in_a_reply(reply, wanted):
    assert json_object(reply) == wanted


def test_pairs_in_a_reply():
    reply = "1. Question: a?\n   Answer: b\nQuestion: no answer?\nQuestion: c?\n\nAnswer: d e\nAnswer: f"
    assert pairs_of(reply, 9) == [("a?", "b"), ("c?", "d e")] and pairs_of(reply, 1) == [("a?", "b")]
    assert pairs_of("Question: a?", 9) == []
    assert pairs_of("Question: a? Question: b?\nHis Answer: c, not Answer: d", 9) == [
        ("a? Question: b?", "c, not Answer: d")], "the first of a line counts"


def test_replies_to_questions():
    assert sub_questions("Here:\n1. Who?\n- Which one?\nan essay.\nWho?") == ["Who?", "Which one?"]
    assert sub_questions("Danko Jones is a band. It is from Toronto.") == []
    assert decision_of("I think\nRewriteQ: From where?\nAnswer: x") == ("RewriteQ", "From where?")
    assert decision_of("Answer: Casa Loma ") == ("Answer", "Casa Loma") and decision_of("Casa Loma") is None


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


def backwards(talk, query, texts):
    """A re-ranker that prefers the last."""
    return list(range(len(texts)))


def test_retrieval_equals_numpy(tiny, settings, monkeypatch):
    """The K_1 closest, ties to the lower id; of these the K_2 that the re-ranker prefers."""
    monkeypatch.setattr(mkrag, "RETRIEVED", 3)
    monkeypatch.setattr(mkrag, "RERANKED", 2)
    V = np.array([[1, 0], [0, 1], [.6, .8], [.6, .8]])
    method = MKRAG(tiny, Vectors({"q": [.8, .6]}), settings, rerank=backwards)
    prepared = Prepared(["a", "b", "c", "d"], 0, [], torch.tensor(V))
    scores = V @ [.8, .6]
    closest = sorted(range(4), key=lambda i: (-scores[i].round(9), i))[:3]
    assert closest == [2, 3, 0]
    assert method.retrieve(prepared, "q", None) == closest[::-1][:2]
    equal = MKRAG(tiny, Vectors({"q": [.8, .6]}), settings, rerank=lambda *_: [1, 1, 1])
    assert equal.retrieve(prepared, "q", None) == [0, 2]


def test_the_reranker_is_pecans_check(tiny, settings):
    """p_yes of a search that has read the pair as its only node."""
    question = "What is Mara's pet?"
    texts = ["Mara has a goat", "a longer pair: Otto lives by the bridge"]
    graph = Graph([Node(1, text) for text in texts], edge_matrix([], 2), "", "", {})
    wanted = []
    for i in range(2):
        search = Search(tiny, graph, question, torch.zeros(2), replace(settings, window=512))
        search.visit([i], search.probe)
        search.check()
        wanted.append(search.trace[-1].p_yes)
    talk = Talk(tiny, settings, "x")
    assert talk.p_yes(question, texts) == pytest.approx(wanted, abs=1e-5) and talk.tokens > 20


QUESTIONS = ["Who performed Never Too Loud?", "Which castle is there?", "From which city is Danko Jones?"]
QUESTION = "What is the name of the castle in the city where the performer of Never Too Loud was formed?"


@pytest.fixture
def story(tiny, settings, script):
    """Three pairs, one near each question; runs the loop by a script."""
    answers = ["Danko Jones", "Casa Loma", "Toronto"]
    pairs = [["micro", "e", question, answer] for question, answer in zip(QUESTIONS, answers)]
    texts = [f"{question} {answer}" for question, answer in zip(QUESTIONS, answers)]
    vectors = dict(zip([*QUESTIONS, QUESTION, "other?"], torch.eye(5).tolist()))

    def go(*replies, **options):
        method = MKRAG(tiny, Vectors(vectors), settings, own_answer=True, talk=script(*replies),
                       rerank=lambda talk, query, texts: [query in text for text in texts])
        answer = method.answer(Prepared(texts, 0, pairs, torch.eye(5)[:3]), QUESTION)
        assert not Script.replies
        return answer
    return go


def test_the_loop_on_the_story(story, monkeypatch):
    monkeypatch.setattr(mkrag, "RERANKED", 1)
    answer = story("1. Who performed Never Too Loud?\n2. Which castle is there?",
                   "RewriteQ: From which city is Danko Jones?", "Answer: Casa Loma")
    assert answer.text == "Casa Loma" and answer.nodes == [0, 1, 2] and answer.calls == 3
    knowledge = [f"{question} {answer}" for question, answer in zip(QUESTIONS, ("Danko Jones", "Casa Loma", "Toronto"))]
    seen = [f"{question}: {found}" for question, found in zip(QUESTIONS, ("Danko Jones", "Casa Loma", "Toronto"))]
    assert Script.heard == [
        f"{mkrag.SPLIT}Question: {QUESTION}",
        "\n".join([f"{mkrag.LOOP}{seen[0]}", seen[1], "Begin!", f"Question: {QUESTION}", "Knowledge:", *knowledge[:2]]),
        "\n".join([f"{mkrag.LOOP}{seen[0]}", *seen[1:], "Begin!", f"Question: {QUESTION}", "Knowledge:", *knowledge])]


@pytest.mark.parametrize("replies, text, loops", [
    (("Who performed Never Too Loud?", "Answer: Casa Loma"), "Casa Loma", 1),
    (("Who performed Never Too Loud?", "RewriteQ: other?", "RewriteQ: Which castle is there?"), "", 2),
    (("Who performed Never Too Loud?", "RewriteQ: Who performed Never Too Loud?"), "", 1),
    (("Who performed Never Too Loud?", "RewriteQ: "), "", 1),
    (("Who performed Never Too Loud?", *["Casa Loma"] * 3), "", 1),
    ((*["an essay."] * 3, "Answer: x"), "x", 1)])
def test_ends_of_the_loop(story, replies, text, loops):
    """Answer at once; never a third round; a rewritten question that was asked before; neither word; an essay."""
    answer = story(*replies)
    assert answer.text == text and [step.stage for step in answer.trace].count("loop") == loops
    assert answer.refused == sum(reply in ("Casa Loma", "an essay.") for reply in replies)


# --- the method -----------------------------------------------------------------------------------------------------

def test_refusals_leave_no_pairs_and_no_chunks(tiny, settings, script, tmp_path):
    method = MKRAG(tiny, TokenMean(tiny), settings, talk=script(*["the text copied back"] * 3))
    prepared = method.prepare(Document("x", ["text"]), tmp_path / "x.json")
    answer = method.answer(prepared, "Q?")
    assert (prepared.texts, prepared.refused, answer.text, answer.end, answer.calls) == ([], 3, "", "none", 0)
    again = MKRAG(tiny, TokenMean(tiny), settings, talk=script()).prepare(Document("x", ["text"]), tmp_path / "x.json")
    assert again.calls == 3 and again.texts == []


def test_costs_are_those_of_the_calls(tiny, settings, heard, monkeypatch):
    """Calls, re-ranking, encoder and reader, one at a time; a question is not charged for the construction."""
    small = replace(settings, batch=1, answer_tokens=4, window=512)
    vectors = Vectors({"Who?": [1.0, 0], "What is it? goat": [1.0, 0]})
    method = MKRAG(tiny, vectors, small)
    prepared = Prepared(["What is it? goat"], 0, [["macro", "e", "What is it?", "goat"]],
                        vectors.encode(["What is it? goat"]))
    read = []
    reader = mkrag.answer_from_best

    def reading(*arguments):
        answer = reader(*arguments)
        read.append(answer.flops)
        return answer
    monkeypatch.setattr(mkrag, "answer_from_best", reading)
    before = tiny.flops
    vectors.vectors |= {"Q?": [1.0, 0]}
    answer = method.answer(prepared, "Q?")
    assert answer.flops == tiny.flops - before + 1000, "the query is embedded once"
    talk = Talk(tiny, small, "x")
    before = tiny.flops
    talk.p_yes("Q?", prepared.texts)
    assert answer.flops == sum(flops for flops, _, _ in heard) + (tiny.flops - before) + read[0] + 1000
    for flops, prompts, limit in heard:
        length = len(prompts[0])
        assert generation(tiny.config, length, 1) <= flops <= generation(tiny.config, length, limit + 1)


def by_rules(talk, query, texts):
    """In the place of the re-ranker: the shortest pair that states what is asked for."""
    entity, [relation] = asked(query)
    return [((entity, relation) in known(text)) / (1 + len(text)) for text in texts]


def test_every_question_of_the_world_is_answered_by_rules(tiny, settings, monkeypatch):
    """Two rounds find a post and a fact about it. They do not find a friend's: that takes four, one after another.

    So of the 20 questions about two facts 18 stay without an answer. What else is retrieved depends on the embeddings:
    for two questions a pair too many, and a look-up never gets its pair. With four rounds all others are answered.
    """
    method = MKRAG(tiny, TokenMean(tiny), settings, own_answer=True, talk=Speaker, rerank=by_rules)

    def unanswered(questions):
        """Those that have no answer; all others are right."""
        left = []
        for prepared, question in questions:
            answer = method.answer(prepared, question.text)
            assert answer.text in ("", *question.answers), f"{question.id}: {answer.trace}"
            assert answer.refused == 0
            left += [] if answer.text else [(prepared, question)]
        return left

    documents = [(method.prepare(document), document.questions) for document in read_jsonl(EMBEDDED)]
    left = unanswered([(prepared, question) for prepared, questions in documents for question in questions])
    kinds = Counter(question.extra["kind"] for _, question in left)
    assert 16 <= kinds.pop("two facts") <= 20 and set(kinds) <= {"look-up"} and kinds.total() <= 2
    monkeypatch.setattr(mkrag, "ROUNDS", 4)
    assert {question.extra["kind"] for _, question in unanswered(left)} <= {"look-up"}
