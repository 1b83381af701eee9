"""Points 6, 7 and 8: how time and memory grow, what a start costs, and what a second process brings (also to 4)."""
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from core.checkpoint import read_config, save_checkpoint, tensor_shapes
from core.settings import resolve
from core.tokenizer import Tokenizer
from data import EMBEDDED, Document
from evaluation.layouts import Dataset
from pecan import Graph, Node, Search, build, edge_matrix
from speed.measure import NOT_RUN, ROOT, TINY, Row, embedded, random_model, seconds, shapes_for
from speed.reading import peak_bytes, prompt_of, summarise
from support.memory import bytes_of_pass
from tiny.world import make_world

GROWTH = {"construction": [2_000, 8_000, 32_000, 128_000, 500_000], "search": [100, 1_000, 10_000, 100_000]}
ON_CUDA = {"construction": 3, "search": 3}     # how many of these sizes: a run there should end after ten minutes


def long_document(tokenizer, tokens: int) -> Document:
    """A document of the embedded world of at least so many tokens."""
    passages = []
    number = random.Random(0)
    length = 0
    while length < tokens:
        for passage in make_world(number, 12).passages:
            passages.append(passage)
            length += len(tokenizer.encode(passage))
    return Document(f"{tokens} tokens", passages)


def sizes(what: str, device: torch.device) -> list[int]:
    return GROWTH[what][:ON_CUDA[what]] if device.type == "cuda" else GROWTH[what]


def construction(device: torch.device) -> list[dict]:
    """Seconds of building over documents of so many tokens, and what the graph added to memory."""
    tiny = embedded(device)
    settings = resolve(tiny.folder, 512)
    found = []
    for tokens in sizes("construction", device):
        document = long_document(tiny.tokenizer, tokens)
        before = memory()
        graphs = []
        taken = seconds(lambda document=document: graphs.append(build(tiny, document, settings)), device)
        found.append({"part": "construction", "size": tokens, "seconds": taken, "nodes": len(graphs[0].nodes),
                      "MiB": max(0, memory() - before)})
    return found


def memory() -> float:
    """MiB of this process that are in memory now, without mapped files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return 0


def random_graph(V: int) -> Graph:
    """Three levels of nodes with eight edges each, and texts of the embedded world."""
    rng = random.Random(0)
    chunks, middle = V * 3 // 4, V * 3 // 4 + max(1, V // 4 - 8)
    nodes, edges = [], []
    for i in range(V):
        level = 1 if i < chunks else 2 if i < middle else 3
        nodes.append(Node(level, f"Mara is Sofia's baker and lives by the {i}"))
        below = range(chunks) if level == 2 else range(chunks, middle)
        if level > 1:
            linked = rng.sample(below, min(8, len(below)))
            edges += [(i, j, 1 / len(linked)) for j in sorted(linked)]
    return Graph(nodes, edge_matrix(edges, V), "0" * 64, "benchmark", {}, 0)


def searches(device: torch.device) -> list[dict]:
    """Seconds over graphs of so many nodes: a query's start, a choice, saving, loading; and tokenising."""
    tiny = embedded(device)
    settings = resolve(tiny.folder, 512)
    found = []
    for V in sizes("search", device):
        graph = random_graph(V)
        c = torch.rand(V, generator=torch.Generator().manual_seed(0))
        begun = []
        tokenising = seconds(lambda graph=graph: graph.lines(Tokenizer(TINY)), device)
        graph.kept_lines.clear()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "graph.json"

            def begin(graph=graph, c=c):
                search = Search(tiny, graph, "What is Mara's job?", c, settings)
                search.start()
                begun.append(search)

            times = {"tokenising": tokenising,
                     "first query": seconds(begin, device), "next query": seconds(begin, device),
                     "a choice": seconds(begun[-1].next, device),
                     "saving": seconds(lambda graph=graph, path=path: graph.save(path), device),
                     "loading": seconds(lambda path=path: Graph.load(path), device)}
        found += [{"part": part, "size": V, "seconds": taken} for part, taken in times.items()]
    return found


def growth(device: torch.device) -> list[Row]:
    """Point 6: seconds at the largest size, next to what the size before it would give if all were linear."""
    found = construction(device) + searches(device)
    rows = []
    for part in dict.fromkeys(entry["part"] for entry in found):
        entries = [entry for entry in found if entry["part"] == part]
        last, before = entries[-1], entries[-2]
        what = "tokens" if part == "construction" else "nodes"
        linear = before["seconds"] * last["size"] / before["size"]
        shape = f"{before['size']:,} to {last['size']:,} {what}"
        rows.append(Row(f"6 {part} / linear growth", shape, last["seconds"], linear, "s", "linear", limit=1 / 1.25,
                        details=entries))
        if part == "construction" and device.type == "cpu":           # else the machine's memory has other things
            linear = before["MiB"] * last["size"] / before["size"]
            rows.append(Row("6 memory of the graph / linear growth", shape, last["MiB"], linear, "MiB", "linear",
                            limit=1 / 1.25))
    return rows


