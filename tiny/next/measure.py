"""Score a model of this world against the truth: its summaries, edges, verdicts and answers, and what z is worth.

    python -m tiny.next.measure trained --limit 10
    python -m tiny.next.measure trained tiny/next/larger.jsonl --choices

It prints one JSON object. In the synthetic world it is known which sentence states which fact, so more than answers can
be scored: whether a verdict is right (are all needed facts stated by the visited nodes?), whether a bullet is true,
whether edges lead to the sources. With --choices the next node is also chosen in other ways, at random among them.
"""
import json
import random
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from support.command import make_parser, parse_options, user_errors

import torch

from data import Document, Question, read_jsonl
from evaluation.metrics import f1
from llama import Llama
from pecan import Graph, Search, edge_matrix
from pecan import build as build_graph
from support.method import Answer
from support.sbert import TokenMean, similarities
from support.settings import Settings, resolve
from tiny.next.facts import facts_in, posts_in

HERE = Path(__file__).parent
KEPT = {2: ("friend", "pet", "home", "town", "job", "road"), 3: ("town", "job")}       # what each level should state


# --- graphs ---------------------------------------------------------------------------------------------------------

def score_graph(scores, document: Document, graph: Graph):
    """Add the scores of one graph: its bullets, its edges, and what its summaries kept."""
    posts = posts_in(document.passages)
    truth = facts_in(document.passages)
    stated = [facts_in([node.text], posts) for node in graph.nodes]
    E = graph.E.to_dense()

    for i, node in enumerate(graph.nodes):
        if node.level == 1:
            continue

        # Is the bullet true? One that is not of a fact's form is not.
        past = {fact for fact in truth if fact.relation == "past"}
        scores["bullets that are true"].append(bool(stated[i]) and stated[i] <= truth - past)

        # How much of the edges' weight is on nodes that state a fact of this one?
        window = E[i].nonzero().flatten().tolist()
        sources = [j for j in window if stated[i] & stated[j]]
        scores[f"edge mass on true sources, level {node.level}"].append(E[i, sources].sum().item())
        scores[f"the same for uniform edges, level {node.level}"].append(len(sources) / len(window))

    # How many of the facts that a summary should keep does each level state?
    for level, relations in KEPT.items():
        kept = {fact for fact in truth if fact.relation in relations}
        of_level = set().union(*(facts for facts, node in zip(stated, graph.nodes) if node.level == level))
        scores[f"facts to be kept that level {level} states"].append(len(kept & of_level) / len(kept))
    scores["levels"].append(graph.nodes[-1].level)


# --- searches -------------------------------------------------------------------------------------------------------

class UniformR(Search):
    """A search whose r is 1 for every visited node."""

    def next(self) -> bool:
        self.r[self.visited] = 1.0
        return super().next()


def uniform_edges(graph: Graph) -> Graph:
    """The graph with equal weights on the edges of every node."""
    E = graph.E.coalesce()
    degrees = torch.bincount(E.indices()[0], minlength=len(graph.nodes))
    edges = [(i, j, 1 / degrees[i].item()) for i, j in E.indices().T.tolist()]
    return replace(graph, E=edge_matrix(edges, len(graph.nodes)))


def searches(settings: Settings, choices: bool) -> dict:
    """name -> (Search class, whether edges are uniform, settings, whether c is random)."""
    by_z = replace(settings, similarity=False)
    by_c = replace(settings, attention=False)
    ways = {"PECAN": (Search, False, settings, False)}
    if choices:
        ways |= {"z": (Search, False, by_z, False), "z, r uniform": (UniformR, False, by_z, False),
                 "z, E uniform": (Search, True, by_z, False), "random": (Search, False, by_c, True),
                 "c": (Search, False, by_c, False)}
    return ways


def score_search(scores, question: Question, graph: Graph, answer: Answer) -> float:
    """Add the scores of one search; returns its F1."""
    needed = facts_in(question.extra["facts"])
    read = []                                               # the texts of the nodes visited so far
    for step in answer.trace:
        read.append(graph.nodes[step.node].text)
        if step.verdict:
            truth = "Yes" if needed <= facts_in(read) else "No"
            scores[f"verdicts that are right where the truth is {truth}"].append(step.verdict == truth)

    complete = needed <= facts_in(read)
    value = f1(answer.text, question.answers)
    scores["F1"].append(value)
    scores[f"F1, {question.extra['kind']}"].append(value)
    scores["nodes read"].append(len(answer.nodes))
    scores["all needed facts read"].append(complete)
    if complete:
        scores["F1 if all needed facts were read"].append(value)
    return value


def interval(differences: list[float], seed: int = 0) -> list[float]:
    """95 % bootstrap interval of the mean of paired differences, in points."""
    values = torch.tensor(differences, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    means = values[torch.randint(len(values), (2000, len(values)), generator=generator)].mean(1)
    return [round(100 * means.quantile(q).item(), 1) for q in (0.025, 0.975)]


def measure(model: Llama, documents: list[Document], settings: Settings, choices: bool = False,
            graphs: list[Graph] | None = None) -> dict:
    """Mean scores by name: of the graphs, and of each way to search them."""
    encoder = TokenMean(model)
    graph_scores = defaultdict(list)
    scores = defaultdict(lambda: defaultdict(list))
    values = defaultdict(list)                              # F1 of each question
    rng = random.Random(0)

    for n, document in enumerate(documents):
        graph = graphs[n] if graphs else build_graph(model, document, settings)
        score_graph(graph_scores, document, graph)
        vectors = encoder.encode([node.text for node in graph.nodes])
        uniform = uniform_edges(graph)

        for question in document.questions:
            c = similarities(vectors, encoder.encode([question.text])[0])
            for name, (kind, equal, chosen, at_random) in searches(settings, choices).items():
                chance = torch.tensor([rng.random() for _ in graph.nodes])
                search = kind(model, uniform if equal else graph, question.text, chance if at_random else c, chosen)
                answer = search.answer()
                values[name].append(score_search(scores[name], question, graph, answer))

    result = {"graphs": means(graph_scores)} | {name: means(of) for name, of in scores.items()}
    for name in ("random", "z, r uniform", "z, E uniform") if choices else ():
        result[f"z over {name}"] = interval([a - b for a, b in zip(values["z"], values[name])])
    return result


def means(scores) -> dict[str, float]:
    """The mean of each list, rounded."""
    return {name: round(sum(values) / len(values), 4) for name, values in sorted(scores.items())}


def main(argv=None):
    parser = make_parser("python -m tiny.next.measure", __doc__)
    parser.add_argument("model", type=Path, help="checkpoint folder")
    parser.add_argument("dataset", nargs="?", default=HERE / "test.jsonl", help="(default: %(default)s)")
    parser.add_argument("--limit", type=int, help="only the first LIMIT documents")
    parser.add_argument("--choices", action="store_true", help="also choose the next node in other ways")
    args = parse_options(parser, argv)

    model = Llama.load(args.model)
    settings = resolve(model.folder, model.config.max_length)
    print(json.dumps(measure(model, read_jsonl(args.dataset, args.limit), settings, args.choices), indent=1))


if __name__ == "__main__":
    sys.exit(user_errors(main))
