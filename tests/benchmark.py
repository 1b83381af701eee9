"""What the method costs, side by side with transformers in the same process; BENCHMARK.md explains the figures.

    python tests/benchmark.py [PART ...]        all parts, or those named:
        memory, flops, page                     accumulation; the whole document next to the paper; view's page
        stage_1, windows, decode                tests/speed/reading.py
        one_search, many                        tests/speed/searching.py
        growth, start, processes                tests/speed/growth.py

Times are compared inside one run, because machines differ and are shared. What tests/speed measures is kept in
results-benchmark/, part by part, as JSON and as a table.
"""
import json
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import torch  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from core.checkpoint import read_config  # noqa: E402
from evaluation.paper import TABLE1, TABLE_A3  # noqa: E402
from llama import Cache, Llama, flops_of  # noqa: E402

NODE = 64                                      # tokens of a node here


def nodes_of(length: int) -> list:
    """`length` tokens as nodes of 64, numbered from 0."""
    ids = (torch.arange(length) % 290 + 5).tolist()
    return [(n, ids[start:start + NODE]) for n, start in enumerate(range(0, length, NODE))]


# --- memory ---------------------------------------------------------------------------------------------------------

def peak_memory(model, length: int, stage: int) -> int:
    """Bytes allocated at the peak of getting the attention to the nodes of a prompt of `length` tokens.

    For 8 generated tokens (stage 1), or for a node of 64 tokens that is read after the prompt (stage 2). `model` is a
    Llama, or one of Hugging Face's, which keeps the attention of all layers. Weights are not counted, the key/value
    cache is.
    """
    nodes = nodes_of(length)
    node = nodes[0][1]

    def ours():
        cache = Cache(model, 1, length + NODE)
        hidden, _ = model.read(cache, [nodes])
        averaging = cache.averaging_matrix([[n for n, _ in nodes]])
        if stage == 1:
            model.generate(cache, hidden, 8, averaging)
        else:
            model.read(cache, [[("new", node)]], averaging)

    @torch.no_grad()
    def naive():
        prompt = [i for _, ids in nodes for i in ids]
        added = node[:8] if stage == 1 else node
        layers = model(torch.tensor([prompt + added]), output_attentions=True).attentions
        torch.stack([layer.mean(1) for layer in layers]).mean(0)

    return peak_of(ours if isinstance(model, Llama) else naive)


