"""The formats of documents, and the errors about files that have another form."""
import json
from dataclasses import replace

import pytest

from core.files import InputError
from data import EMBEDDED, Document, read_jsonl, read_text


def test_both_forms_of_a_document(tmp_path):
    rows = [{"text": "One long text.", "questions": [{"question": "Who?", "answers": ["Ann"], "kind": "easy"}]},
            {"id": 2, "passages": ["a", "b"],
             "questions": [{"id": 7, "question": "What?", "answers": ["x", "y"]}]}]
    (tmp_path / "mine.jsonl").write_text("\n" + "\n\n".join(map(json.dumps, rows)))
    one, two = read_jsonl(tmp_path / "mine.jsonl")
    assert (one.id, one.passages, one.questions[0].id, one.questions[0].extra) == \
        ("mine-2", ["One long text."], "mine-2-0", {"kind": "easy"}), "an id is the line's number in the file"
    assert (two.id, two.passages, two.questions[0].id, two.questions[0].answers) == ("2", ["a", "b"], "7", ["x", "y"])
    others = [replace(two, passages=passages) for passages in (["ab"], ["a\nb"], ["a b"], ["b", "a"])]
    assert len({document.hash for document in (one, two, *others)}) == 6
    assert len(read_jsonl(tmp_path / "mine.jsonl", limit=1)) == 1


QUESTION = {"question": "q", "answers": ["a"]}
GOOD = {"text": "t", "questions": [QUESTION]}
NESTED = "[" * 5000 + "]" * 5000


@pytest.mark.parametrize("line", [
    b"{", b"[]", b"\xff\xfe{}", NESTED, '{"n": NaN}', GOOD | {"text": "x\ud83d"}, GOOD | {"id": "first"}, {"text": "t"},
    {"questions": []}, GOOD | {"passages": ["x"]}, GOOD | {"text": " "}, GOOD | {"text": 3}, GOOD | {"id": ["d"]},
    {"passages": [], "questions": []}, {"passages": ["a", " "], "questions": []},
    {"text": "t", "questions": [QUESTION | {"id": 1}, QUESTION | {"id": "1"}]},
    *({"text": "t", "questions": [question]} for question in (
        "q", {"answers": ["a"]}, QUESTION | {"question": " "}, QUESTION | {"answers": []}, QUESTION | {"answers": "a"},
        QUESTION | {"answers": [1]}, QUESTION | {"id": None}, QUESTION | {"id": "first-0"}))], ids=str)
def test_a_wrong_line_is_named(tmp_path, line):
    if not isinstance(line, bytes):
        line = (line if isinstance(line, str) else json.dumps(line)).encode()
    path = tmp_path / "mine.jsonl"
    path.write_bytes(json.dumps(GOOD | {"id": "first"}).encode() + b"\n" + line + b"\n")
    with pytest.raises(InputError) as error:
        read_jsonl(path)
    assert str(error.value).startswith(f"{path}, line 2: ") and len(str(error.value)) < 600


@pytest.mark.parametrize("content, words", [(b" \n", "is empty"), (b"Ann\xff\xfe\x00", "not UTF-8 text .byte 3"),
                                            (b"PK\x03\x04\x00\x00", "binary"), (b"%PDF-1.4\n1 0 obj", "PDF"),
                                            (b"{\\rtf1 Ann}", "RTF"), (None, "cannot be read")])
def test_a_document_that_is_not_text(tmp_path, content, words):
    path = tmp_path / "d.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_text(path)


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "d.txt").write_bytes("\ufeffÉlan".encode())
    assert read_text(tmp_path / "d.txt") == Document("d.txt", ["Élan"])
    (tmp_path / "d.jsonl").write_bytes(f"\ufeff{json.dumps(GOOD)}\n{json.dumps(GOOD)}".encode())
    assert len(read_jsonl(tmp_path / "d.jsonl")) == 2


def test_the_embedded_set():
    documents = read_jsonl(EMBEDDED)
    questions = [(document, question) for document in documents for question in document.questions]
    assert len(documents) == 20 and len(questions) == 134
    for document, question in questions:
        evidence = question.extra["evidence"]
        assert evidence and all(any(sentence in passage for passage in document.passages) for sentence in evidence)
        assert question.answers[0] in evidence[-1]
