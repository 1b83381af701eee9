"""The points of a reply a second time, for naive.py, read token by token. (pecan.bullets reads characters.)"""


def points(tokenizer, reply, cut):
    """{text: the places of its tokens} of the points of a reply; `cut`: the length limit ended the reply.

    The only mark here is a star that begins a line, and no line is a heading or has words of Table A1.
    """
    star, colon, newline, empty_line = (tokenizer.encode(text)[0] for text in ("*", ":", "\n", "\n\n"))
    lines = [[]]                                               # of places
    for place, token in enumerate(reply):
        if token in (newline, empty_line):
            lines.append([])
        else:
            lines[-1].append(place)

    found = []                                                 # the places of each point
    marked = False
    for line in filter(None, lines):
        if reply[line[0]] == star:
            marked = True
            found.append(line[1:])
        elif all(reply[place] in (star, colon) for place in line):
            continue                                           # no word
        elif not marked and reply[line[-1]] == colon:
            continue                                           # a preamble
        else:
            found = [*found[:-1], (found[-1] if found else []) + line]

    whole = [place for place in found[:-1] if place] if cut else []
    texts = {}
    for places in whole or filter(None, found):
        text = " ".join(tokenizer.decode([reply[place]]) for place in places)
        texts.setdefault(" ".join(text.split()), places)       # a repeat is left out
    return texts
