"""Ring 7, a worked example by hand, and stage 1 with the embedded model.

The edges of two groups are computed again from Hugging Face's attention. (Stage 2: test_search.py. Random graphs and
random attention: test_algorithm.py.)
"""
import json
import os
import random
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tokenizers
import torch
from oracle import TOLERANCE, ids_and_spans, mean_attention
from view.watch import watching

import pecan
from core.files import InputError
from core.settings import resolve
from core.text import split
from data import Document
from llama import Cache
from model.tokenizer import Frame
from pecan import Pecan, build, bullets, edge_weights, final_scores, length_of, node_line, pack, share
from pecan import Graph, edge_matrix
from support.command import warn_if_unknown
from support.token_mean import TokenMean
from view.ask import main

# --- by hand --------------------------------------------------------------------------------------------------------


def test_worked_example():
    """The example of pecan.py's docstring, from attention to the next node."""
    # Attention of the tokens of IPs 3 and 4 to chunks 0, 1, 2.
    a3 = torch.tensor([[.01, .07, .03], [.03, .05, .01]])     # two tokens of IP 3; their mean is .02 .06 .02
    a4 = torch.tensor([[9., 9., 9.], [.01, .01, .03]])        # the first row is a marker's and does not count
    E = torch.zeros(5, 5, dtype=torch.float64)
    E[3, :3] = edge_weights(a3, [0, 1])
    E[4, :3] = edge_weights(a4, [1])
    assert E[3, :3].tolist() == pytest.approx([.2, .6, .2])
    assert E[4, :3].tolist() == pytest.approx([.2, .2, .6])

    r = torch.tensor([0, 0, 0, 2 * .10, 3 * .04], dtype=torch.float64)
    c = torch.tensor([.30, .20, .50, 0, 0], dtype=torch.float64)
    z, final = final_scores(E, r, c)
    assert z.tolist() == pytest.approx([.064, .144, .112, 0, 0])
    assert final.tolist() == pytest.approx([.5, .65, .85, 0, 0])
    assert final_scores(E, r, c, attention=False)[1].argmax() == 2
    assert final_scores(E, r, c, similarity=False)[1].argmax() == 1


def test_a_bullet_without_attention_has_no_edges():
    """If the attention to all nodes rounds to 0, there are no edges, and no NaN."""
    assert edge_weights(torch.zeros(3, 2), [0, 2]).tolist() == [0, 0]


def test_negative_cosines_count_as_nothing_and_zero_sums_stay_zero():
    E = torch.zeros(2, 2)
    r = torch.zeros(2)
    z, final = final_scores(E, r, torch.tensor([-.5, .25]))
    assert final.tolist() == [0, 1] and z.tolist() == [0, 0]
    alone = final_scores(E, r, torch.tensor([-.5, -.25]), attention=False)[1]
    assert alone.argmax() == 1, "without attention the cosine itself decides, even a negative one"
    assert share(torch.zeros(3)).tolist() == [0, 0, 0]


def test_bullets():
    def texts(reply, complete=True):
        return [reply[start:end] for start, end in bullets(reply, complete)]

    # Markers, and text that only looks like one.
    assert texts("* 1\n- 2\n• 3\n 4. 4\n12) 5\n– 6\n● 7\n+ 8\n**9.** 9\n(10) 10\n*11") == list("123456789") + ["10", "11"]
    assert texts("* Ann left in\n1921. Ann\n-12 degrees\n**bold**\n1.5\n---\n* two") == [
        "Ann left in\n1921. Ann\n-12 degrees\n**bold**\n1.5\n---", "two"]

    # Preamble and afterword go. All other text joins the bullet above it, or is a point by itself.
    assert texts("**The summary:**\n\n* one\n\n* two\n\nI hope this helps.\n\n  Bye") == ["one", "two"]
    loose = "**Early life**\n\n   Ann was born.", "**Work**\n\n   She bakes."
    assert texts(f"1. {loose[0]}\n\n2. {loose[1]}\n\nI hope this helps!") == list(loose)
    assert texts("Early life\nAnn was born.\n- She moved.\n\nWork\nShe bakes.") == [
        "Early life\nAnn was born.", "She moved.\n\nWork\nShe bakes."]
    assert texts("1.\n\nAnn\n\n2.\n\nBob\n\nBye") == ["Ann", "Bob"], "a bullet below its marker is no afterword"
    assert texts("  no bullet at all:\nin two lines \n") == ["no bullet at all:\nin two lines"]

    # Empty bullets, and a reply that was cut off.
    assert texts("* one\n*\n*   \n* two") == ["one", "two"]
    assert texts("") == texts(" \n ") == texts("*\n* \n2.") == []
    assert texts("* one\n* tw", complete=False) == ["one"]
    assert texts("* on", complete=False) == texts("*\n* on", complete=False) == ["on"]
    assert texts("* one\n* two\n*", complete=False) == ["one", "two"], "the last bullet was cut before its text"


