"""Sentence encoders for similarity and dense retrieval: BERT and MPNet. token_mean.py has a third.

    B   sentences    T   tokens    D   width    H   heads    K   head width, D = H K

All have the same interface. `encode(sentences)` returns unit vectors [n, D], so that a dot product is the cosine. With
unit=False it returns the pooled vectors unchanged. `cut(texts)` counts texts that are too long to be read. `flops` adds
up the cost. `fingerprint` distinguishes one encoder from another. BERT and MPNet share the class Encoder; their own
classes hold the differences.
"""
import math
from pathlib import Path

import tokenizers
import torch
import torch.nn.functional as F

from core.files import COUNT, InputError, check_values, parse_json, read_if_there, read_json, reading
from core.together import Batches
from encoders.token_mean import TokenMean
from llama import Llama
from model.checkpoint import check_implemented, check_shapes, fingerprint, locate, read_tensors


def load_encoder(name: str | None, model: Llama):
    """The BERT or MPNet in the folder or hub repository `name`, on `model`'s device. InputError for other kinds.

    Without a name, the mean of `model`'s own embeddings.
    """
    if name is None:
        return TokenMean(model)
    path = locate(name) / "config.json"
    model_type = read_json(path).get("model_type")
    encoder = {"bert": Bert, "mpnet": MPNet}.get(str(model_type))
    if encoder is None:
        raise InputError(f"{path}: model_type {model_type!r} is not implemented; 'bert' and 'mpnet' are")
    return encoder(name, model.device)


def load_towers(names: list[str] | None, model: Llama):
    """The two encoders of Dragon (Lin et al. 2023), of questions and of passages.

    Both are BERTs. Their vector is the last hidden state of [CLS], not normalised, for a dot product. Without names,
    the mean of `model`'s own embeddings replaces both; it is not normalised either.
    """
    if names is None:
        return (TokenMean(model, unit=False),) * 2
    return tuple(Bert(name, model.device, pooling="cls", unit=False) for name in names)


def similarities(vectors, query):
    """Dot products [n] of vectors [n, D] with one vector [D], row by row.

    Equal rows give equal products. A matrix product may round each row differently. Raises InputError if a product is
    not finite.
    """
    products = (vectors * query).sum(-1)
    if not products.isfinite().all():
        raise InputError("the encoder's vectors are not finite, because its weights are not; choose another --encoder")
    return products


# --- BERT and MPNet -------------------------------------------------------------------------------------------------

NEITHER_POOLING_NEEDS = r"pooler\..*|embeddings\.position_ids"


