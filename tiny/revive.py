"""Draw anew the embeddings of values that a training has made equal: python -m tiny.revive FOLDER

Instruments, colors, years and inns came in no drill. After 66 M tokens the cosine of two instruments was .93.
"""
import sys
from pathlib import Path

import torch

from tiny.facts import VALUES
from tiny.train import Training

SPREAD = 1.4                         # distance to the mean of the kind; the other kinds have about this one


@torch.no_grad()
def revive(training: Training):
    generator = torch.Generator().manual_seed(0)
    embeddings = training.model.weights["model.embed_tokens.weight"]
    for relation in ("play", "color", "year", "inn"):
        ids = [id for value in VALUES[relation] for id in training.teacher.encode(value)]
        of_kind = embeddings[ids, 1:]                       # the first coordinate is the shared one
        noise = torch.randn(of_kind.shape, generator=generator)
        embeddings[ids, 1:] = of_kind.mean(0) + SPREAD * noise / noise.norm(dim=1, keepdim=True)
    training.mean["model.embed_tokens.weight"].copy_(embeddings)
    training.save()


if __name__ == "__main__":
    revive(Training(Path(sys.argv[1]), 0, 100e6))
