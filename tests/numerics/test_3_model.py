"""Ring 3, the whole model: logits, keys, values and attention equal Hugging Face's on random checkpoints."""
import pytest
import torch
from oracle import (
    LLAMA3,
    T,
    assert_nearer_to_float64,
    assert_same,
    assert_same_cache,
    assert_same_pass,
    hugging_face,
    relative,
    rounding,
    write_checkpoint,
)

from llama import Cache, Llama

DTYPES = ["float32", "bfloat16"]

# Tied and untied; grouped, multi-head and multi-query attention; with and without scaling; a head width in the config
# (H K differs from D) or D / H; with biases; Qwen2, Qwen3 and Mistral.
SHAPES = [{}, {"num_key_value_heads": 8}, {"num_key_value_heads": 1}, {"head_dim": None},
          {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
          {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
          {"rope_parameters": LLAMA3 | {"factor": 32.0}, "tie_word_embeddings": True, "rms_norm_eps": 1e-3},
          {"attention_bias": True, "mlp_bias": True}, {"model_type": "qwen2", "tie_word_embeddings": True},
          {"model_type": "qwen3", "tie_word_embeddings": True}, {"model_type": "mistral", "sliding_window": None}]


@pytest.mark.parametrize("changes", SHAPES, ids=str)
def test_model_equals_hugging_face(tmp_path, ids, spy, changes):
    """Logits, and every layer's keys, values and attention, are equal bit by bit, in bfloat16 to those of Hugging Face
    with float32 scores. Then they are nearer to float64 than Hugging Face's own.

    The same operations in the same order on the same shapes round alike.
    """
    folder = write_checkpoint(tmp_path, **changes)
    for dtype in DTYPES:
        attention = assert_same_pass(Llama.load(folder, "cpu", dtype), hugging_face(folder, dtype), ids(T), spy)

        # Nearly uniform attention would hide bugs, here and in all later tests. The largest weight of a row, averaged
        # over the rows that see 256 tokens or more, is .07 here and .003 with the usual initialisation.
        largest = attention[..., T // 2:, :].float().max(-1).values.mean()
        assert largest > 0.03, f"{largest}: attention is too flat to show a bug"
    assert_nearer_to_float64(Llama.load(folder, "cpu", "bfloat16"), folder, ids(T))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind, kv_heads", [("llama", 8), ("llama", 2), ("llama", 1), ("qwen3", 2)])
def test_the_fused_kernel_is_hugging_faces(tmp_path, ids, kind, kv_heads, dtype):
    """Prompts of summaries and probes need no attention weights. Their results equal Hugging Face's bit by bit, for a
    prompt and for a node read after it. If only the last state is wanted, the last layer runs for its token alone and
    rounds otherwise."""
    folder = write_checkpoint(tmp_path, num_key_value_heads=kv_heads, model_type=kind)
    model = Llama.load(folder, "cpu", dtype)
    hf = hugging_face(folder, dtype, "sdpa")
    cache, other = Cache(model, 1, T + 40), Cache(model, 1, T + 40)
    past = None
    for part in (ids(T), ids(40, seed=1)):
        hidden = model.append(cache, [[(None, part)]])[0][:, -1]
        alone, _ = model.read(other, [[(None, part)]])
        assert relative(alone, hidden) < rounding(model)
        with torch.no_grad():
            theirs = hf(torch.tensor([part]), past_key_values=past, use_cache=True, logits_to_keep=1)
        past = theirs.past_key_values
        assert_same(model.logits(hidden), theirs.logits[0], "logits")
        assert_same_cache(cache, past)


def test_the_logits_of_a_check_are_not_rounded_to_bfloat16(folder, ids):
    """They are the products of rows of the output matrix and the hidden state, up to the roundings of D float32 sums,
    and count as the whole matrix. All logits together are in bfloat16, and off by more."""
    model = Llama.load(folder, "cpu", "bfloat16")
    hidden, _ = model.read(Cache(model, 1, 60), [[(None, ids(60))]])
    exact = hidden.double() @ model.weights["lm_head.weight"][[7, 3]].double().T
    before = model.flops
    both = model.logits(hidden, [7, 3])
    flops = model.flops - before
    assert both.dtype == torch.float32 and relative(both, exact) < 64 * 2 ** -24
    assert relative(model.logits(hidden)[:, [7, 3]], exact) > 2 ** -12 and model.flops - before == 2 * flops
    assert relative(model.logits(hidden, slice(None))[:, [7, 3]], exact) < 64 * 2 ** -24, "for LongLLMLingua's losses"
