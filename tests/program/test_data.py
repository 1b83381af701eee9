"""Documents, and files that are no text."""
from dataclasses import replace

import pytest

from core.files import InputError
from data import Document, read_text


def test_the_hash_is_that_of_the_passages():
    passages = ["a", "b"], ["ab"], ["a\nb"], ["b", "a"]
    assert len({Document("d", texts).hash for texts in passages}) == len(passages)
    assert Document("d", ["a"]).hash == replace(Document("d", ["a"]), id="e").hash


@pytest.mark.parametrize("content, words", [
    (b" \n", "is empty"), (None, "UTF-8 text is wanted .No such file"),
    *((content, "d.txt: plain UTF-8 text is wanted") for content in (
        b"Ann\xff\xfe", "Élan".encode("latin-1"), "Ann".encode("utf-16"), b"PK\3\4\x14\0\6\0\x08\0\xa5\xb1",
        b"%PDF-1.7\n%\xe2\xe3\xcf\xd3", b"\n<!doctype html><p>Ann", b"\xef\xbb\xbf<HTML lang='en'>"))])
def test_a_document_that_is_no_plain_text(tmp_path, content, words):
    path = tmp_path / "d.txt"
    path.write_bytes("\ufeffÉlan <html>".encode())           # a byte order mark is no text
    assert read_text(path) == Document("d.txt", ["Élan <html>"])
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_text(path)
