"""Data sets as they are published. Defects of the real files are mended or left out, and counted.

All rows here are made up.
"""
import gzip
import hashlib
import io
import json
import zipfile
from collections import Counter

import pytest
from hub import COMMIT, serve
from huggingface_hub import constants
from test_eval import run

from core.files import InputError
from evaluation.datasets import Dataset
from evaluation.layouts import Report, plain_text

HOTPOTQA = {"_id": "h1", "question": " Who?\n", "answer": "Ann", "supporting_facts": [],
            "context": [["Mills", ["They turn.", " They stop."]], ["Seas", ["They rise."]]]}
HUB = {"id": "h1", "question": "Who?", "answer": " Ann ", "supporting_facts": [],
       "context": {"title": ["Mills", "Seas"], "sentences": [["They turn.", " They stop."], ["They rise."]]}}
TWO_WIKI = HOTPOTQA | {"evidences": [], "context": [
    ["Mills", ["They turn.", "They stop."]], ["Seas", ["They rise.", "Up.", " Up. ", "Up."]]]}
MUSIQUE = {"id": "m1", "question": "Who?", "answer": "Ann", "answer_aliases": ["Ann Lee", "Ann"], "paragraphs": [
    {"idx": n, "title": "Same", "paragraph_text": f"Text {n}."} for n in (10, 9, 0)]}
QUALITY = {"article_id": "a1", "set_unique_id": "a1_W1", "article": "Bob came.", "questions": [
    {"question": "Who came?", "options": ["Ann", " Bob\n", "Cat"], "gold_label": 2},
    {"question": "Who left?", "options": ["Ann", "Bob"]}]}
LONGBENCH = {"_id": "l1", "context": "\nPassage 9:\nA\nAnn.\n\nPassage 10:\nB\nBob.", "dataset": "hotpotqa",
             "input": "Who?", "answers": ["Ann", " ", "Ann"]}
OWN = {"id": "d", "passages": ["a", "b"], "questions": [{"id": "q", "question": "Who?", "answers": ["Ann"]}]}


def annotator(**changes):
    return {"answer": {"unanswerable": False, "extractive_spans": [], "yes_no": None, "free_form_answer": ""} | changes}


QASPER = {"title": "On mills", "abstract": "Mills turn.", "full_text": [
    {"section_name": "Wind", "paragraphs": ["It blows.", " "]}, {"section_name": None, "paragraphs": ["It stops."]}],
    "qas": [{"question": "What?", "question_id": "q1", "answers": [
        annotator(extractive_spans=["wind", "air"], free_form_answer="w"), annotator(unanswerable=True),
        *[annotator(free_form_answer="the wind", yes_no=True)] * 2, annotator(yes_no=False), annotator(),
        annotator(yes_no=True)]}]}


def lines(path, *rows):
    """Write JSON lines. A byte order mark and empty lines do no harm."""
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    path.write_text(f"\ufeff\n{text}\n", encoding="utf-8")
    return path


def objects(path, content):
    path.write_text(json.dumps(content, indent=1), encoding="utf-8-sig")         # a byte order mark does no harm
    return path


def narrativeqa(folder, **stories):
    folder.mkdir()
    rows = ["document_id,set,question,answer1,answer2,question_tokenized"]
    for name, content in stories.items():
        rows += [f'{name},test,"Who, then?",Ann,Ann Lee,x', f"{name},test,Where?,At home,Home,x"]
        if content is not None:
            (folder / f"{name}.content").write_bytes(content)
    (folder / "qaps.csv").write_text("\n".join(rows) + "\n", encoding="utf-8-sig")
    return folder


def counts(reasons):
    """Reason -> how often, whatever follows in brackets."""
    found = Counter()
    for reason, entry in reasons.items():
        found[reason.split(" (")[0]] += entry["count"]
    return found


# --- the layouts ----------------------------------------------------------------------------------------------------

