"""HELM: the first layers run on the host, the others on the device, each where its weights lie."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import torch
from accelerate.hooks import AlignDevicesHook, ModelHook, add_hook_to_module
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ttc.attention.plan import Plan
from ttc.checks import NonNegativeInt, PositiveInt
from ttc.cost_model.device_profile import DeviceProfile, LinkProfile
from ttc.cost_model.profile_file import BY_MODULES
from ttc.cost_model.read_now import read_now
from ttc.cost_model.split_search import Generation, SplitPlan, split_plan, strategy_selector
from ttc.errors import InvalidInput, OutOfMemory
from ttc.memory.link import Link
from ttc.memory.tiers import as_budget
from ttc.model.compiled.compiled_check import compiled_decoder
from ttc.model.packed_linear import pack_linears
from ttc.placement.base import (
    Device,
    PlacedRunner,
    Placement,
    move_own,
    outside,
    weight_bytes,
)
from ttc.placement.compiled_host import CompiledHost, compiled_host
from ttc.placement.sides import host_names, partition_of, split_layers, take_apart, weights_of
from ttc.residency.base import Residency, to_bytes

HOST = torch.device("cpu")
UNKNOWN = (
    DeviceProfile(name="unknown", bandwidth=1.0, flops={1: 1.0}),
    LinkProfile(to_device_bandwidth=1.0, to_host_bandwidth=1.0),
)
"""Stands for any machine where a plan's bytes alone are asked for."""


