"""Layers of linear attention, state spaces and convolutions: the model's own modules, run over packed rows.

Such a module mixes the tokens of a sequence, and goes on from a state in transformers' cache. So it is given the packed
rows sequence by sequence, those of one length side by side, with a cache that holds these sequences' states.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DummyLayer, LinearAttentionLayer

from ttc.errors import UnsupportedModel
from ttc.memory.states import Part, StateBatch, StateShape, Tensors
from ttc.model.least_time_step import UPDATE, LeastTimeStep
from ttc.model.replaced_functions import Function, called_by, forward_with
from ttc.model.single_token import REPLACEMENTS

CACHE_NAMES = ("cache_params", "past_key_values")
"""What transformers' modules call the cache that they are given."""


class Recurrent:
    """The recurrent modules of a model, and how they are run.

    layers: the numbers of the layers that they belong to. by_token: modules that do not go on from a state with several
    tokens at once get them one by one; the check at load finds which. knows_opening: what a token gives depends on
    whether it stands before a branch's first generated one (see `least_time_step.py`). shape: what they keep of a
    sequence, known once a pass has run.
    """

    def __init__(self, modules: Sequence[torch.nn.Module], state_counts: Sequence[int]):
        self.modules = [_Module(module) for module in modules]
        self.state_counts = list(state_counts)
        self.by_token = self.knows_opening = False
        self.shape: StateShape | None = None
        self._sequences: _Sequences | None = None  # those of the pass under way

    def set_up(self, *, fewer_operations: bool, least_time_step: bool) -> bool:
        """How the modules are to run: with replacements for single tokens, with a least time step in a branch's opening
        alone. Returns whether some module can."""
        can = [module.set_up(fewer_operations, least_time_step) for module in self.modules]
        self.by_token, self.knows_opening = False, least_time_step
        return any(can)

    @property
    def layers(self) -> set[int]:
        return {layer for layer, count in enumerate(self.state_counts) if count}

    @contextmanager
    def running(self, batches: Sequence[StateBatch]) -> Iterator[None]:
        """Have the modules compute the sequences of `batches`, which hold every packed row once, and change their
        states."""
        if not batches:
            raise RuntimeError("a pass of a model with recurrent layers came without its sequences' states")
        self._prepare(batches)
        sequences = self._sequences = _Sequences(batches, self.by_token)
        for module in self.modules:
            module.begin(sequences)
        try:
            yield
        finally:
            self._sequences = None
            for module in self.modules:
                module.end()
        for batch in sequences.batches:
            if not batch.tensors:
                batch.tensors = _tensors(batch.cache)
            batch.broken = False

    def go_on_with(self, batches: Sequence[StateBatch]) -> None:
        """Other sequences have left the pass under way: the modules that follow compute these, which hold every packed
        row that is left once."""
        if self._sequences is None:
            raise RuntimeError("sequences can leave a pass only while it runs")
        self._prepare(batches)
        self._sequences.set(batches)

    def _prepare(self, batches: Sequence[StateBatch]) -> None:
        for batch in batches:
            batch.broken = True
            if batch.cache is None:
                batch.cache = self._cache(batch.tensors)

    def empty_cache(self) -> Cache:
        """What the modules are given of a sequence that begins."""
        return self._cache({})

    def _cache(self, tensors: Tensors) -> Cache:
        layers: list[Any] = [
            LinearAttentionLayer(number_of_states=count) if count else DummyLayer() for count in self.state_counts
        ]
        for part, tensor in tensors.items():
            layer, number = layers[part.layer], part.number
            layer.dtype, layer.device = tensor.dtype, tensor.device
            if part.kind == "conv":
                layer.conv_states[number], layer.is_conv_states_initialized[number] = tensor, True
                layer.conv_kernel_size[number] = tensor.shape[-1]
            else:
                layer.recurrent_states[number], layer.is_recurrent_states_initialized[number] = tensor, True
            layer.has_previous_state[number] = True
        return _States(layers=layers)


class _States(Cache):
    """What the modules are given as the model's cache; by MiniMax's names too."""

    def get_linear_cache(self, layer_idx: int) -> Tensor | None:
        return self.get_recurrent_state(layer_idx)

    def set_linear_cache(self, layer_idx: int, state: Tensor) -> None:
        self.update_recurrent_state(state, layer_idx)


def _tensors(cache: Cache) -> Tensors:
    """The states that a pass has left in a cache."""
    found: Tensors = {}
    for index, layer in enumerate(cache.layers):
        if isinstance(layer, LinearAttentionLayer):
            for number in range(layer.number_of_states):
                if (conv := layer.conv_states[number]) is not None:
                    found[Part(index, "conv", number)] = conv
                if (recurrent := layer.recurrent_states[number]) is not None:
                    found[Part(index, "recurrent", number)] = recurrent
    return found


