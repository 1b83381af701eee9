"""Data sets as they are published. Defects of the real files are left out, and counted.

All rows here are made up.
"""
import gzip
import hashlib
import io
import json
import zipfile

import pytest
from hub import COMMIT, serve
from huggingface_hub import constants
from runs import table

from core.files import InputError
from evaluation.datasets import Dataset
from evaluation.layouts import Report, plain_text

# A row of each layout, by the name of a file that may hold it; behind it what is read from it: the data set's name,
# the passages, and the question's id, text and gold answers. Paragraphs have their titles, those of MuSiQue the order
# of idx. All annotators of Qasper give gold answers. Some copies of LongBench say "question", and leave the task to the
# file's name; its context is cut into passages if the task has several documents.
EXAMPLES = json.loads(r"""{
"hotpot_dev.json": [
    {"_id": "h1", "question": " Who?\n", "answer": "Ann", "supporting_facts": [],
     "context": [["Mills &amp; Co", ["They turn.", " They", " st", "op."]], ["Seas", ["They rise."]]]},
    "HotpotQA", ["Mills & Co\nThey turn. They stop.", "Seas\nThey rise."], "h1", "Who?", ["Ann"]],
"hub.jsonl": [
    {"id": "h1", "question": "Who?", "answer": " Ann ", "supporting_facts": [],
     "context": {"title": ["Mills &amp; Co", "Seas"], "sentences": [["They turn.", " They stop."], ["They rise."]]}},
    "HotpotQA", ["Mills & Co\nThey turn. They stop.", "Seas\nThey rise."], "h1", "Who?", ["Ann"]],
"wiki.json": [
    {"_id": "w1", "question": "Who?", "answer": "Ann", "supporting_facts": [], "evidences": [],
     "context": [["Mills & Co", ["They turn.", "They stop."]], ["Seas", ["They rise.", "Up.", " Up. ", "Up."]]]},
    "2WikiMultihopQA", ["Mills & Co\nThey turn. They stop.", "Seas\nThey rise. Up. Up. Up."], "w1", "Who?", ["Ann"]],
"musique.jsonl": [
    {"id": "m1", "question": "Who?", "answer": "Ann", "answer_aliases": ["Ann Lee", "Ann"],
     "paragraphs": [{"idx": 10, "title": "Same", "paragraph_text": "Text 10."},
                    {"idx": 9, "title": "Same", "paragraph_text": "Text 9."}]},
    "MuSiQue", ["Same\nText 9.", "Same\nText 10."], "m1", "Who?", ["Ann", "Ann Lee"]],
"qasper.json": [
    {"title": "On mills", "abstract": "Mills turn.", "full_text": [
     {"section_name": "Wind", "paragraphs": ["It blows.", " "]}, {"section_name": null, "paragraphs": ["It stops."]}],
     "qas": [{"question": "What?", "question_id": "q1", "answers": [
     {"answer": {"unanswerable": false, "extractive_spans": ["wind", "air"], "yes_no": null, "free_form_answer": "w"}},
     {"answer": {"unanswerable": true, "extractive_spans": [], "yes_no": null, "free_form_answer": ""}},
     {"answer": {"unanswerable": false, "extractive_spans": [], "yes_no": true, "free_form_answer": "the wind"}},
     {"answer": {"unanswerable": false, "extractive_spans": [], "yes_no": false, "free_form_answer": ""}},
     {"answer": {"unanswerable": false, "extractive_spans": [], "yes_no": null, "free_form_answer": ""}},
     {"answer": {"unanswerable": false, "extractive_spans": [], "yes_no": true, "free_form_answer": ""}}]}]},
    "Qasper", ["On mills\nMills turn.\nWind\nIt blows.\nIt stops."],
    "q1", "What?", ["wind, air", "Unanswerable", "the wind", "No", "Yes"]],
"QuALITY.1.dev": [
    {"article_id": "a1", "set_unique_id": "W", "article": "<p>Bob <b>came.</b>", "questions": [
     {"question": "Who came?", "options": ["Ann", " Bob\n", "Cat"], "gold_label": 2}]},
    "QuALITY", ["\nBob came."], "W-0", "Who came?\n(A) Ann\n(B) Bob\n(C) Cat", ["Bob"]],
"hotpotqa.jsonl": [
    {"_id": "l1", "context": "\nPassage 9:\nA\nAnn.\n\nPassage 10:\r\nB\nBob.", "dataset": "hotpotqa", "input": "Who?",
     "answers": ["Ann", " ", "Ann"]},
    "HotpotQA", ["A\nAnn.\n\n", "B\nBob."], "l1", "Who?", ["Ann"]],
"own.jsonl": [
    {"id": "d", "document_id": 1, "passages": ["a", "b"],
     "questions": [{"id": "q", "question": "Who?", "answers": ["Ann"]}]},
    "own", ["a", "b"], "q", "Who?", ["Ann"]],
"2wikimqa.jsonl": [
    {"_id": "l2", "context": "See\nPassage 2:\nthe end", "question": "Who?", "answers": ["Ann"]},
    "2WikiMultihopQA", ["See\n", "the end"], "l2", "Who?", ["Ann"]],
"multifieldqa_en.jsonl": [
    {"_id": "l3", "context": "See\nPassage 2:\nthe end", "question": "Who?", "answers": ["Ann"]},
    "multifieldqa_en", ["See\nPassage 2:\nthe end"], "l3", "Who?", ["Ann"]],
"qasper_e.jsonl": [
    {"_id": "l4", "context": "See\nPassage 2:\nthe end", "question": "Who?", "answers": ["Ann"]},
    "Qasper", ["See\nPassage 2:\nthe end"], "l4", "Who?", ["Ann"]]}""")
