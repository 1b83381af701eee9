"""Rings 2 to 6 once more, over Qwen2, Mistral, and a Llama whose matrices have biases."""
import pytest
import test_accumulation
import test_attention
import test_cache
import test_llama
import torch
from folders import read, write
from oracle import hugging_face, write_checkpoint

from core.files import InputError
from llama import Llama
from model.checkpoint import read_config

OTHERS = [{"model_type": "qwen2", "tie_word_embeddings": True}, {"model_type": "mistral", "sliding_window": None},
          {"attention_bias": True, "mlp_bias": True}]


@pytest.mark.parametrize("changes", OTHERS, ids=str)
def test_the_rings_hold(tmp_path, ids, spy, changes):
    """Blocks, the whole model, generation, accumulation and node cache, by the tests of these rings."""
    folder = write_checkpoint(tmp_path, **changes)
    model, hf = Llama.load(folder, "cpu"), hugging_face(folder)
    assert any(name.endswith("bias") for name in model.weights) == (changes.get("model_type") != "mistral")

    test_attention.test_block_by_block_equals_hugging_face(folder, ids, spy, torch.bfloat16)
    test_llama.test_greedy_ids_equal_hugging_face(model, hf, ids, 0)
    test_accumulation.test_generated_tokens_attend_to_nodes_as_in_hugging_face(model, hf, ids, 9, 40)
    test_accumulation.test_a_node_attends_to_the_question_as_in_hugging_face(model, hf, ids, 12)
    test_cache.test_node_by_node_equals_one_pass(Llama.load(folder, "cpu", "float64"), ids, 50)


def test_a_bias_is_in_the_fingerprint(tmp_path):
    folder = write_checkpoint(tmp_path / "a", model_type="qwen2")
    other = write_checkpoint(tmp_path / "b", model_type="qwen2", seed=1)
    assert Llama.load(folder, "cpu").fingerprint != Llama.load(other, "cpu").fingerprint


@pytest.mark.parametrize("changes, said", [
    ({"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window"),
    ({"model_type": "qwen2", "layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "layer_types"),
    ({"model_type": "mistral", "sliding_window": "4096"}, "sliding_window"),
    ({"model_type": "mistral", "architectures": ["LlamaForCausalLM"]}, "architectures"),
    ({"model_type": "qwen3"}, "model_type is 'qwen3'"), ({"attention_bias": "yes"}, "attention_bias")], ids=str)
def test_whatever_else_a_config_says_is_refused_by_name(folder, tmp_path, changes, said):
    kind = changes.get("model_type", "llama")
    write(tmp_path, "config.json", read(folder) | {"architectures": [f"{kind.capitalize()}ForCausalLM"]} | changes)
    with pytest.raises(InputError, match=said):
        read_config(tmp_path)


@pytest.mark.parametrize("window, longest", [(None, 2048), (4096, 2048), (512, 512)])
def test_a_sliding_window_is_the_longest_window(folder, tmp_path, window, longest):
    """Inside of it nothing slides. Hugging Face's default for an absent key is 4096."""
    mistral = read(folder) | {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    write(tmp_path, "config.json", mistral | {"sliding_window": window})
    assert read_config(tmp_path).max_length == longest
    write(tmp_path, "config.json", mistral | {"max_position_embeddings": 8192})
    assert read_config(tmp_path).max_length == 4096
