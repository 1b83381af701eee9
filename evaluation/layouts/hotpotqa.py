"""HotpotQA: a file holds one list of questions, each with its paragraphs.

    [{"_id": ..., "question": ..., "answer": ..., "supporting_facts": [...],
      "context": [[title, [sentence, ...]], ...]}, ...]               sentences keep the blanks before them

JSON lines of one question each are read, too. So is the hub's form: "id" instead of "_id", and a context of
{"title": [title, ...], "sentences": [[sentence, ...], ...]}. 2WikiMultihopQA has the same form plus "evidences".
"""
from data import Document, Question
from evaluation.layouts.layout import Layout, checked, paragraph, texts
from evaluation.layouts.report import Report


class HotpotQA(Layout):
    name = "HotpotQA"
    keys = {"question", "context", "supporting_facts"}

    def document(self, where: str, row: dict, report: Report) -> Document:
        context = row["context"]
        if isinstance(context, dict):
            context = list(zip(context["title"], context["sentences"], strict=True))
        passages = []
        for title, sentences in context:
            text = "".join(texts(sentences))
            if text.strip():
                passages.append(paragraph(title, text))
            else:
                report.skip("an empty paragraph", where)

        name = row["_id"] if "_id" in row else row["id"]
        question = Question(name, row["question"], [row.get("answer") or ""])
        return checked(where, name, passages, [question], report)


class TwoWiki(HotpotQA):
    name = "2WikiMultihopQA"
    keys = HotpotQA.keys | {"evidences"}
