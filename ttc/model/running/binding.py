"""Binding a residency policy to a model: CAPTURE's needs it to generate keys and values."""

from __future__ import annotations

from ttc.errors import InvalidInput
from ttc.model.places import is_spread
from ttc.model.running.runner import ModelRunner
from ttc.residency.base import Residency
from ttc.residency.resident import Resident


def bind_policy(policy: Residency, runner: ModelRunner) -> Residency:
    """A copy of `policy` that governs the KV of a runner's model."""
    if is_spread(runner.model):
        check_resident(policy)
    if not policy.regenerates:
        return policy.bind(runner.shapes, runner.dtype, runner.device)
    from ttc.model.running.capture_times import MeasuredTimes
    from ttc.model.running.regeneration import Regeneration
    from ttc.residency.capture import Capture

    assert isinstance(policy, Capture)
    first = getattr(runner, "fixed_layers", 0)
    regeneration = Regeneration(runner.model, runner.shapes, first=first)
    bound = policy.bind(regeneration.shapes, runner.dtype, runner.device)
    sizes = bound.block_tokens, bound.mini_batch_tokens
    times = MeasuredTimes(runner, regeneration, bound.memory, *sizes)
    bound.use(regeneration, times)
    return bound


def check_resident(policy: Residency | None) -> None:
    """Raise InvalidInput for a policy that moves KV, where layers lie on several devices."""
    if policy is not None and not isinstance(policy, Resident):
        raise InvalidInput(
            f"{type(policy).__name__}() moves keys and values between one device and the host. "
            "Over several devices each layer's stay beside it: memory=resident (ttc.Resident()), "
            "or a device_map of one device"
        )
