"""What a placement decides, and running a model whose weights do not all lie on the device."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from ttc.checks import Options, PositiveFloat
from ttc.errors import OutOfMemory
from ttc.memory.link import Link
from ttc.memory.tiers import as_budget
from ttc.model.running.runner import HuggingFaceRunner
from ttc.residency.base import Residency, free_device_bytes, to_bytes

Device = str | torch.device
BUDGETS = ("budget_gib", "host_budget_gib", "link_gbps")
"""The limits that a placement has, and `Auto`."""


@dataclass
class Placement(Options, ABC):
    """Decides where a model's weights lie and where its layers run.

    budget_gib: the most that the device may hold, in GiB: weights, buffers, and under `split` KV
        too; None for nine tenths of what is free on CUDA, and for no limit on a CPU.
    host_budget_gib: the same of the host; None for all of its memory.
    link_gbps: on a CPU, slow the link down to so many 1e9 bytes a second, for KV as well.
    """

    setting_of: ClassVar[str] = "placement."

    budget_gib: PositiveFloat | None = None
    host_budget_gib: PositiveFloat | None = None
    link_gbps: PositiveFloat | None = None

    @abstractmethod
    def decide(self, model: Any, device: torch.device) -> Any:
        """What the placement leaves open, as the number of layers that it treats in one way.

        model: may be on PyTorch's "meta" device. Raises OutOfMemory for a budget that is too small,
        and UnsupportedModel for a model that cannot be placed like this.
        """

    @abstractmethod
    def device_map(self, model: Any, device: torch.device, decided: Any) -> dict[str, str]:
        """Where the weights of each module go while they are loaded, by its name."""

    @abstractmethod
    def place(self, model: Any, device: Device, decided: Any = None) -> PlacedRunner:
        """Move the weights of a loaded model, and return what runs it on `device`.

        decided: what `decide` has said; None to ask it now. Raises what it does.
        """

    def device_budget(self, model: nn.Module, device: torch.device) -> int | None:
        """The bytes of `model` that the device may hold, those there included; None for no
        limit."""
        if self.budget_gib is not None:
            return to_bytes(self.budget_gib)
        free = free_device_bytes(device)
        tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
        there = sum(t.nbytes for t in tensors.values() if t.device == device)
        return None if free is None else free + there

    def host_budget(self) -> int:
        """The bytes that the host may hold."""
        budget = to_bytes(self.host_budget_gib)
        return (
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if budget is None else budget
        )

    def require_host(self, nbytes: int, what: str) -> None:
        """Raise OutOfMemory unless the host has room for `nbytes`."""
        budget = self.host_budget()
        if nbytes > budget:
            raise OutOfMemory(
                f"the host has {budget:,} bytes for weights, and {what} need {nbytes:,}; a "
                f"placement.host_budget_gib of {as_budget(nbytes)} would do on a machine that has "
                "them, or choose a smaller model"
            )


class PlacedRunner(HuggingFaceRunner):
    """Runs a model whose weights do not all lie on the device, by its own modules.

    link: what weights, states and KV cross. link_gbps: what the placement says of it. device_bytes,
    host_bytes: of weights, buffers for them included.
    """

    def __init__(
        self,
        model: Any,
        device: torch.device,
        link: Link,
        link_gbps: float | None,
        device_bytes: int,
        host_bytes: int,
    ):
        super().__init__(model)
        self.input_device = model.get_input_embeddings().weight.device
        self.device = device
        self.reason = "compiled layers take weights that all lie in one place"
        self.link: Link = link
        self.link_gbps = link_gbps
        self.device_bytes = device_bytes
        self.host_bytes = host_bytes
        link.to_device_bytes.clear()  # what the check at load has moved
        link.to_host_bytes.clear()

    def bind(self, policy: Residency) -> None:
        """Let the KV of a policy cross the same link."""
        policy.memory.join_link(self.link, self.link_gbps)


def common_weights(model: nn.Module, layers: Sequence[nn.Module]) -> dict[int, nn.Parameter]:
    """The weights that layers share with each other or with the rest of the model (Zamba), by
    id."""
    rest = outside(model, layers).values()
    seen = {id(weight) for module in rest for weight in module.parameters(recurse=False)}
    common: dict[int, nn.Parameter] = {}
    for layer in layers:
        its = {id(weight): weight for weight in layer.parameters()}
        common |= {key: weight for key, weight in its.items() if key in seen}
        seen |= its.keys()
    return common


def weight_bytes(modules: Iterable[nn.Module]) -> int:
    """Bytes of the weights and buffers of modules without their parts, shared ones counted once."""
    return sum({id(t): t.nbytes for module in modules for t in _tensors(module)}.values())


def move_own(module: nn.Module, device: torch.device) -> None:
    """Move the weights and buffers of a module without its parts."""
    module._apply(lambda tensor: tensor.to(device), recurse=False)


def outside(model: nn.Module, layers: Sequence[nn.Module]) -> dict[str, nn.Module]:
    """The modules outside `layers` that hold weights or buffers themselves, by name."""
    inside = {module for layer in layers for module in layer.modules()}
    return {n: m for n, m in model.named_modules() if m not in inside and _tensors(m)}


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]
