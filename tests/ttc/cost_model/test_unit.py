"""A partition unit's bytes and operations: HELM's equations by hand, tokens counted one by one, bad
input."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttc.cost_model.unit import Pass, Unit, held_bytes
from ttc.errors import InvalidInput

# A block of Qwen3-8B: H 4096, 32 query and 8 KV heads of 128, I 12288, bfloat16; norms of H twice
# and of heads twice.
WEIGHTS = 4096 * (2 * 4096 + 2 * 1024 + 3 * 12288)
BLOCK = Unit(
    name="block 0",
    param_bytes=2 * (WEIGHTS + 2 * 4096 + 2 * 128),
    multiplied=WEIGHTS,
    hidden=4096,
    kv_elements=2 * 8 * 128,
    score_elements=2 * 32 * 128,
    is_block=True,
)


def test_a_block_of_qwen3_8b_as_in_the_papers_equations() -> None:
    at_4096 = Pass(branches=1, own_tokens=4095)
    assert round(BLOCK.w_param(1) / 1e6) == 386  # Eq. 4.3
    assert BLOCK.w_act(1) == 8 * 1024  # Eq. 4.4
    assert BLOCK.w_kv(at_4096) == 2 * 8 * 128 * 2 * 4096  # Eq. 4.5 as its factors say
    assert BLOCK.f_proj(3) == 2 * 3 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 12288)  # Eq. 4.9
    assert BLOCK.f_attn(at_4096) == 4 * 1 * 32 * 4096 * 128  # Eq. 4.11


def test_of_an_embedding_a_vector_per_row_is_read() -> None:
    embedding = Unit(name="embedding", param_bytes=2 * 1000 * 64, multiplied=0, hidden=64)
    assert (embedding.w_param(1), embedding.w_param(10)) == (128, 1280)
    assert not embedding.is_block and embedding.w_kv(Pass(4)) == embedding.f_attn(Pass(4)) == 0


def test_more_rows_read_more_experts() -> None:
    mixture = replace(BLOCK, param_bytes=1000, expert_bytes=800, experts=4, routed=2)
    assert mixture.w_param(1) == 200 + 400  # two of four experts
    assert mixture.w_param(2) == 200 + 600  # two rows miss an expert with probability 1/4
    assert mixture.w_param(1000) == pytest.approx(1000)


passes = st.builds(
    Pass, branches=st.integers(1, 4), new_tokens=st.integers(1, 6), own_tokens=st.integers(0, 9),
    shared_tokens=st.integers(0, 9),
)  # fmt: skip


@given(passes, st.one_of(st.none(), st.integers(1, 30)))
def test_tokens_are_counted_one_by_one(work: Pass, window: int | None) -> None:
    attended, read = 0, set[tuple[int, int]]()
    for branch in range(work.branches):
        before = work.shared_tokens + work.own_tokens
        for row in range(before, before + work.new_tokens):
            seen = range(0 if window is None else max(0, row + 1 - window), row + 1)
            attended += len(seen)
            read |= {(-1 if token < work.shared_tokens else branch, token) for token in seen}
    assert work.attended(window) == attended
    assert work.read(window) == len(read)
    assert work.rows == work.branches * work.new_tokens


def test_a_window_between_what_the_first_and_the_last_row_see_bounds_the_last_rows() -> None:
    work = Pass(2, new_tokens=4, own_tokens=2)
    assert work.attended() == work.attended(6) == 2 * (3 + 4 + 5 + 6)
    assert work.attended(5) == 2 * (3 + 4 + 5 + 5)
    assert work.attended(4) == 2 * (3 + 4 + 4 + 4)
    assert work.attended(2) == 2 * 4 * 2


def test_rows_attend_a_prefix_together_by_as_many_as_stand_on_it() -> None:
    assert Pass(8, own_tokens=4, shared_tokens=15, prefixes=2).read() == 2 * 15 + 8 * 5
    assert Pass(8, prefixes=2).rows_together == 4
    assert Pass(3, new_tokens=2, prefixes=2).rows_together == 3
    assert Pass(3, prefixes=5).rows_together == 1


def test_the_heads_and_the_vocabulary_of_a_unit() -> None:
    assert (BLOCK.group, BLOCK.projected) == (32 / 8, (32 + 2 * 8) * 128)
    output = Unit(name="output", param_bytes=0, multiplied=1000 * 64, hidden=64)
    assert (output.group, output.projected, output.vocabulary) == (1.0, 0, 1000)
    assert replace(output, hidden=0).vocabulary == 0


def test_weights_in_common_are_read_by_each_unit_and_held_once() -> None:
    tied = replace(BLOCK, tied=(("output", 10), ("other", 5)))
    output = replace(BLOCK, name="output")
    assert tied.w_param(1) == BLOCK.w_param(1) + 15
    assert held_bytes([tied]) == BLOCK.param_bytes + 15
    assert held_bytes([tied, output]) == 2 * BLOCK.param_bytes + 5


def test_bad_passes_are_refused() -> None:
    with pytest.raises(InvalidInput, match="branches=0 must be at least 1"):
        Pass(0)
    with pytest.raises(InvalidInput, match="new_tokens=-1 must be at least 1"):
        Pass(1, new_tokens=-1)
    with pytest.raises(InvalidInput, match=r"shared_tokens=-1 must be at least 0"):
        Pass(1, shared_tokens=-1)


def test_a_state_is_read_and_written_for_each_branch_however_long_it_is() -> None:
    recurrent = Unit(
        name="r", param_bytes=10, multiplied=5, hidden=4, state_bytes=100, is_block=True
    )
    assert replace(recurrent, state_elements=25).f_proj(2) == 2 * 2 * (5 + 3 * 25)
    assert (
        recurrent.w_kv(Pass(3, shared_tokens=9))
        == recurrent.w_kv(Pass(3, own_tokens=5))
        == 2 * 3 * 100
    )
