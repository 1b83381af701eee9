"""Qasper: a file holds one object. It maps the id of each paper to the paper and its questions.

    {id: {"title": ..., "abstract": ..., "full_text": [{"section_name": ..., "paragraphs": [...]}, ...],
          "qas": [{"question_id": ..., "question": ..., "answers": [{"answer": {...}}, ...]}, ...]}, ...}
"""
from collections.abc import Iterator

from core.files import parse_json
from data import Document, Question
from evaluation.layouts.contents import File, read_bytes
from evaluation.layouts.layout import Layout, checked, of_kind, texts
from evaluation.layouts.report import Report


class Qasper(Layout):
    name = "Qasper"
    keys = {"full_text", "abstract"}          # of its first paper

    def rows(self, files: list[File], report: Report) -> Iterator[tuple[str, object]]:
        for file in files:
            yield from parse_json(read_bytes(file), file, dict).items()

    def document(self, where: str, row: dict, report: Report) -> Document:
        """Title, abstract and sections of a paper become one text. The answers of all annotators are gold."""
        sections = []
        for section in row["full_text"]:
            sections += [section.get("section_name") or "", *texts(section["paragraphs"])]

        parts = [part for part in (row["title"], row["abstract"], *sections) if part and part.strip()]

        questions = []
        for row_of_question in row["qas"]:
            questions.append(Question(row_of_question["question_id"], row_of_question["question"],
                                      [answer_text(a["answer"]) for a in row_of_question["answers"]]))
        return checked(where, where, ["\n".join(parts)], questions, report)


def answer_text(answer: dict) -> str:
    """An annotator's answer, written as Qasper's own scorer writes it."""
    if of_kind(answer["unanswerable"], bool):
        return "Unanswerable"
    if answer["extractive_spans"]:
        return ", ".join(texts(answer["extractive_spans"]))
    if answer["free_form_answer"]:
        return answer["free_form_answer"]
    if answer["yes_no"] is None:
        return ""
    return "Yes" if of_kind(answer["yes_no"], bool) else "No"
