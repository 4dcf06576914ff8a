"""The Triton kernels against softmax attention written out in double precision: on a CUDA device if
there is one, else by Triton's interpreter."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.functional import pad

from experiments.standins.attention_cases import DecodeCase, ExtendCase, Segments, random_piece
from tests.helpers.attention import LAYERS, SIGHTS, trees
from tests.helpers.engines import GREEDY
from tests.helpers.exactness import assert_like_plain
from tests.helpers.models import build, prompt
from tests.helpers.tiers import examples
from tests.helpers.tokenizers import Letters
from ttc import Engine, Sampling
from ttc.approximate.quantized_kv import Bytes, CodecKind
from ttc.attention import plan
from ttc.attention.hf_hook import attending, tree_attention
from ttc.attention.kernels import Layer
from ttc.attention.plan_arrays import PlanArrays
from ttc.cuda import fused_gpu
from ttc.cuda.fused_gpu import TritonAttention, attend
from ttc.cuda.gpu_arrays import GpuArrays, KVLayout, filled_up
from ttc.memory.kv import LayerShape
from ttc.memory.storage import Storage
from ttc.step import Step

pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPES = [
    (LayerShape(2, 64, 64), 3),
    (LayerShape(1, 8, 8), 1),
    (LayerShape(1, 24, 40), 4),
    (LayerShape(1, 80, 16), 7),
]
MET = [(*SHAPES[n % len(SHAPES)], layer) for n, layer in enumerate(LAYERS)]
"""Each shape, and each kind of layer."""
TREE: Segments = [(70, 0, 4), (150, 4, 7), (33, 0, 2), (1, 0, 1), (16, 2, 3), (31, 3, 4), (9, 4, 6)]
COUNTS = [3, 1, 22, 2, 1, 5, 9]
"""New tokens of the branches of `TREE`: interpreted kernels are slow, so it is a small one."""
BOUND = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
"""Weights are rounded to the values' type before they meet, but by the interpreter."""