ROWS = {file: row for file, (row, *_) in EXAMPLES.items()}
HOTPOTQA, _, TWO_WIKI, MUSIQUE, QASPER, QUALITY, LONGBENCH, OWN, *_ = ROWS.values()


def write(path, *rows):
    """Write the rows of a file. In .json they are a list, or Qasper's object of papers, elsewhere one a line.

    A byte order mark and empty lines do no harm."""
    papers = {f"p{n}": row for n, row in enumerate(rows)} if "full_text" in rows[0] else rows
    lines = [json.dumps(papers, indent=1)] if path.suffix == ".json" else map(json.dumps, rows)
    path.write_text("\ufeff\n" + "\n".join(lines) + "\n\n", encoding="utf-8")
    return path


def counts(dataset):
    """Defect, without what follows in brackets -> how often and where first."""
    return {defect.split(" (")[0]: (entry["count"], entry["first"]) for defect, entry in dataset.report.found.items()}


# --- the layouts ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("file", EXAMPLES)
def test_a_row_of_each_layout(tmp_path, file):
    row, *wanted = EXAMPLES[file]
    dataset = Dataset(write(tmp_path / file, row))
    document, = dataset.documents
    question, = document.questions
    assert [dataset.name, document.passages, question.id, question.text, question.answers] == wanted
    assert question.extra == ({"options": ["Ann", "Bob", "Cat"], "gold": 1} if row is QUALITY else {})


def test_narrativeqa(tmp_path):
    """Stories may be gzipped, in another encoding, or begin with a byte order mark.

    A story that cannot be read, whatever it raises, costs itself alone. PATH:SET reads one of the three sets.
    """
    stories = {"b": b"\xef\xbb\xbf<p>The mill stood.", "c": gzip.compress("Élan said Ann.".encode()),
               "d": "“Café” é".encode("cp1252") + b"\x81" + "é".encode(), "i": b"\x1f\x8bbroken", "k": b"A\0nn left"}
    folder = tmp_path / "n:q"
    folder.mkdir()
    for name, content in stories.items():
        (folder / f"{name}.content").write_bytes(content)
    rows = [f'{name},test,"Who, then?",Ann,Ann Lee,x\n' for name in [*"bcdik", "missing"]]
    rows += ["b,train,Where?,At home,Home,x\n", "c,test,Who, then?,Ann,Ann Lee,x\n"]           # the last without quotes
    path = folder / "qaps.csv"
    path.write_text("document_id,set,question,answer1,answer2,question_tokenized\n" + "".join(rows), "utf-8-sig")
    dataset = Dataset(folder)
    assert dataset.name == "NarrativeQA"
    assert [document.passages[0].strip() for document in dataset.documents] == [
        "The mill stood.", "Élan said Ann.", "“Café” é\ufffdé"]
    assert [(q.id, q.text, q.answers) for q in dataset.documents[0].questions] == [
        ("b-2", "Who, then?", ["Ann", "Ann Lee"]), ("b-8", "Where?", ["At home", "Home"])], "the row's number"
    assert {*counts(dataset)} >= {
        "a document whose story is missing", "a row of another form", "a row with too many columns"}

    assert Dataset(f"{folder}:train").questions == ["b-8"]
    with pytest.raises(InputError, match="NarrativeQA's 'dev'"):
        Dataset(f"{folder}:dev")
    path.write_text("document_id,question\nd,Who?\n")
    with pytest.raises(InputError, match="qaps.csv: .*'answer1'"):
        Dataset(folder)


