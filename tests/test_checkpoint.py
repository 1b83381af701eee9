"""What a checkpoint folder may hold: both versions of config.json, shards, and damage, reported in one line."""
import json
import shutil

import pytest
import torch
from oracle import write_checkpoint
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from llama import Llama
from support.checkpoint import choose_device, fingerprint, locate, read_config
from support.files import InputError


def test_both_dialects_and_shards_are_one_checkpoint(tmp_path, folder, model):
    """config.json as transformers 4 wrote it and weights in many files load as the same checkpoint."""
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


def test_eos_of_the_generation_config_comes_first(tmp_path, folder):
    shutil.copytree(folder, tmp_path / "m")
    (tmp_path / "m" / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    assert read_config(tmp_path / "m").eos == (5, 6)


@pytest.mark.parametrize("key", ["head_dim", "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings",
                                 "rope_parameters", "original_max_position_embeddings"])
def test_what_a_config_leaves_out_is_as_in_hugging_face(tmp_path, key):
    """A key that config.json lacks, or that is null."""
    raw = json.loads((write_checkpoint(tmp_path, num_attention_heads=4, head_dim=16) / "config.json").read_text())
    for absent in (True, False):
        changed = json.loads(json.dumps(raw))
        place = changed["rope_parameters"] if key.startswith("original") else changed
        place.pop(key)
        if not absent and key in ("head_dim", "num_key_value_heads", "rope_parameters"):
            place[key] = None
        (tmp_path / "config.json").write_text(json.dumps(changed))

        ours, theirs = read_config(tmp_path), LlamaConfig.from_pretrained(tmp_path)
        assert (ours.heads, ours.kv_heads, ours.head_width, ours.norm_eps, ours.tied, ours.rope_theta) == (
            theirs.num_attention_heads, theirs.num_key_value_heads, theirs.head_dim, theirs.rms_norm_eps,
            theirs.tie_word_embeddings, theirs.rope_parameters["rope_theta"])
        assert (ours.rope or {}).get("original") == theirs.rope_parameters.get("original_max_position_embeddings")


# --- damage: each function makes a function that damages a checkpoint folder ----------------------------------------

def edit_config(**changes):
    def edit(folder):
        raw = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(raw | changes))
    return edit


def edit_tensors(change):
    def edit(folder):
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")
    return edit


def edit_file(name, text):
    def edit(folder):
        (folder / name).write_text(text)
    return edit


def remove(name):
    def edit(folder):
        (folder / name).unlink()
    return edit


def truncate_weights(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


@pytest.mark.parametrize("damage, words", [
    (edit_config(architectures=["MistralForCausalLM"]), ["config.json", "MistralForCausalLM"]),
    (edit_config(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4}), ["config.json", "yarn"]),
    (edit_config(rope_parameters=None, rope_scaling="llama3"), ["config.json", "'llama3'; they must be an object"]),
    (edit_config(rope_parameters=[1]), ["config.json", "[1]; they must be an object"]),
    (edit_config(rms_norm_eps="small"), ["config.json", "'small'"]),
    (edit_file("generation_config.json", '{"eos_token_id": "x"}'), ["eos_token_id is 'x'"]),
    (edit_config(attention_bias=True), ["attention_bias"]),
    (edit_config(mlp_bias=True), ["mlp_bias"]),
    (edit_config(hidden_act="gelu"), ["hidden_act", "'gelu'"]),
    (edit_config(num_key_value_heads=3), ["config.json", "3 key/value heads"]),
    (edit_config(num_attention_heads=0), ["config.json"]),
    (edit_config(hidden_size="large"), ["config.json"]),
    (edit_tensors(lambda t: t.pop("model.layers.1.mlp.up_proj.weight")), ["missing", "layers.1.mlp.up_proj.weight"]),
    (edit_tensors(lambda t: t.update(extra=torch.zeros(1))), ["extra", "not part"]),
    (edit_tensors(lambda t: t.update({"model.norm.weight": torch.zeros(3)})), ["model.norm.weight", "[3]", "[64]"]),
    (truncate_weights, ["model.safetensors", "not a readable"]),
    (remove("model.safetensors"), ["model.safetensors"]),
    (edit_file("config.json", "{"), ["config.json", "not valid JSON"]),
    (edit_file("tokenizer.json", "{}"), ["tokenizer.json"]),
    (remove("tokenizer.json"), ["tokenizer"]),
    (edit_file("tokenizer_config.json", "{}"), ["chat template"]),
    (edit_file("tokenizer_config.json", '{"chat_template": [{"nme": 1}]}'), ["chat template"]),
])
def test_broken_checkpoints_are_named(tmp_path, folder, damage, words):
    """One line that names the file and the fault."""
    shutil.copytree(folder, tmp_path / "m")
    damage(tmp_path / "m")
    with pytest.raises(InputError) as error:
        Llama.load(tmp_path / "m", "cpu")
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value)


# --- folders, fingerprints, devices ---------------------------------------------------------------------------------

def test_a_revision_of_a_repository(monkeypatch, tmp_path):
    asked = []

    def download(name, revision, **options):
        asked.append((name, revision))
        return str(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert locate("a/b") == locate("a/b@refs/pr/1") == tmp_path
    assert asked == [("a/b", None), ("a/b", "refs/pr/1")]


def test_a_fingerprint_is_of_what_is_read(folder, tmp_path):
    """It covers weights, tokenizer and pooling, not settings and other files."""
    copy = shutil.copytree(folder, tmp_path / "m")
    first = fingerprint(copy)
    (copy / "pecan.json").write_text("{}")
    (copy / "notes.txt").write_text("")
    assert fingerprint(copy) == first == fingerprint(folder)

    seen = {first}
    for name in ("vocab.txt", "1_Pooling/config.json", "tokenizer.json", "chat_template.jinja"):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text("{}")
        seen.add(fingerprint(copy))
    assert len(seen) == 5
    assert Llama.load(folder, "cpu").fingerprint != Llama.load(folder, "cpu", "bfloat16").fingerprint


def test_a_missing_checkpoint_and_a_wrong_device_are_named():
    with pytest.raises(InputError, match="no such folder"):
        locate("/no/such/folder")
    with pytest.raises(InputError, match="'abacus' cannot be used"):
        choose_device("abacus")
    with pytest.raises(InputError, match="'float7' is unknown"):
        choose_device("cpu", "float7")
