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

from core.files import InputError
from evaluation.datasets import Dataset
from evaluation.layouts import Report, plain_text

# A row of each layout.
HOTPOTQA = json.loads(r"""{"_id": "h1", "question": " Who?\n", "answer": "Ann", "supporting_facts": [],
    "context": [["Mills &amp; Co", ["They turn.", " They", " st", "op."]], ["Seas", ["They rise."]]]}""")
HUB = json.loads("""{"id": "h1", "question": "Who?", "answer": " Ann ", "supporting_facts": [],
    "context": {"title": ["Mills &amp; Co", "Seas"], "sentences": [["They turn.", " They stop."], ["They rise."]]}}""")
TWO_WIKI = HOTPOTQA | json.loads("""{"evidences": [], "context": [
    ["Mills & Co", ["They turn.", "They stop."]], ["Seas", ["They rise.", "Up.", " Up. ", "Up."]]]}""")
MUSIQUE = json.loads("""{"id": "m1", "question": "Who?", "answer": "Ann", "answer_aliases": ["Ann Lee", "Ann"],
    "paragraphs": [{"idx": 10, "title": "Same", "paragraph_text": "Text 10."},
                   {"idx": 9, "title": "Same", "paragraph_text": "Text 9."}]}""")
QUALITY = json.loads(r"""{"article_id": "a1", "set_unique_id": "a1_W1", "article": "<p>Bob <b>came.</b>", "questions": [
    {"question": "Who came?", "options": ["Ann", " Bob\n", "Cat"], "gold_label": 2},
    {"question": "Who left?", "options": ["Ann", "Bob"]}]}""")
LONGBENCH = json.loads(r"""{"_id": "l1", "context": "\nPassage 9:\nA\nAnn.\n\nPassage 10:\r\nB\nBob.",
    "dataset": "hotpotqa", "input": "Who?", "answers": ["Ann", " ", "Ann"]}""")
OWN = json.loads("""{"id": "d", "passages": ["a", "b"],
    "questions": [{"id": "q", "question": "Who?", "answers": ["Ann"]}]}""")
QASPER = json.loads("""{"title": "On mills", "abstract": "Mills turn.", "full_text": [
    {"section_name": "Wind", "paragraphs": ["It blows.", " "]}, {"section_name": null, "paragraphs": ["It stops."]}],
    "qas": [{"question": "What?", "question_id": "q1", "answers": [
    {"answer": {"unanswerable": false, "extractive_spans": ["wind", "air"], "yes_no": null, "free_form_answer": "w"}},
    {"answer": {"unanswerable": true, "extractive_spans": [], "yes_no": null, "free_form_answer": ""}},
    {"answer": {"unanswerable": false, "extractive_spans": [], "yes_no": true, "free_form_answer": "the wind"}},
    {"answer": {"unanswerable": false, "extractive_spans": [], "yes_no": false, "free_form_answer": ""}},
    {"answer": {"unanswerable": false, "extractive_spans": [], "yes_no": null, "free_form_answer": ""}},
    {"answer": {"unanswerable": false, "extractive_spans": [], "yes_no": true, "free_form_answer": ""}}]}]}""")


def write(path, *rows):
    """Write one JSON value over many lines (.json), or a row a line. A byte order mark and empty lines do no harm."""
    indent = 1 if path.suffix == ".json" else None
    text = "".join((row if isinstance(row, str) else json.dumps(row, indent=indent)) + "\n" for row in rows)
    path.write_text(f"\ufeff\n{text}\n", encoding="utf-8")
    return path


def counts(reasons):
    """Reason, without what follows in brackets, -> how often and where first."""
    return {reason.split(" (")[0]: (entry["count"], entry["first"]) for reason, entry in reasons.items()}


# --- the layouts ----------------------------------------------------------------------------------------------------

PASSAGES = ["Mills & Co\nThey turn. They stop.", "Seas\nThey rise."]


@pytest.mark.parametrize("file, content, name, passages, asked", [
    ("hotpot_dev_distractor_v1.json", [HOTPOTQA], "HotpotQA", PASSAGES, ("h1", "Who?", ["Ann"])),
    ("hub.jsonl", HUB, "HotpotQA", PASSAGES, ("h1", "Who?", ["Ann"])),
    ("dev.json", [TWO_WIKI], "2WikiMultihopQA", [PASSAGES[0], "Seas\nThey rise. Up. Up. Up."], ("h1", "Who?", ["Ann"])),
    ("musique_ans_v1.0_dev.jsonl", MUSIQUE, "MuSiQue", ["Same\nText 9.", "Same\nText 10."],
     ("m1", "Who?", ["Ann", "Ann Lee"])),
    ("qasper-dev-v0.3.json", {"p1": QASPER}, "Qasper", ["On mills\nMills turn.\nWind\nIt blows.\nIt stops."],
     ("q1", "What?", ["wind, air", "Unanswerable", "the wind", "No", "Yes"])),
    ("QuALITY.v1.0.1.htmlstripped.dev", QUALITY, "QuALITY", ["\nBob came."],
     ("a1_W1-0", "Who came?\n(A) Ann\n(B) Bob\n(C) Cat", ["Bob"])),
    ("hotpotqa.jsonl", LONGBENCH, "HotpotQA", ["A\nAnn.\n\n", "B\nBob."], ("l1", "Who?", ["Ann"])),
    ("own.jsonl", OWN | {"document_id": 1}, "own", ["a", "b"], ("q", "Who?", ["Ann"]))],
    ids=lambda value: str(value)[:9])
