"""The page docs/search.html: one question, searched in three ways by the embedded model. test_images.py writes it."""
from dataclasses import asdict, replace

from core.settings import resolve
from data import EMBEDDED, read_text
from encoders.token_mean import TokenMean
from evaluation.answers import row_of
from llama import Llama
from pecan import Pecan
from view.heat import tokens_written
from view.page import page

STORY = EMBEDDED.parent / "story.txt"
QUESTION = "When did Selma move?"

ABOUT = (
    "A Llama of 0.9 million parameters has read a generated story of 800 words, tiny/story.txt. Three searches: as "
    "the paper says; with a t_p for which the model must be surer; without attention. README.md has the method.")


def embedded_method() -> Pecan:
    """The method with the embedded model, on the CPU: there it gives the same numbers everywhere."""
    model = Llama.load(EMBEDDED.parent, "cpu")
    return Pecan(model, TokenMean(model), resolve(model.folder, model.config.max_length))


def searched() -> str:
    method = embedded_method()
    prepared = method.prepare(read_text(STORY))
    graph = prepared.graph

    # a(x, j) × 100,000 in whole numbers: four digits, as many as the page shows
    heat = {}
    for i, node in enumerate(graph.nodes):
        if node.level > 1 and i not in heat:
            for point, tokens in tokens_written(method.model, graph, i, method.settings).items():
                heat[point] = {"tokens": [token for token, _ in tokens],
                               "rows": [[round(1e5 * a) for a in row] for _, row in tokens]}

    rows = []
    settings = method.settings
    for changed in ({}, {"confidence": .9999}, {"attention": False}):
        method.settings = replace(settings, **changed)
        answer = method.answer(prepared, QUESTION)
        rows.append(row_of("", QUESTION, answer, asdict(graph) | {"hash": "", "heat": heat}))
    return page(rows, ABOUT, len(rows[0]["trace"]))
