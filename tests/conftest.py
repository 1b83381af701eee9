import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small tensors gain nothing from threads, and lose much on shared cores
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import hypothesis  # noqa: E402
import torch  # noqa: E402
from oracle import hugging_face, write_checkpoint  # noqa: E402

import llama  # noqa: E402
from llama import Llama  # noqa: E402

# The same examples in every run: a red test is red again. Other examples: pytest --hypothesis-profile=explore
hypothesis.settings.register_profile("same", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
# For mutations.py, where that a test fails is enough: to shrink the example takes longer than to find it.
hypothesis.settings.register_profile("unshrunk", hypothesis.settings.get_profile("same"),
                                     phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate])
hypothesis.settings.load_profile("same")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A random checkpoint on disk."""
    return write_checkpoint(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def model(folder):
    return Llama.load(folder, "cpu")


@pytest.fixture(scope="session")
def model64(folder):
    """The same in float64, where a rounding error is 1e-13 and a wrong position is not."""
    return Llama.load(folder, "cpu", "float64")


@pytest.fixture(scope="session")
def hf(folder):
    return hugging_face(folder)


@pytest.fixture(scope="session")
def tiny():
    """The embedded model."""
    return Llama.load(ROOT / "tiny", "cpu")


@pytest.fixture(scope="session")
def tiny_hf(tiny):
    return hugging_face(tiny.folder)


@pytest.fixture(scope="session")
def ids():
    """Makes n random token ids that are no special tokens."""
    def make(n, seed=0):
        return torch.randint(5, 300, (n,), generator=torch.Generator().manual_seed(seed)).tolist()
    return make


@pytest.fixture
def spy(monkeypatch):
    """Records what passes through a free function of llama.py: a list of (arguments, result)."""
    def watch(name):
        calls, function = [], getattr(llama, name)

        def recorder(*arguments):
            result = function(*arguments)
            calls.append((arguments, result))
            return result
        monkeypatch.setattr(llama, name, recorder)
        return calls
    return watch
