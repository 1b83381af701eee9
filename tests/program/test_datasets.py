"""Data sets as they are published, the rows that end a run, and what is left out and counted.

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
from runs import table, write_lines

from core.files import InputError
from evaluation.datasets import Dataset, rows_of_list
from evaluation.layouts import is_page, without_tags

# A row of each layout, by the name of a file that may hold it; behind it the data set's name, the passages, and the
# question's id, text and gold answers. Paragraphs have their titles, those of MuSiQue the order of idx. All annotators
# of Qasper give gold answers. LongBench's context is cut into passages if the task has several documents.
EXAMPLES = json.loads(r"""{
"hotpot_dev_distractor_v1.json": [
    {"_id": "h1", "question": " Who?\n", "answer": " Ann", "supporting_facts": [],
     "context": [["Mills &amp; Co", ["They turn.", " They", " st", "op."]], ["Dry", [" "]], ["Seas", ["They rise."]]]},
    "HotpotQA", ["Mills & Co\nThey turn. They stop.", "Seas\nThey rise."], "h1", "Who?", ["Ann"]],
"dev.json": [
    {"_id": "w1", "question": "Who?", "answer": "Ann", "supporting_facts": [], "evidences": [],
     "context": [["Mills &amp; Co ﬁ", ["They turn.", "They stop."]], ["Seas", ["They rise.", "Up.", " Up. "]]]},
    "2WikiMultihopQA", ["Mills &amp; Co ﬁ\nThey turn. They stop.", "Seas\nThey rise. Up. Up."], "w1", "Who?", ["Ann"]],
"musique_ans_v1.0_dev.jsonl": [
    {"id": "m1", "question": "Who?", "answer": "Ann", "answer_aliases": ["Ann Lee", "Ann", " "], "answerable": true,
     "paragraphs": [{"idx": 10, "title": "Same", "paragraph_text": "Text 10."},
                    {"idx": 9, "title": "Same", "paragraph_text": "Text 9."}]},
    "MuSiQue", ["Same\nText 9.", "Same\nText 10."], "m1", "Who?", ["Ann", "Ann Lee"]],
"qasper-dev-v0.3.json": [
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
"QuALITY.v1.0.1.htmlstripped.dev": [
    {"article_id": "a1", "set_unique_id": "W", "article": "Bob\ncame.", "questions": [
     {"question": "Who came?", "options": ["Ann", " Bob\n", "Cat"], "gold_label": 2}]},
    "QuALITY", ["Bob\ncame."], "W-0", "Who came?\n(A) Ann\n(B) Bob\n(C) Cat", ["Bob"]],
"hotpotqa.jsonl": [
    {"_id": "l1", "context": "\nPassage 9:\nA\nAnn.\n\nPassage 10:\r\nB\nBob.", "dataset": "hotpotqa", "input": "Who?",
     "answers": ["Ann", " ", "Ann"]},
    "HotpotQA", ["A\nAnn.\n\n", "B\nBob."], "l1", "Who?", ["Ann"]],
"qasper_e.jsonl": [
    {"_id": "l4", "context": "See\nPassage 2:\nthe end", "dataset": "qasper_e", "input": "Who?", "answers": ["Ann"]},
    "Qasper", ["See\nPassage 2:\nthe end"], "l4", "Who?", ["Ann"]],
"law.v1.jsonl": [
    {"id": "d", "passages": ["a\u2028", "b"], "questions": [{"id": "q", "question": "Who?", "answers": ["Ann"]}]},
    "law.v1", ["a\u2028", "b"], "q", "Who?", ["Ann"]]}""")
ROWS = {file: row for file, (row, *_) in EXAMPLES.items()}
HOTPOTQA, TWO_WIKI, MUSIQUE, QASPER, QUALITY, LONGBENCH, _, OWN = ROWS.values()


def write(path, *rows):
    """Write the rows of a file. In .json they are a list, or Qasper's object of papers, elsewhere one a line.

    A byte order mark and empty lines do no harm."""
    papers = {f"p{n}": row for n, row in enumerate(rows)} if "full_text" in rows[0] else rows
    lines = [json.dumps(papers, indent=1)] if path.suffix == ".json" else map(json.dumps, rows)
    path.write_text("\ufeff\n" + "\n".join(lines) + "\n\n", encoding="utf-8")
    return path


# --- the layouts ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("file", EXAMPLES)
def test_a_row_of_each_layout(tmp_path, file):
    row, *wanted = EXAMPLES[file]
    dataset = Dataset(write(tmp_path / file, row))
    document, = dataset.documents
    question, = document.questions
    assert [dataset.name, document.passages, question.id, question.text, question.answers] == wanted
    assert question.extra == ({"options": ["Ann", "Bob", "Cat"], "gold": 1} if row is QUALITY else {})
    assert dataset.report["sha256"] == hashlib.sha256((tmp_path / file).read_bytes()).hexdigest()


@pytest.mark.parametrize("file, key", [(file, key) for file, row in ROWS.items() for key in row if row != OWN
                                       or key != "id"])
def test_a_row_without_a_key_ends_the_run(tmp_path, file, key):
    """So does one whose key has another type. File and row are named."""
    good = ROWS[file]
    without = {name: value for name, value in good.items() if name != key}
    for bad in (without, good | {key: 5}):
        with pytest.raises(InputError) as error:
            Dataset(write(tmp_path / file, good, bad))
        said = "text or passages" if key == "passages" else key
        assert f"{file}, row {2 if file.endswith('.json') else 3}: " in str(error.value) and said in str(error.value)


# What is changed in the second row. What cannot be read as text (NaN, half a character) is refused, too.
WRONG = r"""
hotpot_dev_distractor_v1.json | "question": " " | row 2: question h1 is blank
hotpot_dev_distractor_v1.json | "context": [] | row 2: there is no text
hotpot_dev_distractor_v1.json | "context": [["a", ["b"], "c"]] | row 2: an item of context .*2 items
hotpot_dev_distractor_v1.json | "context": [["a", "b"]] | row 2: .*'b'; it must be of type list
hotpot_dev_distractor_v1.json | "_id": "h1" | row 2: question id 'h1' is used a second
hotpot_dev_distractor_v1.json | "answer": "\ud83d" | row 2: .*surrogates
musique_ans_v1.0_dev.jsonl | "paragraphs": [{"idx": 0}] | row 3: .*paragraphs has no key 'title'
musique_ans_v1.0_dev.jsonl | "more": NaN | line 3: not valid JSON
qasper-dev-v0.3.json | "qas": [{"question": "?", "question_id": "q"}] | row 2: an item of qas has no key 'answers'
QuALITY.v1.0.1.htmlstripped.dev | "article": " <!DOCTYPE html><p>Bob" | row 3: .*htmlstripped
QuALITY.v1.0.1.htmlstripped.dev | "questions": [{"question": "?", "options": ["a"], "gold_label": 2}] | row 3: gold is 1
hotpotqa.jsonl | "dataset": "dureader" | row 3: .*'dureader' is not read
law.v1.jsonl | "id": "e" | row 3: question id 'q' is used a second
law.v1.jsonl | "text": "x" | row 3: .*either text or passages
"""


@pytest.mark.parametrize("file, change, words", table(WRONG))
def test_a_row_of_another_form_ends_the_run(tmp_path, file, change, words):
    with pytest.raises(InputError, match=f"{file}, {words}"):
        Dataset(write(tmp_path / file, ROWS[file], ROWS[file] | json.loads(f"{{{change}}}")))


@pytest.mark.parametrize("name, content, words", table(r"""
x.json  | []                                   | not one JSON list
x.json  | [{"question": "Who?", "answ          | not one JSON list
x.json  | ["context", "answers"]               | not one JSON list of objects.* from '."context"
x.json  | {"full_text": "", "abstract": ""}    | Qasper's object
x.json  | Élan                                 | x.json: .*utf-8
x.jsonl |                                      | row 1: a row must have one of the keys evidences, supp
x.jsonl | {"Who": "Ann"}                       | row 1: a row must have one of the keys evidences, supp
x.zip   | PK                                   | LongBench's '' is not read, only narrativeqa
x.csv   | a,b                                  | x.csv, line 1: not valid JSON
x.jsonl | {\0"\0i\0d\0"\0:\0 \0"\0a\0"\0}\0 | x.jsonl, line 1: not valid JSON"""))
def test_what_is_no_data_set(tmp_path, name, content, words):
    (tmp_path / name).write_text(content.replace("\\0", "\0"), encoding="latin-1")
    with pytest.raises(InputError, match=words):
        Dataset(tmp_path / name)
    with pytest.raises(InputError, match="nothing:test: there is no such file or folder"):
        Dataset(tmp_path / "nothing:test")


@pytest.mark.parametrize("text", ["[{}] [{}]", "[{}] x", ",{}]", "[{}[{}", "[{},]", '[{"a": NaN}]', "[{}", "[{}}",
                                  "[1]", "[[{}]]", "{}{}", "[{}" + 70_000 * " " + "{}]"])
def test_a_file_of_rows_is_one_json_list(tmp_path, text):
    """It is read piece by piece, and still whole."""
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match="x.json: not one JSON list"):
        list(rows_of_list(tmp_path / "x.json"))


def test_longbench_in_its_zip_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("data/hotpotqa.jsonl", json.dumps(LONGBENCH))
    dataset = Dataset(f"{tmp_path}/data.zip:hotpotqa")
    assert (dataset.name, dataset.questions) == ("HotpotQA", [("l1", "l1")])
    for task in ("lcc", "musique"):
        with pytest.raises(InputError, match=task):
            Dataset(f"{tmp_path}/data.zip:{task}")


def test_narrativeqa(tmp_path):
    """Stories may be gzipped, begin with a byte order mark, or be pages. PATH:SET reads one of the three sets."""
    stories = {"b": b"\xef\xbb\xbf<html><p>The mill stood.", "c": gzip.compress("Élan said <b>Ann.".encode()),
               "d": "Élan".encode("latin-1")}
    folder = tmp_path / "n:q"
    (folder / "tmp").mkdir(parents=True)
    for name, content in stories.items():
        (folder / "tmp" / f"{name}.content").write_bytes(content)
    rows = [f'{name},test,"Who, then?",Ann,Ann Lee,x\n' for name in [*"bcd", "missing"]]
    path = folder / "qaps.csv"
    head = "document_id,set,question,answer1,answer2,question_tokenized\n"
    path.write_text("".join([head, *rows, "b,train,Where?,At home,Home,x\n"]), "utf-8-sig")
    dataset = Dataset(folder)
    assert dataset.name == "NarrativeQA"
    assert [document.passages[0].strip() for document in dataset.documents] == ["The mill stood.", "Élan said <b>Ann."]
    assert [(q.id, q.text, q.answers) for q in dataset.documents[0].questions] == [
        ("b-2", "Who, then?", ["Ann", "Ann Lee"]), ("b-6", "Where?", ["At home", "Home"])], "the row's number"
    assert str(dataset).endswith("; left out: 1 questions about a story that is not UTF-8, "
                                 "1 questions about a story that is not there")

    assert Dataset(f"{folder}:train").questions == [("b", "b-6")]
    with pytest.raises(InputError, match="NarrativeQA has no set 'dev'"):
        Dataset(f"{folder}:dev")
    path.write_text(f"{head}c,test,Who, then?,Ann,Ann Lee,x\n")            # a comma without quotes
    with pytest.raises(InputError, match="qaps.csv, row 2: document_id, set, "):
        Dataset(folder)


SCRIPT = "if (window!= top)\ntop.location.href=location.href\n"     # IMSDb's, against frames


@pytest.mark.parametrize("page, wanted", [
    ("<html><title>T</title><style>p</style><script>var</script><pre>Ann<br><b>left</b>.</pre>", "Ann left."),
    (f"<pre><script>\n<b><!--\n</b>{SCRIPT}<b>// -->\n</b></script>The mill.", "The mill."),
    ("<pre><h4>CHAPTER I</h4>Ann left.</p>Bob<hr>and<td>Ol<i>af<td>&amp;<dd>I<blockquote>s<b>a</b>ng<unknown>",
     "CHAPTER I Ann left. Bob and Olaf & I sang"),
    ("<CENTER>CHAPTER I</CENTER>Ann<BR>&lt;left&gt;<!-- <p> -->", "CHAPTER I Ann <left>"),
    # What is not closed hides nothing; Python's parsers do not agree about it.
    ("<p>Ann <!-- left. <b>Bob</b> came.", "Ann <!-- left. Bob came."), ("<p>Ann<script>left. <p>Bob", "Ann left. Bob"),
    ("<p>Ann<title>left</p> <style >Bob", "Ann left Bob"), ("<p>Ann < Bob > Olaf <", "Ann < Bob > Olaf <"),
    ("<?xml version='1.0'?><html>Ann <? left ?>.", "Ann <? left ?>."),
    ("<p>Ann <a href='x' left. <p>Bob", "Ann <a href='x' left. Bob"), ("<p>Ann <![CDATA[left]]> Bob", "Ann Bob"),
    ("<p>Ann</script> left <!> Bob <!-->came", "Ann left Bob came")], ids=lambda text: text[:9])
def test_the_text_of_a_page(page, wanted):
    """The same in all versions of Python."""
    assert is_page(page) and not is_page(f"Ann {page}")
    assert without_tags(page).split() == wanted.split()


# --- as a whole -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("row, bad", [
    (MUSIQUE, MUSIQUE | {"id": "m2", "answerable": False}),
    (QUALITY, QUALITY | {"questions": [{"question": "Who?", "options": ["Ann", "Bob"]}]})])
def test_a_question_without_a_gold_answer_is_left_out_and_counted(tmp_path, row, bad):
    dataset = Dataset(write_lines(tmp_path / "x.jsonl", [row, bad, bad]))
    assert len(dataset.questions) == 1 and dataset.report["left out"] == {"without a gold answer": 2}
    assert str(dataset).endswith("1 documents, 1 questions; left out: 2 questions without a gold answer")
    with pytest.raises(InputError, match="0 questions; left out: 1 questions without a gold answer"):
        Dataset(write_lines(tmp_path / "x.jsonl", [bad]))


def test_two_documents_may_have_a_question_of_the_same_id(tmp_path):
    """As in Qasper; in one document it is an error."""
    path = write(tmp_path / "qasper-dev-v0.3.json", QASPER, QASPER | {"title": "Other"})
    assert Dataset(path).questions == [("p0", "q1"), ("p1", "q1")]


def test_rows_of_one_text_are_one_document(tmp_path):
    """Reading stops at the first row of the document behind the limit."""
    path = write(tmp_path / "m.jsonl", *(LONGBENCH | {"_id": f"l{n}", "context": "more " * size}
                                         for n, size in enumerate((4, 9, 4, 11, 9, 20, 9))))
    dataset = Dataset(path, limit=3)
    assert dataset.questions == [("l0", "l0"), ("l0", "l2"), ("l1", "l1"), ("l1", "l4"), ("l3", "l3")]
    assert (dataset.report["documents"], dataset.report["questions"]) == (3, 5)
    assert dataset.lengths(str.split) == {"average": 8, "least": 4, "most": 11, "documents": 3, "questions": 5}
    path.write_bytes(path.read_bytes()[:-9])                      # what is behind them is not looked at
    assert Dataset(path, limit=3).questions == dataset.questions


def test_a_list_is_read_piece_by_piece(tmp_path):
    """What is behind the limit is not looked at, and rows may be longer than a piece."""
    rows = [HOTPOTQA | {"_id": f"h{n}", "context": [[str(n), ["]},{ \\\" é" * n * 40_000 + "."]]]} for n in range(10)]
    path = tmp_path / "h.json"
    path.write_text(json.dumps(rows))
    assert [document.passages for document in Dataset(path).documents] == [[f"{n}\n{row['context'][0][1][0]}"]
                                                                     for n, row in enumerate(rows)]
    for damaged in (json.dumps(rows)[:-9], json.dumps(rows).replace('}, {"_id": "h9"', '} {"_id": "h9"')):
        path.write_text(damaged)
        assert len(Dataset(path, 8).documents) == 8
        with pytest.raises(InputError, match="h.json: not one JSON list"):
            Dataset(path)


def test_only_an_official_file_takes_the_name_of_a_data_set_of_the_paper(tmp_path):
    for file, name, row in (
            ("HotpotQA.jsonl", "HotpotQA-own", OWN), ("graphs.jsonl", "graphs-own", OWN), ("law.2.jsonl", "law.2", OWN),
            ("hotpotqa.json", "hotpotqa-own", HOTPOTQA), ("mine.json", "mine", HOTPOTQA), ("dev.json", "dev", HOTPOTQA),
            ("law.jsonl", "law", LONGBENCH)):
        assert Dataset(write(tmp_path / file, row)).name == name


# --- the hub --------------------------------------------------------------------------------------------------------

@pytest.fixture
def on_the_hub(tmp_path, monkeypatch):
    """The files of a repository of a fake hub, and an empty cache for them. Another repository is gated."""
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("data/hotpotqa.jsonl", json.dumps(LONGBENCH))
    files = {"data.zip": zipped.getvalue(), "data/musique_ans_v1.0_dev.jsonl": json.dumps(MUSIQUE).encode()}
    with serve({"datasets/an/open": files, "datasets/a/gated": "GatedRepo"}, tmp_path / "cache", monkeypatch):
        yield files


@pytest.mark.parametrize("name, file, part", [("HotpotQA", "data.zip", ":hotpotqa"),
                                              ("MuSiQue", "data/musique_ans_v1.0_dev.jsonl", "")])
def test_data_sets_on_the_hub(on_the_hub, monkeypatch, name, file, part):
    """The first time from the hub, then from its cache, without a network. The results name commit and sha256."""
    for offline, revision in ((False, f"@{COMMIT}"), (False, ""), (True, ""), (True, "@main")):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        dataset = Dataset(f"hf://datasets/an/open{revision}/{file}{part}")
        assert dataset.name == name and len(dataset.questions) == 1
        assert dataset.report["path"] == f"hf://datasets/an/open@{COMMIT}/{file}{part}"
        assert dataset.report["sha256"] == hashlib.sha256(on_the_hub[file]).hexdigest()
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
