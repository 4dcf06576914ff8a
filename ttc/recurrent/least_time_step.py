"""Mamba 2 layers with a least time step, which transformers applies to runs of tokens alone.

`generate` runs a prompt at once and what follows token by token, so it applies the least step to
the prompt alone (Nemotron-H, Zamba 2). The engine computes tokens in other portions, so it decides
by the token: the least step is applied in a branch's opening, the tokens before its first generated
one.
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


def why_one_device(model: torch.nn.Module) -> str:
    """Why a model cannot run over several devices, "" where this does not keep it from that."""
    if all(LeastTimeStep.of(module) is None for module in model.modules()):
        return ""
    return (
        f"a {type(model).__name__} has a least time step (time_step_limit), which the engine "
        "applies in its layers itself, and over several devices Accelerate's hooks keep it from "
        "that"
    )


class LeastTimeStep:
    """A module's least time step, applied to the tokens of a pass that stand in the opening."""

    def __init__(self, module: Any, limits: tuple[float, float], update: Function):
        self.module = module
        self.limits = limits
        self.single_update = update
        self.in_opening: Sequence[bool] = ()

    @classmethod
    def of(cls, module: torch.nn.Module) -> LeastTimeStep | None:
        limits: Any = getattr(module, "time_step_limit", None)
        update = called_by(module, [UPDATE]).get(UPDATE)
        if not limits or limits[0] <= 0 or update is None:
            return None
        return cls(module, limits, update)

    @contextmanager
    def of_opening(self, in_opening: Sequence[bool]) -> Iterator[None]:
        self.in_opening = in_opening
        least = self.limits[0] if all(in_opening) else 0.0
        self.module.time_step_limit = (least, self.limits[1])
        try:
            yield
        finally:
            self.module.time_step_limit = self.limits

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
        least = dt.new_tensor([self.limits[0] * here for here in inside])
        dt = torch.maximum(dt, least[:, None, None])
        return self.single_update(state, hidden_states, dt, *others, **options)
