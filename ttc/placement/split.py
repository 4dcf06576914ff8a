"""HELM: the first layers run on the host, the others on the device, each where its weights lie. The device helps with
those of the host, by weights that cross the link meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from accelerate.hooks import AlignDevicesHook, ModelHook, add_hook_to_module
from torch import Tensor, nn

from ttc.attention.plan import Plan
from ttc.checks import check_whole
from ttc.cost_model.device_profile import BUFFERS, DeviceProfile, LinkProfile
from ttc.cost_model.idle_link import HelpedPlan, helped_selector, with_help
from ttc.cost_model.profile_file import BY_MODULES
from ttc.cost_model.read_now import read_now
from ttc.cost_model.split_search import Generation, split_plan
from ttc.errors import InvalidInput, OutOfMemory
from ttc.memory.link import Link
from ttc.memory.tiers import as_budget
from ttc.model.packed_linear import pack_linears
from ttc.model.runner_choice import compiled_decoder
from ttc.placement.base import Device, PlacedRunner, Placement, common_weights, move_own, outside, weight_bytes
from ttc.placement.compiled_host import CompiledHost, compiled_host
from ttc.placement.divided import divide
from ttc.placement.sides import host_names, partition_of, split_layers, take_apart, weights_of
from ttc.residency.base import Residency, to_bytes

HOST = torch.device("cpu")
UNKNOWN = (
    DeviceProfile(name="unknown", bandwidth=1.0, flops={1: 1.0}),
    LinkProfile(to_device_bandwidth=1.0, to_host_bandwidth=1.0),
)
"""Stands for a machine whose times play no part, where a plan's bytes alone are asked for."""


class Division(NamedTuple):
    """What a split settles. k: units on the host. streamed: the share of their large linear layers that the device
    computes."""

    k: int
    streamed: float


