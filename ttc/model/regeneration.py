"""Keys and values of a layer computed again from what went into its K and V projections (CAPTURE, section IV-A).

No list of architectures is kept: a layer's own attention module runs on the stored input, and stops where it reaches
the attention function. What else the module is given for each row, such as the sines and cosines of its position, is
remembered by position as passes go by, so it is what the row had when its input was stored.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, cast
from weakref import finalize, ref

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ttc.attention.hf_hook import attending, current_plan
from ttc.attention.inputs import keep_inputs
from ttc.attention.installing import attention_set_to
from ttc.attention.plan import Plan
from ttc.cost_model.capture import Line, fit_line
from ttc.memory.kv import LayerShape
from ttc.model.extra_arguments import ExtraArguments
from ttc.model.model_changes import changes_nothing
from ttc.model.recording import REPLAY

QUERY_NAMES = ("q_proj", "q_b_proj")
"""What transformers' models call projections that queries alone go through; regeneration leaves them out."""

PROBE_TOKENS = (5, 9)
"""Tokens of the passes that show what an attention module is given."""
TIMED_TOKENS = (64, 128, 256, 512)
"""Numbers of tokens that are timed."""


class _Reached(Exception):
    """A module has come to attention with these keys and values."""

    def __init__(self, key: Tensor, value: Tensor):
        self.both = key, value


class _Stop:
    """In place of a plan: ends a module's call where attention would begin. positions: those of its rows."""

    def __init__(self, positions: Tensor):
        self.positions = positions

    def attend(self, layer: Any, q: Tensor, key: Tensor, value: Tensor) -> None:
        raise _Reached(key, value)

    def answer(self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: Any) -> None:
        raise _Reached(key[0], value[0])


class _Zeros(nn.Module):
    """In place of a query projection: nothing is computed and nothing is stored."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(1).expand(*x.shape[:-1], self.width)


class _Watch:
    """In place of a plan: shows each layer's attention module, keys and values as they come, and answers zeros."""

    def __init__(self, positions: Sequence[int], show: Callable[[Any, Tensor, Tensor], None]):
        self.positions, self.show = positions, show

    def answer(self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: Any) -> Tensor:
        self.show(module, key[0], value[0])
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[-1])


@dataclass
class _Call:
    """What an attention module is given beside its input and the plan, flat. slots: the place of each part in
    `Regeneration.tables`, None for what is the same for all rows."""

    name: str | None
    leaves: list[Any]
    spec: Any
    slots: list[int | None] = field(default_factory=list)
    inputs: Tensor | None = None


@dataclass
class _Table:
    """What modules are given for each position, rows along `axis`; `layer` is the first that is given it."""

    axis: int
    layer: int
    rows: Tensor


