"""MuSiQue: JSON lines of questions, each with its paragraphs.

    {"id": ..., "question": ..., "answer": ..., "answer_aliases": [...], "answerable": true,
     "paragraphs": [{"idx": 0, "title": ..., "paragraph_text": ...}, ...]}

Paragraphs are identified by idx, because titles repeat. A test set has no answers.
"""
from data import Document, Question
from evaluation.layouts.layout import Layout, checked, of_kind, paragraph, texts
from evaluation.layouts.report import Report


class MuSiQue(Layout):
    name = "MuSiQue"
    keys = {"paragraphs", "question"}

    def document(self, where: str, row: dict, report: Report) -> Document:
        paragraphs = sorted(row["paragraphs"], key=lambda row: row["idx"])
        passages = [paragraph(row["title"], row["paragraph_text"]) for row in paragraphs]

        questions = []
        answers = [row.get("answer") or "", *texts(row.get("answer_aliases") or [])]
        if of_kind(row.get("answerable", True), bool):
            questions.append(Question(row["id"], row["question"], answers))
        else:
            report.skip("a question that its paragraphs do not answer", where)
        return checked(where, row["id"], passages, questions, report)
