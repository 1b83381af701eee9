"""Report what is in a data set: documents, questions, lengths, and what was left out or mended.

    python -m evaluation.layouts tiny/test.jsonl
    python -m evaluation.layouts hotpot_dev_distractor_v1.json --limit 100
"""
import json
import sys
from dataclasses import asdict

from core.command import make_parser, parse_options, user_errors
from evaluation.layouts.dataset import Dataset


def main(argv=None) -> int:
    """Print the report of each data set and the lengths of its documents. (Table A3 of eval.py counts tokens.)"""
    parser = make_parser("python -m evaluation.layouts", __doc__)
    parser.add_argument("path", nargs="+", help="files, folders or zip files; LongBench's tasks as PATH:TASK")
    parser.add_argument("--limit", type=int, help="only the first LIMIT documents")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each data set")
    args = parse_options(parser, argv)

    for path in args.path:
        dataset = Dataset(path, args.limit)
        words = dataset.lengths(str.split)
        if args.json:
            print(json.dumps(asdict(dataset.report) | {"words": words}, ensure_ascii=False, allow_nan=False))
        else:
            print("\n".join(dataset.report.lines()))
            print("  words of a document: average {average:,.0f}, min {least:,}, max {most:,}".format(**words))
    return 0


if __name__ == "__main__":
    sys.exit(user_errors(main))
