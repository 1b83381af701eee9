"""Ring 5: attention accumulated layer by layer equals Hugging Face's, with every layer, head and row kept.

Both stages ask the model for the same numbers: a(x, j) for tokens x as queries and earlier nodes j, the mean over
layers, heads and the tokens of j. In stage 1 x runs over generated tokens, in stage 2 over the tokens of a node that is
being read.
"""
import pytest
import torch
from oracle import mean_attention, relative, rounding, token_ids, write_checkpoint
from speed.measure import peak_of

from llama import Cache, Llama

NODE = 64                                      # tokens of a node, where memory is counted


def prompt_of(ids, nodes, length):
    """A prompt of `nodes` nodes that grow in length, with other words between them; the nodes' spans; its length."""
    segments = [(None, ids(20))]
    spans = []
    end = 20
    for n in range(nodes):
        size = length + 3 * n
        segments += [(n, ids(size, seed=n)), (None, ids(2, seed=100 + n))]
        spans.append((end, end + size))
        end += size + 2
    return segments, spans, end


def node_means(a, spans):
    """a(x, j) [X, N] from a(x, y) [X, T], in loops."""
    wanted = torch.zeros(len(a), len(spans), dtype=torch.float64)
    for x in range(len(a)):
        for j, (start, end) in enumerate(spans):
            wanted[x, j] = sum(a[x, y].item() for y in range(start, end)) / (end - start)
    return wanted


@pytest.mark.parametrize("nodes, length", [(2, 15), (9, 40)])
def test_generated_tokens_attend_to_nodes_as_in_hugging_face(model, hf, ids, nodes, length):
    """Stage 1: row t has token t as its query, also for the last token. It is not the row that predicted token t."""
    segments, spans, end = prompt_of(ids, nodes, length)
    cache = Cache(model, 1, end + 30)
    hidden, _ = model.read(cache, [segments])
    (reply,), (a,) = model.generate(cache, hidden, 30, cache.averaging_matrix([list(range(nodes))]))
    assert a.shape == (len(reply), nodes) and a.dtype == torch.float32 and len(reply) == 30

    all_attention = mean_attention(hf, token_ids(segments) + reply)
    error = relative(a, node_means(all_attention[end:], spans))
    assert error < rounding(model), error
    assert relative(a, node_means(all_attention[end - 1:-1], spans)) > 0.1, "the rows that predicted would pass too"


@pytest.mark.parametrize("length", [1, 12, 200])
def test_a_node_attends_to_the_question_as_in_hugging_face(model, hf, ids, length):
    """Stage 2: the tokens of a new node attend to the question in the cache, which also holds other nodes."""
    segments = [(None, ids(20)), ("q", ids(8, seed=1)), (0, ids(90, seed=2)), (1, ids(70, seed=3))]
    node = ids(length, seed=4)
    cache = Cache(model, 1, 400)
    for segment in segments:
        model.read(cache, [[segment]])
    _, a = model.read(cache, [[(2, node)]], cache.averaging_matrix([["q"]]))

    all_attention = mean_attention(hf, token_ids(segments) + node)
    error = relative(a[0], node_means(all_attention[188:], [(20, 28)]))
    assert error < rounding(model), error


def test_bfloat16_keeps_the_mass(folder, ids):
    """In bfloat16 too, each of 1,024 rows of attention sums to 1: softmax, head mean and accumulator are float32 in
    every dtype. If one of them were rounded to bfloat16, the sums would be off by 1e-3 or more."""
    model = Llama.load(folder, "cpu", "bfloat16")
    cache = Cache(model, 1, 1024)
    mask = torch.ones(1, 1024, 1024, dtype=torch.bool).tril()
    with torch.no_grad():
        _, a = model.forward(torch.tensor([ids(1024)]), torch.arange(1024)[None], mask, cache, torch.eye(1024)[None])
    assert a.dtype == torch.float32
    error = (a.sum(2) - 1).abs().max()
    assert error < 1024 * 2 ** -24, f"{error}: a sum may be off by at most 1,024 roundings of float32"


def test_bfloat16_attention_is_that_of_float32(folder, hf, ids):
    """In bfloat16, attention to nodes is that of float32, up to rounding. (Measured: 0.0023; allowed: 0.014.)"""
    segments, spans, end = prompt_of(ids, 9, 40)
    node = ids(64, seed=7)
    model = Llama.load(folder, "cpu", "bfloat16")
    cache = Cache(model, 1, end + 64)
    model.read(cache, [segments])
    _, a = model.read(cache, [[(None, node)]], cache.averaging_matrix([list(range(9))]))

    wanted = node_means(mean_attention(hf, token_ids(segments) + node)[end:], spans)
    error = relative(a[0], wanted)
    assert error < rounding(model), error


def peak_memory(model, length: int, stage: int) -> int:
    """Peak of allocated bytes while computing the attention to the nodes of a prompt of `length` tokens.

    The queries are 8 generated tokens (stage 1) or a node of 64 tokens read after the prompt (stage 2). `model` is our
    Llama or Hugging Face's, which keeps the attention of all layers. The key/value cache counts, the weights do not.
    """
    nodes = [(n, [5 + n % 290] * NODE) for n in range(length // NODE)]
    node = nodes[0][1]

    def ours():
        cache = Cache(model, 1, length + NODE)
        hidden, _ = model.read(cache, [nodes])
        averaging = cache.averaging_matrix([[n for n, _ in nodes]])
        if stage == 1:
            model.generate(cache, hidden, 8, averaging)
        else:
            model.read(cache, [[("new", node)]], averaging)

    @torch.no_grad()
    def naive():
        added = node[:8] if stage == 1 else node
        layers = model(torch.tensor([token_ids(nodes) + added]), output_attentions=True).attentions
        torch.stack([layer.mean(1) for layer in layers]).mean(0)

    return peak_of(ours if isinstance(model, Llama) else naive)


@pytest.mark.parametrize("stage", [1, 2])
def test_peak_memory_grows_linearly(model, hf, stage):
    """Twice the tokens need about twice the memory here, and about four times in the naive path. So the measure
    would notice quadratic growth."""
    ours = [peak_memory(model, length, stage) for length in (512, 1024, 2048)]
    naive = [peak_memory(hf, length, stage) for length in (256, 512)]
    assert all(b / a < 2.1 for a, b in zip(ours, ours[1:])), ours
    assert naive[1] / naive[0] > 3, naive


@pytest.mark.parametrize("stage", [1, 2])
def test_nothing_outlives_a_layer_but_the_sum(model, tmp_path, stage):
    """Apart from keys and values, twelve layers need exactly as many bytes as three."""
    deep = Llama.load(write_checkpoint(tmp_path, num_hidden_layers=12), "cpu")

    def without_cache(model):
        c = model.config
        cache = 2 * c.layers * c.kv_heads * c.head_width * (1024 + NODE) * 4
        return peak_memory(model, 1024, stage) - cache

    assert without_cache(model) == without_cache(deep)
