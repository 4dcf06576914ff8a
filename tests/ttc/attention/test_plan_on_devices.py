"""A plan whose layers run on several devices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from experiments.standins.pretended import pretended_devices
from ttc.attention.kernels import Layer, Partial
from ttc.attention.plan import Plan, Run
from ttc.attention.plan_arrays import PlanArrays
from ttc.memory.storage import Places, Storage


class Kernel:
    """Notes which layers it is given, and how many passes it is told of."""

    def __init__(self, device: torch.device):
        self.device, self.layers, self.advanced = device, list[int](), 0
        self.arrays = PlanArrays([], [(0, 1)], [3], 1)

    def takes(self, layer: Layer, q: Tensor) -> bool:
        return True

    def advance(self) -> None:
        self.advanced += 1


class Noted(Plan):
    kernels: list[Kernel]

    def kernel_for(self, q: Tensor) -> Any:
        self.kernels.append(Kernel(q.device))
        return self.kernels[-1]

    def attend_fused(
        self, fused: Any, layer: Layer, q: Tensor, key: Tensor, value: Tensor
    ) -> Partial:
        assert q.device == fused.device
        fused.layers.append(layer.index)
        return q, q[..., 0]


def test_each_device_has_a_kernel_of_its_own_which_stays_from_pass_to_pass() -> None:
    plan = Noted([], [3], [Run(slice(0, 1), [Places(Storage(3, 3, 4), 0, 1)])])
    plan.kernels = []
    assert plan.fused is None
    first, second = pretended_devices()
    for _ in range(2):
        for index, device in enumerate((first, second, second)):
            q = torch.zeros(1, 1, 1, 8, device=device)
            plan.attend(Layer(index, 1.0), q, q[:, 0], q[:, 0])
        plan.advance()
    assert [(str(k.device), k.layers, k.advanced) for k in plan.kernels] == [
        (first, [0, 0], 2),
        (second, [1, 2, 1, 2], 2),
    ]
    assert plan.fused is plan.kernels[0]
