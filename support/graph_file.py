"""A graph's file."""
import os
from pathlib import Path

from support.files import OutputError

FORMAT = "pecan graph 1"


def check_place(path: str | Path | None):
    """Say before the long work, not after it, that a graph cannot be written (OutputError)."""
    if path is not None and not os.access(Path(path).parent, os.W_OK):
        raise OutputError(f"{path}: cannot be written; say another place for the graph")
