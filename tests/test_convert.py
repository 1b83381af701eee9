"""GGUF files: each gives back its checkpoint, and anything unknown is refused."""
import json
import random
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tokenizers
import torch
from gguf import GGMLQuantizationType as Type
from gguf_file import factors_of, fields_of, naive_ids, stored, tensors_of, write_gguf
from oracle import LLAMA3, write_checkpoint
from safetensors import safe_open
from safetensors.torch import load_file
from test_tokenizer import NASTY, write_bpe, write_sentencepiece
from transformers import LlamaConfig

from core.checkpoint import read_config
from core.files import InputError
from core.tokenizer import Tokenizer
from support.convert import check_scaling, convert, ends_of, main
from support.gguf_tokenizer import tokenizer_of

TEXTS = [NASTY, "In 1986, 12345 books & 3½ films… don't, DON'T!", "東京は日本の首都です。 Москва",
         "a  b\n\n\n c\t\r\n  ", "", " ", "x" * 500]
PUBLISHED = LLAMA3 | {"original_max_position_embeddings": 8192}


def checkpoint(folder, **changes):
    """A random checkpoint with a byte-level BPE like Llama 3's. It has as many tokens as embeddings."""
    folder.mkdir(exist_ok=True)
    write_bpe(folder)
    size = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    bpe = {name: (folder / name).read_text() for name in ("tokenizer.json", "tokenizer_config.json")}
    write_checkpoint(folder, vocab_size=size, **{"rope_parameters": PUBLISHED} | changes)
    for name, text in bpe.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def content(small):
    """Copies of the fields and tensors of its GGUF file; a test may change them."""
    fields, tensors = fields_of(small), tensors_of(small, Type.F32)
    return lambda: (dict(fields), dict(tensors))


# --- weights and config.json ----------------------------------------------------------------------------------------

UNSCALED = {"rope_type": "default", "rope_theta": 500000.0}


@pytest.mark.parametrize("kind, changes", [
    (Type.F32, {}), (Type.F32, {"tie_word_embeddings": True, "num_key_value_heads": 8}),
    (Type.F16, {"rope_parameters": UNSCALED}), (Type.BF16, {"tie_word_embeddings": True, "num_key_value_heads": 1})],
    ids=str)
def test_plain_numbers_come_back(tmp_path, kind, changes):
    """Every tensor is equal bit by bit and has the file's dtype. config.json has the parameters of the scaling."""
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
    theirs = LlamaConfig.from_pretrained(tmp_path / "m")
    assert theirs.bos_token_id == tokens.index("<s>") and theirs.eos_token_id == list(eos)


