"""Ring 7, a worked example by hand, and stage 1 with the embedded model.

Its edges are computed again from Hugging Face's attention. (Stage 2: test_7_search.py. Random graphs and random
attention: test_7_algorithm.py.)
"""
import random
import re
from dataclasses import replace
from types import SimpleNamespace

import naive
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import ids_and_spans, mean_attention, rounding, to_nodes

import pecan
from core.files import InputError
from core.text import split
from data import Document
from encoders.token_mean import TokenMean
from model.tokenizer import Frame
from pecan import Graph, Node, Pecan, build, bullets, edge_weights, final_scores, length_of, node_line, pack, relevance

# --- by hand --------------------------------------------------------------------------------------------------------

def test_worked_example():
    """The example of pecan.py's docstring, from attention to the next node."""
    # Attention of the tokens of IPs 3 and 4 to chunks 0, 1, 2.
    a3 = torch.tensor([[.01, .07, .03], [.03, .05, .01]])     # two tokens of IP 3; their mean is .02 .06 .02
    a4 = torch.tensor([[9., 9., 9.], [.01, .01, .03]])        # the first row is a marker's and does not count
    e3 = edge_weights(a3, [0, 1]).tolist()
    e4 = edge_weights(a4, [1]).tolist()
    assert e3 == pytest.approx([.2, .6, .2]) and e4 == pytest.approx([.2, .2, .6])
    nodes = [Node(1, "chunk")] * 3 + [Node(2, "IP")] * 2
    E = Graph(nodes, [(3, j, e) for j, e in enumerate(e3)] + [(4, j, e) for j, e in enumerate(e4)]).E

    r = torch.tensor([0, 0, 0, relevance(.10, 2), relevance(.04, 3)], dtype=torch.float64)
    assert r.tolist() == pytest.approx([0, 0, 0, .20, .12])
    c = torch.tensor([.30, .20, .50, 0, 0], dtype=torch.float64)
    z, final = final_scores(E, r, c)
    assert z.tolist() == pytest.approx([.064, .144, .112, 0, 0])
    assert final.tolist() == pytest.approx([.5, .65, .85, 0, 0])
    assert final_scores(E, r, c, attention=False)[1].argmax() == 2
    assert final_scores(E, r, c, similarity=False)[1].argmax() == 1


def texts(reply, complete=True):
    return [" ".join(" ".join(reply[start:end] for start, end in spans).split()) for spans in bullets(reply, complete)]


SIGNS = ("* ", "- ", "・", "①", "12．", "三、", "（4）", "٣) ", "• ", "Ⅳ. ", "**7.** ", "\u200b* ", "\ufeff– ",
         "1\ufe0f\u20e3 ", "✅")
SCRIPTS = "Due on day 3", "期限は三日", "租金九百", "الإيجار ٩٠٠", "срок 3 дня", "किराया ९००"
HEADINGS = {"## {}": "{}", "**{}**": "**{}**", "{}:": "{}:", "* {}": "{}", "1. **{}**": "**{}**"}       # line, words
POINTS = st.lists(st.tuples(st.sampled_from(SIGNS), st.sampled_from(SCRIPTS)), min_size=1)


@given(st.sampled_from([*HEADINGS]), st.lists(st.tuples(st.sampled_from(SCRIPTS), POINTS)), st.booleans())
def test_a_heading_begins_the_points_below_it(heading, outline, fenced):
    """In any script, with any sign. (With a colon before the first point it would be a preamble.)"""
    lines, wanted = ["* first"], ["first"]
    for title, points in outline:
        lines += ["", heading.format(title), *(f"  {sign}{text}" for sign, text in points)]
        wanted += [f"{HEADINGS[heading].format(title)} {text}" for _, text in points]
    assert texts("\n".join(["```", *lines, "```"] if fenced else lines)) == wanted