@dataclass
class Split(Placement):
    """The first k partition units run on the host, the others on the device (HELM).

    The embedding is the first unit, each layer is one, the final norm and the output projection are
    the last. KV lies with its layer, and one tensor of activations crosses the link in each pass.

    k: how many units run on the host, or "auto" for Algorithm 1's choice from the profile.
    profile: a file of `python -m experiments.profile`.
    prompt_tokens: of the search whose KV has to fit next to the weights: of the prompt that its
        branches share. output_tokens: what each of them generates. branches: how many there are.
    kv_offload: KV of the device's layers may lie on the host, under a memory policy that moves it;
    budget_gib is for weights alone then.
    """

    k: NonNegativeInt | Literal["auto"] = "auto"
    profile: str | None = None
    prompt_tokens: PositiveInt = 512
    output_tokens: PositiveInt = 512
    branches: PositiveInt = 8
    kv_offload: bool = False

    def refusals(self) -> Mapping[str, object]:
        return {
            "placement.k=auto needs a profile of this machine: python -m experiments.profile "
            "--out FILE, then placement.profile=FILE; or give placement.k as a number": (
                self.k == "auto" and self.profile is None
            )
        }

    def decide(self, model: Any, device: torch.device) -> int:
        """How many units run on the host, as given or by the profile."""
        largest_k = len(split_layers(model))
        units = partition_of(model).units
        budget = self.device_budget(model, device)
        if isinstance(self.k, int) and self.k > largest_k:
            raise InvalidInput(
                f"placement.k={self.k} leaves no layer on the device; of {len(units)} units at "
                f"most {largest_k} can be on the host. To run all of them there: model.device=cpu "
                "placement=resident"
            )
        k = largest_k if self.k == "auto" else int(self.k)
        profile, link = UNKNOWN
        generation, kv_offload = self._generation(), self.kv_offload
        plan = split_plan(k, units, profile, profile, link, generation, kv_offload=kv_offload)
        self._require_room(plan, budget, largest_k)
        if self.k == "auto":
            return self._fastest(model, device, budget, largest_k).k
        self.require_host(plan.host_bytes, f"{k} units on the host{self._with_kv()}")
        return k

    def _fastest(
        self, model: Any, device: torch.device, budget: int | None, largest_k: int
    ) -> SplitPlan:
        """Algorithm 1 by the profile. The host's layers run compiled, where they can; those on the
        device by modules."""
        assert self.profile is not None
        profile = read_now(self.profile)
        words = str(model.dtype).removeprefix("torch.")
        parts = partition_of(model)
        return strategy_selector(
            parts.units,
            profile.device(f"cpu {words}{'' if parts.compiled else BY_MODULES}"),
            profile.device(f"{device.type} {words}{BY_MODULES}"),
            profile.link,
            sys.maxsize if budget is None else budget,
            self._generation(),
            kv_offload=self.kv_offload,
            host_bytes=self.host_budget(),
            largest_k=largest_k,
        )

    def _require_room(self, plan: SplitPlan, budget: int | None, largest_k: int) -> None:
        needed = plan.device_bytes
        if budget is None or needed <= budget:
            return
        what = f"the weights of {plan.units - plan.k} units"
        what += "" if self.kv_offload else self._with_kv()
        larger = "or a larger placement.k, " if plan.k < largest_k else ""
        raise OutOfMemory(
            f"the device has {budget:,} bytes for a placement, and placement.k={plan.k} needs "
            f"{needed:,} there: {what}; a placement.budget_gib of {as_budget(needed)} would do, "
            f"{larger}or fewer or shorter branches"
        )

    def _with_kv(self) -> str:
        return (
            f" and KV of {self.branches} branches of {self.output_tokens} tokens on "
            f"{self.prompt_tokens} shared ones (placement.branches, output_tokens, prompt_tokens)"
        )

    def device_map(self, model: Any, device: torch.device, decided: int) -> dict[str, str]:
        layers = split_layers(model)
        names = {module: name for name, module in model.named_modules()}
        rest = outside(model, layers)
        on_host = host_names(model, rest, decided)
        # what both sides need is read to the host, and copied afterwards
        read_there = weights_of(rest[name] for name in on_host)
        places = {}
        for name, module in rest.items():
            host = name in on_host or read_there & weights_of([module])
            places[name] = str(HOST if host else device)
        for n, layer in enumerate(layers, 1):
            places[names[layer]] = str(HOST if n < decided else device)
        return places

    def place(self, model: Any, device: Device, decided: int | None = None) -> SplitRunner:
        device = torch.device(device)
        k = self.decide(model, device) if decided is None else decided
        layers = split_layers(model)
        decoder = compiled_decoder(model)
        first = max(0, k - 1)  # the device's first layer
        rest = outside(model, layers)
        names = host_names(model, rest, k)
        on_host = [module for layer in layers[:first] for module in layer.modules()]
        on_device = [module for layer in layers[first:] for module in layer.modules()]
        for name, module in rest.items():
            (on_host if name in names else on_device).append(module)
        take_apart(on_device, on_host, device)
        _move_rest(rest, names, device)
        crossing = Crossing(Link(device), device)
        runs = partition_of(model).runs
        begins = next((n for n in range(first, len(layers)) if runs[n]), first)
        for n, layer in enumerate(layers[first:], first):
            layer.to(device)
            if k:
                add_hook_to_module(layer, _Crosses(crossing, first=n == begins))
        device_bytes = weight_bytes(on_device)
        host_bytes = weight_bytes(on_host)
        for part in [model] if device == HOST else layers[:first]:
            pack_linears(part, leave=layers[:first] if decoder else ())
        budget = None if self.kv_offload else to_bytes(self.budget_gib)
        sizes = device_bytes, host_bytes
        runner = SplitRunner(model, crossing, self.link_gbps, sizes, k, budget)
        runner.host = compiled_host(model, layers[:first], decoder, runner.shapes, runner.watch)
        return runner

    def _generation(self) -> Generation:
        return Generation(self.prompt_tokens, self.output_tokens, self.branches)


def _move_rest(rest: Mapping[str, Any], on_host: Collection[str], device: torch.device) -> None:
    for name, module in rest.items():
        place = HOST if name in on_host else device
        move_own(module, place)
        if device != HOST:  # its arguments come to it from wherever they are
            add_hook_to_module(module, AlignDevicesHook(place))


