"""Searches that advance together: the same answers, and no pass more than the longest of them takes alone."""
import gc
import shutil
import threading
import weakref
from dataclasses import replace

import pytest
import torch

import eval as evaluate
import pecan
from core.files import InputError
from evaluation.together import answer_together, group_size
from pecan import Pecan
from support.token_mean import TokenMean
from tiny.facts import posts_in

# Measured: 4e-6. Rows that run together round float32 differently; in a choice of two nodes that would be a tie.
TOLERANCE = 3e-5


@pytest.fixture(scope="module")
def method(tiny, settings):
    return Pecan(tiny, TokenMean(tiny), replace(settings, confidence=0.9))


@pytest.fixture(scope="module")
def prepared(method, document):
    return method.prepare(document)


@pytest.fixture(scope="module")
def questions(graph):
    """Of different lengths, about people that are near and far."""
    names = list(posts_in([node.text for node in graph.nodes]).values())
    asked = ("What does {} drink?", "What is {}'s job?", "Where does {} live?", "What is {}'s friend's pet?",
             "Who is {}?")
    return [question.format(names[n % len(names)]) for n, question in enumerate(asked)]


@pytest.fixture
def passes(tiny, monkeypatch):
    """The rows of each pass of the model."""
    seen = []
    append = tiny.append

    def counted(cache, rows, averaging=None):
        seen.append(len(rows))
        return append(cache, rows, averaging)

    monkeypatch.setattr(tiny, "append", counted)
    return seen


def assert_same_answer(ours, alone):
    """Equal words, choices, verdicts and counts; numbers up to rounding."""
    for name in ("text", "nodes", "end", "tokens", "flops"):
        assert getattr(ours, name) == getattr(alone, name)
    for a, b in zip(ours.trace, alone.trace, strict=True):
        for name in ("node", "position", "runner_up", "verdict", "tokens", "flops"):
            assert getattr(a, name) == getattr(b, name)
        for ours, wanted in ((a.r, b.r), (a.z, b.z), (a.score, b.score), (a.p_yes, b.p_yes)):
            assert (ours is None) == (wanted is None)
            assert ours is None or ours == pytest.approx(wanted, rel=TOLERANCE, abs=TOLERANCE)


def test_a_group_answers_as_each_question_alone(method, prepared, questions, passes):
    alone = []
    lengths = []
    for question in questions:
        passes.clear()
        alone.append(method.answer(prepared, question))
        lengths.append(len(passes))
    assert len(set(lengths)) > 2, "the searches must end one after the other"

    passes.clear()
    together = answer_together(method, prepared, questions)
    for ours, wanted in zip(together, alone, strict=True):
        assert_same_answer(ours, wanted)

    # Every search is in every pass until it ends.
    assert passes == [sum(length > n for length in lengths) for n in range(max(lengths))]


def test_the_model_counts_what_the_group_spends(method, prepared, questions):
    before = method.model.flops, method.encoder.flops
    answers = answer_together(method, prepared, questions)
    spent = method.model.flops - before[0] + method.encoder.flops - before[1]
    assert sum(answer.flops for answer in answers) == spent


def test_a_question_that_fails_fails_alone(method, prepared, questions):
    """The others go on, and its row is not missed."""
    together = answer_together(method, prepared, [questions[0], "Who " * 500, questions[1]])
    assert isinstance(together[1], InputError) and "too small: the question" in str(together[1])
    for ours, question in zip(together[::2], questions):
        assert_same_answer(ours, method.answer(prepared, question))


@pytest.mark.parametrize("too_large", [False, True])
def test_a_pass_that_fails_is_tried_one_by_one(method, prepared, questions, tiny, monkeypatch, too_large):
    """Which row has failed is unknown: each question is asked again alone, and no thread is left.

    So too if the memory does not suffice for all rows. Then the group's cache is gone before the first is asked again.
    """
    append = tiny.append
    groups = []

    def broken(cache, rows, averaging=None):
        if len(rows) > 1:
            groups.append(weakref.ref(cache))
        elif too_large:
            assert groups[-1]() is None
        if len(rows) > 1 and max(cache.lengths) > 60:
            return torch.empty(1 << 50) if too_large else fail()
        return append(cache, rows, averaging)

    def fail():
        raise InputError("not finite")

    monkeypatch.setattr(tiny, "append", broken)
    threads = threading.active_count()
    gc.disable()
    try:
        together = answer_together(method, prepared, questions)
    except RuntimeError as error:
        pytest.fail(f"the whole group fails: {error}")
    finally:
        gc.enable()
    for ours, question in zip(together, questions):
        assert ours == method.answer(prepared, question)
    assert threading.active_count() == threads


def test_a_bug_is_no_answer(method, prepared, questions, monkeypatch):
    def bug(*_):
        raise KeyError("a bug")

    monkeypatch.setattr(pecan, "final_scores", bug)
    with pytest.raises(KeyError, match="a bug"):
        answer_together(method, prepared, questions)


def test_how_many_run_together(method):
    from baselines.whole import Whole
    assert group_size(method) == method.settings.batch == 8
    assert group_size(Whole(method.model, method.settings)) == 1


def test_a_group_that_was_interrupted_gives_the_same_bytes(tmp_path, capsys):
    """Two of seven questions are answered: the group runs again as a whole, and the five others are added."""
    def run(output):
        assert evaluate.main(["--limit", "1", "--method", "pecan", "--device", "cpu", "--output", str(output)]) == 0
        return (output / "embedded" / "pecan.jsonl").read_bytes()

    wanted = run(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    lines = wanted.splitlines(keepends=True)
    assert len(lines) == 7
    (tmp_path / "cut" / "embedded" / "pecan.jsonl").write_bytes(b"".join(lines[:2]))
    assert run(tmp_path / "cut") == wanted
