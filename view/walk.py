"""A walk through every tensor, from token ids to the node that is read next.

    python -m view.walk                                   the embedded model and its story
    python -m view.walk > docs/walk.md                    refreshes that file
    python -m view.walk --model smollm2 book.txt "Who?"   any checkpoint, your own document

The functions of the method are watched while they run. So files, functions, shapes and values come from the running
code. Only names and equations of tensors are written here.
"""
import inspect
import re
import sys
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import attrgetter
from pathlib import Path

import torch

import llama
import pecan
from core.command import make_parser, parse_options, user_errors
from core.files import InputError
from core.settings import Settings
from core.watch import watching
from data import Document, read_text
from support.options import EMBEDDED_MODEL, add_model_options, load_models, settings_of, warn_if_unknown

ROOT = Path(__file__).parents[1]
STORY = EMBEDDED_MODEL / "story.txt"
QUESTION = "Where does Selma live?"
SHOWN = 4                         # values shown of a tensor

INTRODUCTION = """# A walk through every tensor

Made by `python -m view.walk`. Below each function are the tensors that a call took or made, with name, shape, first
values and equation. Zeros are left out if a tensor has more than four decimals. Of many equal calls, the first is
shown. Letters are those of pecan.py and llama.py.
"""
ABOUT_STAGE_1 = """Chunks are packed into groups that fit a window. The model summarises the groups of a batch together.
Each token that it writes attends to the nodes of its group: this is a(x, j). The mean over the tokens of an information
point, normalised, is a row of E."""
ABOUT_START = """Node vectors give c. The question is read. Then one pass reads the top level and the tokens of the
first check. A node's attention to the question gives its r. The first of these nodes is shown."""
ABOUT_RETRIEVAL = ["Is this enough to answer? Two logits of the last pass give p_yes. Then r flows along E to z. The "
                   "node with the best\nscore is read into the same cache, together with the next check.",
                   "The same with one more r. The walk goes on after a Yes, where a search would end."]


# --- what to look at ------------------------------------------------------------------------------------------------

# A function, the tensors of a call (found in its result and its arguments), and their descriptions.
FORWARD = [
    (llama, "rope_tables", lambda tables, *_: [tables[0]], "cos: cos(position x frequency) [B, 1, T, K]"),
    (llama, "rms_norm", lambda y, *_: [y], "normed: x / rms(x) x weight [B, T, D]"),
    (llama, "attention", lambda result, q, k, v, *_: [q, k, v, *result[::-1]],
     "q: queries after RoPE [B, KV, G, T, K]", "k: keys after RoPE [B, KV, P, K]", "v: values [B, KV, P, K]",
     "weights: softmax(q k^T / sqrt K) [B, KV, G, T, P]", "out: weights v"),
    (llama.Cache, "averaging_matrix", lambda matrix, *_: [matrix], "averaging: 1 / N_j on the tokens of j [B, P, N]"),
    (llama.Llama, "forward", lambda result, *_: [] if result[1] is None else result,
     "hidden: last hidden states, normalised [B, T, D]", "a(x, j): attention of token x to node j [B, T, N]"),
]
STAGE_1 = [
    (pecan, "pack", lambda groups, *_: [groups[0]], "group: nodes of the first group [N]"),
    (pecan, "summary_prompt", lambda prompt, tokenizer, texts: [llama.ids_of(prompt)] if texts else [],
     "ids: Table A1 with the nodes [T]"),
    *FORWARD,
    (llama.Llama, "logits", lambda logits, *_: [logits], "logits: next token [B, vocabulary]"),
    (llama.Llama, "generate", lambda result, *_: [result[0][0], result[1][0]],
     "reply: token ids of the first summary", "a(x, j): a row for each token written [tokens, N]"),
    (pecan, "edge_weights", lambda e, a, tokens: [tokens, e],
     "tokens: places of the first IP in its reply", "e_ij: mean of a(x, j) over these tokens, normalised [N]"),
    (pecan, "edge_matrix", lambda E, *_: [E], "E: e_ij from node i down to j [|V|, |V|]"),
]
RETRIEVAL = [
    (llama.Llama, "logits", lambda logits, *_: [logits], "logits: after the user's turn [1, vocabulary]"),
    (pecan.Search, "check", lambda _, search: [search.trace[-1].p_yes], "p_yes: softmax over Yes and No (3.2.1)"),
    (pecan, "final_scores", lambda scores, E, r, c, *_: of_nodes(r, c, *scores),
     "nodes: two of S, and the two with the best scores outside S", "r: relevance, 0 outside S",
     "c: cosine of query and node", "z: Eᵀr (equation 1)",
     "score: z / sum z + max(c, 0) / sum max(c, 0), the sums over all nodes"),
    *FORWARD,
    (pecan.Search, "visit", lambda _, search, nodes, **why: OF_STEP(search.trace[-len(nodes)]),
     "node: the node that is read", "position: the query has position 1",
     "r_i: position x mean attention (Appendix C)"),
]
START = [
    (pecan, "similarities", lambda c, *_: [c], "c: cosine of query and node [|V|]"),
    (pecan, "question_prompt", lambda prompt, *_: [llama.ids_of(prompt)], "ids: Table A2 up to its first node [T]"),
    *RETRIEVAL,
]
OF_STEP = attrgetter("node", "position", "r")


