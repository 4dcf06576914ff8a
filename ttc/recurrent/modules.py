"""Layers of linear attention, state spaces and convolutions: the model's own modules over packed
rows.

Such a module mixes the tokens of a sequence, and goes on from a state in transformers' cache. So it
is given the packed rows sequence by sequence, with a cache that holds these sequences' states.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, LinearAttentionLayer

from ttc.errors import UnsupportedModel
from ttc.memory.states import Part, StateBatch, StateShape, Tensors
from ttc.model.replaced_functions import Function, called_by, forward_with, running_as
from ttc.recurrent.least_time_step import UPDATE, LeastTimeStep
from ttc.recurrent.single_token import REPLACEMENTS

CACHE_NAMES = ("cache", "cache_params", "past_key_values")  # as transformers have called it
"""What transformers' modules call the cache that they are given."""


class Recurrent:
    """The recurrent modules of a model, and how they are run.

    layers: the numbers of their layers. by_token: several tokens come one by one, where modules do
    not go on from a state with several at once. knows_opening: a token before a branch's first
    generated one is computed in another way (`least_time_step.py`). shape: what is kept of a
    sequence, known once a pass has run.
    """

    def __init__(self, modules: Sequence[torch.nn.Module], state_counts: Sequence[int]):
        self.modules = [RecurrentModule(module) for module in modules]
        self.state_counts = list(state_counts)
        self.by_token = False
        self.knows_opening = False
        self.shape: StateShape | None = None
        self._sequences: _Sequences | None = None  # those of the pass under way

    def set_up(self, *, fewer_operations: bool, least_time_step: bool) -> bool:
        """Set how the modules run: replacements for single tokens, a least time step in the opening
        alone. Returns whether some module can."""
        can = [module.set_up(fewer_operations, least_time_step) for module in self.modules]
        self.by_token = False
        self.knows_opening = least_time_step
        return any(can)

    @property
    def layers(self) -> set[int]:
        return {layer for layer, count in enumerate(self.state_counts) if count}

    @contextmanager
    def running(self, batches: Sequence[StateBatch]) -> Iterator[None]:
        """Have the modules compute the sequences of `batches`, which hold every packed row once,
        and change their states."""
        if not batches:
            raise RuntimeError("a pass of recurrent layers came without its sequences' states")
        self._prepare(batches)
        sequences = _Sequences(batches)
        self._sequences = sequences
        forwards = [module.over(sequences, self.by_token) for module in self.modules]
        try:
            with running_as([module.module for module in self.modules], forwards):
                yield
        finally:
            self._sequences = None
        for batch in sequences.batches:
            batch.tensors = batch.tensors or _tensors(batch.cache)
            batch.broken = False

    def go_on_with(self, batches: Sequence[StateBatch]) -> None:
        if self._sequences is None:
            raise RuntimeError("sequences can leave a pass only while it runs")
        self._prepare(batches)
        self._sequences.set(batches)

    def _prepare(self, batches: Sequence[StateBatch]) -> None:
        for batch in batches:
            batch.broken = True
            if batch.cache is None:
                batch.cache = self.cache_of(batch.tensors)

    def cache_of(self, tensors: Tensors) -> Cache:
        layers: list[Any] = [
            LinearAttentionLayer(number_of_states=count) for count in self.state_counts
        ]
        for part, tensor in tensors.items():
            layer = layers[part.layer]
            number = part.number
            layer.dtype = tensor.dtype
            layer.device = tensor.device
            if part.kind == "conv":
                layer.conv_states[number] = tensor
                layer.is_conv_states_initialized[number] = True
                layer.conv_kernel_size[number] = tensor.shape[-1]
            else:
                layer.recurrent_states[number] = tensor
                layer.is_recurrent_states_initialized[number] = True
            layer.has_previous_state[number] = True
        return _States(layers=layers)


class _States(Cache):
    """What the modules are given as the model's cache; by MiniMax's names too."""

    def get_linear_cache(self, layer_idx: int) -> Tensor | None:
        return self.get_recurrent_state(layer_idx)

    def set_linear_cache(self, layer_idx: int, state: Tensor) -> None:
        self.update_recurrent_state(state, layer_idx)


def _tensors(cache: Cache) -> Tensors:
    tensors: Tensors = {}
    for index, layer in enumerate(cache.layers):
        if isinstance(layer, LinearAttentionLayer):
            for number in range(layer.number_of_states):
                for kind in ("conv", "recurrent"):
                    state = getattr(layer, f"{kind}_states")[number]
                    if state is not None:
                        tensors[Part(index, kind, number)] = state
    return tensors


