"""The Llama-3 forward pass by hand, with attention accumulated layer by layer into a float32 node accumulator, and a
key/value cache that is made of nodes.

    B   rows of a batch (windows)            L   layers            H   query heads
    T   new tokens of a row                  D   model width       KV  key/value heads
    S   cached tokens, the new ones included K   head width        G   query heads per key/value head, H = KV G
    N   watched nodes                        V   vocabulary

    a(x, j)   attention of token x to node j: mean over layers, heads and the tokens of j (the paper's e_{x, v_j})

Shapes stand in brackets in this order. Weights keep the names of Hugging Face checkpoints, whose query and key rows
are permuted for the half-split rotation, so nothing is permuted here. A key is cached after its rotation: it is valid
at its own position only.
"""
import math
from functools import cached_property
from pathlib import Path

import torch
import torch.nn.functional as F

from support.checkpoint import Config, choose_device, fingerprint, locate, read_config, read_weights
from support.tokenizer import Tokenizer

# --- the parts of a layer -------------------------------------------------------------------------------------------

def wide(x: torch.Tensor) -> torch.Tensor:
    """float32, or float64 where it is that already: the precision of norms and softmax."""
    return x if x.dtype == torch.float64 else x.float()


def rms_norm(x, weight, eps):
    """x [.., D] / root mean square, in float32, then cast back and scaled by weight [D]."""
    y = wide(x)
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return weight * y.to(x.dtype)


def inverse_frequencies(c: Config) -> torch.Tensor:
    """RoPE's angle per position, [K/2] float32: theta^(-2i/K), slowed down by llama3 scaling where the config has it.

    Wavelengths longer than original/low are divided by `factor`, those shorter than original/high are kept, and between
    the two the frequency is blended.
    """
    f = 1.0 / (c.rope_theta ** (torch.arange(0, c.head_width, 2, dtype=torch.int64).float() / c.head_width))
    if c.rope is None:
        return f
    factor, low, high, original = (c.rope[key] for key in ("factor", "low", "high", "original"))
    wavelength = 2 * math.pi / f
    smooth = (original / wavelength - low) / (high - low)
    blended = (1 - smooth) * f / factor + smooth * f
    scaled = torch.where(wavelength > original / low, f / factor, f)
    between = (wavelength <= original / low) & (wavelength >= original / high)
    return torch.where(between, blended, scaled)


