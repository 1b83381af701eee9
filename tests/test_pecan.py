"""The method by hand on a worked example, and both stages with the embedded model, in which every number that a graph
or a search reports is computed again from Hugging Face's attention. (Random graphs, random attention and every setting:
test_algorithm.py.)"""
import errno
import json
import random
from dataclasses import replace

import pytest
import torch
from oracle import mean_attention

import pecan
from baselines.whole import Whole, cut_middle
from data import Document
from llama import Cache
from pecan import Graph, Node, Pecan, Search, build, edge_matrix, edge_weights, final_scores, pack, share
from support.files import InputError
from support.options import user_errors
from support.sbert import TokenMean
from support.settings import resolve
from support.text import bullets, split
from support.tokenizer import Frame
from tiny.world import make_world

# Of numbers that went through float32 twice, in one pass over everything (Hugging Face) and node by node: the trained
# weights multiply a rounding of 1e-7. The largest difference measured is 8e-7 of a number; processors differ.
TOLERANCE = 4e-6

# --- by hand --------------------------------------------------------------------------------------------------------


def test_worked_example():
    """The example of pecan.py's docstring, from attention to the next node."""
    a3 = torch.tensor([[.01, .07, .03], [.03, .05, .01]])     # two tokens of IP 3; their mean is .02 .06 .02
    a4 = torch.tensor([[9., 9., 9.], [.01, .01, .03]])        # the first row is a marker's and does not count
    E = torch.zeros(5, 5, dtype=torch.float64)
    E[3, :3], E[4, :3] = edge_weights(a3, [0, 1]), edge_weights(a4, [1])
    assert E[3, :3].tolist() == pytest.approx([.2, .6, .2]) and E[4, :3].tolist() == pytest.approx([.2, .2, .6])
    r = torch.tensor([0, 0, 0, 2 * .10, 3 * .04], dtype=torch.float64)
    c = torch.tensor([.30, .20, .50, 0, 0], dtype=torch.float64)
    z, final = final_scores(E, r, c)
    assert z.tolist() == pytest.approx([.064, .144, .112, 0, 0])
    assert final.tolist() == pytest.approx([.5, .65, .85, 0, 0])
    assert final_scores(E, r, c, attention=False)[1].argmax() == 2
    assert final_scores(E, r, c, similarity=False)[1].argmax() == 1


def test_negative_cosines_count_as_nothing_and_zero_sums_stay_zero():
    E, r = torch.zeros(2, 2), torch.zeros(2)
    z, final = final_scores(E, r, torch.tensor([-.5, .25]))
    assert final.tolist() == [0, 1] and z.tolist() == [0, 0]
    alone = final_scores(E, r, torch.tensor([-.5, -.25]), attention=False)[1]
    assert alone.argmax() == 1, "without attention the cosine itself decides, a negative one too"
    assert share(torch.zeros(3)).tolist() == [0, 0, 0]


def test_bullets():
    def texts(reply, complete=True):
        return [reply[a:b] for a, b in bullets(reply, complete)]
    assert texts("* one\n* two") == ["one", "two"]
    assert texts("- one\n• two\n 3. three\n12. four") == ["one", "two", "three", "four"]
    assert texts("Here is the summary:\n\n* one\n\n* two\n\nI hope this helps.") == ["one", "two"]
    assert texts("* one\n  goes on\n* two") == ["one\n  goes on", "two"]
    assert texts("  no bullet at all\nin two lines \n") == ["no bullet at all\nin two lines"]
    assert texts("* one\n*\n*   \n* two") == ["one", "two"]
    assert texts("* one\n* tw", complete=False) == ["one"]
    assert texts("* on", complete=False) == ["on"]
    assert texts("") == texts(" \n ") == texts("*\n* \n2.") == []
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
    assert min(full) > 32, "a chunk ended although the next word would have fitted"


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
    """Tables A1 and A2, as the paper prints them, one line of nodes for each."""
    literal = []

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
    pieces = pecan.question_prompt(Recorder(), "Where?") + pecan.node_line(Recorder(), 0, "The garden.")
    assert "".join(literal) == (
        'Can this question be answered by the following information? Response "Yes" or "No" in one word. '
        "Do not provide any explanation.\n\nQuestion:\nWhere?\n\nInformation:\n* The garden.")
    assert [node for node, _ in pieces] == [None, "q", None, None, 0]
    literal.clear()
    pecan.answer_turn(Recorder(), 7)
    assert literal == ["Given the above information and question, answer the question as concisely as you can."]