def test_splitting_loses_no_word(tiny):
    rng = random.Random(0)
    words = [rng.choice(["Mara", "it's", "a" * 40, "job.", "12,5", "é☃"]) for _ in range(500)]
    text = "".join(word + rng.choice([" ", "\n", "\t \n\n"]) for word in words)

    chunks = split(tiny.tokenizer, text, 32)
    assert " ".join(chunks).split() == words
    assert all(len(tiny.tokenizer.encode(" " + chunk)) <= 32 and "\n" not in chunk for chunk in chunks)
    full = [len(tiny.tokenizer.encode(f" {a} {b.split()[0]}")) for a, b in zip(chunks, chunks[1:])]
    assert min(full) > 32, "a chunk ended although the next word would have fit"


def test_a_word_counts_with_the_blank_before_it():
    """If a tokenizer knows "baker" but not " baker", the word is one token alone and two inside a text."""
    letters = {letter: n for n, letter in enumerate("baker\u0120")}
    merges = [("b", "a"), ("ba", "k"), ("bak", "e"), ("bake", "r")]
    vocabulary = letters | {a + b: len(letters) + n for n, (a, b) in enumerate(merges)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder = SimpleNamespace(encode=lambda text: tokenizer.encode(text).ids)
    assert [len(encoder.encode(text)) for text in ("baker", " baker", " baker baker")] == [1, 2, 4]
    assert split(encoder, "baker " * 7, 6) == ["baker baker baker"] * 2 + ["baker"]
    assert split(encoder, "bakerbaker", 3) == ["bakerbaker"], "a word as long as a chunk"
    assert split(encoder, "bakerbaker", 2) == ["baker", "baker"]


def test_a_word_longer_than_a_chunk_is_cut(tiny):
    word = ".".join("abcdefghij")                             # 19 tokens without a blank
    chunks = split(tiny.tokenizer, f"one {word} two", 8)
    assert "".join(chunks).replace(" ", "") == f"one{word}two"
    assert all(len(tiny.tokenizer.encode(" " + chunk)) <= 8 for chunk in chunks)


def test_groups():
    assert pack([4, 4, 4], 8) == [range(0, 2), range(2, 3)]
    assert pack([8, 8], 8) == [range(0, 1), range(1, 2)]
    assert pack([1], 8) == [range(0, 1)]
    with pytest.raises(InputError, match="a node of 9 tokens does not fit the window, which has room for 8"):
        pack([9], 8)


def test_prompts_are_the_tables_of_the_paper(tiny):
    """Tables A1 and A2, as the paper prints them, with one or two nodes."""
    literal = []                                              # the texts that were tokenised

    class Recorder:
        frame = Frame([], [], [], [])

        def encode(self, text):
            literal.append(text)
            return [0]

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

def test_graph_invariants(graph, document):
    levels = [node.level for node in graph.nodes]
    assert levels == sorted(levels) and levels[-1] >= 3, "the embedded world must give three levels"

    assert " ".join(node.text for node in graph.nodes if node.level == 1).split() == " ".join(document.passages).split()

    for i, row in enumerate(graph.E.to_dense()):
        below = [j for j in range(len(levels)) if levels[j] == levels[i] - 1]
        assert all(row[j] == 0 for j in range(len(levels)) if j not in below), "edges lead exactly one level down"
        assert row.sum().item() == pytest.approx(float(levels[i] > 1), abs=1e-12)


def test_construction_flops_are_those_that_ran(tiny, graph, document, settings, capsys):
    """They are what the model spends during the build (Table A4). `prepare` adds what the encoder spends.

    A bar is shown if it is asked for.
    """
    before = tiny.flops
    encoder = TokenMean(tiny)
    assert before > 0 and build(tiny, document, settings).flops == tiny.flops - before == graph.flops
    assert capsys.readouterr().err == ""

    prepared = Pecan(tiny, encoder, settings).prepare(document, progress=True)
    assert "level 3: " in capsys.readouterr().err
    assert prepared.flops == graph.flops + encoder.flops and encoder.flops > 0


@pytest.mark.parametrize("tree", [False, True])
def test_a_repeated_bullet_keeps_the_first(tiny, tree):
    """A repeat has the same words, with any blanks and newlines between them. The first keeps its own edges."""
    reply = "* Mara's job is baker\n* Theo's job is pilot\n* Mara's job\nis baker\n* Mara's job is pilot"
    ids = tiny.tokenizer.encode(reply)
    sources = torch.eye(len(ids))                              # token x attends to "node" x alone
    points = pecan.information_points(tiny.tokenizer, ids, sources, 99, tree)

    texts = ["Mara's job is baker", "Theo's job is pilot", "Mara's job is pilot"]
    assert [point.text for point in points] == ([" ".join(texts)] if tree else texts)
    first_line = ids.index(tiny.tokenizer.encode("\n")[0])
    assert {x for x, e in enumerate(points[0].e) if e > 0 and x < 2 * first_line} >= set(range(1, first_line))
    third = range(2 * first_line + 3, 3 * first_line + 4)
    assert not any(points[0].e[x] for x in third), "the edges of the repeat"


def bullets_of(reply, star, newline):
    """The places of the tokens of each bullet. A reply of the embedded model is lines of "*", words and a newline."""
    lines = [[]]
    for x, token in enumerate(reply):
        if token == newline:
            lines.append([])
        elif token != star:
            lines[-1].append(x)
    return [line for line in lines if line]


def test_edges_equal_those_from_hugging_face(tiny, tiny_hf, graph, settings):
    """Hugging Face reads prompt and reply in one pass; loops average its attention for the IPs of two groups.

    The tolerance is absolute, because processors round differently; in a small edge that is a larger part.
    """
    tokenizer = tiny.tokenizer
    star = tokenizer.encode("*")[0]
    newline = tokenizer.encode("\n")[0]
    chunks = [i for i, node in enumerate(graph.nodes) if node.level == 1]

    limit = int(settings.window * settings.summary_share)
    lengths = [length_of(node_line(tokenizer, i, graph.nodes[i].text)) for i in chunks]
    groups = pack(lengths, settings.window - limit - length_of(pecan.summary_prompt(tokenizer, [])))
    assert len(groups) > 1, "the embedded world must give several groups"

    ip = len(chunks)                                          # id of the next IP
    for group in groups[:2]:
        ids, spans = ids_and_spans(pecan.summary_prompt(tokenizer, [graph.nodes[i].text for i in group]))
        cache = Cache(tiny, 1, settings.window)
        hidden, _ = tiny.read(cache, [[(None, ids)]])
        (reply,), _ = tiny.generate(cache, hidden, limit)
        a = mean_attention(tiny_hf, ids + reply)

        for bullet in bullets_of(reply, star, newline):
            assert graph.nodes[ip].text == tokenizer.decode([reply[x] for x in bullet])
            e = {}
            for place, j in enumerate(group):
                total = sum(a[len(ids) + x, y].item() for x in bullet for y in spans[place])
                e[j] = total / len(bullet) / len(spans[place])
            for j in range(len(graph.nodes)):
                found = graph.E.to_dense()[ip, j].item()
                assert found == (pytest.approx(e[j] / sum(e.values()), abs=TOLERANCE) if j in group else 0), (ip, j)
            ip += 1


def test_batches_of_groups_change_nothing(tiny, document, graph, settings):
    """A batch has as many groups as the setting says."""
    sizes = []
    with watching(pecan, "summarise", lambda _, model, batch, *others: sizes.append(len(batch))):
        alone = build(tiny, document, replace(settings, batch=1), pecan.summarise)
    assert set(sizes) == {1} and build(tiny, document, replace(settings, batch=2)).nodes == graph.nodes
    assert [n.text for n in alone.nodes] == [n.text for n in graph.nodes]
    assert (alone.E.to_dense() - graph.E.to_dense()).abs().max() < TOLERANCE
    assert alone.flops == graph.flops, "a group costs the same, alone or in a batch"


def test_tree_ablation(tiny, document, settings):
    """w/o IP-based graph: one summary node for every group, hence one parent for every node."""
    tree = build(tiny, document, replace(settings, tree=True))
    lower = [i for i, node in enumerate(tree.nodes) if node.level < tree.nodes[-1].level]
    assert all((tree.E.to_dense()[:, j] > 0).sum() == 1 for j in lower)
    assert len(tree.top_level) == 1


def test_the_smallest_window(tiny, settings):
    """It has room for the prompt, a summary and a chunk as long as a chunk may be."""
    text = "road " * settings.chunk
    prompt = length_of(pecan.summary_prompt(tiny.tokenizer, [text.strip()]))
    smallest = next(window for window in range(1, 512) if prompt + int(window * settings.summary_share) <= window)
    assert build(tiny, Document("d", [text]), replace(settings, window=smallest)).nodes[0].text == text.strip()
    with pytest.raises(InputError, match="too small"):
        build(tiny, Document("d", [text]), replace(settings, window=smallest - 1))

    # A summary has at least one token.
    build(tiny, Document("d", [text]), replace(settings, summary_share=1 / 256, window=256))
    with pytest.raises(InputError, match="too small"):
        build(tiny, Document("d", [text]), replace(settings, summary_share=1 / 256, window=255))


def test_a_short_document_is_its_own_top_level(tiny, settings):
    """A level with no fewer tokens than the one below is discarded. Here the reply is as long as the document."""
    graph = build(tiny, Document("d", ["Mara is Sofia's baker"]), settings)
    assert [node.text for node in graph.nodes] == ["Mara is Sofia's baker"] and graph.top_level == [0]
    assert graph.flops > 0, "the level was tried"


def test_passages_are_never_mixed(tiny, settings):
    graph = build(tiny, Document("d", ["Mara is Sofia's baker.", "Otto is Lima's pilot."]), settings)
    assert [n.text for n in graph.nodes if n.level == 1] == ["Mara is Sofia's baker.", "Otto is Lima's pilot."]


# --- the graph on disk ----------------------------------------------------------------------------------------------

def test_save_and_load(tmp_path, tiny, graph, document, settings):
    graph.save(tmp_path / "g.json")
    loaded = Graph.load(tmp_path / "g.json", document, settings.construction_settings(), tiny)
    assert torch.equal(loaded.E.to_dense(), graph.E.to_dense()) and replace(loaded, E=None) == replace(graph, E=None)
    assert list(tmp_path.iterdir()) == [tmp_path / "g.json"]


@pytest.mark.parametrize("damage, words", [
    (lambda g: g.update(format="pecan graph 0"), "this version reads"),
    (lambda g: g["nodes"][0].pop("text"), "not a complete graph"),
    (lambda g: g["nodes"][0].update(text=""), "node 0 has no text"),
    (lambda g: g["nodes"][0].update(level=0), "levels do not rise"),
    (lambda g: g["nodes"][-1].update(level=g["nodes"][-1]["level"] + 2), "levels do not rise"),
    (lambda g: g["edges"].append([0, 1, 0.5]), "does not lead one level down"),
    (lambda g: g["edges"].append([len(g["nodes"]) - 1, 0, 1e-9]), "does not lead one level down"),
    (lambda g: g["edges"][0].__setitem__(2, 0), "does not lead one level down"),
    (lambda g: g["edges"][0].__setitem__(2, g["edges"][0][2] + .001), "sum to 1.001"),
    (lambda g: g["edges"][0].__setitem__(1, g["edges"][0][1] - len(g["nodes"])), "does not lead one level down"),
    (lambda g: g["edges"].pop(), "sum to"),
    (lambda g: g.pop("edges"), "'edges' is missing"),
    (lambda g: g.update(flops="many"), "flops is 'many'"),
    (lambda g: g.update(flops=-1), "flops is -1"),
    (lambda g: g.update(document="0" * 64), "of another document"),
    (lambda g: g.update(model="0" * 64), "of another model"),
    (lambda g: g["settings"].update(chunk=31), "of another settings"),
])
def test_a_damaged_graph_is_refused(tmp_path, tiny, graph, document, settings, damage, words):
    graph.save(tmp_path / "g.json")
    raw = json.loads((tmp_path / "g.json").read_text())
    damage(raw)
    (tmp_path / "g.json").write_text(json.dumps(raw))
    with pytest.raises(InputError, match=words):
        Graph.load(tmp_path / "g.json", document, settings.construction_settings(), tiny)


# --- the method as it is run ----------------------------------------------------------------------------------------

def test_two_models(model, tiny, document, settings, question, tmp_path):
    """Table 2: one model builds the graph, another searches it. Here a random model searches. The graph is read again.
    """
    encoder = TokenMean(model)
    method = Pecan(model, encoder, settings, builder=tiny)

    searcher_before = model.flops
    builder_before = tiny.flops
    prepared = method.prepare(document, tmp_path / "g.json")
    assert prepared.graph.model == tiny.fingerprint
    assert method.prepare(document, tmp_path / "g.json").graph.nodes == prepared.graph.nodes
    assert model.flops == searcher_before and tiny.flops > builder_before

    builder_before = tiny.flops
    encoder_before = encoder.flops
    spent = method.answer(prepared, question).flops - (encoder.flops - encoder_before)
    assert spent == model.flops - searcher_before > 0
    assert tiny.flops == builder_before and encoder.flops > encoder_before


def test_what_names_the_file_of_a_graph(model, tiny, document, settings):
    def name(builder=tiny, document=document, **changes):
        return Pecan(tiny, None, replace(settings, **changes), builder).file_name(document)

    assert name() == name(patience=3, confidence=0.9, fixed_nodes=5, batch=1), "search settings change no graph"
    others = [name(chunk=31), name(window=500), name(summary_share=0.3), name(tree=True), name(model),
              name(document=Document("d", ["x"]))]
    assert len({name(), *others}) == 7


@pytest.mark.parametrize("bad, words", [({"window": 150}, "window 150 is too small"), ({"window": "x"}, "whole number"),
                                        ({"patience": 0}, "patience"), ({"confidence": 1.0}, "below 1"),
                                        ({"summary_share": 1.0}, "share"), ({"summary_share": "x"}, "share"),
                                        ({"attention": False, "similarity": False}, "both")])
def test_bad_settings(tiny, document, settings, bad, words):
    with pytest.raises(InputError, match=words):
        build(tiny, document, replace(settings, **bad))


# --- command line ---------------------------------------------------------------------------------------------------

def test_an_unknown_setting_of_a_checkpoint_is_named(tmp_path, tiny):
    (tmp_path / "pecan.json").write_text('{"chunks": 32}')
    with pytest.raises(InputError, match="pecan.json: unknown setting chunks"):
        resolve(tmp_path, tiny.config.max_length)


def test_an_unwritable_graph_is_reported_before_the_work(tmp_path, tiny, settings):
    """A name may have 255 bytes, with the ending of its vectors and the one that they have while they are written."""
    method = Pecan(tiny, TokenMean(tiny), settings)
    longest = 255 - len(f".{'0' * 16}.vectors.{os.getpid()}.partial")
    for name in ("none/g.json", "g" * (longest + 1)):
        before = tiny.flops
        with pytest.raises(InputError, match="cannot be written"):
            method.prepare(Document("d", ["Mara is Sofia's baker."]), tmp_path / name)
        assert tiny.flops == before
    method.prepare(Document("d", ["Mara is Sofia's baker."]), tmp_path / ("g" * longest))


def test_a_text_outside_the_embedded_world_is_warned_about(tmp_path, capsys, monkeypatch):
    """The graph is in the working directory, wherever the document is."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "story.txt").write_text("Once upon a time there was a hungry caterpillar.")
    assert main([str(tmp_path / "story.txt"), "Who was hungry?", "--device", "cpu"]) == 0
    assert "of the document's words are unknown to this model" in capsys.readouterr().err
    assert len(list(Path().glob("story.txt.*.graph.json"))) == 1


@pytest.mark.parametrize("text, then, said", [
    ("Mara has a snark snark snark", "goat", "50% of the document's words"),
    ("Mara has a goat. Mara has a goat Snark", "snark", "")])
def test_the_share_of_unknown_words(tiny, capsys, text, then, said):
    """Every word of the first passage counts as often as it occurs. There is no warning for a tenth or less."""
    warn_if_unknown(tiny, Document("d", [text, then]))
    printed = capsys.readouterr().err
    assert said in printed and bool(said) == bool(printed)


# --- what stage 1 costs ---------------------------------------------------------------------------------------------

def test_E_costs_what_its_edges_cost():
    """As a dense matrix, E of a book's 9,501 nodes would take 0.67 GiB."""
    edges = [(i, j, 1 / 30) for i in range(9000, 9501) for j in range(30)]
    E = edge_matrix(edges, 9501)
    assert E.is_sparse and E.shape == (9501, 9501) and len(E.values()) == len(edges)
    assert (E.T @ torch.ones(9501, dtype=torch.float64))[:30].tolist() == pytest.approx([501 / 30] * 30)


def test_one_batch_of_caches_lives_at_a_time(tiny, document, settings, monkeypatch):
    """Each batch's cache is gone before the next one is made."""
    alive = weakref.WeakSet()
    most = []

    class Counted(pecan.Cache):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            alive.add(self)
            most.append(len(alive))
    monkeypatch.setattr(pecan, "Cache", Counted)
    build(tiny, document, replace(settings, batch=1))
    assert len(most) > 2 and max(most) == 1
