"""The fused kernel against softmax attention written out in double precision, and against the
plan's own operations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ttc.threads
from experiments.standins.attention_cases import DecodeCase, Segments
from tests.helpers.attention import LAYERS, SHAPES, SIGHTS, TREE, trees
from tests.helpers.processors import MULTIPLY_AND_ADD, PROCESSORS, skip_unless_runs
from tests.helpers.tiers import examples, slow
from ttc import compiling
from ttc.attention import fused_cpu
from ttc.attention.fused import SWITCH
from ttc.attention.fused_cpu import CompiledAttention
from ttc.attention.kernels import Layer
from ttc.attention.plan_arrays import PlanArrays, even
from ttc.memory.kv import LayerShape
from ttc.threads import by_pool


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize(("shape", "groups"), SHAPES, ids=str)
def test_a_tree_is_attended_as_by_softmax(shape: LayerShape, groups: int, layer: Layer) -> None:
    DecodeCase(shape, groups, TREE, 7, 5, torch.float32).check(layer, 1e-5)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize(("shape", "groups"), SHAPES, ids=str)
def test_the_operations_give_the_same_in_double_precision(
    shape: LayerShape, groups: int, layer: Layer
) -> None:
    DecodeCase(shape, groups, TREE, 7, 5, torch.float64).check(layer, 1e-12, fused=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, slow(torch.float16)], ids=str)
def test_keys_in_16_bits_lose_nothing_on_their_way(dtype: torch.dtype) -> None:
    for layer in LAYERS:
        DecodeCase(LayerShape(3, 64, 48), 3, TREE, 7, 5, dtype).check(layer, 1e-5)


@settings(max_examples=examples(60))
@given(
    trees(),
    st.integers(0, 70),
    st.sampled_from([1, 2, 5]),
    st.sampled_from([(3, 5), (16, 16), (17, 33), (32, 16)]),
    st.sampled_from(SIGHTS),
    st.sampled_from([None, 3.0]),
)
def test_any_tree_is_attended_as_by_softmax(
    tree: tuple[Segments, int],
    filled: int,
    groups: int,
    dims: tuple[int, int],
    sight: tuple[int | None, int | None],
    cap: float | None,
) -> None:
    case = DecodeCase(LayerShape(2, *dims), groups, *tree, filled, torch.float32)
    case.check(Layer(0, 0.5, cap, *sight), 1e-5)


def test_a_plan_is_lowered_once_and_goes_on_as_its_rows_write() -> None:
    case = DecodeCase(LayerShape(2, 16, 16), 2, TREE, 7, 0, torch.float32)
    plan, layer = case.plan(), Layer(0, 0.3, window=90)
    for _ in range(3):
        expected = case.expected(layer)
        for found, right in zip(
            plan.attend(layer, case.q, case.key, case.value), expected, strict=True
        ):
            torch.testing.assert_close(found.double(), right, atol=1e-5, rtol=1e-5)
        first = plan.fused
        plan.advance()
        case.filled, case.positions = plan.passes, plan.positions
        case.q, case.key, case.value = (
            case.q.roll(1, -1),
            case.key.roll(1, -1),
            case.value.roll(1, -1),
        )
    assert plan.fused is first is not None


def test_results_are_the_same_bits_for_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = DecodeCase(
        LayerShape(2, 64, 64),
        3,
        [(900, 0, 40), *((40, r, r + 1) for r in range(40))],
        40,
        5,
        torch.float32,
    )
    before = torch.get_num_threads()
    found = []
    try:
        for threads, team in ((1, None), (2, None), (3, None), (3, by_pool)):
            torch.set_num_threads(threads)
            if team is not None:
                monkeypatch.setattr(ttc.threads, "team", lambda: by_pool)
            found.append(case.plan().attend(Layer(0, 0.3), case.q, case.key, case.value))
    finally:
        torch.set_num_threads(before)
    for out, lse in found[1:]:
        assert torch.equal(out, found[0][0]) and torch.equal(lse, found[0][1])


def test_a_row_that_sees_no_key_gets_nothing_and_no_weight() -> None:
    case = DecodeCase(LayerShape(1, 16, 16), 1, [(20, 0, 2)], 2, 0, torch.float32)
    own = (part[None] for part in case.own(0, 1))
    kernel = fused_cpu.kernel(torch.float32)
    assert kernel is not None
    alone = CompiledAttention(PlanArrays(case.pieces, [], [100, 22], 1), torch.float32, kernel)
    out, lse = alone.attend(Layer(0, 1.0, window=10), case.q, *own, None)
    assert out[:, :, 0].abs().max() == 0 and lse[0, 0, 0] == float("-inf")
    assert out[:, :, 1].abs().min() > 0 and lse[0, 0, 1] > -100


def test_not_a_number_stays_one() -> None:
    case = DecodeCase(LayerShape(1, 16, 16), 1, [(70, 0, 2)], 2, 0, torch.float32)
    case.key[0, 1, 3] = float("nan")
    out, _ = case.plan().attend(Layer(0, 1.0), case.q, case.key, case.value)
    assert out[:, :, 0].isfinite().all() and out[:, :, 1].isnan().all()


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "0")
    DecodeCase(LayerShape(2, 16, 16), 2, TREE, 7, 5, torch.float32).check(
        LAYERS[0], 1e-5, fused=False
    )


@pytest.fixture
def compiled_anew() -> Iterator[None]:
    """The kernel is looked for again, and again afterwards."""
    for function in (compiling.library, fused_cpu.kernel):
        function.cache_clear()
    yield
    for function in (compiling.library, fused_cpu.kernel):
        function.cache_clear()


@pytest.mark.skipif(compiling.cxx() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("packed", [None, "int8", "fp8"])
def test_the_kernel_compiles_for_all_that_kv_is_stored_as(packed: str | None) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert fused_cpu.kernel(dtype, packed) is not None


def test_without_a_compiler_a_plan_runs_operation_by_operation(
    compiled_anew: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.warns(UserWarning, match="no C\\+\\+ compiler.*install"):
        DecodeCase(LayerShape(2, 16, 16), 2, TREE, 7, 5, torch.float32).check(
            LAYERS[0], 1e-5, fused=False
        )


@pytest.mark.parametrize("processor", PROCESSORS)
def test_other_processors_attend_as_well(
    processor: str, compiled_anew: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_unless_runs(processor)
    monkeypatch.setenv(compiling.CPU, processor)
    for shape, groups in SHAPES:
        DecodeCase(shape, groups, TREE, 7, 5, torch.float32).check(LAYERS[1], 1e-5)
    for dtype in (torch.bfloat16, torch.float16):
        DecodeCase(LayerShape(3, 64, 48), 3, TREE, 7, 5, dtype).check(LAYERS[3], 1e-5)


def test_all_processors_that_multiply_and_add_at_once_give_the_same_bits_in_float32(
    compiled_anew: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for processor in MULTIPLY_AND_ADD:
        skip_unless_runs(processor)
        compiling.library.cache_clear()
        fused_cpu.kernel.cache_clear()
        monkeypatch.setenv(compiling.CPU, processor)
        case = DecodeCase(LayerShape(3, 64, 80), 3, TREE, 7, 21, torch.float32)
        found.append(case.plan().attend(LAYERS[3], case.q, case.key, case.value))
    for out, lse in found[1:]:
        assert torch.equal(out, found[0][0]) and torch.equal(lse, found[0][1])


@pytest.mark.parametrize(("start", "stop", "most"), [(0, 0, 4), (3, 4, 4), (0, 8, 4), (5, 14, 4)])
def test_a_range_is_cut_evenly(start: int, stop: int, most: int) -> None:
    parts = even(start, stop, most)
    assert [i for a, b in parts for i in range(a, b)] == list(range(start, stop))
    assert len(parts) == -(-(stop - start) // most)
    assert (
        max((b - a for a, b in parts), default=0) - min((b - a for a, b in parts), default=0) <= 1
    )
