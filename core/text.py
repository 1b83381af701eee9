"""Text in pieces of at most a given number of tokens."""
import unicodedata


def split(tokenizer, text: str, limit: int) -> list[str]:
    """Cut text into chunks of at most `limit` tokens, at the last white space that fits.

    White space inside a chunk becomes one blank. A word is cut only if it is longer than a chunk, and never between a
    letter and its accents; a new chunk begins at the cut. A text in Chinese or Japanese counts as one long word.
    """
    runs = [[]]                                             # the words between two cuts
    words = text.split()[::-1]                              # a stack, the next word on top; "" stands for a cut
    while words:
        word = words.pop()
        middle = _middle(word) if len(tokenizer.encode(" " + word)) > limit else 0
        if middle:
            words += [word[middle:], "", word[:middle]]
        elif word:
            runs[-1].append(word)
        else:
            runs.append([])
    return [chunk for run in runs for chunk in fill(tokenizer, run, limit, " ")]        # tokens never span white space


def fill(tokenizer, parts: list[str], limit: int, between: str) -> list[str]:
    """Join neighbouring parts up to `limit` tokens, with `between` between them; a longer part stays alone."""
    groups = []
    used = 0                                                # tokens of the last group
    for part in parts:
        length = len(tokenizer.encode(between + part))
        if not groups or used + length > limit:
            groups.append([])
            used = 0
        groups[-1].append(part)
        used += length
    return [between.join(group) for group in groups]


def _middle(word: str) -> int:
    """The index nearest to the middle of a word at which a character begins; 0 if it has one character only."""
    for i in sorted(range(len(word) - 1, 0, -1), key=lambda i: abs(i - len(word) // 2)):
        mark = unicodedata.category(word[i]).startswith("M")
        if not mark and "\u200d" not in word[i - 1:i + 1]:                 # the joiner of pictures
            return i
    return 0
