"""Small random checkpoints by Hugging Face, its passes over them and ours, and comparisons.

The attention of these checkpoints is peaky enough to show a bug. With the usual initialisation (standard deviation
0.02) attention is nearly uniform, and a forward pass without RoPE scaling still passes at 1e-5. So the matrices have a
standard deviation of 0.15 and the norms are perturbed; those of Qwen3's heads lie around 2. The original context of the
llama3 scaling is 64 positions, so that all three of its bands act within the length of a test.
"""
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.masking_utils import eager_mask

from core.lockstep import side_by_side
from core.settings import Settings
from core.together import alone
from data import Document
from llama import Cache, Llama
from pecan import Graph, build, summarise

TINY = Path(__file__).parents[1] / "tiny"
T = 512                                        # tokens of a test: eight times the scaling's original context
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}

# Query heads x head width (8 x 16 = 128) differs from the model width (64), so no test confuses the two.
SMALL = {"vocab_size": 480, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
         "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "rope_parameters": LLAMA3,
         "rms_norm_eps": 1e-5, "eos_token_id": 2, "bos_token_id": 1, "max_position_embeddings": 2048,
         "tie_word_embeddings": False}


# --- checkpoints ----------------------------------------------------------------------------------------------------

def write_checkpoint(folder, seed=0, shard=None, **changes) -> Path:
    """Write a random Llama in Hugging Face's format, with the embedded model's tokenizer, and return its folder.

    `changes` replace entries of SMALL; a model_type makes a Qwen2, a Qwen3 or a Mistral. `shard` is the largest size of
    a weight file, such as "100KB".
    """
    torch.manual_seed(seed)
    config = AutoConfig.for_model(**{"model_type": "llama"} | SMALL | changes)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.normal_(2.0 if "self_attn" in name else 1.0, 0.2)
            else:
                weight.normal_(0.0, 0.15)

    sizes = {} if shard is None else {"max_shard_size": shard}
    model.save_pretrained(folder, **sizes)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, folder)
    return Path(folder)


def beside(model, capacity: int, searches: list) -> list:
    """What searches, functions of a model, return side by side."""
    class Asked(SimpleNamespace):
        def answer(self, search):
            return search(self.model)

    return side_by_side(Asked(model=model), Cache(model, len(searches), capacity), [(search,) for search in searches])


def graph_of(model: Llama, document: Document, settings: Settings) -> Graph:
    """The graph of one document, built alone."""
    return alone(build(model, document, settings), lambda groups: summarise(model, groups, settings))


def float32_scores(module, query, key, value, mask, scaling, **_):
    """Hugging Face's eager attention [B, T, H, K] and its weights, but for scores in float32 where it rounds them to 16
    bits before the softmax."""
    key = key.repeat_interleave(module.num_key_value_groups, 1)
    value = value.repeat_interleave(module.num_key_value_groups, 1)
    scores = query.float() @ key.float().transpose(2, 3) * scaling
    weights = (scores if mask is None else scores + mask).softmax(-1).to(query.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


AttentionInterface.register("float32_scores", float32_scores)
AttentionMaskInterface.register("float32_scores", eager_mask)


def hugging_face(folder, dtype="float32", attention=None) -> PreTrainedModel:
    """The checkpoint in Hugging Face, loaded in its dtype. (A cast after loading would round inv_freq.)

    Its attention is eager, in 16 bits with float32_scores.

    Its weights lie in the mapped file at any address, and last bits of products depend on it. So we copy them.
    """
    attention = attention or ("float32_scores" if dtype in ("bfloat16", "float16") else "eager")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention).eval()
    for weight in model.parameters():
        weight.data = weight.data.clone()
    return model


def ending_at(model, *eos) -> Llama:
    """The model, whose replies end at other tokens."""
    return Llama(replace(model.config, eos=eos), model.weights, model.tokenizer)


def spent(model, since=(0, 0)) -> tuple[int, int]:
    """FLOPs and tokens so far, less `since`, which an earlier call returned."""
    return model.flops - since[0], model.tokens - since[1]


# --- passes ---------------------------------------------------------------------------------------------------------

def greedy(hf, prompt: list[int], limit: int, **options) -> list[int]:
    """The ids that Hugging Face writes after a prompt."""
    ids = hf.generate(torch.tensor([prompt]), max_new_tokens=limit, do_sample=False, pad_token_id=0, **options)
    return ids[0, len(prompt):].tolist()


@torch.no_grad()
def one_pass(hf, ids: list[int]):
    """Hugging Face's pass over a prompt, with its logits, its cache, and the attention of every layer and head."""
    return hf(torch.tensor([ids]), use_cache=True, output_attentions=True)


