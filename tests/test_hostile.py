"""Bad input of every kind: one line that names the place, exit code 2, no traceback, and nothing changed on disk.

Files are damaged in tables, a row for each fault. Most run through main(argv) in this process; a few need their own.
"""
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

from core.command import user_errors

import pytest
import tokenizers
import torch
from hostile import COMMAND, files, go_on, kill, short_set
from safetensors.torch import load_file, save_file
from support.journal import Batch, InformationPoint, Journal
from test_datasets import PAPER, hotpotqa, longbench, musique, narrativeqa

import eval as evaluation_main
import pecan
from baselines.fact_graph import FactGraph, scores_of
from baselines.graphreader import notebook_of
from baselines.jerr import pages_of
from baselines.mkrag import pairs_of, weights_of
from core.files import InputError, OutputError, append_line, open_own, write_file
from core.text import bullets, split
from core.tokenizer import Tokenizer
from evaluation.layouts import Dataset
from evaluation.layouts import __main__ as layouts_main
from evaluation.layouts.contents import plain_text
from evaluation.layouts.report import Report
from evaluation.predictions import Predictions, lock
from evaluation.runner import claim_file
from pecan import Pecan
from support.token_mean import TokenMean

ROOT = Path(__file__).parents[1]
DEEP = "[" * 5000 + "]" * 5000
OWN = {"id": "d", "text": "Ann was here.", "questions": [{"id": "d0", "question": "Who?", "answers": ["Ann"]}]}
QUESTION = OWN["questions"][0]


def refused(main, argv, folder, capsys, *words):
    """Run a command that must be refused in one line with these words, and change nothing in `folder`."""
    before = files(folder, locks=True)
    capsys.readouterr()
    crash = None
    try:
        code = user_errors(lambda: main([str(argument) for argument in argv]))
    except Exception as error:
        crash = error
    assert crash is None, f"a traceback: {crash!r}"
    printed = capsys.readouterr()
    errors = [line for line in printed.err.splitlines() if line.startswith("error: ")]
    assert code == 2 and len(errors) == 1 and "Traceback" not in printed.err, printed.err
    assert printed.err.splitlines()[-1] == errors[0], "something follows the error's line"
    for word in words:
        assert word in errors[0], f"{word!r} is not in: {errors[0]}"
    assert len(errors[0]) < 1200 and files(folder, locks=True) == before


# --- data sets ------------------------------------------------------------------------------------------------------

def row(**changes):
    return json.dumps(OWN | changes)


def question(**changes):
    return row(questions=[QUESTION | changes])


BAD_LINES = {
    "text a number": row(text=3), "text null": row(text=None), "text empty": row(text=""),
    "text blank": row(text=" \n"),
    "text and passages": row(passages=["x"]), "questions null": row(questions=None),
    "questions text": row(questions="x"),
    "questions object": row(questions={}), "question null": row(questions=[None]),
    "question text": row(questions=["x"]),
    "no question": row(questions=[{"answers": ["x"]}]), "question number": question(question=3),
    "question blank": question(question=" "), "question list": question(question=["Who?"]),
    "answers a text": question(answers="Ann"), "answers null": question(answers=None),
    "answers empty": question(answers=[]),
    "answers of numbers": question(answers=[1]), "answers nested": question(answers=[["Ann"]]),
    "answers object": question(answers={"a": 1}), "id null": row(id=None), "id list": row(id=["d"]),
    "id true": row(id=True),
    "question id null": question(id=None), "question id object": question(id={}), "id twice": row(id="first"),
    "question id twice": question(id="q1"), "surrogate": row(text="a\ud800"),
    "surrogate answer": question(answers=["\udfff"]),
    "surrogate id": row(id="\ud800"), "deep": DEEP, "deep value": '{"text": ' + DEEP + "}", "NaN": '{"text": NaN}',
    "Infinity": '{"text": "x", "questions": [], "n": -Infinity}', "1e999": '{"text": "x", "questions": [], "n": 1e999}',
    "list": "[1]", "text alone": '"x"', "cut": row()[:-4], "comma": row() + ",", "digits": "9" * 5000, "null": "null",
    "passages text": '{"passages": "x", "questions": []}', "passages empty": '{"passages": [], "questions": []}',
    "passages null": '{"passages": [null], "questions": []}',
    "passages nested": '{"passages": [["x"]], "questions": []}',
    "bytes": b"\xff\xfe{}", "zero bytes": b"\0\0\0", "half a character": b'{"text": "\xc3"}'}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_of_ones_own_data(name, tmp_path, capsys):
    line = BAD_LINES[name]
    first = row(id="first", questions=[QUESTION | {"id": "q1"}]) + "\n"
    (tmp_path / "mine.jsonl").write_bytes(first.encode() + (line if isinstance(line, bytes) else line.encode()) + b"\n")
    refused(layouts_main.main, [tmp_path / "mine.jsonl"], tmp_path, capsys, "mine.jsonl, line 2: ")


def zipped(**members):
    def write(path):
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name.replace("__", "."), content)
    return write