class SplitRunner(PlacedRunner):
    """Runs `k` units on the host and the others on the device.

    sizes: bytes of weights on the device and on the host. budget_bytes: what the device may hold of
    weights and KV, None where KV has a budget of its own or none. fixed_layers: how many calls of
    attention are in the host's layers, whose KV stays there. host: what runs the host's
    layers compiled, None where their modules run.
    """

    host: CompiledHost | None = None

    def __init__(
        self,
        model: Any,
        crossing: Crossing,
        link_gbps: float | None,
        sizes: tuple[int, int],
        k: int,
        budget_bytes: int | None,
    ):
        super().__init__(model, crossing.device, crossing.link, link_gbps, *sizes)
        self.crossing = crossing
        self.budget_bytes = budget_bytes
        self.k = k
        self.fixed_layers = self._attending(max(0, k - 1))

    def bind(self, policy: Residency) -> None:
        """Let KV lie with its layer; what the weights leave of the budget is KV's."""
        super().bind(policy)
        memory = policy.memory
        memory.fix(self.fixed_layers, max(0, self.k - 1))
        if self.budget_bytes is not None and memory.device.budget_bytes is None:
            left = self.budget_bytes - self.device_bytes
            memory.device.budget_bytes = left
            memory.device.ceiling_bytes = left

    def _attending(self, layers: int) -> int:
        """How many of the model's calls of attention are in its first so many layers."""
        blocks = partition_of(self.model).units[1:-1]
        stored = sum(block.kv_elements for block in blocks[:layers])
        before = accumulate((shape.elements for shape in self.shapes), initial=0)
        return sum(elements < stored for elements in before)

    def forward(
        self, tokens: Sequence[int] | Tensor, plan: Plan, keep: Sequence[int] | None = None
    ) -> Tensor:
        try:
            with nullcontext() if self.host is None else self.host.instead_of_modules(plan):
                return super().forward(tokens, plan, keep)
        finally:
            self.crossing.sent.clear()


class Crossing:
    """Takes a pass from the host to the device.

    What the first layer of the device is given crosses in one transfer: the states, and what else
    there is, as the positions' rotations. Later layers are given the same rotations, which neither
    cross nor are looked through again.
    """

    def __init__(self, link: Link, device: torch.device):
        self.link = link
        self.device = device
        self.sent: dict[int, tuple[Any, Any]] = {}  # what a pass was given, by id, and its copy

    def bring(
        self, values: Sequence[Any], states: Collection[Any] = (), there: Any = None
    ) -> list[Any]:
        """These values with their tensors on the device. states: those that are not positions.
        there: what is on the device already."""
        new = {id(v): v for v in values if id(v) not in self.sent and v is not there}
        leaves, structure = pytree.tree_flatten([*new.values()])
        self._send([leaf for leaf in leaves if isinstance(leaf, Tensor)], {*map(id, states)})
        copies = [self.sent.get(id(leaf), (leaf, leaf))[1] for leaf in leaves]
        brought = dict(zip(new, pytree.tree_unflatten(copies, structure), strict=True))
        for key, value in new.items():
            if _is_fixed(value):
                self.sent[key] = value, brought[key]
        copies_by_id = {key: copy for key, (_, copy) in self.sent.items()} | brought
        return [copies_by_id.get(id(value), value) for value in values]

    def _send(self, tensors: Sequence[Tensor], states: Collection[int]) -> None:
        copies: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for tensor in tensors:
            is_there = self.device != HOST and tensor.device == self.device
            if is_there or id(tensor) in self.sent:
                continue
            copy = torch.empty_like(tensor, device=self.device)
            self.sent[id(tensor)] = tensor, copy
            cause = "activations" if id(tensor) in states else "positions"
            copies.setdefault(cause, []).append((copy, tensor))
        if copies:
            self.link.wait(self.link.fetch_together(copies))


def _is_fixed(value: Any) -> bool:
    """Whether a value always holds the same tensors, as a tuple does and a list need not."""
    if isinstance(value, tuple):
        return all(map(_is_fixed, value))
    return value is None or isinstance(value, Tensor | bool | int | float | str)


class _Crosses(ModelHook):
    """first: whether a pass comes to the device with this layer."""

    def __init__(self, crossing: Crossing, first: bool):
        self.crossing = crossing
        self.first = first

    def pre_forward(
        self, module: nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        crossing = self.crossing
        states = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        values = [*args, *kwargs.values()]
        if self.first:
            crossing.sent.clear()
            # KV that later layers use (Gemma 3n)
            stores = [value for value in values if _is_store(value)]
            kept = [dict(store) for store in stores]
            moved = crossing.bring([*values, *kept], [states, *pytree.tree_leaves(kept)])
            for store, copies in zip(stores, moved[len(values) :], strict=True):
                store.update(copies)
        else:
            moved = crossing.bring(values, there=states)
        count = len(args)
        return tuple(moved[:count]), dict(zip(kwargs, moved[count : len(values)], strict=True))


def _is_store(value: Any) -> bool:
    return isinstance(value, MutableMapping) and not isinstance(value, dict)
