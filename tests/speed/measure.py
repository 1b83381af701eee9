"""Shapes, clocks and tables of the benchmark."""
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import transformers

from core.checkpoint import Config, tensor_shapes
from core.tokenizer import Tokenizer
from llama import Llama

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tiny"
KEPT = ROOT / "results-benchmark"
NOT_RUN = "not run: no GPU"

# vocabulary, width, hidden, layers, query heads, key/value heads, head width
SIZES = {"embedded": (313, 128, 256, 6, 4, 2, 32),
         "SmolLM2": (49152, 576, 1536, 30, 9, 3, 64),
         "SmolLM2, 6 layers": (49152, 576, 1536, 6, 9, 3, 64),
         "1B, 2 layers": (128256, 2048, 8192, 2, 32, 8, 64),
         "8B": (128256, 4096, 14336, 32, 32, 8, 128)}


def shapes_for(device: torch.device, most: str = "1B, 2 layers") -> list[str]:
    """The shapes to measure: whole models on a GPU; on a CPU up to `most`, with layers that it does in minutes."""
    if device.type == "cuda":
        return ["embedded", "SmolLM2", "1B, 2 layers", "8B"]
    shapes = ["embedded", "SmolLM2, 6 layers", "1B, 2 layers"]
    return shapes[:shapes.index(most) + 1]


def config_of(shape: str) -> Config:
    """The config of a shape; no token ends a reply, so that all write as much."""
    vocab, width, hidden, layers, heads, kv_heads, head_width = SIZES[shape]
    return Config(vocab=vocab, width=width, hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads,
                  head_width=head_width, norm_eps=1e-5, max_length=1 << 17, tied=shape != "8B", rope_theta=5e5,
                  rope=None, eos=(), dtype="float32")


def random_model(shape: str, device: torch.device) -> Llama:
    """A Llama of random weights, with the embedded model's tokenizer; in bfloat16 on a GPU, else in float32."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    config = config_of(shape)
    weights = {}
    for name, size in tensor_shapes(config).items():
        weight = torch.empty(size, dtype=dtype, device=device)
        weights[name] = weight.fill_(1) if len(size) == 1 else weight.normal_(0, size[-1] ** -0.5)
    return Llama(config, weights, Tokenizer(TINY))


def embedded(device: torch.device) -> Llama:
    return Llama.load(TINY, str(device))


# --- clocks ---------------------------------------------------------------------------------------------------------

def seconds(run: Callable, device: torch.device) -> float:
    """What one call takes: the time of the process on a CPU, which others may use too; else the time on the wall."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    synchronise(device)
    start = clock()
    run()
    synchronise(device)
    return clock() - start


def synchronise(device: torch.device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def interleaved(runs: dict[str, Callable], device: torch.device, times: int = 3, warm: bool = True) -> dict[str, float]:
    """The median seconds of each run, called in turns after a warm-up."""
    taken = {name: [] for name in runs}
    for run in runs.values():
        if warm:
            run()
    for _ in range(times):
        for name, run in runs.items():
            taken[name].append(seconds(run, device))
    return {name: statistics.median(values) for name, values in taken.items()}


# --- results --------------------------------------------------------------------------------------------------------

@dataclass
class Row:
    """One line of the table: what, in which shape, ours, the peer's, and what was aimed at."""
    what: str
    shape: str
    ours: float | str
    peer: float | str
    unit: str
    goal: str
    higher: bool = False          # whether more is better
    limit: float | None = None    # what the ratio must reach
    details: list | None = None   # the points of a curve

    @property
    def ratio(self) -> float | None:
        """How many times faster, smaller or more than the peer ours is: above 1 is better."""
        if isinstance(self.ours, str) or isinstance(self.peer, str) or not self.ours or not self.peer:
            return None
        return self.ours / self.peer if self.higher else self.peer / self.ours

    @property
    def met(self) -> str:
        if isinstance(self.ours, str):
            return "-"
        if self.limit is None or self.ratio is None:
            return "-"
        return "yes" if self.ratio >= self.limit else "no"


def figure(value) -> str:
    return value if isinstance(value, str) else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def table(rows: list[Row]) -> str:
    """The rows as an aligned table."""
    cells = [["what", "shape", "ours", "", "peer", "ratio", "goal", "met"]]
    for row in rows:
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}x"
        cells.append([row.what, row.shape, figure(row.ours), row.unit, figure(row.peer), ratio, row.goal, row.met])
    widths = [max(map(len, column)) for column in zip(*cells)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)


def machine(device: torch.device) -> dict:
    """What the figures were measured on."""
    name = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
    return {"device": torch.cuda.get_device_name() if device.type == "cuda" else name, "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1), "threads": torch.get_num_threads(), "python":
            platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}


def keep(part: str, rows: list[Row], of: dict):
    """Keep the rows of a part and what they were measured on."""
    KEPT.mkdir(exist_ok=True)
    entry = {"machine": of, "rows": [asdict(row) for row in rows]}
    (KEPT / f"{part}.json").write_text(json.dumps(entry, indent=1) + "\n")


def kept(parts: list[str] | None = None) -> list[Row]:
    """The rows of these parts, or of all that were ever measured here."""
    rows = []
    for path in sorted(KEPT.glob("*.json")):
        if parts is None or path.stem in parts:
            rows += [Row(**row) for row in json.loads(path.read_text())["rows"]]
    return sorted(rows, key=lambda row: row.what.split()[0])


def draw():
    """Write the table of all that was kept; and the curves of growth, if matplotlib is installed."""
    if KEPT.exists():
        (KEPT / "table.txt").write_text(table(kept()) + "\n")
    curves = [row for row in kept() if row.details]
    if not curves:
        return
    try:
        import matplotlib
    except ImportError:
        print("no picture of the growth: pip install matplotlib")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for row in curves:
        sizes = [entry["size"] for entry in row.details]
        axes.loglog(sizes, [entry["seconds"] for entry in row.details], marker="o", label=row.details[0]["part"])
    axes.set_xlabel("tokens (construction), nodes (the others)")
    axes.set_ylabel("seconds")
    axes.legend()
    figure.tight_layout()
    figure.savefig(KEPT / "growth.png", dpi=100)


def without_eos(model: Llama) -> Llama:
    """The same model, whose replies end at their limit."""
    return Llama(replace(model.config, eos=()), model.weights, model.tokenizer, model.folder)
