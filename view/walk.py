"""A walk through every tensor, from token ids to the node that is read next.

    python -m view.walk                                   the embedded model and its story
    python -m view.walk > docs/walk.md                    refreshes that file
    python -m view.walk --model smollm2 book.txt "Who?"   any checkpoint, your own document

The functions of the method are wrapped while they run. So file, function, shape and values are those of the running
code; only a tensor's name and equation are written here.
"""
import inspect
import sys
from contextlib import contextmanager
from pathlib import Path

from core.command import make_parser, parse_options, user_errors

import torch

import llama
import pecan
from core.settings import Settings
from data import Document, read_text
from support.options import EMBEDDED_MODEL, add_model_options, load_models, settings_of, warn_if_unknown
from support.trace import listening

ROOT = Path(__file__).parents[1]
STORY = EMBEDDED_MODEL / "story.txt"
QUESTION = "Where does Selma live?"
SHOWN = 4                         # values of a tensor

INTRODUCTION = """Made by `python -m view.walk`: file and function, then the tensors that a call of it took or made,
with name, shape, first values (of decimals, the first that are not 0) and equation. Letters are those of pecan.py and
llama.py. Of many equal calls the first is shown."""
ABOUT_STAGE_1 = """Chunks are packed into windows; the model summarises all windows of a level together. Each token
that it writes attends to the nodes of its window, a(x, j). The mean over an information point's tokens, normalised,
is a row of E."""
ABOUT_START = """Node vectors give c. The question is read, then the top level in one pass, which ends with the
tokens of the first check; the attention of a node's tokens to the question's gives its r. The first of these nodes is
shown."""
ABOUT_RETRIEVAL = ["Is this enough to answer? Two logits of the pass before give p_yes. Then r flows along E to z, and "
                   "the\nnode with the best score is read into the same cache, together with the next check.",
                   "With one more r that is not 0. The walk goes on after a Yes, where a search would end."]


class Walk:
    """What was seen: lines of text, and in each section every name of a function once."""

    def __init__(self):
        self.lines = ["# A walk through every tensor", "", INTRODUCTION, ""]
        self.seen = set()
        self.function = None

    def section(self, title: str, text: str):
        """Begin a section, in which everything may be seen again."""
        self.close()
        self.lines += [f"## {title}", "", text, "", "```"]
        self.seen = set()

    def close(self):
        """End a section."""
        if self.lines[-1]:
            self.lines += ["```", ""]
        self.function = None

    def add(self, code, name: str, value, equation: str):
        """Add a tensor that the function of this code has made, unless it was seen."""
        function = f"{Path(code.co_filename).resolve().relative_to(ROOT)}  {code.co_qualname}"
        if (function, name) in self.seen:
            return
        if self.function != function:
            self.lines.append(function)
            self.function = function

        self.seen.add((function, name))
        tensor = torch.as_tensor(value).detach()
        tensor = tensor.coalesce() if tensor.is_sparse else tensor
        values = tensor.values() if tensor.is_sparse else tensor
        shape = str(list(tensor.shape))
        self.lines.append(f"    {name:12}  {shape:18}  {few(values):44}  {equation}")


def few(values: torch.Tensor) -> str:
    """The first values: whole numbers as they are; of decimals, the first that are not 0, to four digits."""
    flat = values.flatten()[:100_000]
    if flat.is_floating_point():
        chosen = [f"{value:.4g}" for value in flat[flat != 0][:SHOWN].tolist()]
    else:
        chosen = [str(value) for value in flat[:SHOWN].tolist()]
    dots = " .." if values.numel() > len(chosen) else ""
    return " ".join(chosen) + dots if chosen else "0"


# --- what to look at ------------------------------------------------------------------------------------------------

def ids_of(segments) -> list[int]:
    return [token for _, ids in segments for token in ids]


def from_forward(call, result):
    hidden, a = result
    if a is None:
        return []
    return [("hidden", "last hidden states, normalised [B, T, D]", hidden),
            ("a(x, j)", "attention of token x to node j [B, T, N]", a)]


def from_attention(call, result):
    out, weights = result
    return [("q", "queries after RoPE [B, KV, G, T, K]", call["q"]), ("k", "keys after RoPE [B, KV, P, K]", call["k"]),
            ("v", "values [B, KV, P, K]", call["v"]),
            ("weights", "softmax(q k^T / sqrt K) [B, KV, G, T, P]", weights), ("out", "weights v", out)]


def from_final_scores(call, result):
    z, final = result
    return [("r", "relevance, 0 outside S [V]", call["r"]), ("z", "E^T r (equation 1) [V]", z),
            ("c", "cosine of query and node [V]", call["c"]), ("score", "z / sum z + c / sum c [V]", final)]


def from_visit(call, result):
    step = next(step for step in call["self"].trace if step.node == call["nodes"][0])
    return [("node", "the node that is read", step.node), ("position", "the query has position 1", step.position),
            ("r_i", "position x mean attention (Appendix C)", step.r)]


