"""PECAN: attention graph construction and dynamic graph search.

"The paper" is PECAN (Findings of ACL 2025, https://aclanthology.org/2025.findings-acl.689/). Section numbers are those
of the paper or, after the name GARLIC, those of its earlier version (https://arxiv.org/abs/2410.04790v1).

    V        nodes of the graph, |V| of them; level 1 holds chunks, higher levels hold information points (IPs)
    a(x, j)  attention of token x to node j: the mean over layers, heads and the tokens of j (the paper's e_{x, v_j})
    e'_ij    the mean of a(x, j) over the tokens x of IP i
    E        edge weights [|V|, |V|]; E[i, j] = e_ij points from a higher node i to a lower node j
    q        the query;  S  the visited nodes, in the order they were read
    r        relevance of the visited nodes to the query [|V|], 0 elsewhere
    z        retrieval score, z = Eᵀr [|V|]
    c        cosine similarity of query and node [|V|]
    t_p      confidence threshold: .5, but .98 for Qasper and .55 for MuSiQue (Appendix E)
    t_n      stop patience: 1

    window   s, the most tokens of a prompt and its reply together
    limit    the most tokens of a reply
    room     the tokens of a window that nodes may take
    group    neighbouring nodes that are summarised in one window, N of them (the paper's "batch")
    batch    groups that run together, as rows of one cache
    PASS     = 512: the top level is read in pieces of at most this many tokens, or as many as its longest node has
    RESERVE  = 5: if the top level does not fit, room for this many chunks stays free, but at most half of the room

Stage 1 (build, section 3.1) turns a document into a graph, once. Stage 2 (Search, section 3.2) answers a query. A
worked example, two IPs above three chunks (tests/numerics/test_7_pecan.py computes it too):

    e' to chunks 0, 1, 2    IP 3: .02 .06 .02      IP 4: .01 .01 .03
    normalised by rows      E[3] = [.2 .6 .2]      E[4] = [.2 .2 .6]
    S starts as (3, 4)
    positions               query 1, IP 3: 2, IP 4: 3
    attention to the query  IP 3: .10              IP 4: .04
    times the position      r_3 = 2 x .10 = .20    r_4 = 3 x .04 = .12
    z = Eᵀr                 z_0 = .2 x .20 + .2 x .12 = .064    z_1 = .6 x .20 + .2 x .12 = .144    z_2 = .112
    z / sum(z)              .20    .45    .35
    c / sum(c)              .30    .20    .50     (the IPs have c = 0 here, so only the chunks add to sum(c))
    final                   .50    .65    .85     chunk 2 is read next
"""
import re
from collections.abc import Callable, Generator
from copy import copy
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import torch

from core.code import identity_of
from core.disk import node_vectors
from core.files import InputError, attempt, remark
from core.lockstep import side_by_side
from core.settings import CANDIDATES, PASS, RESERVE, Settings, resolve
from core.text import split
from core.together import Batches, Construction, batch_rows, search_rows, together
from data import Answer, Document, Method, Prepared
from encoders.sbert import load_encoder, similarities
from llama import Cache, Llama, Segment, flops_of_reply, length_of, mean_over_heads
from model.tokenizer import without_thought

# --- the graph (section 3) ------------------------------------------------------------------------------------------

@dataclass
class Node:
    """A chunk of the document, or an information point (section 3)."""
    level: int                    # 1: a chunk; higher: an information point
    text: str


@dataclass
class Graph:
    """The hierarchical weighted directed acyclic graph of one document (section 3).

    A node's id is its index in `nodes`, and levels come in order. An edge is (i, j, e_ij), from node i to a node j one
    level below. `flops` were spent on the construction.
    """
    nodes: list[Node]
    edges: list[tuple[int, int, float]]
    flops: int = 0

    @cached_property
    def E(self) -> torch.Tensor:
        """The edge weights [|V|, |V|], float64: 8 MB for 1,000 nodes.

        Row i sums to 1, or is all 0 if i is a chunk, or an information point whose attention rounds to 0.
        """
        E = torch.zeros(len(self.nodes), len(self.nodes), dtype=torch.float64)
        for i, j, e in self.edges:
            E[i, j] = e
        return E

    @property
    def top_level(self) -> list[int]:
        """Ids of the top level, in document order."""
        return [i for i, node in enumerate(self.nodes) if node.level == self.nodes[-1].level]


