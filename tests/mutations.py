"""Small bugs, put into the source one at a time: the test beside them must fail for each.

    python tests/mutations.py           all bugs
    python tests/mutations.py NAME ..   those whose names contain NAME

All bugs together take about as long as all tests. So pytest leaves them out; .ci/run runs both.
"""
import multiprocessing
import os
import sys

from mutant import PRELOADED, ROOT, run

# For each test, the bugs that it catches: name, text, the text that replaces it.

LLAMA = {
    "test_1_rope.py::test_half_split_rotation_by_hand": {
        "interleaved RoPE": (
            "second = x.chunk(2, dim=-1)\n    return x * cos + torch.cat((-second, first), dim=-1)",
            "second = x[..., ::2], x[..., 1::2]\n    return x * cos + torch.stack((-second, first), -1).flatten(-2)"),
    },
    "test_3_model.py::test_the_logits_of_a_check_are_not_rounded_to_bfloat16": {
        "a check in the model's dtype": (
            "hidden, matrix = at_least_float32(hidden), at_least_float32(matrix[tokens])", "matrix = matrix[tokens]"),
        "a check counts two rows alone": ("2 * hidden.numel() * self.config.vocab",
                                          "2 * hidden.numel() * (len(tokens) if tokens else self.config.vocab)"),
    },
    "test_1_rope.py::test_inverse_frequencies": {
        "RoPE scaling dropped": ("    if not llama3:\n", "    if True:\n"),
        "RoPE scaling not smoothed": ("torch.where(between, blended, scaled)", "scaled"),
        "Llama 3.1's factor for every Llama": ("    wavelength = 2 *", "    factor = 8.0\n    wavelength = 2 *"),
    },
    "test_1_rope.py::test_rotation_equals_hugging_face": {
        "angles in bfloat16": (
            "positions[:, None, :, None].float() * inv_freq",
            "positions[:, None, :, None].to(dtype) * inv_freq.to(dtype)"),
    },
    "test_3_model.py::test_model_equals_hugging_face": {
        "linear scaling the wrong way round": ("return f / factor", "return f * factor"),
        "head norms left out": ("if config.head_norms:", "if False:"),
        "all heads normalised as one": (
            "k = rms_norm(k, w[at + \"self_attn.k_norm.weight\"], config.norm_eps)",
            "k = rms_norm(k.transpose(1, 2).flatten(2), w[at + \"self_attn.k_norm.weight\"].repeat(config.kv_heads), "
            "config.norm_eps).unflatten(2, (config.kv_heads, -1)).transpose(1, 2)"),
        "no RoPE": (" = rotate(torch.cat((q, k), 1), cos, sin).split", " = torch.cat((q, k), 1).split"),
        "keys not rotated": (
            "rotate(torch.cat((q, k), 1), cos, sin).split", "torch.cat((rotate(q, cos, sin), k), 1).split"),
        "all positions shifted by one": ("= rope_tables(positions, ", "= rope_tables(positions + 1, "),
        "frequencies in bfloat16": (
            "inverse_frequencies(config).to(self.device)", "inverse_frequencies(config).to(self.device, self.dtype)"),
        "wrong order of grouped heads": (
            "q.unflatten(1, (k.shape[1], -1))", "q.unflatten(1, (-1, k.shape[1])).transpose(1, 2)"),
    },
    "test_2_attention.py::test_grouped_heads_by_hand": {
        "no 1/sqrt(K)": (" * q.shape[-1] ** -0.5", ""),
    },
    "test_2_attention.py::test_the_keys_of_a_group_are_never_repeated": {
        "keys of a group repeated": (
            "    scores = torch.einsum(\"bhgtk,bhpk->bhgtp\", q, k)",
            "    scores = torch.einsum(\"bhgtk,bhgpk->bhgtp\", q, k[:, :, None].repeat(1, 1, q.shape[2], 1, 1))"),
    },
    "test_2_attention.py::test_block_by_block_equals_hugging_face": {
        "no mask": ("scores = torch.where(mask[:, None, None], scores, float(\"-inf\"))", "pass"),
        "weights stay float32 for the values": (
            "A.to(v.dtype), v), A", "A, v.float()).to(v.dtype), A"),
        "norm weight before the cast": ("return weight * y.to(x.dtype)", "return (weight * y).to(x.dtype)"),
        "norm in the model's dtype": ("    y = at_least_float32(x)\n", "    y = x\n"),
        "norm's epsilon ignored": ("keepdim=True) + eps)", "keepdim=True) + 1e-6)"),
    },
    "test_3_model.py::test_attention_in_blocks_is_the_same": {
        "every block sees what the first one may": (
            "mask[:, t:t + block]", "mask[:, :min(block, T - t)]"),
    },
    "test_4_generation.py::test_generation_stops_at_any_eos_and_at_the_limit": {
        "only the first eos ends a reply": ("not in self.config.eos and", "not in self.config.eos[:1] and"),
        "the last token of a cut reply is not counted": ("                self.tokens += len(running)\n", ""),
    },
    "test_4_generation.py::test_rows_of_different_lengths_are_independent": {
        "a finished row stays in the batch": (
            "running = [running[b] for b in going]", "running = running[:len(going)]"),
        "averages of a row that has left": (
            "averaging[going, :max(cache.lengths)]", "averaging[going].roll(1, 1)[:, :max(cache.lengths)]"),
    },
    "test_5_accumulation.py::test_tokens_attend_to_nodes_as_in_hugging_face": {
        "second softmax": ("config.norm_eps), a\n", "config.norm_eps), None if a is None else a.softmax(-1)\n"),
        "a node's mass in place of its mean": ("n] = 1 / (end - start)", "n] = 1"),
        "the first layer alone": ("a += over_heads", "a += over_heads * config.layers * (layer == 0)"),
        "the first head of each group alone": ("A[..., :attended].mean((1, 2))", "A[:, :, 0, :, :attended].mean(1)"),
        "attention of the predicting token": (                  # the row before: that of the token's predecessor
            "attentions.append(token_attention[0])",
            "attentions[:] = [*attentions[1:], token_attention[0], token_attention[0]][-len(attentions) - 1:]"),
        "attention inside the node included": (
            "A[..., :attended].mean((1, 2))",
            "(A[..., :attended] + A[..., attended:].sum(-1, keepdim=True)).mean((1, 2))"),
    },
    "test_5_accumulation.py::test_bfloat16_keeps_the_mass": {
        "softmax in the model's dtype": ("at_least_float32(scores).softmax(-1)", "scores.softmax(-1)"),
        "head mean in bfloat16": (
            "A[..., :attended].mean((1, 2))", "A[..., :attended].to(q.dtype).mean((1, 2)).to(A.dtype)"),
        "a node's mean in the model's dtype": (
            "a = a @ averaging  ", "a = (a.to(self.dtype) @ averaging.to(self.dtype)).to(a.dtype)  "),
    },
    "test_5_accumulation.py::test_peak_memory_grows_linearly": {
        "attention written out for every prompt": (
            "self.forward(tokens, positions, cache)\n", "self.forward(tokens, positions, cache, max(before) + T)\n"),
    },
    "test_5_accumulation.py::test_nothing_outlives_a_layer_but_the_sum": {
        "all layers kept": (
            "                a += over_heads\n",
            "                a += over_heads\n"
            "                self.kept = [*getattr(self, \"kept\", []), over_heads]\n"),
    },
    "test_6_cache.py::test_any_life_of_a_cache_equals_one_pass": {
        "mask off by one": ("<= positions[:, :, None]", "<= positions[:, :, None] + 1"),
        "fused mask aligned at the top left": (
            "(attended or P > T):", "attended:"),
        "cache position off by one": ("[old + new for old, new in zip(before, counts)]",
                                      "[old + new - 1 for old, new in zip(before, counts)]"),
        "padded width for a row's length": (
            "[old + new for old, new in zip(before, counts)]", "[old + T for old in before]"),
        "half a node stays a node": ("if span[1] <= end}", "if span[0] < end}"),
        "a dropped row leaves its nodes": ("        self.nodes = [self.nodes[b] for b in rows]\n", ""),
    },
    "test_6_cache.py::test_a_probe_leaves_no_trace": {
        "probe not rolled back": ("cache.rollback([end - len(probe) for end in cache.lengths])", "pass"),
    },
    "test_tokenizer.py::test_the_token_that_closes_a_turn_ends_a_reply": {
        "only eos_token_id ends a reply": ("(*config.eos, *tokenizer.closing)", "config.eos"),
    },
    "test_checkpoint.py::test_logits_that_are_not_finite_are_named": {
        "numbers that are not finite go on": ("if not logits.isfinite().all():", "if False:"),
    },
    "test_8_flops.py::test_prefill_append_probe_and_decode_equal_the_flop_counter_of_torch": {
        "probes cost nothing": (
            "cache.rollback([end - len(probe) for end in cache.lengths])\n",
            "cache.rollback([end - len(probe) for end in cache.lengths])\n        self.flops -= len(probe)\n"),
        "attention counted as a triangle": ("4 * config.layers * H", "2 * config.layers * H"),
    },
    "test_8_flops.py::test_rows_that_run_together_cost_what_they_cost_alone": {
        "padding is counted": (
            "flops_of(self.config, counts[b], before[b] + counts[b])", "flops_of(self.config, T, before[b] + T)"),
    },
    "test_9_full_size.py::test_memory_at_full_size": {
        "positions made on the CPU": ("[:, None] + torch.arange(T, device=self.device)", "[:, None] + torch.arange(T)"),
        "keys kept twice": (
            "        # Trap: two index tensors",
            "        self.given = [*getattr(self, \"given\", []), keys]\n        # Trap: two index tensors"),
        "attention of a long pass in one block": ("max(1, BLOCK_BYTES // (4 * B * H * k.shape[2]))", "T"),
    },
}

