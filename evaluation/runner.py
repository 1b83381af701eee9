"""Runs methods over data sets: document by document, resumed where a run was killed, shared out over processes.

Everything goes into one output folder: OUTPUT/DATASET/RUN.jsonl, one line for each answer, written at once; the setup
that they were given under next to it, in RUN.setup.json; and OUTPUT/graphs. A run that is killed goes on where it
stopped, and its files are then those of a run left alone, byte by byte.
"""
import argparse
import contextlib
import datetime
import io
import itertools
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from tqdm import tqdm

from core.files import (
    COUNT,
    InputError,
    MemoryShortage,
    OutputError,
    check_values,
    enough_memory,
    read_json,
    reading,
    write_file,
    writing,
)
from core.settings import PAPER, Settings, resolve
from data import Answer, Document, Method, Prepared, Question
from evaluation import metrics
from evaluation.layouts import Dataset
from evaluation.predictions import Predictions, answer_files, lock, put_back, set_aside, setup_path
from evaluation.runs import Models, Run, heads_of, make, name_of, top_k_of
from evaluation.together import answer_together, group_size
from support.memory import fitting_batch
from support.options import chosen_settings, max_length

# --- processes ------------------------------------------------------------------------------------------------------

class Team:
    """The processes of a run: one, or those that torchrun started. All of them must see the output folder."""

    def __init__(self):
        with reading("RANK and WORLD_SIZE", "torchrun sets them, with LOCAL_RANK, MASTER_ADDR and MASTER_PORT"):
            self.rank = int(os.environ.get("RANK", 0))
            self.size = int(os.environ.get("WORLD_SIZE", 1))
            self.local_rank = int(os.environ.get("LOCAL_RANK", self.rank))
            if not 0 <= self.rank < self.size:
                raise ValueError(f"rank {self.rank} of {self.size}")
            if self.size > 1:
                # The first to finish waits for the last, however long; if one fails, torchrun ends all.
                dist.init_process_group("gloo", timeout=datetime.timedelta(days=30))

    def device(self, wanted: str) -> str:
        """The device of this process. If there are several GPUs, each process takes its own."""
        if self.size > 1 and wanted in ("auto", "cuda") and torch.cuda.is_available():
            return f"cuda:{self.local_rank % torch.cuda.device_count()}"
        return wanted

    def share(self, documents: Iterator[Document]) -> Iterator[Document]:
        """The documents of this process: they are dealt out in turns."""
        return itertools.islice(documents, self.rank, None, self.size)

    def gather(self, mine) -> list:
        """What each process has, in all of them. No process goes on before all are here."""
        if self.size == 1:
            return [mine]
        of_all = [None] * self.size
        dist.all_gather_object(of_all, mine)
        return of_all

    def together(self, function):
        """What `function` returns in each process. If it raises InputError in one, all raise it, and none goes on."""
        result, refusal = None, None
        try:
            result = function()
        except InputError as error:
            refusal = error

        refusals = [text for text in self.gather(refusal and str(refusal)) if text]
        if refusals:
            raise refusal or InputError(refusals[0])
        return result

    def first(self, function):
        """As `together`, for what only the first process does while the others wait."""
        self.together(lambda: function() if self.rank == 0 else None)

    def leave(self):
        if self.size > 1:
            dist.destroy_process_group()


# --- one run over one data set --------------------------------------------------------------------------------------

def prediction(document: Document, question: Question, prepared: Prepared, answer: Answer,
               file_name: str | None) -> dict:
    """The line that an answer gets in the file of predictions."""
    return {"id": question.id, "document": document.id, "hash": document.hash, "question": question.text,
            "prediction": answer.text, "answers": question.answers,
            "f1": metrics.f1(answer.text, question.answers), "rouge_l": metrics.rouge_l(answer.text, question.answers),
            "nodes": len(answer.nodes), "tokens": answer.tokens, "flops": answer.flops,
            "construction_flops": prepared.flops, "graph": file_name, "end": answer.end, "cut": answer.cut,
            "calls": answer.calls, "refused": answer.refused, "construction_calls": prepared.calls,
            "construction_refused": prepared.refused, "construction_repeats": prepared.repeats,
            "construction_loops": prepared.loops,
            **{name: question.extra[name] for name in metrics.OPTIONS if name in question.extra},
            "trace": [asdict(step) for step in answer.trace]}


