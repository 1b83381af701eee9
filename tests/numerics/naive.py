"""The method a second time, written from the paper alone (PECAN, sections 3.1, 3.2 and Appendix C).

Loops over tokens and nodes, Python numbers and numpy arrays. From pecan.py it takes only the words of the
prompts. Slow, and plain enough to check by eye. Where the paper is silent, it makes the same choices as pecan.py, which
names them. The model is three functions:

    attend(token, x, y)   attention of `token` at position x to position y: the mean over layers and heads
    follow(token, x)      the token that the model writes after `token` at position x
    p_yes(x)              the model's probability of Yes when it is asked after position x
"""
from dataclasses import dataclass

import numpy as np

from pecan import ANSWER, ASK, SUMMARISE

# --- prompts (Appendix A) -------------------------------------------------------------------------------------------

class Prompt:
    """Token ids, and for every node the positions of its tokens."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.ids = []
        self.places = {}

    def add(self, ids, node=None):
        if node is not None:
            self.places[node] = range(len(self.ids), len(self.ids) + len(ids))
        self.ids += ids

    def add_line(self, node, text):
        """Add a node as a line after the marker "*", which belongs to no node."""
        self.add(self.tokenizer.encode("\n*"))
        self.add(self.tokenizer.encode(" " + text), node)


def line_length(tokenizer, text):
    """Tokens of a node's line, marker included."""
    return len(tokenizer.encode("\n*")) + len(tokenizer.encode(" " + text))


def summary_prompt(tokenizer, texts, nodes):
    """Table A1 for these nodes."""
    prompt = Prompt(tokenizer)
    prompt.add(tokenizer.frame.open + tokenizer.encode(SUMMARISE[0]))
    for i in nodes:
        prompt.add_line(i, texts[i])
    prompt.add(tokenizer.encode(SUMMARISE[1]) + tokenizer.frame.close)
    return prompt


def question_prompt(tokenizer, question):
    """Table A2 up to its first node; the question is the node "q"."""
    prompt = Prompt(tokenizer)
    prompt.add(tokenizer.frame.open + tokenizer.encode(ASK[0]))
    prompt.add(tokenizer.encode(question), "q")
    prompt.add(tokenizer.encode(ASK[1]))
    return prompt


# --- stage 1: attention graph construction (3.1) --------------------------------------------------------------------

def split(tokenizer, passage, limit):
    """The chunks of a passage: a word is added until it would make the chunk longer than `limit` tokens."""
    chunks = [""]
    for word in passage.split():
        longer = f"{chunks[-1]} {word}".strip()
        if len(tokenizer.encode(" " + longer)) <= limit:
            chunks[-1] = longer
        else:
            chunks.append(word)
    return chunks


def pack(level, lengths, space):
    """Groups of nodes: each takes nodes in order until the next would exceed `space` tokens."""
    groups = [[]]
    used = 0
    for i in level:
        if used + lengths[i] > space:
            groups.append([])
            used = 0
        groups[-1].append(i)
        used += lengths[i]
    return groups


def points(tokenizer, reply, cut):
    """The bullets of a reply, each a list of the places of its tokens; `cut`: the length limit ended the reply.

    Read token by token and line by line. (pecan.bullets reads characters.) No line is indented here.
    """
    star, colon, newline, empty_line = (tokenizer.encode(text)[0] for text in ("*", ":", "\n", "\n\n"))

    # Lines of places, each with "below an empty line"; then blocks: what each marked line holds until the next one.
    lines = [([], True)]
    for place, token in enumerate(reply):
        if token in (newline, empty_line):
            lines.append(([], token == empty_line or not lines[-1][0]))
        else:
            lines[-1][0].append(place)
    lines = [(line, below) for line, below in lines if line]
    marks = [n for n, (line, _) in enumerate(lines) if reply[line[0]] == star]
    blocks = [lines[a:b] for a, b in zip([0, *marks], [*marks, len(lines)])]

    before = blocks.pop(0)
    words = [reply[place] for line, _ in before for place in line if reply[place] != star]
    if marks and words and words[-1] == colon:
        before = []                                            # a preamble, maybe bold

    if len(blocks) > 1:
        (first, _), *rest = blocks[-1]
        filled = len(first) > 1
        kept = []
        for line, below in rest:
            if below and filled:
                break                                          # an afterword
            kept.append((line, below))
            filled = True
        blocks[-1] = [(first, False), *kept]

    # The first token of a marked line is the marker. What remains is read from its first word to its last.
    found = [[place for line, _ in before for place in line]]
    found += [[place for line, _ in block for place in line][1:] for block in blocks]
    if cut and any(found[:-1]):
        found.pop()
    return [list(range(places[0], places[-1] + 1)) for places in found if places]


