"""The wires: where each option of pecan.py and eval.py must arrive, and which settings a run has.

Recorders stand where options end: at the functions that choose a device, read weights, summarise, search and answer.
Nothing is computed, because all weights are on PyTorch's meta device, which holds no data.
"""
import inspect
import json
import os
import shlex
import shutil
import sys
from argparse import Namespace
from collections import defaultdict
from dataclasses import asdict, replace
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from oracle import TINY, write_checkpoint
from runs import table, write_lines

import eval as command
import llama
import pecan
from core.files import InputError
from core.settings import Settings, resolve
from data import Answer, Prepared
from evaluation import methods, models, runner
from evaluation.team import Team
from model import checkpoint
from pecan import Pecan, Search
from view import ask

LARGE = Path(__file__).parents[1] / "llama-3.1-8b"
LLAMAS = {"model": "float16", "builder": "bfloat16", "scorer": "float64"}     # the dtypes that their files claim
TEXTS = {"Who sings?": "Mara sings by the river. ", "Who swims?": "Otto swims in the lake. ", "Who?": "Theo sleeps. "}
BASE = Settings(chunk=24, window=380, summary_share=0.3437, answer_tokens=4, instructions=False)      # tiny/pecan.json


# --- from an option to the end of its wire --------------------------------------------------------------------------

