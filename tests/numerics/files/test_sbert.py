"""Sentence encoders: our BERT and MPNet against Hugging Face's on random weights, and the mean of a Llama's own
embeddings.

The weights have a standard deviation of 0.15, so that attention is peaky enough to show a bug. One sentence is longer
than 128 tokens, because MPNet's relative positions share their last bucket from there on.
"""
import math
import shutil
from functools import partial

import pytest
import tokenizers
import torch
from folders import assert_refused, put, rows_of, write
from oracle import relative, write_checkpoint
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel, MPNetConfig, MPNetModel

from core.files import InputError
from encoders.sbert import Bert, MPNet, load_encoder, load_towers, similarities
from encoders.token_mean import TokenMean
from llama import Llama

SENTENCES = ["who sends her kittens to the garden ?", "tom", "mittens and moppet tear their clothes in the rockery",
             " ".join(f"{word} the {word} and" for word in "tom kittens mittens garden moppet clothes".split() * 9)]
WORDS = sorted({word for sentence in SENTENCES for word in sentence.split()})
VOCABULARY = {word: i for i, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", *WORDS])}      # MPNet's order
POSITIONS = 300                                               # rows of the position table
D, HIDDEN, LAYERS = 48, 64, 3
MODELS = {"bert": (BertConfig, BertModel, Bert, POSITIONS), "mpnet": (MPNetConfig, MPNetModel, MPNet, POSITIONS - 2)}


def ids_of(sentence, most=10_000):
    """At most `most` token ids, made without the tokenizer under test."""
    return [0, *(VOCABULARY[word] for word in sentence.split()[:most - 2]), 2]


@pytest.fixture(scope="module", params=MODELS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def folder(kind, tmp_path_factory):
    """A random checkpoint that Hugging Face saved, and a tokenizer."""
    folder = tmp_path_factory.mktemp(kind)
    t = tokenizers.Tokenizer(tokenizers.models.WordLevel(VOCABULARY, unk_token="<unk>"))
    t.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    t.post_processor = tokenizers.processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    t.enable_padding(length=20)                               # published tokenizers pad and cut; it must not matter
    t.enable_truncation(8)
    t.save(str(folder / "tokenizer.json"))

    torch.manual_seed(0)
    config, model, *_ = MODELS[kind]
    model = model(config(vocab_size=len(VOCABULARY), hidden_size=D, num_hidden_layers=LAYERS, num_attention_heads=4,
                         intermediate_size=HIDDEN, max_position_embeddings=POSITIONS, pad_token_id=1,
                         layer_norm_eps=1e-5))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(1.0 if "LayerNorm.weight" in name else 0.0, 0.15)
            if "relative_attention_bias" in name:
                weight.mul_(10)                               # as large as the scores, so that a wrong bucket shows
    model.save_pretrained(folder)
    write(folder, "modules.json", [{"type": f"x.{name}"} for name in ("Transformer", "Pooling", "Normalize")])
    write(folder, "1_Pooling/config.json", {"pooling_mode": "mean"})
    return folder


@pytest.fixture(scope="module")
def hf(kind, folder):
    """A function: token ids -> last hidden states [T, D] of Hugging Face, float64, for one sentence without padding."""
    model = MODELS[kind][1].from_pretrained(folder, attn_implementation="eager").double().eval()

    @torch.no_grad()
    def hidden(ids):
        return model(torch.tensor([ids])).last_hidden_state[0]
    return hidden


@pytest.fixture
def copy(folder, tmp_path):
    """A copy of the checkpoint that a test may change."""
    return shutil.copytree(folder, tmp_path / "m")


# --- BERT and MPNet -------------------------------------------------------------------------------------------------

# How hidden states are pooled, what the folder's files say, and the most tokens of a sentence.
POOLED = """
mean | {} | 10000
cls  | {"1_Pooling/config.json": {"pooling_mode": "cls"}} | 10000
cls  | {"1_Pooling/config.json": {"pooling_mode": "absent", "pooling_mode_cls_token": true}} | 10000
mean | {"sentence_bert_config.json": {"max_seq_length": 10000}} | 10000
mean | {"tokenizer_config.json": {"model_max_length": 4}} | 4
mean | {"tokenizer_config.json": {"model_max_length": 7}, "sentence_bert_config.json": {"max_seq_length": 3}} | 3
"""


@pytest.mark.parametrize("mode, files, most", rows_of(POOLED))
def test_vectors_equal_hugging_face(kind, copy, hf, mode, files, most):
    """One padded batch, and a sentence alone, give Hugging Face's hidden states, pooled. In float64 rounding is 1e-13,
    and a bug is larger. Sentences are cut, special tokens included, and at the end of the position table at the latest.
    """
    for file, content in files.items():
        put(copy, file, content)
    encoder = MODELS[kind][2](copy)
    encoder.weights = {name: weight.double() for name, weight in encoder.weights.items()}
    encoder.batches.rows = 3                                  # the shortest sentence runs alone
    sentences = [" ".join(SENTENCES * 3), *SENTENCES[::-1]]
    ours = encoder.encode(sentences)
    hidden = [hf(ids_of(sentence, min(int(most), MODELS[kind][3]))) for sentence in sentences]
    pooled = torch.stack([states[0] if mode == "cls" else states.mean(0) for states in hidden])
    assert relative(ours, pooled / pooled.norm(dim=1, keepdim=True)) < 1e-11
    assert most != "10000" or (ours[1:] @ ours[1:].T).tril(-1).max() < 0.98, "too alike to show a bug"


def test_what_is_too_long_to_be_read_is_counted(copy, kind):
    """The tokenizer takes each word for one piece. Two of the places are for <s> and </s>."""
    for places, longer in ((3, 3), (9, 3), (10, 2), (11, 1)):
        put(copy, "sentence_bert_config.json", {"max_seq_length": places})
        assert MODELS[kind][2](copy).cut(SENTENCES) == {"encoded": 4, "longer": longer}


def test_flops_by_hand(kind, folder):
    """Padding costs nothing."""
    def cost(T):
        return LAYERS * (2 * T * (4 * D * D + 2 * D * HIDDEN) + 4 * T * T * D)

    encoder = MODELS[kind][2](folder)
    encoder.encode(SENTENCES[:3])                             # <s> tom </s> is padded to 11 tokens
    assert encoder.flops == cost(10) + cost(3) + cost(11)


def test_names_of_tensors_may_have_a_prefix(kind, folder, copy):
    """Old versions of transformers also wrote a table of position ids."""
    path = copy / "model.safetensors"
    tensors = load_file(path) | {"embeddings.position_ids": torch.arange(POSITIONS)[None]}
    save_file({f"{kind}.{name}": tensor for name, tensor in tensors.items()}, path)
    ours, same = (MODELS[kind][2](each).encode(SENTENCES) for each in (copy, folder))
    assert torch.equal(ours, same)


# In the last row a token, the 22nd, has no row in the embeddings.
REFUSED = r"""
config.json | {"model_type": "distilbert"}  | config.json: model_type 'distilbert'
config.json | {"position_embedding_type": "relative_key", "relative_attention_num_buckets": 16} | is ('rel.*'|16); only
config.json | {"intermediate_size": "absent"} | key 'intermediate_size' is missing
config.json | {"num_attention_heads": 5}    | config.json: num_attention_heads is 5
config.json | {"num_hidden_layers": "3"}    | config.json: num_hidden_layers is '3'
config.json | {"num_hidden_layers": 2}      | encoder.layer.2.\S+ is \(.*wants no such tensor
config_sentence_transformers.json | {"default_prompt_name": "query"} | default_prompt_name is 'query'
sentence_bert_config.json | {"do_lower_case": true} | do_lower_case is True
1_Pooling/config.json | {"pooling_mode": "max"} | 1_Pooling/config.json: expected one way of pooling
1_Pooling/config.json | {"pooling_mode_cls_token": true} | 1_Pooling/config.json: expected one way of pooling
modules.json | "{}" | modules.json: .*list
modules.json | [{"type": "x.Transformer"}, {"type": "x.Pooling"}] | modules.json: expected the modules .* Normalize
tokenizer.json | "[" | tokenizer.json: not a readable tokenizer
model.safetensors | {"encoder.layer.1.output.LayerNorm.weight": "absent"} | LayerNorm.weight is missing
tokenizer.json | {"model": {"type": "WordLevel", "vocab": {"<unk>": 21}, "unk_token": "<unk>"}} | vocab_size is
"""


@pytest.mark.parametrize("name, change, words", rows_of(REFUSED))
def test_what_is_refused_is_named(copy, tiny, name, change, words):
    assert_refused(partial(load_encoder, model=tiny), copy, name, change, words)


# --- the mean of a model's own embeddings ---------------------------------------------------------------------------

def test_embeddings_are_whitened(tiny):
    """Over the vocabulary the vectors have mean 0 and the unit matrix as covariance, whatever the checkpoint's. A
    direction without variance is left out. A text's vector is the weighted mean of its tokens'."""
    table = .001 * torch.linspace(-1, 1, 9000)[:, None] ** torch.tensor([1, 2, 1, 3])       # two columns are equal
    encoder = TokenMean(Llama(tiny.config, {"model.embed_tokens.weight": table}, tiny.tokenizer), unit=False)
    encoder.weights = torch.linspace(.1, 1, 9000)
    vectors = (table.double() - encoder.mean) @ encoder.whitening.double()
    assert vectors.mean(0).abs().max() < 1e-5 and relative(vectors.T @ vectors / len(vectors), torch.eye(3)) < 1e-4

    ids = tiny.tokenizer.encode("Mara has a goat.")
    wanted = (encoder.weights[ids, None] * vectors[ids]).sum(0) / encoder.weights[ids].sum()
    ours, = encoder.encode(["Mara has a goat."])
    assert (ours - wanted).abs().max() < 1e-5 and encoder.flops == 2 * 4 * 3


def test_rare_tokens_count_more(tmp_path):
    """A token that is 3 of 1000 has weight one half. Without counts all weights are 1."""
    model = Llama.load(write_checkpoint(tmp_path), "cpu")
    assert (TokenMean(model).weights == 1).all()
    counts = [0, 3, 997] + [0] * 477
    put(tmp_path, "token_counts.json", {"counts": counts})
    assert TokenMean(model).weights[:3].tolist() == pytest.approx([1, .5, .003])
    put(tmp_path, "token_counts.json", {"counts": counts[1:]})
    with pytest.raises(InputError, match="token_counts.json: counts must be 480 numbers"):
        TokenMean(model)


def test_equal_vectors_have_equal_similarities():
    """A matrix product rounds some of 7 equal rows differently, if they have 41 columns. NaN is refused."""
    vector, query = torch.arange(41.).sin(), torch.arange(41.).cos()
    ours = similarities(vector.repeat(7, 1), query)
    assert len(set(ours.tolist())) == 1 and abs(ours[0] - vector @ query) < 1e-5
    with pytest.raises(InputError, match="not finite"):
        similarities(vector * math.nan, query)


# --- Dragon's two encoders ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("kind", ["bert"], indirect=True)
def test_two_towers_equal_hugging_face(folder, copy, hf, tiny):
    """A vector is the state of the first token, [CLS], not normalised. The two towers have different weights."""
    put(copy, "model.safetensors", {"encoder.layer.1.output.LayerNorm.weight": torch.full([D], 2.0)})
    questions, passages = load_towers([folder, copy], tiny)
    ours = questions.encode(SENTENCES)
    theirs = torch.stack([hf(ids_of(sentence))[0] for sentence in SENTENCES])
    assert relative(ours, theirs) < 1e-6 and (ours.norm(dim=1) - 1).abs().min() > .1
    assert (passages.encode(SENTENCES) - ours).abs().max() > .1
    assert len({encoder.fingerprint for encoder in (questions, passages, load_encoder(folder, tiny))}) == 3


def test_without_encoders_all_are_the_mean_of_own_embeddings(tiny):
    """A unit vector for cosines; for the towers' dot products it is not normalised."""
    text = ["Where is Tom?"]
    vector, = load_encoder(None, tiny).encode(text)
    towers = load_towers(None, tiny)
    questions, passages = (tower.encode(text)[0] for tower in towers)
    assert towers[0].fingerprint != load_encoder(None, tiny).fingerprint
    assert torch.equal(questions, passages) and abs(questions.norm() - 1) > .1
    torch.testing.assert_close(vector, questions / questions.norm())
