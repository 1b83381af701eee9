"""Measures the summary of a window with its attention, and compares decoding with the speed of the memory."""
import torch
from transformers import DynamicCache

from llama import Cache, Llama, Segment
from speed import peer
from speed.measure import in_turns, line, peak_of, random_models, seconds

NODE = 64                         # tokens of a node here
MOST = 12 << 30                   # bytes that kept attention may take


def prompt_of(model: Llama, length: int) -> tuple[list[Segment], torch.Tensor]:
    """Random ids as nodes of 64 tokens, numbered from 0, and as a tensor [1, length]."""
    ids = torch.randint(5, model.config.vocab, (length,), generator=torch.Generator().manual_seed(0)).tolist()
    nodes = [(n, ids[start:start + NODE]) for n, start in enumerate(range(0, length, NODE))]
    return nodes, torch.tensor([ids], device=model.device)


def stage_1(device: torch.device, short: bool):
    """Time and memory of reading and summarising a window; the peer's with and without attention."""
    reply = 12 if short else 256
    for shape, model in random_models(device, short):
        for length in (200,) if short else (1024, 4096, 8192):
            one_window(model, f"{shape}, {length:,} + {reply}", length, reply)


def one_window(model: Llama, name: str, length: int, reply: int):
    window, ids = prompt_of(model, length)
    spans = [(start, min(start + NODE, length)) for start in range(0, length, NODE)]

    def ours(limit=reply):
        cache = Cache(model, 1, length + limit)
        hidden, _ = model.read(cache, [window])
        return model.generate(cache, hidden, limit, cache.averaging_matrix([range(len(window))]))

    sdpa = peer.hugging_face(model, "sdpa")
    runs = {"ours": ours, "sdpa, without attention": lambda limit=reply: peer.write(sdpa, ids, limit)}

    # Eager attention keeps the weights of all layers and heads, and a float32 copy of one layer's.
    kept = (model.config.layers * model.dtype.itemsize + 8) * model.config.heads * length ** 2
    if kept < MOST:
        eager = peer.hugging_face(model, "eager")
        runs["eager, with attention"] = lambda limit=reply: peer.write(eager, ids, limit, spans)

    # The same replies, and the same attention (bfloat16 may choose other words).
    found = [run() for run in runs.values()]
    if model.dtype == torch.float32:
        assert all(replies == found[0][0] for replies, _ in found), f"{name}: other replies than transformers'"
        for _, theirs in found[2:]:
            error = ((found[0][1][0] - theirs).norm() / theirs.norm()).item()
            assert error < 1e-5, f"{name}: attention is off by {error}"

    taken = in_turns(runs, model.device, 2)
    memory = {kind: peak_of(lambda run=run: run(2), model.device) / 2 ** 20 for kind, run in runs.items()}
    for kind in list(runs)[1:]:
        line(f"stage 1 / {kind}", name, taken["ours"], taken[kind], "s")
        line(f"stage 1, memory / {kind}", name, memory["ours"], memory[kind], "MiB")


def decode(device: torch.device, short: bool):
    """Steps a second at 512 tokens of context, next to the peer's and to the limit that the memory's speed sets."""
    source = torch.empty(1 << 26, device=device)
    target = source.clone()
    bandwidth = 2 * source.nbytes / min(seconds(lambda: target.copy_(source), device) for _ in range(5))
    for shape, model in random_models(device, short):
        c = model.config
        for batch in (1, 16):
            weights = sum(weight.numel() for name, weight in model.weights.items() if c.tied or "embed" not in name)
            kept = 2 * c.layers * c.kv_heads * c.head_width * 512 * batch
            most = bandwidth / (weights + kept) / model.dtype.itemsize
            ours, theirs = steps_a_second(model, batch, 2 if short else 8)
            name = f"{shape}, batch {batch}"
            line("decoding with attention / transformers without", name, ours, theirs, "steps/s")
            line("decoding with attention / copying what it reads", name, ours, most, "steps/s")


@torch.no_grad()
def steps_a_second(model: Llama, batch: int, steps: int) -> tuple[float, float]:
    """Decoding steps a second: ours with attention to nodes, and the peer's without."""
    prompt, ids = prompt_of(model, 512)
    cache = Cache(model, batch, 512 + steps)
    hidden, _ = model.read(cache, [prompt] * batch)
    averaging = cache.averaging_matrix([range(len(prompt))] * batch)

    sdpa = peer.hugging_face(model, "sdpa")
    past = DynamicCache(config=sdpa.config)
    first = sdpa(ids.expand(batch, -1), past_key_values=past, use_cache=True, logits_to_keep=1)

    def ours():
        last = hidden
        for _ in range(steps):
            chosen = model.logits(last).argmax(-1).tolist()
            last, _ = model.read(cache, [[(None, [token])] for token in chosen], averaging)
        cache.rollback([512] * batch)

    def theirs():
        out = first
        for _ in range(steps):
            token = out.logits[:, -1].argmax(-1, keepdim=True)
            token.tolist()
            out = sdpa(token, past_key_values=past, use_cache=True, logits_to_keep=1)
        past.crop(-steps)

    runs = {"ours": ours, "peer": theirs}
    in_turns(runs, model.device, 1)                         # to warm up
    taken = in_turns(runs, model.device, 7)
    return steps / taken["ours"], steps / taken["peer"]
