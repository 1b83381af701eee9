"""The files of a Hugging Face checkpoint folder, except its tokenizer: config.json and the weights.

Only JSON and safetensors files are read.
"""
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from core.files import (
    COUNT,
    FLAG,
    POSITIVE,
    InputError,
    Rule,
    check_values,
    enough_memory,
    one_line,
    read_json,
    reading,
    sha256,
    write_file,
    write_tensors,
    writing,
)

# --- config.json ----------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Config:
    """The values of `config.json` that the forward pass needs."""
    vocab: int                                 # V
    width: int                                 # D
    hidden: int                                # width of the SwiGLU
    layers: int                                # L
    heads: int                                 # H
    kv_heads: int                              # KV
    head_width: int                            # K
    norm_eps: float
    max_length: int                            # positions the checkpoint was made for
    tied: bool                                 # the output matrix is the embedding
    rope_theta: float
    rope: dict | None                          # llama3 scaling: factor, low, high, original
    eos: tuple[int, ...]                       # each of these tokens ends a reply
    dtype: str                                 # of the stored weights


# What a Llama's config.json may leave out, and what its keys must hold.
DEFAULTS = {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "tie_word_embeddings": False, "rope_theta": 10000.0}
EVEN = Rule((int,), lambda n: n >= 2 and n % 2 == 0, "an even number of at least 2 (RoPE turns pairs)")
LAYERS = Rule((int,), lambda n: 1 <= n <= 1000, "a whole number from 1 to 1,000")
EPS = Rule((int, float), lambda x: 0 < x < 1, "a number above 0 and below 1")
RULES = {
    **dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
                     "max_position_embeddings"), COUNT),
    "num_hidden_layers": LAYERS,
    "rms_norm_eps": EPS,
    "tie_word_embeddings": FLAG,
}
ROPE = {"rope_theta": Rule((int, float), lambda x: 1 <= x < math.inf, "a number of at least 1")}
LLAMA3 = {"factor": ROPE["rope_theta"], "low_freq_factor": POSITIVE, "high_freq_factor": POSITIVE,
          "original_max_position_embeddings": COUNT}


