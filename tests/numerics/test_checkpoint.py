"""Checkpoint folders: both versions of config.json, shards, and damage, reported in one line."""
import json
import shutil
from functools import partial

import pytest
import torch
from hostile import ROOT
from huggingface_hub.utils import filter_repo_objects
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import write_checkpoint
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from core.files import COUNT, NUMBER, POSITIVE, InputError, check_values, sha256
from llama import Cache, Llama
from model.checkpoint import FILES, choose_device, fingerprint, locate, read_config


def test_both_dialects_and_shards_are_one_checkpoint(tmp_path, folder, model):
    """A config.json of transformers 4 and weights in many files load as the same checkpoint."""
    other = write_checkpoint(tmp_path, shard="100KB", dialect=4)
    assert read_config(other) == read_config(folder)

    # The older name of rope_type.
    raw = json.loads((other / "config.json").read_text())
    raw["rope_scaling"]["type"] = raw["rope_scaling"].pop("rope_type")
    (other / "config.json").write_text(json.dumps(raw))
    assert read_config(other) == read_config(folder)

    loaded = Llama.load(other, "cpu").weights
    assert loaded.keys() == model.weights.keys()
    assert all(torch.equal(loaded[name], weight) for name, weight in model.weights.items())

    # Every process takes the files in the same order, or a graph would be of another model.
    names = "config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer.json"
    files = [*(other / name for name in (*names, "tokenizer_config.json")), *sorted(other.glob("*.safetensors"))]
    assert len(files) > 9 and fingerprint(other) == sha256(files)


def test_eos_of_the_generation_config_comes_first(tmp_path, folder):
    """If it names none, config.json's counts: one token or several. If that has no such key, it is Hugging Face's."""
    copy = shutil.copytree(folder, tmp_path / "m")
    for of_generation, of_config, eos in (("[5, 6]", 7, (5, 6)), ("0", 7, (0,)), ("null", 7, (7,)),
                                          ("null", [7, 9], (7, 9)), ("null", None, (LlamaConfig().eos_token_id,))):
        (copy / "generation_config.json").write_text(f'{{"eos_token_id": {of_generation}}}')
        change(copy, eos_token_id=of_config)
        assert read_config(copy).eos == eos

    raw = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(raw | {"eos_token_id": None}))
    assert read_config(copy).eos == ()