BAD_FILES = {
    "x.json": ["", "[]", "{}", "null", "3", '"x"', "nonsense", DEEP, '{"a": ' + DEEP + "}", "[{}]", '[{"a": 1}]',
    "[NaN]",
               '[{"context": [], "question": "q"}]', json.dumps([hotpotqa()])[:-3],
               "[" + json.dumps(hotpotqa()) + ", NaN]",
               json.dumps([hotpotqa(context="x")]), json.dumps([hotpotqa(answer=["Ann"])]),
               json.dumps([hotpotqa(_id=None)]),
               json.dumps([hotpotqa(context=[[None, ["x"]]])]), json.dumps([hotpotqa(context=[["T", None]])]),
               json.dumps([hotpotqa(context=[["T", [None]]])]), json.dumps([hotpotqa(context={"title": ["T"]})]),
               json.dumps({"p": PAPER | {"qas": "x"}}), json.dumps({"p": PAPER | {"full_text": "x"}}),
               json.dumps({"p": PAPER | {"full_text": [{"paragraphs": "text"}]}}), json.dumps({"p": [PAPER]}),
               b"\x1f\x8b", b"\x1f\x8bbroken", b"\xff\xfe[\0"],
    "x.jsonl": ["", "\n\n", "{", '{"text": "x"}', '{"text": "x", "question": "q"}', '{"questions": []}', DEEP, '"x"',
                json.dumps(musique(paragraphs="x")), json.dumps(musique(paragraphs=[{"idx": 0}])),
                json.dumps(musique(answer_aliases="Ann")), json.dumps(musique(answerable="false")),
                json.dumps(musique(paragraphs=[{"idx": 0, "title": "T", "paragraph_text": None}])),
                json.dumps(musique(paragraphs=[{"idx": 0, "title": None, "paragraph_text": "x"}])),
                json.dumps(longbench(answers="Ann")), json.dumps(longbench(answers=[1])),
                json.dumps(longbench(context=3)),
                json.dumps(longbench(dataset=["x"])), json.dumps(longbench(dataset=3)),
                json.dumps(longbench(input=["q"])),
                json.dumps(longbench(answers=None)), json.dumps(longbench(answers={}))],
    "x.zip": [b"", b"PK", b"PK\x03\x04" + b"x" * 50, zipped(), zipped(a__txt="x"), zipped(a__json="[]"),
              zipped(inner__zip=b"PK\x05\x06" + b"\0" * 18), zipped(inner__zip="x"), zipped(a__jsonl=DEEP),
              zipped(qaps__csv="a,b\n1,2\n"), zipped(a__json="x", qaps__csv="x")],
    "qaps.csv": ["", "x", "document_id,set\n", "document_id,set,question,answer1,answer2\nd,test\n",
                 'document_id,set,question,answer1,answer2\nd,test,"' + "x" * 200_000 + '",a,b\n',
                 "document_id,set,question,answer1,answer2\nd,test,Who?,a,b\n"]}
FILES = [(name, n) for name, contents in BAD_FILES.items() for n in range(len(contents))]


@pytest.mark.parametrize("name, n", FILES)
def test_a_file_that_is_no_data_set(name, n, tmp_path, capsys):
    content = BAD_FILES[name][n]
    path = tmp_path / name
    if callable(content):
        content(path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    place = tmp_path if name == "qaps.csv" else path
    refused(layouts_main.main, [place], tmp_path, capsys, name if name != "qaps.csv" else tmp_path.name)


# --- checkpoints ----------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, folder):
    """A random checkpoint; what a test changes there is put back after it."""
    copy = shutil.copytree(folder, tmp_path_factory.mktemp("hostile") / "model")
    (copy.parent / "text.txt").write_text("The road was long.")
    return copy


@pytest.fixture
def damaged(checkpoint):
    """Writes a file of the checkpoint until the test is over."""
    changed = {}

    def write(name, content):
        path = checkpoint / name
        changed.setdefault(path, path.read_bytes() if path.exists() else None)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    yield write
    for path, content in changed.items():
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)


def run_of(checkpoint):
    return [checkpoint.parent / "text.txt", "Who?", "--model", checkpoint, "--device", "cpu"]


LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
SIZES = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"]
BAD_CONFIG = [(key, value) for key in SIZES for value in ("4", 0, -1, 2.0, True, [4], 10 ** 20)] + [
    (key, value) for key in ("num_key_value_heads", "max_position_embeddings") for value in ("4", 0, 1.5)] + [
    ("head_dim", value) for value in (0, 3, "16", -2)] + [
    ("rms_norm_eps", value) for value in (0, -1, "small", True, 2, [1])] + [
    ("tie_word_embeddings", value) for value in ("false", 0, 1, "")] + [
    ("rope_parameters", LLAMA3 | {key: value}) for key, value in (
        ("rope_theta", 0), ("rope_theta", "x"), ("rope_theta", -1), ("factor", 0), ("factor", "8"), ("factor", None),
        ("low_freq_factor", 0), ("low_freq_factor", 4.0), ("high_freq_factor", [1]), ("rope_type", 3),
        ("rope_type", ["llama3"]), ("original_max_position_embeddings", 0))] + [
    ("architectures", "LlamaForCausalLM"), ("architectures", [["x"]]), ("hidden_act", ["silu"]), ("model_type", 3)]


@pytest.mark.parametrize("key, value", BAD_CONFIG)
def test_a_bad_value_in_config(key, value, checkpoint, damaged, capsys):
    """The message has the key of config.json, not the name that the code gives it."""
    raw = json.loads((checkpoint / "config.json").read_text())
    damaged("config.json", json.dumps(raw | {key: value}))
    wrong = [name for name in LLAMA3 if LLAMA3[name] != value[name]][0] if key == "rope_parameters" else key
    named = {"architectures": "architecture", "model_type": "architecture"}.get(wrong, wrong)
    refused(pecan.main, run_of(checkpoint), checkpoint.parent, capsys, "model", named)


@pytest.mark.parametrize("value", ["x", 1.5, [None], -1, {}, True])
def test_a_bad_end_of_a_reply(value, checkpoint, damaged, capsys):
    damaged("generation_config.json", json.dumps({"eos_token_id": value}))
    refused(pecan.main, run_of(checkpoint), checkpoint.parent, capsys, "model", "eos_token_id")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("key", ["rms_norm_eps", "rope_theta"])
def test_a_number_that_is_none(key, value, checkpoint, damaged, capsys):
    raw = json.loads((checkpoint / "config.json").read_text())
    damaged("config.json", json.dumps(raw | {key: "HERE"}).replace('"HERE"', value))
    refused(pecan.main, run_of(checkpoint), checkpoint.parent, capsys, "config.json")


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                                  "pecan.json", "model.safetensors.index.json"])
@pytest.mark.parametrize("content", ["", "[]", "3", DEEP, "{", b"\xff\xff", '{"a": NaN}',
    '{"chat_template": "\\ud800"}'])
