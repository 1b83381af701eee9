"""The wires between the parts, from the command line to the numbers in the results.

The command line runs two documents that could be confused. Every number of their searches is computed again from texts,
graph files and weights. The other tests follow one wire each: from an option, a data set or a table's row to the
planned run, and from the planned run to its method.
"""
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
import torch
from oracle import TINY, TOLERANCE, ids_and_spans, mean_attention
from safetensors.torch import load_file
from transformers import BertConfig, BertModel

import eval as command
import pecan
from core.files import InputError
from core.settings import Settings
from data import EMBEDDED
from evaluation import methods as plan
from evaluation import paper, runner
from evaluation.methods import rows_of
from evaluation.runner import Runner, Team
from llama import length_of
from model.checkpoint import read_config
from pecan import node_line
from pecan import node_vectors
from support.sbert import Bert
from support.token_mean import TokenMean
from tiny.facts import posts_in

WORLD = [json.loads(line) for line in EMBEDDED.read_text().splitlines()]
DEVICE = ["--device", "cpu"]
BASE = Settings(chunk=24, window=380, summary_share=0.3437, answer_tokens=4)  # the paper's, changed by tiny/pecan.json


def run(*arguments):
    """Run eval.py in this process. Every question must be answered."""
    assert command.main([*map(str, arguments), *DEVICE]) == 0


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: Path, rows: list[dict]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


# --- two documents, computed again ----------------------------------------------------------------------------------

QUESTIONS = (3, 1)                # of each document


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The output folder of two documents whose graphs have equally large levels, run with a high threshold.

    The second document is the first with other names: each person has the name of the next.
    """
    folder = tmp_path_factory.mktemp("two")
    names = list(posts_in(WORLD[1]["passages"]).values())
    next_name = dict(zip(names, names[1:] + names[:1]))
    others = [re.sub(r"\w+", lambda word: next_name.get(word[0], word[0]), text) for text in WORLD[1]["passages"]]
    others = [text.replace(" Birds sang.", "") for text in others]         # so that it costs less to build
    question = WORLD[1]["questions"][2] | {"id": "other-0"}
    rows = [WORLD[1] | {"questions": WORLD[1]["questions"][1:4]},
            {"id": "other", "passages": others, "questions": [question]}]
    write_lines(folder / "mine.jsonl", rows)
    run("--dataset", folder / "mine.jsonl", "--method", "pecan", "--confidence", .999, "--output", folder / "r")
    return folder


@pytest.fixture(scope="module")
def answers(two):
    """This run's predictions, each with its document and the content of its graph's file."""
    documents = {row["id"]: row for row in lines_of(two / "mine.jsonl")}
    rows = lines_of(two / "r" / "mine" / "pecan.jsonl")
    assert [row["document"] for row in rows] == ["test-1"] * QUESTIONS[0] + ["other"] * QUESTIONS[1]
    return [(row, documents[row["document"]], json.loads((two / "r" / "graphs" / f"{row['graph']}.json").read_text()))
            for row in rows]


@pytest.fixture(scope="module")
def cosine():
    """A function: the similarity of two texts, by numpy, from the files of the embedded model.

    It is the cosine of two means of embeddings, centred and whitened over the vocabulary by the inverse covariance.
    """
    table = load_file(TINY / "model.safetensors")["model.embed_tokens.weight"].double().numpy()
    tokenizer = tokenizers.Tokenizer.from_file(str(TINY / "tokenizer.json"))
    inverse = np.linalg.inv(np.cov(table.T, bias=True))
    counts = np.array(json.loads((TINY / "token_counts.json").read_text())["counts"])
    weights = .003 / (.003 + counts / counts.sum())          # rare tokens count more

    def vector(text):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        return np.average(table[ids] - table.mean(0), axis=0, weights=weights[ids])

    def product(x, y):
        return x @ inverse @ y

    def compute(text, other):
        x, y = vector(text), vector(other)
        return product(x, y) / (product(x, x) * product(y, y)) ** .5
    return compute


def test_a_graph_is_that_of_its_document(answers):
    """Each graph holds its document's words. Both have equally large levels, so they could be confused."""
    for _, document, graph in answers:
        chunks = [node["text"] for node in graph["nodes"] if node["level"] == 1]
        assert " ".join(chunks).split() == " ".join(document["passages"]).split()
    first, last = answers[0][2], answers[-1][2]
    assert [node["level"] for node in first["nodes"]] == [node["level"] for node in last["nodes"]]
    assert first["nodes"] != last["nodes"]