def test_what_old_checkpoints_hold_besides(tmp_path):
    """A table of RoPE's frequencies is skipped, and a copy of a tied output matrix."""
    folder = write_checkpoint(tmp_path, tie_word_embeddings=True)
    wanted = Llama.load(folder, "cpu").weights
    change_tensors(folder, {"model.layers.1.self_attn.rotary_emb.inv_freq": torch.zeros(8),
                            "lm_head.weight": wanted["model.embed_tokens.weight"]})
    loaded = Llama.load(folder, "cpu").weights
    assert loaded.keys() == wanted.keys() and all(torch.equal(loaded[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("key", ["max_position_embeddings", "head_dim", "num_key_value_heads", "rms_norm_eps",
                                 "tie_word_embeddings", "rope_parameters", "original_max_position_embeddings", "dtype"])
def test_what_a_config_leaves_out_is_as_in_hugging_face(tmp_path, key):
    """A key that is absent or null in config.json has Hugging Face's default; the dtype has Llama's, bfloat16."""
    raw = json.loads((write_checkpoint(tmp_path, num_attention_heads=4, head_dim=16) / "config.json").read_text())
    for absent in (True, False):
        changed = json.loads(json.dumps(raw))
        place = changed["rope_parameters"] if key.startswith("original") else changed
        place.pop(key)
        if not absent and key in ("head_dim", "num_key_value_heads", "rope_parameters", "dtype"):
            place[key] = None
        (tmp_path / "config.json").write_text(json.dumps(changed))

        ours, theirs = read_config(tmp_path), LlamaConfig.from_pretrained(tmp_path)
        assert (ours.heads, ours.kv_heads, ours.head_width, ours.norm_eps, ours.tied, ours.rope_theta) == (
            theirs.num_attention_heads, theirs.num_key_value_heads, theirs.head_dim, theirs.rms_norm_eps,
            theirs.tie_word_embeddings, theirs.rope_parameters["rope_theta"])
        assert ours.max_length == theirs.max_position_embeddings
        assert ours.dtype == str(theirs.dtype or "bfloat16").removeprefix("torch.")
        assert (ours.rope or {}).get("original") == theirs.rope_parameters.get("original_max_position_embeddings")


# --- damage ---------------------------------------------------------------------------------------------------------

def change(folder, **changes):
    """Change keys of config.json; None removes one."""
    raw = json.loads((folder / "config.json").read_text()) | changes
    kept = {key: value for key, value in raw.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))


def change_tensors(folder, changes):
    """Change tensors of model.safetensors; None removes one."""
    path = folder / "model.safetensors"
    tensors = load_file(path) | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


def edit_file(folder, name, content):
    (folder / name).write_text(content)


UP = "model.layers.1.mlp.up_proj.weight"
NORM = "model.norm.weight"


# Each row: a change to a checkpoint, and words of the error.
@pytest.mark.parametrize("damage, words", [
    (partial(change, architectures=["MistralForCausalLM"]), ["config.json", "MistralForCausalLM"]),
    (partial(change, rope_parameters={"rope_type": "yarn", "rope_theta": 1e4}), ["config.json", "yarn"]),
    (partial(change, rope_parameters="llama3"), ["config.json"]),
    (partial(change, attention_bias=True), ["attention_bias"]),
    (partial(change, mlp_bias=True), ["mlp_bias"]),
    (partial(change, hidden_act="gelu"), ["hidden_act", "'gelu'"]),
    (partial(change, num_key_value_heads=4), ["k_proj", "(32, 64)", "(64, 64)"]),
    (partial(change, vocab_size=7), ["vocab_size of config.json is 7"]),
    (partial(change, tie_word_embeddings=True), ["config.json ties lm_head.weight"]),
    (partial(change_tensors, changes={UP: None}), ["missing", UP]),
    (partial(change_tensors, changes={"rotary_emb.inv_freq.x": torch.zeros(1)}), ["inv_freq.x is", "no such tensor"]),
    (partial(change_tensors, changes={NORM: torch.zeros(3)}), [NORM, "(3,)", "(64,)"]),
    (partial(change_tensors, changes={NORM: torch.zeros(64, dtype=torch.int8)}), ["model.safetensors", NORM, "int8"]),
    (partial(edit_file, name="model.safetensors.index.json", content='{"weight_map": ["x"]}'), ["index.json"]),
])
def test_broken_checkpoints_are_named(tmp_path, folder, damage, words):
    """The error is one line that names the file and the fault."""
    shutil.copytree(folder, tmp_path / "m")
    damage(tmp_path / "m")
    with pytest.raises(InputError) as error:
        Llama.load(tmp_path / "m", "cpu")
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value)


def loads_or_is_refused(folder):
    """Load a checkpoint with a damaged file. An error must be one line that names the file or its folder."""
    try:
        Llama.load(folder, "cpu")
    except InputError as error:
        assert str(folder) in str(error) and "\n" not in str(error)
        return str(error)


@pytest.fixture(scope="module")
def copy(tmp_path_factory, folder):
    return shutil.copytree(folder, tmp_path_factory.mktemp("damaged") / "m")


KEYS = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "rms_norm_eps", "max_position_embeddings", "tie_word_embeddings",
        "architectures", "model_type"]
ROPE = ["rope_type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"]


@given(st.sampled_from(KEYS + ROPE), st.sampled_from(["'4'", 0, -1, 1e999, float("nan"), [4], {}, "x", 10 ** 20]))
def test_an_impossible_value_of_config_is_named(copy, folder, key, value):
    """The error names the key of config.json, not the attribute of the code."""
    raw = json.loads((folder / "config.json").read_text())
    place = raw["rope_parameters"] if key in ROPE else raw
    place[key] = value
    (copy / "config.json").write_text(json.dumps(raw))
    said = loads_or_is_refused(copy)
    assert said and (key in said or value != value or value == 1e999)