# --- stage 1: attention graph construction (section 3.1) ------------------------------------------------------------

# Table A1, word for word. Every node is a line that begins with "* ", as in the table's example. The blank lines
# between the paper's nodes seem to be layout; we leave them out.
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

# A prompt is a list of segments. Each is tokenised alone, so node by node gives the same ids as all at once. (In the
# whole text, a tokenizer may join the end of a segment and the start of the next into one token, as in ".\n".)


def node_line(tokenizer, node, text: str) -> list[Segment]:
    """The line of a node: "* " and the text. Only the text belongs to the node, since all nodes share the marker."""
    return [(None, tokenizer.encode("\n*")), (node, tokenizer.encode(" " + text))]


def summary_prompt(tokenizer, texts: list[str]) -> list[Segment]:
    """Table A1 with the nodes of one group, as one user turn. Each node is named by its index in the group."""
    prompt = [(None, tokenizer.frame.before_user + tokenizer.user(SUMMARISE[0]))]
    for j, text in enumerate(texts):
        prompt += node_line(tokenizer, j, text)
    return [*prompt, (None, tokenizer.encode(SUMMARISE[1]) + tokenizer.frame.before_reply)]


class InformationPoint(NamedTuple):
    """A bullet of a summary, before it becomes a node."""
    text: str
    e: list[float]                # its edges to the nodes of its group [N]


class Summary(NamedTuple):
    """The points that the model made of a group of nodes."""
    points: list[InformationPoint]
    flops: int                    # of the prompt and the reply


def chunks(tokenizer, document: Document, most: int) -> list[str]:
    """The chunks of a document, in order. A chunk has at most `most` tokens.

    A document may consist of passages, such as HotpotQA's paragraphs; a chunk never spans two.

    A chunk ends at the last white space that fits, because half a word says nothing; the paper does not say where to
    cut. Newlines become blanks, because the prompt separates segments by newlines. InputError if the document is blank.
    """
    texts = [text for passage in document.passages for text in split(tokenizer, passage, most)]
    if not texts:
        raise InputError(f"document {document.id} is blank")
    return texts


def limit_and_room(tokenizer, settings: Settings) -> tuple[int, int]:
    """The limit of a summary and the room for nodes, in tokens.

    Prompt, nodes and summary together fill the window (GARLIC 3.1).

    A summary may take a quarter of the window (settings.summary_share), because bullets are short; the paper does not
    say how much.
    """
    limit = settings.summary_tokens
    room = settings.window - limit - length_of(summary_prompt(tokenizer, []))
    if limit < 1 or room < settings.chunk + len(tokenizer.encode("\n*")):
        raise InputError(f"window {settings.window} is too small for the prompt, a summary of {limit} tokens and a "
                         f"chunk of {settings.chunk}; take a larger window or a smaller chunk")
    return limit, room


def pack(lengths: list[int], room: int) -> list[range]:
    """Divide nodes into groups of neighbours. A group ends where the next node would not fit `room` (GARLIC 3.1).

    PECAN 3.1 stops when the total exceeds s; we stop before. A node longer than the room is an error: we never cut a
    node. (The paper does not say.)
    """
    groups = []
    first = 0                                               # the first node of the group that is being filled
    used = 0                                                # tokens of the group so far
    for i, length in enumerate(lengths):
        if length > room:
            raise InputError(f"a node of {length} tokens does not fit the window, which has room for {room}; take a "
                             "larger window or smaller chunks")
        if used + length > room:
            groups.append(range(first, i))
            first = i
            used = 0
        used += length
    return [*groups, range(first, len(lengths))]


def share(x: torch.Tensor) -> torch.Tensor:
    """x / sum(x). If the sum is 0, all shares are 0."""
    total = x.sum()
    return x / total if total > 0 else torch.zeros_like(x)