def test_bullets():
    # Markers, and text that only looks like one.
    assert texts("* 1\n- 2\n• 3\n 4. 4\n12) 5\n– 6\n● 7\n+ 8\n**9.** 9\n(10) 10\n*11\n− 12\n→ 13\n· 14\n1、15") == [
        *"123456789", *map(str, range(10, 16))]
    assert texts("### 1. Life\nAnn left.\n## 2. Work\nShe bakes.") == ["Life Ann left.", "Work She bakes."]
    assert texts("### 1. Ann\n## **2)** Bob\n# 3\n8.p.m.\n1.**B**") == ["Ann", "Bob", "3 8.p.m. 1.**B**"]
    assert texts("* Ann left in\n1921. Ann\n-12 degrees\nso **bold**\n1.5\n---\n½ ©\n* two") == [
        "Ann left in 1921. Ann -12 degrees so **bold** 1.5 --- ½ ©", "two"]

    # A heading ends no point. With none below it, it is one. A sentence is no heading.
    assert texts("* Bob kept it\n## Ending\n**Ann**\n* They met.\n  * At sea\n# End") == [
        "Bob kept it", "Ending **Ann** They met.", "Ending **Ann** At sea", "End"]
    assert texts("**Only**") == ["**Only**"] and texts("# A\n\nb\n\nc") == ["A b c"]

    # Preamble and afterword go. All other text joins the bullet above it, or is a point by itself.
    assert texts("**The summary:**\n\n* one\n\n* two\n\nI hope this helps.\n\n  Bye") == ["one", "two"]
    assert texts("1. **Life**\n\n   Ann was born.\n\n2. **Work**\n\n   She bakes.\n\nI hope this helps!") == [
        "**Life** Ann was born.", "**Work** She bakes."]
    assert texts("Early life\nAnn was born.\n- She moved.\n\nWork\nShe bakes.") == [
        "Early life Ann was born.", "She moved. Work She bakes."]
    assert texts("- Ann\n- Bob\n\n \tcame.") == ["Ann", "Bob came."], "indented"
    assert texts("1.\n\nAnn\n\n2.\n\nBob\n\nBye") == ["Ann", "Bob"], "a bullet below its marker is no afterword"
    assert texts("  no bullet at all:\nin two lines \n") == ["no bullet at all: in two lines"]

    # Empty bullets, and a reply that was cut off.
    assert texts("* one\n*\n*   \n* two") == ["one", "two"]
    assert texts("") == texts(" \n ") == texts("*\n* \n2.") == []
    assert texts("* one\n* tw", complete=False) == ["one"]
    assert texts("* on", complete=False) == texts("*\n* on", complete=False) == ["on"]
    assert texts("* one\n* two\n*", complete=False) == ["one", "two"], "the last bullet was cut before its text"


def test_splitting_loses_no_word(tiny):
    """A word longer than a chunk is cut. (test_7_algorithm.py: a chunk is as full as it can be.)"""
    rng = random.Random(0)
    words = rng.choices(["Mara", "it's", "a" * 40, "job.", "12,5", "é☃"], k=500)
    text = "".join(word + rng.choice([" ", "\n", "\t \n\n"]) for word in words)
    chunks = split(tiny.tokenizer, text, 32)
    assert " ".join(chunks).split() == words and "\n" not in "".join(chunks)
    assert max(len(tiny.tokenizer.encode(" " + chunk)) for chunk in chunks) <= 32


def test_a_word_counts_with_the_blank_before_it():
    """Some tokenizers know "baker" but not " baker": the word is one token alone, and two inside a text."""
    encoder = SimpleNamespace(encode=lambda text: re.findall("baker|.", text))
    assert split(encoder, "baker " * 7, 6) == ["baker baker baker"] * 2 + ["baker"]
    assert split(encoder, "bakerbaker", 3) == ["bakerbaker"], "a word as long as a chunk"


def test_groups():
    assert pack([4, 4, 4, 8], 8) == [range(0, 2), range(2, 3), range(3, 4)]
    with pytest.raises(InputError, match="a node of 9 tokens does not fit the window, which has room for 8"):
        pack([9], 8)


