"""Carries out a row of a table: models are loaded, documents prepared, their questions answered."""
import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from core.command import progress_bar
from core.files import InputError, enough_memory
from data import Answer, Document, Method, Prepared, Question
from evaluation.answers import Answers
from evaluation.methods import Run
from evaluation.models import Models, warn_if_unknown
from evaluation.team import Team


class Runner:
    """Carries out runs; the models of the last one stay in memory."""

    def __init__(self, team: Team):
        self.team = team
        self.models = None

    def do(self, run: Run) -> tuple[list[dict], dict, list[str]]:
        """Answer the open questions; the processes share the documents, and meet at the end.

        Returns the rows of all answers, their setup, and why answers are missing. InputError if nothing was answered.
        """
        shares = self.team.each(lambda: self.share(run))
        answered = {key: row for rows, _, _ in shares for key, row in rows.items()}
        failed = {key: reason for _, _, reasons in shares for key, reason in reasons.items()}

        # In the order of the data. Several questions may share a reason, such as a failed document: it is given once.
        rows = [answered[key] for key in run.dataset.questions if key in answered]
        reasons = list(dict.fromkeys(failed[key] for key in run.dataset.questions if key in failed))
        if not rows:
            raise InputError(reasons[0])
        if all(row["counts"].get("thinking") for row in rows):
            raise InputError("every reply ends inside its thought, so nothing is answered; take a checkpoint that "
                             "answers at once")
        return rows, shares[0][1], reasons

    def share(self, run: Run) -> tuple[dict, dict, dict]:
        """Do this process's share: every size-th document.

        Returns all answers that are known then, {key of the question: row}, their setup, and {key: why it has none}.
        """
        method = self.make(run)
        answers = Answers(run.file, method.setup(), self.team.rank)
        others = answers.rows.keys() - set(run.dataset.questions)
        if others and not run.options.limit:
            raise InputError(f"{run.file}: holds answers to other questions, such as {min(others)}; choose another "
                             "--output")
        run.graphs.mkdir(parents=True, exist_ok=True)
        documents = run.dataset.documents
        names = {document.id: method.file_name(document) for document in documents}
        paths = {id: name and run.graphs / f"{name}.json" for id, name in names.items()}
        title = f"{run.dataset.name}: {run.row.label}"
        first = self.team.rank == 0
        if first:
            print(f"{title}: {found(answers, run, paths.values())} found", file=sys.stderr)
            warn_if_unknown(self.models.model, documents[0])

        left = []                                                 # documents, each with its open questions
        for document in documents[self.team.rank::self.team.size]:
            questions = [question for question in document.questions if not answers.holds(document, question)]
            left += [(document, questions)] if questions else []

        failed = {}
        total = sum(len(questions) for _, questions in left)
        with progress_bar(total, "question", desc=title, disable=not first) as bar:
            for document, question, prepared, answer in answers_of(method, left, paths, first):
                if isinstance(answer, InputError):
                    failed[document.id, question.id] = str(answer)
                else:
                    answers.add(document, question, prepared, answer, paths[document.id])
                bar.update()
        return answers.rows, answers.setup, failed

    def make(self, run: Run) -> Method:
        """Load the models, unless they are in memory, and make the method."""
        options = argparse.Namespace(**vars(run.options) | {"device": self.team.device(run.options.device)})
        if self.models is None or self.models.options != options:
            self.models = None                                    # free them before others are loaded
        with enough_memory():
            self.models = self.models or Models(options)
            return run.row.make(self.models, run)


def found(answers: Answers, run: Run, paths: Iterable[Path | None]) -> str:
    """How many answers and graphs were there before this run, in words."""
    said = f"{sum(key in answers.rows for key in run.dataset.questions)} of {len(run.dataset.questions)} answers"
    return f"{said}, {sum(path.exists() for path in paths)} of {len(paths)} graphs" if all(paths) else said


def answers_of(method: Method, left: list[tuple[Document, list[Question]]], paths: dict, progress: bool
               ) -> Iterator[tuple[Document, Question, Prepared | None, Answer | InputError]]:
    """Answer the questions that are left. As many documents run together as a batch has rows. `paths`: the file of the
    graph of each document, by its id; None if the method keeps none.

    An InputError says why a question has no answer. A full disk ends the run.
    """
    for first in range(0, len(left), method.batches.rows):
        documents, questions = zip(*left[first:first + method.batches.rows])
        asked = []
        files = [paths[document.id] for document in documents]
        for n, prepared in enumerate(method.prepare_all(documents, files, progress)):
            if isinstance(prepared, InputError):
                error = InputError(f"document {documents[n].id}, its questions ({len(questions[n])}): {prepared}")
                yield from ((documents[n], question, None, error) for question in questions[n])
            else:
                asked += [(documents[n], question, prepared) for question in questions[n]]

        for n, answer in method.answer_all([(prepared, question.text) for _, question, prepared in asked]):
            document, question, prepared = asked[n]
            if isinstance(answer, InputError):
                answer = InputError(f"question {question.id} of document {document.id}: {answer}")
            yield document, question, prepared, answer
