"""The words and sentences of a text in any script, and its pieces of at most a given number of tokens."""
import re
import unicodedata
from bisect import bisect_right

# Chinese and Japanese have no blanks between words, so a line may end inside a sentence. Thai, Lao, Burmese and Khmer
# have none either. Korean has, but writes particles on to a word.
WIDE = r"\u2e80-\u9fff\uf900-\ufaff\uff01-\uff60\U00020000-\U0003ffff"
UNSPACED = WIDE + r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\uac00-\ud7ff"
BROKEN_LINE = re.compile(rf"(?<=[{WIDE}])[ \t\r]*\n[ \t]*(?=[{WIDE}])")
STOPS = "。！？｡۔؟।॥։።፧།༎။។៕"                                # end a sentence wherever they stand
SENTENCE_END = re.compile(rf"""[.!?](?= )|(?:[.!?…．](?=[{UNSPACED}])(?!\d)|[{STOPS}]+)["'”’»」』)）】》]*""")
# What a text may have or not have: signs that nobody sees (soft hyphens, joiners, directions, variants of a character)
# and the vowels and long strokes of Hebrew and Arabic.
UNSEEN = r"\u00ad\u200c-\u200f\u2060\ufe00-\ufe0f\ufeff\U000e0100-\U000e01ef"
OPTIONAL = rf"[{UNSEEN}\u0591-\u05bd\u05bf-\u05c7\u0640\u064b-\u065f\u0670]"


def words(text: str) -> list[str]:
    """The words of a text by which texts are compared: letters, marks and digits, in one case, NFKC.

    In scripts without blanks, and in Korean, every character is a word, and so are every two neighbours.
    """
    text = re.sub(OPTIONAL, "", unicodedata.normalize("NFKC", text).casefold())
    text = "".join(c if unicodedata.category(c)[0] in "LMN" else " " for c in text)
    text = re.sub(rf"(?<=([{UNSPACED}]))(?=([{UNSPACED}]))", r" \1\2 ", text)            # 山上的 -> 山 山上 上 上的 的
    return re.findall(rf"[{UNSPACED}]+|[^\s{UNSPACED}]+", text)


def sentences(text: str) -> list[str]:
    """The sentences of a text, in any script. Lines are joined, so a title begins the first sentence."""
    text = " ".join(BROKEN_LINE.sub("", text).split())
    return [sentence.strip() for sentence in SENTENCE_END.sub(r"\g<0>\n", text).splitlines()]


def split(tokenizer, text: str, limit: int) -> list[str]:
    """Cut text into chunks of at most `limit` tokens, at the last white space that fits.

    White space inside a chunk becomes one blank, or nothing where a line ends inside a Chinese or Japanese sentence. A
    word is cut only if it is longer than a chunk, as is a text in such scripts: see `place_to_cut`.
    """
    chunks = []
    room = 0                                                # tokens that the last chunk may still take
    pieces = [" " + word for word in reversed(BROKEN_LINE.sub("", text).split())]
    while pieces:
        piece = pieces.pop()
        # A book without blanks is not encoded again for each chunk.
        length = len(tokenizer.encode(piece)) if len(piece) < 16 * limit else limit + 1

        if length > room and (length <= limit or 2 * room < limit):
            chunks.append("")
            room = limit
        if length > room:
            n = place_to_cut(tokenizer, piece, room)
            pieces += [" " + piece[n:]] if piece[n:] else []
            piece = piece[:n]
            length = room                                   # what follows the cut begins a chunk
        chunks[-1] += piece
        room -= length
    return [chunk[1:] for chunk in chunks]


def place_to_cut(tokenizer, text: str, limit: int) -> int:
    """Where to cut a text so that its beginning fits `limit` tokens.

    At the last end of a sentence, in any script, if that fills more than half of it, or else before the last character
    that is no accent or other mark. A first character that is too long stays whole.
    """
    most = bisect_right(range(min(len(text), 16 * limit) + 1), limit, key=lambda n: len(tokenizer.encode(text[:n]))) - 1
    ends = [found.end() for found in SENTENCE_END.finditer(text, most // 2, most)]
    characters = [n for n in range(min(most, len(text) - 1), 0, -1)
                  if not unicodedata.category(text[n]).startswith("M")]
    return next((n for n in [*reversed(ends), *characters] if len(tokenizer.encode(text[:n])) <= limit), 2)


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