PECAN = {
    "test_7_pecan.py::test_worked_example": {
        "edges not normalised": (
            "return share(a[x].cpu().double().mean(0))", "return a[x].cpu().double().mean(0)"),
        "softmax over the edges": (
            "return share(a[x].cpu().double().mean(0))", "return a[x].cpu().double().mean(0).softmax(0)"),
        "the heaviest token of an IP alone": (".double().mean(0))", ".double().amax(0))"),
        "E for its transpose": ("z = E.T @ r", "z = E @ r"),
        "shares of the largest": ("    total = x.sum()\n", "    total = x.max()\n"),
    },
    "test_7_pecan.py::test_prompts_are_the_tables_of_the_paper": {
        "another wording of Table A2": ("as concisely as you can.", "as shortly as you can."),
    },
    "test_7_algorithm.py::test_bullets_equal_the_naive_ones": {
        "marker counted in an IP": ("if first < end and last > start]", "if first < end and last >= start - 1]"),
        "a cut bullet is kept": ("[] if complete else items[-1:]", "[]"),
        "a repeated bullet brings its edges": ("tokens.setdefault(", "tokens.__setitem__("),
        "a heading's words are those of its first point alone": (
            "start, end in [*above, item]])", "start, end in [*above, item]]), above.clear()"),
    },
    "test_text.py::test_bullets": {
        "a sentence is a heading": ("level < BULLET or text[", "True or text["),
    },
    "test_7_algorithm.py::test_building_equals_the_naive_one": {
        "marker counted in a node of a prompt": (
            "[(None, tokenizer.encode(\"\\n*\")), (node, tokenizer.encode(\" \" + text))]",
            "[(None, []), (node, tokenizer.encode(\"\\n*\") + tokenizer.encode(\" \" + text))]"),
        "instruction tokens counted as a node": (
            "(None, tokenizer.encode(SUMMARISE[1]) +", "(len(texts) - 1, tokenizer.encode(SUMMARISE[1]) +"),
        "the first columns of a are cut off": ("a[:, :len(texts)]", "a[:, -len(texts):]"),
        "no room kept for the summary": ("room = settings.window - limit -", "room = settings.window -"),
        "passages mixed in a chunk": ("in document.passages for", "in [\" \".join(document.passages)] for"),
        "a level that does not shrink is kept": (">= sum(lengths):", "> 1e9:"),
        "one level too many": ("        if len(groups) == 1:\n            break\n", ""),
    },
    "test_7_pecan.py::test_two_models": {
        "half of construction's FLOPs": ("return Graph(nodes, edges, flops)", "return Graph(nodes, edges, flops // 2)"),
        "builder ignored": ("partial(answers_to, self.builder)", "partial(answers_to, self.model)"),
        "a query's embedding is free": ("        answer.flops += self.encoder.flops - flops_before\n", ""),
    },
    "test_7_algorithm.py::test_searching_equals_the_naive_one": {
        "a sum of zero divides": ("return x / total if total > 0 else torch.zeros_like(x)", "return x / total"),
        "z not normalised": ("share(z) + share(", "z + share("),
        "cosine not clamped": ("share(c.clamp(min=0))", "share(c)"),
        "similarity clamped in the ablation": ("score = c\n", "score = c.clamp(min=0)\n"),
        "position factor dropped": ("return position * to_query", "return to_query"),
        "position factor off by one": ("position = len(self.trace) + 2", "position = len(self.trace) + 1"),
        "r is a sum over the node's tokens": (".cpu().double().mean().item()", ".cpu().double().sum().item()"),
        "marker counted in a visited node": ("a[0, first - before:end", "a[0, max(0, first - before - 2):end"),
        "instruction counted in the question": (
            "(None, tokenizer.frame.open + tokenizer.user(ASK[0])), (\"q\", tokenizer.encode(question))",
            "(\"q\", tokenizer.frame.open + tokenizer.user(ASK[0]) + tokenizer.encode(question))"),
        "visited nodes may be read again": ("        possible[self.visited] = False\n", ""),
        "ties go to the higher id": ("possible.nonzero()[:, 0]", "possible.nonzero()[:, 0].flip(0)"),
        "Yes and No exchanged": ("logits[0].cpu()", "logits[0].flip(0).cpu()"),
        "p_yes >= t_p": ("p_yes > self.settings.confidence", "p_yes >= self.settings.confidence"),
        "confidence ignored": ("p_yes > self.settings.confidence", "p_yes > 0.5"),
        "patience off by one": ("yes >= self.settings.patience", "yes > self.settings.patience"),
        "a No starts patience anew": ("yes += self.check(hidden)", "yes = yes + 1 if self.check(hidden) else 0"),
        "no room kept for the answer": ("self.lengths <= self.room", "self.lengths <= self.room + 4"),
        "the top level in order of similarity": ("        chosen.sort()\n", ""),
    },
    "test_7_search.py::test_the_last_verdict_stays_in_the_conversation": {
        "always Yes in the answer turn": ("\"No\" if self.trace[-1].verdict == \"No\" else \"Yes\"", "\"Yes\""),
    },
    "test_7_search.py::test_the_room_that_a_large_top_level_leaves_to_the_token": {
        "a top level that just fits is cut": (
            "self.lengths[top_level].sum() > room:", "self.lengths[top_level].sum() >= room:"),
        "half the window and a token more": ("settings.chunk, room // 2)", "settings.chunk, room // 2 - 1)"),
        "a token of a large top level's reserve": (
            "min(RESERVE * self.settings.chunk,", "min(RESERVE * self.settings.chunk - 1,"),
    },
    "test_7_search.py::test_passes_flops_and_tokens_of_a_search": {
        "a large top level in one pass": ("max(PASS, *lengths)", "10 ** 9"),
        "a check after each part of the top level": ("self.visit(piece)", "self.visit(piece, self.closing)"),
    },
    "test_wires.py::test_every_number_of_a_search_comes_from_its_own_question_and_document": {
        "node vectors rolled by one": (
            "vectors, flops = node_vectors(path, self.encoder, texts)\n",
            "vectors, flops = node_vectors(path, self.encoder, texts)\n        vectors = vectors.roll(1, 0)\n"),
        "similarity to a constant text": ("self.encoder.encode([question])", "self.encoder.encode([\"Who?\"])"),
    },
    "test_tokenizer.py::test_a_thought_is_no_reply": {
        "a thought is part of the summary": ("text = without_thought(text)", "pass"),
    },
}

