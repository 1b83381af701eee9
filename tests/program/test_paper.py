"""The paper's figures agree with each other, so a slip in paper.py would show."""
import re

import pytest

import pecan
from core.settings import PAPER, PASS, RESERVE, WHOLE_DOCUMENT, Settings
from evaluation.paper import (
    CUT,
    DATASETS,
    FIXED_NODES,
    QUESTIONS,
    SYSTEMS,
    TABLE1,
    TABLE2,
    TABLE3,
    TABLE_A3,
    TABLE_A4,
    TOP_X,
)


@pytest.mark.parametrize("dataset", DATASETS)
def test_ratios_are_those_of_the_flops(dataset):
    """They agree as far as rounding both FLOPs to a tenth of a TFLOP allows. ROUGE-L is close to F1."""
    base = TABLE1["PECAN"][dataset].tflops
    for method, row in TABLE1.items():
        tflops, ratio = row[dataset].tflops, row[dataset].ratio
        least = (tflops - .05) / (base + .05) - .006
        most = (tflops + .05) / (base - .05) + .006
        assert least <= ratio <= most, f"{method}: {tflops} / {base} is not {ratio}"
        assert -.11 <= row[dataset].f1 - row[dataset].rouge_l < 2.3


@pytest.mark.parametrize("dataset", DATASETS)
def test_tables_repeat_each_other(dataset):
    pecan = TABLE1["PECAN"][dataset]
    assert TABLE2["Llama-3.1-8B + Llama-3.1-8B"][dataset] == TABLE3["PECAN"][dataset].f1 == pecan.f1
    assert abs(TABLE3["PECAN"][dataset].rouge_l - pecan.rouge_l) <= .11
    assert all(abs(row[dataset].f1 - row[dataset].rouge_l) < 2 for row in TABLE3.values())
    assert all(row[dataset] <= pecan.f1 for row in TABLE2.values())
    assert TABLE_A4["PECAN Graph Search"][dataset] == pecan.tflops
    assert abs(TABLE_A4["Llama-3.1-8B"][dataset] - TABLE1["whole document"][dataset].tflops) <= .11
    for queries in (1, 2, 4, 8):
        both = pecan.tflops + TABLE_A4["PECAN Attention Graph Construction"][dataset] / queries
        assert TABLE_A4[f"{queries} queries per document"][dataset] == pytest.approx(both, abs=.11)


def test_the_glossary_gives_the_values_of_the_settings():
    """The glossary is at the head of pecan.py, and gives t_p of Qasper and MuSiQue too."""
    lines = re.findall(r"(?m)^    (t_p|t_n|PASS|RESERVE) +(.*?)(?:\(|$)", pecan.__doc__)
    t_p = [PAPER[name]["confidence"] for name in ("Qasper", "MuSiQue")]
    assert {name: [float(number) for number in re.findall(r"\.?\d+", words)] for name, words in lines} == {
        "t_p": [Settings().confidence, *t_p], "t_n": [Settings().patience], "PASS": [PASS], "RESERVE": [RESERVE]}


def test_the_sums_of_all_figures():
    """The sums over a data set, once more: a slip in Tables 1, 2 or 3 changes one of them."""
    def total(row):
        return sum(filter(None, row[:3])) if isinstance(row, tuple) else row
    assert [[round(sum(total(row[name]) for row in table.values()), 1) for name in DATASETS]
            for table in (TABLE1, TABLE2, TABLE3)] == [
        [7160.9, 2135.5, 1509.1, 1499.7], [249.0, 217.6, 180.3, 128.9], [553.5, 451.1, 416.5, 330.2]]


def test_systems_of_other_papers():
    """The numbers of each system: scores, then rows of LongBench. GraphReader's are F1 and exact match."""
    assert {name: {data: [float(number) for number in re.findall(r"[.\d]{2,}", " ".join(figures[:2]))]
                   for data, figures in SYSTEMS[name].items()} for name in ("graphreader", "mkrag", "jerr")} == {
        "graphreader": {"HotpotQA": [70, 55, 300], "MuSiQue": [47.4, 38, 200], "NarrativeQA": [29.8, 15.5, 200],
                        "2WikiMultihopQA": [70.1, 59.3, 300], "QuALITY": [14.3, 4.3]},
        "mkrag": {"multifieldqa_en": [63.3]},
        "jerr": {"MuSiQue": [50.5, 200], "NarrativeQA": [26.9, 200], "QuALITY": [86.39]}}


def test_what_is_printed_once():
    """Figures that the paper does not repeat were read a second time, and are written here again.

    Table A3; t_p of Appendix E; Top-X of Table 1's caption; GARLIC 4.4; LongBench's lengths of answers; sections 3.1,
    3.2.1, 4, 4.1 and 4.3.
    """
    assert TABLE_A3 == {"NarrativeQA": (79_457, 5_077, 467_867), "Qasper": (4_866, 918, 29_408),
                        "HotpotQA": (1_318, 70, 3_575), "MuSiQue": (2_267, 909, 4_432)}
    assert tuple(PAPER) == tuple(TOP_X) == tuple(FIXED_NODES) == tuple(TABLE_A3) == DATASETS
    assert [s["confidence"] for s in PAPER.values()] == [.5, .98, .5, .55]
    assert list(FIXED_NODES.values()) == [48, 36, 17, 30]
    assert list(TOP_X.values()) == [(7, 20), (14, 42), (4, 12), (7, 22)]
    assert [s["answer_tokens"] for s in PAPER.values()] == [128, 128, 32, 32]

    s = Settings()
    assert (s.chunk, s.window, s.patience, s.confidence, s.answer_tokens) == (300, 8192, 1, .5, 128)
    assert s.attention and s.similarity and not s.tree and s.fixed_nodes is None
    assert (WHOLE_DOCUMENT, CUT, QUESTIONS) == (100_000, {"NarrativeQA": 22.3}, {"Qasper": 1_451, "HotpotQA": 7_405})
