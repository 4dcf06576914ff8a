"""Mamba 2 layers with a least time step: transformers applies it to runs of tokens, and not to single ones.

`generate` runs a prompt at once and what follows token by token, so it applies the least step to the prompt alone
(Nemotron-H, Zamba 2). The engine computes tokens in other portions, so it decides by the token: before a branch's first
generated one the least step is applied, however few tokens run at once, and from there on it is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ttc.model.replaced_functions import Function, called_by

UPDATE = "mamba2_selective_state_update"
"""transformers' function for single tokens."""


class LeastTimeStep:
    """A module's least time step, applied to the tokens of a pass that stand in the opening, and to no others."""

    def __init__(self, module: torch.nn.Module, limits: tuple[float, float], own: Function):
        self.module, self.limits, self.own = module, limits, own
        self.in_opening: Sequence[bool] = ()

    @classmethod
    def of(cls, module: torch.nn.Module) -> LeastTimeStep | None:
        """That of a module that has one; None for others."""
        limits, own = getattr(module, "time_step_limit", None), called_by(module, [UPDATE]).get(UPDATE)
        return cls(module, limits, own) if limits and limits[0] > 0 and own is not None else None

    @contextmanager
    def of_opening(self, in_opening: Sequence[bool]) -> Iterator[None]:
        """A call of the module, for sequences whose tokens stand in the opening or do not (see `StateBatch`)."""
        self.in_opening = in_opening
        self.module.time_step_limit = (self.limits[0] if all(in_opening) else 0.0, self.limits[1])  # type: ignore[assignment]
        try:
            yield
        finally:
            self.module.time_step_limit = self.limits  # type: ignore[assignment]

    def update(
        self,
        state: Tensor,
        hidden_states: Tensor,
        dt: Tensor,
        *others: Any,
        dt_bias: Tensor | None = None,
        dt_softplus: bool = False,
        **options: Any,
    ) -> Any:
        """In place of `UPDATE`. dt: (sequences, heads, head_dim)."""
        if dt_bias is not None:
            dt = dt + dt_bias.to(dt.dtype)
        if dt_softplus:
            dt = F.softplus(dt)
        inside = self.in_opening or [True] * len(dt)
        least = torch.tensor([self.limits[0] * here for here in inside], dtype=dt.dtype, device=dt.device)
        return self.own(state, hidden_states, torch.maximum(dt, least[:, None, None]), *others, **options)
