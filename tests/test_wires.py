"""The wires between the parts, from the command line to the numbers in the results.

Two documents that could be confused are run from the command line. Every number of their searches is computed again
from texts, graph files and weights. Then one test for each wire: what an option, a data set or a table's row asks for
is what the run was made with.
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
from oracle import TINY, TOLERANCE, ids_and_spans, mean_attention, write_checkpoint
from safetensors.torch import load_file
from support.heads import NoHeads, read_heads
from transformers import BertConfig, BertModel

import eval as command
import pecan
from core.files import InputError
from core.settings import Settings
from data import EMBEDDED
from evaluation import metrics, runner, runs
from evaluation.runner import Runner, Team
from llama import Llama, length_of
from pecan import node_line
from support import memory, options
from support.graph import node_vectors
from support.sbert import Bert
from support.token_mean import TokenMean
from tiny.facts import posts_in

WORLD = [json.loads(line) for line in EMBEDDED.read_text().splitlines()]
DEVICE = ["--device", "cpu"]


def run(*arguments):
    """eval.py in this process; everything must be answered."""
    assert command.main([*map(str, arguments), *DEVICE]) == 0


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: Path, rows: list[dict]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def write_bert(folder: Path, seed: int) -> Path:
    """A random sentence encoder."""
    torch.manual_seed(seed)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "tom"]
    BertModel(BertConfig(vocab_size=len(words), hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                         intermediate_size=16, max_position_embeddings=64)).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return folder


# --- two documents, computed again ----------------------------------------------------------------------------------

QUESTIONS = (3, 1)                # of each document: a mean over questions is no mean over documents


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The output folder of two documents with as many nodes, level by level, under a hard threshold.

    The second tells the first one's story of other people: each has the name of the next.
    """
    folder = tmp_path_factory.mktemp("two")
    names = list(posts_in(WORLD[3]["passages"]).values())
    next_name = dict(zip(names, names[1:] + names[:1]))
    others = [re.sub(r"\w+", lambda word: next_name.get(word[0], word[0]), text) for text in WORLD[3]["passages"]]
    others = [text.replace(" Birds sang.", "") for text in others]         # so that it costs less to build
    question = WORLD[3]["questions"][2] | {"id": "other-0"}
    rows = [WORLD[3] | {"questions": WORLD[3]["questions"][1:4]},
            {"id": "other", "passages": others, "questions": [question]}]
    write_lines(folder / "mine.jsonl", rows)
    run("--dataset", folder / "mine.jsonl", "--method", "pecan", "--confidence", .999, "--output", folder / "r")
    return folder


@pytest.fixture(scope="module")
def answers(two):
    """The predictions of this run, each with its document and the content of its graph's file."""
    documents = {row["id"]: row for row in lines_of(two / "mine.jsonl")}
    rows = lines_of(two / "r" / "mine" / "pecan.jsonl")
    assert [row["document"] for row in rows] == ["test-3"] * QUESTIONS[0] + ["other"] * QUESTIONS[1]
    return [(row, documents[row["document"]], json.loads((two / "r" / "graphs" / f"{row['graph']}.json").read_text()))
            for row in rows]


@pytest.fixture(scope="module")
def cosine():
    """The similarity of two texts, by numpy, from the files of the embedded model.

    The cosine of two means of embeddings that are centred and whitened over the vocabulary is a product with the
    inverse covariance.
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
    """Both graphs have as many nodes, so that one could be taken for the other; each holds its document's words."""
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
    """Similarity, z, r, score and runner-up of each step, from the texts, the graph's file and Hugging Face's
    attention."""
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
                best, second = [*sorted(left, key=lambda i: -final[i]), None][:2]
                assert (step["node"], step["runner_up"]) == (best, second)
                assert step["similarity"] == pytest.approx(c[best], abs=TOLERANCE)
                assert (step["z"], step["score"]) == pytest.approx((z[best], final[best]), rel=TOLERANCE, abs=1e-6)
                assert step["runner_up_score"] == pytest.approx(final[second], rel=TOLERANCE, abs=1e-6)

            node = step["node"]
            mean = a[np.ix_(list(spans[node]), list(spans["q"]))].mean()
            r[node] = (place + 2) * mean
            assert step["r"] == pytest.approx(r[node], rel=TOLERANCE)
        assert len(visited) > 15, "more than the top level must be read"


