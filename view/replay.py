"""Does a trace follow from its own r and cosines and from the graph? Recomputed without a model and without pecan.py.

    python pecan.py tiny/story.txt "What color is Selma's pet?" --trace selma.jsonl
    python -m view.replay selma.jsonl

Checked: the start, every position, r = position x attention, z = E^T r, the final scores, who is chosen and who comes
next, that a node fits the window, what is cached, the verdict that p_yes gives, and when the search may end. What the
model said itself cannot be checked without it: attention, cosines, p_yes, token counts, FLOPs and texts.
"""
import math
import sys

from core.command import make_parser, parse_options, user_errors

from core.files import InputError
from core.settings import RESERVE
from view.trace_file import Trace, read_traces

TOLERANCE = 1e-9                  # relative; float64 sums in another order differ by 1e-15
UNCHECKED = "attention, cosines, p_yes, token counts, FLOPs and texts need the model: not checked"


class Mismatch(InputError):
    """A figure of a trace that does not follow from the others."""


def expect(what: str, stored, computed):
    """Raise Mismatch, which names the figure, unless both are the same: numbers within TOLERANCE."""
    if isinstance(computed, float) and type(stored) in (int, float):
        same = math.isclose(stored, computed, rel_tol=TOLERANCE, abs_tol=1e-300)
    else:
        same = type(stored) is type(computed) and stored == computed
    if not same:
        raise Mismatch(f"{what} is {stored}; recomputed: {computed}")


def scores(trace: Trace, r: dict[int, float]) -> tuple[list[float], list[float]]:
    """z and the final score of every node, from r of the visited ones (equation 1; GARLIC 3.2.2)."""
    z = [0.0] * len(trace.graph.levels)
    for i, j, weight in trace.graph.edges:
        z[j] += weight * r.get(i, 0.0)

    c = [node["c"] for node in trace.header["nodes"]]
    if not trace.header["settings"]["attention"]:
        return z, c
    if not trace.header["settings"]["similarity"]:
        return z, z
    positive = [max(x, 0.0) for x in c]
    of_z = sum(z) or 1.0
    of_c = sum(positive) or 1.0
    return z, [x / of_z + y / of_c for x, y in zip(z, positive)]


