"""The link: its copies overlap computing, come in order, and fail loudly."""

from __future__ import annotations

import json
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.engines import make_engine
from tests.helpers.links import failing_at
from tests.helpers.models import deep, prompt
from tests.helpers.offloading import KIB
from tests.helpers.tiers import examples
from tests.helpers.tokenizers import Letters
from ttc import Engine, Headwise, Layerwise, Paged
from ttc.memory.link import LEAST_PART_BYTES, Link, Transfer, contiguous_parts
from ttc.trace import Trace


def test_a_fetch_overlaps_computing(tmp_path: Path) -> None:
    model = deep(layers=4, heads=2, context=2048, width=64)
    engine = Engine(model, Letters(), memory=Layerwise(1536 * KIB, link_gbps=0.2))
    engine.trace = Trace()
    engine.generate([engine.root(prompt(1, 1025))], 3)
    engine.memory.link.trace.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    copies = [e for e in events if e["tid"] == "host to device"]
    passes = [e for e in events if e["tid"] == "compute"]
    assert copies and any(
        p["ts"] < c["ts"] + c["dur"] and c["ts"] < p["ts"] + p["dur"]
        for c in copies
        for p in passes
    )
    for one, following in pairwise(copies):
        assert one["ts"] + one["dur"] <= following["ts"] + 1  # one queue: microseconds of rounding
    for span in copies:
        assert span["dur"] >= span["args"]["bytes"] / 0.2e9 * 1e6 * 0.99


def test_copies_for_later_give_way_to_those_needed_now() -> None:
    link, gate = Link(torch.device("cpu"), gbps=1e-2), Future[None]()
    link.trace = Trace()
    weights, kv = torch.rand(8, LEAST_PART_BYTES // 4), torch.rand(25)
    there, near = torch.zeros_like(weights), torch.zeros(25)
    pieces = list(zip(there, weights, strict=True))
    later = link.fetch(pieces, "weights", [Transfer(future=gate)], later=True)
    now = link.fetch([(near, kv)], "kv")
    gate.set_result(None)
    link.wait(now)
    assert torch.equal(near, kv)
    link.wait(later)
    assert torch.equal(there, weights) and link.to_device_bytes == {
        "weights": weights.nbytes,
        "kv": 100,
    }
    order = [event["name"] for event in link.trace.events if event["tid"] == "host to device"]
    # behind the piece under way at most
    assert order.count("weights") == 8 and order.index("kv") <= 1


def test_a_link_that_has_work_does_not_rest() -> None:
    """However late its thread wakes up, one copy begins when the one before it ends."""
    link, gate = Link(torch.device("cpu"), gbps=1e-4), Future[None]()
    link.trace = Trace()
    source, there, first = torch.rand(20, 25), torch.zeros(20, 25), [Transfer(future=gate)]
    transfers = [
        link.fetch([pair], "kv", first) for pair in zip(there[:1], source[:1], strict=True)
    ]
    transfers += [link.fetch([pair], "kv") for pair in zip(there[1:], source[1:], strict=True)]
    gate.set_result(None)
    link.wait(transfers[-1])
    copies = [event for event in link.trace.events if event["tid"] == "host to device"]
    assert len(copies) == 20
    for one, following in pairwise(copies):
        assert following["ts"] == pytest.approx(one["ts"] + one["dur"], abs=1.0)  # microseconds
        assert following["dur"] >= 0.99


@pytest.mark.parametrize("link_gbps", [None, 1.0])
def test_a_copy_for_later_that_fails_is_raised_whatever_the_others_do(
    link_gbps: float | None,
) -> None:
    link = Link(torch.device("cpu"), link_gbps)
    parts = [
        (torch.zeros(2), torch.ones(2)),
        (torch.zeros(2), torch.ones(3)),
        (torch.zeros(2), torch.ones(2)),
    ]
    with pytest.raises(RuntimeError, match=r"must match"):
        link.wait(link.fetch(parts, "weights", later=True))


def test_pruning_does_not_wait_for_the_link() -> None:
    engine = make_engine(memory=Headwise(48 * KIB, link_gbps=1e-4))
    branch = engine.root(list(range(1, 41)))
    waited = engine.memory.link.exposed_s
    engine.release([branch])
    assert engine.memory.link.exposed_s == waited
    assert engine.kv_bytes() == 0


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
@settings(max_examples=examples(50))
def test_a_copy_falls_into_parts_that_are_contiguous_on_the_host(
    shape: list[int], data: Any
) -> None:
    ends = [data.draw(st.integers(1, n)) for n in shape]
    host = torch.zeros(shape)[tuple(slice(data.draw(st.integers(0, end - 1)), end) for end in ends)]
    device = torch.rand(host.shape)
    for side, pair in enumerate([(host, device), (torch.zeros(host.shape), host)]):
        parts = list(contiguous_parts([pair], side))
        assert all(part[side].is_contiguous() for part in parts)
        assert len(parts) == 1 or not host.is_contiguous()
        for destination, source in parts:
            destination.copy_(source)
        assert (pair[0] == device).all()


@pytest.mark.parametrize("link_gbps", [None, 1.0])
def test_a_failed_fetch_is_not_forgotten_when_the_next_one_works(link_gbps: float | None) -> None:
    engine = make_engine(memory=Paged(block_tokens=8, link_gbps=link_gbps))
    branch = engine.root([1, 2, 3, 4, 5])
    memory, (kv,) = engine.memory, engine.memory.live
    memory.evict(kv, "test")
    memory.link.to_device.copy = failing_at(1, memory.link.to_device.copy)
    for layer in (0, 1):
        memory.fetch(kv, "test", [layer])
    with pytest.raises(OSError, match="the link is down"):
        memory.wait([kv])
    engine.release([branch])
    assert engine.kv_bytes() == 0


class Moment:
    """What a CUDA event says, on a device that reaches it at `at` milliseconds."""

    def __init__(self, at: float = 0.0, **_: Any):
        self.at, self.read = at, False

    def query(self) -> bool:
        return False

    def record(self, stream: Any) -> None:
        self.at = stream.now

    def synchronize(self) -> None:
        self.read = True

    def elapsed_time(self, later: Any) -> float:
        assert later.read  # the device has come that far
        return float(later.at - self.at)


class Stream:
    def __init__(self) -> None:
        self.now = 5.0

    def wait_event(self, event: Any) -> None:
        self.now = max(self.now, event.at)


def test_the_time_that_a_gpu_waits_is_read_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = Stream()
    monkeypatch.setattr(torch.cuda, "Event", Moment)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    link = Link(torch.device("cpu"))
    for at in (25.0, 10.0, 26.5):  # 20 ms, nothing as the stream is past it, 1.5 ms
        link.wait(Transfer(event=Moment(at)))  # type: ignore[arg-type]
    assert link.exposed_s == pytest.approx(0.0215)
    assert link.exposed_s == pytest.approx(0.0215)  # read once
    arrived = Moment(99.0)
    arrived.query = lambda: True  # type: ignore[method-assign]
    link.wait(Transfer(event=arrived))  # type: ignore[arg-type]
    assert stream.now == 26.5 and link.exposed_s == pytest.approx(0.0215)
