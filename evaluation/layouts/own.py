"""The project's own format: JSON lines of documents with their questions. It is described and read in data.py."""
from collections.abc import Iterator

from data import Document, iterate_jsonl
from evaluation.layouts.contents import File
from evaluation.layouts.layout import Layout
from evaluation.layouts.report import Report


class Own(Layout):
    name = "own"
    keys = {"questions"}

    def rows(self, files: list[File], report: Report) -> Iterator[tuple[str, object]]:
        """A row is a document. Nothing is mended or skipped: a mistake in your own data is an InputError."""
        for file in files:
            for document in iterate_jsonl(file):
                yield document.id, document

    def document(self, where: str, row: Document, report: Report) -> Document:
        return row