def test_what_is_kept_on_disk_gives_the_same_answers(two):
    """Graphs and node vectors that were kept: the same predictions, and no file is written anew."""
    graphs = two / "r" / "graphs"
    kept = {path: path.stat().st_mtime_ns for path in graphs.iterdir()}
    run("--dataset", two / "mine.jsonl", "--method", "pecan", "--confidence", .999, "--output", two / "again",
        "--graphs", graphs)
    assert {path: path.stat().st_mtime_ns for path in graphs.iterdir()} == kept
    name = Path("mine") / "pecan.jsonl"
    assert (two / "again" / name).read_bytes() == (two / "r" / name).read_bytes()


def test_a_line_of_predictions(answers):
    """Each line repeats its own question, and its scores are those of its own answer."""
    for row, document, graph in answers:
        question, = (q for q in document["questions"] if q["id"] == row["id"])
        assert (row["question"], row["answers"]) == (question["question"], question["answers"])
        assert row["f1"] == metrics.f1(row["prediction"], question["answers"])
        assert row["rouge_l"] == metrics.rouge_l(row["prediction"], question["answers"])
        assert row["nodes"] == len(row["trace"]) > 0 and row["flops"] > row["trace"][-1]["flops"]
        assert row["construction_flops"] > graph["flops"] > 0, "the embedding of the nodes counts too"


def test_means_of_a_run(two, answers):
    """FLOPs and nodes are means over the questions, construction FLOPs a mean over the documents."""
    rows = [row for row, _, _ in answers]
    found = json.loads((two / "r" / "results.json").read_text())["data"]["mine"]["runs"]["pecan"]
    for name in ("flops", "nodes", "tokens"):
        assert found[name] == pytest.approx(np.mean([row[name] for row in rows]))
    assert found["construction_flops"] == (rows[0]["construction_flops"] + rows[-1]["construction_flops"]) / 2
    assert rows[0]["construction_flops"] != rows[-1]["construction_flops"]


# --- vectors that are kept ------------------------------------------------------------------------------------------

def test_kept_vectors_are_those_of_their_encoder_and_texts(tmp_path, tiny):
    """Two models of one shape, two lists of as many texts, one graph's path: each has its own vectors."""
    weights = {name: tensor.roll(1, 0) for name, tensor in tiny.weights.items()}
    other = SimpleNamespace(weights=weights, tokenizer=tiny.tokenizer, fingerprint="another", folder=None)
    for model in (tiny, other):
        for texts in (["Mara has a goat."], ["Otto is Lima's pilot."], ["Mara has a goat."]):
            wanted = TokenMean(model).encode(texts)
            for _ in range(2):
                vectors, flops = node_vectors(tmp_path / "g.json", TokenMean(model), texts)
                assert torch.equal(vectors, wanted) and flops == 2 * vectors.shape[1] ** 2


# --- from an option, a data set or a row to the run -----------------------------------------------------------------

BASE = Settings(chunk=24, window=380, summary_share=0.3437, answer_tokens=4)        # tiny/pecan.json over the paper's


@pytest.fixture
def made(monkeypatch):
    """What runs were made with, in order: (name of the run, the method)."""
    methods = []
    make = runs.make

    def recorder(row, *rest):
        methods.append((row.name, make(row, *rest)))
        return methods[-1][1]

    monkeypatch.setattr(runner, "make", recorder)
    return methods


@pytest.fixture
def short(tmp_path):
    """A document of three chunks with one question."""
    row = WORLD[0] | {"passages": WORLD[0]["passages"][:3], "questions": WORLD[0]["questions"][:1]}
    return write_lines(tmp_path / "short.jsonl", [row])


