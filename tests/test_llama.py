"""The forward pass, the attention accumulator and the node cache against Hugging Face and against one pass."""
import json
import shutil

import pytest
import torch
from oracle import LLAMA3, hugging_face, mean_attention, write_checkpoint
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from checkpoint import choose_device, locate, read_config
from data import InputError
from llama import Cache, Llama, attention, inverse_frequencies, rotate

T = 300                                        # well beyond the 64 positions after which llama3 scaling matters


def read(model, ids):
    """One pass over ids with every attention row reduced to single tokens: logits [T, V] and a [T, T]."""
    tokens, positions = torch.tensor([ids]), torch.arange(len(ids))[None]
    mask = torch.ones(1, len(ids), len(ids), dtype=torch.bool).tril()
    with torch.no_grad():
        hidden, seen = model.forward(tokens, positions, mask, watch=torch.eye(len(ids))[None])
        return model.logits(hidden[0]), seen[0]


# --- the forward pass -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("changes", [
    {}, {"tie_word_embeddings": True}, {"num_key_value_heads": 8}, {"num_key_value_heads": 1},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}, {"head_dim": None}], ids=str)
def test_logits_and_attention_equal_hugging_face(tmp_path, ids, changes):
    folder = write_checkpoint(tmp_path, **changes)
    model, hf, tokens = Llama.load(folder, "cpu"), hugging_face(folder), ids(T)
    logits, seen = read(model, tokens)
    with torch.no_grad():
        wanted = hf(torch.tensor([tokens])).logits[0]
    # The same operations in the same order: no rounding apart from the matrix shapes, hence far below float32's 1e-7
    # x 300.
    assert (logits - wanted).abs().max() < 2e-5 * wanted.abs().max()
    assert (seen - mean_attention(hf, tokens)).abs().max() < 1e-6
    assert seen.max() > 0.2, "attention is too flat to show a bug"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bit_equal_to_hugging_face_eager(folder, ids, dtype):
    """A bfloat16 tolerance cannot see a cast in the wrong place; equality of every bit can."""
    model = Llama.load(folder, "cpu", str(dtype).removeprefix("torch."))
    logits, _ = read(model, ids(T))
    with torch.no_grad():
        wanted = hugging_face(folder, dtype)(torch.tensor([ids(T)])).logits[0]
    assert torch.equal(logits, wanted), (logits - wanted).abs().max()


def test_fused_kernel_agrees_with_attention_written_out(model, ids):
    written, _ = read(model, ids(T))
    cache = Cache(model, 1, T)
    hidden, _ = model.read(cache, [[(None, ids(T))]])
    assert torch.allclose(model.logits(hidden)[0], written[-1], rtol=0, atol=2e-5 * written.abs().max().item())


def test_attention_weights_are_a_causal_distribution(model, ids):
    _, seen = read(model, ids(64))
    assert torch.equal(seen.triu(1), torch.zeros(64, 64)), "a masked weight is not exactly 0"
    assert (seen.sum(1) - 1).abs().max() < 1e-6


