"""Decode passes as CUDA graphs: recorded once for a plan, then replayed. Not run on a GPU yet."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary, proxy

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ttc.attention.fused_gpu import TritonAttention
from ttc.attention.hf_hook import attending
from ttc.attention.kernels import Layer, Partial
from ttc.attention.plan import DecodePlan, Plan
from ttc.memory.upload import upload
from ttc.model.model_changes import Snapshot, Watch

SWITCH = "TTC_GRAPHS"
"""The environment variable that turns graphs off when it is 0."""

AFTER = 4
"""Passes of a plan before its graph is recorded, which takes about as long as two."""

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


class Recorder(Protocol):
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
        """See `Recorder.record`. PyTorch records on no default stream. `torch.cuda.graph` is not
        used, as it frees all memory that PyTorch keeps for later."""
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
    """A plan's graph. ids, positions: what it reads, (rows,). logits: what it leaves, (rows,
    vocab)."""

    graph: Graph
    ids: Tensor
    positions: Tensor
    logits: Tensor
    model: Snapshot


class Graphs:
    """The graphs of a runner's decode passes, one for each plan that lives long enough.

    Of a plan's passes only the tokens and positions differ, while all of its KV is on the device
    and the kernel takes every layer. Passes run without graphs while the model has hooks or
    adapters, and those of a plan once the model has changed since its recording; and for good, with
    one warning, after a recording that failed or a first replay that differs from the modules. A
    pass may run twice, so models whose layers keep a state get none.

    watch: follows a model that is all on `device`. reason: why there are no graphs any more.
    replayed: the passes that were replays so far.
    """

    def __init__(self, watch: Watch, device: torch.device, recorder: Recorder | None = None):
        self.watch = watch
        self.model = cast(Any, watch.model)
        self.device = device
        self.recorder: Recorder = recorder or CudaRecorder(device)
        self.reason = ""
        self.replayed = 0
        self.checked = False  # a replay has given what the modules give
        # of each plan its graph, the number of its passes so far, or None when it gets no graph
        self._plans: WeakKeyDictionary[DecodePlan, _Recorded | int | None] = WeakKeyDictionary()

    def forward(
        self, tokens: Sequence[int], plan: Plan, keep: Sequence[int] | None
    ) -> Tensor | None:
        """The logits (rows, vocab) of a pass, or None when it is to be run without a graph."""
        if self.reason or keep is not None or not isinstance(plan, DecodePlan):
            return None
        if not torch.is_inference_mode_enabled():
            return None
        known = self._plans.get(plan, 0)
        if known is None:
            return None
        if isinstance(known, int):
            self._plans[plan] = known + 1
            return None if known < AFTER else self._record(tokens, plan)
        if self._may_differ(known.model):
            self._plans[plan] = None
            return None
        return self._replay(known, tokens, plan)

    def _record(self, tokens: Sequence[int], plan: DecodePlan) -> Tensor | None:
        self._plans[plan] = None
        snapshot = self.watch.last
        fused = plan.fused
        if not isinstance(fused, TritonAttention) or not _is_fixed(plan):
            return None
        # peft switches adapters on and off without a trace in the modules
        adapted = any(kind.__module__.startswith("peft.") for kind in snapshot.classes)
        positions = fused.positions
        if positions is None or adapted or self._may_differ(snapshot):
            return None
        ids = self._upload(tokens)
        by_kernel = _ByKernel(plan)

        def run() -> Tensor:
            if self.checked:
                return self._run(ids, positions, by_kernel)
            with _NoWaiting():
                return self._run(ids, positions, by_kernel)

        try:
            result, graph, logits = self.recorder.record(run)
        except Exception as error:
            self._give_up(f"a pass could not be recorded ({error.__context__ or error})")
            return None
        self._plans[plan] = _Recorded(graph, ids, positions, logits, snapshot)
        return result

    def _replay(self, recorded: _Recorded, tokens: Sequence[int], plan: DecodePlan) -> Tensor:
        self.replayed += 1
        recorded.ids.copy_(self._upload(tokens))
        if self.checked:
            recorded.graph.replay()
            return recorded.logits.clone()  # another graph may use this memory
        expected = self._run(recorded.ids, recorded.positions, _ByKernel(plan))
        recorded.graph.replay()
        self.checked = True
        gap = _gap(expected, recorded.logits)
        if gap > 1:
            self._give_up(
                f"the first replay's logits are {gap:.3g} times as far from those of its modules "
                "as allowed"
            )
        return expected

    def _run(self, ids: Tensor, positions: Tensor, plan: _ByKernel) -> Tensor:
        options = {"position_ids": positions[None], "use_cache": False, "logits_to_keep": 0}
        with attending(plan):
            output = self.model(input_ids=ids[None], **options)
        logits: Tensor = output.logits[0]
        return logits

    def _upload(self, tokens: Sequence[int]) -> Tensor:
        return upload([np.array(tokens, np.int64)], self.device)[0]

    def _may_differ(self, snapshot: Snapshot) -> bool:
        """Whether the modules may do something else than they did, or than a graph can repeat."""
        changed = snapshot is not self.watch.last or snapshot.taken_over()
        return changed or self.model.training or os.environ.get(SWITCH) == "0"

    def _give_up(self, reason: str) -> None:
        self.reason = " ".join(reason.split())
        self._plans.clear()
        warnings.warn(
            f"{type(self.model).__name__} decodes without CUDA graphs: {self.reason}; {SWITCH}=0 "
            "keeps them from being tried",
            stacklevel=2,
        )


class _ByKernel:
    """A plan while its pass is recorded, which it does not keep: each layer goes to the kernel."""

    def __init__(self, plan: DecodePlan):
        self.plan: DecodePlan = proxy(plan)

    def attend(self, layer: Layer, q: Tensor, key: Tensor, value: Tensor) -> Partial:
        """See `Plan.attend`."""
        fused = self.plan.fused
        if fused is None or not fused.takes(layer, q):
            raise RuntimeError(f"the kernel does not take layer {layer.index}")
        return self.plan.attend_fused(fused, layer, q, key, value)

    def turn(self, layers: tuple[int, ...]) -> int:
        """`Plan.turn` counts, and a replay would not."""
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


def _is_fixed(plan: DecodePlan) -> bool:
    """Whether the kernel attends all there is, and finds it where it was."""
    tails, fused = plan.tails, plan.fused
    return (
        plan.stream is None
        and fused is not None
        and not any(fused.arrays.absent)
        and None not in tails.device
        and not any(tails.host)
        and tails.inputs is None
    )


def _gap(expected: Tensor, result: Tensor) -> float:
    largest = expected.masked_fill(~expected.isfinite(), 0).abs().amax()
    limit = 1e-4 + (1e-5 if expected.dtype == torch.float32 else 0.05) * largest
    gap = torch.where(expected == result, 0, (expected - result).abs()).amax() / limit
    return float(gap.nan_to_num(float("inf")))


def graphs_for(watch: Watch, device: torch.device) -> Graphs | None:
    """The graphs of a model's decode passes; None on a CPU, with weights in several places, and
    with quantized ones, whose kernels may wait for the host."""
    model = watch.model
    if device.type != "cuda" or getattr(model, "is_quantized", False):
        return None
    if any(weight.device != device for weight in model.parameters()):
        return None
    return Graphs(watch, device)
