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
    group    N neighbouring nodes that are summarised in one window (the paper's "batch")
    batch    groups that run together, as rows of one cache
    PASS     the top level is read in parts of at most this many tokens (more if a node is longer): 512
    RESERVE  room kept free, in chunks, if the top level does not fit (at most half of the room): 5

Stage 1 (build, section 3.1) turns a document into a graph, once. Stage 2 (Search, section 3.2) answers a query. A
worked example, two IPs above three chunks (tests/test_pecan.py computes it too):

    e' to chunks 0, 1, 2    IP 3: .02 .06 .02      IP 4: .01 .01 .03
    normalised by rows      E[3] = [.2 .6 .2]      E[4] = [.2 .2 .6]
    S starts as (3, 4)      the query has position 1, so IP 3 has position 2 and IP 4 position 3
    attention to the query  IP 3: .10              IP 4: .04
    times the position      r_3 = 2 x .10 = .20    r_4 = 3 x .04 = .12
    z = Eᵀr                 z_0 = .2 x .20 + .2 x .12 = .064    z_1 = .6 x .20 + .2 x .12 = .144    z_2 = .112
    z / sum(z)              .20    .45    .35
    c / sum(c)              .30    .20    .50     the sum is over all of V; in this example the IPs have c = 0
    final                   .50    .65    .85     chunk 2 is read next
"""
from pathlib import Path
from typing import NamedTuple

import torch
from tqdm import tqdm

from core.files import InputError
from core.settings import CANDIDATES, PASS, RESERVE, Settings, resolve
from core.text import bullets, split, tokens_of
from data import Answer, Document, Prepared, Step
from llama import Cache, Llama, Segment, length_of
from support.graph import Graph, Node, edge_matrix, file_name, node_vectors
from support.kept import kept
from support.sbert import load_encoder, similarities

# --- prompts (Appendix A) -------------------------------------------------------------------------------------------

# Table A1, word for word. Every node is a line that begins with "* ", as in the table's example. The blank lines
# between the paper's nodes seem to be layout; we leave them out. (GARLIC's Table 4 ends the three points with a line of
# dots.)
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

# Table A2, word for word. ASK are the parts of the first turn around the question; ANSWER is the second turn. PECAN's
# blank line after "Information:" and its curly quotes seem to be layout; GARLIC's Table 5 has neither.
ASK = ("""Can this question be answered by the following information? Response "Yes" or "No" in one word. \
Do not provide any explanation.

Question:
""", "\n\nInformation:")
ANSWER = "Given the above information and question, answer the question as concisely as you can."

# A prompt is a list of segments that are tokenised one by one, so reading it node by node gives the same tokens as
# reading it in one pass. (In the whole text, a tokenizer may join the end of a segment and the start of the next into
# one token, as in ".\n".)


def node_line(tokenizer, node, text: str) -> list[Segment]:
    """The line of a node: a marker, which does not count as part of the node, and the node's text."""
    return [(None, tokenizer.encode("\n*")), (node, tokenizer.encode(" " + text))]


def summary_prompt(tokenizer, texts: list[str]) -> list[Segment]:
    """Table A1 with the nodes of one group, as one user turn. Each node is named by its place in the group."""
    prompt = [(None, tokenizer.frame.open + tokenizer.encode(SUMMARISE[0]))]
    for j, text in enumerate(texts):
        prompt += node_line(tokenizer, j, text)
    return [*prompt, (None, tokenizer.encode(SUMMARISE[1]) + tokenizer.frame.close)]


def question_prompt(tokenizer, question: str) -> list[Segment]:
    """Table A2 up to its first node. The question is a node, too, named "q" (Appendix C)."""
    return [(None, tokenizer.frame.open + tokenizer.encode(ASK[0])), ("q", tokenizer.encode(question)),
            (None, tokenizer.encode(ASK[1]))]


def answer_turn(tokenizer, verdict: int) -> list[Segment]:
    """The first assistant turn, a single token (`verdict`, "Yes" or "No"), and Table A2's second user turn."""
    frame = tokenizer.frame
    return [(None, [*frame.close, verdict, *frame.reopen, *tokenizer.encode(ANSWER), *frame.reclose])]


def room_for_nodes(tokenizer, question: str, settings: Settings) -> int:
    """The tokens that nodes may take. Room for the second turn and the answer stays free.

    The closing tokens of a check fit in the room kept for the answer.
    """
    opening = length_of(question_prompt(tokenizer, question))
    closing = length_of(answer_turn(tokenizer, tokenizer.first("Yes"))) + settings.answer_tokens
    if opening + closing >= settings.window:
        raise InputError(f"window {settings.window} is too small: prompts, question and answer take "
                         f"{opening + closing} tokens")
    return settings.window - opening - closing


# --- stage 1: attention graph construction (section 3.1) ------------------------------------------------------------

class InformationPoint(NamedTuple):
    """A bullet of a summary, before it becomes a node."""
    text: str
    e: list[float]                # its edges to the nodes of its group [N]


def chunks(tokenizer, document: Document, most: int) -> list[str]:
    """The chunks of a document, in order. A chunk has at most `most` tokens.

    A document may consist of passages, such as HotpotQA's paragraphs; a chunk never spans two.

    A chunk ends at the last white space that fits, because half a word says nothing; the paper does not say where to
    cut. Newlines become blanks, because the prompt separates segments by newlines.
    """
    return [text for passage in document.passages for text in split(tokenizer, passage, most)]


def room_for_summary(tokenizer, settings: Settings) -> tuple[int, int]:
    """The limit of a summary and the room for nodes, in tokens. Both share the window with the prompt (GARLIC 3.1).

    A summary may take a quarter of the window (settings.summary_share), because bullets are short; the paper does not
    say how much.
    """
    limit = int(settings.window * settings.summary_share)
    room = settings.window - limit - length_of(summary_prompt(tokenizer, []))
    if limit < 1 or room < settings.chunk + len(tokenizer.encode("\n*")):
        raise InputError(f"window {settings.window} is too small for the prompt, a summary of {limit} tokens and a "
                         f"chunk of {settings.chunk}; take a larger window")
    return limit, room


def pack(lengths: list[int], room: int) -> list[range]:
    """Divide nodes into groups of neighbours. A group takes nodes until the next does not fit `room` (GARLIC 3.1)."""
    groups = []
    start = 0                                               # the first node of the group that is being filled
    used = 0                                                # tokens of the group so far
    for i, length in enumerate(lengths):
        if length > room:
            raise InputError(f"a node of {length} tokens does not fit the window, which has room for {room}; take a "
                             "larger window or smaller chunks")
        if used + length > room:
            groups.append(range(start, i))
            start = i
            used = 0
        used += length
    return [*groups, range(start, len(lengths))]


def share(x: torch.Tensor) -> torch.Tensor:
    """x / sum(x). If the sum is 0, all shares are 0."""
    total = x.sum()
    return x / total if total > 0 else torch.zeros_like(x)


def edge_weights(a: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    """The edges of one IP to the N nodes of its group, [N]; they sum to 1, or are 0 if all attention rounds to 0.

    `a` [tokens of the reply, N] holds a(x, j), the mean over layers, heads and the tokens of node j (section 3.1,
    "Extracting" and the first half of "Aggregating"). `tokens` are the places x of the IP's tokens in the reply. e'_ij
    is the mean of a(x, j) over these x. The normalisation e_ij = e'_ij / sum_j' e'_ij' is a division, not a softmax.
    """
    return share(a[tokens].cpu().double().mean(0))


def information_points(tokenizer, ids: list[int], a, limit: int, tree: bool) -> list[InformationPoint]:
    """The IPs of a reply. `ids` are its tokens; `a` [tokens, N] has a row a(x, j) for each of them.

    A reply of `limit` tokens may be cut off, so its last bullet is dropped if there are others.

    With `tree` (w/o IP-based graph, section 4.2) all bullets together are one summary node. A bullet that repeats an
    earlier one word for word is dropped, because it adds nothing to read; the paper does not say.
    """
    text, token_ends = tokenizer.ends(ids)
    tokens = {}                                             # text of a bullet -> its tokens
    for start, end in bullets(text, complete=len(ids) < limit):
        tokens.setdefault(" ".join(text[start:end].split()), tokens_of((start, end), token_ends))
    if tree:
        tokens = {" ".join(tokens): sorted(set().union(*tokens.values()))}
    return [InformationPoint(bullet, edge_weights(a, places).tolist()) for bullet, places in tokens.items() if places]


def summarise(model: Llama, batch: list[list[str]], limit: int, tree: bool = False) -> list[list[InformationPoint]]:
    """Summarise each group of node texts in at most `limit` tokens. Returns the IPs of each group.

    PyTorch's fused attention reads the prompts; it gives no attention weights. Only the attention from the tokens of a
    reply is needed; it is computed as each token is generated. If a reply is empty, the nodes of its group have no
    edges from above, and only similarity can find them; the paper does not say what to do.
    """
    tokenizer = model.tokenizer

    # Prefill: the model reads the prompts, and the cache records where the tokens of each node are.
    prompts = [summary_prompt(tokenizer, texts) for texts in batch]
    cache = Cache(model, len(batch), max(map(length_of, prompts)) + limit)
    hidden, _ = model.read(cache, prompts)

    # Decode: the model writes the replies. Every token comes with its attention to the nodes of its group, a(x, j).
    averaging = cache.averaging_matrix([range(len(texts)) for texts in batch])
    replies, attention = model.generate(cache, hidden, limit, averaging)

    # Trap: the largest group sets the number of columns of a. For a smaller group, the last columns are cut off.
    return [information_points(tokenizer, ids, None if a is None else a[:, :len(texts)], limit, tree)
            for texts, ids, a in zip(batch, replies, attention, strict=True)]


def build(model: Llama, document: Document, settings: Settings, summarise=summarise, progress: bool = False) -> Graph:
    """Stage 1 (Figure 1): chunks, then level after level of IPs with their edges.

    Two rules end it (see the comments). To resume an interrupted construction, pass a `summarise` that first looks on
    disk for summaries that were already made (support.kept). Raises InputError if the window is too small.
    """
    tokenizer = model.tokenizer
    start = model.spent()
    limit, room = room_for_summary(tokenizer, settings)

    def line_length(text):
        return length_of(node_line(tokenizer, None, text))

    # Level 1: the chunks of the document.
    nodes = [Node(1, text) for text in chunks(tokenizer, document, settings.chunk)]
    top = list(range(len(nodes)))                           # ids of the highest level so far
    edges = []                                              # (i, j, e_ij)

    while True:
        # Nodes are packed into groups that fit a window, in document order; the model summarises each group.
        level = nodes[-1].level + 1
        lengths = [line_length(nodes[i].text) for i in top]
        groups = [[top[place] for place in group] for group in pack(lengths, room)]
        batches = [groups[done:done + settings.batch] for done in range(0, len(groups), settings.batch)]
        points = []                                         # (group, text, its edges to the group)
        for batch in tqdm(batches, f"level {level}", unit="batch", leave=False, disable=not progress):
            summaries = summarise(model, [[nodes[i].text for i in group] for group in batch], limit, settings.tree)
            points += [(group, text, e) for group, summary in zip(batch, summaries) for text, e in summary]

        # A level that is not shorter than the one below is dropped, or building might never end; the paper does not
        # say.
        if not points or sum(line_length(text) for _, text, _ in points) >= sum(lengths):
            break

        # Every IP is a node of the next level, with edges to the nodes of its group.
        top = []
        for group, text, e in points:
            edges += [(len(nodes), j, weight) for j, weight in zip(group, e, strict=True) if weight > 0]
            top.append(len(nodes))
            nodes.append(Node(level, text))

        # If one group held the whole level below, the new level is the top level; the paper does not say.
        if len(groups) == 1:
            break

    return Graph(nodes, edge_matrix(edges, len(nodes)), document.hash, model.fingerprint, settings.of_construction(),
                 model.spent(start)[0])


# --- stage 2: dynamic graph search (section 3.2) --------------------------------------------------------------------

def final_scores(E, r, c, attention: bool = True, similarity: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """z = Eᵀr (equation 1) and the final score z / sum(z) + max(c, 0) / sum(max(c, 0)), each [|V|].

    PECAN adds the similarity to z. GARLIC (3.2.2) normalises both to sum to 1 over V before it adds them. The
    ablations (4.2) score by c alone (attention=False) or by z alone (similarity=False).

    In the sum a negative cosine counts as 0, because a share cannot be negative; the paper does not say.
    """
    z = E.T @ r
    if not attention:
        return z, c
    if not similarity:
        return z, z
    return z, share(z) + share(c.clamp(min=0))


class Search:
    """The search for one query, with its node cache, its visited nodes S and their relevance r."""

    def __init__(self, model: Llama, graph: Graph, question: str, c: torch.Tensor, settings: Settings):
        self.model = model
        self.tokenizer = model.tokenizer
        self.graph = graph
        self.settings = settings
        self.c = c.double()                                               # [|V|]
        self.r = torch.zeros(len(graph.nodes), dtype=torch.float64)       # [|V|]
        self.visited: list[int] = []                                      # S, node ids in the order they were read
        self.trace: list[Step] = []                                       # one step for each visited node

        self.lines = [node_line(self.tokenizer, i, node.text) for i, node in enumerate(graph.nodes)]
        self.lengths = torch.tensor([length_of(line) for line in self.lines])                # [|V|]
        self.room = room_for_nodes(self.tokenizer, question, settings)
        self.cache = Cache(model, 1, settings.window)
        self.begin = model.spent()
        model.read(self.cache, [question_prompt(self.tokenizer, question)])

    def answer(self) -> Answer:
        """Run the search, then ask Table A2's second turn in the same cache and decode greedily.

        The first assistant turn is the last verdict, or "Yes" if there was no check; the paper does not say which.
        """
        end = self.run()

        verdict = self.tokenizer.first("No" if self.trace[-1].verdict == "No" else "Yes")
        hidden, _ = self.model.read(self.cache, [answer_turn(self.tokenizer, verdict)])
        ids, _ = self.model.generate(self.cache, hidden, self.settings.answer_tokens)

        text = self.tokenizer.decode(ids[0]).strip()
        return Answer(text, self.visited, *self.model.spent(self.begin), end, trace=self.trace)

    def run(self) -> str:
        """Read nodes until t_n checks said Yes, or until no other node fits. Returns what ended it, a key of data.ENDS.

        There is a check after the top level, then one after each node. The Yes verdicts need not be successive. Without
        progress control (4.2) there are no checks, and the search ends after settings.fixed_nodes nodes.
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

    def start(self):
        """Visit the top level (3.2.1), in document order. Raises InputError if none of its nodes fits.

        If the level does not fit as a whole, the room of RESERVE chunks stays free (half of all room if that is less).
        The nodes most similar to the query fill the rest; the others can be retrieved later. The paper does not say.
        Without progress control, only the most similar nodes are visited here, at most fixed_nodes / levels (4.2).
        """
        top_level = self.graph.top_level
        most = len(top_level)
        if self.settings.fixed_nodes is not None:
            most = max(1, self.settings.fixed_nodes // self.graph.nodes[-1].level)

        room = self.room
        if self.lengths[top_level].sum() > room:
            room -= min(RESERVE * self.settings.chunk, room // 2)

        chosen = []
        for i in sorted(top_level, key=lambda i: -self.c[i].item()):
            length = self.lengths[i].item()
            if len(chosen) < most and length <= room:
                chosen.append(i)
                room -= length
        if not chosen:
            raise InputError(f"window {self.settings.window} is too small for a node of the top level")

        # Reading the level in parts saves memory. The last part also runs the tokens that the first check needs.
        chosen.sort()
        lengths = self.lengths[chosen].tolist()
        for group in pack(lengths, max(PASS, *lengths)):
            self.visit([chosen[place] for place in group], probe=group.stop == len(chosen))

    def check(self) -> bool:
        """Dynamic progress control (3.2.1): does the model say that S is enough to answer, p_yes > t_p?

        p_yes + p_no = 1: a softmax over the first tokens of "Yes" and "No", after the last visit.
        """
        logits = self.model.logits(self.hidden)[0]                                         # [vocabulary]
        yes_no = [self.tokenizer.first("Yes"), self.tokenizer.first("No")]

        step = self.trace[-1]
        step.p_yes = logits[yes_no].cpu().double().softmax(0)[0].item()
        step.verdict = "Yes" if step.p_yes > self.settings.confidence else "No"
        step.flops, step.tokens = self.model.spent(self.begin)
        return step.verdict == "Yes"

    def next(self) -> bool:
        """Visit the node outside S with the highest final score (3.2.2), at whatever level. Returns False if none fits.

        Ties go to the lower id. Nodes that no longer fit the window are passed over (the paper does not say).
        """
        z, score = final_scores(self.graph.E, self.r, self.c, self.settings.attention, self.settings.similarity)

        possible = self.lengths <= self.room                                               # [|V|]
        possible[self.visited] = False
        candidates = possible.nonzero()[:, 0]
        best = candidates[score[candidates].argsort(descending=True, stable=True)].tolist()
        if not best:
            return False

        self.visit(best[:1], z=z[best[0]].item(), c=self.c[best[0]].item(), score=score[best[0]].item(),
                   candidates=[(i, z[i].item(), score[i].item()) for i in best[:CANDIDATES]])
        return True

    def visit(self, nodes: list[int], probe: bool = True, **why):
        """Read nodes into the cache and set their r_i = position x mean attention to the question (Appendix C).

        It is the attention from the node's tokens to the question's tokens. Attention inside the node and to other
        nodes is left out. A later node spreads its attention over more nodes, so less of it goes to the question; the
        position compensates for this. r is not normalised. A check needs the tokens that close the user's turn: with
        `probe` they run in the same pass, and are then removed from the cache.
        """
        lines = [segment for node in nodes for segment in self.lines[node]]
        before = self.cache.lengths[0]
        close = self.tokenizer.frame.close if probe and self.settings.fixed_nodes is None else []
        averaging = self.cache.averaging_matrix([["q"]])
        self.hidden, a = self.model.read(self.cache, [lines], averaging, close)            # [1, D], [1, T, 1]
        self.room -= length_of(lines)
        flops, tokens = self.model.spent(self.begin)

        for node in nodes:
            first, end = self.cache.nodes[0][node]                                         # without the marker
            attention = a[0, first - before:end - before, 0].cpu().double().mean().item()
            position = len(self.trace) + 2                                                 # the query has position 1
            self.r[node] = position * attention
            self.visited.append(node)
            self.trace.append(Step(node, self.graph.nodes[node].level, position, attention, r=self.r[node].item(),
                                   cached=end, flops=flops, tokens=tokens, **why))


# --- both stages ----------------------------------------------------------------------------------------------------

class Pecan:
    """Both stages as one method (data.Method). `encoder` gives the similarity.

    `model` searches and answers. `builder` builds the graph (Table 2); without one, `model` does.
    """

    def __init__(self, model: Llama, encoder, settings: Settings, builder: Llama | None = None):
        self.model = model
        self.encoder = encoder
        self.settings = settings
        self.builder = builder or model

    @classmethod
    def load(cls, model: str | Path, encoder: str | None = None, **settings) -> "Pecan":
        """The method with a checkpoint and a sentence encoder, each a folder or a hub repository.

        Settings that are not given are those of the checkpoint's pecan.json or else the defaults (settings.resolve).
        Without an encoder, the mean of the model's own embeddings gives the similarity.
        """
        llama = Llama.load(model)
        settings = resolve(llama.folder, llama.config.max_length, options=settings)
        return cls(llama, load_encoder(encoder, llama), settings)

    def file_name(self, document: Document) -> str:
        """The name under which this document's graph is kept: a hash of document, building model and settings."""
        return file_name(document.hash, self.builder.fingerprint, self.settings.of_construction())

    def prepare(self, document: Document, path: str | Path | None = None, progress: bool = False) -> Prepared:
        """Load the graph at `path`, or build it and save it there. Then embed its nodes (Prepared.index [|V|, D])."""
        if path is not None and Path(path).exists():
            graph = Graph.load(path, document, self.settings.of_construction(), self.builder)
        else:
            with kept(path, self.file_name(document), summarise) as kept_or_new:
                graph = build(self.builder, document, self.settings, kept_or_new, progress)
                if path is not None:
                    graph.save(path)

        texts = [node.text for node in graph.nodes]
        vectors, flops = node_vectors(path, self.encoder, texts)
        return Prepared(texts, graph.flops + flops, graph, vectors)

    def answer(self, prepared: Prepared, question: str) -> Answer:
        """Search the graph and answer. The FLOPs include the embedding of the query."""
        start = self.encoder.flops
        c = similarities(prepared.index, self.encoder.encode([question])[0])               # [|V|]
        answer = Search(self.model, prepared.graph, question, c, self.settings).answer()
        answer.flops += self.encoder.flops - start
        return answer


if __name__ == "__main__":
    from view.ask import main  # imported here only, because view/ imports this file
    raise SystemExit(main())
