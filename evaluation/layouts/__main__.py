"""Report what is in a data set: documents, questions, lengths, and what was left out or mended.

    python -m evaluation.layouts tiny/test.jsonl
    python -m evaluation.layouts hotpot_dev_distractor_v1.json --tokenizer tiny --limit 100
"""
import json
import sys
from dataclasses import asdict

from support.command import make_parser, parse_options, user_errors

from evaluation.layouts.dataset import Dataset
from support.files import InputError


def main(argv=None) -> int:
    """Run the command and return its exit code."""
    parser = make_parser("python -m evaluation.layouts", __doc__)
    parser.add_argument("path", nargs="+", help="files, folders or zip files; LongBench's tasks as PATH:TASK")
    parser.add_argument("--tokenizer", metavar="DIR", help="checkpoint whose tokens are counted (default: words)")
    parser.add_argument("--limit", type=int, help="only the first LIMIT documents")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each data set")
    args = parse_options(parser, argv)

    if args.limit is not None and args.limit < 1:
        raise InputError(f"--limit is {args.limit}; it must be at least 1")
    print_reports(args.path, args.tokenizer, args.limit, args.json)
    return 0


def print_reports(paths: list[str], checkpoint: str | None, limit: int | None, as_json: bool = False):
    """Print the report of each data set, the lengths of its documents, and how many answers a question has."""
    unit, split = "words", str.split
    if checkpoint:
        # Imported here because it takes seconds and words need none of it.
        from support.checkpoint import locate
        from support.tokenizer import Tokenizer
        unit, split = "tokens", Tokenizer(locate(checkpoint)).encode

    for path in paths:
        dataset = Dataset(path, limit)
        lengths = []
        answers = []
        for document in dataset.documents():
            lengths.append(sum(len(split(passage)) for passage in document.passages))
            answers += [len(question.answers) for question in document.questions]

        average = sum(lengths) / len(lengths)
        per_question = sum(answers) / len(answers)
        if as_json:
            found = {unit: {"average": average, "min": min(lengths), "max": max(lengths)},
                     "answers to a question": per_question}
            print(json.dumps(asdict(dataset.report) | found, ensure_ascii=False))
        else:
            print("\n".join(dataset.report.lines()))
            print(f"  {unit} of a document: average {average:,.0f}, min {min(lengths):,}, max {max(lengths):,}; "
                  f"{per_question:.1f} answers to a question")


if __name__ == "__main__":
    sys.exit(user_errors(main))
