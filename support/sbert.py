"""Sentence encoders for the embedding similarity and the dense retrievers: BERT and MPNet written by hand, and the mean
of a language model's own embeddings.

    B   sentences    T   tokens    D   width    H   heads    K   head width, D = H K

All have the same interface: `encode(sentences)` gives unit vectors [n, D], so that a dot product is the cosine (with
`unit` False the vectors as they were pooled), `flops` adds up what that cost, and `fingerprint` tells one encoder from
another. BERT and MPNet share the class Encoder; where the two differ stands in their own.
"""
import math
from functools import cached_property
from pathlib import Path

import tokenizers
import torch
import torch.nn.functional as F

from llama import Llama
from support.checkpoint import fingerprint, locate, read_tensors
from support.files import InputError, read_json


class TokenMean:
    """The mean of the language model's own input embeddings, for a model that has to run offline and small.

    Nothing is trained for similarity here: two texts are close as far as they share words. Embeddings have a few
    directions in common, which would make every cosine large; centred and whitened over the vocabulary (Su et al.
    2021), they have the same variance in every direction. `flops` counts the product with the whitening matrix.
    """

    def __init__(self, model: Llama, unit: bool = True):
        self.table, self.tokenizer, self.flops = model.weights["model.embed_tokens.weight"], model.tokenizer, 0
        self.mean, self.unit = self.table.mean(0, dtype=torch.float32), unit
        self.fingerprint = f"whitened mean {model.fingerprint}"

    @cached_property
    def whitening(self) -> torch.Tensor:
        """[D, D'], computed when it is first needed: it takes a minute where D is 4096."""
        covariance = sum((rows.float() - self.mean).T @ (rows.float() - self.mean) for rows in self.table.split(4096))
        variances, directions = torch.linalg.eigh(covariance.cpu().double() / len(self.table))
        kept = variances > 1e-6 * variances[-1]
        return (directions[:, kept] / variances[kept].sqrt()).float().to(self.table.device)

    def encode(self, sentences: list[str]) -> torch.Tensor:
        """Vectors [n, D'] float32."""
        means = torch.stack([self.table[self.tokenizer.encode(text)].float().mean(0) for text in sentences])
        self.flops += 2 * len(sentences) * self.whitening.numel()
        vectors = ((means - self.mean) @ self.whitening).cpu()
        return F.normalize(vectors, dim=-1) if self.unit else vectors


def similarities(vectors, query):
    """Dot products [n] of vectors [n, D] with one vector [D], row by row: equal rows give equal products, which the
    rounding of a matrix product does not promise."""
    return (vectors * query).sum(-1)