@dataclass
class Split(Placement):
    """The first k partition units run on the host, the others on the device (HELM). The embedding is the first unit,
    each layer is one, and the final norm and the output projection are the last. KV lies with its layer, and one tensor
    of activations crosses the link in each pass.

    k: a number, or "auto" for Algorithm 1's choice from `profile`, a file of `python -m experiments.profile`.
    streamed: the share of the host's large linear layers that the device computes, with weights that cross the link
    meanwhile; 0 for HELM's own split, in which the link is idle. "auto" for the share with which a pass is fastest by
    the profile; for none without a profile, and where the device is the host's own processor.
    prompt_tokens, output_tokens, branches: the search that is planned for, whose KV has to fit beside the weights.
    kv_offload: KV of the device's layers may lie on the host, under a memory policy that moves it; budget_gib is for
    weights alone then.
    """

    k: int | str = "auto"
    streamed: float | str = "auto"
    profile: str | None = None
    prompt_tokens: int = 512
    output_tokens: int = 512
    branches: int = 8
    kv_offload: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.k, str):
            if self.k != "auto":
                raise InvalidInput(f"placement.k={self.k!r} must be a whole number or 'auto'")
            if self.profile is None:
                raise InvalidInput(
                    "placement.k=auto needs a profile of this machine: python -m experiments.profile --out FILE, then "
                    "placement.profile=FILE; or give placement.k as a number"
                )
        else:
            check_whole("placement.k", self.k, 0)
        if self.streamed != "auto" and not (isinstance(self.streamed, int | float) and 0 <= self.streamed < 1):
            raise InvalidInput(
                f"placement.streamed={self.streamed!r} must be 'auto', or a share from 0 (nothing) to less than 1"
            )
        self._generation()

    def decide(self, model: Any, device: torch.device) -> Division:
        """How many units run on the host, and which share of their large linear layers the device computes."""
        layers, generation = split_layers(model), self._generation()
        units = partition_of(model).units
        budget, most = self.device_budget(model, device), len(layers)
        if isinstance(self.k, int) and self.k > most:
            raise InvalidInput(
                f"placement.k={self.k} leaves no layer on the device; of {len(units)} units at most {most} can be on "
                "the host. To run all of them there: model.device=cpu placement=resident"
            )
        if self._share and not any(unit.large_bytes for unit in units):
            raise InvalidInput(
                f"placement.streamed={self.streamed}: the layers of {type(model).__name__} have no large nn.Linear "
                "whose rows could be divided; use placement.streamed=0"
            )
        k = most if self.k == "auto" else int(self.k)
        device_profile, link = UNKNOWN
        plan = split_plan(k, units, device_profile, device_profile, link, generation, kv_offload=self.kv_offload)
        needed = with_help(plan, units, device_profile, device_profile, link, generation.work("decode"), self._share)
        self._require_room(needed, budget, most)
        if self.k != "auto":
            self.require_host(plan.host_bytes, f"{k} units on the host{self._with_kv()}")
        share = None if self.streamed == "auto" and device.type != "cpu" else self._share
        if self.profile is None or (self.k != "auto" and share is not None):
            return Division(k, self._share)
        return self._fastest(model, device, budget, range(most + 1) if self.k == "auto" else [k], share)

    def _fastest(
        self, model: Any, device: torch.device, budget: int | None, ks: Sequence[int], share: float | None
    ) -> Division:
        """The fastest of some splits by the profile. Without help the host's layers run compiled, where they can;
        with it, and on the device, by modules. share: None to choose it."""
        assert self.profile is not None
        profile, words, parts = read_now(self.profile), str(model.dtype).removeprefix("torch."), partition_of(model)
        modules = profile.device(f"cpu {words}{BY_MODULES}")
        compiled = profile.device(f"cpu {words}") if parts.compiled else modules

        def fastest(host: DeviceProfile, share: float | None) -> HelpedPlan:
            return helped_selector(
                parts.units, host, profile.device(f"{device.type} {words}{BY_MODULES}"), profile.link,
                sys.maxsize if budget is None else budget, self._generation(),
                "decode", self.kv_offload, self.host_budget(), ks=ks, share=share,
            )  # fmt: skip

        plans = [fastest(compiled, 0.0)] if not share else []
        plans += [fastest(modules, share)] if share != 0 else []
        plan = min(plans, key=lambda plan: plan.total_s)
        return Division(plan.split.k, plan.share)

    @property
    def _share(self) -> float:
        """The share that is given, 0 where it is left open."""
        return 0.0 if self.streamed == "auto" else float(self.streamed)

    def _require_room(self, plan: HelpedPlan, budget: int | None, most: int) -> None:
        """Raise OutOfMemory unless the device has room for a plan."""
        k, needed = plan.split.k, plan.device_bytes
        if budget is None or needed <= budget:
            return
        kv = "" if self.kv_offload else self._with_kv()
        buffers = f", {BUFFERS} buffers for placement.streamed={self.streamed}" if plan.share else ""
        raise OutOfMemory(
            f"the device has {budget:,} bytes for a placement, and placement.k={k} needs {needed:,} there: the "
            f"weights of {plan.split.units - k} units{buffers}{kv}; a placement.budget_gib of {as_budget(needed)} "
            f"would do{'' if k == most else ', or a larger placement.k'}"
            f"{', or a smaller placement.streamed' if plan.share else ''}, or fewer or shorter branches"
        )

    def _with_kv(self) -> str:
        return (
            f" and KV of {self.branches} branches of {self.output_tokens} tokens on {self.prompt_tokens} shared ones "
            "(placement.branches, output_tokens, prompt_tokens)"
        )

    def device_map(self, model: Any, device: torch.device, decided: Division) -> dict[str, str]:
        layers, k = split_layers(model), decided.k
        names = {id(layer): name for name, layer in model.named_modules()}
        rest = outside(model, layers)
        on_host = host_names(model, rest, k)
        read_there = weights_of(rest[name] for name in on_host)  # what both sides need is copied afterwards
        places = {
            name: str(HOST if name in on_host or read_there & weights_of([module]) else device)
            for name, module in rest.items()
        }
        return places | {names[id(layer)]: str(HOST if n + 1 < k else device) for n, layer in enumerate(layers)}

    def place(self, model: Any, device: Device, decided: Division | None = None) -> SplitRunner:
        device = torch.device(device)
        k, share = self.decide(model, device) if decided is None else decided
        layers = split_layers(model)
        decoder = None if share else compiled_decoder(model)
        rest, first = outside(model, layers), max(0, k - 1)
        names = host_names(model, rest, k)
        on_host = [m for layer in layers[:first] for m in layer.modules()] + [rest[name] for name in names]
        on_device = [m for layer in layers[first:] for m in layer.modules()]
        on_device += [module for name, module in rest.items() if name not in names]
        take_apart(on_device, on_host, device)
        for name, module in rest.items():
            place = HOST if name in names else device
            move_own(module, place)
            if device != HOST:  # its arguments come to it from wherever they are, as under the lens
                add_hook_to_module(module, AlignDevicesHook(place))
        crossing, runs = Crossing(Link(device), device), partition_of(model).runs
        begins = next((n for n in range(first, len(layers)) if runs[n]), first)
        for n, layer in enumerate(layers[first:], first):
            layer.to(device)
            if k:
                add_hook_to_module(layer, _Crosses(crossing, first=n == begins))
        on_device_bytes, on_host_bytes = weight_bytes(on_device), weight_bytes(on_host)
        if share:
            running = [layer for n, layer in enumerate(layers[:first]) if runs[n]]
            on_device_bytes += divide(running, share, crossing.link, device, common_weights(model, layers))
        for part in [model] if device == HOST else layers[:first]:
            pack_linears(part, leave=layers[:first] if decoder else ())
        budget = None if self.kv_offload else to_bytes(self.budget_gib)
        runner = SplitRunner(
            model, crossing, self.link_gbps, on_device_bytes, on_host_bytes, Division(k, share), budget
        )
        runner.host = compiled_host(model, layers[:first], decoder, runner.shapes, runner.watch)
        return runner

    def _generation(self) -> Generation:
        return Generation(self.prompt_tokens, self.output_tokens, self.branches)