def of_longbench(folder: Path, task: str, passages: int = 3) -> Path:
    """One question about a document in LongBench's layout, so that the data set has its name in the paper."""
    context = "".join(f"Passage {n}:\n{text}\n" for n, text in enumerate(WORLD[0]["passages"][:passages], 1))
    question = WORLD[0]["questions"][0]
    return write_lines(folder / f"{task}.jsonl", [{"_id": task, "input": question["question"], "context": context,
                                                   "answers": question["answers"], "dataset": task}])


def test_a_data_sets_own_settings_reach_the_run(tmp_path, made):
    """t_p (Appendix E) and the length of an answer (LongBench); the checkpoint's answers of 4 tokens give way."""
    of_task = {"narrativeqa": (.5, 128), "qasper": (.98, 128), "hotpotqa": (.5, 32), "musique": (.55, 32)}
    run("--dataset", *(of_longbench(tmp_path, task) for task in of_task), "--method", "pecan,whole",
        "--output", tmp_path / "r")
    assert [name for name, _ in made] == ["pecan", "whole"] * 4
    wanted = [replace(BASE, confidence=t_p, answer_tokens=tokens) for t_p, tokens in of_task.values()]
    assert [method.settings for name, method in made if name == "pecan"] == wanted
    whole = [replace(settings, window=512) for settings in wanted]                    # what the model was made for
    assert [method.settings for name, method in made if name == "whole"] == whole


def test_an_option_beats_the_data_set(tmp_path, made):
    run("--dataset", of_longbench(tmp_path, "qasper"), "--method", "pecan", "--confidence", .7,
        "--output", tmp_path / "r")
    assert [method.settings for _, method in made] == [replace(BASE, confidence=.7, answer_tokens=128)]


@pytest.mark.parametrize("options, changes", [
    (["--chunk", 30, "--window", 500], {"chunk": 30, "window": 500}),
    (["--confidence", .7, "--patience", 2, "--batch", 3], {"confidence": .7, "patience": 2, "batch": 3}),
    (["--nodes", 4, "--without", "attention"], {"fixed_nodes": 4, "attention": False}),
    (["--without", "similarity", "--without", "graph"], {"similarity": False, "tree": True})])
def test_an_option_reaches_the_run_and_its_setup(tmp_path, short, made, options, changes):
    """It changes its own setting and no other, and the setup on disk is that of the run."""
    run("--dataset", short, "--method", "pecan", "--output", tmp_path / "r", *options)
    (_, method), = made
    assert method.settings == replace(BASE, **changes)
    setup = json.loads((tmp_path / "r" / "short" / "pecan.setup.json").read_text())
    assert setup.items() >= method.settings.of_pecan().items()
    assert (setup["model"], setup["encoder"]) == (method.model.fingerprint, method.encoder.fingerprint)


@pytest.mark.slow
def test_table_3_takes_one_part_away_a_row(tmp_path, made):
    """Each row under its own name; the paper's number of nodes on its data set, PECAN's mean on another."""
    row = WORLD[0] | {"passages": WORLD[0]["passages"][:30], "questions": WORLD[0]["questions"][:1]}
    mine = write_lines(tmp_path / "mine.jsonl", [row])
    run("--dataset", of_longbench(tmp_path, "hotpotqa", 30), mine, "--table", "3", "--output", tmp_path / "r")
    hotpotqa = replace(BASE, answer_tokens=32)
    mean = np.mean([row["nodes"] for row in lines_of(tmp_path / "r" / "mine" / "pecan.jsonl")])
    edges, relevance = read_heads(TINY / "heads.json")
    for base, number, rows in ((hotpotqa, 17, made[:6]), (BASE, round(mean), made[6:])):
        assert {name: method.settings for name, method in rows} == {
            "pecan": base,
            "pecan-without-attention": replace(base, attention=False),
            "pecan-without-progress": replace(base, fixed_nodes=number),
            "pecan-without-graph": replace(base, tree=True),
            "pecan-without-similarity": replace(base, similarity=False),
            "pecan-heads": replace(base, edge_heads=edges, relevance_heads=relevance)}
    read, = lines_of(tmp_path / "r" / "HotpotQA" / "pecan-without-progress-17.jsonl")
    assert read["nodes"] == 17 and read["end"] == "nodes"


