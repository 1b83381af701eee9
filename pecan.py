"""PECAN: attention graph construction and dynamic graph search.

PECAN (Wang et al., Findings of ACL 2025, https://aclanthology.org/2025.findings-acl.689/) and GARLIC, its earlier
version (https://arxiv.org/abs/2410.04790v1). "The paper" is PECAN; sections are its own unless GARLIC is named. The
authors' code (github.com/xnyuwg) could not be obtained, so our choices where the paper is silent are unchecked.

    V        nodes of the graph, |V| of them; level 1 are chunks, higher levels information points (IPs)
    a(x, j)  attention of token x to node j: the mean over layers, heads and the tokens of j (the paper's e_{x, v_j})
    e'_ij    the mean of a(x, j) over the tokens x of IP i
    E        edge weights [|V|, |V|]; E[i, j] = e_ij points from a higher node i to a lower node j
    q        the query;  S  the visited nodes, in the order they were read
    r        relevance of the visited nodes to the query [|V|], 0 elsewhere
    z        retrieval score, z = E^T r [|V|]
    c        cosine similarity of query and node [|V|]
    s        the window;  t_p  confidence threshold;  t_n  stop patience

Stage 1 (build, section 3.1) turns a document into a graph, once. Stage 2 (Search, section 3.2) answers a query. A
worked example, two IPs above three chunks (tests/test_pecan.py computes it too):

    e' of IP 3 to chunks 0, 1, 2 is .02 .06 .02, of IP 4 it is .01 .01 .03
    normalised by rows:     E[3] = [.2 .6 .2]      E[4] = [.2 .2 .6]
    S starts as (3, 4), at positions 2 and 3 (the query has position 1); mean attention to the query .10 and .04
                            r_3 = 2 x .10 = .20    r_4 = 3 x .04 = .12
    z = E^T r               z_0 = .2 x .20 + .2 x .12 = .064    z_1 = .6 x .20 + .2 x .12 = .144    z_2 = .112
    z / sum(z)              .20    .45    .35
    c / sum(c)              .30    .20    .50     negative cosines count as 0 (those of the IPs are 0 here)
    final                   .50    .65    .85     chunk 2 is read next
"""
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from support.command import user_errors

import torch
from tqdm import tqdm

from data import Document, read_text
from llama import Cache, Llama, Segment, length_of
from support.files import InputError
from support.graph_file import Fields, check_place, file_name, node_vectors, read_graph, write_graph
from support.heads import head_weights
from support.journal import Batch, InformationPoint, Journal
from support.method import Answer, Prepared, Step
from support.options import graph_path, load_models, parse_questions, settings_of, warn_if_unknown
from support.sbert import similarities
from support.settings import PASS, RESERVE, Settings
from support.text import bullets, in_a_loop, split, tokens_of
from support.trace import Recorder, note

# --- prompts (Appendix A) -------------------------------------------------------------------------------------------

# Table A1, word for word. Every node is a line that begins with "* ", as in the table's example. The blank lines that
# the paper prints between nodes are taken for layout. (GARLIC's Table 4 has one more line, of dots, after the points.)
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

# Table A2, word for word: first turn up to the first node, and second turn. (The blank line
# that PECAN prints after "Information:" is taken for layout, since GARLIC's Table 5 has none; so are its curly quotes.)
ASK = ("""Can this question be answered by the following information? Response "Yes" or "No" in one word. \
Do not provide any explanation.

Question:
""", "\n\nInformation:")
ANSWER = "Given the above information and question, answer the question as concisely as you can."

# A prompt is a list of segments that are tokenised one by one. So reading it node by node gives the same tokens as
# reading it in one pass. (A tokenizer may join the end of one segment with the start of the next, such as ".\n", if it
# is given the whole text at once.)


def node_line(tokenizer, node, text: str) -> list[Segment]:
    """The line of a node: its marker, which belongs to no node, and its text."""
    return [(None, tokenizer.encode("\n*")), (node, tokenizer.encode(" " + text))]