def test_a_file_of_a_checkpoint_that_is_no_object(name, content, checkpoint, damaged, capsys):
    damaged(name, content)
    refused(pecan.main, run_of(checkpoint), checkpoint.parent, capsys, name)


@pytest.mark.parametrize("name, value", [
    *((name, value) for name in ("chunk", "window", "patience", "answer_tokens", "batch", "fixed_nodes")
      for value in (0, "8", 1.5, True)),
    *((name, value) for name in ("tree", "attention", "similarity") for value in ("x", 1, [])),
    *(("confidence", value) for value in (1, -1, "x", True)), *(("summary_share", value) for value in (0, 1, 2, "x")),
    ("unknown", 1)])
def test_a_bad_value_in_pecan_json(name, value, checkpoint, damaged, capsys):
    damaged("pecan.json", json.dumps({name: value}))
    refused(pecan.main, run_of(checkpoint), checkpoint.parent, capsys, "pecan.json", name)


@pytest.mark.parametrize("settings", [
    {"chat_template": 3}, {"chat_template": ["x"]}, {"bos_token": ["x"]}, {"eos_token": 3}, {"chat_template": ""},
    {"chat_template": "{% for"}, {"chat_template": "{{ 1 / 0 }}"}, {"chat_template": "{{ messages.x.y.z }}"},
    {"chat_template": "{{ raise_exception('a\nb\nc') }}"}, {"chat_template": "{{ '\\ud800' }}"}])
def test_bad_settings_of_a_tokenizer(settings, checkpoint, damaged, capsys):
    raw = json.loads((checkpoint / "tokenizer_config.json").read_text())
    damaged("tokenizer_config.json", json.dumps(raw | settings))
    refused(pecan.main, run_of(checkpoint), checkpoint.parent, capsys, "model")


def test_ids_beyond_the_vocabulary(checkpoint, damaged, capsys):
    raw = json.loads((checkpoint / "config.json").read_text())
    damaged("config.json", json.dumps(raw | {"vocab_size": 7}))
    refused(pecan.main, run_of(checkpoint), checkpoint.parent, capsys, "vocab_size of config.json is 7")


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64, torch.int64, torch.uint8])
def test_weights_that_are_no_floating_point_numbers(dtype, checkpoint, damaged, capsys):
    name = "model.layers.0.mlp.up_proj.weight"
    tensors = load_file(checkpoint / "model.safetensors")
    path = checkpoint.parent / "copy"
    save_file(tensors | {name: tensors[name].to(dtype)}, path)
    damaged("model.safetensors", path.read_bytes())
    path.unlink()
    refused(pecan.main, run_of(checkpoint), checkpoint.parent, capsys, "model.safetensors", name)


@pytest.mark.parametrize("content", [b"", b"x", b"\xff" * 100, (10 ** 15).to_bytes(8, "little") + b"{}",
                                     (2).to_bytes(8, "little") + b"{}", (2).to_bytes(8, "little") + b"[]"])
def test_weights_that_are_no_file_of_tensors(content, checkpoint, damaged, capsys):
    damaged("model.safetensors", content)
    refused(pecan.main, run_of(checkpoint), checkpoint.parent, capsys, "model")


@pytest.mark.parametrize("weight_map", [{}, 3, ["x"], {"a": 3}, {"a": ["x"]}, {"a": "../x.safetensors"}, {"a": None}])
def test_a_bad_index_of_weights(weight_map, checkpoint, damaged, capsys):
    damaged("model.safetensors.index.json", json.dumps({"weight_map": weight_map}))
    refused(pecan.main, run_of(checkpoint), checkpoint.parent, capsys, "model.safetensors.index.json")


def unigram(special):
    pieces = [("<unk>", 0.0), (special, -9.0), ("▁", -2.0), *((c, -3.0) for c in "abcdehlorstuw</>.,?'")]
    return tokenizers.models.Unigram(pieces, unk_id=0)


@pytest.mark.parametrize("model, refused_", [
    (unigram("</s>"), True), (unigram("</t>"), False),
    (tokenizers.models.WordLevel({"<unk>": 0, "</s>": 1, "a": 2}, unk_token="<unk>"), True),
    (tokenizers.models.BPE({"<unk>": 0, "</s>": 1, "a": 2}, [], unk_token="<unk>", ignore_merges=True), True),
    (tokenizers.models.BPE({"<unk>": 0, "</s>": 1, "<": 2, "/": 3, "s": 4, ">": 5}, [], unk_token="<unk>"), False)])
def test_a_special_token_that_a_document_could_say(model, refused_, checkpoint, damaged):
    """The vocabulary itself may hold special tokens (Llama-2's does): refused if their names would become them."""
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.add_special_tokens(["</s>"])
    damaged("tokenizer.json", tokenizer.to_str())
    said = ""
    try:
        Tokenizer(checkpoint)
    except InputError as error:                                  # some of these small vocabularies lack Yes and No
        said = str(error)
    assert ("tokenizer.json: </s> in a document's text would become" in said) is refused_


# --- graphs ---------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def story(tmp_path_factory, tiny, document, settings):
    """A folder with a text and its graph."""
    folder = tmp_path_factory.mktemp("story")
    (folder / "story.txt").write_text("\n".join(document.passages))
    text = pecan.read_text(folder / "story.txt")
    Pecan(tiny, TokenMean(tiny), settings).prepare(text, folder / "g.json")
    return folder


def change_graph(**changes):
    return lambda raw: json.dumps(raw | changes)


def change_row(key, n, change):
    def damage(raw):
        rows = list(raw[key])
        rows[n] = change if not isinstance(change, dict) else rows[n] | change
        return json.dumps(raw | {key: rows})
    return damage


