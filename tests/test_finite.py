"""Numbers that are not finite are loud: one line names the place, the dtype and what to try."""
import math

import pytest
import torch

from core.files import InputError
from llama import Cache, Llama
from support.token_mean import TokenMean


def changed(model, **weights) -> Llama:
    """The same model with other weights: name -> function of the old tensor."""
    new = dict(model.weights)
    for name, function in weights.items():
        new[name] = function(new[name])
    return Llama(model.config, new, model.tokenizer, model.folder)


def one(value):
    """A function that puts `value` into the first place of a copy of a tensor."""
    def put(weight):
        weight = weight.clone()
        weight.view(-1)[0] = value
        return weight
    return put


@pytest.mark.parametrize("value", [math.nan, math.inf], ids=str)
@pytest.mark.parametrize("layer", [0, 2])
def test_a_layer_that_is_not_finite_is_named(model, ids, layer, value):
    broken = changed(model, **{f"model.layers.{layer}.mlp.down_proj.weight": one(value)})
    with pytest.raises(InputError, match=f"model.layers.{layer} gives numbers that are not finite in float32; try"):
        broken.read(Cache(broken, 1, 20), [[(None, ids(9))]])


def test_an_embedding_that_is_not_finite_gives_no_similarity(model):
    """Of a token that no text holds, too: the mean over the vocabulary is taken off every vector."""
    broken = changed(model, **{"model.embed_tokens.weight": one(math.nan)})
    with pytest.raises(InputError, match="model.embed_tokens.weight holds numbers that are not finite"):
        TokenMean(broken)


def test_an_overflow_of_float16_is_named(model, ids):
    half = {name: weight.half() for name, weight in model.weights.items()}
    half["model.layers.1.mlp.up_proj.weight"] = half["model.layers.1.mlp.up_proj.weight"] * 1e4
    broken = Llama(model.config, half, model.tokenizer, model.folder)
    with pytest.raises(InputError, match="model.layers.1 gives numbers .* not finite in float16; try --dtype float32"):
        broken.read(Cache(broken, 1, 20), [[(None, ids(9))]])


def test_logits_that_are_not_finite_are_named(model):
    broken = changed(model, **{"lm_head.weight": one(math.nan)})
    with pytest.raises(InputError, match="the output matrix gives numbers that are not finite"):
        broken.logits(torch.ones(1, model.config.width))


def test_a_sound_model_is_not_refused(model, ids):
    hidden, _ = model.read(Cache(model, 1, 20), [[(None, ids(9))]])
    assert model.logits(hidden).isfinite().all()