@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with five Llamas, what is looked at of three encoders, a text and a data set of three documents."""
    folder = tmp_path_factory.mktemp("files")
    for name, dtype in LLAMAS.items():
        write_checkpoint(folder / name, dtype=dtype)
    (folder / "builder" / "pecan.json").write_text('{"summary_share": 0.5}')      # which only construction takes
    (folder / "scorer" / "pecan.json").write_text('{"chunk": 200}')
    shutil.copytree(TINY, folder / "tiny")
    shutil.copytree(LARGE, folder / "8b")                    # Llama 3.1's config
    for name in ("encoder", "questions", "passages"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text("{}")

    write_lines(folder / "mine.jsonl", [
        {"id": question, "text": text * 9, "questions": [{"question": question, "answers": ["Mara"]}]}
        for question, text in TEXTS.items()])
    (folder / "text.txt").write_text(TEXTS["Who sings?"] * 9)
    return folder


class Encoder:
    """An encoder that gives every text another vector. (Those of folders: test_sbert.py.)"""
    flops = 0
    fingerprint = ""

    def __init__(self, name):
        self.fingerprint = name

    def encode(self, texts):
        return torch.tensor([[1., len(text), text.count("s")] for text in texts])

    def cut(self, texts):
        return {}


class Recorder:
    fingerprint = ""                                        # for core.code: it counts as the class alone

    def __init__(self, calls, function, instead):
        self.calls = calls
        self.function = function
        self.instead = instead

    def __call__(self, *given, **named):
        made = SimpleNamespace(**inspect.signature(self.function).bind(*given, **named).arguments)
        self.calls[self.function.__name__].append(made)
        return self.instead(made) if self.instead else self.function(*given, **named)


def record(patch, main, arguments: list[str]) -> dict[str, list]:
    """Run a command line, and return the calls that its options must reach, {function: [arguments]}.

    A checkpoint's fingerprint is the name of its folder.
    """
    calls = defaultdict(list)

    def recorder(function, instead=None):
        recorded = Recorder(calls, function, instead)
        return lambda *given, **named: recorded(*given, **named)           # a method must be a function

    def answers_of(call, run=runner.answers_of):
        if isinstance(call.method, Pecan):
            found = run(**vars(call))
            call.folder = call.paths["Who sings?"].parent.name
            return found
        call.folder = "g"
        return [(document, question, Prepared([]), Answer("Mara", [0], 1, 1))
                for document, questions in call.left for question in questions]

    for owner, name, instead in (
            (llama, "choose_device", lambda _: (torch.device("meta"), torch.float32)),
            (checkpoint, "read_tensors", None), (pecan, "chunks", None), (Pecan, "prepare_all", None),
            (runner, "Answers", None), (runner, "answers_of", answers_of)):
        patch.setattr(owner, name, recorder(getattr(owner, name), instead))
    init = Pecan.__init__
    stages = {"build": Recorder(calls, pecan.build, None),
              "summarise": Recorder(calls, pecan.summarise, lambda call: [([], 0) for _ in call.batch]),
              "search": Recorder(calls, Search, lambda _: SimpleNamespace(
                  model=SimpleNamespace(flops=0), answer=lambda: Answer("Mara", [0], 1, 1)))}
    patch.setattr(Pecan, "__init__", lambda self, *given, **named: init(self, *given, **named | stages))
    patch.setattr(models, "load_encoder", lambda name, model: Encoder(name or f"of {model.folder.name}"))
    patch.setattr(models, "load_towers", lambda names, model: [*map(Encoder, names or ("none", "none"))])
    patch.setattr(llama, "fingerprint", lambda folder: Path(folder).name)
    patch.setattr(sys.stderr, "isatty", lambda: True)
    main(arguments)
    return calls


SHARED = ("--model model --builder builder --encoder encoder --device here --dtype float16 --chunk 40 --window 900 "
          "--batch 2 --without graph ")
CHECKS = SHARED + "--confidence .7 --patience 2 --without attention --question-again "
FIXED = SHARED + "--nodes 4 --without similarity "
RUNS = [
    f"pecan.py text.txt 'Who sings?' 'Who swims?' --dataset-settings MuSiQue {CHECKS}",
    f"pecan.py text.txt Who? --graph x.json --dataset-settings Qasper {FIXED}",
    f"pecan.py text.txt Who? --model=model --builder={TINY}",
    "eval.py --method pecan,sbert,dragon,longllmlingua,bm25-x --dragon questions passages --scorer scorer --top 3 "
    f"--limit 2 --output r --graphs g --dataset mine.jsonl {CHECKS}",
    f"eval.py --method pecan --dataset mine.jsonl --output s {FIXED}",
    "eval.py --table=2 --model=model --searcher scorer --dataset=mine.jsonl"]

# Of every run that has it: the option, where it must arrive, in which argument, and all values that arrive there.
WIRES = f"""
--model          | Search        | model.folder.name            | model
--builder        | build         | model.folder.name            | builder
--builder        | summarise     | model.folder.name            | builder
--encoder        | prepare_all   | self.encoder.fingerprint     | encoder
text.txt         | prepare_all   | self.encoder.fingerprint     | encoder, of model
--device         | choose_device | device                       | here
--device         | read_tensors  | device.type                  | meta
--dtype          | choose_device | dtype                        | float16
--model          | choose_device | stored                       | float16, bfloat16, float64
--chunk          | chunks        | most                         | 40
--chunk          | Search        | settings.chunk               | 40
--window         | summarise     | settings.summary_tokens      | 450
--window         | Search        | settings.window              | 900
--builder={TINY} | build         | settings.window              | 380
--batch          | prepare_all   | self.batches.rows            | 2
--builder={TINY} | prepare_all   | self.batches.rows            | 32
--confidence     | Search        | settings.confidence          | 0.7
--patience       | Search        | settings.patience            | 2
--nodes          | Search        | settings.fixed_nodes         | 4
--question-again | Search        | settings.question_again      | True
graph            | summarise     | settings.tree                | True
attention        | Search        | settings.attention           | False
similarity       | Search        | settings.similarity          | False
MuSiQue          | Search        | settings.answer_tokens       | 32
Qasper           | Search        | settings.confidence          | 0.98
text.txt         | prepare_all   | progress                     | True
Who swims?       | Search        | question                     | Who sings?, Who swims?
--dataset        | Answers       | path.parent.name             | mine
--limit          | Search        | question                     | Who sings?, Who swims?
--output         | Answers       | path.parent.parent.name      | r, s
--graphs         | answers_of    | folder                       | g
--searcher       | Search        | model.folder.name            | model, scorer
"""


@pytest.fixture(scope="module")
def recorded(files):
    """The calls of each run of RUNS."""
    found = {}
    for line in RUNS:
        program, *arguments = shlex.split(line)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(files)
            found[line] = record(patch, {"pecan.py": ask.ask, "eval.py": command.main}[program], arguments)
    return found


@pytest.mark.parametrize("option, function, argument, values", table(WIRES))
def test_an_option_arrives(recorded, option, function, argument, values):
    """The window of a summary is half of --window. If --dtype is auto, the dtype is that of the files."""
    arrived = [{str(attrgetter(argument)(call)) for call in calls[function]} for line, calls in recorded.items()
               if option in shlex.split(line)]
    assert arrived and all(arrived) and set().union(*arrived) == {*values.split(", ")}, arrived


def test_every_number_of_a_search_comes_from_its_own_question_and_document(recorded):
    """The graph holds the question's own document, c the similarities of its nodes to the question."""
    for name, run in recorded.items():
        for call in run["Search"]:
            texts = [node.text for node in call.graph.nodes]
            assert " ".join(texts) == (TEXTS["Who sings?" if name.startswith("pecan") else call.question] * 9).strip()
            encoder = Encoder("")
            assert call.c.tolist() == (encoder.encode(texts) @ encoder.encode([call.question])[0]).tolist()


def test_a_searcher_searches_the_graphs_of_the_model_itself(recorded):
    """Its own settings differ, and those three graphs are not built again."""
    built = [call.model.folder.name for call in recorded[RUNS[5]]["build"]]
    assert built == ["model"] * 3 + ["scorer"] * 3