def test_a_row_of_each_layout(tmp_path, file, content, name, passages, asked):
    """Paragraphs have their titles, those of MuSiQue the order of idx. All annotators of Qasper give gold answers.

    QuALITY's second question has no label, so it is left out."""
    dataset = Dataset(write(tmp_path / file, content))
    document, = dataset.documents
    question, = document.questions
    assert (dataset.name, document.passages) == (name, passages)
    assert (question.id, question.text, question.answers) == asked
    assert question.extra == ({"options": ["Ann", "Bob", "Cat"], "gold": 1} if name == "QuALITY" else {})


def test_narrativeqa(tmp_path):
    """Stories may be HTML, gzipped, in another encoding, or begin with a byte order mark or a script.

    A story that cannot be read, whatever it raises, costs itself alone. PATH:SET reads one of the three sets.
    """
    page = b"<html><title>T</b>U</title><style>p</style><script>var</script><pre>INT. MILL<br><b>ANN</b> enters.</pre>"
    stories = {"z": b"\xef\xbb\xbfThe mill stood.", "b": page, "c": gzip.compress("Élan said Ann.".encode()),
               "d": "“Café” é".encode("cp1252") + b"\x81" + "é".encode(), "j": "Élan".encode("utf-16"),
               "l": "Élan".encode("utf-32"),
               "i": b"\x1f\x8bbroken", "k": b"A\0nn left"}
    folder = tmp_path / "n:q"
    folder.mkdir()
    for name, content in stories.items():
        (folder / f"{name}.content").write_bytes(content)
    rows = [f'{name},test,"Who, then?",Ann,Ann Lee,x\n{name},test,Where?,At home,Home,x\n' for name in [*stories, "e"]]
    rows += ["z,test,Who, then?,Ann,Ann Lee,x\n"]           # without quotes
    table = folder / "qaps.csv"
    table.write_text("document_id,set,question,answer1,answer2,question_tokenized\n" + "".join(rows), "utf-8-sig")
    dataset = Dataset(folder)
    assert dataset.name == "NarrativeQA"
    assert [" ".join(document.passages[0].split()) for document in dataset.documents] == [
        "The mill stood.", "INT. MILL ANN enters.", "Élan said Ann.", "“Café” é\ufffdé", "Élan"]
    assert [(q.id, q.text, q.answers) for q in dataset.documents[1].questions] == [
        ("b-4", "Who, then?", ["Ann", "Ann Lee"]), ("b-5", "Where?", ["At home", "Home"])], "the row's number"
    assert {*counts(dataset.report.found)} >= {
        "a document whose story is missing", "a row of another form", "a row with too many columns"}

    table.write_bytes(table.read_bytes().replace(b"z,test", b"z,train"))
    assert [document.id for document in Dataset(f"{folder}:train").documents] == ["z"]
    with pytest.raises(InputError, match="NarrativeQA's 'dev' is not read, only train, valid, test"):
        Dataset(f"{folder}:dev")
    table.write_text("document_id,question\nd,Who?\n")
    with pytest.raises(InputError, match="qaps.csv: not a table of questions .key 'answer1' is missing"):
        Dataset(folder)


FRAMES = "if (window!= top)\ntop.location.href=location.href\n"     # IMSDb's script