FRAMES = "if (window!= top)\ntop.location.href=location.href\n"     # IMSDb's script


@pytest.mark.parametrize("story, wanted", [
    ("<html><title>T</b>U</title><style>p</style><script>var</script><pre>Ann<br><b>left</b>.</pre>", "Ann left."),
    (f"\n{FRAMES}// -->\nThe mill.", "The mill."), (f"<!-- /* Break-out */\n\n{FRAMES}// --> The mill.", "The mill."),
    (f"<pre><script>\n<b><!--\n</b>{FRAMES}<b>// -->\n</b></script>The mill.", "The mill."),
    ("if (window) winds blow", "if (window) winds blow"), ("variable <b> winds\n\nblow", "variable <b> winds blow"),
    ("<pre><h4>CHAPTER I</h4>Ann left.</p>Bob<hr>and<td>Ol<i>af<td>&amp;<dd>I<blockquote>s<b>a</b>ng<unknown>",
     "CHAPTER I Ann left. Bob and Olaf & I sang"),
    ("<CENTER>CHAPTER I</CENTER>Ann<BR>&lt;left&gt;<!-- <p> -->", "CHAPTER I Ann <left>"),
    (" " * 4900 + "<pre>mill<br>wind", "mill wind"), ("<b>INT. MILL</b> <a name='x>y'>Ann</a>", "INT. MILL Ann"),
    ("<p>The<img alt=\"1 > 0\" src=x> mill.<br title=\">\">Ann", "The mill. Ann"),
    ("x " * 2500 + "<pre>", "x " * 2500 + "<pre>")],
    ids=lambda text: text[:9])
def test_the_text_of_a_story(story, wanted):
    assert plain_text(story, Report("n"), "a").split() == wanted.split()


def test_longbench(tmp_path):
    """A task is a file, or a file of data.zip. Questions about one context share its document; an id may be null."""
    path = write(tmp_path / "hotpotqa.jsonl", LONGBENCH | {"_id": None}, LONGBENCH | {"_id": "l2", "context": "Other."},
                 LONGBENCH)
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.write(path, "data/hotpotqa.jsonl")
        archive.writestr("data/musique.jsonl", json.dumps(LONGBENCH | {"dataset": "musique"}))
    for source in (path, f"{tmp_path}/data.zip:hotpotqa", f"{tmp_path}/data.zip:hotpotqa.jsonl"):
        assert [[q.id for q in document.questions] for document in Dataset(source).documents] == [
            ["hotpotqa.jsonl, line 2", "l1"], ["l2"]]
    for wrong in ("", ":wiki"):
        with pytest.raises(InputError, match=f"{wrong[1:]}.*; .*data.zip:NAME reads one file of hotpotqa, m"):
            Dataset(f"{tmp_path}/data.zip{wrong}")


# --- defects --------------------------------------------------------------------------------------------------------

# The file, what is changed in its second and third row, the defect that is counted, and its first place. What could
# not be written again (NaN, lone surrogates) is no JSON. What is of another kind is not read as if it were right.
DEFECTS = r"""
hotpot_dev.json | "answer": ""                                               | a question without an answer | h1
hotpot_dev.json | "question": " "                                            | an empty question            | h1
hotpot_dev.json | "context": []                                              | a row without text           | row 1
hotpot_dev.json | "context": [["Empty", [" "]]]                              | a row without text           | row 1
hotpot_dev.json | "context": "?"                                             | a row of another form        | row 1
hub.jsonl       | "context": {"title": ["A"], "sentences": [["x"], ["y"]]}   | a row of another form        | line 3
hotpot_dev.json | "more": NaN                                                | not valid JSON               | row 1
qasper.json     | "more": NaN                                                | not valid JSON               | paper p1
hub.jsonl       | "more": ["\ud800"]                                         | not valid JSON               | line 3
musique.jsonl   | "question": "x\ud83d"                                      | not valid JSON               | line 3
musique.jsonl   | "answerable": false                                        | a question without an answer | m1
musique.jsonl   | "answer_aliases": "Ann"                                    | a row of another form        | line 3
hotpotqa.jsonl  | "dataset": "dureader"                                      | a row of another form        | line 3
qasper.json     | "qas": [{"question": "?"}]                                 | a question of another form   | paper p1
qasper.json     | "qas": ["?"]                                               | a question of another form   | paper p1
QuALITY.1.dev   | "questions": [null]                                        | a question of another form   | line 3
QuALITY.1.dev   | "questions": [{"question": "?", "options": null}]          | a question of another form   | line 3
QuALITY.1.dev   | "questions": [{"question": "?", "options": ["a"]}]         | a question without an answer | W-0
QuALITY.1.dev | "questions": [{"question": "?", "options": ["a"], "gold_label": 0}] | a question without an answer | W-0
QuALITY.1.dev | "questions": [{"question": "?", "options": ["a"], "gold_label": 9}] | a question without an answer | W-0
"""