def edge_weights(a: torch.Tensor, x: list[int]) -> torch.Tensor:
    """The edges of one IP to the N nodes of its group, [N].

    `a` [tokens of the reply, N] holds a(x, j), the mean over layers, heads and the tokens of node j (section 3.1,
    "Extracting" and the first half of "Aggregating"). `x` are the indices of the IP's tokens in the reply. e'_ij is the
    mean of a(x, j) over these x. The normalisation e_ij = e'_ij / sum_j' e'_ij' is a division, not a softmax.
    The edges sum to 1, or are 0 if all attention rounds to 0.
    """
    return share(a[x].cpu().double().mean(0))


# The paper asks for "* summary point". Models also write other marks and numbers.
MARK = re.compile(r"\s*(?:[*+•-]|[0-9]+[.)])(?:\s+|$)")


def bullets(text: str, complete: bool = True) -> list[list[tuple[int, int]]]:
    """The information points of a reply (3.1), each as the (start, end) of its lines.

    A point is a line that begins with MARK. An unmarked line goes on with the point above it. Before the first mark it
    is left out if it ends with a colon ("Here is a summary:"), and is a point otherwise, so a reply without any mark is
    one point. Headings, which are unmarked lines that begin with # or are wholly in bold, are left out, and so are
    words of Table A1 itself ("Summary points:"). The paper does not say any of this.

    If the length limit cut the reply off (complete=False), its last point is dropped, unless it is the only one. Empty
    points are dropped.
    """
    points = []
    marked = False
    for line in re.finditer(".+", text):                    # "." is any character but a newline
        words = line[0].strip()
        mark = MARK.match(line[0])
        if mark:
            marked = True
            points.append([])
        elif words.startswith("#") or re.fullmatch(r"\*\*[^*]+\*\*", words) or of_table_a1(words):
            continue
        elif not marked and words.endswith(":"):
            continue
        elif not points:
            points.append([])

        start = line.start() + (mark.end() if mark else line[0].index(words))
        end = line.start() + len(line[0].rstrip())
        if start < end:
            points[-1].append((start, end))

    whole = points if complete else points[:-1]
    return [point for point in whole if point] or [point for point in points if point]


def of_table_a1(line: str) -> bool:
    """Whether the words of a line follow each other in Table A1, as in "Summary points:", or it has no words."""
    def words(text):
        return " ".join(["", *re.findall(r"\w+", text.casefold()), ""])

    return words(line) in words(" ".join(SUMMARISE))


def tokens_of(span: tuple[int, int], token_spans: list[tuple[int, int]]) -> list[int]:
    """The indices x of the tokens that share a character with span = (start, end); see Tokenizer.spans."""
    start, end = span
    return [x for x, (first, last) in enumerate(token_spans) if first < end and last > start]


def information_points(tokenizer, ids: list[int], a, limit: int, tree: bool,
                       edges: Callable = edge_weights) -> list[InformationPoint]:
    """The IPs of a reply. `ids` are its tokens; `a` [tokens, N] has a row a(x, j) for each of them, or is
    None if there are none. `edges` weighs the edges of an IP.

    A reply of `limit` tokens may be cut off, so its last bullet is dropped if there are other points. A bullet that
    repeats an earlier one word for word is dropped, because it adds nothing to read; the paper does not say.

    A thought (<think> .. </think>) is no part of the summary; the paper does not say.

    With `tree` (w/o IP-based graph, section 4.2) a group has one node ("many-to-one"). It is all bullets together; the
    paper does not say.
    """
    if tokenizer.thinking(ids):
        remark("a summary ended inside its thought, so it says nothing; take a checkpoint that answers at once")
    text, token_spans = tokenizer.spans(ids)
    text = without_thought(text)                            # blanks instead of it, so the spans still fit
    tokens = {}                                             # text of a bullet -> the indices x of its tokens
    for spans in bullets(text, complete=len(ids) < limit):
        bullet = " ".join(" ".join(text[start:end] for start, end in spans).split())
        tokens.setdefault(bullet, sorted({x for span in spans for x in tokens_of(span, token_spans)}))
    if tree and tokens:
        tokens = {" ".join(tokens): sorted(set().union(*tokens.values()))}
    return [InformationPoint(bullet, edges(a, x).tolist()) for bullet, x in tokens.items()]