# --- stage 1 with the embedded model --------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def settings(tiny):
    return resolve(tiny.folder, tiny.config.max_length)


@pytest.fixture(scope="module")
def document():
    return Document("world", make_world(random.Random(3), 10, held_out=True).passages)


@pytest.fixture(scope="module")
def graph(tiny, document, settings):
    return build(tiny, document, settings)


def test_graph_invariants(graph, document):
    levels = [node.level for node in graph.nodes]
    assert levels == sorted(levels) and levels[-1] >= 3, "the embedded world must give three levels"
    assert " ".join(node.text for node in graph.nodes if node.level == 1).split() == " ".join(document.passages).split()
    for i, row in enumerate(graph.E.to_dense()):
        below = [j for j in range(len(levels)) if levels[j] == levels[i] - 1]
        assert all(row[j] == 0 for j in range(len(levels)) if j not in below), "edges lead exactly one level down"
        assert row.sum().item() == pytest.approx(float(levels[i] > 1), abs=1e-12)


def test_construction_flops_are_those_that_ran(tiny, graph, document, settings):
    """What the model spent between the start and the end of a build, whatever it spent before (Table A4); and the
    encoder's beside it."""
    before, encoder = tiny.flops, TokenMean(tiny)
    assert before > 0 and build(tiny, document, settings).flops == tiny.flops - before == graph.flops
    prepared = Pecan(tiny, encoder, settings).prepare(document)
    assert prepared.flops == graph.flops + encoder.flops and encoder.flops > 0


def test_edges_equal_those_from_hugging_face(tiny, tiny_hf, graph, settings):
    """The IPs of the first two windows, prompt and reply in one pass of Hugging Face, averaged in loops."""
    tokenizer, V = tiny.tokenizer, range(len(graph.nodes))
    chunks = [i for i in V if graph.nodes[i].level == 1]
    room = int(settings.window * settings.summary_share)
    costs = [pecan.length_of(pecan.node_line(tokenizer, i, graph.nodes[i].text)) for i in chunks]
    windows = pack(costs, settings.window - room - pecan.length_of(pecan.summary_prompt(tokenizer, {})))
    assert len(windows) > 1, "the embedded world must give several windows"
    ip = len(chunks)                                          # id of the next IP
    for window in windows[:2]:
        ids, spans = [], {}
        for node, piece in pecan.summary_prompt(tokenizer, {i: graph.nodes[i].text for i in window}):
            spans[node] = (len(ids), len(ids) + len(piece))
            ids += piece
        cache = Cache(tiny, 1, settings.window)
        reply = tiny.generate(cache, tiny.read(cache, [[(None, ids)]])[0], room)[0][0]
        a = mean_attention(tiny_hf, ids + reply)
        # A reply of the embedded model is lines "*", words, newline: the tokens of an IP are those between.
        star, newline = tokenizer.encode("*")[0], tokenizer.encode("\n")[0]
        line: list[int] = []
        for x, token in enumerate([*reply, newline]):
            if token != newline:
                line += [x] if token != star else []
                continue
            if not line:
                continue
            e = {j: sum(a[len(ids) + x, y].item() for x in line for y in range(*spans[j])) / len(line)
                 / (spans[j][1] - spans[j][0]) for j in window}
            assert graph.nodes[ip].text == tokenizer.decode([reply[x] for x in line])
            for j in V:
                wanted = e[j] / sum(e.values()) if j in window else 0
                assert graph.E.to_dense()[ip, j].item() == pytest.approx(wanted, rel=TOLERANCE), (ip, j)
            ip, line = ip + 1, []


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


def test_a_short_document_is_its_own_top(tiny, settings):
    """A level that does not have fewer tokens is given up: a reply longer than the document, here."""
    graph = build(tiny, Document("d", ["Mara's job was baker"]), settings)         # "Mara's job is baker" is no shorter
    assert [node.text for node in graph.nodes] == ["Mara's job was baker"] and graph.top_level == [0]
    assert graph.flops > 0, "the level was tried"


