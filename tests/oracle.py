"""Small random checkpoints that Hugging Face wrote, with attention peaky enough to show a bug, and Hugging Face's own
forward pass over them.

With the usual initialisation (standard deviation 0.02) attention is all but uniform, and a forward pass without RoPE
scaling still passes at 1e-5. Here the matrices have a standard deviation of 0.15, the norms are perturbed, and the
original context of the llama3 scaling is 64 positions, so that all three of its bands act within the test's length.
"""
import json
import shutil
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

TINY = Path(__file__).parents[1] / "tiny"
T = 512                                        # tokens of a test: eight times the scaling's original context
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}


def write_checkpoint(folder, seed=0, shard=None, dialect=5, **changes) -> Path:
    """A random Llama, saved by Hugging Face, with the embedded model's tokenizer beside it. Query heads x head width
    (128) differs from the width (64). `dialect` is the major version of transformers whose config.json it has."""
    config = LlamaConfig(**{
        "vocab_size": 340, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 16, "rope_parameters": LLAMA3, "rms_norm_eps": 1e-5, "eos_token_id": 2,
        "bos_token_id": 1, "max_position_embeddings": 2048, "tie_word_embeddings": False} | changes)
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(1.0, 0.2) if "norm" in name else weight.normal_(0.0, 0.15)
    model.save_pretrained(folder, **({} if shard is None else {"max_shard_size": shard}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, folder)
    if dialect == 4:
        path = Path(folder) / "config.json"
        raw = json.loads(path.read_text())
        rope = raw.pop("rope_parameters")
        raw |= {"rope_theta": rope.pop("rope_theta"), "torch_dtype": raw.pop("dtype")}
        raw["rope_scaling"] = rope if rope["rope_type"] == "llama3" else None
        path.write_text(json.dumps(raw))
    return Path(folder)


def hugging_face(folder, dtype=torch.float32, attention="eager") -> LlamaForCausalLM:
    """The same checkpoint in Hugging Face's forward pass. Loaded in its dtype, not cast: casting rounds inv_freq."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention).eval()


@torch.no_grad()
def attention_of_layers(hf, ids: list[int]) -> torch.Tensor:
    """[L, T, T] float64: attention of token x (row) to token y, mean over the heads, every layer kept."""
    layers = hf(torch.tensor([ids]), output_attentions=True).attentions
    return torch.stack([layer[0].double().mean(0) for layer in layers])


def mean_attention(hf, ids: list[int]) -> torch.Tensor:
    """[T, T] float64: the naive path to a(x, y), mean over all layers and heads after keeping all of them."""
    return attention_of_layers(hf, ids).mean(0)


def assert_same(ours, wanted, what: str):
    """Bit by bit; a failure tells how far off."""
    assert ours.dtype == wanted.dtype and ours.shape == wanted.shape, (what, ours.dtype, ours.shape, wanted.shape)
    assert torch.equal(ours, wanted), f"{what} is off by {(ours.double() - wanted.double()).abs().max()}"


def relative(ours, wanted) -> float:
    """||ours - wanted|| / ||wanted||, in float64."""
    ours, wanted = ours.double(), wanted.double()
    return ((ours - wanted).norm() / wanted.norm()).item()