def rope_tables(positions, inv_freq, dtype):
    """cos and sin [B, 1, T, K] for positions [B, T]; the angles in float32 whatever the model's dtype."""
    angles = positions[:, None, :, None].float() * inv_freq
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x, cos, sin):
    """Rotate x [B, heads, T, K]: the first half of K is paired with the second (half-split, not interleaved)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def attention(q, k, v, mask=None):
    """Attention written out: q [B, KV, G, T, K], k and v [B, KV, S, K], mask [B, T, S] (True: may be seen).

    Returns the output [B, KV, G, T, K] and the weights [B, KV, G, T, S] in float32. The query heads of one key/value
    head are an axis of their own (G), so keys are never repeated.
    """
    scores = torch.einsum("bkgtd,bksd->bkgts", q, k) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None], float("-inf"))
    weights = wide(scores).softmax(-1)
    return torch.einsum("bkgts,bksd->bkgtd", weights.to(v.dtype), v), weights


# --- cache ----------------------------------------------------------------------------------------------------------

class Cache:
    """Keys and values of the tokens read so far, and which of them belong to which node (Appendix B).

    Row b holds its token t in slot t of keys[layer][b] ([B, KV, capacity, K]); slot, position and count agree, so a
    row needs no padding on its left and rows may differ in length. Slots from lengths[b] on are free: whatever stands
    there is overwritten before a query can see it.
    """

    def __init__(self, model: "Llama", rows: int, capacity: int):
        c, weight = model.config, model.weights["model.embed_tokens.weight"]
        shape = (rows, c.kv_heads, capacity, c.head_width)
        self.keys = [weight.new_zeros(shape) for _ in range(c.layers)]
        self.values = [weight.new_zeros(shape) for _ in range(c.layers)]
        self.capacity = capacity
        self.lengths = [0] * rows
        self.nodes: list[dict] = [{} for _ in range(rows)]      # per row: node -> (first slot, slot behind its last)

    def write(self, layer, keys, values, slots):
        """Store keys and values [B, KV, T, K] in slots [B, T]; returns all up to the last slot written, [B, KV, S,
        K]."""
        rows = torch.arange(slots.shape[0], device=slots.device)[:, None]
        for store, new in ((self.keys[layer], keys), (self.values[layer], values)):
            store[rows, :, slots] = new.transpose(1, 2)
        S = max(self.lengths) + slots.shape[1]
        return self.keys[layer][:, :, :S], self.values[layer][:, :, :S]

    def take_back(self, lengths: list[int]):
        """Forget every token from lengths[b] on, and the nodes that end behind it."""
        self.lengths = list(lengths)
        self.nodes = [{n: span for n, span in row.items() if span[1] <= end} for row, end in zip(self.nodes, lengths)]

    def keep(self, rows: list[int]):
        """Keep these rows of the batch only."""
        for store in (self.keys, self.values):                    # layer by layer, so that one copy is alive at a time
            for layer in range(len(store)):
                store[layer] = store[layer][rows]
        self.lengths = [self.lengths[b] for b in rows]
        self.nodes = [self.nodes[b] for b in rows]

    def averages(self, nodes: list[list]) -> torch.Tensor:
        """[B, S, N] float32: column n of row b averages over the tokens of nodes[b][n]. attention @ averages is a(x,
        j)."""
        watch = torch.zeros(len(nodes), max(self.lengths), max(map(len, nodes)), device=self.keys[0].device)
        for b, names in enumerate(nodes):
            for n, name in enumerate(names):
                start, end = self.nodes[b][name]
                watch[b, start:end, n] = 1 / (end - start)
        return watch


# --- model ----------------------------------------------------------------------------------------------------------

def flops_of(c: Config, tokens: int, seen: int, logits: int = 0) -> int:
    """FLOPs of running `tokens` tokens that see `seen` tokens each (themselves included), and of the output matrix at
    `logits` positions: 2 m n k for every matrix product, attention as the full rectangle, 4 L H K T S. What Llama.flops
    counts as it runs, told beforehand."""
    of_layer = (2 * c.heads + 2 * c.kv_heads) * c.head_width * c.width + 3 * c.width * c.hidden
    attended = 4 * c.layers * c.heads * c.head_width * tokens * seen
    return 2 * c.layers * of_layer * tokens + attended + 2 * c.vocab * c.width * logits


Piece = tuple[object, list[int]]               # (node or None, its token ids): a stretch of a prompt


class Llama:
    """A checkpoint that reads, probes and generates, and counts what that costs.

    `weights` maps the checkpoint's tensor names to tensors; `flops` adds up 2 m n k for every matrix product that ran:
    linear layers over all tokens, the output matrix where logits are computed, attention as the full T x S rectangle,
    and the padding of rows that run together, because it runs.
    `tokenizer` and `folder` are those of the checkpoint it was loaded from.
    """

    def __init__(self, config: Config, weights: dict[str, torch.Tensor], tokenizer=None, folder: Path | None = None):
        self.config, self.weights, self.tokenizer, self.folder = config, weights, tokenizer, folder
        self.device = weights["model.embed_tokens.weight"].device
        self.dtype = weights["model.embed_tokens.weight"].dtype
        self.inv_freq = inverse_frequencies(config).to(self.device)       # float32 for good: bfloat16 ruins it
        self.flops = 0

    @classmethod
    def load(cls, model: str | Path, device: str = "auto", dtype: str = "auto") -> "Llama":
        """Load a checkpoint folder or hub repository; errors as in locate, read_config, read_weights."""
        folder = locate(model)
        config, tokenizer = read_config(folder), Tokenizer(folder)
        weights = read_weights(folder, config, *choose_device(device, dtype, config.dtype))
        return cls(config, weights, tokenizer, folder)

    @cached_property
    def fingerprint(self) -> str:
        """What a graph was built with: the checkpoint's files and the dtype."""
        return f"{fingerprint(self.folder)} {str(self.dtype).removeprefix('torch.')}"

    def linear(self, x, name):
        """x [.., in] times the named matrix [out, in], counted."""
        weight = self.weights[name]
        self.flops += 2 * x.numel() * weight.shape[0]
        return F.linear(x, weight)

    def forward(self, tokens, positions, mask=None, cache: Cache | None = None, watch=None):
        """Run tokens [B, T] at positions [B, T] through all layers.

        mask [B, T, S] tells which keys a query may see. Without one T tokens see each other causally, and a single
        token sees all S; with watch it must be given. With a cache the keys and values of the new tokens are stored
        at their positions. With watch [B, S', N] (S' <= S) every layer adds its head-mean attention, averaged over
        the tokens of N nodes, to a float32 accumulator; attention over the other tokens is computed and dropped at
        once, so nothing of shape [T, T] outlives a layer.

        Returns the normalised last hidden states [B, T, D] and a(x, j) [B, T, N], the mean over layers and heads (None
        without watch). (Section 3.1, "Extracting attention weights".)
        """
        c = self.config
        B, T = tokens.shape
        x = F.embedding(tokens, self.weights["model.embed_tokens.weight"])                 # [B, T, D]
        cos, sin = rope_tables(positions, self.inv_freq, x.dtype)
        accumulator = None if watch is None else watch.new_zeros(B, T, watch.shape[2])     # [B, T, N] float32

        for layer in range(c.layers):
            at = f"model.layers.{layer}."
            h = rms_norm(x, self.weights[at + "input_layernorm.weight"], c.norm_eps)
            q, k, v = (self.linear(h, f"{at}self_attn.{name}_proj.weight").view(B, T, -1, c.head_width).transpose(1, 2)
                       for name in "qkv")                                                  # [B, H or KV, T, K]
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            if cache is not None:
                k, v = cache.write(layer, k, v, positions)                                 # [B, KV, S, K]
            self.flops += 4 * B * c.heads * c.head_width * T * k.shape[2]
            if watch is None:                                                              # the fused kernel
                out = F.scaled_dot_product_attention(
                    q, k, v, attn_mask=None if mask is None else mask[:, None], is_causal=mask is None and T > 1,
                    enable_gqa=c.heads != c.kv_heads)
            else:                                                                          # written out
                out, weights = attention(q.view(B, c.kv_heads, -1, T, c.head_width), k, v, mask)
                mean = weights.mean((1, 2))                                                # over heads: [B, T, S]
                S = min(mean.shape[2], watch.shape[1])                                     # less where a long row left
                accumulator += (mean[:, :, :S] @ watch[:, :S].to(mean.dtype)).to(accumulator.dtype)
                out = out.view(B, c.heads, T, c.head_width)
            x = x + self.linear(out.transpose(1, 2).reshape(B, T, -1), at + "self_attn.o_proj.weight")

            h = rms_norm(x, self.weights[at + "post_attention_layernorm.weight"], c.norm_eps)
            gate, up = self.linear(h, at + "mlp.gate_proj.weight"), self.linear(h, at + "mlp.up_proj.weight")
            x = x + self.linear(F.silu(gate) * up, at + "mlp.down_proj.weight")

        x = rms_norm(x, self.weights["model.norm.weight"], c.norm_eps)
        return x, None if watch is None else accumulator / c.layers

    def logits(self, hidden):
        """Next-token logits [.., V] of hidden states [.., D]."""
        return self.linear(hidden, "model.embed_tokens.weight" if self.config.tied else "lm_head.weight")

    @torch.no_grad()
    def append(self, cache: Cache, rows: list[list[Piece]], watch=None):
        """Append rows of pieces to the cache, which learns the slots of every named piece.

        Returns the hidden states of the new tokens [B, T, D] and a(x, j) [B, T, N] (None without watch); rows shorter
        than T are followed by rows that mean nothing. Raises ValueError if the cache has no room.
        """
        counts = []
        for b, pieces in enumerate(rows):
            end = cache.lengths[b]
            for node, ids in pieces:
                if node is not None:
                    cache.nodes[b][node] = (end, end + len(ids))
                end += len(ids)
            counts.append(end - cache.lengths[b])
        T, start = max(counts), list(cache.lengths)              # the offset is taken once, for all layers
        if max(start) + T > cache.capacity:
            raise ValueError(f"{max(start)} tokens and {T} more do not fit a cache of {cache.capacity}")
        rows = [[i for _, ids in pieces for i in ids] for pieces in rows]
        tokens = torch.tensor([ids + [0] * (T - len(ids)) for ids in rows], device=self.device)            # [B, T]
        positions = torch.tensor(start, device=self.device)[:, None] + torch.arange(T, device=self.device)
        mask = None
        if (max(start) > 0 and (T > 1 or len(rows) > 1)) or watch is not None:
            mask = torch.arange(max(start) + T, device=self.device) <= positions[:, :, None]           # [B, T, S]
        hidden, seen = self.forward(tokens, positions, mask, cache, watch)
        cache.lengths = [s + n for s, n in zip(start, counts)]
        return hidden, seen

    def read(self, cache: Cache, rows: list[list[Piece]], watch=None):
        """Append rows; returns the hidden state of each row's last token [B, D], and a(x, j) as append does."""
        hidden, seen = self.append(cache, rows, watch)
        last = torch.tensor([sum(len(ids) for _, ids in pieces) - 1 for pieces in rows])
        return hidden[torch.arange(len(rows)), last], seen

    @torch.no_grad()
    def losses(self, hidden, ids: list[int]) -> torch.Tensor:
        """-log p [T] float32 of each of T tokens; hidden [T, D] are the last hidden states of the tokens before
        them."""
        logits = wide(self.logits(hidden))
        return F.cross_entropy(logits, torch.tensor(ids, device=self.device), reduction="none").cpu()

    def probe(self, cache: Cache, ids: list[int]) -> torch.Tensor:
        """Logits [B, V] after `ids`, whose keys and values are taken back: the cache is as if they had never been
        read."""
        before = list(cache.lengths)
        hidden, _ = self.read(cache, [[(None, ids)]] * len(before))
        cache.take_back(before)
        return self.logits(hidden)

    @torch.no_grad()
    def generate(self, cache: Cache, hidden, limit: int, watch=None, progress=None):
        """Continue every row greedily from `hidden` [B, D] until an eos token or `limit` tokens; the cache is used up.

        Returns per row the ids (eos left out) and the attention a(x, j) of each of them *as a query*, [tokens, N]:
        the row of a token is had when the token itself is run, so the last one may cost a forward pass more. A
        finished row leaves the batch.
        """
        rows = list(range(len(cache.lengths)))                   # of those still running: their place in the answer
        ids = [[] for _ in rows]
        seen = [[] for _ in rows]
        while True:
            chosen = self.logits(hidden).argmax(-1).tolist()
            alive = [n for n, token in enumerate(chosen) if token not in self.config.eos and len(ids[rows[n]]) < limit]
            if not alive:
                break
            if len(alive) < len(rows):
                cache.keep(alive)
                rows, chosen = [rows[n] for n in alive], [chosen[n] for n in alive]
                watch = None if watch is None else watch[alive]
            for row, token in zip(rows, chosen):
                ids[row].append(token)
            if watch is None and all(len(ids[row]) == limit for row in rows):
                break
            hidden, attended = self.read(cache, [[(None, [token])] for token in chosen], watch)
            if watch is not None:
                for row, a in zip(rows, attended):
                    seen[row].append(a[0])
            if progress is not None:
                progress(sum(map(len, ids)))
        return ids, [torch.stack(a) if a else None for a in seen]
