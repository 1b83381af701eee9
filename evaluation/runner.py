"""Carries out planned runs document by document, and keeps their answers on disk.

A question counts as answered only when its line is on disk, so a killed run loses no answer and goes on where it
stopped. Processes share the documents: every process but the first writes its own file METHOD.part-N.jsonl, and at the
end all answers are in OUTPUT/DATASET/METHOD.jsonl, in the order of the questions.
"""
import datetime
import json
import os
import re
import sys
from collections import ChainMap
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from tqdm import tqdm

from core.files import (
    FLAG,
    NUMBER,
    TEXT,
    TEXTS,
    InputError,
    OutputError,
    append_line,
    check_values,
    complete_lines,
    enough_memory,
    parse_json,
    read_json,
    reading,
    write_file,
    write_json,
    writing,
)
from data import Answer, Document, Method, Prepared, Question
from evaluation import metrics
from evaluation.methods import Run, is_open
from evaluation.models import Models

# --- answers on disk ------------------------------------------------------------------------------------------------

# The fields that every line must have.
RULES = {**dict.fromkeys(("id", "document", "hash", "question", "prediction"), TEXT), "answers": TEXTS,
         **dict.fromkeys(("nodes", "tokens", "flops", "construction_flops", "calls", "refused", "construction_calls",
                          "construction_refused"), NUMBER), "cut": FLAG}


def prediction(document: Document, question: Question, prepared: Prepared, answer: Answer, graph: str | None) -> dict:
    """The line of an answer; `graph` names the file of the document's graph."""
    trace = [{name: value for name, value in asdict(step).items() if name != "candidates"} for step in answer.trace]
    return {"id": question.id, "document": document.id, "hash": document.hash, "question": question.text,
            "prediction": answer.text, "answers": question.answers,
            "f1": metrics.f1(answer.text, question.answers), "rouge_l": metrics.rouge_l(answer.text, question.answers),
            "nodes": len(answer.nodes), "tokens": answer.tokens, "flops": answer.flops,
            "construction_flops": prepared.flops, "graph": graph, "end": answer.end, "cut": answer.cut,
            "calls": answer.calls, "refused": answer.refused, "construction_calls": prepared.calls,
            "construction_refused": prepared.refused,
            **{name: question.extra[name] for name in metrics.OPTIONS if name in question.extra},
            "trace": trace}


class Predictions:
    """The answers of one run. `rows` holds those that were on disk when it was made, without their traces.

    Raises InputError if a line is not a prediction. If a kill has torn the last line, its question counts as open.
    """

    def __init__(self, path: Path, rank: int = 0):
        self.path = path
        self.own = path.with_name(f"{path.stem}.part-{rank}.jsonl") if rank else path
        self.rows = {}                                            # id of the question -> row
        for place, line in lines_of(path):
            with reading(place, "not a prediction", "; move the file away, or use --overwrite"):
                row = parse_json(line, place, dict)
                check_values(row, RULES, f"{place}: ")
            row.pop("trace", None)
            self.rows[row["id"]] = row

    def holds(self, document: Document, question: Question) -> bool:
        """Whether this question is answered; InputError if its id was answered for other data."""
        row = self.rows.get(question.id)
        if row is None:
            return False

        wanted = {"hash": document.hash, "question": question.text, "answers": question.answers,
                  **{name: question.extra.get(name) for name in metrics.OPTIONS}}
        for name, value in wanted.items():
            if row.get(name) != value:
                raise InputError(f"{self.path}: question {question.id} was answered for another text (its {name} has "
                                 "changed); choose another --output, or --overwrite")
        return True

    def add(self, row: dict):
        """Write an answer to the disk before returning."""
        append_line(self.own, json.dumps(row, ensure_ascii=False, allow_nan=False))

    def finish(self, order: list[str]):
        """Put the answers of all processes into one file. The questions of `order` come first, in this order."""
        lines = {json.loads(line)["id"]: line.decode() + "\n" for _, line in lines_of(self.path)}
        ordered = {id: lines[id] for id in (*order, *lines) if id in lines}
        if ordered:
            write_file(self.path, "".join(ordered.values()))
        for file in answer_files(self.path)[1:]:
            file.unlink()


def answer_files(path: Path) -> list[Path]:
    """The files that hold the answers of a run, `path` first."""
    parts = sorted(file for file in path.parent.glob("*.jsonl") if file.name.startswith(f"{path.stem}.part-"))
    return [file for file in (path, *parts) if file.exists()]


