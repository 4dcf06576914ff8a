"""Attention whose scores have a bias by position (ALiBi, Press et al., 2022), for kernels that know
none.

What a head adds to a score may depend on the key's position alone: softmax does not see what all
keys of a query have in common. So queries and keys get more columns, whose product is the bias of
the key less that of the query: [1, -b(i), q] times [b(j), 1, k] is q k + b(j) - b(i). In 16 bits b
is the sum of three numbers. Values get columns of zeros, as many, for kernels that want keys and
values of one width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ttc.attention.hf_hook import current_plan

COLUMNS = 8
"""How many columns are added: six are needed at most, and kernels want widths that are multiples of
8."""

Bias = Callable[[int], Tensor]
"""What each head adds to the scores of the keys at so many first positions: (heads, positions)."""

_Columns = tuple[Tensor, Tensor]
_OF_PASS: WeakKeyDictionary[Any, tuple[Sequence[int] | Tensor, torch.device, _Columns]] = (
    WeakKeyDictionary()
)
"""The columns that the layers of a pass share, by its plan."""


def with_bias(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, bias: Bias
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (batch, heads, rows, dim) whose attention, with a scaling of 1, is
    that of the given ones with a scaling and a bias. Each query head gets keys and values of its
    own."""
    heads = query.shape[1]
    key, value = (x.repeat_interleave(heads // x.shape[1], 1) for x in (key, value))
    of_query, of_key = (x.expand(len(query), -1, -1, -1) for x in _columns(key, bias))
    query = torch.cat([of_query, query * scaling], -1)
    key = torch.cat([of_key, key], -1)
    return query, key, nn.functional.pad(value, (0, COLUMNS))


def _columns(key: Tensor, bias: Bias) -> _Columns:
    """What a pass's queries and keys get, (heads, rows, COLUMNS)."""
    plan = current_plan()
    positions = None if plan is None else plan.positions
    if positions is None:  # each sequence begins at 0
        return _made(bias(key.shape[2]).double(), key.dtype)
    known, device, columns = _OF_PASS.get(plan, (None, None, None))
    if columns is None or known is not positions or device != key.device:
        rows = positions if isinstance(positions, Tensor) else torch.tensor([*positions])
        columns = _made(bias(int(rows.max()) + 1)[:, rows.to(key.device)].double(), key.dtype)
        _OF_PASS[plan] = positions, key.device, columns
    return columns


def _made(bias: Tensor, dtype: torch.dtype) -> _Columns:
    of_query, of_key = (
        torch.zeros(*bias.shape, COLUMNS, dtype=dtype, device=bias.device) for _ in range(2)
    )
    for column in range(0, 6 if dtype.itemsize == 2 else 2, 2):
        part = bias.to(dtype)
        bias = bias - part.double()
        of_query[..., column] = 1
        of_query[..., column + 1] = -part
        of_key[..., column] = part
        of_key[..., column + 1] = 1
    return of_query, of_key
