"""What a Hugging Face checkpoint folder holds besides its tokenizer: config.json and the weights.

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


@dataclass(frozen=True)
class Config:
    """What the forward pass needs of a `config.json`."""
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
    eos: tuple[int, ...]
    dtype: str                                 # of the stored weights


def read_config(folder: str | Path) -> Config:
    """Read config.json as transformers 4 wrote it (rope_theta, rope_scaling) or as 5 does (one rope_parameters).

    Raises InputError for a missing key, another architecture, a bias, or a rope_type other than default and llama3.
    """
    path = Path(folder) / "config.json"
    raw = read_json(path)
    architectures, kind = raw.get("architectures", ["LlamaForCausalLM"]), raw.get("model_type", "llama")
    if architectures != ["LlamaForCausalLM"] or kind != "llama":
        raise InputError(f"{path}: architecture {architectures or kind} is not LlamaForCausalLM")
    for key, wanted in {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu"}.items():
        if raw.get(key, wanted) != wanted:
            raise InputError(f"{path}: {key} is {raw[key]!r}; only {wanted!r} is implemented")

    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise InputError(f"{path}: RoPE's parameters are {rope!r}; an object with rope_type is wanted")
    rope = {"rope_theta": raw.get("rope_theta", 10000.0)} | rope
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise InputError(f"{path}: rope_type {kind!r} is unknown; 'default' and 'llama3' are implemented")
    generation = Path(folder) / "generation_config.json"           # authoritative for where a reply ends
    eos = read_json(generation).get("eos_token_id") if generation.exists() else None
    eos = raw.get("eos_token_id") if eos is None else eos
    try:
        heads = raw["num_attention_heads"]
        scaling = None if kind == "default" else {
            "factor": rope["factor"], "low": rope["low_freq_factor"], "high": rope["high_freq_factor"],
            "original": rope.get("original_max_position_embeddings") or raw["max_position_embeddings"]}
        config = Config(
            vocab=raw["vocab_size"], width=raw["hidden_size"], hidden=raw["intermediate_size"],
            layers=raw["num_hidden_layers"], heads=heads, kv_heads=raw.get("num_key_value_heads") or heads,
            head_width=raw.get("head_dim") or raw["hidden_size"] // heads,
            norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            max_length=raw.get("max_position_embeddings", 2048), tied=raw.get("tie_word_embeddings", False),
            rope_theta=float(rope.get("rope_theta", 10000.0)), rope=scaling,
            eos=() if eos is None else tuple(eos) if isinstance(eos, list) else (eos,),
            dtype=str(raw.get("torch_dtype") or raw.get("dtype") or "bfloat16"))
    except KeyError as error:
        raise InputError(f"{path}: key {error} is missing") from None
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise InputError(f"{path}: a value is not what a Llama's is ({error})") from None
    numbers = {name: getattr(config, name) for name in ("vocab", "width", "hidden", "layers", "heads", "kv_heads",
                                                        "head_width", "max_length")}
    for name, value in numbers.items():
        if type(value) is not int or value < 1:
            raise InputError(f"{path}: {name} is {value!r}, not a positive whole number")
    if not all(type(token) is int for token in config.eos):
        raise InputError(f"{folder}: eos_token_id is {eos!r}, not a token id or several")
    if config.heads % config.kv_heads:
        raise InputError(f"{path}: {config.heads} query heads do not share {config.kv_heads} key/value heads evenly")
    return config


def tensor_shapes(c: Config) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint and its shape."""
    D, q, kv = c.width, c.heads * c.head_width, c.kv_heads * c.head_width
    of_layer = {"input_layernorm": (D,), "post_attention_layernorm": (D,),
                "self_attn.q_proj": (q, D), "self_attn.k_proj": (kv, D), "self_attn.v_proj": (kv, D),
                "self_attn.o_proj": (D, q), "mlp.gate_proj": (c.hidden, D), "mlp.up_proj": (c.hidden, D),
                "mlp.down_proj": (D, c.hidden)}
    shapes = {f"model.layers.{layer}.{name}.weight": shape
              for layer in range(c.layers) for name, shape in of_layer.items()}
    shapes |= {"model.embed_tokens.weight": (c.vocab, D), "model.norm.weight": (D,)}
    return shapes if c.tied else shapes | {"lm_head.weight": (c.vocab, D)}


