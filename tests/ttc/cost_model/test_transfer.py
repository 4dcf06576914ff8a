"""The model of KV transfers: hand-computed cases, a brute-force reference, the paper's figures,
monotonicity."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.models import deep, prompt
from tests.helpers.tokenizers import Letters
from ttc import BeamGroups, Engine
from ttc.cost_model.transfer import (
    KVShape,
    Workload,
    beam_scheduling_bytes,
    layers_in_device,
    token_by_token_bytes,
    token_transfer_bytes,
)

GIB = 2**30
OPT = KVShape(layers=32, kv_heads=32, head_dim=128)
PAPER = Workload(
    beams=64, prompt_tokens=128, generated_tokens=1920, step_tokens=32, budget_bytes=7 * GIB
)
# 2 × 1 × 2 × 2 = 8 bytes per layer, beam and token; 2 beams: 16 bytes per layer and token.
SMALL = KVShape(layers=3, kv_heads=1, head_dim=2)
LOAD = Workload(beams=2, prompt_tokens=2, generated_tokens=4, step_tokens=2, budget_bytes=100)

shapes = st.builds(
    KVShape,
    layers=st.integers(1, 5),
    kv_heads=st.integers(1, 3),
    head_dim=st.integers(1, 4),
    bytes_per_element=st.just(2),
)
loads = st.builds(
    Workload,
    beams=st.integers(1, 5),
    prompt_tokens=st.integers(1, 12),
    generated_tokens=st.integers(1, 24),
    step_tokens=st.integers(1, 8),
    budget_bytes=st.integers(1, 20_000),
)


@given(shapes, loads)
def test_offloaded_charges_starts_of_steps_whose_ends_do_not_fit(
    shape: KVShape, load: Workload
) -> None:
    expected = 0
    for first in range(
        load.prompt_tokens, load.prompt_tokens + load.generated_tokens, load.step_tokens
    ):
        last = first + load.step_tokens
        token = load.beams * shape.layers * shape.token_layer_bytes
        if last <= load.prompt_tokens + load.generated_tokens and last * token > load.budget_bytes:
            expected += first * token
    assert beam_scheduling_bytes(shape, load, "offloaded") == expected


def test_a_run_with_private_copies_moves_what_the_model_says() -> None:
    """Each beam's copy of its blocks comes to the device once a step, from the step on whose end
    does not fit."""
    shape, beams, prompt_tokens, step, steps = KVShape(2, 1, 8, 4), 8, 33, 16, 4
    load = Workload(
        beams,
        prompt_tokens - 1,
        steps * step,
        step,
        4 * shape.beam_bytes(prompt_tokens + steps * step),
    )
    memory = BeamGroups(load.budget_bytes / GIB, block_tokens=8, shared=False)
    engine = Engine(deep(layers=2, heads=1, context=256), Letters(), memory=memory)
    root = engine.root(prompt(1, prompt_tokens))
    branches = engine.fork(root, beams)
    engine.release([root])
    for _ in range(steps):
        engine.generate(branches, step)
    moved = engine.memory.link.to_device_bytes.total()
    assert moved == pytest.approx(beam_scheduling_bytes(shape, load, "offloaded"), rel=0.03)


def reference(shape: KVShape, load: Workload) -> tuple[int, int, int]:
    """Token by token, and in steps charged at the start and at the end, layer by layer and beam by
    beam."""
    token_layer = 2 * shape.kv_heads * shape.head_dim * shape.bytes_per_element
    tokenwise = start = end = 0
    for tokens in range(load.prompt_tokens, load.prompt_tokens + load.generated_tokens):
        room = load.budget_bytes
        for _layer in range(shape.layers):
            room -= load.beams * tokens * token_layer
            tokenwise += load.beams * tokens * token_layer if room < 0 else 0
    for step in range(1, load.generated_tokens // load.step_tokens + 1):
        last = load.prompt_tokens + step * load.step_tokens
        whole = load.beams * shape.layers * token_layer
        start += whole * (last - load.step_tokens)
        end += whole * last if whole * last > load.budget_bytes else 0
    return tokenwise, start, end


def test_reserved_layers_by_hand() -> None:
    # At 2 tokens every layer fits and none is reserved; then one layer of the 2, 1 and 1 that fit
    # is for staging.
    assert [
        layers_in_device(SMALL, LOAD, tokens, reserved_layers=1) for tokens in (2, 3, 4, 5)
    ] == [3, 1, 0, 0]
    assert token_transfer_bytes(SMALL, LOAD, 3, reserved_layers=1) == 2 * 48
    assert token_by_token_bytes(SMALL, LOAD, reserved_layers=1) == 2 * 48 + 3 * 64 + 3 * 80


@given(shapes, loads)
def test_equals_a_count_layer_by_layer(shape: KVShape, load: Workload) -> None:
    counted = (
        token_by_token_bytes(shape, load),
        beam_scheduling_bytes(shape, load, "start"),
        beam_scheduling_bytes(shape, load, "end"),
    )
    assert counted == reference(shape, load)


def test_token_by_token_of_the_paper() -> None:
    assert round(token_by_token_bytes(OPT, PAPER) / GIB) == 53_012


@pytest.mark.parametrize(
    ("step_tokens", "start", "end"), [(32, 2010, 2052), (64, 990, 1044), (128, 480, 540)]
)
def test_steps_of_the_paper(step_tokens: int, start: int, end: int) -> None:
    load = replace(PAPER, step_tokens=step_tokens)
    assert beam_scheduling_bytes(OPT, load, "end") == end * GIB  # what the paper states
    assert beam_scheduling_bytes(OPT, load) == start * GIB  # what its Eq. 5 gives