def test_keys_that_a_file_may_leave_out(tmp_path):
    """A head is as wide as the model has room for, each has its own keys, and theta is 10,000. Matrices of two types
    are stored in float16."""
    source = checkpoint(tmp_path / "hf", head_dim=8, num_key_value_heads=8,
                        rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    optional = ("head_count_kv", "key_length", "value_length", "dimension_count", "freq_base", "vocab_size")
    fields = {key: value for key, value in fields_of(source).items() if key.split(".")[-1] not in optional}
    assert len(fields) == len(fields_of(source)) - len(optional)
    tensors = tensors_of(source, Type.F32)
    tensors["output.weight"] = (tensors["output.weight"][0], Type.BF16)
    convert(write_gguf(tmp_path / "m.gguf", fields, tensors), tmp_path / "m")
    ours = read_config(tmp_path / "m")
    assert ours == replace(read_config(source), dtype="float16", eos=ours.eos)


def test_every_token_that_may_end_a_turn_ends_a_reply():
    """Those that the file names, and Llama 3's."""
    named = {f"tokenizer.ggml.{name}_token_id": i for name, i in (("bos", 1), ("eos", 6), ("eot", 3), ("eom", 4))}
    tokens = ["<|eot_id|>", "a", "<|eom_id|>", "b", "c", "<|end_of_text|>", "d", "e"]
    assert ends_of(named | {"tokenizer.ggml.tokens": tokens}) == [0, 2, 3, 4, 5, 6]


# Half a quantisation step of a block's largest number, or one step if the range is not symmetric. A wrong row errs
# by far more.
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


def test_what_the_command_writes(tmp_path, content, monkeypatch, capsys):
    """From a file in a package the command writes a folder for --model, with settings for a small model."""
    (tmp_path / "a_package").mkdir()
    write_gguf(tmp_path / "a_package" / "m.gguf", *content())
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["a_package", str(tmp_path / "m")]) == 0
    numbers = sum(weight.numel() for weight in load_file(tmp_path / "m" / "model.safetensors").values())
    assert f"m: 3 layers, {numbers / 1e6:.1f} million parameters, in float32" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == [
        "config.json", "model.safetensors", "pecan.json", "tokenizer.json", "tokenizer_config.json"]
    assert safe_open(tmp_path / "m" / "model.safetensors", "pt").metadata() == {"format": "pt"}, "transformers 4 asks"

    fields, tensors = content()
    for length in (639, 640):
        write_gguf(tmp_path / "short.gguf", fields | {"llama.context_length": length}, tensors)
        convert(tmp_path / "short.gguf", tmp_path / str(length))
        assert (tmp_path / str(length) / "pecan.json").exists() == (length == 640), "its window has 640 tokens"
    monkeypatch.setattr("support.convert.SMALL", numbers)
    convert(tmp_path / "a_package" / "m.gguf", tmp_path / "large")
    assert not (tmp_path / "large" / "pecan.json").exists(), "a large model has the paper's settings"


# --- llama3 scaling -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("factor, K", [(8.0, 128), (32.0, 64), (32.0, 128)], ids=["3.1-8B", "3.2-1B", "3.2-3B"])
def test_the_scaling_of_published_models_is_known_and_no_other(small, factor, K):
    theirs = PUBLISHED | {"factor": factor, "rope_theta": 500000.0}
    ours = read_config(small).rope | {"factor": factor}
    config = replace(read_config(small), head_width=K, rope_theta=500000.0, rope=ours)
    check_scaling(Path("m"), config, torch.from_numpy(factors_of(theirs, K)))
    for key, other in (("factor", 2 * factor), ("high_freq_factor", 5.0), ("original_max_position_embeddings", 8191)):
        with pytest.raises(InputError, match="rope_freqs.weight is not that of llama3 scaling"):
            check_scaling(Path("m"), config, torch.from_numpy(factors_of(theirs | {key: other}, K)))


# --- tokenizers -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("pre", ["llama-bpe", "smollm"])
def test_byte_level_ids(tmp_path, content, pre):
    """Ids equal those of a naive BPE, also for names of special tokens, digits, CJK and white space."""
    fields, tensors = content()
    fields["tokenizer.ggml.pre"] = pre
    convert(write_gguf(tmp_path / "m.gguf", fields, tensors), tmp_path / "m")
    t = Tokenizer(tmp_path / "m")
    for text in TEXTS:
        assert t.encode(text) == naive_ids(fields, text), text
        assert t.decode(t.encode(text)) == text

    # Tokens that only one of the two rules gives: digits together, a digit with its blank, a word without merges.
    fields["tokenizer.ggml.tokens"] = [*fields["tokenizer.ggml.tokens"], "19", "Ġ1", "ĠzzQ"]
    fields["tokenizer.ggml.token_type"] = [*fields["tokenizer.ggml.token_type"], 1, 1, 1]
    fields["tokenizer.ggml.merges"] = [*fields["tokenizer.ggml.merges"], "1 9", "Ġ 1"]
    wanted = naive_ids(fields, "In 1986 zzQ 119")
    assert tokenizer_of(Path("m"), fields).encode("In 1986 zzQ 119", add_special_tokens=False).ids == wanted


