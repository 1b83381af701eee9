"""Small bugs, put into the source one at a time: a test must fail for each.

    python tests/mutations.py                  every bug against the test that should catch it
    python tests/mutations.py --search         every bug against all tests, to see which of them catch it
    python tests/mutations.py [--search] NAME  bugs whose names contain NAME

All bugs together take about as long as all tests. So pytest leaves them out; .ci/run runs both.
"""
import sys

from chromium import installed
from mutant import failing, processes

# name: (file, text, the text that replaces it, the test that catches it)
MUTATIONS = {
    # RoPE
    "no RoPE": ("llama.py", "q, k = rotate(q, cos, sin), rotate(k, cos, sin)", "pass",
                "test_llama.py::test_model_equals_hugging_face"),
    "interleaved RoPE": (
        "llama.py", "second = x.chunk(2, dim=-1)\n    return x * cos + torch.cat((-second, first), dim=-1)",
        "second = x[..., ::2], x[..., 1::2]\n    return x * cos + torch.stack((-second, first), -1).flatten(-2)",
        "test_rope.py::test_half_split_rotation_by_hand"),
    "RoPE scaling dropped": (
        "llama.py", "if config.rope is None:",
        "if True:",
        "test_rope.py::test_inverse_frequencies"),
    "RoPE scaling not smoothed": ("llama.py", "torch.where(between, blended, scaled)", "scaled",
                                  "test_rope.py::test_inverse_frequencies"),
    "RoPE factor of another size": (
        "llama.py", "low, high, original = (config.rope[key] for key in (\"factor\", ",
        "low, high, original = (config.rope[key] if key != \"factor\" else 8.0 for key in (\"factor\", ",
        "test_rope.py::test_inverse_frequencies"),
    "frequencies in bfloat16": ("llama.py", "inverse_frequencies(config).to(self.device)",
                                "inverse_frequencies(config).to(self.device, self.dtype)",
                                "test_llama.py::test_model_equals_hugging_face"),
    "angles in bfloat16": ("llama.py", "positions[:, None, :, None].float() * inv_freq",
                           "positions[:, None, :, None].to(dtype) * inv_freq.to(dtype)",
                           "test_rope.py::test_cos_and_sin_equal_hugging_face"),
    "cos and sin stay float32": ("llama.py", "return angles.cos().to(dtype), angles.sin().to(dtype)",
                                 "return angles.cos(), angles.sin()",
                                 "test_rope.py::test_cos_and_sin_equal_hugging_face"),
    "all positions shifted by one": ("llama.py", "= rope_tables(positions, ", "= rope_tables(positions + 1, ",
                                     "test_llama.py::test_model_equals_hugging_face"),
    "keys not rotated": ("llama.py", "q, k = rotate(q, cos, sin), rotate(k, cos, sin)", "q = rotate(q, cos, sin)",
                         "test_llama.py::test_model_equals_hugging_face"),
    # norms, attention, SwiGLU
    "norm weight before the cast": ("llama.py", "return weight * y.to(x.dtype)", "return (weight * y).to(x.dtype)",
                                    "test_attention.py::test_block_by_block_equals_hugging_face"),
    "norm in the model's dtype": ("llama.py", "    y = at_least_float32(x)\n", "    y = x\n",
                                  "test_attention.py::test_block_by_block_equals_hugging_face"),
    "norm's epsilon ignored": ("llama.py", "keepdim=True) + eps)", "keepdim=True) + 1e-6)",
                               "test_attention.py::test_block_by_block_equals_hugging_face"),
    "SwiGLU in float32": (
        "llama.py", "w[at + \"mlp.gate_proj.weight\"]))                     # [B, T, hidden]\n"
                    "            x = x + F.linear(gate * F.linear(h, w[at + \"mlp.up_proj.weight\"]), ",
        "w[at + \"mlp.gate_proj.weight\"]).float())\n"
        "            x = x + F.linear((gate * F.linear(h, w[at + \"mlp.up_proj.weight\"])).to(x.dtype), ",
        "test_attention.py::test_block_by_block_equals_hugging_face"),
    "wrong GQA order": (
        "llama.py", "q[:, :, t].unflatten(1, (config.kv_heads, -1))",
        "q[:, :, t].unflatten(1, (-1, config.kv_heads)).transpose(1, 2)",
        "test_llama.py::test_model_equals_hugging_face"),
    "no 1/sqrt(K)": ("llama.py", " * q.shape[-1] ** -0.5", "", "test_attention.py::test_grouped_heads_by_hand"),
    "weights stay float32 for the values": (
        "llama.py", "weights.to(v.dtype), v), weights", "weights, v.float()).to(v.dtype), weights",
        "test_attention.py::test_attention_equals_hugging_face"),
    "softmax in the model's dtype": ("llama.py", "at_least_float32(scores).softmax(-1)", "scores.softmax(-1)",
                                     "test_attention.py::test_attention_equals_hugging_face"),
    "no mask": ("llama.py", "scores = scores.masked_fill(~mask[:, None, None], float(\"-inf\"))", "pass",
                "test_attention.py::test_masked_weights_are_exactly_0_and_rows_sum_to_1"),
    "mask off by one": ("llama.py", "<= positions[:, :, None]", "<= positions[:, :, None] + 1",
                        "test_cache.py::test_any_life_of_a_cache_equals_one_pass"),
    "fused mask aligned at the top left": (
        "llama.py", "(averaging is not None or max(start) > 0):",
        "averaging is not None:",
        "test_cache.py::test_any_life_of_a_cache_equals_one_pass"),
    # accumulation
    "second softmax": (
        "llama.py", "config.norm_eps), a\n",
        "config.norm_eps), None if a is None else a.softmax(-1)\n",
        "test_accumulation.py::test_generated_tokens_attend_to_nodes_as_in_hugging_face"),
    "head mean in bfloat16": (
        "llama.py", "a[:, t] += weights.mean((1, 2))[",
        "a[:, t] += weights.to(x.dtype).mean((1, 2)).to(a.dtype)[",
        "test_accumulation.py::test_bfloat16_keeps_the_mass"),
    "a node's mass in place of its mean": ("llama.py", "n] = 1 / (end - start)", "n] = 1",
                                           "test_cache.py::test_averages_are_over_the_tokens_of_a_node"),
    "attention of the predicting token": (                        # the row before: that of the token's predecessor
        "llama.py", "a[row].append(of_token[0])",
        "a[row] = [*a[row][1:], of_token[0], of_token[0]][-len(ids[row]):]",
        "test_accumulation.py::test_generated_tokens_attend_to_nodes_as_in_hugging_face"),
    "attention inside the node included": (
        "llama.py", "                    out[:, :, t] = of_block.flatten(1, 2)\n",
        "                    a[:, t] += weights.mean((1, 2))[:, :, averaging.shape[1]:].sum(-1, keepdim=True)\n"
        "                    out[:, :, t] = of_block.flatten(1, 2)\n",
        "test_accumulation.py::test_a_node_attends_to_the_question_as_in_hugging_face"),
    "attention written out for every prompt": (                   # right numbers, [T, T] held
        "llama.py", "self.forward(tokens, positions, mask, cache, averaging)",
        "self.forward(tokens, positions, torch.arange(max(start) + T) <= positions[:, :, None], cache, "
        "torch.zeros(1, 1, 1) if averaging is None else averaging)",
        "test_accumulation.py::test_peak_memory_grows_linearly"),
    # cache
    "cache position off by one": ("llama.py",
                                  "cache.lengths = [before + count for before, count in zip(start, counts)]",
                                  "cache.lengths = [before + count - 1 for before, count in zip(start, counts)]",
                                  "test_cache.py::test_any_life_of_a_cache_equals_one_pass"),
    "padded width for a row's length": ("llama.py",
                                        "cache.lengths = [before + count for before, count in zip(start, counts)]",
                                        "cache.lengths = [before + T for before in start]",
                                        "test_cache.py::test_any_life_of_a_cache_equals_one_pass"),
    "probe not rolled back": ("llama.py", "cache.rollback([end - len(probe) for end in cache.lengths])", "pass",
                             "test_cache.py::test_a_probe_leaves_no_trace"),
    "nodes survive a rollback": (
        "llama.py", "for j, span in row.items() if span[1] <= end}",
        "for j, span in row.items()}",
        "test_cache.py::test_any_life_of_a_cache_equals_one_pass"),
    "a dropped row leaves its nodes": ("llama.py", "        self.nodes = [self.nodes[b] for b in rows]\n", "",
                                       "test_cache.py::test_any_life_of_a_cache_equals_one_pass"),
    # generation and FLOPs
    "only the first eos ends a reply": (
        "llama.py", "not in self.config.eos and",
        "not in self.config.eos[:1] and",
        "test_llama.py::test_generation_stops_at_any_eos_and_at_the_limit"),
    "a finished row stays in the batch": ("llama.py", "rows = [rows[b] for b in running]",
                                          "rows = rows[:len(running)]",
                                          "test_llama.py::test_rows_of_different_lengths_are_independent"),
    "probes cost nothing": ("llama.py", "cache.rollback([end - len(probe) for end in cache.lengths])\n",
                            "cache.rollback([end - len(probe) for end in cache.lengths])\n"
                            "        self.flops -= len(probe)\n",
                            "test_flops.py::test_prefill_append_probe_and_decode_equal_the_flop_counter_of_torch"),
    "attention counted as a triangle": (
        "llama.py", "4 * config.layers * H",
        "2 * config.layers * H",
        "test_flops.py::test_prefill_append_probe_and_decode_equal_the_flop_counter_of_torch"),
    # GGUF files
    "query rows left interleaved": (
        "support/convert.py", "weights[name] = half_split(weights[name], config.heads)",
        "pass",
        "test_convert.py::test_plain_numbers_come_back"),
    "key rows by the query heads": (
        "support/convert.py", "half_split(weights[name], config.kv_heads)",
        "half_split(weights[name], config.heads)",
        "test_convert.py::test_plain_numbers_come_back"),
    "a GGUF file's eos alone ends a reply": (
        "support/convert.py", "for token in [*named, *known]", "for token in named",
        "test_convert.py::test_plain_numbers_come_back"),
    "recovered scaling unchecked": (
        "support/convert.py", "        check_scaling(path, config, factors)\n",
        "",
        "test_convert.py::test_what_is_not_known_is_refused_by_name"),
    "unknown keys of a GGUF file passed over": (
        "support/convert.py", "key.startswith(\"llama.\") and", "False and",
        "test_convert.py::test_what_is_not_known_is_refused_by_name"),
    "SmolLM's digits taken together": (
        "support/gguf_tokenizer.py", "pre_tokenizers.Digits(individual_digits=True)",
        "pre_tokenizers.Digits(individual_digits=False)", "test_convert.py::test_byte_level_ids"),
    "Llama 3's words always merged": ("support/gguf_tokenizer.py", "ignore_merges=pre != \"smollm\"",
                                      "ignore_merges=False", "test_convert.py::test_byte_level_ids"),
    "the lowest score is merged first": (
        "core/tokenizer.py", "(-scores[vocabulary[token]], ",
        "(scores[vocabulary[token]], ",
        "test_tokenizer.py::test_ids_equal_sentencepiece"),
    "control tokens are words": (
        "core/tokenizer.py", "special=types[i] != USER_DEFINED",
        "special=False",
        "test_convert.py::test_the_original_tokenizer_and_the_converted_one"),
    "no BOS by default": ("support/gguf_tokenizer.py", "by_default = kind == \"llama\" or", "by_default =",
                          "test_convert.py::test_sentencepiece_ids"),
    # tokenizer and template
    "BOS before every piece": ("core/tokenizer.py", "return tokenizer.encode(text, add_special_tokens=False)",
                               "return tokenizer.encode(text)",
                               "test_tokenizer.py::test_turns_equal_apply_chat_template"),
    "special tokens recognised in documents": (
        "core/tokenizer.py", "raw | {\"added_tokens\": []}",
        "raw",
        "test_tokenizer.py::test_a_document_cannot_smuggle_in_special_tokens"),
    "the template prints today": ("core/tokenizer.py", "TODAY = datetime.datetime(2024, 7, 26)",
                                  "TODAY = datetime.datetime.now()",
                                  "test_tokenizer.py::test_turns_equal_apply_chat_template"),
    # sentence encoders
    "MPNet's positions from 0": ("support/sbert.py", "first_position = 2", "first_position = 0",
                                 "test_sbert.py::test_hidden_states_equal_hugging_face"),
    "one-sided buckets": ("support/sbert.py", " + BUCKETS // 2 * (distance > 0)", "",
                          "test_sbert.py::test_hidden_states_equal_hugging_face"),
    "padding seen": ("support/sbert.py", ".masked_fill(~mask[:, None, None], float(\"-inf\"))", "",
                     "test_sbert.py::test_hidden_states_equal_hugging_face"),
    "mean for CLS": ("support/sbert.py", "if self.pooling == \"cls\":", "if False:",
                     "test_sbert.py::test_vectors_equal_hugging_face"),
    # stage 1
    "edges not normalised": (
        "pecan.py", "return share(a[tokens].cpu().double().mean(0))",
        "return a[tokens].cpu().double().mean(0)",
        "test_pecan.py::test_worked_example"),
    "sum over an IP's tokens, not normalised": (
        "pecan.py", "share(a[tokens].cpu().double().mean(0))",
        "a[tokens].cpu().double().sum(0)",
        "test_algorithm.py::test_edges_from_all_layers_and_heads"),
    # chosen heads
    "the first layer alone": (
        "llama.py", "@ averaging / config.layers\n",
        "@ averaging * (layer == 0)\n",
        "test_accumulation.py::test_generated_tokens_attend_to_nodes_as_in_hugging_face"),
    "averages of a row that has left": (
        "llama.py", "averaging[running, :max(cache.lengths)]",
        "averaging[running].roll(1, 1)[:, :max(cache.lengths)]",
        "test_llama.py::test_rows_of_different_lengths_are_independent"),
    "a repeated bullet is kept": ("pecan.py", "tokens.setdefault(\" \".join(text[start:end].split())",
                                  "tokens.setdefault(\" \".join(text[start:end].split()) + \" \" * start",
                                  "test_pecan.py::test_a_repeated_bullet_keeps_the_first"),
    "a repeated bullet brings its edges": ("pecan.py", "tokens.setdefault(", "tokens.__setitem__(",
                                           "test_pecan.py::test_a_repeated_bullet_keeps_the_first"),
    "softmax over the edges": (
        "pecan.py", "return share(a[tokens].cpu().double().mean(0))",
        "return a[tokens].cpu().double().mean(0).softmax(0)",
        "test_algorithm.py::test_edges_from_all_layers_and_heads"),
    "marker counted in an IP": ("core/text.py", "and token_end > start:", "and token_end >= start - 1:",
                                "test_algorithm.py::test_bullets_equal_the_naive_ones"),
    "marker counted in a node of a prompt": (
        "pecan.py", "[(None, tokenizer.encode(\"\\n*\")), (node, tokenizer.encode(\" \" + text))]",
        "[(None, []), (node, tokenizer.encode(\"\\n*\") + tokenizer.encode(\" \" + text))]",
        "test_algorithm.py::test_building_equals_the_naive_one"),
    "instruction tokens counted as a node": (
        "pecan.py", "(None, tokenizer.encode(SUMMARISE[1]) +",
        "(len(texts) - 1, tokenizer.encode(SUMMARISE[1]) +",
        "test_algorithm.py::test_building_equals_the_naive_one"),
    "attention of another group": (
        "pecan.py", "for texts, ids, a in zip(batch, replies, attention, ",
        "for texts, ids, a in zip(batch, replies, attention[::-1], ",
        "test_algorithm.py::test_building_equals_the_naive_one"),
    "no room kept for the summary": (
        "pecan.py", "room = settings.window - limit -",
        "room = settings.window -",
        "test_algorithm.py::test_building_equals_the_naive_one"),
    "a cut bullet is kept": ("core/text.py", "whole = spans if complete else spans[:-1]", "whole = spans",
                             "test_algorithm.py::test_bullets_equal_the_naive_ones"),
    "a level that does not shrink is kept": ("pecan.py", ">= sum(lengths):", "> 1e9:",
                                             "test_algorithm.py::test_building_equals_the_naive_one"),
    "one level too many": (
        "pecan.py", "        if len(groups) == 1:\n            break\n",
        "",
        "test_algorithm.py::test_building_equals_the_naive_one"),
    "passages mixed in a chunk": ("pecan.py", "in document.passages for", "in [\" \".join(document.passages)] for",
                                  "test_algorithm.py::test_building_equals_the_naive_one"),
    "builder ignored": (
        "pecan.py", "build(self.builder, document, self.settings, kept_or_new, progress)",
        "build(self.model, document, self.settings, kept_or_new, progress)",
        "test_pecan.py::test_two_models"),
    # stage 2
    "E for its transpose": ("pecan.py", "z = E.T @ r", "z = E @ r", "test_pecan.py::test_worked_example"),
    "z not normalised": ("pecan.py", "share(z) + share(", "z + share(",
                         "test_algorithm.py::test_scores_equal_the_naive_ones"),
    "cosine not clamped": ("pecan.py", "share(c.clamp(min=0))", "share(c)",
                           "test_algorithm.py::test_scores_equal_the_naive_ones"),
    "similarity clamped in the ablation": ("pecan.py", "        return z, c\n", "        return z, c.clamp(min=0)\n",
                                           "test_algorithm.py::test_scores_equal_the_naive_ones"),
    "position factor dropped": ("pecan.py", "self.r[node] = position * attention", "self.r[node] = attention",
                                "test_algorithm.py::test_searching_equals_the_naive_one"),
    "position factor off by one": ("pecan.py", "position = len(self.trace) + 2", "position = len(self.trace) + 1",
                                   "test_algorithm.py::test_searching_equals_the_naive_one"),
    "r is a sum over the node's tokens": ("pecan.py", ".cpu().double().mean().item()", ".cpu().double().sum().item()",
                                          "test_algorithm.py::test_searching_equals_the_naive_one"),
    "marker counted in a visited node": ("pecan.py", "a[0, first - before:end", "a[0, max(0, first - before - 2):end",
                                         "test_algorithm.py::test_searching_equals_the_naive_one"),
    "a check too many in a large top level": (
        "pecan.py", "probe=group.stop == len(chosen))",
        "probe=True)",
        "test_search.py::test_a_search_in_as_few_passes_as_it_can"),
    "a large top level in one pass": ("pecan.py", "max(PASS, *lengths)", "10 ** 9",
                                      "test_search.py::test_a_search_in_as_few_passes_as_it_can"),
    "a pass for each node of the top level": ("pecan.py", "max(PASS, *lengths)", "max(lengths)",
                                              "test_search.py::test_a_search_in_as_few_passes_as_it_can"),
    # the benchmark
    "a ratio upside down": ("tests/speed/measure.py", "ours / peer if unit.endswith(\"/s\") else peer / ours",
                            "peer / ours if unit.endswith(\"/s\") else ours / peer",
                            "test_benchmark.py::test_a_ratio_above_1_is_in_our_favour"),
    "a peer that attends from the row before": (
        "tests/speed/peer.py", "rows.append(mean[0, 0, :len(averaging)] @ averaging)",
        "rows.append(mean[0, 0, 1:len(averaging)] @ averaging[:-1])",
        "test_benchmark.py::test_the_benchmark_in_its_short_form"),
    "a peer that keeps its probes": (
        "tests/speed/peer.py", "            past.crop(-len(probe))\n", "            pass\n",
        "test_benchmark.py::test_the_benchmark_in_its_short_form"),
    # searches that advance together
    "a query's embedding is free": (
        "pecan.py", "        answer.flops += self.encoder.flops - start\n",
        "",
        "test_pecan.py::test_two_models"),
    "instruction counted in the question": (
        "pecan.py", "(None, tokenizer.frame.open + tokenizer.encode(ASK[0])), (\"q\", tokenizer.encode(question))",
        "(\"q\", tokenizer.frame.open + tokenizer.encode(ASK[0]) + tokenizer.encode(question))",
        "test_algorithm.py::test_searching_equals_the_naive_one"),
    "visited nodes may be read again": ("pecan.py", "        possible[self.visited] = False\n", "",
                                        "test_algorithm.py::test_searching_equals_the_naive_one"),
    "ties go to the higher id": ("pecan.py", "possible.nonzero()[:, 0]", "possible.nonzero()[:, 0].flip(0)",
                                 "test_algorithm.py::test_searching_equals_the_naive_one"),
    "Yes and No exchanged": ("pecan.py", "logits[yes_no]", "logits[yes_no[::-1]]",
                             "test_algorithm.py::test_searching_equals_the_naive_one"),
    "p_yes >= t_p": ("pecan.py", "p_yes > self.settings.confidence", "p_yes >= self.settings.confidence",
                     "test_algorithm.py::test_searching_equals_the_naive_one"),
    "confidence ignored": ("pecan.py", "p_yes > self.settings.confidence", "p_yes > 0.5",
                           "test_algorithm.py::test_searching_equals_the_naive_one"),
    "patience off by one": ("pecan.py", "yes >= self.settings.patience", "yes > self.settings.patience",
                            "test_algorithm.py::test_searching_equals_the_naive_one"),
    "a No starts patience anew": ("pecan.py", "yes += self.check()", "yes = yes + 1 if self.check() else 0",
                                  "test_algorithm.py::test_searching_equals_the_naive_one"),
    "no room kept for the answer": (
        "pecan.py", "self.lengths <= self.room",
        "self.lengths <= self.room + 4",
        "test_algorithm.py::test_searching_equals_the_naive_one"),
    "the top level in order of similarity": ("pecan.py", "        chosen.sort()\n", "",
                                             "test_algorithm.py::test_searching_equals_the_naive_one"),
    "always Yes in the answer turn": ("pecan.py", "\"No\" if self.trace[-1].verdict == \"No\" else \"Yes\"", "\"Yes\"",
                                      "test_search.py::test_the_last_verdict_stays_in_the_conversation"),
    # what only an eye for detail sees
    "fused attention in float32": (
        "llama.py", "q, k, v, attn_mask=None if mask is None else mask[:, None], is_causal=mask is None and T > 1,\n"
        "                    enable_gqa=config.heads != config.kv_heads)",
        "at_least_float32(q), at_least_float32(k), at_least_float32(v), attn_mask=None if mask is None else mask[:, "
        "None], is_causal=mask is None and T > 1, enable_gqa=config.heads != config.kv_heads).to(x.dtype)",
        "test_llama.py::test_the_fused_kernel_is_hugging_faces"),
    "all layers kept": (
        "llama.py", "                    a[:, t] += weights.mean(",
        "                    self.kept = [*getattr(self, \"kept\", []), weights]\n"
        "                    a[:, t] += weights.mean(",
        "test_accumulation.py::test_nothing_outlives_a_layer_but_the_sum"),
    "every block sees what the first one may": (
        "llama.py", "None if mask is None else mask[:, t])",
        "None if mask is None else mask[:, :min(block, T - t.start)])",
        "test_llama.py::test_attention_in_blocks_is_the_same"),
    # at full size
    "positions made on the CPU": (
        "llama.py", "[:, None] + torch.arange(T, device=self.device)", "[:, None] + torch.arange(T)",
        "test_meta.py::test_a_batch_of_windows_at_full_size"),
    "norms of a large model in its own dtype": (
        "llama.py", "    y = at_least_float32(x)\n", "    y = x\n",
        "test_meta.py::test_a_search_at_full_size"),
    "keys kept twice": (
        "llama.py", "        rows = torch.arange(slots.shape[0], device=slots.device)[:, None]\n",
        "        rows = torch.arange(slots.shape[0], device=slots.device)[:, None]\n"
        "        self.given = [*getattr(self, \"given\", []), keys]\n",
        "test_meta.py::test_a_batch_of_windows_at_full_size"),
    "attention of a long pass in one block": (
        "llama.py", "max(1, WEIGHTS // (4 * B * config.heads * k.shape[2]))", "T",
        "test_meta.py::test_a_search_at_full_size"),
    "keys of a group repeated": ("llama.py", "    scores = torch.einsum(\"bkgtd,bkpd->bkgtp\", q, k)",
                                 "    scores = torch.einsum(\"bkgtd,bkgpd->bkgtp\", q, k[:, :, None].repeat("
                                 "1, 1, q.shape[2], 1, 1))",
                                 "test_attention.py::test_the_keys_of_a_group_are_never_repeated"),
    "half a node stays a node": ("llama.py", "if span[1] <= end}", "if span[0] < end}",
                                 "test_cache.py::test_any_life_of_a_cache_equals_one_pass"),
    "head width of a config without one": (
        "core/checkpoint.py", "values[\"hidden_size\"] // values[\"num_attention_heads\"]",
        "128",
        "test_checkpoint.py::test_what_a_config_leaves_out_is_as_in_hugging_face"),
    "another wording of Table A2": ("pecan.py", "as concisely as you can.", "as shortly as you can.",
                                    "test_pecan.py::test_prompts_are_the_tables_of_the_paper"),
    "half of construction's FLOPs": (
        "pecan.py", "model.spent(start)[0])",
        "model.spent(start)[0] // 2)",
        "test_pecan.py::test_construction_flops_are_those_that_ran"),
    "similarity of another node in the trace": (
        "pecan.py", "c=self.c[best[0]].item()",
        "c=self.c[0].item()",
        "test_algorithm.py::test_searching_equals_the_naive_one"),
    "t_n of another paper": ("core/settings.py", "patience: int = 1 ", "patience: int = 2 ",
                             "test_paper.py::test_what_is_printed_once"),
    # metrics
    "F1 keeps articles": ("evaluation/metrics.py", "(a|an|the)", "(a|an)", "test_metrics.py::test_worked_examples"),
    "F1 puts blanks for punctuation": (
        "evaluation/metrics.py", "c for c in text.lower() if c not in string.punctuation",
        "\" \" if c in string.punctuation else c for c in text.lower()", "test_metrics.py::test_worked_examples"),
    "the worst gold answer counts": ("evaluation/metrics.py", "if same else 0.0\n\n    return max(",
                                     "if same else 0.0\n\n    return min(",
                                     "test_metrics.py::test_the_best_over_the_gold_answers"),
    # wires: a number of another question, document, option or row
    "node vectors rolled by one": ("pecan.py", "vectors, flops = node_vectors(path, self.encoder, texts)\n",
                                   "vectors, flops = node_vectors(path, self.encoder, texts)\n"
                                   "        vectors = vectors.roll(1, 0)\n",
                                   "test_wires.py::test_every_number_of_a_search_comes_from_its_own_question_and_"
                                   "document"),
    "vectors of the document before": ("pecan.py", "vectors, flops = node_vectors(path, self.encoder, texts)\n",
                                       "vectors, flops = node_vectors(path, self.encoder, texts)\n"
                                       "        vectors = self.__dict__.setdefault(\"before\", vectors)\n",
                                       "test_wires.py::test_every_number_of_a_search_comes_from_its_own_question_and_"
                                       "document"),
    "similarity to a constant text": ("pecan.py", "self.encoder.encode([question])", "self.encoder.encode([\"Who?\"])",
                                      "test_wires.py::test_every_number_of_a_search_comes_from_its_own_question_and_"
                                      "document"),
    "construction FLOPs averaged over questions": (
        "evaluation/metrics.py", "(\"construction_flops\", documents))",
        "(\"construction_flops\", rows))",
        "test_results.py::test_a_summary_by_hand"),
    "median for mean": (
        "evaluation/metrics.py", "return sum(values) / len(values)",
        "return sorted(values)[len(values) // 2]",
        "test_results.py::test_a_summary_by_hand"),
    "a data set's t_p never reaches a run": (
        "evaluation/plan.py", "PAPER.get(dataset.name, {}) | row.paper",
        "{\"answer_tokens\": PAPER.get(dataset.name, {}).get(\"answer_tokens\")} | row.paper",
        "test_wires.py::test_settings_of_the_papers_data_sets"),
    "a data set's answer length never reaches a run": (
        "evaluation/plan.py", "PAPER.get(dataset.name, {}) | row.paper",
        "{\"confidence\": PAPER.get(dataset.name, {}).get(\"confidence\")} | row.paper",
        "test_wires.py::test_settings_of_the_papers_data_sets"),
    "a data set's t_p beats --confidence": (
        "evaluation/plan.py", "chosen_settings(args), changes)",
        "chosen_settings(args), PAPER.get(dataset.name, {}) | changes)",
        "test_wires.py::test_settings_of_the_papers_data_sets"),
    "Table 3 ignores the fixed number of nodes": (
        "evaluation/methods.py", "paper.FIXED_NODES.get(dataset, \"mean\")",
        "\"mean\"",
        "test_wires.py::test_table_3_takes_one_part_away_a_row"),
    "Table 3's number of nodes is not asked for": (
        "evaluation/plan.py", "rows_of(args.table, dataset.name, ",
        "rows_of(args.table, \"\", ",
        "test_wires.py::test_table_3_takes_one_part_away_a_row"),
    "w/o attention runs w/o similarity": (
        "evaluation/methods.py", "changes={\"attention\": False}",
        "changes={\"similarity\": False}",
        "test_wires.py::test_table_3_takes_one_part_away_a_row"),
    "Table 2's third row searches its own graph": (
        "evaluation/methods.py", "for builder in (searcher, model):",
        "for builder in (searcher, searcher):",
        "test_wires.py::test_the_pairs_of_table_2"),
    "a row's builder is not loaded": (
        "evaluation/plan.py", "._replace(**row.checkpoints)",
        "",
        "test_wires.py::test_the_pairs_of_table_2"),
    "the window ignores the builder's length": (
        "evaluation/plan.py", "checkpoints.builder if row.is_pecan else None]",
        "None]",
        "test_wires.py::test_the_window_is_no_longer_than_the_builder_was_made_for"),
    "chunks split by words without their blank": (
        "core/text.py", "tokenizer.encode(between + part)", "tokenizer.encode(part)",
        "test_pecan.py::test_a_word_counts_with_the_blank_before_it"),
    "the interval of ROUGE-L taken from F1": (
        "evaluation/metrics.py", "= interval(values)\n    return found | accuracy",
        "= interval([100 * f1(row[\"prediction\"], row[\"answers\"]) for row in rows])\n    return found | accuracy",
        "test_metrics.py::test_scores_of_rows"),
    "room for six nodes above a large top level": (
        "core/settings.py", "RESERVE = 5 ", "RESERVE = 6 ",
        "test_search.py::test_the_room_that_a_large_top_level_leaves_to_the_token"),
    "half the window and a token more": (
        "pecan.py", "settings.chunk, room // 2)",
        "settings.chunk, room // 2 - 1)",
        "test_search.py::test_the_room_that_a_large_top_level_leaves_to_the_token"),
    "a token of a large top level's reserve": (
        "pecan.py", "room -= min(RESERVE * self.settings.chunk",
        "room -= min(RESERVE * self.settings.chunk - 1",
        "test_search.py::test_the_room_that_a_large_top_level_leaves_to_the_token"),
    "a top level that just fits is cut": (
        "pecan.py", "self.lengths[top_level].sum() > room:",
        "self.lengths[top_level].sum() >= room:",
        "test_search.py::test_the_room_that_a_large_top_level_leaves_to_the_token"),
    "all processes on cuda:0": ("evaluation/runner.py", "{self.local_rank %", "{0 %",
                                "test_wires.py::test_each_process_takes_its_own_gpu"),
    "the device of a process is not taken": (
        "evaluation/runner.py", "run.checkpoints._replace(device=self.team.device(run.checkpoints.device))",
        "run.checkpoints",
        "test_wires.py::test_each_process_takes_its_own_gpu"),
    "exact match of sets of words": (
        "evaluation/metrics.py", "any(words(prediction) == words(answer) for", "any(set(words(prediction)) == "
        "set(words(answer)) for", "test_metrics.py::test_exact_match_by_hand"),
    # compared methods
    "GARLIC with a threshold": (
        "evaluation/methods.py", "\"GARLIC\", changes={\"confidence\": 0.5})",
        "\"GARLIC\")",
        "test_wires.py::test_settings_of_the_papers_data_sets"),
    # what twenty further bugs and more found: rows, cells, estimates, checkpoints
    "line scored against the first gold answer": (
        "evaluation/predictions.py", "\"f1\": metrics.f1(answer.text, question.answers)",
        "\"f1\": metrics.f1(answer.text, question.answers[:1])",
        "test_results.py::test_a_line_of_predictions"),
    "line's ROUGE-L is its F1": (
        "evaluation/predictions.py", "\"rouge_l\": metrics.rouge_l(",
        "\"rouge_l\": metrics.f1(",
        "test_results.py::test_a_line_of_predictions"),
    "cut documents counted by question": (
        "evaluation/metrics.py", "len({row[\"hash\"] for row in rows if row[\"cut\"]})",
        "len([row for row in rows if row[\"cut\"]])",
        "test_results.py::test_a_summary_by_hand"),
    "rows of documents that were not asked for": (
        "evaluation/runner.py", "[answered[id] for id in run.dataset.questions if id in answered]",
        "list(answered.values())",
        "test_eval.py::test_a_row_counts_the_questions_of_its_call"),
    "label without its ablation": (
        "evaluation/plan.py", "*(f\"w/o {name}\" for name in args.without)",
        "",
        "test_wires.py::test_an_option_reaches_the_run"),
    "LongLLMLingua scored by the model": (
        "evaluation/methods.py", "LongLLMLingua, (\"scorer\",)",
        "LongLLMLingua, (\"model\",)",
        "test_wires.py::test_each_method_is_the_one_that_its_name_says"),
    "Dragon's encoders exchanged": (
        "evaluation/methods.py", "(\"question_tower\", \"passage_tower\")",
        "(\"passage_tower\", \"question_tower\")",
        "test_wires.py::test_each_method_is_the_one_that_its_name_says"),
    "tree traversal collapsed": (
        "evaluation/methods.py", "partial(Raptor, collapsed=False)",
        "partial(Raptor, collapsed=True)",
        "test_wires.py::test_raptors_rows_differ_by_how_they_retrieve"),
    "BM25 reads five": (
        "evaluation/runner.py", ", *filter(None, [run.top_k]))",
        ")",
        "test_wires.py::test_each_method_is_the_one_that_its_name_says"),
    "--dragon ignored": (
        "evaluation/methods.py", "load_towers(self.checkpoints.dragon,",
        "load_towers(None,",
        "test_wires.py::test_each_method_is_the_one_that_its_name_says"),
    "scorer in another dtype": (
        "evaluation/methods.py", "Llama.load(of.scorer, of.device, of.dtype)",
        "Llama.load(of.scorer, of.device)",
        "test_wires.py::test_each_method_is_the_one_that_its_name_says"),
    "Table 3 shows F1 as ROUGE-L": (
        "evaluation/cells.py", "\"ROUGE-L\": lambda run: one_decimal(run[\"rouge_l\"])",
        "\"ROUGE-L\": lambda run: one_decimal(run[\"f1\"])",
        "test_results.py::test_each_number_is_under_its_header"),
    "shortest and longest exchanged": (
        "evaluation/layouts/dataset.py", "\"least\": min(counts), \"most\": max(counts)",
        "\"least\": max(counts), \"most\": min(counts)",
        "test_datasets.py::test_the_limit_counts_documents"),
    "interval of ROUGE-L next to F1": (
        "evaluation/cells.py", "*run[\"f1_interval\"]",
        "*run[\"rouge_l_interval\"]",
        "test_results.py::test_each_number_is_under_its_header"),
    "bins one too narrow": (
        "evaluation/tables.py", "counts[n // 5] += queries",
        "counts[n // 5] = queries",
        "test_results.py::test_a_histogram_loses_no_query"),
    "Figure 4's FLOPs are construction's": (
        "evaluation/cells.py", "quantity(run[\"flops\"])",
        "quantity(run[\"construction_flops\"])",
        "test_results.py::test_each_number_is_under_its_header"),
    "memory by query heads": (
        "evaluation/cost.py", "2 * config.layers * config.kv_heads",
        "2 * config.layers * config.heads",
        "test_meta.py::test_a_batch_of_windows_at_full_size"),
    "checks are free": (
        "evaluation/cost.py", "search += checks * flops_of(config, len(tokenizer.frame.close), opening + read, 1)",
        "pass",
        "test_results.py::test_the_estimate_counts_every_part"),
    "a reply's first token read again": (
        "evaluation/cost.py", "for n in range(1, tokens))", "for n in range(tokens))",
        "test_results.py::test_the_cost_of_a_generation_is_what_it_costs"),
    "instruction of a summary is free": (
        "evaluation/cost.py", "sum(generation(builder.config, prompt, summary)",
        "sum(generation(builder.config, prompt - instruction, summary)",
        "test_results.py::test_the_estimate_counts_every_part"),
    "answer's room not cut off the whole": (
        "evaluation/cost.py", "whole_window - settings.answer_tokens)", "whole_window)",
        "test_results.py::test_the_estimate_counts_every_part"),
    "answers kept for other gold answers": (
        "evaluation/predictions.py",
        "(row[\"hash\"], row[\"question\"], row[\"answers\"]) != (document.hash, question.text, question.answers)",
        "(row[\"hash\"], row[\"question\"]) != (document.hash, question.text)",
        "test_eval.py::test_answers_belong_to_their_question_gold_answers_and_text"),
    "answers kept for another question": (
        "evaluation/predictions.py",
        "(row[\"hash\"], row[\"question\"], row[\"answers\"]) != (document.hash, question.text, question.answers)",
        "(row[\"hash\"], row[\"answers\"]) != (document.hash, question.answers)",
        "test_eval.py::test_answers_belong_to_their_question_gold_answers_and_text"),
    "builder in another dtype": (
        "support/options.py", "Llama.load(args.builder, args.device, args.dtype)",
        "Llama.load(args.builder, args.device)",
        "test_wires.py::test_each_method_is_the_one_that_its_name_says"),
    "--encoder ignored": (
        "support/options.py", "load_encoder(args.encoder, model)",
        "load_encoder(None, model)",
        "test_wires.py::test_each_method_is_the_one_that_its_name_says"),
    "--batch ignored": (
        "support/options.py", "\"batch\": args.batch",
        "\"batch\": None",
        "test_wires.py::test_an_option_reaches_the_run"),
    "longest window of the longer model": (
        "support/options.py", "return min(config.max_length",
        "return max(config.max_length",
        "test_wires.py::test_the_window_is_no_longer_than_the_builder_was_made_for"),
    "ablations of options exchanged": (
        "support/options.py", "\"attention\": False if \"attention\" in",
        "\"attention\": False if \"similarity\" in",
        "test_wires.py::test_an_option_reaches_the_run"),
    "readers of other windows mixed": (
        "core/settings.py", "(\"chunk\", \"window\", \"summary_share\", \"answer_tokens\")}\n",
        "(\"chunk\", \"summary_share\", \"answer_tokens\")}\n", "test_wires.py::test_a_setup_keeps_readers_apart"),
    "PECAN's setups without the tree": (
        "core/settings.py", "if name != \"batch\"}", "if name not in (\"batch\", \"tree\")}",
        "test_wires.py::test_a_setup_keeps_readers_apart"),
    "one fingerprint for all embeddings": (
        "support/token_mean.py", "f\"whitened mean {model.fingerprint}\"",
        "\"whitened mean\"",
        "test_wires.py::test_kept_vectors_are_those_of_their_encoder_and_texts"),
    "a text that just fits is not read": ("baselines/common.py", "if len(line) <= room:", "if len(line) < room:",
                                          "test_baselines.py::test_a_text_that_just_fits_is_read"),
    "negative idf kept": ("baselines/bm25.py", "value if value >= 0 else floor", "value",
                          "test_baselines.py::test_okapi_equals_rank_bm25"),
    "the worst chunks are read": (
        "baselines/common.py", "key=lambda i: (-scores[i], i)",
        "key=lambda i: (scores[i], i)",
        "test_baselines.py::test_dense_reads_what_numpy_ranks"),
    "Dragon brought to length 1": ("support/sbert.py", "pooling=\"cls\", unit=False)", "pooling=\"cls\")",
                                   "test_sbert.py::test_two_towers_equal_hugging_face"),
    "hard clusters": ("baselines/raptor.py", "member = probability > MEMBER", "member = probability > 2",
                      "test_baselines.py::test_mixture_has_the_least_bic_and_soft_members"),
    "an unlikely node is lost": ("baselines/raptor.py", "    member[np.arange(len(points)), probability.argmax(1)] = "
                                 "True\n", "",
                                 "test_baselines.py::test_a_node_below_the_threshold_keeps_its_likeliest_cluster"),
    "traversal looks at all nodes": (
        "baselines/raptor.py", "highest(scores, self.top_k, layer)",
        "highest(scores, self.top_k)",
        "test_baselines.py::test_traversal_and_collapsed_tree"),
    "a walk comes back to where it was": ("baselines/memwalker.py", "closed.add(path.pop())", "path.pop()",
                                          "test_baselines.py::test_a_walk_turns_back"),
    "the first action of a reply counts": ("baselines/memwalker.py", "reply)[-1:]", "reply)[:1]",
                                           "test_baselines.py::test_the_last_action_of_a_reply_counts"),
    "the oldest memory is read first": ("baselines/memwalker.py", "[segment, *reversed(memory)]", "[segment, *memory]",
                                        "test_baselines.py::test_the_latest_memory_is_read_first"),
    "the latest memory is left out first": (
        "baselines/memwalker.py", "\" \".join(memory[first:])",
        "\" \".join(memory[:len(memory) - first])",
        "test_baselines.py::test_memory_gives_way_to_the_window"),
    "units ranked the wrong way": ("baselines/longllmlingua.py", "key=lambda i: perplexity[i])",
                                   "key=lambda i: -perplexity[i])",
                                   "test_baselines.py::test_compression_keeps_within_its_target"),
    "the question's tokens off by one": ("baselines/longllmlingua.py", "h[len(ids) - len(asked) - 1:len(ids) - 1]",
                                         "h[len(ids) - len(asked):len(ids)]",
                                         "test_baselines.py::test_ranking_equals_hugging_face"),
    "contrast reversed": ("baselines/longllmlingua.py", "alone.losses(ids) - given.losses(ids)",
                          "given.losses(ids) - alone.losses(ids)",
                          "test_baselines.py::test_dropping_equals_hugging_face"),
    "a window is not rolled back": ("baselines/longllmlingua.py", "        self.cache.rollback(before)\n", "",
                                   "test_baselines.py::test_dropping_equals_hugging_face"),
    # nothing silent
    "padding is counted": ("llama.py", "flops_of(self.config, counts[b], start[b] + counts[b])",
                           "flops_of(self.config, T, max(start) + T)",
                           "test_flops.py::test_rows_that_run_together_cost_what_they_cost_alone"),
    "numbers that are not finite go on": (
        "llama.py", "if not logits.isfinite().all():",
        "if False:",
        "test_checkpoint.py::test_logits_that_are_not_finite_are_named"),
    "E keeps zeros": (
        "support/graph.py", "torch.sparse_coo_tensor(places, weights, (V, V), check_invariants=True).coalesce()",
        "torch.sparse_coo_tensor(places, weights, (V, V), check_invariants=True).to_dense()",
        "test_pecan.py::test_E_costs_what_its_edges_cost"),
    "two batches of caches live at once": (
        "pecan.py", "    cache = Cache(model, len(batch), max(",
        "    cache = model.kept = Cache(model, len(batch), max(",
        "test_pecan.py::test_one_batch_of_caches_lives_at_a_time"),
    "half of a large top level is lost": (
        "pecan.py", "room -= min(RESERVE * self.settings.chunk, room // 2)",
        "room //= 2",
        "test_search.py::test_the_room_that_a_large_top_level_leaves_to_the_token"),
    "a task that cannot be printed": ("evaluation/layouts/longbench.py", " or not task.isprintable():", ":",
                                      "test_datasets.py::test_a_task_that_cannot_be_printed_is_no_task"),
    "an interrupted construction begins again": (
        "support/kept.py", "if of in found:",
        "if False:",
        "test_graph_file.py::test_an_interrupted_construction_goes_on"),
    "an edge of no weight": (
        "pecan.py", "strict=True) if weight > 0]",
        "strict=True)]",
        "test_graph_file.py::test_attention_that_rounds_to_0_is_no_edge"),
    "a torn batch is kept": (
        "core/files.py", "file.truncate(file.read().rfind(b\"\\n\") + 1)",
        "pass",
        "test_hostile.py::test_a_torn_line_is_cut_off_before_the_next"),
    "vectors of other texts": ("support/graph.py", "if texts_of == identity:", "if True:",
                               "test_graph_file.py::test_vectors_are_kept_with_the_graph"),
    "the dry run forgets what a layer computes": (
        "evaluation/cost.py", "computed * tokens)",
        "0 * tokens)",
        "test_meta.py::test_a_batch_of_windows_at_full_size"),
    "one method that fails ends the run": (
        "eval.py", "        except OutputError:\n            raise\n        except InputError",
        "        except ValueError:\n            raise\n        except InputError",
        "test_eval.py::test_one_method_that_fails_does_not_end_the_run"),
    "differences are not paired": (
        "evaluation/metrics.py", "(ours[id] - theirs[id])",
        "(ours[id] - mean(list(theirs.values())))",
        "test_metrics.py::test_differences_are_paired"),
    "a process goes on when another has refused": (
        "evaluation/runner.py",
        "failed = team.together(lambda: answer_all(method, documents, predictions, run, shown=team.rank == 0))",
        "failed = [answer_all(method, documents, predictions, run, shown=team.rank == 0)]",
        "test_eval.py::test_what_one_process_refuses_all_refuse"),
    "threads by the reader alone": (
        "support/options.py", "for checkpoint in (model, builder or model))\n        torch",
        "for checkpoint in (model,))\n        torch", "test_options.py::test_a_small_model_runs_on_one_thread"),
    "an encoder's padding is counted": (
        "support/sbert.py", "mask.sum(1).tolist()",
        "[mask.shape[1]] * len(mask)",
        "test_sbert.py::test_flops_by_hand"),
    "vectors of NaN": (
        "support/sbert.py", "if not products.isfinite().all()",
        "if False",
        "test_sbert.py::test_equal_vectors_have_equal_similarities"),
    "threads left alone": ("support/options.py", "1 if widest < SMALL else THREADS", "THREADS",
                           "test_options.py::test_a_small_model_runs_on_one_thread"),
    "one thread for ever": ("support/options.py", "torch.set_num_threads(1 if widest < SMALL else THREADS)",
                            "widest < SMALL and torch.set_num_threads(1)",
                            "test_options.py::test_a_small_model_runs_on_one_thread"),
    "a shortage of memory ends the run": (
        "evaluation/runner.py", "with enough_memory():\n                    answer = method",
        "if True:\n                    answer = method",
        "test_eval.py::test_one_method_that_fails_does_not_end_the_run"),
    "a fingerprint of the whole folder": (
        "core/checkpoint.py", "*(folder / name for name in FILES)",
        "*(path for path in folder.iterdir() if path.is_file())",
        "test_checkpoint.py::test_a_fingerprint_is_of_what_is_read"),
    # the systems of other papers
    "the queue read from its end": (
        "baselines/graphreader.py", '        chunk = self.queue.pop(0)\n',
        '        chunk = self.queue.pop()\n',
        "test_graphreader.py::test_branches_of_a_walk"),
    "an inserted chunk goes to the end": (
        "baselines/graphreader.py", 'self.queue = [chunk, *(i for i in self.queue if i != chunk)]',
        'self.queue = [*(i for i in self.queue if i != chunk), chunk]',
        "test_graphreader.py::test_branches_of_a_walk"),
    "the first action anywhere in a reply": (
        "baselines/graphreader.py", '*found, chosen = re.split("chosen action", reply, flags=re.IGNORECASE)',
        'found, chosen = "x", reply',
        "test_graphreader.py::test_actions"),
    "an echo of all actions acts": (
        "baselines/graphreader.py", 'len({name for name, _ in calls}) != 1',
        'not calls',
        "test_graphreader.py::test_actions"),
    "another stage's action": (
        "baselines/graphreader.py", "({OFFERED[stage]})",
        "({'|'.join(OFFERED.values())})",
        "test_graphreader.py::test_actions"),
    "where a walk began is not offered again": (
        "baselines/graphreader.py", " for j in self.graph.neighbours[self.node]]",
        " for j in self.graph.neighbours[self.node] if self.graph.names[j] not in self.question]",
        "test_story.py::test_the_story"),
    "one of two calls is read": (
        "baselines/graphreader.py", '", ".join(dict.fromkeys(argument for _, argument in calls if argument))',
        'calls[-1][1]',
        "test_graphreader.py::test_branches_of_a_walk"),
    "chunks without facts of the node": (
        "baselines/graphreader.py", "{chunk for chunk, _ in self.graph.facts[self.node]}",
        "range(len(self.chunks))",
        "test_graphreader.py::test_branches_of_a_walk"),
    "scores in one form alone": (
        "baselines/replies.py", r"(.+?)(?:(?<=[,;?])\s|\n)", r"(.+?)(?<=,)\s",
        "test_graphreader.py::test_scores"),
    "no normalisation of key elements": (
        "baselines/fact_graph.py", 'return " ".join(map(stem, re.sub(r"[\\W_]+", " ", text).split()))',
        'return element',
        "test_graphreader.py::test_forms_and_names"),
    "a node keeps its last fact alone": (
        "baselines/fact_graph.py", "self.facts[node].append((chunk, fact))", "self.facts[node][:] = [(chunk, fact)]",
        "test_graphreader.py::test_every_question_of_the_world_is_answered_by_rules"),
    "a missing notebook empties it": (
        "baselines/graphreader.py", "notebook_of(reply) or self.notebook",
        "notebook_of(reply)",
        "test_graphreader.py::test_notebooks_of_a_walk"),
    "the lower score of two counts": (
        "baselines/fact_graph.py", 'scores[node] = max(scores.get(node, 0.0), min(100.0, float(score[1])))',
        'scores[node] = min(scores.get(node, 100.0), min(100.0, float(score[1])))',
        "test_graphreader.py::test_scores"),
    "the example of Figure 6 is a fact": (
        "baselines/fact_graph.py", ' and (fact != EXAMPLE or EXAMPLE in chunk)',
        '',
        "test_graphreader.py::test_facts_of_a_reply"),
    "refused replies are not counted": (
        "baselines/agent.py", "                self.refused += not found[n]\n",
        "",
        "test_graphreader.py::test_branches_of_a_walk"),
    "facts extracted again for each question": (
        "baselines/built.py", "if path is not None and Path(path).exists():",
        "if False:",
        "test_graphreader.py::test_walks_do_not_see_each_other"),
    "micro pairs for every entity": (
        "baselines/mkrag.py", "if len(items) >= MICRO_ITEMS:",
        "if items:",
        "test_mkrag.py::test_grains_by_hand"),
    "feature pairs above tau_1 alone": (
        "baselines/mkrag.py", "if len(items) >= FEATURE_ITEMS:",
        "if len(items) > FEATURE_ITEMS:",
        "test_mkrag.py::test_grains_by_hand"),
    "an entity pruned at its threshold": (
        "baselines/mkrag.py", "weights.get(name.lower(), TAU) >= TAU",
        "weights.get(name.lower(), TAU) > TAU",
        "test_mkrag.py::test_pruning"),
    "weights summed over the items": (
        "baselines/mkrag.py", "weights.get(name.lower(), TAU) >= TAU",
        "weights.get(name.lower(), TAU) * len(entities[name]) >= TAU",
        "test_mkrag.py::test_pruning"),
    "general times are kept": (
        "baselines/mkrag.py", 'return rest if dash and words and words <= GENERAL else event',
        'return event',
        "test_mkrag.py::test_general_times"),
    "what comes before a dash is a time": (
        "baselines/mkrag.py", 'dash and words and words <= GENERAL',
        'dash and words and not re.search(r"\\d{4}", time)',
        "test_mkrag.py::test_general_times"),
    "JSON keys in one case": (
        "baselines/mkrag.py", 'fields = {key.lower(): inner for',
        'fields = {key: inner for',
        "test_mkrag.py::test_shapes_of_json"),
    "JSON that describes nothing": (
        "baselines/mkrag.py", 'if name and items and not echoes',
        'if name and not echoes',
        "test_mkrag.py::test_json_that_describes_nothing_is_refused"),
    "a reply that was cut is lost": (
        "baselines/mkrag.py", 'except json.JSONDecodeError:\n            continue',
        'except json.JSONDecodeError:\n            break',
        "test_mkrag.py::test_a_reply_that_was_cut_keeps_its_complete_entities"),
    "names compared with their case": (
        "baselines/mkrag.py", 'found.setdefault(name.lower(),',
        'found.setdefault(name,',
        "test_mkrag.py::test_entities_of_one_name_are_joined"),
    "the re-ranker reversed": (
        "baselines/mkrag.py", "highest(dict(zip(closest, sure)), RERANKED, closest)",
        "highest({i: -p for i, p in zip(closest, sure)}, RERANKED, closest)",
        "test_mkrag.py::test_retrieval_equals_numpy"),
    "all pairs re-ranked": (
        "baselines/mkrag.py", "highest(scores, RETRIEVED)",
        "highest(scores, len(scores))",
        "test_mkrag.py::test_retrieval_equals_numpy"),
    "a third round": (
        "baselines/mkrag.py", 'ROUNDS = 2 ',
        'ROUNDS = 3 ',
        "test_mkrag.py::test_ends_of_the_loop"),
    "a single round": (
        "baselines/mkrag.py", "ROUNDS = 2 ",
        "ROUNDS = 1 ",
        "test_mkrag.py::test_ends_of_the_loop"),
    "a repeated query is asked again": (
        "baselines/mkrag.py", ' or text in new:',
        ':',
        "test_mkrag.py::test_ends_of_the_loop"),
    "statements are sub-questions": (
        "baselines/mkrag.py", "in lines_of(reply) if \"?\" in line]",
        "in lines_of(reply)]",
        "test_mkrag.py::test_ends_of_the_loop"),
    "the observation repeats the question": (
        "baselines/mkrag.py", "{prepared.graph[found[0]][1]}",
        "{prepared.graph[found[0]][0]}",
        "test_story.py::test_the_story"),
    "a rewritten question forgets what was found": (
        "baselines/mkrag.py", "            new = [text]\n", "            new = [text]\n            order = []\n",
        "test_story.py::test_the_story"),
    "relations of the nodes that lead here": (
        "baselines/jerr.py", "memory[\"edges\"] if a == v]", "memory[\"edges\"] if b == v]",
        "test_story.py::test_the_story"),
    "a walk that forgets its actions": (
        "baselines/graphreader.py", "memory = [*self.actions, self.plan]", "memory = [*self.actions[-1:], self.plan]",
        "test_story.py::test_the_story"),
    "options are no concern of the look-up": (
        "baselines/jerr.py", "most = OPTIONS_LOOKED_UP if options else LOOKED_UP",
        "most = LOOKED_UP",
        "test_jerr.py::test_questions_with_options"),
    "an empty result is accepted": (
        "baselines/agent.py", "enumerate(found) if not value]", "enumerate(found) if value is None]",
        "test_agent.py::test_refused_replies_are_asked_for_again"),
    "what was accepted is asked again": (
        "baselines/agent.py", "enumerate(found) if not value]", "enumerate(found)]",
        "test_agent.py::test_refused_replies_are_asked_for_again"),
    "no room for the reminder": (
        "baselines/agent.py", "self.length(reminder(wanted) + text)",
        "self.length(text)",
        "test_agent.py::test_what_does_not_fit_is_left_out"),
    "batches in another order": (
        "baselines/agent.py", "            said += self.replies(self.model, texts[first:first + batch], limit)\n",
        "            said = [*self.replies(self.model, texts[first:first + batch], limit), *said]\n",
        "test_agent.py::test_replies_keep_the_order_of_their_prompts"),
    # trace and replay
    "cosines of a trace that are others": ("view/trace.py", '"c": search.c.tolist()', '"c": (search.c + 1e-6).tolist()',
                                   "test_view.py::test_traces_with_other_settings_follow"),
    "the room of a trace is what was left": ("view/trace.py", " + search.lengths[search.visited].sum().item()", "",
                                             "test_view.py::test_traces_with_other_settings_follow"),
    "z is not replayed": ("view/replay.py", "of_z, z[i])", "of_z, of_z)", "test_view.py::test_tampering_is_refused"),
    "the score is not replayed": ("view/replay.py", "score, final[i])", "score, score)",
                                  "test_view.py::test_a_better_node_that_was_left_out_is_refused"),
    "a better node is not replayed": ("view/replay.py", "[i for i, _, _ in step.candidates], best)", "best, best)",
                                      "test_view.py::test_a_better_node_that_was_left_out_is_refused"),
    "the position is not replayed": ("view/replay.py", "step.position, number + 1)", "step.position, step.position)",
                                     "test_view.py::test_tampering_is_refused"),
    "the hash of the graph is not checked": ("view/trace.py", "if sha256([file]) != digest:", "if False:",
                                             "test_view.py::test_a_changed_graph_is_refused"),
    "the start is not replayed": ("view/replay.py", "opening, begun)", "begun, begun)",
                                  "test_view.py::test_another_start_is_refused"),
    "the end is not replayed": ("view/replay.py", "answer.end, ending(trace, answer.trace))", "answer.end, answer.end)",
                                "test_view.py::test_tampering_is_refused"),
    "a text may end the page's data": ("view/page.py", '.replace("<", "\\\\u003c")', "",
                                       "test_page.py::test_hostile_text_is_shown_and_not_run"),
    "figures of the page to two digits": ("view/page.js", "value.toPrecision(3)", "value.toPrecision(2)",
                                          "test_page.py::test_every_figure_of_every_step"),
    "small figures of the page to two digits": ("view/page.js", "value.toExponential(2)", "value.toExponential(1)",
                                                "test_page.py::test_every_figure_of_every_step"),
    "nodes of the page on top of each other": ("view/page.js", "blocks.at(-1).sum / blocks.at(-1).count >= ",
                                               "0 > ", "test_page.py::test_no_node_covers_another"),
    "any script in the page": ("view/page.html.jinja", "script-src {{ script_hash|safe }}",
                               "script-src 'unsafe-inline'",
                               "test_page.py::test_the_policy_stops_a_script_that_got_in"),
    "a parameter is taken for a function": ("view/annotate.py", " and node.id not in local:", ":",
                                            "test_annotate.py::test_names_in_the_code_lead_to_their_definitions"),
    "names after self belong to no class": ("view/annotate.py", 'full.split(".")[1] if owner == "self"',
                                            'owner if owner == "self"',
                                            "test_annotate.py::test_names_in_the_code_lead_to_their_definitions"),
    "annotated lines one too low": ("view/annotate.py", "zip(count(1)", "zip(count(0)",
                                    "test_annotate.py::test_every_line_of_code_is_there_once_with_its_number"),
    "a silent choice over two lines": ("view/annotate.py", r"paper\s+does\s+not\s+say", "paper does not say",
                                       "test_annotate.py::test_every_silent_choice_is_marked"),
    "comments gather before the next function": ("view/annotate.py", "if number in starts or comments and line:",
                                                 "if number in starts:",
                                                 "test_annotate.py::test_every_comment_stands_beside_its_code"),
    "the paper leads to one function a row": ("view/annotate.html.jinja", "{% for name in names[1:] %}",
                                              "{% for name in names[2:] %}",
                                              "test_annotate.py::test_every_row_of_the_paper_leads_to_its_line"),
    "tensors of every section at once": ("view/annotate.html.jinja", " if section == seen[0][0] %}", " %}",
                                         "test_annotate.py::test_tensors_are_those_of_the_walk"),
    "values of tensors in another order": ("view/annotate.html.jinja", "in values.split() %}",
                                           "in values.split()|sort %}",
                                           "test_annotate.py::test_the_scores_are_those_of_four_nodes"),
    "a code column too narrow for 120 letters": ("view/annotate.css", "calc(120 * .603", "calc(110 * .603",
                                                 "test_annotate.py::test_nothing_is_cut_at_1400_pixels"),
    "a link scrolls past the name of its stage": ("view/annotate.css", "article { border",
                                                  "article { scroll-margin: -80px; border",
                                                  "test_annotate.py::test_nothing_is_cut_at_1400_pixels"),
    "closed tensors are printed": ("view/annotate.css", "#open, details:not([open]) {", "#open {",
                                   "test_annotate.py::test_in_print"),
    "code is printed too large": ("view/annotate.css", "font-size: 6.8pt", "font-size: 8pt",
                                  "test_annotate.py::test_in_print"),
    "the glossary is older than the settings": ("core/settings.py", "RESERVE = 5 ", "RESERVE = 6 ",
                                                "test_paper.py::test_the_glossary_gives_the_values_of_the_settings"),
    "the drawing is cut on a telephone": ("view/annotate.css", "  header pre { font-size:", "  nothing { font-size:",
                                          "test_annotate.py::test_on_a_telephone"),
    "comments too pale in the dark": ("view/annotate.css", "--soft: #a19d94", "--soft: #6b675e",
                                      "test_annotate.py::test_contrast"),
    "the place is marked once": ("view/annotate.js", "if (now === here) return;", "if (here) return;",
                                 "test_annotate.py::test_the_current_place_is_marked_in_both_orders"),
    "a menu that stays open": ("view/annotate.js", "nav.hidePopover();", "void 0;",
                               "test_annotate.py::test_on_a_telephone"),
    "token ids to four digits": ("view/walk.py", "else str(value) for", "else f\"{value:.4g}\" for",
                                 "test_walk.py::test_whole_numbers_stay_whole"),
    "the walk leaves out zeros of four nodes": ("view/walk.py", " and len(values) > SHOWN else values", " else values",
                                                "test_walk.py::test_the_walk_is_a_search_that_always_says_no"),
    "scores of other nodes than are named": ("view/walk.py", "*(x[nodes] for x in", "*(x[:4] for x in",
                                             "test_walk.py::test_the_walk_is_a_search_that_always_says_no"),
    "what was watched stays changed": ("core/watch.py", "        setattr(owner, name, function)", "        pass",
                                       "test_walk.py::test_watching_ends_with_an_error"),
    "a dump with the nodes of the first group": ("view/dump.py", "            first += len(texts)\n", "",
                                                 "test_dump.py::test_e_from_the_attention_of_every_group"),
    "a dump of a later r": ("view/dump.py", "(r.clone(), *scores)", "(r, *scores)",
                            "test_dump.py::test_the_order_of_retrieval"),
    # command lines and pictures
    "examples left out of --help": ("core/command.py", '("    python ", "    torchrun ")', '("    none ",)',
                                    "test_command.py::test_help_has_examples_that_are_understood"),
    "JSON next to the table": ("eval.py", "        print(json.dumps(numbers, ",
                               "        print(shown, json.dumps(numbers, ", "test_command.py::test_results_as_json"),
    "a picture refused after the run": ("eval.py", "    if args.pictures:\n        pictures.check(args.table)\n", "",
                                        "test_pictures.py::test_what_cannot_be_drawn_is_refused_before_the_run"),
    "the interval of nodes over documents": (
        "evaluation/metrics.py", "(\"nodes\", rows), ",
        "(\"nodes\", documents), ",
        "test_results.py::test_a_summary_by_hand"),
    # bad input
    "pairs in one line alone": (
        "baselines/replies.py", r"{first}){sign}?:[\s*]*+", r"{first}){sign}?:[ *]*+",
        "test_mkrag.py::test_forms_of_pairs"),
    "micro pairs of one reply": (
        "baselines/mkrag.py", 'self.limit // (MICRO_TOKENS if grain == "micro" else 1)', "self.limit",
        "test_mkrag.py::test_an_entity_of_300_items_is_built_whole_and_continued"),
    "a title alone at the end of a chunk": (
        "baselines/passages.py", "if after_heading:", "if False:",
        "test_baselines.py::test_no_chunk_ends_after_a_title_or_inside_a_sentence"),
    "lines as sentences": (
        "baselines/passages.py", 'r"(?<=[.!?]) ", " ".join(text.split()))', 'r"(?<=[.!?])\\s+|\\n", text)',
        "test_baselines.py::test_no_chunk_ends_after_a_title_or_inside_a_sentence"),
    "a dry run of another builder": (
        "evaluation/cost.py", "for name in (of.model, of.builder or of.model))",
        "for name in (of.model, of.model))",
        "test_eval.py::test_the_dry_run_estimates_the_cost"),
    "summaries of other texts": (
        "support/kept.py", "json.dumps([construction, *arguments]).encode()",
        "json.dumps([construction, [len(texts) for texts in arguments[0]]]).encode()",
        "test_graph_file.py::test_summaries_of_other_texts_are_not_taken"),
    "two builders of one graph": (
        "core/files.py", "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        "test_graph_file.py::test_a_second_builder_is_refused"),
    "a file that keeps nothing stays": (
        "support/kept.py", "if complete or not file.stat().st_size:",
        "if complete:",
        "test_graph_file.py::test_a_second_builder_is_refused"),
    "summaries of another model": (
        "support/kept.py", "json.dumps([construction, *arguments]).encode()",
        "json.dumps(arguments).encode()",
        "test_graph_file.py::test_summaries_of_other_texts_are_not_taken"),
    "one name for what two processes write": (
        "core/files.py", "{path}.{os.getpid()}.partial",
        "{path}.partial",
        "test_hostile.py::test_two_processes_write_one_file"),
    "a sealed file that was changed": (
        "core/files.py", "if seal != _seal(tensors, note):",
        "if False:",
        "test_hostile.py::test_a_sealed_file_that_was_changed_anywhere"),
    "a pipe is waited for": (
        "core/files.py", "if path.exists() and not path.is_file():",
        "if False:",
        "test_hostile.py::test_a_pipe_or_a_device_is_refused"),
    "weights that nobody else may read": (
        "core/files.py", "os.chmod(partial, 0o666 & ~umask)",
        "pass",
        "test_hostile.py::test_files_have_the_mode_that_the_user_wants"),
    "what is printed is not there in the end": (
        "core/command.py", "            sys.stdout.flush()\n",
        "",
        "test_command.py::test_an_answer_that_cannot_be_printed"),
    "options beyond the letters": (
        "data.py", "0 < len(texts) <= 26", "texts",
        "test_datasets.py::test_options_that_no_reply_can_name"),
    "a dump over kept summaries": (
        "view/ask.py", "graph, place_of(graph)]",
        "graph]",
        "test_view.py::test_a_dump_of_an_interrupted_construction_is_refused"),
    "a data set's t_p is not taken": (
        "view/ask.py", "PAPER.get(args.dataset_settings)",
        "None",
        "test_eval.py::test_pecan_takes_the_settings_of_a_data_set"),
    "a checkpoint's file overwritten": (
        "view/ask.py", "if file.name in (*FILES, \"model.safetensors\", \"pecan.json\"):",
        "if False:",
        "test_view.py::test_no_file_is_lost"),
    "a page of what does not follow": (
        "view/page.py", "        replay(trace) ",
        "        pass ",
        "test_view.py::test_tampering_is_refused"),
    "any room fits": (
        "view/replay.py", "if taken >= trace.settings.window:",
        "if False:",
        "test_view.py::test_tampering_is_refused"),
    "likelihood without the prefix of a reply": (
        "study/collect.py", "encode(model.tokenizer.reply_prefix + answer)",
        "encode(answer)",
        "test_study.py::test_the_gold_likelihood"),
    "results of other questions": (
        "study/collect.py", "\"questions\": list(map(asdict, document.questions))",
        "\"questions\": []",
        "test_study.py::test_ways_of_a_short_document"),
    "edges of no attention": (
        "pecan.py", "return x / total if total > 0 else torch.zeros_like(x)",
        "return x / total",
        "test_pecan.py::test_a_bullet_without_attention_has_no_edges"),
    "letters of a text as aliases": (
        "evaluation/layouts/musique.py", "*texts(row.get(\"answer_aliases\") or [])",
        "*(row.get(\"answer_aliases\") or [])",
        "test_datasets.py::test_what_is_of_another_kind_drops_itself_alone"),
    "null as a paragraph": (
        "evaluation/layouts/layout.py", "{of_kind(text, str)}",
        "{text}",
        "test_datasets.py::test_what_is_of_another_kind_drops_itself_alone"),
    "every file like HotpotQA's is HotpotQA": (
        "evaluation/layouts/hotpotqa.py", "keys = HotpotQA.keys | {\"evidences\"}",
        "keys = HotpotQA.keys | {\"evidence\"}",
        "test_datasets.py::test_2wikimultihopqa"),
    "labels of options from 0": ("evaluation/layouts/quality.py", "answers = [options[gold - 1]]",
                                 "answers = [options[gold % 4]]", "test_datasets.py::test_quality"),
    "a label 0 is the last option": (
        "evaluation/layouts/quality.py", "                check_values(extra, OF_OPTIONS)\n", "",
        "test_datasets.py::test_quality"),
    "a task of LongBench under the name of the zip file": (
        "evaluation/layouts/dataset.py", "if is_task else", "if False else",
        "test_datasets.py::test_any_task_of_longbench"),
    "the first option named counts": ("evaluation/metrics.py", "if len(found) == 1 else None", "if found else None",
                                      "test_metrics.py::test_options_by_hand"),
    "a letter inside a reply is an option": (
        "evaluation/metrics.py", "\\A\\W*([{letters}])\\W*\\Z", "\\b([{letters}])\\b",
        "test_metrics.py::test_options_by_hand"),
    "exact match of a part": (
        "evaluation/metrics.py", "any(words(prediction) == words(answer)",
        "any(set(words(answer)) <= set(words(prediction))",
        "test_metrics.py::test_exact_match_by_hand"),
    "letters of a text as answers": (
        "evaluation/layouts/layout.py", "texts([question.text, *texts(question.answers)])",
        "texts([question.text, *question.answers])",
        "test_datasets.py::test_what_is_of_another_kind_drops_itself_alone"),
    "letters of a text as scored answers": ("core/files.py", "TEXTS = Rule((list,), ",
        "TEXTS = Rule((list, str), ",
        "test_hostile.py::test_a_bad_file_to_score"),
    "null as a title": (
        "evaluation/layouts/layout.py", "{of_kind(title, str)}",
        "{title}",
        "test_datasets.py::test_what_is_of_another_kind_drops_itself_alone"),
    "what is truthy as true": ("core/files.py", "FLAG = Rule((bool,)",
        "FLAG = Rule((bool, int, str, list)",
        "test_hostile.py::test_a_bad_value_in_pecan_json"),
    "quantised weights cast": (
        "core/checkpoint.py", "if not tensor.is_floating_point():",
        "if False:",
        "test_checkpoint.py::test_broken_checkpoints_are_named"),
    "--patience next to --nodes ignored": ("support/options.py", "if args.nodes is not None and (",
        "if False and (",
        "test_hostile.py::test_bad_options"),
    "a document may say a special token": (
        "core/tokenizer.py", "if special.token_to_id(name) in ids and",
        "if False and",
        "test_tokenizer.py::test_damage_is_named"),
    "blanks before a marker shared out in every way": ("core/text.py", "re.compile(r\"\\s*+(?:(",
        "re.compile(r\"\\s*\\s*(?:(",
        "test_hostile.py::test_bullets_take_linear_time"),
    "no room for a summary": ("core/settings.py", "lambda x: 0 < x < 1,",
        "lambda x: 0 <= x < 1,",
        "test_hostile.py::test_a_bad_value_in_pecan_json"),
    "a letter cut from its accent": ("core/text.py", "return not mark and ",
        "return ",
        "test_hostile.py::test_a_long_word_is_cut_between_characters"),
    "the file of a bad setting not named": ("core/settings.py",
        "    check_values(checkpoint, {name: RULES[name] for name in checkpoint}, f\"{path}: \")\n",
        "",
        "test_hostile.py::test_a_bad_value_in_pecan_json"),
    "the reward of the last node alone": (
        "baselines/tree_search.py", 'found = set().union(*(self.held[v] for v in walked))',
        'found = self.held[walked[-1]]',
        "test_jerr.py::test_six_rounds_by_hand"),
    "the reward without the nodes of the tree": (
        "baselines/tree_search.py", 'found = set().union(*(self.held[v] for v in walked))',
        'found = set().union(*(self.held[v] for v in walked[len(path):]))',
        "test_jerr.py::test_six_rounds_by_hand"),
    "the search without exploration": (
        "baselines/tree_search.py", 'math.sqrt(2 * math.log(parent) / self.N[v])',
        '0',
        "test_jerr.py::test_six_rounds_by_hand"),
    "a sort by keywords": (
        "baselines/tree_search.py", '(-self.W[v] / self.N[v], -self.N[v], -len(self.held[v]), v)',
        '(-len(self.held[v]), v)',
        "test_jerr.py::test_six_rounds_by_hand"),
    "a rollout without an end": (
        "baselines/tree_search.py", 'and len(walked) < len(path) + DEPTH:',
        ':',
        "test_jerr.py::test_rollouts_are_short_and_follow_the_edges"),
    "reversed edges": (
        "baselines/jerr.py", '        if a in reached[b]:',
        '        if b in reached[a]:',
        "test_jerr.py::test_the_graph_stays_acyclic"),
    "cycles are kept": (
        "baselines/jerr.py", '        if a in reached[b]:',
        '        if a == b:',
        "test_jerr.py::test_the_graph_stays_acyclic"),
    "a cycle of more than two edges is kept": (
        "baselines/jerr.py", '            if a in others:\n',
        '            if others is reached[a]:\n',
        "test_jerr.py::test_the_graph_stays_acyclic"),
    "SimHash of single characters": (
        "baselines/jerr.py", "content[i:i + 4] for i in",
        "content[i:i + 1] for i in",
        "test_jerr.py::test_simhash_equals_the_package"),
    "near duplicates stay apart": (
        "baselines/jerr.py", "if nearest > NEAR:",
        "if nearest > 0:",
        "test_jerr.py::test_names_are_joined"),
    "synopses of chunks that are looked up": (
        "baselines/jerr.py", "[chunk for chunk in priority if chunk not in pages]",
        "priority",
        "test_story.py::test_the_story"),
    "keywords found inside words": (
        "baselines/tree_search.py", '(?<!\\w){re.escape(form_of(phrase))}(?!\\w)',
        '{re.escape(form_of(phrase))}',
        "test_jerr.py::test_keywords"),
    "two pages are looked up": (
        "baselines/jerr.py", "LOOKED_UP = 3 ", "LOOKED_UP = 2 ",
        "test_jerr.py::test_every_question_of_the_world_is_answered_by_rules"),
    "pages that do not exist": (
        "baselines/jerr.py", 'numbers_of(brackets[1], range(number))',
        'numbers_of(brackets[1], range(100))',
        "test_jerr.py::test_pages"),
    "pages outside of brackets": (
        "baselines/jerr.py", 'numbers_of(brackets[1], range(number))',
        'numbers_of(reply, range(number))',
        "test_jerr.py::test_pages"),
    "a Chinese reply is a single word": (
        "baselines/jerr.py", r"[\u3040-\u9fff]|\w+",
        r"\w+",
        "test_jerr.py::test_names_and_relations_in_a_reply"),
    "the prompts' example is an entity": (
        "baselines/mkrag.py", "items and not echoes(name, text)",
        "items",
        "test_mkrag.py::test_an_echo_of_the_example_is_no_text"),
    "the prompts' example is a pair": (
        "baselines/mkrag.py", 'if not echoes("".join(pair), group)',
        "",
        "test_mkrag.py::test_an_echo_of_the_example_is_no_text"),
    "No is an entity": (
        "baselines/jerr.py", 'word.lower() not in STOP and holds(text, word) for',
        'True for',
        "test_jerr.py::test_names_and_relations_in_a_reply"),
    "No is a synopsis": (
        "baselines/jerr.py", 'said_of(reply, chunks[n])',
        '" ".join(reply.split())',
        "test_jerr.py::test_look_up_refused"),
    "a list with commas is one name": (
        "baselines/jerr.py", 'lines = [name for name in names if holds(text, name)] or lines',
        'pass',
        "test_jerr.py::test_names_and_relations_in_a_reply"),
    "headings are names": (
        "baselines/replies.py", 'if line and not line.endswith(":")]',
        'if line]',
        "test_agent.py::test_lists_in_a_reply"),
    "the reminder at the end of the document": (
        "baselines/agent.py", "self.ask([again + texts[n] for n in left], limit)",
        "self.ask([texts[n] + again for n in left], limit)",
        "test_jerr.py::test_look_up_refused"),
    "figures of LongBench for those of the official file": (
        "evaluation/paper.py", '"HotpotQA": ("F1 70.0, EM 55.0", "LongBench-E, 300 rows"',
        '"HotpotQA": ("F1 70.0, EM 55.0", "official file"',
        "test_results.py::test_systems_show_published_figures_with_their_data_and_model"),
}

# The bench: what is captured from outside, what is taken for true, and each measure.
MUTATIONS |= {
    "the marker counts for a head's r": (
        "study/seen.py", "[\"q\"])[:, :, len(marker[1]):, 0]", "[\"q\"])[:, :, :, 0]",
        "test_study.py::test_r_of_heads_is_that_of_the_search"),
    "nodes after the top level stay": (
        "study/seen.py", "        if i not in top:\n            cache.rollback(before)\n", "",
        "test_study.py::test_r_of_heads_is_that_of_the_search"),
    "an oracle that is not heard": (
        "study/collect.py", "search.r[nodes] = r[nodes]", "pass",
        "test_study.py::test_ways_of_a_short_document"),
    "uniform edges that are not": (
        "study/collect.py", "torch.ones(len(pairs))", "e.mean((1, 2))",
        "test_study.py::test_ways_of_a_short_document"),
    "gold likelihood one token late": (
        "study/collect.py", "-len(gold) - 1:-1", "-len(gold):",
        "test_study.py::test_the_gold_likelihood"),
    "the gold probe is counted": (
        "study/collect.py", "    model.flops, model.tokens = spent\n", "",
        "test_study.py::test_the_gold_likelihood"),
    "facts of whoever the post was": (
        "study/truth.py", "facts_in([text], posts)", "facts_in([text], {})",
        "test_study.py::test_the_embedded_world_has_exact_truth"),
    "a cut sentence needs one chunk": (
        "study/truth.py", "if chunk_start < end and start < chunk_end:", "if chunk_start <= start < chunk_end:",
        "test_study.py::test_needed_chunks"),
    "the lightest edge leads": (
        "study/truth.py", "leads[max(range(len(row))", "leads[min(range(len(row))",
        "test_study.py::test_what_leads_where"),
    "everybody leads to what is needed": (
        "study/truth.py", "any(fact.name in people for fact", "any(fact for fact",
        "test_study.py::test_what_leads_where"),
    "words of every node count as a source": (
        "study/truth.py", "& bag - common)", "& bag)",
        "test_study.py::test_sources_of_a_bullet"),
    "a source need not be clear": (
        "study/truth.py", "shared[best] >= 2 * runner_up", "shared[best] >= runner_up",
        "test_study.py::test_sources_of_a_bullet"),
    "a needed fact is enough": (
        "study/truth.py", "return wanted <= facts_in", "return wanted & facts_in",
        "test_study.py::test_enough"),
    "every text counts as read": (
        "study/truth.py", "facts_in([texts[i] for i in nodes])", "facts_in(texts)",
        "test_study.py::test_enough"),
    "a post is needed though a bullet has the name": (
        "study/truth.py", "question.extra.get(\"facts\", question.extra[\"evidence\"])", "question.extra[\"evidence\"]",
        "test_study.py::test_enough"),
    "a small model searches beyond its window": (
        "study/collect.py", "if self.model.config.max_length >= SEARCH_WINDOW:", "if True:",
        "test_study.py::test_the_window_of_a_search"),
    "all differences are to chance": (
        "study/steps.py", "100 * (row[\"f1\"] - pecan[\"f1\"])", "100 * (pecan[\"f1\"] - row[\"f1\"])",
        "test_study.py::test_answers_by_hand"),
    "a verdict is scored before its node is read": (
        "study/steps.py", "nodes[:n], asked.needed", "nodes[:n - 1], asked.needed",
        "test_study.py::test_progress_by_hand"),
    "a tie is lost": (
        "study/figures.py", "np.searchsorted(false, true, \"left\") + np.searchsorted(false, true, \"right\")",
        "2 * np.searchsorted(false, true, \"left\")",
        "test_study.py::test_the_area_under_the_curve"),
    "intervals of the bench of 90 %": (
        "study/figures.py", "[2.5, 97.5]", "[5, 95]",
        "test_study.py::test_intervals_are_over_documents"),
    "intervals over items": (
        "study/figures.py", "    documents = [np.asarray(items, float) for items in documents]\n",
        "    documents = [np.asarray([item], float) for items in documents for item in items]\n",
        "test_study.py::test_intervals_are_over_documents"),
    "positions of the bench from 1": (
        "study/steps.py", "torch.arange(2, len(S) + 2)", "torch.arange(1, len(S) + 1)",
        "test_study.py::test_relevance_by_hand"),
    "a replay's ties go to the higher id": (
        "study/steps.py", "(scores == scores.max()).nonzero()[0]", "(scores == scores.max()).nonzero()[-1]",
        "test_study.py::test_the_order_of_a_replay"),
    "a replay ends too early": (
        "study/steps.py", "while not set(needed) <= set(S):", "while not set(needed) & set(S):",
        "test_study.py::test_the_order_of_a_replay"),
    "information points have a place among the chunks": (
        "study/steps.py", "[i for i in order if record.nodes[i].level == 1]", "list(order)",
        "test_study.py::test_the_order_of_a_replay"),
    "a verdict at the threshold stops": (
        "study/steps.py", "enumerate(checks) if p > t_p)", "enumerate(checks) if p >= t_p)",
        "test_study.py::test_progress_by_hand"),
    "the check itself is too late": (
        "study/steps.py", "checks[:-1 if end is None else end]", "checks[:None if end is None else end + 1]",
        "test_study.py::test_progress_by_hand"),
    "heads by their sum, not their share": (
        "study/choose.py", "(r / a.clamp(min=1e-30)).mean(0)", "r.mean(0)",
        "test_study.py::test_heads_are_chosen_by_their_mass"),
    "heads that spoil the others": (
        "study/choose.py", "if shares.max() <= share:", "if shares.max() <= 0:",
        "test_study.py::test_heads_are_chosen_by_their_mass"),
    "bullets take the edges of the group before": (
        "study/seen.py", "pairs += [(i, j + n) for n", "pairs += [(i, max(0, j - 1) + n) for n",
        "test_study.py::test_heads_of_a_construction_give_its_graph"),
    "heads are chosen on the document itself": (
        "study/choose.py", "rows[:n] + rows[n + 1:]", "rows",
        "test_study.py::test_heads_are_chosen_on_other_documents"),
    "results of other settings are taken": (
        "study/collect.py", "{\"settings\": self.settings.of_pecan(), \"encoder\"", "{\"encoder\"",
        "test_study.py::test_ways_of_a_short_document"),

    "all tokens count alike": ("support/token_mean.py", "(RARE / (RARE + p)).float()",
                               "(RARE / (RARE + 0 * p)).float()",
                               "test_sbert.py::test_rare_tokens_count_more"),
    "weights of tokens change no mean": ("support/token_mean.py", "weights = self.weights[ids]  ",
                                         "weights = self.weights[ids] ** 0  ",
                                         "test_sbert.py::test_embeddings_are_whitened"),
    "lock of the output folder is not held": (
        "eval.py",
        "team.first(lambda: held.enter_context(lock(Path(args.output) / \"lock\")))",
        "team.first(lambda: lock(Path(args.output) / \"lock\"))",
        "test_eval.py::test_two_runs_on_one_folder"),
    "cells shift if a data set lacks a way": (
        "study/__main__.py",
        "{' | '.join(str(ways.get(way, '')) for ways in columns)}",
        "{' | '.join(str(ways[way]) for ways in columns if way in ways)}",
        "test_report.py::test_the_report_of_the_bench_from_raw_rows"),
    "the tree is built with the window of the search": (
        "study/collect.py",
        "tree = build(model, document, replace(bench.settings, tree=True))",
        "tree = build(model, document, replace(settings, tree=True))",
        "test_study.py::test_ways_of_a_short_document"),
    "traces are written at the end only": (
        "view/trace.py",
        "        lines.append(json.dumps(line, ensure_ascii=False, allow_nan=False) + \"\\n\")\n"
        "        write_file(path, \"\".join(lines))\n"
        "\n"
        "    with watching(pecan, \"Search\", lambda search, *_: searches.append(search)), "
        "watching(method, \"answer\", write):\n"
        "        yield\n",
        "        lines.append(json.dumps(line, ensure_ascii=False, allow_nan=False) + \"\\n\")\n"
        "\n"
        "    with watching(pecan, \"Search\", lambda search, *_: searches.append(search)), "
        "watching(method, \"answer\", write):\n"
        "        yield\n"
        "    write_file(path, \"\".join(lines))\n",
        "test_view.py::test_a_trace_has_each_answer_at_once"),
    "bars of c without attention": (
        "view/page.js",
        "!similarity ? 0 : attention ? Math.max(query.c[node], 0) / sum : Math.max(query.c[node], 0);",
        "!similarity ? 0 : Math.max(query.c[node], 0) / sum;",
        "test_page.py::test_the_bars_of_a_candidate_are_its_score"),
    "the walk ignores the builder": (
        "view/walk.py",
        "graph = pecan.build(builder or model, document, settings)",
        "graph = pecan.build(model, document, settings)",
        "test_walk.py::test_the_walk_of_two_models"),
    "the hash of a document ignores its passages": (
        "data.py",
        "hashlib.sha256(json.dumps(self.passages, ensure_ascii=False, allow_nan=False).encode()).hexdigest()",
        "hashlib.sha256(\"\\n\".join(self.passages).encode()).hexdigest()",
        "test_data.py::test_both_forms_of_a_document"),
    "blank lines are not counted": (
        "data.py",
        "        for number, line in enumerate(lines, 1):\n"
        "            if not line.strip():\n"
        "                continue\n"
        "\n",
        "        for number, line in enumerate(filter(bytes.strip, lines), 1):\n",
        "test_data.py::test_both_forms_of_a_document"),
    "the last token of a cut reply is not counted": (
        "llama.py",
        "                self.tokens += len(rows)\n"
        "                break\n",
        "                break\n",
        "test_llama.py::test_generation_stops_at_any_eos_and_at_the_limit"),
    "MuSiQue's paragraphs in the order of text": (
        "evaluation/layouts/musique.py",
        "key=lambda row: row[\"idx\"])",
        "key=lambda row: str(row[\"idx\"]))",
        "test_datasets.py::test_musique"),

    # the embedded world
    "a color without its pet": ("tiny/facts.py", "owner = person if \"pet\" in values else None",
                                "owner = person or owner", "test_tiny.py::test_a_text_states_what_it_says"),
    "a post explains only its own line": (
        "tiny/lessons.py", "set(needed) <= facts_in(read)",
        "set(needed) <= set().union(*(facts_in([line]) for line in read))",
        "test_tiny.py::test_a_verdict_is_yes_exactly_if_the_needed_facts_were_read"),
    "held-out facts are taught": ("tiny/world.py", "held_out(name, relation, value) == new]", "True]",
                                  "test_tiny.py::test_no_held_out_fact_is_ever_taught"),
    "the first home counts": ("tiny/world.py", "groups.insert(second, say(\"move\", \"home\", \"year\"))",
                              "groups.insert(second, say(\"move\", \"past\", \"year\"))",
                              "test_tiny.py::test_a_world_states_its_facts"),
    "passages too short for their windows": ("tiny/world.py", "SHORTEST, LONGEST = 21", "SHORTEST, LONGEST = 17",
                                             "test_tiny.py::test_the_held_out_files_are_what_the_generator_writes"),
    "kept summaries are free": (
        "support/kept.py", "            model.flops += flops\n",
        "",
        "test_graph_file.py::test_an_interrupted_construction_goes_on"),
    "the mean over key heads alone": (
        "llama.py", "weights.mean((1, 2))[",
        "weights[:, :, 0].mean(1)[",
        "test_accumulation.py::test_generated_tokens_attend_to_nodes_as_in_hugging_face"),
    # what forty further bugs found: plans, files, reports, the bench
    "--top loses against the paper's X": (
        "evaluation/plan.py",
        'args.top or (paper.TOP_X[dataset.name][of_tree(row)] if dataset.name in paper.TOP_X else "X")',
        'paper.TOP_X[dataset.name][of_tree(row)] if dataset.name in paper.TOP_X else args.top or "X"',
        "test_wires.py::test_top_x_is_the_papers"),
    "--top 0": (
        "core/command.py", '("limit", "nodes", "top")', '("limit", "nodes")',
        "test_hostile.py::test_bad_options"),
    "a builder next to Table 2": (
        "eval.py", ', "builder": args.table == "2"}', "}",
        "test_eval.py::test_a_table_decides_what_is_run"),
    "the paper's number of nodes for no data set": (
        "evaluation/cost.py", "paper.FIXED_NODES.get(run.dataset.name, NODES)", "NODES",
        "test_report.py::test_the_dry_run_from_the_text"),
    "30 nodes at the paper's lengths": (
        "evaluation/cost.py", "nodes = paper.FIXED_NODES[dataset]", "nodes = NODES",
        "test_report.py::test_table_a4_at_the_papers_lengths"),
    "a graph of other settings is taken": (
        "pecan.py", "Graph.load(path, document, self.settings.of_construction(), self.builder)",
        "Graph.load(path, document, None, self.builder)",
        "test_graph_file.py::test_a_graph_that_is_there_is_loaded"),
    "one name for graphs of all settings": (
        "view/ask.py", "{Path(args.document).name}.{name}.graph.json", "{Path(args.document).name}.graph.json",
        "test_eval.py::test_command_line_of_pecan"),
    "an unknown word counts once more": (
        "core/tokenizer.py", "ids.count(token) / max(1, len(ids))", "ids.count(token) / max(1, len(set(ids)))",
        "test_pecan.py::test_the_share_of_unknown_words"),
    "a trace goes on after its end": (
        "view/replay.py", "None, ending(trace, before))", "None, ending(trace, before[:-1]))",
        "test_view.py::test_a_search_that_went_on_after_its_end_is_refused"),
    "passages are embedded for nothing": (
        "baselines/dense.py", "super().__init__(model, settings, question_encoder, chunk_encoder)",
        "super().__init__(model, settings, question_encoder)",
        "test_baselines.py::test_dense_reads_what_numpy_ranks"),
    "the last place of a defect": (
        "evaluation/layouts/report.py",
        'self.problems.setdefault(reason, {"count": 0, "first": where})["count"] += 1',
        'self.problems.setdefault(reason, {"count": 0}).update(first=where)\n'
        '        self.problems[reason]["count"] += 1',
        "test_datasets.py::test_a_report_in_words"),
    "questions of a picture as its documents": (
        "evaluation/pictures.py", "{first['documents']:,} documents", "{first['n']:,} documents",
        "test_pictures.py::test_both_files_of_a_picture"),
    "a template outside the fingerprint": (
        "core/checkpoint.py", '"tokenizer.model", "tokenizer_config.json")', '"tokenizer.model")',
        "test_checkpoint.py::test_a_fingerprint_is_of_what_is_read"),
    "a tree of another encoder": (
        "baselines/raptor.py", ' | {"encoder": self.encoder.fingerprint}', "",
        "test_baselines.py::test_what_names_the_file_of_a_tree"),
    "a chunk counts for each walk": (
        "baselines/graphreader.py", "list(dict.fromkeys(chunk for walk in walks for chunk in walk.read))",
        "[chunk for walk in walks for chunk in walk.read]",
        "test_graphreader.py::test_walks_do_not_see_each_other"),
    "one layer of summaries fewer": (
        "baselines/raptor.py", "for _ in range(LAYERS):", "for _ in range(LAYERS - 1):",
        "test_baselines.py::test_raptor_ends_after_five_layers_of_summaries"),
    "ablations of the bench exchanged": (
        "study/collect.py", '("attention", {"attention": False}), ("similarity", {"similarity": False})',
        '("attention", {"similarity": False}), ("similarity", {"attention": False})',
        "test_study.py::test_ways_of_a_short_document"),
    "documents of one id in two data sets": (
        "study/__main__.py", "setdefault((data, record.document.id), [])", "setdefault(record.document.id, [])",
        "test_report.py::test_the_report_of_the_bench_from_raw_rows"),
    "reading on after the last check": (
        "study/steps.py", "checks[:-1 if end is None else end]", "checks[:end]",
        "test_report.py::test_the_report_of_the_bench_from_raw_rows"),
    "positions of bullets that are read alone": (
        "study/steps.py", "positioned(name, r, S) if where == \"the top level\" else r[S]", "positioned(name, r, S)",
        "test_report.py::test_the_level_above_the_chunks_is_compared_at_one_position"),
    "the worst way on top": (
        "study/draw.py", 'reverse="rank" in name', 'reverse="rank" not in name',
        "test_study.py::test_the_pictures"),
    "a search counts once": (
        "tiny/train.py", ' * (2 if kind == "search" else 1)', "",
        "test_tiny.py::test_a_search_counts_twice"),
    "the same name for old answers": (
        "evaluation/predictions.py", "file.rename(f\"{file}{unused}\")", "file.replace(f\"{file}.old\")",
        "test_eval.py::test_other_settings_do_not_mix"),
    "a cut marker costs the bullet before it": (
        "core/text.py", "whole = spans if complete else spans[:-1]",
        "whole = [s for s in spans if text[slice(*s)]][:None if complete else -1]",
        "test_pecan.py::test_bullets"),
    "JERR reads what does not fit": (
        "baselines/jerr.py", "if lines.get(chunk) == line_ids(self.model.tokenizer, prepared.texts[chunk])]", "]",
        "test_jerr.py::test_what_does_not_fit_is_cut"),
    "Top-X without its prompt": (
        "evaluation/plan.py", "(X, prompt + X * line)", "(X, X * line)",
        "test_report.py::test_what_top_x_retrieves"),
    "a training in a folder of other files": (
        "tiny/train.py", "any(folder.iterdir())", "not any(folder.iterdir())",
        "test_tiny.py::test_training_spoils_no_folder"),
    "a resumed training forgets the mean": (
        "tiny/train.py", '"mean": self.mean[name]', '"mean": weight.detach().clone()',
        "test_tiny.py::test_training_resumes_where_it_stopped"),
    "a training goes on with another seed": (
        "tiny/train.py", "if stored != seed:", "if stored < 0:",
        "test_tiny.py::test_training_spoils_no_folder"),
    "only long windows are summarised": (
        "tiny/lessons.py", "rng.randrange(-10, len(bullets))", "rng.randrange(-10, len(bullets) - 12)",
        "test_tiny.py::test_a_summary_says_what_its_window_says"),
    "other inns anywhere in a search": (
        "tiny/lessons.py", "        if not people:\n            mentions.append(\"The inn of\")\n", "",
        "test_tiny.py::test_other_inns_come_early_and_other_peoples_drinks_do_not"),
    "all other facts early in a search": (
        "tiny/lessons.py", "mentions.append(\"The inn of\")", "mentions.append(\"\")",
        "test_tiny.py::test_other_inns_come_early_and_other_peoples_drinks_do_not"),
    "posts anywhere in a reading": (
        "tiny/lessons.py", "        lines.sort(key=lambda text: not summarise([text]))\n", "",
        "test_tiny.py::test_a_task_has_the_answer_that_its_lines_state"),
    "a JSON of how many were read": (
        "view/ask.py", '"of": len(texts),', '"of": len(answer.nodes),',
        "test_view.py::test_an_answer_in_words_and_for_a_program"),
    "steps with the text of another node": (
        "view/ask.py", 'asdict(step) | {"text": texts[step.node]}', 'asdict(step) | {"text": texts[step.node - 1]}',
        "test_view.py::test_an_answer_in_words_and_for_a_program"),
    "tokens printed as GFLOPs": (
        "view/ask.py", "{answer.flops / 1e9:,.3g}", "{answer.tokens / 1e9:,.3g}",
        "test_view.py::test_an_answer_in_words_and_for_a_program"),
    "calls of refused replies": (
        "eval.py", "{run['refused']} of {run['calls']} replies", "{run['calls']} of {run['refused']} replies",
        "test_report.py::test_a_table_from_raw_rows"),
    "Figure 3's mean is Top-X": (
        "evaluation/tables.py", 'f"{paper.FIXED_NODES[dataset]} (GARLIC)"', 'f"{paper.TOP_X[dataset][0]} (GARLIC)"',
        "test_report.py::test_costs_lengths_and_nodes_from_raw_rows"),
    "the tree of the bench is not searched": (
        "study/collect.py",
        "searched(model, tree, question, tree_c, settings)",
        "searched(model, graph, question, c, settings)",
        "test_study.py::test_ways_of_a_short_document"),
    "20 nodes for every data set of the bench": (
        "study/collect.py", '{"fixed_nodes": FIXED.get(data, 20)}', '{"fixed_nodes": 20}',
        "test_study.py::test_ways_of_a_short_document"),
    "the endless search ends": (
        "study/collect.py", "replace(settings, patience=FOREVER)", "replace(settings, patience=2)",
        "test_study.py::test_ways_of_a_short_document"),
    "long answers in the bench": (
        "study/collect.py",
        "return replace(self.settings, window=window, **paper)",
        'return replace(self.settings, window=window, **paper | {"answer_tokens": self.settings.answer_tokens})',
        "test_study.py::test_the_window_of_a_search"),
    "E and r uniform exchanged": (
        "study/steps.py",
        '"z, E uniform": by_edges("uniform", "the paper"), "z, r uniform": by_edges("the paper", "uniform")',
        '"z, E uniform": by_edges("the paper", "uniform"), "z, r uniform": by_edges("uniform", "the paper")',
        "test_study.py::test_every_order_by_loops"),
    "--limit of the bench is ignored beside --short": (
        "study/__main__.py", "parser.add_mutually_exclusive_group()", "parser",
        "test_study.py::test_what_the_options_choose"),
    "--limit of the bench counts questions": (
        "study/__main__.py", "(args.limit, None)", "(None, args.limit)",
        "test_study.py::test_what_the_options_choose"),
    "--short with ablations": (
        "study/__main__.py", "Path(args.output), args.short)", "Path(args.output), False)",
        "test_study.py::test_what_the_options_choose"),
    "a dump without markers": (
        "view/dump.py", 'keep(at + "tokens", search.lengths)', 'keep(at + "tokens", search.lengths - 2)',
        "test_dump.py::test_a_dump_explains_itself_and_changes_nothing"),
    "cosines for lengths on a page": (
        "view/page.py", '"lengths": trace.lengths', '"lengths": trace.c',
        "test_report.py::test_each_question_of_a_page_has_its_graph"),
    "JERR's cut is lost": (
        "baselines/jerr.py", "len(lines) < len(priority)", "False",
        "test_jerr.py::test_what_does_not_fit_is_cut"),
    "a tokenizer.model of other rules": (
        "core/tokenizer.py", "if tokenizer.encode(PROBE, add_special_tokens=False).ids != model.encode(PROBE):",
        "if False:",
        "test_tokenizer.py::test_damage_is_named"),
    # what forty more found: several files, data sets and processes, the bench, pecan.py from Python
    "one picture for all data sets": (
        "eval.py",
        'picture = path.with_name(f"picture{suffix}-{dataset}")',
        'picture = path.with_name(f"picture{suffix}")',
        "test_pictures.py::test_each_data_set_has_its_own_picture"),
    "what was mended is not reported": (
        "evaluation/layouts/report.py", "(self.skipped | self.problems).items()", "self.skipped.items()",
        "test_datasets.py::test_a_report_in_words"),
    "Dragon's encoders sought after hours": (
        "evaluation/plan.py", "(args.encoder, args.scorer, *(args.dragon or ()))", "(args.encoder, args.scorer)",
        "test_eval.py::test_mistakes_are_one_line_and_exit_code_2"),
    "reasons in the order of processes": (
        "evaluation/runner.py", "for _, reason in sorted(sum(failed, []))", "for _, reason in sum(failed, [])",
        "test_eval.py::test_what_one_process_refuses_all_refuse"),
    "old answers without their setup": (
        "evaluation/predictions.py", "(*files, place) if", "files if",
        "test_eval.py::test_other_settings_do_not_mix"),
    "U+2028 ends a prediction": (
        "evaluation/metrics.py",
        '.read_text(encoding="utf-8").rstrip("\\n").split("\\n")',
        '.read_text(encoding="utf-8").splitlines()',
        "test_eval.py::test_predictions_are_scored_again"),
    "F1 of the first gold answer in the bench": (
        "study/collect.py",
        '{"f1": f1(answer.text, question.answers), "likelihood": likelihoods[0], "nodes": answer.nodes,',
        '{"f1": f1(answer.text, question.answers[:1]), "likelihood": likelihoods[0], "nodes": answer.nodes,',
        "test_study.py::test_ways_of_a_short_document"),
    "nothing to read within a small budget": (
        "study/collect.py", "if nodes and used + len(line) > budget:", "if used + len(line) > budget:",
        "test_study.py::test_what_is_read_without_a_search"),
    "sources that are the whole group": (
        "study/collect.py", "if 0 < len(found) < len(group):", "if found:",
        "test_study.py::test_what_is_known_of_a_bullet"),
    "random chunks of each run": (
        "study/collect.py", "rng = random.Random(question.id)", "rng = random.Random()",
        "test_study.py::test_what_is_read_without_a_search"),
    "the first question alone is replayed": (
        "view/replay.py", "for trace in read_traces(path):", "for trace in read_traces(path)[:1]:",
        "test_view.py::test_every_question_of_every_file"),
    "a trace with a file is printed too": (
        "view/ask.py", 'steps=args.trace == "-"))', "steps=bool(args.trace)))",
        "test_view.py::test_the_commands_of_view"),
    "a page of a first question that follows": (
        "view/page.py",
        "    for trace in traces:\n        replay(trace) ",
        "    for trace in traces[:1]:\n        replay(trace) ",
        "test_view.py::test_every_question_of_every_file"),
    "a page of the last file": (
        "view/page.py", "traces += read_traces(path)", "traces = read_traces(path)",
        "test_view.py::test_every_question_of_every_file"),
    "a window that is too long for the builder": (
        "support/options.py", "max_length(model.config, (builder or model).config)", "max_length(model.config)",
        "test_options.py::test_a_window_is_no_longer_than_both_models_were_made_for"),
    "results.json without its last line feed": (
        "core/files.py",
        'indent=2, ensure_ascii=False, allow_nan=False) + "\\n")',
        "indent=2, ensure_ascii=False, allow_nan=False))",
        "test_command.py::test_results_as_json"),
    "a byte order mark in a document": (
        "data.py", 'text = content.decode("utf-8-sig")', 'text = content.decode("utf-8")',
        "test_data.py::test_a_byte_order_mark_is_no_text"),
    "Pecan.load without the encoder": (
        "pecan.py",
        "return cls(llama, load_encoder(encoder, llama), settings)",
        "return cls(llama, load_encoder(None, llama), settings)",
        "test_wires.py::test_pecan_load_takes_an_encoder_and_settings"),
    "one hash whatever the passages": (
        "data.py",
        "json.dumps(self.passages, ensure_ascii=False, allow_nan=False).encode()",
        '"".join(self.passages).encode()',
        "test_data.py::test_both_forms_of_a_document"),
    "children of nodes that were not taken": (
        "baselines/raptor.py", "for i in taken))", "for i in layer))",
        "test_baselines.py::test_traversal_and_collapsed_tree"),
    "a hundred rounds at most": (
        "baselines/tree_search.py", "max(ROUNDS, 10 * len(nodes))", "min(ROUNDS, 10 * len(nodes))",
        "test_jerr.py::test_how_many_rounds_a_search_has"),
}


def parts_of_tests(count: int = 4) -> list[list[str]]:
    """The tests that catch bugs, as arguments of pytest, in `count` parts. Each file is in one of them."""
    by_file = {}
    for _, _, _, test in MUTATIONS.values():
        by_file.setdefault(test.split("::")[0], {})[f"tests/{test}"] = None
    files = [list(tests) for tests in by_file.values()]
    return [[test for tests in files[n::count] for test in tests] for n in range(count)]


def call_for(name: str, search: bool = False) -> tuple:
    """The arguments of `failing` for a bug: its name, the change, and the test that should catch it (or all)."""
    *change, test = MUTATIONS[name]
    if search:
        # test_mutations.py would open a pool of processes inside one of them.
        return name, change, ["tests", "--ignore", "tests/test_mutations.py", "--ignore", "tests/test_eval.py"]
    return name, change, ["-x", f"tests/{test}"]


def run_all(calls):
    """Run failing(*call) for each call, as many at once as there are processors; yields (name, its result).

    The result is the RuntimeError if the tests could not run, or crashed.
    """
    with processes() as pool:
        jobs = [(call[0], pool.apply_async(failing, call)) for call in calls]
        for name, job in jobs:
            try:
                yield name, job.get()
            except RuntimeError as error:
                yield name, error


def main(arguments: list[str]) -> int:
    search = "--search" in arguments
    wanted = [word for word in arguments if word != "--search"]
    names = [name for name in MUTATIONS if not wanted or any(word in name for word in wanted)]
    if not names:
        print(f"no bug has {' or '.join(wanted)} in its name")
        return 1

    # Before all bugs comes a copy without any: nothing may fail in it.
    if not wanted:
        for _, tests in run_all(("no bug", None, tests) for tests in parts_of_tests()):
            if tests:
                print(f"without any bug, these fail: {tests}")
                return 1

    # The pages are tested in a browser.
    in_browser = ("test_page.py", "test_annotate.py")
    untried = [] if installed() else [name for name in names if MUTATIONS[name][3].startswith(in_browser)]
    names = [name for name in names if name not in untried]

    survivors = 0
    for name, tests in run_all([call_for(name, search) for name in names]):
        if isinstance(tests, RuntimeError) or not tests:
            survivors += 1
            print(f"{name:44} {tests or 'SURVIVES'}", flush=True)
        else:
            more = f"  (and {len(tests) - 1} more)" if len(tests) > 1 else ""
            print(f"{name:44} {tests[0].split('[')[0]}{more}", flush=True)

    if untried:
        print(f"{len(untried)} bugs of the pages were not tried: install chromium and chromium-driver")
    print(f"{len(names)} bugs, {survivors} survive")
    return min(survivors, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
