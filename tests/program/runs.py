"""A short data set, and the files that a run leaves."""
import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def short_set(folder: Path, documents: int = 2) -> Path:
    """The beginnings of some documents of the embedded set with four questions each, under the set's own name.

    (Many answers are in the missing parts; these tests do not need them.)
    """
    path = folder / "embedded.jsonl"
    rows = [json.loads(line) for line in (ROOT / "tiny" / "test.jsonl").read_text().splitlines()[:documents]]
    short = [row | {"passages": row["passages"][:8], "questions": row["questions"][:4]} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in short))
    return path


def files(folder: Path) -> dict[str, bytes]:
    """The bytes of every file in a folder, except vectors: the order of a safetensors file's header varies."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*"))
            if path.is_file() and path.suffix != ".vectors"}
