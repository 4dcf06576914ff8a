"""`python -m experiments.profile`: measure this machine for the cost model, and write what was
found to a file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

from experiments.cli.command import perform
from experiments.cli.output import say, show
from experiments.cli.tables import Table
from ttc.cost_model.device_profile import DeviceProfile
from ttc.cost_model.profile_file import Profile, hardware
from ttc.errors import refuse

DTYPES = ("bfloat16", "float32", "float16")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.profile", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("profile.json"), help="default: profile.json"
    )
    parser.add_argument(
        "--dtypes", default="bfloat16,float32", help=f"with commas, of {', '.join(DTYPES)}"
    )
    parser.add_argument(
        "--link-gbps",
        type=float,
        default=16.0,
        help="without a GPU: of the simulated link; default: 16",
    )
    arguments = parser.parse_args()
    perform(lambda: measure(arguments), f"profile {' '.join(sys.argv[1:])}")


def measure(arguments: argparse.Namespace) -> None:
    """Measure, print and write. Raises InvalidInput for an unknown dtype, a link without speed or a
    file that cannot be written, before anything is measured."""
    dtypes = list(dict.fromkeys(name.strip() for name in arguments.dtypes.split(",")))
    gbps, out = arguments.link_gbps, arguments.out
    refuse(
        {
            f"--dtypes {name!r} is unknown; use names of {', '.join(DTYPES)}, with commas": True
            for name in dtypes
            if name not in DTYPES
        }
        | {
            f"--link-gbps {gbps} must be above 0, as 16 for PCIe 4.0 x8": not gbps > 0,
            f"--out {out} cannot be written; name a file in a folder that is there": (
                not out.parent.is_dir() or out.is_dir()
            ),
        }
    )

    import torch

    from experiments.runs.provenance import provenance
    from ttc.calibration.measure_device import (
        profile_attention,
        profile_device,
        profile_link,
        profile_memory,
    )
    from ttc.model.packed_linear import packs

    start = perf_counter()
    kinds = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    devices = []
    for kind in kinds:
        say(f"measuring {kind} memory")
        device = torch.device(kind)
        memory = profile_memory(device)
        for name in dtypes:
            say(f"measuring {kind} {name}")
            dtype = getattr(torch, name)
            rates = memory, profile_attention(device, dtype)
            devices += [profile_device(device, dtype, by, *rates) for by in ("auto", "modules")]
            if packs(device, dtype):
                devices.append(profile_device(device, dtype, "modules", *rates, pack=False))
    link = profile_link(torch.device(kinds[0]), gbps)
    record = provenance(
        f"python -m experiments.profile {' '.join(sys.argv[1:])}".strip(),
        model=f"random layers in {', '.join(dtypes)}",
        simulated="the link" if link.simulated else "nothing",
    )
    record |= {
        "seconds": perf_counter() - start,
        "devices": [asdict(d) for d in devices],
        "link": asdict(link),
    }
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    show(", ".join(f"{what}: {name}" for what, name in hardware().items()), end="\n\n")
    show(report(Profile({d.name: d for d in devices}, link)))
    show(f"\nwritten to {out} after {record['seconds']:.0f} s")


def report(profile: Profile) -> str:
    """Markdown: a column for each device, and the link."""
    devices = list(profile.devices.values())
    first = devices[0]
    rows: list[tuple[str, str, Callable[[DeviceProfile], float]]] = [
        ("read bandwidth, GB/s", ".1f", lambda d: d.bandwidth / 1e9),
        ("last cache, MiB", ".0f", lambda d: d.l3_bytes / 2**20),
        ("its bandwidth, GB/s", ".1f", lambda d: d.l3_bandwidth / 1e9),
        ("a block's overhead, ms", ".3f", lambda d: d.block_overhead_s * 1e3),
        ("a pass's overhead, ms", ".3f", lambda d: d.pass_overhead_s * 1e3),
        ("a branch between two passes, µs", ".0f", lambda d: d.row_s * 1e6),
        ("and 1,000 logits of it, µs", ".1f", lambda d: d.logit_s * 1e9),
        ("a step's beginning and end, ms", ".1f", lambda d: d.step_s * 1e3),
    ]
    by_rows: list[tuple[str, str, float, str]] = [
        ("a block's overhead, ms", ".3f", 1e3, "block_overheads"),
        ("1,000 numbers of a row's heads, µs", ".2f", 1e9, "head_s"),
        ("GFLOP/s of products", ".0f", 1e-9, "flops"),
        ("GFLOP/s of attention", ".0f", 1e-9, "attention_flops"),
    ]
    lines = [[what, *(f"{of(d):{form}}" for d in devices)] for what, form, of in rows]
    for what, form, scale, name in by_rows:
        for n in getattr(first, name):
            cells = (f"{getattr(d, name)[n] * scale:{form}}" for d in devices)
            lines.append([f"{what}, rows: {n}", *cells])
    link = profile.link
    note = (
        f"link{' (simulated)' if link.simulated else ''}: "
        f"{link.to_device_bandwidth / 1e9:.1f} GB/s and {link.to_device_latency_s * 1e6:.0f} µs to "
        f"the device, {link.to_host_bandwidth / 1e9:.1f} GB/s and "
        f"{link.to_host_latency_s * 1e6:.0f} µs to the host"
    )
    return Table("", ["", *(device.name for device in devices)], lines, [note]).markdown()
