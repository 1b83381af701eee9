"""Ring 4, generation: greedy replies are Hugging Face's, and each row of a batch replies as if it were alone."""
import pytest
from oracle import ending_at, greedy, relative, rounding, spent

from llama import Cache, Llama, rows_together


def generate(model, prompt, limit):
    """The ids that the model writes after a prompt."""
    cache = Cache(model, 1, len(prompt) + limit)
    hidden, _ = model.read(cache, [[(None, prompt)]])
    (ids,), _ = model.generate(cache, hidden, limit)
    return ids


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_greedy_ids_equal_hugging_face(model, hf, ids, seed):
    """A reply ends at the limit, or before any of the tokens that end one."""
    prompt = ids(100, seed)
    endless = ending_at(model)
    reply = generate(endless, prompt, 64)
    assert reply == greedy(hf, prompt, 64, eos_token_id=478) and len(reply) == 64, "none of them is 478"
    assert len(set(reply)) > 5, "the reply repeats itself too much to show a bug"
    assert endless.tokens == 164, "the last token counts, though it does not run"

    token = reply[9]
    for eos in [(token,), (478, token), (token, 478)]:
        assert generate(ending_at(model, *eos), prompt, 64) == reply[:reply.index(token)]


@pytest.mark.parametrize("record", [False, True])
def test_rows_of_different_lengths_are_independent(model, ids, spy, record):
    """Each row gives the hidden state, attention and ids that it gives alone, even after other rows have ended, and
    costs as much; also with the step that a GPU records, which runs here as it is."""
    rows = [[(None, ids(n, seed=n)), ("node", ids(9, seed=n + 1)), (None, ids(3, seed=5))] for n in (360, 15, 60, 30)]
    assert rows_together(372) == 2, "these rows run in two parts"

    def reply(rows, model, record=False):
        cache = Cache(model, len(rows), 440)
        model.read(cache, [[(None, row[0][1][:len(row[0][1]) % 11])] for row in rows])
        hidden, _ = model.read(cache, rows)
        return hidden, *model.generate(cache, hidden, 40, cache.averaging_matrix([["node"]] * len(rows)), record)

    # This token ends the longest row early, and every other row that writes it.
    _, unended, _ = reply(rows, model)
    model = ending_at(model, unended[0][9])
    calls = spy("forward", Llama)
    hidden, replies, a = reply(rows, model, record)
    slots = {given[-1] for given, _ in calls if given[1].shape[1] == 1}
    assert slots == {440 if record else None}, "a recorded step looks at all slots, another does not"
    before = spent(model)
    assert len(set(map(len, replies))) > 1, "all replies have the same length"

    for b, row in enumerate(rows):
        hidden_alone, (ids_alone,), (a_alone,) = reply([row], model)
        assert ids_alone == replies[b]

        # The fused kernel sums a batch in another order than a row.
        assert relative(hidden[b], hidden_alone[0]) < rounding(model) and relative(a[b], a_alone) < rounding(model)
    assert spent(model, before) == before
