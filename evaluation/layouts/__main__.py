"""Report what is in a data set: documents, questions, lengths, and what was left out or mended.

    python -m evaluation.layouts tiny/test.jsonl
    python -m evaluation.layouts hotpot_dev_distractor_v1.json --tokenizer tiny --limit 100
"""
import json
import sys
from dataclasses import asdict

from core.command import make_parser, parse_options, user_errors

from evaluation.layouts.dataset import Dataset


def main(argv=None) -> int:
    """Print the report of each data set, the lengths of its documents, and how many answers a question has."""
    parser = make_parser("python -m evaluation.layouts", __doc__)
    parser.add_argument("path", nargs="+", help="files, folders or zip files; LongBench's tasks as PATH:TASK")
    parser.add_argument("--tokenizer", metavar="DIR", help="checkpoint whose tokens are counted (default: words)")
    parser.add_argument("--limit", type=int, help="only the first LIMIT documents")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each data set")
    args = parse_options(parser, argv)

    unit, split = "words", str.split
    if args.tokenizer:
        # Imported here because it takes seconds and words need none of it.
        from core.checkpoint import locate
        from core.tokenizer import Tokenizer
        unit, split = "tokens", Tokenizer(locate(args.tokenizer)).encode

    for path in args.path:
        dataset = Dataset(path, args.limit)
        lengths = dataset.lengths(split)
        average, least, most = lengths["average"], lengths["least"], lengths["most"]
        answers = sum(len(question.answers) for asked in dataset.questions_of.values() for question in asked)
        per_question = answers / lengths["questions"]

        if args.json:
            found = {unit: {"average": average, "min": least, "max": most}, "answers to a question": per_question}
            print(json.dumps(asdict(dataset.report) | found, ensure_ascii=False, allow_nan=False))
        else:
            print("\n".join(dataset.report.lines()))
            print(f"  {unit} of a document: average {average:,.0f}, min {least:,}, max {most:,}; "
                  f"{per_question:.1f} answers to a question")
    return 0


if __name__ == "__main__":
    sys.exit(user_errors(main))