def answer_all(method: Method, documents: Iterator[Document], predictions: Predictions, graphs: Path,
               bar: tqdm) -> dict[str, str]:
    """Answer what is not answered yet, document by document; returns what could not be answered, id -> reason."""
    failures = {}
    tokens = 0
    for document in documents:
        unanswered = [question for question in document.questions if not predictions.holds(document, question)]
        bar.update(len(document.questions) - len(unanswered))
        if not unanswered:
            continue

        # A document that cannot be prepared takes all of its questions with it. A full disk ends the run.
        file_name = method.file_name(document)
        try:
            with enough_memory():
                prepared = method.prepare(document, file_name and graphs / f"{file_name}.json",
                                          progress=not bar.disable)
        except OutputError:
            raise
        except InputError as error:
            reason = f"document {document.id}, questions left {len(unanswered)}: {error}"
            failures |= {question.id: reason for question in unanswered}
            bar.update(len(unanswered))
            continue

        # A group that was interrupted runs again as a whole: what runs together shares its rounding.
        size = group_size(method)
        for start in range(0, len(document.questions), size):
            group = document.questions[start:start + size]
            wanted = [question in unanswered for question in group]
            if not any(wanted):
                continue

            outcomes = answer_together(method, prepared, [question.text for question in group])
            for question, outcome in itertools.compress(zip(group, outcomes), wanted):
                if isinstance(outcome, InputError):
                    failures[question.id] = f"question {question.id} of document {document.id}: {outcome}"
                else:
                    predictions.add(prediction(document, question, prepared, outcome, file_name))
                    tokens += outcome.tokens
                bar.update()
            bar.set_postfix_str(f"{tokens / max(1e-9, bar.format_dict['elapsed']):.0f} tokens/s", refresh=False)
    return failures


def mean(values: list) -> float:
    return sum(values) / len(values)


def summary(rows: list[dict]) -> dict:
    """Scores in percent, and means: of FLOPs and nodes over the questions, of construction over the documents.

    Means of nodes and FLOPs come with their intervals.
    """
    documents = list({row["hash"]: row for row in rows}.values())            # a row of each
    nodes = [row["nodes"] for row in rows]
    replies = {}                                                 # of questions, and of documents once each
    for name in ("calls", "refused", "repeats", "loops"):
        of_documents = sum(row.get(f"construction_{name}", 0) for row in documents)
        replies[name] = sum(row.get(name, 0) for row in rows) + of_documents
    counted = {"nodes": nodes, "flops": [row["flops"] for row in rows],
               "construction_flops": [row["construction_flops"] for row in documents]}

    return metrics.scores(rows) | replies | {
        "documents": len(documents),
        "tokens": mean([row["tokens"] for row in rows]),
        **{name: mean(values) for name, values in counted.items()},
        **{f"{name}_interval": metrics.interval(values) for name, values in counted.items()},
        "cut_documents": len({row["hash"] for row in rows if row["cut"]}),
        "histogram": {str(n): nodes.count(n) for n in sorted(set(nodes))}}


# --- all runs into one output folder --------------------------------------------------------------------------------

