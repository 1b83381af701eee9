"""Every table and report is computed a second time: each cell from raw rows, without the code that makes it."""
import json
import random
import re
import shutil
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
import torch
from study import __main__ as study_command
from study import collect, steps
from study.__main__ import markdown, report
from test_eval import ROOT, run
from test_study import E_H, NODES, record_of

import eval as command_line
from core.settings import Settings, resolve
from data import EMBEDDED, Answer, Question, read_jsonl
from evaluation import cost, paper
from evaluation.layouts import dataset
from llama import flops_of, length_of
from model.checkpoint import choose_device, read_config
from pecan import answer_turn, chunks, node_line, question_prompt, room_for_summary, summary_prompt
from view.page import page_data

# --- raw rows -------------------------------------------------------------------------------------------------------

# A prediction; its F1, ROUGE-L and exact match against Mara Lee; and whether it names option B.
WORKED = (("Mara Lee", 1, 1, 1, 0), ("Lee Mara", 1, .5, 0, 0), ("(B) old Mara", .4, .4, 0, 1), ("Tom", 0, 0, 0, 0))


def raw(data: str, name: str) -> list[dict]:
    """Rows of a run: three questions about two documents. Only one data set has options. The whole document has no
    nodes and prepares nothing, GARLIC asks for no form, and all replies to JERR and all but one to MKRAG have it."""
    rng = random.Random(f"{name} on {data}")
    some, asked, refused = name != "whole", name != "garlic", name not in ("garlic", "jerr", "mkrag")
    of_document = {d: {"hash": d, "construction_flops": some * rng.randrange(10**9, 10**13),
                       "construction_calls": asked * rng.randrange(9),
                       "construction_refused": refused * rng.randrange(9)} for d in "ab"}
    rows = []
    for n, document in enumerate("aab"):
        prediction, *worked = rng.choice(WORKED)
        rows.append({"id": str(n), "prediction": prediction, "answers": ["Mara Lee"], "gold": 1,
                     "nodes": some * rng.randrange(1, 40), "tokens": 1, "flops": rng.randrange(10**8, 10**12),
                     "cut": rng.random() < .5, "calls": asked * rng.randrange(1, 9),
                     "refused": refused * rng.randrange(9) + (name == "mkrag" and n == 0), "worked": worked,
                     **({"options": ["Ann", "Bob"]} if data == "mine" else {})} | of_document[document])
    return rows


def ends(items, form: str, statistic=np.mean) -> list[str]:
    """Both ends of a statistic's 95 % bootstrap interval over items, in this form."""
    drawn = np.sort(np.random.default_rng(0).integers(0, len(items), (1000, len(items)))).tolist()
    of = {row: statistic([items[i] for i in row]) for row in set(map(tuple, drawn))}
    return [form.format(end) for end in np.percentile([of[tuple(row)] for row in drawn], [2.5, 97.5])]