def test_prompts_are_the_tables_of_the_paper(tiny):
    """Tables A1 and A2, as the paper prints them, with one or two nodes."""
    literal = []                                              # the texts that were tokenised

    class Recorder:
        frame = Frame([], [], [], [], [])

        def encode(self, text):
            literal.append(text)
            return [0]

        user = encode

    pecan.summary_prompt(Recorder(), ["Tom is fat.", "He bursts."])
    table_a1 = "".join(literal)
    assert table_a1 == (
        "Summary the following information. Each segment is separated by a new line symbol.\n\n* Tom is fat.\n"
        "* He bursts.\n\nSplit your summary into different summary points according to the semantic information in "
        "these information points. It is not necessary to generate each summary point for each information point. "
        "Gather and organize information into summary points. In each summary point, try to avoid using pronouns "
        "like he/she/they and instead use full names. Generate in the format of:\n\n"
        "* summary point\n* summary point\n* summary point\n\n"
        "Do not provide any explanation and start the summary directly.")

    literal.clear()
    segments = pecan.question_prompt(Recorder(), "Where?") + node_line(Recorder(), 0, "The garden.")
    assert "".join(literal) == (
        'Can this question be answered by the following information? Response "Yes" or "No" in one word. '
        "Do not provide any explanation.\n\nQuestion:\nWhere?\n\nInformation:\n* The garden.")
    assert [node for node, _ in segments] == [None, "q", None, None, 0]

    literal.clear()
    pecan.answer_turn(Recorder(), 7)
    assert literal == ["Given the above information and question, answer the question as concisely as you can."]


# --- stage 1 with the embedded model --------------------------------------------------------------------------------

def test_edges_equal_those_from_hugging_face(tiny, tiny_hf, document, settings, spy):
    """Hugging Face reads the prompt and the reply of each group in one pass. Its attention, averaged over the tokens of
    each bullet and of each node, gives every row of E."""
    prompts = spy("summary_prompt", pecan)
    replies = spy("information_points", pecan)
    graph = build(tiny, document, settings)

    wanted = torch.zeros(len(graph.nodes), len(graph.nodes), dtype=torch.float64)
    first = 0                                                          # id of the first node of the group
    ip = sum(node.level == 1 for node in graph.nodes)                  # id of the next IP
    for (_, prompt), ((_, reply, _, limit, _), _) in zip(prompts[1:], replies, strict=True):     # [0] had no nodes
        ids, spans = ids_and_spans(prompt)
        rows = mean_attention(tiny_hf, ids + reply)[len(ids):]
        for tokens in naive.points(tiny.tokenizer, reply, len(reply) == limit).values():
            assert graph.nodes[ip].text == tiny.tokenizer.decode([reply[x] for x in tokens]).strip()
            e = to_nodes(rows[tokens], spans.values()).mean(0)
            wanted[ip, first:first + len(spans)] = e / e.sum()
            ip += 1
        first += len(spans)
    assert ip == len(graph.nodes)
    assert (graph.E.sum(1) - wanted.sum(1)).abs().max() < 1e-12, "the edges of an IP sum to 1"
    error = (graph.E - wanted).abs().max()
    assert error < rounding(tiny), f"an edge is off by {error} from Hugging Face's attention"


def test_the_smallest_window(tiny, settings):
    """It has room for the prompt, a chunk as long as a chunk may be, and a summary, which has at least one token."""
    text = ("road " * settings.chunk).strip()
    prompt = length_of(pecan.summary_prompt(tiny.tokenizer, [text]))
    smallest = next(window for window in range(512) if prompt + int(window * settings.summary_share) <= window)
    for share, window in ((settings.summary_share, smallest), (1 / 256, 256)):
        enough = replace(settings, summary_share=share, window=window)
        assert build(tiny, Document("d", [text]), enough).nodes[0].text == text
        with pytest.raises(InputError, match="too small"):
            build(tiny, Document("d", [text]), replace(enough, window=window - 1))


# --- the method as it is run ----------------------------------------------------------------------------------------

def test_two_models(model, tiny, document, settings, question):
    """Table 2: one model builds the graph, another searches it, here a random one. The construction costs what ran
    during it (Table A4). A query pays for the searcher and for its own embedding alone."""
    encoder = TokenMean(model)
    method = Pecan(model, encoder, settings, builder=tiny)
    before = model.flops, tiny.flops
    prepared = method.prepare(document)
    assert prepared.flops == tiny.flops - before[1] + encoder.flops > encoder.flops > 0 and model.flops == before[0]

    built = tiny.flops
    embedded = encoder.flops
    spent = method.answer(prepared, question).flops
    assert spent == model.flops - before[0] + encoder.flops - embedded and tiny.flops == built
    assert model.flops > before[0] and encoder.flops > embedded
