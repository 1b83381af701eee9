"""Random models of real shapes, the memory that a run takes, and its longest passes: rings 5 and 9, benchmark.py."""
import tempfile
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM

from core.settings import PASS, Settings
from evaluation.cost import bytes_of_pass
from llama import Llama, Segment, length_of
from model.checkpoint import read_config
from model.tokenizer import Tokenizer
from pecan import Graph, Node, Search, node_line, summarise, summary_prompt

TINY = Path(__file__).parents[1] / "tiny"
NAMES = """vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads
    tie_word_embeddings""".split()
SIZES = {"embedded": (461, 128, 256, 6, 4, 2, True),
         "SmolLM2, 6 layers": (49152, 576, 1536, 6, 9, 3, True),
         "1B": (128256, 2048, 8192, 16, 32, 8, True),
         "8B": (128256, 4096, 14336, 32, 32, 8, False),
         "70B": (128256, 8192, 28672, 80, 64, 8, False)}


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


def nodes_of(length: int) -> list[Segment]:
    """A prompt of so many tokens as nodes of 64 tokens, numbered from 0."""
    return [(n, [5 + n] * 64) for n in range(length // 64)]


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


# --- full size -----------------------------------------------------------------------------------------------------

REPLY = 2                         # tokens of a reply; memory does not depend on how many of its slots are written
ROWS = 8                          # groups of a batch

# What stands for the data that the meta device does not hold. Attention runs as one operation, like a fused kernel.
ANSWERS = {F.scaled_dot_product_attention: torch.empty_like,
           torch.Tensor.tolist: lambda x: torch.zeros(x.shape, dtype=x.dtype).tolist(),
           torch.Tensor.cpu: lambda x: torch.full(x.shape, .01, dtype=x.dtype),
           torch.Tensor.__bool__: lambda x: True}


class WithoutData(TorchFunctionMode):
    """Runs on the meta device what asks for data, too."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in ANSWERS and args[0].is_meta:
            return ANSWERS[function](args[0])
        return function(*args, **kwargs or {})


def groups(model: Llama, window: int) -> tuple[int, ...]:
    """Summarise a batch of full windows. Return its rows, the tokens of each prompt, and the slots of its cache."""
    text = "color " * 298
    empty = length_of(summary_prompt(model.tokenizer, []))
    length = length_of(node_line(model.tokenizer, None, text))
    nodes = (window - empty - REPLY) // length
    summarise(model, [[text] * nodes] * ROWS, Settings(window=window, summary_share=REPLY / window))
    tokens = empty + nodes * length
    return ROWS, tokens, ROWS * (tokens + REPLY)


def search(model: Llama, window: int) -> tuple[int, ...]:
    """Run a search that fills its window: two nodes, a check, and the answer. All other tokens count as read.

    Return the rows and tokens of its longest pass, the slots of its cache, and the keys that attention weights are for.
    """
    search = Search(model, Graph([Node(1, "color " * 250)] * 2, []), "Who is Ahab?", torch.ones(2),
                    Settings(window=window, answer_tokens=REPLY))
    search.cache.lengths[0] += search.room - search.lengths.sum().item()
    search.answer()
    assert search.cache.lengths == [window - 1], "the last token of the answer does not run, and a probe is rolled back"
    return 1, PASS, window, window


def memory(run: Callable, model: Llama, window: int) -> tuple[int, int]:
    """The bytes that run(model, window) adds at its peak, and those of the dry run's formula."""
    passed = []
    with WithoutData() if model.device.type == "meta" else nullcontext():
        peak = peak_of(lambda: passed.extend(run(model, window)), model.device)
    return peak, bytes_of_pass(model.config, model.dtype.itemsize, *passed)
