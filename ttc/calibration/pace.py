"""What the decoding of a dry run takes on a machine: HELM's roofline for each pass, with what
crosses the link beside the layer that is computed meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ttc.attention.plan import Plan
from ttc.attention.reader import Fetch
from ttc.cost_model.device_profile import DeviceProfile, LinkProfile
from ttc.cost_model.options import crossing_s, pipelined
from ttc.cost_model.policies import StreamedRead
from ttc.cost_model.roofline import roofline_time
from ttc.cost_model.unit import Pass, Unit

if TYPE_CHECKING:
    from ttc.engine import Engine

AT_ONCE = ("group", "resident")
"""Causes of what a group waits for before it decodes."""


@dataclass(frozen=True)
class Pace:
    """A machine's profile, and the units of the model that it runs."""

    units: Sequence[Unit]
    rates: DeviceProfile
    link: LinkProfile

    def pass_s(self, plan: Plan) -> float:
        """Seconds of a pass that decodes a token of each row (see `options`)."""
        work, rates = pass_of(plan), self.rates
        blocks = [unit for unit in self.units if unit.is_block]
        layers_s = roofline_time(blocks, rates, work) - rates.pass_overhead_s
        rest_s = roofline_time(self.units, rates, work) - layers_s
        rest_s += work.rows * (rates.row_s + rates.logit_s * self.units[-1].vocabulary)
        computing, loads = list[float](), list[float]()
        stream = plan.stream
        attending = iter(range(len(blocks)))  # numbers of the layers that attend
        for block in blocks:
            layer = next(attending) if block.kv_elements else None
            its = [] if stream is None else [unit for unit in stream.units if unit.layer == layer]
            if not its or stream is None:
                computing.append(layers_s / len(blocks))
                loads.append(0.0)
                continue
            read = self._read(plan, its)
            attending_s = read.piecemeal_s(block, rates, work)
            itemsize = stream.memory.dtype.itemsize
            for unit in its:
                nbytes = type(stream).elements(stream.memory, unit, stream.reads) * itemsize
                computing.append(attending_s / len(its) + rates.fetch_s)
                loads.append(crossing_s(self.link, nbytes))
            computing[-1] += layers_s / len(blocks)
        buffers = 2 if stream is not None and stream.prefetch else 1
        return pipelined(computing, loads, rest_s, buffers)

    def steps_s(self, engine: Engine, decoding_s: float) -> float:
        """What groups wait for before they decode, beside `decoding_s` of all passes."""
        moved, bandwidth = engine.memory.link.to_device_bytes, self.link.to_device_bandwidth
        ahead_s = moved["prefetch"] / bandwidth
        return sum(moved[cause] for cause in AT_ONCE) / bandwidth + max(0.0, ahead_s - decoding_s)

    @staticmethod
    def _read(plan: Plan, units: Sequence[Fetch]) -> StreamedRead:
        """What a layer reads through buffers, as the cost model says it."""
        rows = len(plan.positions)
        pieces = [plan.pieces[number] for unit in units for number in unit.pieces]
        shared = [p for p in pieces if p.rows.stop - p.rows.start > 1]
        own = [p for p in pieces if p.rows.stop - p.rows.start == 1]
        return StreamedRead(
            load_bytes=0,
            shared_tokens=sum(p.length * (p.rows.stop - p.rows.start) for p in shared) / rows,
            own_tokens=sum(p.length for p in own) / rows,
            shared_pieces=len(shared),
            own_pieces=len(own) / rows,
            fetches=len(units),
        )


def pass_of(plan: Plan) -> Pass:
    """The rows of a decode pass and what they attend, on average."""
    rows = len(plan.positions)
    alike = [(p.length, p.rows.stop - p.rows.start) for p in plan.pieces]
    own = sum(length for length, count in alike if count == 1) + plan.passes * rows
    there_once = sum(length for length, count in alike if count > 1)
    shared = sum(length * count for length, count in alike if count > 1) / rows
    return Pass(
        rows,
        own_tokens=round(own / rows),
        shared_tokens=round(shared),
        prefixes=max(1, round(there_once / shared)) if shared else 1,
    )