# --- start ----------------------------------------------------------------------------------------------------------

LOAD = """
import sys, threading, time
from pathlib import Path
def memory():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
import torch
from llama import Llama
from core.checkpoint import read_config, read_weights
import safetensors.torch
before, peak, done = memory(), [0], []
def watch():
    while not done:
        peak[0] = max(peak[0], memory())
        time.sleep(.002)
thread = threading.Thread(target=watch)
thread.start()
folder = Path(sys.argv[1])
config = read_config(folder)
weights = read_weights(folder, config, torch.device("cpu"), torch.float32)
done.append(1)
thread.join()
print(max(peak[0], memory()) - before)
"""


def time_of_children() -> float:
    """Seconds that processors have worked for the processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def start(device: torch.device) -> list[Row]:
    """Point 7: memory while a checkpoint is loaded, and a question on a graph that is there, from a cold start."""
    with tempfile.TemporaryDirectory() as folder:
        raw = json.loads((ROOT / "tests" / "llama-3.1-8b" / "config.json").read_text())
        raw |= {"num_hidden_layers": 2, "vocab_size": 16032}
        (Path(folder) / "config.json").write_text(json.dumps(raw))
        config = read_config(Path(folder))
        weights = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in tensor_shapes(config).items()}
        save_checkpoint(folder, raw, weights)
        size = sum(weight.numel() * 4 for weight in weights.values())
        del weights
        command = [sys.executable, "-c", LOAD, folder]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rows = [Row("7 loading bfloat16 as float32, peak / the weights", "8B-shaped, 2 of 32 layers",
                int(done.stdout) / 2 ** 20, size / 2 ** 20, "MiB", "1.1x", limit=1 / 1.1)]

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "pecan.py"), str(TINY / "story.txt"), "What color is Selma's pet?",
                   "--device", device.type, "--graph", f"{folder}/graph.json"]
        subprocess.run(command, cwd=ROOT, capture_output=True, check=True)                # builds the graph
        before = time_of_children()
        subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
        taken = time_of_children() - before
    rows.append(Row("7 pecan.py from a cold start, its graph being there", "embedded, time of the process", taken, 4.0,
                    "s", "under 4 s", limit=1))
    return rows + dry_run(device, ["8B"] if device.type == "cuda" else shapes_for(device))


@torch.no_grad()
def dry_run(device: torch.device, shapes: list[str], length: int = 8192) -> list[Row]:
    """What reading a window and beginning its summary adds to the weights, next to what --dry-run of eval.py says."""
    rows = []
    for shape in shapes:
        model = random_model(shape, device)
        window = prompt_of(model.config.vocab, length)
        measured = peak_bytes(lambda model=model, window=window: summarise(model, [window], 2), device)
        said = bytes_of_pass(model.config, length, length + 2, model.dtype.itemsize)
        rows.append(Row("7 peak of a window / what the dry run says", f"{shape} at {length:,}", measured / 2 ** 20,
                        said / 2 ** 20, "MiB", "at most 10 % above", limit=1 / 1.1))
    if device.type == "cpu":
        rows.append(Row(rows[0].what, "8B", NOT_RUN, "-", "", "at most 10 % above"))
    return rows


def processes(device: torch.device) -> list[Row]:
    """Points 8 and 4: eval.py in one process of one thread and in two; its searches one by one, and together in two."""
    one, two = [], ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    with tempfile.TemporaryDirectory() as folder:
        def run(launcher: list[str], name: str, *options: str) -> float:
            command = [sys.executable, *launcher, str(ROOT / "eval.py"), "--device", device.type, "--output",
                       f"{folder}/{name}", *options]
            begun = time.perf_counter()
            subprocess.run(command, cwd=ROOT, capture_output=True, check=True,
                           env=os.environ | {"OMP_NUM_THREADS": "1"})
            return time.perf_counter() - begun

        def searches(launcher: list[str], name: str, *options: str) -> float:
            """Seconds of the searches alone: the same command once more has nothing left to answer."""
            options = ["--method", "pecan", "--graphs", f"{folder}/one/graphs", *options]
            return run(launcher, name, *options) - run(launcher, name, *options)

        alone, shared = run(one, "one"), run(two, "two")
        pairs = [(searches(one, f"one by one {turn}", "--batch", "1"), searches(two, f"together {turn}"))
                 for turn in range(3)]
        one_by_one, together = map(statistics.median, zip(*pairs))

    questions = len(Dataset(EMBEDDED).questions)
    return [Row("8 two processes / one", "python eval.py", shared, alone, "s", "1.8x", limit=1.8),
            Row("4 together in two processes / one by one", "python eval.py --method pecan", questions / together,
                questions / one_by_one, "queries/s", "3x on two cores", True, 3)]
