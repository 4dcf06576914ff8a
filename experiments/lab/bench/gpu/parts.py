"""The parts of a first contact, and one of them in its own process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from experiments.lab.bench.gpu.machine import Machine, Row, prepare
from experiments.lab.bench.options import Model, Peer


@dataclass(frozen=True)
class Asked:
    """What the command was given. peer: the Python of an environment with vLLM."""

    rehearse: bool
    model: str
    peer: str | None


@dataclass(frozen=True)
class Part:
    """seconds: the most that its process may take. words: what is run; it appends a row of JSON for
    each case to `file` as it comes."""

    name: str
    about: str
    seconds: float
    words: Callable[[Asked, Path], list[str]]


def rows_of(name: str, machine: Machine, asked: Asked, seconds: float) -> Iterator[Row]:
    """The rows of a part."""
    from experiments.lab.bench.gpu import decoding, device, exact, kernels, link, papers, steps

    made: dict[str, Callable[[], Iterator[Row]]] = {
        "device": lambda: device.rows(machine),
        "kernels": lambda: kernels.rows(machine),
        "decoding": lambda: decoding.rows(machine),
        "policies": lambda: exact.policies(machine),
        "link": lambda: link.rows(machine),
        "steps": lambda: steps.rows(machine, asked.model, asked.peer),
        "own": lambda: steps.own(machine, asked.model, asked.peer),
        "lbs": lambda: papers.lbs(machine),
        "helm": lambda: papers.helm(machine),
        "capture": lambda: papers.capture(machine),
        "families": lambda: exact.families(machine, 0.9 * seconds),
    }
    yield from made[name]()


ABOUT = {
    "device": ("the device, its driver and a first kernel", 60),
    "kernels": ("kernels against float64 by shape", 200),
    "decoding": ("CUDA graphs on and off, replays, waits per token", 120),
    "policies": ("memory policies with real streams and pinned memory", 100),
    "link": ("bandwidth of the link, and copies beside products", 60),
    "steps": ("steps beside generate and vLLM", 180),
    "own": ("16 x 4,096 own tokens beside generate and vLLM", 240),
    "lbs": ("LBS's setting, shortened", 150),
    "helm": ("HELM's setting, shortened", 150),
    "capture": ("CAPTURE's setting, shortened", 150),
    "families": ("the exactness sweep on the device", 300),
}
"""Of each part what it is, and its limit in seconds; in the order in which they run."""


REHEARSAL_TIMES = 3
"""So many times its limit a part may take in a rehearsal."""


def words(name: str, asked: Asked, file: Path) -> list[str]:
    """The command of one part."""
    command = [sys.executable, "-m", "experiments.bench", "gpu-part", name, "--out", str(file)]
    command += ["--model", asked.model]
    command += ["--peer", asked.peer] if asked.peer else []
    return command + (["--rehearse"] if asked.rehearse else [])


def parts(rehearse: bool = False) -> list[Part]:
    """All parts. A rehearsal's may take longer: it says nothing of speed, and a busy machine without
    a GPU is slow."""
    times = REHEARSAL_TIMES if rehearse else 1
    return [
        Part(name, about, times * seconds, lambda asked, file, name=name: words(name, asked, file))  # type: ignore[misc]
        for name, (about, seconds) in ABOUT.items()
    ]


def command(
    name: str,
    /,
    *,
    out: Path,
    rehearse: bool = False,
    model: Model = "smollm2-135m",
    peer: Peer = None,
) -> None:
    """One part in this process."""
    run_part(name, Asked(rehearse, model, peer), out)


def run_part(name: str, asked: Asked, file: Path) -> None:
    """Run a part in this process, and append its rows as they come."""
    machine = prepare(asked.rehearse)
    with file.open("a", encoding="utf-8") as out:
        for row in rows_of(name, machine, asked, ABOUT[name][1]):
            out.write(json.dumps(row, default=str) + "\n")
            out.flush()