BAD_GRAPHS = [
    *(lambda raw, content=content: content for content in ("", "{", "[]", DEEP, "null", '{"format": NaN}',
    "\ud800x"[1:])),
    *(change_graph(**{key: value})
      for key in ("nodes", "edges", "settings", "document", "model", "flops", "repeats", "loops")
      for value in (None, "x" * (key not in ("document", "model")), 3.5, [3])),
    change_graph(flops=10 ** 400), change_graph(flops=-1), change_graph(flops=True),
    change_graph(format="pecan graph 1"),
    change_graph(format=["x"]), change_graph(document="0" * 64), change_graph(model="other"), change_graph(nodes=[]),
    *(change_row("nodes", 1, change) for change in (
        {"id": 7}, {"level": 5}, {"level": "1"}, {"text": ""}, {"text": None}, {"text": "\ud800"}, None, 3)),
    *(change_row("edges", 0, change) for change in (
        [0, 0, 1.0], [0], "abc", [1, 0, 2.0], ["1", 0, 1.0], [True, False, 1.0], [1e300, 0, .5], None, [[1], 0, .5]))]


@pytest.mark.parametrize("damage", BAD_GRAPHS)
def test_a_bad_graph(damage, story, tmp_path, capsys):
    path = tmp_path / "bad.json"
    path.write_text(damage(json.loads((story / "g.json").read_text())))
    refused(pecan.main, [story / "story.txt", "Who?", "--graph", path, "--device", "cpu"], tmp_path, capsys, "bad.json",
            "remove the file, and the graph is built again")


def test_windows_of_another_document_are_not_taken(tmp_path):
    """Two documents with one --graph: the interrupted construction of the first is not the second's."""
    Journal(tmp_path / "g.json", "first").append(Batch(1, [InformationPoint("x", [0], [1.0])], 3, 0, 0))
    assert list(Journal(tmp_path / "g.json", "first")) and not list(Journal(tmp_path / "g.json", "second"))


@pytest.mark.parametrize("line", [b"{", b"[]", b"3", b'[1, [["x", [0], [1.0]]], 3, 0, 0]', DEEP.encode(), b"\xff"])
def test_a_bad_journal(line, tmp_path):
    (tmp_path / "g.json.c.windows").write_bytes(line + b"\n")
    with pytest.raises(InputError, match="g.json.c.windows, line 1: .*remove the file"):
        Journal(tmp_path / "g.json", "c")


@pytest.mark.parametrize("before, after", [("1.0", "0.5"), ("1.0", "1.0, 0.0"), ('"x"', '"y"'), ('"x"', "3"),
                                           ("[0]", "[1]"), ("[0]", '["0"]'), ("34", "-3"), ("34", "NaN")])
def test_a_journal_that_was_changed(before, after, tmp_path):
    Journal(tmp_path / "g.json", "c").append(Batch(1, [InformationPoint("x", [0], [1.0])], 34, 0, 0))
    file = tmp_path / "g.json.c.windows"
    checksum, text = file.read_text().split(" ", 1)
    file.write_text(f"{checksum} {text.replace(before, after)}")
    with pytest.raises(InputError, match="g.json.c.windows, line 1: .*its checksum is another.*remove the file"):
        Journal(tmp_path / "g.json", "c")


# --- predictions ----------------------------------------------------------------------------------------------------

BAD_PREDICTIONS = ["", "{", "[]", "3", DEEP, '{"pred": "x"}', '{"answers": ["x"]}', '{"pred": 1, "answers": ["x"]}',
                   '{"pred": "x", "answers": "Ann"}', '{"pred": "x", "answers": {}}', '{"pred": "x", "answers": [1]}',
                   '{"pred": "x", "answers": []}', '{"pred": null, "answers": ["x"]}',
                   '{"pred": "\\ud800", "answers": ["x"]}',
                   '{"pred": "x", "answers": ["x"], "n": NaN}', "\n\n"]


@pytest.mark.parametrize("content", BAD_PREDICTIONS)
def test_a_bad_file_to_score(content, tmp_path, capsys):
    (tmp_path / "p.jsonl").write_text(content + "\n")
    refused(evaluation_main.main, ["--score", tmp_path / "p.jsonl"], tmp_path, capsys, "p.jsonl, line 1: ")


GOOD_ROW = {"id": "a", "document": "d", "hash": "h", "question": "q", "prediction": "p", "answers": ["x"], "nodes": 1,
            "tokens": 2, "flops": 3, "construction_flops": 4, "cut": False}


@pytest.mark.parametrize("key, value", [*((key, None) for key in GOOD_ROW), ("id", ["a"]), ("answers", "Ann"),
                                        ("nodes", "3"), ("flops", 10 ** 400), ("flops", 1.5), ("cut", 1), ("tokens",
                                        -1)])
def test_a_bad_row_among_the_answers(key, value, tmp_path):
    path = tmp_path / "pecan.jsonl"
    path.write_text(json.dumps(GOOD_ROW | {key: value}) + "\n")
    with pytest.raises(InputError, match=rf"pecan.jsonl, line 1: .*{key} is .*--overwrite"):
        Predictions(path)


# --- options --------------------------------------------------------------------------------------------------------

