"""Record the tensors of a run for the annotated page, from the tokens of a prompt to the last node that is read.

The functions of the method are watched from outside while they run, so shapes and values come from the running code.
Only names and equations of tensors are written here.
"""
from contextlib import ExitStack
from functools import partial
from pkgutil import resolve_name
from unittest.mock import patch

import numpy as np

import llama
import pecan
from core.settings import Settings, resolve
from data import EMBEDDED, Document
from encoders.token_mean import TokenMean

SHOWN = 8                         # values shown of a tensor

# What the pages of docs/ show.
STORY = EMBEDDED.parent / "story.txt"
QUESTION = "When did Selma move?"


def embedded_method() -> pecan.Pecan:
    """The method with the embedded model, on the CPU: there it gives the same numbers everywhere."""
    model = llama.Llama.load(EMBEDDED.parent, "cpu")
    return pecan.Pecan(model, TokenMean(model), resolve(model.folder, model.config.max_length))


def watching(owner, name: str, heard):
    """A context in which every call of owner.name is followed by heard(result, *arguments). Results do not change."""
    function = getattr(owner, name)

    def watched(*arguments, **named):
        result = function(*arguments, **named)
        heard(result, *arguments, **named)
        return result

    return patch.object(owner, name, watched)


def pieces(tokenizer, ids: list[int]) -> list[str]:
    """The text of each token."""
    text, spans = tokenizer.spans(ids)
    return [text[start:end] for start, end in spans]


# --- what to look at --------------------------------------------------------------------------------------------------

# A function, the values of a call (found in its result and its arguments), and their descriptions.
WATCHED = {
    "llama.rope_tables": (lambda tables, *_: [tables[0]], "cos: cos(position x frequency) [B, 1, T, K]"),
    "llama.rms_norm": (lambda y, *_: [y], "normed: x / rms(x) x weight [B, T, D]"),
    "llama.attention": (
        lambda result, q, k, v, *_: [q, k, v, *result[::-1]],
        "q: queries after RoPE [B, KV, G, T, K]", "k: keys after RoPE [B, KV, P, K]", "v: values [B, KV, P, K]",
        "A: softmax(q k^T / sqrt K) [B, KV, G, T, P]", "out: A v"),
    "llama.Cache.averaging_matrix": (lambda matrix, *_: [matrix], "averaging: 1 / N_j on the tokens of j [B, P', N]"),
    "llama.Llama.forward": (
        lambda result, *_: [] if result[1] is None else result,
        "hidden: last hidden states, normalised [B, 1, D]", "a(x, y): attention of token x to token y [B, T, P']"),
    "llama.Llama.append": (lambda result, *_: [] if result[1] is None else result[1:],
                           "a(x, j): attention of token x to node j [B, T, N]"),
    "llama.Llama.logits": (lambda logits, *_: [logits], "logits: next token [B, vocabulary]"),
    "llama.Llama.generate": (
        lambda result, model, *_: [pieces(model.tokenizer, result[0][0]), result[1][0]],
        "reply: the tokens of the summary", "a(x, j): a row for each of these tokens [tokens, N]"),
    "pecan.summary_prompt": (lambda prompt, tokenizer, _: [pieces(tokenizer, llama.ids_of(prompt))],
                             "prompt: Table A1 with the nodes [T]"),
    "pecan.question_prompt": (lambda prompt, tokenizer, _: [pieces(tokenizer, llama.ids_of(prompt))],
                              "prompt: Table A2 up to its first node [T]"),
    "pecan.final_scores": (
        lambda scores, E, r, c, *_: reasons(E, r, c, *scores),
        "i: the node outside S with the highest score", "j: the nodes of S with an edge to i",
        "r_j: their relevance", "e_ji: their edges to i, from the column of E",
        "z_i: the sum of r_j e_ji (equation 1)", "sum z: over all nodes", "c_i: cosine of query and node",
        "sum max(c, 0): over all nodes", "score: z_i / sum z + max(c_i, 0) / sum max(c, 0)"),
    "pecan.relevance": (
        lambda r, *arguments: [*arguments, r], "attention: of the node to the question, a(i, q)",
        "position: the question has position 1", "r: their product (Appendix C)"),
    "pecan.Search.visit": (lambda _, search, nodes, *rest, **why: [[search.graph.nodes[nodes[0]].text]],
                           "text: of the node"),
    "pecan.Search.check": (lambda _, search, *rest: [search.trace[-1].p_yes],
                           "p_yes: softmax over Yes and No (3.2.1)"),
}


def reasons(E, r, c, z, score) -> list:
    """Why the best node outside S is read next: what enters it, and the parts of its score."""
    i = score.masked_fill(r > 0, -1).argmax()
    j = (E[:, i] * r).nonzero()[:, 0]
    return [i, j, r[j], E[j, i], z[i], z.sum(), c[i], c.clamp(min=0).sum(), score[i]]


# --- a run ------------------------------------------------------------------------------------------------------------

def record(method: pecan.Pecan, document: Document, question: str) -> tuple:
    """Run both stages, and keep the values of the last node's step and of the summary that has its source.

    Returns the graph, the last node that was read, its source (the visited node that gave it most of its z), and the
    values: [function, name, shape, values, what they are].
    """
    prepared = method.prepare(document)
    graph = prepared.graph
    rows = {}                                               # the values of a function's later call replace the earlier
    with ExitStack() as stack:
        for function, (values_of, *labels) in WATCHED.items():
            owner, _, name = function.rpartition(".")
            note_call = partial(note, rows, function, labels, values_of)
            stack.enter_context(watching(resolve_name(owner), name, note_call))
        search = method.search(prepared, question)
        search.run()

        E = graph.E
        node = search.visited[-1]
        source = (E[:, node] * search.r).argmax().item()
        group = summarise_again(method.model, graph, source, method.settings)

    note(rows, "pecan.build", [f"row {source} of E: from #{source} to the nodes of its group",
                               f"column {node} of E: from all nodes to #{node}, those above 0"],
         lambda: [E[source, group], E[:, node]])
    return graph, node, source, [[*key, *row] for key, row in rows.items()]


def summarise_again(model, graph: pecan.Graph, node: int, settings: Settings) -> list[int]:
    """Write the summary that has information point `node` once more. Returns the nodes that it summarises."""
    sources = [j for i, j, _ in graph.edges if i == node]
    group = list(range(min(sources), max(sources) + 1))
    limit, _ = pecan.limit_and_room(model.tokenizer, settings)
    pecan.summarise(model, [[graph.nodes[j].text for j in group]], limit, settings.tree)
    return group


def note(rows: dict, function: str, labels: list[str], values_of, *call, **named):
    """Keep the values of a call."""
    for label, value in zip(labels, values_of(*call, **named)):
        name, what = label.split(": ")
        value = np.asarray(value)
        rows[function, name] = [str(list(value.shape)), few(value), what]


def few(values: np.ndarray) -> list[str]:
    """At most SHOWN values, then ".."; of many decimals only those other than 0. Decimals have four digits."""
    if values.dtype.kind == "f" and values.size > SHOWN:
        values = values[values != 0]
    shown = [f"{x:.4g}" if isinstance(x, float) else str(x) if isinstance(x, int) else repr(x)[1:-1]
             for x in values.flatten().tolist() if x != ""]
    return shown[:SHOWN] + [".."] * (len(shown) > SHOWN)
