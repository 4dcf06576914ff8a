"""Which runner a model gets, and why; and the policy of its KV."""

from __future__ import annotations

import warnings
from typing import Any, Literal, get_args

import torch

from ttc.checks import check_choice
from ttc.errors import InvalidInput, UnsupportedModel
from ttc.model.places import is_spread
from ttc.model.running.runner import HuggingFaceRunner, ModelRunner
from ttc.residency.base import Residency
from ttc.residency.resident import Resident

RunnerChoice = Literal["auto", "fused", "modules"]


def runner_for(
    model: Any, choice: RunnerChoice | ModelRunner = "modules", pack: bool = False
) -> ModelRunner:
    """A runner for `model`, whose attention is set to the engine's own.

    choice: "modules" for the model's own code, "fused" for compiled layers, "auto" for these where
    they serve the model and the processor has what makes them fast; or a runner, which is taken as
    it is.
    pack: pack linear layers where the model's own code runs.
    Raises UnsupportedModel when the model's attention cannot be served exactly, and for "fused"
    when the compiled layers do not serve it; InvalidInput for another choice.
    """
    if not isinstance(choice, str):
        return choice
    check_choice(choice, get_args(RunnerChoice), f"runner={choice!r} is unknown")
    reason = "it was asked for"
    if choice != "modules":
        from ttc.model.compiled.compiled_check import Differs, compiled_runner, why_not

        reason = why_not() if choice == "auto" else ""
    if not reason:
        try:
            return compiled_runner(model)
        except UnsupportedModel as error:
            if choice == "fused":
                raise
            reason = str(error)
            if isinstance(error, Differs):
                warnings.warn(
                    f"{type(model).__name__} runs by its own modules: {reason}", stacklevel=3
                )
    if pack:
        from ttc.model.packed_linear import pack_linears

        pack_linears(model)
    runner = HuggingFaceRunner(model)
    runner.reason = reason
    return runner


# ---------------------------------------------------------------- the policy of its KV


def bind_policy(policy: Residency, runner: ModelRunner) -> Residency:
    """A copy of `policy` that governs the KV of a runner's model."""
    if is_spread(runner.model):
        check_resident(policy)
    if (regenerate := getattr(runner, "regenerate", None)) is not None:  # a dry run
        policy = policy.bind(runner.shapes, runner.dtype, torch.device("meta"))
        policy.regenerate = regenerate
        return policy
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