def summarise(model: Llama, batch: list[list[str]], settings: Settings, over: Callable = mean_over_heads,
              edges: Callable = edge_weights) -> list[Summary]:
    """Summarise each group of node texts, all groups in one batch.

    `over` says which layers and heads make a(x, y), and `edges` makes the edges of an IP from a(x, j).

    The prompt runs through PyTorch's fused kernel, which returns no weights. None are needed: only the reply's tokens
    count, and their weights are computed one by one. If a reply is empty, the nodes of its group have no edges from
    above, and z never finds them; the paper does not say what to do.
    """
    tokenizer = model.tokenizer
    limit = settings.summary_tokens

    # Prefill: the model reads the prompts, and the cache records where the tokens of each node are.
    prompts = [summary_prompt(tokenizer, texts) for texts in batch]
    cache = Cache(model, len(batch), max(map(length_of, prompts)) + limit, over)
    hidden, _ = model.read(cache, prompts)

    # Decode: the model writes the replies. Every token comes with its attention to the nodes of its group, a(x, j).
    averaging = cache.averaging_matrix([range(len(texts)) for texts in batch])
    replies, attentions = model.generate(cache, hidden, limit, averaging)

    # Trap: a has as many columns as the largest group has nodes. Keep the own group's.
    summaries = []
    for texts, prompt, ids, a in zip(batch, prompts, replies, attentions, strict=True):
        points = information_points(tokenizer, ids, None if a is None else a[:, :len(texts)], limit, settings.tree,
                                    edges)
        summaries.append(Summary(points, flops_of_reply(model.config, length_of(prompt), len(ids))))
    return summaries


def build(model: Llama, document: Document, settings: Settings) -> Generator[list[list[str]], list[Summary], Graph]:
    """Stage 1 (Figure 1): chunks, then level after level of IPs with their edges.

    A generator: for each level it yields the groups, as texts of nodes, and is sent their summaries, in this order.
    (core.together summarises the groups of many documents side by side; core.together.alone those of one.)

    It climbs until a level has a single node, or the next would be empty or no shorter. (The paper does not say where
    it ends; docs/choices.md has the evidence of its figures.) Raises InputError if the window is too small or the
    document is blank.
    """
    tokenizer = model.tokenizer
    _, room = limit_and_room(tokenizer, settings)

    def line_length(text):
        return length_of(node_line(tokenizer, None, text))

    # Level 1: the chunks of the document.
    nodes = [Node(1, text) for text in chunks(tokenizer, document, settings.chunk)]
    top = list(range(len(nodes)))                           # ids of the highest level so far
    edges = []                                              # (i, j, e_ij)
    flops = 0

    while len(top) > 1:
        # Nodes are packed into groups that fit a window, in document order; the model summarises each group.
        level = nodes[-1].level + 1
        lengths = [line_length(nodes[i].text) for i in top]
        groups = [[top[k] for k in group] for group in pack(lengths, room)]
        summaries = yield [[nodes[i].text for i in group] for group in groups]
        flops += sum(cost for _, cost in summaries)
        points = [(group, text, e) for group, (found, _) in zip(groups, summaries, strict=True) for text, e in found]

        # What if the points together are no shorter than the level below? We would climb forever, so we drop them and
        # stop. (The paper does not say.)
        if not points or sum(line_length(text) for _, text, _ in points) >= sum(lengths):
            break

        # Every IP is a node of the next level, with edges to the nodes of its group.
        top = []
        for group, text, e in points:
            edges += [(len(nodes), j, weight) for j, weight in zip(group, e, strict=True) if weight > 0]
            top.append(len(nodes))
            nodes.append(Node(level, text))

    return Graph(nodes, edges, flops)


# --- the conversation (Table A2) ------------------------------------------------------------------------------------

# Table A2, word for word. ASK: what stands before and after the question in the first turn. ANSWER: the second turn.
# PECAN's blank line after "Information:" and its curly quotes seem to be layout; GARLIC's Table 5 has neither.
ASK = ("""Can this question be answered by the following information? Response "Yes" or "No" in one word. \
Do not provide any explanation.

Question:
""", "\n\nInformation:")
ANSWER = "Given the above information and question, answer the question as concisely as you can."


