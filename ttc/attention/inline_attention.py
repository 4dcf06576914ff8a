"""Models that compute attention in their modules' own code, brought to call attention functions as
other models do.

While the engine has such a model, each attention module has a subclass of its class, in which one
method is replaced: `_attn`, where the module computes attention in a method of that name, or
`forward`, by one of `FORWARDS`. Everything else of the module stays, so copies, hooks and weights
are as before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from inspect import signature
from math import isclose, log
from types import MethodType
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ttc.attention.inline_forwards import FORWARDS
from ttc.errors import UnsupportedModel


class CallsAttention:
    """An attention module of a model that has been brought to call attention functions.

    original: the module's class before. ttc_attention: the name of the attention function.
    """

    original: ClassVar[type[nn.Module]]
    ttc_attention: str

    def eager(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float
    ) -> tuple[Tensor, None]:
        """Attention written out. query: (batch, heads, tokens, dim); key, value with the KV heads.
        mask: None, or what is added to the scores. Returns (batch, tokens, heads, value_dim)."""
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
        scores = query @ key.transpose(2, 3) * scaling
        weights = (scores if mask is None else scores + mask).softmax(-1)
        return (weights @ value).transpose(1, 2), None

    def visible_mask(self, query: Tensor, mask: Tensor | None) -> Tensor | None:
        """What tokens see, by the model's mask and by what the module itself hides."""
        return mask


def has_inline_attention(model: Any) -> bool:
    return any(_calling(module.__class__) is not None for module in model.modules())


def call_attention(model: Any, implementation: str) -> None:
    """Let the model's attention modules call the attention function of that name."""
    for module in model.modules():
        if (calling := _calling(module.__class__)) is not None:
            _become(module, calling)
            module.ttc_attention = implementation


def run_inline_attention(model: Any) -> None:
    """Undo `call_attention`."""
    for module in model.modules():
        if isinstance(module, CallsAttention):
            del module.ttc_attention
            _become(module, module.original)


def _become(module: Any, kind: type[nn.Module]) -> None:
    """Give a module another class; Accelerate's hooks run the new class's forward."""
    if getattr(module.__dict__.get("_old_forward"), "__func__", None) is module.__class__.forward:
        module._old_forward = MethodType(kind.forward, module)
    module.__class__ = kind


@cache
def _calling(kind: Any) -> Any:
    if issubclass(kind, CallsAttention):
        return kind
    if (forward := FORWARDS.get(f"{kind.__module__}.{kind.__name__}")) is not None:
        return type(kind.__name__, (CallsAttention, kind), {"original": kind, "forward": forward})
    attn = getattr(kind, "_attn", None)
    least = len(("self", "query", "key", "value", "mask"))
    if attn is not None and len(signature(attn).parameters) >= least:
        return type(kind.__name__, (_ByMethod, kind), {"original": kind})
    return None


# ---------------------------------------------------------------- modules with a method `_attn`


@dataclass(frozen=True)
class _Method:
    """What a module's `_attn` is like. transposed: it takes keys as (batch, heads, dim, tokens).
    result: what it returns for an output."""

    scaling: float
    transposed: bool
    result: Callable[[Tensor], Any]


_METHODS: WeakKeyDictionary[Any, _Method] = WeakKeyDictionary()


class _ByMethod(CallsAttention):
    """A module whose `_attn` takes queries, keys and values (batch, heads, tokens, dim) and a mask
    to be added, and gives a tuple or list that begins with the output (batch, heads, tokens,
    value_dim)."""

    def _attn(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        *_: Any,
        **__: Any,
    ) -> Any:
        method = self._method(query)
        key = key.transpose(2, 3) if method.transposed else key
        query = query.to(value.dtype)  # some multiply in float32, and keep such keys nowhere
        key = key.to(value.dtype)
        function = ALL_ATTENTION_FUNCTIONS[self.ttc_attention]
        return method.result(
            function(self, query, key, value, mask, scaling=method.scaling)[0].transpose(1, 2)
        )

    def eager(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float
    ) -> tuple[Tensor, None]:
        return self._run_original(query, key, value, mask).transpose(1, 2), None

    def visible_mask(self, query: Tensor, mask: Tensor | None) -> Tensor | None:
        """By the weights where all scores are 0. Its `row(position)` is the mask's row at any
        position."""

        def seen(tokens: int, mask: Tensor | None) -> Tensor:
            nothing = query.new_zeros(1, 1, tokens, query.shape[-1])
            return self._run_original(
                nothing, nothing, torch.eye(tokens).to(query)[None, None], mask
            )

        def hidden(weights: Tensor) -> Tensor:
            return torch.zeros_like(weights).masked_fill_(
                weights == 0, torch.finfo(weights.dtype).min
            )

        def row(position: int) -> Tensor:
            mine = hidden(seen(position + 1, None)[:, :, -1:])
            if mask is None:
                return mine
            return torch.minimum(mine, mask.row(position))  # type: ignore[attr-defined]

        square = hidden(seen(query.shape[2], mask))
        square.row = row  # type: ignore[attr-defined]
        return square

    def _run_original(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
    ) -> Tensor:
        key = key.transpose(2, 3) if self._method(query).transposed else key
        attend = self.original._attn  # type: ignore[attr-defined]
        out: Tensor = attend(self, query, key, value, mask)[0]
        return out

    def _method(self, query: Tensor) -> _Method:
        if self not in _METHODS:
            _METHODS[self] = self._examine(query)
        return _METHODS[self]

    def _examine(self, query: Tensor) -> _Method:
        """Try the module's own `_attn` on three tokens. query: one of its queries, for its shape,
        type and device."""
        attn = self.original._attn  # type: ignore[attr-defined]
        _, heads, _, dim = query.shape
        kind = torch.promote_types(query.dtype, torch.float32)
        key = torch.zeros(1, heads, 3, dim, dtype=kind, device=query.device)
        key[:, :, 1, 0] = 1
        value = torch.zeros_like(key)
        value[:, :, range(3), range(3)] = 1
        try:
            result = attn(self, key, key, value, None)
            transposed = False
        except RuntimeError:  # shapes don't fit
            result = attn(self, key, key.transpose(2, 3), value, None)
            transposed = True
        others = [None] * (len(result) - 1)

        def as_result(out: Tensor) -> Any:
            return type(result)([out, *others])

        if query.is_meta:  # there are shapes alone
            return _Method(1.0, transposed, as_result)

        def scaling(size: float) -> float:
            query = torch.zeros_like(key)
            query[..., 0] = size
            weights = attn(self, query, key.transpose(2, 3) if transposed else key, value, None)[0][
                0, 0, 2
            ].tolist()
            if not 0 < weights[0] < weights[1]:
                raise UnsupportedModel(
                    f"{self.original.__name__}._attn gives the weights {weights}, no softmax of "
                    "scores"
                )
            return log(weights[1] / weights[0]) / size

        measured = scaling(4 / scaling(1.0))  # weights far apart tell it more exactly
        usual = (size for size in (1.0, dim**-0.5) if isclose(measured, size, rel_tol=1e-5))
        return _Method(next(usual, measured), transposed, as_result)
