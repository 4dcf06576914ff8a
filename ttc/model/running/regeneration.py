"""Keys and values of a layer computed again from its attention module's input (CAPTURE, IV-A).

No list of architectures is kept: the module runs on the stored input, and stops where it reaches
the attention function. What else it is given for each row, such as the sines and cosines of a
position, is remembered by position as passes go by.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import finalize, ref

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ttc.attention.hf_hook import attending, current_plan
from ttc.attention.plan import Plan
from ttc.memory.kv import LayerShape
from ttc.model.check.attention_check import deviation, is_precise
from ttc.model.check.recording import REPLAY, AttentionCall, answered_by
from ttc.model.extra_arguments import ExtraArguments
from ttc.model.running.model_changes import changes_nothing

QUERY_NAMES = ("q_proj", "q_b_proj")
"""What transformers' models call projections that queries alone go through."""
FEW = 5
MANY = 9
"""Tokens of the two passes that show what an attention module is given."""


class _Reached(Exception):
    """A module has come to attention with these keys and values."""

    def __init__(self, key: Tensor, value: Tensor):
        self.kv = key, value


class _Done(Exception):
    """What a short pass was for is done."""


class _Stop:
    """In place of a plan: ends a module's call where attention would begin."""

    def __init__(self, positions: Tensor):
        self.positions = positions

    def attend(self, layer: Any, q: Tensor, key: Tensor, value: Tensor) -> None:
        raise _Reached(key, value)

    def answer(self, call: AttentionCall) -> None:
        raise _Reached(call.key[0], call.value[0])


class _Show:
    """In place of a plan: shows each layer's attention module, keys and values; answers zeros."""

    def __init__(self, positions: Sequence[int], show: Callable[[Any, Tensor, Tensor], None]):
        self.positions = positions
        self.show = show

    def answer(self, call: AttentionCall) -> Tensor:
        self.show(call.module, call.key[0], call.value[0])
        return call.zeros