class Runner:
    """Does runs and sums them up. It holds the output folder's lock from `claim_folder` to `close`."""

    def __init__(self, args: argparse.Namespace, team: Team):
        self.args = args
        self.team = team
        self.output = Path(args.output)
        self.graphs = Path(args.graphs or self.output / "graphs")
        self.models: dict = {}                                   # those of the latest run: (model, builder) -> Models
        self.pecan_rows: dict = {}                               # data set -> the answers of PECAN's run
        self.lock = None

    def claim_folder(self):
        """Lock the output folder; InputError if another run holds it."""
        self.lock = lock(self.output)
        with writing(self.graphs):
            self.graphs.mkdir(parents=True, exist_ok=True)

    def close(self):
        """Free the output folder."""
        if self.lock is not None:
            self.lock.close()

    def models_of(self, run: Run) -> Models:
        """The models of a run. Only those of one run at a time are kept in memory."""
        model = run.model or self.args.model
        builder = run.builder or (None if run.model else self.args.builder)
        if (model, builder) not in self.models:
            self.models.clear()
            args = argparse.Namespace(**vars(self.args) | {"model": model, "builder": builder})
            args.device = self.team.device(args.device)
            shown = sys.stderr if self.team.rank == 0 else io.StringIO()
            with contextlib.redirect_stderr(shown), enough_memory():
                self.models[model, builder] = Models(args)
        return self.models[model, builder]

    def settings_of(self, dataset: Dataset, run: Run, done: dict, size=None) -> Settings:
        """The settings of a run over a data set; `done` are the summaries of earlier runs, `size` is resolve's."""
        models = self.models_of(run)
        longest = max_length(models.model, models.builder if run.method == "pecan" else None)
        changes = run.changes | heads_of(run, models)
        if changes.get("fixed_nodes") == "mean":                 # as many as PECAN read here
            changes["fixed_nodes"] = max(1, round(done["pecan"]["nodes"]))
        return resolve(models.model.folder, longest, PAPER.get(dataset.name, {}) | run.paper,
                       chosen_settings(self.args), changes, size)

    def batch_of(self, path: Path, run: Run, settings: Settings) -> int:
        """The batch that a run began with, because it decides the last bits; for a new run, what fits everywhere."""
        try:
            before = read_json(setup_path(path))
            check_values(before, {"batch": COUNT})
            batch = before["batch"]
        except InputError:                                       # a new run, or damaged, which claim_file finds
            models = self.models_of(run)
            batch = fitting_batch(settings, [models.model, models.builder or models.model], self.team.size)
        return min(self.team.gather(batch))

    def setup_of(self, dataset: Dataset, run: Run, done: dict) -> dict:
        """What must stay the same for answers to be kept: all but the number of documents, the batch and the device."""
        models = self.models_of(run)
        settings = self.settings_of(dataset, run, done)
        top_k = top_k_of(run, models, settings, dataset.name, done.get("pecan"), self.args.top)
        kept = settings.of_reader() | (settings.of_pecan() if run.method == "pecan" else {})
        return {"method": run.method, "model": models.model.fingerprint, **models.fingerprints(run), "top": top_k,
                **kept}

    def path_of(self, dataset: Dataset, run: Run, setup: dict) -> Path:
        """The file of predictions. If PECAN's own run decides how much is read, that number is part of the name,
        because it changes with the number of documents."""
        amount = None
        if run.top_k == "X":
            amount = setup["top"]
        elif "fixed_nodes" in run.changes:
            amount = setup["fixed_nodes"]
        return self.output / dataset.name / (f"{run.name}-{amount}.jsonl" if amount else f"{run.name}.jsonl")

    def run(self, dataset: Dataset, run: Run, done: dict) -> list[str]:
        """Do one run over one data set and put its summary into `done`; returns what was not answered, and why.

        Raises InputError if nothing could be answered.
        """
        team = self.team
        setup = team.together(lambda: self.setup_of(dataset, run, done))
        path = self.path_of(dataset, run, setup)
        settings = self.settings_of(dataset, run, done, lambda settings: self.batch_of(path, run, settings))
        method = make(run, self.models_of(run), settings, setup["top"])

        # All processes read what is there before one of them writes.
        team.first(lambda: claim_file(path, setup | {"batch": settings.batch}, self.args.overwrite))
        predictions = Predictions(path, team.rank)
        team.gather(None)

        questions = dataset.questions
        with tqdm(total=len(questions) // team.size, desc=f"{dataset.name}: {run.label}", unit="question", leave=False,
                  disable=not sys.stderr.isatty() or team.rank > 0) as bar:
            mine = team.together(
                lambda: answer_all(method, team.share(dataset.documents()), predictions, self.graphs, bar))

        # In the order of the questions; a reason that several share, such as their document's, is given once.
        failed = {}
        for failures in team.gather(mine):
            failed |= failures
        reasons = list(dict.fromkeys(failed[i] for i in questions if i in failed))
        if len(failed) == len(questions):
            team.first(lambda: put_back(path))
            raise InputError(reasons[0])
        team.first(lambda: predictions.finish(questions))
        self.enter(dataset, run, done, path, setup)
        return reasons

    def enter(self, dataset: Dataset, run: Run, done: dict, path: Path, setup: dict):
        """Put the summary of a run's predictions into `done`."""
        args = self.args
        label = run.label
        if run.method == "pecan":
            label = ", ".join([label, *(f"w/o {name}" for name in args.without)])
            label += f", {args.nodes} nodes" if args.nodes else ""

        found = Predictions(path).rows
        rows = [found[i] for i in dataset.questions if i in found]
        done[run.name] = {"label": label, "search by": name_of(run.model or args.model),
                          "graph by": name_of(run.builder or run.model or args.builder or args.model),
                          "setup": setup} | summary(rows)

        if run.name == "pecan":
            self.pecan_rows[dataset.name] = rows
        elif dataset.name in self.pecan_rows:
            done[run.name]["difference"] = metrics.difference(rows, self.pecan_rows[dataset.name])

    def recall(self, dataset: Dataset, run: Run, done: dict):
        """Put the summary of a run that an earlier call has done into `done`, if it is complete and of this setup."""
        if not any((self.output / dataset.name).glob(f"{run.name}*.jsonl")):
            return                                               # do not load a checkpoint for nothing
        try:
            setup = self.setup_of(dataset, run, done)
        except MemoryShortage:
            raise
        except InputError:                                       # Top-X, and PECAN's run is not here
            return
        path = self.path_of(dataset, run, setup)
        if path.exists() and read_json(setup_path(path)).items() >= setup.items() \
                and not set(dataset.questions) - set(Predictions(path).rows):
            self.enter(dataset, run, done, path, setup)


def claim_file(path: Path, setup: dict, overwrite: bool):
    """Write the setup of a file of predictions; InputError if the file holds answers given under another setup.

    Another batch is no other setup. With `overwrite`, what is there is set aside until the first new answer is on the
    disk.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    put_back(path)
    files = answer_files(path)

    if overwrite and files:
        set_aside(path)
    elif files:
        Predictions(path)
        with reading(setup_path(path), remedy="; choose another --output, or --overwrite the answers next to it"):
            before = read_json(setup_path(path))
        different = [name for name in setup if name != "batch" and before.get(name) != setup[name]]
        if different:
            name = different[0]
            values = "" if len(str(setup[name])) > 20 else f" ({before.get(name)} there, {setup[name]} here)"
            raise InputError(f"{path} holds answers of another {' and '.join(different)}{values}; choose another "
                             "--output, or --overwrite them")
    write_file(setup_path(path), json.dumps(setup, indent=2, allow_nan=False) + "\n")
