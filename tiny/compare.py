"""PECAN and lexical baselines on this world, each baseline at its best settings.

    python -m tiny.compare trained --limit 10
    python -m tiny.compare trained tiny/larger.jsonl

It prints one JSON object. The model reads what each baseline finds, in the same window. A baseline ranks the chunks of
a document or all nodes of PECAN's graph. It does so once, or twice: the second time with what the first found added to
the question. How much it reads is chosen on documents of another seed. The whole document is read too, cut to the
window and uncut.
"""
import json
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from core.command import make_parser, parse_options, user_errors

from support.heads import FILE, heads_of_checkpoints

from baselines.bm25 import Okapi, words
from baselines.common import answer_from_best
from baselines.whole import Whole
from core.settings import WHOLE_DOCUMENT, Settings, resolve
from data import EMBEDDED, Document, Method, read_jsonl
from evaluation.metrics import f1
from llama import Llama
from pecan import Graph, Pecan, build
from study.figures import figure
from support.sbert import similarities
from support.token_mean import TokenMean
from tiny.facts import facts_in
from tiny.world import KINDS, other_documents

READ = (2, 3, 5, 8, 11)           # how many texts a baseline may read
FIRST = (1, 2, 3)                 # of these, how many the first of two questions finds


def settings_of_baselines() -> list[tuple]:
    """(what is ranked, how, texts read, found first) of every baseline; found first is 0 if it asks once."""
    chosen = []
    for texts in ("chunks", "nodes"):
        for read in READ:
            chosen += [(texts, "BM25", read, 0), (texts, "similarity", read, 0)]
            chosen += [(texts, "BM25 twice", read, first) for first in FIRST if first < read]
    return chosen


def rank(scores: list[float]) -> list[int]:
    """Places by falling score; of equal ones the earlier."""
    return sorted(range(len(scores)), key=lambda i: -scores[i])


class Ranker:
    """Ranks texts for a question."""

    def __init__(self, encoder: TokenMean, texts: list[str]):
        self.encoder = encoder
        self.texts = texts
        self.okapi = Okapi([words(text) for text in texts])
        self.vectors = encoder.encode(texts)

    def order(self, question: str, how: str, read: int, first: int) -> list[int]:
        """The places of the texts to read, the best first."""
        if how == "similarity":
            return rank(similarities(self.vectors, self.encoder.encode([question])[0]).tolist())[:read]
        order = rank(self.okapi.scores(words(question)))
        if how == "BM25":
            return order[:read]

        found = order[:first]
        query = " ".join([question, *(self.texts[i] for i in found)])
        again = rank(self.okapi.scores(words(query)))
        return found + [i for i in again if i not in found][:read - first]


def compare(model: Llama, documents: list[Document], graphs: list[Graph], settings: Settings,
            chosen: list[tuple], others: dict[tuple, Method]) -> dict[tuple, list[dict]]:
    """A row (document, F1, kind, all needed facts read, FLOPs) for each question, by settings of a baseline.

    `others` are compared too, by their names.
    """
    encoder = TokenMean(model)
    rows = {}

    for document, graph in zip(documents, graphs, strict=True):
        texts = [node.text for node in graph.nodes]
        chunks = [node.text for node in graph.nodes if node.level == 1]
        rankers = {"chunks": Ranker(encoder, chunks), "nodes": Ranker(encoder, texts)}
        prepared = {key: method.prepare(document) for key, method in others.items()}

        for question in document.questions:
            needed = facts_in(question.extra["facts"])

            def enter(key, answer, read):
                rows.setdefault(key, []).append({
                    "document": document.id, "f1": f1(answer.text, question.answers), "kind": question.extra["kind"],
                    "complete": needed <= facts_in(read), "flops": answer.flops})

            for what, how, read, first in chosen:
                ranker = rankers[what]
                order = ranker.order(question.text, how, read, first)
                answer = answer_from_best(model, question.text, ranker.texts, order, settings)
                enter((what, how, read, first), answer, [ranker.texts[i] for i in answer.nodes])
            for key, method in others.items():
                answer = method.answer(prepared[key], question.text)
                enter(key, answer, [prepared[key].texts[i] for i in answer.nodes] or document.passages)
    return rows


def other_methods(model: Llama, settings: Settings) -> dict[tuple, Method]:
    """PECAN, with the heads that are written next to the checkpoint too, and the whole document, cut and uncut."""
    encoder = TokenMean(model)
    uncut = Settings(**vars(settings) | {"window": WHOLE_DOCUMENT})
    methods = {("PECAN",): Pecan(model, encoder, settings)}
    if (model.folder / FILE).exists():
        heads = heads_of_checkpoints(model.folder, model.folder)
        methods["PECAN, chosen heads",] = Pecan(model, encoder, replace(settings, **heads))
    return methods | {("whole document, cut",): Whole(model, settings), ("whole document, uncut",): Whole(model, uncut)}


def summary(rows: list[dict]) -> dict[str, float]:
    """Means of the rows of one method: F1 in points, all and by kind, needed facts read in %, GFLOPs a question."""
    def mean(values):
        return round(sum(values) / len(values), 2) if values else None

    by_kind = {kind: mean([100 * row["f1"] for row in rows if row["kind"] == kind]) for kind in KINDS}
    return {"F1": mean([100 * row["f1"] for row in rows]), **by_kind,
            "needed facts read": mean([100 * row["complete"] for row in rows]),
            "GFLOPs": mean([row["flops"] / 1e9 for row in rows])}


def over(rows: list[dict], others: list[dict]) -> list[float]:
    """The mean paired difference of F1 in points, and its 95 % bootstrap interval over documents."""
    differences = defaultdict(list)
    for row, other in zip(rows, others, strict=True):
        differences[row["document"]].append(100 * (row["f1"] - other["f1"]))
    found = figure(list(differences.values()))
    return [round(value, 1) for value in (found.value, found.low, found.high)]


def best(rows: dict[tuple, list[dict]]) -> list[tuple]:
    """For each way to rank, the settings with the highest F1."""
    found = {}
    for key, of in rows.items():
        value = sum(row["f1"] for row in of)
        if key[:2] not in found or value > found[key[:2]][0]:
            found[key[:2]] = value, key
    return [key for _, key in found.values()]


def main(argv=None):
    parser = make_parser("python -m tiny.compare", __doc__)
    parser.add_argument("model", type=Path, help="checkpoint folder")
    parser.add_argument("dataset", nargs="?", default=EMBEDDED, help="(default: %(default)s)")
    parser.add_argument("--limit", type=int, help="only the first LIMIT documents")
    args = parse_options(parser, argv)
    model = Llama.load(args.model)
    settings = resolve(model.folder, model.config.max_length)

    tuning = other_documents()[:args.limit]
    graphs = [build(model, document, settings) for document in tuning]
    tuned = compare(model, tuning, graphs, settings, settings_of_baselines(), {})
    chosen = best(tuned)

    documents = read_jsonl(args.dataset, args.limit)
    graphs = [build(model, document, settings) for document in documents]
    rows = compare(model, documents, graphs, settings, chosen, other_methods(model, settings))
    rows = {" ".join(map(str, key)): of for key, of in rows.items()}
    result = {"tuning": {" ".join(map(str, key)): summary(of)["F1"] for key, of in tuned.items()},
              "scores": {key: summary(of) for key, of in rows.items()}}
    for ours in rows:
        if ours.startswith("PECAN"):
            result[f"{ours} over"] = {key: over(rows[ours], of) for key, of in rows.items() if key != ours}
    print(json.dumps(result, indent=1, allow_nan=False))


if __name__ == "__main__":
    sys.exit(user_errors(main))
