"""Forty rows each of HotpotQA and MuSiQue in the project's own format, with the sentences that each answer needs.

    python -m study.rows hotpotqa FILE.json OUT.jsonl       from a file in the official layout
    python -m study.rows musique FILE.jsonl OUT.jsonl

The rows are 40 of the file, drawn without replacement by random.Random(0), in the order of the file. Only rows are
drawn whose needed sentences are all in their paragraphs. A title is a line above its paragraph, as in
evaluation/layouts. `evidence` holds HotpotQA's supporting facts. MuSiQue marks whole paragraphs; there it is the first
sentence of each supporting paragraph that holds the answer of its step, or the paragraph if none does.
"""
import hashlib
import json
import random
import re
import sys
from pathlib import Path

from core.command import make_parser, parse_options, user_errors

from core.files import InputError, parse_json, reading, write_file

ROWS = 40
FOR_HEADS = 10                    # the last of them: for choosing heads and settings, left out by the bench
DATA = Path(__file__).parent / "data"


def hotpotqa(row: dict) -> dict:
    """A row of HotpotQA as a document with one question; None if a supporting fact is not in its paragraphs."""
    sentences = dict(row["context"])
    facts = row["supporting_facts"]
    if any(title not in sentences or place >= len(sentences[title]) for title, place in facts):
        return None
    passages = [f"{title}\n{''.join(text)}" for title, text in row["context"]]
    evidence = [sentences[title][place].strip() for title, place in facts]
    return document(row["_id"], passages, row["question"], [row["answer"]], evidence, row["type"])


def musique(row: dict) -> dict:
    """A row of MuSiQue as a document with one question."""
    paragraphs = {paragraph["idx"]: paragraph for paragraph in row["paragraphs"]}
    evidence = []
    for step in row["question_decomposition"]:
        text = paragraphs[step["paragraph_support_idx"]]["paragraph_text"]
        holding = [sentence for sentence in re.split(r"(?<=[.!?])\s+", text)
                   if step["answer"].lower() in sentence.lower()]
        evidence.append(holding[0] if holding else text)

    passages = [f"{paragraph['title']}\n{paragraph['paragraph_text']}" for _, paragraph in sorted(paragraphs.items())]
    answers = list(dict.fromkeys([row["answer"], *row["answer_aliases"]]))
    return document(row["id"], passages, row["question"], answers, evidence, row["id"].split("__")[0])


def document(name: str, passages: list[str], question: str, answers: list[str], evidence: list[str],
             kind: str) -> dict:
    """A document with one question, in the format of data.py."""
    return {"id": name, "passages": passages, "questions": [
        {"id": name, "question": question.strip(), "answers": answers, "kind": kind,
         "evidence": list(dict.fromkeys(evidence))}]}


def main(argv=None):
    parser = make_parser("python -m study.rows", __doc__)
    parser.add_argument("layout", choices=["hotpotqa", "musique"])
    parser.add_argument("file")
    parser.add_argument("output")
    args = parse_options(parser, argv)

    with reading(args.file, f"no file of {args.layout}"):
        text = Path(args.file).read_text(encoding="utf-8")
        if args.layout == "hotpotqa":
            rows = [hotpotqa(row) for row in parse_json(text, args.file, list)]
        else:
            rows = [musique(parse_json(line, args.file, dict)) for line in text.splitlines()]
    rows = [row for row in rows if row is not None]
    if len(rows) < ROWS:
        raise InputError(f"{args.file}: holds {len(rows)} rows that can be used; {ROWS} are drawn")

    chosen = sorted(random.Random(0).sample(range(len(rows)), ROWS))
    lines = "".join(json.dumps(rows[n], ensure_ascii=False, allow_nan=False) + "\n" for n in chosen)
    write_file(args.output, lines)
    print(f"{args.output}: {ROWS} rows, sha256 {hashlib.sha256(lines.encode()).hexdigest()}")


if __name__ == "__main__":
    sys.exit(user_errors(main))
