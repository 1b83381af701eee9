"""python -m evaluation.layouts PATH [--tokenizer DIR] [--limit N]: report what is in a data set."""
import argparse
import sys

from evaluation.layouts.dataset import Dataset
from support.command import parse_options, user_errors
from support.files import InputError


def main(argv=None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m evaluation.layouts", description="Report what is in a data set.")
    parser.add_argument("path", nargs="+", help="files, folders or zip files; LongBench's tasks as PATH:TASK")
    parser.add_argument("--tokenizer", metavar="DIR", help="checkpoint whose tokens are counted (default: words)")
    parser.add_argument("--limit", type=int, help="only the first LIMIT documents")
    args = parse_options(parser, argv)

    if args.limit is not None and args.limit < 1:
        raise InputError(f"--limit is {args.limit}; it must be at least 1")
    print_reports(args.path, args.tokenizer, args.limit)
    return 0


def print_reports(paths: list[str], checkpoint: str | None, limit: int | None):
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

        print("\n".join(dataset.report.lines()))
        print(f"  {unit} of a document: average {sum(lengths) / len(lengths):,.0f}, "
              f"min {min(lengths):,}, max {max(lengths):,}; {sum(answers) / len(answers):.1f} answers to a question")


if __name__ == "__main__":
    sys.exit(user_errors(main))
