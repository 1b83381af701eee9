"""The weights from which the embedded model's training starts.

Training does not start from the usual random weights. From these such a model learns to copy, but not whose fact it
copies. The structured start follows "Mimetic Initialization of Self-Attention Layers" (Trockman and Kolter
2023, https://arxiv.org/abs/2305.09828). Attention then looks back one to four tokens in the first layer and compares
contents in the others, and the drill takes minutes.
"""
import torch

from core.checkpoint import Config, tensor_shapes

SHARED = 0.5                         # the first coordinate of every embedding
FAST = torch.arange(6)               # the fastest RoPE frequencies; frequency i turns dimensions i and i + K // 2


def structured_start(c: Config, seed: int) -> dict[str, torch.Tensor]:
    """The weights at the start of training, by name.

    Attention looks back at the tokens before in layer 0, and compares contents in the other layers. Norms are 1. The
    rest is random with variance 1 / D; the matrix that ends an MLP is then scaled by 0.2.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, size in tensor_shapes(c).items():
        if len(size) == 1:
            weights[name] = torch.ones(size)
        else:
            weights[name] = torch.randn(size, generator=generator) / c.width ** 0.5

    # All embeddings share a constant, from which layer 0 makes queries and keys that do not depend on the token.
    weights["model.embed_tokens.weight"][:, 0] = SHARED

    for layer in range(c.layers):
        name = f"model.layers.{layer}."
        q, k, v, o = (weights[f"{name}self_attn.{letter}_proj.weight"] for letter in "qkvo")
        if layer == 0:
            look_back(q, k, v, o, c, generator)
        else:
            compare_contents(q, k, v, o, c, generator)
        weights[f"{name}mlp.down_proj.weight"] *= 0.2
    return weights


def look_back(q, k, v, o, c: Config, generator):
    """Fill the matrices of layer 0: head h attends to the token h + 1 back.

    q [H * K, D], k and v [KV * K, D], o [D, H * K]. The constant of the embeddings gives all keys the same large part,
    on the fast frequencies, and head h's queries the same vector turned back by h + 1 positions. RoPE turns both by
    their positions. So a query and the key h + 1 positions before it point in the same direction.
    """
    D, K = c.width, c.head_width

    # RMSNorm divides by the root of the mean square, which is (SHARED ** 2 + 1) / D for these embeddings.
    shared = SHARED * (D / (SHARED ** 2 + 1)) ** 0.5        # the constant after the norm
    turn = c.rope_theta ** (-2 * FAST / K)                  # radians per position

    for g in range(c.kv_heads):
        rows = slice(g * K, (g + 1) * K)
        v[rows] = orthonormal_rows(K, D, generator)
        k[rows] = orthonormal_rows(K, D, generator) * 0.05
        k[g * K + FAST, 0] = 6 / shared

    for h in range(c.heads):
        rows = slice(h * K, (h + 1) * K)
        q[rows] = 0.02 * torch.randn(K, D, generator=generator)
        q[h * K + FAST, 0] = 6 / shared * torch.cos((h + 1) * turn)
        q[h * K + K // 2 + FAST, 0] = -6 / shared * torch.sin((h + 1) * turn)
        o[:, rows] = 0.1 * orthonormal_rows(K, D, generator).T


def compare_contents(q, k, v, o, c: Config, generator):
    """Fill the matrices of a later layer: tokens attend to similar tokens.

    q [H * K, D], k and v [KV * K, D], o [D, H * K]. The source makes the product of the query and key weights nearly
    the identity, and that of the value and projection weights nearly the negative identity. Here W_q = W_k but for a
    little noise, so that their product is nearly a projection. W_o W_v is a projection times 0.1, and positive: a token
    takes over a part of what it matches.
    """
    D, K = c.width, c.head_width
    fast_rows = torch.cat((FAST, FAST + K // 2))

    for g in range(c.kv_heads):
        rows = slice(g * K, (g + 1) * K)
        v[rows] = orthonormal_rows(K, D, generator)
        k[rows] = orthonormal_rows(K, D, generator) * 1.1
        k[g * K + fast_rows] *= 0.1                         # these would compare positions rather than contents

    for h in range(c.heads):
        g = h * c.kv_heads // c.heads                       # the key/value head that this head shares
        rows = slice(h * K, (h + 1) * K)
        shared_rows = slice(g * K, (g + 1) * K)
        q[rows] = k[shared_rows] + 0.01 * torch.randn(K, D, generator=generator)
        o[:, rows] = 0.1 * v[shared_rows].T


def orthonormal_rows(n: int, D: int, generator) -> torch.Tensor:
    """n random orthonormal rows [n, D]."""
    return torch.linalg.qr(torch.randn(D, n, generator=generator))[0].T
