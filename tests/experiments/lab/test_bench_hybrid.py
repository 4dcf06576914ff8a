"""The measurement of a hybrid model: both ways run, and the table holds their medians."""

from __future__ import annotations

from experiments.lab.bench import hybrid

TINY = {
    "num_hidden_layers": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "vocab_size": 64,
}


def test_both_ways_are_measured_and_what_the_engine_holds_is_counted() -> None:
    plain, own = hybrid.measure(TINY, prefix=24, branches=3, new_tokens=4, rounds=1)
    assert (plain["way"], own["way"]) == ("generate", "engine")
    assert all(row["prefill_s"] > 0 and row["step_ms"] > 0 for row in (plain, own))
    # of three layers: float32, and a convolution in bfloat16
    state = 3 * (2 * 128 * 128 * 4 + 3 * 2 * 128 * 4 * 2)
    key_value = 2 * 256 * 2  # of a token in the one layer of attention
    # a state after the prefix and after each branch
    assert own["bytes"] == 4 * state + (23 + 3 * 4) * key_value
