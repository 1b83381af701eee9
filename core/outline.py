"""The headings and bullets in a text that a model has written."""
import re
from itertools import accumulate

from core.text import of

# What a bullet begins with. So **bold**, ---, -12 degrees, 1.5 and 1921. are text. Possessive, and used only at the
# start of a line, so it takes linear time. Characters of the category Cf are invisible.
BLANK = rf"[\s{of('Cf')}]*+"
NUMBER = rf"[\d一二三四五六七八九十{of('Nl')}]{{1,2}}"
MARKER = re.compile(rf"""(?x: {BLANK} (?:
      \*(?!\*) | (?: (?![©®°¦²³¹¼-¾⁀-⅟]) [·•‣⁃∙・※＊←-⇿{of('So', 'No')}])+ \ufe0f?  # a star, a dot, an arrow, ①, ✅
    | [{of('Pd')}+−] (?=\s|$)                             # a dash or plus with a blank behind it
    | [(（]? {NUMBER} (?: [、．）] | \ufe0f?\u20e3)
    | (?:\#{{1,6}}\ )? \*{{0,2}} \(? {NUMBER} \*{{0,2}} [.)] \*{{0,2}} (?=\s|$)
    ) \s*+ )""")                                        # a number of at most two digits: 1. 1) (1) **1.** ## 1. 一、
LEAD = re.compile(rf"({BLANK})((?:\#{{1,6}}(?=\s))?)\s*+")
FENCE = re.compile(r"(?m)^[^\S\n]*(`{3,}|~{3,})\w*[^\S\n]*$")
HEADING = 7                                                 # the level in an outline of a heading without #
BULLET = 8                                                  # of a bullet in bold; others and indented ones have more
TEXT = 1000                                                 # of text outside of headings and bullets


def is_bold(words: str) -> bool:
    return bool(re.fullmatch(r"\*\*[^*]+\*\*", words))


def ends_with_colon(words: str) -> bool:
    return words.rstrip("*_ ").endswith((":", "："))


def outline(text: str) -> list[list[int]]:
    """The headings, bullets and other texts of a reply as [level, start, end], in its order. Other lines join them.

    Lines that begin with MARKER are bullets. Headings are lines with #, lines in bold without a colon at their end, and
    lines with a colon above a bullet; above the first bullet only those in bold, if others follow. Fences (```) around
    them are nothing. The level of a heading is the number of its #, or HEADING. That of a bullet is BULLET or more and
    grows with its indent. All else is TEXT. What of it counts? The paper does not say, so we lose little:

        preamble     before the first bullet or heading, if its last line ends with a colon: dropped, otherwise kept
        afterword    an unindented paragraph below the last of two or more bullets, and what follows it: dropped, unless
                     the line above it is in bold or ends with a colon, and so waits for its text
        all other    joins the bullet above it; a reply without bullets and headings is one text
    """
    text = FENCE.sub(lambda fence: " " * len(fence[0]), text)
    lines = text.splitlines(keepends=True)
    starts = [0, *accumulate(map(len, lines))]              # of each line; the last is the end of the text
    markers = [MARKER.match(line) for line in lines]
    marked = [n for n, marker in enumerate(markers) if marker] or [-1]

    # Lines with a colon above a bullet, and whether they are in bold type. (MARKER skips empty lines.)
    ends = [start + len(line.rstrip()) for start, line in zip(starts, lines)]
    titles = {n: is_bold(line.strip().rstrip(":： ")) for n, line in enumerate(lines)
              if not markers[n] and ends_with_colon(line.rstrip()) and MARKER.match(text, ends[n])}
    others = any(in_bold for n, in_bold in titles.items() if n > marked[0])
    items = []
    colon = bold = waits = False                            # of the last line; it waits for its text

    for n, line in enumerate(lines):
        lead = LEAD.match(line)
        start = starts[n] + (markers[n] or lead).end()
        end = ends[n]
        depth = len(lead[1].expandtabs()) // 2              # one blank is no indent: some tokenizers put it there
        if start >= end and not markers[n]:
            continue

        introduced = colon
        titled = bold
        bold = is_bold(text[start:end])
        if markers[n] and markers[n][0].count("**") == 1 and is_bold("**" + text[start:end]):
            end -= 2                                        # **1. Life** is 1. **Life**
            bold = True
        colon = ends_with_colon(text[start:end])
        if markers[n] or lead[2] or bold and not colon or n in titles and (n > marked[0] or titles[n] and others):
            if introduced and items[-1][0] == TEXT and (n == marked[0] or len(items) == 1 and not titled):
                items.pop()                                 # a preamble
            items.append([len(lead[2]) or (BULLET + 1 + 2 * depth - bold if markers[n] else HEADING), start, end])
        elif not items or items[-1][0] < BULLET:
            items.append([TEXT, start, end])
        elif items[-1][1] >= items[-1][2]:
            items[-1][1:] = start, end                      # a marker's text may stand below it
        elif waits or depth or lines[n - 1].strip() or n < marked[-1] or len(marked) < 2:
            items[-1][2] = end
        else:
            items.append([TEXT, end, end])                  # an afterword; if the limit cut it, no bullet was cut
            break
        waits = colon or bold and text[start:end].rstrip("*")[-1] not in ".!?。！？"
    return items