class _Sequences:
    """The packed rows of a pass, sequence by sequence."""

    def __init__(self, batches: Sequence[StateBatch], by_token: bool):
        self.by_token = by_token
        self.set(batches)

    def set(self, batches: Sequence[StateBatch]) -> None:
        self.batches = batches
        order = torch.cat([batch.rows.flatten() for batch in batches])
        self.rows = len(order)
        self.in_order = len(batches) == 1 and torch.equal(order, torch.arange(self.rows))
        self._back = order if self.in_order else order.argsort()
        self._indices: dict[tuple[int, torch.device], Tensor] = {}

    def _index(self, numbers: Tensor, device: torch.device) -> Tensor:
        """Numbers of rows on a device, copied there once."""
        key = id(numbers), device
        if key not in self._indices:
            self._indices[key] = numbers.to(device)
        return self._indices[key]

    def take(self, value: Any, batch: StateBatch) -> Any:
        """What a module gets of an argument: (1, rows, ...) becomes (sequences, tokens, ...), all else stays."""
        if isinstance(value, tuple):
            return tuple(self.take(item, batch) for item in value)
        if not isinstance(value, Tensor) or value.dim() < 2 or value.shape[:2] != (1, self.rows):
            return value
        if self.in_order:
            return value[0].unflatten(0, tuple(batch.rows.shape))
        return value[0][self._index(batch.rows, value.device)]

    def put(self, outputs: Sequence[Any]) -> Any:
        """What a module gave for each batch, as for packed rows: (sequences, tokens, ...) becomes (1, rows, ...), each
        part of a tuple by itself; anything else is the first batch's."""
        first = outputs[0]
        if isinstance(first, tuple):
            return tuple(self.put(parts) for parts in zip(*outputs, strict=True))
        if not isinstance(first, Tensor) or first.dim() < 2 or first.shape[:2] != self.batches[0].rows.shape:
            return first
        if self.in_order:
            return first.flatten(0, 1)[None]
        rows = torch.cat([output.flatten(0, 1) for output in outputs])
        return rows[self._index(self._back, rows.device)][None]


class _Module:
    """A recurrent module, whose forward is another while a pass runs."""

    def __init__(self, module: torch.nn.Module):
        self.module = module
        names = list(inspect.signature(module.forward).parameters)
        name = next((name for name in CACHE_NAMES if name in names), None)
        if name is None:
            raise UnsupportedModel(
                f"{type(module).__name__} takes no cache as {' or '.join(CACHE_NAMES)}, and the engine gives it one"
            )
        self.name, self.place = name, names.index(name)
        self.least: LeastTimeStep | None = None
        self.replaced: Function | None = None
        self._before: Any = None

    def set_up(self, fewer_operations: bool, least_time_step: bool) -> bool:
        """See `Recurrent.set_up`."""
        functions: dict[str, Function] = {}
        if fewer_operations:
            functions = {n: REPLACEMENTS[n](own) for n, own in called_by(self.module, REPLACEMENTS).items()}
        self.least = LeastTimeStep.of(self.module) if least_time_step else None
        if self.least is not None:
            functions[UPDATE] = self.least.update
        self.replaced = forward_with(self.module, functions) if functions else None
        return self.least is not None if least_time_step else bool(functions)

    def forward(self) -> Function:
        """What computes the module, with what was set up."""
        own: Function = self.module.forward
        return own if self.replaced is None or "forward" in self.module.__dict__ else self.replaced

    def begin(self, sequences: _Sequences) -> None:
        own = self.forward()
        self._before = self.module.__dict__.get("forward")

        def forward(*args: Any, **kwargs: Any) -> Any:
            return sequences.put([self._of_batch(own, sequences, batch, args, kwargs) for batch in sequences.batches])

        self.module.__dict__["forward"] = forward

    def end(self) -> None:
        del self.module.__dict__["forward"]
        if self._before is not None:
            self.module.__dict__["forward"] = self._before

    def _of_batch(
        self, own: Function, sequences: _Sequences, batch: StateBatch, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self.least is None:
            return self._compute(own, sequences, batch, args, kwargs)
        with self.least.of_opening(batch.in_opening):
            return self._compute(own, sequences, batch, args, kwargs)

    def _compute(
        self, own: Function, sequences: _Sequences, batch: StateBatch, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        args = sequences.take(args, batch)
        kwargs = {name: sequences.take(value, batch) for name, value in kwargs.items()}
        if len(args) > self.place:
            args = (*args[: self.place], batch.cache, *args[self.place + 1 :])
        else:
            kwargs[self.name] = batch.cache
        shape = tuple(batch.rows.shape)
        if not (sequences.by_token and batch.tensors and shape[1] > 1):
            return own(*args, **kwargs)
        outputs = []
        for token in range(shape[1]):
            one = [_token(value, shape, token) for value in args]
            outputs.append(own(*one, **{name: _token(value, shape, token) for name, value in kwargs.items()}))
        return _in_a_row(outputs)


def _token(value: Any, shape: tuple[int, ...], token: int) -> Any:
    """One token of each sequence of an argument; what has no (sequences, tokens) stays."""
    if isinstance(value, tuple):
        return tuple(_token(item, shape, token) for item in value)
    if isinstance(value, Tensor) and value.dim() >= 2 and tuple(value.shape[:2]) == shape:
        return value[:, token : token + 1]
    return value


def _in_a_row(outputs: Sequence[Any]) -> Any:
    """What a module gave token by token, as for all tokens at once."""
    first = outputs[0]
    if isinstance(first, tuple):
        return tuple(_in_a_row(parts) for parts in zip(*outputs, strict=True))
    return torch.cat(list(outputs), 1) if isinstance(first, Tensor) and first.dim() >= 2 else first
