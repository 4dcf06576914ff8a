"""Many new tokens for each branch by the fused kernel, against softmax attention written out in
double precision."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.standins.attention_cases import ExtendCase
from tests.helpers.attention import COUNTS, LAYERS, SHAPES, SIGHTS, TREE
from tests.helpers.tiers import examples, slow, some_quick
from ttc.attention import fused_cpu
from ttc.attention.fused import SWITCH
from ttc.attention.hf_hook import attending, tree_attention
from ttc.attention.kernels import Layer
from ttc.attention.reader import Fetch
from ttc.memory.kv import LayerShape
from ttc.passes.shrinking import Remaining


@pytest.mark.few
@pytest.mark.parametrize("layer", some_quick(LAYERS, LAYERS[3:]), ids=str)
@pytest.mark.parametrize(("shape", "groups"), SHAPES, ids=str)
def test_ragged_new_tokens_on_a_tree_are_attended_as_by_softmax(
    shape: LayerShape, groups: int, layer: Layer
) -> None:
    ExtendCase(shape, groups, TREE, COUNTS, torch.float32).check(layer, 1e-5)


@pytest.mark.few
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_the_operations_give_the_same_in_double_precision(layer: Layer) -> None:
    ExtendCase(*SHAPES[3], TREE, COUNTS, torch.float64).check(layer, 1e-12, fused=False)


@pytest.mark.parametrize("layer", [LAYERS[0], LAYERS[2]], ids=str)
def test_the_operations_give_the_same_where_the_kernel_is_switched_off(
    layer: Layer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32 PyTorch's own kernel takes a layer that sees everything."""
    monkeypatch.setenv(SWITCH, "0")
    ExtendCase(*SHAPES[0], TREE, COUNTS, torch.float32).check(layer, 1e-5, fused=False)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, slow(torch.float16)], ids=str)
def test_numbers_in_16_bits_lose_nothing_on_their_way(dtype: torch.dtype) -> None:
    for layer in LAYERS:
        ExtendCase(LayerShape(3, 64, 48), 3, TREE, COUNTS, dtype).check(layer, 1e-5)


def test_a_prompt_with_nothing_before_it_is_attended_as_by_softmax() -> None:
    ExtendCase(LayerShape(2, 16, 16), 2, [], [300], torch.float32, block=128).check(
        Layer(0, 0.3), 1e-5
    )


@settings(max_examples=examples(40))
@given(
    st.lists(st.sampled_from([1, 2, 11, 21, 22, 63, 64, 65, 130]), min_size=1, max_size=5),
    st.lists(st.sampled_from([1, 5, 64, 65, 300, 600]), max_size=2),
    st.sampled_from([None, 1, 16, 65]),
    st.sampled_from([1, 3, 7]),
    st.sampled_from([(3, 5), (16, 16), (17, 33)]),
    st.sampled_from(SIGHTS),
    st.sampled_from([None, 3.0]),
)
def test_any_pass_is_attended_as_by_softmax(
    counts: list[int],
    shared: list[int],
    private: int | None,
    groups: int,
    dims: tuple[int, int],
    sight: tuple[int | None, int | None],
    cap: float | None,
) -> None:
    branches = len(counts)
    segments = [(tokens, 0, branches) for tokens in shared]
    segments += [(private + i, i, i + 1) for i in range(branches)] if private else []
    ExtendCase(LayerShape(2, *dims), groups, segments, counts, torch.float32).check(
        Layer(0, 0.5, cap, *sight), 1e-5
    )


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_pieces_that_stream_in_are_merged_with_what_the_kernel_finds(layer: Layer) -> None:
    case = ExtendCase(LayerShape(2, 16, 16), 2, TREE, COUNTS, torch.float32)
    for piece in case.pieces[1:4]:
        case.memory.evict(piece.kv, "test")
    case.units = [Fetch(0, slice(0, 1), (1, 2, 3)), Fetch(0, slice(1, 2), (1, 2, 3))]
    case.check(layer, 1e-5)


def test_new_kv_that_lives_on_the_host_alone_is_stored_there() -> None:
    case = ExtendCase(LayerShape(2, 16, 16), 2, TREE, COUNTS, torch.float32)
    written = [place.storage for run in case.runs for place in run.places]
    for storage in written:
        case.memory.evict(storage, "test")
    case.check(LAYERS[0], 1e-5)
    assert not any(storage.device[0] for storage in written)


def test_a_piece_that_is_nowhere_is_refused_unless_the_window_hides_it() -> None:
    case = ExtendCase(LayerShape(2, 16, 16), 2, [(50, 0, 2), (30, 0, 2)], [4, 5], torch.float32)
    case.memory.evict(case.pieces[0].kv, "test")
    case.check(Layer(0, 0.3, window=31), 1e-5)
    with pytest.raises(RuntimeError, match="piece 0 of layer 0"):
        case.plan().attend(Layer(0, 0.3, window=32), case.q, case.key, case.value)


@pytest.mark.parametrize(
    ("dtype", "counts", "fused"),
    [("bfloat16", [128, 140], False), ("bfloat16", [128, 4], True), ("float32", [128, 140], True)],
)
def test_where_there_are_tiles_long_prefills_go_by_operations(
    dtype: str, counts: list[int], fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_cpu, "has_tiles", lambda: True)
    kind = getattr(torch, dtype)
    ExtendCase(LayerShape(2, 16, 16), 2, [(40, 0, 2)], counts, kind).check(
        LAYERS[0], 1e-5 if dtype == "float32" else 2e-2, fused=fused
    )


def test_what_remains_of_a_pass_is_attended_as_by_softmax() -> None:
    case, layer = (
        ExtendCase(LayerShape(2, 16, 16), 2, TREE, COUNTS, torch.float32),
        Layer(0, 0.3, window=120),
    )
    live = [1, 2, 5]
    kept = [row for i in live for row in range(case.ends[i], case.ends[i + 1])]
    plan = Remaining(case.plan(), live)
    found = plan.attend(layer, case.q[:, :, kept], case.key[:, kept], case.value[:, kept])
    assert plan.fused is not None
    for tensor, right in zip(found, case.expected(layer), strict=True):
        torch.testing.assert_close(tensor.double(), right[:, :, kept], atol=1e-5, rtol=1e-5)


def test_a_sink_takes_its_share_of_the_attention() -> None:
    case = ExtendCase(LayerShape(2, 16, 16), 2, TREE, COUNTS, torch.float32)
    sinks, plan = torch.randn(4), case.plan()
    module = torch.nn.Module()
    module.layer_idx = 0  # type: ignore[assignment]
    query, key, value = case.q.flatten(0, 1)[None], case.key[None], case.value[None]
    with attending(plan):
        found, _ = tree_attention(module, query, key, value, None, 0.3, s_aux=sinks)
    out, lse = case.expected(Layer(0, 0.3))
    total = torch.logaddexp(lse, sinks.double().view(2, 2, 1))
    right = (out * (lse - total).exp()[..., None]).flatten(0, 1).transpose(0, 1)
    assert plan.fused is not None
    torch.testing.assert_close(found[0].double(), right, atol=1e-5, rtol=1e-5)


def test_many_rows_leave_few_partial_results_to_merge() -> None:
    case = ExtendCase(LayerShape(1, 8, 8), 1, [(2000, 0, 4)], [80] * 4, torch.float32)
    plan = case.plan()
    plan.attend(Layer(0, 0.3), case.q, case.key, case.value)
    assert plan.fused is not None and plan.fused.arrays.slots <= 3 * 320
