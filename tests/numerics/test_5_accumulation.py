"""Ring 5: attention accumulated layer by layer equals Hugging Face's, with every layer, head and row kept.

Both stages ask the model for the same numbers: a(x, j) for tokens x as queries and earlier nodes j, the mean over
layers, heads and the tokens of j. In stage 1 x runs over generated tokens, in stage 2 over the tokens of a node that is
being read.
"""
import pytest
import torch
from measure import nodes_of, peak_of
from oracle import (
    T,
    greedy,
    ids_and_spans,
    mean_attention,
    one_pass,
    relative,
    rounding,
    to_nodes,
    write_checkpoint,
    written_out,
)

from llama import Cache, Llama, ids_of


def test_the_accumulator_is_the_mean_over_layers_and_heads(model, hf, ids):
    """If every token is a node, a(x, y) is the mean of Hugging Face's weights. It is causal and sums to 1."""
    _, a, _ = written_out(model, ids(T))
    error = relative(a, mean_attention(one_pass(hf, ids(T))))
    assert error < rounding(model), error

    assert torch.equal(a.triu(1), torch.zeros(T, T)), "a masked weight is not exactly 0"
    error = (a.sum(1) - 1).abs().max()
    assert error < T * 2 ** -24, f"{error}: a sum may be off by at most {T} roundings of float32"


@pytest.mark.parametrize("nodes, length, more", [(2, 15, 1), (2, 15, 200), (9, 40, 12)])
def test_tokens_attend_to_nodes_as_in_hugging_face(model, hf, ids, nodes, length, more):
    """Stage 1: row t has token t as its query, also for the last token of a reply. It is not the row that predicted
    token t. Stage 2: the tokens of a new node attend to the nodes in the cache, and none of their attention to each
    other counts."""
    segments = [(None, ids(20))]
    for n in range(nodes):                                    # they grow in length, with other words between them
        segments += [(n, ids(length + 3 * n, seed=n)), (None, ids(2, seed=100 + n))]
    prompt, spans = ids_and_spans(segments)
    end = len(prompt)
    cache = Cache(model, 1, end + 30 + more)
    hidden, _ = model.read(cache, [segments])
    averaging = cache.averaging_matrix([range(nodes)])
    (reply,), (a,) = model.generate(cache, hidden, 30, averaging)
    _, new = model.read(cache, [[("new", ids(more, seed=50))]], averaging)
    a = torch.cat((a, new[0]))
    assert reply == greedy(hf, prompt, 30) and len(reply) == 30
    assert a.shape == (30 + more, nodes) and a.dtype == torch.float32

    all_attention = mean_attention(one_pass(hf, [*prompt, *reply, *ids(more, seed=50)]))
    error = relative(a, to_nodes(all_attention[end:], spans.values()))
    assert error < rounding(model), error
    assert relative(a, to_nodes(all_attention[end - 1:-1], spans.values())) > 0.1, "so would the row before"


def test_bfloat16_keeps_the_mass(folder, ids):
    """In bfloat16 too, each of 1,000 rows of attention sums to 1, if each node's mean counts for all of its 50 tokens:
    softmax, head mean, accumulator and the mean over a node are float32 in every dtype. If one of them were rounded to
    bfloat16, the sums would be off by 1e-3 or more."""
    model = Llama.load(folder, "cpu", "bfloat16")
    nodes = [(n, ids(50, seed=n)) for n in range(20)]
    cache = Cache(model, 1, 1000)
    cache.register(0, nodes)                                  # so that tokens attend to nodes of their own pass, too
    _, a = model.read(cache, [nodes], cache.averaging_matrix([range(20)]))
    error = (50 * a.sum(2) - 1).abs().max()
    assert a.dtype == torch.float32
    assert error < 1000 * 2 ** -24, f"{error}: a sum may be off by at most 1,000 roundings of float32"


def peak_memory(model, length: int, task: str) -> int:
    """Peak of allocated bytes in one task, apart from weights and cache: to read a `prompt` of so many tokens; to write
    a `reply` of 8 tokens to it with their attention to its nodes (stage 1); to read a `node` of 64 tokens with theirs
    (stage 2)."""
    nodes = nodes_of(length)
    _, node = nodes[0]
    cache = Cache(model, 1, length + len(node))
    if task == "prompt":
        return peak_of(lambda: model.read(cache, [nodes]))
    hidden, _ = model.read(cache, [nodes])
    averaging = cache.averaging_matrix([range(len(nodes))])
    if task == "reply":
        return peak_of(lambda: model.generate(cache, hidden, 8, averaging))
    return peak_of(lambda: model.read(cache, [[("new", node)]], averaging))


@pytest.mark.parametrize("task", ["prompt", "reply", "node"])
def test_nothing_outlives_a_layer_but_the_sum(model, hf, tmp_path, task):
    """Apart from keys and values, twelve layers need exactly as many bytes as three. Twice the tokens need about twice
    as many here, and about four times in Hugging Face's pass, which keeps the attention of all layers. So the measure
    would notice quadratic growth."""
    ours = [peak_memory(model, length, task) for length in (512, 1024)]
    theirs = [peak_of(lambda: one_pass(hf, ids_of(nodes_of(length)))) for length in (256, 512)]
    assert ours[1] / ours[0] < 2.1 and theirs[1] / theirs[0] > 3, (ours, theirs)
    deep = Llama.load(write_checkpoint(tmp_path, num_hidden_layers=12), "cpu")
    assert peak_memory(deep, 1024, task) == ours[1]
