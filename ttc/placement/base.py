"""What a placement decides, and running a model whose weights do not all lie on the device."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ttc.checks import check_fields
from ttc.errors import InvalidInput, OutOfMemory
from ttc.memory.link import Link
from ttc.memory.tiers import as_budget
from ttc.model.runner import HuggingFaceRunner
from ttc.residency.base import Residency, free_device_bytes, to_bytes

Device = str | torch.device


@dataclass
class Placement(ABC):
    """Decides where a model's weights lie and where its layers run.

    budget_gib: the most that the device may hold of them, in GiB; None for what a CUDA device has free, and for no
    limit on a CPU. host_budget_gib: the same of the host; None for all of its memory.
    link_gbps: on a CPU, slow the link down to so many 1e9 bytes a second.
    """

    budget_gib: float | None = None
    host_budget_gib: float | None = None
    link_gbps: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, "placement.")
        for name in ("budget_gib", "host_budget_gib", "link_gbps"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidInput(f"placement.{name}={value} must be positive, or null for no limit")

    @abstractmethod
    def decide(self, model: Any, device: torch.device) -> Any:
        """What the placement leaves open, as the number of layers that it treats in one way.

        model: may be without memory, on PyTorch's "meta" device. Raises OutOfMemory for a budget that is too small, and
        UnsupportedModel for a model that cannot be placed like this.
        """

    @abstractmethod
    def device_map(self, model: Any, device: torch.device, decided: Any) -> dict[str, str]:
        """Where the weights of each module go while they are loaded, by its name, as transformers takes it."""

    @abstractmethod
    def place(self, model: Any, device: Device, decided: Any = None) -> PlacedRunner:
        """Put the weights of a loaded model where they belong, module by module, and return what runs it on `device`.

        decided: what `decide` has said; None to ask it now, before any weight is moved. Raises what it does.
        """

    def device_budget(self, model: nn.Module, device: torch.device) -> int | None:
        """The bytes of `model` that the device may hold, what is there already included; None for no limit."""
        if self.budget_gib is not None:
            return to_bytes(self.budget_gib)
        free = free_device_bytes(device)
        there = {id(t): t for t in (*model.parameters(), *model.buffers()) if t.device == device}
        return None if free is None else free + sum(t.numel() * t.element_size() for t in there.values())

    def host_budget(self) -> int:
        """The bytes that the host may hold."""
        budget = to_bytes(self.host_budget_gib)
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if budget is None else budget

    def require_host(self, nbytes: int, what: str) -> None:
        """Raise OutOfMemory unless the host has room for `nbytes`."""
        if nbytes > (budget := self.host_budget()):
            raise OutOfMemory(
                f"the host has {budget:,} bytes for weights, and {what} need {nbytes:,}; a placement.host_budget_gib "
                f"of {as_budget(nbytes)} would do on a machine that has them, or choose a smaller model"
            )


class PlacedRunner(HuggingFaceRunner):
    """Runs a model whose weights do not all lie on the device, by its own modules.

    link: what weights and states cross, and KV with them. link_gbps: what the placement says of it.
    device_bytes, host_bytes: of weights, buffers for them included.
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
        self.input_device, self.device = model.get_input_embeddings().weight.device, device
        self.reason = "compiled layers take weights that all lie in one place"
        self.link, self.link_gbps = link, link_gbps
        self.device_bytes, self.host_bytes = device_bytes, host_bytes
        link.to_device_bytes.clear()  # what the check at load has moved
        link.to_host_bytes.clear()

    def bind(self, policy: Residency) -> None:
        """Let the KV of a policy cross the same link."""
        policy.memory.join_link(self.link, self.link_gbps)


def common_weights(model: nn.Module, layers: Sequence[nn.Module]) -> dict[int, nn.Parameter]:
    """The weights that a layer has in common with another one, or with another part of the model (Zamba), by id."""
    parts = [[w for m in outside(model, layers).values() for w in m.parameters(recurse=False)]]
    parts += [list(layer.parameters()) for layer in layers]
    found, seen = dict[int, nn.Parameter](), set[int]()
    for n, part in enumerate(parts):
        its = {id(weight): weight for weight in part}
        found |= {key: weight for key, weight in its.items() if n and key in seen}
        seen |= its.keys()
    return found


def weight_bytes(modules: Iterable[nn.Module]) -> int:
    """Bytes of the weights and buffers that modules hold themselves, what they share counted once."""
    tensors = {id(t): t for m in modules for t in (*m.parameters(recurse=False), *m.buffers(recurse=False))}
    return sum(t.numel() * t.element_size() for t in tensors.values())


def move_own(module: nn.Module, device: torch.device) -> None:
    """Move the weights and buffers that a module holds itself."""
    module._apply(lambda tensor: tensor.to(device), recurse=False)


def outside(model: nn.Module, layers: Sequence[nn.Module]) -> dict[str, nn.Module]:
    """The modules beside `layers` that hold weights or buffers themselves, by name."""
    inside = {id(m) for layer in layers for m in layer.modules()}
    return {
        name: m
        for name, m in model.named_modules()
        if id(m) not in inside and any(True for _ in (*m.parameters(recurse=False), *m.buffers(recurse=False)))
    }
