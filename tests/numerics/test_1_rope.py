"""Ring 1, RoPE: frequencies, and the angles at positions 0, 1, 8,192 and 100,000, for three sizes of Llama 3."""
import pytest
import torch
from oracle import LLAMA3, assert_same
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from llama import inverse_frequencies, rope_tables, rotate
from model.checkpoint import read_config

# factor, head width; the sum of the frequencies in float64; the last of them.
# These golden numbers are those of transformers' float32 frequencies. The same formula in Python's floats gives these
# sums and last entries to 1e-7, which is float32's rounding.
SIZES = {"3.1 8B": (8.0, 128, 5.38605826, 3.068925878e-07),
         "3.2 1B": (32.0, 64, 2.9682024, 9.418306490e-08),
         "3.2 3B": (32.0, 128, 5.3851823, 7.672314695e-08)}
POSITIONS = torch.tensor([[0, 1, 8192, 100_000]])


@pytest.fixture(params=SIZES, ids=str)
def size(request, tmp_path):
    """The config.json of a Llama 3 as Hugging Face writes it: our Config, theirs, and the golden numbers."""
    factor, width, *golden = SIZES[request.param]
    theirs = LlamaConfig(hidden_size=8 * width, num_attention_heads=8, head_dim=width, max_position_embeddings=131072,
                         architectures=["LlamaForCausalLM"], rope_parameters=LLAMA3 | {
                             "rope_theta": 500000.0, "factor": factor, "original_max_position_embeddings": 8192})
    theirs.save_pretrained(tmp_path)
    return read_config(tmp_path), theirs, golden


def test_inverse_frequencies(size):
    """Frequencies have the golden sums and last entries, and equal Hugging Face's bit by bit."""
    ours, theirs, (total, last) = size
    f = inverse_frequencies(ours)
    assert f.double().sum().item() == pytest.approx(total, rel=1e-7)       # the golden sums have nine digits
    assert f[-1].item() == pytest.approx(last, rel=1e-9, abs=0)            # and the last entries ten
    assert f.dtype == torch.float32 and torch.equal(f, LlamaRotaryEmbedding(theirs).inv_freq)


def test_cos_and_sin_are_those_of_the_angle(size):
    """The tables equal float64 up to the rounding of the angle to float32. That is 2^-24 of the angle: 0.006 rad for
    the largest, 100,000 rad. Angles in bfloat16 would be wrong by whole turns."""
    f = inverse_frequencies(size[0])
    cos, sin = rope_tables(POSITIONS, f, torch.float32)
    angle = POSITIONS[0, :, None] * f.double().repeat(2)          # the two halves of a head share the angles
    allowed = angle * 2 ** -24 + 1e-7                             # 1e-7: the table's own rounding
    for table, exact in ((cos, angle.cos()), (sin, angle.sin())):
        assert ((table[0, 0] - exact).abs() < allowed).all()


def test_half_split_rotation_by_hand():
    """Element i is paired with element i + K/2, not with its neighbour."""
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    angle = torch.tensor([0.3, 0.5, 0.3, 0.5])
    c, s = angle.cos(), angle.sin()
    wanted = torch.tensor([1 * c[0] - 3 * s[0], 2 * c[1] - 4 * s[1], 3 * c[0] + 1 * s[0], 4 * c[1] + 2 * s[1]])
    torch.testing.assert_close(rotate(x, c, s), wanted, rtol=0, atol=1e-6)                 # float32 of size 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rotation_equals_hugging_face(size, dtype):
    """The tables of cos and sin, and queries and keys that they rotate, equal Hugging Face's bit by bit in the model's
    dtype, at positions 0, 1, 8k and 100k."""
    ours, theirs, _ = size
    cos, sin = rope_tables(POSITIONS, inverse_frequencies(ours), dtype)
    tables = LlamaRotaryEmbedding(theirs)(torch.zeros(1, dtype=dtype), POSITIONS)
    assert_same(cos[:, 0], tables[0], "cos")
    assert_same(sin[:, 0], tables[1], "sin")

    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, 4, ours.head_width, generator=g).to(dtype) for heads in (8, 2))
    wanted = apply_rotary_pos_emb(q, k, *tables)
    assert_same(rotate(q, cos, sin), wanted[0], "the rotated query")
    assert_same(rotate(k, cos, sin), wanted[1], "the rotated key")