def test_passages_are_never_mixed(tiny, settings):
    graph = build(tiny, Document("d", ["Mara's job was baker.", "Tom's job was pilot."]), settings)
    assert [n.text for n in graph.nodes if n.level == 1] == ["Mara's job was baker.", "Tom's job was pilot."]


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
    (lambda g: g["settings"].update(chunk=31), "was built with"),
])
def test_a_damaged_graph_is_refused(tmp_path, tiny, graph, document, settings, damage, words):
    graph.save(tmp_path / "g.json")
    raw = json.loads((tmp_path / "g.json").read_text())
    damage(raw)
    (tmp_path / "g.json").write_text(json.dumps(raw))
    with pytest.raises(InputError, match=words):
        Graph.load(tmp_path / "g.json", document, settings.of_construction(), tiny)


# --- stage 2 --------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def similarity(tiny, graph):
    def cosines(question):
        vectors = TokenMean(tiny).encode([question, *(node.text for node in graph.nodes)])
        return vectors[1:] @ vectors[0]
    return cosines


@pytest.fixture(scope="module")
def question(graph):
    name = graph.nodes[0].text.split("'s")[0].split()[-1]
    return f"What is {name}'s drink?"


def search(tiny, graph, question, cosines, settings, **changes) -> Search:
    s = Search(tiny, graph, question, cosines(question), replace(settings, **changes))
    s.run()
    return s


def test_a_search_again_from_hugging_face(tiny, tiny_hf, graph, question, similarity, settings):
    """Every r, z, final score, winner, runner-up and p_yes of a trace, from one Hugging Face pass over what was
    read."""
    s = search(tiny, graph, question, similarity, settings, confidence=0.999)     # a hard threshold: a long search
    t, V = tiny.tokenizer, len(graph.nodes)
    assert s.visited[:len(graph.top_level)] == graph.top_level and len(s.visited) > len(graph.top_level) + 3
    ids, spans = [], {}
    for node, piece in sum([pecan.node_line(t, i, graph.nodes[i].text) for i in s.visited],
                           pecan.question_prompt(t, question)):
        spans[node] = (len(ids), len(ids) + len(piece))
        ids += piece
    assert s.cache.lengths == [len(ids)], "the cache holds the query and the nodes, and no probe"
    a, c = mean_attention(tiny_hf, ids), similarity(question).tolist()
    r = [0.0] * V
    for position, step in enumerate(s.trace, 2):
        if step.score is not None:
            z = [sum(r[j] * graph.E.to_dense()[j, i].item() for j in range(V)) for i in range(V)]
            final = [z[i] / sum(z) + max(c[i], 0) / sum(max(x, 0) for x in c) for i in range(V)]
            read = s.visited[:position - 2]
            used = spans[read[-1]][1]
            fits = [i for i in range(V) if i not in read
                    and used + pecan.length_of(pecan.node_line(t, i, graph.nodes[i].text)) <= s.nodes_end]
            best, second = (sorted(fits, key=lambda i: -final[i]) + [None])[:2]
            assert (step.node, step.runner_up) == (best, second)
            assert (step.z, step.score) == pytest.approx((z[best], final[best]), rel=TOLERANCE)
            if second is not None:
                assert step.runner_up_score == pytest.approx(final[second], rel=TOLERANCE)
        x, q = range(*spans[step.node]), range(*spans["q"])
        r[step.node] = position * sum(a[i, j].item() for i in x for j in q) / len(x) / len(q)
        assert step.r == pytest.approx(r[step.node], rel=TOLERANCE) and step.position == position
        if step.p_yes is not None:
            probe = ids[:spans[step.node][1]] + t.frame[1]
            with torch.no_grad():
                logits = tiny_hf(torch.tensor([probe])).logits[0, -1]
            p = logits[[t.encode("Yes")[0], t.encode("No")[0]]].softmax(0)[0].item()
            assert step.p_yes == pytest.approx(p, abs=TOLERANCE)
            assert step.verdict == ("Yes" if p > 0.999 else "No")


