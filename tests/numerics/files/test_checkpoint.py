"""Checkpoint folders: both versions of config.json, shards, and damage, reported in one line."""
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from folders import change, change_tensors, read, write
from hub import COMMIT, serve
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import LLAMA3 as SCALING
from oracle import greedy, hugging_face, write_checkpoint
from safetensors.torch import save_file
from transformers import AutoConfig, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from core.files import InputError, sha256
from llama import Cache, Llama, inverse_frequencies
from model.checkpoint import FILES, RULES, SCALINGS, choose_device, fingerprint, locate, read_config


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "m")


# --- the same as in Hugging Face ------------------------------------------------------------------------------------

def test_weights_do_not_change_with_their_file(copy):
    """A file that is written anew in place, while a model runs, changes no weight. (safetensors maps files.)"""
    model = Llama.load(copy, "cpu", "float32")
    before = {name: weight.clone() for name, weight in model.weights.items()}
    with open(copy / "model.safetensors", "r+b") as file:
        size = file.seek(0, 2)
        file.seek(size // 2)
        file.write(bytes(size - size // 2))
    assert all(torch.equal(weight, before[name]) for name, weight in model.weights.items())


def test_both_dialects_and_shards_are_one_checkpoint(tmp_path, folder, model):
    """A config.json of transformers 4 and weights in many files load as the same checkpoint."""
    other = write_checkpoint(tmp_path, shard="100KB", dialect=4)
    assert read_config(other) == read_config(folder)
    loaded = Llama.load(other, "cpu").weights
    assert loaded.keys() == model.weights.keys()
    assert all(torch.equal(loaded[name], weight) for name, weight in model.weights.items())


def test_eos_of_the_generation_config_comes_first(copy):
    """If it names none, config.json's counts: one token or several. If that has no such key, it is Hugging Face's."""
    raw = read(copy)
    for generation, eos, wanted in (([5, 6], 7, (5, 6)), (0, 7, (0,)), (None, [7, 9], (7, 9)), (None, None, ())):
        write(copy, "generation_config.json", {"eos_token_id": generation})
        write(copy, "config.json", raw | {"eos_token_id": eos})
        assert read_config(copy).eos == wanted
    change(copy, eos_token_id=None)
    assert read_config(copy).eos == (LlamaConfig().eos_token_id,)

    for name in ("config.json", "generation_config.json"):
        for eos in ("2", ["2"], [True], 2.0):
            write(copy, name, raw | {"eos_token_id": eos})
            with pytest.raises(InputError, match=f"/{name}: eos_token_id is .*; it must be the id of a token"):
                read_config(copy)


def test_what_old_checkpoints_hold_besides(tmp_path):
    """A table of RoPE's frequencies is skipped, and a copy of a tied output matrix."""
    folder = write_checkpoint(tmp_path, tie_word_embeddings=True)
    wanted = Llama.load(folder, "cpu").weights
    change_tensors(folder, {"model.layers.1.self_attn.rotary_emb.inv_freq": torch.zeros(8),
                            "lm_head.weight": wanted["model.embed_tokens.weight"]})
    loaded = Llama.load(folder, "cpu").weights
    assert loaded.keys() == wanted.keys() and all(torch.equal(loaded[name], wanted[name]) for name in wanted)


def test_one_file_counts_beside_the_index_of_old_shards(tmp_path, model):
    """So it does in Hugging Face."""
    write_checkpoint(tmp_path, seed=1, shard="100KB")
    save_file(model.weights, tmp_path / "model.safetensors")
    theirs = hugging_face(tmp_path).state_dict()
    ours = Llama.load(tmp_path, "cpu").weights
    assert all(torch.equal(ours[name], theirs[name]) and torch.equal(ours[name], model.weights[name]) for name in ours)


@pytest.mark.parametrize("window, longest", [(None, 2048), (4096, 2048), (512, 512)])
def test_a_sliding_window_is_the_longest_window(folder, tmp_path, window, longest):
    """Inside of it nothing slides. Hugging Face's default for an absent key is 4096."""
    mistral = read(folder) | {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    write(tmp_path, "config.json", mistral | {"sliding_window": window})
    assert read_config(tmp_path).max_length == longest
    write(tmp_path, "config.json", mistral | {"max_position_embeddings": 8192})
    assert read_config(tmp_path).max_length == 4096
    qwen2 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False}
    write(tmp_path, "config.json", mistral | qwen2 | {"sliding_window": window})
    assert read_config(tmp_path).max_length == 2048, "Qwen2's is switched off"


OLD_LLAMA3 = {"type": "llama3"} | {key: value for key, value in SCALING.items() if key != "rope_type"}


@pytest.mark.parametrize("changes", [
    *({key: None} for key in ("max_position_embeddings", "head_dim", "num_key_value_heads", "rms_norm_eps",
                              "tie_word_embeddings", "rope_parameters", "dtype")),
    {"rope_parameters": {key: value for key, value in SCALING.items() if not key.startswith("original")}},
    {"original_max_position_embeddings": 128},
    {"rope_parameters": {"rope_type": "default"}, "rope_scaling": SCALING, "rope_theta": 7.0},
    {"rope_parameters": SCALING, "rope_scaling": {"rope_type": "default"}, "rope_theta": 7.0},
    {"rope_parameters": None, "rope_scaling": OLD_LLAMA3},
    {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 3.0}, "rope_theta": 7.0},
    {"rope_parameters": {"rope_type": "linear", "rope_theta": 7.0, "factor": 3.0}},
    {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": None, "head_dim": None,
     "num_attention_heads": 64},
    {"rope_parameters": None, "rope_scaling": {**OLD_LLAMA3, "type": "yarn", "rope_type": "llama3"}},
    *({"model_type": kind.lower(), "architectures": [f"{kind}ForCausalLM"], "num_attention_heads": 64,
       "num_key_value_heads": None} for kind in ("Qwen2", "Mistral"))])
def test_what_a_config_leaves_out_or_says_twice_is_as_in_hugging_face(tmp_path, changes):
    """A key that is absent from config.json has Hugging Face's default; the dtype has Llama's, bfloat16."""
    change(write_checkpoint(tmp_path, num_attention_heads=4, head_dim=16), **changes)
    ours, theirs = read_config(tmp_path), AutoConfig.from_pretrained(tmp_path)
    for name, key in {"heads": "num_attention_heads", "kv_heads": "num_key_value_heads", "head_width": "head_dim",
                      "norm_eps": "rms_norm_eps", "tied": "tie_word_embeddings",
                      "max_length": "max_position_embeddings"}.items():
        assert getattr(ours, name) == getattr(theirs, key), key
    assert ours.dtype == str(theirs.dtype or "bfloat16").removeprefix("torch.")
    assert torch.equal(inverse_frequencies(ours), LlamaRotaryEmbedding(theirs).inv_freq)


def test_a_key_that_changes_what_hugging_face_decodes_is_named(copy, hf, capsys):
    """We take the model's own best token. Keys of sampling change nothing in greedy decoding, and are not named."""
    plain = greedy(hf, [5, 6, 7], 9)
    for key, value in {"repetition_penalty": 9.0, "no_repeat_ngram_size": 1, "suppress_tokens": plain[:1],
                       "bad_words_ids": [plain[:1]], "temperature": .1, "top_k": 2, "max_length": None}.items():
        write(copy, "generation_config.json", {key: value})
        read_config(copy)
        assert (greedy(hf, [5, 6, 7], 9, **{key: value}) != plain) == (key in capsys.readouterr().err)


def test_a_key_that_nobody_knows_is_named_once(copy, model, capsys):
    change(copy, more=1, rope_parameters=SCALING | {"most": 2}, _most=3)
    assert [Llama.load(copy, "cpu").config for _ in range(2)] == [model.config] * 2
    assert capsys.readouterr().err == f"{copy}/config.json: not used: more, most\n"


# --- damage ---------------------------------------------------------------------------------------------------------

def error_of(folder):
    """The error of loading a checkpoint: one line that names the folder or its file. None if it loads."""
    try:
        Llama.load(folder, "cpu")
    except InputError as error:
        assert str(error).startswith(str(folder)) and "\n" not in str(error)
        return str(error)


UP = "model.layers.1.mlp.up_proj.weight"
NORM = "model.norm.weight"


def only_an_index(folder):
    (folder / "model.safetensors").unlink()
    write(folder, "model.safetensors.index.json", '{"weight_map": ["x"]}')


@pytest.mark.parametrize("damage, words", [
    (partial(change, num_key_value_heads=4), ["k_proj", "(32, 64)", "(64, 64)"]),
    (partial(change, num_key_value_heads=3), ["num_key_value_heads is 3; it must be a divisor", "8"]),
    (partial(change, head_dim=15), ["head_dim is 15; it must be an even number"]),
    (partial(change, vocab_size=7), ["vocab_size of config.json is 7"]),
    (partial(change, tie_word_embeddings=True), ["config.json ties lm_head.weight"]),
    (partial(change_tensors, changes={UP: None}), ["missing", UP]),
    (partial(change_tensors, changes={"rotary_emb.inv_freq.x": torch.zeros(1)}), ["inv_freq.x is", "no such tensor"]),
    (partial(change_tensors, changes={NORM: torch.zeros(3)}), [NORM, "(3,)", "(64,)"]),
    *((partial(change_tensors, changes={NORM: torch.zeros(64, dtype=dtype)}), ["model.safetensors", NORM, str(dtype)])
      for dtype in (torch.int8, torch.float8_e4m3fn)),
    (only_an_index, ["index.json"]),
    (partial(change, use_sliding_window=True), ["use_sliding_window is True"]),
    (partial(change, model_type="mistral"), ["architectures is ['LlamaForCausalLM']"]),
    (partial(change, rope_scaling="llama3"), ["config.json: not the config.json of a Llama"]),
    *((partial(change, **{key: value}), [f"config.json: {key} is {value!r}; "])
      for key, value in (("model_type", "phi3"), ("model_type", "qwen3_moe"), ("model_type", "gemma2"),
                         ("layer_types", ["full_attention", "sliding_attention"]))),
    *((partial(change, rope_scaling={"rope_type": kind, "factor": 4.0}), [f"config.json: rope_type is '{kind}'; "])
      for kind in ("yarn", "longrope", "dynamic")),
    (partial(change, rope_scaling={"rope_type": "linear"}), ["config.json: key 'factor' is missing"]),
])
def test_broken_checkpoints_are_named(copy, damage, words):
    damage(copy)
    said = error_of(copy)
    assert said and all(word in said for word in words)


@pytest.mark.parametrize("name, words", [
    ("pytorch_model.bin", "save_pretrained of"), ("q4.gguf", "gguf_file="), ("adapter_config.json", "merge it into"),
    ("model-1-of-2.safetensors", "index.json, too"), ("snapshots", "below snapshots")])
def test_where_a_file_is_missing_the_error_says_what_there_is(tmp_path, monkeypatch, name, words):
    (tmp_path / name).touch()
    with pytest.raises(InputError, match=f"config.json: cannot be read .*; there is {name}.*{words}"):
        Llama.load(tmp_path, "cpu")
    with serve({"a/b": {name: b""}}, tmp_path / "cache", monkeypatch), \
            pytest.raises(InputError, match=f"a/b: has no config.json; there is {name}.*{words}"):
        locate("a/b")


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("content, words", [
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0a", "git lfs pull"), (b"\x1f\x8b\x08", "packed by gzip"),
    ("{}".encode("utf-16"), "in UTF-16"), (b"\n<!DOCTYPE html><html>", "in HTML"), (b"GGUF\3", "a GGUF file")])
def test_a_file_of_another_kind_is_named(copy, file, content, words):
    (copy / file).write_bytes(content + bytes(99))
    assert f"{file}: not " in error_of(copy) and words in error_of(copy)


@given(st.sampled_from([*RULES, "hidden_act", "partial_rotary_factor", *SCALINGS["llama3"], "head_dim"]),
       st.sampled_from(["'4'", 0, -1, [4], {}, "x", 10 ** 20]))
def test_an_impossible_value_of_config_is_named(tmp_path_factory, folder, key, value):
    """The error names the key of config.json, not the attribute of the code."""
    copy = tmp_path_factory.getbasetemp()
    raw = read(folder)
    (raw["rope_parameters"] if key in raw["rope_parameters"] else raw)[key] = value
    write(copy, "config.json", raw)
    with pytest.raises(InputError, match=f"config.json: {key} is "):
        read_config(copy)


@settings(max_examples=60)
@given(st.sampled_from(["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]), st.data())
def test_a_file_that_was_damaged_anywhere(tmp_path_factory, folder, name, data):
    """A file that is cut short, replaced, or has one wrong byte is refused in one line, or loads."""
    copy = shutil.copytree(folder, tmp_path_factory.getbasetemp() / "damaged", dirs_exist_ok=True)
    good = (folder / name).read_bytes()
    at = data.draw(st.integers(0, min(len(good), 3000) - 1))
    byte = data.draw(st.sampled_from([b"", b"\xff", b"[", b'"', b"9"]))
    rest = data.draw(st.sampled_from([good[at + 1:], b""]))
    (copy / name).write_bytes(good[:at] + byte + rest)
    error_of(copy)


def test_logits_that_are_not_finite_are_named(model, ids):
    """A weight may be NaN in the file, or too large for the dtype. Logits may be infinite, but not NaN."""
    weights = model.weights | {UP: model.weights[UP] * float("nan")}
    broken = Llama(model.config, weights)
    hidden, _ = broken.append(Cache(broken, 1, 20), [[(None, ids(9))]])
    for hidden in (hidden, torch.tensor([float("inf"), *[0.] * 63])):
        for tokens in (None, [7, 3]):
            with pytest.raises(InputError, match="not finite in torch.float32; its weights may be damaged"):
                broken.logits(hidden, tokens)


# --- folders, fingerprints, devices ---------------------------------------------------------------------------------

@pytest.mark.parametrize("shard", [None, "100KB"])
def test_of_a_repository_what_will_be_read_is_fetched(tmp_path, monkeypatch, shard):
    """config.json and the index name the rest. A dry run fetches no weights."""
    folder = write_checkpoint(tmp_path / "m", shard=shard)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    weights = {name for name in files if name.endswith(".safetensors")}
    read = files | {"modules.json": b"[]", "2_Pooling/config.json": b"{}", "pecan.json": b"{}"}
    others = ["pytorch_model.bin", "original/params.json", "consolidated.safetensors", "adapter_model.safetensors",
              "fp16/model.safetensors", "checkpoint-5/config.json", "model.fp16.safetensors", "notes.json"]
    with serve({"a/b": read | dict.fromkeys(others, b"")}, tmp_path / "cache", monkeypatch):
        for more, fetched in (({}, read.keys() - weights), ({"weights": True}, read.keys())):
            found = locate(f"a/b@{COMMIT}", **more)
            assert {str(path.relative_to(found)) for path in found.rglob("*") if path.is_file()} == fetched
            assert locate("a/b", **more) == found
        assert Llama.load("a/b", "cpu").config == Llama.load(folder, "cpu").config


def test_a_fingerprint_is_of_what_is_read(folder, copy, monkeypatch):
    """A fingerprint covers every file that a model or an encoder is loaded from, and no settings or other files."""
    for name in ("pecan.json", "notes.txt", "results.json", "old.safetensors"):
        write(copy, name, "{}")
    seen = {fingerprint(copy)}
    assert seen == {fingerprint(folder)}

    # A name counts, not only a content: all these files are alike. Without one file, the index counts.
    names = ["model.safetensors", *FILES, "part.safetensors"]
    for name in names:
        if name == "part.safetensors":
            (copy / "model.safetensors").unlink()
            seen.add(fingerprint(copy))
        write(copy, name, '{"weight_map": {"x": "part.safetensors"}}')
        seen.add(fingerprint(copy))
    assert len(seen) == 2 + len(names) and sha256([copy / FILES[0]]) != sha256([copy / FILES[1]])

    # Nothing else is looked for.
    exists = Path.exists
    looked_for = []
    monkeypatch.setattr(Path, "exists", lambda path: looked_for.append(path.name) or exists(path))
    assert Llama.load(folder, "cpu").fingerprint != Llama.load(folder, "cpu", "bfloat16").fingerprint
    assert {*looked_for} <= {*names}


def test_a_missing_checkpoint_and_a_wrong_device_are_named(monkeypatch):
    """On any GPU the dtype is that of the stored weights, if it is one of ours; elsewhere it is float32."""
    for name in ("/no/such/folder", "tests/llama"):
        with pytest.raises(InputError, match="no such folder"):
            locate(name)
    for device, dtype in (("abacus", "float32"), ("meta", "float32"), ("hpu", "float32"), ("cpu", "float7"),
                          ("cpu", "int8")):
        with pytest.raises(InputError, match=f"device '{device}' with .*: cannot be used|dtype '{dtype}' is unknown"):
            choose_device(device, dtype)

    monkeypatch.setattr(torch, "zeros", lambda *_, device, dtype: torch.ones(1))         # as if each device were here
    for device, stored, dtype in (("cuda", "float16", torch.float16), ("cuda:1", "float16", torch.float16),
                                  ("cuda", "float8_e4m3fn", torch.float32), ("mps", "float16", torch.float32)):
        assert choose_device(device, stored=stored) == (torch.device(device), dtype)