def edges_of(graph: dict) -> np.ndarray:
    """E [|V|, |V|] from a graph's file."""
    E = np.zeros((len(graph["nodes"]),) * 2)
    for i, j, e in graph["edges"]:
        E[i, j] = e
    return E


def test_every_number_of_a_search_comes_from_its_own_question_and_document(tiny, tiny_hf, answers, cosine):
    """The texts, the graph's file and Hugging Face's attention give each step's similarity, z, r and score."""
    t = tiny.tokenizer
    room = 380 - 4 - length_of(pecan.answer_turn(t, 0))       # tiny/pecan.json: the window and an answer's length
    for row, _, graph in answers:
        texts = [node["text"] for node in graph["nodes"]]
        lines = [node_line(t, i, text) for i, text in enumerate(texts)]
        E = edges_of(graph)
        c = np.array([cosine(text, row["question"]) for text in texts])

        visited = [step["node"] for step in row["trace"]]
        prompt = pecan.question_prompt(t, row["question"])
        for i in visited:
            prompt += lines[i]
        ids, spans = ids_and_spans(prompt)
        a = mean_attention(tiny_hf, ids).numpy()

        r = np.zeros(len(texts))
        for place, step in enumerate(row["trace"]):
            if step["score"] is not None:
                z = E.T @ r
                positive = c.clip(0)
                final = z / z.sum() + positive / positive.sum()
                used = spans[visited[place - 1]].stop
                left = [i for i in range(len(texts)) if i not in visited[:place] and used + length_of(lines[i]) <= room]
                best = max(left, key=lambda i: final[i])
                assert step["node"] == best and step["c"] == pytest.approx(c[best], abs=TOLERANCE)
                assert (step["z"], step["score"]) == pytest.approx((z[best], final[best]), rel=TOLERANCE, abs=1e-6)

            node = step["node"]
            mean = a[np.ix_(list(spans[node]), list(spans["q"]))].mean()
            r[node] = (place + 2) * mean
            assert step["r"] == pytest.approx(r[node], rel=TOLERANCE, abs=1e-8)
        assert len(visited) > 15, "more than the top level must be read"


# --- kept vectors ---------------------------------------------------------------------------------------------------

def test_kept_vectors_are_those_of_their_encoder_and_texts(tmp_path, tiny):
    """Two models of one shape and two lists of texts, under one graph's path: each pair has its own vectors."""
    weights = {name: tensor.roll(1, 0) for name, tensor in tiny.weights.items()}
    other = SimpleNamespace(weights=weights, tokenizer=tiny.tokenizer, fingerprint="another", folder=None)
    for model in (tiny, other):
        for texts in (["Mara has a goat."], ["Otto is Lima's pilot."], ["Mara has a goat."]):
            wanted = TokenMean(model).encode(texts)
            for _ in range(2):
                vectors, flops = node_vectors(tmp_path / "g.json", TokenMean(model), texts)
                assert torch.equal(vectors, wanted) and flops == 2 * vectors.shape[1] ** 2


# --- from an option, a data set or a row to the run -----------------------------------------------------------------

def runs(*arguments, dataset="mine"):
    """The planned runs over a data set of this name: {name of the row: run}."""
    args = command.parse([*map(str, arguments), *DEVICE])
    return {run.row.name: run for run in plan.plan(args, [SimpleNamespace(name=dataset)])}


def settings_of(*arguments, dataset="mine"):
    return {name: run.settings for name, run in runs(*arguments, dataset=dataset).items()}


@pytest.mark.parametrize("dataset, t_p, tokens", [("NarrativeQA", .5, 128), ("Qasper", .98, 128), ("HotpotQA", .5, 32),
                                                  ("MuSiQue", .55, 32)])
def test_settings_of_the_papers_data_sets(dataset, t_p, tokens):
    """t_p is Appendix E's. The answer's length is LongBench's, not the checkpoint's 4 tokens. Options override both.
    GARLIC has no t_p: it follows the likelier word."""
    wanted = replace(BASE, confidence=t_p, answer_tokens=tokens)
    whole = replace(wanted, window=512)                                               # what the model was made for
    found = settings_of("--method", "pecan,whole,garlic", dataset=dataset)
    assert found == {"pecan": wanted, "whole": whole, "garlic": replace(wanted, confidence=.5)}
    assert settings_of("--method", "pecan,garlic", "--confidence", .7, dataset=dataset) == {
        "pecan": replace(wanted, confidence=.7), "garlic": replace(wanted, confidence=.5)}


