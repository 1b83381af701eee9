"""What keeps an interrupted construction: the windows summarised so far, on disk until the graph is complete."""
import json
from pathlib import Path
from typing import NamedTuple

from support.files import append_line, complete_lines, parse_json, reading


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


def is_count(n) -> bool:
    return type(n) is int and n >= 0


def is_whole(point: InformationPoint) -> bool:
    """Whether the parts of an information point are of their kinds, with an edge to each node of the window."""
    text, window, e = point
    numbers = isinstance(e, list) and all(type(x) in (int, float) and 0 <= x <= 1 for x in e)
    return isinstance(text, str) and numbers and isinstance(window, list) and all(map(is_count, window)) \
        and len(window) == len(e)


class Journal(list):
    """The finished batches of a construction, kept on disk until it is complete.

    The file is GRAPH.CONSTRUCTION.windows, where `construction` (file_name) names what is built: windows of another
    document or model are never taken for these.
    A batch is one line of JSON, on disk before the next one begins. A last line that a kill has torn is dropped.
    Without a path, nothing is kept on disk. Raises InputError if the file holds something else.
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
                windows, points, *counts = parse_json(line, f"{self.path}, line {number}", list)
                batch = Batch(windows, [InformationPoint(*point) for point in points], *counts)
                if not (all(map(is_count, (windows, *counts))) and all(map(is_whole, batch.points))):
                    raise ValueError("a value of the wrong kind")
                list.append(self, batch)

    def append(self, batch: Batch):
        super().append(batch)
        if self.path is not None:
            append_line(self.path, json.dumps(batch, ensure_ascii=False, allow_nan=False))

    def remove(self):
        """Forget the file: the graph is complete."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
