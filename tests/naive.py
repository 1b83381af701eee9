"""The method a second time, from METHOD's formulas and the paper alone: loops over tokens and nodes, Python numbers
and numpy arrays, nothing taken over from pecan.py but the words of the prompts. Slow, and plain enough to be checked
by eye.

    attend(token, x, y)   attention of `token`, standing at position x, to position y; mean over layers and heads
    follow(token, x)      the token that the model writes behind `token` at position x
    p_yes(x)              how sure the model is of Yes when asked behind position x
"""
import numpy as np

from pecan import ANSWER, ASK, SUMMARISE


class Prompt:
    """Token ids, and for every node the positions of its tokens."""

    def __init__(self, tokenizer):
        self.tokenizer, self.ids, self.places = tokenizer, [], {}

    def add(self, ids, node=None):
        if node is not None:
            self.places[node] = range(len(self.ids), len(self.ids) + len(ids))
        self.ids += ids

    def add_line(self, node, text):
        """A node stands on a line of its own behind "* "; the marker belongs to no node."""
        self.add(self.tokenizer.encode("\n*"))
        self.add(self.tokenizer.encode(" " + text), node)


def line_length(tokenizer, text):
    return len(tokenizer.encode("\n*")) + len(tokenizer.encode(" " + text))


# --- stage 1 --------------------------------------------------------------------------------------------------------

def split(tokenizer, passage, limit):
    """Words are added to a chunk until one would make it longer than `limit` tokens."""
    chunks = [""]
    for word in passage.split():
        longer = f"{chunks[-1]} {word}".strip()
        if len(tokenizer.encode(" " + longer)) <= limit:
            chunks[-1] = longer
        else:
            chunks.append(word)
    return chunks


def points(tokenizer, reply, cut):
    """The bullets of a reply as lists of places of their tokens: read token by token, line by line."""
    star, newlines = tokenizer.encode("*")[0], {tokenizer.encode("\n")[0]: 1, tokenizer.encode("\n\n")[0]: 2}
    bullets, inside, line, last = [], False, [], None
    for place, token in [*enumerate(reply), (None, tokenizer.encode("\n\n")[0])]:
        if token not in newlines:
            line.append(place)
            continue
        if line and reply[line[0]] == star:
            bullets.append(line[1:])
            inside = True
        elif line and inside:                                  # an unmarked line below a bullet continues it
            bullets[-1] += ([last] if bullets[-1] else []) + line
        if not line or newlines[token] == 2:                   # an empty line ends it
            inside = False
        line, last = [], place
    full = [bullet for bullet in bullets if bullet]
    if not full:
        words = [place for place, token in enumerate(reply) if token not in newlines]
        if all(reply[place] == star for place in words):
            return []
        return [list(range(words[0], words[-1] + 1))]
    return full[:-1] if cut and len(full) > 1 else full


def build(tokenizer, attend, follow, eos, passages, chunk, window, summary_share, tree=False):
    """Texts, levels and E of the graph of a document."""
    limit = int(window * summary_share)
    texts = [text for passage in passages for text in split(tokenizer, passage, chunk)]
    levels, edges, level = [1] * len(texts), {}, list(range(len(texts)))
    while True:
        frame = Prompt(tokenizer)
        frame.add(tokenizer.frame.open + tokenizer.encode(SUMMARISE[0]) + tokenizer.encode(SUMMARISE[1])
                  + tokenizer.frame.close)
        windows, used = [[]], len(frame.ids)
        for i in level:
            if used + line_length(tokenizer, texts[i]) + limit > window:
                windows.append([])
                used = len(frame.ids)
            windows[-1].append(i)
            used += line_length(tokenizer, texts[i])
        made = []
        for nodes in windows:
            prompt = Prompt(tokenizer)
            prompt.add(tokenizer.frame.open + tokenizer.encode(SUMMARISE[0]))
            for i in nodes:
                prompt.add_line(i, texts[i])
            prompt.add(tokenizer.encode(SUMMARISE[1]) + tokenizer.frame.close)
            ids = list(prompt.ids)
            while len(ids) - len(prompt.ids) < limit and (token := follow(ids[-1], len(ids) - 1)) != eos:
                ids.append(token)
            reply = ids[len(prompt.ids):]
            bullets = points(tokenizer, reply, cut=len(reply) == limit) if reply else []
            if tree and bullets:
                bullets = [sorted(place for bullet in bullets for place in bullet)]
            for bullet in bullets:
                weight = {}
                for j in nodes:
                    of_tokens = []
                    for place in bullet:
                        x = len(prompt.ids) + place
                        of_tokens.append(np.mean([attend(ids[x], x, y) for y in prompt.places[j]]))
                    weight[j] = np.mean(of_tokens)
                words = [tokenizer.decode([reply[place]]) for place in bullet]
                total = sum(weight.values())
                made.append((" ".join(" ".join(words).split()), {j: w / total for j, w in weight.items()}))
        before = sum(line_length(tokenizer, texts[i]) for i in level)
        if not made or sum(line_length(tokenizer, text) for text, _ in made) >= before:
            break
        level = list(range(len(texts), len(texts) + len(made)))
        for i, (_, weight) in zip(level, made):
            edges |= {(i, j): w for j, w in weight.items()}
        levels += [levels[-1] + 1] * len(made)
        texts += [text for text, _ in made]
        if len(windows) == 1:
            break
    E = np.zeros((len(texts), len(texts)))
    for (i, j), w in edges.items():
        E[i, j] = w
    return texts, levels, E


