"""transformers in the place of our forward pass, with the same weights in the same process."""
from dataclasses import replace

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from llama import Llama


def hugging_face(model: Llama, attention: str) -> LlamaForCausalLM:
    """The weights of `model`, shared and not copied, in Hugging Face's forward pass ("eager" or "sdpa")."""
    c = model.config
    config = LlamaConfig(
        vocab_size=c.vocab, hidden_size=c.width, intermediate_size=c.hidden, num_hidden_layers=c.layers,
        num_attention_heads=c.heads, num_key_value_heads=c.kv_heads, head_dim=c.head_width, rms_norm_eps=c.norm_eps,
        max_position_embeddings=c.max_length, tie_word_embeddings=c.tied, attn_implementation=attention,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta})
    with torch.device("meta"):
        peer = LlamaForCausalLM(config)
    weights = dict(model.weights)
    if c.tied:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    peer.load_state_dict(weights, assign=True)
    peer.model.rotary_emb = LlamaRotaryEmbedding(config).to(model.device)
    return peer.eval()


class Peer(Llama):
    """A model of one row whose forward pass, mask and cache are those of transformers.

    Prompts, generation and the search around the passes are ours, so both sides do the same work. Eager attention keeps
    the weights of all layers and heads until the end of a pass; "sdpa" gives no weights, so a(x, j) stays 0.
    """

    def __init__(self, model: Llama, attention: str):
        super().__init__(replace(model.config, kv_heads=0), model.weights, model.tokenizer)      # our cache stays empty
        self.peer = hugging_face(model, attention)
        self.attends = attention == "eager"

    def forward(self, tokens, positions, mask=None, cache=None, averaging=None):
        if cache.lengths == [0]:
            cache.past = DynamicCache(config=self.peer.config)
        probe = cache.past.get_seq_length() - cache.lengths[0]
        if probe:
            cache.past.crop(-probe)
        out = self.peer.model(tokens, past_key_values=cache.past, use_cache=True,
                              output_attentions=self.attends and averaging is not None)
        a = None if averaging is None else averaging.new_zeros(*tokens.shape, averaging.shape[2])        # [1, T, N]
        for weights in out.attentions or ():
            a += weights.float().mean(1)[:, :, :averaging.shape[1]] @ averaging / self.config.layers
        return out.last_hidden_state, a