@pytest.mark.parametrize("options, changes", [
    (["--chunk", 30, "--window", 500], {"chunk": 30, "window": 500}),
    (["--confidence", .7, "--patience", 2, "--batch", 3], {"confidence": .7, "patience": 2, "batch": 3}),
    (["--nodes", 4, "--without", "attention"], {"fixed_nodes": 4, "attention": False}),
    (["--without", "similarity", "--without", "graph"], {"similarity": False, "tree": True})])
def test_an_option_reaches_the_run(options, changes):
    """An option changes its own setting and no other. The row's label names the parts that are left out."""
    found, other = runs("--method", "pecan,bm25", *options).values()
    assert found.settings == replace(BASE, **changes) and other.label == "BM25 Top-5"
    assert found.label == "PECAN" + "".join(f", w/o {name}" for name in ("attention", "similarity", "graph")
                                            if name in options) + (", 4 nodes" if "--nodes" in options else "")


def test_the_window_of_the_whole_document(tmp_path):
    """The window is the model's length, at most 100,000 tokens, not that of other methods. --window overrides it."""
    config = json.loads((Path(__file__).parents[1] / "llama-3.1-8b" / "config.json").read_text())
    for longest, option, windows in ((131072, [], [8192, 8192, 100_000]), (131072, ["--window", 4096], [4096] * 3),
                                     (2048, [], [2048] * 3)):
        (tmp_path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": longest}))
        found = settings_of("--model", tmp_path, *option)
        assert [settings.window for settings in found.values()] == windows


def test_table_3_takes_one_part_away_a_row():
    """Each row has its own name. Without progress control, the number of nodes is the paper's on its data sets, and
    PECAN's mean on others."""
    found = runs("--table", 3)
    assert {name: run.settings for name, run in found.items()} == {
        "pecan": BASE, "pecan-without-attention": replace(BASE, attention=False), "pecan-without-progress": BASE,
        "pecan-without-graph": replace(BASE, tree=True), "pecan-without-similarity": replace(BASE, similarity=False)}
    for mean, n in ((20.7, 21), (21.3, 21)):
        settled = plan.settle(found["pecan-without-progress"], {"nodes": mean})
        assert settled.settings == replace(BASE, fixed_nodes=n)
        assert settled.file.name == f"pecan-without-progress-{n}.jsonl"

    hotpotqa = runs("--table", 3, dataset="HotpotQA")["pecan-without-progress"]
    assert plan.settle(hotpotqa, {"nodes": 20.7}) is hotpotqa and hotpotqa.settings.fixed_nodes == 17


def test_top_x_is_the_papers(tmp_path):
    """On other data X follows from PECAN's FLOPs. The paper's FLOPs give the paper's X; of RAPTOR's nodes, nearly.

    (The tokenizer makes the instruction 72 tokens. The chunks' X would be the same if it made 150.)
    """
    shutil.copy(Path(__file__).parents[1] / "llama-3.1-8b" / "config.json", tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, tmp_path)
    command_line = "--method", "pecan,dragon,bm25-x,raptor-ct-x", "--model", tmp_path
    for dataset, known in paper.TOP_X.items():
        found = runs(*command_line, dataset=dataset)
        assert [run.top_k for run in found.values()] == [None, 5, *known]
        assert [run.top_k for run in runs(*command_line, "--top", 3, dataset=dataset).values()] == [None, 5, 3, 3]
        pecan = {"flops": paper.TABLE1["PECAN"][dataset].tflops * 1e12}
        mine = runs(*command_line)
        for name, published in zip(("bm25-x", "raptor-ct-x"), known):
            settled = plan.settle(mine[name], pecan)
            assert settled.top_k == pytest.approx(published, rel=.1 if name == "raptor-ct-x" else 0)
            assert settled.file.name == f"{name}-{settled.top_k}.jsonl"
    assert runs(*command_line, "--top", 3)["bm25-x"].top_k == 3
    assert plan.settle(mine["bm25-x"], {"flops": 1}).top_k == 1
    with pytest.raises(InputError, match="run PECAN too .--method pecan,bm25-x., or say how much with --top"):
        plan.settle(mine["bm25-x"], None)


def test_the_pairs_of_table_2(tmp_path, folder):
    """Table 2 pairs the model with its own graph, each searcher with its own and with the model's. The searcher's own
    settings hold, in a window for both models. A label has no @revision."""
    large = Path(__file__).parents[1] / "llama-3.1-8b"
    found = runs("--table", 2, "--searcher", folder, "--searcher", large).values()
    assert [(run.checkpoints.model, run.checkpoints.builder, run.settings.chunk, run.settings.window)
            for run in found] == [(str(TINY), None, 24, 380), (str(folder), None, 300, 2048),
                                  (str(folder), str(TINY), 300, 512), (str(large), None, 300, 8192),
                                  (str(large), str(TINY), 300, 512)]
    assert [run.label for run in found] == ["tiny + tiny", *(
        f"{builder} + {name}" for name in (folder.name, large.name) for builder in (name, "tiny"))]
    (tmp_path / "x@1").mkdir()
    assert [row.label for row in rows_of("2", "", "m/a@refs/pr/1", [str(tmp_path / "x@1")])] == [
        "a + a", "x@1 + x@1", "a + x@1"]


def test_a_run_has_its_own_models(folder, monkeypatch):
    """Models are loaded again if a checkpoint, the builder or the dtype of the next run differs, and not otherwise."""
    loaded = []
    monkeypatch.setattr(runner, "Models", lambda checkpoints: loaded.append(checkpoints) or SimpleNamespace(
        checkpoints=checkpoints))
    row, searched, shared = runs("--table", 2, "--searcher", folder).values()
    narrow = runs("--method", "pecan", "--dtype", "bfloat16")["pecan"]
    both = Runner(Team())
    for run in (row, row, searched, shared, narrow):
        assert both.load(run).checkpoints == run.checkpoints
    assert loaded == [run.checkpoints for run in (row, searched, shared, narrow)]


def test_the_window_is_no_longer_than_the_builder_was_made_for(folder):
    """The builder limits PECAN's window alone, and only if it was made for less than the model."""
    found = settings_of("--method", "pecan,whole", "--model", folder, "--builder", TINY, "--chunk", 32)
    assert read_config(folder).max_length == 2048
    assert (found["pecan"].window, found["whole"].window) == (512, 2048)
    with pytest.raises(InputError, match="window 600 is too large: the model was made for 512"):
        runs("--method", "pecan", "--model", TINY, "--builder", folder, "--window", 600)


# --- from the run to the method -------------------------------------------------------------------------------------

@pytest.fixture
def made(monkeypatch, tmp_path):
    """A function: run -> its method, and its setup on disk."""
    methods = []
    monkeypatch.setattr(runner, "answer_all", lambda method, *_, **__: methods.append(method) or [(0, "recorded")])

    def make(run):
        run = replace(run, file=tmp_path / "d" / run.file.name, graphs=tmp_path,
                      dataset=SimpleNamespace(questions=[], documents=[]))
        with pytest.raises(InputError, match="recorded"):
            Runner(Team()).do(run)
        return methods[-1], json.loads(run.file.with_suffix(".setup.json").read_text())
    return make


def write_bert(folder: Path, seed: int) -> Path:
    """A random sentence encoder."""
    torch.manual_seed(seed)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "tom"]
    BertModel(BertConfig(vocab_size=len(words), hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                         intermediate_size=16, max_position_embeddings=64)).save_pretrained(folder)
    tokenizers.BertWordPieceTokenizer({word: n for n, word in enumerate(words)}).save(str(folder / "tokenizer.json"))
    return folder


