"""The files of a Hugging Face checkpoint folder, except its tokenizer: config.json and the weights.

Only JSON and safetensors files are read.
"""
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
    read_if_there,
    read_json,
    reading,
    sha256,
)

# --- config.json ----------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Config:
    """The values of `config.json` that the forward pass needs."""
    vocab: int                                 # V
    width: int                                 # D
    intermediate: int                          # width of the SwiGLU
    layers: int                                # L
    heads: int                                 # H
    kv_heads: int                              # KV
    head_width: int                            # K
    norm_eps: float
    max_length: int                            # positions the checkpoint was made for
    tied: bool                                 # the output matrix is the embedding
    rope_theta: float
    rope: dict                                 # the numbers of its scaling: factor, and for llama3 three more
    eos: tuple[int, ...]                       # each of these tokens ends a reply
    dtype: str                                 # of the stored weights
    biased: tuple[str, ...] = ()               # the matrices of a layer that have a bias
    head_norms: bool = False                   # each head's query and key are normalised (Qwen3)


# The model types that are a Llama, and Hugging Face's defaults for absent keys.
KINDS = {"llama": {"max_position_embeddings": 2048, "eos_token_id": 2},
         "qwen2": {"max_position_embeddings": 32768, "num_key_value_heads": 32},
         "qwen3": {"max_position_embeddings": 32768, "num_key_value_heads": 32, "head_dim": 128},
         "mistral": {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096,
                     "eos_token_id": 2}}
DEFAULTS = {"rms_norm_eps": 1e-6, "tie_word_embeddings": False, "rope_theta": 10000.0, "attention_bias": False,
            "mlp_bias": False, "layer_types": []}

# rope_type -> the keys that scale RoPE, in the order in which llama.inverse_frequencies reads them.
LINEAR = {"factor": POSITIVE}
SCALINGS = {"default": {}, "linear": LINEAR,
            "llama3": LINEAR | {"low_freq_factor": POSITIVE, "high_freq_factor": POSITIVE,
                                "original_max_position_embeddings": COUNT}}
IMPLEMENTED = {"hidden_act": "silu", "partial_rotary_factor": 1, "use_sliding_window": False}

RULES = {
    **dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                     "num_key_value_heads", "max_position_embeddings"), COUNT),
    **dict.fromkeys(("rms_norm_eps", "rope_theta"), POSITIVE),
    **dict.fromkeys(("tie_word_embeddings", "attention_bias", "mlp_bias"), FLAG),
    "layer_types": Rule((list,), "'full_attention' for each layer",
                        lambda kinds: all(kind == "full_attention" for kind in kinds)),
    "rope_type": Rule((str,), "default, linear or llama3", SCALINGS.__contains__),
}
HEAD_WIDTH = Rule((int,), "an even number above 0, because RoPE rotates pairs", lambda n: COUNT.holds(n) and n % 2 == 0)


