"""Points 1, 2 and 5: a window summarised with its attention, windows in a batch, decoding and the memory's speed."""
import torch

from llama import Cache, Llama
from speed import peer
from speed.measure import Row, interleaved, random_model, seconds, shapes_for

NODE = 64                         # tokens of a node here
REPLY = 256                       # tokens of a summary
LENGTHS = 1024, 4096, 8192        # tokens of a window
MOST = 12 << 30                   # bytes that kept attention may take on a CPU


def prompt_of(vocab: int, length: int, seed: int = 0) -> list:
    """`length` random ids as nodes of 64, numbered from 0."""
    ids = torch.randint(5, vocab, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    return [(n, ids[start:start + NODE]) for n, start in enumerate(range(0, length, NODE))]


def summarise(model: Llama, windows: list, reply: int, attend: bool = True):
    """Ids and attention of the replies to windows that run together, as pecan.summarise gets them."""
    cache = Cache(model, len(windows), max(sum(len(ids) for _, ids in window) for window in windows) + reply)
    hidden, _ = model.read(cache, windows)
    averaging = cache.averaging_matrix([[n for n, _ in window] for window in windows]) if attend else None
    return model.generate(cache, hidden, reply, averaging)


def peak_bytes(run, device: torch.device) -> int:
    """Bytes allocated at the peak of run(), above what was allocated before it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    from benchmark import peak_of
    return peak_of(run)


@torch.no_grad()
def stage_1(device: torch.device) -> list[Row]:
    """Point 1: a window read and summarised with its attention, and the peer with and without attention."""
    rows = []
    for shape in shapes_for(device):
        model = random_model(shape, device)
        sdpa, eager = (peer.hugging_face(model, kind) for kind in ("sdpa", "eager"))
        for length in LENGTHS:
            rows += one_window(model, sdpa, eager, f"{shape}, {length:,} + {REPLY}", length)
    return rows


def one_window(model, sdpa, eager, name: str, length: int) -> list[Row]:
    c = model.config
    window = prompt_of(c.vocab, length)
    ids = torch.tensor([[i for _, part in window for i in part]], device=model.device)
    spans = [(start, min(start + NODE, length)) for start in range(0, length, NODE)]
    runs = {"ours": lambda: summarise(model, [window], REPLY),
            "sdpa": lambda: peer.write(sdpa, ids, REPLY)}

    # What is kept: the weights of all layers and heads, and a float32 copy of one layer's.
    free = torch.cuda.mem_get_info()[0] if model.device.type == "cuda" else MOST
    fits = (c.layers * model.dtype.itemsize + 8) * c.heads * length ** 2 < free
    if fits:
        runs["eager"] = lambda: peer.write(eager, ids, REPLY, spans)

    # The same replies, and the same attention.
    (mine,), (a,) = runs["ours"]()
    (theirs,), _ = runs["sdpa"]()
    assert model.dtype != torch.float32 or mine == theirs, f"{name}: other replies than transformers'"
    if fits and model.dtype == torch.float32:
        _, wanted = runs["eager"]()
        assert ((a - wanted).norm() / wanted.norm()).item() < 1e-5, f"{name}: other attention than transformers'"

    taken = interleaved(runs, model.device, 2 if model.device.type == "cpu" else 3, warm=False)
    short = {"ours": lambda: summarise(model, [window], 2), "sdpa": lambda: peer.write(sdpa, ids, 2),
             "eager": lambda: peer.write(eager, ids, 2, spans)}
    memory = {kind: peak_bytes(short[kind], model.device) / 2 ** 20 for kind in runs}
    reason = "not run: memory"
    return [
        Row("1 stage 1, time / sdpa without attention", name, taken["ours"], taken["sdpa"], "s", "at most the peer's",
            limit=1),
        Row("1 stage 1, memory / sdpa without attention", name, memory["ours"], memory["sdpa"], "MiB",
            "within 10 %", limit=1 / 1.1),
        Row("1 stage 1, time / eager with attention", name, taken["ours"], taken.get("eager", reason), "s",
            "3x at 4k", limit=3 if length == 4096 else None),
        Row("1 stage 1, memory / eager with attention", name, memory["ours"], memory.get("eager", reason), "MiB",
            "10x at 4k", limit=10 if length == 4096 else None)]


@torch.no_grad()
def windows(device: torch.device) -> list[Row]:
    """Point 2: windows of a level in one batch against one at a time, and transformers with the same batch."""
    rows = []
    for shape in shapes_for(device, "SmolLM2, 6 layers"):
        model = random_model(shape, device)
        sdpa = peer.hugging_face(model, "sdpa")
        number, length, reply = (16, 2048, 256) if device.type == "cuda" else (8, 384, 96)
        prompts = [prompt_of(model.config.vocab, length, seed) for seed in range(number)]
        ids = torch.tensor([[i for _, part in prompt for i in part] for prompt in prompts], device=device)

        runs = {"batch": lambda: summarise(model, prompts, reply),
                "one by one": lambda: [summarise(model, [prompt], reply) for prompt in prompts],
                "peer": lambda: peer.write(sdpa, ids, reply)}
        together, _ = runs["batch"]()
        alone = [one[0][0] for one in runs["one by one"]()]
        equal = sum(a == b for a, b in zip(together, alone))
        if model.dtype == torch.float32:
            assert equal == number, f"{shape}: {equal} of {number} replies are those of one window at a time"

        taken = interleaved(runs, device, 3 if shape == "embedded" else 1, warm=False)
        name = f"{shape}, {number} windows, {length:,} + {reply}"
        rows += [Row("2 windows in a batch / one at a time", name, number / taken["batch"],
                     number / taken["one by one"], "windows/s", "1.5x on a CPU, 8x on a GPU", True,
                     8 if device.type == "cuda" else 1.5),
                 Row("2 windows in a batch / sdpa without attention", name, number / taken["batch"],
                     number / taken["peer"], "windows/s", "-", True)]
    return rows


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second that a copy of a quarter of a GiB reads and writes."""
    source = torch.empty(1 << 28, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * source.numel() / min(seconds(lambda: target.copy_(source), device) for _ in range(5))


@torch.no_grad()
def decode(device: torch.device) -> list[Row]:
    """Point 5: the share of the memory's speed that decoding reaches, at 512 tokens of context."""
    bandwidth = copy_bandwidth(device)
    rows = []
    for shape in shapes_for(device):
        model = random_model(shape, device)
        c = model.config
        sdpa = peer.hugging_face(model, "sdpa")
        steps = 32 if shape == "embedded" or device.type == "cuda" else 8
        for batch in (1, 16):
            weights = sum(w.numel() for name, w in model.weights.items() if c.tied or "embed" not in name)
            kept = 2 * c.layers * c.kv_heads * c.head_width * 512 * batch
            limit = (weights + kept) * model.dtype.itemsize / bandwidth                    # seconds a step
            taken = step_seconds(model, sdpa, batch, steps)
            name = f"{shape}, batch {batch}"
            rows.append(Row("5 decode, share of the copy bandwidth", name, limit / taken["ours"],
                            limit / taken["peer"], "", "at least the peer's", True, 1))
            rows.append(Row("5 decode with attention to nodes", name, batch / taken["attention"],
                            batch / taken["peer"], "tokens/s", "-", True))
    return rows


def step_seconds(model: Llama, sdpa, batch: int, steps: int) -> dict[str, float]:
    """Seconds of one step of decoding: ours without and with attention, and the peer's."""
    from transformers import DynamicCache
    prompts = [prompt_of(model.config.vocab, 512, seed) for seed in range(batch)]
    ids = torch.tensor([[i for _, part in prompt for i in part] for prompt in prompts], device=model.device)
    cache = Cache(model, batch, 512 + steps + 1)
    hidden, _ = model.read(cache, prompts)
    averaging = cache.averaging_matrix([[n for n, _ in prompt] for prompt in prompts])
    past = DynamicCache(config=sdpa.config)
    sdpa(ids, past_key_values=past, use_cache=True, logits_to_keep=1)

    def ours(matrix=None):
        last = hidden
        for _ in range(steps):
            chosen = model.logits(last).argmax(-1).tolist()
            last, _ = model.read(cache, [[(None, [token])] for token in chosen], matrix)
        cache.rollback([512] * batch)

    def theirs():
        token = ids[:, -1:]
        for _ in range(steps):
            out = sdpa(token, past_key_values=past, use_cache=True, logits_to_keep=1)
            token = out.logits[:, -1].argmax(-1, keepdim=True)
            token.tolist()
        past.crop(-steps)

    taken = interleaved({"ours": ours, "attention": lambda: ours(averaging), "peer": theirs}, model.device, 7)
    return {name: total / steps for name, total in taken.items()}
