"""Ring 7, a worked example by hand, and stage 1 with the embedded model.

Every edge of a graph is computed again from Hugging Face's attention. (Stage 2: test_search.py. Random graphs and
random attention: test_algorithm.py.)
"""
import errno
import io
import json
import random
import weakref
from dataclasses import replace
from types import SimpleNamespace

from core.command import user_errors

import pytest
import tokenizers
import torch
from oracle import TOLERANCE, ids_and_spans, mean_attention
from tqdm import tqdm

import pecan
from core.files import InputError
from core.settings import resolve
from core.text import bullets, in_a_loop, split
from core.tokenizer import Frame
from data import Document
from llama import Cache
from pecan import Graph, Pecan, build, edge_weights, final_scores, length_of, node_line, pack, share
from support.token_mean import TokenMean

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
    """Attention to the nodes may round to 0, if few heads count: no edges, and nothing that is not a number."""
    assert edge_weights(torch.zeros(3, 2), [0, 2]).tolist() == [0, 0]


def test_negative_cosines_count_as_nothing_and_zero_sums_stay_zero():
    E = torch.zeros(2, 2)
    r = torch.zeros(2)
    z, final = final_scores(E, r, torch.tensor([-.5, .25]))
    assert final.tolist() == [0, 1] and z.tolist() == [0, 0]
    alone = final_scores(E, r, torch.tensor([-.5, -.25]), attention=False)[1]
    assert alone.argmax() == 1, "without attention the cosine itself decides, a negative one too"
    assert share(torch.zeros(3)).tolist() == [0, 0, 0]