def test_a_row_counts_the_questions_of_its_call(tmp_path, made):
    """Fewer documents than before: only theirs. More: a method that has not answered them all has no row."""
    rows = [row | {"questions": row["questions"][:1]} for row in WORLD[:3]]
    mine = write_lines(tmp_path / "mine.jsonl", rows)

    def results(*options):
        run("--dataset", mine, "--output", tmp_path / "r", *options)
        found = json.loads((tmp_path / "r" / "results.json").read_text())["data"]["mine"]["runs"]
        return {name: summary["n"] for name, summary in found.items()}

    assert results("--limit", 2, "--method", "bm25") == {"bm25": 2}
    assert results("--limit", 1, "--method", "bm25") == {"bm25": 1}
    assert results("--limit", 1, "--method", "whole") == {"bm25": 1, "whole": 1}
    assert results("--limit", 3, "--method", "whole") == {"whole": 3}


def test_a_row_says_what_was_left_out(tmp_path, short):
    run("--dataset", short, "--method", "pecan", "--output", tmp_path / "r", "--without", "graph", "--nodes", 4)
    found = json.loads((tmp_path / "r" / "results.json").read_text())["data"]["short"]["runs"]["pecan"]
    assert found["label"] == "PECAN, w/o graph, 4 nodes"


@pytest.mark.parametrize("changes", [{"question": "Who else?"}, {"answers": ["Tom"]}])
def test_an_answer_belongs_to_its_question_and_gold_answers(tmp_path, short, changes):
    """The same id and the same document, but another question, or another answer that is right."""
    run("--dataset", short, "--method", "whole", "--output", tmp_path / "r")
    row, = lines_of(short)
    write_lines(short, [row | {"questions": [row["questions"][0] | changes]}])
    with pytest.raises(InputError, match="was answered for another text"):
        run("--dataset", short, "--method", "whole", "--output", tmp_path / "r")


@pytest.mark.parametrize("option", [["--chunk", 30], ["--window", 500]])
def test_a_setup_keeps_readers_apart(tmp_path, short, option):
    run("--dataset", short, "--method", "bm25", "--output", tmp_path / "r")
    with pytest.raises(InputError, match=f"answers of another {option[0][2:]}"):
        run("--dataset", short, "--method", "bm25", "--output", tmp_path / "r", *option)
    assert set(Settings().of_reader()) == {"chunk", "window", "summary_share", "answer_tokens"}
    assert set(Settings().of_pecan()) == set(vars(Settings())) - {"batch"}


def test_the_patience_of_a_row_of_figure_4(tmp_path, short, made):
    run("--dataset", short, "--table", "patience", "--output", tmp_path / "r")
    assert [method.settings for _, method in made] == [replace(BASE, patience=n) for n in range(1, 9)]


def test_table_2_searches_the_graph_of_the_other_model(tmp_path, tiny, folder, model, short, made):
    """First row: the model and its graph; second: the searcher and its own; third: the searcher and the model's."""
    searcher = shutil.copytree(folder, tmp_path / "searcher")
    shutil.copy(TINY / "pecan.json", searcher)               # the same construction for both
    run("--dataset", short, "--table", "2", "--searcher", searcher, "--output", tmp_path / "r")
    pairs = [(method.builder.fingerprint, method.model.fingerprint) for _, method in made]
    assert pairs == [(tiny.fingerprint, tiny.fingerprint), (model.fingerprint, model.fingerprint),
                     (tiny.fingerprint, model.fingerprint)]
    graphs = [lines_of(tmp_path / "r" / "short" / f"{name}.jsonl")[0]["graph"] for name, _ in made]
    assert graphs[0] == graphs[2] != graphs[1]