# --- stage 2 --------------------------------------------------------------------------------------------------------

def scores(E, r, c, attention=True, similarity=True):
    """z_i = sum of r_j e_ji over the predecessors j of i; the final score of every node."""
    V = len(r)
    z = [sum(r[j] * E[j, i] for j in range(V)) for i in range(V)]
    if not attention:
        return z, list(c)
    if not similarity:
        return z, z
    c = [x if x > 0 else 0.0 for x in c]
    return z, [(z[i] / sum(z) if sum(z) > 0 else 0.0) + (c[i] / sum(c) if sum(c) > 0 else 0.0) for i in range(V)]


def search(tokenizer, attend, p_yes, texts, levels, E, question, c, *, chunk, window, answer_tokens, confidence=.5,
           patience=1, attention=True, similarity=True, fixed_nodes=None, **_):
    """The visited nodes in order, each with (r, z, final score, runner-up, p_yes, verdict); and why the search ended.
    None where not one node of the top fits."""
    V, prompt = len(texts), Prompt(tokenizer)
    prompt.add(tokenizer.frame.open + tokenizer.encode(ASK[0]))
    prompt.add(tokenizer.encode(question), "q")
    prompt.add(tokenizer.encode(ASK[1]))
    frame = tokenizer.frame
    turn = len(frame.close) + 1 + len(frame.reopen) + len(tokenizer.encode(ANSWER)) + len(frame.reclose)
    length = [line_length(tokenizer, text) for text in texts]
    r, steps, yes = [0.0] * V, [], 0

    def room():
        return window - answer_tokens - turn - len(prompt.ids)

    def visit(node, z=None, final=None, second=None):
        prompt.add_line(node, texts[node])
        position = len(steps) + 2                              # the query is at position 1
        seen = [attend(prompt.ids[x], x, y) for x in prompt.places[node] for y in prompt.places["q"]]
        r[node] = position * np.mean(seen)
        steps.append([node, r[node], z, final, second, None, None])
    top = [i for i in range(V) if levels[i] == max(levels)]
    budget, most = room(), len(top)
    if sum(length[i] for i in top) > budget:
        budget -= min(5 * chunk, budget // 2)
    if fixed_nodes is not None:
        most = min(most, max(1, fixed_nodes // max(levels)))
    first = []
    for i in sorted(top, key=lambda i: (-c[i], i)):
        if len(first) < most and length[i] <= budget:
            first.append(i)
            budget -= length[i]
    if not first:
        return None
    for i in sorted(first):
        visit(i)
    while True:
        if fixed_nodes is None:
            p = p_yes(len(prompt.ids) + len(frame.close) - 1)
            steps[-1][5:] = p, "Yes" if p > confidence else "No"
            yes += p > confidence
            if yes == patience:
                return steps, "yes"
        elif len(steps) >= fixed_nodes:
            return steps, "nodes"
        visited = [step[0] for step in steps]
        z, final = scores(E, r, c, attention, similarity)
        best = second = None
        for i in range(V):                                     # the first of the highest, and the next
            if i not in visited and length[i] <= room():
                if best is None or final[i] > final[best]:
                    best, second = i, best
                elif second is None or final[i] > final[second]:
                    second = i
        if best is None:
            return steps, "all" if len(visited) == V else "window"
        visit(best, z[best], final[best], second)