def test_each_method_is_the_one_that_its_name_says(tmp_path, folder, made):
    """Each method has its class, its top_k and the command line's checkpoints. Its setup on disk names them."""
    berts = [write_bert(tmp_path / name, seed) for seed, name in enumerate(("sbert", "questions", "passages"))]
    encoder, *dragon = [Bert(bert).fingerprint for bert in berts]
    arguments = ["--encoder", berts[0], "--dragon", *berts[1:], "--builder", folder, "--scorer", folder, "--top", 2,
                 "--dtype", "float64", "--chunk", 32]
    names = "pecan", "bm25", "sbert", "dragon", "memwalker", "longllmlingua", "bm25-x", "sbert-x", "dragon-x", "whole"
    found = {name: (*made(run), run) for name, run in runs(*arguments, "--method", ",".join(names)).items()}
    method = {name: made for name, (made, _, _) in found.items()}
    assert [type(method[name]).__name__ for name in names] == [
        "Pecan", "BM25", "Dense", "Dense", "MeMWalker", "LongLLMLingua", "BM25", "Dense", "Dense", "Whole"]
    assert [method[name].top_k for name in names if hasattr(method[name], "top_k")] == [5, 5, 5, 2, 2, 2]
    assert all(made.settings == run.settings and made.model.folder == TINY and made.model.dtype == torch.float64
               for made, _, run in found.values())

    sbert = method["sbert"]
    assert method["pecan"].encoder.fingerprint == sbert.question_encoder.fingerprint == encoder
    assert sbert.chunk_encoder is sbert.question_encoder
    assert [method["dragon"].question_encoder.fingerprint, method["dragon"].chunk_encoder.fingerprint] == dragon
    for llama in (method["pecan"].builder, method["longllmlingua"].scorer):
        assert (llama.folder, llama.dtype) == (folder, torch.float64)

    model, other = sbert.model.fingerprint, method["pecan"].builder.fingerprint
    assert found["pecan"][1] == {"model": model, "encoder": encoder, "builder": other, "top": None} | \
        found["pecan"][2].settings.search_settings() | {
            "construction": found["pecan"][2].construction.construction_settings()}
    reader = found["bm25"][2].settings.reader_settings()
    assert found["bm25"][1] == {"model": model, "top": 5} | reader
    assert found["longllmlingua"][1] == {"model": model, "scorer": other, "top": None} | reader
    assert found["dragon-x"][1] == dict(zip(("model", "question_tower", "passage_tower"), (model, *dragon))) | {
        "top": 2} | reader