def summary_prompt(tokenizer, texts: dict[int, str]) -> list[Segment]:
    """Table A1 for the nodes of one window (node -> text), one user turn."""
    prompt = [(None, tokenizer.frame.open + tokenizer.encode(SUMMARISE[0]))]
    for node, text in texts.items():
        prompt += node_line(tokenizer, node, text)
    return [*prompt, (None, tokenizer.encode(SUMMARISE[1]) + tokenizer.frame.close)]


def question_prompt(tokenizer, question: str) -> list[Segment]:
    """Table A2 up to its first node. The question is treated as a node, "q" (Appendix C)."""
    if not question.strip():
        raise InputError("the question is empty")
    return [(None, tokenizer.frame.open + tokenizer.encode(ASK[0])), ("q", tokenizer.encode(question)),
            (None, tokenizer.encode(ASK[1]))]


def answer_turn(tokenizer, verdict: int) -> list[Segment]:
    """The first assistant turn, which is the token of the last verdict, and Table A2's second user turn."""
    frame = tokenizer.frame
    return [(None, [*frame.close, verdict, *frame.reopen, *tokenizer.encode(ANSWER), *frame.reclose])]


def room_for_nodes(tokenizer, question: str, settings: Settings) -> int:
    """Tokens that the window leaves for nodes between the question and the answer; InputError if it leaves none.

    The answer's room is kept free to the end. A probe's tokens go there, and are rolled back.
    """
    opening = length_of(question_prompt(tokenizer, question))
    closing = length_of(answer_turn(tokenizer, tokenizer.first("Yes"))) + settings.answer_tokens
    if opening + closing >= settings.window:
        raise InputError(f"window {settings.window} is too small: the question with its prompt and answer takes "
                         f"{opening + closing} tokens")
    return settings.window - opening - closing


# --- the graph (section 3) ------------------------------------------------------------------------------------------

@dataclass
class Node:
    level: int                    # 1: a chunk of the document; higher: an information point
    text: str


@dataclass
class Graph:
    """The hierarchical weighted directed acyclic graph of one document.

    A node's place in `nodes` is its id, and levels come in order. E [|V|, |V|] is float64 and sparse (COO): row i sums
    to 1, or is all 0 if i is a chunk. `flops` is what the construction cost.
    """
    nodes: list[Node]
    E: torch.Tensor
    document: str                 # sha256 of the document
    model: str                    # fingerprint of the checkpoint that built it
    settings: dict
    flops: int = 0
    repeats: int = 0              # bullets that were left out, because their reply had them before
    loops: int = 0                # replies that were ended, because a line came three times in succession
    kept_lines: dict = field(default_factory=dict, compare=False, repr=False)      # tokenizer -> lines

    def lines(self, tokenizer) -> list[list[Segment]]:
        """The line of each node in a prompt, tokenised once for all queries."""
        if tokenizer not in self.kept_lines:
            self.kept_lines[tokenizer] = [node_line(tokenizer, i, node.text) for i, node in enumerate(self.nodes)]
        return self.kept_lines[tokenizer]

    @property
    def top_level(self) -> list[int]:
        """Ids of the top level, in document order."""
        return [i for i, node in enumerate(self.nodes) if node.level == self.nodes[-1].level]

    def save(self, path: str | Path):
        """Write a readable JSON file (support/graph_file.py)."""
        edges = [(i, j, e) for (i, j), e in zip(self.E.indices().T.tolist(), self.E.values().tolist(), strict=True)]
        write_graph(path, Fields([node.level for node in self.nodes], [node.text for node in self.nodes], edges,
                                 self.document, self.model, self.settings, self.flops, self.repeats, self.loops))

    @classmethod
    def load(cls, path: str | Path, document: Document | None = None, settings: dict | None = None,
             model: Llama | None = None) -> "Graph":
        """Read a graph that save wrote; InputError if the file is damaged or belongs to something else."""
        file = read_graph(path, document and document.hash, model and model.fingerprint, settings)
        nodes = [Node(level, text) for level, text in zip(file.levels, file.texts)]
        return cls(nodes, edge_matrix(file.edges, len(nodes)), *file[3:])


