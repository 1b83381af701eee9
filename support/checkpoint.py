"""The files of a Hugging Face checkpoint folder, except its tokenizer: config.json and the weights.

Only JSON and safetensors files are read.
"""
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from support.files import InputError, one_line, read_json, write_file

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


def read_config(folder: str | Path) -> Config:
    """Read config.json as transformers 4 or 5 wrote it; absent keys have Hugging Face's defaults.

    Raises InputError for a missing key, another architecture, a bias, a rope_type other than default and llama3, and an
    impossible value.
    """
    path = Path(folder) / "config.json"
    raw = read_json(path)
    _check_architecture(path, raw)
    rope = _rope_parameters(path, raw)
    eos = _end_of_sequence(Path(folder), raw)

    try:
        heads = raw["num_attention_heads"]
        scaling = _llama3_scaling(rope, raw)

        config = Config(
            vocab=raw["vocab_size"],
            width=raw["hidden_size"],
            hidden=raw["intermediate_size"],
            layers=raw["num_hidden_layers"],
            heads=heads,
            kv_heads=raw.get("num_key_value_heads") or heads,
            head_width=raw.get("head_dim") or raw["hidden_size"] // heads,
            norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            max_length=raw.get("max_position_embeddings", 2048),
            tied=raw.get("tie_word_embeddings", False),
            rope_theta=float(rope["rope_theta"]),
            rope=scaling,
            eos=eos,
            dtype=str(raw.get("torch_dtype") or raw.get("dtype") or "bfloat16"))
    except KeyError as error:
        raise InputError(f"{path}: key {error} is missing") from None
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise InputError(f"{path}: a value does not fit a Llama ({error})") from None

    _check_sizes(path, config)
    return config


def _check_architecture(path: Path, raw: dict):
    """Raise InputError if config.json is not a Llama's, or asks for a part that is not implemented."""
    architectures = raw.get("architectures", ["LlamaForCausalLM"])
    model_type = raw.get("model_type", "llama")
    if architectures != ["LlamaForCausalLM"] or model_type != "llama":
        raise InputError(f"{path}: architecture {architectures or model_type} is not LlamaForCausalLM")

    for key, implemented in {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu"}.items():
        if raw.get(key, implemented) != implemented:
            raise InputError(f"{path}: {key} is {raw[key]!r}; only {implemented!r} is implemented")


def _rope_parameters(path: Path, raw: dict) -> dict:
    """RoPE's parameters, with rope_theta and rope_type filled in.

    transformers 5 writes all of them as rope_parameters. Version 4 writes rope_theta and rope_scaling, whose rope_type
    was once called type.
    """
    parameters = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(parameters, dict):
        raise InputError(f"{path}: RoPE's parameters are {parameters!r}; they must be an object with rope_type")

    rope_type = parameters.get("rope_type", parameters.get("type", "default"))
    if rope_type not in ("default", "llama3"):
        raise InputError(f"{path}: rope_type {rope_type!r} is unknown; 'default' and 'llama3' are implemented")
    return {"rope_theta": raw.get("rope_theta", 10000.0)} | parameters | {"rope_type": rope_type}


def _llama3_scaling(rope: dict, raw: dict) -> dict | None:
    """The four numbers of llama3 scaling (llama.inverse_frequencies); None without scaling."""
    if rope["rope_type"] == "default":
        return None
    return {"factor": rope["factor"], "low": rope["low_freq_factor"], "high": rope["high_freq_factor"],
            "original": rope.get("original_max_position_embeddings") or raw["max_position_embeddings"]}


def _end_of_sequence(folder: Path, raw: dict) -> tuple[int, ...]:
    """The tokens that end a reply: generation_config.json's, and config.json's if that file names none."""
    path = folder / "generation_config.json"
    eos = read_json(path).get("eos_token_id") if path.exists() else None
    if eos is None:
        eos = raw.get("eos_token_id")

    if eos is None:
        tokens = ()
    elif isinstance(eos, list):
        tokens = tuple(eos)
    else:
        tokens = (eos,)
    if not all(type(token) is int for token in tokens):
        raise InputError(f"{folder}: eos_token_id is {eos!r}, not a token id or several")
    return tokens


def _check_sizes(path: Path, config: Config):
    """Raise InputError if a size is not a positive whole number, or heads cannot share key/value heads evenly."""
    for name in ("vocab", "width", "hidden", "layers", "heads", "kv_heads", "head_width", "max_length"):
        value = getattr(config, name)
        if type(value) is not int or value < 1:
            raise InputError(f"{path}: {name} is {value!r}, not a positive whole number")
    if config.heads % config.kv_heads:
        raise InputError(f"{path}: {config.heads} query heads do not share {config.kv_heads} key/value heads evenly")


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


def read_tensors(path: Path, device, dtype, shape_of) -> dict[str, torch.Tensor]:
    """Read the tensors of one safetensors file, one at a time.

    shape_of(name) is the shape that config.json gives a tensor, "skip" if the tensor is not needed, or None if it does
    not belong in the file. Raises InputError naming the file if it cannot be read (it may be cut short), and the tensor
    if it is unknown or has another shape.
    """
    read = {}
    try:
        with safe_open(path, framework="pt", device="cpu") as tensors:
            for name in tensors.keys():
                shape = shape_of(name)
                if shape == "skip":
                    continue
                if shape is None:
                    raise InputError(f"{path}: tensor {name} is not part of this architecture")

                stored = tuple(tensors.get_slice(name).get_shape())
                if stored != shape:
                    raise InputError(f"{path}: {name} is {list(stored)}, config.json says {list(shape)}")
                read[name] = tensors.get_tensor(name).to(device, dtype)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: not a readable safetensors file ({error})") from None
    return read


def _weight_files(folder: Path) -> list[str]:
    """Names of the safetensors files: one, or the shards that the index lists."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return ["model.safetensors"]
    file_of_tensor = read_json(index).get("weight_map")
    if not isinstance(file_of_tensor, dict):
        raise InputError(f"{index}: has no weight_map")
    return sorted(set(file_of_tensor.values()))


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
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "config.json", json.dumps(raw, indent=2) + "\n")

    partial = folder / "model.partial"
    tensors = {name: weight.detach().cpu().contiguous() for name, weight in weights.items()}
    save_file(tensors, partial, metadata={"format": "pt"})
    partial.replace(folder / "model.safetensors")


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


NOT_THE_MODEL = ("pecan.json", "training.safetensors")        # other files that a checkpoint folder may hold


def fingerprint(folder: Path) -> str:
    """sha256 over the config, tokenizer and weights files of a checkpoint folder."""
    digest = hashlib.sha256()
    for path in sorted([*folder.iterdir(), *(folder / "1_Pooling").glob("*")]):
        known = path.suffix in (".json", ".model", ".jinja", ".safetensors") or path.name == "vocab.txt"
        if known and path.name not in NOT_THE_MODEL:
            with open(path, "rb") as file:
                digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


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
