"""The wires: where each option of pecan.py and eval.py must arrive, and which settings a run has.

Recorders stand where options end: at the functions that choose a device, read weights, summarise, search and answer.
Nothing is computed, because all weights are on PyTorch's meta device, which holds no data.
"""
import inspect
import json
import shutil
import sys
from argparse import Namespace
from collections import defaultdict
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from oracle import TINY, write_checkpoint
from transformers import BertConfig, BertModel

import eval as command
import llama
import pecan
from core.files import InputError
from core.settings import Settings
from data import Answer
from encoders import sbert
from encoders.token_mean import TokenMean
from evaluation import methods, paper, runner
from evaluation.runner import Team
from model import checkpoint
from pecan import Pecan
from view import ask

ROOT = Path(__file__).parents[2]
LLAMAS = {"model": "float16", "builder": "bfloat16", "scorer": "float64"}     # the dtypes that their files claim
BERTS = "encoder", "questions", "passages"
TEXTS = {"Who sings?": "Mara sings by the river. ", "Who swims?": "Otto swims in the lake. ", "Who?": "Theo sleeps. "}
BASE = Settings(chunk=24, window=380, summary_share=0.3437, answer_tokens=4)  # the paper's, changed by tiny/pecan.json


# --- from an option to the end of its wire --------------------------------------------------------------------------

