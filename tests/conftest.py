import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small tensors gain nothing from threads, and lose much on shared cores
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import torch  # noqa: E402
from oracle import hugging_face, write_checkpoint  # noqa: E402

from llama import Llama  # noqa: E402


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A random checkpoint on disk."""
    return write_checkpoint(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def model(folder):
    return Llama.load(folder, "cpu")


@pytest.fixture(scope="session")
def hf(folder):
    return hugging_face(folder)


@pytest.fixture(scope="session")
def tiny():
    """The embedded model."""
    return Llama.load(ROOT / "tiny", "cpu")


@pytest.fixture
def ids():
    """Makes n random token ids that are no special tokens."""
    def make(n, seed=0):
        return torch.randint(5, 300, (n,), generator=torch.Generator().manual_seed(seed)).tolist()
    return make
