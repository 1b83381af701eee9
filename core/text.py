"""Text in pieces: a document's chunks, a reply's bullets, and the tokens of a stretch of a reply."""
import re
import unicodedata


def split(tokenizer, text: str, limit: int) -> list[str]:
    """Cut text into chunks of at most `limit` tokens, at the last white space that fits.

    White space inside a chunk becomes one blank. A word is cut only if it is longer than a chunk, and never between a
    letter and its accents. A text in Chinese or Japanese counts as one long word.
    """
    parts = []                                              # words, and pieces of words that are too long
    words = text.split()[::-1]                              # a stack, the next word on top
    while words:
        word = words.pop()
        middle = _middle(word) if len(tokenizer.encode(" " + word)) > limit else 0
        if middle:
            words += [word[middle:], word[:middle]]
        else:
            parts.append(word)
    return fill(tokenizer, parts, limit, " ")                # tokens never span white space


def fill(tokenizer, parts: list[str], limit: int, between: str) -> list[str]:
    """Join as many neighbouring parts as `limit` tokens hold, with `between` between them."""
    packed = []
    current = []                                            # the parts that are joined next
    used = 0                                                # their tokens
    for part in parts:
        length = len(tokenizer.encode(between + part))
        if current and used + length > limit:
            packed.append(between.join(current))
            current = []
            used = 0
        current.append(part)
        used += length
    return [*packed, between.join(current)] if current else packed


def _middle(word: str) -> int:
    """The place nearest to the middle of a word at which a character begins; 0 if it has one character only."""
    def begins(place):
        mark = unicodedata.category(word[place]) in ("Mn", "Mc", "Me")
        return not mark and "\u200d" not in word[place - 1:place + 1]      # the joiner of pictures

    middle = len(word) // 2
    for distance in range(len(word) // 2 + 1):
        for place in (middle + distance, middle - distance):
            if 0 < place < len(word) and begins(place):
                return place
    return 0


# Does not match **bold**, --- or 1.5. Possessive, and used only at the start of a line, so it takes linear time.
MARKER = re.compile(r"\s*+(?:([*\-•])(?!\1)|\d++[.)](?=\s|$))\s*+")


def bullets(text: str, complete: bool = True) -> list[tuple[int, int]]:
    """The information points of a reply, as (start, end) of their text without markers and outer white space.

    A line that begins with `*`, `-`, `•`, `1.` or `1)` is a bullet. The paper does not say the rest. An unmarked line
    directly below a bullet continues it. Other unmarked lines are dropped, as a preamble or an afterword. A reply
    without any bullet is one IP, so that nothing is lost; a reply of markers alone has no IP. If the length limit cut
    the reply off (complete=False), its last bullet is dropped, unless it is the only one. Empty bullets are dropped.
    """
    spans = []
    position = 0                                            # characters before the line
    in_bullet = False
    for line in text.splitlines(keepends=True):
        marker = MARKER.match(line)
        end = position + len(line.rstrip())
        if marker:
            start = position + marker.end()
            spans.append((start, end))
            in_bullet = True
        elif not line.strip():
            in_bullet = False
        elif in_bullet:
            spans[-1] = (spans[-1][0], end)
        position += len(line)

    whole = spans if complete else spans[:-1]
    for some in (whole, spans):
        found = [(start, end) for start, end in some if text[start:end].strip()]
        if found:
            return found
    has_text = any(line.strip() and not MARKER.match(line) for line in text.splitlines())
    return [(len(text) - len(text.lstrip()), len(text.rstrip()))] if has_text else []


def tokens_of(span: tuple[int, int], token_ends: list[int]) -> list[int]:
    """The tokens of a reply that have a character in span = (start, end); token x ends before token_ends[x]."""
    start, end = span
    tokens = []
    token_start = 0
    for x, token_end in enumerate(token_ends):
        if token_start < end and token_end > start:
            tokens.append(x)
        token_start = token_end
    return tokens
