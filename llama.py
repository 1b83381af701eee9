"""The Llama-3 forward pass by hand. It also adds up, layer by layer, the attention to nodes; its cache knows the nodes.

    B   rows of a batch                      L   layers            H   query heads
    T   new tokens of a row                  D   model width       KV  key/value heads
    P   cached tokens, new ones included     K   head width        G   query heads per key/value head, H = KV G
    P'  the first of them, up to the last that attention is wanted to                  N   nodes

    A         attention weights of a layer [B, KV, G, T, P]: each row is a softmax over the keys
    a(x, y)   attention of token x to token y: the mean over layers and heads
    a(x, j)   attention of token x to node j: the mean over layers, heads and the tokens of j (the paper's e_{x, v_j})

Shapes stand in brackets. Weights have the names of Hugging Face checkpoints. In these checkpoints the rows of q_proj
and k_proj have the order that `rotate` needs, so nothing is reordered here. "Trap" marks a place where a mistake is
easy.
"""
import math
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

from core.files import InputError
from model.checkpoint import Config, choose_device, fingerprint, locate, read_config, read_weights
from model.tokenizer import Tokenizer

RECORDED = 64                     # on a GPU a recorded step writes replies of at least this limit (side by side: none)
TOGETHER = 1024                   # tokens that run together, or one row: more take memory, and are no faster
BLOCK_BYTES = 1 << 29             # at most 512 MiB of attention weights (float32) at once; longer inputs run in blocks

# A stretch of a prompt: the node that it belongs to (or None), and its token ids.
Segment = tuple[object, list[int]]


def ids_of(segments: list[Segment]) -> list[int]:
    """The token ids of a prompt."""
    return [id for _, ids in segments for id in ids]


def length_of(segments: list[Segment]) -> int:
    """The number of tokens of a prompt."""
    return len(ids_of(segments))


# --- the parts of a layer -------------------------------------------------------------------------------------------

def at_least_float32(x: torch.Tensor) -> torch.Tensor:
    """x in float32, or unchanged if it is float64. Norms and softmax need this precision."""
    return x if x.dtype == torch.float64 else x.float()


def rms_norm(x, weight, eps):
    """x [.., D] divided by its root mean square in at least float32, cast back, then scaled by weight [D]."""
    y = at_least_float32(x)
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return weight * y.to(x.dtype)


def inverse_frequencies(config: Config) -> torch.Tensor:
    """RoPE's angle per position, [K/2] float32: theta^(-2i/K), slowed down by linear or llama3 scaling.

    Linear scaling divides every frequency by `factor`. llama3's also has `original`, the context length before scaling:
    a frequency with a wavelength above original/low is divided by `factor`, one with a wavelength below original/high
    is kept, and in between both results are blended.
    """
    f = 1 / config.rope_theta ** (torch.arange(0, config.head_width, 2, dtype=torch.int64).float() / config.head_width)
    factor, *llama3 = config.rope.values()
    if not llama3:
        return f / factor
    low, high, original = llama3
    wavelength = 2 * math.pi / f
    scaled = torch.where(wavelength > original / low, f / factor, f)

    smooth = (original / wavelength - low) / (high - low)
    blended = (1 - smooth) * f / factor + smooth * f
    between = (wavelength <= original / low) & (wavelength >= original / high)
    return torch.where(between, blended, scaled)