# What the answers of each method share in RUNS[3]: settings, the models that the method uses, and what else it holds.
SETUP = json.loads("""{
    "chunk": 40, "window": 900, "summary_share": 0.25, "tree": true, "confidence": 0.7, "patience": 2,
    "attention": false, "similarity": true, "fixed_nodes": null, "answer_tokens": 128, "question_again": true}""")
MODELS = {"pecan": {"encoder": "encoder", "builder": "builder float32"},
          "sbert": {"question_encoder": "encoder", "chunk_encoder": "encoder"},
          "dragon": {"question_encoder": "questions", "chunk_encoder": "passages"},
          "longllmlingua": {"scorer": "scorer float32"}, "bm25-x": {}}
TOP_K = {"sbert": 5, "dragon": 5, "bm25-x": 3}


def test_a_setup_names_what_all_answers_share(recorded):
    """A builder has settings of its own. The code has 16 digits."""
    setups = {call.path.stem: call.setup for call in recorded[RUNS[3]]["Answers"]}
    assert setups["pecan"]["parts"]["construction"][1]["summary_share"] == .5
    for name, setup in setups.items():
        parts = setup["parts"]
        assert len(setup["code"]) == 16 and parts.get("top_k") == TOP_K.get(name)
        models = {of: parts[of][1] for of in parts.keys() & {"model", *MODELS[name]}}      # without their classes
        assert models == {"model": "model float32"} | MODELS[name]
        assert parts["settings"][1] == SETUP


# Who started four processes, a machine's GPUs, --device, and the processes' devices.
DEVICES = """
torchrun | 4 | auto   | cuda:0 cuda:1 cuda:2 cuda:3
torchrun | 2 | cuda   | cuda:0 cuda:1 cuda:0 cuda:1
torchrun | 4 | cuda:2 | cuda:2 cuda:2 cuda:2 cuda:2
torchrun | 0 | auto   | auto auto auto auto
slurm    | 4 | auto   | auto auto auto auto
"""