def test_a_builder_in_table_2_builds_for_the_first_row_alone(tmp_path, tiny, folder, model, short, made):
    other = write_checkpoint(tmp_path / "other", seed=1)
    run("--dataset", short, "--table", "2", "--searcher", folder, "--builder", other, "--output", tmp_path / "r",
        "--chunk", 32, "--window", 512)
    first, *rest = [(method.builder.fingerprint, method.model.fingerprint) for _, method in made]
    assert first == (Llama.load(other, "cpu").fingerprint, tiny.fingerprint)
    assert rest == [(model.fingerprint, model.fingerprint), (tiny.fingerprint, model.fingerprint)]


def test_the_builder_of_the_command_line(tmp_path, tiny, folder, model, short, made):
    """It builds PECAN's graphs; and the window is no longer than the builder was made for, for PECAN alone."""
    run("--dataset", short, "--method", "pecan,whole", "--model", folder, "--builder", TINY, "--chunk", 32,
        "--output", tmp_path / "r")
    (_, method), (_, whole) = made
    assert (method.builder.fingerprint, method.model.fingerprint) == (tiny.fingerprint, model.fingerprint)
    assert tiny.config.max_length == 512 and method.settings.window == 512
    assert model.config.max_length == 2048 and whole.settings.window == 2048


def test_each_method_is_the_one_that_its_name_says(tmp_path, made, short):
    """Its class, how much it retrieves, and by which encoder; the scorer is the checkpoint that --scorer names."""
    scorer = write_checkpoint(tmp_path / "scorer", max_position_embeddings=1024)
    names = ["bm25", "sbert", "dragon", "memwalker", "longllmlingua", "bm25-x", "sbert-x", "dragon-x", "whole"]
    run("--dataset", short, "--method", ",".join(names), "--top", 2, "--scorer", scorer, "--output", tmp_path / "r")
    of = dict(made)
    assert [type(of[name]).__name__ for name in names] == [
        "BM25", "Dense", "Dense", "MeMWalker", "LongLLMLingua", "BM25", "Dense", "Dense", "Whole"]
    retrieved = [of[name].top_k for name in ("bm25", "sbert", "dragon", "bm25-x", "sbert-x", "dragon-x")]
    assert retrieved == [5, 5, 5, 2, 2, 2]
    assert of["sbert"].question_encoder.unit and of["sbert"].chunk_encoder.unit
    assert not of["dragon"].question_encoder.unit and not of["dragon"].chunk_encoder.unit
    assert of["longllmlingua"].scorer.config.max_length == 1024
    assert {name: method.settings for name, method in made} == dict.fromkeys(of, BASE) | {
        "whole": replace(BASE, window=512)}


def test_dragons_encoders_are_not_exchanged(tiny):
    models = SimpleNamespace(model=tiny, towers=("of questions", "of passages"))
    dragon = runs.make(runs.METHODS["dragon"], models, BASE, 4)
    assert (dragon.question_encoder, dragon.chunk_encoder) == models.towers


def test_checkpoints_of_the_command_line(tmp_path, folder):
    """--encoder, --dragon, --builder and --scorer name what is loaded; --dtype is that of every Llama."""
    berts = [write_bert(tmp_path / name, seed) for seed, name in enumerate(("sbert", "questions", "passages"))]
    arguments = ["--encoder", berts[0], "--dragon", *berts[1:], "--builder", folder, "--scorer", folder,
                 "--dtype", "float64", *DEVICE]
    models = runs.Models(command.parse(list(map(str, arguments))))
    found = [models.encoder.fingerprint, *(tower.fingerprint for tower in models.towers)]
    assert found == [Bert(bert).fingerprint for bert in berts] and len(set(found)) == 3
    for llama, place in ((models.model, TINY), (models.builder, folder), (models.scorer, folder)):
        assert (llama.folder, llama.dtype) == (place, torch.float64)


def test_raptors_rows_differ_by_how_they_retrieve(tiny):
    models = SimpleNamespace(model=tiny, encoder=TokenMean(tiny))
    rows = {name: runs.make(runs.METHODS[name], models, BASE, 4) for name in ("raptor-tt", "raptor-ct", "raptor-ct-x")}
    assert [(type(row).__name__, row.collapsed, row.top_k) for row in rows.values()] == [
        ("Raptor", False, 4), ("Raptor", True, 4), ("Raptor", True, 4)]
    assert (runs.METHODS["raptor-tt"].top_k, runs.METHODS["raptor-ct"].top_k) == (5, 5)


