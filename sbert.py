"""Sentence encoders for the embedding similarity: a hand-written BERT, and the mean of a language model's own
embeddings.

    B   sentences    T   tokens    D   width    H   heads    K   head width

Both have the same interface: `encode(sentences)` gives unit vectors [n, D], so that a dot product is the cosine, and
`flops` adds up what that cost.
"""
from pathlib import Path

import tokenizers
import torch
import torch.nn.functional as F

from checkpoint import locate, read_tensors
from data import InputError, read_json
from llama import Llama, attention


class TokenMean:
    """The mean of the language model's own input embeddings, for a model that has to run offline and small.

    Nothing is trained for similarity here: two texts are close as far as they share words. The mean over the
    vocabulary is subtracted first, because all embeddings share it and it would make every cosine large. Costs no
    matrix product.
    """

    def __init__(self, model: Llama):
        self.table, self.tokenizer, self.flops = model.weights["model.embed_tokens.weight"], model.tokenizer, 0
        self.mean = self.table.mean(0, dtype=torch.float32)

    def encode(self, sentences: list[str]) -> torch.Tensor:
        """Unit vectors [n, D] float32."""
        means = [self.table[self.tokenizer.encode(sentence)].float().mean(0) - self.mean for sentence in sentences]
        return F.normalize(torch.stack(means), dim=-1).cpu()


class Bert:
    """BERT (Devlin et al. 2019) with mean pooling and unit length, as the MiniLM sentence-transformers use it (SBERT).

    Reads config.json, tokenizer.json and model.safetensors; every tensor is consumed but the pooler, which mean pooling
    leaves unused. Raises InputError naming the file, key or tensor.
    """

    def __init__(self, model: str | Path, device="cpu", batch: int = 32):
        folder = locate(model)
        raw = read_json(folder / "config.json")
        if raw.get("model_type") != "bert" or raw.get("hidden_act", "gelu") != "gelu" \
                or raw.get("position_embedding_type", "absolute") != "absolute":
            raise InputError(f"{folder / 'config.json'}: model_type {raw.get('model_type')!r} with activation "
                             f"{raw.get('hidden_act')!r} is not a BERT with gelu and absolute positions")
        try:
            self.layers, self.heads = raw["num_hidden_layers"], raw["num_attention_heads"]
            self.eps = raw["layer_norm_eps"]
            shapes = _bert_shapes(raw)
        except KeyError as error:
            raise InputError(f"{folder / 'config.json'}: key {error} is missing") from None
        try:
            self.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:                           # the library raises bare Exception
            raise InputError(f"{folder / 'tokenizer.json'}: not a readable tokenizer ({error})") from None
        pooling = folder / "1_Pooling" / "config.json"
        if pooling.exists() and not read_json(pooling).get("pooling_mode_mean_tokens", True):
            raise InputError(f"{pooling}: only mean pooling is implemented")
        limits = folder / "sentence_bert_config.json"
        length = read_json(limits).get("max_seq_length") if limits.exists() else None
        self.tokenizer.enable_truncation(length or raw["max_position_embeddings"])
        self.tokenizer.no_padding()
        self.device, self.batch, self.flops = device, batch, 0
        self.weights = _bert_weights(folder / "model.safetensors", shapes, device)

    def linear(self, x, name):
        self.flops += 2 * x.numel() * self.weights[name + ".weight"].shape[0]
        return F.linear(x, self.weights[name + ".weight"], self.weights[name + ".bias"])

    def norm(self, x, name):
        return F.layer_norm(x, x.shape[-1:], self.weights[name + ".weight"], self.weights[name + ".bias"], self.eps)

    @torch.no_grad()
    def forward(self, tokens, mask):
        """Hidden states [B, T, D] of tokens [B, T]; mask [B, T] is False on padding."""
        w, (B, T) = self.weights, tokens.shape
        x = w["embeddings.word_embeddings.weight"][tokens] + w["embeddings.position_embeddings.weight"][:T] \
            + w["embeddings.token_type_embeddings.weight"][0]
        x = self.norm(x, "embeddings.LayerNorm")                                           # [B, T, D]
        for layer in range(self.layers):
            at = f"encoder.layer.{layer}."
            q, k, v = (self.linear(x, f"{at}attention.self.{name}").view(B, T, self.heads, -1).transpose(1, 2)
                       for name in ("query", "key", "value"))                              # [B, H, T, K]
            self.flops += 4 * B * T * T * x.shape[-1]
            out, _ = attention(q[:, :, None], k, v, mask[:, None, :].expand(B, T, T))      # one query head per key head
            out = out[:, :, 0].transpose(1, 2).reshape(B, T, -1)
            x = self.norm(x + self.linear(out, at + "attention.output.dense"), at + "attention.output.LayerNorm")
            h = self.linear(F.gelu(self.linear(x, at + "intermediate.dense")), at + "output.dense")
            x = self.norm(x + h, at + "output.LayerNorm")
        return x

    def encode(self, sentences: list[str]) -> torch.Tensor:
        """Unit vectors [n, D] float32: the mean of the last hidden states over a sentence's tokens, [CLS] and [SEP]
        too."""
        vectors = []
        for first in range(0, len(sentences), self.batch):
            ids = [encoding.ids for encoding in self.tokenizer.encode_batch(sentences[first:first + self.batch])]
            T = max(map(len, ids))
            tokens = torch.tensor([row + [0] * (T - len(row)) for row in ids], device=self.device)
            mask = torch.arange(T, device=self.device) < torch.tensor([[len(row)] for row in ids], device=self.device)
            hidden = self.forward(tokens, mask)
            vectors.append((hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True))
        return F.normalize(torch.cat(vectors), dim=-1).cpu()


def _bert_shapes(raw: dict) -> dict[str, tuple[int, ...]]:
    D, hidden = raw["hidden_size"], raw["intermediate_size"]
    shapes = {"embeddings.word_embeddings.weight": (raw["vocab_size"], D),
              "embeddings.position_embeddings.weight": (raw["max_position_embeddings"], D),
              "embeddings.token_type_embeddings.weight": (raw["type_vocab_size"], D)}
    matrices = {"attention.self.query": (D, D), "attention.self.key": (D, D), "attention.self.value": (D, D),
                "attention.output.dense": (D, D), "intermediate.dense": (hidden, D), "output.dense": (D, hidden)}
    norms = ["embeddings.LayerNorm"]
    for layer in range(raw["num_hidden_layers"]):
        at = f"encoder.layer.{layer}."
        norms += [at + "attention.output.LayerNorm", at + "output.LayerNorm"]
        for name, shape in matrices.items():
            shapes |= {f"{at}{name}.weight": shape, f"{at}{name}.bias": shape[:1]}
    return shapes | {f"{norm}.{part}": (D,) for norm in norms for part in ("weight", "bias")}


def _bert_weights(path: Path, shapes: dict, device) -> dict[str, torch.Tensor]:
    def shape_of(name):
        name = name.removeprefix("bert.")
        return "skip" if name.startswith("pooler.") or name == "embeddings.position_ids" else shapes.get(name)
    weights = read_tensors(path, device, torch.float32, shape_of)
    weights = {name.removeprefix("bert."): tensor for name, tensor in weights.items()}
    missing = [name for name in shapes if name not in weights]
    if missing:
        raise InputError(f"{path}: {len(missing)} tensors are missing, the first is {missing[0]}")
    return weights


def load_encoder(name: str | None, model: Llama):
    """The BERT encoder in folder or hub repository `name`; without a name, the mean of `model`'s own embeddings."""
    return TokenMean(model) if name is None else Bert(name, model.device)
