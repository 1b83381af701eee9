"""The embedded model on its own documents, which no training text states."""
import pytest

from data import EMBEDDED
from encoders.token_mean import TokenMean
from evaluation.datasets import Dataset
from evaluation.metrics import f1
from pecan import Pecan


@pytest.mark.slow
def test_the_shipped_model_does_its_job(tiny, settings):
    """On five held-out documents at least 65 % of the answers are right (35 questions scatter by 8 points).

    tiny/README.md has the figures for all documents.
    """
    method = Pecan(tiny, TokenMean(tiny), settings)
    right = []
    for document in Dataset(EMBEDDED, 5).documents:
        prepared = method.prepare(document)
        right += [f1(method.answer(prepared, question.text).text, question.answers) for question in document.questions]
    assert sum(right) >= 0.65 * len(right)