def mean_attention(out) -> torch.Tensor:
    """[T, T] float64: a(x, y) of a pass, the mean over all layers and heads."""
    return torch.stack([layer[0].double().mean(0) for layer in out.attentions]).mean(0)


@torch.no_grad()
def written_out(model, ids: list[int]):
    """Logits [T, vocabulary] and a(x, y) [T, T] of one pass of our model; its cache."""
    T = len(ids)
    cache = Cache(model, 1, T)
    hidden, a = model.forward(torch.tensor([ids]), torch.arange(T)[None], cache, T)
    return model.logits(hidden[0]), a[0], cache


def assert_nearer_to_float64(model, folder, ids: list[int]):
    """In 16 bits our a(x, y) is nearer to that of the same rounded weights in float64 than Hugging Face's eager one."""
    eager = hugging_face(folder, str(model.dtype).removeprefix("torch."), "eager")
    theirs = mean_attention(one_pass(eager, ids))
    exact = mean_attention(one_pass(eager.double(), ids))
    ours = written_out(model, ids)[1]
    assert relative(ours, exact) < relative(theirs, exact), (relative(ours, exact), relative(theirs, exact))


# --- prompts --------------------------------------------------------------------------------------------------------

def ids_and_spans(segments):
    """The ids of a prompt, and the positions of every node."""
    ids = []
    spans = {}
    for node, part in segments:
        if node is not None:
            spans[node] = range(len(ids), len(ids) + len(part))
        ids += part
    return ids, spans


def to_nodes(a, spans):
    """a(x, j) [X, N] from a(x, y) [X, T]: the mean over the tokens of each node."""
    return torch.stack([a[:, span].mean(1) for span in spans], 1)


# --- comparisons ----------------------------------------------------------------------------------------------------

def assert_same(ours, wanted, what: str):
    """Assert equality of every bit; a failure reports the largest difference."""
    assert ours.dtype == wanted.dtype and ours.shape == wanted.shape, (what, ours.dtype, ours.shape, wanted.shape)
    assert torch.equal(ours, wanted), f"{what} is off by {(ours.double() - wanted.double()).abs().max()}"


def assert_same_cache(cache, theirs):
    """Every layer's keys and values are equal, bit by bit."""
    for layer, kept in enumerate(theirs.layers):
        for ours, wanted in ((cache.keys[layer], kept.keys), (cache.values[layer], kept.values)):
            assert_same(ours[:, :, :wanted.shape[2]], wanted, f"keys or values of layer {layer}")


def assert_same_pass(model, hf, ids: list[int], spy) -> torch.Tensor:
    """Assert that logits, and every layer's keys, values and attention, equal Hugging Face's bit by bit.

    Returns Hugging Face's attention [L, 1, H, T, T].
    """
    calls = spy("attention")
    logits, _, cache = written_out(model, ids)
    theirs = one_pass(hf, ids)
    assert_same(logits, theirs.logits[0], "logits")
    assert_same_cache(cache, theirs.past_key_values)            # a shift of all positions shows only here
    for layer, ((_, (_, weights)), wanted) in enumerate(zip(calls, theirs.attentions, strict=True)):
        assert_same(weights.flatten(1, 2).to(wanted.dtype), wanted, f"attention of layer {layer}")
    return torch.stack(theirs.attentions)


def relative(ours, wanted) -> float:
    """||ours - wanted|| / ||wanted||, in float64 on the CPU."""
    ours = ours.double().cpu()
    wanted = wanted.double().cpu()
    return ((ours - wanted).norm() / wanted.norm()).item()


def rounding(model) -> float:
    """How much of a value may be rounding, if a model reads it in other parts, on another device, in another dtype.

    It follows from the dtype and the number of sums. Each of the L layers adds twice to the residual stream. Each time,
    the new stream is rounded to the dtype, by at most u = eps / 2 of itself. What was added is a sum of D products in
    float32 (in float64, if that is the dtype), whose D roundings have random signs and add up to sqrt(D) of one. The
    2 L errors have random signs, too, and the value that we compare with has as many of its own. So the relative
    difference is sqrt(4 L) (u + sqrt(D) u'), u' = 2^-24 for float32.

    Measured in u, with AVX-512, with AVX2, with neither, on one thread and on two: for SmolLM2 (L = 30, D = 576) the
    formula allows 11 in bfloat16 and float16, and 274 in float32. Values of the last layer are off by 6.3 and 24,
    logits by 4.4 and 18, keys by 3.2 and 13. Attention and r are means over layers, heads and tokens, so they are off
    by less: 1.8 and 7. For the embedded model it allows 60 in float32, and r is off by at most 34. A wrong position,
    mask or node moves them by more than a tenth.
    """
    u = torch.finfo(model.dtype).eps / 2
    return (4 * model.config.layers) ** .5 * (u + model.config.width ** .5 * min(u, 2 ** -24))