PASSAGES = ["Mills\nThey turn. They stop.", "Seas\nThey rise."]


@pytest.mark.parametrize("write, file, content, name, passages, asked", [
    (objects, "hotpot_dev_distractor_v1.json", [HOTPOTQA], "HotpotQA", PASSAGES, ("h1", "Who?", ["Ann"])),
    (lines, "hub.jsonl", HUB, "HotpotQA", PASSAGES, ("h1", "Who?", ["Ann"])),
    (objects, "dev.json", [TWO_WIKI], "2WikiMultihopQA", [PASSAGES[0], "Seas\nThey rise. Up. Up. Up."],
     ("h1", "Who?", ["Ann"])),
    (lines, "musique_ans_v1.0_dev.jsonl", MUSIQUE, "MuSiQue", [f"Same\nText {n}." for n in (0, 9, 10)],
     ("m1", "Who?", ["Ann", "Ann Lee"])),
    (objects, "qasper-dev-v0.3.json", {"p1": QASPER}, "Qasper", ["On mills\nMills turn.\nWind\nIt blows.\nIt stops."],
     ("q1", "What?", ["wind, air", "Unanswerable", "the wind", "No", "Yes"])),
    (lines, "QuALITY.v1.0.1.htmlstripped.dev", QUALITY, "QuALITY", ["Bob came."],
     ("a1_W1-0", "Who came?\n(A) Ann\n(B) Bob\n(C) Cat", ["Bob"])),
    (lines, "hotpotqa.jsonl", LONGBENCH, "HotpotQA", ["A\nAnn.\n\n", "B\nBob."], ("l1", "Who?", ["Ann"])),
    (lines, "mine.jsonl", OWN, "mine", ["a", "b"], ("q", "Who?", ["Ann"]))], ids=lambda value: str(value)[:9])
def test_a_row_of_each_layout(tmp_path, write, file, content, name, passages, asked):
    """Paragraphs have their titles, those of MuSiQue the order of idx. All annotators of Qasper give gold answers."""
    dataset = Dataset(write(tmp_path / file, content))
    document, = dataset.documents
    question, = document.questions
    assert (dataset.name, document.passages) == (name, passages)
    assert (question.id, question.text, question.answers) == asked
    if name == "QuALITY":
        assert question.extra == {"options": ["Ann", "Bob", "Cat"], "gold": 1}
        assert counts(dataset.report.skipped) == {"a question without an answer": 1}, "a test set has no labels"


def test_narrativeqa(tmp_path):
    """Stories may be HTML, gzipped, Windows-1252 or wrongly decoded, or begin with a byte order mark or a script.

    A story that cannot be read, whatever it raises, costs itself alone. PATH:SET reads one of the three sets.
    """
    page = b"<html><title>T</b>U</title><style>p</style><script>var</script><pre>INT. MILL<br><b>ANN</b> enters.</pre>"
    folder = narrativeqa(
        tmp_path / "n:q", z=b"\xef\xbb\xbfThe mill stood.", b=page, c=gzip.compress("Élan said Ann.".encode()),
        d="“Café” é".encode("cp1252") + b"\x81" + "é".encode(), e=None,
        g=("“Ann’s café”".encode()[:-1].decode("cp1252") + "\x9d").encode(),
        h=b"<html>Ann<![foo bar]>left.", i=b"\x1f\x8bbroken", j="Élan".encode("utf-16"), k=b"Ann\0 left",
        l="Élan".encode("utf-32"), m="Élan".encode("utf-16-le"))
    dataset = Dataset(folder)
    assert dataset.name == "NarrativeQA"
    assert [" ".join(document.passages[0].split()) for document in dataset.documents] == [
        "The mill stood.", "INT. MILL ANN enters.", "Élan said Ann.", "“Café” é\ufffdé", "“Ann’s café”", "Élan"]
    assert [(q.id, q.text, q.answers) for q in dataset.documents[1].questions] == [
        ("b-4", "Who, then?", ["Ann", "Ann Lee"]), ("b-5", "Where?", ["At home", "Home"])], "the row's number"
    assert counts(dataset.report.skipped) == {"a document whose story is missing": 1, "a row of another form": 5}

    table = folder / "qaps.csv"
    table.write_bytes(table.read_bytes().replace(b"z,test", b"z,train"))
    assert [document.id for document in Dataset(f"{folder}:train").documents] == ["z"]
    with pytest.raises(InputError, match="sets are train, valid and test"):
        Dataset(f"{folder}:dev")
    table.write_text("document_id,question\nd,Who?\n")
    with pytest.raises(InputError, match="has no column answer1"):
        Dataset(folder)


