"""Fixtures that all test files share: models, a document with its graph, and settings of random examples."""
import json
import os
from pathlib import Path

import pytest

# Small tensors gain nothing from threads, and lose much on shared cores. Numba (UMAP's compiler) needs its own limit:
# otherwise it raises PyTorch's, and everything later in the process takes ten times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import hypothesis
import torch
from chromium import open_browser
from oracle import TINY, graph_of, hugging_face, write_checkpoint

import llama
from core.settings import resolve
from data import Document
from llama import Llama

# The same examples in every run, so a red test is red again. Other examples: pytest --hypothesis-profile=explore
hypothesis.settings.register_profile("same", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)

# For mutations.py, which only asks whether a test fails: shrinking an example takes longer than finding it.
hypothesis.settings.register_profile("unshrunk", hypothesis.settings.get_profile("same"),
                                     phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate])
hypothesis.settings.load_profile("same")


# --- a random checkpoint --------------------------------------------------------------------------------------------

@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A random checkpoint on disk."""
    return write_checkpoint(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def model(folder):
    return Llama.load(folder, "cpu")


@pytest.fixture(scope="session")
def model64(folder):
    """The same in float64, where a rounding error is 1e-13 and a wrong position gives far more."""
    return Llama.load(folder, "cpu", "float64")


@pytest.fixture(scope="session")
def hf(folder):
    """The random checkpoint in Hugging Face."""
    return hugging_face(folder)


@pytest.fixture(scope="session")
def ids():
    """A function that makes n random token ids without special tokens."""
    def make(n, seed=0):
        return torch.randint(5, 300, (n,), generator=torch.Generator().manual_seed(seed)).tolist()
    return make


# --- the embedded model, and one document of its world --------------------------------------------------------------

@pytest.fixture(scope="session")
def tiny():
    """The embedded model."""
    return Llama.load(TINY, "cpu")


@pytest.fixture(scope="session")
def tiny_hf(tiny):
    """The embedded model in Hugging Face."""
    return hugging_face(tiny.folder)


@pytest.fixture(scope="session")
def settings(tiny):
    """The embedded model's own settings."""
    return resolve(tiny.folder, tiny.config.max_length)


@pytest.fixture(scope="session")
def document():
    """A document of five chapters with 25 passages."""
    return Document("world", json.loads(Path(__file__).with_name("five_chapters.json").read_text()))


@pytest.fixture(scope="session")
def graph(tiny, document, settings):
    return graph_of(tiny, document, settings)


@pytest.fixture(scope="session")
def question():
    """A question about the first person of the document."""
    return "What does Amos drink?"


# --- watching what runs ---------------------------------------------------------------------------------------------

@pytest.fixture
def spy(monkeypatch):
    """A function that records the calls of a function, in llama.py or elsewhere, as a list of (arguments, result)."""
    def record(name, module=llama):
        calls = []
        function = getattr(module, name)

        def recorder(*arguments):
            result = function(*arguments)
            calls.append((arguments, result))
            return result

        monkeypatch.setattr(module, name, recorder)
        return calls
    return record


# --- the page of view/ ----------------------------------------------------------------------------------------------

@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Chromium with a log of its console."""
    window = open_browser(tmp_path_factory.mktemp("browser"))
    if window is None:
        pytest.skip("no browser: install chromium and chromium-driver")
    yield window
    window.quit()


@pytest.fixture
def show(browser, tmp_path):
    """A function that opens a page, and returns a function that runs a script there. The console stays empty."""
    def open_page(html):
        (tmp_path / "page.html").write_text(html, encoding="utf-8")
        browser.get((tmp_path / "page.html").as_uri())
        return browser.execute_script
    browser.get_log("browser")                              # messages of an earlier test's page
    yield open_page
    assert browser.get_log("browser") == []
