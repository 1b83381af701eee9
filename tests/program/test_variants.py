"""Variants beside PECAN: each row prints its own numbers, and takes the graphs of others only if they are its own, too.

A change is shown by runs: the changed variant with the graphs of the one before, in the folder of the one before, and
alone. `mine.py` is the file of a user's variants, which imports `helper.py` and `pack`; `rows.py` is the list of rows.
"""
import cmath
import importlib
import json
import math
import os
import sys
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest
import torch
from runs import run, write_lines

import core.code
import core.files
from core.code import identity_of
from core.disk import check_same, read_kept, read_rows
from core.files import COUNT, POSITIVE, InputError
from core.settings import Settings
from data import EMBEDDED
from evaluation import methods, models
from evaluation.methods import METHODS
from evaluation.metrics import read_predictions

MINE = """
# Variants of a user.
from dataclasses import dataclass
from typing import NamedTuple
import torch
import helper
import pack
from llama import Llama
from pecan import Pecan, Search, build

def weighted(model, document, settings, by):
    assert not document.questions, "the name of a graph knows none"
    graph = yield from build(model, document, settings)
    by = getattr(by, "factors", by)
    graph.edges = [(i, j, e * float(by[j % len(by)])) for i, j, e in graph.edges]
    return graph

@dataclass
class By:
    factors: list

class Half(NamedTuple):
    of: float
    @property
    def factors(self):
        return [1, self.of / 2]

class Tenth(NamedTuple):
    of: float
    @property
    def factors(self):
        return [1, self.of / 10]

def halved(model, document, settings):
    return weighted(model, document, settings, [1, .5])

def squared(model, document, settings):
    return weighted(model, document, settings, [1, .1])

def with_helper(model, document, settings):
    return weighted(model, document, settings, helper.FACTORS)

def with_package(model, document, settings):
    return weighted(model, document, settings, pack.FACTORS)

def with_late(model, document, settings):
    from pack import late
    return weighted(model, document, settings, late.FACTORS)

class Louder(Llama):
    "A model with a larger norm; its fingerprint is inherited."
    def linear(self, x, name):
        return super().linear(x, name) * (LOUD if name.endswith("q_proj") else 1)

LOUD = 2

class Position(Search):
    def relevance(self):
        return super().relevance() ** self.power
    power = 2

class Cube(Position):
    power = 3

class Method(Pecan):
    def construct(self, document):
        graph = yield from super().construct(document)
        return graph | {"edges": graph["edges"][::self.step]}
    step = 2

class Other(Method):
    step = 3

def loud(models, run):
    model = Louder(*(vars(models.model)[name] for name in "config weights tokenizer folder files".split()))
    return Pecan(model, models.encoder, run.settings)
"""
HELPER = """
FACTORS = [1, .5]
"""
PACKAGE = {"pack/__init__": "from .data import FACTORS", "pack/data": "FACTORS = 1, .5",     # no data.py of the project
           "pack/late": "FACTORS = (1, .5)"}
ROWS = """
from functools import partial, wraps
import torch
from evaluation.methods import Row
from mine import *
from pecan import Search, summarise

def made(kind):
    return Row("mine", "mine", lambda models, run: kind(models.model, models.encoder, run.settings))

ROW = """

# The row before, the row after it, and how many of its graphs are found among those of the row before.
BUILD = 'Row("mine", "mine", build={})'.format
SEARCH = 'Row("mine", "mine", search={})'.format
CHANGES = {
    "another function of the file": (BUILD("halved"), BUILD("squared"), 0),
    "another argument": (BUILD("partial(weighted, by=(1, .5))"), BUILD("partial(weighted, by=(1, .1))"), 0),
    "another object": (BUILD("partial(weighted, by=By([1, .5]))"), BUILD("partial(weighted, by=By([1, .1]))"), 0),
    "another class of tuple": (BUILD("partial(weighted, by=Half(1))"), BUILD("partial(weighted, by=Tenth(1))"), 0),
    "a class of the model": ('Row("mine", "mine")', 'Row("mine", "mine", loud)', 0),
    "another class of method": ("made(Method)", "made(Other)", 0),
    "a class of search": (SEARCH("Position"), SEARCH("Cube"), 1),
}
# The row, what changes in mine.py or helper.py, and how many graphs are found.
EDITS = {
    "a function": (BUILD("halved"), "[1, .5]", "[1, .1]", 0),
    "a file that is imported": (BUILD("with_helper"), "FACTORS = [1, .5]", "FACTORS = [1, .1]", 0),
    "a file of a package": (BUILD("with_package"), "FACTORS = 1, .5", "FACTORS = 1, .1", 0),
    "a file that a function imports": (BUILD("with_late"), "FACTORS = (1, .5)", "FACTORS = (1, .1)", 0),
    "a class of the model": ('Row("mine", "mine", loud)', "LOUD = 2", "LOUD = 3", 0),
    "the base of a class": (SEARCH("Cube"), "relevance() ** self", "relevance() * self", 1),
    "a class of method": ("made(Method)", "step = 2", "step = 3", 0),
}


