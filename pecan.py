"""PECAN: attention graph construction and dynamic graph search (ACL Findings 2025), and GARLIC, its earlier version.

    V        nodes of the graph, |V| of them; level 1 are chunks, higher levels information points (IPs)
    a(x, j)  attention of token x to node j, the mean over layers, heads and the tokens of j (the paper's e_{x, v_j})
    e'_ij    the mean of a(x, j) over the tokens x of IP i
    E        edge weights [|V|, |V|]; E[i, j] = e_ij points from a higher node i to a lower node j
    q        the query;  S  the visited nodes, in the order they were read
    r        relevance of the visited nodes to the query [|V|], 0 elsewhere
    z        retrieval score, z = E^T r [|V|]
    c        cosine similarity of query and node [|V|]
    s        the window;  t_p  confidence threshold;  t_n  stop patience

Stage 1 (build, section 3.1) turns a document into a graph, once. Stage 2 (search, section 3.2) answers a query. A
worked example, two IPs above three chunks (tests/test_pecan.py computes it too):

    attention e' of IP 3 to chunks 0, 1, 2 is .02 .06 .02, of IP 4 it is .01 .01 .03
    normalised by rows:     E[3] = [.2 .6 .2]      E[4] = [.2 .2 .6]
    S starts as (3, 4), at positions 2 and 3 (the query has position 1); mean attention to the query .10 and .04
                            r_3 = 2 x .10 = .20    r_4 = 3 x .04 = .12
    z = E^T r               z_0 = .2 x .20 + .2 x .12 = .064    z_1 = .6 x .20 + .2 x .12 = .144    z_2 = .112
    z / sum(z)              .20    .45    .35
    c / sum(c)              .30    .20    .50     negative cosines count as 0 (those of the IPs are 0 here)
    final                   .50    .65    .85     chunk 2 is read next
"""
import argparse
import hashlib
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from data import Document, read_text
from llama import Cache, Llama, Piece
from support.files import InputError, read_json, write_file
from support.graph_file import FORMAT, check_place
from support.method import ENDS, Answer
from support.options import add_model_options, chosen_settings, load_models, user_errors
from support.sbert import similarities
from support.settings import Settings, settings_for

# --- prompts --------------------------------------------------------------------------------------------------------

# Table A1, word for word. A node of any level stands on a line of its own behind "* ", as in the table's example; blank
# lines between the nodes of the print are taken for layout.
SUMMARISE = ("Summary the following information. Each segment is separated by a new line symbol.\n", """

Split your summary into different summary points according to the semantic information in these information points. \
It is not necessary to generate each summary point for each information point. \
Gather and organize information into summary points. \
In each summary point, try to avoid using pronouns like he/she/they and instead use full names. \
Generate in the format of:

* summary point
* summary point
* summary point

Do not provide any explanation and start the summary directly.""")

# Table A2, word for word: first turn up to the first node, and second turn. (The blank line that PECAN's print leaves
# behind "Information:" is taken for layout; GARLIC's Table 5 has none; so are its curly quotes.)
ASK = ("""Can this question be answered by the following information? Response "Yes" or "No" in one word. \
Do not provide any explanation.

Question:
""", "\n\nInformation:")
ANSWER = "Given the above information and question, answer the question as concisely as you can."

# A prompt is a list of pieces that are tokenised one by one: what is read into the cache node by node is then, token
# for token, what one pass over the same pieces would read. (A tokenizer may join the end of one piece and the start of
# the next, ".\n" say, where the whole text is given to it at once.)


def node_pieces(tokenizer, node, text: str) -> list[Piece]:
    """The line of a node. Its tokens are those of its text: the marker belongs to no node."""
    return [(None, tokenizer.encode("\n*")), (node, tokenizer.encode(" " + text))]


def summary_pieces(tokenizer, nodes: dict) -> list[Piece]:
    """Table A1 for the nodes of one window (node -> text), one user turn."""
    return [(None, tokenizer.frame.open + tokenizer.encode(SUMMARISE[0])),
            *(piece for node, text in nodes.items() for piece in node_pieces(tokenizer, node, text)),
            (None, tokenizer.encode(SUMMARISE[1]) + tokenizer.frame.close)]


