"""The bullets of a reply a second time, for naive.py, read token by token. (pecan.bullets reads characters.)"""


def points(tokenizer, reply, cut):
    """{text: the places of its tokens} of the bullets of a reply; `cut`: the length limit ended the reply.

    No line is indented here.
    """
    star, colon, newline, empty_line = (tokenizer.encode(text)[0] for text in ("*", ":", "\n", "\n\n"))
    lines = [[]]                                               # of places
    for place, token in enumerate(reply):
        if token in (newline, empty_line):
            lines += [[]] if token == newline else [[], []]
        else:
            lines[-1].append(place)

    # What stands before the first marked line or heading, and what each of them holds until the next one. A heading is
    # unmarked, ends with a colon, and has a marked line below it.
    marks = [n for n, line in enumerate(lines) if line and reply[line[0]] == star]
    filled = [n for n, line in enumerate(lines) if line]
    words = [[place for place in line if reply[place] != star] for line in lines]
    heads = [n for n, below in zip(filled, filled[1:]) if n not in marks and below in marks[1:]
             and [reply[place] for place in words[n]][-1:] == [colon]]
    starts = sorted(marks + heads)
    before, *blocks = [lines[a:b] for a, b in zip([0, *starts], [*starts, len(lines)])]
    if marks and [reply[place] for place in sum(words[:marks[0]], [])][-1:] == [colon]:
        before = []                                            # a preamble

    # The last of several blocks ends at an empty line below its text, unless that ends with a colon. What follows is an
    # afterword. If the limit cut that, it cut no point.
    afterword = []
    if len(marks) > 1:
        above = [sum(blocks[-1][:n], []) for n in range(len(blocks[-1]))]
        end = min((n for n, line in enumerate(blocks[-1]) if not line and len(above[n]) > 1
                   and [reply[place] for place in above[n] if reply[place] != star][-1:] != [colon]), default=None)
        afterword = sum(blocks[-1][end:], []) if end else []
        blocks[-1] = blocks[-1][:end]

    # The first token of a marked line is the marker. What remains is read from its first word to its last, a heading
    # before each point below it.
    found = [(False, sum(before, [])), *((n in heads, sum(block, [])[n in marks:]) for n, block in zip(starts, blocks))]
    texts = texts_of(tokenizer, reply, found)
    return texts_of(tokenizer, reply, found[:-1]) if cut and not afterword and len(texts) > 1 else texts


def texts_of(tokenizer, reply, found):
    """{text: the places of its tokens} of the points in `found`: whether it is a heading, and places, of each part."""
    found = [(heading, list(range(places[0], places[-1] + 1)), places) for heading, places in found if places]
    texts = {}
    above = [], []
    for (heading, *point), (next_heading, *_) in zip(found, [*found[1:], (True,)]):
        if heading:
            above = point if not next_heading else ([], [])
        if not heading or next_heading:
            places, spoken = (above[k] + point[k] for k in range(2))
            text = " ".join(tokenizer.decode([reply[place]]) for place in spoken)
            texts.setdefault(" ".join(text.split()), places)                                # a repeat is left out
    return texts
