"""The whole document: one prompt, one pass."""
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
    method = Whole(tiny, settings)
    prepared = method.prepare(document)
    assert prepared.index == [i for passage in document.passages for i in ids_of(pecan.node_line(t, None, passage))]

    ids = cut_middle(prepared.index, pecan.room_for_nodes(t, pecan.question_prompt(t, question), question, settings))
    prompt = ids_of([*pecan.question_prompt(t, question), (None, ids), *pecan.answer_turn(t, t.first("Yes"))])
    assert len(prompt) + settings.answer_tokens == settings.window
    answer = method.answer(prepared, question)
    reply = greedy(tiny_hf, prompt, settings.answer_tokens)
    assert answer.cut and answer.text == t.decode([i for i in reply if i not in tiny.config.eos]).strip()

    for n, wanted in enumerate(([0], [0, 4], [0, 1, 4], [0, 1, 3, 4], [*range(5)]), 1):
        assert cut_middle([*range(5)], n) == wanted
    assert not method.answer(method.prepare(Document("d", document.passages[:3])), question).cut
    with pytest.raises(InputError, match="too small: prompts, question and answer"):
        method.answer(prepared, "Who " * 500)
