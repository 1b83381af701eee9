"""Ring 2: one attention equals a calculation by hand, and one block equals Hugging Face's."""
import pytest
import torch
from oracle import T, hugging_face, written_out

from llama import Llama, attention

DTYPES = [torch.float32, torch.bfloat16]


def test_grouped_heads_by_hand():
    """Query head h uses key/value head h // G. There are 2 key/value heads with 3 query heads each. Softmax is exp
    divided by its sum."""
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, heads, 5, 4, generator=g, dtype=torch.float64) for heads in (6, 2, 2))
    causal = torch.ones(1, 5, 5, dtype=torch.bool).tril()
    out, weights = attention(q.view(1, 2, 3, 5, 4), k, v, causal)

    for h in range(6):
        for t in range(5):
            scores = torch.stack([q[0, h, t] @ k[0, h // 3, s] / 4 ** 0.5 for s in range(t + 1)])
            p = scores.exp() / scores.exp().sum()
            wanted = p @ v[0, h // 3, :t + 1]

            # float64 rounds by 2e-16.
            torch.testing.assert_close(weights[0, h // 3, h % 3, t, :t + 1], p, rtol=0, atol=1e-14)
            torch.testing.assert_close(out[0, h // 3, h % 3, t], wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_block_by_block_equals_hugging_face(folder, ids, spy, dtype):
    """The input and output of every norm of every block equal Hugging Face's, bit by bit, in both dtypes.

    These are the residual stream after each attention and after each SwiGLU. The error of a misplaced cast is no
    larger than the noise of bfloat16. So a tolerance would miss it, but equality of every bit shows it.
    """
    model = Llama.load(folder, "cpu", str(dtype).removeprefix("torch."))
    hf = hugging_face(folder, dtype)
    theirs = []
    for name, module in hf.named_modules():
        if name.endswith("norm"):
            module.register_forward_hook(lambda _, inputs, output, name=name: theirs.append((name, inputs[0], output)))

    norms = spy("rms_norm")
    written_out(model, ids(T))
    with torch.no_grad():
        hf(torch.tensor([ids(T)]))

    assert len(norms) == len(theirs) == 2 * model.config.layers + 1
    for ((x, *_), y), (name, their_x, their_y) in zip(norms, theirs):
        assert torch.equal(x, their_x), f"into {name}: {(x - their_x).abs().max()}"
        assert torch.equal(y, their_y), f"out of {name}: {(y - their_y).abs().max()}"
