"""What a checkpoint folder may hold: both versions of config.json, shards, and damage, reported in one line."""
import json
import resource
import shutil
from functools import partial

import pytest
import torch
from oracle import write_checkpoint
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from core.checkpoint import choose_device, fingerprint, locate, read_config, save_checkpoint
from core.files import InputError, OutputError
from llama import Llama


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


# --- damage ---------------------------------------------------------------------------------------------------------

def change(folder, **changes):
    """Change keys of config.json."""
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | changes))


def change_tensors(folder, changes):
    """Change tensors of model.safetensors; None removes one."""
    path = folder / "model.safetensors"
    tensors = load_file(path) | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


def edit_file(folder, name, content):
    (folder / name).write_text(content)


def remove(folder, name):
    (folder / name).unlink()


def truncate_weights(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


UP = "model.layers.1.mlp.up_proj.weight"
NORM = "model.norm.weight"


# What each row changes in a checkpoint, and words of the error.
@pytest.mark.parametrize("damage, words", [
    (partial(change, architectures=["MistralForCausalLM"]), ["config.json", "MistralForCausalLM"]),
    (partial(change, rope_parameters={"rope_type": "yarn", "rope_theta": 1e4}), ["config.json", "yarn"]),
    (partial(change, rope_parameters=None, rope_scaling="llama3"), ["config.json", "'llama3'; they must be an object"]),
    (partial(change, rope_parameters=[1]), ["config.json", "[1]; they must be an object"]),
    (partial(change, rms_norm_eps="small"), ["config.json", "'small'"]),
    (partial(edit_file, name="generation_config.json", content='{"eos_token_id": "x"}'), ["eos_token_id is 'x'"]),
    (partial(change, attention_bias=True), ["attention_bias"]),
    (partial(change, mlp_bias=True), ["mlp_bias"]),
    (partial(change, hidden_act="gelu"), ["hidden_act", "'gelu'"]),
    (partial(change, num_key_value_heads=3), ["config.json", "3 key/value heads"]),
    (partial(change, num_attention_heads=0), ["config.json"]),
    (partial(change, hidden_size="large"), ["config.json"]),
    (partial(change_tensors, changes={UP: None}), ["missing", "layers.1.mlp.up_proj.weight"]),
    (partial(change_tensors, changes={"extra": torch.zeros(1)}), ["extra", "not part"]),
    (partial(change_tensors, changes={NORM: torch.zeros(3)}), ["model.norm.weight", "[3]", "[64]"]),
    (truncate_weights, ["model.safetensors", "not a readable"]),
    (partial(remove, name="model.safetensors"), ["model.safetensors"]),
    (partial(edit_file, name="config.json", content="{"), ["config.json", "not valid JSON"]),
    (partial(edit_file, name="tokenizer.json", content="{}"), ["tokenizer.json"]),
    (partial(remove, name="tokenizer.json"), ["tokenizer"]),
    (partial(edit_file, name="tokenizer_config.json", content="{}"), ["chat template"]),
    (partial(edit_file, name="tokenizer_config.json", content='{"chat_template": [{"nme": 1}]}'), ["chat template"]),
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

def test_a_full_disk_is_named(tmp_path):
    """No file may be larger than 4 KiB: what was there stays, and nothing is left half-written."""
    save_checkpoint(tmp_path, {}, {"w": torch.zeros(2)})
    before = (tmp_path / "model.safetensors").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(Exception, match="File too large") as error:
            save_checkpoint(tmp_path, {}, {"w": torch.zeros(10000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert isinstance(error.value, OutputError) and "model.safetensors: cannot be written" in str(error.value)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}


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
    for name in ("notes.txt", "story.txt.0123.graph.json", "results.json", "old.safetensors"):
        (copy / name).write_text("{}")
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