class Encoder:
    """The common part of BERT and MPNet: a transformer that normalises after each residual, with pooling.

    The last hidden states are pooled to one vector as in sentence-transformers (SBERT, Reimers and Gurevych 2019).
    The folder says how, or for Dragon's encoders `pooling` does ("mean" or "cls") and `unit`. Every tensor is used
    except the pooler, which neither way of pooling needs, and position_ids. InputError names the file, key or tensor
    that is wrong.

    Bert and MPNet set these attributes, and each adds a tensor:

        prefix             some checkpoints put it before every tensor's name
        required           key of config.json -> the only value it may have
        first_position     row of the position table for the first token
        qkv                names of a layer's matrices for queries, keys and values
        output             name of the matrix after attention
        output_norm        name of the norm after that
    """
    fingerprint = ""              # made below; for core.code, which asks each class with an __init__ to define it

    def __init__(self, model: str | Path, device="cpu", pooling: str | None = None, unit: bool = True):
        folder = locate(model, weights=True)
        self.pooling = pooling or _pooling(folder)
        self.unit = unit
        self.device = device
        self.flops = 0
        self.batches = Batches(32)                             # sentences that run together
        self.fingerprint = f"{self.pooling} {unit} {fingerprint(folder)}"

        path = folder / "config.json"
        with reading(path, "not the config.json of an encoder"):
            raw = read_json(path)
            check_implemented(path, raw, self.required)
            check_values(raw, {"num_hidden_layers": COUNT, "num_attention_heads": COUNT}, f"{path}: ")
            self.layers = raw["num_hidden_layers"]
            self.heads = raw["num_attention_heads"]
            self.eps = float(raw["layer_norm_eps"])
            if raw["hidden_size"] % self.heads:
                raise InputError(f"{path}: num_attention_heads is {self.heads}; it must be a divisor of hidden_size")
            shapes = self.shapes(raw)

        # All sizes but the number of heads are sizes of tensors, so a wrong one is found here.
        file = folder / "model.safetensors"
        stored = read_tensors(file, device, torch.float32, f"({self.prefix})?({NEITHER_POOLING_NEEDS})")
        self.weights = {name.removeprefix(self.prefix): tensor for name, tensor in stored.items()}
        check_shapes(file, self.weights, shapes)

        self.tokenizer = _tokenizer(folder, raw["max_position_embeddings"] - self.first_position)
        if max(self.tokenizer.get_vocab().values(), default=0) >= raw["vocab_size"]:
            raise InputError(f"{folder}: vocab_size is {raw['vocab_size']}, and the tokenizer has larger ids")

    def shapes(self, raw: dict) -> dict[str, tuple[int, ...]]:
        """Every tensor that config.json asks for, and its shape."""
        D = raw["hidden_size"]
        hidden = raw["intermediate_size"]
        parts = {"embeddings.LayerNorm": (D,)}
        for layer in range(self.layers):
            at = f"encoder.layer.{layer}."
            parts |= {at + name: (D, D) for name in (*self.qkv, self.output)}
            parts |= {at + self.output_norm: (D,), at + "output.LayerNorm": (D,),
                      at + "intermediate.dense": (hidden, D), at + "output.dense": (D, hidden)}

        return {"embeddings.word_embeddings.weight": (raw["vocab_size"], D),
                "embeddings.position_embeddings.weight": (raw["max_position_embeddings"], D),
                **{f"{name}.weight": shape for name, shape in parts.items()},
                **{f"{name}.bias": shape[:1] for name, shape in parts.items()}}

    def linear(self, x, name):
        """x [.., in] times the named matrix [out, in], plus its bias."""
        return F.linear(x, self.weights[name + ".weight"], self.weights[name + ".bias"])

    def norm(self, x, name):
        """The named LayerNorm over the last axis of x."""
        return F.layer_norm(x, x.shape[-1:], self.weights[name + ".weight"], self.weights[name + ".bias"], self.eps)

    def positions(self, T: int):
        """The rows that are added to the word embeddings, [T, D]."""
        return self.weights["embeddings.position_embeddings.weight"][self.first_position:self.first_position + T]

    def bias(self, T: int):
        """The bias on the scores of every layer, [H, T, T] or 0."""
        return 0

    def cost(self, T: int) -> int:
        """FLOPs of one sentence of T tokens without padding: 2 m n k for every matrix product."""
        hidden, D = self.weights["encoder.layer.0.intermediate.dense.weight"].shape
        return self.layers * (2 * T * (4 * D * D + 2 * D * hidden) + 4 * T * T * D)

    @torch.no_grad()
    def forward(self, tokens, mask):
        """Last hidden states [B, T, D] of tokens [B, T]; mask [B, T] is False on padding."""
        B, T = tokens.shape
        x = self.weights["embeddings.word_embeddings.weight"][tokens] + self.positions(T)
        x = self.norm(x, "embeddings.LayerNorm")                                           # [B, T, D]
        bias = self.bias(T)

        for layer in range(self.layers):
            at = f"encoder.layer.{layer}."

            # Attention, its residual, and the norm after it.
            q, k, v = (self.linear(x, at + name).view(B, T, self.heads, -1).transpose(1, 2) for name in self.qkv)
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + bias                  # [B, H, T, T]
            h = scores.masked_fill(~mask[:, None, None], float("-inf")).softmax(-1) @ v    # [B, H, T, K]
            h = self.linear(h.transpose(1, 2).flatten(2), at + self.output)
            x = self.norm(x + h, at + self.output_norm)

            # The feed-forward part, its residual, and the norm after it.
            h = F.gelu(self.linear(x, at + "intermediate.dense"))
            x = self.norm(x + self.linear(h, at + "output.dense"), at + "output.LayerNorm")
        return x

    def encode(self, sentences: list[str]) -> torch.Tensor:
        """Vectors [n, D] float32: the pooled last hidden states of each sentence, its special tokens included."""
        vectors = torch.stack(self.batches.all(sentences, len, self.pooled)).cpu()
        return F.normalize(vectors, dim=-1) if self.unit else vectors

    def cut(self, texts: list[str]) -> dict[str, int]:
        """Counts of texts and of those that are `longer` than this encoder reads.

        Some encoders read little: all-MiniLM 256 word pieces, where a chunk has 300 tokens.
        """
        read = self.tokenizer.encode_batch(texts)
        return {"encoded": len(texts), "longer": sum(bool(encoding.overflowing) for encoding in read)}

    def pooled(self, texts: list[str]) -> list[torch.Tensor]:
        """The vectors [D] of a batch."""
        rows = [(encoding.ids, encoding.attention_mask) for encoding in self.tokenizer.encode_batch(texts)]
        tokens, mask = torch.tensor(rows, device=self.device).unbind(1)                    # [B, T]
        lengths = mask.sum(1)

        hidden = self.forward(tokens, mask.bool())
        self.flops += sum(map(self.cost, lengths.tolist()))
        vectors = hidden[:, 0] if self.pooling == "cls" else (hidden * mask[:, :, None]).sum(1) / lengths[:, None]
        return list(vectors)


