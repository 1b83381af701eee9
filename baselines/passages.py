"""Cut a document into pieces. They end between passages or sentences, never after a title."""
import re

from core.text import fill, split
from data import Document

HEADING = 12                      # words of a heading at most
STOPS = ".!?:;,\"'”’"             # at the end of a line that is no heading


def units(document: Document) -> list[str]:
    """The parts of a document that a chunk should not break: its passages, cut at empty lines.

    A heading stays with the part that follows it. A heading is a single line of at most HEADING words that does not end
    with a stop.
    """
    found = []
    after_heading = False
    for passage in document.passages:
        for unit in filter(None, re.split(r"\n\s*\n", passage.strip())):
            if after_heading:
                found[-1] += f"\n{unit}"
            else:
                found.append(unit)
            after_heading = "\n" not in unit and len(unit.split()) <= HEADING and unit[-1] not in STOPS
    return found


def sentences(text: str) -> list[str]:
    """The sentences of a text; they end after . ! or ?. Lines are joined, so a title begins the first sentence."""
    return re.split(r"(?<=[.!?]) ", " ".join(text.split()))


def pack_sentences(tokenizer, document: Document, limit: int) -> list[str]:
    """Passages of whole sentences, each with as many as `limit` tokens hold.

    Only a sentence longer than the limit is cut, at white space. Sentences of different units may share a passage,
    because the methods that use them were written for a single text.
    """
    whole = [sentence for unit in units(document) for sentence in sentences(unit)]
    return fill(tokenizer, [part for sentence in whole for part in split(tokenizer, sentence, limit)], limit, " ")


def pack_paragraphs(tokenizer, document: Document, limit: int) -> list[str]:
    """Chunks of whole units, each with as many as `limit` tokens hold. A unit longer than that is cut at sentences."""
    parts = []
    for unit in units(document):
        fits = len(tokenizer.encode(f"\n{unit}")) <= limit
        parts += [unit] if fits else pack_sentences(tokenizer, Document("", [unit]), limit)
    return fill(tokenizer, parts, limit, "\n")
