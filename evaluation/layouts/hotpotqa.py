"""HotpotQA: a file holds one list of questions, each with its paragraphs.

    [{"_id": ..., "question": ..., "answer": ..., "supporting_facts": [...],
      "context": [[title, [sentence, ...]], ...]}, ...]               sentences keep the blanks before them
"""
from collections.abc import Iterator

from data import Document, Question
from evaluation.layouts.contents import File, json_list
from evaluation.layouts.layout import Start, checked
from evaluation.layouts.report import Report


class HotpotQA:
    name = "HotpotQA"

    def recognise(self, start: Start) -> str | None:
        if start.text.startswith("[") and {"context", "supporting_facts"} <= start.keys:
            return self.name
        return None

    def rows(self, files: list[File], report: Report) -> Iterator[tuple[str, object]]:
        return json_list(files)

    def document(self, where: str, row: dict, report: Report) -> Document:
        titles = [title for title, _ in row["context"]]
        if len(titles) < 10:
            report.problem("fewer than 10 paragraphs", where)
        if len(set(titles)) < len(titles):
            report.problem("a title stands twice in a row", where)

        passages = []
        for title, sentences in row["context"]:
            text = "".join(sentences)
            if text.strip():
                passages.append(f"{title}\n{text}")
        if len(passages) < len(titles):
            report.problem("an empty paragraph, left out", where)

        question = Question(row["_id"], row["question"], [row.get("answer") or ""])
        return checked(where, row["_id"], passages, [question], report)