@pytest.mark.parametrize("story, wanted", [
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
    """A task is a file, or a file of data.zip. Questions about one context share its document. Some copies say
    "question", or have no ids, or leave the task to the file's name. Only English question answering is read: other
    tasks have other metrics than ours, or Chinese answers, which would all score 0."""
    copy = {"question" if key == "input" else key: LONGBENCH[key] for key in ("input", "context", "answers")}
    path = write(tmp_path / "hotpotqa.jsonl", copy, LONGBENCH | {"_id": "l2", "context": "Other."}, LONGBENCH)
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.write(path, "data/hotpotqa.jsonl")
        for task in ("qasper_e", "2wikimqa", "multifieldqa_en", "dureader"):
            archive.writestr(f"data/{task}.jsonl", json.dumps(LONGBENCH | {"dataset": task}))
    for source in (path, f"{tmp_path}/data.zip:hotpotqa"):
        assert [[q.id for q in document.questions] for document in Dataset(source).documents] == [
            ["hotpotqa.jsonl, line 2", "l1"], ["l2"]]
    assert [Dataset(f"{tmp_path}/data.zip:{task}").name for task in ("2wikimqa", "multifieldqa_en", "qasper_e")] == [
        "2WikiMultihopQA", "multifieldqa_en", "Qasper"]

    with pytest.raises(InputError, match="data.zip:NAME reads one file of 2wikimqa, dureader, hotpotqa"):
        Dataset(tmp_path / "data.zip")
    for source, task in ((f"{tmp_path}/data.zip:dureader", "dureader"), (write(tmp_path / "lcc.jsonl", copy), "lcc"),
                         (write(tmp_path / "x.jsonl", LONGBENCH | {"dataset": "h\ud83d"}), "h.ud83d")):
        with pytest.raises(InputError, match=f"LongBench's '{task}' is not read, only Narr"):
            Dataset(source)


# --- defects --------------------------------------------------------------------------------------------------------

def test_a_defect_costs_what_has_it_and_is_counted(tmp_path):
    """The report names the first place of each. What is of another kind is not read as if it were right."""
    context = [*HOTPOTQA["context"], ["Empty", [" "]]]
    bad = [HOTPOTQA | {"answer": ""}, HOTPOTQA | {"context": []}, HOTPOTQA | {"question": " "},
           {"_id": "h5", "context": "?", "supporting_facts": []}]
    dataset = Dataset(write(tmp_path / "h.json", [HOTPOTQA | {"context": context}, *bad]))
    report, document = dataset.report, dataset.documents[0]
    assert (report.rows, report.documents, report.questions, len(document.passages)) == (5, 1, 1, 2)
    assert counts(report.found) == {
        "a question without an answer": (1, "h1"), "an empty question": (1, "h1"),
        "a row without text": (1, "h.json, row 2"), "a row of another form": (1, "h.json, row 4")}
    assert "  1 times: a row without text (first: h.json, row 2)" in report.lines()


def test_a_row_that_cannot_be_written_again_costs_itself_alone(tmp_path):
    """NaN and lone surrogates are no JSON, wherever they are: in a list, on a line or in an object of papers."""
    bad = [{"more": float("nan")}, {"more": ["\ud800"]}]
    rows = [HOTPOTQA | more | {"_id": str(n)} for n, more in enumerate([*bad, {}])]
    papers = {str(n): QASPER | more for n, more in enumerate([*bad, {}])}
    for file, content in (("l.json", [rows]), ("l.jsonl", rows), ("q.json", [papers])):
        report = Dataset(write(tmp_path / file, *content)).report
        assert (report.questions, counts(report.found)["not valid JSON"][0]) == (1, 2)


@pytest.mark.parametrize("good, bad", [
    (MUSIQUE, {"answerable": False}), (MUSIQUE, {"answer_aliases": "Ann"}), (MUSIQUE, {"question": "x\ud83d"}),
    *((QUALITY, {"questions": [QUALITY["questions"][0] | {"gold_label": gold}]}) for gold in (0, 9)),
    (LONGBENCH, {"dataset": "dureader"})])
def test_a_row_of_another_form_is_skipped(tmp_path, good, bad):
    assert Dataset(write(tmp_path / "x.jsonl", good, "{", good | bad)).report.questions == 1


@pytest.mark.parametrize("file, row", [
    ("p.json", {"p1": QASPER | {"qas": [{"question": "?"}, *QASPER["qas"], "?"]}}),
    ("q.jsonl", QUALITY | {"questions": [{"question": "?", "options": None}, *QUALITY["questions"], None]})])
def test_a_question_of_another_form_costs_itself_alone(tmp_path, file, row):
    dataset = Dataset(write(tmp_path / file, row))
    assert len(dataset.questions) == 1
    assert sum(entry["count"] for defect, entry in dataset.report.found.items() if "another form" in defect) == 2


@pytest.mark.parametrize("row", [HOTPOTQA | {"_id": None}, MUSIQUE | {"id": None}, LONGBENCH | {"_id": None}])
def test_the_place_of_a_row_replaces_an_id_of_null(tmp_path, row):
    dataset = Dataset(write(tmp_path / "hotpotqa.jsonl", row))
    assert [dataset.documents[0].id, *dataset.questions] == ["hotpotqa.jsonl, line 2"] * 2


@pytest.mark.parametrize("text", ["120 Å²", "NESTLÉ®", "Ã© and â€™", "&amp; <b>", "\ufeffx", "1\u00a02", "é ﬁ ½ ☃"])
def test_what_a_file_says_is_what_is_read(tmp_path, text):
    """Nothing is mended without a proof that it is damaged. Only HotpotQA's titles are escaped."""
    row = TWO_WIKI | {"question": text, "answer": text, "context": [[text, [f"A{text}."]]]}
    document, = Dataset(write(tmp_path / "w.jsonl", row)).documents
    question, = document.questions
    assert (document.passages, question.text, question.answers) == ([f"{text}\nA{text}."], text, [text])


def test_a_passage_is_cut_where_the_task_has_several(tmp_path):
    row = LONGBENCH | {"dataset": "qasper", "context": "See\nPassage 2:\nthe end"}
    assert Dataset(write(tmp_path / "q.jsonl", row)).documents[0].passages == [row["context"]]


def test_a_file_may_be_in_another_encoding(tmp_path):
    for encoding, text in (("utf-8", "É\u2028lan"), ("utf-16", "Élan"), ("utf-32", "Élan"), ("cp1252", "Élan")):
        path = tmp_path / "l.jsonl"
        row = json.dumps(LONGBENCH | {"input": text}, ensure_ascii=False)
        path.write_bytes(f"\n{row}".encode(encoding))
        dataset = Dataset(path)
        assert dataset.documents[0].questions[0].text == text, "U+2028 is a character, no line's end"
    assert counts(dataset.report.found)["not UTF-8, read as Windows-1252"] == (1, "l.jsonl, line 2")


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


@pytest.mark.parametrize("address, words", [
    ("an/open/data/musique.jsonl", "cannot be fetched .*Entry Not Found"),
    ("a/gated/x.jsonl", "cannot be .*gated, .* log in with"),
    ("an/open@v2/data.zip:qasper", "cannot be fetched .*Revision Not Found"),
    ("no/such/data.zip", "cannot be fetched .*Repository Not Found"), ("an/open", "not an address of the form hf://"),
    ("open", "not an address of the form hf://datasets/OWNER/NAME.@REVISION./FILE")])
def test_an_address_that_gives_no_data_set(on_the_hub, address, words):
    with pytest.raises(InputError, match=f"^hf://datasets/{address}: {words}"):
        Dataset(f"hf://datasets/{address}")


# --- as a whole -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("first, second, questions", [
    (HOTPOTQA, HOTPOTQA | {"_id": "h2"}, ["h1", "h2"]), ([MUSIQUE] * 2, MUSIQUE, ["m1", "m1#2", "m1#3"]),
    ({"p1": QASPER}, {"p2": QASPER}, ["q1", "q1#2"]), (OWN, OWN, ["q", "q#2"])], ids=lambda row: str(row)[:9])