def edge_matrix(edges: list[tuple[int, int, float]], V: int) -> torch.Tensor:
    """E [|V|, |V|] from edges (i, j, e_ij); every other pair of nodes is exactly 0, and takes no memory."""
    places = torch.tensor([(i, j) for i, j, _ in edges], dtype=torch.int64).reshape(-1, 2).T
    weights = torch.tensor([e for _, _, e in edges], dtype=torch.float64)
    return torch.sparse_coo_tensor(places, weights, (V, V), check_invariants=True).coalesce()


# --- stage 1: attention graph construction (section 3.1) ------------------------------------------------------------

def chunks(tokenizer, document: Document, limit: int) -> list[str]:
    """The chunks of a document, in order, of at most `limit` tokens; a chunk never mixes passages.

    The paper does not say where to cut. We cut at the last white space that fits, because half a word says nothing.
    Newlines become blanks, because the prompt separates segments by them.
    """
    return [text for passage in document.passages for text in split(tokenizer, passage, limit)]


def room_for_summary(tokenizer, settings: Settings) -> tuple[int, int]:
    """The tokens that a window keeps for the summary, and those it has for nodes; InputError if no chunk fits."""
    limit = int(settings.window * settings.summary_share)
    space = settings.window - limit - length_of(summary_prompt(tokenizer, {}))
    if limit < 1 or space < settings.chunk + len(tokenizer.encode("\n*")):
        raise InputError(f"window {settings.window} is too small: the prompt and a summary of up to {limit} tokens "
                         f"leave {space}, a chunk takes up to {settings.chunk} and its marker; take a larger window")
    return limit, space


def pack(lengths: list[int], space: int) -> list[range]:
    """Windows of neighbouring nodes: each takes nodes in order, as long as their tokens fit in `space` (GARLIC 3.1)."""
    windows = []
    start, used = 0, 0                                      # of the window that is being filled
    for i, length in enumerate(lengths):
        if length > space:
            raise InputError(f"a node of {length} tokens does not fit the {space} that prompt and summary leave in the "
                             "window; take a larger window or smaller chunks")
        if used + length > space:
            windows.append(range(start, i))
            start = i
            used = 0
        used += length
    return [*windows, range(start, len(lengths))]


