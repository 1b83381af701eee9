"""Run methods over data sets, score their answers, print the paper's tables.

    python eval.py                                     the embedded model on the embedded set
    python eval.py --dataset FILE ... --model DIR      one's own data or the paper's, an instruct Llama
    python eval.py --table 1|2|3|A3|A4|patience|nodes  a table or figure of the paper (evaluation/tables.py)
    python eval.py --dry-run ...                       what a run would cost
    python eval.py --score FILE ...                    score predictions again, without a model
    torchrun --nproc-per-node N eval.py ...            documents shared out over processes and devices

Every question that is answered is one line on disk, written at once: a run that is killed goes on where it stopped, and
its results are those of a run left alone, byte by byte. Graphs are named by document, building model and settings.
"""
import argparse
import contextlib
import datetime
import io
import json
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from tqdm import tqdm

from baselines.common import MissingPackage
from data import EMBEDDED, Document
from evaluation import cost, metrics, paper, tables
from evaluation.layouts import Dataset
from evaluation.methods import METHODS, Models, top_of
from evaluation.predictions import Predictions, lock
from evaluation.tables import Run, name_of
from support.checkpoint import choose_device, locate, read_config
from support.files import InputError, OutputError, read_json, write_file
from support.options import add_model_options, chosen_settings, user_errors
from support.settings import Settings, settings_for
from support.tokenizer import Tokenizer

DEFAULT = ["pecan", "whole"]                   # methods, where neither --method nor --table says otherwise


# --- processes ------------------------------------------------------------------------------------------------------

class Team:
    """The processes of a run: one, or those that torchrun started, all of which see the output folder. Documents go to
    them in turns."""

    def __init__(self):
        self.rank, self.size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        if self.size > 1:
            # The first to finish waits for the last, however long; where one fails, torchrun ends all.
            dist.init_process_group("gloo", timeout=datetime.timedelta(days=30))

    def device(self, wanted: str) -> str:
        """The device of this process: where there are several of cuda, each takes its own."""
        if self.size > 1 and wanted in ("auto", "cuda") and torch.cuda.is_available():
            return f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
        return wanted

    def share(self, documents: Iterator[Document]) -> Iterator[Document]:
        """The documents of this process."""
        return (document for n, document in enumerate(documents) if n % self.size == self.rank)

    def gather(self, mine) -> list:
        """What each process has, in all of them; nobody goes on before everybody is here."""
        everybodys = [mine]
        if self.size > 1:
            everybodys = [None] * self.size
            dist.all_gather_object(everybodys, mine)
        return everybodys

    def leave(self):
        if self.size > 1:
            dist.destroy_process_group()

    def first(self, function):
        """Run `function` in the first process while the others wait; an InputError there is everybody's."""
        refusal = None
        if self.rank == 0:
            try:
                function()
            except InputError as error:
                refusal = str(error)
        refusal = self.gather(refusal)[0]
        if refusal:
            raise InputError(refusal)


# --- running --------------------------------------------------------------------------------------------------------

def answer_all(method, documents: Iterator[Document], predictions: Predictions, graphs: Path, bar: tqdm) -> dict:
    """Answer what is not answered yet, document by document; returns what could not be, id -> why."""
    failures = {}
    for document in documents:
        unanswered = [question for question in document.questions if not predictions.holds(document, question)]
        bar.update(len(document.questions) - len(unanswered))
        if not unanswered:
            continue
        prepared, key, refused = None, method.key(document), None
        try:
            prepared = method.prepare(document, key and graphs / f"{key}.json", progress=not bar.disable)
        except OutputError:
            raise
        except InputError as error:
            refused = error
        if refused:                                              # the document's fault, not the questions'
            told = f"document {document.id}, questions left {len(unanswered)}: {refused}"
            failures |= {question.id: told for question in unanswered}
            bar.update(len(unanswered))
            continue
        for question in unanswered:
            try:
                answer = method.answer(prepared, question.text)
            except InputError as error:
                failures[question.id] = f"question {question.id} of document {document.id}: {error}"
            else:
                predictions.add({
                    "id": question.id, "document": document.id, "hash": document.hash, "question": question.text,
                    "prediction": answer.text, "answers": question.answers,
                    "f1": metrics.f1(answer.text, question.answers),
                    "rouge_l": metrics.rouge_l(answer.text, question.answers), "nodes": len(answer.nodes),
                    "tokens": answer.tokens, "flops": answer.flops, "construction_flops": prepared.flops, "graph": key,
                    "end": answer.end, "cut": answer.cut, "trace": [asdict(step) for step in answer.trace]})
            bar.update()
    return failures


