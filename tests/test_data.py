"""The formats of documents, and the errors about files that have another form."""
import json

import pytest

from core.files import InputError
from data import EMBEDDED, read_jsonl, read_text


def test_both_forms_of_a_document(tmp_path):
    rows = [{"text": "One long text.", "questions": [{"question": "Who?", "answers": ["Ann"], "kind": "easy"}]},
            {"id": "d2", "passages": ["a", "b"],
             "questions": [{"id": "q", "question": "What?", "answers": ["x", "y"]}]}]
    (tmp_path / "mine.jsonl").write_text("\n\n".join(map(json.dumps, rows)))
    one, two = read_jsonl(tmp_path / "mine.jsonl")
    assert (one.id, one.passages, one.questions[0].id, one.questions[0].extra) == \
        ("mine-1", ["One long text."], "mine-1-0", {"kind": "easy"})
    assert (two.id, two.passages, two.questions[0].answers) == ("d2", ["a", "b"], ["x", "y"])
    assert one.hash != two.hash and len(read_jsonl(tmp_path / "mine.jsonl", limit=1)) == 1


GOOD = {"text": "t", "questions": [{"question": "q", "answers": ["a"]}]}


@pytest.mark.parametrize("line, words", [
    ("{", "line 2: not valid JSON"), ("[]", "line 2: holds a list, not a dict"),
    (json.dumps({"questions": []}), "either text or passages"),
    (json.dumps(GOOD | {"passages": ["x"]}), "either text or passages"),
    (json.dumps(GOOD | {"text": " "}), "line 2: text is ' '; it must be a text that is not blank"),
    (json.dumps({"passages": [], "questions": []}), r"passages is \[\]; it must be a non-empty list of texts"),
    (json.dumps({"passages": ["a", " "], "questions": []}), r"passages is \['a', ' '\]; .*none of them blank"),
    (json.dumps({"text": "t"}), "key 'questions' is missing"),
    (json.dumps({"text": "t", "questions": ["q"]}), "line 2: question 0 is 'q'; it must be an object"),
    (json.dumps(GOOD | {"questions": [{"answers": ["a"]}]}), "line 2: question 0: key 'question' is missing"),
    (json.dumps(GOOD | {"questions": [{"question": "q", "answers": []}]}), r"2: question 0: answers is \[\]; "),
    (json.dumps(GOOD | {"questions": [{"question": "q", "answers": "a"}]}), "question 0: answers is 'a'; it"),
    (json.dumps(GOOD | {"text": "x\ud83d"}), "line 2: half a surrogate pair"),
    (json.dumps(GOOD | {"id": "first"}), "line 2: id 'first' is used a second time")])
def test_a_wrong_line_is_named(tmp_path, line, words):
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps(GOOD | {"id": "first"}) + "\n" + line + "\n")
    with pytest.raises(InputError, match=words) as error:
        read_jsonl(path)
    assert "mine.jsonl" in str(error.value)


@pytest.mark.parametrize("content, words", [(b"", "is empty"), (b" \n", "is empty"), (b"\xff\xfe\x00", "not UTF-8"),
                                            (b"PK\x03\x04\x00\x00", "binary"), (None, "cannot be read")])
def test_a_document_that_is_not_text(tmp_path, content, words):
    path = tmp_path / "d.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_text(path)


def test_the_embedded_set():
    documents = read_jsonl(EMBEDDED)
    questions = [question for document in documents for question in document.questions]
    assert len(documents) == 20 and len(questions) == 134
    for document in documents:
        for question in document.questions:
            assert question.extra["evidence"]
            for sentence in question.extra["evidence"]:
                assert any(sentence in passage for passage in document.passages)
            assert question.answers[0] in question.extra["evidence"][-1]