def rope_tables(positions, inv_freq, dtype):
    """cos and sin [B, 1, T, K] for positions [B, T]. The angles are float32 whatever the model's dtype."""
    angles = positions[:, None, :, None].float() * inv_freq
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x, cos, sin):
    """Rotate x [B, heads, T, K]. Entry i of a head is paired with entry i + K/2 (half-split)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def split_heads(x, head_width):
    """[B, T, heads x K] as [B, heads, T, K]."""
    return x.view(*x.shape[:2], -1, head_width).transpose(1, 2)


def attention(q, k, v, mask=None):
    """Attention written out: q [B, KV, G, T, K], k and v [B, KV, P, K], mask [B, T, P] (True: may be seen).

    Returns the output [B, KV, G, T, K] and the weights A [B, KV, G, T, P] in at least float32. Query heads that share a
    key/value head lie along the axis G, so keys are never repeated.
    """
    # Trap: in 16 bits a score near 300 is rounded to a multiple of 2, before the softmax makes it a factor of e^2.
    q = at_least_float32(q)
    k = at_least_float32(k)
    scores = torch.einsum("bhgtk,bhpk->bhgtp", q, k) * q.shape[-1] ** -0.5          # h: key/value heads
    if mask is not None:
        scores = torch.where(mask[:, None, None], scores, float("-inf"))

    A = scores.softmax(-1)
    return torch.einsum("bhgtp,bhpk->bhgtk", A.to(v.dtype), v), A


def mean_over_heads(A, layer: int = 0, layers: int = 1):
    """What a layer adds to a(x, y), before the mean over layers (3.1): A [B, KV, G, T, P'] as [B, T, P'].

    A variant takes its place to look at some heads or layers alone (evaluation/variants.py).
    """
    return A.mean((1, 2))


def attention_in_blocks(q, k, v, mask, attended, over=mean_over_heads):
    """`attention` of all heads q [B, H, T, K], in blocks of tokens: at most BLOCK_BYTES of weights are alive at once.

    Returns the output [B, H, T, K], and `over` heads of A to the first `attended` = P' tokens [B, T, P'].
    """
    B, H, T, _ = q.shape
    block = max(1, BLOCK_BYTES // (4 * B * H * k.shape[2]))
    if T > block:
        blocks = [attention_in_blocks(q[:, :, t:t + block], k, v, mask[:, t:t + block], attended, over)
                  for t in range(0, T, block)]
        outputs, means = zip(*blocks)
        return torch.cat(outputs, 2), torch.cat(means, 1)

    out, A = attention(q.unflatten(1, (k.shape[1], -1)), k, v, mask)                       # [B, KV, G, T, K]
    return out.flatten(1, 2), over(A[..., :attended])


# --- node cache (Appendix B) ----------------------------------------------------------------------------------------

class Cache:
    """Keys and values of the tokens read so far, and the slots of each node (Appendix B).

    keys[layer][b] has the shape [KV, capacity, K]. A token's slot is its position, so rows of different lengths share a
    cache without left padding. Slots from lengths[b] on may hold old numbers; they are overwritten before any token
    sees them.
    """

    def __init__(self, model: "Llama", rows: int, capacity: int, over=mean_over_heads):
        config = model.config
        shape = (rows, config.kv_heads, capacity + 1, config.head_width)          # one more takes padding (see append)
        # Zeros, because a masked weight of 0 times NaN is NaN.
        self.keys = [model.zeros(*shape) for _ in range(config.layers)]
        self.values = [model.zeros(*shape) for _ in range(config.layers)]
        self.capacity = capacity
        self.over = over                                        # what each layer adds to a(x, y)
        self.lengths = [0] * rows
        self.nodes: list[dict] = [{} for _ in range(rows)]      # per row: node -> (its first slot, the slot after it)

    def register(self, b: int, segments: list[Segment]):
        """Record the slots that the nodes of the next segments will take in row b."""
        end = self.lengths[b]
        for node, ids in segments:
            if node is not None:
                self.nodes[b][node] = (end, end + len(ids))
            end += len(ids)

    def write(self, layer, keys, values, rows, slots, P):
        """Store keys and values [B, KV, T, K] in slots [B, T] of rows [B, 1]. Return all of the first P slots.

        Trap: keys are stored after their rotation, so a key is valid at its own position only.
        """
        # Trap: two index tensors around a slice move B, T to the front.
        self.keys[layer][rows, :, slots] = keys.transpose(1, 2)
        self.values[layer][rows, :, slots] = values.transpose(1, 2)
        return self.keys[layer][:, :, :P], self.values[layer][:, :, :P]                    # [B, KV, P, K]

    def rollback(self, lengths: list[int]):
        """Forget every token from slot lengths[b] on, and every node with such a token."""
        self.lengths = list(lengths)
        self.nodes = [{j: span for j, span in row.items() if span[1] <= end} for row, end in zip(self.nodes, lengths)]

    def part(self, first: int, end: int) -> "Cache":
        """The cache of the rows from `first` up to `end`, over the same memory."""
        part = copy(self)
        part.keys = [keys[first:end] for keys in self.keys]
        part.values = [values[first:end] for values in self.values]
        part.lengths = self.lengths[first:end]
        part.nodes = self.nodes[first:end]
        return part

    def keep_rows(self, rows: list[int]):
        """Keep only these rows of the batch, in this order."""
        for layer in range(len(self.keys)):                     # layer by layer, so that one copy is alive at a time
            self.keys[layer] = self.keys[layer][rows]
            self.values[layer] = self.values[layer][rows]
        self.lengths = [self.lengths[b] for b in rows]
        self.nodes = [self.nodes[b] for b in rows]

    def averaging_matrix(self, nodes: list[list]) -> torch.Tensor:
        """The matrix M [B, P', N], in at least float32, that averages attention over the tokens of each node.

        a(x, y) [B, T, P'] times M is a(x, j) [B, T, N] (section 3.1, "Aggregating"). Node j = nodes[b][n] has N_j
        tokens; M[b, :, n] is 1/N_j at these and 0 at all others. P' ends with the last of these tokens.
        """
        end = max(self.nodes[b][node][1] for b, names in enumerate(nodes) for node in names)
        matrix = at_least_float32(self.keys[0].new_zeros(len(nodes), end, max(map(len, nodes))))
        for b, names in enumerate(nodes):
            for n, node in enumerate(names):
                start, end = self.nodes[b][node]
                matrix[b, start:end, n] = 1 / (end - start)
        return matrix


# --- model ----------------------------------------------------------------------------------------------------------

def rows_together(T: int) -> int:
    """Of rows with T new tokens each, how many run through the layers together."""
    return max(1, TOGETHER // T)


def flops_of(config: Config, tokens: int, keys: int, logits: int = 0) -> int:
    """FLOPs to run some tokens of one row. Each sees `keys` keys; `logits` counts those that get logits.

    A matrix product [m, k] @ [k, n] counts as 2 m n k. Attention counts as a full rectangle, 4 L H K T P (T = tokens,
    P = keys), as if nothing were masked. The last layer counts for all tokens, though a prompt's need only its keys and
    values (see `forward`). Averages over nodes do not count.
    """
    D = config.width
    H = config.heads
    KV = config.kv_heads
    K = config.head_width
    layer_parameters = (2 * H + 2 * KV) * K * D + 3 * D * config.intermediate
    scores_and_values = 4 * config.layers * H * K * tokens * keys
    return 2 * config.layers * layer_parameters * tokens + scores_and_values + 2 * config.vocab * D * logits


def flops_of_reply(config: Config, prompt: int, tokens: int) -> int:
    """FLOPs to read a prompt and then run `tokens` tokens of a reply one by one; each of these passes gives logits."""
    return flops_of(config, prompt, prompt, 1) + sum(flops_of(config, 1, prompt + n, 1) for n in range(1, tokens + 1))


class Llama:
    """A checkpoint that reads and generates, and counts the cost.

    `weights` maps the checkpoint's tensor names to tensors. `flops` counts rows as if each ran alone, without padding.
    `tokens` counts all tokens that were read or written, rolled-back ones too.
    """

    def __init__(self, config: Config, weights: dict[str, torch.Tensor], tokenizer=None, folder: Path | None = None,
                 files: str = ""):
        self.config = config
        self.weights = weights
        self.tokenizer = tokenizer
        self.folder = folder
        self.files = files                      # a hash of the checkpoint's files
        self.device = weights["model.embed_tokens.weight"].device
        self.dtype = weights["model.embed_tokens.weight"].dtype
        self.flops = 0
        self.tokens = 0
        self.inv_freq = inverse_frequencies(config).to(self.device)        # Trap: stays float32; bfloat16 ruins it

    @classmethod
    def load(cls, model: str | Path, device: str = "auto", dtype: str = "auto") -> "Llama":
        """Load a checkpoint folder or hub repository. Errors: see locate, read_config, Tokenizer, read_weights."""
        folder = locate(model, weights=True)
        config = read_config(folder)
        tokenizer = Tokenizer(folder, config.vocab)
        config = replace(config, eos=(*config.eos, *tokenizer.closing))
        files = fingerprint(folder)                             # before they are read, so none can change in between
        weights = read_weights(folder, config, *choose_device(device, dtype, config.dtype))
        return cls(config, weights, tokenizer, folder, files)

    @property
    def fingerprint(self) -> str:
        """A hash of the checkpoint's files, and the dtype. A graph keeps it to say which model built it.

        ValueError if the weights come from no files.
        """
        if not self.files:
            raise ValueError("its weights come from no files")
        return f"{self.files} {str(self.dtype).removeprefix('torch.')}"

    def zeros(self, *shape):
        """A tensor of this shape, of the dtype and on the device of the model, for a cache (see core.lockstep)."""
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def linear(self, x, name):
        """x [.., in] times the matrix of this name, plus its bias if the checkpoint has one (Qwen2's q, k and v)."""
        return F.linear(x, self.weights[name + ".weight"], self.weights.get(name + ".bias"))

    def forward(self, tokens, positions, cache: Cache, attended: int = 0, ends=None, slots: int = 0):
        """Run tokens [B, T] at positions [B, T] through all layers (section 3.1, "Extracting attention weights").

        The cache stores the new keys and values. A token sees the keys up to its own position. P is the number of
        slots that are looked at: up to the last new token, or `slots`.

        Returns the normalised last hidden states [B, T, D]; of one token a row [B, 1, D], if `ends` [B, 1] says which.
        If `attended` = P' is not 0, also a(x, y) to the first P' tokens [B, T, P'], otherwise None: every layer adds
        its part and drops its weights.
        """
        config = self.config
        w = self.weights
        B, T = tokens.shape
        P = slots or min(max(cache.lengths) + T, cache.capacity)                           # lengths before the pass

        rows = torch.arange(B, device=self.device)[:, None]
        x = F.embedding(tokens, w["model.embed_tokens.weight"])                            # [B, T, D]
        cos, sin = rope_tables(positions, self.inv_freq, x.dtype)

        # One token that sees all keys needs no mask. The first prompt in an empty cache runs with the fused kernel's
        # is_causal. All else gets a mask. Trap: is_causal would align query 0 with key 0. The kernel's mask holds 0 and
        # -inf, because it would convert True and False in every layer.
        def mask_of(positions):
            seen = torch.arange(P, device=self.device) <= positions[:, :, None]            # [B, T, P]
            return seen if attended else torch.where(seen, 0, -torch.inf).to(x.dtype)[:, None]      # [B, 1, T, P]

        sees_all = T == 1 and P <= min(cache.lengths) + 1
        first_prompt = P <= T and not attended
        mask = None if sees_all or first_prompt else mask_of(positions)

        # Trap: the sum is at least float32, whatever the model's dtype. In bfloat16 it would be off by 1 to 3 %.
        a = at_least_float32(x.new_zeros(B, T, attended)) if attended else None

        for layer in range(config.layers):
            at = f"model.layers.{layer}."

            # Queries, keys and values. The cache adds the keys and values of the tokens before.
            h = rms_norm(x, w[at + "input_layernorm.weight"], config.norm_eps)
            q = split_heads(self.linear(h, at + "self_attn.q_proj"), config.head_width)     # [B, H, T, K]
            k = split_heads(self.linear(h, at + "self_attn.k_proj"), config.head_width)     # [B, KV, T, K]
            v = split_heads(self.linear(h, at + "self_attn.v_proj"), config.head_width)     # [B, KV, T, K]
            if config.head_norms:                               # Qwen3: each head is normalised before its rotation
                q = rms_norm(q, w[at + "self_attn.q_norm.weight"], config.norm_eps)
                k = rms_norm(k, w[at + "self_attn.k_norm.weight"], config.norm_eps)
            q, k = rotate(torch.cat((q, k), 1), cos, sin).split((config.heads, config.kv_heads), 1)
            k, v = cache.write(layer, k, v, rows, positions, P)                            # [B, KV, P, K]

            # Nothing reads the other tokens behind the last layer's keys and values, so only those at the ends go on.
            if ends is not None and not attended and layer == config.layers - 1:
                x = x[rows, ends]                                                          # [B, 1, D]
                q = q[rows, :, ends].transpose(1, 2)                                       # [B, H, 1, K]
                mask = mask_of(positions[rows, ends])                                      # [B, 1, 1, P]

            # Attention. The fused kernel is faster, but gives no weights.
            if attended:
                over = partial(cache.over, layer=layer, layers=config.layers)
                out, over_heads = attention_in_blocks(q, k, v, mask, attended, over)       # [B, H, T, K], [B, T, P']
                a += over_heads
            else:
                out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None and T > 1,
                                                     enable_gqa=config.heads != config.kv_heads)
            x = x + self.linear(out.transpose(1, 2).flatten(2), at + "self_attn.o_proj")

            # SwiGLU.
            h = rms_norm(x, w[at + "post_attention_layernorm.weight"], config.norm_eps)
            gate = F.silu(self.linear(h, at + "mlp.gate_proj"))                             # [B, T, intermediate]
            x = x + self.linear(gate * self.linear(h, at + "mlp.up_proj"), at + "mlp.down_proj")

        if attended:
            a /= config.layers                                  # a(x, y): the mean over heads and layers (3.1)
            x = x if ends is None else x[rows, ends]
        return rms_norm(x, w["model.norm.weight"], config.norm_eps), a

    def logits(self, hidden, tokens: list[int] | slice | None = None):
        """Next-token logits [.., vocabulary] of hidden states [.., D]; if `tokens` are given, theirs alone.

        Theirs are in at least float32, because bfloat16 rounds a logit near 20 to a multiple of .125: a probability
        needs that, the most likely token does not. The FLOPs are those of the whole output matrix. Raises InputError if
        a logit is not finite, as after an overflow in the pass.
        """
        matrix = self.weights["model.embed_tokens.weight" if self.config.tied else "lm_head.weight"]
        if tokens is not None:
            hidden = at_least_float32(hidden)
            matrix = at_least_float32(matrix[tokens])
        logits = F.linear(hidden, matrix)
        self.flops += 2 * hidden.numel() * self.config.vocab
        if not logits.isfinite().all():
            remedy = "float32 may hold them" if self.dtype.itemsize < 4 else "its weights may be damaged"
            raise InputError(f"the model gives numbers that are not finite in {self.dtype}; {remedy}")
        return logits

    def some_rows_at_a_time(self, tokens, positions, cache: Cache, attended: int = 0, ends=None):
        """`forward`, for as many rows at once as `rows_together` says, since more would only take more memory."""
        B, T = tokens.shape
        n = rows_together(T)
        if B <= n:
            return self.forward(tokens, positions, cache, attended, ends)

        P = min(max(cache.lengths) + T, cache.capacity)
        hidden, a = zip(*(self.forward(tokens[b:b + n], positions[b:b + n], cache.part(b, b + n), attended,
                                       None if ends is None else ends[b:b + n], P) for b in range(0, B, n)))
        return torch.cat(hidden), torch.cat(a) if attended else None

    def recorded(self, cache: Cache, attended: int):
        """`forward` of one token a row, for this cache only: on a GPU a CUDA graph, recorded once and replayed.

        A step launches more than a thousand kernels, and on a GPU that takes longer than they run. A graph is one
        launch. Its shapes and addresses are fixed, so each step looks at all slots of the cache.
        """
        tokens = torch.zeros(len(cache.lengths), 1, dtype=torch.int64, device=self.device)
        positions = torch.full_like(tokens, cache.capacity - 1)                            # of no token yet
        out = []

        def run():
            out[:] = self.forward(tokens, positions, cache, attended, None, cache.capacity)

        replay = run
        if self.device.type == "cuda":
            run()                                               # libraries prepare what may not be recorded
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
            replay = graph.replay

        def forward(new_tokens, new_positions, *_):
            tokens.copy_(new_tokens)
            positions.copy_(new_positions)
            replay()
            return out

        return forward

    @torch.no_grad()
    def append(self, cache: Cache, rows: list[list[Segment]], averaging=None, ends=None, forward=None):
        """Append a row of segments to each row of the cache, and record the slots of their nodes.

        Returns the hidden states of the new tokens [B, T, D], or of those at `ends` (see forward), and a(x, j)
        [B, T, N] (None without averaging). T is the length of the longest new row. Raises ValueError if the cache has
        no room; the cache is then unchanged. `forward` takes the place of the model's own (see recorded).
        """
        forward = forward or self.some_rows_at_a_time
        ids = [ids_of(segments) for segments in rows]
        counts = [len(row) for row in ids]
        T = max(counts)
        before = list(cache.lengths)                            # tokens in each row before this pass
        for old, new in zip(before, counts):
            if old + new > cache.capacity:
                raise ValueError(f"{old} tokens and {new} more do not fit a cache of {cache.capacity}")

        # Trap: a row of fewer than T tokens is padded on its right. The hidden states of padding mean nothing. The keys
        # of padding land beyond the row's length and are overwritten, or all in the slot behind the last.
        tokens = torch.tensor([row + [0] * (T - len(row)) for row in ids], device=self.device)             # [B, T]
        positions = torch.tensor(before, device=self.device)[:, None] + torch.arange(T, device=self.device)
        positions = positions.clamp(max=cache.capacity)

        hidden, a = forward(tokens, positions, cache, 0 if averaging is None else averaging.shape[1], ends)
        if averaging is not None:
            a = a @ averaging                                   # a(x, j): the mean over the tokens of each node (3.1)

        # Only now: a pass that ran out of memory costs nothing, because it is made again.
        for b, segments in enumerate(rows):
            cache.register(b, segments)
            self.flops += flops_of(self.config, counts[b], before[b] + counts[b])
            self.tokens += counts[b]
        cache.lengths = [old + new for old, new in zip(before, counts)]
        return hidden, a

    def read(self, cache: Cache, rows: list[list[Segment]], averaging=None, probe: list[int] = ()):
        """Append rows. Return the hidden state of each row's last token [B, D], and a(x, j) as append does.

        A `probe` follows each row in the same pass and is rolled back. The hidden state is then that of the probe's
        last token.
        """
        rows = [[*segments, (None, probe)] for segments in rows]
        ends = torch.tensor([[length_of(segments) - 1] for segments in rows], device=self.device)
        hidden, a = self.append(cache, rows, averaging, ends)                              # [B, 1, D]
        cache.rollback([end - len(probe) for end in cache.lengths])
        return hidden[:, 0], a

    @torch.no_grad()
    def generate(self, cache: Cache, hidden, limit: int, averaging=None, record: bool | None = None):
        """Decode each row greedily, from hidden [B, D] to an eos token or `limit` tokens.

        Returns two lists with an entry for each row: the ids without eos, and the a(x, j) [tokens, N] of these tokens
        (None without averaging, or if there are none). Rows that end early are removed from the cache, unless the step
        is recorded (`record`; by default on a GPU, if the reply may be long enough to pay for it). The cache needs room
        for `limit` tokens after the longest row.
        """
        if record is None:
            record = self.device.type == "cuda" and limit >= RECORDED
        forward = self.recorded(cache, 0 if averaging is None else averaging.shape[1]) if record else None

        replies = [([], []) for _ in cache.lengths]             # of each row: its ids, and the a(x, j) of each
        rows = [*replies]                                       # what each row of the cache writes; None: it has ended
        while True:
            going = [b for b, reply in enumerate(rows) if reply]
            for b, token in zip(going, self.logits(hidden[going]).argmax(-1).tolist()):
                if token in self.config.eos or len(rows[b][0]) == limit:
                    rows[b] = None
                else:
                    rows[b][0].append(token)

            going = [b for b, reply in enumerate(rows) if reply]
            if not going:
                break
            if not record and len(going) < len(rows):
                cache.keep_rows(going)
                rows = [rows[b] for b in going]
                # The longest row may be gone.
                averaging = None if averaging is None else averaging[going, :max(cache.lengths)]

            # The query x of a(x, j) is the written token itself, not the one before it, which predicted it; the paper
            # does not say. Trap: so a(x, j) is known only when the token has run, one step after it was chosen. The
            # last token must run if attention is wanted, but need not run otherwise.
            if averaging is None and any(len(reply[0]) == limit for reply in rows if reply):
                self.tokens += len(going)
                break
            new = [[(None, reply[0][-1:])] if reply else [] for reply in rows]
            hidden, a = self.append(cache, new, averaging, None, forward)                  # [B, 1, D], [B, 1, N]
            hidden = hidden[:, 0]
            for b, reply in enumerate(rows):
                if reply and averaging is not None:
                    reply[1].append(a[b, 0])                                               # [N]
        return [ids for ids, _ in replies], [torch.stack(a) if a else None for _, a in replies]