def test_what_differs_has_other_names():
    values = [None, 1, 1.0, True, "1", math.floor, cmath.sqrt, math.sqrt, torch.floor, len, (1, 2), [1, 2], {1}, {1: 2},
              {"1": 2}, [0, 1], [[0, 1]], ["."], [","],
              Path("a"), "a", partial(max, 1), partial(max, 2), torch.float32, "float32", Counter("a"), Counter("aa"),
              COUNT._replace(holds=len), POSITIVE._replace(holds=len), Settings(), Settings(chunk=9)]
    names = [identity_of(value=value) for value in values]
    assert len({*map(repr, names)}) == len(values)
    assert identity_of(value={"b", "a"}) == identity_of(value={"a", "b"})
    for one, other in pairwise(names):
        with pytest.raises(InputError, match="is of another setup"):
            check_same("", one, other)


@pytest.mark.parametrize("module, file, text", [
    ("this", "this.py", "POWER = {}\ndef f(): pass"), ("box.late", "box/__init__.py", "POWER = {}")])
def test_what_has_a_name_of_pythons_and_the_file_of_a_package_count(tmp_path, monkeypatch, module, file, text):
    monkeypatch.syspath_prepend(tmp_path)
    codes = set()
    for power in (2, 3):
        for name, content in {"box/late.py": "def f(): pass", file: text.format(power)}.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(content)
            os.utime(tmp_path / name, (core.code.BEGUN - 9,) * 2)
        sys.modules.pop(module, None)
        core.code.source.cache_clear()
        codes.add(identity_of(f=importlib.import_module(module).f)["code"])
    assert len(codes) == 2 and None not in codes


@pytest.fixture
def go(tmp_path, monkeypatch):
    """A function that runs a row of mine.py over the beginning of a document, into a folder."""
    rows = [json.loads(EMBEDDED.read_text().splitlines()[0])]
    data = write_lines(tmp_path / "data.jsonl", [row | {"passages": row["passages"][:8],
                                                       "questions": row["questions"][:1]} for row in rows])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)                  # Python sees no change within a second

    def mine(row, folder, *options, old="", new="", age=9, code=0):
        for name, text in ({"helper": HELPER, "mine": MINE, "rows": ROWS + row} | PACKAGE).items():
            file = tmp_path / f"{name}.py"
            file.parent.mkdir(exist_ok=True)
            file.write_text(text.replace(old, new))
            os.utime(file, (core.code.BEGUN - age,) * 2)                   # as if it had been there at the beginning
            sys.modules.pop(name.removesuffix("/__init__").replace("/", "."), None)
        core.code.source.cache_clear()
        core.files.remark.cache_clear()
        importlib.invalidate_caches()
        monkeypatch.setitem(methods.TABLES, None, ((importlib.import_module("rows").ROW,), ()))
        done = run("--dataset", data, "--method", "mine", "--nodes", 8, "--output", tmp_path / folder, *options,
                   code=code)
        done.numbers = [[row["prediction"], row["flops"], row["trace"]]
                        for row in read_rows(tmp_path / folder / "data" / "mine.jsonl")]
        return done
    return mine


@pytest.mark.slow
@pytest.mark.parametrize("before, after, old, new, found", [
    *((before, after, "", "", found) for before, after, found in CHANGES.values()),
    *((row, row, old, new, found) for row, old, new, found in EDITS.values())],
    ids=[*CHANGES, *(f"{name} edited" for name in EDITS)])