@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with three Llamas, three BERTs, a text and a data set of three documents with a question each."""
    folder = tmp_path_factory.mktemp("files")
    for name, dtype in LLAMAS.items():
        write_checkpoint(folder / name, dtype=dtype)
    (folder / "builder" / "pecan.json").write_text('{"summary_share": 0.5}')      # which only construction takes
    for name in BERTS:
        BertModel(BertConfig(vocab_size=480, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                             intermediate_size=16, max_position_embeddings=64)).save_pretrained(folder / name)
        shutil.copy(TINY / "tokenizer.json", folder / name)

    (folder / "mine.jsonl").write_text("\n".join(
        json.dumps({"id": question, "text": text * 9, "questions": [{"question": question, "answers": ["Mara"]}]})
        for question, text in TEXTS.items()))
    (folder / "text.txt").write_text(TEXTS["Who sings?"] * 9)
    return folder


def vector_of(text: str) -> list[float]:
    """What every encoder makes of a text here: a vector that no other text has."""
    return [1., len(text), text.count("s")]


def record(patch, main, arguments: list) -> dict[str, list]:
    """Run a command line, and return the calls that its options must reach, {function: [arguments]}.

    A checkpoint's fingerprint is the name of its folder; an encoder's also says how it pools.
    """
    calls = defaultdict(list)

    def at(owner, name, instead=None):
        function = getattr(owner, name)

        def recorder(*given, **named):
            call = SimpleNamespace(**inspect.signature(function).bind(*given, **named).arguments)
            calls[name].append(call)
            return instead(call) if instead else function(*given, **named)
        patch.setattr(owner, name, recorder)

    def answer_all(call, run=runner.answer_all):
        calls[call.run.row.name].append(call.method)
        return run(**vars(call)) if isinstance(call.method, Pecan) else dict.fromkeys(call.run.dataset.questions, "")

    for module in (llama, sbert):
        patch.setattr(module, "fingerprint", lambda folder: Path(folder).name)
    patch.setattr(sys.stderr, "isatty", lambda: True)
    at(llama, "choose_device", lambda call: (torch.device("meta"), torch.float32))
    at(checkpoint, "read_tensors")
    at(sbert, "read_tensors")
    for encoder in (sbert.Encoder, TokenMean):
        at(encoder, "encode", lambda call: torch.tensor(list(map(vector_of, call.sentences))))
    at(pecan, "build")
    at(pecan, "chunks")
    at(Pecan, "prepare_all")
    at(pecan, "summarise", lambda call: [([], 0) for _ in call.batch])
    at(pecan, "Search", lambda call: SimpleNamespace(answer=lambda: Answer("Mara", [0], 1, 1, "all")))
    at(runner, "claim_file")
    at(runner, "answer_all", answer_all)
    main(list(map(str, arguments)))
    return calls


SHARED = ["--model", "model", "--builder", "builder", "--encoder", "encoder", "--device", "here", "--dtype", "float16",
          "--chunk", 40, "--window", 900, "--batch", 2, "--without", "graph"]
CHECKS = ["--confidence", .7, "--patience", 2, "--without", "attention"]
FIXED = ["--nodes", 4, "--without", "similarity"]
RUNS = {
    "pecan.py": (ask.ask, ["text.txt", "Who sings?", "Who swims?", "--dataset-settings", "MuSiQue", *SHARED, *CHECKS]),
    "pecan.py, fixed": (ask.ask, ["text.txt", "Who?", "--graph", "x.json", "--dataset-settings", "Qasper", *SHARED,
                                  *FIXED]),
    "pecan.py, short": (ask.ask, ["text.txt", "Who?", "--model=model", f"--builder={TINY}"]),
    "eval.py": (command.main, ["--method", "pecan,dragon,longllmlingua,bm25-x", "--dragon", "questions", "passages",
                               "--scorer", "scorer", "--top", 3, "--limit", 2, "--output", "r", "--graphs", "g",
                               "--dataset", "mine.jsonl", "--any-code", *SHARED, *CHECKS]),
    "eval.py, fixed": (command.main, ["--method", "pecan,sbert", "--dataset", "mine.jsonl", "--output", "s", *SHARED,
                                      *FIXED]),
    "eval.py, table": (command.main, ["--table=2", "--model=model", "--searcher", "scorer", "--dataset=mine.jsonl"])}

# Of every run that has it: the option, where it must arrive, in which argument, and all values that arrive there.
WIRES = [
    ("--model", "Search", "model.folder.name", {"model"}),
    ("--builder", "build", "model.folder.name", {"builder"}),
    ("--builder", "summarise", "model.folder.name", {"builder"}),
    ("--encoder", "encode", "self.fingerprint", {"mean encoder"}),
    ("pecan,sbert", "sbert", "chunk_encoder.fingerprint", {"mean encoder"}),
    ("--device", "choose_device", "device", {"here"}),
    ("--device", "read_tensors", "device.type", {"meta"}),           # also of encoders
    ("--dtype", "choose_device", "dtype", {"float16"}),
    ("--model", "choose_device", "stored", set(LLAMAS.values())),     # if --dtype is auto, it is that of the files
    ("--chunk", "chunks", "most", {40}),
    ("--chunk", "Search", "settings.chunk", {40}),
    ("--window", "summarise", "limit", {450}),                        # half of it
    ("--window", "Search", "settings.window", {900}),
    (f"--builder={TINY}", "Search", "settings.window", {512}),
    ("--batch", "prepare_all", "self.batches.rows", {2}),
    ("--confidence", "Search", "settings.confidence", {.7}),
    ("--patience", "Search", "settings.patience", {2}),
    ("--nodes", "Search", "settings.fixed_nodes", {4}),
    ("graph", "summarise", "tree", {True}),
    ("attention", "Search", "settings.attention", {False}),
    ("similarity", "Search", "settings.similarity", {False}),
    ("MuSiQue", "Search", "settings.answer_tokens", {32}),
    ("Qasper", "Search", "settings.confidence", {.98}),
    ("text.txt", "prepare_all", "progress", {True}),                  # to a terminal
    ("--any-code", "prepare_all", "self.any_code", {True}),
    ("Who swims?", "Search", "question", {"Who sings?", "Who swims?"}),
    ("--dataset", "answer_all", "run.dataset.name", {"mine"}),
    ("--limit", "Search", "question", {"Who sings?", "Who swims?"}),
    ("--output", "claim_file", "path.parent.parent.name", {"r", "s"}),
    ("--graphs", "answer_all", "run.graphs.name", {"g"}),
    ("--top", "bm25-x", "top_k", {3}),
    ("--searcher", "build", "model.folder.name", {"model", "scorer"}),
    ("--searcher", "Search", "model.folder.name", {"model", "scorer"}),
    ("--scorer", "longllmlingua", "scorer.folder.name", {"scorer"}),
    ("--dragon", "dragon", "question_encoder.fingerprint", {"cls questions"}),
    ("--dragon", "dragon", "chunk_encoder.fingerprint", {"cls passages"}),
]


@pytest.fixture(scope="module")
def recorded(files):
    """The calls of each run of RUNS."""
    found = {}
    for name, (main, arguments) in RUNS.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(files)
            found[name] = record(patch, main, arguments)
    return found


@pytest.mark.parametrize("option, function, argument, values", WIRES)
def test_an_option_arrives(recorded, option, function, argument, values):
    names = [name for name, (_, arguments) in RUNS.items() if option in arguments]
    arrived = [{attrgetter(argument)(call) for call in recorded[name][function]} for name in names]
    assert names and all(arrived) and set().union(*arrived) == values, arrived


def test_every_number_of_a_search_comes_from_its_own_question_and_document(recorded):
    """The graph holds the question's own document, c the similarities of its nodes to the question."""
    for name, run in recorded.items():
        for call in run["Search"]:
            texts = [node.text for node in call.graph.nodes]
            assert " ".join(texts) == (TEXTS["Who sings?" if name.startswith("pecan") else call.question] * 9).strip()
            assert call.c.tolist() == [sum(x * y for x, y in zip(vector_of(text), vector_of(call.question)))
                                       for text in texts]


