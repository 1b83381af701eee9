"""The answers of a run on disk: one line for each, kept through kills, in the order of the questions in the end."""
import json
import os
from pathlib import Path

from data import Document, Question
from support.files import InputError, write_file


def lock(output: Path):
    """Keep a second run away from an output folder; the system lets go when the process ends, however it ends."""
    try:
        import fcntl
    except ImportError:                                           # Windows: no lock
        return None
    output.mkdir(parents=True, exist_ok=True)
    file = open(output / "lock", "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InputError(f"{output}: another run is writing there; wait for it, or choose another --output") from None
    return file


class Predictions:
    """The answers of one run over one data set, a JSON line each, in the order of the questions.

    While it runs, each process appends to a part of its own, PATH.part-RANK. In the end the first process writes PATH
    and takes the parts away. Whatever is found at the start is kept; a last line that a kill has torn is done again.
    """
    KEYS = {"id", "document", "hash", "question", "prediction", "answers", "nodes", "tokens", "flops",
            "construction_flops", "cut"}

    def __init__(self, path: Path, rank: int = 0):
        self.path, self.part, self.rows = path, path.with_name(f"{path.name}.part-{rank}"), {}
        for file in self.files():
            whole, _, torn = file.read_bytes().rpartition(b"\n")
            for number, line in enumerate(whole.split(b"\n") if whole else [], 1):
                try:
                    row = json.loads(line)
                except ValueError:
                    row = None
                if not isinstance(row, dict) or not self.KEYS <= row.keys():
                    raise InputError(f"{file}, line {number}: not a prediction; move the file away, or use --overwrite")
                self.rows[row["id"]] = self._light(row)
            if torn and file == self.part:
                with open(file, "r+b") as part:
                    part.truncate(len(whole) + 1 if whole else 0)

    def files(self) -> list[Path]:
        parts = sorted(self.path.parent.glob(f"{self.path.name}.part-*"))
        return [*([self.path] if self.path.exists() else []), *parts]

    @staticmethod
    def _light(row: dict) -> dict:
        """A row without its trace: what is kept in memory."""
        return {key: value for key, value in row.items() if key != "trace"}

    def holds(self, document: Document, question: Question) -> bool:
        """Whether this very question about this very text is answered; InputError where the id stands for another."""
        row = self.rows.get(question.id)
        if row and (row["hash"], row["question"], row["answers"]) != (document.hash, question.text, question.answers):
            raise InputError(f"{self.path}: question {question.id} was answered for another text; choose another "
                             "--output, or --overwrite")
        return row is not None

    def add(self, row: dict):
        self.rows[row["id"]] = self._light(row)
        with open(self.part, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def finish(self, order: list[str]):
        """Bring everything into one file, in this order of ids, what was answered for others behind it."""
        lines = {}
        for file in self.files():
            for line in file.read_bytes().split(b"\n")[:-1]:       # other line ends may stand inside of a text
                lines[json.loads(line)["id"]] = line.decode() + "\n"
        place = {i: n for n, i in enumerate(order)}
        write_file(self.path, "".join(lines[i] for i in sorted(lines, key=lambda i: place.get(i, len(place)))))
        for part in self.files()[1:]:
            part.unlink()