def of_nodes(r, c, z, score) -> list[torch.Tensor]:
    """Four nodes, and the values of each tensor for them: two of S, and the two best outside S."""
    outside = (r == 0).nonzero()[:, 0]
    best = outside[score[outside].argsort(descending=True, stable=True)]
    nodes = torch.cat([r.nonzero()[:2, 0], best[:2]])
    return [nodes, *(x[nodes] for x in (r, c, z, score))]


# --- the walk -------------------------------------------------------------------------------------------------------

@contextmanager
def section(lines: list[str], title: str, text: str, watched: list):
    """Add a section to the walk: the tensors of the functions that run within the block, each tensor once."""
    rows = {}                                               # function -> name of a tensor -> its line
    with ExitStack() as stack:
        for owner, name, values_of, *labels in watched:
            stack.enter_context(watching(owner, name, partial(note, rows, getattr(owner, name), values_of, labels)))
        yield

    lines += [f"## {title}", "", text, "", "```"]
    for function, tensors in rows.items():
        lines += [function, *tensors.values()]
    lines += ["```", ""]


def note(rows: dict, function, values_of, labels: list[str], *call, **named):
    """Add those tensors of a call that are not in the rows yet."""
    code = inspect.unwrap(function).__code__
    place = f"{Path(code.co_filename).resolve().relative_to(ROOT)}  {code.co_qualname}"
    for label, value in zip(labels, values_of(*call, **named)):
        name, equation = label.split(": ")
        tensors = rows.setdefault(place, {})
        if name not in tensors and value is not None:       # an empty reply has no attention
            tensor = torch.as_tensor(value)
            shape = str(list(tensor.shape))
            tensors[name] = f"    {name:12}  {shape:18}  {few(tensor):44}  {equation}"


def few(tensor: torch.Tensor) -> str:
    """The first values. Decimals have four digits; of many decimals, only those other than 0 are shown."""
    values = tensor.values() if tensor.is_sparse else tensor.flatten()
    shown = values[values != 0] if values.is_floating_point() and len(values) > SHOWN else values
    text = " ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in shown[:SHOWN].tolist())
    return text + " .." * (len(values) > SHOWN) if text else "0"


def rows(text: str) -> list[list[str]]:
    """The tensors of a walk, read from its text: section, function, name, shape, values, equation."""
    found = []
    section = function = ""
    for line in text.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif ".py  " in line:
            function = line
        elif line.startswith("    "):
            found.append([section, function, *re.split("  +", line.strip())])
    return found


def walk(model, encoder, settings: Settings, document: Document, question: str, builder=None) -> str:
    """The walk as text: the construction, the start, and two nodes, even if a verdict is Yes."""
    lines = [INTRODUCTION]
    with section(lines, "Stage 1: from token ids to E", ABOUT_STAGE_1, STAGE_1):
        graph = pecan.build(builder or model, document, settings)

    encoding = (type(encoder), "encode", lambda vectors, *_: [vectors], "vectors: unit vectors of the nodes [|V|, D]")
    with section(lines, "Stage 2: the question and the top level", ABOUT_START, [encoding, *START]):
        vectors = encoder.encode([node.text for node in graph.nodes])
        c = pecan.similarities(vectors, encoder.encode([question])[0])
        search = pecan.Search(model, graph, question, c, settings)
        search.start()

    for number, text in enumerate(ABOUT_RETRIEVAL, 1):
        with section(lines, f"Stage 2: retrieval {number}", text, RETRIEVAL):
            search.check()
            search.next()
    return "\n".join(lines)


def main(argv=None) -> int:
    parser = make_parser("python -m view.walk", __doc__)
    parser.add_argument("document", nargs="?", default=str(STORY), help="a UTF-8 text file (default: tiny/story.txt)")
    parser.add_argument("question", nargs="?", default=QUESTION)
    add_model_options(parser)
    args = parse_options(parser, argv)
    if args.nodes or args.without:
        raise InputError("--nodes, --without: leave them out; the walk shows the whole method")

    document = read_text(args.document)
    model, encoder, builder = load_models(args)
    warn_if_unknown(model, document)
    print(walk(model, encoder, settings_of(args, model, builder), document, args.question, builder), end="")
    return 0


if __name__ == "__main__":
    sys.exit(user_errors(main))