# --- devices --------------------------------------------------------------------------------------------------------

@pytest.fixture
def processes_of_four(monkeypatch):
    """A function: the teams of four processes on a machine with this many GPUs, which PyTorch is made to report."""
    def teams(gpus):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        for rank in range(4):
            monkeypatch.setenv("LOCAL_RANK", str(rank))
            team = Team()
            team.rank, team.size = rank, 4
            yield team
    return teams


def test_each_process_takes_its_own_gpu(processes_of_four):
    assert [team.device("auto") for team in processes_of_four(4)] == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    assert [team.device("cuda") for team in processes_of_four(2)] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    assert [team.device("cpu") for team in processes_of_four(4)] == ["cpu"] * 4
    assert [team.device("auto") for team in processes_of_four(0)] == ["auto"] * 4


def test_a_refusal_of_one_process_is_one_of_all(monkeypatch):
    """No process goes on to another run while the others wait; a process's own error keeps its kind."""
    team = Team()
    assert team.together(lambda: 3) == 3

    def refuse():
        raise NoHeads("here")

    with pytest.raises(NoHeads, match="here"):
        team.together(refuse)
    monkeypatch.setattr(team, "gather", lambda mine: [mine, "out of memory there"])
    with pytest.raises(InputError, match="out of memory there"):
        team.together(lambda: 3)



def test_a_run_is_on_the_device_of_its_process(tmp_path, monkeypatch):
    """Models are loaded where the team says, not where the option does."""
    devices = []
    models = runner.Models

    def recorder(args):
        devices.append(args.device)
        return models(args)

    monkeypatch.setattr(runner, "Models", recorder)
    monkeypatch.setattr(Team, "device", lambda self, wanted: {"auto": "cpu"}[wanted])
    Runner(command.parse(["--output", str(tmp_path / "r")]), Team()).models_of(runs.PECAN)
    assert devices == ["cpu"]


# --- the batch ------------------------------------------------------------------------------------------------------

ROW = 4 * (6 * 2 * 2 * 32 * 380 + (3 * 256 + 2 * 128 + 2 * 4 * 32 + 2 * 32) * 250)      # a full window of the embedded


@pytest.mark.parametrize("windows, batch", [(0, 1), (1.9, 1), (4.1, 2), (7.9, 2), (8.1, 4), (17, 8), (1e9, 8)])
def test_the_batch_is_what_fits_into_half_of_the_free_memory(tmp_path, short, made, monkeypatch, windows, batch):
    monkeypatch.setattr(memory, "free_memory", lambda device: int(windows * ROW))
    run("--dataset", short, "--method", "pecan", "--output", tmp_path / "r")
    assert [method.settings for _, method in made] == [replace(BASE, batch=batch)]


def test_how_many_windows_fit(tiny, model, monkeypatch):
    """The larger model counts, a GPU has 16, processes share a machine, and what is not known is 8."""
    assert memory.bytes_of_pass(tiny.config, 250, 380, 4) == ROW
    on_gpu = SimpleNamespace(config=tiny.config, dtype=torch.float32, device=torch.device("cuda"))
    wide = SimpleNamespace(config=replace(tiny.config, layers=60), dtype=torch.float32, device=tiny.device)
    monkeypatch.setattr(memory, "free_memory", lambda device: 33 * ROW)
    assert memory.fitting_batch(BASE, [on_gpu], processes=9) == 16
    assert memory.fitting_batch(BASE, [tiny], processes=3) == memory.fitting_batch(BASE, [tiny], weights=20 * ROW) == 4
    assert memory.fitting_batch(BASE, [tiny, wide]) == memory.fitting_batch(BASE, [wide, tiny]) < 4
    monkeypatch.setattr(memory, "free_memory", lambda device: None)
    assert memory.fitting_batch(BASE, [on_gpu]) == 8