def test_a_changed_variant_prints_its_own_numbers(go, tmp_path, before, after, old, new, found):
    first = go(before, "before")
    alone = go(after, "alone", old=old, new=new)
    assert alone.numbers != first.numbers, "the change has no effect here"
    beside = go(after, "beside", "--graphs", tmp_path / "before" / "graphs", old=old, new=new)
    assert beside.numbers == alone.numbers
    assert f"{found} of 1 graphs found" in beside.stderr
    assert "is of another setup" in go(after, "before", old=old, new=new, code=2).stderr


@pytest.mark.parametrize("row", [BUILD("partial(weighted, by=(1, .5))"), SEARCH("Cube")])
def test_what_changes_nothing_refuses_nothing(go, row):
    """A comment, and another row of the list."""
    first = go(row, "r")
    again = go(row + "\nROWS = ROW, made(Method)", "r", old="# Variants of a user.", new="# Mine.")
    assert "1 of 1 answers, 1 of 1 graphs found" in again.stderr and again.numbers == first.numbers


def test_a_variant_of_stage_2_takes_pecans_graphs(go, tmp_path):
    go('Row("mine", "mine")', "pecan")
    done = go(SEARCH("Cube"), "cube", "--graphs", tmp_path / "pecan" / "graphs")
    assert "0 of 1 answers, 1 of 1 graphs found" in done.stderr


@pytest.mark.parametrize("row", [
    BUILD("partial(weighted, by=torch.tensor([1, .5]))"),
    BUILD("lambda *a: weighted(*a, by=[1, .5])"),
    BUILD("(lambda function: wraps(function)(lambda *a: weighted(*a, by=[1, .5])))(halved)"),
    'Row("mine", "mine", loud)\nLouder.__init__ = lambda self, *a: super(Louder, self).__init__(*a)',
    'Row("mine", "mine", lambda models, run: Pecan(Llama(models.model.config, models.model.weights, '
    'models.model.tokenizer), models.encoder, run.settings))'])
def test_what_nothing_can_name_keeps_nothing_and_says_so(go, tmp_path, row):
    """A tensor, a lambda, a wrapper with the name of what it wraps, a model that may hold more than its fingerprint, a
    model whose weights come from no file."""
    done = go(row, "r")
    assert "no graph is kept" in done.stderr and done.numbers
    assert not [*tmp_path.glob("r/graphs/*")]
    assert "is of another setup" in go(row, "r", code=2).stderr


def test_a_number_with_a_point_is_no_process_of_another_row(monkeypatch, tmp_path):
    rows = [METHODS[name]._replace(name=of) for name, of in (("whole", "power-1"), ("bm25", "power-1.5"))]
    monkeypatch.setitem(methods.TABLES, None, (rows, ()))
    run("--limit", 1, "--method", "power-1,power-1.5", "--output", tmp_path)
    for file in tmp_path.glob("embedded/*.jsonl"):
        assert len(read_predictions(file)) == 7


def test_a_file_that_changes_during_a_run_keeps_nothing(go, tmp_path):
    """What runs is no longer what stands there."""
    assert "mine.py has changed since the program began" in go(SEARCH("Cube"), "r", age=-9).stderr
    assert "is of another setup" in go(SEARCH("Cube"), "r", code=2).stderr


def test_the_five_variants(tmp_path):
    """They run, two on graphs of their own and three on PECAN's. Edges of late layers leave r as it is."""
    names = [row.name for row in methods.VARIANTS]
    done = run("--limit", 3, "--method", ",".join(["pecan", *names]), "--output", tmp_path)
    graphs = {}
    starts = {}
    for name in ("pecan", *names):
        rows = [*read_rows(tmp_path / "embedded" / f"{name}.jsonl")]
        assert f"\n{METHODS[name].label} " in done.stdout and len(rows) == 21
        graphs[name] = [row["graph"]["file"] for row in rows]
        starts[name] = [[step["r"] for step in row["trace"] if step["z"] is None] for row in rows]
    own = {name for name in names if graphs[name] != graphs["pecan"]}
    assert own == {"late-edges", "siblings"} and len({*sum(graphs.values(), [])}) == 9

    late, all_layers = (read_kept(tmp_path / "embedded" / graphs[name][0]) for name in ("late-edges", "pecan"))
    assert late["nodes"] == all_layers["nodes"] and late["edges"] != all_layers["edges"]
    assert starts["late-edges"] == starts["pecan"] != starts["softmax-r"]