def without_repeats(tokenizer, reply, bullets):
    """The bullets; of bullets with the same words only the first."""
    kept = {}
    for bullet in bullets:
        words = [word for place in bullet for word in tokenizer.decode([reply[place]]).split()]
        if tuple(words) not in kept:
            kept[tuple(words)] = bullet
    return list(kept.values())


def edges_of(attend, ids, tokens, places):
    """e_ij of one IP: the mean over its tokens (positions in `ids`) and over the tokens of j, normalised to sum to 1.

    `places` holds the positions of every node j of the group.
    """
    e = {}
    for j in places:
        of_tokens = []
        for x in tokens:
            of_tokens.append(np.mean([attend(ids[x], x, y) for y in places[j]]))
        e[j] = np.mean(of_tokens)

    total = sum(e.values())
    return {j: weight / total for j, weight in e.items()}


def summarise(tokenizer, attend, follow, eos, texts, group, limit, tree):
    """The IPs of one group, as (text, {node: e_ij})."""
    prompt = summary_prompt(tokenizer, texts, group)
    ids = list(prompt.ids)
    while len(ids) - len(prompt.ids) < limit:
        token = follow(ids[-1], len(ids) - 1)
        if token == eos:
            break
        ids.append(token)

    reply = ids[len(prompt.ids):]
    bullets = points(tokenizer, reply, cut=len(reply) == limit) if reply else []
    bullets = without_repeats(tokenizer, reply, bullets)
    if tree and bullets:
        bullets = [sorted(place for bullet in bullets for place in bullet)]

    found = []
    for bullet in bullets:
        words = " ".join(tokenizer.decode([reply[place]]) for place in bullet)
        tokens = [len(prompt.ids) + place for place in bullet]
        found.append((" ".join(words.split()), edges_of(attend, ids, tokens, prompt.places)))
    return found


def build(tokenizer, attend, follow, eos, passages, chunk, window, summary_share, tree=False):
    """Texts, levels and E of the graph of a document."""
    limit = int(window * summary_share)
    space = window - limit - len(summary_prompt(tokenizer, [], []).ids)

    texts = [text for passage in passages for text in split(tokenizer, passage, chunk)]
    levels = [1] * len(texts)
    edges = {}
    level = list(range(len(texts)))
    while True:
        lengths = {i: line_length(tokenizer, texts[i]) for i in level}
        groups = pack(level, lengths, space)
        found = []
        for nodes in groups:
            found += summarise(tokenizer, attend, follow, eos, texts, nodes, limit, tree)

        # A level that does not get shorter is given up.
        if not found or sum(line_length(tokenizer, text) for text, _ in found) >= sum(lengths.values()):
            break

        level_above = levels[-1] + 1
        level = []
        for text, e in found:
            i = len(texts)
            for j, weight in e.items():
                edges[i, j] = weight
            level.append(i)
            levels.append(level_above)
            texts.append(text)

        # A single group covers the whole level, so its IPs are the top level.
        if len(groups) == 1:
            break

    E = np.zeros((len(texts), len(texts)))
    for (i, j), weight in edges.items():
        E[i, j] = weight
    return texts, levels, E


