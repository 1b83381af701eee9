"""The options that the command lines share."""
from argparse import ArgumentParser, Namespace
from types import SimpleNamespace

import pytest
import torch

from core.files import InputError
from support import command as options


def test_a_window_is_no_longer_than_both_models_were_made_for():
    """This holds for the model that searches and the one that builds, in either order."""
    def made_for(length):
        return SimpleNamespace(folder=options.EMBEDDED_MODEL, config=SimpleNamespace(max_length=length))
    parser = ArgumentParser()
    options.add_model_options(parser)
    args = parser.parse_args(["--window", "600"])
    assert options.settings_of(args, made_for(600), None).window == 600
    for lengths in ((512, 2048), (2048, 512)):
        with pytest.raises(InputError, match="window 600 is too large: the model was made for 512 tokens"):
            options.settings_of(args, *map(made_for, lengths))


@pytest.mark.parametrize("widths, environment, threads", [([255], {}, 1), ([255], {"OMP_NUM_THREADS": "3"}, 3),
                                                          ([256], {}, 3), ([255, 256], {}, 3),
                                                          ([(255, 256)], {}, 3), ([(256, 255)], {}, 3)])
def test_a_small_model_runs_on_one_thread(monkeypatch, widths, environment, threads):
    """OMP_NUM_THREADS overrides this. A large model has PyTorch's threads, even after or beside a small one."""
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
