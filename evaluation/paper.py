"""The published figures of Tables 1, 2, 3, A3 and A4, which are printed next to the measured ones.

Figures 3 and 4 are pictures without numbers. Scores are percentages, FLOPs are TFLOPs. The model is Llama-3.1-8B unless
another is named.
"""
from typing import NamedTuple

DATASETS = ("NarrativeQA", "Qasper", "HotpotQA", "MuSiQue")
OTHER_DATASETS = ("2WikiMultihopQA", "QuALITY", "multifieldqa_en")         # data sets of the other papers' systems


# Nodes read without dynamic progress control (GARLIC 4.4).
FIXED_NODES = {"NarrativeQA": 48, "Qasper": 36, "HotpotQA": 17, "MuSiQue": 30}


class Figures(NamedTuple):
    """The figures of one method on one data set; `ratio` is its TFLOPs / PECAN's TFLOPs."""
    f1: float
    rouge_l: float | None = None
    tflops: float | None = None
    ratio: float | None = None


def table(text: str, kind=float) -> dict:
    """Name -> data set -> figure, from lines "name | NarrativeQA | Qasper | HotpotQA | MuSiQue".

    A cell holds the arguments of `kind`, separated by blanks.
    """
    rows = {}
    for line in text.strip().splitlines():
        name, *cells = line.split("|")
        rows[name.strip()] = {dataset: kind(*map(float, cell.split()))
                              for dataset, cell in zip(DATASETS, cells, strict=True)}
    return rows


# F1, ROUGE-L, TFLOPs of a query, ratio. The paper labels the whole document "Llama-3.1-8B". The last row is from
# GARLIC's Table 1; its figures equal PECAN's.
TABLE1 = table("""
BM25 Top-5       | 52.7 51.8   26.7   0.86 | 41.0 39.6  26.3 0.39 | 40.8 40.9 22.9 1.43 | 28.7 28.7  26.3 0.85
SBERT Top-5      | 36.5 35.8   26.8   0.86 | 44.4 42.4  26.0 0.39 | 40.9 40.8 22.6 1.41 | 30.7 30.8  26.1 0.84
Dragon Top-5     | 53.8 52.9   26.9   0.87 | 43.0 41.4  24.5 0.36 | 39.7 39.6 23.3 1.46 | 28.5 28.4  28.1 0.91
MeMWalker        | 11.2  9.8  353.8  11.41 | 39.0 36.8 123.9 1.85 | 39.7 38.9 93.4 5.84 | 24.0 23.5 175.7 5.69
RAPTOR-TT        | 40.6 39.8   20.3   0.65 | 42.1 40.1  17.7 0.26 | 38.6 38.5  8.4 0.53 | 29.3 29.3  12.6 0.41
RAPTOR-CT Top-5  | 48.6 47.8   17.9   0.58 | 44.6 42.7  16.6 0.25 | 40.9 40.4 15.3 0.96 | 31.5 31.5  16.1 0.52
LongLLMLingua    | 50.5 49.5 1789.4  57.72 | 43.2 43.0 159.7 2.39 | 43.4 43.5 43.6 2.73 | 34.5 34.4  78.9 2.55
BM25 Top-X       | 53.7 52.9   37.5   1.21 | 47.0 45.1  69.3 1.04 | 40.7 40.8 20.0 1.25 | 31.8 31.7  35.6 1.15
SBERT Top-X      | 39.5 38.8   37.5   1.21 | 46.6 44.5  68.9 1.03 | 40.8 40.7 19.6 1.23 | 32.5 32.5  35.6 1.15
Dragon Top-X     | 55.1 54.2   37.5   1.21 | 46.9 44.8  67.0 1.00 | 39.2 39.1 20.6 1.29 | 30.2 30.1  38.0 1.23
RAPTOR-CT Top-X  | 52.0 51.2   35.1   1.13 | 46.9 44.7  67.3 1.01 | 40.7 40.7 17.9 1.12 | 35.4 35.2  32.2 1.04
whole document   | 53.7 52.6 3361.9 108.45 | 49.4 47.6  92.5 1.38 | 41.3 41.2 23.7 1.48 | 35.8 35.7  40.6 1.31
PECAN            | 61.1 60.2   31.0   1.00 | 49.7 47.9  66.9 1.00 | 43.5 43.5 16.0 1.00 | 36.9 36.8  30.9 1.00
GARLIC           | 61.1 60.2   31.0   1.00 | 49.7 47.9  66.9 1.00 | 43.5 43.5 16.0 1.00 | 36.9 36.8  30.9 1.00
""", Figures)

