"""QuALITY: JSON lines, each with an article and one writer's questions about it. A question has four options.

    {"article_id": ..., "set_unique_id": ..., "title": ..., "article": ...,
     "questions": [{"question": ..., "options": [4 texts], "gold_label": 1 to 4, ...}, ...]}

Several lines may hold the same article; they become one document. A test set has no labels.
"""
from core.files import check_values
from data import OF_OPTIONS, Document, Question
from evaluation.layouts.layout import Layout, checked, of_kind, texts
from evaluation.layouts.report import Report


class QuALITY(Layout):
    name = "QuALITY"
    keys = {"article", "article_id", "questions"}

    def document(self, where: str, row: dict, report: Report) -> Document:
        """The options follow a question's text as lines "(A) ..". The answer is the text of the right option.

        For the accuracy, `extra` has the options and gold, the place of the right one.
        """
        questions = []
        for number, asked in enumerate(row["questions"]):
            options = [" ".join(option.split()) for option in texts(asked["options"])]
            lines = [f"({chr(ord('A') + n)}) {option}" for n, option in enumerate(options)]
            gold = asked.get("gold_label")
            extra = {}
            answers = []
            if gold is not None:
                extra = {"options": options, "gold": gold - 1}
                answers = [options[gold - 1]]
                check_values(extra, OF_OPTIONS)

            questions.append(Question(f"{row['set_unique_id']}-{number}", "\n".join([asked["question"], *lines]),
                                      answers, extra))
        return checked(where, str(row["article_id"]), [of_kind(row["article"], str)], questions, report)