def summary(rows: list[dict]) -> dict:
    """Scores in percent, and means: of FLOPs and nodes over the questions, of construction over the documents."""
    def mean(values):
        values = list(values)
        return sum(values) / len(values)
    construction = {row["hash"]: row["construction_flops"] for row in rows}
    return metrics.scores(rows) | {
        "documents": len(construction), "nodes": mean(row["nodes"] for row in rows),
        "tokens": mean(row["tokens"] for row in rows), "flops": mean(row["flops"] for row in rows),
        "construction_flops": mean(construction.values()),
        "cut_documents": len({row["hash"] for row in rows if row["cut"]}),
        "histogram": {str(n): sum(row["nodes"] == n for row in rows) for n in sorted({row["nodes"] for row in rows})}}


class Evaluation:
    """Runs over data sets, all into one output folder: OUTPUT/DATASET/RUN.jsonl, OUTPUT/graphs, and for
    each table OUTPUT/results-TABLE.json."""

    def __init__(self, args, team: Team):
        self.args, self.team, self.output = args, team, Path(args.output)
        self.graphs = Path(args.graphs or self.output / "graphs")
        self.models: dict = {}
        team.first(self.claim_folder)

    def claim_folder(self):
        self.lock = lock(self.output)                            # held as long as this object lives
        self.graphs.mkdir(parents=True, exist_ok=True)

    def checkpoints(self, run: Run) -> Models:
        """The models of a run; those of one run at a time are held."""
        key = run.model or self.args.model, run.builder or (None if run.model else self.args.builder)
        if key not in self.models:
            self.models.clear()
            args = argparse.Namespace(**vars(self.args) | {"model": key[0], "builder": key[1]})
            args.device = self.team.device(args.device)
            with contextlib.redirect_stderr(sys.stderr if self.team.rank == 0 else io.StringIO()):
                self.models[key] = Models(args)
        return self.models[key]

    def settings(self, dataset: Dataset, run: Run, runs: dict) -> Settings:
        """The paper's for this data set, under what the options choose, under what the run is about."""
        models, changes = self.checkpoints(run), dict(run.changes)
        if changes.get("fixed_nodes") == "mean":                 # as many as PECAN read here
            changes["fixed_nodes"] = max(1, round(runs["pecan"]["nodes"]))
        chosen = {name: value for name, value in chosen_settings(self.args).items() if value is not None}
        if changes.get("window") == "longest":                   # of the whole document, unless one is asked for
            changes["window"] = chosen.get("window", min(paper.LONGEST, models.model.config.max_length))
        builder = models.builder if run.method == "pecan" else None
        return settings_for(models.model, builder, **settings_of(dataset.name) | chosen | changes)

    def setup(self, dataset: Dataset, run: Run, runs: dict) -> dict:
        """What must not change under an answer that is kept: all but the number of documents, how many windows run
        together, and the place it runs on."""
        models, settings = self.checkpoints(run), self.settings(dataset, run, runs)
        top = top_of(run, models, settings, dataset.name, runs.get("pecan"), self.args.top)
        kept = settings.reader()
        if run.method == "pecan":
            kept |= {name: value for name, value in asdict(settings).items() if name != "batch"}
        return {"method": run.method, "model": models.model.fingerprint, **models.fingerprints(run.method), "top": top,
                **kept}

    def path(self, dataset: Dataset, run: Run, setup: dict) -> Path:
        """Where the predictions of a run stand. How much is read where PECAN's own run tells it is part of the name,
        because it changes with the number of documents."""
        told = setup["top"] if run.top == "X" else setup["fixed_nodes"] if "fixed_nodes" in run.changes else None
        return self.output / dataset.name / (f"{run.name}-{told}.jsonl" if told else f"{run.name}.jsonl")

    def run(self, dataset: Dataset, run: Run, runs: dict) -> list[str]:
        """Do one run over one data set and enter its summary into `runs`; returns what was not answered, and why."""
        team, setup, make = self.team, self.setup(dataset, run, runs), METHODS[run.method][0]
        path = self.path(dataset, run, setup)
        method = make(self.checkpoints(run), self.settings(dataset, run, runs), setup["top"])
        team.first(lambda: claim_file(path, setup, self.args.overwrite))
        predictions, questions = Predictions(path, team.rank), dataset.questions
        team.gather(None)                                        # all have read before one writes
        with tqdm(total=len(questions) // team.size, desc=f"{dataset.name}: {run.label}", unit="question", leave=False,
                  disable=not sys.stderr.isatty() or team.rank > 0) as bar:
            failed = answer_all(method, team.share(dataset.documents()), predictions, self.graphs, bar)
        failed = {i: why for part in team.gather(failed) for i, why in part.items()}
        told = list(dict.fromkeys(failed[i] for i in questions if i in failed))       # a document's fault once
        if len(failed) == len(questions):                        # nothing can be answered: it is not the questions
            raise InputError(told[0])
        team.first(lambda: predictions.finish(questions))
        self.enter(dataset, run, runs, path, setup)
        return told

    def enter(self, dataset: Dataset, run: Run, runs: dict, path: Path, setup: dict):
        """Enter the summary of a run's predictions into `runs`."""
        rows, args = Predictions(path).rows, self.args
        changed = [f"w/o {name}" for name in args.without] + [f"{args.nodes} nodes"] * bool(args.nodes)
        label = ", ".join([run.label, *(changed if run.method == "pecan" else [])])
        runs[run.name] = {"label": label, "search by": name_of(run.model or args.model),
                          "graph by": name_of(run.builder or run.model or args.builder or args.model),
                          "setup": setup} | summary([rows[i] for i in dataset.questions if i in rows])

    def recall(self, dataset: Dataset, run: Run, runs: dict):
        """Enter a run that an earlier call has done, if it is complete and of the same setup."""
        if not any((self.output / dataset.name).glob(f"{run.name}*.jsonl")):
            return                                               # before a checkpoint is loaded for nothing
        try:
            setup = self.setup(dataset, run, runs)
        except InputError:                                       # of Top-X, where PECAN's run is not here
            return
        path = self.path(dataset, run, setup)
        if path.exists() and read_json(setup_of(path)) == setup \
                and not set(dataset.questions) - set(Predictions(path).rows):
            self.enter(dataset, run, runs, path, setup)

    def show(self, results: dict, failures: list[str]):
        """Write the results and the table as text and Markdown, print it, and what could not be answered."""
        args, versions = self.args, {"python": platform.python_version(), "torch": torch.__version__}
        device = next(iter(self.models.values())).model.device.type if self.models else None
        everything = {"versions": versions, "device": device, "seed": args.seed, "data": results,
                      "not answered": failures}
        shown, name = tables.SHOW[args.table](results), f"-{args.table}" if args.table else ""
        path, name, text = self.output / f"results{name}.json", f"table{name}", "\n\n".join(map(tables.as_text, shown))
        write_file(path, json.dumps(everything, indent=2, ensure_ascii=False) + "\n")
        for suffix, content in ((".txt", text), (".md", "\n".join(map(tables.as_markdown, shown))),
                                (".json", json.dumps([table._asdict() for table in shown], indent=2))):
            write_file(self.output / (name + suffix), content + "\n")
        for failure in failures:
            print(f"not answered: {failure}", file=sys.stderr)
        print(text)
        if args.table in ("nodes", "patience"):
            print(tables.draw(args.table, results, self.output))
        if args.table != "A3":
            print("F1 as LongBench defines it, ROUGE-L as rouge_score does, 95 % bootstrap intervals; FLOPs are "
                  "counted, not timed.")
        print(f"Results: {path}")
        print(f"peak memory of this process {peak_memory():.2f} GiB", file=sys.stderr)