def attention(q, k, v, mask, bias):
    """Attention in both directions: q, k and v [B, H, T, K], mask [B, T] (False on padding, which nobody sees), bias
    [H, T, T] or 0 added to the scores. Returns the output [B, H, T, K] and the weights [B, H, T, T]."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + bias
    weights = scores.masked_fill(~mask[:, None, None], float("-inf")).softmax(-1)
    return weights @ v, weights


class Encoder:
    """What BERT and MPNet have in common: a transformer that normalises after each residual, and sentence-transformers'
    pooling of its last hidden states to one vector (SBERT, Reimers and Gurevych 2019).

    Reads config.json, tokenizer.json (or vocab.txt), model.safetensors and, where they are there, 1_Pooling/config.json
    (which `pooling`, "mean" or "cls", overrides) and sentence_bert_config.json. Every tensor is consumed but the
    pooler, which neither way of pooling uses. Raises InputError naming the file, key or tensor. Bert and MPNet fill in
    what follows, and add a tensor each.
    """
    prefix: str                                # stands before every name in some checkpoints
    only: dict                                 # what these keys of config.json must be, where they are there
    first: int                                 # row of the position table that the first token takes
    qkv: tuple[str, str, str]                  # what a layer calls the matrices of attention, and the norm behind it
    out: str
    out_norm: str

    def __init__(self, model: str | Path, device="cpu", batch: int = 32, pooling: str | None = None,
                 unit: bool = True):
        folder = locate(model)
        path = folder / "config.json"
        raw = read_json(path)
        for key, wanted in self.only.items():
            if raw.get(key, wanted) != wanted:
                raise InputError(f"{path}: {key} is {raw[key]!r}; only {wanted!r} is implemented")
        try:
            self.layers, self.heads = raw["num_hidden_layers"], raw["num_attention_heads"]
            self.eps, longest = float(raw["layer_norm_eps"]), raw["max_position_embeddings"] - self.first
            uneven = self.heads < 1 or raw["hidden_size"] % self.heads
            shapes = self.shapes(raw)
        except KeyError as error:
            raise InputError(f"{path}: key {error} is missing") from None
        except (TypeError, ValueError) as error:
            raise InputError(f"{path}: a value is not what an encoder's is ({error})") from None
        if uneven:
            raise InputError(f"{path}: {self.heads} heads do not share a width of {raw['hidden_size']} evenly")
        self.tokenizer = _tokenizer(folder)
        self.tokenizer.enable_truncation(_max_length(folder, longest))
        self.tokenizer.no_padding()
        self.pooling, self.unit = pooling or _pooling(folder), unit
        self.device, self.batch, self.flops = device, batch, 0
        self.fingerprint = fingerprint(folder)
        self.weights = self.read(folder / "model.safetensors", shapes)

    def shapes(self, raw: dict) -> dict[str, tuple[int, ...]]:
        """Every tensor that config.json asks for, and its shape."""
        D, hidden = raw["hidden_size"], raw["intermediate_size"]
        of_layer = {**dict.fromkeys([*self.qkv, self.out], (D, D)), self.out_norm: (D,),
                    "intermediate.dense": (hidden, D), "output.dense": (D, hidden), "output.LayerNorm": (D,)}
        parts = {f"encoder.layer.{layer}.{name}": shape
                 for layer in range(self.layers) for name, shape in of_layer.items()} | {"embeddings.LayerNorm": (D,)}
        return {"embeddings.word_embeddings.weight": (raw["vocab_size"], D),
                "embeddings.position_embeddings.weight": (raw["max_position_embeddings"], D),
                **{f"{name}.weight": shape for name, shape in parts.items()},
                **{f"{name}.bias": shape[:1] for name, shape in parts.items()}}

    def read(self, path: Path, shapes: dict) -> dict[str, torch.Tensor]:
        """The tensors of `shapes` in float32, without the prefix."""
        def shape_of(name):
            name = name.removeprefix(self.prefix)
            return "skip" if name.startswith("pooler.") or name == "embeddings.position_ids" else shapes.get(name)
        weights = read_tensors(path, self.device, torch.float32, shape_of)
        weights = {name.removeprefix(self.prefix): tensor for name, tensor in weights.items()}
        missing = [name for name in shapes if name not in weights]
        if missing:
            raise InputError(f"{path}: {len(missing)} tensors are missing, the first is {missing[0]}")
        return weights

    def linear(self, x, name):
        """x [.., in] times the named matrix [out, in], plus its bias; counted."""
        self.flops += 2 * x.numel() * self.weights[name + ".weight"].shape[0]
        return F.linear(x, self.weights[name + ".weight"], self.weights[name + ".bias"])

    def norm(self, x, name):
        return F.layer_norm(x, x.shape[-1:], self.weights[name + ".weight"], self.weights[name + ".bias"], self.eps)

    def positions(self, T: int):
        """What is added to the word embeddings [T, D]."""
        return self.weights["embeddings.position_embeddings.weight"][self.first:self.first + T]

    def bias(self, T: int):
        """What is added to the scores of every layer, [H, T, T] or 0."""
        return 0

    @torch.no_grad()
    def forward(self, tokens, mask):
        """Last hidden states [B, T, D] of tokens [B, T]; mask [B, T] is False on padding."""
        B, T = tokens.shape
        x = self.weights["embeddings.word_embeddings.weight"][tokens] + self.positions(T)
        x, bias = self.norm(x, "embeddings.LayerNorm"), self.bias(T)                       # [B, T, D]
        for layer in range(self.layers):
            at = f"encoder.layer.{layer}."
            q, k, v = (self.linear(x, at + name).view(B, T, self.heads, -1).transpose(1, 2) for name in self.qkv)
            self.flops += 4 * B * T * T * x.shape[-1]
            h, _ = attention(q, k, v, mask, bias)                                          # [B, H, T, K]
            x = self.norm(x + self.linear(h.transpose(1, 2).flatten(2), at + self.out), at + self.out_norm)
            h = F.gelu(self.linear(x, at + "intermediate.dense"))
            x = self.norm(x + self.linear(h, at + "output.dense"), at + "output.LayerNorm")
        return x

    def encode(self, sentences: list[str]) -> torch.Tensor:
        """Vectors [n, D] float32: the last hidden states of a sentence pooled, those of its special tokens too."""
        vectors = []
        for start in range(0, len(sentences), self.batch):
            ids = [encoding.ids for encoding in self.tokenizer.encode_batch(sentences[start:start + self.batch])]
            T = max(map(len, ids))
            tokens = torch.tensor([row + [0] * (T - len(row)) for row in ids], device=self.device)
            mask = torch.arange(T, device=self.device) < torch.tensor([[len(row)] for row in ids], device=self.device)
            hidden = self.forward(tokens, mask)
            sums = (hidden * mask[:, :, None]).sum(1)
            vectors.append(hidden[:, 0] if self.pooling == "cls" else sums / mask.sum(1, keepdim=True))
        vectors = torch.cat(vectors).cpu()
        return F.normalize(vectors, dim=-1) if self.unit else vectors


class Bert(Encoder):
    """BERT (Devlin et al. 2019), of which MiniLM is a small one: a sentence is all of token type 0."""
    prefix, first = "bert.", 0
    only = {"hidden_act": "gelu", "position_embedding_type": "absolute"}
    qkv = "attention.self.query", "attention.self.key", "attention.self.value"
    out, out_norm = "attention.output.dense", "attention.output.LayerNorm"

    def shapes(self, raw):
        return super().shapes(raw) | {
            "embeddings.token_type_embeddings.weight": (raw["type_vocab_size"], raw["hidden_size"])}

    def positions(self, T):
        return super().positions(T) + self.weights["embeddings.token_type_embeddings.weight"][0]


BUCKETS = 32                                   # 16 for keys up to the query's own position, 16 for later ones
# Where each bucket but the first begins: distances up to 7 have one each, then there are two to a doubling.
STARTS = [*range(1, 8), *(math.ceil(8 * 2 ** (k / 2)) for k in range(8))]


def relative_buckets(distance: torch.Tensor) -> torch.Tensor:
    """The bucket, 0 to 31, of each distance (position of the key less that of the query), of any shape.

    T5's (Raffel et al. 2020, section 2.1) in both directions, for a maximum distance of 128. T5 rounds a logarithm; its
    boundaries as whole numbers do not depend on a device's rounding.
    """
    starts = torch.tensor(STARTS, device=distance.device)
    return torch.bucketize(distance.abs(), starts, right=True) + BUCKETS // 2 * (distance > 0)


class MPNet(Encoder):
    """MPNet (Song et al. 2020): no token types, and one table of relative positions that biases the scores of all
    layers."""
    prefix, first = "mpnet.", 2                # rows 0 and 1 of the position table are the padding's
    only = {"hidden_act": "gelu", "relative_attention_num_buckets": BUCKETS}
    qkv = "attention.attn.q", "attention.attn.k", "attention.attn.v"
    out, out_norm = "attention.attn.o", "attention.LayerNorm"

    def shapes(self, raw):
        return super().shapes(raw) | {"encoder.relative_attention_bias.weight": (BUCKETS, self.heads)}

    def bias(self, T):
        at = torch.arange(T, device=self.device)
        buckets = relative_buckets(at - at[:, None])                                       # [T, T], query by key
        return self.weights["encoder.relative_attention_bias.weight"][buckets].permute(2, 0, 1)


def _tokenizer(folder: Path):
    """tokenizer.json, or BERT's word pieces by vocab.txt, in lower case unless tokenizer_config.json says otherwise."""
    path, vocabulary = folder / "tokenizer.json", folder / "vocab.txt"
    try:
        if path.exists() or not vocabulary.exists():
            return tokenizers.Tokenizer.from_file(str(path))
        config = folder / "tokenizer_config.json"
        lower = read_json(config).get("do_lower_case", True) if config.exists() else True
        path = vocabulary
        return tokenizers.BertWordPieceTokenizer(str(vocabulary), lowercase=lower)
    except InputError:
        raise
    except Exception as error:                               # the library raises bare Exception
        raise InputError(f"{path}: not a readable tokenizer ({error})") from None