class SplitRunner(PlacedRunner):
    """Runs `k` units on the host and the others on the device.

    budget_bytes: what the device may hold of weights and KV, None where KV has a budget of its own or none.
    fixed_layers: how many calls of attention are in the host's layers, whose KV stays there.
    host: what runs the host's layers compiled, None where their modules run.
    """

    host: CompiledHost | None = None

    def __init__(
        self,
        model: Any,
        crossing: Crossing,
        link_gbps: float | None,
        device_bytes: int,
        host_bytes: int,
        division: Division,
        budget_bytes: int | None,
    ):
        super().__init__(model, crossing.device, crossing.link, link_gbps, device_bytes, host_bytes)
        self.crossing, self.budget_bytes = crossing, budget_bytes
        self.k, self.streamed = division
        self.fixed_layers = self._attending(max(0, self.k - 1))

    def bind(self, policy: Residency) -> None:
        """Let KV lie with its layer, and cross the same link; what the weights leave of the budget is KV's."""
        super().bind(policy)
        memory = policy.memory
        memory.fix(self.fixed_layers, max(0, self.k - 1))
        if self.budget_bytes is not None and memory.device.budget_bytes is None:
            memory.device.budget_bytes = memory.device.ceiling_bytes = self.budget_bytes - self.device_bytes

    def _attending(self, layers: int) -> int:
        """How many of the model's calls of attention are in its first so many layers."""
        blocks = partition_of(self.model).units[1:-1]
        stored = sum(block.kv_elements for block in blocks[:layers])
        return sum(stored > so_far for so_far in accumulate((shape.elements for shape in self.shapes), initial=0))

    def forward(self, tokens: Sequence[int], plan: Plan, keep: Sequence[int] | None = None) -> Tensor:
        try:
            with nullcontext() if self.host is None else self.host.instead_of_modules(plan):
                return super().forward(tokens, plan, keep)
        finally:
            self.crossing.sent.clear()


class Crossing:
    """Takes a pass from the host to the device.

    The states cross before the first layer of the device, in one tensor. What else the layers are given, as the
    positions' rotations, crosses once a pass as well, whatever the number of layers that use it.
    """

    def __init__(self, link: Link, device: torch.device):
        self.link, self.device = link, device
        self.sent: dict[int, tuple[Tensor, Tensor]] = {}  # a tensor of the host, by id, and its copy on the device

    def states(self, tensor: Tensor) -> Tensor:
        """The states on the device. A pass arrives with them."""
        self.sent.clear()
        return self._sent([tensor], "activations")[0]

    def others(self, values: Any, cause: str = "positions") -> Any:
        """What a layer is given beside the states, its tensors on the device."""
        new: dict[int, Tensor] = {}
        _each(values, lambda tensor: new.setdefault(id(tensor), tensor))
        missing = [tensor for key, tensor in new.items() if key not in self.sent and not self._arrived(tensor)]
        if missing:
            for tensor, copy in zip(missing, self._sent(missing, cause), strict=True):
                self.sent[id(tensor)] = tensor, copy
        return _each(values, lambda tensor: self.sent[id(tensor)][1] if id(tensor) in self.sent else tensor)

    def _arrived(self, tensor: Tensor) -> bool:
        """Whether a tensor is on the device, where that can be told."""
        return self.device != HOST and tensor.device == self.device

    def _sent(self, tensors: Sequence[Tensor], cause: str) -> list[Tensor]:
        copies = [torch.empty_like(tensor, device=self.device) for tensor in tensors]
        self.link.wait(self.link.fetch(list(zip(copies, tensors, strict=True)), cause))
        return copies


class _Crosses(ModelHook):
    """Gives a layer of the device what it computes with there."""

    def __init__(self, crossing: Crossing, first: bool):
        self.crossing, self.first = crossing, first

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        crossing, named = self.crossing, "hidden_states" in kwargs
        states = kwargs.pop("hidden_states") if named else args[0]
        if self.first:
            states = crossing.states(states)
            for mapping in [v for v in kwargs.values() if isinstance(v, MutableMapping) and not isinstance(v, dict)]:
                mapping.update(crossing.others(dict(mapping), "activations"))  # KV that later layers use (Gemma 3n)
        others, kwargs = crossing.others((args if named else args[1:], kwargs))
        return (others, kwargs | {"hidden_states": states}) if named else ((states, *others), kwargs)


def _each(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """A value with its tensors, in tuples, lists and dictionaries too, changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _each(part, change) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return type(value)([_each(part, change) for part in value])
    return value
