"""The benchmark's peer does the same work, and its table says what was reached. (Nothing is timed here.)"""
import re

import benchmark
import pytest
import torch
from speed import growth, measure, peer, reading, searching

from core.settings import resolve
from pecan import Search

CPU = torch.device("cpu")


def test_a_summary_of_the_peer_has_the_same_words_and_attention():
    """transformers over shared weights, with all layers and heads kept: equal ids, equal a(x, j)."""
    model = measure.random_model("embedded", CPU)
    window = reading.prompt_of(model.config.vocab, 200)
    (ours,), (a,) = reading.summarise(model, [window], 12)
    ids = torch.tensor([[i for _, part in window for i in part]])
    spans = [(start, min(start + reading.NODE, 200)) for start in range(0, 200, reading.NODE)]

    eager = peer.hugging_face(model, "eager")
    assert eager.model.embed_tokens.weight.data_ptr() == model.weights["model.embed_tokens.weight"].data_ptr()
    (theirs,), wanted = peer.write(eager, ids, 12, spans)
    assert ours == theirs and a.shape == wanted.shape == (12, 4)
    assert ((a - wanted).norm() / wanted.norm()).item() < 1e-5           # measured: 3e-7
    (plain,), none = peer.write(peer.hugging_face(model, "sdpa"), ids, 12)
    assert plain == ours and none is None


def test_a_search_of_the_peer_has_the_same_verdicts_and_answer(tiny, graph, question, similarity):
    """Node by node with transformers' cache, which is cropped after each probe."""
    settings = resolve(tiny.folder, 512)
    answer = Search(tiny, graph, question, similarity(question), settings).answer()
    passes = searching.passes_of(Search(tiny, graph, question, similarity(question), settings), question, answer)
    attention, verdicts, ids = searching.with_a_node_cache(tiny, passes, settings.answer_tokens)
    assert tiny.tokenizer.decode(ids).strip() == answer.text
    assert attention == pytest.approx([step.r / step.position for step in answer.trace], rel=1e-5)
    assert verdicts == pytest.approx([step.p_yes for step in answer.trace if step.p_yes is not None], abs=1e-5)

    theirs, span = searching.for_the_peer(passes)
    yes_no = [tiny.tokenizer.first("Yes"), tiny.tokenizer.first("No")]
    model = measure.without_eos(tiny)
    ours = searching.with_a_node_cache(model, passes, settings.answer_tokens)
    others = peer.search(peer.hugging_face(model, "eager"), theirs, span, yes_no, settings.answer_tokens)
    assert ours[2] == others[2]
    for mine, wanted in zip(ours[:2], others[:2], strict=True):
        assert mine == pytest.approx(wanted, rel=1e-4, abs=1e-6)         # float32 twice through a trained model


def test_what_a_row_of_the_table_says():
    """A ratio above 1 is better, whether less or more is wanted; a goal is met from its limit on."""
    def cells(**values):
        row = measure.Row("1 what", "shape", **{"unit": "s", "goal": "g"} | values)
        return re.split(r"\s{2,}", measure.table([row]).splitlines()[1])[2:]

    assert cells(ours=2.0, peer=3.0, limit=1.5) == ["2", "s", "3", "1.50x", "g", "yes"]
    assert cells(ours=2.0, peer=3.0, limit=1.6)[-1] == "no"
    assert cells(ours=3.0, peer=2.0, higher=True, limit=1.5)[3:] == ["1.50x", "g", "yes"]
    assert cells(ours=2.0, peer=3.0)[-1] == "-"
    assert cells(ours=measure.NOT_RUN, peer="-", limit=1)[3:] == ["-", "g", "-"]
    assert cells(ours=2.0, peer="not run: memory", limit=3)[2:] == ["not run: memory", "-", "g", "-"]


def test_what_was_measured_is_kept(tmp_path, monkeypatch):
    """Part by part: a part that is measured again replaces its rows, and the table has all parts in order."""
    monkeypatch.setattr(measure, "KEPT", tmp_path / "kept")
    curve = [{"part": "a choice", "size": 10, "seconds": .1}, {"part": "a choice", "size": 100, "seconds": .2}]
    for ours in (9.0, 2.0):
        measure.keep("growth", [measure.Row("6 growth", "s", ours, 4.0, "s", "linear", details=curve)],
                     measure.machine(CPU))
    measure.keep("stage_1", [measure.Row("1 stage 1", "s", 1.0, 1.0, "s", "-")], measure.machine(CPU))
    measure.draw()
    lines = (tmp_path / "kept" / "table.txt").read_text().splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == ["1 stage 1", "6 growth"] and " 2     s " in lines[2]


def test_the_documents_of_growth_grow(tiny):
    """A long document has at least as many tokens as asked for, and a graph of V nodes has V and sums of 1."""
    from speed.growth import long_document, random_graph
    for tokens in (500, 2_000):
        document = long_document(tiny.tokenizer, tokens)
        assert tokens <= sum(len(tiny.tokenizer.encode(passage)) for passage in document.passages) < 2 * tokens + 500
    graph = random_graph(100)
    assert len(graph.nodes) == 100 and graph.nodes[-1].level == 3
    sums = graph.E.to_dense().sum(1)
    assert all(abs(total - (node.level > 1)) < 1e-9 for total, node in zip(sums.tolist(), graph.nodes))


def test_the_peak_of_a_window_is_what_the_dry_run_says(capsys, tmp_path, monkeypatch):
    """Within 10 %; and the command prints the machine before anything else, and the 8B row that needs a GPU."""
    row, missing = growth.dry_run(CPU, ["embedded"], 1024)
    assert .9 < row.ratio < 1.1 and row.met == "yes" and (missing.shape, missing.ours) == ("8B", measure.NOT_RUN)

    monkeypatch.setattr(measure, "KEPT", tmp_path / "kept")
    benchmark.main(["flops"])
    assert f"threads {torch.get_num_threads()}, python 3." in capsys.readouterr().out.splitlines()[0]
