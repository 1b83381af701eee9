"""The tokenizer of a GGUF file as tokenizer.json and tokenizer_config.json.

The file lists the tokens with their types, and names the rule that cuts text into words. An unknown rule is refused,
because another rule would silently give other ids.
"""
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from core.checkpoint import check_implemented
from core.files import InputError
from core.tokenizer import add_specials, of_pieces, words_of

# How text is cut into words before the merges of a byte-level BPE, by tokenizer.ggml.pre.
LLAMA3_WORD = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
               r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")


def tokenizer_of(path: Path, fields: dict) -> tokenizers.Tokenizer:
    """The tokenizer; InputError if its kind or its rule for words is not known."""
    tokens = fields["tokenizer.ggml.tokens"]
    types = fields["tokenizer.ggml.token_type"]
    kind = fields.get("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = byte_level(path, fields, words_of(tokens, types))
        add_specials(tokenizer, tokens, types)
    elif kind == "llama":
        check_implemented(path, fields, {"tokenizer.ggml.pre": "default", "tokenizer.ggml.add_space_prefix": True})
        tokenizer = of_pieces(tokens, types, fields["tokenizer.ggml.scores"])
    else:
        raise InputError(f"{path}: tokenizer.ggml.model is {kind!r}; 'gpt2' and 'llama' are implemented")

    # Put a BOS before any text, as transformers does by default. Our prompts are encoded without it.
    bos = fields.get("tokenizer.ggml.bos_token_id")
    by_default = kind == "llama" or fields.get("tokenizer.ggml.pre") in LLAMA3_NAMES
    if bos is not None and fields.get("tokenizer.ggml.add_bos_token", by_default):
        tokenizer.post_processor = processors.TemplateProcessing(f"{tokens[bos]} $A",
                                                                 special_tokens=[(tokens[bos], bos)])
    return tokenizer


def byte_level(path: Path, fields: dict, vocabulary: dict[str, int]) -> tokenizers.Tokenizer:
    """A byte-level BPE: Llama 3's, or SmolLM's, which takes digits one by one."""
    pre = fields.get("tokenizer.ggml.pre")
    if pre not in (*LLAMA3_NAMES, "smollm"):
        raise InputError(f"{path}: tokenizer.ggml.pre is {pre!r}; 'llama-bpe' and 'smollm' are implemented")
    check_implemented(path, fields, {"tokenizer.ggml.add_space_prefix": False})

    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre != "smollm"))
    if pre == "smollm":
        words = pre_tokenizers.Digits(individual_digits=True)
    else:
        words = pre_tokenizers.Split(tokenizers.Regex(LLAMA3_WORD), "isolated")
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre == "smollm")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bytes_of])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def tokenizer_config(fields: dict) -> dict:
    """tokenizer_config.json: the names of the special tokens, and the chat template."""
    raw = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False,
           "model_max_length": fields["llama.context_length"], "chat_template": fields.get("tokenizer.chat_template")}
    for name, key in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items():
        token = fields.get(f"tokenizer.ggml.{key}_token_id")
        if token is not None:
            raw[f"{name}_token"] = fields["tokenizer.ggml.tokens"][token]
    return raw