BAD_OPTIONS = [
    (["--searcher", "", "--table", "2"], "searcher is empty"), (["--output", ""], "output is empty"),
    (["--model", ""], "model is empty"), (["--graphs", ""], "graphs is empty"), (["--dataset", ""], "dataset is empty"),
    (["--encoder", ""], "encoder is empty"), (["--score", ""], "score is empty"), (["--device", ""], "device is empty"),
    (["--output", "\udcff"], "output '\\udcff' is not UTF-8"), (["--dataset", "x\udc80"], "not UTF-8"),
    (["--nodes", "3", "--patience", "4"], "--nodes reads a fixed number"),
    (["--nodes", "3", "--confidence", ".4"], "--nodes reads a fixed number"),
    (["--dry-run", "--chunk", "500"], "window 380 is too small"), (["--dry-run", "--window", "100"], "window 100"),
    (["--dry-run", "--window", "9999"], "made for 512"), (["--dry-run", "--chunk", "0"], "chunk is 0"),
    (["--dry-run", "--encoder", "no/such/model"], "no such folder"), (["--dry-run", "--builder", "nothing"], "nothing"),
    (["--chunk", "-1"], "chunk is -1"), (["--window", "0"], "window is 0"), (["--patience", "0"], "patience is 0"),
    (["--confidence", "nan"], "confidence is nan"), (["--confidence", "-1"], "confidence is -1"),
    (["--confidence", "inf"], "confidence is inf"), (["--batch", "0"], "batch is 0"), (["--nodes", "0"],
    "--nodes is 0"),
    (["--without", "attention", "--without", "similarity"], "cannot both be off"),
    (["--table", "2", "--searcher", "nothing"], "nothing: no such folder"),
    (["--table", "2", "--searcher", "tests"], "tests/config.json: cannot be read"),
    (["--scorer", "nothing"], "nothing"), (["--heads", "9-0"], "head 9-0 is not there: the checkpoint has 6 layers"),
    (["--dry-run", "--heads", "0-4"], "head 0-4 is not there: the checkpoint has 6 layers of 4 heads"),
    (["--dragon", "nothing", "nothing"], "nothing"), (["--limit", "-3"], "--limit is -3"), (["--top", "0"], "--top"),
    (["--method", "pecan,,"], "unknown"), (["--dataset", "/dev/null"], "/dev/null"), (["--dataset", "tests"], "tests"),
    (["--window", str(10 ** 30)], "window is 1000"), (["--output", "x" * 300], "x"), (["--output", "LICENSE"],
    "LICENSE")]


@pytest.mark.parametrize("options, words", BAD_OPTIONS)
def test_bad_options(options, words, tmp_path, capsys, monkeypatch):
    """Refused before anything is written. (An output folder may be made, and locked, by then.)"""
    (tmp_path / "LICENSE").write_text("x")
    (tmp_path / "tests").mkdir()
    monkeypatch.chdir(tmp_path)
    output = tmp_path / "r"
    output.mkdir()
    (output / "graphs").mkdir()
    (output / "lock").touch()
    given = [] if "--output" in options else ["--output", output]
    refused(evaluation_main.main, ["--limit", 1, "--device", "cpu", *given, *options], tmp_path, capsys, words)


@pytest.mark.parametrize("name", ["0" * 240 + ".txt", "none/story.txt"])
def test_a_graph_that_cannot_be_named_is_refused_before_the_work(name, tmp_path, capsys):
    if "/" not in name:
        (tmp_path / name).write_text("The road was long.")
    refused(pecan.main, [tmp_path / name, "Who?", "--device", "cpu"], tmp_path, capsys, name.split("/")[-1])


@pytest.mark.parametrize("variables, words", [
    ({"RANK": "x"}, "torchrun"), ({"RANK": "2"}, "rank 2 of 1"), ({"WORLD_SIZE": "2"}, "torchrun"),
    ({"WORLD_SIZE": "2", "RANK": "0"}, "LOCAL_RANK"), ({"WORLD_SIZE": "x"}, "torchrun")])
def test_variables_of_torchrun_set_by_hand(variables, words, tmp_path, capsys, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    refused(evaluation_main.main, ["--limit", 1, "--output", tmp_path / "r"], tmp_path, capsys, words)


# --- what is someone else's -----------------------------------------------------------------------------------------

def test_a_file_called_lock_is_not_emptied(tmp_path):
    (tmp_path / "lock").write_text("Dear Ann,")
    lock(tmp_path).close()
    assert (tmp_path / "lock").read_text() == "Dear Ann,"


@pytest.mark.parametrize("name", ["pecan.jsonl", "pecan.jsonl.part-0"])
@pytest.mark.parametrize("content", ["Dear Ann,", "Dear Ann,\nthe mill"])
def test_a_file_without_the_end_of_a_line_is_not_cut(tmp_path, name, content):
    """A run without a setup there has written no such file, so it is refused as it is."""
    (tmp_path / name).write_text(content)
    assert user_errors(lambda: claim_file(tmp_path / "pecan.jsonl", {"patience": 1}, False)) == 2
    assert files(tmp_path) == {name: content.encode()}


def test_a_folder_called_old_is_kept(tmp_path, capsys):
    path = tmp_path / "d" / "pecan.jsonl"
    claim_file(path, {"patience": 1}, False)
    path.write_text(json.dumps(GOOD_ROW) + "\n")
    letter = path.with_name("pecan.jsonl.old") / "letter.txt"
    letter.parent.mkdir()
    letter.write_text("Dear Ann,")
    refused(lambda _: claim_file(path, {"patience": 1}, True), [], tmp_path, capsys, "letter.txt: is in the way")


@pytest.mark.parametrize("name, words", [("lock", "lock: cannot be written"),
                                         ("embedded/pecan.jsonl.part-0", "pecan.setup.json: cannot be read")])
def test_a_link_in_the_output_folder_is_refused(name, words, tmp_path, capsys):
    path = tmp_path / "r" / name
    path.parent.mkdir(parents=True)
    (tmp_path / "letter").write_text("Dear Ann,")
    path.symlink_to(tmp_path / "letter")
    command = ["--limit", "1", "--method", "pecan", "--device", "cpu", "--output", str(tmp_path / "r")]
    assert user_errors(lambda: evaluation_main.main(command)) == 2
    assert words in capsys.readouterr().err
    assert (tmp_path / "letter").read_text() == "Dear Ann,"


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "letter").write_text("Dear Ann,")
    (tmp_path / "link").symlink_to(tmp_path / "letter")
    for write in (open_own, lambda path: append_line(path, "x")):
        with pytest.raises(OutputError, match="link: cannot be written"):
            write(tmp_path / "link")
    assert (tmp_path / "letter").read_text() == "Dear Ann,"