def settings_of(dataset: str) -> dict:
    """The paper's settings for a data set of its own."""
    known = paper.SETTINGS.get(dataset)
    return {"confidence": known.confidence, "answer_tokens": known.answer_tokens} if known else {}


def setup_of(path: Path) -> Path:
    """Where the setup of a file of predictions stands."""
    return path.with_suffix(".setup.json")


def peak_memory() -> float:
    """GiB: of the device where there is one of cuda, of the process otherwise (0 where the system does not tell)."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2 ** 30
    try:
        import resource
    except ImportError:                                           # Windows
        return 0.0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2 ** 30


def claim_file(path: Path, setup: dict, overwrite: bool):
    """Make a file of predictions this run's; refuse one that holds answers given under another setup."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept, files = setup_of(path), Predictions(path).files()
    if overwrite:
        for file in [*files, kept]:
            file.unlink(missing_ok=True)
    elif files:
        old = read_json(kept)
        different = [key for key in setup if old.get(key) != setup[key]]
        if different:
            key = different[0]
            values = "" if len(str(setup[key])) > 20 else f" ({old.get(key)} there, {setup[key]} here)"
            raise InputError(f"{path} holds answers of another {' and '.join(different)}{values}; choose another "
                             "--output, or --overwrite them")
    write_file(kept, json.dumps(setup, indent=2) + "\n")


