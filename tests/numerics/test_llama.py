"""Rings 3 and 4: the whole model and its generation against Hugging Face's forward pass on random checkpoints."""
from dataclasses import replace

import pytest
import torch
from oracle import (
    LLAMA3,
    T,
    assert_same,
    hugging_face,
    mean_attention,
    relative,
    rounding,
    token_ids,
    write_checkpoint,
)

import llama
from llama import Cache, Llama, at_least_float32
from pecan import summary_prompt

DTYPES = [torch.float32, torch.bfloat16]
# Tied and untied; grouped, multi-head and multi-query attention; with and without scaling; a head width in the config
# (H K differs from D) or D / H; the config.json of transformers 4 and 5; one weight file and many.
SHAPES = [{}, {"tie_word_embeddings": True, "shard": "100KB"}, {"num_key_value_heads": 8, "dialect": 4},
          {"num_key_value_heads": 1, "shard": "100KB", "dialect": 4}, {"head_dim": None},
          {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}, "dialect": 4},
          {"rope_parameters": LLAMA3 | {"factor": 32.0}, "tie_word_embeddings": True, "rms_norm_eps": 1e-3},
          {"attention_bias": True, "mlp_bias": True}, {"model_type": "qwen2", "tie_word_embeddings": True},
          {"model_type": "mistral", "sliding_window": None}]


def read(model, ids):
    """Logits [T, V] and a [T, T] of one pass over ids in which every token is a node, and the cache after it."""
    T = len(ids)
    cache = Cache(model, 1, T)
    mask = torch.ones(1, T, T, dtype=torch.bool).tril()
    every = at_least_float32(torch.eye(T, dtype=model.dtype))
    with torch.no_grad():
        hidden, a = model.forward(torch.tensor([ids]), torch.arange(T)[None], mask, cache, every[None])
        return model.logits(hidden[0]), a[0], cache


def probe(model, cache, ids):
    """Logits [B, vocabulary] after ids, which are rolled back."""
    hidden, _ = model.read(cache, [[]] * len(cache.lengths), probe=ids)
    return model.logits(hidden)


def load(folder, dtype) -> Llama:
    return Llama.load(folder, "cpu", str(dtype).removeprefix("torch."))


# --- the whole model ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("changes", SHAPES, ids=str)
def test_model_equals_hugging_face(tmp_path, ids, spy, changes):
    """Logits, and every layer's keys, values and attention, are equal bit by bit in float32 and bfloat16.

    The same operations in the same order on the same shapes round alike.
    """
    folder = write_checkpoint(tmp_path, **changes)
    assert (len(list(folder.glob("*.safetensors"))) > 2) == ("shard" in changes)
    for dtype in DTYPES:
        model = load(folder, dtype)
        hf = hugging_face(folder, dtype)
        calls = spy("attention")
        cache = Cache(model, 1, T)
        tokens = torch.tensor([ids(T)])
        mask = torch.ones(1, T, T, dtype=torch.bool).tril()
        with torch.no_grad():
            theirs = hf(tokens, use_cache=True, output_attentions=True)
            hidden, _ = model.forward(tokens, torch.arange(T)[None], mask, cache, torch.zeros(1, T, 1))

        assert_same(model.logits(hidden), theirs.logits, "logits")
        assert len(calls) == model.config.layers
        for layer, (_, (_, weights)) in enumerate(calls):
            assert_same(weights.flatten(1, 2).to(dtype), theirs.attentions[layer], f"attention of layer {layer}")
            kept = theirs.past_key_values.layers[layer]
            assert_same(cache.keys[layer], kept.keys, f"keys of layer {layer} (a shift of all positions, say)")
            assert_same(cache.values[layer], kept.values, f"values of layer {layer}")

        # Nearly uniform attention would hide bugs, here and in all later tests. The largest weight of a row, averaged
        # over the rows that see 256 tokens or more, is .07 here and .003 with the usual initialisation.
        largest = torch.stack(theirs.attentions)[..., T // 2:, :].float().max(-1).values.mean()
        assert largest > 0.03, f"{largest}: attention is too flat to show a bug"


def test_the_accumulator_is_the_mean_over_layers_and_heads(model, hf, ids):
    """If every token is a node, a(x, y) is the mean of Hugging Face's weights. It is causal and sums to 1."""
    _, a, _ = read(model, ids(T))
    error = relative(a, mean_attention(hf, ids(T)))
    assert error < rounding(model), error

    assert torch.equal(a.triu(1), torch.zeros(T, T)), "a masked weight is not exactly 0"
    error = (a.sum(1) - 1).abs().max()
    assert error < T * 2 ** -24, f"{error}: a sum may be off by at most {T} roundings of float32"


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}, {"num_key_value_heads": 8},
                                     {"num_key_value_heads": 1}], ids=str)