def question_prompt(tokenizer, question: str) -> list[Segment]:
    """Table A2 up to its first node. The question is a node, too, named "q" (Appendix C).

    It is read once (Appendix B). The caption of Table A2 repeats it after every No; the table does not show how.
    """
    return [(None, tokenizer.frame.before_user + tokenizer.user(ASK[0])), ("q", tokenizer.encode(question)),
            (None, tokenizer.encode(ASK[1]))]


def answer_turn(tokenizer, word: int, again: str = "") -> list[Segment]:
    """The first assistant turn, a single token (`word`, that of "Yes" or "No"), and Table A2's second user turn.

    Small models repeat their first word if the second turn does not say the question once more. With `again`, the
    question, it does (Settings.again); the paper's does not.
    """
    frame = tokenizer.frame
    asked = f"{ANSWER}\n\nQuestion:\n{again}" if again else ANSWER
    return [(None, [*frame.before_given_reply, word,
                    *frame.before_second_user, *tokenizer.user(asked), *frame.before_reply])]


def room_for_nodes(tokenizer, prompt: list[Segment], question: str, settings: Settings) -> int:
    """The tokens that nodes may take after the prompt of a question.

    The rest is kept for the second turn and the answer; a check's closing tokens fit there too, and are removed again.
    """
    turn = answer_turn(tokenizer, tokenizer.first("Yes"), settings.again(question))
    used = length_of(prompt) + length_of(turn) + settings.answer_tokens
    if used >= settings.window:
        raise InputError(f"window {settings.window} is too small: prompts, question and answer take {used} tokens")
    return settings.window - used


# --- stage 2: dynamic graph search (section 3.2) --------------------------------------------------------------------

@dataclass
class Step:
    """One node that a search has visited, why it was read, and what was known after it."""
    node: int
    level: int
    position: int                 # in the prompt; the query has position 1
    to_query: float               # attention to the query, the mean over the node's tokens
    r: float                      # relevance to the query, position x to_query
    cached: int                   # slots of the cache in use after it
    flops: int                    # spent until it was read and checked
    tokens: int                   # read until then; those of checks are included

    # The choice of this node; None for the nodes that a search starts with.
    z: float | None = None        # Eᵀr
    c: float | None = None        # similarity
    score: float | None = None    # final score
    candidates: list[tuple[int, float, float]] | None = None        # the best ones, in this order: (node, z, score)

    # The check after this node; None without one.
    p_yes: float | None = None
    verdict: str | None = None    # "Yes" or "No"


def relevance(to_query: float, position: int) -> float:
    """r_i of a visited node: its position in the prompt times its attention to the query (Appendix C).

    The query has position 1. A later node spreads its attention over more nodes, so less of it goes to the query; the
    position makes up for that. r is not normalised.
    """
    return position * to_query