def test_grouped_heads_by_hand():
    """Query head h belongs to key/value head h // G: checked with numpy-like loops on 2 key heads of 3 query heads
    each."""
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, heads, 5, 4, generator=g) for heads in (6, 2, 2))
    out, weights = attention(q.view(1, 2, 3, 5, 4), k, v, torch.ones(1, 5, 5, dtype=torch.bool).tril())
    for h in range(6):
        for t in range(5):
            scores = torch.stack([q[0, h, t] @ k[0, h // 3, s] / 2 for s in range(t + 1)])
            p = scores.exp() / scores.exp().sum()
            assert torch.allclose(weights[0, h // 3, h % 3, t, :t + 1], p, atol=1e-6)
            assert torch.allclose(out[0, h // 3, h % 3, t], p @ v[0, h // 3, :t + 1], atol=1e-6)


@pytest.mark.parametrize("factor, width, total, last", [
    (8, 128, 5.38605826, 3.068925878e-07), (32, 64, 2.9682024, 9.418306490e-08), (32, 128, 5.3851823, 7.672314695e-08)])
def test_rope_of_llama_3(tmp_path, factor, width, total, last):
    """Inverse frequencies of 3.1 8B, 3.2 1B and 3.2 3B: known sums, last entries, and Hugging Face's own module."""
    folder = write_checkpoint(tmp_path, head_dim=width, rope_parameters=LLAMA3 | {
        "rope_theta": 500000.0, "factor": float(factor), "original_max_position_embeddings": 8192})
    ours = inverse_frequencies(read_config(folder))
    assert ours.double().sum().item() == pytest.approx(total, rel=1e-7)
    assert ours[-1].item() == pytest.approx(last, rel=1e-6)
    assert torch.equal(ours, LlamaRotaryEmbedding(hugging_face(folder).config).inv_freq)


def test_half_split_rotation_by_hand():
    x, angle = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.3, 0.5, 0.3, 0.5])
    c, s = angle.cos(), angle.sin()
    wanted = torch.tensor([1 * c[0] - 3 * s[0], 2 * c[1] - 4 * s[1], 3 * c[0] + 1 * s[0], 4 * c[1] + 2 * s[1]])
    assert torch.allclose(rotate(x, c, s), wanted)


def test_cached_keys_and_values_equal_hugging_face(model, hf, ids):
    """A shift of all positions is invisible in the logits, RoPE being relative; the cached keys show it."""
    cache = Cache(model, 1, T)
    model.read(cache, [[(None, ids(100))]])
    model.read(cache, [[(None, ids(T)[100:])]])
    tokens = ids(100) + ids(T)[100:]
    with torch.no_grad():
        theirs = hf(torch.tensor([tokens]), use_cache=True).past_key_values
    for layer in range(3):
        assert (cache.keys[layer] - theirs.layers[layer].keys).abs().max() < 2e-5, f"layer {layer}"
        assert (cache.values[layer] - theirs.layers[layer].values).abs().max() < 2e-5, f"layer {layer}"


# --- the node cache -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("length", [1, 7, 50])
def test_node_by_node_equals_one_pass(folder, ids, length):
    """In float64, where a rounding error is 1e-13 and a wrong position is not."""
    model, tokens = Llama.load(folder, "cpu", "float64"), ids(T)
    wanted, _ = read(model, tokens)
    cache = Cache(model, 1, T)
    for start in range(0, T, length):
        hidden, _ = model.read(cache, [[(start, tokens[start:start + length])]])
        end = cache.lengths[0]
        assert cache.nodes[0][start] == (start, end)
        assert (model.logits(hidden)[0] - wanted[end - 1]).abs().max() < 1e-10


def test_probe_leaves_no_trace(model, ids):
    """Bit-equal after a probe to never having been probed, and the probe sees what one pass would."""
    probed, plain = Cache(model, 1, T), Cache(model, 1, T)
    for start in range(0, 200, 40):
        part = [[(start, ids(T)[start:start + 40])]]
        a, _ = model.read(probed, part)
        b, _ = model.read(plain, part)
        assert torch.equal(a, b)
        logits = model.probe(probed, ids(5, seed=start + 1))
        whole, _ = read(model, ids(T)[:start + 40] + ids(5, seed=start + 1))
        assert (logits[0] - whole[-1]).abs().max() < 5e-5
        assert probed.lengths == plain.lengths and probed.nodes == plain.nodes


def test_two_caches_do_not_disturb_each_other(model, ids):
    one, two, alone = (Cache(model, 1, 120) for _ in range(3))
    model.read(one, [[(0, ids(50))]])
    model.read(two, [[(0, ids(70, seed=1))]])
    a, _ = model.read(one, [[(1, ids(20, seed=2))]])
    model.read(alone, [[(0, ids(50))]])
    b, _ = model.read(alone, [[(1, ids(20, seed=2))]])
    assert torch.equal(a, b)


def test_rows_of_different_lengths_are_independent(model, ids):
    """A batch of windows gives, row by row, what each gives alone: logits, attention and generated ids."""
    rows = [[(None, ids(n, seed=n)), ("node", ids(9, seed=n + 1)), (None, ids(3, seed=5))] for n in (120, 15, 60)]
    cache = Cache(model, 3, 200)
    hidden, _ = model.read(cache, rows)
    replies, attended = model.generate(cache, hidden, 25, cache.averages([["node"]] * 3))
    for b, row in enumerate(rows):
        alone = Cache(model, 1, 200)
        h, _ = model.read(alone, [row])
        assert (hidden[b] - h[0]).abs().max() < 1e-4
        reply, a = model.generate(alone, h, 25, alone.averages([["node"]]))
        assert reply[0] == replies[b]
        assert (a[0] - attended[b]).abs().max() < 1e-5


def test_a_full_cache_is_an_error(model, ids):
    with pytest.raises(ValueError, match="do not fit a cache of 10"):
        model.read(Cache(model, 1, 10), [[(None, ids(11))]])


# --- attention of generated tokens and of nodes ---------------------------------------------------------------------

def test_generation_equals_hugging_face(model, hf, ids):
    cache = Cache(model, 1, T)
    hidden, _ = model.read(cache, [[(None, ids(100))]])
    ours, _ = model.generate(cache, hidden, 64)
    theirs = hf.generate(torch.tensor([ids(100)]), max_new_tokens=64, do_sample=False, pad_token_id=0,
                         eos_token_id=list(model.config.eos))[0, 100:].tolist()
    assert ours[0] == [i for i in theirs if i not in model.config.eos]
    assert len(set(ours[0])) > 5, "the reply repeats itself too much to show a bug"


def test_generation_stops_at_any_eos_and_at_the_limit(folder, ids):
    model = Llama.load(folder, "cpu")
    def reply(limit, eos=()):
        object.__setattr__(model.config, "eos", eos)
        cache = Cache(model, 1, T)
        return model.generate(cache, model.read(cache, [[(None, ids(100))]])[0], limit)[0][0]
    free = reply(20)
    assert len(free) == 20
    stop = free.index(free[9])
    assert reply(20, (339, free[9])) == free[:stop]


def test_generated_tokens_attend_to_nodes_as_in_hugging_face(model, hf, ids):
    """a(x, j) for every generated token x as the query, the last one too, against all layers kept by Hugging Face."""
    pieces = [(None, ids(20)), (7, ids(15, seed=1)), (None, ids(2, seed=2)), (8, ids(31, seed=3)),
              (None, ids(25, seed=4))]
    cache = Cache(model, 1, T)
    hidden, _ = model.read(cache, [pieces])
    replies, attended = model.generate(cache, hidden, 30, cache.averages([[7, 8]]))
    prompt = [i for _, part in pieces for i in part]
    a = mean_attention(hf, prompt + replies[0])
    assert len(replies[0]) == 30 and attended[0].shape == (30, 2)
    for x in range(30):
        for n, (start, end) in enumerate([(20, 35), (37, 68)]):
            wanted = a[len(prompt) + x, start:end].mean().item()
            assert attended[0][x, n].item() == pytest.approx(wanted, rel=2e-5), (x, n)


def test_a_node_attends_to_the_question_as_in_hugging_face(model, hf, ids):
    pieces = [(None, ids(20)), ("q", ids(8, seed=1)), (0, ids(40, seed=2))]
    cache = Cache(model, 1, T)
    model.read(cache, [pieces])
    _, seen = model.read(cache, [[(1, ids(12, seed=3))]], cache.averages([["q"]]))
    a = mean_attention(hf, [i for _, part in pieces for i in part] + ids(12, seed=3))
    assert torch.allclose(seen[0, :, 0].double(), a[68:, 20:28].mean(1), rtol=2e-5)


def test_bfloat16_accumulation_keeps_the_mass(folder, ids):
    """Attention over all tokens sums to 1 in bfloat16 too: softmax, head mean and accumulator are float32, whatever the
    model. Rounded to bfloat16 anywhere on the way, the sums are off by 1e-3 and more; in float32 by 1e-6."""
    _, seen = read(Llama.load(folder, "cpu", "bfloat16"), ids(1024))
    assert seen.dtype == torch.float32
    assert (seen.sum(1) - 1).abs().max() < 1e-5


def test_flops_equal_the_flop_counter_of_torch(model, ids):
    """Exactly, with attention written out; the fused kernel is counted by the same formula (torch counts it as 0)."""
    tokens, positions = torch.tensor([ids(50)]), torch.arange(50)[None]
    mask = torch.ones(1, 50, 50, dtype=torch.bool).tril()
    watch = torch.zeros(1, 50, 1)
    before = model.flops
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        hidden, _ = model.forward(tokens, positions, mask, watch=watch)
        model.logits(hidden[:, -1])
    # less the product with `watch`, which is bookkeeping and no part of the model
    assert model.flops - before == counter.get_total_flops() - 3 * 2 * 50 * 50
    before = model.flops
    with torch.no_grad():
        model.logits(model.forward(tokens, positions)[0][:, -1])
    assert model.flops - before == counter.get_total_flops() - 3 * 2 * 50 * 50


# --- checkpoints ----------------------------------------------------------------------------------------------------

def test_sharded_checkpoint_and_old_config_dialect(tmp_path, folder, model, ids):
    sharded = write_checkpoint(tmp_path, shard="100KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    raw = json.loads((sharded / "config.json").read_text())
    rope = raw.pop("rope_parameters")
    raw |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": {"type": rope.pop("rope_type"), **rope}}
    (sharded / "config.json").write_text(json.dumps(raw))
    assert read_config(sharded) == read_config(folder)
    assert torch.equal(read(Llama.load(sharded, "cpu"), ids(80))[0], read(model, ids(80))[0])


def test_eos_of_the_generation_config_comes_first(tmp_path, folder):
    shutil.copytree(folder, tmp_path / "m")
    (tmp_path / "m" / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    assert read_config(tmp_path / "m").eos == (5, 6)


def edit_config(**changes):
    def edit(folder):
        raw = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(raw | changes))
    return edit


def edit_tensors(change):
    def edit(folder):
        from safetensors.torch import load_file, save_file
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")
    return edit


def truncate(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


@pytest.mark.parametrize("damage, words", [
    (edit_config(architectures=["MistralForCausalLM"]), ["config.json", "MistralForCausalLM"]),
    (edit_config(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4}), ["config.json", "yarn"]),
    (edit_config(attention_bias=True), ["attention_bias"]),
    (edit_config(num_key_value_heads=3), ["config.json", "3 key/value heads"]),
    (edit_config(num_attention_heads=0), ["config.json"]), (edit_config(hidden_size="wide"), ["config.json"]),
    (edit_tensors(lambda t: t.pop("model.layers.1.mlp.up_proj.weight")), ["missing", "layers.1.mlp.up_proj.weight"]),
    (edit_tensors(lambda t: t.update(extra=torch.zeros(1))), ["extra", "not part"]),
    (edit_tensors(lambda t: t.update({"model.norm.weight": torch.zeros(3)})), ["model.norm.weight", "[3]", "[64]"]),
    (truncate, ["model.safetensors", "not a readable"]),
    (lambda f: (f / "model.safetensors").unlink(), ["model.safetensors"]),
    (lambda f: (f / "config.json").write_text("{"), ["config.json", "not valid JSON"]),
    (lambda f: (f / "tokenizer.json").write_text("{}"), ["tokenizer.json"]),
    (lambda f: (f / "tokenizer.json").unlink(), ["tokenizer"]),
    (lambda f: (f / "tokenizer_config.json").write_text("{}"), ["chat template"]),
])
def test_broken_checkpoints_are_named(tmp_path, folder, damage, words):
    shutil.copytree(folder, tmp_path / "m")
    damage(tmp_path / "m")
    with pytest.raises(InputError) as error:
        Llama.load(tmp_path / "m", "cpu")
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value)


def test_a_missing_checkpoint_and_a_wrong_device_are_named():
    with pytest.raises(InputError, match="no such folder"):
        locate("/no/such/folder")
    with pytest.raises(InputError, match="'abacus' cannot be used"):
        choose_device("abacus")
    with pytest.raises(InputError, match="'float7' is unknown"):
        choose_device("cpu", "float7")