OUTLINE = {
    "test_7_algorithm.py::test_bullets_equal_the_naive_ones": {
        "a preamble is a point": ("if n == marked[0] and colon", "if False and colon"),
        "an afterword joins the last bullet": ("elif depth or lines[n - 1]", "elif True or lines[n - 1]"),
    },
    "test_text.py::test_bullets": {
        "a year is a marker": ("{of('Nl')}]{{1,2}}", "{of('Nl')}]{{1,4}}"),
        "a dash without a blank is a marker": ("[{of('Pd')}+−] (?=\\s|$)", "[{of('Pd')}+−]"),
    },
    "test_text.py::test_a_heading_begins_the_points_below_it": {
        "a heading ends the point above it": ("= colon and n > marked", "= False and n > marked"),
    },
}

TEXT = {
    "test_text.py::test_a_word_counts_with_the_blank_before_it": {
        "chunks split by words without their blank": ("encode(piece)) if", "encode(piece[1:])) if"),
    },
    "test_hostile.py::test_a_text_without_blanks_is_cut_at_the_best_place": {
        "chunks end anywhere": ("[*reversed(sentences), *(n for", "[*(n for"),
        "a chunk ends at a sentence, however early": ("text, most // 2, most)", "text, 0, most)"),
        "letters lose their accents": ("reversed(characters) if n <= most", "range(most, 1, -1)"),
    },
}

