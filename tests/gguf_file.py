"""GGUF files for the tests, by gguf's own writer, and a naive byte-level BPE.

The rows of query and key matrices, and the factors of llama3 scaling, are written as llama.cpp's converter does.
"""
import json
import math

import gguf
import numpy as np
import regex
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file

NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


# --- content --------------------------------------------------------------------------------------------------------

def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Query or key rows in the order of the interleaved rotation: 0, K/2, 1, K/2 + 1, ..."""
    K = len(rows) // heads
    order = [head * K + half * K // 2 + i for head in range(heads) for i in range(K // 2) for half in (0, 1)]
    return rows[order]


def factors_of(rope: dict, K: int) -> np.ndarray:
    """The factors by which rope_freqs divides the frequencies, [K/2], one after the other."""
    factors = []
    for i in range(0, K, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / K)
        low, high, original = (rope[key] for key in (
            "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
        if wavelength < original / high:
            factors.append(1)
        elif wavelength > original / low:
            factors.append(rope["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def fields_of(folder) -> dict:
    """The metadata of a checkpoint whose tokenizer is a byte-level BPE like Llama 3's."""
    raw = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    added = {token["content"]: 3 if token["special"] else 4 for token in tokenizer["added_tokens"]}
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    return {"llama.block_count": raw["num_hidden_layers"], "llama.context_length": raw["max_position_embeddings"],
            "llama.embedding_length": raw["hidden_size"], "llama.feed_forward_length": raw["intermediate_size"],
            "llama.attention.head_count": raw["num_attention_heads"],
            "llama.attention.head_count_kv": raw["num_key_value_heads"],
            "llama.attention.key_length": raw["head_dim"], "llama.attention.value_length": raw["head_dim"],
            "llama.rope.dimension_count": raw["head_dim"], "llama.vocab_size": len(tokens),
            "llama.rope.freq_base": raw["rope_parameters"]["rope_theta"],
            "llama.attention.layer_norm_rms_epsilon": raw["rms_norm_eps"],
            "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [added.get(token, 1) for token in tokens],
            "tokenizer.ggml.merges": [" ".join(pair) for pair in tokenizer["model"]["merges"]],
            "tokenizer.ggml.bos_token_id": tokens.index("<s>"), "tokenizer.ggml.eos_token_id": tokens.index("</s>"),
            "tokenizer.chat_template": settings["chat_template"]}


def tensors_of(folder, matrices: Type) -> dict:
    """The tensors of a checkpoint, name -> (array, type); matrices in one type, vectors in float32."""
    raw = json.loads((folder / "config.json").read_text())
    tensors = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        array = weight.float().numpy()
        if "q_proj" in name:
            array = interleaved(array, raw["num_attention_heads"])
        if "k_proj" in name:
            array = interleaved(array, raw["num_key_value_heads"])

        parts = name.split(".")
        theirs = {"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm",
                  "lm_head.weight": "output"}.get(name) or f"blk.{parts[2]}.{NAMES['.'.join(parts[3:-1])]}"
        tensors[f"{theirs}.weight"] = (array, matrices if array.ndim > 1 else Type.F32)

    if raw["rope_parameters"]["rope_type"] == "llama3":
        tensors["rope_freqs.weight"] = (factors_of(raw["rope_parameters"], raw["head_dim"]), Type.F32)
    return tensors


# --- the file -------------------------------------------------------------------------------------------------------

def write_gguf(path, fields: dict, tensors: dict, architecture: str = "llama"):
    """Write a GGUF file. A tensor is (array, type); an array of uint8 already has the blocks of its type."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in fields.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        else:
            add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
            add[type(value)](key, value)

    for name, (array, kind) in tensors.items():
        if array.dtype != np.uint8:
            array = gguf.quants.quantize(array, kind)
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def stored(array, kind) -> torch.Tensor:
    """The array that a file gives back after storing it as F32, F16 or BF16."""
    dtype = {Type.F32: torch.float32, Type.F16: torch.float16, Type.BF16: torch.bfloat16}[kind]
    return torch.from_numpy(array).to(dtype)


# --- byte-level BPE the naive way -----------------------------------------------------------------------------------

# llama.cpp's expressions for the two rules. Each cuts the pieces of the one before it.
WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
RULES = {"smollm": [r"\p{N}", WORDS],
         "llama-bpe": [r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+"
                       r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]}


def letters() -> dict[int, str]:
    """The letter that GPT-2 writes for every byte: itself if it can be printed, else one from 256 on."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    return {byte: chr(byte) for byte in printed} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def naive_ids(fields: dict, text: str) -> list[int]:
    """The ids of a text without special tokens: cut it into words, then merge the best pair until none is left."""
    number = {token: i for i, token in enumerate(fields["tokenizer.ggml.tokens"])}
    rank = {tuple(merge.split(" ")): n for n, merge in enumerate(fields["tokenizer.ggml.merges"])}
    letter = letters()

    words = [text]
    for rule in RULES[fields["tokenizer.ggml.pre"]]:
        cut = []
        for word in words:
            end = 0
            for match in regex.finditer(rule, word):
                cut += [word[end:match.start()], match.group()]
                end = match.end()
            cut.append(word[end:])
        words = [word for word in cut if word]

    ids = []
    for word in words:
        parts = [letter[byte] for byte in word.encode()]
        if fields["tokenizer.ggml.pre"] == "llama-bpe" and "".join(parts) in number:
            parts = ["".join(parts)]
        while True:
            pairs = [(rank[pair], n) for n, pair in enumerate(zip(parts, parts[1:])) if pair in rank]
            if not pairs:
                break
            _, n = min(pairs)
            parts[n:n + 2] = [parts[n] + parts[n + 1]]
        ids += [number[part] for part in parts if part in number]
    return ids