def read_tensors(path: Path, device, dtype, shape_of) -> dict[str, torch.Tensor]:
    """The tensors of one safetensors file, read one at a time. shape_of(name) tells the shape a tensor must have,
    "skip" where it is not needed, or None where it does not belong there.

    Raises InputError naming the file and the tensor that is unknown or of another shape, or a file that is cut short.
    """
    read = {}
    try:
        with safe_open(path, framework="pt", device="cpu") as tensors:
            for name in tensors.keys():
                wanted, found = shape_of(name), tuple(tensors.get_slice(name).get_shape())
                if wanted is None:
                    raise InputError(f"{path}: tensor {name} is not part of this architecture")
                if wanted not in ("skip", found):
                    raise InputError(f"{path}: {name} is {list(found)}, config.json says {list(wanted)}")
                if wanted != "skip":
                    read[name] = tensors.get_tensor(name).to(device, dtype)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: not a readable safetensors file ({error})") from None
    return read


def read_weights(folder: str | Path, config: Config, device, dtype) -> dict[str, torch.Tensor]:
    """Read single or sharded safetensors; every tensor is consumed and every shape checked.

    Raises InputError as read_tensors does, and naming the first tensor that is missing.
    """
    folder = Path(folder)
    index = folder / "model.safetensors.index.json"
    files = {"model.safetensors"}
    if index.exists():
        files = read_json(index).get("weight_map")
        if not isinstance(files, dict):
            raise InputError(f"{index}: has no weight_map")
        files = set(files.values())
    shapes, weights = tensor_shapes(config), {}

    def shape_of(name):
        if name.endswith("rotary_emb.inv_freq"):                 # a table that old checkpoints carry along; recomputed
            return "skip"
        if name == "lm_head.weight" and config.tied:             # some tied checkpoints store the matrix twice
            return shapes["model.embed_tokens.weight"]
        return shapes.get(name)
    for file in sorted(files):
        weights |= read_tensors(folder / file, device, dtype, shape_of)
    missing = [name for name in shapes if name not in weights]
    if missing:
        raise InputError(f"{folder}: {len(missing)} tensors are missing, the first is {missing[0]}")
    if config.tied and "lm_head.weight" in weights and not torch.equal(
            weights.pop("lm_head.weight"), weights["model.embed_tokens.weight"]):
        raise InputError(f"{folder}: config.json ties lm_head.weight to the embedding, but the stored one differs")
    return weights


def locate(model: str | Path) -> Path:
    """A checkpoint folder: `model` itself, or the snapshot of the hub repository `owner/name`, or of its revision
    `owner/name@revision` (JSON, safetensors, vocabularies)."""
    if Path(model).is_dir():
        return Path(model)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", str(model)) or Path(model).parent.is_dir():
        raise InputError(f"{model}: no such folder, and not a hub repository of the form owner/name")
    from huggingface_hub import snapshot_download
    name, _, revision = str(model).partition("@")
    try:
        return Path(snapshot_download(name, revision=revision or None, ignore_patterns=["original/*"], allow_patterns=[
            "*.json", "*.safetensors", "*.model", "*.jinja", "vocab.txt"]))
    except Exception as error:                               # gated, unknown, offline: each is the user's to mend
        raise InputError(f"{model}: cannot be fetched from the hub ({one_line(error)}); "
                         "give a local folder, or log in with `hf auth login` if the repository is gated") from None


NOT_THE_MODEL = ("pecan.json", "training.safetensors")            # of the files a checkpoint folder may hold


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
    """"auto" takes cuda, then mps, then cpu; and on cuda the dtype the weights are stored in, float32 elsewhere."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        chosen = torch.device(device)
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"device {device!r} cannot be used here: {str(error).splitlines()[0]}") from None
    names = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
    if dtype == "auto":
        dtype = stored if chosen.type == "cuda" and stored in names else "float32"
    if dtype not in names:
        raise InputError(f"dtype {dtype!r} is unknown; choose from {', '.join(names)}")
    return chosen, names[dtype]


def save_checkpoint(folder: str | Path, raw: dict, weights: dict[str, torch.Tensor]):
    """Write config.json and model.safetensors as read_config and read_weights (and Hugging Face) read them."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "config.json", json.dumps(raw, indent=2) + "\n")
    partial = folder / "model.partial"
    save_file({n: w.detach().cpu().contiguous() for n, w in weights.items()}, partial, metadata={"format": "pt"})
    partial.replace(folder / "model.safetensors")