@pytest.mark.parametrize("file, change, defect, place", table(DEFECTS))
def test_a_defect_costs_what_has_it_and_is_counted(tmp_path, file, change, defect, place):
    """A row or a question alone."""
    bad = ROWS[file] | json.loads(f"{{{change}}}")
    dataset = Dataset(write(tmp_path / file, ROWS[file], bad, bad))
    first = f"{file}, {place}" if " " in place else place
    assert counts(dataset)[defect] == (2, first) and len(dataset.questions) == 1
    assert dataset.report.rows == (1 if "JSON" in defect else 3)
    assert [line for line in dataset.report.lines() if f"2 times: {defect}" in line and first in line]


@pytest.mark.parametrize("text", ["120 Å²", "NESTLÉ®", "Ã© and â€™", "&amp; <b>", "\ufeffx", "1\u00a02", "é ﬁ ½ ☃"])
def test_what_a_file_says_is_what_is_read(tmp_path, text):
    """Nothing is mended without a proof that it is damaged. Only HotpotQA's titles are escaped."""
    row = TWO_WIKI | {"question": text, "answer": text, "context": [[text, [f"A{text}."]]]}
    document, = Dataset(write(tmp_path / "w.jsonl", row)).documents
    question, = document.questions
    assert (document.passages, question.text, question.answers) == ([f"{text}\nA{text}."], text, [text])


def test_a_file_may_be_in_another_encoding(tmp_path):
    for encoding, text in (("utf-8", "É\u2028lan"), ("utf-16", "Élan"), ("utf-32", "Élan"), ("cp1252", "Élan")):
        path = tmp_path / "l.jsonl"
        row = json.dumps(LONGBENCH | {"input": text}, ensure_ascii=False)
        path.write_bytes(f"\n{row}".encode(encoding))
        dataset = Dataset(path)
        assert dataset.documents[0].questions[0].text == text, "U+2028 is a character, no line's end"
    assert counts(dataset)["not UTF-8, read as Windows-1252"] == (1, "l.jsonl, line 2")


# --- the hub --------------------------------------------------------------------------------------------------------

@pytest.fixture
def on_the_hub(tmp_path, monkeypatch):
    """The files of a repository of a fake hub, and an empty cache for them. Another repository is gated."""
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("data/hotpotqa.jsonl", json.dumps(LONGBENCH))
    files = {"data.zip": zipped.getvalue(), "data/musique_dev.jsonl": json.dumps(MUSIQUE).encode()}
    with serve({"datasets/an/open": files, "datasets/a/gated": "GatedRepo"}, tmp_path / "cache", monkeypatch):
        yield files


@pytest.mark.parametrize("name, file, part", [("HotpotQA", "data.zip", ":hotpotqa"),
                                              ("MuSiQue", "data/musique_dev.jsonl", "")])
def test_data_sets_on_the_hub(on_the_hub, monkeypatch, name, file, part):
    """The first time from the hub, then from its cache, without a network. The report names commit and sha256."""
    for offline, revision in ((False, f"@{COMMIT}"), (False, ""), (True, ""), (True, "@main")):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        dataset = Dataset(f"hf://datasets/an/open{revision}/{file}{part}")
        assert dataset.name == name and len(dataset.questions) == 1
        assert dataset.report.path == f"hf://datasets/an/open@{COMMIT}/{file}{part}"
        assert dataset.report.sha256 == hashlib.sha256(on_the_hub[file]).hexdigest()
    with pytest.raises(InputError, match="n.jsonl: cannot be fetched from the hub"):
        Dataset("hf://datasets/an/open/n.jsonl")


