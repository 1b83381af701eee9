"""Settings are resolved in one place: each source overrides those before it, and only what it sets."""
import itertools
import json
from dataclasses import fields

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from core.files import InputError
from core.settings import RULES, Settings, resolve

# The sources in rising order of precedence, and the confidence that each gives here.
SOURCES = {"defaults": Settings.confidence, "pecan.json": 0, "paper": 0.2, "options": 0.3, "run": 0.4}


def resolved(folder, **sources):
    """Settings from {source: values}; "pecan.json" is written to the checkpoint's folder."""
    (folder / "pecan.json").write_text(json.dumps(sources.pop("pecan.json", {})), encoding="utf-8")
    sources.pop("defaults", None)
    return resolve(folder, 100_000, **sources)


@pytest.mark.parametrize("lower, higher", itertools.combinations(SOURCES, 2))
def test_precedence(tmp_path, lower, higher):
    """If two sources set a value, the higher one wins. If the higher one has None, the lower one's value stays."""
    low, high = ({name: {"confidence": SOURCES[name]}} for name in (lower, higher))
    assert resolved(tmp_path, **low, **high).confidence == SOURCES[higher]
    if higher != "pecan.json":                               # a file has no None
        assert resolved(tmp_path, **low, **{higher: {"confidence": None}}).confidence == SOURCES[lower]


@given(st.sampled_from([*RULES, "windw"]), st.sampled_from([0, -1, "8", 1.5, [], 1e999, 10 ** 20, True]))
def test_a_bad_value_in_pecan_json(tmp_path_factory, name, value):
    """It is named, with its file; so is a name that is no setting. True is no 1."""
    assume((name, value) != ("confidence", 0) and not (value is True and type(getattr(Settings, name, 0)) is bool))
    with pytest.raises(InputError, match=f"pecan.json: ({name} is|not valid JSON|unknown setting windw)"):
        resolved(tmp_path_factory.getbasetemp(), **{"pecan.json": {name: value}})


# Another value of each setting but `batch` and `instructions`.
OTHER = {"chunk": 7, "window": 7, "summary_share": .1, "tree": True, "confidence": .1, "patience": 7,
         "attention": False, "similarity": False, "fixed_nodes": 7, "answer_tokens": 7, "question_again": True}


@pytest.mark.parametrize("name", sorted({field.name for field in fields(Settings)} - {"batch", "instructions"}))
def test_a_setting_that_is_changed_changes_a_name(name):
    """Answers name all settings but the batch, graphs those of stage 1."""
    before, after = Settings(), Settings(**{name: OTHER[name]})
    assert after.answer_settings() != before.answer_settings()
    assert (after.construction_settings() != before.construction_settings()) == (
        name in ("chunk", "window", "summary_share", "tree"))
