"""Checkpoint folders: both versions of config.json, shards, and what is refused, in one line."""
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from folders import ABSENT, assert_refused, put, rows_of, write
from hub import COMMIT, serve
from oracle import LLAMA3 as SCALING
from oracle import hugging_face, write_checkpoint
from safetensors.torch import save_file
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from core.files import InputError
from llama import Llama, inverse_frequencies
from model.checkpoint import FILES, choose_device, fingerprint, locate, read_config


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "m")


def kind(name) -> dict:
    """What config.json says of the kind of model: Mistral, Qwen2, Qwen3."""
    return {"model_type": name.lower(), "architectures": [f"{name}ForCausalLM"]}


def assert_same_weights(ours, wanted):
    assert ours.keys() == wanted.keys() and all(torch.equal(ours[name], wanted[name]) for name in ours)


# --- the same as in Hugging Face ------------------------------------------------------------------------------------

def test_weights_do_not_change_with_their_file(copy, model):
    """A file that is written anew in place, while a model runs, changes no weight. (safetensors maps files.)"""
    weights = Llama.load(copy, "cpu").weights
    path = copy / "model.safetensors"
    path.write_bytes(bytes(path.stat().st_size))
    assert_same_weights(weights, model.weights)


def test_both_dialects_and_shards_are_one_checkpoint(tmp_path, folder, model):
    """A config.json of transformers 4 and weights in many files load as the same checkpoint. A missing one is named."""
    other = write_checkpoint(tmp_path, shard="100KB")
    rope = {key: value for key, value in SCALING.items() if key != "rope_theta"}
    put(other, "config.json", {"rope_parameters": ABSENT, "rope_theta": SCALING["rope_theta"], "rope_scaling": rope,
                               "dtype": ABSENT, "torch_dtype": "float32"})
    assert read_config(other) == read_config(folder)
    assert_same_weights(Llama.load(other, "cpu").weights, model.weights)

    shard = sorted(other.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(InputError, match=f"^{shard}: not a readable safetensors file .No such file"):
        Llama.load(other, "cpu")


# eos_token_id of generation_config.json and of config.json, and which tokens end a reply.
EOS = """
[5, 6] | 7        | (5, 6)
0      | 7        | (0,)
null   | [7, 9]   | (7, 9)
null   | 7        | (7,)
null   | null     | ()
null   | "absent" | (2,)
"""


@pytest.mark.parametrize("generation, config, eos", rows_of(EOS))
def test_eos_of_the_generation_config_comes_first(copy, generation, config, eos):
    """If it names none, config.json's counts: one token or several. If that has no such key, it is Hugging Face's."""
    put(copy, "config.json", {"eos_token_id": config})
    write(copy, "generation_config.json", f'{{"eos_token_id": {generation}}}')
    assert str(read_config(copy).eos) == eos


def test_what_old_checkpoints_hold_besides(tmp_path):
    """A table of RoPE's frequencies is skipped, and a copy of a tied output matrix."""
    folder = write_checkpoint(tmp_path, tie_word_embeddings=True)
    wanted = Llama.load(folder, "cpu").weights
    put(folder, "model.safetensors", {"model.layers.1.self_attn.rotary_emb.inv_freq": torch.zeros(8),
                                      "lm_head.weight": wanted["model.embed_tokens.weight"]})
    assert_same_weights(Llama.load(folder, "cpu").weights, wanted)


def test_one_file_counts_beside_the_index_of_old_shards(tmp_path, model):
    """So it does in Hugging Face."""
    write_checkpoint(tmp_path, seed=1, shard="100KB")
    save_file(model.weights, tmp_path / "model.safetensors")
    for weights in (Llama.load(tmp_path, "cpu").weights, hugging_face(tmp_path).state_dict()):
        assert_same_weights(weights, model.weights)


OLD_LLAMA3 = {"type": "llama3"} | {key: value for key, value in SCALING.items() if key != "rope_type"}


@pytest.mark.parametrize("changes", [
    *({key: ABSENT} for key in """head_dim num_key_value_heads tie_word_embeddings rope_parameters dtype attention_bias
                                  mlp_bias max_position_embeddings rms_norm_eps""".split()),
    *(kind(name) | {"num_attention_heads": 64, "num_key_value_heads": ABSENT, "head_dim": width}
      for name, width in (("Qwen2", 16), ("Qwen3", ABSENT), ("Mistral", 16))),
    *(kind("Mistral") | {"sliding_window": window} for window in (512, None, ABSENT)),        # inside, nothing slides
    kind("Qwen2") | {"sliding_window": 512, "use_sliding_window": False},
    {"rope_parameters": {key: value for key, value in SCALING.items() if not key.startswith("original")}},
    {"original_max_position_embeddings": 128},
    {"rope_parameters": SCALING, "rope_scaling": {"rope_type": "default"}, "rope_theta": 7.0},
    {"rope_parameters": ABSENT, "rope_scaling": OLD_LLAMA3},
    {"rope_parameters": ABSENT, "rope_scaling": {"type": "linear", "factor": 3.0}, "rope_theta": 7.0}])
def test_what_a_config_leaves_out_or_says_twice_is_as_in_hugging_face(tmp_path, changes):
    """A key that is absent from older files has Hugging Face's default; the dtype has Llama's, bfloat16."""
    put(write_checkpoint(tmp_path, num_attention_heads=4, max_position_embeddings=8192), "config.json", changes)
    ours, theirs = read_config(tmp_path), AutoConfig.from_pretrained(tmp_path)
    for name, key in {"heads": "num_attention_heads", "kv_heads": "num_key_value_heads",
                      "head_width": "head_dim", "norm_eps": "rms_norm_eps", "tied": "tie_word_embeddings"}.items():
        assert getattr(ours, name) == getattr(theirs, key), key
    longest = theirs.max_position_embeddings
    assert ours.max_length == min(longest, getattr(theirs, "sliding_window", None) or longest)
    assert ours.biased == (("q_proj", "k_proj", "v_proj") if theirs.model_type == "qwen2" else ())
    assert ours.dtype == str(theirs.dtype or "bfloat16").removeprefix("torch.")
    assert torch.equal(inverse_frequencies(ours), LlamaRotaryEmbedding(theirs).inv_freq)


# --- what is refused ------------------------------------------------------------------------------------------------

load = partial(Llama.load, device="cpu")
REFUSED = r"""
config.json | {"num_key_value_heads": 4}    | k_proj.*\(32, 64\).*\(64, 64\)
config.json | {"num_key_value_heads": 3}    | config.json: num_key_value_heads is 3
config.json | {"num_hidden_layers": true}   | config.json: num_hidden_layers is True
config.json | {"hidden_act": "relu"}        | config.json: hidden_act is 'relu'
config.json | {"rms_norm_eps": 0}           | config.json: rms_norm_eps is 0
config.json | {"head_dim": 15}              | config.json: head_dim is 15
config.json | {"vocab_size": 7}             | vocab_size of config.json is 7
config.json | {"tie_word_embeddings": true} | config.json ties lm_head.weight
config.json | {"use_sliding_window": true}  | config.json: use_sliding_window is True
config.json | {"model_type": "mistral"}     | config.json: architectures is \['LlamaForCausalLM'\]
config.json | {"model_type": "qwen3_moe"}   | config.json: model_type is 'qwen3_moe'
config.json | {"layer_types": ["full_attention", "sliding_attention"]} | config.json: layer_types is
config.json | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}   | config.json: rope_type is 'yarn'
config.json | {"rope_scaling": {"rope_type": "linear"}}                | config.json: key 'factor' is missing
config.json | {"rope_scaling": "llama3"}    | config.json: not the config.json of a Llama
config.json | {"vocab_size": "absent"}      | config.json: key 'vocab_size' is missing
config.json | "{"                           | config.json: not valid JSON
model.safetensors | "x"                     | model.safetensors: not a readable safetensors file
generation_config.json | {"eos_token_id": ["2"]} | generation_config.json: eos_token_id is
model.safetensors | {"model.layers.1.mlp.up_proj.weight": "absent"}    | model.layers.1.mlp.up_proj.weight is missing
"""
NORM = "model.norm.weight"
CHANGES = [
    ("model.safetensors", lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
     "model.safetensors: not a readable safetensors file .No such file"),
    ("model.safetensors", {"rotary_emb.inv_freq.x": torch.zeros(1)}, "inv_freq.x is .*no such tensor"),
    ("model.safetensors", {NORM: torch.zeros(3)}, rf"{NORM}.*\(3,\).*\(64,\)"),
    *(("model.safetensors", {NORM: torch.zeros(64, dtype=dtype)}, f"model.safetensors: {NORM} is stored as {dtype}")
      for dtype in (torch.int8, torch.float8_e4m3fn))]


@pytest.mark.parametrize("name, change, words", [*rows_of(REFUSED), *CHANGES])
def test_what_is_refused_is_named(copy, name, change, words):
    assert_refused(load, copy, name, change, words)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_named(model, number):
    """A weight may be NaN in the file, or too large for the dtype."""
    with pytest.raises(InputError, match="not finite in torch.float32; its weights may be damaged"):
        model.logits(torch.tensor([number, *[0.] * 63]))


# --- folders, fingerprints, devices ---------------------------------------------------------------------------------

@pytest.mark.parametrize("shard", [None, "100KB"])
def test_of_a_repository_what_will_be_read_is_fetched(tmp_path, monkeypatch, shard):
    """Repositories hold much else. A dry run fetches no weights."""
    folder = write_checkpoint(tmp_path / "m", shard=shard)
    read = {path.name: path.read_bytes() for path in folder.iterdir()} | {FILES[0]: b"{}", "pecan.json": b"{}"}
    others = dict.fromkeys("""pytorch_model.bin original/params.json adapter_model.safetensors fp16/model.safetensors
                              model.fp16.safetensors""".split(), b"")
    with serve({"a/b": read | others}, tmp_path / "cache", monkeypatch):
        for weights in (False, True):
            found = locate(f"a/b@{COMMIT}", weights)
            assert {str(path.relative_to(found)) for path in found.rglob("*") if path.is_file()} == {
                name for name in read if weights or not name.endswith(".safetensors")}
        with pytest.raises(InputError, match="a/b@other: cannot be fetched"):
            locate("a/b@other")
        assert Llama.load("a/b", "cpu").config == Llama.load(folder, "cpu").config


def test_a_fingerprint_is_of_what_is_read(folder, copy, spy):
    """A fingerprint covers every file that a model or an encoder is loaded from, and no settings or other files."""
    for name in "pecan.json notes.txt old.safetensors".split():
        write(copy, name, "{}")
    seen = {fingerprint(copy)}
    assert seen == {fingerprint(folder)}

    # A name counts, not only a content: all these files are alike.
    for name in ("model.safetensors", *FILES):
        write(copy, name, '{"weight_map": {"x": "part.safetensors"}}')
        seen.add(fingerprint(copy))
    (copy / "model.safetensors").rename(copy / "part.safetensors")
    assert len(seen | {fingerprint(copy)}) == 3 + len(FILES)

    # Nothing else is looked for.
    looked_for = spy("exists", Path)
    assert Llama.load(folder, "cpu").fingerprint != Llama.load(folder, "cpu", "bfloat16").fingerprint
    assert {path.name for (path,), _ in looked_for} <= {"model.safetensors", *FILES}


def test_a_missing_checkpoint_is_named():
    for name in "/no/such/folder", "tests/llama":
        with pytest.raises(InputError, match="no such folder"):
            locate(name)


def test_device_and_dtype(monkeypatch):
    """On any GPU the dtype is that of the stored weights, if it is one of ours; elsewhere it is float32."""
    for device, dtype, wrong in (("meta", "float32", "'meta'"), ("cpu", "float7", "'float7'")):
        with pytest.raises(InputError, match=wrong):
            choose_device(device, dtype)

    monkeypatch.setattr(torch, "zeros", lambda *_, device, dtype: torch.ones(1))         # as if each device were here
    for device, stored, dtype in (("cuda:1", "float16", torch.float16), ("cuda", "float8_e4m3fn", torch.float32),
                                  ("mps", "float16", torch.float32)):
        assert choose_device(device, stored=stored) == (torch.device(device), dtype)