def test_a_setup_names_what_all_answers_share(recorded):
    """These are the settings, and the models that the method uses, no others. A builder has settings of its own."""
    setups = {call.path.stem: call.setup for call in recorded["eval.py"]["claim_file"]}
    for setup in setups.values():
        assert len(setup.pop("code")) == 16 and setup.pop("graphs of any code", True) and setup.pop("made with")
    shared = {"model": "model float32", "chunk": 40, "window": 900, "summary_share": .25, "tree": True,
              "confidence": .7, "patience": 2, "attention": False, "similarity": True, "fixed_nodes": None,
              "answer_tokens": 128, "question_again": False}
    assert setups == {
        "pecan": shared | {"encoder": "mean encoder", "builder": "builder float32", "top": None, "construction": {
            "chunk": 40, "window": 900, "summary_share": .5, "tree": True}},
        "dragon": shared | {"question_encoder": "cls questions", "chunk_encoder": "cls passages", "top": 5},
        "longllmlingua": shared | {"scorer": "scorer float32", "top": None},
        "bm25-x": shared | {"top": 3}}


@pytest.mark.parametrize("gpus, wanted, devices", [
    (4, "auto", ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]), (2, "cuda", ["cuda:0", "cuda:1"] * 2),
    (4, "cuda:2", ["cuda:2"] * 4), (0, "auto", ["auto"] * 4)])
