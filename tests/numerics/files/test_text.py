"""Text and replies: the points of a summary, and chunks, which lose no word."""
import random
import re
from types import SimpleNamespace

import pytest

from core.text import split
from pecan import bullets


def in_brackets(reply, complete=True):
    """The points of a reply, as "[one] [another]"."""
    texts = (" ".join(reply[start:end] for start, end in spans) for spans in bullets(reply, complete))
    return " ".join(f"[{' '.join(text.split())}]" for text in texts)


@pytest.mark.parametrize("reply, points", [
    # A mark is *, -, +, • or a number, with white space behind it.
    ("* 1\n- 2\n• 3\n 4. 4\n12) 5\n\t+ 6", "[1] [2] [3] [4] [5] [6]"),
    ("* Ann left in\n1921, a year\n-12 degrees\nso **bold** 1.5\n*two\n(3) three\n→ four",
     "[Ann left in 1921, a year -12 degrees so **bold** 1.5 *two (3) three → four]"),
    ("* Ann\n  - left", "[Ann] [left]"), ("1. **Ann**\n\n   left.\n\n2. Bob", "[**Ann** left.] [Bob]"),
    # Before the first mark, a line that ends with a colon is left out, and all others are a point.
    ("Here is a summary:\n* one\nof two:\n* two", "[one of two:] [two]"),
    ("Ann was born.\nEarly life:\nShe left.\n* She moved.", "[Ann was born. She left.] [She moved.]"),
    ("  no bullet at all\nin two lines \n", "[no bullet at all in two lines]"),
    # Headings and words of Table A1 are left out.
    ("# Life\n* one\n**Work**\ngoes on\n## End\n* two", "[one goes on] [two]"), ("**Only**", ""),
    ("Summary points:\n* one\n\nSUMMARY POINTS\n\nGenerate in the format of:\n* two\n---\n", "[one] [two]"),
    # Empty points go.
    ("* one\n*\n*   \n* two", "[one] [two]"), (" \n ", ""), ("*\n* \n2.", ""), ("*\none", "[one]")])
def test_bullets(reply, points):
    assert in_brackets(reply) == points


@pytest.mark.parametrize("reply, points", [
    ("* one\n* tw", "[one]"), ("* on", "[on]"), ("*\n* on", "[on]"), ("* one\n* two\n*", "[one] [two]")])
def test_the_last_bullet_of_a_reply_that_was_cut_off_goes(reply, points):
    """Unless it is the only one. It may have been cut before its text."""
    assert in_brackets(reply, complete=False) == points


def test_splitting_loses_no_word(tiny):
    """A word longer than a chunk is cut, no other is. (test_7_algorithm.py: a chunk is as full as it can be.)"""
    rng = random.Random(0)
    words = rng.choices(["Mara", "it's", "a" * 40, "job.", "12,5", "é☃"], k=500)
    text = "".join(word + rng.choice([" ", "\n", "\t \n\n"]) for word in words)
    longer = "é☃" * 20                                         # 40 tokens
    chunks = split(tiny.tokenizer, text + longer, 32)
    found = " ".join(chunks).split()
    assert found[:500] == words and "".join(found[500:]) == longer and "\n" not in "".join(chunks)
    assert max(len(tiny.tokenizer.encode(" " + chunk)) for chunk in chunks) <= 32


def test_a_word_counts_with_the_blank_before_it():
    """Some tokenizers know "baker" but not " baker": the word is one token alone, and two inside a text."""
    encoder = SimpleNamespace(encode=lambda text: re.findall("baker|.", text))
    assert split(encoder, "baker " * 7, 6) == ["baker baker baker"] * 2 + ["baker"]
    assert split(encoder, "bakerbaker", 3) == ["bakerbaker"], "a word as long as a chunk"
