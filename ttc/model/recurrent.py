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
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from transformers.cache_utils import (
    Cache,
    DummyLayer,
    DynamicCache,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
)

from ttc.errors import UnsupportedModel
from ttc.memory.states import Part, StateBatch, StateShape, Tensors

CACHE_NAMES = ("cache_params", "past_key_values")
"""What transformers' modules call the cache that they are given."""

FIND_TOKENS = 4


class Recurrent:
    """The recurrent modules of a model, and how they are run.

    layers: the numbers of the layers that they belong to. by_token: modules that do not go on from a state with several
    tokens at once get them one by one; the check at load finds which. shape: what they keep of a sequence, known once a
    pass has run.
    """

    def __init__(self, modules: Sequence[torch.nn.Module], state_counts: Sequence[int]):
        self.modules = [_Module(module) for module in modules]
        self.state_counts = list(state_counts)
        self.by_token = False
        self.shape: StateShape | None = None

    @property
    def layers(self) -> set[int]:
        return {layer for layer, count in enumerate(self.state_counts) if count}

    @contextmanager
    def running(self, batches: Sequence[StateBatch]) -> Iterator[None]:
        """Have the modules compute the sequences of `batches`, which hold every packed row once, and change their
        states."""
        if not batches:
            raise RuntimeError("a pass of a model with recurrent layers came without its sequences' states")
        for batch in batches:
            batch.broken = True
            if batch.cache is None:
                batch.cache = self._cache(batch.tensors)
        sequences = _Sequences(batches, self.by_token)
        for module in self.modules:
            module.begin(sequences)
        try:
            yield
        finally:
            for module in self.modules:
                module.end()
        for batch in batches:
            if not batch.tensors:
                batch.tensors = _tensors(batch.cache)
            batch.broken = False

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
        return Cache(layers=layers)


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
        self.batches, self.by_token = batches, by_token
        order = torch.cat([batch.rows.flatten() for batch in batches])
        self.rows = len(order)
        self.in_order = len(batches) == 1 and torch.equal(order, torch.arange(self.rows))
        self._back = order.argsort()
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
        self._before: Any = None

    def begin(self, sequences: _Sequences) -> None:
        own = self.module.forward
        self._before = self.module.__dict__.get("forward")

        def forward(*args: Any, **kwargs: Any) -> Any:
            return sequences.put([self._compute(own, sequences, batch, args, kwargs) for batch in sequences.batches])

        self.module.__dict__["forward"] = forward

    def end(self) -> None:
        del self.module.__dict__["forward"]
        if self._before is not None:
            self.module.__dict__["forward"] = self._before

    def _compute(
        self, own: Any, sequences: _Sequences, batch: StateBatch, args: tuple[Any, ...], kwargs: dict[str, Any]
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


# ---------------------------------------------------------------- finding them


class _Watched(DynamicCache):
    """A cache that notes which module of the model asks for recurrent states."""

    def __init__(self, config: Any):
        super().__init__(config=config)
        self.running: list[torch.nn.Module] = []
        self.asked: dict[torch.nn.Module, None] = {}

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Nothing yet; transformers has no answer where no layer is one of attention."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0

    def get_conv_state(self, *args: Any, **kwargs: Any) -> Any:
        self.asked[self.running[-1]] = None
        return super().get_conv_state(*args, **kwargs)

    def update_conv_state(self, *args: Any, **kwargs: Any) -> Any:
        self.asked[self.running[-1]] = None
        return super().update_conv_state(*args, **kwargs)

    def get_recurrent_state(self, *args: Any, **kwargs: Any) -> Any:
        self.asked[self.running[-1]] = None
        return super().get_recurrent_state(*args, **kwargs)

    def update_recurrent_state(self, *args: Any, **kwargs: Any) -> Any:
        self.asked[self.running[-1]] = None
        return super().update_recurrent_state(*args, **kwargs)


def layers_without_tokens(config: Any) -> set[int]:
    """The layers that keep nothing of a sequence, by transformers' own account: they mix no tokens (only an MLP)."""
    try:
        cache = DynamicCache(config=config)
    except Exception:  # a configuration that transformers cannot make a cache for
        return set()
    return {index for index, layer in enumerate(cache.layers) if isinstance(layer, DummyLayer)}


@torch.inference_mode()
def find_recurrent(model: Any, ids: Tensor) -> Recurrent | None:
    """The modules of `model` that keep a recurrent state in transformers' cache; None for a model without.

    ids: (1, tokens), what the model runs on to see which modules they are.
    """
    try:
        cache = _Watched(model.config)
    except Exception:  # a configuration that transformers cannot make a cache for
        return None
    counts = [
        layer.number_of_states if isinstance(layer, LinearAttentionCacheLayerMixin) else 0 for layer in cache.layers
    ]
    if not any(counts):
        return None
    body = getattr(model, "body", model)
    name = next((name for name in CACHE_NAMES if name in inspect.signature(body.forward).parameters), CACHE_NAMES[1])

    def begins(module: torch.nn.Module, _: Any) -> None:
        cache.running.append(module)

    def ends(*_: Any) -> None:
        cache.running.pop()

    before, after = register_module_forward_pre_hook(begins), register_module_forward_hook(ends, always_call=True)
    try:
        model(input_ids=ids[:, :FIND_TOKENS], use_cache=True, **{name: cache})
    finally:
        before.remove()
        after.remove()
    return Recurrent(list(cache.asked), counts) if cache.asked else None
