"""Ring 2: attention equals a calculation by hand, in one block and in several, and each layer Hugging Face's."""
import pytest
import torch
from oracle import T, hugging_face, one_pass, written_out

import llama
from llama import Llama, attention, attention_in_blocks

EXACT = {"rtol": 0, "atol": 1e-14}             # float64 rounds by 2e-16


def random_input(rows, tokens):
    """q [rows, 6, tokens, 4], k and v [rows, 2, tokens, 4], and the causal mask [rows, tokens, tokens]."""
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(rows, heads, tokens, 4, generator=g, dtype=torch.float64) for heads in (6, 2, 2))
    return q, k, v, torch.ones(rows, tokens, tokens, dtype=torch.bool).tril()


def test_grouped_heads_by_hand():
    """Query head h uses key/value head h // G. There are 2 key/value heads with 3 query heads each. Softmax is exp
    divided by its sum."""
    q, k, v, causal = random_input(1, 5)
    out, weights = attention(q.view(1, 2, 3, 5, 4), k, v, causal)

    for h in range(6):
        for t in range(5):
            scores = torch.stack([q[0, h, t] @ k[0, h // 3, s] / 4 ** 0.5 for s in range(t + 1)])
            p = scores.exp() / scores.exp().sum()
            wanted = p @ v[0, h // 3, :t + 1]
            torch.testing.assert_close(weights[0, h // 3, h % 3, t, :t + 1], p, **EXACT)
            torch.testing.assert_close(out[0, h // 3, h % 3, t], wanted, **EXACT)


@pytest.mark.parametrize("fit, blocks", [(15, [15]), (7, [7, 7, 1]), (0, [1] * 15)])
def test_blocks_by_hand(spy, monkeypatch, fit, blocks):
    """If the weights of all tokens take too many bytes, in all rows and heads together, as many tokens run at a time as
    `fit`, but at least one."""
    q, k, v, causal = random_input(2, 15)
    out, weights = attention(q.unflatten(1, (2, 3)), k, v, causal)
    monkeypatch.setattr(llama, "BLOCK_BYTES", fit * 4 * 2 * 6 * 15)        # float32, rows, heads, keys
    calls = spy("attention")
    in_blocks, means = attention_in_blocks(q, k, v, causal, 9)
    assert [part.shape[3] for _, (_, part) in calls] == blocks
    torch.testing.assert_close(in_blocks, out.flatten(1, 2), **EXACT)
    torch.testing.assert_close(means, weights[..., :9].flatten(1, 2).mean(1), **EXACT)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layer_by_layer_equals_hugging_face(folder, ids, spy, dtype):
    """The input and output of every norm of every layer equal Hugging Face's, bit by bit, in both dtypes.

    These are the residual stream after each attention and after each SwiGLU. The error of a misplaced cast is no
    larger than the noise of bfloat16. So a tolerance would miss it, but equality of every bit shows it.
    """
    hf = hugging_face(folder, dtype)
    theirs = []
    for name, module in hf.named_modules():
        if name.endswith("norm"):
            module.register_forward_hook(lambda _, inputs, output, name=name: theirs.append((name, inputs[0], output)))
    norms = spy("rms_norm")
    written_out(Llama.load(folder, "cpu", dtype), ids(T))
    one_pass(hf, ids(T))
    assert len(norms) == len(theirs) > 2
    for ((x, *_), y), (name, their_x, their_y) in zip(norms, theirs):
        assert torch.equal(x, their_x) and torch.equal(y, their_y), name
