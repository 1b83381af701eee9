"""Score the embedded model against the world's truth, from what eval.py left on disk.

    python eval.py
    python -m tiny.measure

In the synthetic world it is known which sentence states which fact, so more than answers can be scored: whether a
verdict is right (are all needed facts in the visited nodes?), whether a bullet is true, whether edges lead to the
sources.
"""
import json
import sys
from collections import defaultdict
from pathlib import Path

from support.command import make_parser, parse_options, user_errors

from data import EMBEDDED, Question, read_jsonl
from pecan import Graph
from support.files import InputError, parse_json
from tiny.world import KEPT, facts_in


def score_search(scores, row: dict, question: Question, graph: Graph):
    """Add the scores of one search; `row` is its line of the predictions."""
    needed = facts_in(" ".join(question.extra["evidence"]))
    seen = set()                                            # facts of the nodes visited so far
    for step in row["trace"]:
        seen |= facts_in(graph.nodes[step["node"]].text)
        if step["verdict"]:
            truth = "Yes" if needed <= seen else "No"
            right = step["verdict"] == truth
            scores["verdicts that are right"].append(right)
            scores[f"verdicts that are right where the truth is {truth}"].append(right)

    kind = question.extra["kind"]
    scores[f"F1, {kind}"].append(row["f1"])
    scores[f"nodes read, {kind}"].append(row["nodes"])
    scores["searches that end with all needed facts read"].append(needed <= seen)


def score_graph(scores, graph: Graph):
    """Add the scores of one graph: its bullets, its edges, and what its summaries kept."""
    stated = [facts_in(node.text) for node in graph.nodes]
    facts_of_level = defaultdict(set)
    for node, facts in zip(graph.nodes, stated, strict=True):
        facts_of_level[node.level] |= facts
    truth = facts_of_level[1]
    E = graph.E.to_dense()

    for i, node in enumerate(graph.nodes):
        if node.level == 1:
            continue

        # Are the statements of the bullet true? One that is not of a fact's form is not.
        for statement in node.text.split(" and "):
            scores["statements of bullets that are true"].append(bool(facts_in(statement) & truth))

        # How much of the edges' weight is on nodes that state a fact of this one?
        window = E[i].nonzero().flatten().tolist()
        sources = [j for j in window if stated[i] & stated[j]]
        scores[f"edge mass on the true sources, level {node.level}"].append(E[i, sources].sum().item())
        scores[f"the same for uniform edges, level {node.level}"].append(len(sources) / len(window))

    # How many of the facts that a summary should keep does each level state?
    for level, verb in ((2, "was"), (3, "is")):
        kept = {fact for fact in truth if fact.relation in KEPT[verb]}
        scores[f"facts to be kept that level {level} states"].append(len(kept & facts_of_level[level]) / len(kept))


def measure(results: Path, dataset=EMBEDDED) -> dict[str, float]:
    """Mean scores by name, all but "nodes read" in 0..1.

    Raises InputError if there are no answers of eval.py in `results`.
    """
    questions = {question.id: question for document in read_jsonl(dataset) for question in document.questions}
    path = results / "embedded" / "pecan.jsonl"
    if not path.exists():
        raise InputError(f"{path}: is not there; run eval.py first")
    rows = [parse_json(line, f"{path}, line {n}", dict) for n, line in enumerate(path.read_text().split("\n")[:-1], 1)]
    graphs = {row["graph"]: Graph.load(results / "graphs" / f"{row['graph']}.json") for row in rows}

    scores = defaultdict(list)
    for row in rows:
        score_search(scores, row, questions[row["id"]], graphs[row["graph"]])
    for graph in graphs.values():
        score_graph(scores, graph)
    return {name: sum(values) / len(values) for name, values in sorted(scores.items())}


def main(argv=None):
    parser = make_parser("python -m tiny.measure", __doc__)
    parser.add_argument("results", nargs="?", default="results", help="output folder of eval.py (default: %(default)s)")
    parser.add_argument("dataset", nargs="?", default=EMBEDDED, help="(default: the embedded set)")
    parser.add_argument("--json", action="store_true", help="print one JSON object, all digits kept")
    args = parse_options(parser, argv)

    measured = measure(Path(args.results), args.dataset)
    if args.json:
        print(json.dumps(measured, indent=2))
        return
    for name, value in measured.items():
        print(f"{value:8.3f}  {name}")


if __name__ == "__main__":
    sys.exit(user_errors(main))