def test_each_system_is_the_one_that_its_name_says(tmp_path, made):
    bert = write_bert(tmp_path / "bert", 0)
    found = [made(replace(run, settings=replace(run.settings, window=4000)))[0]
             for run in runs("--table", "systems", "--encoder", bert).values()]
    assert [type(method).__name__ for method in found] == ["Pecan", "Pecan", "GraphReader", "MKRAG", "JERR"]
    assert all(found[n].encoder.fingerprint == Bert(bert).fingerprint for n in (0, 1, 3))


def test_pecan_load_takes_an_encoder_and_settings(tmp_path):
    """Without an encoder it takes the model's own embeddings."""
    assert pecan.Pecan.load(TINY, confidence=.7, chunk=None).settings == replace(BASE, confidence=.7)
    bert = write_bert(tmp_path / "bert", 0)
    for encoder, wanted in ((bert, Bert(bert)), (None, TokenMean(pecan.Llama.load(TINY)))):
        assert pecan.Pecan.load(TINY, encoder).encoder.fingerprint == wanted.fingerprint


def test_a_setup_keeps_readers_apart():
    assert set(Settings().reader_settings()) == {"chunk", "window", "summary_share", "answer_tokens"}
    assert set(Settings().search_settings()) == set(vars(Settings())) - {"batch"}


def test_raptors_rows_differ_by_how_they_retrieve(made):
    pytest.importorskip("umap")
    rows = [made(run)[0] for run in runs("--method", "raptor-tt,raptor-ct,raptor-ct-x", "--top", 4).values()]
    assert [(type(row).__name__, row.collapsed, row.top_k) for row in rows] == [
        ("Raptor", False, 5), ("Raptor", True, 5), ("Raptor", True, 4)]


def test_each_process_takes_its_own_gpu(monkeypatch):
    """A machine's processes share its GPUs if these are fewer; a GPU that is named is taken. Models are loaded on the
    team's device, not on the option's."""
    def devices(gpus, wanted):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        for n in range(4):                                    # of the second machine
            team = Team()
            team.size, team.rank, team.local_rank = 8, n + 3, n
            yield team.device(wanted)
    assert list(devices(4, "auto")) == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    assert list(devices(2, "cuda")) == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    assert list(devices(4, "cpu")) == ["cpu"] * 4 and list(devices(0, "auto")) == ["auto"] * 4
    assert list(devices(4, "cuda:2")) == ["cuda:2"] * 4

    monkeypatch.setattr(runner, "Models", lambda checkpoints: checkpoints)
    monkeypatch.setattr(Team, "device", lambda self, wanted: f"own {wanted}")
    assert Runner(Team()).load(runs("--method", "pecan")["pecan"]).device == "own cpu"
