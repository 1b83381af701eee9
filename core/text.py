"""Text in pieces of at most so many tokens."""
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
    for distance in range(middle + 1):
        for place in (middle + distance, middle - distance):
            if 0 < place < len(word) and begins(place):
                return place
    return 0
