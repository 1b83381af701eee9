"""Check a trace: recompute it from its attention, its cosines, p_yes and the graph, without a model or pecan.py.

    python pecan.py tiny/story.txt "When did Selma move?" --trace selma.jsonl
    python -m view.replay selma.jsonl

It checks the start, every position, r = position x attention, z = Eᵀr, the final scores, the candidates and the choice
among them, the cached length, the verdict that p_yes gives, the end of the search, and whether nodes and answer fit the
window. Attention, cosines, p_yes, token counts, FLOPs and texts come from the model and cannot be checked without it.
"""
import math
import sys

from core.command import make_parser, parse_options, user_errors
from core.files import InputError, reading
from core.settings import CANDIDATES, RESERVE
from data import Step
from view.trace import Trace, read_traces

TOLERANCE = 1e-9                  # relative; float64 sums in another order differ by 1e-15
UNCHECKED = "attention, cosines, p_yes, token counts, FLOPs and texts need the model: not checked"


def expect(what: str, stored, computed):
    """Raise InputError with the figure's name unless both are equal; decimals may differ by TOLERANCE."""
    same = stored == computed
    if isinstance(computed, float):
        same = math.isclose(stored, computed, rel_tol=TOLERANCE, abs_tol=1e-300)
    if not same:
        raise InputError(f"{what} is {stored}; recomputed: {computed}")


def start(trace: Trace) -> list[int]:
    """The nodes of the top level that a search starts with (3.2.1)."""
    settings = trace.settings
    levels = trace.nodes[-1].level
    top = [i for i, node in enumerate(trace.nodes) if node.level == levels]
    most = len(top) if settings.fixed_nodes is None else max(1, settings.fixed_nodes // levels)
    room = trace.room
    if sum(trace.lengths[i] for i in top) > room:
        room -= min(RESERVE * settings.chunk, room // 2)

    chosen = []
    for i in sorted(top, key=lambda i: (-trace.c[i], i)):
        if len(chosen) < most and trace.lengths[i] <= room:
            chosen.append(i)
            room -= trace.lengths[i]
    return sorted(chosen)


def scores(trace: Trace, r: dict[int, float]) -> tuple[list[float], list[float]]:
    """z and the final score of every node, from r of the visited ones (equation 1; GARLIC 3.2.2)."""
    z = [0.0] * len(trace.nodes)
    for i, j, weight in trace.edges:
        z[j] += weight * r.get(i, 0.0)

    if not trace.settings.attention:
        return z, trace.c
    if not trace.settings.similarity:
        return z, z
    positive = [max(x, 0.0) for x in trace.c]
    of_z = sum(z) or 1.0
    of_c = sum(positive) or 1.0
    return z, [x / of_z + y / of_c for x, y in zip(z, positive)]


def possible(trace: Trace, steps: list[Step]) -> set[int]:
    """The nodes that can be read after these steps: outside S, and short enough for the room that is left."""
    visited = {step.node for step in steps}
    room = trace.room - sum(trace.lengths[i] for i in visited)
    return {i for i, length in enumerate(trace.lengths) if i not in visited and length <= room}


def ending(trace: Trace, steps: list[Step]) -> str | None:
    """Why reading ends after these steps, a key of data.ENDS; None if it goes on."""
    settings = trace.settings
    if settings.fixed_nodes is None:
        if sum(step.verdict == "Yes" for step in steps) >= settings.patience:
            return "yes"
    elif len(steps) >= settings.fixed_nodes:
        return "nodes"

    if possible(trace, steps):
        return None
    return "all" if len(steps) == len(trace.nodes) else "window"


def check_choice(trace: Trace, at: str, step: Step, before: list[Step]):
    """Check the choice of a node: the candidates, their z and final scores, and their order."""
    z, final = scores(trace, {earlier.node: earlier.r for earlier in before})
    for i, of_z, score in step.candidates:
        expect(f"{at}: z of candidate {i}", of_z, z[i])
        expect(f"{at}: score of candidate {i}", score, final[i])

    best = sorted(possible(trace, before), key=lambda i: (-final[i], i))[:CANDIDATES]
    expect(f"{at}: list of candidates", [i for i, _, _ in step.candidates], best)
    expect(f"{at}: why it was chosen", [step.node, step.z, step.score, step.c],
           [*step.candidates[0], trace.c[step.node]])


def check_step(trace: Trace, number: int, begun: int):
    """Check a step against those before it. The first check comes after the `begun` nodes of the start."""
    at = f"{trace.place}, step {number}"
    before = trace.answer.trace[:number - 1]
    step = trace.answer.trace[number - 1]
    if number > begun:
        expect(f"{at}: why reading ended before", None, ending(trace, before))
        check_choice(trace, at, step, before)

    expect(f"{at}: level of node {step.node}", step.level, trace.nodes[step.node].level)
    expect(f"{at}: position", step.position, number + 1)
    expect(f"{at}: r", step.r, float(step.position * step.attention))
    if before:
        expect(f"{at}: cached length", step.cached, before[-1].cached + trace.lengths[step.node])

    verdict = None
    if trace.settings.fixed_nodes is None and number >= begun:
        verdict = "Yes" if step.p_yes > trace.settings.confidence else "No"
    expect(f"{at}: verdict", [step.verdict, step.p_yes is None], [verdict, verdict is None])


def replay(trace: Trace):
    """Raise InputError at the first figure that does not follow."""
    answer = trace.answer
    at = trace.place
    with reading(at, "a value that no trace holds"):
        first = answer.trace[0]
        taken = first.cached - trace.lengths[first.node] + trace.room + trace.settings.answer_tokens
        if taken >= trace.settings.window:
            raise InputError(f"{at}: room is {trace.room}; window {trace.settings.window} is too small for it")

        begun = start(trace)
        opening = [step.node for step in answer.trace if step.candidates is None]
        expect(f"{at}: list of the nodes that the search starts with", opening, begun)
        for number in range(1, len(answer.trace) + 1):
            check_step(trace, number, len(begun))

        expect(f"{at}: list of the nodes of the answer", answer.nodes, [step.node for step in answer.trace])
        expect(f"{at}: why reading ended", answer.end, ending(trace, answer.trace))


def main(argv=None) -> int:
    parser = make_parser("python -m view.replay", __doc__)
    parser.add_argument("traces", nargs="+", metavar="FILE.jsonl")
    for path in parse_options(parser, argv).traces:
        for trace in read_traces(path):
            replay(trace)
            print(f"{path}: {trace.question!r} follows, {len(trace.answer.trace)} steps")
    print(UNCHECKED)
    return 0


if __name__ == "__main__":
    sys.exit(user_errors(main))