def edge_weights(a: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    """The edges of one IP to the N nodes of its window, [N]; they sum to 1.

    a [tokens of the reply, N] is a(x, j), averaged over layers, heads and the tokens of node j (section 3.1,
    "Extracting" and the first half of "Aggregating"). Here it is averaged over the IP's tokens (their places in the
    reply), e'_ij = mean_x a(x, j), and normalised, e_ij = e'_ij / sum_j' e'_ij'. There is no second softmax. If all
    attention rounds to 0, so do the edges.
    """
    e = a[tokens].cpu().double().mean(0)
    note("edges", tokens=tokens, e_prime=e)
    return share(e)


def information_points(tokenizer, ids: list[int], a, window: list[int], limit: int,
                       tree: bool) -> tuple[list[InformationPoint], int]:
    """The IPs of a reply to the nodes of `window`, and how many bullets were left out as repeats.

    `ids` are the reply's tokens, a [tokens, at least N] their a(x, j). With `tree` (w/o IP-based graph, section 4.2)
    the bullets joined are one summary node. The paper does not say what becomes of a bullet that repeats another one
    of its reply word for word: the first one stays, with its own edges, because a second adds nothing to read.
    """
    text, token_ends = tokenizer.ends(ids)
    spans = bullets(text, complete=len(ids) < limit)
    tokens = {}                                             # text of a bullet -> its tokens
    for start, end in spans:
        tokens.setdefault(" ".join(text[start:end].split()), tokens_of((start, end), token_ends))
    repeats = len(spans) - len(tokens)
    if tree:
        tokens = {" ".join(tokens): sorted(set().union(*tokens.values()))}

    # In a batch, a has the columns of the largest window. Those of a smaller window come first, the others are 0.
    return [InformationPoint(bullet, window, edge_weights(a, places)[:len(window)].tolist())
            for bullet, places in tokens.items() if places], repeats


def summarise(model: Llama, nodes: list[Node], windows: list[list[int]], limit: int, settings: Settings,
              progress=lambda tokens: None) -> Batch:
    """Summarise the nodes of each window (ids) in up to `limit` tokens; the IPs of all windows come in order.

    The windows run together. Their prompts go through the fused kernel; attention is taken from the tokens of the
    replies alone, as they are generated. The paper does not say: if a reply is empty, or markers alone, the nodes of
    its window get no edges from above, and similarity alone can find them; a reply that loops (text.in_a_loop) ends.
    """
    tokenizer = model.tokenizer
    flops_before = model.flops
    looped = partial(in_a_loop, tokenizer)

    # Prefill: the prompts are read, and the cache learns which tokens belong to which node.
    prompts = [summary_prompt(tokenizer, {i: nodes[i].text for i in window}) for window in windows]
    cache = Cache(model, len(windows), max(map(length_of, prompts)) + limit, settings.edge_heads)
    hidden, _ = model.read(cache, prompts)

    # Decode: every token of the replies comes with its attention to the window's nodes, a(x, j).
    replies, attention = model.generate(cache, hidden, limit, cache.averaging_matrix(windows), progress, looped)

    points = []
    repeats = 0
    for window, ids, a in zip(windows, replies, attention, strict=True):
        note("window", nodes=window, reply=ids, a=a)
        new, left_out = information_points(tokenizer, ids, a, window, limit, settings.tree)
        points += new
        repeats += left_out
    return Batch(len(windows), points, model.flops - flops_before, repeats, sum(map(looped, replies)))


def summarise_level(model: Llama, nodes: list[Node], windows: list[list[int]], limit: int, settings: Settings,
                    finished: list, recalled: Iterator, progress: bool) -> list[InformationPoint]:
    """The IPs of a whole level: `settings.batch` windows run together, unless `recalled` has them (see build)."""
    points = []
    done = 0
    with tqdm(desc=f"level {nodes[-1].level + 1}", total=len(windows) * limit, unit="token", leave=False,
              disable=not progress) as bar:
        while done < len(windows):
            batch = next(recalled, None)
            if batch is None:
                batch = summarise(model, nodes, windows[done:done + settings.batch], limit, settings, bar.update)
                finished.append(batch)

            points += batch.points
            done += batch.windows
            bar.total = bar.n + (len(windows) - done) * limit             # at most; few replies take all that they may
    return points


def build(model: Llama, document: Document, settings: Settings, progress: bool = False, finished=None) -> Graph:
    """Stage 1 (Figure 1): chunks, then level after level of IPs with their edges. Raises InputError if nothing fits.

    The paper does not say how much of the window a summary may take (settings.summary_share), nor when to stop (the two
    comments that begin with "Silent"). Batches that the list `finished` holds are not run again, and every new one is
    appended (Journal keeps them on disk).
    """
    tokenizer = model.tokenizer
    finished = [] if finished is None else finished
    recalled = iter(list(finished))
    limit, space = room_for_summary(tokenizer, settings)

    def line_length(text):
        return length_of(node_line(tokenizer, None, text))

    # Level 1: the chunks of the document.
    nodes = [Node(1, text) for text in chunks(tokenizer, document, settings.chunk)]
    level = list(range(len(nodes)))                         # ids of the level that is summarised next
    edges = []                                              # (i, j, e_ij)

    while True:
        # Pack the level into windows of at most s tokens, prompt and summary included, in document order.
        lengths = [line_length(nodes[i].text) for i in level]
        windows = [[level[place] for place in window] for window in pack(lengths, space)]

        # The model summarises each window; every bullet is an IP with its edges to the window's nodes.
        points = summarise_level(model, nodes, windows, limit, settings, finished, recalled, progress)

        # Silent: a level of no fewer tokens is given up, or building might never end. Its FLOPs still count. The level
        # below it is the top.
        if not points or sum(line_length(point.text) for point in points) >= sum(lengths):
            break

        level = []
        height = nodes[-1].level + 1
        for point in points:
            edges += [(len(nodes), j, e) for j, e in zip(point.window, point.e, strict=True) if e > 0]
            level.append(len(nodes))
            nodes.append(Node(height, point.text))

        # Silent: a single window has seen everything below it together, so its IPs are the top.
        if len(windows) == 1:
            break

    flops = sum(batch.flops for batch in finished)
    repeats = sum(batch.repeats for batch in finished)
    loops = sum(batch.loops for batch in finished)
    return Graph(nodes, edge_matrix(edges, len(nodes)), document.hash, model.fingerprint, settings.of_construction(),
                 flops, repeats, loops)


# --- stage 2: dynamic graph search (section 3.2) --------------------------------------------------------------------

def share(x: torch.Tensor) -> torch.Tensor:
    """x / sum(x); a sum of 0 stays 0 (GARLIC 3.2.2)."""
    total = x.sum()
    return x / total if total > 0 else torch.zeros_like(x)


def final_scores(E, r, c, attention: bool = True, similarity: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """z = E^T r (equation 1) and the final score z / sum(z) + max(c, 0) / sum(max(c, 0)), each [|V|].

    PECAN adds the similarity to z; GARLIC (3.2.2) says that both are first normalised to sum to 1 over V. The paper
    does not say what a negative cosine is worth: 0, because a share of the sum cannot be negative. The ablations of
    section 4.2 score by c alone (attention=False) or by z alone (similarity=False).
    """
    z = E.T @ r
    if not attention:
        return z, c
    if not similarity:
        return z, z
    return z, share(z) + share(c.clamp(min=0))


class Search:
    """One query: the node cache, the visited nodes S with their relevance r, and what was spent."""

    def __init__(self, model: Llama, graph: Graph, question: str, c: torch.Tensor, settings: Settings,
                 progress: bool = False):
        self.model = model
        self.tokenizer = model.tokenizer
        self.graph = graph
        self.settings = settings
        self.c = c.double()                                               # [|V|]
        self.r = torch.zeros(len(graph.nodes), dtype=torch.float64)       # [|V|]
        self.trace: list[Step] = []                                       # of the nodes in S, in order
        self.tokens = 0
        self.probe = self.tokenizer.frame.close if settings.fixed_nodes is None else []      # what a check reads
        self.flops_before = model.flops
        self.bar = tqdm(desc="search", total=settings.window, unit="token", leave=False, disable=not progress)

        self.lines = graph.lines(self.tokenizer)
        self.lengths = torch.tensor([length_of(line) for line in self.lines])                # [|V|]
        opening = question_prompt(self.tokenizer, question)
        self.nodes_end = length_of(opening) + room_for_nodes(self.tokenizer, question, settings)
        self.cache = model.new_cache(1, settings.window, settings.relevance_heads)
        note("query", c=self.c, tokens=self.lengths.tolist(), room=self.nodes_end)
        self.read(opening)

    def read(self, segments: list[Segment], averaging=None, probe=()):
        """Read segments into the cache, counted; returns what Llama.read does."""
        self.tokens += length_of(segments) + len(probe)
        self.bar.update(length_of(segments))
        return self.model.read(self.cache, [segments], averaging, probe)

    @property
    def flops(self) -> int:
        """Spent on this query so far."""
        return self.model.flops - self.flops_before

    @property
    def visited(self) -> list[int]:
        """S: the ids of the nodes that were read, in order."""
        return [step.node for step in self.trace]

    def visit(self, nodes: list[int], probe: list[int], **why):
        """Read nodes into the cache and set r_i = position x mean attention of the tokens of i to the question's.

        Appendix C: the tokens of the node are the queries and those of the question the keys. Attention inside the node
        and to other nodes is left out, and r is not normalised. The position factor makes up for later nodes, which
        spread their attention over more nodes. A `probe`, the ids that close the user's turn, runs in the same pass and
        is rolled back, so that the next node can continue the turn.
        """
        before = self.cache.lengths[0]
        rolled_back = self.tokens - before
        lines = [segment for node in nodes for segment in self.lines[node]]
        self.probed, a = self.read(lines, self.cache.averaging_matrix([["q"]]), probe)     # [1, D], [1, T, 1]

        for node in nodes:
            first, end = self.cache.nodes[0][node]                                         # without the marker
            attention = a[0, first - before:end - before, 0].cpu().double().mean().item()
            position = len(self.trace) + 2                                                 # the query has position 1
            self.r[node] = position * attention
            note("visit", attention=attention, cached=end)
            self.trace.append(Step(node, self.graph.nodes[node].level, position, self.r[node].item(), **why,
                                   tokens=rolled_back + end, flops=self.flops))

    def check(self) -> bool:
        """Dynamic progress control (3.2.1): does the model say that S is enough to answer, p_yes > t_p?"""
        logits = self.model.logits(self.probed)[0]                                         # [vocabulary]
        yes_no = [self.tokenizer.first("Yes"), self.tokenizer.first("No")]

        step = self.trace[-1]
        step.p_yes = logits[yes_no].cpu().double().softmax(0)[0].item()
        step.verdict = "Yes" if step.p_yes > self.settings.confidence else "No"
        step.tokens = self.tokens
        step.flops = self.flops
        return step.verdict == "Yes"

    def start(self):
        """Visit the top level (3.2.1), in document order. Raises InputError if not one of its nodes fits.

        The paper does not say what happens if it does not fit the window. Then nodes are taken by their similarity to
        the query, each that still fits, so that RESERVE more nodes of chunk size (or half of the room, if that is less)
        have room; the others can still be retrieved. Without progress control, section 4.2 limits documents with "many"
        top-level nodes: here those with more than the fixed number divided by the number of levels; the most similar
        ones start.
        """
        top_level = self.graph.top_level
        most = len(top_level)
        if self.settings.fixed_nodes is not None:
            levels = self.graph.nodes[-1].level
            most = min(most, max(1, self.settings.fixed_nodes // levels))

        space = self.nodes_end - self.cache.lengths[0]
        if sum(length_of(self.lines[i]) for i in top_level) > space:
            space -= min(RESERVE * self.settings.chunk, space // 2)

        chosen = []
        for i in sorted(top_level, key=lambda i: -self.c[i].item()):
            length = length_of(self.lines[i])
            if len(chosen) < most and length <= space:
                chosen.append(i)
                space -= length
        if not chosen:
            raise InputError(f"window {self.settings.window} is too small for a node of the top level")

        chosen.sort()
        lengths = [length_of(self.lines[i]) for i in chosen]
        for group in pack(lengths, max(PASS, *lengths)):
            self.visit([chosen[place] for place in group], self.probe if len(chosen) - 1 in group else [])

    def next(self) -> bool:
        """Visit the node outside S with the highest final score (3.2.2), of any level; False if none is left that fits.

        Ties go to the lower id. In a full window the best node that still fits is taken (the paper does not say).
        """
        z, final = final_scores(self.graph.E, self.r, self.c, self.settings.attention, self.settings.similarity)

        # A node can be read if the question can still be answered after it.
        possible = self.cache.lengths[0] + self.lengths <= self.nodes_end                    # [|V|]
        possible[self.visited] = False
        candidates = possible.nonzero()[:, 0]
        order = candidates[final[candidates].argsort(descending=True, stable=True)].tolist()
        if not order:
            return False

        note("choice", r=self.r, z=z, scores=final, order=order)
        best, runner_up = [*order, None][:2]
        self.visit([best], self.probe, z=z[best].item(), similarity=self.c[best].item(), score=final[best].item(),
                   runner_up=runner_up, runner_up_score=None if runner_up is None else final[runner_up].item())
        return True

    def run(self) -> str:
        """Read until t_n checks (successive or not) have said Yes, a fixed number of nodes is read, or nothing fits.

        Returns why reading ended, a key of support.method.ENDS.
        """
        self.start()
        yes = 0
        while True:
            if self.settings.fixed_nodes is None:
                yes += self.check()
                if yes >= self.settings.patience:
                    return "yes"
            elif len(self.trace) >= self.settings.fixed_nodes:
                return "nodes"

            if not self.next():
                return "all" if len(self.trace) == len(self.graph.nodes) else "window"

    def answer(self) -> Answer:
        """Run the search, then ask Table A2's second turn in the same cache and decode greedily.

        The paper does not say what stays as the first assistant turn. We keep the last verdict, as the threshold gave
        it, or "Yes" if no check was made.
        """
        end = self.run()

        verdict = self.tokenizer.first("No" if self.trace[-1].verdict == "No" else "Yes")
        hidden, _ = self.read(answer_turn(self.tokenizer, verdict))
        ids, _ = self.model.generate(self.cache, hidden, self.settings.answer_tokens, progress=self.bar.update)
        self.tokens += len(ids[0])

        self.bar.close()
        text = self.tokenizer.decode(ids[0]).strip()
        return Answer(text, self.visited, self.flops, self.tokens, end, trace=self.trace)


# --- both stages ----------------------------------------------------------------------------------------------------

class Pecan:
    """The method as it is run: prepare a document once, then answer its questions (support.method.Method).

    `encoder` gives the embedding similarity. `builder`, if given, is another model that builds the graph (Table 2).
    """

    def __init__(self, model: Llama, encoder, settings: Settings, builder: Llama | None = None):
        self.model = model
        self.encoder = encoder
        self.settings = settings
        self.builder = builder or model
        for checkpoint, heads in ((self.builder, settings.edge_heads), (model, settings.relevance_heads)):
            head_weights(heads, checkpoint.config.layers, checkpoint.config.heads)       # refused now, not after hours

    def file_name(self, document: Document) -> str:
        """Names the graph of this document, this building model and these settings on disk."""
        return file_name(document.hash, self.builder.fingerprint, self.settings.of_construction())

    def prepare(self, document: Document, path: str | Path | None = None, progress: bool = False) -> Prepared:
        """Load the graph at `path`, or build it (and save it there), and embed its nodes (`index`, [|V|, D])."""
        if path is not None and Path(path).exists():
            graph = Graph.load(path, document, self.settings.of_construction(), self.builder)
        else:
            check_place(path)
            journal = Journal(path, self.file_name(document))   # an interrupted construction goes on
            graph = build(self.builder, document, self.settings, progress, journal)
            if path is not None:
                graph.save(path)
            journal.remove()

        texts = [node.text for node in graph.nodes]
        vectors, flops = node_vectors(path, self.encoder, texts)
        return Prepared(texts, graph.flops + flops, graph, vectors, repeats=graph.repeats, loops=graph.loops)

    def answer(self, prepared: Prepared, question: str, progress: bool = False) -> Answer:
        """Search the graph and answer. The FLOPs include the embedding of the query."""
        flops_before = self.encoder.flops
        c = similarities(prepared.index, self.encoder.encode([question])[0])               # [|V|]
        of_query = self.encoder.flops - flops_before
        answer = Search(self.model, prepared.graph, question, c, self.settings, progress).answer()
        answer.flops += of_query
        return answer


# --- command line ---------------------------------------------------------------------------------------------------

def main(argv=None) -> int:
    args = parse_questions(argv)
    progress = sys.stderr.isatty()

    document = read_text(args.document)
    model, encoder, builder = load_models(args)
    warn_if_unknown(model, document)
    settings = settings_of(args, model, builder)
    method = Recorder(Pecan(model, encoder, settings, builder), None if args.trace == "-" else args.trace, args.dump)

    path = graph_path(args, method.file_name(document))
    verb = "reloaded" if path.exists() else "built"
    prepared = method.prepare(document, path, progress)
    levels = [node.level for node in prepared.graph.nodes]
    by_level = [levels.count(level) for level in range(1, levels[-1] + 1)]
    print(f"{verb} {path}: {len(levels)} nodes, by level {by_level}; repeated bullets left out "
          f"{prepared.repeats}, replies that looped {prepared.loops}", file=sys.stderr)

    for question in args.questions:
        answer = method.answer(prepared, question, progress)
        if args.json:
            print(answer.as_json(question, prepared.texts))
        else:
            print(answer.as_text(question, prepared.texts, steps=args.trace == "-"))
    return 0


if __name__ == "__main__":
    sys.exit(user_errors(main))
