"""The method a second time, written from the paper (PECAN, sections 3.1, 3.2 and Appendix C).

Loops over tokens and nodes, Python numbers and numpy. From pecan.py it takes only the words of the prompts. Slow, and
plain enough to check by eye. Where the paper is silent, it makes the same choices as pecan.py, which names them: so it
finds slips, not misreadings. The bullets of a reply are found in naive_points.py. The model is three functions:

    attend(token, x, y)   attention of `token` at position x to position y: the mean over layers and heads
    follow(token, x)      the token that the model writes after `token` at position x
    p_yes(x)              the model's probability of Yes when it is asked after position x
"""
import numpy as np
from naive_points import points

from pecan import ANSWER, ASK, SUMMARISE

# --- prompts (Appendix A) -------------------------------------------------------------------------------------------

# A prompt is a list of pairs (node, token); the node is None for all tokens that belong to none.

def pairs(ids, node=None):
    return [(node, token) for token in ids]


def node_line(tokenizer, text, node=None):
    """A node's line. The marker "*" belongs to no node."""
    return pairs(tokenizer.encode("\n*")) + pairs(tokenizer.encode(" " + text), node)


def summary_prompt(tokenizer, texts, nodes):
    """Table A1 for these nodes."""
    prompt = pairs(tokenizer.frame.before_user + tokenizer.user(SUMMARISE[0]))
    for i in nodes:
        prompt += node_line(tokenizer, texts[i], i)
    return prompt + pairs(tokenizer.encode(SUMMARISE[1]) + tokenizer.frame.before_reply)


def question_prompt(tokenizer, question):
    """Table A2 up to its first node; the question is the node "q"."""
    return (pairs(tokenizer.frame.before_user + tokenizer.user(ASK[0])) + pairs(tokenizer.encode(question), "q")
            + pairs(tokenizer.encode(ASK[1])))


def mean_attention(attend, prompt, tokens, node):
    """The mean attention from the tokens at these positions of a prompt to the tokens of a node."""
    return np.mean([attend(prompt[x][1], x, y) for x in tokens for y in places(prompt, node)])


def places(prompt, node):
    return [y for y, (other, _) in enumerate(prompt) if other == node]


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
    for i in level:
        if sum(lengths[j] for j in groups[-1]) + lengths[i] > space:
            groups.append([])
        groups[-1].append(i)
    return groups


def summarise(tokenizer, attend, follow, eos, texts, group, limit, tree):
    """The IPs of one group, as (text, {node: e_ij}); e_ij is normalised to sum to 1."""
    prompt = summary_prompt(tokenizer, texts, group)
    start = len(prompt)
    while len(prompt) < start + limit:
        token = follow(prompt[-1][1], len(prompt) - 1)
        if token in eos:
            break
        prompt.append((None, token))

    reply = [token for _, token in prompt[start:]]
    bullets = points(tokenizer, reply, cut=len(reply) == limit)
    if tree and bullets:
        bullets = {" ".join(bullets): sorted(sum(bullets.values(), []))}

    found = []
    for text, bullet in bullets.items():
        e = [mean_attention(attend, prompt, [start + place for place in bullet], j) for j in group]
        found.append((text, {j: weight / sum(e) for j, weight in zip(group, e)}))
    return found


def build(tokenizer, attend, follow, eos, passages, chunk, window, summary_share, tree=False):
    """Texts, levels and edges {(i, j): e_ij} of the graph of a document."""
    limit = int(window * summary_share)
    space = window - limit - len(summary_prompt(tokenizer, [], []))

    texts = [text for passage in passages for text in split(tokenizer, passage, chunk)]
    levels = [1] * len(texts)
    edges = {}
    while True:
        level = [i for i in range(len(texts)) if levels[i] == levels[-1]]
        if len(level) == 1:
            return texts, levels, edges
        lengths = {i: len(node_line(tokenizer, texts[i])) for i in level}
        groups = pack(level, lengths, space)
        found = []
        for nodes in groups:
            found += summarise(tokenizer, attend, follow, eos, texts, nodes, limit, tree)

        # A level that does not get shorter is given up.
        if not found or sum(len(node_line(tokenizer, text)) for text, _ in found) >= sum(lengths.values()):
            return texts, levels, edges

        levels += [levels[-1] + 1] * len(found)
        for text, e in found:
            edges |= {(len(texts), j): weight for j, weight in e.items()}
            texts.append(text)


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


def top_level(levels, lengths, c, space, chunk, fixed_nodes):
    """The nodes that start S, in document order. If not all fit: the most similar, so that five chunks still do."""
    top = [i for i in range(len(levels)) if levels[i] == max(levels)]
    most = len(top)
    if fixed_nodes is not None:
        most = max(1, fixed_nodes // max(levels))
    if sum(lengths[i] for i in top) > space:
        space -= min(5 * chunk, space // 2)

    chosen = []
    for i in sorted(top, key=lambda i: -c[i]):
        if len(chosen) < most and lengths[i] <= space:
            chosen.append(i)
            space -= lengths[i]
    return sorted(chosen)


def search(tokenizer, attend, p_yes, texts, levels, E, question, c, *, chunk, window, answer_tokens, confidence=.5,
           patience=1, attention=True, similarity=True, fixed_nodes=None):
    """The steps of a search, and why it ended; no steps if not one node of the top level fits."""
    frame = tokenizer.frame
    prompt = question_prompt(tokenizer, question)
    answer_turn = (len(frame.before_reply) + 1 + len(frame.before_second_user) + len(tokenizer.user(ANSWER))
                   + len(frame.before_reply))
    window -= answer_turn + answer_tokens
    lengths = [len(node_line(tokenizer, text)) for text in texts]
    r = [0.0] * len(texts)
    steps = []

    def visit(node, z=None, c=None, score=None, candidates=None):
        """Appendix C: r is the position (the query has 1) times the mean attention of the node to the query."""
        prompt.extend(node_line(tokenizer, texts[node], node))
        position = len(steps) + 2
        r[node] = position * mean_attention(attend, prompt, places(prompt, node), "q")
        steps.append({"node": node, "position": position, "r": r[node], "z": z, "c": c, "score": score,
                      "candidates": candidates, "p_yes": None, "verdict": None})

    for i in top_level(levels, lengths, c, window - len(prompt), chunk, fixed_nodes):
        visit(i)

    yes = 0
    while steps:
        # Is S enough?
        if fixed_nodes is None:
            p = p_yes(len(prompt) + len(frame.before_reply) - 1)
            steps[-1] |= {"p_yes": p, "verdict": "Yes" if p > confidence else "No"}
            yes += p > confidence
            if yes == patience:
                return steps, "the model said it knows enough"
        elif len(steps) >= fixed_nodes:
            return steps, "the fixed number of nodes was read"

        # Read the node with the highest final score that fits; of equal ones the first.
        z, final = scores(E, r, c, attention, similarity)
        visited = [step["node"] for step in steps]
        fit = [i for i in range(len(texts)) if i not in visited and len(prompt) + lengths[i] <= window]
        if not fit:
            return steps, "all there was has been read" if len(visited) == len(texts) else "the window was full"
        ranked = sorted(fit, key=lambda i: -final[i])
        best = ranked[0]
        visit(best, z[best], c[best], final[best], [(i, z[i], final[i]) for i in ranked[:10]])
    return steps, "no room"
