"""The formats of documents, and the errors about files that have another form."""
import json
from dataclasses import replace

import pytest

from core.files import InputError
from data import Document, Question, read_jsonl, read_text

QUESTION = {"question": "Who?", "answers": ["Ann", "Lee"]}
GOOD = {"id": "first", "text": "t", "questions": [QUESTION]}


def test_both_forms_of_a_document(tmp_path):
    """Without an id, the line's number in the file is in it. A question may have the id of its document. A byte order
    mark and blank lines do no harm."""
    rows = [{"text": "t", "questions": [QUESTION | {"kind": "easy"}]},
            {"id": 2, "passages": ["a", "b"], "questions": [QUESTION | {"id": 2}]}]
    path = tmp_path / "mine.jsonl"
    path.write_text("\ufeff\n" + "\n \n".join(map(json.dumps, rows)), encoding="utf-8")
    assert read_jsonl(path) == [
        Document("mine-2", ["t"], [Question("mine-2-0", "Who?", ["Ann", "Lee"], {"kind": "easy"})]),
        Document("2", ["a", "b"], [Question("2", "Who?", ["Ann", "Lee"])])]


def test_the_hash_is_that_of_the_passages():
    passages = ["a", "b"], ["ab"], ["a\nb"], ["b", "a"]
    assert len({Document("d", texts).hash for texts in passages}) == len(passages)
    assert Document("d", ["a"]).hash == replace(Document("d", ["a"]), id="e").hash


# Each of these lines is wrong behind the line GOOD.
WRONG = rb'''{
[]
{"text": "t", "questions": [], "n": NaN}
{"id": "first", "text": "t", "questions": []}
{"text": "t", "questions": [{"id": "first-0", "question": "Who?", "answers": ["Ann"]}]}
{"text": "x\ud83d", "questions": []}
{"text": " ", "questions": []}
{"text": "t", "passages": ["x"], "questions": []}
{"passages": ["x", " "], "questions": []}
{"questions": []}
{"id": ["d"], "text": "t", "questions": []}
{"text": "t"}
{"text": "t", "questions": ["q"]}
{"text": "t", "questions": [{"question": " ", "answers": ["Ann"]}]}
{"text": "t", "questions": [{"question": "Who?", "answers": []}]}
{"text": "t", "questions": [{"question": "Who?", "answers": "Ann"}]}
{"text": "t", "questions": [{"id": 1, "question": "?", "answers": ["a"]},{"id": "1", "question": "?", "answers": [""]}]}
{"text": "t", "questions": [{"question": "Who?", "answers": ["Ann"], "options": [], "gold": 0}]}
{"text": "t", "questions": [{"question": "Who?", "answers": ["Ann"], "options": "Ann", "gold": 0}]}
{"text": "t", "questions": [{"question": "Who?", "answers": ["Ann"], "options": ["Ann"], "gold": -1}]}
{"text": "t", "questions": [{"question": "Who?", "answers": ["Ann"], "options": ["Ann"], "gold": 1}]}
{"text": "t", "questions": [{"question": "Who?", "answers": ["Ann"], "options": ["Ann"]}]}'''.split(b"\n")


@pytest.mark.parametrize("line", [*WRONG, b"\xff\xfe{}", b"[" * 5000], ids=range(24))
def test_a_wrong_line_is_named(tmp_path, line):
    path = tmp_path / "mine.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b"\n" + line + b"\n")
    with pytest.raises(InputError) as error:
        read_jsonl(path)
    assert str(error.value).startswith(f"{path}, line 2: ") and len(str(error.value)) < 600


@pytest.mark.parametrize("content, words", [(b" \n", "is empty"), (b"Ann\xff\xfe", "as UTF-8 text .*in position 3"),
                                            (None, "as UTF-8 text .No such file")])
def test_a_document_that_is_not_text(tmp_path, content, words):
    path = tmp_path / "d.txt"
    path.write_bytes("\ufeffÉlan".encode())                  # a byte order mark is no text
    assert read_text(path) == Document("d.txt", ["Élan"])
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_text(path)