class Bert(Encoder):
    """BERT (Devlin et al. 2019); MiniLM is a small one. All tokens of a sentence have token type 0."""
    prefix = "bert."
    required = {"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False}
    first_position = 0
    qkv = "attention.self.query", "attention.self.key", "attention.self.value"
    output = "attention.output.dense"
    output_norm = "attention.output.LayerNorm"

    def shapes(self, raw):
        token_types = (raw["type_vocab_size"], raw["hidden_size"])
        return super().shapes(raw) | {"embeddings.token_type_embeddings.weight": token_types}

    def positions(self, T):
        return super().positions(T) + self.weights["embeddings.token_type_embeddings.weight"][0]


BUCKETS = 32                                   # 16 for keys up to the query's own position, 16 for later ones
# The first distance of each bucket except bucket 0. Distances up to 7 have one bucket each; then each doubling has two.
STARTS = [*range(1, 8), *(math.ceil(8 * 2 ** (k / 2)) for k in range(8))]


def relative_buckets(distance: torch.Tensor) -> torch.Tensor:
    """The bucket, 0 to 31, of each distance. A distance is the key's position minus the query's.

    These are T5's buckets (Raffel et al. 2020, section 2.1) in both directions, for a maximum distance of 128. T5
    rounds a logarithm. We compare with whole numbers instead, so a device's rounding makes no difference.
    """
    starts = torch.tensor(STARTS, device=distance.device)
    return torch.bucketize(distance.abs(), starts, right=True) + BUCKETS // 2 * (distance > 0)


class MPNet(Encoder):
    """MPNet (Song et al. 2020): no token types, and a table of relative positions that biases all layers' scores."""
    prefix = "mpnet."
    required = {"hidden_act": "gelu", "relative_attention_num_buckets": BUCKETS}
    first_position = 2                         # rows 0 and 1 of the position table are the padding's
    qkv = "attention.attn.q", "attention.attn.k", "attention.attn.v"
    output = "attention.attn.o"
    output_norm = "attention.LayerNorm"

    def shapes(self, raw):
        return super().shapes(raw) | {"encoder.relative_attention_bias.weight": (BUCKETS, self.heads)}

    def bias(self, T):
        position = torch.arange(T, device=self.device)
        buckets = relative_buckets(position - position[:, None])                           # [T, T], query by key
        return self.weights["encoder.relative_attention_bias.weight"][buckets].permute(2, 0, 1)


# --- the other files of an encoder's folder -------------------------------------------------------------------------

# What a pooling's config.json says -> the way of pooling. sentence-transformers 6 writes one key.
POOLINGS = {"pooling_mode_mean_tokens: True": "mean", "pooling_mode: mean": "mean",
            "pooling_mode_cls_token: True": "cls", "pooling_mode: cls": "cls"}

MODULES = ["Transformer", "Pooling", "Normalize"]


def _pooling(folder: Path) -> str:
    """"mean" or "cls", as sentence-transformers' files say. InputError if they say anything else.

    Its `encode` begins a text with a default prompt, if the folder has one. We have none.
    """
    path = folder / "modules.json"
    with reading(path, "expected a list of modules, each with its type"):
        modules = [module["type"].split(".")[-1] for module in parse_json(path.read_bytes(), path, list)]
    if modules != MODULES:
        raise InputError(f"{path}: expected the modules {', '.join(MODULES)}, not {', '.join(modules)}")

    path = folder / "config_sentence_transformers.json"
    check_implemented(path, read_if_there(path), {"default_prompt_name": None})

    path = folder / "1_Pooling" / "config.json"
    said = [f"{key}: {value}" for key, value in read_json(path).items() if key.startswith("pooling_mode") and value]
    if len(said) != 1 or said[0] not in POOLINGS:
        raise InputError(f"{path}: expected one way of pooling, mean or cls, not {', '.join(said) or 'none'}")
    return POOLINGS[said[0]]


def _tokenizer(folder: Path, longest: int) -> tokenizers.Tokenizer:
    """The tokenizer of the folder, which cuts a sentence at max_seq_length, and at `longest` tokens at the latest."""
    path = folder / "sentence_bert_config.json"
    limits = read_if_there(path)
    check_implemented(path, limits, {"do_lower_case": False})
    most = limits.get("max_seq_length") or read_if_there(folder / "tokenizer_config.json").get("model_max_length")

    path = folder / "tokenizer.json"
    with reading(path, "not a readable tokenizer"):
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        tokenizer.enable_truncation(min(most or longest, longest))
        tokenizer.enable_padding()
    return tokenizer