@pytest.mark.parametrize("story, wanted", [
    ("var x = 1;\nvar y;\n \nThe mill.", "The mill."), ("\n\nfunction f() {\n}\n\nThe\n\nmill.", "The mill."),
    ("<!-- document.write(1) --> The mill.", "The mill."), ("variable <b> winds\n\nblow", "variable <b> winds blow"),
    ("var x without an end", "var x without an end"),
    ("<pre><h4>CHAPTER I</h4>Ann left.</p>Bob<hr>and<td>Ol<i>af<td>&amp;<dd>I<blockquote>s<b>a</b>ng<unknown>!",
     "CHAPTER I Ann left. Bob and Olaf & I sang!"),
    (" " * 4900 + "<pre>mill<br>wind", "mill wind"), ("x " * 2500 + "<pre>", "x " * 2500 + "<pre>")],
    ids=lambda text: text[:9])
def test_the_text_of_a_story(story, wanted):
    assert plain_text(story, Report("n"), "a").split() == wanted.split()


def test_longbench(tmp_path):
    """A task is a file or part of data.zip, and must be named if all are there. Questions about one context share its
    document. Some copies say "question", or have no ids."""
    copy = {"question" if key == "input" else key: value for key, value in LONGBENCH.items() if key != "_id"}
    path = lines(tmp_path / "hotpotqa.jsonl", LONGBENCH, LONGBENCH | {"_id": "l2", "context": "Other."}, copy)
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.write(path, "data/hotpotqa.jsonl")
        for task in ("qasper_e", "qasper", "musique", "narrativeqa", "2wikimqa", "lcc", "multifieldqa_en"):
            archive.writestr(f"data/{task}.jsonl", json.dumps(LONGBENCH | {"dataset": task}))
    for part in ("", ":lcc"):
        with pytest.raises(InputError, match="TASK one of 2wikimqa, hotpotqa, multifieldqa_en, musique, narrativeqa"):
            Dataset(f"{tmp_path}/data.zip{part}")
    for source in (path, f"{tmp_path}/data.zip:hotpotqa"):
        assert [[q.id for q in document.questions] for document in Dataset(source).documents] == [
            ["l1", "hotpotqa.jsonl, line 4"], ["l2"]]
    assert [Dataset(f"{tmp_path}/data.zip:{task}").name for task in ("2wikimqa", "multifieldqa_en", "qasper_e")] == [
        "2WikiMultihopQA", "multifieldqa_en", "Qasper"]


@pytest.mark.parametrize("task", ["dureader", "passage_count", "h\ud83d"])
def test_other_tasks_of_longbench_are_refused_by_name(tmp_path, task):
    """They have other metrics than ours, or Chinese answers, which would all score 0."""
    words = f"LongBench's task {ascii(task)} is not read, only its English".replace("\\", ".")
    with pytest.raises(InputError, match=words):
        Dataset(lines(tmp_path / "x.jsonl", LONGBENCH | {"dataset": task}))
    if task.isascii():                                       # without the field, the file names the task
        with pytest.raises(InputError, match=words):
            Dataset(lines(tmp_path / f"{task}.jsonl", {key: LONGBENCH[key] for key in ("input", "context", "answers")}))