def question_pieces(tokenizer, question: str) -> list[Piece]:
    """Table A2 up to its first node. The question is treated as a node, "q" (Appendix C)."""
    if not question.strip():
        raise InputError("the question is empty")
    return [(None, tokenizer.frame.open + tokenizer.encode(ASK[0])), ("q", tokenizer.encode(question)),
            (None, tokenizer.encode(ASK[1]))]


def answer_pieces(tokenizer, verdict: int) -> list[Piece]:
    """The first assistant turn, which holds the token of the last verdict, and Table A2's second turn."""
    frame = tokenizer.frame
    return [(None, [*frame.close, verdict, *frame.reopen, *tokenizer.encode(ANSWER), *frame.reclose])]


def size(pieces: list[Piece]) -> int:
    """Tokens of a prompt."""
    return sum(len(ids) for _, ids in pieces)


def room_for_nodes(tokenizer, question: str, settings: Settings) -> int:
    """Tokens that the window leaves for nodes between the question and the answer; InputError where it leaves none.

    What the answer needs is kept free to the end; a probe's tokens stand there for a moment only.
    """
    turn = answer_pieces(tokenizer, tokenizer.first("Yes"))
    room = settings.window - size(question_pieces(tokenizer, question)) - size(turn) - settings.answer_tokens
    if room < 1:
        raise InputError(f"window {settings.window} is too small: the question with its prompt and answer takes "
                         f"{settings.window - room} tokens")
    return room


# --- stage 1: attention graph construction (section 3.1) ------------------------------------------------------------

@dataclass
class Node:
    level: int                    # 1: a chunk of the document; higher: an information point
    text: str


@dataclass
class Graph:
    """The hierarchical weighted directed acyclic graph of one document.

    A node's place in `nodes` is its id, and levels come in order. E [|V|, |V|] float64: row i sums to 1, or is 0
    throughout where i is a chunk. `flops` is what the construction cost.
    """
    nodes: list[Node]
    E: torch.Tensor
    document: str                 # sha256 of the document
    model: str                    # fingerprint of the checkpoint that built it
    settings: dict
    flops: int = 0

    @property
    def top(self) -> list[int]:
        """Ids of the top level, in document order."""
        return [i for i, node in enumerate(self.nodes) if node.level == self.nodes[-1].level]

    def save(self, path: str | Path):
        """Write one readable JSON file; a file that stands there already is replaced at once or not at all."""
        nodes = [{"id": i, "level": node.level, "text": node.text} for i, node in enumerate(self.nodes)]
        edges = [[i, j, self.E[i, j].item()] for i, j in self.E.nonzero().tolist()]
        text = json.dumps({"format": FORMAT, "document": self.document, "model": self.model, "settings": self.settings,
                           "flops": self.flops}, indent=0).removesuffix("\n}")
        for key, rows in (("nodes", nodes), ("edges", edges)):                             # a line for each
            text += f',\n"{key}": [\n' + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]"
        write_file(path, text + "\n}\n")


