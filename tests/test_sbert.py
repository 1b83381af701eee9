"""The hand-written BERT against Hugging Face's on random weights, and the mean of the model's own embeddings."""
import json
import os

import pytest
import tokenizers
import torch
from transformers import BertConfig, BertModel

from data import InputError
from sbert import Bert, TokenMean, load_encoder

SENTENCES = ["who sends her kittens to the garden ?", "tom", "mittens and moppet tear their clothes in the rockery"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    words = sorted({word for sentence in SENTENCES for word in sentence.split()})
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}
    t = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    t.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    t.post_processor = tokenizers.processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    t.enable_padding(length=20)                               # as published MiniLM tokenizers have it; must not matter
    t.save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    model = BertModel(BertConfig(vocab_size=len(vocabulary), hidden_size=48, num_hidden_layers=3, num_attention_heads=4,
                                 intermediate_size=64, max_position_embeddings=32, attn_implementation="eager"))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(1.0 if "LayerNorm.weight" in name else 0.0, 0.15)
    model.save_pretrained(folder)
    return folder


def test_vectors_equal_hugging_face(folder):
    """Each sentence alone through Hugging Face; ours in one padded batch, so that padding must not matter either."""
    hf, encoder = BertModel.from_pretrained(folder, attn_implementation="eager").eval(), Bert(folder)
    ours = encoder.encode(SENTENCES)
    for sentence, vector in zip(SENTENCES, ours):
        ids = encoder.tokenizer.encode(sentence).ids
        with torch.no_grad():
            mean = hf(torch.tensor([ids])).last_hidden_state[0].mean(0)
        assert (vector - mean / mean.norm()).abs().max() < 1e-6
    assert (ours[0] @ ours[1]).abs() < 0.99, "the vectors are too alike to show a bug"
    assert torch.allclose(Bert(folder, batch=2).encode(SENTENCES), ours, atol=1e-6)


def test_long_sentences_are_cut_at_the_last_position(folder):
    assert Bert(folder).encode(["tom " * 100]).shape == (1, 48)


def test_flops_by_hand(folder):
    encoder = Bert(folder)
    encoder.encode([SENTENCES[1]])                            # [CLS] tom [SEP]: 3 tokens
    D, hidden, T = 48, 64, 3
    assert encoder.flops == 3 * (2 * T * (4 * D * D + 2 * D * hidden) + 4 * T * T * D)


@pytest.mark.parametrize("damage, words", [
    (lambda f: (f / "config.json").write_text(json.dumps({"model_type": "mpnet"})), "mpnet"),
    (lambda f: (f / "config.json").write_text(json.dumps({"model_type": "bert"})), "is missing"),
    (lambda f: (f / "model.safetensors").write_bytes(b"x" * 100), "not a readable safetensors"),
    (lambda f: (f / "tokenizer.json").write_text("["), "not a readable tokenizer"),
    (lambda f: ((f / "1_Pooling").mkdir(), (f / "1_Pooling" / "config.json").write_text(
        json.dumps({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}))), "only mean pooling"),
])
def test_broken_encoders_are_named(folder, tmp_path, damage, words):
    import shutil
    shutil.copytree(folder, tmp_path / "m")
    damage(tmp_path / "m")
    with pytest.raises(InputError, match=words):
        Bert(tmp_path / "m")


def test_mean_of_own_embeddings(tiny):
    encoder = load_encoder(None, tiny)
    assert isinstance(encoder, TokenMean)
    question, same, other = encoder.encode(["What is Mara's pet?", "Mara's pet was goat.", "Tom's job was pilot."])
    assert question @ same > question @ other
    assert question.norm().item() == pytest.approx(1) and encoder.flops == 0


@pytest.mark.skipif("PECAN_MINILM" not in os.environ, reason="set PECAN_MINILM to the folder of a MiniLM checkpoint")
def test_a_real_minilm():
    sentences = ["A man eats food.", "A man is eating something.", "The sky is blue."]
    a, b, c = Bert(os.environ["PECAN_MINILM"]).encode(sentences)
    assert a @ b > 0.6 > a @ c