@pytest.mark.parametrize("launcher, gpus, wanted, devices", table(DEVICES))
def test_each_process_takes_its_own_gpu(monkeypatch, launcher, gpus, wanted, devices):
    """A machine's processes share its GPUs if these are fewer; a device that is named is taken. It gets the models.
    RANK and WORLD_SIZE may be another program's: then each process is alone."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus != "0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(gpus))
    monkeypatch.setattr(torch.distributed, "init_process_group", Mock())
    load = Mock(side_effect=InputError)
    monkeypatch.setattr(runner, "Models", load)
    for rank, device in enumerate(devices.split()):
        monkeypatch.setattr(os, "environ", {"RANK": rank + 4, "WORLD_SIZE": 8, "LOCAL_RANK": rank} | (
            {"TORCHELASTIC_RUN_ID": "none"} if launcher == "torchrun" else {}))
        with pytest.raises(InputError):
            runner.Runner(Team()).make(SimpleNamespace(options=Namespace(device=wanted)))
        assert load.call_args.args[0].device == device


# --- from an option, a data set or a row to the settings of a run ---------------------------------------------------

def planned(line: str, dataset: str = "mine") -> dict:
    """The runs that a command line plans over a data set of this name: {name of the row: run}."""
    args = command.parse(shlex.split(line))
    return {run.row.name: run for run in methods.plan(args, [SimpleNamespace(name=dataset)])}


# The command line, the data set, the row, and what differs from the settings of the model (TINY, or those of PECAN).
# Each source overrides those before it: pecan.json, the paper, options, the row.
# t_p is Appendix E's. The answer's length is LongBench's, not the checkpoint's. GARLIC has no t_p: it follows the
# likelier word. The whole document's window is the model's length, at most 100,000 tokens, and no other method's; a
# builder limits none. Options override all of them but what makes a row this row.
SETTINGS = """
--method pecan                  | mine        | pecan                    |
--method pecan                  | NarrativeQA | pecan                    | answer_tokens 128
--method pecan                  | Qasper      | pecan                    | confidence 0.98, answer_tokens 128
--method pecan                  | HotpotQA    | pecan                    | answer_tokens 32
--method pecan                  | MuSiQue     | pecan                    | confidence 0.55, answer_tokens 32
--method pecan --confidence .7  | MuSiQue     | pecan                    | confidence 0.7, answer_tokens 32
--dataset-settings MuSiQue      | mine        | pecan                    | confidence 0.55, answer_tokens 32
--method whole                  | MuSiQue     | whole                    | window 512, confidence 0.55, answer_tokens 32
--method garlic                 | MuSiQue     | garlic                   | answer_tokens 32
--method garlic --confidence .7 | Qasper      | garlic                   | answer_tokens 128
--model 8b                      | mine        | pecan                    |
--model 8b                      | mine        | bm25                     |
--model 8b                      | mine        | whole                    | window 100000
--model 8b --window 4096        | mine        | pecan                    | window 4096
--model 8b --window 4096        | mine        | whole                    | window 4096
--model model                   | mine        | whole                    | window 2048
--model model                   | mine        | pecan                    | window 2048
--model model --builder tiny    | mine        | pecan                    | window 2048
--table 3                       | mine        | pecan                    |
--table 3                       | mine        | pecan-without-attention  | attention False
--table 3                       | mine        | pecan-without-progress   |
--table 3                       | mine        | pecan-without-graph      | tree True
--table 3                       | mine        | pecan-without-similarity | similarity False
--table patience                | mine        | pecan-patience-8         | patience 8
"""


@pytest.mark.parametrize("line, dataset, row, changes", table(SETTINGS))
def test_the_settings_of_a_row(files, monkeypatch, line, dataset, row, changes):
    monkeypatch.chdir(files)
    found = asdict(planned(line, dataset)[row].settings)
    base = vars(Settings() if "--model" in line else BASE)
    assert ", ".join(f"{name} {value}" for name, value in found.items() if value != base[name]) == changes


@pytest.mark.parametrize("name, value, said", table("""
    chunk         | "8"    | chunk is '8'; it must be a whole number from 1 to
    window        | true   | window is True
    patience      | 0      | patience is 0
    fixed_nodes   | -1     | fixed_nodes is -1
    answer_tokens | 1e999  | not valid JSON
    batch         | 1.5    | batch is 1.5
    tree          | 1      | tree is 1; it must be true or false
    similarity    | []     | similarity is
    confidence    | 1      | confidence is 1; it must be a number of at least 0 and below 1
    summary_share | 0      | summary_share is 0
    windw         | 8      | unknown setting windw"""))
def test_a_bad_value_in_pecan_json(tmp_path, name, value, said):
    (tmp_path / "pecan.json").write_text(f'{{"{name}": {value}}}')
    with pytest.raises(InputError, match=f"pecan.json: {said}"):
        resolve(tmp_path, 100_000)


def test_a_window_is_no_longer_than_any_model_was_made_for(files, monkeypatch):
    """One that was chosen is refused, whoever chose it. The model was made for 2,048 tokens, the embedded one for 512.
    A builder has a window of its own length."""
    monkeypatch.chdir(files)
    for load in (lambda: Pecan.load(TINY, window=600),
                 lambda: ask.ask(shlex.split("text.txt Who? --builder model --window 600")),
                 lambda: command.main(shlex.split("--model model --builder tiny --window 600"))):
        with pytest.raises(InputError, match="window 600 is too large: the model was made for 512 tokens"):
            load()
    with pytest.raises(InputError, match="no such folder"):
        Pecan.load(TINY, "no/such/encoder")
    assert planned("--builder model")["pecan"].construction.window == 2048


# A command line, the data set, and the X of its rows. Without --top it is the paper's, if it has these data.
TOPS = """
--table 3                              | mine     | None
--table 3                              | HotpotQA | 17
--table 3 --top 4                      | mine     | 4
--method pecan,bm25-x,raptor-ct-x      | mine     | None, None
--method pecan,bm25-x,raptor-ct-x      | MuSiQue  | 7, 22
--method bm25-x,raptor-ct-x --top 3    | MuSiQue  | 3, 3
"""


@pytest.mark.parametrize("line, dataset, top", table(TOPS))
def test_the_x_of_top_x(line, dataset, top):
    """Without progress control X is the number of nodes."""
    found = [run for run in planned(line, dataset).values() if run.row.top_k == "X"]
    assert ", ".join(str(run.top_k) for run in found) == top
    assert {run.needs_top for run in found} == {dataset == "mine" and "--top" not in line}
    for run in found[:"--table" in line]:
        models = SimpleNamespace(model=Mock(**{"config.width": 8}), encoder=None, builder=None)
        assert run.row.make(models, run).settings == replace(run.settings, fixed_nodes=run.top_k)


# Of each row: its label, who searches and builds, its chunk and window, and the builder's chunk.
PAIRS = """
tiny + tiny     | tiny   | None | 24  | 380  | None
model + model   | model  | None | 300 | 2048 | None
tiny + model    | model  | tiny | 300 | 2048 | 24
scorer + scorer | scorer | None | 200 | 2048 | None
tiny + scorer   | scorer | tiny | 200 | 2048 | 24
"""


def test_the_pairs_of_table_2(files, monkeypatch):
    """Table 2 pairs the model with its own graph, each searcher with its own and with the model's. A searcher searches
    both with the same settings."""
    monkeypatch.chdir(files)
    found = planned("--table 2 --model tiny --searcher model --searcher scorer").values()
    assert [[str(cell) for cell in (run.row.label, run.options.model, run.options.builder, run.settings.chunk,
                                    run.settings.window, run.construction and run.construction.chunk)]
            for run in found] == table(PAIRS)
