"""What keeps an interrupted construction: the windows summarised so far, on disk until the graph is complete."""
import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from support.files import append_line, complete_lines, reading


class InformationPoint(NamedTuple):
    """A bullet of a summary, before it becomes a node."""
    text: str
    window: list[int]                          # ids of the N nodes that were summarised
    e: list[float]                             # its edges to them [N]


class Batch(NamedTuple):
    """What some windows that were summarised together gave, and what they cost."""
    windows: int                               # how many
    points: list[InformationPoint]
    flops: int
    repeats: int                               # as in Fields
    loops: int


def checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Journal(list):
    """The finished batches of a construction, kept on disk until it is complete.

    The file is GRAPH.CONSTRUCTION.windows, where `construction` (file_name) names what is built: windows of another
    document or model are never taken for these.
    A batch is one line, a checksum and JSON, on disk before the next batch begins. A last line that a kill has torn is
    dropped. Without a path, nothing is kept on disk. Raises InputError if a line is not as it was written.
    """

    def __init__(self, path: str | Path | None, construction: str):
        super().__init__()
        self.path = None if path is None else Path(f"{path}.{construction}.windows")
        if self.path is None or not self.path.exists():
            return

        remedy = "; remove the file, and the graph is built from the start"
        with reading(self.path, remedy=remedy):
            lines = complete_lines(self.path)
        for number, line in enumerate(lines, 1):
            with reading(f"{self.path}, line {number}", "not a finished batch of windows", remedy):
                written, text = line.decode().split(" ", 1)
                if written != checksum(text):
                    raise ValueError("its checksum is another")
                windows, points, *counts = json.loads(text)
                list.append(self, Batch(windows, [InformationPoint(*point) for point in points], *counts))

    def append(self, batch: Batch):
        super().append(batch)
        if self.path is not None:
            text = json.dumps(batch, ensure_ascii=False, allow_nan=False)
            append_line(self.path, f"{checksum(text)} {text}")

    def remove(self):
        """Forget the file: the graph is complete."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
