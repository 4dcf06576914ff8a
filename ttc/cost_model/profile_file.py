"""A file with the measured profile of a machine, which no other machine takes."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttc.cost_model.device_profile import BY_ROWS, DeviceProfile, LinkProfile
from ttc.errors import InvalidInput, refusing

SAME = ("cpu", "instructions", "gpu", "threads")
"""What has to be the same on the machine that a profile is used on."""
BY_MODULES = " by modules"
"""How the name of a device ends whose figures are those of models that run by their own modules."""
PLAIN = " by plain modules"
"""The same of modules whose weights are not packed, where packing them makes a difference."""


@dataclass(frozen=True)
class Profile:
    """What a file holds: the machine's devices by their names ("cpu bfloat16"), and its link."""

    devices: dict[str, DeviceProfile]
    link: LinkProfile

    def device(self, name: str) -> DeviceProfile:
        """A device by its name. Raises InvalidInput for one that was not measured."""
        if name not in self.devices:
            raise InvalidInput(
                f"the profile has no {name!r} but {', '.join(self.devices) or 'nothing'}; measure "
                "it: python -m experiments.profile --dtypes bfloat16,float32,float16"
            )
        return self.devices[name]


def hardware() -> dict[str, Any]:
    """The names of this machine's processor and accelerator, if there is one, the processor's
    instructions, and the number of threads."""
    import torch

    cpu = platform.processor()
    if Path("/proc/cpuinfo").exists():
        names = [
            line
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ]
        cpu = names[0].partition(":")[2].strip() if names else cpu
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return {
        "cpu": cpu,
        "instructions": instructions(),
        **gpu,
        "threads": torch.get_num_threads(),
    }


def instructions() -> str:
    """The vector instructions that PyTorch takes on this processor, "AVX2" or "AVX512" on x86, and
    whether it multiplies bfloat16 by itself: "AVX512 with bfloat16". Processors of one name
    differ in this."""
    import torch

    vectors = torch.backends.cpu.get_cpu_capability()
    has_bfloat16 = getattr(torch.cpu, "_is_avx512_bf16_supported", bool)
    return f"{vectors} with bfloat16" if vectors == "AVX512" and has_bfloat16() else vectors


def read(path: str | os.PathLike[str]) -> Profile:
    """A profile that `python -m experiments.profile` has written on this machine.

    Raises InvalidInput for a file that is no profile or is damaged, and for one of another machine,
    naming both.
    """
    with (
        refusing(
            OSError,
            f"{path} cannot be read ({{error}}); make a profile with python -m "
            f"experiments.profile --out {path}",
        ),
        refusing(
            (AttributeError, KeyError, TypeError, ValueError),
            f"{path} is no profile of this version ({{error}}); make one with python -m "
            "experiments.profile",
        ),
    ):
        record = json.loads(Path(path).read_text(encoding="utf-8"))
        devices = [_device(figures) for figures in record["devices"]]
        link = LinkProfile(**record["link"])
        made_on = dict(record["machine"])
    here = hardware()
    if different := [name for name in SAME if made_on.get(name) != here.get(name)]:
        both = "; ".join(
            f"{name} {made_on.get(name)!r} there and {here.get(name)!r} here" for name in different
        )
        raise InvalidInput(
            f"{path} is a profile of another machine ({both}); measure this one: python -m "
            "experiments.profile"
        )
    return Profile({device.name: device for device in devices}, link)


def _device(figures: dict[str, Any]) -> DeviceProfile:
    rates = {name: {int(rows): rate for rows, rate in figures[name].items()} for name in BY_ROWS}
    return DeviceProfile(**(figures | rates))