@pytest.mark.parametrize("name, expected", [("graphs.jsonl", "graphs-own"), ("lock.jsonl", "lock-own"), (".jsonl",
    "-own")])
def test_a_data_set_with_a_name_that_is_taken(name, expected, tmp_path):
    (tmp_path / name).write_text(row())
    assert Dataset(tmp_path / name).name == expected


def test_what_a_dead_process_left_is_removed(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left, alive, other = (tmp_path / f"{name}.partial" for name in (f"x.json.{gone.pid}", f"x.json.{os.getppid()}",
        "x.json.y"))
    for path in (left, alive, other):
        path.write_text("half")
    folder = tmp_path / f"x.json.{1 << 23}.partial"                  # of a conversion; no process has such an id
    folder.mkdir()
    (folder / "config.json").write_text("half")
    write_file(tmp_path / "x.json", "whole")
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "x.json", alive, other])


def test_what_an_ended_process_of_the_same_id_left_is_removed(tmp_path):
    (tmp_path / f"x.json.{os.getpid()}.partial" / "half").mkdir(parents=True)
    write_file(tmp_path / "x.json", "whole")
    assert list(tmp_path.iterdir()) == [tmp_path / "x.json"]


# --- old answers ----------------------------------------------------------------------------------------------------

@pytest.fixture
def answered(tmp_path):
    """A file of answers with a part and a setup, and what else the folder must keep."""
    path = tmp_path / "d" / "pecan.jsonl"
    claim_file(path, {"patience": 1}, False)
    path.write_text(json.dumps(GOOD_ROW) + "\n")
    path.with_name("pecan.jsonl.part-0").write_text(json.dumps(GOOD_ROW | {"id": "b"}) + "\n")
    return path


def test_old_answers_wait_for_the_first_new_one(answered):
    before = files(answered.parent)
    claim_file(answered, {"patience": 2}, True)
    assert not Predictions(answered).rows
    assert set(before.values()) <= set(files(answered.parent).values()), "gone before there is a new one"

    Predictions(answered).add(GOOD_ROW | {"id": "new"})
    assert set(files(answered.parent)) == {"pecan.jsonl.part-0", "pecan.setup.json"}
    assert set(Predictions(answered).rows) == {"new"}


def test_old_answers_come_back_if_there_is_no_new_one(answered):
    before = files(answered.parent)
    claim_file(answered, {"patience": 2}, True)
    claim_file(answered, {"patience": 1}, False)                 # the next run, of the old setup
    assert files(answered.parent) == before


@pytest.mark.parametrize("torn", [b"", b'{"id": "new", "pred'])
def test_old_answers_come_back_if_the_first_new_one_is_torn(answered, torn):
    before = files(answered.parent)
    claim_file(answered, {"patience": 2}, True)
    answered.with_name("pecan.jsonl.part-0").write_bytes(torn)
    with contextlib.suppress(InputError):
        claim_file(answered, {"patience": 1}, False)
    assert files(answered.parent) == before


@pytest.mark.parametrize("moves", range(4))
def test_a_kill_while_answers_are_moved_loses_none(answered, moves, monkeypatch):
    before = files(answered.parent)
    replace, done = Path.replace, []

    def killed(self, target):
        if len(done) == moves:
            raise KeyboardInterrupt
        done.append(replace(self, target))

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        claim_file(answered, {"patience": 2}, True)
        raise KeyboardInterrupt                                  # after the last of three moves
    monkeypatch.undo()
    assert user_errors(lambda: claim_file(answered, {"patience": 1}, False)) != 2
    assert files(answered.parent) == before


def test_a_garbage_line_can_be_overwritten(answered):
    answered.write_text("garbage\n")
    with pytest.raises(InputError, match="--overwrite"):
        claim_file(answered, {"patience": 1}, False)
    assert user_errors(lambda: claim_file(answered, {"patience": 1}, True)) != 2
    assert not Predictions(answered).rows


def test_a_missing_setup_has_a_remedy(answered):
    answered.with_name("pecan.setup.json").unlink()
    with pytest.raises(InputError, match="pecan.setup.json: cannot be read .*--overwrite"):
        claim_file(answered, {"patience": 1}, False)


def test_overwriting_that_fails_changes_nothing(tmp_path, capsys):
    """A window that is too small is found after the old answers were set aside."""
    output = ["--limit", "1", "--method", "pecan", "--device", "cpu", "--output", str(tmp_path / "r")]
    assert evaluation_main.main(output) == 0
    refused(evaluation_main.main, [*output, "--overwrite", "--window", "200"], tmp_path, capsys,
        "window 200 is too small")


# --- nothing is lost silently ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("page, expected", [
    ("<html><!-- never closed The mill stood.", "never closed The mill stood."), ("<html><title>The mill stood.",
    "The mill stood."),
    ("<html><body>if x <y then go. The end.", "if x <y then go. The end."), ("<html><script>var x; The end.",
    "var x; The end."),
    ("<html><p>One<p class='x'>Two <b", "One Two <b"), ("<html>One <![ two", "One <![ two"), ("<html>1 < 2 & 3 > 2",
    "1 < 2 & 3 > 2"),
    ("<html><style>p {}</style><title>T</title>Text<!-- no --> here &amp; &eacute;", "Text here & é"),
    ("<html><SCRIPT>var x;</Script >One<br/>Two<o:p>Three</o:p>", "One TwoThree"), ("<html><!-- a --><!-- b The end.",
    "b The end.")])
