"""What the engine gives on the device against transformers on the CPU: every architecture, and
every memory policy and placement with KV and weights that really move."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

from experiments.lab.bench import architectures
from experiments.lab.bench.gpu.machine import (
    FAILED,
    LEFT_OUT,
    RIGHT,
    WRONG,
    Machine,
    Row,
    verdict,
)
from experiments.standins import small_models
from experiments.standins.small_trees import plain_logits
from ttc import BeamGroups, Capture, Engine, Headwise, Layerwise, Paged, Split, Streamed
from ttc.placement.base import Placement
from ttc.residency.base import Residency

FEW = ("llama", "nemotron_h", "gemma3n")
"""Of a rehearsal: one that runs, one with recurrent layers, one that cannot be built."""
VERDICTS = {"exact": RIGHT, "refused": RIGHT, "wrong": WRONG, "not built": LEFT_OUT}
SMALL = 2e-5
"""GiB: a part of what the tree needs."""
POLICIES: dict[str, Callable[[], Residency]] = {
    "layerwise": lambda: Layerwise(budget_gib=2 * SMALL),
    "layerwise, private": lambda: Layerwise(budget_gib=2 * SMALL, shared=False),
    "paged": lambda: Paged(budget_gib=SMALL),
    "headwise": lambda: Headwise(budget_gib=2 * SMALL),
    "beam_groups": lambda: BeamGroups(budget_gib=2 * SMALL, prefetch=True),
    "beam_groups, no prefetch": lambda: BeamGroups(budget_gib=2 * SMALL, prefetch=False),
    "capture": lambda: Capture(budget_gib=SMALL, act_share=0.5, block_tokens=8),
}
PLACEMENTS: dict[str, Callable[[], Placement]] = {
    "split": lambda: Split(k=2),
    "streamed": Streamed,
}


def families(machine: Machine, seconds: float) -> Iterator[Row]:
    """The exactness sweep on the device. seconds: no new case begins after so many."""
    names = list(FEW) if machine.rehearsed else small_models.cases()
    start, done = time.perf_counter(), 0
    for found in architectures.sweep(names, machine.memory):
        done += 1
        row = {"case": found["case"], "verdict": VERDICTS[found["verdict"]]}
        yield row | {k: v for k, v in found.items() if k not in row}
        if time.perf_counter() - start > seconds:
            break
    if left := names[done:]:
        yield {"case": f"{len(left)} more", "verdict": LEFT_OUT, "reason": "no time was left"}


def policies(machine: Machine) -> Iterator[Row]:
    """A tree under each policy and placement, with copies over real streams from pinned memory."""
    for name, policy in POLICIES.items():
        family = "opt" if name == "capture" else "llama"
        yield _tried(name, lambda p=policy, f=family: _moved(machine, f, p()))  # type: ignore[misc]
    for name, placement in PLACEMENTS.items():
        yield _tried(name, lambda p=placement: _placed(machine, p()))  # type: ignore[misc]


def _tried(case: str, run: Callable[[], Row]) -> Row:
    try:
        return {"case": case} | run()
    except Exception as error:
        return {"case": case, "verdict": FAILED, "error": f"{type(error).__name__}: {error}"}


def _moved(machine: Machine, family: str, policy: Residency) -> Row:
    model = small_models.build(family)
    engine = Engine(
        copy.deepcopy(model).to(machine.memory),
        small_models.Characters(),
        prefill_tokens=5,
        memory=policy,
    )
    return _compared(machine, model, engine)


def _placed(machine: Machine, placement: Placement) -> Row:
    plain = small_models.build("llama")
    model = copy.deepcopy(plain)
    runner = placement.place(model, machine.memory)
    engine = Engine(model, small_models.Characters(), prefill_tokens=5, runner=runner)
    return _compared(machine, plain, engine)


def _compared(machine: Machine, plain: Any, engine: Engine) -> Row:
    branches = architectures.grow(engine)
    worst, allowed = architectures.difference(plain, branches, plain_logits)
    link = engine.memory.link
    moved = link.to_device_bytes.total() + link.to_host_bytes.total()
    copies = [copy for kv in engine.memory.live for copy in kv.host if copy is not None]
    row: Row = {
        "verdict": verdict(worst <= allowed),
        "worst_nats": worst,
        "allowed_nats": allowed,
        "moved_bytes": moved,
    }
    if not machine.rehearsed and not all(tensor.is_pinned() for c in copies for tensor in c.both):
        return row | {"verdict": FAILED, "error": "KV on the host is not in pinned memory"}
    if not moved and not _splits(engine):
        return row | {"verdict": FAILED, "error": "nothing crossed the link"}
    return row


def _splits(engine: Engine) -> bool:
    """Whether weights lie on both sides, so that only hidden states cross."""
    return len({weight.device for weight in engine.model.parameters()}) > 1
