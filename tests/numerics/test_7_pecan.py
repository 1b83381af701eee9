"""Ring 7, a worked example by hand, the paper's prompts, and stage 1 with the embedded model.

Its edges are computed again from Hugging Face's attention. (Stage 2: test_7_search.py. Random graphs and random
attention: test_7_algorithm.py.)
"""
from dataclasses import replace

import naive_points
import pytest
import torch
from oracle import graph_of, ids_and_spans, mean_attention, one_pass, relative, rounding, to_nodes

import pecan
from core.files import InputError
from data import Document
from encoders.token_mean import TokenMean
from model.tokenizer import Frame
from pecan import Graph, Node, Pecan, Search, edge_weights, final_scores, length_of, node_line, pack, relevance

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
    for off in ("attention", "similarity"):
        z, score = final_scores(E, r, c, **{off: False})
        score[2] = 9                                        # as a variant may
        assert 9 not in (z[2], c[2])


def test_groups():
    assert pack([4, 4, 4, 8], 8) == [range(0, 2), range(2, 3), range(3, 4)]
    with pytest.raises(InputError, match="a node of 9 tokens does not fit the window, which has room for 8"):
        pack([9], 8)


def test_prompts_are_the_tables_of_the_paper(tiny):
    """Tables A1 and A2, as the paper prints them but for layout and quotes, with one or two nodes."""
    literal = []                                              # the texts that were tokenised

    class Recorder:
        frame = Frame([], [], [], [])

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
    each bullet and of each node, gives every row of E. Edges are many-to-many."""
    prompts = spy("summary_prompt", pecan)
    replies = spy("information_points", pecan)
    graph = graph_of(tiny, document, settings)

    texts, wanted = [], []                                             # of the IPs: their texts, and their rows of E
    first = 0                                                          # id of the first node of the group
    for (_, prompt), (arguments, _) in zip(prompts[1:], replies, strict=True):     # prompts[0] had no nodes
        _, reply, _, limit, *_ = arguments
        ids, spans = ids_and_spans(prompt)
        rows = to_nodes(mean_attention(one_pass(tiny_hf, ids + reply))[len(ids):], spans.values())
        for tokens in naive_points.points(tiny.tokenizer, reply, len(reply) == limit).values():
            texts.append(tiny.tokenizer.decode([reply[x] for x in tokens]).strip())
            e = rows[tokens].mean(0)
            wanted.append(torch.zeros(len(graph.nodes), dtype=torch.float64))
            wanted[-1][first:first + len(spans)] = e / e.sum()
        first += len(spans)

    # The last replies would have made a level that is no shorter, so they are dropped.
    points = [(node.text, row) for node, row in zip(graph.nodes, graph.E) if node.level > 1]
    assert texts[:len(points)] == [text for text, _ in points] and len(texts) > len(points)
    for (text, ours), row in zip(points, wanted):
        assert relative(ours, row) < rounding(tiny), text
        assert abs(ours.sum() - 1) < 1e-12, "the edges of an IP sum to 1"
    assert (graph.E > 0).sum(0).max() > 1, "no node has two IPs above it"


def test_the_smallest_window(tiny, settings):
    """It has room for the prompt, a chunk as long as a chunk may be, and a summary, which has at least one token."""
    text = ("road " * settings.chunk).strip()
    prompt = length_of(pecan.summary_prompt(tiny.tokenizer, [text]))
    smallest = next(window for window in range(512) if prompt + int(window * settings.summary_share) <= window)
    for share, window in ((settings.summary_share, smallest), (1 / 256, 256)):
        enough = replace(settings, summary_share=share, window=window)
        assert graph_of(tiny, Document("d", [text]), enough).nodes[0].text == text
        with pytest.raises(InputError, match="too small"):
            graph_of(tiny, Document("d", [text]), replace(enough, window=window - 1))


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
    answer = method.answer(prepared, question)
    alone = Search(model, prepared.graph, question, torch.tensor(answer.search["c"]), settings).answer()
    assert answer.flops == alone.flops + encoder.flops - embedded > alone.flops and tiny.flops == built