TOKENIZER = {
    "test_tokenizer.py::test_a_folder_is_understood_as_transformers_understands_it": {
        "the chat tokens of added_tokens.json are spelled out": ("in read_if_there(older).items()", "in {}.items()"),
        "special tokens are normalised": ("token[\"normalized\"] &= not token[\"special\"]", "pass"),
        "added words are no words in documents": ("or re.search(r", "or True or re.search(r"),
        "a text may say the template's tokens": ("(i in framed or token.content in self.template)", "False"),
        "a blank after every special token": ("if settings.get(\"legacy\") else \"first\"", "if True else \"first\""),
        "user-defined symbols are like other words": ("if special or len(token) > 1", "if special or len(token) > 99"),
        "the template prints today": ("TODAY = datetime.datetime(2024, 7, 26)", "TODAY = datetime.datetime.now()"),
        "the model thinks first": ("enable_thinking=False", "enable_thinking=True"),
        "the empty thought stays": ("self._around_contents([texts[0], said])", "self._around_contents(texts)"),
    },
    "test_tokenizer.py::test_the_door_is_shut_where_a_token_joins_the_template_to_a_turn": {
        "the frame is read as if nothing followed": (
            "if self.special.encode(whole, add_special_tokens=False).ids != ids:", "if False:"),
        "samples for PECAN's words": (
            "USER = \"Summary directly.\", \"Given can.\", \"Can Tom\", \"Can 3\", 'Can \"it\"', \"Can it?)\"",
            "USER = \"3\","),
    },
    "test_tokenizer.py::test_a_document_cannot_smuggle_in_special_tokens": {
        "special tokens recognised in documents": ("encode_special_tokens = True", "encode_special_tokens = False"),
    },
    "test_tokenizer.py::test_ids_equal_sentencepiece": {
        "the last token is merged first": ("models.BPE(vocabulary, merges,", "models.BPE(vocabulary, merges[::-1],"),
    },
    "test_tokenizer.py::test_damage_is_named": {
        "a document may say a special token": ("if i in self._ids(name) and", "if False and"),
        "a tokenizer.model of other rules": (".ids != model.encode(SAMPLE):", ".ids == []:"),
        "p_yes inside a thought": ("if re.search(UNFINISHED", "if False and re.search(UNFINISHED"),
        "p_yes without a header": ("if opening != first or not", "if False and not"),
        "ids of another file": ("if tokenizer.token_to_id(name) != i:", "if False:"),
    },
    "test_tokenizer.py::test_the_tokens_of_a_bullet_share_a_byte_with_it": {
        "the last character of a token is lost": ("own[-1] + 1) if own", "own[-1]) if own"),
        "each token of a character is one byte": ("bytes(map(BYTES.get, parts))", "bytes([BYTES[parts[0]]])"),
    },
    "test_tokenizer.py::test_a_reply_cut_inside_a_character_keeps_the_characters_before": {
        "half a character is U+FFFD": (
            "codecs.getincrementaldecoder(\"utf-8\")(\"surrogateescape\").decode(b\"\".join(pieces))",
            "b\"\".join(pieces).decode(\"utf-8\", \"surrogateescape\")"),
    },
    "test_tokenizer.py::test_a_thought_is_no_reply": {
        "the marks of a thought are left out": ("if re.fullmatch(MARK, name):", "if False:"),
    },
}