# --- command line ---------------------------------------------------------------------------------------------------

def parse(argv) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="eval.py", description="Evaluate PECAN and what it is compared with.")
    parser.add_argument("--dataset", nargs="+", default=[str(EMBEDDED)], metavar="PATH",
                        help="one or several, in a layout that evaluation/layouts.py knows (default: the embedded set)")
    parser.add_argument("--method", help=f"one or several of {','.join(tables.METHODS)} (default: pecan,whole; for "
                                         "--table 1 all)")
    parser.add_argument("--table", choices=[name for name in tables.SHOW if name],
                        help="a table or figure of the paper")
    parser.add_argument("--searcher", action="append", default=[], metavar="DIR",
                        help="for --table 2: another checkpoint that searches the graphs of --model, and its own")
    parser.add_argument("--dragon", nargs=2, metavar=("QUESTIONS", "PASSAGES"),
                        help="Dragon's two encoders (default: the mean of the model's own embeddings)")
    parser.add_argument("--scorer", metavar="DIR", help="checkpoint of LongLLMLingua's scorer (default: the model)")
    parser.add_argument("--top", type=int, help="what the Top-X methods retrieve (default: the paper's, or as much as "
                                                "costs what PECAN does)")
    parser.add_argument("--dry-run", action="store_true", help="tell what the run would cost, and stop")
    parser.add_argument("--score", nargs="+", metavar="FILE", help="score files of predictions, without a model")
    parser.add_argument("--limit", type=int, help="only the first LIMIT documents of each data set")
    parser.add_argument("--output", default="results", metavar="DIR",
                        help="folder of predictions, graphs and results (default: %(default)s)")
    parser.add_argument("--graphs", metavar="DIR", help="folder of the graphs (default: OUTPUT/graphs)")
    parser.add_argument("--overwrite", action="store_true", help="answer anew what the output folder holds")
    parser.add_argument("--seed", type=int, default=0, help="kept with the results; decoding is greedy")
    add_model_options(parser)
    args = parser.parse_args(argv)
    everything = list(tables.METHODS) if args.table else DEFAULT
    args.methods = everything if args.method is None else args.method.split(",")
    for method in args.methods:
        if method not in tables.METHODS:
            raise InputError(f"--method {method}: unknown; choose from {', '.join(tables.METHODS)}")
    if not -2 ** 63 <= args.seed < 2 ** 63:
        raise InputError(f"--seed is {args.seed}; it must fit 64 bits")
    for name in ("limit", "top"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise InputError(f"--{name} is {value}; it must be at least 1")
    if (args.table == "2") != bool(args.searcher):
        raise InputError("--table 2 compares models: name the others with --searcher DIR, which no other table takes")
    if args.top is not None and not any(tables.METHODS[method].top == "X" for method in args.methods):
        raise InputError(f"--top {args.top} is for the methods of Top-X, none of which is run (they end in -x)")
    for option, given, tables_of_its_own in (
            ("--method", args.method, [name for name in tables.SHOW if name not in (None, "1")]),
            ("--patience", args.patience, ["patience"]),
            ("--nodes", args.nodes, tables.SHOW), ("--without", args.without, tables.SHOW)):
        if given and args.table and args.table in tables_of_its_own:
            raise InputError(f"{option} cannot be chosen with --table {args.table}, which says itself what is run")
    return args


def score_files(paths: list[str]) -> int:
    """Print the metrics of prediction files, ours or LongBench's."""
    rows = []
    for path in paths:
        s = metrics.scores(metrics.read_predictions(path))
        (_, f1), (_, rouge_l) = tables.score(s), tables.score(s, "rouge_l")
        rows.append([path, f"{s['f1']:.2f}", f1, f"{s['rouge_l']:.2f}", rouge_l, f"{s['rouge']:.2f}",
                     f"{s['bleu4']:.2f}", str(s["n"])])
    print(tables.as_text(tables.Table("", ["predictions", "F1", "95 %", "ROUGE-L", "95 %", "ROUGE-L (rouge)", "BLEU-4",
                                           "n"], rows)))
    return 0


def lengths(dataset: Dataset, tokenizer: Tokenizer) -> dict:
    """Tokens of the documents (Table A3)."""
    counts = [sum(len(tokenizer.encode(passage)) for passage in document.passages) for document in dataset.documents()]
    return {"average": sum(counts) / len(counts), "least": min(counts), "most": max(counts), "documents": len(counts),
            "questions": len(dataset.questions)}


def dry_run(args, datasets: list[Dataset]) -> int:
    """Print what the runs would cost; reads text, config and tokenizer, no weights."""
    folder = locate(args.model)
    config, tokenizer = read_config(folder), Tokenizer(folder)
    stored = SimpleNamespace(folder=folder, config=config)
    _, dtype = choose_device(args.device, args.dtype, config.dtype)
    rows = []
    for dataset in datasets:
        chosen = {name: value for name, value in chosen_settings(args).items() if value is not None}
        settings, known = settings_for(stored, **settings_of(dataset.name) | chosen), paper.SETTINGS.get(dataset.name)
        c = cost.expected(dataset.documents(), config, tokenizer, settings, known and known.fixed_nodes,
                          args.window or min(paper.LONGEST, config.max_length))
        numbers = (c.documents, c.questions, c.tokens, c.windows, c.calls)
        rows.append([dataset.name, *(f"{n:,}" for n in numbers),
                     *map(tables.quantity, (c.construction, c.search, c.most, c.whole)),
                     f"{sum(cost.memory(config, settings, dtype.itemsize, c.longest)) / 2 ** 30:.2f} GiB"])
    print(tables.as_text(tables.Table("", ["data", "documents", "questions", "tokens", "windows", "calls",
                                           "construction", "search", "at most", "whole", "memory"], rows)))
    print(cost.ASSUMED)
    print("That is one run of PECAN, and one of the whole document; of other methods, and of further runs that a table "
          "makes, nothing is told.")
    return 0


def main(argv=None) -> int:
    args = parse(argv)
    if args.score:
        return score_files(args.score)
    datasets = [Dataset(path, args.limit) for path in args.dataset]
    names = [dataset.name for dataset in datasets]
    if len(set(names)) < len(names):
        raise InputError(f"--dataset: {' and '.join(args.dataset)} are of one name, {names[0]}; run them one by one")
    if args.dry_run:
        return dry_run(args, datasets)
    torch.manual_seed(args.seed)
    team = Team()
    evaluation = Evaluation(args, team)
    results, failures = {}, []
    for dataset in datasets:
        if team.rank == 0:
            print("\n".join(dataset.report.lines()), file=sys.stderr)
        known = paper.SETTINGS.get(dataset.name)
        runs: dict = {}
        for run in tables.runs(args.table, known and known.fixed_nodes, args.searcher, args.model):
            if run.name in args.methods or args.table not in (None, "1"):
                try:
                    failures += evaluation.run(dataset, run, runs)
                except MissingPackage as error:
                    if args.method:                              # it was asked for by name
                        raise
                    failures.append(f"{run.label}: {error}")
            else:
                evaluation.recall(dataset, run, runs)
        results[dataset.name] = {"report": asdict(dataset.report), "runs": runs}
        if args.table == "A3":
            results[dataset.name]["lengths"] = lengths(dataset, Tokenizer(locate(args.model)))
    if team.rank == 0:
        evaluation.show(results, failures)
    team.leave()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(user_errors(main, "; what was finished is kept, and the same command goes on (other settings want another "
                               "--output)"))