def test_the_fused_kernel_is_hugging_faces(tmp_path, ids, changes):
    """Prompts of summaries and probes need no attention weights. Their results equal Hugging Face's bit by bit.

    This holds in float32 and bfloat16, for a prompt and for a node read after it.
    """
    folder = write_checkpoint(tmp_path, **changes)
    for dtype in DTYPES:
        model = load(folder, dtype)
        hf = hugging_face(folder, dtype, "sdpa")
        cache = Cache(model, 1, T + 40)
        past = None
        for part in (ids(T), ids(40, seed=1)):
            hidden, _ = model.read(cache, [[(None, part)]])
            with torch.no_grad():
                theirs = hf(torch.tensor([part]), past_key_values=past, use_cache=True, logits_to_keep=1)
            past = theirs.past_key_values

            assert_same(model.logits(hidden), theirs.logits[0], "logits")
            for layer, kept in enumerate(past.layers):
                assert_same(cache.keys[layer][:, :, :cache.lengths[0]], kept.keys, f"keys of layer {layer}")
                assert_same(cache.values[layer][:, :, :cache.lengths[0]], kept.values, f"values of layer {layer}")


def test_the_fused_kernel_agrees_with_attention_written_out(model, hf, ids):
    """The two sum in different orders."""
    cache = Cache(model, 1, T)
    hidden, _ = model.read(cache, [[(None, ids(T))]])
    with torch.no_grad():
        theirs = hf(torch.tensor([ids(T)]), use_cache=True)

    error = relative(model.logits(hidden)[0], theirs.logits[0, -1])
    assert error < rounding(model), error
    for layer, kept in enumerate(theirs.past_key_values.layers):
        for ours, wanted in ((cache.keys[layer], kept.keys), (cache.values[layer], kept.values)):
            error = relative(ours, wanted)
            assert error < rounding(model), f"layer {layer}: {error}"


def test_attention_in_blocks_is_the_same(model64, ids, spy, monkeypatch):
    """If a pass has too many attention weights, each layer runs some tokens at a time, here seven."""
    def run():
        cache = Cache(model64, 2, 150)
        model64.read(cache, [[("q", ids(50))], [("q", ids(30))]])
        return model64.append(cache, [[(0, ids(90, 1))], [(0, ids(60, 2))]], cache.averaging_matrix([["q"]] * 2))

    calls = spy("attention")
    hidden, a = run()
    assert len(calls) == 3
    monkeypatch.setattr(llama, "BLOCK_BYTES", 7 * 4 * 2 * 8 * 140)
    in_blocks, a_in_blocks = run()
    assert [calls[n][1][1].shape[3] for n in (3, 4, -1)] == [7, 7, 90 % 7]
    for b, length in enumerate((90, 60)):
        assert relative(in_blocks[b, :length], hidden[b, :length]) < rounding(model64)
        assert relative(a_in_blocks[b, :length], a[b, :length]) < rounding(model64)


def test_several_tokens_are_averaged_under_a_mask_only(model, ids):
    """Without a mask, attention written out would see the tokens to come."""
    with pytest.raises(AssertionError, match="needs a mask"):
        model.forward(torch.tensor([ids(3)]), torch.arange(3)[None], averaging=torch.eye(3)[None])


