"""An encoder without a checkpoint: means of the language model's input embeddings.

    V   tokens of the vocabulary    T   tokens of a text    D   width
"""
from functools import cached_property

import torch
import torch.nn.functional as F

from core.files import read_json, reading
from llama import Llama

COUNTS = "token_counts.json"      # in a checkpoint's folder: how often each token occurs in some texts

# a of SIF: a token that makes up this share of the texts counts half. SIF's authors take 1e-3 or less. We compared
# 1e-3, 3e-3 and 1e-2 on the ten documents on which tiny/ chooses settings; this one found chunks best.
RARE = 3e-3


class TokenMean:
    """The mean of the language model's own input embeddings, for a small model without network.

    Nothing is trained for similarity here: two texts are close if they share words. Embeddings have a few directions in
    common, which would make every cosine large. Centred and whitened over the vocabulary (Su et al. 2021), they have
    the same variance in every direction. Frequent tokens count less if the checkpoint has COUNTS.
    `flops` counts the product with the whitening matrix.
    """

    def __init__(self, model: Llama, unit: bool = True):
        self.model = model
        self.table = model.weights["model.embed_tokens.weight"]                            # [V, D]
        self.weights = torch.ones(len(self.table), device=self.table.device)               # of each token in a mean [V]
        self.mean = self.table.mean(0, dtype=torch.float32)
        self.unit = unit
        self.flops = 0

        # SIF (Arora, Liang and Ma 2017): a / (a + p), where p is a token's share of all tokens.
        path = model.folder and model.folder / COUNTS
        if path and path.exists():
            with reading(path, f"counts must be {len(self.table)} numbers"):
                counts = torch.tensor(read_json(path)["counts"], dtype=torch.float64).view(len(self.table))
            self.weights = (RARE / (RARE + counts / counts.sum())).to(self.weights)

    @property
    def fingerprint(self) -> str:
        """All that its vectors depend on, for core.code."""
        return f"whitened mean {self.unit} {self.model.fingerprint}"

    @cached_property
    def whitening(self) -> torch.Tensor:
        """The whitening matrix [D, D'], computed at its first use: it takes a minute if D is 4096."""
        covariance = 0
        for rows in self.table.split(4096):
            centred = rows.float() - self.mean
            covariance = covariance + centred.T @ centred
        variances, directions = torch.linalg.eigh(covariance.cpu().double() / len(self.table))

        # Directions in which the embeddings hardly vary are dropped, so D' may be below D.
        kept = variances > 1e-6 * variances[-1]
        return (directions[:, kept] / variances[kept].sqrt()).float().to(self.table.device)

    def cut(self, texts: list[str]) -> dict[str, int]:
        """Nothing: texts of any length are read whole."""
        return {}

    def encode(self, sentences: list[str]) -> torch.Tensor:
        """Vectors [n, D'] float32; if `unit`, of length 1, and their dot product (sbert.similarities) is c."""
        means = []
        for text in sentences:
            ids = self.model.tokenizer.encode(text)
            weights = self.weights[ids]                     # [T]
            means.append(weights @ (self.table[ids].float() - self.mean) / weights.sum())

        self.flops += 2 * len(sentences) * self.whitening.numel()
        vectors = (torch.stack(means) @ self.whitening).cpu()
        return F.normalize(vectors, dim=-1) if self.unit else vectors