def read_config(folder: str | Path) -> Config:
    """Read config.json as transformers 4 or 5 wrote it; absent keys have Hugging Face's defaults.

    Raises InputError for a missing key, another architecture, a bias, a rope_type other than default and llama3, and an
    impossible value.
    """
    path = Path(folder) / "config.json"
    raw = read_json(path)
    _check_architecture(path, raw)
    given = {key: value for key, value in raw.items() if value is not None}
    raw = DEFAULTS | {"num_key_value_heads": given.get("num_attention_heads")} | given
    check_values(raw, RULES, f"{path}: ")

    rope = _rope_parameters(path, raw)
    heads, kv_heads = raw["num_attention_heads"], raw["num_key_value_heads"]
    if heads % kv_heads:
        raise InputError(f"{path}: num_attention_heads {heads} query heads do not share {kv_heads} key/value heads "
                         "evenly")
    head_width = raw.get("head_dim", raw["hidden_size"] // heads)
    check_values({"head_dim": head_width}, {"head_dim": EVEN}, f"{path}: ")

    return Config(
        vocab=raw["vocab_size"],
        width=raw["hidden_size"],
        hidden=raw["intermediate_size"],
        layers=raw["num_hidden_layers"],
        heads=heads,
        kv_heads=kv_heads,
        head_width=head_width,
        norm_eps=float(raw["rms_norm_eps"]),
        max_length=raw["max_position_embeddings"],
        tied=raw["tie_word_embeddings"],
        rope_theta=float(rope["rope_theta"]),
        rope=_llama3_scaling(path, rope, raw),
        eos=_end_of_sequence(Path(folder), raw),
        dtype=str(given.get("torch_dtype") or given.get("dtype") or "bfloat16"))


def _check_architecture(path: Path, raw: dict):
    """Raise InputError if config.json is not a Llama's, or asks for a part that is not implemented."""
    architectures = raw.get("architectures", ["LlamaForCausalLM"])
    model_type = raw.get("model_type", "llama")
    if architectures != ["LlamaForCausalLM"] or model_type != "llama":
        raise InputError(f"{path}: architecture {architectures or model_type} is not LlamaForCausalLM")

    check_implemented(path, raw, {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu"})


def check_implemented(path: Path, raw: dict, only: dict):
    """Raise InputError if a key of `only` has another value in `raw`; a key may be absent."""
    for key, implemented in only.items():
        if raw.get(key, implemented) != implemented:
            raise InputError(f"{path}: {key} is {raw[key]!r}; only {implemented!r} is implemented")


def _rope_parameters(path: Path, raw: dict) -> dict:
    """RoPE's parameters, with rope_theta and rope_type filled in.

    transformers 5 writes all of them as rope_parameters. Version 4 writes rope_theta and rope_scaling, whose rope_type
    was once called type.
    """
    parameters = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(parameters, dict):
        raise InputError(f"{path}: RoPE's parameters are {parameters!r:.60}; they must be an object with rope_type")

    rope_type = parameters.get("rope_type", parameters.get("type", "default"))
    if rope_type not in ("default", "llama3"):
        raise InputError(f"{path}: rope_type {rope_type!r} is unknown; 'default' and 'llama3' are implemented")
    given = {key: value for key, value in parameters.items() if value is not None}
    rope = {"rope_theta": raw["rope_theta"]} | given | {"rope_type": rope_type}
    check_values(rope, ROPE, f"{path}: ")
    return rope


def _llama3_scaling(path: Path, rope: dict, raw: dict) -> dict | None:
    """The four numbers of llama3 scaling (llama.inverse_frequencies); None without scaling."""
    if rope["rope_type"] == "default":
        return None

    rope = {"original_max_position_embeddings": raw["max_position_embeddings"]} | rope
    check_values(rope, LLAMA3, f"{path}: ")
    if rope["low_freq_factor"] >= rope["high_freq_factor"]:
        raise InputError(f"{path}: low_freq_factor is {rope['low_freq_factor']}; it must be below high_freq_factor")
    return {"factor": rope["factor"], "low": rope["low_freq_factor"], "high": rope["high_freq_factor"],
            "original": rope["original_max_position_embeddings"]}


def _end_of_sequence(folder: Path, raw: dict) -> tuple[int, ...]:
    """The tokens that end a reply: generation_config.json's, and config.json's if that file names none."""
    path = folder / "generation_config.json"
    eos = read_json(path).get("eos_token_id") if path.exists() else None
    if eos is None:
        eos = raw.get("eos_token_id", [])

    tokens = eos if isinstance(eos, list) else [eos]
    if not all(type(token) is int and token >= 0 for token in tokens):
        raise InputError(f"{folder}: eos_token_id is {eos!r:.60}, not a token id or several")
    return tuple(tokens)


# --- weights --------------------------------------------------------------------------------------------------------

def tensor_shapes(c: Config) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint, by name, and its shape."""
    D, q, kv = c.width, c.heads * c.head_width, c.kv_heads * c.head_width
    of_layer = {"input_layernorm": (D,), "post_attention_layernorm": (D,),
                "self_attn.q_proj": (q, D), "self_attn.k_proj": (kv, D), "self_attn.v_proj": (kv, D),
                "self_attn.o_proj": (D, q), "mlp.gate_proj": (c.hidden, D), "mlp.up_proj": (c.hidden, D),
                "mlp.down_proj": (D, c.hidden)}

    shapes = {}
    for layer in range(c.layers):
        for name, shape in of_layer.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    shapes["model.embed_tokens.weight"] = (c.vocab, D)
    shapes["model.norm.weight"] = (D,)
    if not c.tied:
        shapes["lm_head.weight"] = (c.vocab, D)
    return shapes


STORED = ("F64", "F32", "F16", "BF16")       # what a tensor may be stored as


def read_tensors(path: Path, device, dtype, shape_of) -> dict[str, torch.Tensor]:
    """Read the tensors of one safetensors file, one at a time.

    shape_of(name) is the shape that config.json gives a tensor, "skip" if the tensor is not needed, or None if it does
    not belong in the file. Raises InputError naming the file if it cannot be read (it may be cut short), and the tensor
    if it is unknown or has another shape.
    """
    read = {}
    with reading(path, "not a readable safetensors file"):
        with safe_open(path, framework="pt", device="cpu") as tensors:
            for name in tensors.keys():
                shape = shape_of(name)
                if shape == "skip":
                    continue
                if shape is None:
                    raise InputError(f"{path}: tensor {name} is not part of this architecture")

                header = tensors.get_slice(name)
                stored = tuple(header.get_shape())
                if stored != shape:
                    raise InputError(f"{path}: {name} is {list(stored)}, config.json says {list(shape)}")

                # Whole numbers are quantised weights: without their scales they mean nothing.
                if header.get_dtype() not in STORED:
                    raise InputError(f"{path}: {name} is stored as {header.get_dtype()}; take a checkpoint stored as "
                                     f"one of {', '.join(STORED)}")
                read[name] = tensors.get_tensor(name).to(device, dtype)
    return read


def _weight_files(folder: Path) -> list[str]:
    """Names of the safetensors files: one, or the shards that the index lists."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return ["model.safetensors"]
    file_of_tensor = read_json(index).get("weight_map")
    names = file_of_tensor.values() if isinstance(file_of_tensor, dict) else ()
    if not names or not all(isinstance(name, str) and name == Path(name).name for name in names):
        raise InputError(f"{index}: weight_map must give, for each tensor, the name of a file in the folder")
    return sorted(set(names))


def read_weights(folder: str | Path, config: Config, device, dtype) -> dict[str, torch.Tensor]:
    """Read single or sharded safetensors; every tensor is used and every shape checked.

    Raises InputError as read_tensors does, and naming the first tensor that is missing.
    """
    folder = Path(folder)
    shapes = tensor_shapes(config)

    def shape_of(name):
        if name.endswith("rotary_emb.inv_freq"):                 # a table in old checkpoints; it is computed here
            return "skip"
        if name == "lm_head.weight" and config.tied:             # some tied checkpoints store the matrix twice
            return shapes["model.embed_tokens.weight"]
        return shapes.get(name)

    weights = {}
    for file in _weight_files(folder):
        weights |= read_tensors(folder / file, device, dtype, shape_of)

    missing = [name for name in shapes if name not in weights]
    if missing:
        raise InputError(f"{folder}: {len(missing)} tensors are missing, the first is {missing[0]}")

    if config.tied and "lm_head.weight" in weights:
        lm_head = weights.pop("lm_head.weight")
        if not torch.equal(lm_head, weights["model.embed_tokens.weight"]):
            raise InputError(f"{folder}: config.json ties lm_head.weight to the embedding, but the stored one differs")
    return weights


def save_checkpoint(folder: str | Path, raw: dict, weights: dict[str, torch.Tensor]):
    """Write config.json and model.safetensors in the form that read_config, read_weights and Hugging Face read."""
    folder = Path(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "config.json", json.dumps(raw, indent=2, allow_nan=False) + "\n")

    tensors = {name: weight.detach().cpu().contiguous() for name, weight in weights.items()}
    write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})


# --- the folder and the device --------------------------------------------------------------------------------------

# The files of a Hugging Face repository that are read: not its pickles, nor Meta's copy of the weights.
READ_FROM_HUB = ["*.json", "*.safetensors", "*.model", "*.jinja", "vocab.txt"]


def locate(model: str | Path) -> Path:
    """The folder of a checkpoint: `model` itself, or the snapshot of a hub repository.

    A repository is `owner/name`, or `owner/name@revision` for one of its revisions. Raises InputError if `model` is
    neither, or if the repository cannot be fetched.
    """
    if Path(model).is_dir():
        return Path(model)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", str(model)) or Path(model).parent.is_dir():
        raise InputError(f"{model}: no such folder, and not a hub repository of the form owner/name")

    from huggingface_hub import snapshot_download
    name, _, revision = str(model).partition("@")
    try:
        return Path(snapshot_download(name, revision=revision or None, ignore_patterns=["original/*"],
                                      allow_patterns=READ_FROM_HUB))
    except Exception as error:                               # gated, unknown, offline: each is the user's to mend
        raise InputError(f"{model}: cannot be fetched from the hub ({one_line(error)}); "
                         "give a local folder, or log in with `hf auth login` if the repository is gated") from None


# What a checkpoint is loaded from, next to its weights: a language model's files, and a sentence encoder's.
FILES = ("1_Pooling/config.json", "chat_template.jinja", "config.json", "generation_config.json",
         "model.safetensors.index.json", "sentence_bert_config.json", "tokenizer.json", "tokenizer.model",
         "tokenizer_config.json", "vocab.txt")


def fingerprint(folder: Path) -> str:
    """sha256 over the files that a checkpoint is loaded from. Whatever else is in the folder does not matter."""
    paths = sorted(folder / name for name in [*FILES, *_weight_files(folder)])
    return sha256(path for path in paths if path.exists())


def choose_device(device: str = "auto", dtype: str = "auto",
                  stored: str = "bfloat16") -> tuple[torch.device, torch.dtype]:
    """The device and dtype to run in.

    Device "auto" takes cuda, then mps, then cpu. Dtype "auto" takes `stored`, the dtype of the stored weights, on cuda,
    and float32 elsewhere. Raises InputError for a device that cannot be used and an unknown dtype.
    """
    if device == "auto" and torch.cuda.is_available():
        device = "cuda"
    elif device == "auto" and torch.backends.mps.is_available():
        device = "mps"
    elif device == "auto":
        device = "cpu"
    try:
        with enough_memory():
            chosen = torch.device(device)
            torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"device {device!r} cannot be used here: {str(error).splitlines()[0]}") from None

    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
    if dtype == "auto":
        dtype = stored if chosen.type == "cuda" and stored in dtypes else "float32"
    if dtype not in dtypes:
        raise InputError(f"dtype {dtype!r} is unknown; choose from {', '.join(dtypes)}")
    return chosen, dtypes[dtype]
