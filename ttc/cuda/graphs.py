"""Decode passes as CUDA graphs: recorded once for a number of rows, then replayed for any plan. Not
run on a GPU yet."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol, cast
from weakref import ref

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ttc.attention.hf_hook import attending
from ttc.attention.kernels import Layer, Partial
from ttc.attention.plan import Plan
from ttc.cuda.fused_gpu import TritonAttention, attend
from ttc.cuda.gpu_arrays import (
    GpuArrays,
    KVLayout,
    Room,
    filled_up,
    room_for_rows,
)
from ttc.model.running.model_changes import Watch

SWITCH = "TTC_GRAPHS"
"""The environment variable that turns graphs off when it is 0."""

AFTER = 2
"""Passes of so many rows before a graph for them is recorded, which takes about as long as two."""

WAITS = {
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.cudagraph_unsafe,
}
"""Operations that wait for the device."""

_RECORDING = Lock()


class Graph(Protocol):
    """What a device was given. `torch.cuda.CUDAGraph` is one."""

    def replay(self) -> Any: ...


class GraphRecorder(Protocol):
    """Makes graphs. `CudaRecorder` is the one that runs; tests have another."""

    def record(self, function: Callable[[], Tensor]) -> tuple[Tensor, Graph, Tensor]:
        """Call `function`, then record it: (its result, the graph, where a replay leaves it)."""
        ...


class CudaRecorder:
    """Records on a CUDA device. Graphs share their memory, so they are replayed one after the
    other."""

    def __init__(self, device: torch.device):
        self.device = device
        self.pool = torch.cuda.graph_pool_handle()
        self.stream: torch.cuda.Stream | None = None
        self.first: tuple[Graph, Tensor] | None = None

    def record(self, function: Callable[[], Tensor]) -> tuple[Tensor, Graph, Tensor]:
        """See `GraphRecorder.record`. PyTorch records on no default stream. `torch.cuda.graph` is
        not used, as it frees all memory that PyTorch keeps for later."""
        with torch.cuda.device(self.device):
            self.stream = self.stream or torch.cuda.Stream()
            before = torch.cuda.current_stream()
            self.stream.wait_stream(before)
            try:
                with torch.cuda.stream(self.stream):
                    result = function()
                    if self.first is None:  # shared memory ends with its last graph: one stays
                        self.first = self._record(lambda: torch.zeros(1, device=self.device))
                    return result, *self._record(function)
            finally:
                before.wait_stream(self.stream)

    def _record(self, function: Callable[[], Tensor]) -> tuple[Graph, Tensor]:
        graph = torch.cuda.CUDAGraph()
        with _RECORDING:
            torch.cuda.synchronize()
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                result = function()
            finally:
                graph.capture_end()
        return graph, result


@dataclass
class _Recorded:
    """A graph, and the arrays that it reads. logits: what it leaves, (rows, vocab). holds: the plan
    that the arrays are filled with."""

    graph: Graph
    arrays: GpuArrays
    logits: Tensor
    holds: ref[Plan]


class Graphs:
    """The graphs of a runner's decode passes, one for each number of rows that passes are filled up
    to.

    Rows, tasks and segments of a plan are in arrays with room for more, so that a graph serves each
        plan that fits: its arrays are filled when another plan takes its turn; from pass to pass
        only tokens and positions differ. A plan that needs more room has its graph recorded again.

    Only passes whose KV is all on the device, in layers that the kernel takes, have graphs. There
    are none while the model has hooks or adapters, and new ones once it has changed; none any more,
    with one warning, after a recording that failed or a first replay that differs from the modules.
    A pass may run twice, so models whose layers keep a state get none.

    watch: follows a model that is all on `device`.
    reason: why there are no graphs any more.
    replayed: the passes that were replays so far.
    """

    def __init__(self, watch: Watch, device: torch.device, recorder: GraphRecorder | None = None):
        self.watch = watch
        self.model = cast(Any, watch.model)
        self.device = device
        self.recorder: GraphRecorder = recorder or CudaRecorder(device)
        self.reason = ""
        self.replayed = 0
        self.checked = False  # a replay has given what the modules give
        self._snapshot = watch.last  # the model that the graphs are of
        self._graphs: dict[int, _Recorded] = {}  # by rows
        self._passes: Counter[int] = Counter()  # by rows, while there is no graph
        self._like: Tensor | None = None  # queries of a layer, but for their numbers

    def forward(
        self, tokens: Sequence[int] | Tensor, plan: Plan, keep: Sequence[int] | None
    ) -> Tensor | None:
        """The logits (rows, vocab) of a pass, or None when it is to be run without a graph."""
        if self.reason or keep is not None or not plan.in_storages:
            return None
        if not torch.is_inference_mode_enabled() or not self._by_graphs():
            return None
        if self._snapshot is not self.watch.last:
            self._snapshot = self.watch.last
            self._graphs.clear()
            self.checked = False
        if self._like is not None:
            plan.kernel_on(self._like)
        fused = plan.fused
        if not isinstance(fused, TritonAttention) or not _is_fixed(plan):
            return None
        if self._like is None:
            near = plan.runs[0].places[0].storage.device[0]
            assert near is not None
            shape = near.keys.shape[0], fused.arrays.groups, 0
            self._like = torch.empty(shape, dtype=fused.dtype, device=self.device)
        rows = room_for_rows(len(tokens))
        recorded = self._graphs.get(rows)
        if recorded is not None and recorded.holds() is plan:
            return self._replay(recorded, tokens, plan)
        tasks, needed = filled_up(fused.arrays)
        if recorded is not None and self._fill(recorded, tasks, needed, fused, plan):
            return self._replay(recorded, tokens, plan)
        self._passes[rows] += 1
        if self._passes[rows] <= AFTER:
            return None
        room = needed.with_more()
        if recorded is not None:
            room = room.and_of(recorded.arrays.room)
        return self._record(tokens, tasks, room, fused, plan)

    def _fill(
        self,
        recorded: _Recorded,
        tasks: np.ndarray,
        needed: Room,
        fused: TritonAttention,
        plan: Plan,
    ) -> bool:
        layout = KVLayout.of(fused.arrays, fused.dtype)
        arrays = recorded.arrays
        if not arrays.room.holds(needed) or not arrays.layout.serves(layout):
            return False
        arrays.fill(fused.arrays, tasks)
        recorded.holds = ref(plan)
        return True

    def _record(
        self,
        tokens: Sequence[int] | Tensor,
        tasks: np.ndarray,
        room: Room,
        fused: TritonAttention,
        plan: Plan,
    ) -> Tensor | None:
        layout = KVLayout.of(fused.arrays, fused.dtype)
        arrays = GpuArrays(room, fused.arrays.groups, fused.arrays.layers, layout, self.device)
        arrays.fill(fused.arrays, tasks)
        arrays.next_pass(tokens, plan.positions)
        by_kernel = _ByKernel(arrays, fused.kernels, fused.dtype)

        def run() -> Tensor:
            if self.checked:
                return self._run(by_kernel)
            with _NoWaiting():
                return self._run(by_kernel)

        self._graphs.pop(room.rows, None)
        try:
            result, graph, logits = self.recorder.record(run)
        except Exception as error:
            self._give_up(f"a pass could not be recorded ({error.__context__ or error})")
            return None
        self._graphs[room.rows] = _Recorded(graph, arrays, logits, ref(plan))
        return result[: len(tokens)]

    def _replay(self, recorded: _Recorded, tokens: Sequence[int] | Tensor, plan: Plan) -> Tensor:
        self.replayed += 1
        recorded.arrays.next_pass(tokens, plan.positions)
        rows = slice(len(tokens))
        if self.checked:
            recorded.graph.replay()
            return recorded.logits[rows].clone()  # another graph may use this memory
        fused = cast(TritonAttention, plan.fused)
        expected = self._run(_ByKernel(recorded.arrays, fused.kernels, fused.dtype))[rows]
        recorded.graph.replay()
        self.checked = True
        gap = _gap(expected, recorded.logits[rows])
        if gap > 1:
            self._give_up(
                f"the first replay's logits are {gap:.3g} times as far from those of its modules "
                "as allowed"
            )
        return expected

    def _run(self, plan: _ByKernel) -> Tensor:
        ids, positions = plan.arrays.tokens[None], plan.arrays.positions[None]
        with attending(plan):
            output = self.model(
                input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=0
            )
        logits: Tensor = output.logits[0]
        return logits

    def _by_graphs(self) -> bool:
        snapshot = self.watch.last
        # peft switches adapters on and off without a trace in the modules
        adapted = any(kind.__module__.startswith("peft.") for kind in snapshot.classes)
        hindered = adapted or snapshot.is_patched() or self.model.training
        return not hindered and os.environ.get(SWITCH) != "0"

    def _give_up(self, reason: str) -> None:
        self.reason = " ".join(reason.split())
        self._graphs.clear()
        warnings.warn(
            f"{type(self.model).__name__} decodes without CUDA graphs: {self.reason}; {SWITCH}=0 "
            "keeps them from being tried",
            stacklevel=2,
        )


class _ByKernel:
    """What a pass that is recorded goes by: arrays that stay, whatever plan they hold."""

    def __init__(self, arrays: GpuArrays, kernels: Any, dtype: torch.dtype):
        self.arrays = arrays
        self.kernels = kernels
        self.dtype = dtype

    def attend(self, layer: Layer, q: Tensor, key: Tensor, value: Tensor) -> Partial:
        if q.dtype != self.dtype or layer.recent is not None:
            raise RuntimeError(f"the kernel does not take layer {layer.index}")
        return attend(self.kernels, self.arrays, layer, q, key, value, True, self.dtype)

    def turn(self, layers: tuple[int, ...]) -> int:
        raise RuntimeError(f"one module serves the layers {', '.join(map(str, layers))}")


class _NoWaiting(TorchDispatchMode):
    """Raises RuntimeError at an operation that waits for the device: within a recording it would
    leave PyTorch's memory for graphs in disorder."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        result = func(*args, **(kwargs or {}))
        waits = bool(WAITS.intersection(func.tags)) or func is aten.lift_fresh.default
        if func.overloadpacket in (aten.index, aten.index_put_):  # masks are counted
            types_of_index = [index.dtype for index in args[1] if index is not None]
            waits = not {torch.bool, torch.uint8}.isdisjoint(types_of_index)
        devices = {x.device for x in (*args, result) if isinstance(x, Tensor) and x.dim()}
        if waits or len(devices) > 1:
            raise RuntimeError(f"{func} waits for the device")
        return result


def _is_fixed(plan: Plan) -> bool:
    """Whether the pass is the kernel's alone."""
    fused, storages = plan.fused, [run.places[0].storage for run in plan.runs]
    return (
        plan.stream is None
        and fused is not None
        and not any(fused.arrays.absent)
        and not any(any(storage.host) or storage.inputs is not None for storage in storages)
    )


def _gap(expected: Tensor, result: Tensor) -> float:
    largest = expected.masked_fill(~expected.isfinite(), 0).abs().amax()
    limit = 1e-4 + (1e-5 if expected.dtype == torch.float32 else 0.05) * largest
    gap = torch.where(expected == result, 0, (expected - result).abs()).amax() / limit
    return float(gap.nan_to_num(float("inf")))


def graphs_for(watch: Watch, device: torch.device) -> Graphs | None:
    """The graphs of a model's decode passes; None on a CPU, over several places, and for quantized
    weights, whose kernels may wait for the host."""
    model = watch.model
    if device.type != "cuda" or getattr(model, "is_quantized", False):
        return None
    if any(weight.device != device for weight in model.parameters()):
        return None
    return Graphs(watch, device)
