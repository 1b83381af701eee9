"""What the command lines share."""
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch

from support import options


@pytest.mark.parametrize("widths, environment, threads", [([128], {}, 1), ([128], {"OMP_NUM_THREADS": "3"}, 3),
                                                          ([4096], {}, 3), ([128, 4096], {}, 3),
                                                          ([(128, 4096)], {}, 3), ([(4096, 128)], {}, 3)])
def test_a_small_model_runs_on_one_thread(monkeypatch, widths, environment, threads):
    """Unless OMP_NUM_THREADS says otherwise; a large one has PyTorch's threads, after or next to a small one (model,
    builder) too."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    loads = [width if isinstance(width, tuple) else (width,) for width in widths]
    models = [SimpleNamespace(config=SimpleNamespace(width=n), device="cpu", dtype=torch.float32)
              for load in loads for n in load]
    monkeypatch.setattr(options.Llama, "load", lambda *_: models.pop(0))
    monkeypatch.setattr(options, "THREADS", 3)
    monkeypatch.setattr(options, "load_encoder", lambda *_: None)

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        for load in loads:
            options.load_models(Namespace(model="m", device="cpu", dtype="auto", encoder=None,
                                          builder="b" if len(load) > 1 else None))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