# --- generation -----------------------------------------------------------------------------------------------------

def generate(model, prompt, limit, **options):
    """The ids that the model writes after a prompt."""
    cache = Cache(model, 1, len(prompt) + limit)
    hidden, _ = model.read(cache, [[(None, prompt)]])
    (ids,), _ = model.generate(cache, hidden, limit, **options)
    return ids


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_greedy_ids_equal_hugging_face(model, hf, ids, seed):
    """Token 478 ends a reply instead of the checkpoint's 2. These replies of 64 tokens do not contain it."""
    prompt = ids(100, seed)
    model = Llama(replace(model.config, eos=(478,)), model.weights)
    theirs = hf.generate(torch.tensor([prompt]), max_new_tokens=64, do_sample=False, pad_token_id=0, eos_token_id=478)
    ours = generate(model, prompt, 64)
    assert ours == theirs[0, 100:].tolist() and len(ours) == 64
    assert len(set(ours)) > 5, "the reply repeats itself too much to show a bug"


def test_the_embedded_model_generates_what_hugging_face_does(tiny, tiny_hf):
    """The weights are trained, the prompt is Table A1's, and the model ends its reply itself."""
    texts = ["Mara is Sofia's baker. Bells rang.", "Sofia's baker has a goat. It is white."]
    prompt = token_ids(summary_prompt(tiny.tokenizer, texts))
    theirs = tiny_hf.generate(torch.tensor([prompt]), max_new_tokens=64, do_sample=False, pad_token_id=0)[0]
    theirs = [i for i in theirs[len(prompt):].tolist() if i not in tiny.config.eos]
    assert generate(tiny, prompt, 64) == theirs and len(theirs) > 1


def test_rows_of_different_lengths_are_independent(model, ids):
    """Each row gives the hidden state, attention and ids that it gives alone, even after other rows have ended."""
    rows = [[(None, ids(n, seed=n)), ("node", ids(9, seed=n + 1)), (None, ids(3, seed=5))] for n in (120, 15, 60, 30)]

    def reply(rows, model):
        cache = Cache(model, len(rows), 200)
        hidden, _ = model.read(cache, rows)
        return hidden, *model.generate(cache, hidden, 40, cache.averaging_matrix([["node"]] * len(rows)))

    # This token ends the longest row early, and every other row that writes it.
    _, unended, _ = reply(rows, model)
    stop = unended[0][9]
    model = Llama(replace(model.config, eos=(stop,)), model.weights)
    hidden, replies, a = reply(rows, model)
    assert len(set(map(len, replies))) > 1, "all replies have the same length"

    for b, row in enumerate(rows):
        hidden_alone, (ids_alone,), (a_alone,) = reply([row], model)
        assert ids_alone == replies[b]

        # The fused kernel sums a batch in another order than a row.
        for ours, alone in ((hidden[b], hidden_alone[0]), (a[b], a_alone)):
            error = relative(ours, alone)
            assert error < rounding(model), f"row {b}: {error}"


def test_generation_stops_at_any_eos_and_at_the_limit(model, ids):
    model = Llama(replace(model.config, eos=()), model.weights)
    unended = generate(model, ids(100), 20)
    before = model.tokens
    assert len(unended) == 20 and generate(model, ids(100), 7) == unended[:7]
    assert model.tokens - before == 100 + 7, "the last token counts, though it does not run"

    # So do those of rows that run together and end together.
    before = model.tokens
    cache = Cache(model, 3, 110)
    hidden, _ = model.read(cache, [[(None, ids(100))]] * 3)
    assert list(map(len, model.generate(cache, hidden, 7)[0])) == [7] * 3 and model.tokens - before == 3 * 107

    token = unended[9]
    stop = unended.index(token)
    for eos in [(token,), (478, token), (token, 478)]:
        assert generate(Llama(replace(model.config, eos=eos), model.weights), ids(100), 20) == unended[:stop]