CHECKPOINT = {
    "test_checkpoint.py::test_one_file_counts_beside_the_index_of_old_shards": {
        "old shards count": ("if single.exists() or not index.exists():", "if not index.exists():"),
    },
    "test_checkpoint.py::test_what_a_config_leaves_out_or_says_twice_is_as_in_hugging_face": {
        "head width of a config without one": ("values[\"hidden_size\"] // heads", "128"),
        "rope_scaling behind rope_parameters": (
            "given.get(\"rope_scaling\") or given.get(\"rope_parameters\")",
            "given.get(\"rope_parameters\") or given.get(\"rope_scaling\")"),
    },
    "test_checkpoint.py::test_broken_checkpoints_are_named": {
        "quantised weights cast": ("if not tensor.is_floating_point() or tensor.dtype.itemsize == 1:", "if False:"),
    },
    "test_checkpoint.py::test_a_fingerprint_is_of_what_is_read": {
        "a fingerprint of the whole folder": (
            "*(folder / name for name in FILES)", "*(path for path in folder.iterdir() if path.is_file())"),
    },
}

OPTIONS = {
    "test_metrics.py::test_the_first_line_that_names_an_option_decides": {
        "a denial reaches into the line above": ("CLAUSE = (r\"(\\n|", "CLAUSE = (r\"("),
    },
    "test_metrics.py::test_a_denial_takes_the_nearest_letter": {
        "a denial takes the letter before it": ("no.start() - span[1]), -span[0])", "no.start() - span[1]), span[0])"),
    },
}

