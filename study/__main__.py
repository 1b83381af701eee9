"""What attention is worth, step by step, with intervals (study/README.md).

    python -m study                 the bench on the embedded model; options name other models and data
    python -m study heads           choose heads on documents that are not reported, and write MODEL/heads.json
    python -m study settings        compare chunks and windows on such documents
"""
import itertools
import sys
from dataclasses import replace
from pathlib import Path

from core.command import make_parser, parse_options, user_errors

from support.heads import FILE, chosen_heads, head_weights, heads_of_checkpoints
from tqdm import tqdm

from core.files import TEXTS, InputError, check_values
from core.settings import resolve
from data import EMBEDDED, Document, read_jsonl
from study.heads import choose
from study.report import report
from study.rows import DATA, FOR_HEADS
from study.run import Bench, run_ablations, run_document, run_extensions, run_next_nodes
from study.settings import compare
from support.options import EMBEDDED_MODEL, load_models
from tiny.world import other_documents

KNOWN = {"embedded": EMBEDDED, "hotpotqa": DATA / "hotpotqa.jsonl", "musique": DATA / "musique.jsonl"}


def documents_of(names: list[str], limit: int | None, questions: int | None = None,
                 for_heads: bool = False) -> dict[str, list[Document]]:
    """The documents of each data set that are reported, or those on which heads are chosen (the last ones first).

    InputError if a question has no evidence.
    """
    found = {}
    for name in names:
        path = KNOWN.get(name, Path(name))
        documents = world_for_heads() if for_heads and name == "embedded" else read_jsonl(path)
        if path.parent == DATA:
            documents = documents[:-FOR_HEADS - 1:-1] if for_heads else documents[:-FOR_HEADS]
        documents = documents[:limit]

        for document in documents:
            if questions is not None:
                del document.questions[questions:]
            for question in document.questions:
                check_values(question.extra, {"evidence": TEXTS}, f"{path}: question {question.id}: ")
        found[name if name in KNOWN else path.stem] = [document for document in documents if document.questions]
    return found


def world_for_heads() -> list[Document]:
    """Documents of the embedded world that are not those of its test set."""
    return [replace(document, id=f"heads-{document.id}") for document in other_documents()]


def load(args) -> Bench:
    """The model, the encoder, the settings, and the heads that are written next to the checkpoint."""
    model, encoder, _ = load_models(args)
    settings = resolve(model.folder, model.config.max_length)
    heads = chosen_heads(args.heads)
    if not heads and (model.folder / FILE).exists():
        heads = heads_of_checkpoints(model.folder, model.folder)
    for chosen in heads.values():
        head_weights(chosen, model.config.layers, model.config.heads)     # refused now, not after hours
    return Bench(model, encoder, settings, Path(args.output), heads)


def run(bench: Bench, data: dict[str, list[Document]], short: bool):
    """All stages, a document of each data set in turn, so that what is there after an interruption is even."""
    extensions = [run_extensions] if bench.heads else []
    stages = [run_document] if short else [run_document, run_ablations, run_next_nodes, *extensions]
    turns = [(name, document) for documents in itertools.zip_longest(*data.values())
             for name, document in zip(data, documents, strict=True) if document is not None]
    for stage in stages:
        for name, document in tqdm(turns, stage.__name__, unit="document", disable=not sys.stderr.isatty()):
            stage(bench, name, document)


def main(argv=None) -> int:
    parser = make_parser("python -m study", __doc__)
    parser.add_argument("command", nargs="?", choices=["bench", "heads", "settings"], default="bench")
    parser.add_argument("--model", default=str(EMBEDDED_MODEL), metavar="DIR", help="(default: the embedded model)")
    parser.add_argument("--encoder", metavar="DIR", help="sentence encoder (default: the model's own embeddings)")
    parser.add_argument("--data", nargs="+", default=["embedded"], metavar="NAME",
                        help="embedded, hotpotqa, musique, or files in data.py's format with evidence")
    parser.add_argument("--heads", metavar="LIST|FILE",
                        help="chosen heads (default: heads.json next to the checkpoint)")
    parser.add_argument("--limit", type=int, help="first documents of each data set")
    parser.add_argument("--output", default="results-study", metavar="DIR", help="(default: %(default)s)")
    parser.add_argument("--report", action="store_true", help="run nothing; report what is there")
    parser.add_argument("--short", action="store_true", help="two documents, two questions each, no other searches")
    parser.add_argument("--pictures", action="store_true", help="draw pictures too (needs matplotlib)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.set_defaults(builder=None)
    args = parse_options(parser, argv)

    if args.command != "bench" and (args.report or args.pictures or args.heads):
        raise InputError("--report, --pictures and --heads are for the bench itself; leave them out")

    limit, questions = (2, 2) if args.short else (args.limit, None)
    data = documents_of(args.data, limit, questions, args.command != "bench")
    bench = load(args)
    if args.command == "heads":
        print(choose(bench, data))
        return 0
    if args.command == "settings":
        print(compare(bench, data))
        return 0

    if not args.report:
        run(bench, data, args.short)
    found = report(bench.folder, data, {"model": args.model, "encoder": args.encoder or "its own embeddings"})
    print((bench.folder / "report.md").read_text(encoding="utf-8"))
    if args.pictures:
        from study.pictures import draw  # here, because matplotlib is an extra
        print("\n".join(draw(found, bench.folder)))
    return 0


if __name__ == "__main__":
    sys.exit(user_errors(main))
