"""Text and replies: the points of a summary in any script, and chunks, which lose no word."""
import random
import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.text import split
from pecan import bullets


def in_brackets(reply, complete=True):
    """The points of a reply, as "[one] [another]"."""
    texts = (" ".join(reply[start:end] for start, end in spans) for spans in bullets(reply, complete))
    return " ".join(f"[{' '.join(text.split())}]" for text in texts)


SIGNS = "* |- |・|①|12．|三、|（4）|٣) |• |Ⅳ. |**7.** |\u200b* |\ufeff– |1\ufe0f\u20e3 |✅".split("|")
SCRIPTS = "Due on day 3", "期限は三日", "租金九百", "الإيجار ٩٠٠", "срок 3 дня", "किराया ९००"
HEADINGS = {"## {}": "{}", "**{}**": "**{}**", "{}:": "{}:", "* {}": "{}", "1. **{}**": "**{}**"}       # line, words
POINTS = st.lists(st.tuples(st.sampled_from(SIGNS), st.sampled_from(SCRIPTS)), min_size=1)


@given(st.sampled_from([*HEADINGS]), st.lists(st.tuples(st.sampled_from(SCRIPTS), POINTS)), st.booleans())
def test_a_heading_begins_the_points_below_it(heading, outline, fenced):
    """In any script, with any sign. (With a colon before the first point it would be a preamble.)"""
    lines, wanted = ["* first"], ["[first]"]
    for title, points in outline:
        lines += ["", heading.format(title), *(f"  {sign}{text}" for sign, text in points)]
        wanted += [f"[{HEADINGS[heading].format(title)} {text}]" for _, text in points]
    assert in_brackets("\n".join(["```", *lines, "```"] if fenced else lines)) == " ".join(wanted)


@pytest.mark.parametrize("reply, points", [
    # Markers, and text that only looks like one.
    ("* 1\n- 2\n• 3\n 4. 4\n12) 5\n– 6\n● 7\n+ 8\n**9.** 9\n(10) 10\n*11\n− 12\n→ 13\n· 14\n1、15",
     "[1] [2] [3] [4] [5] [6] [7] [8] [9] [10] [11] [12] [13] [14] [15]"),
    ("### 1. Life\nAnn left.\n## 2. Work\nShe bakes.", "[Life Ann left.] [Work She bakes.]"),
    ("### 1. Ann\n## **2)** Bob\n# 3\n8.p.m.\n1.**B**", "[Ann] [Bob] [3 8.p.m. 1.**B**]"),
    ("* Ann left in\n1921. Ann\n-12 degrees\nso **bold**\n1.5\n---\n½ ©\n* two",
     "[Ann left in 1921. Ann -12 degrees so **bold** 1.5 --- ½ ©] [two]"),
    # A heading ends no point. With none below it, it is one. A sentence is no heading. A tab indents.
    ("* Bob kept it\n## Ending\n**Ann**\n* They met.\n  * At sea\n# End",
     "[Bob kept it] [Ending **Ann** They met.] [Ending **Ann** At sea] [End]"),
    ("* Ann\n\t* left", "[Ann left]"), ("**Only**", "[**Only**]"), ("# A\n\nb\n\nc", "[A b c]"),
    # Preamble and afterword go. All other text joins the bullet above it, or is a point by itself.
    ("**The summary:**\n\n* one\n\n* two\n\nI hope this helps.\n\n  Bye", "[one] [two]"),
    ("1. **Life**\n\n   Ann was born.\n\n2. **Work**\n\n   She bakes.\n\nI hope this helps!",
     "[**Life** Ann was born.] [**Work** She bakes.]"),
    ("Early life\nAnn was born.\n- She moved.\n\nWork\nShe bakes.",
     "[Early life Ann was born.] [She moved. Work She bakes.]"),
    ("**1. A**\n* a\n\n**2. B:**\n* b\n3. **C**\n\nc\n\nBye", "[A a] [B: b] [**C** c]"),
    ("It:\n\n**A:**\n* a\n* b\n\n**B:**\n* c", "[**A:** a] [**A:** b] [**B:** c]"),
    ("These:\n# A\n* a\n* b", "[A a] [A b]"), ("These:\n\n**A**\na", "[**A** a]"),
    ("- Ann\n- Bob\n\n \tcame.", "[Ann] [Bob came.]"), ("1.\n\nAnn\n\n2.\n\nBob\n\nBye", "[Ann] [Bob]"),
    ("  no bullet at all:\nin two lines \n", "[no bullet at all: in two lines]"),
    # Empty bullets go.
    ("* one\n*\n*   \n* two", "[one] [two]"), (" \n ", ""), ("*\n* \n2.", "")])
def test_bullets(reply, points):
    assert in_brackets(reply) == points


@pytest.mark.parametrize("reply, points", [
    ("* one\n* tw", "[one]"), ("* on", "[on]"), ("*\n* on", "[on]"), ("* one\n* two\n*", "[one] [two]"),
    ("# A\n* on", "[A on]"), ("* one\n* two\n\nI ho", "[one] [two]"), ("* one\n# B\n* tw", "[one] [B]")])
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
