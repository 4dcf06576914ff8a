"""Binding a residency policy to a model: CAPTURE's needs the model itself, to generate keys and values."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ttc.cost_model.capture import CaptureTimes
from ttc.errors import InvalidInput
from ttc.memory.link import Link
from ttc.memory.manager import KVMemory
from ttc.model.device_map import is_spread
from ttc.model.regeneration import TIMED_TOKENS, Regeneration, timed_line
from ttc.model.runner import ModelRunner
from ttc.residency.base import Residency
from ttc.residency.capture import Capture
from ttc.residency.resident import Resident


def bind_policy(policy: Residency, runner: ModelRunner) -> Residency:
    """A copy of `policy` that governs the KV of a runner's model."""
    if is_spread(runner.model):
        check_resident(policy)
    if not isinstance(policy, Capture):
        return policy.bind(runner.shapes, runner.dtype, runner.device)
    fixed = getattr(runner, "fixed_layers", 0)
    regeneration = Regeneration(runner.model, runner.shapes, timed=policy.act_share is None, first=fixed)
    bound = policy.bind(regeneration.shapes, runner.dtype, runner.device)
    weights = getattr(runner, "streamed_layer_bytes", 0)
    bound.use(regeneration, lambda layer: measured_times(regeneration, bound.memory, layer, weights))
    return bound


def check_resident(policy: Residency | None) -> None:
    """Raise InvalidInput for a policy that moves KV, where a model's layers lie on several devices."""
    if policy is not None and not isinstance(policy, Resident):
        raise InvalidInput(
            f"{type(policy).__name__}() moves keys and values between one device and the host. Over several devices "
            "each layer's stay beside it: memory=resident (ttc.Resident()), or a device_map of one device"
        )


def measured_times(regeneration: Regeneration, memory: KVMemory, layer: int, weight_bytes: int) -> CaptureTimes:
    """What Algorithm 1 goes by, of one layer and per token: lines through times measured on this machine.

    weight_bytes: weights of a layer that cross the link in every pass.
    """
    shape = memory.shapes[layer]
    assert regeneration.kv_gen is not None
    load_kv, load_act = (timed_line(_load(memory, each.elements)) for each in (shape, shape.as_inputs))
    load_w = weight_bytes * load_kv.slope / memory.layer_bytes_per_token[layer]
    return CaptureTimes(kv_gen=regeneration.kv_gen, load_kv=load_kv, load_act=load_act, load_w=load_w)


def _load(memory: KVMemory, elements: int) -> Callable[[int], None]:
    """Copies tokens of so many numbers to the device, and waits for them."""
    device, most = memory.link.device, max(TIMED_TOKENS)
    link = Link(device, memory.link.gbps)  # a link of its own, so that nothing of it is counted
    host = torch.zeros(most * elements, dtype=memory.dtype, pin_memory=device.type == "cuda")
    there = torch.empty_like(host, device=device)

    def copy(tokens: int) -> None:
        size = tokens * elements
        link.wait_on_host(link.fetch([(there[:size], host[:size])], "measured"))

    return copy