# What the Top-X methods retrieve (caption of Table 1): chunks for BM25, SBERT and Dragon, nodes for RAPTOR-CT.
TOP_X = table("""
chunks |  7 | 14 |  4 |  7
nodes  | 20 | 42 | 12 | 22
""", int)

# F1. The left model builds the graph, the right one searches it.
TABLE2 = table("""
Llama-3.1-8B + Llama-3.1-8B | 61.1 | 49.7 | 43.5 | 36.9
Llama-3.2-3B + Llama-3.2-3B | 56.7 | 47.6 | 40.0 | 29.8
Llama-3.1-8B + Llama-3.2-3B | 60.6 | 49.6 | 40.8 | 31.3
Llama-3.2-1B + Llama-3.2-1B | 28.8 | 33.5 | 27.5 | 15.3
Llama-3.1-8B + Llama-3.2-1B | 41.8 | 37.2 | 28.5 | 15.6
""", Figures)

# F1, ROUGE-L. (In the paper itself, PECAN's ROUGE-L on HotpotQA and MuSiQue differs from Table 1 by 0.1.)
TABLE3 = table("""
PECAN                          | 61.1 60.2 | 49.7 47.9 | 43.5 43.4 | 36.9 36.9
w/o Attention-Guided Retrieval | 53.0 52.4 | 46.9 45.5 | 41.9 41.7 | 33.1 32.9
w/o Dynamic Progress Control   | 53.5 52.9 | 37.7 36.4 | 39.4 39.3 | 27.0 27.1
w/o IP-based Graph             | 51.4 50.8 | 47.3 45.5 | 40.9 40.7 | 32.3 32.3
w/o Embedding Similarity       | 59.5 58.7 | 48.0 46.2 | 42.9 42.8 | 35.9 35.8
""", Figures)

# tokens of a document: average, least, most
TABLE_A3 = {"NarrativeQA": (79457, 5077, 467867), "Qasper": (4866, 918, 29408), "HotpotQA": (1318, 70, 3575),
            "MuSiQue": (2267, 909, 4432)}

QUESTIONS = {"Qasper": 1451, "HotpotQA": 7405}                    # section 4.3
CUT = {"NarrativeQA": 22.3}                    # percent of the documents longer than the whole document's window (4.1)

# TFLOPs. (23.6 on HotpotQA is 23.7 in Table 1.)
TABLE_A4 = table("""
Llama-3.1-8B                       | 3361.9 |  92.5 | 23.6 | 40.6
PECAN Attention Graph Construction | 2042.8 | 136.6 | 40.2 | 66.7
PECAN Graph Search                 |   31.0 |  66.9 | 16.0 | 30.9
1 queries per document             | 2073.8 | 203.5 | 56.2 | 97.6
2 queries per document             | 1052.4 | 135.2 | 36.1 | 64.3
4 queries per document             |  541.7 | 101.1 | 26.1 | 47.6
8 queries per document             |  286.4 |  84.0 | 21.0 | 39.2
""")

# Whole systems: label -> data set -> (figures, data, model). PECAN and GARLIC are from Table 1, GraphReader from its
# Tables 2 and 7, JERR from its main results. Most of MKRAG's data sets are Chinese.
PECAN = {name: (f"F1 {row.f1}", "official file", "Llama-3.1-8B") for name, row in TABLE1["PECAN"].items()}
GPT_4 = "GPT-4-128k, window 4k"
SYSTEMS = {
    "PECAN": PECAN,
    "GARLIC": PECAN,
    "GraphReader": {"HotpotQA": ("F1 70.0, EM 55.0", "LongBench-E, 300 rows", GPT_4),
                    "MuSiQue": ("F1 47.4, EM 38.0", "LongBench, 200 rows", GPT_4),
                    "NarrativeQA": ("F1 29.8, EM 15.5", "LongBench, 200 rows", GPT_4),
                    "2WikiMultihopQA": ("F1 70.1, EM 59.3", "LongBench-E, 300 rows", GPT_4),
                    "QuALITY": ("F1 14.3, EM 4.3", "without options", GPT_4)},
    "MKRAG (reconstruction)": {"multifieldqa_en": ("F1 63.3", "LongBench", "Ernie-3.5-8k")},
    "JERR (reconstruction)": {"MuSiQue": ("F1 50.5", "LongBench, 200 rows", "qwen-plus-128k"),
                              "NarrativeQA": ("F1 26.9", "LongBench, 200 rows", "qwen-plus-128k"),
                              "QuALITY": ("accuracy 86.39", "official dev set", "qwen-plus-128k")},
}