def test_every_file_of_a_folder_is_read(tmp_path, first, second, questions):
    """Files are read in the order of their names, packed or not, and no hidden ones. A repeated id is numbered."""
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub" / "a.NDJSON", second)
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
    for file, name in (("HotpotQA.jsonl", "HotpotQA-own"), ("graphs.jsonl", "graphs-own"), (".jsonl", "-own"),
                       ("law.v1.jsonl", "law.v1"), ("law.v2.NDJSON", "law.v2"), ("2024.01.05.jsonl", "2024.01.05")):
        assert Dataset(write(tmp_path / file, OWN)).name == name


@pytest.mark.parametrize("name, content, words", [
    ("x.json", "[]", "no row of a known layout"), ("x.json", '["context", "answers"]', "no row of a known layout"),
    ("x.json", "", "not valid JSON"), ("x.json", '[{"question": "Who?", "answ', "not valid JSON"),
    ("x.json", json.dumps([HOTPOTQA | {"answer": None}]), "holds no question .a question without an answer"),
    ("x.json", "\x1f\x8bbroken", "cannot be read"), ("x.json", "PAR1", "it is a parquet file; take"),
    ("x.zip", "PK", "not a readable zip file"),
    ("x.txt", "Ann came.", "no .json.l. file; there is x.txt"),
    ("x.json", json.dumps([QASPER]), "not one object of papers .*rows of the hub are not read"),
    ("x.json", json.dumps([OWN]), "x.json, line 1: holds a list; write each of its objects on a line"),
    ("x.json", json.dumps([HOTPOTQA]), "HotpotQA and NarrativeQA")],
    ids=str)
def test_what_is_no_data_set(tmp_path, name, content, words):
    (tmp_path / name).write_text(content, encoding="latin-1")
    if words.endswith("NarrativeQA"):
        (tmp_path / "qaps.csv").touch()
    with pytest.raises(InputError, match=words):
        Dataset(tmp_path)