def lines_of(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the place of each answer ("FILE, line N") and its line."""
    for file in answer_files(path):
        with reading(file):
            lines = complete_lines(file)
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield f"{file}, line {number}", line


def set_aside(runs: list[Run]):
    """Rename the answers of all runs, and their setups, to NAME.old; InputError if there is a NAME.old already.

    If a run's number is not known yet (methods.settle), answers with any number are renamed.
    """
    renamed = {}
    for run in runs:
        number = r"(-\d+)?" if is_open(run) else ""
        kind = re.escape(run.file.stem) + number + r"(\.part-\d+)?\.(jsonl|setup\.json)"
        files = [file for file in run.file.parent.glob("*.json*") if re.fullmatch(kind, file.name)]
        if any(file.suffix == ".jsonl" for file in files):
            renamed |= {file: Path(f"{file}.old") for file in files}
    for old in filter(Path.exists, renamed.values()):
        raise InputError(f"{old} exists already; move it away, or leave out --overwrite")
    for file, old in renamed.items():
        with writing(file):
            file.rename(old)


def claim_file(path: Path, setup: dict):
    """Write the setup of a file of answers; InputError if the file holds answers of another setup."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    place = path.with_suffix(".setup.json")
    if answer_files(path):
        with reading(place, remedy="; choose another --output, or --overwrite the answers"):
            before = read_json(place)
            for name, value in setup.items():
                if before.get(name) != value:
                    raise InputError(f"{path} holds answers of another {name} ({before.get(name)!s:.80} there, "
                                     f"{value!s:.80} here)")
    write_json(place, setup)


# --- processes ------------------------------------------------------------------------------------------------------

class Team:
    """The processes of a run: one, or those that torchrun started. All must see the same output folder.

    Other programs and clusters set RANK and WORLD_SIZE too. They count only beside TORCHELASTIC_RUN_ID, which torchrun
    sets.
    """

    def __init__(self):
        self.rank, self.size, self.local_rank = 0, 1, 0
        if "TORCHELASTIC_RUN_ID" in os.environ:
            with reading("torchrun's RANK, WORLD_SIZE and LOCAL_RANK", "cannot be used"):
                self.rank, self.size, self.local_rank = (
                    int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
                if not 0 <= self.rank < self.size:
                    raise ValueError(f"there is no process {self.rank} of {self.size}")
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
            mine = function()
        except InputError as error:
            mine = error
        found = [mine] * self.size
        if self.size > 1:
            dist.all_gather_object(found, mine)

        for outcome in found:
            if isinstance(outcome, InputError):
                raise outcome
        return found

    def first(self, function):
        """Call a function in the first process only, while the others wait. InputError as in `together`."""
        self.together(lambda: function() if self.rank == 0 else None)

    def leave(self):
        if self.size > 1:
            dist.destroy_process_group()


# --- runs -----------------------------------------------------------------------------------------------------------

class Runner:
    """Carries out runs; the models of the last one stay in memory. First, the answers of `old` runs are renamed."""

    def __init__(self, team: Team, old: list[Run] = ()):
        self.team = team
        self.old = old
        self.models = None

    def setup(self, run: Run) -> dict:
        """What all answers in a file share: models and settings. Batch, device and number of documents may differ."""
        here = run.checkpoints._replace(device=self.team.device(run.checkpoints.device))
        if self.models is None or self.models.checkpoints != here:
            self.models = None                                    # free them before others are loaded
            with enough_memory():
                self.models = Models(here)

        used = {name: getattr(self.models, name) for name in ("model", *run.row.uses)}
        settings = run.settings.search_settings() if run.row.is_pecan else run.settings.reader_settings()
        if run.construction:
            settings["construction"] = run.construction.construction_settings()
        return {name: model and model.fingerprint for name, model in used.items()} | {"top": run.top_k} | settings

    def do(self, run: Run) -> tuple[list[dict], dict, list[str]]:
        """Answer the open questions. Returns the rows of all answers, their setup, and why answers are missing.

        Raises InputError if nothing could be answered, OutputError if the output cannot be written.
        """
        team = self.team
        setup = team.together(lambda: self.setup(run))[0]
        used = [getattr(self.models, name) for name in ("model", *run.row.uses)]
        method = run.row.method(*used, run.settings, *filter(None, [run.construction, run.top_k]))
        team.first(lambda: set_aside(self.old))
        self.old = []
        team.first(lambda: claim_file(run.file, setup))
        with writing(run.graphs):
            run.graphs.mkdir(parents=True, exist_ok=True)

        # All processes read the answers on disk before one of them writes.
        predictions = Predictions(run.file, team.rank)
        team.first(lambda: None)
        documents = run.dataset.documents[team.rank::team.size]
        failed = ChainMap(*team.together(lambda: answer_all(method, documents, predictions, run, team.rank == 0)))
        team.first(lambda: predictions.finish(run.dataset.questions))

        # In the order of the data. Several questions may share a reason, such as a failed document: it is given once.
        reasons = list(dict.fromkeys(failed[id] for id in run.dataset.questions if id in failed))
        answered = Predictions(run.file).rows
        rows = [answered[id] for id in run.dataset.questions if id in answered]
        if not rows:
            raise InputError(reasons[0])
        return rows, setup, reasons


def answer_all(method: Method, documents: list[Document], predictions: Predictions, run: Run,
               shown: bool) -> dict[str, str]:
    """Answer the open questions, document by document. Returns why others have no answer, by their ids."""
    failed = {}
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
            failed |= dict.fromkeys((question.id for question in left), reason)
            continue

        for question in left:
            try:
                with enough_memory():
                    answer = method.answer(prepared, question.text)
            except InputError as error:
                failed[question.id] = f"question {question.id} of document {document.id}: {error}"
            else:
                predictions.add(prediction(document, question, prepared, answer, name))
    return failed