def load_graph(path: str | Path, document: Document | None = None, settings: dict | None = None,
               model: Llama | None = None) -> Graph:
    """Read a graph and check it; InputError says what is wrong with the file, or that it is another version's, another
    document's or another model's, or was built under other settings (Settings.construction)."""
    raw = read_json(path)
    if raw.get("format") != FORMAT:
        raise InputError(f"{path}: format is {raw.get('format')!r}, this version reads {FORMAT!r}")
    try:
        nodes = [Node(row["level"], row["text"]) for row in raw["nodes"]]
        if [row["id"] for row in raw["nodes"]] != list(range(len(nodes))):
            raise InputError(f"{path}: node ids do not count from 0")
        levels = [node.level for node in nodes]
        if not nodes or any(type(level) is not int for level in levels) or levels[0] != 1 \
                or any(b - a not in (0, 1) for a, b in zip(levels, levels[1:])):
            raise InputError(f"{path}: levels do not rise from 1 one by one")
        if not all(isinstance(node.text, str) and node.text for node in nodes):
            raise InputError(f"{path}: a node without text")
        E = torch.zeros(len(nodes), len(nodes), dtype=torch.float64)
        for i, j, weight in raw["edges"]:
            if not (0 <= j < i < len(nodes)) or levels[i] != levels[j] + 1 or not 0 < weight <= 1:
                raise InputError(f"{path}: edge [{i}, {j}, {weight}] does not lead one level down, weight in (0, 1]")
            E[i, j] = weight
        if type(raw["flops"]) is not int or raw["flops"] < 0:
            raise InputError(f"{path}: flops is {raw['flops']!r}, not a number of operations")
        graph = Graph(nodes, E, raw["document"], raw["model"], raw["settings"], raw["flops"])
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{path}: not a complete graph ({type(error).__name__}: {error})") from None
    for i, total in enumerate(E.sum(1).tolist()):
        if abs(total - (levels[i] > 1)) > 1e-4:
            raise InputError(f"{path}: the edges of node {i} sum to {total:.6f}, not to {int(levels[i] > 1)}")
    if document is not None and graph.document != document.hash:
        raise InputError(f"{path}: is the graph of another document")
    if model is not None and graph.model != model.fingerprint:
        raise InputError(f"{path}: was built by another model")
    if settings is not None and graph.settings != settings:
        raise InputError(f"{path}: was built with {graph.settings}, not with {settings}")
    return graph