@pytest.mark.parametrize("rule, good, bad", [
    (COUNT, (1, 16_777_216), (0, 16_777_217)), (POSITIVE, (1, 1e-9), (0, 1e12)), (NUMBER, (0, 1), (-1, .5))],
    ids=["count", "positive", "number"])
def test_a_number_may_be_at_its_limit(rule, good, bad):
    for value in good:
        check_values({"n": value}, {"n": rule})
    for value in bad:
        with pytest.raises(InputError, match=f"^in m: n is {value}; it must be {rule.words}$"):
            check_values({"n": value}, {"n": rule}, "in m: ")


@settings(max_examples=60)
@given(st.sampled_from(["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]), st.data())
def test_a_file_that_was_damaged_anywhere(copy, folder, name, data):
    """A file that is cut short, replaced, or has one wrong byte is refused in one line, or loads."""
    good = (folder / name).read_bytes()
    place = data.draw(st.integers(0, min(len(good), 3000) - 1))
    byte = data.draw(st.sampled_from([b"", b"\xff", b"[", b'"', b"9"]))
    rest = data.draw(st.sampled_from([good[place + 1:], b""]))
    (copy / name).write_bytes(good[:place] + byte + rest)
    try:
        loads_or_is_refused(copy)
    finally:
        (copy / name).write_bytes(good)


# --- numbers that are not finite ------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["model.layers.0.mlp.down_proj.weight", "lm_head.weight"])
def test_logits_that_are_not_finite_are_named(model, ids, name):
    """The error of such logits says what to try, wherever they come from."""
    weights = model.weights | {name: model.weights[name].clone()}
    weights[name][0, 0] = float("nan")
    broken = Llama(model.config, weights, model.tokenizer, model.folder)
    hidden, _ = broken.append(Cache(broken, 1, 20), [[(None, ids(9))]])
    with pytest.raises(InputError, match="not finite in .*float32; try --dtype"):
        broken.logits(hidden)


# --- folders, fingerprints, devices ---------------------------------------------------------------------------------

def test_a_revision_of_a_repository(monkeypatch, tmp_path):
    """Of a repository the files are fetched that are read, and no pickles."""
    asked = []

    def download(name, revision, **patterns):
        files = [*FILES, "pecan.json", "model-1-of-2.safetensors"]
        others = ["pytorch_model.bin", "original/params.json", "original/tokenizer.model"]
        assert list(filter_repo_objects([*files, *others], **patterns)) == files
        asked.append((name, revision))
        return str(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)

    assert locate("a/b") == locate("a/b@refs/pr/1") == tmp_path
    assert asked == [("a/b", None), ("a/b", "refs/pr/1")]


def test_a_fingerprint_is_of_what_is_read(folder, tmp_path):
    """A fingerprint covers every file that a model or an encoder is loaded from, and no settings or other files."""
    copy = shutil.copytree(folder, tmp_path / "m")
    first = fingerprint(copy)
    for name in ("pecan.json", "notes.txt", "results.json", "old.safetensors"):
        (copy / name).write_text("{}")
    assert fingerprint(copy) == first == fingerprint(folder)

    seen = {first}
    for name in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer.model",
                 "tokenizer_config.json", "chat_template.jinja", "token_counts.json", "1_Pooling/config.json",
                 "sentence_bert_config.json", "model.safetensors.index.json", "part.safetensors"):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text('{"weight_map": {"x": "part.safetensors"}}')
        seen.add(fingerprint(copy))
    assert len(seen) == 13 and sha256([copy / "config.json"]) != sha256([copy / "tokenizer.json"]), "names count"

    assert Llama.load(folder, "cpu").fingerprint != Llama.load(folder, "cpu", "bfloat16").fingerprint


def test_a_missing_checkpoint_and_a_wrong_device_are_named(monkeypatch):
    monkeypatch.chdir(ROOT)
    for name in ("/no/such/folder", "tests/llama"):
        with pytest.raises(InputError, match="no such folder"):
            locate(name)
    for device in ("abacus", "meta", "hpu"):
        with pytest.raises(InputError, match=f"'{device}': cannot be used"):
            choose_device(device)
    with pytest.raises(InputError, match="'float7' is unknown"):
        choose_device("cpu", "float7")
