"""Carries out planned runs document by document, and keeps their answers on disk.

A question counts as answered only when its line is on disk, so a killed run loses no answer and goes on where it
stopped. Processes share the documents: every process but the first writes its own file METHOD.part-N.jsonl, and at the
end all answers are in OUTPUT/DATASET/METHOD.jsonl, in the order of the questions.
"""
import argparse
import datetime
import json
import os
import re
import sys
from collections import ChainMap, Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import count
from pathlib import Path

import torch
import torch.distributed as dist
from tqdm import tqdm

from core.code import VERSION, code_of_method, commit
from core.disk import any_of, of_any_code, sealed, unsealed
from core.files import (
    FLAG,
    NUMBER,
    TEXT,
    TEXTS,
    InputError,
    Rule,
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
from evaluation.methods import Run
from evaluation.models import Models, warn_if_unknown
from pecan import Pecan

# --- answers on disk ------------------------------------------------------------------------------------------------

# The fields that every line must have.
COUNTS = Rule((dict,), "an object with whole numbers",
              lambda counts: all(type(n) is int and NUMBER.holds(n) for n in counts.values()))
RULES = {**dict.fromkeys(("id", "document", "hash", "question", "prediction"), TEXT), "answers": TEXTS, "cut": FLAG,
         **dict.fromkeys(("nodes", "tokens", "flops", "construction_flops"), NUMBER),
         **dict.fromkeys(("counts", "construction_counts"), COUNTS)}


class Predictions:
    """The answers of one run. `rows` holds those that were on disk when it was made, without their traces.

    Raises InputError if a line is not a prediction. If a kill has torn the last line, its question counts as open.
    """

    def __init__(self, path: Path, rank: int = 0):
        self.path = path
        self.own = path.with_name(f"{path.stem}.part-{rank}.jsonl") if rank else path
        self.rows = {}                                            # id of the question -> row
        for where, line in lines_of(path):
            with reading(where, "not a prediction", "; move the file away, or use --overwrite"):
                row = unsealed(parse_json(line, where, dict), where)
                check_values(row, RULES, f"{where}: ")
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

    def add(self, document: Document, question: Question, prepared: Prepared, answer: Answer, graph: str | None):
        """Score an answer, and write its line to the disk before returning. `graph` names the document's graph file.

        A step's candidates are left out: they would be most of the file.
        """
        row = {"id": question.id, "document": document.id, "hash": document.hash, "question": question.text,
               "answers": question.answers, "prediction": answer.text,
               "f1": metrics.f1(answer.text, question.answers),
               "rouge_l": metrics.rouge_l(answer.text, question.answers),
               "construction_flops": prepared.flops, "construction_counts": prepared.counts, "graph": graph,
               **{name: question.extra[name] for name in metrics.OPTIONS if name in question.extra},
               **asdict(answer), "nodes": len(answer.nodes)}
        del row["text"]
        for step in row["trace"]:
            step.pop("candidates", None)
        append_line(self.own, json.dumps(sealed(row), ensure_ascii=False, allow_nan=False))

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
    """Yield where each answer is ("FILE, line N") and its line."""
    for file in answer_files(path):
        with reading(file):
            lines = complete_lines(file)
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield f"{file}, line {number}", line


def set_aside(runs: list[Run]):
    """Rename the answers of all runs, and their setups, to NAME.old, or NAME.old.1 if there is one already.

    If a run's X is still open (methods.settle), answers with any X are renamed.
    """
    renamed = {}
    for run in runs:
        x = r"(-\d+)?" if run.top_k == "X" else ""
        kind = re.escape(run.file.stem) + x + r"(\.part-\d+)?\.(jsonl|setup\.json)"
        files = [file for file in run.file.parent.glob("*.json*") if re.fullmatch(kind, file.name)]
        if any(file.suffix == ".jsonl" for file in files):
            endings = (f".old.{n}" if n else ".old" for n in count())
            ending = next(ending for ending in endings if not any(Path(f"{file}{ending}").exists() for file in files))
            renamed |= {file: Path(f"{file}{ending}") for file in files}
    for file, old in renamed.items():
        with writing(file):
            file.rename(old)


def claim_file(path: Path, setup: dict) -> dict:
    """Write the setup of a file of answers; InputError if the file holds answers of another setup.

    Returns the setup with the version and the commit that began the file.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    file = path.with_suffix(".setup.json")
    if answer_files(path):
        with reading(file, remedy="; choose another --output, or --overwrite the answers"):
            before = unsealed(read_json(file), file)
            for name, value in setup.items():
                if before.get(name) != value or (name == "code" and value is None):      # nobody knows this code
                    raise InputError(f"{path} holds answers of another {name} ({before.get(name)!s:.80} there, "
                                     f"{value!s:.80} here)")
        return before
    setup = {"version": VERSION, "commit": commit()} | setup
    write_json(file, sealed(setup))
    return setup


# --- processes ------------------------------------------------------------------------------------------------------

class Team:
    """The processes of a run: one, or those that torchrun started. All must see the same output folder.

    Other programs and clusters set RANK and WORLD_SIZE too. They count only beside TORCHELASTIC_RUN_ID, which torchrun
    sets.
    """

    def __init__(self):
        self.rank, self.size, self.local_rank = 0, 1, 0
        if "TORCHELASTIC_RUN_ID" in os.environ:
            self.rank, self.size, self.local_rank = (
                int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
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
    """Carries out runs; the models and the method of the last one stay in memory."""

    def __init__(self, team: Team):
        self.team = team
        self.models = self.method = None
        self.warned = set()                                       # data sets whose words have been looked at

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

        Raises InputError if nothing was answered, OutputError if the output cannot be written.
        """
        team = self.team
        setup = team.together(lambda: self.make(run))[0]
        if team.rank == 0 and run.dataset.name not in self.warned:
            warn_if_unknown(self.models.model, run.dataset.documents[0])
        self.warned.add(run.dataset.name)
        setup, *_ = team.together(lambda: claim_file(run.file, setup) if team.rank == 0 else None)
        with writing(run.graphs):
            run.graphs.mkdir(parents=True, exist_ok=True)

        # All processes read the answers on disk before one of them writes.
        predictions = Predictions(run.file, team.rank)
        team.first(lambda: None)
        documents = run.dataset.documents[team.rank::team.size]
        outcomes = team.together(lambda: answer_all(self.method, documents, predictions, run, team.rank == 0))
        failed = ChainMap(*(failed for failed, _ in outcomes))
        graphs = sum((graphs for _, graphs in outcomes), Counter())
        if graphs and team.rank == 0:
            unused = f"; {graphs['unused']} that another code has built are unused" if graphs["unused"] else ""
            said = f"{graphs['taken']} taken, {graphs['built']} built{unused}"
            print(f"{run.dataset.name}: {run.row.label}: graphs: {said}", file=sys.stderr)
        team.first(lambda: predictions.finish(run.dataset.questions))

        # In the order of the data. Several questions may share a reason, such as a failed document: it is given once.
        answered = Predictions(run.file).rows
        reasons = list(dict.fromkeys(failed.get(id, f"{run.file}: answers have vanished during the run; run it again")
                                     for id in run.dataset.questions if id not in answered))
        rows = [answered[id] for id in run.dataset.questions if id in answered]
        if not rows:
            raise InputError(reasons[0])
        if all(row["counts"].get("thinking") for row in rows):
            raise InputError("every reply ends inside its thought, so nothing is answered; take a checkpoint that "
                             "answers at once")
        return rows, setup, reasons


def answer_all(method: Method, documents: list[Document], predictions: Predictions, run: Run,
               shown: bool) -> tuple[dict[str, str], Counter]:
    """Answer the open questions. Returns why others have no answer, by their ids, and what became of graphs.

    As many documents run together as a batch has rows. If a document cannot be prepared, its questions stay open. A
    full disk ends the run.
    """
    failed = {}
    graphs = Counter()                                            # taken, built, unused
    progress = Progress(run, len(documents), shown)
    for first in range(0, len(documents), method.batches.rows):
        some = documents[first:first + method.batches.rows]
        left = [[question for question in document.questions if not predictions.holds(document, question)]
                for document in some]
        paths = [graph_path(method, document, run.graphs) for document in some]
        for path, open in zip(paths, left):
            if path and open:
                graphs["taken" if path.exists() else "built"] += 1
                graphs["unused"] += sum(other != path for other in of_any_code(path))
        progress.add(left.count([]))

        chosen = [n for n in range(len(some)) if left[n]]
        if chosen:
            progress.begin([some[n] for n in chosen])
        prepared = dict(zip(chosen, method.prepare_all([some[n] for n in chosen], [paths[n] for n in chosen],
                                                       not progress.bar.disable)))
        for n in chosen:
            if isinstance(prepared[n], InputError):
                reason = f"document {some[n].id}, questions left {len(left[n])}: {prepared[n]}"
                failed |= dict.fromkeys((question.id for question in left[n]), reason)
                progress.add(1)
                left[n] = []

        asked = [(n, question) for n in chosen for question in left[n]]
        waiting = Counter(n for n, _ in asked)
        for k, answer in method.answer_all([(prepared[n], question.text) for n, question in asked]):
            n, question = asked[k]
            if isinstance(answer, InputError):
                failed[question.id] = f"question {question.id} of document {some[n].id}: {answer}"
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