def test_the_answer_is_what_hugging_face_generates(tiny, tiny_hf, graph, question, similarity, settings):
    """One cache from the first word to the answer equals one prompt; and the tokens counted are those that were run."""
    s = Search(tiny, graph, question, similarity(question), settings)
    answer, t = s.answer(), tiny.tokenizer
    pieces = pecan.question_prompt(t, question)
    pieces += sum([pecan.node_line(t, i, graph.nodes[i].text) for i in answer.nodes], [])
    pieces += pecan.answer_turn(t, t.first(answer.trace[-1].verdict))
    prompt = [i for _, piece in pieces for i in piece]
    reply = tiny_hf.generate(torch.tensor([prompt]), max_new_tokens=settings.answer_tokens, do_sample=False,
                             pad_token_id=0)[0, len(prompt):]
    assert answer.text == t.decode([i for i in reply.tolist() if i not in tiny.config.eos]).strip()
    probes = sum(step.p_yes is not None for step in answer.trace)
    said = sum(i not in tiny.config.eos for i in reply.tolist())
    assert answer.tokens == len(prompt) + probes * len(t.frame[1]) + said


def test_patience_and_confidence(tiny, graph, question, similarity, settings):
    """t_n Yes verdicts are waited for; a threshold of 0 says Yes to everything and stops after the top level."""
    top = len(graph.top_level)
    for patience in (1, 2, 4):
        s = search(tiny, graph, question, similarity, settings, confidence=0.0, patience=patience)
        assert len(s.visited) == top + patience - 1
        assert [step.verdict for step in s.trace[top - 1:]] == ["Yes"] * patience
        assert all(step.p_yes is None for step in s.trace[:top - 1]), "the first check comes after the top level"


def test_the_window_keeps_room_for_the_answer(tiny, graph, question, similarity, settings):
    """Reading ends when nothing fits; a smaller node is tried where the best does not fit."""
    s = Search(tiny, graph, question, similarity(question), replace(settings, confidence=0.9999999))
    s.check = lambda: False                                   # never satisfied: everything that fits is read
    end = s.run()
    left = s.nodes_end - s.cache.lengths[0]
    unread = [i for i in range(len(graph.nodes)) if i not in s.visited]
    assert unread and end == "window", "the document must not fit the window"
    assert left >= 0 and all(pecan.length_of(s.lines[i]) > left for i in unread)
    assert len(set(s.visited)) == len(s.visited)
    turn = pecan.length_of(pecan.answer_turn(tiny.tokenizer, tiny.tokenizer.first("No")))
    assert s.cache.lengths[0] + turn + settings.answer_tokens <= settings.window


