"""GGUF files: each gives back the checkpoint that it came from, and what is not known for certain is refused."""
import os
import random
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from core.command import user_errors

import gguf
import numpy as np
import pytest
import sentencepiece
import tokenizers
import torch
from gguf import GGMLQuantizationType as Type
from gguf_file import factors_of, fields_of, naive_ids, stored, tensors_of, write_gguf
from oracle import write_checkpoint
from safetensors.torch import load_file
from test_tokenizer import NASTY, PLAIN, write_bpe, write_sentencepiece

from core.checkpoint import read_config
from core.files import InputError
from core.tokenizer import Tokenizer
from llama import Llama
from support.convert import convert, main, scaling_of
from support.gguf_tokenizer import tokenizer_of

ROOT = Path(__file__).parents[1]
TEXTS = [NASTY, "In 1986, 12345 books & 3½ films… don't, DON'T!", "東京は日本の首都です。 Москва",
         "a  b\n\n\n c\t\r\n  ", "", " ", "x" * 500]


def checkpoint(folder, dtype=torch.float32, **changes):
    """A random checkpoint with a byte-level BPE like Llama 3's, whose tokens are as many as its embeddings."""
    folder.mkdir(exist_ok=True)
    write_bpe(folder)
    size = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    bpe = {name: (folder / name).read_text() for name in ("tokenizer.json", "tokenizer_config.json")}
    write_checkpoint(folder, vocab_size=size, **changes)
    for name, text in bpe.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def content(small):
    """Fields and tensors of its GGUF file. Copies: a test may change them."""
    fields, tensors = fields_of(small), tensors_of(small, Type.F32)
    return lambda: (dict(fields), dict(tensors))


# --- weights and config.json ----------------------------------------------------------------------------------------

UNSCALED = {"rope_type": "default", "rope_theta": 500000.0}


@pytest.mark.parametrize("kind, changes", [
    (Type.F32, {}), (Type.F32, {"tie_word_embeddings": True, "num_key_value_heads": 8}),
    (Type.F16, {"rope_parameters": UNSCALED}), (Type.BF16, {"tie_word_embeddings": True, "num_key_value_heads": 1})],
    ids=str)
def test_plain_numbers_come_back(tmp_path, kind, changes):
    """Every tensor bit by bit, in the file's dtype; config.json with the parameters of the scaling."""
    source = checkpoint(tmp_path / "hf", **changes)
    convert(write_gguf(tmp_path / "m.gguf", fields_of(source), tensors_of(source, kind)), tmp_path / "m")

    wanted = load_file(source / "model.safetensors")
    found = load_file(tmp_path / "m" / "model.safetensors")
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():
        assert torch.equal(found[name], stored(weight.numpy(), kind)), name

    dtype = str(next(iter(found.values())).dtype).removeprefix("torch.")
    tokens = fields_of(source)["tokenizer.ggml.tokens"]
    eos = (tokens.index("</s>"), tokens.index("<|eot_id|>"))
    assert read_config(tmp_path / "m") == replace(read_config(source), dtype=dtype, eos=eos)


def test_a_converted_model_computes_what_it_came_from_computes(tmp_path, small, content, ids):
    convert(write_gguf(tmp_path / "m.gguf", *content()), tmp_path / "m")
    tokens = torch.tensor([ids(200)])
    ours, wanted = (Llama.load(folder, "cpu").forward(tokens, torch.arange(200)[None])[0]
                    for folder in (tmp_path / "m", small))
    assert torch.equal(ours, wanted)


# Half a step of the largest number of a block, or one where the range is not symmetric. A wrong row is off by far more.
@pytest.mark.parametrize("kind, step", [(Type.Q8_0, 1 / 127 / 2), (Type.Q5_0, 1 / 16), (Type.Q5_1, 2 / 31 / 2),
                                        (Type.Q4_0, 1 / 8), (Type.Q4_1, 2 / 15 / 2)])
def test_quantised_numbers_come_back_within_a_step(tmp_path, small, kind, step):
    convert(write_gguf(tmp_path / "m.gguf", fields_of(small), tensors_of(small, kind)), tmp_path / "m")
    wanted = load_file(small / "model.safetensors")
    for name, weight in load_file(tmp_path / "m" / "model.safetensors").items():
        assert weight.dtype == torch.float16, "the default for quantised files"
        if weight.ndim > 1:
            blocks = wanted[name].view(-1, 32)
            error = (weight.float().view(-1, 32) - blocks).abs().max(1).values / blocks.abs().max(1).values
            assert error.max() < step + 2 ** -10, f"{name}: {error.max()}"  # scale and result are rounded to float16
            assert error.max() > 0.3 * step, f"{name} is not quantised"