def start(trace: Trace, space: int) -> list[int]:
    """The nodes of the top level that a search starts with, if `space` tokens are free."""
    settings = trace.header["settings"]
    nodes = trace.header["nodes"]
    levels = trace.graph.levels
    top = [i for i, level in enumerate(levels) if level == levels[-1]]
    most = len(top)
    if settings["fixed_nodes"] is not None:
        most = max(1, settings["fixed_nodes"] // levels[-1])
    if sum(nodes[i]["tokens"] for i in top) > space:
        space -= min(RESERVE * settings["chunk"], space // 2)

    chosen = []
    for i in sorted(top, key=lambda i: (-nodes[i]["c"], i)):
        if len(chosen) < most and nodes[i]["tokens"] <= space:
            chosen.append(i)
            space -= nodes[i]["tokens"]
    return sorted(chosen)


def check_choice(trace: Trace, at: str, candidates: list[dict], r: dict[int, float], cached: int):
    """Check the candidates of a step: who they are, their z, their final scores and their order."""
    z, final = scores(trace, r)
    room = trace.header["room"] - cached
    open_to = [i for i, node in enumerate(trace.header["nodes"]) if i not in r and node["tokens"] <= room]
    expect(f"{at}: number of candidates", len(candidates), min(10, len(open_to)))

    for rank, candidate in enumerate(candidates, 1):
        i = candidate["node"]
        if i not in open_to:
            raise Mismatch(f"{at}: candidate {i} was read before, or does not fit, or is listed twice")
        open_to.remove(i)
        expect(f"{at}: z of candidate {i}", candidate["z"], z[i])
        expect(f"{at}: score of candidate {i}", candidate["score"], final[i])

        # No other node may have a better score, and no lower id the same one, bit by bit.
        better = max(open_to, key=lambda k: final[k], default=i)
        if final[better] > final[i] + TOLERANCE * abs(final[i]):
            raise Mismatch(f"{at}: candidate {i} has rank {rank}, but node {better} scores more")
    keys = [(-candidate["score"], candidate["node"]) for candidate in candidates]
    expect(f"{at}: order of the candidates", keys, sorted(keys))


def check_step(trace: Trace, number: int, step: dict, before: list[dict]):
    """Check a step against the steps before it."""
    at = f"step {number}"
    node = step["node"]
    nodes = trace.header["nodes"]
    relevance = before[-1]["relevance"] if before else []
    r = {row["node"]: row["r"] for row in relevance}

    expect(f"{at}: its number", step["step"], number)
    if type(node) is not int or not 0 <= node < len(nodes) or node in r:
        raise Mismatch(f"{at}: node {node} is not in the graph, or was read before")
    expect(f"{at}: level of node {node}", step["level"], trace.graph.levels[node])
    expect(f"{at}: position", step["position"], number + 1)

    if step["candidates"] is not None:
        check_choice(trace, at, step["candidates"], r, before[-1]["cached"])
        expect(f"{at}: the node that is read", node, step["candidates"][0]["node"])
    if before:
        expect(f"{at}: cached length", step["cached"], before[-1]["cached"] + nodes[node]["tokens"])
        if step["tokens"] <= before[-1]["tokens"]:
            raise Mismatch(f"{at}: tokens is {step['tokens']}, which is not more than before")
        if step["flops"] < before[-1]["flops"]:                 # nodes that were read in one pass have its FLOPs
            raise Mismatch(f"{at}: flops is {step['flops']}, which is less than before")
    if step["cached"] > trace.header["room"]:
        raise Mismatch(f"{at}: cached length is {step['cached']}, beyond the room of {trace.header['room']}")

    # r is read once, while its node is read; a later step repeats it.
    expect(f"{at}: r of the nodes read before", step["relevance"][:-1], relevance)
    new = step["relevance"][-1]
    expect(f"{at}: node of the last r", new["node"], node)
    expect(f"{at}: r of node {node}", new["r"], float(step["position"] * new["attention"]))

    if step["p_yes"] is None:
        expect(f"{at}: verdict without a check", step["verdict"], None)
    else:
        if not 0 <= step["p_yes"] <= 1:
            raise Mismatch(f"{at}: p_yes is {step['p_yes']}, no probability")
        yes = step["p_yes"] > trace.header["settings"]["confidence"]
        expect(f"{at}: verdict", step["verdict"], "Yes" if yes else "No")


def ending(trace: Trace) -> str | None:
    """Why reading ends after the last step; None if it must go on."""
    settings = trace.header["settings"]
    last = trace.steps[-1]
    read = {step["node"] for step in trace.steps}
    if settings["fixed_nodes"] is None:
        if sum(step["verdict"] == "Yes" for step in trace.steps) >= settings["patience"]:
            return "yes"
    elif len(read) >= settings["fixed_nodes"]:
        return "nodes"

    room = trace.header["room"] - last["cached"]
    if any(i not in read and node["tokens"] <= room for i, node in enumerate(trace.header["nodes"])):
        return None
    return "all" if len(read) == len(trace.header["nodes"]) else "window"


def replay(trace: Trace):
    """Raise Mismatch at the first figure that does not follow."""
    if not trace.steps:
        raise Mismatch("no node was read")
    first = trace.steps[0]
    begun = start(trace, trace.header["room"] - first["cached"] + trace.header["nodes"][first["node"]]["tokens"])
    expect("the heads that made E", trace.header["settings"].get("edge_heads"), trace.graph.settings.get("edge_heads"))
    opening = [step["node"] for step in trace.steps if step["candidates"] is None]
    expect("the nodes that the search starts with", opening, begun)

    checked = trace.header["settings"]["fixed_nodes"] is None
    for number, step in enumerate(trace.steps, 1):
        check_step(trace, number, step, trace.steps[:number - 1])
        expect(f"step {number}: chosen", step["candidates"] is not None, number > len(begun))
        expect(f"step {number}: checked", step["p_yes"] is not None, checked and number >= len(begun))
        if len(begun) <= number < len(trace.steps):
            so_far = trace._replace(steps=trace.steps[:number])
            expect(f"step {number}: why reading ends", None, ending(so_far))

    expect("the nodes of the answer", trace.answer["nodes"], [step["node"] for step in trace.steps])
    expect("why reading ended", trace.answer["end"], ending(trace))
    for key in ("tokens", "flops"):
        if trace.answer[key] <= trace.steps[-1][key]:
            raise Mismatch(f"the answer: {key} is {trace.answer[key]}, which is not more than before")


def checked_replay(trace: Trace):
    """replay, with one error for whatever has no place in a trace."""
    where = f"{trace.path}, question {trace.header['question']!r}"
    try:
        replay(trace)
    except Mismatch as error:
        raise Mismatch(f"{where}: {error}") from None
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise Mismatch(f"{where}: a value that no trace holds ({type(error).__name__}: {error})") from None


def main(argv=None) -> int:
    parser = make_parser("python -m view.replay", __doc__)
    parser.add_argument("traces", nargs="+", metavar="FILE.jsonl")
    for path in parse_options(parser, argv).traces:
        for trace in read_traces(path):
            checked_replay(trace)
            print(f"{path}: {trace.header['question']!r} follows, {len(trace.steps)} steps")
    print(UNCHECKED)
    return 0


if __name__ == "__main__":
    sys.exit(user_errors(main))
