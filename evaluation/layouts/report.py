"""The report of a data set: its size, what was left out, and what was mended."""
from dataclasses import dataclass, field


@dataclass
class Report:
    """The counts of a data set. `skipped` and `problems` hold each reason, how often it occurred and where first."""
    path: str
    layout: str = ""              # its name, and the part of it that is read: "NarrativeQA test"
    sha256: str = ""              # of the files that were read
    rows: int = 0                 # of the layout: questions, papers (Qasper) or documents (own)
    documents: int = 0
    questions: int = 0
    skipped: dict = field(default_factory=dict)
    problems: dict = field(default_factory=dict)

    def skip(self, reason: str, where: str):
        """Count something that is left out."""
        self.skipped.setdefault(reason, {"count": 0, "first": where})["count"] += 1

    def problem(self, reason: str, where: str):
        """Count a defect of something that is kept."""
        self.problems.setdefault(reason, {"count": 0, "first": where})["count"] += 1

    def lines(self) -> list[str]:
        """The report in words."""
        found = [f"{entry['count']} times: {reason} (first: {entry['first']})"
                 for reason, entry in (self.skipped | self.problems).items()]
        return [f"{self.path}: {self.layout}, {self.rows} rows, sha256 {self.sha256[:16]}: "
                f"{self.documents} documents, {self.questions} questions", *(f"  {line}" for line in found)]