@pytest.mark.parametrize("address, words", table("""
    an/open/data/musique.jsonl   | cannot be fetched .*Entry Not Found
    a/gated/x.jsonl              | cannot be .*gated, .* log in with
    an/open@v2/data.zip:qasper   | cannot be fetched .*Revision Not Found
    no/such/data.zip             | cannot be fetched .*Repository Not Found
    an/open                      | not an address of the form hf://
    open                         | not an address of the form hf://datasets/OWNER/NAME.@REVISION./FILE"""))
def test_an_address_that_gives_no_data_set(on_the_hub, address, words):
    with pytest.raises(InputError, match=f"^hf://datasets/{address}: {words}"):
        Dataset(f"hf://datasets/{address}")


# --- as a whole -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("first, second, questions", [
    ([HOTPOTQA], HOTPOTQA | {"_id": "h2"}, ["h1", "h2"]), ([MUSIQUE] * 2, MUSIQUE, ["m1", "m1#2", "m1#3"]),
    ({"p1": QASPER}, {"p2": QASPER}, ["q1", "q1#2"]), (OWN, OWN, ["q", "q#2"])], ids=lambda row: str(row)[:9])
def test_every_file_of_a_folder_is_read(tmp_path, first, second, questions):
    """Files are read in the order of their names, packed or not, and no hidden ones. A repeated id is numbered."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.NDJSON").write_text(json.dumps(second))
    (tmp_path / "sub" / "._a.json").write_bytes(b"\0\5\26\7")                    # macOS writes such files
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(json.dumps(first).encode()))
    dataset = Dataset(tmp_path)
    assert len(dataset.documents) == 1 and dataset.questions == questions


def test_the_limit_counts_documents(tmp_path):
    """The report still covers all documents."""
    path = write(tmp_path / "m.jsonl", *(LONGBENCH | {"_id": f"l{n}", "context": "more " * size}
                                         for n, size in enumerate((4, 9, 4, 11, 20))))
    dataset = Dataset(path, limit=3)
    assert dataset.questions == ["l0", "l2", "l1", "l3"] and len(dataset.documents) == 3
    assert (dataset.report.documents, dataset.report.questions) == (4, 5)
    assert dataset.lengths(str.split) == {"average": 8, "least": 4, "most": 11, "documents": 3, "questions": 4}


def test_ones_own_data_never_takes_the_name_of_a_data_set_of_the_paper(tmp_path):
    for file, name in table("""
            HotpotQA.jsonl | HotpotQA-own\n graphs.jsonl | graphs-own\n .jsonl | -own\n law.v1.jsonl | law.v1
            law.v2.NDJSON | law.v2\n 2024.01.05.jsonl | 2024.01.05"""):
        assert Dataset(write(tmp_path / file, OWN)).name == name


# A file, its content, and what the error says; in the last row beside a qaps.csv. Only English question answering of
# LongBench is read: other tasks have other metrics than ours, or Chinese answers, which would all score 0.
WRONG = r"""
x.json | []                                                           | no row of a known layout
x.json | ["context", "answers"]                                       | no row of a known layout
x.json |                                                              | not valid JSON
x.json | [{"question": "Who?", "answ                                  | not valid JSON
x.json | [{"supporting_facts": 0, "context": [["", ["x"]]], "question": "Who?"}] | holds no question .a question without
x.json | \x1f\x8bbroken                                               | cannot be read
x.json | PAR1                                                         | parquet
x.zip  | PK                                                           | x.zip
x.jsonl | {"id": "d", "document_id": 1, "text": "x", "questions": []} | holds no question .rows: 1
x.txt  | Ann came.                                                    | there is x.txt
x.jsonl | {"context": "", "answers": [], "dataset": "dureader"}       | LongBench's 'dureader' is not read, only Narr
x.jsonl | {"context": "", "answers": [], "dataset": "h\ud83d"}         | LongBench's 'h.ud83d' is not read
lcc.jsonl | {"context": "", "answers": []}                            | LongBench's 'lcc' is not read
x.json | [{"full_text": [], "abstract": "x"}]                         | not one object of papers
x.json | [{"text": "x", "questions": []}]                             | x.json, line 1: holds a list
x.json | [{"supporting_facts": 0, "context": [], "question": "Who?"}] | HotpotQA and NarrativeQA
"""


@pytest.mark.parametrize("name, content, words", table(WRONG))
def test_what_is_no_data_set(tmp_path, name, content, words):
    (tmp_path / name).write_text(content.replace(r"\x1f\x8b", "\x1f\x8b"), encoding="latin-1")
    if words.endswith("NarrativeQA"):
        (tmp_path / "qaps.csv").touch()
    with pytest.raises(InputError, match=words):
        Dataset(tmp_path)
