"""Carries out planned runs document by document. A killed run resumes; processes share the documents."""
import datetime
import os
import sys

import torch
import torch.distributed as dist
from tqdm import tqdm

from core.files import InputError, OutputError, enough_memory, writing
from data import Document, Method
from evaluation.methods import Models
from evaluation.plan import Run
from evaluation.predictions import Predictions, claim_file, prediction

# --- processes ------------------------------------------------------------------------------------------------------

class Team:
    """The processes of a run: one, or those that torchrun started. All must see the same output folder."""

    def __init__(self):
        self.rank, self.size, self.local_rank = (int(os.environ.get(name, default)) for name, default in (
            ("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0)))
        if self.size > 1:
            # The first process to finish waits for the last, however long. If one fails, torchrun ends all.
            dist.init_process_group("gloo", timeout=datetime.timedelta(days=30))

    def device(self, wanted: str) -> str:
        """The device of this process. If there are several GPUs, each process takes its own."""
        if self.size > 1 and wanted in ("auto", "cuda") and torch.cuda.is_available():
            return f"cuda:{self.local_rank % torch.cuda.device_count()}"
        return wanted

    def together(self, function) -> list:
        """Call a function in each process and return all results. Each process waits for the others.

        If one process raises InputError, all raise it, so that none continues alone.
        """
        try:
            found = [function()]
        except InputError as error:
            found = [error]
        if self.size > 1:
            mine, = found
            found = [None] * self.size
            dist.all_gather_object(found, mine)

        for outcome in found:
            if isinstance(outcome, InputError):
                raise outcome
        return found

    def first(self, function):
        """Call a function in the first process only, while the others wait. InputError as in `together`."""
        def only_here():
            if self.rank == 0:
                function()
        self.together(only_here)

    def leave(self):
        if self.size > 1:
            dist.destroy_process_group()


# --- runs -----------------------------------------------------------------------------------------------------------

class Runner:
    """Carries out runs. The models of the last run stay in memory. With `overwrite`, answers on disk are renamed."""

    def __init__(self, team: Team, overwrite: bool = False):
        self.team = team
        self.overwrite = overwrite
        self.models = None

    def load(self, run: Run) -> Models:
        here = run.checkpoints._replace(device=self.team.device(run.checkpoints.device))
        if self.models is None or self.models.checkpoints != here:
            self.models = None                                    # free them before others are loaded
            with enough_memory():
                self.models = Models(here)
        return self.models

    def setup(self, run: Run) -> dict:
        """What all answers in a file share: models and settings. Batch, device and number of documents may differ."""
        models = self.load(run)
        used = {name: getattr(models, name) for name in ("model", *run.row.uses)}
        settings = run.settings.search_settings() if run.row.is_pecan else run.settings.reader_settings()
        return {name: model and model.fingerprint for name, model in used.items()} | {"top": run.top_k} | settings

    def do(self, run: Run) -> tuple[list[dict], dict, list[str]]:
        """Answer the open questions. Returns the rows of all answers, their setup, and why answers are missing.

        Raises InputError if nothing could be answered, OutputError if the output cannot be written.
        """
        team = self.team
        setup = team.together(lambda: self.setup(run))[0]
        used = [getattr(self.models, name) for name in ("model", *run.row.uses)]
        method = run.row.method(*used, run.settings, *filter(None, [run.top_k]))
        team.first(lambda: claim_file(run.file, setup, self.overwrite))
        with writing(run.graphs):
            run.graphs.mkdir(parents=True, exist_ok=True)

        # All processes read the answers on disk before one of them writes.
        predictions = Predictions(run.file, team.rank)
        team.first(lambda: None)
        documents = run.dataset.documents[team.rank::team.size]
        failed = team.together(lambda: answer_all(method, documents, predictions, run, shown=team.rank == 0))
        team.first(lambda: predictions.finish(run.dataset.questions))

        # Several questions may share a reason, such as a failed document. It is given once.
        reasons = list(dict.fromkeys(reason for _, reason in sorted(sum(failed, []))))
        answered = Predictions(run.file).rows
        rows = [answered[id] for id in run.dataset.questions if id in answered]
        if not rows:
            raise InputError(reasons[0])
        return rows, setup, reasons


def answer_all(method: Method, documents: list[Document], predictions: Predictions, run: Run,
               shown: bool) -> list[tuple[int, str]]:
    """Answer the open questions, document by document.

    Returns the questions that could not be answered: the place in the data set, and the reason.
    """
    places = {id: place for place, id in enumerate(run.dataset.questions)}
    failures = []
    bar = tqdm(documents, f"{run.dataset.name}: {run.label}", leave=False, disable=not (shown and sys.stderr.isatty()))
    for document in bar:
        left = [question for question in document.questions if not predictions.holds(document, question)]
        if not left:
            continue

        # If a document cannot be prepared, its questions stay open. A full disk ends the run.
        name = method.file_name(document)
        try:
            with enough_memory():
                prepared = method.prepare(document, name and run.graphs / f"{name}.json", progress=not bar.disable)
        except OutputError:
            raise
        except InputError as error:
            reason = f"document {document.id}, questions left {len(left)}: {error}"
            failures += [(places[question.id], reason) for question in left]
            continue

        for question in left:
            try:
                with enough_memory():
                    answer = method.answer(prepared, question.text)
            except InputError as error:
                reason = f"question {question.id} of document {document.id}: {error}"
                failures.append((places[question.id], reason))
            else:
                predictions.add(prediction(document, question, prepared, answer, name))
    return failures