def split(tokenizer, text: str, limit: int) -> list[str]:
    """Cut text into chunks of at most `limit` tokens, at white space; white space inside becomes one blank.

    The paper does not say where to cut. At the last white space that fits, because half a word is no information; and
    without newlines, because the prompt separates segments by them. Only a word longer than a chunk is cut inside.
    """
    chunks, chunk, used = [], [], 0
    words = text.split()[::-1]
    while words:
        word = words.pop()
        length = len(tokenizer.encode(" " + word))          # tokens never span white space
        if length > limit and len(word) > 1:
            words += [word[len(word) // 2:], word[:len(word) // 2]]
            continue
        if chunk and used + length > limit:
            chunks.append(" ".join(chunk))
            chunk, used = [], 0
        chunk.append(word)
        used += length
    return chunks + [" ".join(chunk)] if chunk else chunks


def chunks(tokenizer, document: Document, limit: int) -> list[str]:
    """The chunks of a document, in order; passages are never mixed in one."""
    return [text for passage in document.passages for text in split(tokenizer, passage, limit)]


def pack(costs: list[int], space: int) -> list[range]:
    """Windows: nodes in order, as long as their tokens fit in `space` (GARLIC 3.1)."""
    windows, start, used = [], 0, 0
    for i, cost in enumerate(costs):
        if cost > space:
            raise InputError(f"a node of {cost} tokens does not fit the {space} that prompt and summary leave in the "
                             "window; take a larger window or smaller chunks")
        if used + cost > space:
            windows.append(range(start, i))
            start, used = i, 0
        used += cost
    return [*windows, range(start, len(costs))]


MARKER = re.compile(r"\s*(?:([*\-•])(?!\1)|\d+[.)](?=\s|$))\s*")         # not **bold**, --- or 1.5


def bullets(text: str, complete: bool = True) -> list[tuple[int, int]]:
    """The information points of a reply, as (start, end) of their text, markers and outer white space left out.

    A line that begins with `*`, `-`, `•`, `1.` or `1)` is a bullet. What the paper does not say: an unmarked line
    directly below a bullet continues it; other unmarked lines are a preamble or an afterword and are dropped; a reply
    without any bullet is one IP, so that nothing is lost (markers alone are none); a last bullet cut off by the
    length limit (complete=False) is dropped where others exist; empty bullets are dropped.
    """
    spans, position, goes_on = [], 0, False
    for line in text.splitlines(keepends=True):
        marker = MARKER.match(line)
        start, end = position + (marker.end() if marker else 0), position + len(line.rstrip())
        if marker:
            spans.append((start, max(start, end)))
        elif goes_on and line.strip():
            spans[-1] = (spans[-1][0], end)
        goes_on = bool(marker) or (goes_on and bool(line.strip()))
        position += len(line)
    spans = [(a, b) for a, b in spans if text[a:b].strip()]
    if not spans:
        said = any(MARKER.sub("", line, count=1).strip() for line in text.splitlines())    # more than empty bullets
        return [(len(text) - len(text.lstrip()), len(text.rstrip()))] if said else []
    return spans if complete or len(spans) == 1 else spans[:-1]


def edge_weights(attention: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    """The edges of one IP to the N nodes of its window, [N]; they sum to 1.

    attention [tokens of the reply, N] is a(x, j): attention of token x as a query, averaged over layers, heads and the
    tokens of node j (section 3.1, "Extracting" and the first half of "Aggregating"). Here it is averaged over the IP's
    tokens (their places in the reply), e'_ij = mean_x a(x, j), and normalised, e_ij = e'_ij / sum_j' e'_ij'. No second
    softmax. In a batch N is that of the largest window; what a smaller one lacks is 0.
    """
    e = attention[tokens].cpu().double().mean(0)
    return e / e.sum()


def information_points(tokenizer, ids: list[int], attention: torch.Tensor, limit: int, tree: bool):
    """The IPs of a reply and their edges: [(text, edges [N])]; with `tree` its bullets joined are one summary node."""
    if not ids:
        return []
    text, ends = tokenizer.ends(ids)
    spans = bullets(text, complete=len(ids) < limit)
    owners = [[x for x, (a, b) in enumerate(zip([0, *ends], ends)) if a < end and b > start] for start, end in spans]
    texts = [" ".join(text[start:end].split()) for start, end in spans]
    if tree and spans:
        texts, owners = [" ".join(texts)], [sorted({x for tokens in owners for x in tokens})]
    return [(t, edge_weights(attention, tokens)) for t, tokens in zip(texts, owners) if tokens]


def summarise(model: Llama, nodes: list[Node], windows: list[list[int]], limit: int, settings: Settings, bar):
    """Summarise the nodes of each window (ids) in up to `limit` tokens; returns [(text, window, edges [N])] for the
    IPs, in order. Nodes of a window whose reply holds no IP are left without edges: similarity alone can find them.

    `settings.batch` windows run together. Their prompts go through the fused kernel; attention is had from the tokens
    of the replies alone, as they are generated.
    """
    made = []
    for first in range(0, len(windows), settings.batch):
        batch = windows[first:first + settings.batch]
        cache = Cache(model, len(batch), settings.window)
        prompts = [summary_pieces(model.tokenizer, {i: nodes[i].text for i in window}) for window in batch]
        hidden, _ = model.read(cache, prompts)
        replies, attention = model.generate(cache, hidden, limit, cache.averages(batch),
                                            lambda tokens: bar.set_postfix_str(f"{tokens} tokens written"))
        for window, ids, a in zip(batch, replies, attention):
            for text, e in information_points(model.tokenizer, ids, a, limit, settings.tree):
                made.append((text, window, e))
        bar.update(len(batch))
    return made


def build(model: Llama, document: Document, settings: Settings, progress: bool = False) -> Graph:
    """Stage 1: chunks, then level after level of IPs with their edges, until one window makes a level.

    The paper does not say when to stop; a level made by a single window has seen everything below it together. A level
    that does not have fewer tokens than the one below it is given up, and the one below is the top.
    """
    tokenizer, flops = model.tokenizer, model.flops
    limit = int(settings.window * settings.summary_share)
    space = settings.window - limit - size(summary_pieces(tokenizer, {}))
    if space < settings.chunk + len(tokenizer.encode("\n*")):
        raise InputError(f"window {settings.window} is too small: the prompt and a summary of up to {limit} tokens "
                         f"leave {space}, a chunk takes up to {settings.chunk} and its marker; take a larger window")

    def costs(texts):                                       # tokens of their lines in a prompt
        return [size(node_pieces(tokenizer, None, text)) for text in texts]
    nodes = [Node(1, text) for text in chunks(tokenizer, document, settings.chunk)]
    edges: list[tuple[int, int, float]] = []
    level = list(range(len(nodes)))                         # ids of the level that is summarised
    while True:
        tokens = costs(nodes[i].text for i in level)
        windows = [[level[k] for k in window] for window in pack(tokens, space)]
        with tqdm(total=len(windows), desc=f"level {nodes[-1].level + 1}", unit="window", leave=False,
                  disable=not progress) as bar:
            made = summarise(model, nodes, windows, limit, settings, bar)
        if not made or sum(costs(text for text, _, _ in made)) >= sum(tokens):
            break
        level = list(range(len(nodes), len(nodes) + len(made)))
        nodes += [Node(nodes[-1].level + 1, text) for text, _, _ in made]
        edges += [(i, j, weight) for i, (_, window, e) in zip(level, made) for j, weight in zip(window, e.tolist())]
        if len(windows) == 1:
            break
    E = torch.zeros(len(nodes), len(nodes), dtype=torch.float64)
    for i, j, weight in edges:
        E[i, j] = weight
    return Graph(nodes, E, document.hash, model.fingerprint, settings.construction(), model.flops - flops)


# --- stage 2: dynamic graph search (section 3.2) --------------------------------------------------------------------

@dataclass
class Step:
    """One visited node, why it was read and what was known after it."""
    node: int
    level: int
    position: int                 # in the prompt; the query has position 1
    r: float                      # relevance to the query, position factor included
    z: float | None = None        # E^T r, when it was chosen; None for the nodes the search starts with
    similarity: float | None = None                       # c
    score: float | None = None    # final score
    runner_up: int | None = None
    runner_up_score: float | None = None
    p_yes: float | None = None    # None where no check was made
    verdict: str | None = None
    tokens: int = 0               # read so far, probes included
    flops: int = 0                # spent so far


def share(x: torch.Tensor) -> torch.Tensor:
    """x / sum(x); a sum of 0 stays 0 (GARLIC 3.2.2)."""
    total = x.sum()
    return x / total if total > 0 else torch.zeros_like(x)


def final_scores(E, r, c, attention: bool = True, similarity: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """z = E^T r (equation 1) and the final score z / sum(z) + max(c, 0) / sum(max(c, 0)), each [|V|].

    PECAN adds the similarity to z, GARLIC (3.2.2) says that both are first normalised to sum to 1 over V. The paper
    does not say what a negative cosine is worth; 0, because a share of the sum cannot be negative. The ablations of
    section 4.2 score by c or by z alone.
    """
    z = E.T @ r
    if not attention:
        return z, c
    return z, share(z) + share(c.clamp(min=0)) if similarity else z


class Search:
    """The state of one query: the node cache, the visited set S and the relevance r."""

    def __init__(self, model: Llama, graph: Graph, question: str, c: torch.Tensor, settings: Settings,
                 progress: bool = False):
        self.model, self.graph, self.settings, self.c = model, graph, settings, c.double()
        self.r = torch.zeros(len(graph.nodes), dtype=torch.float64)
        self.tokenizer, self.flops_before, self.tokens = model.tokenizer, model.flops, 0
        self.yes, self.no = self.tokenizer.first("Yes"), self.tokenizer.first("No")
        self.lines = [node_pieces(self.tokenizer, i, node.text) for i, node in enumerate(graph.nodes)]
        self.cache = Cache(model, 1, settings.window)
        self.trace: list[Step] = []
        self.bar = tqdm(desc="search", unit="node", leave=False, disable=not progress)
        opening = question_pieces(self.tokenizer, question)
        self.nodes_end = size(opening) + room_for_nodes(self.tokenizer, question, settings)
        self._read(opening)

    def _read(self, pieces, watch=None):
        self.tokens += size(pieces)
        return self.model.read(self.cache, [pieces], watch)

    @property
    def flops(self) -> int:
        """Spent on this query so far."""
        return self.model.flops - self.flops_before

    @property
    def visited(self) -> list[int]:
        return [step.node for step in self.trace]

    def fits(self, node: int) -> bool:
        """Whether the node can be read and the question still answered."""
        return self.cache.lengths[0] + size(self.lines[node]) <= self.nodes_end

    def visit(self, node: int, **why):
        """Read a node into the cache and set r_i = position x mean attention of its tokens to the question's
        (Appendix C).

        The tokens of the node are the queries and those of the question the keys; attention inside the node and to
        other nodes is left out, and r is not normalised. The position factor is the paper's, because later nodes
        spread their attention over more nodes.
        """
        marker, line = self.lines[node]
        _, seen = self._read([marker, line], self.cache.averages([["q"]]))                 # [1, T, 1]
        position = len(self.trace) + 2
        self.r[node] = position * seen[0, len(marker[1]):, 0].cpu().double().mean()
        self.trace.append(Step(node, self.graph.nodes[node].level, position, self.r[node].item(), **why,
                               tokens=self.tokens, flops=self.flops))
        self.bar.update()

    def check(self) -> bool:
        """Dynamic Progress Control (3.2.1): does the model say that S is enough? p_yes > t_p.

        The few tokens that close the user's turn are run against the cache, and taken back.
        """
        logits = self.model.probe(self.cache, self.tokenizer.frame.close)[0]
        self.tokens += len(self.tokenizer.frame.close)
        p_yes = logits[[self.yes, self.no]].cpu().double().softmax(0)[0].item()
        step = self.trace[-1]
        step.p_yes, step.verdict = p_yes, "Yes" if p_yes > self.settings.confidence else "No"
        step.tokens, step.flops = self.tokens, self.flops
        return step.verdict == "Yes"

    def start(self):
        """Visit the top level (3.2.1).

        The paper does not say what happens where it does not fit the window: those nodes most similar to the query
        are read, up to half of the window (one too long is passed over), in document order; the rest can still be
        retrieved. With a fixed number of nodes no more than that number divided by the number of levels start, chosen
        by similarity (section 4.2; its "many top-level nodes" are more than these). Raises InputError where not one
        node fits.
        """
        top, chosen = self.graph.top, []
        number, space = len(top), self.nodes_end - self.cache.lengths[0]
        if self.settings.fixed_nodes is not None:
            number = min(number, max(1, self.settings.fixed_nodes // self.graph.nodes[-1].level))
        if sum(size(self.lines[i]) for i in top) > space:
            space = min(space, self.settings.window // 2)
        for i in sorted(top, key=lambda i: -self.c[i].item()):
            if len(chosen) < number and size(self.lines[i]) <= space:
                space -= size(self.lines[i])
                chosen.append(i)
        if not chosen:
            raise InputError(f"window {self.settings.window} is too small for a node of the top level")
        for i in sorted(chosen):
            self.visit(i)

    def next(self) -> bool:
        """Visit the node outside S with the highest final score, of any level; False where none is left that fits.

        Ties go to the lower id. Of the nodes that would overfill the window none is tried; the best that fits is.
        """
        z, final = final_scores(self.graph.E, self.r, self.c, self.settings.attention, self.settings.similarity)
        visited, scores = set(self.visited), final.tolist()
        candidates = [i for i in range(len(scores)) if i not in visited and self.fits(i)]
        if not candidates:
            return False
        best, second = (sorted(candidates, key=lambda i: (-scores[i], i)) + [None])[:2]
        self.visit(best, z=z[best].item(), similarity=self.c[best].item(), score=final[best].item(), runner_up=second,
                   runner_up_score=None if second is None else final[second].item())
        return True

    def run(self) -> str:
        """Read until t_n checks said Yes, or the fixed number of nodes is read, or nothing more fits; returns why."""
        self.start()
        verdicts = 0
        while True:
            if self.settings.fixed_nodes is None:
                verdicts += self.check()
                if verdicts >= self.settings.patience:
                    return "yes"
            elif len(self.trace) >= self.settings.fixed_nodes:
                return "nodes"
            if not self.next():
                return "all" if len(self.trace) == len(self.graph.nodes) else "window"

    def answer(self) -> Answer:
        """Run the search, then Table A2's second turn in the same cache, greedy.

        The paper does not say what stays as the first assistant turn: the last verdict, which the threshold gave ("Yes"
        where no check was made).
        """
        end = self.run()
        verdict = self.no if self.trace[-1].verdict == "No" else self.yes
        hidden, _ = self._read(answer_pieces(self.tokenizer, verdict))
        ids, _ = self.model.generate(self.cache, hidden, self.settings.answer_tokens)
        self.tokens += len(ids[0])
        self.bar.close()
        text = self.tokenizer.decode(ids[0]).strip()
        return Answer(text, self.visited, self.flops, self.tokens, end, trace=self.trace)


@dataclass
class Prepared:
    """A document as a search wants it: its graph, unit vectors of the nodes [|V|, D], and what both cost."""
    graph: Graph
    vectors: torch.Tensor
    flops: int


class Pecan:
    """The method as the evaluation runs it: prepare a document, answer a question.

    `builder`, where given, is another model that builds the graph (Table 2); `encoder` gives the embedding similarity.
    """

    def __init__(self, model: Llama, encoder, settings: Settings, builder: Llama | None = None):
        self.model, self.encoder, self.settings, self.builder = model, encoder, settings, builder or model

    def key(self, document: Document) -> str:
        """Names the graph of this document, this building model and these settings, on disk."""
        parts = [FORMAT, document.hash, self.builder.fingerprint, self.settings.construction()]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def prepare(self, document: Document, path: str | Path | None = None, progress: bool = False) -> Prepared:
        """Load the graph at `path`, or build it (and save it there); and embed its nodes."""
        if path is not None and Path(path).exists():
            graph = load_graph(path, document, self.settings.construction(), self.builder)
        else:
            check_place(path)
            graph = build(self.builder, document, self.settings, progress)
            if path is not None:
                graph.save(path)
        flops = self.encoder.flops
        vectors = self.encoder.encode([node.text for node in graph.nodes])
        return Prepared(graph, vectors, graph.flops + self.encoder.flops - flops)

    def answer(self, prepared: Prepared, question: str, progress: bool = False) -> Answer:
        """Search the graph and answer; the FLOPs hold the query's embedding too."""
        flops = self.encoder.flops
        c = similarities(prepared.vectors, self.encoder.encode([question])[0])
        answer = Search(self.model, prepared.graph, question, c, self.settings, progress).answer()
        answer.flops += self.encoder.flops - flops
        return answer


# --- command line ---------------------------------------------------------------------------------------------------

def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="pecan.py", description="Answer questions about a long document with PECAN.")
    parser.add_argument("document", help="a UTF-8 text file")
    parser.add_argument("questions", nargs="+", metavar="question")
    parser.add_argument("--graph", help="where the graph is kept (default: beside the document, named by its content)")
    parser.add_argument("--trace", action="store_true", help="show every node that was read, and why")
    add_model_options(parser)
    args = parser.parse_args(argv)
    document = read_text(args.document)
    model, encoder, builder = load_models(args)
    settings = settings_for(model, builder, **chosen_settings(args))
    unknown = model.tokenizer.unknown(document.passages[0])
    if unknown > 0.1:
        print(f"warning: {unknown:.0%} of the document's words are unknown to this model; the embedded one knows its "
              "own small world only, take --model for others", file=sys.stderr)
    method = Pecan(model, encoder, settings, builder)
    path = Path(args.graph or f"{args.document}.{method.key(document)}.graph.json")
    reloaded = path.exists()
    prepared = method.prepare(document, path, progress=sys.stderr.isatty())
    levels = [node.level for node in prepared.graph.nodes]
    print(f"{'reloaded' if reloaded else 'built'} {path}: {len(levels)} nodes, by level "
          f"{[levels.count(level) for level in range(1, levels[-1] + 1)]}", file=sys.stderr)
    for question in args.questions:
        answer = method.answer(prepared, question, progress=sys.stderr.isatty())
        print(f"{question}\n  {answer.text}\n  ({len(answer.nodes)} of {len(levels)} nodes read, "
              f"{answer.flops / 1e9:,.3g} GFLOPs; {ENDS[answer.end]})")
        for step in answer.trace if args.trace else []:
            score = "top level" if step.score is None else \
                f"score {step.score:.3f} (z {step.z:.4f}, c {step.similarity:.3f})"
            check = "" if step.p_yes is None else f"  p_yes {step.p_yes:.3f} {step.verdict}"
            print(f"    #{step.node} of level {step.level}  {score}  r {step.r:.4f}{check}  "
                  f"{prepared.graph.nodes[step.node].text}")
    return 0


if __name__ == "__main__":
    sys.exit(user_errors(main))
