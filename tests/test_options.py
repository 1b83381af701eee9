"""What the command lines share."""
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from core.files import InputError
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


def test_a_graph_lands_next_to_its_document_but_in_no_checkpoints_folder(tmp_path, monkeypatch):
    """A checkpoint's folder holds its own files only; --graph goes anywhere."""
    document = tmp_path / "story.txt"

    def place(graph=None):
        return options.graph_path(Namespace(document=str(document), graph=graph), "name")
    assert place() == tmp_path / "story.txt.name.graph.json" and place("x.json") == Path("x.json")
    (tmp_path / "config.json").write_text("{}")
    assert place() == Path("story.txt.name.graph.json") and place("x.json") == Path("x.json")

    monkeypatch.chdir(tmp_path)
    assert place("x.json") == Path("x.json")
    with pytest.raises(InputError, match="story.txt: a checkpoint's folder is no place for a graph"):
        place()
