"""Files and texts that give trouble: full disks, what libraries raise, control characters, scripts without blanks."""
import os
from unittest.mock import Mock

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from core.files import InputError, reading, write_file
from core.text import split
from data import Answer
from view import ask

# --- files ----------------------------------------------------------------------------------------------------------

def test_a_file_is_written_at_once_or_not_at_all(tmp_path, monkeypatch):
    """Nothing but its new name makes a half-written file the file."""
    write_file(tmp_path / "f", "old")
    replace = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(os, "replace", replace)
    for process in (1, 2):
        monkeypatch.setattr(os, "getpid", lambda: process)
        with pytest.raises(OSError, match="No space"):
            write_file(tmp_path / "f", "new")
    assert (tmp_path / "f").read_text() == "old" and len(list(tmp_path.iterdir())) == 1, "half a file is left"
    assert len({new for (new, _), _ in replace.call_args_list}) == 2, "two processes write one file"


def test_whatever_a_file_makes_a_library_raise_names_the_file():
    """Also the panic of a library in Rust, which is no Exception. An interruption and a lack of memory go on."""
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(InputError, match="f: cannot be read .index"), reading("f"):
        raise panic("index")
    for error in (KeyboardInterrupt, MemoryError):
        with pytest.raises(error), reading("f"):
            raise error


def test_a_document_does_not_take_over_the_terminal():
    said = ask.as_text(Answer("\x9b2J", [], 1, 1), "Who?\x1b]0;x\x07", [], steps=False)
    assert said.startswith("Who?\\x1b]0;x\\x07\n  \\x9b2J\n")


# --- text -----------------------------------------------------------------------------------------------

class Bytes:
    """A tokenizer whose tokens are the bytes of UTF-8."""
    def encode(self, text):
        return list(text.encode())


CHARACTERS = "今 日 か\u3099 e\u0301\u0302 की 👩 1\ufe0f\u20e3 한 。 ！」 ؟".split()


@given(st.lists(st.sampled_from(CHARACTERS), min_size=40, max_size=90), st.integers(32, 60))
def test_a_text_without_blanks_is_cut_at_the_best_place(characters, limit):
    """At the end of a sentence in the second half of a chunk, else between two characters, as late as possible. The
    package regex knows both, and which marks belong to a character."""
    text = "".join(characters)
    pieces = split(Bytes(), text, limit)
    assert "".join(pieces) == text and len(pieces[-1].encode()) < limit
    for k, piece in enumerate(pieces[:-1]):
        rest = "".join(pieces[k:])
        most = max(n for n in range(len(rest)) if len(rest[:n].encode()) < limit)
        assert most // 2 <= len(piece) <= most
        if not regex.search(r"\p{STerm}」?$", piece):
            assert len((piece + regex.match(r"\X", pieces[k + 1])[0]).encode()) >= limit, "another character fits"
            assert not regex.search(r"\p{STerm}", piece[(most + 1) // 2:]), "a sentence ends in the second half"
    assert [c for piece in pieces for c in regex.findall(r"\X", piece)] == regex.findall(r"\X", text)


def test_a_line_that_ends_inside_a_chinese_sentence_leaves_no_blank():
    assert split(Bytes(), "今\r\n日、\nか 今\nA\n한\n국", 99) == ["今日、か 今 A 한 국"]
    assert [split(Bytes(), f"{word} {20 * 'c'}", 10)[0] for word in ("abcd", "abcde")] == ["abcd cccc", "abcde"]
