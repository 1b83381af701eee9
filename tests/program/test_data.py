"""The formats of documents, and the errors about files that have another form."""
import json
from dataclasses import replace

import pytest

from core.files import InputError
from data import EMBEDDED, Document, read_jsonl, read_text

QUESTION = {"question": "Who?", "answers": ["Ann", "Lee"]}
GOOD = {"text": "t", "questions": [QUESTION]}


def test_both_forms_of_a_document(tmp_path):
    rows = [GOOD | {"questions": [QUESTION | {"kind": "easy"}]},
            {"id": 2, "passages": ["a", "b"], "questions": [QUESTION | {"id": 7}]}]
    (tmp_path / "mine.jsonl").write_text("\ufeff\n" + "\n \n".join(map(json.dumps, rows)), encoding="utf-8")
    one, two = read_jsonl(tmp_path / "mine.jsonl")
    assert (one.id, one.passages, one.questions[0].id, one.questions[0].extra) == \
        ("mine-2", ["t"], "mine-2-0", {"kind": "easy"}), "an id is the line's number in the file"
    assert (two.id, two.passages, two.questions[0].id) == ("2", ["a", "b"], "7")
    assert two.questions[0].answers == ["Ann", "Lee"]
    others = [replace(two, passages=passages) for passages in (["ab"], ["a\nb"], ["a b"], ["b", "a"])]
    assert len({document.hash for document in (one, two, *others)}) == 6
    assert len(read_jsonl(tmp_path / "mine.jsonl", limit=1)) == 1


@pytest.mark.parametrize("line", [
    b"{", b"[]", b"\xff\xfe{}", b"[" * 5000, b'{"n": NaN}', GOOD | {"text": "x\ud83d"}, GOOD | {"id": "first"},
    {"text": "t"}, {"questions": []}, GOOD | {"passages": ["x"]}, GOOD | {"text": " "}, GOOD | {"id": ["d"]},
    {"passages": [], "questions": []}, {"text": "t", "questions": [QUESTION | {"id": 1}, QUESTION | {"id": "1"}]},
    *({"text": "t", "questions": [question]} for question in (
        "q", QUESTION | {"question": " "}, QUESTION | {"answers": []}, QUESTION | {"answers": "a"},
        QUESTION | {"id": "first-0"}, *(QUESTION | {"options": options, "gold": gold} for options, gold in (
            ([], 0), (["Ann"] * 27, 0), ("Ann", 0), (["Ann"], -1), (["Ann"], 1), (["Ann"], None)))))], ids=str)
def test_a_wrong_line_is_named(tmp_path, line):
    path = tmp_path / "mine.jsonl"
    line = line if isinstance(line, bytes) else json.dumps(line).encode()
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


def test_the_embedded_set_holds_the_evidence_of_its_answers():
    documents = read_jsonl(EMBEDDED)
    questions = [(document, question) for document in documents for question in document.questions]
    assert len(documents) == 20 and len(questions) == 134
    for document, question in questions:
        evidence = question.extra["evidence"]
        assert evidence and all(any(sentence in passage for passage in document.passages) for sentence in evidence)
        assert question.answers[0] in evidence[-1]