# --- defects --------------------------------------------------------------------------------------------------------

def test_a_defect_costs_what_has_it_and_is_counted(tmp_path):
    """The report names the first place of each. What is of another kind is not read as if it were right."""
    context = [*HOTPOTQA["context"], ["Empty", [" "]]]
    bad = [HOTPOTQA | {"answer": ""}, HOTPOTQA | {"context": []}, HOTPOTQA | {"question": " "},
           {"_id": "h5", "context": "?", "supporting_facts": []}]
    report = Dataset(objects(tmp_path / "h.json", [HOTPOTQA | {"context": context}, *bad])).report
    assert (report.rows, report.documents, report.questions) == (5, 1, 1)
    assert report.problems == {"an empty answer, left out": {"count": 1, "first": "h1"}}
    assert {reason.split(" (")[0]: entry["first"] for reason, entry in report.skipped.items()} == {
        "an empty paragraph": "h.json, row 0", "a question without an answer": "h1", "an empty question": "h1",
        "a row without text": "h.json, row 2", "a row of another form": "h.json, row 4"}
    assert "  1 times: an empty paragraph (first: h.json, row 0)" in report.lines()


@pytest.mark.parametrize("good, bad", [
    (MUSIQUE, {"answerable": False}), (MUSIQUE, {"answer_aliases": "Ann"}), (MUSIQUE, {"question": "x\ud83d"}),
    *((QUALITY, {"questions": [QUALITY["questions"][0] | {"gold_label": gold}]}) for gold in (0, 9, True)),
    (LONGBENCH, {"dataset": "dureader"})])
def test_a_row_of_another_form_is_skipped(tmp_path, good, bad):
    assert Dataset(lines(tmp_path / "x.jsonl", good, "{", good | bad)).report.questions == 1


def test_mojibake_is_mended_and_other_text_left_alone(tmp_path):
    broken, fine = "\ufeffÉlan".encode().decode("latin-1"), "déjà-vu, Ã and ☃"
    document, = Dataset(lines(tmp_path / "l.jsonl", LONGBENCH | {"context": broken, "input": broken, "answers": [fine]})
                        ).documents
    question, = document.questions
    assert (document.passages, question.text, question.answers) == (["Élan"], "Élan", [fine])


# --- the hub --------------------------------------------------------------------------------------------------------

@pytest.fixture
def on_the_hub(tmp_path, monkeypatch):
    """The files of three repositories of a fake hub, and an empty cache for them."""
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("data/hotpotqa.jsonl", json.dumps(LONGBENCH))
    files = {"data.zip": zipped.getvalue(), "data/musique_dev.jsonl": json.dumps(MUSIQUE).encode()}
    with serve({"datasets/an/open": files, "datasets/a/gated": "GatedRepo"}, tmp_path / "cache", monkeypatch):
        yield files


def test_data_sets_on_the_hub(on_the_hub, monkeypatch):
    """Several at once, the first time from the hub, then from its cache, without a network. The report names commit and
    sha256."""
    for address, name, file in (("data.zip:hotpotqa", "HotpotQA", "data.zip"),
                                ("data/musique_dev.jsonl", "MuSiQue", "data/musique_dev.jsonl")):
        for offline, revision in ((False, ""), (False, f"@{COMMIT}"), (True, ""), (True, "@main")):
            monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
            dataset = Dataset(f"hf://datasets/an/open{revision}/{address}")
            assert dataset.name == name and len(dataset.questions) == 1
            assert dataset.report.path == f"hf://datasets/an/open@{COMMIT}/{address}"
            assert dataset.report.sha256 == hashlib.sha256(on_the_hub[file]).hexdigest()
    with pytest.raises(InputError, match="n.jsonl: not in the cache, and the hub cannot be reached"):
        Dataset("hf://datasets/an/open/n.jsonl")
    both = [f"hf://datasets/an/open/{file}" for file in ("data.zip:hotpotqa", "data/musique_dev.jsonl")]
    assert json.loads(run("--dataset", *both, "--dry-run", "--json").stdout).keys() == {"HotpotQA", "MuSiQue"}


