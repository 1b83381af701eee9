"""Carries out planned runs document by document: models are loaded, documents prepared, their questions answered."""
import argparse
import sys
from collections import ChainMap, Counter
from pathlib import Path

from tqdm import tqdm

from core.code import code_of_method
from core.disk import any_of, of_any_code
from core.files import InputError, enough_memory
from data import Document, Method
from evaluation.answers import Predictions, claim_file
from evaluation.methods import Run
from evaluation.models import Models, warn_if_unknown
from evaluation.team import Team
from pecan import Pecan


class Runner:
    """Carries out runs; the models and the method of the last one stay in memory."""

    def __init__(self, team: Team):
        self.team = team
        self.models = self.method = None

    def make(self, run: Run) -> dict:
        """Load the models and make the method. Returns its setup, which all answers in a file share.

        The setup has the fingerprint of each model that the method holds, and settings. Batch, device and number of
        documents may differ.
        """
        options = argparse.Namespace(**vars(run.options) | {"device": self.team.device(run.options.device)})
        if self.models is None or self.models.options != options:
            self.models = self.method = None                      # free them before others are loaded
        with enough_memory():
            self.models = self.models or Models(options)
            self.method = method = run.row.make(self.models, run)

        # All models and plain values of a method count, so a new attribute of a method begins new answers.
        used = {name: part.fingerprint for name, part in vars(method).items() if hasattr(part, "fingerprint")}
        plain = {name: value for name, value in vars(method).items() if isinstance(value, (bool, int, float, str))}
        setup = used | {"code": code_of_method(type(method)), "made with": plain, **method.settings.answer_settings()}
        method.any_code = options.any_code
        if isinstance(method, Pecan):
            setup["construction"] = method.construction.construction_settings()
        if type(method).identity is not Method.identity:
            setup["graphs of any code"] = method.any_code
        return setup

    def do(self, run: Run) -> tuple[list[dict], dict, list[str]]:
        """Answer the open questions. Returns the rows of all answers, their setup, and why answers are missing.

        Raises InputError if nothing was answered.
        """
        team = self.team
        setup = team.each(lambda: self.make(run))[0]
        if team.rank == 0:
            warn_if_unknown(self.models.model, run.dataset.documents[0])
        setup = team.first(lambda: claim_file(run.file, setup))
        run.graphs.mkdir(parents=True, exist_ok=True)

        # All processes read the answers on disk before one of them writes.
        predictions = Predictions(run.file, team.rank)
        team.first(lambda: None)
        documents = run.dataset.documents[team.rank::team.size]
        outcomes = team.each(lambda: answer_all(self.method, documents, predictions, run, team.rank == 0))
        failed = ChainMap(*(failed for failed, _ in outcomes))
        graphs = sum((graphs for _, graphs in outcomes), Counter())
        if graphs and team.rank == 0:
            unused = f"; {graphs['unused']} that another code has built are unused" if graphs["unused"] else ""
            said = f"{graphs['taken']} taken, {graphs['built']} built{unused}"
            print(f"{run.dataset.name}: {run.row.label}: graphs: {said}", file=sys.stderr)
        answered = team.first(lambda: predictions.finish(run.dataset.questions))

        # In the order of the data. Several questions may share a reason, such as a failed document: it is given once.
        reasons = list(dict.fromkeys(failed.get(key, f"{run.file}: answers have vanished during the run; run it again")
                                     for key in run.dataset.questions if key not in answered))
        rows = [answered[key] for key in run.dataset.questions if key in answered]
        if not rows:
            raise InputError(reasons[0])
        if all(row["counts"].get("thinking") for row in rows):
            raise InputError("every reply ends inside its thought, so nothing is answered; take a checkpoint that "
                             "answers at once")
        return rows, setup, reasons


def answer_all(method: Method, documents: list[Document], predictions: Predictions, run: Run,
               shown: bool) -> tuple[dict[tuple, str], Counter]:
    """Answer the open questions. Returns why others have no answer, by their keys, and what became of graphs.

    As many documents run together as a batch has rows. If a document cannot be prepared, its questions stay open. A
    full disk ends the run.
    """
    left = [(document, [question for question in document.questions if not predictions.holds(document, question)])
            for document in documents]
    left = [(document, questions) for document, questions in left if questions]

    failed = {}
    graphs = Counter()                                            # taken, built, unused
    progress = Progress(run, len(documents), shown)
    progress.add(len(documents) - len(left))
    for first in range(0, len(left), method.batches.rows):
        some, questions = zip(*left[first:first + method.batches.rows])
        paths = [graph_path(method, document, run.graphs) for document in some]
        kept = [path for path in paths if path]
        taken = sum(path.exists() for path in kept)

        progress.begin(some)
        prepared = method.prepare_all(some, paths, not progress.bar.disable)
        graphs["taken"] += taken
        graphs["built"] += sum(path.exists() for path in kept) - taken
        graphs["unused"] += sum(other != path for path in kept for other in of_any_code(path))
        asked = []                                                # (index in `some`, question)
        for n, document in enumerate(some):
            if isinstance(prepared[n], InputError):
                reason = f"document {document.id}, questions left {len(questions[n])}: {prepared[n]}"
                failed |= dict.fromkeys(((document.id, question.id) for question in questions[n]), reason)
                progress.add(1)
            else:
                asked += [(n, question) for question in questions[n]]

        waiting = Counter(n for n, _ in asked)
        for k, answer in method.answer_all([(prepared[n], question.text) for n, question in asked]):
            n, question = asked[k]
            if isinstance(answer, InputError):
                failed[some[n].id, question.id] = f"question {question.id} of document {some[n].id}: {answer}"
            else:
                predictions.add(some[n], question, prepared[n], answer, paths[n] and paths[n].stem)
            waiting[n] -= 1
            progress.add(waiting[n] == 0)

    progress.bar.close()
    return failed, graphs


def graph_path(method: Method, document: Document, folder: Path) -> Path | None:
    """Where a document's graph is, or will be; None if the method keeps none."""
    name = method.file_name(document)
    path = name and folder / f"{name}.json"
    return any_of(path) if path and method.any_code else path


class Progress:
    """Counts the documents that are done: a bar in a terminal, and a line for each where nobody sees a bar."""

    def __init__(self, run: Run, documents: int, shown: bool):
        self.what = f"{run.dataset.name}: {run.row.label}"
        self.documents = documents
        self.done = 0
        self.lines = shown and not sys.stderr.isatty()
        self.bar = tqdm(total=documents, desc=self.what, leave=False, disable=not shown or self.lines)

    def begin(self, documents: list[Document]):
        """Say which documents are prepared together, which may take long."""
        if self.lines:
            print(f"{self.what}: documents {documents[0].id} to {documents[-1].id} begun", file=sys.stderr)

    def add(self, count: int):
        self.bar.update(count)
        self.done += count
        if self.lines and count:
            print(f"{self.what}: {self.done} of {self.documents} documents", file=sys.stderr)