def test_each_process_takes_its_own_gpu(monkeypatch, gpus, wanted, devices):
    """A machine's processes share its GPUs if these are fewer; a device that is named is taken. It gets the models."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    team = Team()
    team.size = 8
    load = Mock(side_effect=InputError)
    monkeypatch.setattr(runner, "Models", load)
    run = SimpleNamespace(options=Namespace(device=wanted))
    for team.local_rank, device in enumerate(devices):
        with pytest.raises(InputError):
            runner.Runner(team).make(run)
        assert load.call_args.args[0].device == device


# --- from an option, a data set or a row to the settings of a run ---------------------------------------------------

def runs(*arguments, dataset="mine"):
    """The planned runs over a data set of this name: {name of the row: run}."""
    args = command.parse([*map(str, arguments), "--device", "cpu"])
    return {run.row.name: run for run in methods.plan(args, [SimpleNamespace(name=dataset)], args.rows)}


def settings_of(*arguments, dataset="mine"):
    return {name: run.settings for name, run in runs(*arguments, dataset=dataset).items()}


def test_a_window_is_no_longer_than_any_model_was_made_for(files, monkeypatch):
    """One that was chosen is refused, whoever chose it."""
    monkeypatch.chdir(ROOT)
    long = str(files / "model")                               # made for 2,048 tokens; the embedded model for 512
    for load in (lambda: Pecan.load(TINY, window=600),
                 lambda: ask.ask(["tiny/story.txt", "Who?", "--builder", long, "--window", "600"]),
                 lambda: command.main(["--model", long, "--builder", "tiny", "--window", "600"])):
        with pytest.raises(InputError, match="window 600 is too large: the model was made for 512 tokens"):
            load()


def test_pecan_load_takes_an_encoder_and_settings(files):
    method = Pecan.load(TINY, str(files / "encoder"), confidence=.7, chunk=None)
    assert method.settings == replace(BASE, confidence=.7) and isinstance(method.encoder, sbert.Bert)


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


@pytest.mark.parametrize("model, options, windows", [
    ("8b", [], [8192, 8192, 100_000]), ("8b", ["--window", 4096], [4096] * 3), ("model", [], [2048] * 3),
    ("model", ["--builder", TINY], [2048] * 3)])
def test_the_window_of_the_whole_document(files, model, options, windows):
    """The window is the model's length, at most 100,000 tokens, not that of other methods. --window overrides it. A
    builder has a window of its own length, and limits no other."""
    folder = {"8b": ROOT / "tests" / "llama-3.1-8b", "model": files / "model"}[model]
    found = settings_of("--model", folder, *options)
    assert [settings.window for settings in found.values()] == windows
    assert runs("--builder", files / "model")["pecan"].construction.window == 2048


def test_table_3_takes_one_part_away_a_row():
    """Each row has its own name. Without progress control, the number of nodes is the paper's on its data sets, and
    PECAN's mean on others."""
    found = runs("--table", 3)
    assert {name: run.settings for name, run in found.items()} == {
        "pecan": BASE, "pecan-without-attention": replace(BASE, attention=False), "pecan-without-progress": BASE,
        "pecan-without-graph": replace(BASE, tree=True), "pecan-without-similarity": replace(BASE, similarity=False)}
    settled = methods.settle(found["pecan-without-progress"], {"nodes": 20.7})
    models = SimpleNamespace(model=Mock(), encoder=None, builder=None)
    assert settled.row.make(models, settled).settings == replace(BASE, fixed_nodes=21)
    assert settled.file.name == "pecan-without-progress-21.jsonl"
    hotpotqa = runs("--table", 3, dataset="HotpotQA")["pecan-without-progress"]
    assert methods.settle(hotpotqa, {"nodes": 20.7}) is hotpotqa and hotpotqa.top_k == 17


def test_top_x_is_the_papers(tmp_path):
    """On other data X follows from PECAN's FLOPs. The paper's FLOPs give the paper's X; of RAPTOR's nodes, nearly.

    (The tokenizer makes the instruction 72 tokens. The chunks' X would be the same if it made 150.)
    """
    shutil.copytree(TINY, tmp_path, dirs_exist_ok=True)
    shutil.copy(ROOT / "tests" / "llama-3.1-8b" / "config.json", tmp_path)
    (tmp_path / "pecan.json").unlink()
    command_line = "--method", "bm25-x,raptor-ct-x", "--model", tmp_path
    mine = runs(*command_line).values()
    small = runs(*command_line, "--chunk", 150)["raptor-ct-x"]
    for dataset in paper.DATASETS:
        known = [figures[dataset] for figures in paper.TOP_X.values()]
        assert [run.top_k for run in runs(*command_line, dataset=dataset).values()] == known
        pecan_flops = {"flops": paper.TABLE1["PECAN"][dataset].tflops * 1e12}
        chunks, nodes = (methods.settle(run, pecan_flops) for run in mine)
        assert (chunks.top_k, nodes.top_k) == (known[0], pytest.approx(known[1], rel=.1))
        assert methods.settle(small, pecan_flops).top_k == pytest.approx(2 * nodes.top_k, rel=.1)    # half as long
        assert chunks.file.name == f"bm25-x-{known[0]}.jsonl"


def test_the_pairs_of_table_2(files):
    """Table 2 pairs the model with its own graph, each searcher with its own and with the model's. A searcher searches
    both with the same settings."""
    found = runs("--table", 2, "--searcher", files / "model", "--searcher", files / "scorer").values()
    assert [(run.options.model, run.options.builder, run.settings.chunk, run.settings.window) for run in found] == [
        (str(TINY), None, 24, 380), *((str(files / name), builder, 300, 2048) for name in ("model", "scorer")
                                      for builder in (None, str(TINY)))]
    assert [run.construction and run.construction.chunk for run in found] == [None, None, 24, None, 24]
    assert [run.row.label for run in found] == ["tiny + tiny", "model + model", "tiny + model", "scorer + scorer",
                                            "tiny + scorer"]