def test_the_fixed_number_of_nodes(tiny, graph, question, similarity, settings):
    """w/o dynamic progress control: no checks; a large top level is held to the number divided by the levels."""
    s = search(tiny, graph, question, similarity, settings, fixed_nodes=9)
    assert len(s.visited) == 9 and all(step.verdict is None for step in s.trace)
    started = [step.node for step in s.trace if step.score is None]
    c = similarity(question)
    assert started == sorted(sorted(graph.top_level, key=lambda i: -c[i])[:9 // 3])
    many = search(tiny, graph, question, similarity, settings, fixed_nodes=3 * len(graph.top_level))
    assert many.visited[:len(graph.top_level)] == graph.top_level


@pytest.mark.parametrize("times", [1, 2])
def test_a_top_level_too_large_for_the_window(tiny, question, settings, times):
    """A top level that just fits is read whole. Of one more node, or twice as many, the least similar are left out, so
    that five nodes of chunk size still fit. The others are read in document order."""
    names = ("Mara", "Theo", "Ada", "Igor", "Ulla") * 30

    def started(nodes):
        texts = [f"{name}'s job is baker and {name}'s home is Oslo" for name in names[:nodes]]
        graph = Graph([Node(1, text) for text in texts], edge_matrix([], nodes), "", "", {})
        c = torch.rand(nodes, generator=torch.Generator().manual_seed(0))
        s = Search(tiny, graph, question, c, settings)
        room = s.nodes_end - s.cache.lengths[0]
        s.start()
        return s, room

    _, room = started(1)
    line = pecan.length_of(pecan.node_line(tiny.tokenizer, None, "Mara's job is baker and Mara's home is Oslo"))
    fits = room // line
    assert started(fits)[0].visited == list(range(fits))

    nodes = times * fits + 1
    s, _ = started(nodes)
    used = sum(pecan.length_of(s.lines[i]) for i in s.visited)
    assert s.visited == sorted(s.visited)
    assert room - 5 * settings.chunk - line < used <= room - 5 * settings.chunk
    assert min(s.c[i] for i in s.visited) >= max(s.c[i] for i in range(nodes) if i not in s.visited)


def test_ablations_choose_by_one_score(tiny, graph, question, similarity, settings):
    hard = replace(settings, confidence=0.999)
    by_similarity = search(tiny, graph, question, similarity, hard, attention=False)
    c = similarity(question).clamp(min=0)
    step = next(step for step in by_similarity.trace if step.score is not None)
    assert step.node == max((i for i in range(len(c)) if i not in graph.top_level), key=lambda i: (c[i].item(), -i))
    by_attention = search(tiny, graph, question, similarity, hard, similarity=False)
    assert all(step.score == step.z for step in by_attention.trace if step.score is not None)


def test_the_last_verdict_stays_in_the_conversation(tiny, graph, question, similarity, settings):
    """A search that ends without a Yes asks for the answer behind a "No", one that ends with it behind a "Yes"."""
    for satisfied in (True, False):
        s, reads = Search(tiny, graph, question, similarity(question), settings), []
        read = s.read

        def check():
            s.trace[-1].verdict = "Yes" if satisfied else "No"
            return satisfied
        s.check, s.read = check, lambda pieces, averaging=None: reads.append(pieces) or read(pieces, averaging)
        s.answer()
        assert reads[-1] == pecan.answer_turn(tiny.tokenizer, tiny.tokenizer.first("Yes" if satisfied else "No"))


def test_ties_go_to_the_lower_id(tiny, graph, question, settings):
    s = Search(tiny, graph, question, torch.zeros(len(graph.nodes)), replace(settings, attention=False))
    s.start()
    s.next()
    assert s.visited[-1] == 0


def test_two_models(model, tiny, document, settings, question):
    """Table 2: one model builds the graph, another searches it. Here a random model searches."""
    method = Pecan(model, encoder := TokenMean(model), settings, builder=tiny)
    before = model.flops, tiny.flops
    prepared = method.prepare(document)
    assert prepared.graph.model == tiny.fingerprint and model.flops == before[0] and tiny.flops > before[1]
    between, embedded = tiny.flops, encoder.flops
    spent = method.answer(prepared, question).flops - (encoder.flops - embedded)
    assert spent == model.flops - before[0] > 0 and tiny.flops == between and encoder.flops > embedded


def test_what_a_graph_is_named_by(model, tiny, document, settings):
    def key(builder=tiny, document=document, **changes):
        return Pecan(tiny, None, replace(settings, **changes), builder).file_name(document)
    assert key() == key(patience=3, confidence=0.9, fixed_nodes=5, batch=1), "search settings change no graph"
    others = [key(chunk=31), key(window=500), key(summary_share=0.3), key(tree=True), key(model),
              key(document=Document("d", ["x"]))]
    assert len({key(), *others}) == 7


@pytest.mark.parametrize("bad, words", [({"window": 150}, "window 150 is too small"), ({"window": "x"}, "whole number"),
                                        ({"patience": 0}, "patience"), ({"confidence": 1.0}, "below 1"),
                                        ({"summary_share": 1.0}, "share"), ({"summary_share": "x"}, "share"),
                                        ({"attention": False, "similarity": False}, "both")])
def test_bad_settings(tiny, document, settings, bad, words):
    with pytest.raises(InputError, match=words):
        build(tiny, document, replace(settings, **bad))


def test_flops_and_tokens_of_a_search(tiny, graph, question, similarity, settings):
    """The counter against a formula over what was read: 2 x parameters a token, 4 L H K T S for attention, the output
    matrix for each probe and each generated token (the one that ends the answer too)."""
    s = Search(tiny, graph, question, similarity(question), replace(settings, confidence=0.9))
    answer, c, t = s.answer(), tiny.config, tiny.tokenizer
    matrices = sum(w.numel() for name, w in tiny.weights.items() if w.ndim == 2 and "embed" not in name)
    reads, length = [], 0                                     # (tokens, tokens seen)

    def read(pieces, keep=True):
        nonlocal length
        n = pecan.length_of(pieces)
        reads.append((n, length + n))
        length += n if keep else 0
    read(pecan.question_prompt(t, question))
    for step in answer.trace:
        read(pecan.node_line(t, step.node, graph.nodes[step.node].text))
        if step.p_yes is not None:
            read([(None, t.frame.close)], keep=False)
    read(pecan.answer_turn(t, tiny.tokenizer.first("Yes")))
    said = answer.tokens - sum(n for n, _ in reads)
    for _ in range(min(said, settings.answer_tokens - 1)):
        read([(None, [0])])
    probes = sum(step.p_yes is not None for step in answer.trace)
    heads = probes + min(said + 1, settings.answer_tokens)
    wanted = sum(2 * matrices * n + 4 * c.layers * c.heads * c.head_width * n * seen for n, seen in reads)
    assert answer.flops == wanted + heads * 2 * c.vocab * c.width
    assert [step.flops for step in answer.trace] == sorted(step.flops for step in answer.trace)


def test_the_whole_document_in_one_pass(tiny, tiny_hf, document, question, settings):
    """The baseline's prompt is Table A2's with all passages as nodes, cut in the middle; its answer is Hugging
    Face's."""
    t, method = tiny.tokenizer, Whole(tiny, settings)
    prepared = method.prepare(document)
    assert prepared.index == [i for p in document.passages for _, ids in pecan.node_line(t, None, p) for i in ids]
    answer = method.answer(prepared, question)
    room = pecan.room_for_nodes(t, question, settings)
    assert answer.cut and len(prepared.index) > room
    ids = cut_middle(prepared.index, room)
    half = room // 2
    assert len(ids) == room and ids[:half] == prepared.index[:half] and ids[-half:] == prepared.index[-half:]
    pieces = [*pecan.question_prompt(t, question), (None, ids), *pecan.answer_turn(t, t.first("Yes"))]
    prompt = [i for _, piece in pieces for i in piece]
    assert len(prompt) + settings.answer_tokens == settings.window
    reply = tiny_hf.generate(torch.tensor([prompt]), max_new_tokens=settings.answer_tokens, do_sample=False,
                             pad_token_id=0)[0, len(prompt):].tolist()
    assert answer.text == t.decode([i for i in reply if i not in tiny.config.eos]).strip()
    assert not method.answer(method.prepare(Document("d", document.passages[:3])), question).cut
    with pytest.raises(InputError, match="too small: the question"):
        method.answer(prepared, "Who " * 500)


def test_an_empty_question(tiny, graph, settings):
    with pytest.raises(InputError, match="question is empty"):
        Search(tiny, graph, " ", torch.zeros(len(graph.nodes)), settings)


def test_a_question_that_leaves_no_room(tiny, graph, similarity, settings):
    with pytest.raises(InputError, match="too small: the question"):
        Search(tiny, graph, "Who " * 500, similarity("Who"), settings)


# --- command line ---------------------------------------------------------------------------------------------------

def test_an_unknown_setting_of_a_checkpoint_is_named(tmp_path, tiny):
    (tmp_path / "pecan.json").write_text('{"chunks": 32}')
    with pytest.raises(InputError, match="pecan.json: unknown setting chunks"):
        resolve(tmp_path, tiny.config.max_length)


def test_a_graph_that_cannot_be_kept_is_said_before_the_work(tmp_path, tiny, document, settings):
    before = tiny.flops
    with pytest.raises(InputError, match="cannot be written"):
        Pecan(tiny, TokenMean(tiny), settings).prepare(document, tmp_path / "none" / "g.json")
    assert tiny.flops == before


@pytest.mark.parametrize("error, code, words", [
    (InputError("x.json: bad"), 2, "error: x.json: bad"), (KeyboardInterrupt(), 130, "interrupted"),
    (OSError(errno.ENOSPC, "No space left on device", "g.json"), 2, "error: g.json: No space left on device")])
def test_what_stops_a_command_is_one_line(capsys, error, code, words):
    def main():
        raise error
    assert user_errors(main) == code
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1


def test_a_text_outside_the_embedded_world_is_warned_about(tmp_path, capsys):
    (tmp_path / "story.txt").write_text("Once upon a time there was a hungry caterpillar.")
    assert pecan.main([str(tmp_path / "story.txt"), "Who was hungry?", "--device", "cpu"]) == 0
    assert "of the document's words are unknown to this model" in capsys.readouterr().err
