"""Draws that are read at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import Tensor

import ttc.draws
from ttc.draws import Draws, queue_draw, read_draws
from ttc.sampling import Sampling


def draw(logits: Tensor, sampling: Sampling, states: np.ndarray, **options: Any) -> Draws:
    (draws,) = read_draws([queue_draw(logits, sampling, states, **options)])
    return draws


def by_torch(logits: Tensor, sampling: Sampling, states: np.ndarray, **options: Any) -> Draws:
    """`draw` as it is without the compiled function."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ttc.draws, "compiled_kernel", lambda: None)
        return draw(logits, sampling, states, **options)