def peak_of(run) -> int:
    """Bytes allocated at the peak of run()."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    with tempfile.TemporaryDirectory() as folder:
        profiled.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]

    held = 0
    peak = 0
    allocations = [event for event in events if event.get("name") == "[memory]"]
    for event in sorted(allocations, key=lambda event: event["ts"]):
        held += event["args"]["Bytes"]
        peak = max(peak, held)
    return peak


def memory():
    from oracle import hugging_face, write_checkpoint
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(folder, max_position_embeddings=1 << 14)
        model = Llama.load(folder, "cpu")
        hf = hugging_face(folder)

    print("peak MiB of attention to all nodes of a prompt, 3 layers of 8 heads; x: of the line above\n"
          "tokens   stage 1        stage 2        all layers kept (Hugging Face)")
    before = None
    for length in (512, 1024, 2048, 4096):
        row = [peak_memory(m, length, stage) / 2 ** 20 for m, stage in ((model, 1), (model, 2), (hf, 1))]
        growth = [f"{b / a:4.1f}x" for a, b in zip(before, row)] if before else ["     "] * 3
        print(f"{length:6d}  " + "  ".join(f"{mib:7.1f} {x}" for mib, x in zip(row, growth)))
        before = row


# --- FLOPs ----------------------------------------------------------------------------------------------------------

# Tokens of the mean document (Table A3) and TFLOPs of "Llama-3.1-8B" (Table 1), as published. NarrativeQA is missing,
# because its documents are cut.
PAPER = {name: (TABLE_A3[name][0], TABLE1["Llama-3.1-8B"][name].tflops) for name in ("Qasper", "HotpotQA", "MuSiQue")}
PROMPT = 150                                   # assumed tokens: template, Table A2 and question
REPLY = 10                                     # assumed tokens: the answer


def whole_document(dataset: str) -> tuple[float, float, float]:
    """TFLOPs of the whole document in one pass through Llama-3.1-8B: published, computed, computed with all logits.

    Computed is by our formula, with the output matrix at the positions whose logits are needed; then with the output
    matrix at every position. Every document is taken to have the mean length; the prompt and the answer are assumed to
    take 150 and 10 tokens.
    """
    length, published = PAPER[dataset]
    config = read_config(ROOT / "tests" / "llama-3.1-8b")
    n = length + PROMPT
    reply = sum(flops_of(config, 1, n + i, 1) for i in range(1, REPLY))
    return published, (flops_of(config, n, n, 1) + reply) / 1e12, (flops_of(config, n, n, n) + reply) / 1e12


def flops():
    print("TFLOPs of the whole document, Llama-3.1-8B, at the mean length of Table A3; / published\n"
          "          published   logits where used  logits everywhere")
    for dataset in PAPER:
        published, last, every = whole_document(dataset)
        print(f"{dataset:10}{published:9.1f}{last:14.1f} {last / published:.2f}x{every:13.1f} {every / published:.2f}x")


# --- the page -------------------------------------------------------------------------------------------------------

LOADED = "const t = performance.getEntriesByType('navigation')[0]; return t.loadEventEnd - t.startTime"
DONE = ("const begun = performance.now(); eval(arguments[0]); document.body.offsetHeight; "      # laid out again
        "return performance.now() - begun")


def paged():
    """Milliseconds of the page in Chromium: a story's graph, and one of 700 nodes, as of a book."""
    from chromium import open_browser
    from test_page import large

    from core.settings import resolve
    from data import read_text
    from pecan import Pecan
    from support.token_mean import TokenMean
    from support.trace import Recorder
    from view.page import page
    from view.trace_file import read_traces

    with tempfile.TemporaryDirectory() as folder:
        browser = open_browser(Path(folder, "profile"))
        if browser is None:
            print("no page: there is no browser")
            return

        model = Llama.load(ROOT / "tiny", "cpu")
        method = Recorder(Pecan(model, TokenMean(model), resolve(model.folder, model.config.max_length)),
                          Path(folder, "t.jsonl"))
        story = read_text(ROOT / "tiny" / "story.txt")
        method.answer(method.prepare(story, Path(folder, "graph.json")), "Where does Selma live?")
        trace, = read_traces(Path(folder, "t.jsonl"))

        print("milliseconds of the page in Chromium\nnodes  loaded  a step  the threshold moved")
        for shown in (trace, large(trace)):
            Path(folder, "page.html").write_text(page([shown]), encoding="utf-8")
            browser.get(Path(folder, "page.html").as_uri())
            times = [browser.execute_script(LOADED)]
            for action in ("show(at + 1)", "drawEdges()"):
                times.append(min(browser.execute_script(DONE, action) for _ in range(5)))
            print(f"{len(shown.graph.levels):5d}" + "{:8.0f}{:8.1f}{:8.1f}".format(*times))
        browser.quit()


# --- the command ----------------------------------------------------------------------------------------------------

def point(name: str) -> list:
    """The rows of a part, by its function in tests/speed."""
    from speed import growth, reading, searching
    from speed.measure import NOT_RUN, Row
    module = next(module for module in (reading, searching, growth) if hasattr(module, name))
    rows = getattr(module, name)(torch.device("cuda" if torch.cuda.is_available() else "cpu"))

    # What is larger than a CPU can do is not left out silently.
    if module is not growth and not torch.cuda.is_available():
        rows.append(Row(rows[0].what, "8B", NOT_RUN, "-", "", rows[0].goal))
    return rows


PRINTED = {"memory": memory, "flops": flops, "page": paged}
POINTS = ["stage_1", "windows", "one_search", "many", "decode", "start", "processes", "growth"]
ENOUGH = 8 * 60                   # seconds on a GPU after which no other part begins, so that all end in ten minutes


def main(parts: list[str]):
    from speed import measure
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)
    print(", ".join(f"{name} {value}" for name, value in measure.machine(device).items()), end="\n\n")
    begun = time.monotonic()
    for name in parts or [*PRINTED, *POINTS]:
        if device.type == "cuda" and time.monotonic() - begun > ENOUGH:
            print(f"{name}: not run: {ENOUGH} seconds are over; name it, and it runs alone")
        elif name in PRINTED:
            PRINTED[name]()
        else:
            measure.keep(name, point(name), measure.machine(device))
            print(measure.table(measure.kept([name])))
        print(flush=True)
    measure.draw()


if __name__ == "__main__":
    main(sys.argv[1:])