@pytest.fixture(autouse=True)
def attend_with_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give plans the kernels of a GPU, on the CPU too."""
    monkeypatch.setattr(plan, "fused_attention", fused_gpu.fused_attention)


@pytest.mark.few(1)
@pytest.mark.parametrize(("shape", "groups", "layer"), MET, ids=str)
def test_a_decode_step_on_a_tree_is_attended_as_by_softmax(
    shape: LayerShape, groups: int, layer: Layer
) -> None:
    DecodeCase(shape, groups, TREE, 7, 5, torch.float32, DEVICE).check(layer, BOUND[torch.float32])


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "groups", "layer"), MET, ids=str)
def test_ragged_new_tokens_on_a_tree_are_attended_as_by_softmax(
    shape: LayerShape, groups: int, layer: Layer
) -> None:
    ExtendCase(shape, groups, TREE, COUNTS, torch.float32, device=DEVICE).check(
        layer, BOUND[torch.float32]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "layers"), [(torch.bfloat16, LAYERS[::4]), (torch.float16, LAYERS[2:3])]
)
def test_keys_in_16_bits_are_attended_as_by_softmax(
    dtype: torch.dtype, layers: list[Layer]
) -> None:
    bound = BOUND[dtype] if DEVICE.type == "cuda" else 2e-5
    for layer in layers:
        DecodeCase(LayerShape(2, 64, 48), 3, TREE, 7, 5, dtype, DEVICE).check(layer, bound)
        case = ExtendCase(LayerShape(2, 64, 48), 3, TREE[:1], [3, 22, 1, 1], dtype, device=DEVICE)
        case.check(layer, bound)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_keys_and_values_in_bytes_are_read_as_they_are(kind: CodecKind) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        tree: Segments = [(70, 0, 3), (20, 1, 3)]
        case = DecodeCase(LayerShape(2, 24, 16), 3, tree, 3, 5, dtype, DEVICE)
        case.pack(Bytes(kind))
        case.check(Layer(0, 0.3, softcap=3.0, window=80), BOUND[dtype])


@pytest.mark.slow
@settings(max_examples=examples(6), suppress_health_check=[*HealthCheck])
@given(
    trees([1, 16, 65, 300]),
    st.integers(0, 70),
    st.sampled_from([1, 2, 5, 20]),
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
    case = DecodeCase(LayerShape(1, *dims), groups, *tree, filled, torch.float32, DEVICE)
    case.check(Layer(0, 0.5, cap, *sight), BOUND[torch.float32])


@pytest.mark.slow
@settings(max_examples=examples(6), suppress_health_check=[*HealthCheck])
@given(
    st.lists(st.sampled_from([1, 2, 21, 22, 65]), min_size=1, max_size=2),
    st.lists(st.sampled_from([1, 5, 65]), max_size=2),
    st.sampled_from([1, 3, 7, 70]),
    st.sampled_from([(3, 5), (16, 16), (17, 33)]),
    st.sampled_from(SIGHTS),
)
def test_any_new_tokens_are_attended_as_by_softmax(
    counts: list[int],
    prefix: list[int],
    groups: int,
    dims: tuple[int, int],
    sight: tuple[int | None, int | None],
) -> None:
    segments = [(tokens, 0, len(counts)) for tokens in prefix]
    case = ExtendCase(LayerShape(1, *dims), groups, segments, counts, torch.float32, device=DEVICE)
    case.check(Layer(0, 0.5, None, *sight), BOUND[torch.float32])


def test_what_rows_share_is_read_by_one_task_for_all_of_them() -> None:
    case = DecodeCase(LayerShape(1, 16, 16), 3, [(400, 0, 21), (400, 0, 21)], 21, 0, torch.float32)
    tasks = PlanArrays(case.pieces, [], case.positions, 3).tasks
    assert tasks[:, :2].tolist() == [[0, 21]] * 2  # 63 queries, two blocks of keys


@pytest.mark.slow
def test_a_plan_is_uploaded_once_and_goes_on_as_its_storages_grow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uploads, fill = [], GpuArrays.fill

    def counted(self: GpuArrays, *arrays: Any) -> None:
        uploads.append(self.device)
        fill(self, *arrays)

    monkeypatch.setattr(GpuArrays, "fill", counted)
    case = DecodeCase(LayerShape(2, 16, 16), 2, TREE, 7, 0, torch.float32, DEVICE)
    decode, layer = case.plan(), Layer(0, 0.3, window=90)
    for _ in range(3):
        expected = case.expected(layer)
        for found, right in zip(
            decode.attend(layer, case.q, case.key, case.value), expected, strict=True
        ):
            torch.testing.assert_close(found.double(), right, atol=2e-5, rtol=2e-5)
        decode.advance()
        case.filled, case.positions = decode.passes, decode.positions
        case.q, case.key, case.value = (
            case.q.roll(1, -1),
            case.key.roll(1, -1),
            case.value.roll(1, -1),
        )
    assert uploads == [DEVICE]


def test_a_pass_that_is_filled_up_leaves_what_the_model_takes_without_a_copy() -> None:
    dtype, layer = torch.bfloat16, Layer(0, 0.3)
    case = DecodeCase(LayerShape(2, 16, 16), 2, [(40, 0, 3)], 3, 5, dtype, DEVICE)
    step = case.plan()
    fused = step.kernel_on(case.q)
    assert isinstance(fused, TritonAttention)
    tasks, room = filled_up(fused.arrays)
    layout = KVLayout.of(fused.arrays, dtype)
    assert layout.alignment == layout.own_alignment == 8  # keys are read 16 bytes at a time
    arrays = GpuArrays(room.with_more(), 2, 1, layout, DEVICE)
    arrays.fill(fused.arrays, tasks)
    q, key, value = (pad(x, (0, 0, 0, 1)) for x in (case.q, case.key, case.value))
    expected, _ = case.expected(layer)
    out, lse = attend(fused.kernels, arrays, layer, q, key, value, True, dtype)
    torch.testing.assert_close(out[:, :, :3].double(), expected, atol=2e-2, rtol=2e-2)
    assert out[:, :, 3].abs().max() == 0 and lse[:, :, 3].max() == float("-inf")
    assert out.dtype == dtype and out.flatten(0, 1).transpose(0, 1).is_contiguous()
    for row in range(3):
        assert torch.equal(case.own(row, 6)[0][:, 5], case.key[:, row])


def test_new_tokens_of_all_paths_are_stored_by_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    case = ExtendCase(LayerShape(2, 8, 16), 1, [], [3, 11], torch.float32, device=DEVICE)
    monkeypatch.delattr(Storage, "write")
    case.check(Layer(0, 0.3), BOUND[torch.float32])


def test_layers_may_have_other_heads_in_a_group_than_the_first() -> None:
    case = DecodeCase(LayerShape(1, 16, 16), 20, [(40, 0, 3)], 3, 5, torch.float32, DEVICE)
    step = case.plan()
    step.kernel_on(case.q[:, :1])
    found = step.attend(Layer(0, 0.3), case.q, case.key, case.value)
    for part, right in zip(found, case.expected(Layer(0, 0.3)), strict=True):
        torch.testing.assert_close(part.double(), right, atol=2e-5, rtol=2e-5)


def test_a_row_that_sees_no_key_gets_nothing_and_no_weight() -> None:
    case = DecodeCase(LayerShape(1, 16, 16), 1, [(20, 0, 2)], 2, 0, torch.float32, DEVICE)
    kernels = fused_gpu.kernels(DEVICE)
    for tokens in (0, 400):  # one task writes the rows' results, or several are merged
        more = [replace(random_piece(case.memory, 0, tokens), rows=slice(0, 2))] if tokens else []
        lowered = PlanArrays([*case.pieces, *more], [], [500, 22], 1)
        alone = TritonAttention(lowered, torch.float32, kernels)
        new = case.key[None], case.value[None]
        out, lse = alone.attend(Layer(0, 1.0, window=10), case.q, *new, None)
        assert out[:, :, 0].abs().max() == 0 and lse[0, 0, 0] == float("-inf")
        assert out[:, :, 1].abs().min() > 0 and lse[0, 0, 1] > -100


def test_not_a_number_stays_one() -> None:
    case = DecodeCase(LayerShape(1, 16, 16), 1, [(70, 0, 2)], 2, 0, torch.float32, DEVICE)
    case.key[0, 1, 3] = float("nan")
    out, _ = case.plan().attend(Layer(0, 1.0), case.q, case.key, case.value)
    assert out[:, :, 0].isfinite().all() and out[:, :, 1].isnan().all()


@pytest.mark.slow
def test_what_is_not_on_the_device_is_left_to_the_stream() -> None:
    case = DecodeCase(LayerShape(2, 16, 16), 2, TREE, 7, 5, torch.float32, DEVICE)
    case.memory.evict(case.pieces[1].kv, "test")
    step = case.plan()
    with pytest.raises(RuntimeError, match="piece 1 of layer 0 is neither on the device nor read"):
        step.attend(Layer(0, 0.3), case.q, case.key, case.value)
    assert step.fused is not None and step.fused.arrays.absent_from(0) == {1}


def test_double_precision_and_streaming_heads_keep_the_operations() -> None:
    DecodeCase(*SHAPES[1], TREE, 7, 5, torch.float64, DEVICE).check(LAYERS[0], 1e-12, fused=False)
    case = DecodeCase(*SHAPES[1], TREE, 7, 5, torch.float32, DEVICE)
    step = case.plan()
    step.attend(LAYERS[0], case.q, case.key, case.value)
    assert step.fused is not None and not step.fused.takes(Layer(0, 0.3, recent=8, sink=2), case.q)


def test_attention_sinks_take_their_part_of_the_weight() -> None:
    case = ExtendCase(LayerShape(2, 16, 16), 2, [(40, 0, 2)], [3, 5], torch.float32, device=DEVICE)
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0], device=DEVICE)
    module = torch.nn.Module()
    module.layer_idx = torch.tensor(0)
    with attending(case.plan()):
        query, key, value = case.q.flatten(0, 1)[None], case.key[None], case.value[None]
        found, _ = tree_attention(module, query, key, value, None, 0.3, s_aux=sinks)
    out, lse = case.expected(Layer(0, 0.3))
    weights = lse.exp() / (lse.exp() + sinks.double().exp().view(2, 2, 1))
    right = (out * weights[..., None]).flatten(0, 1).transpose(0, 1)
    torch.testing.assert_close(found[0].double(), right, atol=2e-5, rtol=2e-5)


def test_without_triton_a_plan_runs_operation_by_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ttc.cuda.gpu_kernel", None)
    fused_gpu.kernels.cache_clear()
    try:
        with pytest.warns(UserWarning, match="Triton cannot be used on"):
            DecodeCase(*SHAPES[1], TREE, 7, 5, torch.float32, DEVICE).check(
                LAYERS[0], 1e-5, fused=False
            )
    finally:
        fused_gpu.kernels.cache_clear()


@pytest.mark.slow
def test_an_engine_over_the_kernels_decodes_like_the_plain_model() -> None:
    engine = Engine(build("gpt_oss").to(DEVICE), Letters())
    calls, attend = [], TritonAttention.attend
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            TritonAttention, "attend", lambda self, *args: calls.append(0) or attend(self, *args)
        )
        root = engine.root(prompt(1, 12))
        first = engine.fork(root, 2)
        engine.extend(first[:1], [prompt(2, 3)]).result()
        engine.generate(first, [3, 2], sampling=GREEDY)
        second = [*engine.fork(first[0], 2), first[1]]
        engine.generate(second, 2, sampling=GREEDY)
    assert calls
    for branch in second:
        assert_like_plain(build("gpt_oss"), branch)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a CUDA device")
def test_the_processor_waits_for_a_gpu_once_per_token() -> None:
    engine = Engine(build("llama").to(DEVICE), Letters())
    options = [GREEDY, Sampling(0.8, top_p=0.95), Sampling(1.2, top_k=9)]

    def waits(tokens: int) -> int:
        branches = engine.fork(engine.root(prompt(1, 12)), 4)
        batch = engine.running_batch()
        for i, branch in enumerate(branches):
            batch.add([branch], Step(tokens), options[i % 3])
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                batch.finish()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return sum("synchroniz" in str(warning.message) for warning in found)

    waits(8)  # kernels are compiled
    assert waits(16) - waits(8) == 8