# --- stage 2: dynamic graph search (3.2) ----------------------------------------------------------------------------

def shares(x):
    """x / sum(x); a sum of 0 stays 0."""
    total = sum(x)
    return [value / total if total > 0 else 0.0 for value in x]


def scores(E, r, c, attention=True, similarity=True):
    """z_i = sum of r_j e_ji over the predecessors j of i (equation 1), and the final score of every node."""
    V = range(len(r))
    z = [sum(r[j] * E[j, i] for j in V) for i in V]
    if not attention:
        return z, list(c)
    if not similarity:
        return z, z

    z_share = shares(z)
    c_share = shares([value if value > 0 else 0.0 for value in c])
    return z, [z_share[i] + c_share[i] for i in V]


@dataclass
class Step:
    """A visited node, and the check that followed it (None without a score or a check)."""
    node: int
    r: float
    z: float | None = None
    score: float | None = None
    runner_up: int | None = None
    p_yes: float | None = None
    verdict: str | None = None


def top_level(levels, lengths, c, space, chunk, fixed_nodes):
    """The nodes that start S, in document order. If not all fit: the most similar, so that five chunks still do."""
    top = [i for i in range(len(levels)) if levels[i] == max(levels)]
    most = len(top)
    if fixed_nodes is not None:
        most = min(most, max(1, fixed_nodes // max(levels)))
    if sum(lengths[i] for i in top) > space:
        space -= min(5 * chunk, space // 2)

    chosen = []
    for i in sorted(top, key=lambda i: (-c[i], i)):
        if len(chosen) < most and lengths[i] <= space:
            chosen.append(i)
            space -= lengths[i]
    return sorted(chosen)


def best_two(final, candidates):
    """The first candidate of the highest score, and the next best; None if there is no such node."""
    best = None
    second = None
    for i in candidates:
        if best is None or final[i] > final[best]:
            second = best
            best = i
        elif second is None or final[i] > final[second]:
            second = i
    return best, second


def search(tokenizer, attend, p_yes, texts, levels, E, question, c, *, chunk, window, answer_tokens, confidence=.5,
           patience=1, attention=True, similarity=True, fixed_nodes=None):
    """The steps of a search and why it ended; None if not one node of the top level fits."""
    V = range(len(texts))
    frame = tokenizer.frame
    prompt = question_prompt(tokenizer, question)
    answer_turn = len(frame.close) + 1 + len(frame.reopen) + len(tokenizer.encode(ANSWER)) + len(frame.reclose)
    lengths = [line_length(tokenizer, text) for text in texts]
    r = [0.0] * len(texts)
    steps = []

    def space():
        return window - answer_tokens - answer_turn - len(prompt.ids)

    def visit(node, **why):
        """Appendix C: r is the position (the query has 1) times the mean attention of the node to the query."""
        prompt.add_line(node, texts[node])
        position = len(steps) + 2
        a = [attend(prompt.ids[x], x, y) for x in prompt.places[node] for y in prompt.places["q"]]
        r[node] = position * np.mean(a)
        steps.append(Step(node, r[node], **why))

    start = top_level(levels, lengths, c, space(), chunk, fixed_nodes)
    if not start:
        return None
    for i in start:
        visit(i)

    yes = 0
    while True:
        # Is S enough?
        if fixed_nodes is None:
            p = p_yes(len(prompt.ids) + len(frame.close) - 1)
            steps[-1].p_yes = p
            steps[-1].verdict = "Yes" if p > confidence else "No"
            yes += p > confidence
            if yes == patience:
                return steps, "yes"
        elif len(steps) >= fixed_nodes:
            return steps, "nodes"

        # Read the node with the highest final score that fits.
        visited = [step.node for step in steps]
        z, final = scores(E, r, c, attention, similarity)
        best, second = best_two(final, [i for i in V if i not in visited and lengths[i] <= space()])
        if best is None:
            return steps, "all" if len(visited) == len(texts) else "window"
        visit(best, z=z[best], score=final[best], runner_up=second)