def q4_k(rng) -> tuple[bytes, list[float]]:
    """A block of 256 numbers as Q4_K, and the numbers: d sc q - dmin m, with sc and m of 6 bits for 32 numbers each."""
    d, dmin = np.float16(rng.uniform(.001, .01)), np.float16(rng.uniform(.001, .01))
    scales, minima = ([rng.randrange(64) for _ in range(8)] for _ in range(2))
    q = [rng.randrange(16) for _ in range(256)]

    packed = bytearray(12)
    for j in range(4):
        packed[j] = scales[j] | scales[j + 4] >> 4 << 6
        packed[j + 4] = minima[j] | minima[j + 4] >> 4 << 6
        packed[j + 8] = scales[j + 4] & 15 | (minima[j + 4] & 15) << 4
    nibbles = bytes(q[64 * (i // 32) + i % 32] | q[64 * (i // 32) + 32 + i % 32] << 4 for i in range(128))
    numbers = [np.float32(d) * np.float32(scales[i // 32]) * np.float32(q[i])
               - np.float32(dmin) * np.float32(minima[i // 32]) for i in range(256)]
    return d.tobytes() + dmin.tobytes() + bytes(packed) + nibbles, numbers


def q6_k(rng) -> tuple[bytes, list[float]]:
    """A block of 256 numbers as Q6_K, and the numbers: d sc q, with q of 6 bits and a signed scale for 16 numbers."""
    d = np.float16(rng.uniform(.0001, .001))
    scales = [rng.randrange(-128, 128) for _ in range(16)]
    q = [rng.randrange(-32, 32) for _ in range(256)]

    low = bytearray(128)
    high = bytearray(64)
    for i, value in enumerate(q):
        half, place = divmod(i, 128)
        quarter, column = divmod(place, 32)
        low[64 * half + place % 64] |= (value + 32 & 15) << 4 * (place // 64)
        high[32 * half + column] |= (value + 32 >> 4) << 2 * quarter
    numbers = [np.float32(d) * np.float32(scales[i // 16]) * np.float32(q[i]) for i in range(256)]
    return bytes(low) + bytes(high) + np.array(scales, dtype=np.int8).tobytes() + d.tobytes(), numbers


@pytest.mark.parametrize("kind, block", [(Type.Q4_K, q4_k), (Type.Q6_K, q6_k)])
def test_blocks_that_gguf_cannot_write(tmp_path, kind, block):
    """Packed here by the format's definition, number by number, in the matrix of the feed-forward's last step."""
    source = checkpoint(tmp_path / "hf", intermediate_size=256)
    fields, tensors = fields_of(source), tensors_of(source, Type.F16)
    rng = random.Random(0)
    blocks, numbers = zip(*(block(rng) for _ in range(64)))
    tensors["blk.1.ffn_down.weight"] = (np.frombuffer(b"".join(blocks), np.uint8).reshape(64, -1).copy(), kind)

    convert(write_gguf(tmp_path / "m.gguf", fields, tensors), tmp_path / "m", "float32")
    found = load_file(tmp_path / "m" / "model.safetensors")["model.layers.1.mlp.down_proj.weight"]
    error = (found - torch.tensor(numbers)).abs().max()
    assert found.abs().max() > .1 and error < 1e-6, error                   # a float32 rounding of numbers below 10


def test_what_the_command_writes(tmp_path, content):
    """A folder for --model, with settings for a small model, from the command line; the file is in a package."""
    (tmp_path / "a_package").mkdir()
    write_gguf(tmp_path / "a_package" / "m.gguf", *content())
    run = subprocess.run([sys.executable, "-m", "support.convert", "a_package", tmp_path / "m"], cwd=ROOT,
                         capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert run.returncode == 0 and "3 layers" in run.stdout and run.stderr == "", run.stderr
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == [
        "config.json", "generation_config.json", "model.safetensors", "pecan.json", "tokenizer.json",
        "tokenizer_config.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a_package", "m"]

    fields, tensors = content()
    write_gguf(tmp_path / "short.gguf", fields | {"llama.context_length": 512}, tensors)
    convert(tmp_path / "short.gguf", tmp_path / "short")
    assert not (tmp_path / "short" / "pecan.json").exists(), "its window would be larger than the model's"


# --- llama3 scaling -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("factor, K", [(8.0, 128), (32.0, 64), (32.0, 128)], ids=["3.1-8B", "3.2-1B", "3.2-3B"])
def test_the_scaling_of_published_models_is_recovered(factor, K):
    rope = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192}
    data = factors_of(rope | {"rope_theta": 500000.0}, K)
    tensor = gguf.gguf_reader.ReaderTensor("rope_freqs.weight", Type.F32, None, 0, 0, 0, data, None)
    assert scaling_of(Path("m"), {"llama.rope.freq_base": 500000.0}, {"rope_freqs.weight": tensor}, K) == rope


def test_factors_of_1_are_no_scaling(tmp_path, content):
    fields, tensors = content()
    tensors["rope_freqs.weight"] = (np.ones(8, np.float32), Type.F32)
    convert(write_gguf(tmp_path / "m.gguf", fields, tensors), tmp_path / "m")
    assert read_config(tmp_path / "m").rope is None


# --- tokenizers -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("pre", ["llama-bpe", "smollm"])
def test_byte_level_ids(tmp_path, content, pre):
    """Those of BPE the naive way, of texts that name special tokens, and of digits, CJK and white space."""
    fields, tensors = content()
    fields["tokenizer.ggml.pre"] = pre
    convert(write_gguf(tmp_path / "m.gguf", fields, tensors), tmp_path / "m")
    t = Tokenizer(tmp_path / "m")
    for text in TEXTS:
        assert t.encode(text) == naive_ids(fields, text), text
        assert t.decode(t.encode(text)) == text

    # Tokens that only one of the two rules can give: digits together, a digit with its blank, a word without merges.
    fields["tokenizer.ggml.tokens"] = [*fields["tokenizer.ggml.tokens"], "19", "Ġ1", "ĠzzQ"]
    fields["tokenizer.ggml.token_type"] = [*fields["tokenizer.ggml.token_type"], 1, 1, 1]
    fields["tokenizer.ggml.merges"] = [*fields["tokenizer.ggml.merges"], "1 9", "Ġ 1"]
    wanted = naive_ids(fields, "In 1986 zzQ 119")
    assert tokenizer_of(Path("m"), fields).encode("In 1986 zzQ 119", add_special_tokens=False).ids == wanted


def test_the_original_tokenizer_and_the_converted_one(tmp_path, small, content):
    """The same ids with special tokens too, and the same BOS if transformers encodes a text by itself."""
    convert(write_gguf(tmp_path / "m.gguf", *content()), tmp_path / "m")
    ours, wanted = Tokenizer(tmp_path / "m"), Tokenizer(small)
    assert ours.frame == wanted.frame and ours.bos == wanted.bos
    assert ours.decode(ours.frame.close) == wanted.decode(wanted.frame.close), "special tokens are left out"
    for text in TEXTS:
        assert ours.encode(text, specials=True) == wanted.encode(text, specials=True)
        assert ours.vocabulary.special.encode(text).ids == wanted.vocabulary.special.encode(text).ids


def sentencepiece_fields(folder, fields) -> dict:
    """The same fields with the tokens of a sentencepiece model: unknown 2, control 3, byte 6."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    places = range(processor.get_piece_size())
    types = [2 if processor.is_unknown(i) else 3 if processor.is_control(i) else 6 if processor.is_byte(i) else 1
             for i in places]
    changed = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default",
               "tokenizer.ggml.tokens": [processor.id_to_piece(i) for i in places],
               "tokenizer.ggml.scores": [processor.get_score(i) for i in places], "tokenizer.ggml.token_type": types,
               "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
               "tokenizer.ggml.unknown_token_id": 0, "llama.vocab_size": len(places), "tokenizer.chat_template": PLAIN}
    return {key: value for key, value in fields.items() if key != "tokenizer.ggml.merges"} | changed


def test_sentencepiece_ids(tmp_path, content):
    """Those of sentencepiece itself, with its bytes for unknown characters and its blank before any text."""
    write_sentencepiece(tmp_path)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    fields, tensors = content()
    fields = sentencepiece_fields(tmp_path, fields)
    embedding = np.zeros((len(fields["tokenizer.ggml.tokens"]), 64), np.float32)
    tensors |= {"token_embd.weight": (embedding, Type.F32), "output.weight": (embedding, Type.F32)}

    convert(write_gguf(tmp_path / "m.gguf", fields, tensors), tmp_path / "m")
    t = Tokenizer(tmp_path / "m")
    for text in [*TEXTS, "Tabitha has 3 kittens;  Tom Kitten bursts his buttons, Yes or No?"]:
        if text:                                          # sentencepiece gives an empty text no blank
            assert t.vocabulary.encode(text, False) == processor.encode(text), text
            assert t.decode(t.vocabulary.encode(text, False)) == text
    assert t.vocabulary.special.encode("Tom").ids == [1, *processor.encode("Tom")], "with a BOS by default"


# --- damage ---------------------------------------------------------------------------------------------------------

def change(fields, tensors, **changes):
    """Change keys of the metadata ("__" for "."); None removes one."""
    for key, value in changes.items():
        fields[key.replace("__", ".")] = value
        if value is None:
            del fields[key.replace("__", ".")]


def store(fields, tensors, name, array, kind=Type.F32):
    tensors[name] = (array, kind)


def remove(fields, tensors, name):
    del tensors[name]


def scale(fields, tensors, place, by):
    """Change one factor of the scaling."""
    factors = tensors["rope_freqs.weight"][0].copy()
    factors[place] *= by
    tensors["rope_freqs.weight"] = (factors, Type.F32)


ZEROS = np.zeros((64, 64), np.float32)
NORM = "blk.0.attn_norm.weight"


# What each row changes in the file, and words of the error.
@pytest.mark.parametrize("damage, words", [
    (partial(change, llama__embedding_length=None), ["'llama.embedding_length' is missing"]),
    (partial(change, llama__attention__sliding_window=512), ["llama.attention.sliding_window is not known"]),
    (partial(change, llama__expert_count=8), ["llama.expert_count is 8"]),
    (partial(change, llama__rope__scaling__type="yarn"), ["llama.rope.scaling.type is 'yarn'"]),
    (partial(change, llama__rope__dimension_count=8), ["llama.rope.dimension_count is 8"]),
    (partial(change, llama__attention__head_count_kv=3), ["3 key/value heads"]),
    (partial(change, llama__attention__head_count_kv=[2, 2, 2]), ["num_key_value_heads is [2, 2, 2]"]),
    (partial(change, llama__attention__head_count=0), ["num_attention_heads is 0; it must be"]),
    (partial(change, llama__attention__layer_norm_rms_epsilon="small"), ["does not fit a Llama", "small"]),
    (partial(change, tokenizer__ggml__bos_token_id="<s>"), ["does not fit a Llama", "str"]),
    (partial(change, general__type="adapter"), ["general.type is 'adapter'"]),
    (partial(change, split__count=2), ["split.count is 2"]),
    (partial(change, tokenizer__ggml__model="bert"), ["tokenizer.ggml.model is 'bert'"]),
    (partial(change, tokenizer__ggml__pre="qwen2"), ["tokenizer.ggml.pre is 'qwen2'"]),
    (partial(change, tokenizer__ggml__pre=None), ["tokenizer.ggml.pre is None"]),
    (partial(change, tokenizer__ggml__merges=None), ["'tokenizer.ggml.merges' is missing"]),
    (partial(change, tokenizer__ggml__merges=["never seen"]), ["make no tokenizer", "never"]),
    (partial(change, tokenizer__ggml__tokens=["a", "a"]), ["2 tokens, 1 of them different"]),
    (partial(change, tokenizer__ggml__token_type=[1]), ["have 1 types"]),
    (partial(change, tokenizer__ggml__bos_token_id=9999), ["bos_token_id is 9999"]),
    (partial(change, tokenizer__ggml__add_space_prefix=True), ["add_space_prefix is True"]),
    (partial(change, tokenizer__ggml__remove_extra_whitespaces=True), ["remove_extra_whitespaces is True"]),
    (partial(change, tokenizer__chat_template=None), ["no tokenizer.chat_template"]),
    (partial(change, tokenizer__chat_template="{{ nothing"), ["m.gguf", "template cannot be rendered"]),
    (partial(store, name="blk.0.attn_q.bias", array=np.zeros(128, np.float32)), ["attn_q.bias is not part"]),
    (partial(store, name="blk.3.attn_norm.weight", array=np.ones(64, np.float32)), ["blk.3.attn_norm", "not part"]),
    (partial(store, name="blk.0.attn_q.weight", array=ZEROS), ["attn_q.weight is [64, 64]", "[128, 64]"]),
    (partial(store, name=NORM, array=np.full(64, np.nan, np.float32)), [NORM, "not finite"]),
    (partial(store, name="output.weight", array=np.zeros((64, 64), np.int8).view(np.uint8), kind=Type.I8),
     ["output.weight"]),
    (partial(remove, name="blk.2.ffn_up.weight"), ["blk.2.ffn_up.weight is missing"]),
    (partial(remove, name="token_embd.weight"), ["token_embd.weight is missing"]),
    (partial(scale, place=2, by=1.0001), ["rope_freqs.weight is not that of llama3 scaling"]),
    (partial(scale, place=0, by=8.0), ["rope_freqs.weight is not that of llama3 scaling"]),
    (partial(store, name="rope_freqs.weight", array=np.full(8, 2, np.float32)), ["does not show the parameters"]),
])
def test_what_is_not_known_is_refused_by_name(tmp_path, capsys, content, damage, words):
    """One line that names the file and the fault, exit code 2, and nothing left."""
    fields, tensors = content()
    damage(fields, tensors)
    write_gguf(tmp_path / "m.gguf", fields, tensors)
    assert user_errors(partial(main, [str(tmp_path / "m.gguf"), str(tmp_path / "m")])) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith(f"error: {tmp_path / 'm.gguf'}") and output.err.count("\n") == 1
    assert all(word in output.err for word in words), output.err
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def refused(path, folder, **options) -> str:
    with pytest.raises(InputError) as error:
        convert(path, folder, **options)
    assert not folder.exists() and not list(folder.parent.glob("*.partial"))
    return str(error.value)


def test_other_refusals(tmp_path, monkeypatch, content):
    fields, tensors = content()
    path = write_gguf(tmp_path / "m.gguf", fields, tensors)
    write_gguf(tmp_path / "qwen.gguf", fields, tensors, architecture="qwen2")
    assert "general.architecture is 'qwen2'" in refused(tmp_path / "qwen.gguf", tmp_path / "m")
    assert "absent.gguf: cannot be read" in refused(tmp_path / "absent.gguf", tmp_path / "m")

    # A number beyond float16.
    tensors[NORM] = (np.full(64, 1e6, np.float32), Type.F32)
    write_gguf(tmp_path / "large.gguf", fields, tensors)
    wanted = "not finite in float16; try --dtype float32"
    assert wanted in refused(tmp_path / "large.gguf", tmp_path / "m", dtype="float16")

    # A package with three of them.
    monkeypatch.syspath_prepend(tmp_path.parent)
    assert "this package holds 3 GGUF files" in refused(tmp_path.name, tmp_path / "m")

    # No other folder is made.
    assert "none/m: cannot be written" in refused(path, tmp_path / "none" / "m")

    # A folder that exists is not touched.
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        convert(path, tmp_path / "old")
    assert [file.name for file in (tmp_path / "old").iterdir()] == ["mine.txt"]

    monkeypatch.setitem(sys.modules, "gguf", None)
    assert "gguf is not installed" in refused(path, tmp_path / "m")


def test_a_file_that_is_cut_short(tmp_path, content):
    """At any place: nothing hangs, and the line says that the file cannot be read."""
    content = write_gguf(tmp_path / "m.gguf", *content()).read_bytes()
    for length in [0, 3, 4, 7, 20, *range(30, len(content), len(content) // 40), len(content) - 1]:
        (tmp_path / "cut.gguf").write_bytes(content[:length])
        assert "not a readable GGUF file" in refused(tmp_path / "cut.gguf", tmp_path / "m"), length


def test_bytes_that_are_wrong(tmp_path, content):
    """Lengths beyond the end of the file, and any byte before the weights: a conversion, or one line."""
    good = write_gguf(tmp_path / "m.gguf", *content()).read_bytes()
    tokens = good.index(b"tokenizer.ggml.tokens") + len("tokenizer.ggml.tokens") + 8
    damaged = [good[:tokens] + (2 ** 62).to_bytes(8, "little") + good[tokens + 8:]]
    rng = random.Random(0)
    header = good.index(b"blk.0") + 2000
    for _ in range(40):
        place = rng.randrange(header)
        damaged.append(good[:place] + bytes([good[place] ^ 1 << rng.randrange(8)]) + good[place + 1:])

    refusals = 0
    for n, content in enumerate(damaged):
        (tmp_path / "bad.gguf").write_bytes(content)
        try:
            convert(tmp_path / "bad.gguf", tmp_path / f"m{n}")
        except InputError as error:
            refusals += 1
            assert "\n" not in str(error) and not (tmp_path / f"m{n}").exists()
        assert n > 0 or refusals == 1, "the length was not refused"
    assert refusals > 5 and not list(tmp_path.glob("*.partial"))