def _max_length(folder: Path, longest: int) -> int:
    """Tokens at which a sentence is cut: max_seq_length, but never more than the positions there are."""
    path = folder / "sentence_bert_config.json"
    length = read_json(path).get("max_seq_length") if path.exists() else None
    if length is None:
        return longest
    if type(length) is not int or length < 3:                # the tokenizer does not cut at all below 2
        raise InputError(f"{path}: max_seq_length is {length!r}, not a whole number from 3 on")
    return min(length, longest)


def _pooling(folder: Path) -> str:
    """"mean" or "cls", as 1_Pooling/config.json says."""
    path = folder / "1_Pooling" / "config.json"
    if any(folder.glob("*_Dense")):
        raise InputError(f"{folder}: a Dense layer behind the pooling is not implemented")
    if not path.exists():
        return "mean"
    raw, names = read_json(path), {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
    modes = [names.get(key, key) for key, on in raw.items() if key.startswith("pooling_mode_") and on]
    modes = modes or [raw.get("pooling_mode")]               # as sentence-transformers 6 writes it
    if modes not in (["mean"], ["cls"]):
        raise InputError(f"{path}: pooling by {modes} is not implemented; 'mean' or 'cls' alone is")
    return modes[0]


def load_encoder(name: str | None, model: Llama):
    """The encoder in folder or hub repository `name`, a BERT or an MPNet as its config.json says, on the device of
    `model`; without a name, the mean of `model`'s own embeddings."""
    if name is None:
        return TokenMean(model)
    path = locate(name) / "config.json"
    kind = read_json(path).get("model_type")
    encoder = {"bert": Bert, "mpnet": MPNet}.get(str(kind))
    if encoder is None:
        raise InputError(f"{path}: model_type {kind!r} is not implemented; 'bert' and 'mpnet' are")
    return encoder(path.parent, model.device)


def load_towers(names: list[str] | None, model: Llama):
    """The two encoders of Dragon (Lin et al. 2023), of questions and of passages: BERT's last hidden state of [CLS] as
    it is, for a dot product. Without names, the mean of `model`'s own embeddings stands in for both, as it is too."""
    if names is None:
        return (TokenMean(model, unit=False),) * 2
    return tuple(Bert(name, model.device, pooling="cls", unit=False) for name in names)