def test_a_page_with_open_ends_loses_nothing(page, expected):
    text = " ".join(plain_text(page, Report("x"), "x").split())
    assert text.removeprefix("<!-- ").endswith(expected) and len(text) < len(expected) + 3


def test_a_short_row_drops_itself_alone(tmp_path):
    table = narrativeqa(tmp_path / "n", a=b"The mill stood.", b=b"The sea.") / "qaps.csv"
    table.write_text(table.read_text() + "a,test,Why?\nb,test,When?,a,b,c,d,e,f,g\n")
    dataset = Dataset(tmp_path / "n")
    assert [len(document.questions) for document in dataset.documents()] == [2, 2]
    assert {reason: entry["count"] for reason, entry in dataset.report.skipped.items()} == {
        "a row with another number of columns": 2}


def test_a_bad_question_drops_itself_alone(tmp_path):
    path = tmp_path / "l.jsonl"
    path.write_text("\n".join(json.dumps(longbench(_id=str(n), answers=answers)) for n, answers in
                              enumerate(["Ann", ["Ann"], [None], {"a": 1}])))
    dataset = Dataset(path)
    assert dataset.questions == ["1"] and sum(entry["count"] for entry in dataset.report.skipped.values()) == 3


def test_aliases_are_a_list(tmp_path):
    """The letters of a text are no answers."""
    path = tmp_path / "m.jsonl"
    path.write_text(json.dumps(musique(id="bad", answer_aliases="Ann Lee")) + "\n" + json.dumps(musique()))
    dataset = Dataset(path)
    assert [question.answers for asked in dataset.questions_of.values() for question in asked] == [["Ann", "Ann Lee"]]


@pytest.mark.parametrize("bad", [{"title": None}, {"paragraph_text": None}, {"title": 3}, {"paragraph_text": ["x"]}])
def test_null_is_no_text(bad, tmp_path):
    paragraphs = musique()["paragraphs"]
    path = tmp_path / "m.jsonl"
    path.write_text(json.dumps(musique(id="bad", paragraphs=[paragraphs[0] | bad,
        *paragraphs[1:]])) + "\n" + json.dumps(musique()))
    documents = list(Dataset(path).documents())
    assert [document.id for document in documents] == ["m1"] and "None" not in "".join(documents[0].passages)


def test_ids_that_look_like_numbered_ones(tmp_path):
    path = tmp_path / "l.jsonl"
    path.write_text("\n".join(json.dumps(longbench(_id=name, input=f"{n}?")) for n, name in enumerate(["a", "a", "a#2",
        "a"])))
    names = Dataset(path).questions
    assert len(set(names)) == 4 and names[:2] == ["a", "a#2"]


