"""The whole document: one prompt, one pass."""
from dataclasses import replace

import pytest
from oracle import greedy

import pecan
from baselines.whole import Whole, cut_middle
from core.files import InputError
from data import Document
from llama import ids_of


def test_the_whole_document_in_one_pass(tiny, tiny_hf, document, question, settings):
    """The prompt is Table A2's with all passages as nodes, cut in the middle; the answer is Hugging Face's."""
    t = tiny.tokenizer
    settings = replace(settings, answer_tokens=1)
    method = Whole(tiny, settings)
    prepared = method.prepare(document)
    assert prepared.index == [i for passage in document.passages for i in ids_of(pecan.node_line(t, None, passage))]

    start = pecan.question_prompt(t, question)
    ids = cut_middle(prepared.index, pecan.room_for_nodes(t, start, question, settings))
    prompt = ids_of([*start, (None, ids), *pecan.answer_turn(t, t.first("Yes"))])
    assert len(prompt) + 1 == settings.window and ids_of(method.read(prepared, question).prompt) == prompt
    answer = method.answer(prepared, question)
    assert answer.cut and answer.text == t.decode(greedy(tiny_hf, prompt, 1)).strip()

    assert [cut_middle("01234", n) for n in range(1, 6)] == ["0", "04", "014", "0134", "01234"]
    assert not method.answer(method.prepare(Document("d", document.passages[:3])), question).cut
    with pytest.raises(InputError, match="too small"):
        method.answer(prepared, "Who " * 500)