def test_the_original_tokenizer_and_the_converted_one(tmp_path, small, content):
    """Ids are equal, with special tokens too, and so is the BOS that transformers adds to a text.

    Not every added token is special: a reply keeps <|user|>.
    """
    path = shutil.copytree(small, tmp_path / "hf") / "tokenizer.json"
    raw = json.loads(path.read_text())
    for token in raw["added_tokens"]:
        token["special"] = token["content"] != "<|user|>"
    path.write_text(json.dumps(raw))
    convert(write_gguf(tmp_path / "m.gguf", fields_of(path.parent), content()[1]), tmp_path / "m")
    ours, wanted = Tokenizer(tmp_path / "m"), Tokenizer(path.parent)
    ids = ours.encode("<s>Tom <|user|>", specials=True)
    assert ours.decode(ids) == wanted.decode(ids) == "Tom <|user|>"
    assert ours.frame == wanted.frame and ours.bos == wanted.bos == [fields_of(small)["tokenizer.ggml.bos_token_id"]]
    assert ours.decode(ours.frame.close) == wanted.decode(wanted.frame.close), "special tokens are left out"
    for text in TEXTS:
        assert ours.encode(text, specials=True) == wanted.encode(text, specials=True)
        assert ours.special.encode(text).ids == wanted.special.encode(text).ids


def test_special_tokens_have_their_roles(tmp_path, content):
    """The file names them. It may say whether texts begin with the BOS; else those of Llama 3's rule for words do."""
    fields, tensors = content()
    bos = fields["tokenizer.ggml.bos_token_id"]
    fields |= {"tokenizer.ggml.unknown_token_id": 7, "tokenizer.ggml.padding_token_id": 9}
    convert(write_gguf(tmp_path / "m.gguf", fields, tensors), tmp_path / "m")
    names = Tokenizer(tmp_path / "m").special_names
    assert [fields["tokenizer.ggml.tokens"].index(names[f"{role}_token"]) for role in ("bos", "eos", "unk", "pad")] == [
        bos, fields["tokenizer.ggml.eos_token_id"], 7, 9]

    for pre, said, begins in (("llama3", None, True), ("llama-v3", None, True), ("smollm", None, False),
                              ("smollm", True, True), ("llama-bpe", False, False)):
        changes = {"tokenizer.ggml.pre": pre} | ({} if said is None else {"tokenizer.ggml.add_bos_token": said})
        ids = tokenizer_of(Path("m"), fields | changes).encode("Ann").ids
        assert ids == [bos] * begins + naive_ids(fields, "Ann"), pre


def test_sentencepiece_ids(tmp_path):
    """Ids equal those of sentencepiece, with a BOS by default."""
    write_sentencepiece(tmp_path)
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    places = range(model.get_piece_size())
    fields = {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in places],
        "tokenizer.ggml.scores": [model.get_score(i) for i in places],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6 if model.is_byte(i) else 1 for i in places[3:]]}
    tokenizer = tokenizer_of(Path("m"), fields)
    for text in (*TEXTS[1:4], "Tabitha has 3 kittens;  Tom Kitten bursts his buttons, Yes or No?"):
        assert tokenizer.encode(text).ids == [1, *model.encode(text)], text
    for name, value in (("pre", "llama-bpe"), ("add_space_prefix", False)):
        with pytest.raises(InputError, match=f"{name} is {value!r}"):
            tokenizer_of(Path("m"), fields | {f"tokenizer.ggml.{name}": value})


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