def read_config(folder: str | Path) -> Config:
    """Read config.json as transformers 4 or 5 wrote it; absent keys have Hugging Face's defaults.

    Raises InputError for a missing key, another architecture or rope_type, and an impossible value.
    """
    path = Path(folder) / "config.json"
    with reading(path, "not the config.json of a Llama"):
        given = read_json(path)
        kind = given.get("model_type", "llama")
        if str(kind) not in KINDS:
            raise InputError(f"{path}: model_type is {kind!r:.60}; only {', '.join(KINDS)} are implemented")
        given = KINDS[kind] | given
        values = _with_rope({key: value for key, value in given.items() if value is not None})
        check_implemented(path, values, IMPLEMENTED | {"architectures": [f"{kind.capitalize()}ForCausalLM"]})
        check_values(values, RULES, f"{path}: ")

        heads = values["num_attention_heads"]
        divides = Rule((int,), f"a divisor of num_attention_heads, {heads}", lambda n: heads % n == 0)
        values = {"head_dim": values["hidden_size"] // heads} | values
        scaling = SCALINGS[values["rope_type"]]
        check_values(values, {"head_dim": HEAD_WIDTH, "num_key_value_heads": divides} | scaling, f"{path}: ")

        # Mistral's attention may slide: it reaches back sliding_window tokens. Up to that length nothing slides.
        max_length = values["max_position_embeddings"]
        if kind == "mistral":
            max_length = min(max_length, values.get("sliding_window", max_length))

    biased = ["q_proj", "k_proj", "v_proj"] if kind == "qwen2" or values["attention_bias"] else []
    if values["attention_bias"]:
        biased += ["o_proj"]
    if values["mlp_bias"]:
        biased += ["gate_proj", "up_proj", "down_proj"]

    return Config(
        vocab=values["vocab_size"],
        width=values["hidden_size"],
        intermediate=values["intermediate_size"],
        layers=values["num_hidden_layers"],
        heads=heads,
        kv_heads=values["num_key_value_heads"],
        head_width=values["head_dim"],
        norm_eps=float(values["rms_norm_eps"]),
        max_length=max_length,
        tied=values["tie_word_embeddings"],
        rope_theta=float(values["rope_theta"]),
        rope={key: values[key] for key in scaling} or {"factor": 1},
        eos=_end_of_sequence(path.parent, given),
        dtype=str(values.get("torch_dtype") or values.get("dtype") or "bfloat16"),
        biased=tuple(biased),
        head_norms=kind == "qwen3")


def check_implemented(path: Path, raw: dict, only: dict):
    """Raise InputError if a key of `only` has another value in `raw`; a key may be absent or null."""
    for key, implemented in only.items():
        if raw.get(key) not in (None, implemented):
            raise InputError(f"{path}: {key} is {raw[key]!r:.60}; only {implemented!r} is implemented")


def _with_rope(given: dict) -> dict:
    """The values of config.json, with defaults for absent keys. RoPE's parameters are keys like all others.

    transformers 5 writes all of RoPE's parameters as rope_parameters. Version 4 writes rope_theta and rope_scaling.
    Older versions call rope_type type. If a file has both names, it is read as transformers reads it.
    """
    rope = given.get("rope_scaling") or given.get("rope_parameters") or {}
    rope = {"rope_type": rope.get("type", "default")} | rope
    values = DEFAULTS | {"num_key_value_heads": given.get("num_attention_heads")} | given | rope
    key = "original_max_position_embeddings"
    return values | {key: given.get(key) or values.get(key, values["max_position_embeddings"])}


def _end_of_sequence(folder: Path, given: dict) -> tuple[int, ...]:
    """The tokens that end a reply: those of generation_config.json, or of config.json if the first names none.

    Other keys there change how tokens are chosen, such as repetition_penalty. The paper decodes greedily and speaks of
    none, so the model's own best token is taken.
    """
    path = folder / "generation_config.json"
    eos = read_if_there(path).get("eos_token_id")
    if eos is None:
        path = folder / "config.json"
        eos = given.get("eos_token_id")

    tokens = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if not all(type(token) is int for token in tokens):
        raise InputError(f"{path}: eos_token_id is {eos!r:.60}; it must be the id of a token, or a list of ids")
    return tuple(tokens)


# --- weights --------------------------------------------------------------------------------------------------------

def tensor_shapes(c: Config) -> dict[str, tuple[int, ...]]:
    """The name of every tensor of a checkpoint -> its shape."""
    D = c.width
    q = c.heads * c.head_width
    kv = c.kv_heads * c.head_width
    layer_shapes = {"input_layernorm": (D,), "post_attention_layernorm": (D,),
                    "self_attn.q_proj": (q, D), "self_attn.k_proj": (kv, D), "self_attn.v_proj": (kv, D),
                    "self_attn.o_proj": (D, q), "mlp.gate_proj": (c.intermediate, D),
                    "mlp.up_proj": (c.intermediate, D), "mlp.down_proj": (D, c.intermediate)}
    if c.head_norms:
        layer_shapes |= {"self_attn.q_norm": (c.head_width,), "self_attn.k_norm": (c.head_width,)}

    shapes = {}
    for layer in range(c.layers):
        for name, shape in layer_shapes.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
            if name.split(".")[-1] in c.biased:
                shapes[f"model.layers.{layer}.{name}.bias"] = shape[:1]
    shapes["model.embed_tokens.weight"] = (c.vocab, D)
    shapes["model.norm.weight"] = (D,)
    if not c.tied:
        shapes["lm_head.weight"] = (c.vocab, D)
    return shapes


def check_shapes(file, tensors: dict[str, torch.Tensor], wanted: dict[str, tuple]):
    """Raise InputError for the first tensor that is missing or unknown, or whose shape config.json contradicts."""
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name in [*wanted, *found]:
        if found.get(name) != wanted.get(name):
            raise InputError(f"{file}: tensor {name} is {found.get(name, 'missing')}; config.json wants "
                             f"{wanted.get(name, 'no such tensor')}")


def read_tensors(path: Path, device, dtype, skipped: str) -> dict[str, torch.Tensor]:
    """Read the tensors of one safetensors file, one at a time. Names that match `skipped` are left out.

    Raises InputError if the file cannot be read (it may be cut short), or if weights are whole numbers or take
    one byte. These are quantised and mean nothing without their scales.
    """
    read = {}
    with reading(path, "not a readable safetensors file"), safe_open(path, framework="pt") as tensors:
        for name in tensors.keys():
            if re.fullmatch(skipped, name):
                continue
            tensor = tensors.get_tensor(name)
            if not tensor.is_floating_point() or tensor.dtype.itemsize == 1:
                raise InputError(f"{path}: {name} is stored as {tensor.dtype}; use a checkpoint that is not quantised")
            read[name] = tensor.to(device, dtype, copy=True)    # the file may change while it is mapped
    return read


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files: model.safetensors, or the shards that an index lists; beside it they are old."""
    single = folder / "model.safetensors"
    index = folder / "model.safetensors.index.json"
    if single.exists() or not index.exists():
        return [single]
    with reading(index, "weight_map must give a file for each tensor"):
        return sorted({folder / name for name in read_json(index)["weight_map"].values()})


def read_weights(folder: Path, config: Config, device, dtype) -> dict[str, torch.Tensor]:
    """Read single or sharded safetensors. Every tensor is used, and every shape is checked.

    Only the table of RoPE's frequencies in old checkpoints is skipped. Raises InputError as read_tensors and
    check_shapes do.
    """
    weights = {}
    for file in _weight_files(folder):
        weights |= read_tensors(file, device, dtype, r".*rotary_emb\.inv_freq")

    # Some tied checkpoints store the output matrix, too.
    twice = weights.pop("lm_head.weight", None) if config.tied else None
    check_shapes(folder, weights, tensor_shapes(config))
    if twice is not None and not torch.equal(twice, weights["model.embed_tokens.weight"]):
        raise InputError(f"{folder}: config.json ties lm_head.weight to the embedding, but the stored one differs")
    return weights


# --- the folder and the device --------------------------------------------------------------------------------------

# A checkpoint is loaded from its weights and these files. Some belong to language models, some to encoders.
FILES = ("1_Pooling/config.json", "added_tokens.json", "chat_template.jinja", "config.json",
         "config_sentence_transformers.json", "generation_config.json", "model.safetensors.index.json",
         "modules.json", "sentence_bert_config.json", "special_tokens_map.json", "token_counts.json", "tokenizer.json",
         "tokenizer.model", "tokenizer_config.json")


def locate(model: str | Path, weights: bool = False) -> Path:
    """The folder of a checkpoint: `model` itself, or the snapshot of a hub repository, owner/name[@revision].

    Of a repository, what will be read is fetched, by name: repositories also hold pickles, adapters and second copies
    of the weights. Weights are fetched if `weights` says so.

    If there is a folder owner/, then the folder name/ in it was mistyped, and no repository is meant. Raises InputError
    if `model` is neither, or if the repository cannot be fetched.
    """
    if Path(model).is_dir():
        return Path(model)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", str(model)) or Path(model).parent.is_dir():
        raise InputError(f"{model}: no such folder, and not a hub repository of the form owner/name")

    from huggingface_hub import snapshot_download
    name, _, revision = str(model).partition("@")
    wanted = [*FILES, "pecan.json"]
    if weights:
        wanted += ["model.safetensors", "model-*-of-*.safetensors"]
    with reading(model, "cannot be fetched from the hub",
                 "; give a local folder, or log in with `hf auth login` if the repository is gated"):
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=wanted))


def fingerprint(folder: Path) -> str:
    """sha256 of the files that a checkpoint is loaded from. Other files in the folder do not matter."""
    paths = [*(folder / name for name in FILES), *_weight_files(folder)]
    return sha256(path for path in paths if path.exists())


DTYPES = ("float32", "bfloat16", "float16", "float64")


def choose_device(device: str = "auto", dtype: str = "auto",
                  stored: str = "bfloat16") -> tuple[torch.device, torch.dtype]:
    """The device and dtype to run in.

    Device "auto" takes cuda, then mps, then cpu. Dtype "auto" takes `stored`, the dtype of the stored weights, on cuda,
    and float32 elsewhere. Both are tried; InputError if they cannot compute here.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if dtype == "auto":
        dtype = stored if device.startswith("cuda") and stored in DTYPES else "float32"
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is unknown; choose from {', '.join(DTYPES)}")
    with reading(f"device {device!r} with dtype {dtype!r}", "cannot be used here"):
        chosen = torch.device(device), getattr(torch, dtype)
        torch.zeros(1, device=chosen[0], dtype=chosen[1]).softmax(0).item()
    return chosen