METRICS = {
    "test_metrics.py::test_worked_examples": {
        "F1 keeps articles": ("(a|an|the)", "(a|an)"),
        "F1 puts blanks for punctuation": (
            "c for c in text.lower() if c not in string.punctuation",
            "\" \" if c in string.punctuation else c for c in text.lower()"),
    },
    "test_metrics.py::test_the_best_over_the_gold_answers": {
        "the worst gold answer counts": ("if same else 0.0\n\n    return max(", "if same else 0.0\n\n    return min("),
    },
    "test_metrics.py::test_exact_match_by_hand": {
        "exact match in any order": ("return words(text) or", "return sorted(words(text)) or"),
    },
    "test_metrics.py::test_differences_are_paired": {
        "differences are not paired": ("(ours[id] - theirs[id])", "(ours[id] - mean(list(theirs.values())))"),
    },
    "test_tables.py::test_a_summary_by_hand": {
        "construction FLOPs averaged over questions": (
            "(\"construction_flops\", documents))", "(\"construction_flops\", rows))"),
        "median for mean": ("return sum(values) / len(values)", "return sorted(values)[len(values) // 2]"),
    },
}

BUGS = {"llama.py": LLAMA, "pecan.py": PECAN, "core/outline.py": OUTLINE, "core/text.py": TEXT,
        "model/tokenizer.py": TOKENIZER, "model/checkpoint.py": CHECKPOINT, "evaluation/metrics.py": METRICS,
        "evaluation/options.py": OPTIONS}

# name: (file, text, the text that replaces it, the test that catches it)
MUTATIONS = {name: (file, *change, test) for file, tests in BUGS.items() for test, bugs in tests.items()
             for name, change in bugs.items()}


def argument_of(test: str) -> str:
    """The test as an argument of pytest; its file is in one of the rooms, or in a folder there."""
    file, name = test.split("::")
    path, = (ROOT / "tests").rglob(file)
    return f"{path.relative_to(ROOT)}::{name}"


def main(wanted: list[str]) -> int:
    """Run the bugs, as many at once as there are processors (at most 8), and print what became of each."""
    chosen = {name: bug for name, bug in MUTATIONS.items() if not wanted or any(word in name for word in wanted)}
    calls = [(name, change, [argument_of(test)]) for name, (*change, test) in chosen.items()]
    if not wanted:                                             # in a copy without any bug, nothing may fail
        calls.insert(0, ("no bug", None, sorted({test for _, _, (test,) in calls})))

    # Processes are forked from a server that loads the libraries once. Each runs one bug.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    wrong = 0
    with context.Pool(min(8, os.cpu_count()), maxtasksperchild=1) as pool:
        for name, outcome, said in pool.imap(run, calls):
            wrong += outcome != ("SURVIVES" if name == "no bug" else "caught")
            print(f"{name:48} {outcome} {said}", flush=True)
    print(f"{len(chosen)} bugs, {wrong} not caught")
    return 0 if chosen and not wrong else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