def final_scores(E, r, c, attention: bool = True, similarity: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """z = Eᵀr (equation 1) and the final score z / sum(z) + max(c, 0) / sum(max(c, 0)), each [|V|].

    PECAN adds the similarity to z. GARLIC (3.2.2) normalises both to sum to 1 over V before it adds them. The
    ablations (4.2) score by c alone (attention=False) or by z alone (similarity=False).

    In the sum a negative cosine counts as 0, because a share cannot be negative; the paper does not say.
    """
    z = E.T @ r
    if not attention:
        score = c
    elif not similarity:
        score = z
    else:
        score = share(z) + share(c.clamp(min=0))
    return z, score.clone()                                 # a variant may change it in place: it is not c or z


class Search:
    """The search for one query, with its node cache, its visited nodes S and their relevance r.

    Creating it reads the prompt up to the first node. Then `start` and `next` go step by step, and r, c, E and z can be
    read after each; `answer` does all the rest. To search along other edges, set E. A variant of the method is a
    subclass with another `over`, `relevance`, `scores`, `choose` or `stop`.
    """
    over = staticmethod(mean_over_heads)          # which layers and heads make the attention to the query

    def __init__(self, model: Llama, graph: Graph, question: str, c: torch.Tensor, settings: Settings):
        self.model = copy(model)                                          # which counts what this search costs
        self.model.flops = 0
        self.model.tokens = 0
        self.tokenizer = model.tokenizer
        self.graph = graph
        self.question = question
        self.settings = settings
        self.E = graph.E                                                  # [|V|, |V|]
        self.c = c.double()                                               # [|V|]
        self.r = torch.zeros(len(graph.nodes), dtype=torch.float64)       # [|V|]
        self.visited: list[int] = []                                      # S, node ids in the order they were read
        self.trace: list[Step] = []                                       # one step for each visited node
        self.yes = 0                                                      # checks that said Yes

        self.lines = [node_line(self.tokenizer, i, node.text) for i, node in enumerate(graph.nodes)]
        self.lengths = torch.tensor([length_of(line) for line in self.lines])                # [|V|]
        prompt = question_prompt(self.tokenizer, question)
        self.room = room_for_nodes(self.tokenizer, prompt, question, settings)

        # A check needs the tokens that close the user's turn. Without progress control there is no check (4.2).
        self.checks = settings.fixed_nodes is None
        self.closing = self.tokenizer.frame.before_reply if self.checks else []

        self.cache = Cache(self.model, 1, settings.window, self.over)
        self.model.read(self.cache, [prompt])

    def answer(self) -> Answer:
        """Run the search, then ask Table A2's second turn in the same cache and decode greedily.

        The conversation needs a first reply. It is the last verdict, or "Yes" if there was no check; the paper does not
        say which.
        """
        end = self.run()

        word = self.tokenizer.first("No" if self.trace[-1].verdict == "No" else "Yes")
        turn = answer_turn(self.tokenizer, word, self.settings.again(self.question))
        hidden, _ = self.model.read(self.cache, [turn])
        (ids,), _ = self.model.generate(self.cache, hidden, self.settings.answer_tokens)

        search = {"settings": asdict(self.settings), "room": self.room + self.lengths[self.visited].sum().item(),
                  "c": self.c.tolist(), "lengths": self.lengths.tolist()}
        return Answer(self.tokenizer.reply(ids).strip(), self.visited, self.model.flops, self.model.tokens, end,
                      trace=self.trace, search=search, counts={"thinking": int(self.tokenizer.thinking(ids))})

    def run(self) -> str:
        """Read nodes until `stop` says why the search ends, or until no other node fits. Returns why, in words."""
        hidden = self.hidden if self.trace else self.start()               # a search may have begun step by step
        while hidden is not None:
            end = self.stop(hidden)
            if end:
                return end
            hidden = self.next()
        return "all there was has been read" if len(self.trace) == len(self.graph.nodes) else "the window was full"

    def start(self) -> torch.Tensor:
        """Visit the top level (3.2.1), in document order, as `visit` does. InputError if none of its nodes fits.

        What if the level does not fit? We keep room for RESERVE chunks (never more than half), or the search could not
        read anything else. The nodes most similar to the query fill the rest; the others can be retrieved later. The
        paper limits the start in 4.2 only: without progress control the fixed_nodes / levels most similar nodes start.
        """
        top_level = self.graph.top_level
        most = len(top_level)
        if self.settings.fixed_nodes is not None:
            most = max(1, self.settings.fixed_nodes // self.graph.nodes[-1].level)

        room = self.room
        if self.lengths[top_level].sum() > room:
            room -= min(RESERVE * self.settings.chunk, room // 2)
        chosen = self.fitting(sorted(top_level, key=lambda i: -self.c[i].item()), room)[:most]
        if not chosen:
            raise InputError(f"window {self.settings.window} is too small for a node of the top level")

        # The level can be long, and the activations of its tokens take memory, so we read it in pieces. The first check
        # comes after the last piece.
        chosen.sort()
        lengths = self.lengths[chosen].tolist()
        *pieces, last = [[chosen[k] for k in piece] for piece in pack(lengths, max(PASS, *lengths))]
        for piece in pieces:
            self.visit(piece)
        return self.visit(last, self.closing)

    def fitting(self, nodes: list[int], room: int) -> list[int]:
        """Those of the nodes that fit the room together; one that no longer fits is passed over."""
        found = []
        for i in nodes:
            if self.lengths[i] <= room:
                found.append(i)
                room -= self.lengths[i].item()
        return found

    def stop(self, hidden: torch.Tensor) -> str | None:
        """Dynamic progress control (3.2.1): why the search ends after a visit, which returned hidden [1, D]; or None.

        It ends when t_n checks have said Yes. They need not be successive; the paper does not say. Without progress
        control (4.2) there are no checks, and it ends after settings.fixed_nodes nodes.
        """
        if not self.checks:
            return "the fixed number of nodes was read" if len(self.trace) >= self.settings.fixed_nodes else None
        self.yes += self.check(hidden)
        return "the model said it knows enough" if self.yes >= self.settings.patience else None

    def check(self, hidden: torch.Tensor) -> bool:
        """Does the model say that S is enough to answer, p_yes > t_p (3.2.1)? The trace keeps p_yes and the verdict.

        p_yes is the softmax of two logits of hidden [1, D]: those of the first tokens of "Yes" and "No". A word may
        take several tokens; the paper does not say.
        """
        logits = self.model.logits(hidden, [self.tokenizer.first("Yes"), self.tokenizer.first("No")])      # [1, 2]

        step = self.trace[-1]
        step.p_yes = logits[0].cpu().double().softmax(0)[0].item()
        step.verdict = "Yes" if step.p_yes > self.settings.confidence else "No"
        step.flops = self.model.flops
        step.tokens = self.model.tokens
        return step.verdict == "Yes"

    def next(self) -> torch.Tensor | None:
        """Visit what `choose` takes of the nodes outside S, at whatever level (3.2.2). None if no other fits.

        The paper does not say: ties go to the lower id, and nodes that no longer fit the window are passed over.
        """
        z, score = self.scores()
        possible = self.lengths <= self.room                                               # [|V|]
        possible[self.visited] = False
        candidates = possible.nonzero()[:, 0]
        best = candidates[score[candidates].argsort(descending=True, stable=True)].tolist()
        nodes = self.fitting(self.choose(best), self.room)
        if not nodes:
            return None

        hidden = self.visit(nodes, self.closing)
        for step in self.trace[-len(nodes):]:
            step.z = z[step.node].item()
            step.c = self.c[step.node].item()
            step.score = score[step.node].item()
            step.candidates = [(i, z[i].item(), score[i].item()) for i in best[:CANDIDATES]]
        return hidden

    def choose(self, best: list[int]) -> list[int]:
        """The nodes to read before the next check: the one with the highest final score (3.2.2), which comes first."""
        return best[:1]

    def scores(self) -> tuple[torch.Tensor, torch.Tensor]:
        """z and the final score of every node now, each [|V|]."""
        return final_scores(self.E, self.r, self.c, self.settings.attention, self.settings.similarity)

    @property
    def z(self) -> torch.Tensor:
        """The retrieval score of every node now [|V|] (equation 1)."""
        return self.E.T @ self.r

    def relevance(self) -> torch.Tensor:
        """r of every node now [|V|], 0 outside S (Appendix C)."""
        r = torch.zeros_like(self.r)
        for step in self.trace:
            r[step.node] = relevance(step.to_query, step.position)
        return r

    def visit(self, nodes: list[int], closing: list[int] = ()) -> torch.Tensor:
        """Read nodes into the cache; their attention to the question gives r (Appendix C).

        Attention inside a node and to other nodes is left out.

        Returns the hidden state [1, D] of the last token, and keeps it for `run`. The tokens `closing` follow the nodes
        in the same pass, for a check, and are removed from the cache.
        """
        lines = [segment for node in nodes for segment in self.lines[node]]
        before = self.cache.lengths[0]
        hidden, a = self.model.read(self.cache, [lines], self.cache.averaging_matrix([["q"]]), closing)    # a [1, T, 1]
        self.room -= length_of(lines)

        for node in nodes:
            first, end = self.cache.nodes[0][node]                                         # without the marker
            to_query = a[0, first - before:end - before, 0].cpu().double().mean().item()   # mean over the node's tokens
            self.visited.append(node)
            self.trace.append(Step(node, self.graph.nodes[node].level, len(self.trace) + 2, to_query, r=0, cached=end,
                                   flops=self.model.flops, tokens=self.model.tokens))
        self.r = self.relevance()
        for step in self.trace[-len(nodes):]:
            step.r = self.r[step.node].item()
        self.hidden = hidden
        return hidden


# --- both stages ----------------------------------------------------------------------------------------------------

class Pecan(Method):
    """Both stages as one method (data.Method).

    `model` searches and answers, `encoder` gives the similarity. `builder` builds the graph (Table 2) with the settings
    `construction`. By default `model` builds, too, and `construction` is `settings`. A variant puts functions like
    `build` and `summarise`, or a class like `Search`, in their places (evaluation/variants.py).
    """

    def __init__(self, model: Llama, encoder, settings: Settings, builder: Llama | None = None,
                 construction: Settings | None = None, build: Callable = build, summarise: Callable = summarise,
                 search: Callable = Search):
        self.model = model
        self.encoder = encoder
        self.settings = settings
        self.builder = builder or model
        self.construction = construction or settings
        self.build = build
        self.summarise = summarise
        self.make_search = search
        self.batches = Batches(batch_rows(self.construction, self.builder.device.type))
        self.searches = Batches(search_rows(settings, model.device.type, model.config.width))

    @classmethod
    def load(cls, model: str | Path, encoder: str | None = None, **settings) -> "Pecan":
        """The method with a checkpoint and a sentence encoder, each a folder or a hub repository.

        Settings that are not given are those of the checkpoint's pecan.json or else the defaults (settings.resolve).
        Without an encoder, the mean of the model's own embeddings gives the similarity.
        """
        llama = Llama.load(model)
        settings = resolve(llama.folder, llama.config.max_length, options=settings)
        return cls(llama, load_encoder(encoder, llama), settings)

    def identity(self, document):
        """A graph depends on stage 1. A subclass may have changed how that is run, so all that it holds counts."""
        return {"document": document.hash} | identity_of(
            model=self.builder, settings=self.construction.construction_settings(), build=self.build,
            summarise=self.summarise, made_by=[type(self), type(self) is Pecan or vars(self)])

    def construct(self, document: Document) -> Generator:
        """Stage 1; its result is what the file of a graph holds. It sees no questions, because all share the graph."""
        graph = yield from self.build(self.builder, replace(document, questions=[]), self.construction)
        return asdict(graph)

    def prepare_all(self, documents, paths, progress=False):
        """Load the graph of each document, or build it and write it to its path. Then embed its nodes."""
        graphs = together([Construction(self.construct(document), path, self.identity(document))
                           for document, path in zip(documents, paths, strict=True)],
                          self.batches, partial(self.summarise, self.builder, settings=self.construction), progress)
        return [graph if isinstance(graph, InputError) else attempt(self.ready, graph, path)
                for graph, path in zip(graphs, paths)]

    def ready(self, graph: dict, path: str | Path | None = None) -> Prepared:
        """A graph with the vectors of its nodes (Prepared.index [|V|, D])."""
        graph = Graph([Node(**node) for node in graph["nodes"]], graph["edges"], graph["flops"])
        texts = [node.text for node in graph.nodes]
        vectors, flops = node_vectors(path, self.encoder, texts)
        return Prepared(texts, graph.flops + flops, graph, vectors, self.encoder.cut(texts))

    def answer(self, prepared: Prepared, question: str) -> Answer:
        """Search the graph and answer. The FLOPs include the embedding of the query."""
        return self.search(prepared, question).answer()

    def answer_all(self, asked):
        """Searches run side by side, as they are asked, each on a copy of this method (core/lockstep.py)."""
        if self.searches.rows == 1:
            return super().answer_all(asked)                # a thread would only cost time

        def beside(numbers):
            return side_by_side(self, Cache(self.model, len(numbers), self.settings.window),
                                [asked[n] for n in numbers])

        # All searches count as equally long, because each takes a row of a whole window.
        return self.searches.run(range(len(asked)), lambda n: 1, beside)

    def search(self, prepared: Prepared, question: str) -> Search:
        """The search for a question, before it has visited a node."""
        flops_before = self.encoder.flops
        c = similarities(prepared.index, self.encoder.encode([question])[0])               # [|V|]
        flops = self.encoder.flops - flops_before
        search = self.make_search(self.model, prepared.graph, question, c, self.settings)
        search.model.flops += flops
        return search


if __name__ == "__main__":
    raise SystemExit(import_module("view.ask").main())      # view/ imports this file, so no graph may depend on it
