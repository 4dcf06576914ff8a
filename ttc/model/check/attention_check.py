"""Does the engine's attention give what a layer's own does, on the same queries, keys, values?"""

from __future__ import annotations

import inspect
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ttc.attention.hf_hook import attending, tree_attention
from ttc.attention.pieces import Piece
from ttc.attention.plan import Plan, Run
from ttc.errors import UnsupportedModel
from ttc.memory.kv import LayerKV
from ttc.memory.storage import Places, Storage
from ttc.model.check.recording import Attention, AttentionCall, eager_attention, named_attention

SPREAD = 10.0
"""Queries are enlarged until the largest score is this, so that a wrong scale shows."""


class CheckTree:
    """A prefix and two branches on it: packed rows, or two sequences of a batch."""

    def __init__(self, tokens: int):
        self.tokens = tokens
        self.prefix = tokens // 2
        self.positions = [*range(tokens), *range(self.prefix, tokens)]
        ends = [0, self.prefix, tokens, len(self.positions)]
        self.spans = [slice(start, end) for start, end in pairwise(ends)]

    def pack(self, batch: Tensor, axis: int) -> Tensor:
        """Packed rows (1, ..., rows, ...) of a batch (2, ..., tokens, ...), tokens at `axis`."""
        second = batch[1:].narrow(axis, self.prefix, self.tokens - self.prefix)
        return torch.cat([batch[:1], second], axis)

    def pack_backwards(self, batch: Tensor, axis: int) -> Tensor:
        """The packed rows in reverse, so that none follows its neighbour in the batch."""
        return self.pack(batch, axis).flip(axis)

    def plan(self, layer: int, key: Tensor, value: Tensor) -> Plan:
        """Attention in one layer, with KV like `key` and `value` (1, kv_heads, rows, dim)."""
        runs = []
        for rows in self.spans:
            storage = Storage(layer + 1, self.positions[rows.start], rows.stop - rows.start)
            copy = LayerKV(torch.empty_like(key[0, :, rows]), torch.empty_like(value[0, :, rows]))
            # a module that serves several layers takes the first of them
            storage.device = [copy] * (layer + 1)
            runs.append(Run(rows, [Places(storage, 0, storage.room)]))
        prefix = runs[0].places[0].storage
        piece = Piece(prefix, 0, self.prefix, slice(self.prefix, len(self.positions)))
        return Plan([piece], self.positions, runs)


def check_function(
    tree: CheckTree, number: int, call: AttentionCall, implementation: str, precise: bool
) -> None:
    """The engine's function against the model's own, on the model's queries, keys and values of one
    call.

    number: which call of a pass it is. implementation: the name of the model's own attention.
    precise: whether the model's numbers are of 32 bits or more.
    Raises UnsupportedModel where they differ.
    """
    dtype = torch.promote_types(call.query.dtype, torch.float32)
    query, key, value = (x.to(dtype) for x in (call.query, call.key, call.value))
    query = query * _enlargement(query, key, call.options.get("scaling"))
    result = _tree_attention(tree, number, call, query, key, value)
    functions: list[tuple[Attention, bool]] = [(eager_attention(call.module), True)]
    for function, masked in functions + named_attention(implementation):
        mask = call.mask if masked else None
        if mask is not None and mask.is_floating_point():
            mask = mask.to(dtype)
        out, _ = function(call.module, query, key, value, mask, **call.options)
        expected = tree.pack(out, 1)
        error = float((result - expected).abs().max())
        limit = 1e-3 * float(expected.abs().max()) + 1e-9
        if not error <= limit:
            raise UnsupportedModel(
                f"in layer {call.layer} the engine's attention differs from the model's own "
                f"on the same queries, keys and values, by {error:.3g} in {dtype} (limit "
                f"{limit:.3g}); the model uses something in attention that the engine does "
                f"not know{_unknown_tensors(call.options)}"
            )
    if dtype != call.query.dtype:
        expected = tree.pack(call.out, 1)
        result = _tree_attention(tree, number, call, call.query, call.key, call.value)
        what = f"layer {call.layer} differs in {call.query.dtype}"
        check_same(what, expected, result, precise, 0, 0.1)


def _tree_attention(
    tree: CheckTree, number: int, call: AttentionCall, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    query, key, value = (tree.pack(x, 2) for x in (query, key, value))
    with attending(tree.plan(number, key, value)):
        out: Tensor = tree_attention(call.module, query, key, value, None, **call.options)[0]
    return out


def _unknown_tensors(options: dict[str, Any]) -> str:
    parameters = inspect.signature(tree_attention).parameters
    names = [n for n, value in options.items() if isinstance(value, Tensor) and n not in parameters]
    return f" ({', '.join(names)})" if names else ""


def _enlargement(query: Tensor, key: Tensor, scaling: float | None) -> float:
    """What brings the largest score of the first KV head to `SPREAD`; 1 when it is larger."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    group = query.shape[1] // key.shape[1]
    scores = query[:, :group] @ key[:, :1].transpose(-1, -2)
    largest = float(scores.abs().max()) * abs(scale)
    return SPREAD / largest if 0 < largest < SPREAD else 1.0


# ---------------------------------------------------------------- equal but for rounding


def is_precise(dtype: torch.dtype) -> bool:
    return dtype in (torch.float32, torch.float64)


def deviation(
    expected: Tensor, result: Tensor, precise: bool, exact: float, rounded: float
) -> tuple[float, float]:
    """(error, limit) of a result.

    The error is the largest difference; of 16-bit models it is the mean, as expert routing may flip
    a few rows. exact, rounded: what is allowed of it, as a part of the largest or the mean number.
    """
    gap = (result - expected).float().abs()
    size = expected.float().abs()
    if precise:
        return float(gap.max()), exact * float(size.max()) + 1e-6
    return float(gap.mean()), rounded * float(size.mean()) + 1e-6


def check_same(
    what: str, expected: Tensor, result: Tensor, precise: bool, exact: float, rounded: float
) -> None:
    """Raise UnsupportedModel for a result that differs; see `deviation`."""
    error, limit = deviation(expected, result, precise, exact, rounded)
    if not error <= limit:
        raise UnsupportedModel(f"{what}, by {error:.3g} (limit {limit:.3g})")