def short(flops: float) -> str:
    power = int(np.log10(flops) // 3)
    return f"{flops / 1000 ** power:#.3g}".rstrip(".") + "KMGT"[power - 1]


def columns(data: str, name: str) -> dict[str, str]:
    """The cell of each column for a run."""
    rows, first = raw(data, name), raw(data, "pecan")
    documents = rows[1:]                                    # one row of each
    f1, rouge_l, em, right = 100 * np.array([row["worked"] for row in rows]).T
    less = f1 - 100 * np.array([row["worked"][0] for row in first])
    low, high = ends(less, "{:+.1f}")
    difference = "-" if name == "pecan" else f"{less.mean():+.1f} ({low} to {high})"

    def total(what):
        return sum(row[what] for row in rows) + sum(row[f"construction_{what}"] for row in documents)

    flops = sum(row["flops"] for row in rows) / 3
    return {"F1": f"{f1.mean():.1f}", "95 %": "-".join(ends(f1, "{:.1f}")), "ROUGE-L": f"{rouge_l.mean():.1f}",
            "EM": f"{em.mean():.1f}", "accuracy": f"{right.mean():.1f}" if data == "mine" else "none", "n": "3",
            "FLOPs/query": short(flops),
            "ratio": f"{3 * flops / sum(row['flops'] for row in first):.2f}x",
            "nodes": f"{sum(row['nodes'] for row in rows) / 3:.1f}" if name != "whole" else "-",
            "FLOPs/document": short(sum(of["construction_flops"] for of in documents) / 2) if name != "whole" else "-",
            "cut": f"{len({row['hash'] for row in rows if row['cut']})}/2",
            "refused": f"{total('refused')} of {total('calls')}" if name != "garlic" else "none",
            "F1 - PECAN": difference, "F1 - first row": difference}


class Recorded:
    """Replaces eval.py's Runner: returns the rows of `raw`, and keeps how many chunks each run retrieves."""
    top = {}

    def __init__(self, *_):
        pass

    def do(self, run):
        self.top[run.dataset.name, run.row.name] = run.top_k
        return raw(run.dataset.name, run.row.name), {}, []


@pytest.fixture
def printed(tmp_path, monkeypatch):
    """A function that runs eval.py over two data sets, Qasper and mine, and returns {title: rows of cells}."""
    def tables(*arguments):
        monkeypatch.setattr(command_line, "Runner", Recorded)
        monkeypatch.setattr(dataset, "TAKEN", ())           # the file may have the paper's name
        done = run(*arguments, "--dataset", *paths, "--output", tmp_path / "r")
        assert done.returncode == 0, done.stderr
        results, table = (tmp_path / "r" / "-".join([name, *arguments[1:2]]) for name in ("results", "table"))
        assert (command_line.NOTE in done.stdout) == ("A3" not in arguments)
        kept = table.with_suffix(".txt").read_text()
        assert done.stdout.startswith(kept) and kept.count("\n\n") == done.stdout.count("\n\n")
        assert done.stdout.split()[-1] == f"{results}.json" and results.with_suffix(".json").exists()
        found = {"refused": [line for line in done.stdout.splitlines() if "replies had no usable form" in line]}
        for block in done.stdout.split("\n\n"):
            lines = [re.split("  +", line.strip()) for line in block.splitlines()]
            found[lines.pop(0)[0] if "--table" in arguments else ""] = lines
        return found

    paths = [tmp_path / f"{name}.jsonl" for name in ("Qasper", "mine")]
    for path, words in zip(paths, (3, 5)):
        rows = [{"passages": ["Tom is here."] * words * n, "questions": [{"question": "Who?", "answers": ["x"]}] * n}
                for n in (2, 1)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tables


TOP = ["bm25 BM25", "sbert SBERT", "dragon Dragon", "raptor-ct RAPTOR-CT"]
TOP_5, TOP_X = ([row.replace(" ", f"{end} ", 1) + f" Top-{x}" for row in TOP] for end, x in (("", 5), ("-x", "X")))
# For each table its measured columns, then its rows' names and labels.
TABLES = {
    None: ("F1|95 %|accuracy|ROUGE-L|nodes|FLOPs/query|ratio|FLOPs/document|cut|n|F1 - PECAN",
           ["pecan PECAN", "bm25 BM25 Top-5", "whole whole document"]),
    "1": ("F1|95 %|ROUGE-L|FLOPs/query|ratio|cut|n|F1 - PECAN",
          [*TOP_5[:3], "memwalker MeMWalker", "raptor-tt RAPTOR-TT", TOP_5[3], "longllmlingua LongLLMLingua", *TOP_X,
           "whole whole document", "pecan PECAN", "garlic GARLIC"]),
    "2": ("F1|95 %|n|F1 - first row",
          ["pecan tiny + tiny", "pecan-small-small small + small", "pecan-tiny-small tiny + small"]),
    "3": ("F1|95 %|ROUGE-L|nodes|FLOPs/query|n|F1 - PECAN",
          ["pecan PECAN", "pecan-without-attention w/o Attention-Guided Retrieval",
           "pecan-without-progress w/o Dynamic Progress Control", "pecan-without-graph w/o IP-based Graph",
           "pecan-without-similarity w/o Embedding Similarity"]),
    "patience": ("F1|95 %|FLOPs/query|nodes|n|F1 - first row",
                 ["pecan t_n = 1", *(f"pecan-patience-{n} t_n = {n}" for n in range(2, 9))]),
    "systems": ("F1|95 %|EM|accuracy|ROUGE-L|FLOPs/query|FLOPs/document|refused|n|F1 - PECAN",
                ["pecan PECAN", "garlic GARLIC", "graphreader GraphReader", "mkrag MKRAG (reconstruction)",
                 "jerr JERR (reconstruction)"])}


def published(table, name: str, label: str) -> list[str]:
    """The cells of the paper's figures on Qasper. Table 2 has other models; Figure 4 is a picture, but for t_n = 1."""
    if table == "systems":
        return ["F1 49.7", "official file", "Llama-3.1-8B"] if name in ("pecan", "garlic") else ["none"] * 3
    if table in ("1", "3"):
        label = "Llama-3.1-8B" if name == "whole" else label
        f1, rouge_l, tflops, ratio = {"1": paper.TABLE1, "3": paper.TABLE3}[table][label]["Qasper"]
        return [f"{f1:.1f}", f"{rouge_l:.1f}", *([f"{tflops:.1f}T", f"{ratio:.2f}x"] if table == "1" else [])]
    return {"2": ["none"], "patience": ["49.7", "66.9T"] if name == "pecan" else ["none"] * 2}[table]


@pytest.mark.parametrize("table", TABLES)
def test_a_table_from_raw_rows(printed, tmp_path, table):
    """Each row shows its label, the figures of its raw rows, and the paper's figures. Its refused replies are below."""
    titles, names = TABLES[table]
    small = shutil.copytree(ROOT / "tiny", tmp_path / "small")          # a second checkpoint, for Table 2
    found = printed(*(["--table", table] if table else []), *(["--searcher", small] if table == "2" else []))
    wanted = {data: [[of.split(" ", 1)[1], *(columns(data, of.split()[0])[title] for title in titles.split("|"))]
                     for of in names] for data in ("Qasper", "mine")}
    refused = [f"{of.split(' ', 1)[1]} on {data}: {columns(data, of.split()[0])['refused']} replies had no usable form"
               for data in wanted for of in names if of.split()[0] not in ("garlic", "jerr")]
    assert sorted(found["refused"]) == sorted(refused)
    if table is None:
        header, *rows = found[""][:7]
        assert header == ["data", "method", *titles.split("|")]
        assert rows == [[data, *row] for data in wanted for row in wanted[data]]
        return

    word = {"patience": "Figure 4", "systems": "Systems"}.get(table, f"Table {table}")
    for data, rows in wanted.items():
        header, *lines = found[f"{word}, {data}"]
        size = len(titles.split("|")) + 1
        assert header[1:size] == titles.split("|") and all("published" in title for title in header[size:size + 1])
        for line, row, of in zip(lines, rows, names):
            assert [line[0].removesuffix(" (published: Llama-3.1-8B)"), *line[1:size]] == row
            assert set(line[size:]) == {"none"} if data == "mine" else line[size:] == published(
                table, *of.split(" ", 1))
        assert all(set(line[1:size]) == {"not run"} for line in lines[len(rows):])


def test_what_top_x_retrieves(printed):
    """On Qasper, X is the paper's. Elsewhere it is the number of chunks, or of RAPTOR's nodes of a third of a chunk,
    whose prompt costs just as much as the search."""
    printed("--table", "1")
    chunk = resolve(ROOT / "tiny", 512).chunk
    config, tokenizer = vars(cost.unloaded(str(ROOT / "tiny"))).values()
    spent = sum(row["flops"] for row in raw("mine", "pecan")) / 3
    for name, published, tokens in (("bm25-x", 14, chunk), ("raptor-ct-x", 42, chunk // 3)):
        assert Recorded.top["Qasper", name] == published
        top = Recorded.top["mine", name]
        prompt = [*question_prompt(tokenizer, ""), *answer_turn(tokenizer, 0)]
        less, enough = (length_of(prompt + node_line(tokenizer, None, "tea " * tokens) * n) for n in (top - 1, top))
        assert flops_of(config, less, less) < spent <= flops_of(config, enough, enough)


def test_costs_lengths_and_nodes_from_raw_rows(printed):
    """Raw rows give Tables A4 and A3 and Figure 3."""
    rows, whole = raw("mine", "pecan"), raw("mine", "whole")
    flops, of_whole = (sum(row["flops"] for row in of) / 3 for of in (rows, whole))
    built = (rows[0]["construction_flops"] + rows[2]["construction_flops"]) / 2
    found = printed("--table", "A4")
    _, *lines = found["Table A4, mine"]
    assert "whole document (published: Llama-3.1-8B, 22.3 % cut)" == found["Table A4, NarrativeQA"][1][0]
    assert lines[0][0] == "whole document"
    assert [line[1:] for line in lines] == [
        [short(of_whole), "3", "none"], [short(built), "2", "none"], [short(flops), "3", "none"],
        *([short(flops + built / queries), "3", "none"] for queries in (1, 2, 4, 8))]

    assert [line[-1] for line in found["Table A4, Qasper"][1:]] == [
        "92.5T", "136.6T", "66.9T", "203.5T", "135.2T", "101.1T", "84.0T"]

    encode = tokenizers.Tokenizer.from_file(str(ROOT / "tiny" / "tokenizer.json")).encode
    length = len(encode("Tom is here.", add_special_tokens=False).ids)
    _, *lines = printed("--table", "A3")["Table A3, tokens of a document"]
    for line, lengths, figures in zip(lines, ((4.5, 3, 6), (7.5, 5, 10)), ("4,866 918 29,408 1,451", "none " * 4)):
        assert line[1:] == [*(f"{n * length:,.0f}" for n in lengths), "2", "3", *figures.split()]
    assert [line[0] for line in lines[:2]] == ["Qasper", "mine"]

    nodes = [row["nodes"] for row in rows]
    found = printed("--table", "nodes")
    assert found["Figure 3, Qasper, queries by nodes read"][1][-1] == "36 (GARLIC)"
    _, average, *bars = found["Figure 3, mine, queries by nodes read"]
    assert average == ["average", f"{sum(nodes) / 3:.1f}", "none"]
    for n, bar in enumerate(bars):
        count = sum(5 * n <= node < 5 * n + 5 for node in nodes)
        assert bar[:2] == [f"{5 * n}-{5 * n + 4}", str(count)]
    assert len(bars) == max(nodes) // 5 + 1


def test_scores_from_raw_rows(tmp_path):
    for name in "yx":
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in raw("mine", name)))
    header, *lines = run("--score", tmp_path / "y.jsonl", tmp_path / "x.jsonl").stdout.splitlines()
    titles = ["F1", "95 %", "ROUGE-L", "EM", "accuracy", "n"]
    assert re.split("  +", header) == ["predictions", *titles]
    assert [re.split("  +", line) for line in lines] == [
        [str(tmp_path / f"{name}.jsonl"), *(columns("mine", name)[title] for title in titles)] for name in "yx"]


# --- the dry run ----------------------------------------------------------------------------------------------------

def generated(config, prompt: int, tokens: int) -> int:
    """FLOPs of a prompt and a reply. The reply's last token is not run."""
    return flops_of(config, prompt, prompt, 1) + sum(flops_of(config, 1, prompt + n, 1) for n in range(1, tokens))


def levels(lengths: list[int], room: int, limit: int, node: int):
    """The groups of each level, each as (tokens of its nodes, tokens of its summary: half, at most `limit`)."""
    groups = []
    while len(groups) != 1:
        groups = [[]]
        for length in lengths:
            if sum(groups[-1]) + length > room:
                groups.append([])
            groups[-1].append(length)
        groups = [(sum(group), min(limit, sum(group) // 2)) for group in groups]
        yield groups
        lengths = [part for _, n in groups for part in [node] * (n // node) + [n % node] if part]


def test_the_dry_run_from_the_text(tiny, tmp_path, monkeypatch):
    """The estimate follows from the texts of three documents and eight questions. The second document is the longest.

    A search reads GARLIC's 17 nodes on HotpotQA, 30 on other data, or as many as the window holds. With --nodes there
    are no checks. A node has a chunk's tokens, but at most 60. A batch holds at most the groups of one level. One
    command estimates several data sets.
    """
    monkeypatch.setattr(dataset, "TAKEN", ())
    documents = [replace(document, passages=document.passages[:n], questions=document.questions[:n // 10])
                 for document, n in zip(read_jsonl(EMBEDDED, 3), (10, 60, 12))]
    config, t = tiny.config, tiny.tokenizer
    paths, totals = [], {}
    for name, answer, nodes, width, changed, *options in (
            ("HotpotQA", 32, 17, 4, {"chunk": 8}), ("mine", None, 30, 4, {"chunk": 8}, "--chunk", 8),
            ("long", None, 30, 2, {"batch": 99}, "--batch", 99, "--dtype", "float16"),
            ("fixed", None, 4, 4, {"fixed_nodes": 4, "chunk": 70}, "--nodes", 4, "--chunk", 70)):
        s = resolve(tiny.folder, config.max_length, {"answer_tokens": answer}, changed)
        node = min(60, s.chunk)
        limit, room = room_for_summary(t, s)
        instruction, turn = length_of(summary_prompt(t, [])), length_of(answer_turn(t, 0))
        total = dict.fromkeys(("tokens", "windows", "calls", "construction", "search", "whole"), 0)
        batches, searches, longest = [], [], 0
        for document in documents:
            lengths = [length_of(node_line(t, None, text)) for text in chunks(t, document, s.chunk)]
            text = sum(lengths)
            total["tokens"] += text
            for groups in levels(lengths, room, limit, node):
                prompts = [instruction + nodes for nodes, _ in groups]
                total["windows"] += len(groups)
                total["construction"] += sum(generated(config, prompt, n) for prompt, (_, n) in zip(prompts, groups))
                rows = min(s.batch, len(groups))
                batches.append(cost.bytes_of_pass(config, width, rows * max(prompts), rows * (max(prompts) + limit)))

            for question in document.questions:
                opening = length_of(question_prompt(t, question.text))
                read = min(nodes * node, text, s.window - opening - turn - s.answer_tokens)
                assert name == "long" or read == nodes * node
                prompt = opening + read + turn
                searches.append(cost.bytes_of_pass(config, width, min(read, 512), s.window, prompt))
                checks = 0 if name == "fixed" else -(-read // node)
                total["calls"] += checks + 1
                total["search"] += (flops_of(config, prompt, prompt // 2)
                                    + checks * flops_of(config, len(t.frame.close), opening + read, 1)
                                    + sum(flops_of(config, 1, prompt + n, 1) for n in range(s.answer_tokens)))
                whole = min(opening + text + turn, 512 - s.answer_tokens)
                total["whole"] += generated(config, whole, s.answer_tokens)
                longest = max(longest, whole)

        total["calls"] += total["windows"]
        assert total["windows"] > 4 and len(batches) > 3, "several levels"
        total |= {"documents": 3, "questions": 8, "batch": s.batch, "of a batch": max(batches),
                  "of a search": max(searches),
                  "bytes of weights": width * sum(weight.numel() for weight in tiny.weights.values()),
                  "of the whole": cost.bytes_of_pass(config, width, longest, longest + s.answer_tokens)}

        totals[name] = total
        paths.append(tmp_path / f"{name}.jsonl")
        paths[-1].write_text("".join(json.dumps({"id": document.id, "passages": document.passages, "questions": [
            {"id": question.id, "question": question.text, "answers": ["x"]} for question in document.questions]})
            + "\n" for document in documents))
        if options:
            arguments = "--dataset", *paths, *options, "--dry-run"
            assert json.loads(run(*arguments, "--json").stdout) == totals
            header, *lines = (re.split("  +", line) for line in run(*arguments).stdout.splitlines()[:1 + len(totals)])
            assert header[0] == "data" and {line[0]: dict(zip(header[1:], line[1:])) for line in lines} == {
                name: {key: f"{n:,}" if n < 1e6 else short(n) for key, n in of.items()} for name, of in totals.items()}
            paths, totals = [], {}


def test_table_a4_at_the_papers_lengths():
    """The dry run computes Table A4 for the 8B shape: chunks of 300 tokens, nodes of 60, prompts of 150, answers of 10,
    and GARLIC's numbers of nodes."""
    folder = ROOT / "tests" / "llama-3.1-8b"
    config = read_config(folder)
    header, *lines = (re.split("  +", line) for line in run(
        "--table", "A4", "--dry-run", "--model", folder).stdout.splitlines()[:13])
    assert header == ["data", "FLOPs", "computed", "with all logits", "published", "ratio", "ratio"]
    wanted = []
    for (data, (tokens, *_)), nodes in zip(paper.TABLE_A3.items(), (48, 36, 17, 30), strict=True):
        groups = sum(levels([300] * (tokens // 300) + [tokens % 300], 8192 - 2048 - 150, 2048, 60), [])
        whole, searched = 150 + tokens, 150 + 60 * nodes
        costs = [(whole, generated(config, whole, 10)),
                 (sum(150 + n for n, _ in groups), sum(generated(config, 150 + n, summary) for n, summary in groups)),
                 (searched, flops_of(config, searched, searched // 2) + nodes * flops_of(config, 5, searched, 1)
                  + sum(flops_of(config, 1, searched + n, 1) for n in range(10)))]
        rows = zip(("whole document", "construction", "search"), costs, paper.TABLE_A4.values())
        for row, (read, flops), published in rows:
            both = flops, flops + 2 * read * 4096 * 128256
            teras = *(f / 1e12 for f in both), published[data]
            wanted.append([data, row, *(f"{t:.0f}T" if t >= 100 else f"{t:.1f}T" for t in teras),
                           *(f"{t / teras[2]:.2f}x" for t in teras[:2])])
    assert lines == wanted


def test_the_whole_document_of_a_dry_run_has_its_own_window(tmp_path, monkeypatch):
    """The window is 100,000 tokens (4.1) if the model was made for more. PECAN's own window is smaller."""
    folder = shutil.copytree(ROOT / "tiny", tmp_path / "long", ignore=shutil.ignore_patterns("*.safetensors", "*.py"))
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 1 << 17}
    (folder / "config.json").write_text(json.dumps(config))
    windows = []
    monkeypatch.setattr(cost, "expected", lambda run, whole: windows.append((run.settings.window, whole)) or {
        "x": 999_999})
    assert run("--dry-run", "--model", folder).stdout.splitlines()[1].split() == ["embedded", "999,999"]
    assert windows == [(resolve(folder, 1 << 17).window, 100_000)] and windows[0][0] < 9_000


# --- the bench ------------------------------------------------------------------------------------------------------

def area(checks) -> float:
    pairs = [(p, q) for p, right in checks if right for q, other in checks if not other]
    return np.mean([(p > q) + (p == q) / 2 for p, q in pairs]) if pairs else np.nan


def checks(endless: dict) -> list[tuple]:
    """For each check of a search: p_yes, and whether chunks 0 and 3 had been read."""
    return [(p, {0, 3} <= set(endless["nodes"][:n])) for n, p in enumerate(endless["p_yes"], 1) if p is not None]


def stop(endless: dict, t_p: float) -> tuple:
    """Whether a search stops too early, reads on too long, or never stops."""
    stops = [p > t_p for p, _ in checks(endless)]
    enough = [right for _, right in checks(endless)]
    before = stops.index(True) if any(stops) else len(stops) - 1
    return any(stops) and not enough[before], any(enough[:before]), not any(stops)


def test_the_report_of_the_bench_from_raw_rows(monkeypatch):
    """Each figure is over its own items, and each interval over documents.

    One data set has two documents, the other one document of the same id. A document is measured with the heads that
    are best on others, not with its own best.
    """
    monkeypatch.setattr(study_command, "STEPS", (steps.edges, steps.progress, steps.answers))     # other steps are slow
    monkeypatch.setattr(steps, "THRESHOLDS", (.5, .8))

    def record(id, e, *questions, **extra):
        found = record_of()._replace(e=e)
        row, = found.asked
        return found._replace(document=replace(found.document, id=id), asked=[row._replace(
            question=Question(f"{id}{n}", "Who?", [], {"evidence": [], **extra}), needed=[0, 3],
            endless={"nodes": [[6, 5, 0, 3, 1], [6, 5, 0, 1, 3]][n], "p_yes": [None, *p_yes]},
            ways={way: {"f1": f1, "likelihood": likelihood, "nodes": [0]} for way, f1, likelihood in (
                ("PECAN", *pecan), ("needed chunks", *needed))}) for n, (pecan, needed, p_yes) in enumerate(questions)])
    records = {"one": [record("a", E_H, ((.5, -2), (1, -.5), (.3, .5, .2, .7)), ((0, -3), (.25, -1), (.6, .5, .4, .8))),
                       record("b", E_H.flip(1), ((1, -1), (.5, -4), (.2, .3, .8, .1)))],
               "two": [record("a", E_H[:, :1].expand(-1, 2, -1), ((.75, -7), (0, -8), (.9, .1, .8, .2)), kind="top")]}

    found, name = {}, ""
    assert list(report({"two": records["two"]})) == ["two"], "nothing to put together"
    header, _, *lines = (line.strip("| ").split(" | ") for line in markdown(report(records)).replace(
        "|  |", "| + |").splitlines())
    assert header == ["figure", "way", "one", "two", "together"]
    name = counts = ""
    for label, way, *cells in lines:
        name, counts = label.split("; n ") if label != "+" else (name, counts)
        found[name, way] = counts, [[float(x) for x in re.findall(r"-?\d*\.?\d+", cell)] for cell in cells]

    def check(name, way, items, statistic=lambda documents: np.mean(np.concatenate(documents))):
        """Compare a printed row with the statistic of `items(record)` and its interval."""
        groups = [*records.values(), sum(records.values(), [])]
        wanted = [[items(record) for record in group] for group in groups]
        counts, cells = found[name, way]
        assert counts == ", ".join(str(sum(map(len, documents))) for documents in wanted)
        for documents, cell in zip(wanted, cells):
            value = statistic(documents)
            numbers = [value, *map(float, ends(documents, "{}", statistic))]
            assert all(abs(x - y) <= (.0051 if abs(y) < 1 else .051 if abs(y) < 20 else .51)
                       for x, y in zip(cell, numbers, strict=True)), (name, way, cell, numbers)

    for figure, what, factor in (("F1", "f1", 100), ("gold likelihood", "likelihood", 1)):
        for way in ("PECAN", "needed chunks"):
            check(figure, way, lambda record: [factor * asked.ways[way][what] for asked in record.asked])
        check(f"{figure} less PECAN's", "needed chunks", lambda record: [
            factor * (asked.ways["needed chunks"][what] - asked.ways["PECAN"][what]) for asked in record.asked])
    _, cells = found["F1 of kind 'top'", "PECAN"]
    assert not cells[0] and [cell[0] for cell in cells[1:]] == [75, 75], "a data set without the kind has an empty cell"
    for t_p in (.5, .8):
        for figure, verdict in (("stops too early", 0), ("stops too late", 1), ("never stops", 2)):
            check(figure, f"t_p {t_p}", lambda record: [stop(asked.endless, t_p)[verdict] for asked in record.asked])
    check("edges: mass on the sources, level 2", "chosen heads", lambda record: [.5])
    check("p_yes: area", "+", lambda record: [
        check for asked in record.asked for check in checks(asked.endless)],
          lambda documents: area(sum(documents, [])))


def test_chunks_of_the_bench_cost_what_pecan_does(tiny, graph, question, similarity, settings):
    """Less of the budget is left than the longest chunk costs. By similarity, the most similar chunks are read."""
    c = similarity(question)
    rows = collect.without_search(tiny, graph, Question("q", question, ["x"]), c, [0], 300, settings)
    t = tiny.tokenizer
    fixed = length_of(question_prompt(t, question)) + length_of(answer_turn(t, 0))
    all_chunks = [i for i, node in enumerate(graph.nodes) if node.level == 1]
    cost_of = {i: length_of(node_line(t, None, graph.nodes[i].text)) for i in all_chunks}
    for way in ("random chunks", "chunks by similarity"):
        spent = fixed + sum(cost_of[i] for i in rows[way]["nodes"])
        assert spent <= 300 < spent + max(cost_of.values()) and set(rows[way]["nodes"]) <= set(all_chunks)
    best = sorted(all_chunks, key=lambda i: -c[i])
    assert rows["chunks by similarity"]["nodes"] == best[:len(rows["chunks by similarity"]["nodes"])]


def test_the_level_above_the_chunks_is_compared_at_one_position():
    """Bullets with attention .25 and .3 are right; the second of the three, with .2, is wrong. Position factors put it
    before the first. Without them both pairs are in order."""
    row = record_of()
    attention = torch.tensor([0, 0, 0, 0, .25, .2, .3])[:, None, None].expand(7, 2, 1)
    asked_, = row.asked
    nodes = [replace(node, level=2) if node.level == 3 else node for node in row.nodes]
    row = row._replace(nodes=nodes, asked=[asked_._replace(attention=attention)])
    found = [(name, item) for name, way, item in steps.relevance(row, steps.Chosen([], [])) if way == "the paper"]
    assert found == [("r: area over the top level", .5), ("r: area over level 2", 1)]


# --- the page -------------------------------------------------------------------------------------------------------

def test_each_question_of_a_page_has_its_graph():
    """Each question is shown with its own figures and its document's nodes. Each graph is stored once."""
    def trace(name, nodes, n):
        return SimpleNamespace(graph=name, nodes=nodes, edges=[[len(nodes), 0, 1]], c=[n / 2], lengths=[n + 5],
                               question=f"q{n}", settings=Settings(patience=n + 1), answer=Answer(f"x{n}", [n], 1, 1))
    traces = [trace("a", NODES[:2], 0), trace("b", NODES[2:5], 1), trace("a", NODES[:2], 2)]
    data = page_data(traces)
    assert data["questions"] == [{
        "graph": n % 2, "question": f"q{n}", "settings": asdict(Settings(patience=n + 1)), "c": [n / 2],
        "lengths": [n + 5], "steps": [], "answer": data["questions"][n]["answer"]} for n in range(3)]
    assert [question["answer"]["text"] for question in data["questions"]] == ["x0", "x1", "x2"]
    assert [of["edges"] for of in data["graphs"]] == [[[2, 0, 1]], [[3, 0, 1]]]
    assert [of["texts"] for of in data["graphs"]] == [[node.text for node in NODES[:2]],
                                                      [node.text for node in NODES[2:5]]]


def test_device_and_dtype_auto(monkeypatch):
    """The dtype is that of the stored weights on a GPU alone. A named device or dtype is used."""
    monkeypatch.setattr(torch, "zeros", lambda *_, device: torch.tensor(0))
    for cuda, mps, found in ((True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda mps=mps: mps)
        for asked, device in (("auto", found), ("cpu", "cpu"), ("cuda:1", "cuda:1")):
            for stored, dtype in (("float16", torch.float16), ("float8", torch.float32)):
                wanted = dtype if device.startswith("cuda") else torch.float32
                assert choose_device(asked, "auto", stored) == (torch.device(device), wanted)
                assert choose_device(asked, "bfloat16", stored) == (torch.device(device), torch.bfloat16)
