"""transformers does the work of llama.py with the same weights in the same process.

The loops here are leaner than transformers' own generate: no logits processors, no stopping criteria. So the peer is at
least as fast as its users' programs.
"""
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
        max_position_embeddings=c.max_length, tie_word_embeddings=c.tied, eos_token_id=None, bos_token_id=None,
        pad_token_id=None, rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        attn_implementation=attention)
    with torch.device("meta"):
        peer = LlamaForCausalLM(config)
    weights = dict(model.weights)
    if c.tied:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    peer.load_state_dict(weights, assign=True)
    peer.model.rotary_emb = LlamaRotaryEmbedding(config).to(model.device)
    return peer.eval()


@torch.no_grad()
def write(peer, prompts: torch.Tensor, limit: int, spans: list | None = None) -> tuple[list, torch.Tensor | None]:
    """Greedy ids [B][limit] after prompts [B, T]; with `spans` of nodes also a(x, j) of each as a query [limit, N].

    The attention comes from output_attentions: all layers and heads of a pass are kept until its end.
    """
    past = DynamicCache(config=peer.config)
    attend = spans is not None
    averaging = torch.zeros(prompts.shape[1], len(spans), device=prompts.device) if attend else None
    for n, (start, end) in enumerate(spans or []):
        averaging[start:end, n] = 1 / (end - start)

    ids, rows = [], []
    out = peer(prompts, past_key_values=past, use_cache=True, logits_to_keep=1, output_attentions=attend)
    for step in range(limit):
        token = out.logits[:, -1].argmax(-1, keepdim=True)
        ids.append(token[:, 0].tolist())
        if step == limit - 1 and not attend:
            break
        out = peer(token, past_key_values=past, use_cache=True, logits_to_keep=1, output_attentions=attend)
        if attend:
            mean = torch.stack([layer.float().mean(1) for layer in out.attentions]).mean(0)       # [B, 1, P]
            rows.append(mean[0, 0, :len(averaging)] @ averaging)
    return [list(row) for row in zip(*ids)], torch.stack(rows) if attend else None


@torch.no_grad()
def search(peer, passes: list, yes_no: list[int], limit: int, eos: tuple[int, ...]) -> tuple:
    """The passes of a search, (segments, tokens of the probe) each, with a cache that is cropped.

    Returns the mean attention to the question of each node, p_yes after each probe, and the ids of the answer.
    """
    past = DynamicCache(config=peer.config)
    attention, p_yes = [], []
    end = 0
    for segments, probe in passes:
        before = end
        spans = []
        for node, part in segments:
            span = (end, end + len(part))
            end = span[1]
            if node == "q":
                question = slice(*span)
            elif node is not None:
                spans.append(span)

        ids = [id for _, part in segments for id in part] + probe
        out = peer(torch.tensor([ids], device=peer.device), past_key_values=past, use_cache=True, logits_to_keep=1,
                   output_attentions=bool(spans))
        for start, stop in spans:
            rows = slice(start - before, stop - before)
            attention.append(sum(layer[0, :, rows, question].float().mean().item() for layer in out.attentions)
                             / len(out.attentions))
        if probe:
            p_yes.append(out.logits[0, -1, yes_no].double().softmax(0)[0].item())
            past.crop(-len(probe))

    ids = []
    while True:
        token = out.logits[0, -1].argmax().item()
        if token in eos:
            return attention, p_yes, ids
        ids.append(token)
        if len(ids) == limit:
            return attention, p_yes, ids
        out = peer(torch.tensor([[token]], device=peer.device), past_key_values=past, use_cache=True, logits_to_keep=1)