def test_a_variant_is_planned_as_pecan_is(tmp_path):
    """The dry run counts its groups, and its label says which settings are changed."""
    planned = json.loads(run("--limit", 1, "--method", "pecan,two-nodes", "--dry-run", "--json").stdout)["embedded"]
    assert planned["runs"]["two-nodes"] == planned["runs"]["pecan"]
    done = run("--limit", 1, "--method", "two-nodes", "--without", "similarity", "--nodes", 3, "--output", tmp_path)
    assert "\ntwo nodes a check, w/o similarity, 3 nodes " in done.stdout


# --- two runs, one folder -------------------------------------------------------------------------------------------

def test_two_runs_side_by_side(tmp_path):
    """Only the questions that both have count: the same id, words, document and gold answers. The difference is that of
    a table with both; settings and arguments that differ are named."""
    run("--limit", 2, "--method", "pecan,budget", "--output", tmp_path / "a")
    run("--limit", 1, "--method", "pecan", "--patience", 2, "--output", tmp_path / "b")
    table = json.loads((tmp_path / "a" / "results-pecan,budget-limit-2.json").read_text())["data"]["embedded"]["runs"]
    pecan, budget, patience = (tmp_path / folder / "embedded" / f"{name}.jsonl" for folder, name in
                                (("a", "pecan"), ("a", "budget"), ("b", "pecan")))
    found = json.loads(run("--score", pecan, budget, "--json").stdout)
    for name in ("n", "f1", "nodes", "flops", "difference"):
        assert found[str(budget)][name] == table["budget"][name]
    assert {line.split('"')[1] for line in found["setup"] if '":' in line} == {"code", "make_search"}

    rows = [*read_rows(patience)]
    for row, name in zip(rows, ("id", "question", "document", "hash", "answers")):
        row[name] = ["other"]
    found = json.loads(run("--score", pecan, write_lines(patience, rows), "--json").stdout)
    assert found[str(patience)]["n"] == 2
    assert {'-"patience": 1,', '+"patience": 2,'} <= {*found["setup"]}
    assert "nodes" not in run("--score", pecan, write_lines(tmp_path / "c.jsonl", rows[:5])).stdout
    del rows[5]["cut"]
    assert "key 'cut' is missing" in run("--score", pecan, write_lines(tmp_path / "c.jsonl", rows[5:]), code=2).stderr


def test_a_command_overwrites_no_results_of_another(tmp_path):
    """Of other rows, documents or data."""
    data = write_lines(tmp_path / "mine.jsonl", [{"id": "d", "text": "Ann came.", "questions": [
        {"question": "Who?", "answers": ["Ann"]}]}])
    for n, options in enumerate(([], ["--method", "bm25"], ["--limit", 1], ["--dataset", data, "--method", "bm25"]), 1):
        run("--limit", 2, "--method", "whole", "--output", tmp_path / "r", *options)
        assert len([*tmp_path.glob("r/results*.json")]) == len([*tmp_path.glob("r/table*.txt")]) == n


def test_two_files_of_one_name_do_not_share_a_folder(tmp_path):
    for folder, document, code in (("a", "Ann came.", 0), ("b", "Bob came.", 2)):
        (tmp_path / folder).mkdir()
        data = write_lines(tmp_path / folder / "law.jsonl", [{"id": folder, "text": document, "questions": [
            {"question": "Who?", "answers": ["Ann"]}]}])
        done = run("--dataset", data, "--method", "whole", "--output", tmp_path / "r", code=code)
    assert "whole.jsonl: holds answers to other questions" in done.stderr


@pytest.mark.parametrize("widths, threads", [([48], 1), ([48, 4096], 3)])
def test_a_small_model_takes_one_thread(monkeypatch, widths, threads):
    """Whatever the environment says. PyTorch has 3 here."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(models, "THREADS", 3)
    taken = Mock()
    monkeypatch.setattr(torch, "set_num_threads", taken)
    models.choose_threads(*(SimpleNamespace(width=width) for width in widths))
    assert taken.mock_calls == [call(threads)]
