"""The paper's figures agree with each other, so a slip in paper.py would show."""
import re

import pytest

import pecan
from core.settings import PAPER, PASS, RESERVE, WHOLE_DOCUMENT, Settings
from evaluation import paper
from evaluation.paper import DATASETS, TABLE1, TABLE2, TABLE3, TABLE_A4


@pytest.mark.parametrize("dataset", DATASETS)
def test_ratios_are_those_of_the_flops(dataset):
    """They agree as far as rounding both FLOPs to a tenth of a TFLOP allows. ROUGE-L is close to F1."""
    base = TABLE1["PECAN"][dataset].tflops
    for method, row in TABLE1.items():
        f1, rouge_l, tflops, ratio = row[dataset]
        assert (tflops - .05) / (base + .05) - .006 <= ratio <= (tflops + .05) / (base - .05) + .006, method
        assert -.11 <= f1 - rouge_l < 2.3, method


@pytest.mark.parametrize("dataset", DATASETS)
def test_tables_repeat_each_other(dataset):
    f1, _, search, _ = TABLE1["PECAN"][dataset]
    assert TABLE2["Llama-3.1-8B + Llama-3.1-8B"][dataset].f1 == TABLE3["PECAN"][dataset].f1 == f1
    assert all(abs(row[dataset].f1 - row[dataset].rouge_l) < 2 for row in TABLE3.values())
    assert all(row[dataset].f1 <= f1 for row in TABLE2.values())
    whole, built, *searched = (row[dataset] for row in TABLE_A4.values())
    assert whole == pytest.approx(TABLE1["whole document"][dataset].tflops, abs=.11)
    assert searched == pytest.approx([search + built * share for share in (0, 1, 1 / 2, 1 / 4, 1 / 8)], abs=.11)


def test_the_glossary_gives_the_values_of_the_settings():
    """The glossary is at the head of pecan.py: t_p, that of Qasper and of MuSiQue, t_n, PASS and RESERVE."""
    words = re.findall(r"(?m)^    (?:t_p|t_n|PASS|RESERVE) +(.*?)(?:\(|$)", pecan.__doc__)
    assert [float(number) for number in re.findall(r"\.?\d+", str(words))] == [
        Settings().confidence, PAPER["Qasper"]["confidence"], PAPER["MuSiQue"]["confidence"], Settings().patience,
        PASS, RESERVE]


def test_what_is_printed_once():
    """Figures that the paper does not repeat were read a second time, and are written here again.

    Table A3; t_p of Appendix E; Top-X of Table 1's caption; GARLIC 4.4; LongBench's lengths of answers; sections 3.1,
    3.2.1, 4, 4.1 and 4.3. Of other systems F1 and exact match or accuracy, and the number of LongBench's rows.
    """
    def numbers(value):
        return " ".join(re.findall(r"(?<!F)\d[.\d]*", str(value)))

    assert tuple(PAPER) == tuple(paper.FIXED_NODES) == tuple(paper.TABLE_A3) == DATASETS
    assert numbers(paper.TABLE_A3) == "79457 5077 467867 4866 918 29408 1318 70 3575 2267 909 4432"
    assert numbers(PAPER) == "0.5 128 0.98 128 0.5 32 0.55 32"
    assert numbers(paper.FIXED_NODES) == "48 36 17 30"
    assert numbers(paper.TOP_X) == "7 14 4 7 20 42 12 22"
    assert numbers((WHOLE_DOCUMENT, paper.CUT, paper.QUESTIONS)) == "100000 22.3 1451 7405"
    assert Settings() == Settings(chunk=300, window=8192, patience=1, confidence=.5, answer_tokens=128, attention=True,
                                  similarity=True, tree=False, fixed_nodes=None)
    others = "GraphReader", "MKRAG (reconstruction)", "JERR (reconstruction)"
    assert numbers([row[:2] for name in others for row in paper.SYSTEMS[name].values()]) == (
        "70.0 55.0 300 47.4 38.0 200 29.8 15.5 200 70.1 59.3 300 14.3 4.3 63.3 50.5 200 26.9 200 86.39")
