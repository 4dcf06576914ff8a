"""A model's calls of attention: recorded over its own attention, and answered from the record."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ttc.attention.hf_hook import attention_set_to, current_plan
from ttc.errors import UnsupportedModel

RECORD = "ttc_record"
"""The attention implementation of a recorded pass. Masks are built as for eager attention."""
REPLAY = "ttc_replay"
"""That of a pass that is answered from the record."""

Attention = Callable[..., tuple[Tensor, Any]]
ModuleOptions = dict[str, Any]
Pack = Callable[[Tensor, int], Tensor]
"""From a recorded batch (batch, ..., tokens, ...), tokens at an axis, to packed rows (1, ...)."""


@dataclass(frozen=True)
class PackedRows:
    """A pass's packed rows: tokens (1, rows), positions, and how a recorded batch is packed."""

    ids: Tensor
    positions: list[int]
    pack: Pack


@dataclass
class AttentionCall:
    """One call of attention.

    query: (batch, heads, tokens, dim). key, value: the same with the KV heads. mask: what the model
    built. options: the other keyword arguments. out: (batch, tokens, heads, value_dim).
    """

    module: Any
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    options: ModuleOptions
    out: Tensor = field(init=False, repr=False)

    @property
    def layer(self) -> int:
        """The module's number, -1 for one that serves several layers and has none."""
        number = getattr(self.module, "layer_idx", None)
        return -1 if number is None else int(number)

    @property
    def zeros(self) -> Tensor:
        """An answer of the size of `out`."""
        batch, heads, tokens, _ = self.query.shape
        return self.query.new_zeros(batch, tokens, heads, self.value.shape[-1])

    @property
    def sliding_window(self) -> int | None:
        return self.options.get("sliding_window")


class Recorder:
    """Answers each call by the model's own eager attention and keeps it."""

    def __init__(self) -> None:
        self.calls: list[AttentionCall] = []

    def answer(self, call: AttentionCall) -> Tensor:
        module = call.module
        inputs = call.query, call.key, call.value
        call.out, _ = eager_attention(module)(module, *inputs, call.mask, **call.options)
        # a weight may be here during the pass alone, as gpt-oss's sinks where layers stream
        for name, option in call.options.items():
            if isinstance(option, nn.Parameter):
                call.options[name] = option.detach().clone()
        self.calls.append(call)
        return call.out


class Replay:
    """Answers each call of a pass over packed rows with what was recorded, and keeps it."""

    def __init__(self, recorded: list[AttentionCall], rows: PackedRows):
        self.recorded = recorded
        self.pack = rows.pack
        self.positions = rows.positions
        self.calls: list[AttentionCall] = []

    def answer(self, call: AttentionCall) -> Tensor:
        if len(self.calls) == len(self.recorded):
            raise UnsupportedModel("attention runs more often over packed rows than over a batch")
        call.out = self.pack(self.recorded[len(self.calls)].out, 1)
        self.calls.append(call)
        return call.out


class AllRead(Exception):
    """A `MaskReader` has the masks that it was made for."""


class MaskReader:
    """Keeps the masks of some layers and ends the pass by `AllRead`, without attention."""

    def __init__(self, layers: Iterable[int]):
        self.layers = set(layers)
        self.masks: dict[int, Tensor | None] = {}

    def answer(self, call: AttentionCall) -> Tensor:
        self.masks[call.layer] = call.mask
        if self.layers <= self.masks.keys():
            raise AllRead
        return call.zeros


@contextmanager
def weights_on(device: torch.device, module: nn.Module) -> Iterator[None]:
    before = module._parameters.copy()
    for name, weight in before.items():
        if weight is not None and weight.device != device:
            moved = weight.to(device)
            module._parameters[name] = nn.Parameter(moved, requires_grad=False)
    try:
        yield
    finally:
        module._parameters.update(before)


def eager_attention(module: Any) -> Attention:
    """The eager attention function in a module's file."""
    forward = inspect.unwrap(type(module).forward)
    function: Attention | None = forward.__globals__.get("eager_attention_forward")
    if function is None:
        raise UnsupportedModel(
            f"{type(module).__name__} has no eager attention function to compare with"
        )
    return function


def named_attention(implementation: str) -> list[tuple[Attention, bool]]:
    """(function, whether masks are built for it) of a name; none for what runs in 16 bits alone."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    in_16_bits = implementation.split("_")[0] in ("flash", "flex")
    if in_16_bits or implementation not in ALL_ATTENTION_FUNCTIONS:
        return []
    masked = implementation in ALL_MASK_ATTENTION_FUNCTIONS
    return [(ALL_ATTENTION_FUNCTIONS[implementation], masked)]


def _answered(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    call = AttentionCall(module, query, key, value, attention_mask, options)
    answer: Tensor = current_plan().answer(call)
    return answer, None


def _mask(**arguments: Any) -> Tensor | None:
    from transformers.masking_utils import eager_mask

    mask = eager_mask(**arguments)
    if mask is None:
        return None

    def row(position: int) -> Tensor:
        place: ModuleOptions = {
            "batch_size": 1,
            "q_length": 1,
            "q_offset": position,
            "kv_length": position + 1,
            "kv_offset": 0,
        }
        padding = arguments.get("attention_mask")
        if padding is not None and bool(padding.all()):  # it is of the check's tokens alone
            place["attention_mask"] = None
        return eager_mask(**(arguments | place))

    mask.row = row  # type: ignore[attr-defined]
    return mask


def answered_by(implementation: str, model: Any) -> AbstractContextManager[None]:
    """The model over `RECORD` or `REPLAY`."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(implementation, _answered)
    AttentionMaskInterface.register(RECORD, _mask)
    return attention_set_to(model, implementation)
