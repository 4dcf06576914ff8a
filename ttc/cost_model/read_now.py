"""A stored profile, with what is bound by memory as fast as memory is now."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ttc.cost_model.bandwidth import read_bandwidth
from ttc.cost_model.device_profile import GROUP, DeviceProfile
from ttc.cost_model.profile_file import Profile, read

PROCESSOR = "cpu "
"""What the names of a processor's profiles begin with."""
DRIFT = 1.5
"""From such a factor on the memory bandwidth of this moment takes the place of a profile's. Below,
predictions as stored were as good or better in 8 of 9 turns (`bench cost_model --stored`)."""


def read_now(path: str | os.PathLike[str]) -> Profile:
    """`read`, with the processor's profiles at the memory bandwidth of this moment where it differs
    much, which takes a third of a second.

    On a virtual machine it drifts by a factor of two. A GPU's memory is its own and is taken as
    stored.
    """
    profile, now = read(path), read_bandwidth()
    stored = [d.bandwidth for name, d in profile.devices.items() if name.startswith(PROCESSOR)]
    if all(now / DRIFT < bandwidth < now * DRIFT for bandwidth in stored):
        return profile
    return at_bandwidth(profile, now)


def at_bandwidth(profile: Profile, bandwidth: float) -> Profile:
    """The processor's profiles at another memory bandwidth, in bytes a second."""
    devices = {
        name: _at(d, bandwidth) if name.startswith(PROCESSOR) else d
        for name, d in profile.devices.items()
    }
    return replace(profile, devices=devices)


def _at(device: DeviceProfile, bandwidth: float) -> DeviceProfile:
    products = 2 / _element_bytes(device)  # operations for each byte that is read for one row
    streams: dict[str, float] = {
        "flops": products,
        "attention_flops": GROUP * products,
        "streamed_flops": GROUP * products,
    }
    rates: dict[str, Any] = {
        name: _scaled(getattr(device, name), device.bandwidth, bandwidth, per_byte)
        for name, per_byte in streams.items()
    }
    return replace(device, bandwidth=bandwidth, **rates)


def _scaled(
    rates: Mapping[int, float], before: float, now: float, per_byte: float
) -> dict[int, float]:
    """Rates by rows where memory is read at `now` instead of `before`, bytes a second: of the time
    that they stand for, the part in which memory is read changes. per_byte: operations of one row
    for each byte."""
    scaled = {}
    for rows, rate in rates.items():
        reading = min(1.0, rate / (rows * per_byte * before))
        scaled[rows] = rate / (1 - reading + reading * before / now)
    return scaled


def _element_bytes(device: DeviceProfile) -> int:
    """Of the numbers in a profile's name, as "cpu bfloat16 by modules"."""
    return 4 if device.name.split()[1] == "float32" else 2
