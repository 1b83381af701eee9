"""LongBench: JSON lines of questions, each with its context. Each task has a file TASK.jsonl.

    {"_id": ..., "input": ..., "context": ..., "answers": [...], "dataset": TASK}

Some copies say "question" instead of "input". Four tasks are data sets of the paper. PATH:TASK reads any task from
data.zip, except tasks without questions (they want a summary).
"""
import re

from core.files import InputError
from data import Document, Question
from evaluation.layouts.contents import File
from evaluation.layouts.layout import Layout, checked
from evaluation.layouts.report import Report
from evaluation.paper import DATASETS

TASKS = {name.lower(): name for name in DATASETS} | {"2wikimqa": "2WikiMultihopQA"}


class LongBench(Layout):
    name = "LongBench"
    keys = {"context", "answers"}

    def recognise(self, row: dict) -> str | None:
        task = str(row.get("dataset") or "")
        if not self.keys <= row.keys() or not task.isprintable():
            return None
        return f"{self.name} {TASKS.get(task, task)}".strip()

    def document(self, where: str, row: dict, report: Report) -> Document:
        """A context of several documents is cut into its passages."""
        passages = re.split(r"^Passage \d+:\n", row["context"], flags=re.M)
        name = str(row.get("_id") or where)
        question = Question(name, row.get("input") or row["question"], row["answers"])
        return checked(where, name, passages, [question], report)


def choose_longbench_task(path: str, place: str, task: str, files: list[File]) -> list[File]:
    """The files to read: the task's file. Without a task all files, unless they are the whole of LongBench.

    Raises InputError if a task must be named, or if there is no file of this name.
    """
    of_task = {file.name.removesuffix(".jsonl"): [file] for file in files}
    if not task and not of_task.keys() >= {name.lower() for name in DATASETS}:
        return files
    if task not in of_task:
        raise InputError(f"{path}: LongBench's tasks are chosen by name: {place}:TASK, with TASK one of "
                         f"{', '.join(sorted(of_task) or TASKS)}")
    return of_task[task]

