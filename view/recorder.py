"""Record the tensors of a run for the annotated page, from token ids to the node that is read next.

The functions of the method are watched from outside while they run, so files, functions, shapes and values come from
the running code. Only names and equations of tensors are written here.
"""
import inspect
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import attrgetter
from pathlib import Path

import torch

import llama
import pecan
from core.settings import Settings
from data import Document

SHOWN = 4                         # values shown of a tensor


@contextmanager
def watching(owner, name: str, heard):
    """Within the block, every call of owner.name is followed by heard(result, *arguments). Results do not change."""
    function = getattr(owner, name)

    def watched(*arguments, **named):
        result = function(*arguments, **named)
        heard(result, *arguments, **named)
        return result

    setattr(owner, name, watched)
    try:
        yield
    finally:
        setattr(owner, name, function)


# --- what to look at --------------------------------------------------------------------------------------------------

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
    (pecan, "edge_weights", lambda e, a, places: [places, e],
     "places: of the first IP's tokens in its reply", "e_ij: mean of a(x, j) over these tokens, normalised [N]"),
    (pecan, "build", lambda graph, *_: [graph.E], "E: e_ij from node i down to j [|V|, |V|]"),
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


# --- a run ------------------------------------------------------------------------------------------------------------

def record(model, encoder, settings: Settings, document: Document, question: str) -> list[list[str]]:
    """The tensors of a construction, a start and two retrieved nodes, even if a verdict is Yes.

    Each is [section, function, name, shape, values, equation], for example ["Stage 1: from token ids to E",
    "pecan.edge_weights", "e_ij", "[5]", "0.05391 0.01517 0.802 0.08375 ..", "mean of a(x, j) ..."].
    """
    rows = {}
    with section(rows, "Stage 1: from token ids to E", STAGE_1):
        graph = pecan.build(model, document, settings)

    encoding = (type(encoder), "encode", lambda vectors, *_: [vectors], "vectors: unit vectors of the nodes [|V|, D]")
    with section(rows, "Stage 2: the question and the top level", [encoding, *START]):
        vectors = encoder.encode([node.text for node in graph.nodes])
        c = pecan.similarities(vectors, encoder.encode([question])[0])
        search = pecan.Search(model, graph, question, c, settings)
        search.start()

    for number in (1, 2):
        with section(rows, f"Stage 2: retrieval {number}", RETRIEVAL):
            search.check()
            search.next()
    return [[*key, *row] for key, row in rows.items()]


@contextmanager
def section(rows: dict, title: str, watched: list):
    """Add the tensors of the functions that run within the block, each tensor of a section once."""
    with ExitStack() as stack:
        for owner, name, values_of, *labels in watched:
            note_call = partial(note, rows, title, getattr(owner, name), values_of, labels)
            stack.enter_context(watching(owner, name, note_call))
        yield


def note(rows: dict, title: str, function, values_of, labels: list[str], *call, **named):
    """Add those tensors of a call that are not in the rows yet."""
    code = inspect.unwrap(function).__code__
    place = f"{Path(code.co_filename).stem}.{code.co_qualname}"
    for label, value in zip(labels, values_of(*call, **named)):
        name, equation = label.split(": ")
        if value is not None:                               # an empty reply has no attention
            tensor = torch.as_tensor(value)
            rows.setdefault((title, place, name), [str(list(tensor.shape)), few(tensor), equation])


def few(tensor: torch.Tensor) -> str:
    """The first values. Decimals have four digits; of many decimals, only those other than 0 are shown."""
    values = tensor.values() if tensor.is_sparse else tensor.flatten()
    shown = values[values != 0] if values.is_floating_point() and len(values) > SHOWN else values
    text = " ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in shown[:SHOWN].tolist())
    return text + " .." * (len(values) > SHOWN) if text else "0"
