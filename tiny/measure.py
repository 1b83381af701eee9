"""Score the embedded model against the world's truth, from what eval.py left on disk.

    python eval.py && python -m tiny.measure [results [dataset]]

In the synthetic world it is known which sentence holds which fact, so that more than answers can be scored: whether a
verdict is right (are all needed facts in the visited nodes?), whether a bullet is true, whether edges lead to the
sources.
"""
import json
import sys
from collections import defaultdict
from pathlib import Path

from data import EMBEDDED, read_jsonl
from pecan import Graph
from support.files import InputError
from support.options import user_errors
from tiny.world import KEPT, facts_in


def mean(values) -> float:
    values = list(values)
    return sum(values) / max(1, len(values))


def measure(results: Path, dataset=EMBEDDED) -> dict[str, float]:
    """Means by name, all but "nodes read" in 0..1."""
    questions = {q.id: q for document in read_jsonl(dataset) for q in document.questions}
    path = results / "embedded" / "pecan.jsonl"
    if not path.exists():
        raise InputError(f"{path}: is not there; run eval.py first")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    graphs = {row["graph"]: Graph.load(results / "graphs" / f"{row['graph']}.json") for row in rows}
    scores = defaultdict(list)

    for row in rows:
        question, graph, seen = questions[row["id"]], graphs[row["graph"]], set()
        needed = facts_in(" ".join(question.extra["evidence"]))
        for step in row["trace"]:
            seen |= facts_in(graph.nodes[step["node"]].text)
            if step["verdict"]:
                scores["verdicts that are right"].append((needed <= seen) == (step["verdict"] == "Yes"))
                scores[f"verdicts that are right where the truth is {'Yes' if needed <= seen else 'No'}"].append(
                    scores["verdicts that are right"][-1])
        scores[f"F1, {question.extra['kind']}"].append(row["f1"])
        scores[f"nodes read, {question.extra['kind']}"].append(row["nodes"])
        scores["searches that end with all needed facts read"].append(needed <= seen)

    for graph in graphs.values():
        E = graph.E.to_dense()
        stated = [facts_in(node.text) for node in graph.nodes]
        truth = set().union(*(facts for facts, node in zip(stated, graph.nodes) if node.level == 1))
        for i, node in enumerate(graph.nodes):
            if node.level > 1:
                parts = node.text.split(" and ")
                scores["statements of bullets that are true"] += [any(f in truth for f in facts_in(p)) for p in parts]
                window = E[i].nonzero().flatten().tolist()
                sources = [j for j in window if stated[i] & stated[j]]
                scores[f"edge mass on the true sources, level {node.level}"].append(E[i, sources].sum().item())
                scores[f"the same for uniform edges, level {node.level}"].append(len(sources) / len(window))
        for level, verb in ((2, "was"), (3, "is")):
            kept = {fact for fact in truth if fact.relation in KEPT[verb]}
            made = set().union(*(facts for facts, node in zip(stated, graph.nodes) if node.level == level), set())
            scores[f"facts to be kept that level {level} states"].append(len(kept & made) / len(kept))
    return {name: mean(values) for name, values in sorted(scores.items())}


def main():
    for name, value in measure(Path(sys.argv[1] if len(sys.argv) > 1 else "results"), *sys.argv[2:3]).items():
        print(f"{value:8.3f}  {name}")


if __name__ == "__main__":
    sys.exit(user_errors(main))