def one(name: str, equation: str, of=lambda call, result: result):
    """A description of one tensor: by itself the result of the call."""
    return lambda call, result: [(name, equation, of(call, result))]


FORWARD = [
    (llama, "rope_tables", one("cos", "cos(position x frequency) [B, 1, T, K]", lambda call, result: result[0])),
    (llama, "rms_norm", one("normed", "x / rms(x) x weight [B, T, D]")),
    (llama, "attention", from_attention),
    (llama.Cache, "averaging_matrix", one("averaging", "1 / N_j on the tokens of j [B, P, N]")),
    (llama.Llama, "forward", from_forward),
]
STAGE_1 = [
    (pecan, "summary_prompt", one("ids", "Table A1 with the nodes [T]", lambda call, result: ids_of(result))),
    (pecan, "pack", one("window", "nodes of the first window [N]", lambda call, result: list(result[0]))),
    *FORWARD,
    (llama.Llama, "logits", one("logits", "next token [B, vocabulary]")),
    (llama.Llama, "generate", lambda call, result: [
        ("reply", "token ids of the first summary", result[0][0]),
        ("a(x, j)", "a row for each token written [tokens, N]", result[1][0])]),
    (pecan, "edge_weights", lambda call, result: [
        ("tokens", "places of the first IP in its reply", call["tokens"]),
        ("e_ij", "e'_ij / sum_j' e'_ij' [N]", result)]),
    (pecan, "edge_matrix", one("E", "e_ij from node i down to j [V, V]")),
]
STAGE_2 = [
    (pecan, "question_prompt", one("ids", "Table A2 up to its first node [T]", lambda call, result: ids_of(result))),
    (pecan, "similarities", one("c", "cosine of query and node [V]")),
]
RETRIEVAL = [
    (llama.Llama, "logits", one("logits", "after the user's turn [1, vocabulary]")),
    (pecan.Search, "check", one("p_yes", "softmax over Yes and No (3.2.1)",
                                lambda call, result: call["self"].trace[-1].p_yes)),
    (pecan, "final_scores", from_final_scores),
    *FORWARD,
    (pecan.Search, "visit", from_visit),
]


@contextmanager
def watching(walk: Walk, what: list):
    """Within the block, the functions in `what` (owner, name, description) show the walk what they make."""
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in what]

    def watched(function, describe):
        signature = inspect.signature(function)
        code = inspect.unwrap(function).__code__

        def run(*arguments, **named):
            result = function(*arguments, **named)
            for name, equation, value in describe(signature.bind(*arguments, **named).arguments, result):
                walk.add(code, name, value, equation)
            return result
        return run

    def on_note(kind, values):
        if kind == "edges":
            made_in = sys._getframe(2).f_code               # above this function: note, and who called it
            walk.add(made_in, "e'_ij", values["e_prime"], "mean of a(x, j) over its tokens [N]")

    try:
        for owner, name, describe in what:
            setattr(owner, name, watched(getattr(owner, name), describe))
        with listening(on_note):
            yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


# --- the walk -------------------------------------------------------------------------------------------------------

def walk(model, encoder, settings: Settings, document: Document, question: str, builder=None) -> str:
    """The walk as text: the construction, the start, and two nodes whatever the verdict is."""
    seen = Walk()
    seen.section("Stage 1: from token ids to E", ABOUT_STAGE_1)
    with watching(seen, STAGE_1):
        graph = pecan.build(builder or model, document, settings)

    seen.section("Stage 2: the question and the top level", ABOUT_START)
    with watching(seen, [*STAGE_2, (type(encoder), "encode", one("vectors", "unit vectors of the nodes [V, D]")),
                         *RETRIEVAL]):
        vectors = encoder.encode([node.text for node in graph.nodes])
        c = pecan.similarities(vectors, encoder.encode([question])[0])
        search = pecan.Search(model, graph, question, c, settings)
        search.start()

    for number, text in enumerate(ABOUT_RETRIEVAL, 1):
        seen.section(f"Stage 2: retrieval {number}", text)
        with watching(seen, RETRIEVAL):
            search.check()
            search.next()
    search.bar.close()

    seen.close()
    return "\n".join(seen.lines)


def main(argv=None) -> int:
    parser = make_parser("python -m view.walk", __doc__)
    parser.add_argument("document", nargs="?", default=str(STORY), help="a UTF-8 text file (default: tiny/story.txt)")
    parser.add_argument("question", nargs="?", default=QUESTION)
    add_model_options(parser)
    args = parse_options(parser, argv)

    document = read_text(args.document)
    model, encoder, builder = load_models(args)
    warn_if_unknown(model, document)
    print(walk(model, encoder, settings_of(args, model, builder), document, args.question, builder), end="")
    return 0


if __name__ == "__main__":
    sys.exit(user_errors(main))
