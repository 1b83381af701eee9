"""The layouts of the paper's data sets. Defects of the real files are mended or left out, and counted.

All rows here are made up.
"""
import gzip
import json
import zipfile
from string import ascii_uppercase

import pytest

from core.files import InputError
from evaluation.layouts import Dataset
from evaluation.layouts.contents import plain_text
from evaluation.layouts.report import Report


def paragraphs(count):
    return [[f"Title {n}", [f"Sentence {n}.", " And more."]] for n in range(count)]


def hotpotqa(**changes):
    row = {"_id": "h1", "question": "Who?", "answer": "Ann", "supporting_facts": [], "context": paragraphs(10)}
    return row | changes


def musique(**changes):
    return {"id": "m1", "paragraphs": [{"idx": n, "title": f"T{n}", "paragraph_text": f"Text {n}."} for n in range(20)],
            "question": "Who?", "question_decomposition": [], "answer": "Ann", "answer_aliases": ["Ann Lee"]} | changes


def answer(**changes):
    empty = {"unanswerable": False, "extractive_spans": [], "yes_no": None, "free_form_answer": ""}
    return {"answer": empty | changes}


PAPER = {"title": "On mills", "abstract": "Mills turn.", "full_text": [
    {"section_name": "Wind", "paragraphs": ["It blows.", " "]}, {"section_name": None, "paragraphs": ["It stops."]}],
    "qas": [{"question": "What blows?", "question_id": "q1", "answers": [
        answer(extractive_spans=["wind", "air"], free_form_answer="w"), answer(unanswerable=True, free_form_answer="u"),
        *(answer(free_form_answer="the wind", yes_no=True) for _ in "ab"), answer(yes_no=False), answer(),
        answer(yes_no=True)]}]}


def longbench(**changes):
    return {"input": "Who?", "context": "\nPassage 9:\nA\nAnn.\n\nPassage 10:\nB\nBob.", "answers": ["Ann"],
            "length": 9, "dataset": "hotpotqa", "language": "en", "all_classes": None, "_id": "l1"} | changes


