"""The whole document in one pass.

Table 1's row "Llama-3.1-8B" gives the model 100K tokens (settings.WHOLE_DOCUMENT), or as many as it was made for if
that is less; `--window` overrides both. Each passage of the document is a line of the reader's prompt. If the document
does not fit, its middle is cut out, as LongBench does (Bai et al. 2024b), and it counts as cut.
"""
from baselines.common import Baseline, line_ids
from data import Prepared


class Whole(Baseline):
    """Tokenise a document, which costs nothing; answer a question in one pass over all tokens."""

    def ready(self, document):
        """Tokenise the passages (`index`: the ids of all lines, one after another)."""
        ids = [i for text in document.passages for i in line_ids(self.model.tokenizer, text)]
        return Prepared(document.passages, index=ids)

    def read(self, prepared, question):
        ids = cut_middle(prepared.index, self.room(question))
        return self.reading(question, ids, [], len(ids) < len(prepared.index))


def cut_middle(ids: list[int], room: int) -> list[int]:
    """At most `room` ids: half of them from the beginning, half from the end."""
    if len(ids) <= room:
        return ids
    return ids[:(room + 1) // 2] + ids[len(ids) - room // 2:]
