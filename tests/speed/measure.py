"""Random models of real shapes, the memory that a run takes, and the lines of the benchmark."""
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM

from llama import Llama
from model.checkpoint import read_config
from model.tokenizer import Tokenizer

TINY = Path(__file__).parents[2] / "tiny"
NAMES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
         "num_key_value_heads", "head_dim", "tie_word_embeddings")
SIZES = {"embedded": (461, 128, 256, 6, 4, 2, 32, True),
         "SmolLM2, 6 layers": (49152, 576, 1536, 6, 9, 3, 64, True),
         "1B": (128256, 2048, 8192, 16, 32, 8, 64, True),
         "SmolLM2-1.7B": (49152, 2048, 8192, 24, 32, 32, 64, True),
         "8B": (128256, 4096, 14336, 32, 32, 8, 128, False),
         "70B": (128256, 8192, 28672, 80, 64, 8, 128, False)}


def random_model(shape: str, device: torch.device | str, dtype: torch.dtype, **changes):
    """A Llama with random weights, and Hugging Face's with the same ones; on the device "meta" both have none.

    `changes` replace entries of Hugging Face's config. Replies end at their limit.
    """
    config = LlamaConfig(**dict(zip(NAMES, SIZES[shape])) | changes, max_position_embeddings=1 << 17,
                         initializer_range=.05)
    torch.manual_seed(0)
    with torch.device(device), tempfile.TemporaryDirectory() as folder:
        hf = LlamaForCausalLM._from_config(config, dtype=dtype, attn_implementation="eager").eval()
        hf.config.save_pretrained(folder)
        config = replace(read_config(folder), eos=())
    return Llama(config, hf.state_dict(), Tokenizer(TINY)), hf


# --- memory ---------------------------------------------------------------------------------------------------------

def peak_of(run: Callable, device: torch.device = torch.device("cpu")) -> int:
    """Bytes allocated at the peak of run(), above what was allocated before it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before

    with Counted() as counted:
        run()
    return counted.peak


class Counted(TorchDispatchMode):
    """Counts the bytes of the living tensors that operations made, on any device. Earlier tensors are not counted.

    An operation on tensors of two devices, except a copy, is an AssertionError.
    """

    def __init__(self):
        super().__init__()
        self.given = weakref.WeakSet()                      # storages that were there before
        self.made = weakref.WeakSet()
        self.peak = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation.overloadpacket.__name__
        given = self.storages((args, kwargs))
        devices = {storage.device.type for storage in given}
        assert len(devices) < 2 or "copy" in name, f"{name} of tensors on {' and '.join(sorted(devices))}"
        self.given.update(given.difference(self.made))

        result = operation(*args, **kwargs or {})
        self.made.update(self.storages(result).difference(self.given))
        self.peak = max(self.peak, sum(storage.nbytes() for storage in self.made))
        return result

    @staticmethod
    def storages(values) -> set:
        """Of all dense tensors among the values."""
        return {x.untyped_storage() for x in tree_leaves(values)
                if isinstance(x, torch.Tensor) and x.layout == torch.strided}


# --- lines ----------------------------------------------------------------------------------------------------------

def line(what: str, ours: float, peer: float, unit: str):
    """Print a line of the table. A ratio above 1 is in our favour."""
    print(f"{what:60}{ours:12,.4g} {unit:9}{peer:12,.4g}{peer / ours:8.2f}x", flush=True)
