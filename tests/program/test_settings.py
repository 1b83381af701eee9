"""Settings are resolved in one place: each source overrides those before it, and only what it sets."""
import itertools
import json

import pytest

from core.files import InputError
from core.settings import PAPER, WHOLE_DOCUMENT, WINDOW, Settings, resolve

SOURCES = ["defaults", "pecan.json", "paper", "options", "run"]          # in rising order of precedence
VALUES = {"pecan.json": 0, "paper": 0.2, "options": 0.3, "run": 0.4}   # confidences


def resolved(folder, max_length=100_000, **sources):
    """Settings from {source: values}; "pecan_json" is written to the checkpoint's folder."""
    checkpoint = sources.pop("pecan_json", None)
    if checkpoint is not None:
        (folder / "pecan.json").write_text(json.dumps(checkpoint))
    return resolve(folder, max_length, **sources)


@pytest.mark.parametrize("lower, higher", itertools.combinations(SOURCES, 2))
def test_precedence(tmp_path, lower, higher):
    """If two sources set a value, the higher one wins. If the higher one has None, the lower one's value stays."""
    def sources(values):
        return {name.replace(".", "_"): {"confidence": value} for name, value in values.items() if name != "defaults"}
    both = {lower: VALUES.get(lower), higher: VALUES[higher]}
    assert resolved(tmp_path, **sources(both)).confidence == VALUES[higher]

    if higher != "pecan.json":                               # a file has no None
        wanted = VALUES.get(lower, Settings.confidence)
        assert resolved(tmp_path, **sources(both | {higher: None})).confidence == wanted


def test_a_source_leaves_alone_what_it_does_not_set(tmp_path):
    settings = resolved(tmp_path, pecan_json={"chunk": 32}, paper=PAPER["MuSiQue"],
                        options={"patience": 2, "batch": None}, run={"tree": True})
    assert settings == Settings(chunk=32, confidence=.55, answer_tokens=32, patience=2, tree=True)


def test_the_papers_windows_are_cut_to_the_models_length(tmp_path):
    whole = {"window": WHOLE_DOCUMENT}
    assert resolved(tmp_path, 131_072).window == WINDOW and resolved(tmp_path, 512).window == 512
    assert resolved(tmp_path, 131_072, paper=whole).window == 100_000
    assert resolved(tmp_path, 512, paper=whole).window == 512
    assert resolved(tmp_path, 131_072, paper=whole, options={"window": 4096}).window == 4096


def test_a_window_that_was_chosen_is_refused_if_it_is_too_large(tmp_path):
    for source in ({"options": {"window": 600}}, {"run": {"window": 600}}, {"pecan_json": {"window": 600}}):
        with pytest.raises(InputError, match="window 600 is too large: the model was made for 512 tokens"):
            resolved(tmp_path, 512, **source)