# Each row: a change to the file, and words of the error.
@pytest.mark.parametrize("damage, words", [
    (partial(change, llama__embedding_length=None), ["'llama.embedding_length' is missing"]),
    (partial(change, llama__attention__sliding_window=512), ["llama.attention.sliding_window is not known"]),
    (partial(change, llama__rope__dimension_count=8), ["llama.rope.dimension_count is 8"]),
    (partial(change, llama__attention__head_count_kv=[2, 2, 2]), ["num_key_value_heads is [2, 2, 2]"]),
    (partial(change, llama__attention__value_length=8), ["llama.attention.value_length is 8"]),
    (partial(change, general__type="adapter"), ["general.type is 'adapter'"]),
    (partial(change, tokenizer__ggml__remove_extra_whitespaces=True), ["remove_extra_whitespaces is True"]),
    (partial(change, tokenizer__ggml__add_eos_token=True), ["add_eos_token is True"]),
    (partial(change, split__count=2), ["split.count is 2"]),
    (partial(change, tokenizer__ggml__model="bert"), ["tokenizer.ggml.model is 'bert'"]),
    (partial(change, tokenizer__ggml__pre="qwen2"), ["tokenizer.ggml.pre is 'qwen2'"]),
    (partial(change, tokenizer__ggml__merges=["never seen"]), ["does not fit a Llama"]),
    (partial(change, tokenizer__ggml__token_type=[1]), ["does not fit a Llama"]),
    (partial(change, tokenizer__ggml__add_space_prefix=True), ["add_space_prefix is True"]),
    (partial(change, tokenizer__chat_template=None), ["no chat template"]),
    (partial(store, name="blk.0.attn_q.bias", array=np.zeros(128, np.float32)), ["attn_q.bias", "no such tensor"]),
    (partial(store, name="blk.0.attn_q.weight", array=np.zeros((64, 64), np.float32)), ["(64, 64)", "(128, 64)"]),
    (partial(store, name="output.weight", array=np.zeros((64, 64), np.int8).view(np.uint8), kind=Type.I8), ["output"]),
    (partial(remove, name="blk.2.ffn_up.weight"), ["model.layers.2.mlp.up_proj.weight is missing"]),
    (partial(store, name="rope_freqs.weight", array=np.full(8, 2, np.float32)), ["not that of llama3 scaling"]),
])
def test_what_is_not_known_is_refused_by_name(tmp_path, content, damage, words):
    """The error is one line that names the file and the fault, and no folder is left."""
    fields, tensors = content()
    damage(fields, tensors)
    said = refused(write_gguf(tmp_path / "m.gguf", fields, tensors), tmp_path / "m")
    assert "m.gguf" in said and "\n" not in said and all(word in said for word in words), said


def refused(path, folder) -> str:
    with pytest.raises(InputError) as error:
        convert(path, folder)
    assert not folder.exists()
    return str(error.value)


def test_other_refusals(tmp_path, monkeypatch, content):
    path = write_gguf(tmp_path / "m.gguf", *content())
    write_gguf(tmp_path / "qwen.gguf", *content(), architecture="qwen2")
    assert "general.architecture is 'qwen2'" in refused(tmp_path / "qwen.gguf", tmp_path / "m")
    assert "absent.gguf: not a readable GGUF file (No such file" in refused(tmp_path / "absent.gguf", tmp_path / "m")
    assert "none/m: cannot be written" in refused(path, tmp_path / "none" / "m")

    # An existing folder is not changed.
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="old: cannot be written"):
        convert(path, tmp_path / "old")
    assert [file.name for file in (tmp_path / "old").iterdir()] == ["mine.txt"]

    monkeypatch.setitem(sys.modules, "gguf", None)
    assert "gguf is not installed" in refused(path, tmp_path / "m")


def test_a_file_that_was_damaged_anywhere(tmp_path, content):
    """A file that is cut short, has a length beyond its end, or a flipped bit is converted or refused in one line."""
    good = write_gguf(tmp_path / "m.gguf", *content()).read_bytes()
    tokens = good.index(b"tokenizer.ggml.tokens") + len("tokenizer.ggml.tokens") + 8
    damaged = [good[:tokens] + (2 ** 62).to_bytes(8, "little") + good[tokens + 8:]]
    damaged += [good[:length] for length in (0, 3, 20, *range(30, len(good), len(good) // 12), len(good) - 1)]
    sure = len(damaged)
    rng = random.Random(0)
    for _ in range(30):
        place = rng.randrange(good.index(b"blk.0") + 2000)
        damaged.append(good[:place] + bytes([good[place] ^ 1 << rng.randrange(8)]) + good[place + 1:])

    for n, content in enumerate(damaged):
        (tmp_path / "bad.gguf").write_bytes(content)
        try:
            convert(tmp_path / "bad.gguf", tmp_path / f"m{n}")
            assert n >= sure, f"damage {n} was not refused"
        except InputError as error:
            assert "\n" not in str(error) and not (tmp_path / f"m{n}").exists()