def test_the_free_memory_of_a_machine(tmp_path, monkeypatch):
    assert 1 << 20 < memory.free_memory(torch.device("cpu")) < 1 << 50
    monkeypatch.setattr(memory.Path, "read_text", lambda self: "MemTotal: 9 kB\nMemAvailable:       5 kB\n")
    assert memory.free_memory(torch.device("cpu")) == 5 * 1024


def test_a_run_keeps_the_batch_that_it_began_with(tmp_path, short, made, monkeypatch):
    """However much is free later; --batch wins over both. What is kept and damaged counts as not kept."""
    output = "--dataset", short, "--method", "pecan", "--output", tmp_path / "r"
    setup = tmp_path / "r" / "short" / "pecan.setup.json"

    def batch(windows, *options):
        monkeypatch.setattr(memory, "free_memory", lambda device: windows * ROW)
        run(*output, *options)
        assert json.loads(setup.read_text())["batch"] == made[-1][1].settings.batch
        return made[-1][1].settings.batch

    assert [batch(5), batch(100), batch(100, "--batch", 3), batch(5)] == [2, 2, 3, 3]
    setup.write_text(setup.read_text().replace('"batch": 3', '"batch": 0'))
    assert batch(100) == 8


def test_the_dry_run_says_the_batch(tiny, monkeypatch, capsys):
    """Next to the weights, which a dry run does not load."""
    weights = sum(weight.nbytes for weight in tiny.weights.values())
    monkeypatch.setattr(memory, "free_memory", lambda device: weights + 7 * ROW)
    for given, batch in (([], 2), (["--batch", "3"], 3)):
        run("--dry-run", "--limit", 1, "--json", *given)
        assert json.loads(capsys.readouterr().out)["embedded"]["at once"] == batch
        run("--dry-run", "--limit", 1, *given)
        shown = capsys.readouterr().out
        assert shown.splitlines()[1].split()[-3] == str(batch)
        assert ("half of the memory that is free" in shown) == (not given)


def test_the_dry_run_counts_another_builder(tiny, tmp_path, capsys):
    """Construction, weights and the window of a batch are the builder's, searches the model's. No weights are read."""
    other = tmp_path / "other"
    shutil.copytree(tiny.folder, other, ignore=shutil.ignore_patterns("*.safetensors", "*.py", "__pycache__"))
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 30}))

    def numbers(*options):
        run("--dry-run", "--limit", 1, "--json", "--batch", 2, *options)
        return json.loads(capsys.readouterr().out)["embedded"]
    both, small, large = numbers("--builder", other), numbers(), numbers("--model", other)
    assert both["construction"] == large["construction"] > 4 * small["construction"]
    assert both["search"] == small["search"] and both["whole"] == small["whole"]
    weights = sum(weight.nbytes for weight in tiny.weights.values())
    assert both["memory"] == weights + large["memory"]

    # Heads for E are the builder's, those for r the model's.
    heads = tmp_path / "heads.json"
    heads.write_text('{"edges": ["29-0"], "relevance": ["5-0"]}')
    assert numbers("--builder", other, "--method", "pecan-heads", "--heads", heads) == both
    heads.write_text('{"edges": ["5-0"], "relevance": ["29-0"]}')
    with pytest.raises(InputError, match="head 29-0 is not there: the checkpoint has 6 layers"):
        numbers("--builder", other, "--method", "pecan-heads", "--heads", heads)

    (other / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 300}))
    with pytest.raises(InputError, match="window 380 is too large: the model was made for 300"):
        run("--dry-run", "--limit", 1, "--builder", other, "--window", 380)


def test_pecan_py_sizes_its_batch(tiny, monkeypatch):
    args = options.parse_questions(["d", "q"])
    monkeypatch.setattr(memory, "free_memory", lambda device: 9 * ROW)
    assert options.settings_of(args, tiny, None) == replace(BASE, answer_tokens=4, batch=4)
    args.batch = 7
    assert options.settings_of(args, tiny, None).batch == 7