class _NoQueries(nn.Module):
    """In place of a query projection: nothing is computed and nothing is stored."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(1).expand(*x.shape[:-1], self.width)


@dataclass
class _Table:
    """What modules are given for each position, rows along `axis`; `layer` gets it first."""

    axis: int
    layer: int
    rows: Tensor

    def remember(self, leaf: Tensor, positions: Sequence[int]) -> None:
        size = self.rows.shape[self.axis]
        needed = max(positions) + 1
        if size < needed:
            shape = list(leaf.shape)
            shape[self.axis] = max(needed, 2 * size)
            larger = leaf.new_zeros(shape)
            larger.narrow(self.axis, 0, size).copy_(self.rows)
            self.rows = larger
        self.rows.index_copy_(self.axis, torch.tensor(positions, device=leaf.device), leaf)


@dataclass
class _Arguments:
    """The arguments of an attention module: its input (None for something else than a tensor), and
    the others flat. name: the input's, where it is a keyword. tables: what each of the others is
    remembered in, None for what is the same for all rows."""

    name: str | None
    inputs: Tensor | None
    others: list[Any]
    spec: Any
    tables: list[_Table | None] = field(default_factory=list)

    @classmethod
    def of(cls, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments:
        name = None
        others = dict(kwargs)
        if args:
            inputs, *rest = args
        else:
            rest = []
            name = next(iter(inspect.signature(module.forward).parameters))
            inputs = others.pop(name, None)
        leaves, spec = pytree.tree_flatten((tuple(rest), others))
        return cls(name, inputs[0] if isinstance(inputs, Tensor) else None, leaves, spec)


class Regeneration:
    """Regenerates K and V of a model's layers, and keeps what that takes as passes go by.

    shapes: those of the model's layers, with `input_dim` where regeneration gives what the layer
    computes; this is tried out at once. first: the layers before this one are left out, as they
    run elsewhere.
    """

    def __init__(self, model: Any, shapes: Sequence[LayerShape], first: int = 0):
        self.model = model
        self.extras = ExtraArguments(model)
        self.first = first
        self.tables: list[_Table] = []
        self.modules: list[Any] = []
        self.calls: list[_Arguments] = []
        self.shapes: tuple[LayerShape, ...] = ()
        with torch.inference_mode():
            self._probe(shapes)
        self.table_layers = {table.layer for table in self.tables}
        weak_self = ref(self)
        hooks = [
            module.register_forward_pre_hook(_keeper(weak_self, layer), with_kwargs=True)
            for layer, module in enumerate(self.modules)
            if self.calls[layer].inputs is not None
        ]
        finalize(self, _remove, hooks)

    def __call__(self, layer: int, inputs: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (kv_heads, tokens, dim) of tokens with these inputs (tokens, width)."""
        call = self.calls[layer]
        module = self.modules[layer]
        leaves = [
            _own(leaf) if table is None else table.rows.index_select(table.axis, positions)
            for leaf, table in zip(call.others, call.tables, strict=True)
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
                return reached.kv
        raise RuntimeError(f"the attention module of layer {layer} ended without calling attention")

    def keep(self, layer: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        plan = current_plan()
        if not isinstance(plan, Plan):
            return
        expected = self.calls[layer]
        if layer in self.table_layers:
            call = _Arguments.of(self.modules[layer], args, kwargs)
            for table, leaf in zip(expected.tables, call.others, strict=True):
                if table is not None and table.layer == layer:
                    table.remember(leaf, plan.positions)
        inputs = args[0] if expected.name is None else kwargs[expected.name]
        plan.keep_inputs(layer, inputs[0])

    @torch.inference_mode()
    def while_there(self, layer: int, work: Callable[[], None]) -> None:
        def show(module: Any, call: _Arguments, key: Tensor, value: Tensor) -> None:
            if module is self.modules[layer]:
                work()
                raise _Done

        with suppress(_Done):
            self._run(FEW, show)

    # ---------------------------------------------------------------- at load

    def _probe(self, shapes: Sequence[LayerShape]) -> None:
        calls_of_few: list[_Arguments] = []
        by_identity: dict[int, _Table] = {}

        def look(module: Any, call: _Arguments, key: Tensor, value: Tensor) -> None:
            layer = len(self.calls)
            call = replace(call, tables=[])  # a module may call attention twice
            for one, other in zip(calls_of_few[layer].others, call.others, strict=True):
                axis = _row_axis(one, other)
                if axis is not None and id(other) not in by_identity:
                    by_identity[id(other)] = _Table(axis, layer, other)
                call.tables.append(None if axis is None else by_identity[id(other)])
            self.modules.append(module)
            self.calls.append(call)
            width = None
            inputs = call.inputs
            here = layer >= self.first
            if inputs is not None and here and self._gives(layer, inputs, key, value):
                width = inputs.shape[-1]
            self.shapes += (replace(shapes[layer], input_dim=width),)

        self._run(FEW, lambda module, call, key, value: calls_of_few.append(call))
        self._run(MANY, look)
        of_several = [module for module, count in Counter(self.modules).items() if count > 1]
        self.shapes = tuple(  # which of a module's inputs is whose layer's is not known
            replace(shape, input_dim=None) if module in of_several else shape
            for module, shape in zip(self.modules, self.shapes, strict=True)
        )
        self.tables = list(by_identity.values())

    def _run(self, count: int, show: Callable[[Any, _Arguments, Tensor, Tensor], None]) -> None:
        calls: dict[int, _Arguments] = {}

        def record(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            calls[id(module)] = _Arguments.of(module, args, kwargs)

        def receive(module: Any, key: Tensor, value: Tensor) -> None:
            show(module, calls.get(id(module), _Arguments(None, None, [], None)), key, value)

        modules = [module for module in self.model.modules() if hasattr(module, "layer_idx")]
        hooks = [each.register_forward_pre_hook(record, with_kwargs=True) for each in modules]
        device = self.model.get_input_embeddings().weight.device
        vocabulary = self.model.config.get_text_config().vocab_size
        tokens = torch.tensor([[7 * (n + 1) % vocabulary for n in range(count)]], device=device)
        positions = torch.arange(count, device=device)[None]
        plan = _Show(range(count), receive)
        try:
            with (
                answered_by(REPLAY, self.model),
                attending(plan),
                self.extras.running() as extras,
            ):
                options = {"use_cache": False, "logits_to_keep": 1} | extras
                self.model(input_ids=tokens, position_ids=positions, **options)
        finally:
            _remove(hooks)

    def _gives(self, layer: int, inputs: Tensor, key: Tensor, value: Tensor) -> bool:
        """Whether keys and values come out of inputs again, in another order and not of all
        rows."""
        rows = torch.tensor([7, 2, 5, 3, 8, 0], device=inputs.device)
        try:
            again = self(layer, inputs[rows], rows)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
            return False
        for whole, result in zip((key, value), again, strict=True):
            expected = whole[:, rows]
            if result.shape != expected.shape:
                return False
            error, limit = deviation(expected, result, is_precise(key.dtype), 1e-4, 0.02)
            if not error <= limit:
                return False
        return True


def _keeper(regeneration: ref[Regeneration], layer: int) -> Any:
    def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        # without kwargs it was removed after this pass of another engine had begun
        alive = regeneration()
        if kwargs is not None and alive is not None:
            alive.keep(layer, args, kwargs)

    return changes_nothing(before)


def _remove(hooks: Sequence[Any]) -> None:
    for hook in hooks:
        hook.remove()


def _own(leaf: Any) -> Any:
    return copy(leaf) if isinstance(leaf, MutableMapping) else leaf


def _row_axis(one: Any, other: Any) -> int | None:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.dim() != other.dim():
        return None
    sizes = enumerate(zip(one.shape, other.shape, strict=True))
    differing = [(axis, few, many) for axis, (few, many) in sizes if few != many]
    if len(differing) != 1 or differing[0][1:] != (FEW, MANY):
        return None
    return differing[0][0]


@contextmanager
def _without_queries(module: Any) -> Iterator[None]:
    children = module._modules
    queries = {n: children[n] for n in QUERY_NAMES if hasattr(children.get(n), "out_features")}
    children.update({name: _NoQueries(child.out_features) for name, child in queries.items()})
    try:
        yield
    finally:
        children.update(queries)