class Regeneration:
    """Regenerates K and V of a model's layers, and keeps what that takes as the engine's passes go by.

    shapes: those of the model's layers, with `input_dim` where regeneration gives what the layer computes itself. This
    is tried out at once, in another order than that of the pass.
    kv_gen: T_kv_gen of the first such layer, per token, if `timed`. first: the layers before this one are left out, as
    they run elsewhere.
    """

    def __init__(self, model: Any, shapes: Sequence[LayerShape], timed: bool = False, first: int = 0):
        self.model, self.extras, self.tables, self.first = model, ExtraArguments(model), list[_Table](), first
        self.modules, self.calls = list[Any](), list[_Call]()
        self.shapes, self.kv_gen = tuple[LayerShape, ...](), cast(Line | None, None)
        with torch.inference_mode():
            self._probe(shapes, timed)
        self.first_given = {table.layer for table in self.tables}
        me = ref(self)
        finalize(self, _remove, [
            module.register_forward_pre_hook(_keeper(me, layer), with_kwargs=True)
            for layer, (module, call) in enumerate(zip(self.modules, self.calls, strict=True))
            if call.inputs is not None
        ])  # fmt: skip

    def __call__(self, layer: int, inputs: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (kv_heads, tokens, dim) of tokens whose inputs (tokens, width) went into this layer."""
        call, module = self.calls[layer], self.modules[layer]
        leaves = [
            _own(leaf) if slot is None else self.tables[slot].rows.index_select(self.tables[slot].axis, positions)
            for leaf, slot in zip(call.leaves, call.slots, strict=True)
        ]
        args, kwargs = pytree.tree_unflatten(leaves, call.spec)
        if call.name is None:
            args = (inputs[None], *args)
        else:
            kwargs = kwargs | {call.name: inputs[None]}
        with self.extras.running(), _without_queries(module), attending(_Stop(positions)):
            try:
                module.forward(*args, **kwargs)
            except _Reached as reached:
                return reached.both
        raise RuntimeError(f"the attention module of layer {layer} ended without calling attention")

    # ---------------------------------------------------------------- what passes show

    def keep(self, layer: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A layer's attention module is about to run with these arguments."""
        plan, name = current_plan(), self.calls[layer].name
        if isinstance(plan, Plan):
            if layer in self.first_given:
                self._remember(layer, _call(self.modules[layer], args, kwargs), plan.positions)
            keep_inputs(plan, layer, (args[0] if name is None else kwargs[name])[0])

    def _remember(self, layer: int, call: _Call, positions: Sequence[int]) -> None:
        """Put what is given for each row into the tables of which this layer is the first."""
        places: Tensor | None = None
        for slot, leaf in zip(self.calls[layer].slots, call.leaves, strict=True):
            if slot is None or self.tables[slot].layer != layer:
                continue
            table = self.tables[slot]
            if places is None:
                places = torch.tensor(positions, device=leaf.device)
            rows, axis = max(positions) + 1, table.axis
            if table.rows.shape[axis] < rows:
                shape = list(leaf.shape)
                shape[axis] = max(rows, 2 * table.rows.shape[axis])
                larger = leaf.new_zeros(shape)
                larger.narrow(axis, 0, table.rows.shape[axis]).copy_(table.rows)
                table.rows = larger
            table.rows.index_copy_(axis, places, leaf)

    # ---------------------------------------------------------------- at load

    def _probe(self, shapes: Sequence[LayerShape], timed: bool) -> None:
        """Run two short passes without attention. While a layer's weights are there, see what its attention module is
        given and whether its keys and values come out of its input again."""
        few, many = PROBE_TOKENS
        first, by_identity = list[_Call](), dict[int, int]()

        def look(module: Any, call: _Call, key: Tensor, value: Tensor) -> None:
            layer = len(self.calls)
            for one, other in zip(first[layer].leaves, call.leaves, strict=True):
                axis = _row_axis(one, other, few, many)
                if axis is not None and id(other) not in by_identity:
                    by_identity[id(other)] = len(self.tables)
                    self.tables.append(_Table(axis, layer, other))
                call.slots.append(None if axis is None else by_identity[id(other)])
            self.modules.append(module)
            self.calls.append(call)
            inputs, width = call.inputs, None
            if inputs is not None and layer >= self.first and self._gives(layer, inputs, key, value):
                width = inputs.shape[-1]
                if timed and self.kv_gen is None:
                    self.kv_gen = self.time_layer(layer, inputs)
            self.shapes += (replace(shapes[layer], input_dim=width),)

        self._run(range(few), lambda module, call, key, value: first.append(call))
        self._run(range(many), look)

    def _run(self, positions: range, show: Callable[[Any, _Call, Tensor, Tensor], None]) -> None:
        """A pass without attention. `show` is given each layer's attention module, its call, its keys and values."""
        calls, handles = dict[int, _Call](), []

        def record(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            calls[id(module)] = _call(module, args, kwargs)

        for module in self.model.modules():
            if hasattr(module, "layer_idx"):
                handles.append(module.register_forward_pre_hook(record, with_kwargs=True))
        none = _Call(None, [], None)
        watch = _Watch(positions, lambda module, key, value: show(module, calls.get(id(module), none), key, value))
        device = self.model.get_input_embeddings().weight.device
        tokens = torch.tensor([[7 * (n + 1) % self.model.config.get_text_config().vocab_size for n in positions]])
        try:
            with attention_set_to(self.model, REPLAY), attending(watch), self.extras.running() as extras:
                self.model(
                    input_ids=tokens.to(device),
                    position_ids=torch.tensor([[*positions]], device=device),
                    use_cache=False,
                    logits_to_keep=1,
                    **extras,
                )
        finally:
            _remove(handles)

    def _gives(self, layer: int, inputs: Tensor, key: Tensor, value: Tensor) -> bool:
        """Whether a layer's keys and values come out of its inputs again, in another order and not of all rows."""
        rows = torch.tensor([7, 2, 5, 3, 8, 0], device=inputs.device)
        try:
            found = self(layer, inputs[rows], rows)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
            return False
        return all(
            one.shape == other[:, rows].shape and _close(one, other[:, rows])
            for one, other in zip(found, (key, value), strict=True)
        )

    def time_layer(self, layer: int, inputs: Tensor) -> Line:
        """T_kv_gen of a layer, per token: the line through the least of three times at each number of tokens."""
        positions = torch.arange(max(TIMED_TOKENS), device=inputs.device) % len(inputs)
        inputs = inputs[positions]

        def generate(tokens: int) -> None:
            self(layer, inputs[:tokens], positions[:tokens])
            if inputs.device.type == "cuda":
                torch.cuda.synchronize(inputs.device)

        return timed_line(generate)


def timed_line(work: Callable[[int], None]) -> Line:
    """The line through the least of three times that `work` takes for each of `TIMED_TOKENS`."""
    work(TIMED_TOKENS[0])
    points = []
    for tokens in TIMED_TOKENS:
        times = []
        for _ in range(3):
            start = perf_counter()
            work(tokens)
            times.append(perf_counter() - start)
        points.append((tokens, min(times)))
    return fit_line(points)


def _keeper(regeneration: ref[Regeneration], layer: int) -> Any:
    def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        # without kwargs it was removed after this pass of another engine had begun
        if kwargs is not None and (alive := regeneration()) is not None:
            alive.keep(layer, args, kwargs)

    return changes_nothing(before)


def _remove(handles: Sequence[Any]) -> None:
    for handle in handles:
        handle.remove()


def _call(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
    """The arguments of an attention module, its input apart: the first of its parameters."""
    given = dict(kwargs)
    if args:
        name, inputs, args = None, args[0], args[1:]
    else:
        name = next(iter(inspect.signature(module.forward).parameters))
        inputs = given.pop(name, None)
    leaves, spec = pytree.tree_flatten((args, given))
    return _Call(name, leaves, spec, inputs=inputs[0] if isinstance(inputs, Tensor) else None)


def _own(leaf: Any) -> Any:
    """What is the same for all rows; a copy of what modules leave keys and values in for later layers (Gemma 3n)."""
    return copy(leaf) if isinstance(leaf, MutableMapping) else leaf


def _row_axis(one: Any, other: Any, few: int, many: int) -> int | None:
    """The axis along which rows lie, of something that a pass of few and one of many rows was given; None without."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.dim() != other.dim():
        return None
    differing = [axis for axis, sizes in enumerate(zip(one.shape, other.shape, strict=True)) if sizes[0] != sizes[1]]
    return differing[0] if [(one.shape[a], other.shape[a]) for a in differing] == [(few, many)] else None


def _close(found: Tensor, expected: Tensor) -> bool:
    """By the largest difference in float32 and above, by the mean in 16 bits."""
    gap, size = (found - expected).abs().double(), expected.abs().double()
    exact = expected.dtype in (torch.float32, torch.float64)
    error, limit = (gap.max(), 1e-4 * size.max()) if exact else (gap.mean(), 0.02 * size.mean())
    return bool(error <= limit + 1e-9)


@contextmanager
def _without_queries(module: Any) -> Iterator[None]:
    """The module with projections of queries alone left out."""
    children = module._modules
    queries = {name: children[name] for name in QUERY_NAMES if hasattr(children.get(name), "out_features")}
    children.update({name: _Zeros(child.out_features) for name, child in queries.items()})
    try:
        yield
    finally:
        children.update(queries)