def lines(path, *rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def objects(path, content):
    path.write_text(json.dumps(content, indent=1), encoding="utf-8-sig")         # a byte order mark does no harm
    return path


def narrativeqa(folder, **stories):
    folder.mkdir(exist_ok=True)
    rows = ["document_id,set,question,answer1,answer2,question_tokenized,answer1_tokenized,answer2_tokenized"]
    for name, content in stories.items():
        rows += [f'{name},test,"Who, then?",Ann,Ann Lee,x,x,x', f"{name},test,Where?,At home,Home,x,x,x"]
        if content is not None:
            (folder / f"{name}.content{'.gz' if name == 'c' else ''}").write_bytes(content)
    (folder / "qaps.csv").write_text("\n".join(rows) + "\n", encoding="utf-8-sig")
    (folder / "documents.csv").write_text("document_id,set,kind\n")
    return folder


def read(path, **options):
    """The name, the documents and the report of a data set."""
    dataset = Dataset(path, **options)
    assert dataset.questions == [q.id for document in dataset.documents for q in document.questions]
    return dataset.name, dataset.documents, dataset.report


def counts(reasons):
    return {reason: entry["count"] for reason, entry in reasons.items()}


# --- the layouts ----------------------------------------------------------------------------------------------------

def test_hotpotqa(tmp_path):
    """The file is one list or, in the hub's form, has one row per line."""
    hub = hotpotqa(context={"title": ["Title 0"], "sentences": [["Sentence 0.", " And more."]]}, id="h1",
                   question=" Who?\n", answer=" Ann ")
    del hub["_id"]
    for path in (objects(tmp_path / "hotpot_dev_distractor_v1.json", [hotpotqa()]), lines(tmp_path / "h.jsonl", hub)):
        name, (document,), report = read(path)
        assert name == report.layout == "HotpotQA" and not report.problems and not report.skipped
        assert document.passages[0] == "Title 0\nSentence 0. And more."
        question, = document.questions
        assert (question.id, question.text, question.answers) == ("h1", "Who?", ["Ann"])


def test_defects_of_hotpotqa(tmp_path):
    context = [*paragraphs(2), ["Title 0", ["Again."]], ["Empty", [" "]]]
    _, (document,), report = read(objects(tmp_path / "h.json", [
        hotpotqa(context=context), hotpotqa(answer="", context=paragraphs(11)), hotpotqa(context=[]),
        hotpotqa(question=" ", context=paragraphs(12)),
        {"_id": "h4", "context": "?", "supporting_facts": []}]))

    assert len(document.passages) == 3 and report.rows == 5 and report.documents == report.questions == 1
    assert report.problems == {"an empty answer, left out": {"count": 1, "first": "h1"}}
    found = {reason.split("(")[0]: entry for reason, entry in report.skipped.items()}
    assert found == {reason: {"count": 1, "first": place} for reason, place in (
        ("an empty paragraph", "h.json, row 0"), ("a question without an answer", "h1"), ("an empty question", "h1"),
        ("a row without text", "h.json, row 2"), ("a row of another form ", "h.json, row 4"))}


def test_musique(tmp_path):
    shuffled = musique(answerable=True)
    shuffled["paragraphs"].reverse()
    name, documents, report = read(lines(tmp_path / "musique_ans_v1.0_dev.jsonl", shuffled, "{",
                                         musique(id="m2", question="And?", answerable=False)))
    assert name == "MuSiQue" and len(documents) == 1
    assert documents[0].passages == [f"T{n}\nText {n}." for n in range(20)], "the order of idx"
    assert documents[0].questions[0].answers == ["Ann", "Ann Lee"]
    assert report.skipped == {
        "not valid JSON": {"count": 1, "first": "musique_ans_v1.0_dev.jsonl, line 2"},
        "a question that its paragraphs do not answer": {"count": 1, "first": "musique_ans_v1.0_dev.jsonl, line 3"}}


def test_qasper(tmp_path):
    """A paper is one text. Each annotator's answer is gold, in the form of Qasper's scorer; equal ones count once."""
    papers = {f"p{n}": PAPER | {"title": title} for n, title in enumerate(("On mills", "On seas", "On air"))}
    name, (document, *others), report = read(objects(tmp_path / "qasper-dev-v0.3.json", papers))
    assert name == "Qasper" and document.passages == ["On mills\nMills turn.\nWind\nIt blows.\nIt stops."]
    assert document.questions[0].answers == ["wind, air", "Unanswerable", "the wind", "No", "Yes"]
    assert [other.questions[0].id for other in others] == ["q1#2", "q1#3"], "a repeated id"
    assert sorted(counts(report.problems).values()) == [2, 3], "and an annotator without an answer in each paper"


def test_narrativeqa(tmp_path):
    """Stories may be HTML, gzipped, latin-1 or wrongly decoded, or begin with a byte order mark or a script.

    A missing story is counted.
    """
    page = b"<html><title>T</b>U</title><style>p</style><script>var</script><pre>INT. MILL<br><b>ANN</b> enters.</pre>"
    script = b"<!--\nif (window != top)\ntop.location.href=1\n// -->\n\nEXT. SEA"
    name, documents, report = read(narrativeqa(
        tmp_path / "n", z=b"\xef\xbb\xbfThe mill stood.", b=page, c=gzip.compress("Élan said Ann.".encode()),
        d="Café".encode("latin-1"), e=None, f=script, g="Ann’s café".encode().decode("cp1252").encode()))

    assert name == "NarrativeQA"
    assert [" ".join(document.passages[0].split()) for document in documents] == [
        "The mill stood.", "INT. MILL ANN enters.", "Élan said Ann.", "Café", "EXT. SEA", "Ann’s café"]
    assert [(q.id, q.text, q.answers) for q in documents[1].questions] == [
        ("b-4", "Who, then?", ["Ann", "Ann Lee"]), ("b-5", "Where?", ["At home", "Home"])], "the row's number"

    assert counts(report.skipped) == {"a document whose story is missing": 1}
    assert counts(report.problems) == {"a page in HTML; only its text was kept": 1,
                                       "not UTF-8, read as latin-1": 1, "JavaScript before the text, left out": 1,
                                       "UTF-8 that was read as cp1252, mended": 1}


def test_mojibake_is_mended_and_other_text_left_alone(tmp_path):
    broken, fine = "\ufeffÉlan".encode().decode("latin-1"), "déjà-vu, Ã and ☃"
    _, documents, _ = read(lines(tmp_path / "l.jsonl", *(
        longbench(context=text, input=text, answers=[text], _id=text) for text in (broken, "\ufeff" + fine))))
    assert [(document.passages, [(q.text, q.answers) for q in document.questions]) for document in documents] == [
        ([text], [(text, [text])]) for text in ("Élan", fine)]


@pytest.mark.parametrize("story, wanted", [
    ("var x = 1;\nvar y;\n \nThe mill.", "The mill."), ("\n\nfunction f() {\n}\n\nThe\n\nmill.", "The mill."),
    ("<!-- document.write(1) --> The mill.", "The mill."), ("variable <b> winds\n\nblow", "variable <b> winds blow"),
    ("var x without an end", "var x without an end"),
    ("A<PRE>mill<p>in<div>the<h2>wind<tr>&amp;<li>rain<h1>and<h3>snow", "A mill in the wind & rain and snow"),
    (" " * 4900 + "<pre>mill<br>wind", "mill wind"), ("x " * 2500 + "<pre>", "x " * 2500 + "<pre>")],
    ids=lambda text: text[:9])
def test_the_text_of_a_story(story, wanted):
    assert plain_text(story, Report("n"), "a").split() == wanted.split()


@pytest.mark.parametrize("packed", [[], ["hotpotqa", "musique", "narrativeqa", "qasper"],
                                    ["hotpotqa", "lcc", "musique", "narrativeqa", "qasper"]], ids=len)
def test_longbench(tmp_path, packed):
    """A task is a file or part of data.zip. Questions about the same context belong to one document."""
    copy = longbench(_id="l3", question="And?", answers=["B", " ", "B "])
    del copy["input"], copy["_id"]                               # some copies say "question", or have no ids
    rows = [longbench(), longbench(_id="l2", context="Other."), copy]
    path = lines(tmp_path / "hotpotqa.jsonl", *rows)

    if packed:
        with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
            for task in reversed(packed):
                archive.write(path, f"data/{task}.jsonl")
        with pytest.raises(InputError, match=f"data.zip:TASK, with TASK one of {', '.join(packed)}"):
            Dataset(tmp_path / "data.zip")
        with pytest.raises(InputError, match="with TASK one of"):
            Dataset(f"{tmp_path}/data.zip:other")
        path = f"{tmp_path}/data.zip:hotpotqa"

    name, documents, report = read(path)
    assert name == "HotpotQA" and report.layout == "LongBench HotpotQA"
    assert [document.passages for document in documents] == [["A\nAnn.\n\n", "B\nBob."], ["Other."]]
    assert [[q.id for q in document.questions] for document in documents] == [["l1", "hotpotqa.jsonl, line 3"], ["l2"]]
    assert documents[0].questions[1].answers == ["B"] and (report.rows, report.documents, report.questions) == (3, 2, 3)


def test_any_task_of_longbench(tmp_path):
    """A task keeps its name, as a file and in data.zip; 2wikimqa gets the name of its data set."""
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        for task in ("narrativeqa", "qasper", "hotpotqa", "musique", "2wikimqa", "multifieldqa_en", "lock", "x.y"):
            archive.write(lines(tmp_path / f"{task}.jsonl", longbench(dataset=task, _id=task)), f"{task}.jsonl")
    for task, wanted in (("2wikimqa", "2WikiMultihopQA"), ("multifieldqa_en", "multifieldqa_en"),
                         ("lock", "lock-own"), ("x.y", "x.y")):
        name, (document,), report = read(f"{tmp_path}/data.zip:{task}")
        assert (name, document.questions[0].id) == (wanted, task) and report.layout.startswith("LongBench ")
    assert read(tmp_path / "2wikimqa.jsonl")[0] == "2WikiMultihopQA" and read(tmp_path / "lock.jsonl")[0] == "lock-own"


def test_2wikimultihopqa(tmp_path):
    row = hotpotqa(evidences=[["Ann", "mother", "Bea"]])
    for path in (objects(tmp_path / "dev.json", [row]), lines(tmp_path / "dev.jsonl", row)):
        name, (document,), report = read(path)
        assert name == report.layout == "2WikiMultihopQA" and document.passages[0] == "Title 0\nSentence 0. And more."


def quality(**changes):
    questions = [{"question": "Who came?", "options": ["Ann", " Bob\n", "Cat", "no one"], "gold_label": 2,
                  "writer_label": 1}]
    return {"article_id": "a1", "set_unique_id": "a1_W1", "title": "T", "article": "Bob came.",
            "questions": questions} | changes


def test_quality(tmp_path):
    """An article on several lines is one document. Questions keep their options; those without a label are left out."""
    unlabelled = [{"question": "Who left?", "options": ["Ann", "Bob", "Cat", "no one"]}]
    bad = [quality(questions=[quality()["questions"][0] | changes]) for changes in (
        {"gold_label": 5}, {"gold_label": 0}, {"options": ["Ann", 2]}, {"options": "Ann"}, {"options": ["Ann"] * 27})]
    name, (document,), report = read(lines(tmp_path / "QuALITY.v1.0.1.htmlstripped.dev", quality(),
                                           quality(set_unique_id="a1_W2"), quality(questions=unlabelled), *bad))
    assert name == report.layout == "QuALITY" and document.passages == ["Bob came."]
    assert [question.id for question in document.questions] == ["a1_W1-0", "a1_W2-0"]
    question = document.questions[0]
    assert question.text == "Who came?\n(A) Ann\n(B) Bob\n(C) Cat\n(D) no one" and question.answers == ["Bob"]
    assert question.extra == {"options": ["Ann", "Bob", "Cat", "no one"], "gold": 1}
    for part in ("train", "test"):
        assert read(lines(tmp_path / f"QuALITY.v1.{part}", quality()))[2].layout == "QuALITY"
    reasons = counts(report.skipped)
    assert reasons.pop("a question without an answer") == 1
    assert sum(reasons.values()) == 5 and all("a row of another form" in reason for reason in reasons)


def test_ones_own_format(tmp_path):
    """It may be gzipped. It cannot take the name of a data set of the paper. A mistake is named with its line."""
    row = {"text": "Ann.", "questions": [{"question": "Who?", "answers": ["Ann"]}]}
    (tmp_path / "HotpotQA.jsonl.gz").write_bytes(gzip.compress(json.dumps(row).encode()))
    name, (document,), report = read(tmp_path / "HotpotQA.jsonl.gz")
    assert document.passages == ["Ann."] and report.layout == "own" and name == "HotpotQA-own"
    for file, name in (("mine.jsonl", "mine"), ("graphs.jsonl", "graphs-own"), (".jsonl", "-own")):
        assert read(lines(tmp_path / file, "", row))[0] == name
    with pytest.raises(InputError, match="mine.jsonl, line 2"):
        Dataset(lines(tmp_path / "mine.jsonl", row, row | {"questions": 3}))


@pytest.mark.parametrize("extra", [{"options": [], "gold": 0}, {"options": ["Ann"] * 27, "gold": 0},
                                   {"options": ["Ann"]}, {"options": "Ann", "gold": 0},
                                   {"options": ["Ann"], "gold": -1}, {"options": ["Ann", "Bob"], "gold": 2}])
def test_options_that_no_reply_can_name(tmp_path, extra):
    """They are refused before any question is answered: a reply names one of at most 26 letters."""
    question = {"question": "Who?", "answers": ["Ann"]}
    row = {"text": "Ann.", "questions": [question, question | extra]}
    with pytest.raises(InputError, match="mine.jsonl, line 1: question 1: "):
        Dataset(lines(tmp_path / "mine.jsonl", row))

    for letters in (ascii_uppercase, "A"):
        good = {"options": list(letters), "gold": len(letters) - 1}
        row["questions"][1] |= good
        assert read(lines(tmp_path / "mine.jsonl", row))[1][0].questions[1].extra == good


# --- as a whole -----------------------------------------------------------------------------------------------------

def test_every_file_of_a_folder_is_read(tmp_path):
    """Files are read in the order of their names, packed or not, and all are in the hash. The id of the first document
    is that of its row."""
    own = {"text": "Ann.", "questions": [{"question": "Who?", "answers": ["Ann"]}]}
    for id, questions, first, second in (
            ("h1", ["h1", "h2"], hotpotqa(), hotpotqa(_id="h2")), ("m1", ["m1", "m2"], musique(), musique(id="m2")),
            ("p1", ["q1", "q1#2"], {"p1": PAPER}, {"p2": PAPER}),
            ("l1", ["l1", "l2"], longbench(), longbench(_id="l2")),
            ("a1", ["a1_W1-0", "a1_W2-0"], quality(), quality(set_unique_id="a1_W2")),
            ("b.json-1", ["b.json-1-0", "a-1-0"], own, own)):
        folder = tmp_path / id
        (folder / "sub").mkdir(parents=True)
        lines(folder / "sub" / "a.NDJSON", second)
        (folder / "b.json.gz").write_bytes(gzip.compress(json.dumps(first).encode()))
        _, (document,), report = read(folder)
        assert (document.id, [q.id for q in document.questions], report.rows) == (id, questions, 2)
        lines(folder / "sub" / "a.NDJSON", second, "")
        assert Dataset(folder).report.sha256 != report.sha256


def test_the_limit_counts_documents(tmp_path):
    """The report still covers all documents."""
    path = lines(tmp_path / "m.jsonl", *(musique(id=f"m{n}", paragraphs=[
        {"idx": i, "title": "T", "paragraph_text": "more " * size} for i, size in enumerate(sizes)])
        for n, sizes in enumerate(([3, 1], [9, 2], [1, 1], [20], [3, 1]))))
    dataset = Dataset(path, limit=3)
    assert dataset.questions == ["m0", "m4", "m1", "m2"] and len(dataset.documents) == 3
    assert (dataset.report.documents, dataset.report.questions) == (4, 5)
    assert dataset.lengths(str.split) == {"average": 23 / 3, "least": 4, "most": 13, "documents": 3, "questions": 4}


def test_the_hash_is_that_of_the_files(tmp_path):
    path = lines(tmp_path / "m.jsonl", musique())
    before = Dataset(path).report.sha256
    assert before == Dataset(path).report.sha256 != Dataset(lines(path, musique(answer="Bob"))).report.sha256


@pytest.mark.parametrize("content, words", [
    ("[]", "no row of a known layout"), ('[{"a": 1}]', "no row of a known layout"), ("", "not valid JSON"),
    ('["context", "answers"]', "no row of a known layout"), ('{"text": "a", "questions": [}', "not valid JSON"),
    (json.dumps([hotpotqa(answer=None)]), "holds no question .a question without an answer"),
    (json.dumps([hotpotqa()])[:-5], "not valid JSON"), (b"\x1f\x8bbroken", "cannot be read")])
def test_a_file_that_is_no_data_set(tmp_path, content, words):
    (tmp_path / "x.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=words):
        Dataset(tmp_path / "x.json")


def test_a_folder_of_two_layouts_and_a_broken_zip(tmp_path):
    objects(tmp_path / "h.json", [hotpotqa()])
    narrativeqa(tmp_path / "n", a=b"The mill.")
    with pytest.raises(InputError, match="holds HotpotQA and NarrativeQA"):
        Dataset(tmp_path)
    (tmp_path / "z.zip").write_bytes(b"PK")
    with pytest.raises(InputError, match="not a readable zip file"):
        Dataset(tmp_path / "z.zip")
    with zipfile.ZipFile(tmp_path / "deep.zip", "w") as archive:
        archive.writestr("a/" * 2000 + "m.jsonl", "{}")
    with pytest.raises(InputError, match="deep.zip: cannot be read"):
        Dataset(tmp_path / "deep.zip")


def test_sets_of_narrativeqa(tmp_path):
    """PATH:SET reads one of the three sets; an error names a qaps.csv of another form."""
    folder = narrativeqa(tmp_path / "n:q", a=b"One.", b=b"Two.", c=b"Three.")
    table = (folder / "qaps.csv").read_text().replace("a,test", "a,train").replace("b,test", "b,valid")
    (folder / "qaps.csv").write_text(table)

    for part, expected in (("", ["a", "b", "c"]), (":train", ["a"]), (":valid", ["b"]), (":test", ["c"])):
        name, documents, _ = read(f"{folder}{part}")
        assert name == "NarrativeQA" and [document.id for document in documents] == expected

    with pytest.raises(InputError, match="sets are train, valid and test"):
        Dataset(f"{folder}:dev")
    (folder / "qaps.csv").write_text("document_id,question\nd,Who?\n")
    with pytest.raises(InputError, match="has no column answer1"):
        Dataset(folder)


def test_a_zip_file_that_cannot_be_read_to_its_end(tmp_path):
    path = lines(tmp_path / "musique.jsonl", musique())
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.write(path, "musique.jsonl")
    content = bytearray((tmp_path / "m.zip").read_bytes())
    content[content.index(b'"paragraphs"') + 30] ^= 1            # now the checksum is wrong
    (tmp_path / "m.zip").write_bytes(content)
    with pytest.raises(InputError, match="cannot be read"):
        Dataset(tmp_path / "m.zip")


def test_a_task_that_cannot_be_printed_is_no_task(tmp_path):
    """Its name would be in the report, so results.json could not be written at the end of the run."""
    with pytest.raises(InputError, match="rows.jsonl: .*one of these layouts is wanted"):
        Dataset(lines(tmp_path / "rows.jsonl", longbench(dataset="h\ud83d")))


def test_half_a_surrogate_pair_is_skipped(tmp_path):
    _, documents, report = read(lines(tmp_path / "hotpotqa.jsonl", longbench(context="A \ud83d b."),
                                      longbench(_id="l2", input="Who \ud83d?"), longbench(_id="l3")))
    assert [d.id for d in documents] == ["l3"] and sum(counts(report.skipped).values()) == 2


def test_what_is_of_another_kind_drops_itself_alone(tmp_path):
    """Only the row is lost that has text instead of a list, null instead of text, or a missing or extra column."""
    good = musique(id="good")
    rows = [good, musique(id="m2", answer_aliases="Ann")]
    for n, part in enumerate(({"title": None}, {"paragraph_text": None})):
        rows.append(musique(id=f"m3-{n}", paragraphs=[good["paragraphs"][0] | part]))
    assert Dataset(lines(tmp_path / "m.jsonl", *rows)).questions == ["good"]
    assert Dataset(lines(tmp_path / "l.jsonl", longbench(), longbench(_id="l2", answers="Ann"))).questions == ["l1"]

    narrativeqa(tmp_path / "n", a=b"One.")
    table = (tmp_path / "n" / "qaps.csv").read_text()
    for row, wanted in (("At home", 1), ("At home,Home,x,x,x,x", 1), ("At home,Home", 2)):
        (tmp_path / "n" / "qaps.csv").write_text(table.replace("At home,Home,x,x,x", row))
        assert len(Dataset(tmp_path / "n").questions) == wanted


def test_a_report_in_words():
    """Each reason has its count and the place where it first occurred."""
    report = Report("m.jsonl", "MuSiQue", "0123456789abcdef" * 4, 5, 2, 3)
    for place in ("line 1", "line 9"):
        report.problem("mended", place)
        report.skip("empty", f"{place} too")
    assert report.lines() == ["m.jsonl: MuSiQue, 5 rows, sha256 0123456789abcdef: 2 documents, 3 questions",
                              "  2 times: empty (first: line 1 too)", "  2 times: mended (first: line 1)"]