def test_bullets():
    def texts(reply, complete=True):
        return [reply[start:end] for start, end in bullets(reply, complete)]

    assert texts("* one\n* two") == ["one", "two"]
    assert texts("- one\n• two\n 3. three\n12. four") == ["one", "two", "three", "four"]
    assert texts("Here is the summary:\n\n* one\n\n* two\n\nI hope this helps.") == ["one", "two"]
    assert texts("* one\n  goes on\n* two") == ["one\n  goes on", "two"]

    # A reply without bullets, empty bullets, and a reply that was cut off.
    assert texts("  no bullet at all\nin two lines \n") == ["no bullet at all\nin two lines"]
    assert texts("* one\n*\n*   \n* two") == ["one", "two"]
    assert texts("* one\n* tw", complete=False) == ["one"]
    assert texts("* on", complete=False) == ["on"]
    assert texts("") == texts(" \n ") == texts("*\n* \n2.") == []

    # Markers without a blank, and what looks like a marker.
    assert texts("*one\n•two\n3) three\n4. four") == ["one", "two", "three", "four"], "a blank may be missing"
    assert texts("**bold** is no marker\n* 3.5 degrees\n1.5 is none\n---") == ["3.5 degrees\n1.5 is none\n---"]


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
    """With a tokenizer that knows "baker" but not " baker": one token alone, two inside a text."""
    letters = {letter: n for n, letter in enumerate("baker\u0120")}
    merges = [("b", "a"), ("ba", "k"), ("bak", "e"), ("bake", "r")]
    vocabulary = letters | {a + b: len(letters) + n for n, (a, b) in enumerate(merges)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder = SimpleNamespace(encode=lambda text: tokenizer.encode(text).ids)
    assert [len(encoder.encode(text)) for text in ("baker", " baker", " baker baker")] == [1, 2, 4]
    assert split(encoder, "baker " * 7, 6) == ["baker baker baker"] * 2 + ["baker"]


def test_a_word_longer_than_a_chunk_is_cut(tiny):
    word = ".".join("abcdefghij")                             # 19 tokens without a blank
    chunks = split(tiny.tokenizer, f"one {word} two", 8)
    assert "".join(chunks).replace(" ", "") == f"one{word}two"
    assert all(len(tiny.tokenizer.encode(" " + chunk)) <= 8 for chunk in chunks)


def test_windows():
    assert pack([4, 4, 4], 8) == [range(0, 2), range(2, 3)]
    assert pack([8, 8], 8) == [range(0, 1), range(1, 2)]
    assert pack([1], 8) == [range(0, 1)]
    with pytest.raises(InputError, match="a node of 9 tokens does not fit the 8"):
        pack([9], 8)


def test_prompts_are_the_tables_of_the_paper(tiny):
    """Tables A1 and A2, as the paper prints them, with one or two nodes."""
    literal = []                                              # what was tokenised

    class Recorder:
        frame = Frame([], [], [], [])

        def encode(self, text):
            literal.append(text)
            return [0]

    pecan.summary_prompt(Recorder(), {0: "Tom is fat.", 1: "He bursts."})
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


def test_construction_flops_are_those_that_ran(tiny, graph, document, settings):
    """What the model spent between the start and the end of a build, whatever it spent before (Table A4); and, in
    addition, what the encoder spent."""
    before = tiny.flops
    encoder = TokenMean(tiny)
    assert before > 0 and build(tiny, document, settings).flops == tiny.flops - before == graph.flops

    prepared = Pecan(tiny, encoder, settings).prepare(document)
    assert prepared.flops == graph.flops + encoder.flops and encoder.flops > 0


@pytest.mark.parametrize("tree", [False, True])
def test_a_repeated_bullet_keeps_the_first(tiny, tree):
    """Word for word, whatever blanks and newlines are between them; the first stays, with its own edges."""
    reply = "* Mara's job is baker\n* Theo's job is pilot\n* Mara's job\nis baker\n* Mara's job is pilot"
    ids = tiny.tokenizer.encode(reply)
    sources = torch.eye(len(ids))                              # token x attends to "node" x alone
    points, repeats = pecan.information_points(tiny.tokenizer, ids, sources, list(range(len(ids))), 99, tree)
    assert repeats == 1

    texts = ["Mara's job is baker", "Theo's job is pilot", "Mara's job is pilot"]
    assert [point.text for point in points] == ([" ".join(texts)] if tree else texts)
    first_line = ids.index(tiny.tokenizer.encode("\n")[0])
    assert {x for x, e in enumerate(points[0].e) if e > 0 and x < 2 * first_line} >= set(range(1, first_line))
    third = range(2 * first_line + 3, 3 * first_line + 4)
    assert not any(points[0].e[x] for x in third), "the edges of the repeat"


@pytest.mark.parametrize("reply, loops", [
    ("Mara\nMara\nMara\n", True), ("* Mara\n\n* Mara\n\n* Mara\n", True), ("Theo\nMara\nMara\nMara\n\n", True),
    ("Mara\nMara\n", False), ("Mara\nMara\nMara", False), ("Mara\nMara\nTheo\nMara\n", False), ("\n\n\n\n", False),
    ("Mara\nTheo\nMara\nTheo\nMara\n", False), ("Mara\nMara\nMara\nTheo\n", False), ("", False)])
def test_the_same_line_three_times_in_succession(tiny, reply, loops):
    """It ends when the third is complete. Empty lines do not count."""
    assert in_a_loop(tiny.tokenizer, tiny.tokenizer.encode(reply)) == loops


def test_progress_counts_tokens(tiny, document, settings, graph, monkeypatch):
    """So that tokens a second and the time left are shown; what a finished reply did not take is no longer expected."""
    bars = []

    class Bar(tqdm):
        def __init__(self, **options):
            super().__init__(**options, file=io.StringIO())
            bars.append(self)

        def close(self):
            self.shown = self.fp.getvalue() + str(self)
            super().close()
    monkeypatch.setattr(pecan, "tqdm", Bar)
    replies = []
    monkeypatch.setattr(pecan, "note", lambda what, **values: replies.append(values.get("reply", [])))
    build(tiny, document, settings, progress=True)
    assert sum(bar.n for bar in bars) == sum(map(len, replies)) > 0
    assert all(bar.total == bar.n for bar in bars), "a finished level expects no more"
    assert all("token/s]" in bar.shown and "<" in bar.shown for bar in bars)

    bars.clear()
    search = pecan.Search(tiny, graph, "Who?", torch.zeros(len(graph.nodes)), settings, progress=True)
    search.answer()
    assert bars[0].n >= search.cache.lengths[0] > 100 and bars[0].total == settings.window


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
    """The IPs of the first two windows, prompt and reply in one pass of Hugging Face, averaged in loops."""
    tokenizer = tiny.tokenizer
    star = tokenizer.encode("*")[0]
    newline = tokenizer.encode("\n")[0]
    chunks = [i for i, node in enumerate(graph.nodes) if node.level == 1]

    limit = int(settings.window * settings.summary_share)
    lengths = [length_of(node_line(tokenizer, i, graph.nodes[i].text)) for i in chunks]
    windows = pack(lengths, settings.window - limit - length_of(pecan.summary_prompt(tokenizer, {})))
    assert len(windows) > 1, "the embedded world must give several windows"

    ip = len(chunks)                                          # id of the next IP
    for window in windows[:2]:
        ids, spans = ids_and_spans(pecan.summary_prompt(tokenizer, {i: graph.nodes[i].text for i in window}))
        cache = Cache(tiny, 1, settings.window)
        hidden, _ = tiny.read(cache, [[(None, ids)]])
        (reply,), _ = tiny.generate(cache, hidden, limit)
        a = mean_attention(tiny_hf, ids + reply)

        for bullet in bullets_of(reply, star, newline):
            assert graph.nodes[ip].text == tokenizer.decode([reply[x] for x in bullet])
            e = {}
            for j in window:
                total = sum(a[len(ids) + x, y].item() for x in bullet for y in spans[j])
                e[j] = total / len(bullet) / len(spans[j])
            for j in range(len(graph.nodes)):
                wanted = e[j] / sum(e.values()) if j in window else 0
                assert graph.E.to_dense()[ip, j].item() == pytest.approx(wanted, rel=TOLERANCE), (ip, j)
            ip += 1


def test_batches_of_windows_change_nothing(tiny, document, graph, settings):
    alone = build(tiny, document, replace(settings, batch=1))
    assert [n.text for n in alone.nodes] == [n.text for n in graph.nodes]
    assert (alone.E.to_dense() - graph.E.to_dense()).abs().max() < TOLERANCE
    assert alone.flops == graph.flops, "a window costs the same, alone or in a batch"


def test_tree_ablation(tiny, document, settings):
    """w/o IP-based graph: one summary node for every window, hence one parent for every node."""
    tree = build(tiny, document, replace(settings, tree=True))
    lower = [i for i, node in enumerate(tree.nodes) if node.level < tree.nodes[-1].level]
    assert all((tree.E.to_dense()[:, j] > 0).sum() == 1 for j in lower)
    assert len(tree.top_level) == 1


def test_a_short_document_is_its_own_top_level(tiny, settings):
    """A level that does not have fewer tokens is given up; here the reply is no shorter than the document."""
    graph = build(tiny, Document("d", ["Mara is Sofia's baker"]), settings)        # reply: the same
    assert [node.text for node in graph.nodes] == ["Mara is Sofia's baker"] and graph.top_level == [0]
    assert graph.flops > 0, "the level was tried"


def test_passages_are_never_mixed(tiny, settings):
    graph = build(tiny, Document("d", ["Mara is Sofia's baker.", "Otto is Lima's pilot."]), settings)
    assert [n.text for n in graph.nodes if n.level == 1] == ["Mara is Sofia's baker.", "Otto is Lima's pilot."]


# --- the graph on disk ----------------------------------------------------------------------------------------------

def test_save_and_load(tmp_path, tiny, graph, document, settings):
    graph.save(tmp_path / "g.json")
    loaded = Graph.load(tmp_path / "g.json", document, settings.of_construction(), tiny)
    assert torch.equal(loaded.E.to_dense(), graph.E.to_dense())
    assert loaded.nodes == graph.nodes and loaded.flops == graph.flops
    assert list(tmp_path.iterdir()) == [tmp_path / "g.json"]


@pytest.mark.parametrize("damage, words", [
    (lambda g: g.update(format="pecan graph 0"), "this version reads"),
    (lambda g: g["nodes"].pop(0), "do not count from 0"),
    (lambda g: g["nodes"][0].pop("text"), "not a complete graph"),
    (lambda g: g["nodes"][0].update(text=""), "without text"),
    (lambda g: g["nodes"][0].update(level=2), "levels do not rise"),
    (lambda g: g["edges"].append([0, 1, 0.5]), "does not lead one level down"),
    (lambda g: g["edges"][0].__setitem__(2, 1.5), "does not lead one level down"),
    (lambda g: g["edges"].pop(), "sum to"),
    (lambda g: g.pop("edges"), "not a complete graph"),
    (lambda g: g.update(flops="many"), "flops is 'many'"),
    (lambda g: g.update(document="0" * 64), "another document"),
    (lambda g: g.update(model="0" * 64), "another model"),
    (lambda g: g["settings"].update(chunk=31), "another settings"),
])
def test_a_damaged_graph_is_refused(tmp_path, tiny, graph, document, settings, damage, words):
    graph.save(tmp_path / "g.json")
    raw = json.loads((tmp_path / "g.json").read_text())
    damage(raw)
    (tmp_path / "g.json").write_text(json.dumps(raw))
    with pytest.raises(InputError, match=words):
        Graph.load(tmp_path / "g.json", document, settings.of_construction(), tiny)


# --- the method as it is run ----------------------------------------------------------------------------------------

def test_two_models(model, tiny, document, settings, question):
    """Table 2: one model builds the graph, another searches it. Here a random model searches."""
    encoder = TokenMean(model)
    method = Pecan(model, encoder, settings, builder=tiny)

    searcher_before = model.flops
    builder_before = tiny.flops
    prepared = method.prepare(document)
    assert prepared.graph.model == tiny.fingerprint
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


def test_an_unwritable_graph_is_reported_before_the_work(tmp_path, tiny, document, settings):
    before = tiny.flops
    with pytest.raises(InputError, match="cannot be written"):
        Pecan(tiny, TokenMean(tiny), settings).prepare(document, tmp_path / "none" / "g.json")
    assert tiny.flops == before


@pytest.mark.parametrize("error, code, words", [
    (InputError("x.json: bad"), 2, "error: x.json: bad"), (KeyboardInterrupt(), 130, "interrupted"),
    (OSError(errno.ENOSPC, "No space left on device", "g.json"), 2, "error: g.json: No space left on device")])
def test_an_error_of_a_command_is_one_line(capsys, error, code, words):
    def main():
        raise error

    assert user_errors(main) == code
    printed = capsys.readouterr().err
    assert words in printed and printed.count("\n") == 1


def test_a_text_outside_the_embedded_world_is_warned_about(tmp_path, capsys):
    (tmp_path / "story.txt").write_text("Once upon a time there was a hungry caterpillar.")
    assert pecan.main([str(tmp_path / "story.txt"), "Who was hungry?", "--device", "cpu"]) == 0
    assert "of the document's words are unknown to this model" in capsys.readouterr().err


# --- what stage 1 costs ---------------------------------------------------------------------------------------------

def test_E_costs_what_its_edges_cost():
    """A book's graph: 9,501 nodes would take 0.67 GiB as a dense matrix."""
    edges = [(i, j, 1 / 30) for i in range(9000, 9501) for j in range(30)]
    E = pecan.edge_matrix(edges, 9501)
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
