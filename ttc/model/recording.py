"""A model's calls of attention: recorded as it runs over its own attention, and answered from the record."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ttc.attention.hf_hook import current_plan
from ttc.attention.inline_attention import CallsAttention
from ttc.errors import UnsupportedModel

RECORD, REPLAY = "ttc_record", "ttc_replay"
"""The attention implementations of the two passes. Masks are built for the first, as they are for eager attention."""

Attention = Callable[..., tuple[Tensor, Any]]
Pack = Callable[[Tensor, int], Tensor]
"""From a recorded batch (batch, ..., tokens, ...), tokens at an axis, to a pass's packed rows (1, ..., rows, ...)."""


@dataclass(frozen=True)
class Rows:
    """A pass's packed rows: their tokens (1, rows), their positions, and how they are found in a recorded batch."""

    ids: Tensor
    positions: list[int]
    pack: Pack


@dataclass
class Call:
    """One call of attention.

    query: (batch, heads, tokens, dim). key, value: the same with the KV heads. mask: what the model built, None for
    nothing. options: the other keyword arguments. out: (batch, tokens, heads, value_dim).
    """

    module: Any
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    options: dict[str, Any]
    out: Tensor

    @property
    def layer(self) -> int:
        """The number that the module has, -1 for one that serves several layers and has none."""
        return -1 if (number := getattr(self.module, "layer_idx", None)) is None else int(number)

    @property
    def told_window(self) -> int | None:
        """The sliding window that the function was told, in tokens."""
        return self.options.get("sliding_window")


class Recorder:
    """Answers each call by the model's own eager attention and keeps it."""

    positions = None  # each sequence's own, from 0 on

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def answer(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: dict[str, Any]
    ) -> Tensor:
        if isinstance(module, CallsAttention):
            mask = module.own_mask(query, mask)
        out, _ = eager_attention(module)(module, query, key, value, mask, **options)
        # a weight may be here during the pass alone, as gpt-oss's sinks where layers stream
        options = {name: o.detach().clone() if isinstance(o, nn.Parameter) else o for name, o in options.items()}
        self.calls.append(Call(module, query, key, value, mask, options, out))
        return out


@contextmanager
def weights_on(device: torch.device, module: nn.Module) -> Iterator[None]:
    """Have the weights that a module holds itself on a device meanwhile, wherever they lie between passes."""
    before = module._parameters.copy()
    for name, weight in before.items():
        if weight is not None and weight.device != device:
            module._parameters[name] = nn.Parameter(weight.to(device), requires_grad=False)
    try:
        yield
    finally:
        module._parameters.update(before)


class AllRead(Exception):
    """A `MaskReader` has the masks that it wants."""


class MaskReader:
    """Keeps the masks of some layers and ends the pass by raising `AllRead`; attention itself is not computed."""

    positions = None

    def __init__(self, layers: Iterable[int]):
        self.wanted = set(layers)
        self.masks: dict[int, Tensor | None] = {}

    def answer(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: dict[str, Any]
    ) -> Tensor:
        self.masks[module.layer_idx] = mask
        if self.wanted <= self.masks.keys():
            raise AllRead
        batch, heads, tokens, _ = query.shape
        return query.new_zeros(batch, tokens, heads, value.shape[-1])


class Replay:
    """Answers each call of a pass over packed rows with what was recorded for those rows, and keeps it."""

    def __init__(self, recorded: list[Call], rows: Rows):
        self.recorded, self.pack, self.positions = recorded, rows.pack, rows.positions
        self.calls: list[Call] = []

    def answer(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: dict[str, Any]
    ) -> Tensor:
        if len(self.calls) == len(self.recorded):
            raise UnsupportedModel("attention runs more often over packed rows than over a batch")
        out = self.pack(self.recorded[len(self.calls)].out, 1)
        self.calls.append(Call(module, query, key, value, mask, options, out))
        return out


def _recorded(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    record: Recorder | MaskReader | Replay = current_plan()
    return record.answer(module, query, key, value, attention_mask, options), None


def _mask(**arguments: Any) -> Tensor | None:
    """The mask of eager attention; its `row(position)` is the mask's row at any position, however far."""
    mask = eager_mask(**arguments)
    if mask is not None:

        def row(position: int) -> Tensor:
            place: dict[str, Any] = {
                "batch_size": 1,
                "q_length": 1,
                "q_offset": position,
                "kv_length": position + 1,
                "kv_offset": 0,
            }
            padding = arguments.get("attention_mask")
            if padding is not None and bool(padding.all()):  # nothing is padded, said of the check's tokens alone
                place["attention_mask"] = None
            return eager_mask(**(arguments | place))

        mask.row = row  # type: ignore[attr-defined]
    return mask


for _name in (RECORD, REPLAY):
    AttentionInterface.register(_name, _recorded)
AttentionMaskInterface.register(RECORD, _mask)


def eager_attention(module: Any) -> Attention:
    """The eager attention function in the file that defines an attention module, or the module's own."""
    if isinstance(module, CallsAttention):
        return type(module).eager
    forward = inspect.unwrap(type(module).forward)
    function: Attention | None = forward.__globals__.get("eager_attention_forward")
    if function is None:
        raise UnsupportedModel(f"{type(module).__name__} has no eager attention function to compare with")
    return function


def named_attention(implementation: str) -> tuple[Attention, bool] | None:
    """(attention function, whether masks are built for it) of a name; None for eager attention and for functions that
    run in 16 bits alone."""
    if implementation not in ALL_ATTENTION_FUNCTIONS or implementation.split("_")[0] in ("flash", "flex"):
        return None
    return ALL_ATTENTION_FUNCTIONS[implementation], implementation in ALL_MASK_ATTENTION_FUNCTIONS