@pytest.mark.parametrize("address, words", [
    ("an/open/data/musique.jsonl", "no such file; names near it: data/musique_dev.jsonl, "),
    ("an/open/x.parquet", "parquet files are not read; take the data set's JSON or zip file"),
    ("a/gated/x.jsonl", "gated; accept its terms there, and log in"),
    ("an/open@v2/data.zip:qasper", "cannot be fetched .*Revision Not Found"),
    ("no/such/data.zip", "cannot be fetched .*Repository Not Found"), ("an/open", "not an address of the form hf://"),
    ("open", "not an address of the form hf://datasets/OWNER/NAME.@REVISION./FILE")])
def test_an_address_that_gives_no_data_set(on_the_hub, address, words):
    with pytest.raises(InputError, match=f"^hf://datasets/{address}: {words}"):
        Dataset(f"hf://datasets/{address}")


# --- as a whole -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("first, second, questions", [
    (HOTPOTQA, HOTPOTQA | {"_id": "h2"}, ["h1", "h2"]), (MUSIQUE, MUSIQUE, ["m1", "m1#2"]),
    ({"p1": QASPER}, {"p2": QASPER}, ["q1", "q1#2"]), (OWN, OWN, ["q", "q#2"])], ids=lambda row: str(row)[:9])
def test_every_file_of_a_folder_is_read(tmp_path, first, second, questions):
    """Files are read in the order of their names, packed or not. A repeated id is numbered."""
    (tmp_path / "sub").mkdir()
    lines(tmp_path / "sub" / "a.NDJSON", second)
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(json.dumps(first).encode()))
    dataset = Dataset(tmp_path)
    assert len(dataset.documents) == 1 and dataset.questions == questions


def test_the_limit_counts_documents(tmp_path):
    """The report still covers all documents."""
    path = lines(tmp_path / "m.jsonl", *(LONGBENCH | {"_id": f"l{n}", "context": "more " * size}
                                         for n, size in enumerate((4, 9, 4, 11, 20))))
    dataset = Dataset(path, limit=3)
    assert dataset.questions == ["l0", "l2", "l1", "l3"] and len(dataset.documents) == 3
    assert (dataset.report.documents, dataset.report.questions) == (4, 5)
    assert dataset.lengths(str.split) == {"average": 8, "least": 4, "most": 11, "documents": 3, "questions": 4}


def test_ones_own_data_never_takes_the_name_of_a_data_set_of_the_paper(tmp_path):
    for file, name in (("HotpotQA.jsonl", "HotpotQA-own"), ("graphs.jsonl", "graphs-own"), (".jsonl", "-own")):
        assert Dataset(lines(tmp_path / file, "", OWN)).name == name


@pytest.mark.parametrize("name, content, words", [
    ("x.json", b"[]", "no row of a known layout"), ("x.json", b'["context", "answers"]', "no row of a known layout"),
    ("x.json", b"", "not valid JSON"), ("x.json", b'[{"question": "Who?", "answ', "not valid JSON"),
    ("x.json", json.dumps([HOTPOTQA | {"answer": None}]).encode(), "holds no question .a question without an answer"),
    ("x.json", b"\x1f\x8bbroken", "cannot be read"), ("x.zip", b"PK", "not a readable zip file")], ids=str)
def test_a_file_that_is_no_data_set(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{name}: .*{words}"):
        Dataset(tmp_path / name)


def test_a_folder_of_two_layouts(tmp_path):
    objects(tmp_path / "h.json", [HOTPOTQA])
    narrativeqa(tmp_path / "n", a=b"The mill.")
    with pytest.raises(InputError, match="holds HotpotQA and NarrativeQA"):
        Dataset(tmp_path)