class _Sequences:
    """The packed rows of a pass, sequence by sequence."""

    def __init__(self, batches: Sequence[StateBatch]):
        self.set(batches)

    def set(self, batches: Sequence[StateBatch]) -> None:
        self.batches = batches
        order = torch.cat([batch.rows.flatten() for batch in batches])
        self.rows = len(order)
        self.in_order = len(batches) == 1 and torch.equal(order, torch.arange(self.rows))
        self._back = order if self.in_order else order.argsort()
        self._indices: dict[tuple[int, torch.device], Tensor] = {}

    def _index(self, numbers: Tensor, device: torch.device) -> Tensor:
        key = id(numbers), device
        if key not in self._indices:
            self._indices[key] = numbers.to(device)
        return self._indices[key]

    def take(self, value: Any, batch: StateBatch) -> Any:
        """A module's argument: (1, rows, ...) becomes (sequences, tokens, ...), others stay."""
        if isinstance(value, tuple):
            return tuple(self.take(item, batch) for item in value)
        if not isinstance(value, Tensor) or value.shape[:2] != (1, self.rows):
            return value
        if self.in_order:
            return value[0].unflatten(0, tuple(batch.rows.shape))
        return value[0][self._index(batch.rows, value.device)]

    def put(self, outputs: Sequence[Any]) -> Any:
        """What a module gave for each batch, as for packed rows; what has no rows is the
        first's."""
        first = outputs[0]
        if isinstance(first, tuple):
            return tuple(self.put(parts) for parts in zip(*outputs, strict=True))
        if not isinstance(first, Tensor) or first.shape[:2] != self.batches[0].rows.shape:
            return first
        if self.in_order:
            return first.flatten(0, 1)[None]
        rows = torch.cat([output.flatten(0, 1) for output in outputs])
        return rows[self._index(self._back, rows.device)][None]


class RecurrentModule:
    """A recurrent module, whose forward is another while a pass runs."""

    def __init__(self, module: torch.nn.Module):
        self.module = module
        names = list(inspect.signature(module.forward).parameters)
        self.cache_name = next((name for name in CACHE_NAMES if name in names), "")
        if not self.cache_name:
            raise UnsupportedModel(
                f"{type(module).__name__} takes no cache as {' or '.join(CACHE_NAMES)}, and the "
                "engine gives it one"
            )
        self.cache_place = names.index(self.cache_name)
        self.least: LeastTimeStep | None = None
        self.replaced: Function | None = None

    def set_up(self, fewer_operations: bool, least_time_step: bool) -> bool:
        functions: dict[str, Function] = {}
        if fewer_operations:
            for name, function in called_by(self.module, REPLACEMENTS).items():
                functions[name] = REPLACEMENTS[name](function)
        self.least = LeastTimeStep.of(self.module) if least_time_step else None
        if self.least is not None:
            functions[UPDATE] = self.least.update
        self.replaced = forward_with(self.module, functions) if functions else None
        return self.least is not None if least_time_step else bool(functions)

    def forward(self) -> Function:
        original: Function = self.module.forward
        if self.replaced is None or "forward" in self.module.__dict__:
            return original
        return self.replaced

    def over(self, sequences: _Sequences, by_token: bool) -> Function:
        original = self.forward()

        def forward(*args: Any, **kwargs: Any) -> Any:
            outputs = []
            for batch in sequences.batches:
                least = self.least
                with nullcontext() if least is None else least.of_opening(batch.in_opening):
                    its_args = sequences.take(args, batch)
                    its_kwargs = {k: sequences.take(v, batch) for k, v in kwargs.items()}
                    one_by_one = by_token and bool(batch.tensors) and batch.rows.shape[1] > 1
                    outputs.append(self._compute(original, batch, its_args, its_kwargs, one_by_one))
            return sequences.put(outputs)

        return forward

    def _compute(
        self,
        original: Function,
        batch: StateBatch,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        one_by_one: bool,
    ) -> Any:
        if len(args) > self.cache_place:
            args = (*args[: self.cache_place], batch.cache, *args[self.cache_place + 1 :])
        else:
            kwargs[self.cache_name] = batch.cache
        if not one_by_one:
            return original(*args, **kwargs)
        shape = tuple(batch.rows.shape)
        outputs = []
        for token in range(shape[1]):
            of_token = {name: _token(value, shape, token) for name, value in kwargs.items()}
            outputs.append(original(*_token(args, shape, token), **of_token))
        return _in_a_row(outputs)


def _token(value: Any, shape: tuple[int, ...], token: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_token(item, shape, token) for item in value)
    if isinstance(value, Tensor) and tuple(value.shape[:2]) == shape:
        return value[:, token : token + 1]
    return value


def _in_a_row(outputs: Sequence[Any]) -> Any:
    first = outputs[0]
    if isinstance(first, tuple):
        return tuple(_in_a_row(parts) for parts in zip(*outputs, strict=True))
    is_rows = isinstance(first, Tensor) and first.dim() >= 2
    return torch.cat(list(outputs), 1) if is_rows else first
