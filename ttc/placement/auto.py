"""Choosing where weights lie and what moves keys and values, before any weight is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch

from ttc.checks import (
    Options,
    PositiveFloat,
    PositiveInt,
    check_kind,
)
from ttc.cost_model.device_profile import LinkProfile
from ttc.cost_model.options import PLACEMENTS, Machine, Option, best, options
from ttc.cost_model.policies import Steps
from ttc.cost_model.profile_file import BY_MODULES, PLAIN
from ttc.cost_model.read_now import read_now
from ttc.cost_model.unit import Unit
from ttc.errors import InvalidInput
from ttc.model.loading.device_map import Over
from ttc.model.loading.load import chosen_device, configuration
from ttc.model.loading.partition import partition
from ttc.model.runner_choice import check_resident
from ttc.placement.base import BUDGETS, Placement
from ttc.placement.split import Split
from ttc.placement.streamed import Streamed
from ttc.residency.base import Residency, free_device_bytes, machine_bytes, to_bytes
from ttc.residency.beam_groups import BeamGroups
from ttc.residency.capture import Capture
from ttc.residency.headwise import Headwise
from ttc.residency.layerwise import Layerwise
from ttc.residency.paged import Paged
from ttc.residency.resident import Resident

MEMORY: dict[str, type[Residency]] = {
    "resident": Resident,
    "beam_groups": BeamGroups,
    "paged": Paged,
    "headwise": Headwise,
    "layerwise": Layerwise,
    "capture": Capture,
}

SEARCH = Steps(prompt_tokens=512, output_tokens=512, branches=8, step_tokens=32)
"""The search that is planned for where nothing else is known."""
OF_SEARCH = ("branches", "prompt_tokens", "output_tokens", "step_tokens")


@dataclass
class Auto(Options):
    """Takes the placement and the memory policy with which a search's steps are fastest on this
    machine, as the cost model predicts them (`ttc.cost_model.options`).

    profile: a file of `python -m experiments.profile`. budget_gib: what weights and KV may take on
    the device together, in GiB; None for what a CUDA device has free, and for no limit on a CPU.
    host_budget_gib: the same on the host; None for all of its memory. link_gbps: on a CPU, slow the
    link down to so many 1e9 bytes a second.
    branches: of the search that is planned for; None, here and below, for 8 branches of 512 tokens
    in steps of 32 after a prompt of 512, or under a command for what its search asks for.
    prompt_tokens: of the prompt that they share. output_tokens: what each generates. step_tokens:
    how many at a time. problems: how many such searches are under way; None for `run.batch`, or as
    many as begin by themselves.
    """

    setting_of: ClassVar[str] = "memory."

    profile: str = "profile.json"
    budget_gib: PositiveFloat | None = None
    host_budget_gib: PositiveFloat | None = None
    link_gbps: PositiveFloat | None = None
    branches: PositiveInt | None = None
    prompt_tokens: PositiveInt | None = None
    output_tokens: PositiveInt | None = None
    step_tokens: PositiveInt | None = None
    problems: PositiveInt | None = 1

    @property
    def search(self) -> Steps:
        """The search that is planned for. A step is no longer than what is generated."""
        steps = {name: getattr(self, name) for name in OF_SEARCH}
        search = replace(SEARCH, **{n: value for n, value in steps.items() if value is not None})
        return replace(search, step_tokens=min(search.step_tokens, search.output_tokens))

    def plan(
        self,
        name: str | os.PathLike[str],
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        placement: Placement | None = None,
        **source: Any,
    ) -> Planned:
        """Every way to run the search, from the model's configuration alone, and from the sizes of
        weights that stay as they are stored.

        name, device, dtype, source: see `ttc.model.loading.load`. placement: one that is settled
        already; its class, and k of a split are kept. Raises InvalidInput for a profile
        that is not there or of another machine.
        """
        place = chosen_device(device)
        config, precision, stored = configuration(name, device=place, dtype=dtype, **source)
        parts = partition(config, precision, stored=stored)
        machine = self.machine(place, precision, parts.compiled)
        text = config.get_text_config()
        return Planned(
            units=parts.units,
            kv_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
            machine=machine,
            search=self.search,
            link_gbps=self.link_gbps,
            problems=self.problems,
            **_settled(placement),
        )

    def machine(self, device: torch.device, dtype: torch.dtype, compiled: bool) -> Machine:
        """This machine as the profile has it and as fast as it is now, with these budgets.

        compiled: whether the model's layers run compiled on a CPU.
        """
        profile = read_now(self.profile)
        words = str(dtype).removeprefix("torch.")
        here = f"{device.type} {words}"
        by = "" if compiled else BY_MODULES
        budget = to_bytes(self.budget_gib)
        best_here = profile.device(here if device.type == "cuda" else here + by)
        link = profile.link
        if device.type != "cuda":
            # unless slowed down, copies are made at once: what is read is written, too
            speed = best_here.bandwidth / 2
            if self.link_gbps is not None:
                speed = self.link_gbps * 1e9
            else:
                link = LinkProfile(to_device_bandwidth=speed, to_host_bandwidth=speed)
            link = replace(link, to_device_bandwidth=speed, to_host_bandwidth=speed)
        host = profile.device(f"cpu {words}{by}")
        return Machine(
            compiled=best_here,
            modules=profile.device(here + BY_MODULES),
            host=replace(host, pass_overhead_s=0),
            link=link,
            plain=profile.devices.get(here + PLAIN),
            device_bytes=free_device_bytes(device) if budget is None else budget,
            host_bytes=Streamed(host_budget_gib=self.host_budget_gib).host_budget(),
            kv_bytes=machine_bytes(),
        )


@dataclass(frozen=True)
class Planned:
    """A search on a machine with a model. link_gbps: of a simulated link. placements, number:
    those that may be chosen, and problems: see `ttc.cost_model.options.options`."""

    units: Sequence[Unit]
    kv_heads: int
    machine: Machine
    search: Steps
    link_gbps: PositiveFloat | None = None
    placements: Sequence[str] = PLACEMENTS
    number: int | None = None
    problems: PositiveInt | None = 1

    def options(self) -> list[Option]:
        """Every combination of a placement and a memory policy."""
        sizes = self.placements, self.number, self.problems
        return options(self.units, self.kv_heads, self.machine, self.search, *sizes)

    def best(self) -> Option:
        """The fastest of these. Raises OutOfMemory where none is possible."""
        return best(self.options())

    def parts(self, option: Option) -> tuple[Placement | None, Residency]:
        """What an engine is given to run in this way."""
        budget_gib = None
        if self.machine.device_bytes is not None:
            budget_gib = (self.machine.device_bytes - option.weight_bytes) / 2**30
        placement: Placement | None = None
        if option.placement == "split":
            assert option.number is not None
            placement = Split(
                k=option.number,
                link_gbps=self.link_gbps,
                branches=self.search.branches,
                prompt_tokens=self.search.prompt_tokens,
                output_tokens=self.search.output_tokens,
                kv_offload=option.memory != "resident",
            )
        elif option.placement == "streamed":
            layer = max(unit.param_bytes for unit in self.units if unit.is_block)
            spare = layer // 2  # weights are laid out with gaps of some bytes
            weights_gib = (option.weight_bytes + spare) / 2**30
            placement = Streamed(budget_gib=weights_gib, link_gbps=self.link_gbps)
        settings: dict[str, Any] = {"budget_gib": budget_gib}
        if option.memory != "resident" and placement is None:
            settings["link_gbps"] = self.link_gbps
        return placement, MEMORY[option.memory](**settings)

    def predicted(self, option: Option, search: Steps) -> Option:
        """Another search, with all problems that are under way, run as `option`."""
        again = replace(
            self,
            search=search,
            placements=[option.placement],
            number=option.number,
            problems=1,
        )
        return next(other for other in again.options() if other.memory == option.memory)


@dataclass(frozen=True)
class Chosen:
    """What was chosen, and what it was chosen from."""

    planned: Planned
    option: Option

    @property
    def settings(self) -> list[str]:
        """The settings of a run in which nothing is left to choose."""
        placement, memory = self.planned.parts(self.option)
        words = [f"placement={self.option.placement}"]
        if placement is not None:
            words += _settings(placement, "placement")
        return [*words, f"memory={self.option.memory}", *_settings(memory, "memory")]


def settled(
    memory: Residency | Auto | str | None,
    placement: Placement | None,
    name: str | os.PathLike[str],
    device: str | torch.device | None,
    dtype: str | torch.dtype | None,
    over: Over | None = None,
    **source: Any,
) -> tuple[Placement | None, Residency | None, Chosen | None]:
    """The placement and policy to run a model with: chosen where `memory` is "auto" or an `Auto`.

    over: a map over several devices, which leaves nothing to choose. Raises InvalidInput for what
    does not go with it.
    """
    is_placement = placement is None or isinstance(placement, Placement)
    check_kind("placement", placement, is_placement, "an object of ttc, as ttc.Split(k=12)")
    if over is not None:
        if placement is not None or isinstance(memory, Auto | str):
            name_of = f"{type(placement or memory).__name__}()"
            other = f"memory={memory}" if isinstance(memory, str) else name_of
            raise InvalidInput(
                f"{other} decides what lies on one device and what on the host, and device_map "
                "names several devices; give one of them"
            )
        check_resident(memory)
    if isinstance(memory, str):
        if memory != "auto":
            raise InvalidInput(
                f"memory={memory!r} is unknown; give 'auto', or a policy, as "
                "ttc.Paged(budget_gib=4)"
            )
        memory = Auto()
    if not isinstance(memory, Auto):
        return placement, memory, None
    planned = memory.plan(name, device=device, dtype=dtype, placement=placement, **source)
    chosen = Chosen(planned, planned.best())
    return *planned.parts(chosen.option), chosen


def _settled(placement: Placement | None) -> dict[str, Any]:
    if placement is None:
        return {}
    for name in BUDGETS:
        if (value := getattr(placement, name)) is not None:
            raise InvalidInput(
                f"placement.{name}={value} and memory=auto do not go together, as that divides one "
                f"budget between weights and KV; give memory.{name} in its place"
            )
    if not isinstance(placement, Split):
        return {"placements": ["streamed"]}
    number = None if placement.k == "auto" else int(placement.k)
    return {"placements": ["split"], "number": number}


def _settings(part: Placement | Residency, group: str) -> list[str]:
    """The settings of a placement or policy that are not as by default."""
    changed = [f for f in fields(part) if f.init and getattr(part, f.name) != f.default]
    return [f"{group}.{f.name}={str(getattr(part, f.name)).lower()}" for f in changed]