@pytest.mark.parametrize("form", ["lines", "hub"])
def test_hotpotqa_as_json_lines(form, tmp_path):
    row = hotpotqa()
    if form == "hub":
        row["id"] = row.pop("_id")
        row["context"] = {"title": [t for t, _ in row["context"]], "sentences": [s for _, s in row["context"]]}
    (tmp_path / "h.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row | {"id": "h2", "_id": "h2"}) + "\n")
    (tmp_path / "h.json").write_text(json.dumps([hotpotqa()]))
    assert user_errors(lambda: layouts_main.main([str(tmp_path / "h.jsonl")])) == 0
    dataset, official = Dataset(tmp_path / "h.jsonl"), Dataset(tmp_path / "h.json")
    assert dataset.name == "HotpotQA" and dataset.questions == ["h1", "h2"]
    assert next(dataset.documents()).passages == next(official.documents()).passages


def test_titles_can_be_left_out(tmp_path, capsys):
    (tmp_path / "h.json").write_text(json.dumps([hotpotqa()]))
    (tmp_path / "m.jsonl").write_text(json.dumps(musique()))
    for name in ("h.json", "m.jsonl"):
        titled, untitled = Dataset(tmp_path / name), Dataset(f"{tmp_path / name}:untitled")
        assert untitled.name == titled.name and untitled.report.layout.endswith("untitled")
        for with_title, without in zip(next(titled.documents()).passages, next(untitled.documents()).passages,
            strict=True):
            assert with_title.partition("\n")[2] == without
    (tmp_path / "own.jsonl").write_text(row())
    refused(layouts_main.main, [f"{tmp_path / 'own.jsonl'}:untitled"], tmp_path, capsys, "has no titles")


class Bytes:
    """A tokenizer whose tokens are the bytes of UTF-8."""
    def encode(self, text):
        return list(text.encode())


@pytest.mark.parametrize("text", ["今日は良い天気ですね" * 20, "か\u3099" * 40, "e\u0301\u0302" * 50,
                                  "👩\u200d🚀" * 30, "한국어" * 30])
def test_a_long_word_is_cut_between_characters(text):
    pieces = split(Bytes(), text, 30)
    assert "".join(piece.replace(" ", "") for piece in pieces) == text
    assert max(len(piece.encode()) for piece in pieces) <= 30, "a chunk is too long"
    for piece in pieces:
        for word in piece.split():
            assert word[0] not in "\u3099\u0301\u0302\u200d" and not word.endswith("\u200d")


# --- what must not be slow ------------------------------------------------------------------------------------------

def holds_soon(check) -> bool:
    """Whether check() holds, asked in a process that the kernel kills after five seconds of processor time.

    Linear time is a second at most on a slow machine, quadratic time many minutes. Nothing else stops a regular
    expression.
    """
    child = os.fork()
    if child == 0:
        holds = False
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
            holds = check()
        finally:
            os._exit(not holds)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("text", [" " * 10 ** 6 + "x", "\t" * 10 ** 6, "1" * 10 ** 6, "x" + " " * 10 ** 6 + "*" * 9,
                                  ("1" * 1000 + " ") * 1000, "* " * 10 ** 6, "\n".join(["1" * 30] * 30_000)])
def test_bullets_take_linear_time(text):
    assert holds_soon(lambda: all(text[start:end] == text[start:end].strip() != "" for start, end in bullets(text)))


# Of each reader of replies in baselines/: what it would seek again and again.
REPLIES = {
    "weights": (lambda reply: weights_of(reply, ["y"]) == {}, [
        "* " * 10 ** 6, " " * 10 ** 6 + "x|", "|" * 10 ** 6, "\n" * 10 ** 5]),
    "notebook": (lambda reply: len(notebook_of(reply)) < len(reply), [
        "Updated Notebook" + filler * 10 ** 6 for filler in ("\n", "\n*", "* \n", "\nRationale")]),
    "scores": (lambda reply: scores_of(reply, FactGraph([], str)) == {}, [
        "Node: " * 10 ** 5, "Node:" + " " * 10 ** 6, "Node: x" + " " * 10 ** 6, "Node: x, " * 10 ** 5]),
    "pages": (lambda reply: pages_of(reply, 1, 1) is None, [
        "Page" + " " * 10 ** 6, "Page [" + "\t" * 10 ** 6, "Page 1" + " " * 10 ** 6, "Page 1" + ", 1" * 10 ** 5]),
    "pairs": (lambda reply: pairs_of(reply, 1) == [], [
        "Question: " * 10 ** 5 + "\n", "Question: x\n" * 10 ** 5, "Question:" + " " * 10 ** 6,
        "Question: x\n" + "Answer:" + " " * 10 ** 6])}


@pytest.mark.parametrize("reader", REPLIES)
def test_replies_to_the_systems_take_linear_time(reader):
    check, replies = REPLIES[reader]
    assert all(holds_soon(lambda reply=reply: check(reply)) for reply in replies)


@pytest.mark.parametrize("page", [
    " " * 10 ** 6 + "x", "<html>" + "<!-- " * 200_000, "<html>" + "<a " * 300_000, "<html>" + "<title>" * 100_000,
    "<html>" + "<" * 10 ** 5, "<!--" + " " * 10 ** 6, "var x" + "\n " * 10 ** 5, "var x\n" + " " * 10 ** 6])
def test_stories_take_linear_time(page):
    assert holds_soon(lambda: len(plain_text(page, Report("x"), "x")) <= len(page))


# --- processes ------------------------------------------------------------------------------------------------------

def run(*arguments, **options):
    return subprocess.run([sys.executable, *map(str, arguments)], cwd=ROOT, capture_output=True, **options)


@pytest.mark.slow
@pytest.mark.parametrize("arguments, words", [
    (["pecan.py", "tiny/story.txt", b"Who \xff?"], b"questions"), (["pecan.py", "none.txt", "Who?"], b"none.txt"),
    (["pecan.py", "LICENSE", "Who?", "--window", "9999"], b"window 9999"), (["eval.py", "--output", b"\xff"],
    b"output"),
    (["eval.py", "--score", "LICENSE"], b"LICENSE, line 1"), (["-m", "evaluation.layouts", "LICENSE"], b"LICENSE"),
    (["-m", "evaluation.layouts", "x\udcff"], b"path"), (["-m", "tiny.compare", "/nowhere"], b"/nowhere"),
    (["-m", "view.page", "LICENSE", "-o", "x.html"], b"LICENSE, line 1"),
    (["-m", "support.convert", "LICENSE", "x"], b"LICENSE")])
def test_a_process_is_refused_in_one_line(arguments, words, tmp_path):
    """And nothing changes where it runs, except for the folder of results, which is made and locked."""
    shutil.copy(ROOT / "LICENSE", tmp_path)
    shutil.copytree(ROOT / "tiny", tmp_path / "tiny", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    before = files(tmp_path)
    command = [str(ROOT / arguments[0]), *arguments[1:]] if arguments[0].endswith(".py") else arguments
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True,
                          env=os.environ | {"PYTHONPATH": str(ROOT)})
    errors = [line for line in done.stderr.splitlines() if line.startswith(b"error: ")]
    assert done.returncode == 2 and len(errors) == 1 and words in errors[0] and b"Traceback" not in done.stderr
    assert files(tmp_path) == before


def test_a_terminal_of_ascii_and_a_full_or_closed_output(tmp_path):
    path = tmp_path / "é.jsonl"
    path.write_text(row())
    command = [sys.executable, "-m", "evaluation.layouts", str(path)]
    ascii_ = subprocess.run(command, cwd=ROOT, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert ascii_.returncode == 0 and b"\\xe9.jsonl: own" in ascii_.stdout and not ascii_.stderr

    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2 and done.stderr.startswith(b"error: stdout: ") and done.stderr.count(b"\n") == 1

    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert done.returncode == 0 and not done.stderr


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A short data set, and the output folder of a run over it that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("alone")
    data = short_set(folder)
    assert evaluation_main.main([*COMMAND[2:], "--dataset", str(data), "--output", str(folder / "r")]) == 0
    return data, folder / "r"


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_killed_run_goes_on(sent, processes, alone, tmp_path):
    """Three signals at some moment, to one process and to torchrun: the next run ends as one left alone.

    It is a run of two processes after kill -9 of two; else it is in this one, which saves the imports. Some kills tear
    the last line of a file; here each has.
    """
    data, undisturbed = alone
    command, in_time = kill(data, tmp_path / "r", sent, processes, random.Random(sent * processes).uniform(0, 1))
    assert in_time, "the run had ended before the signal"
    for part in [*tmp_path.glob("r/*/*.part-*"), *tmp_path.glob("r/graphs/*.windows")]:
        with open(part, "a") as file:
            file.write('{"id": "test-0-3", "predic')
    if (sent, processes) == (signal.SIGKILL, 2):
        go_on(command)
    else:
        assert evaluation_main.main([*COMMAND[2:], "--dataset", str(data), "--output", str(tmp_path / "r")]) == 0
    assert files(tmp_path / "r") == files(undisturbed)
