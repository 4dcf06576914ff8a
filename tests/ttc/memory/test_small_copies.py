"""Small arrays go to a device and back. Reading what it has so far waits for nothing that was
queued later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from ttc.memory.small_copies import SoFar, upload

ON_GPU = torch.cuda.is_available()


def test_each_array_arrives_whole_and_aligned() -> None:
    arrays = [np.arange(n, dtype=np.int64).reshape(-1, 1) + 10 * n for n in (3, 0, 1, 4)]
    for array, part in zip(arrays, upload(arrays, torch.device("cpu")), strict=True):
        assert part.tolist() == array.ravel().tolist()
        assert part.data_ptr() % 16 == 0


def test_on_cuda_another_stream_waits_for_what_was_queued_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a stand-in for streams and events, as there may be no GPU."""
    events = list[str]()

    class Event:
        def record(self, stream: str) -> None:
            events.append(f"recorded on {stream}")

    class Stream:
        def __init__(self, device: torch.device):
            events.append("made")

        def wait_event(self, event: Event) -> None:
            events.append("waits")

    @contextmanager
    def stream(chosen: Stream) -> Iterator[None]:
        events.append("used")
        yield
        events.append("left")

    named: dict[str, Any] = {
        "Event": Event,
        "Stream": Stream,
        "stream": stream,
        "current_stream": lambda device: f"the stream of {device}",
    }
    for name, value in named.items():
        monkeypatch.setattr(torch.cuda, name, value)
    device = torch.device("cuda", 77)
    for _ in range(2):  # the second one takes the same stream
        so_far = SoFar(device)
        events.append("more is queued")
        with so_far:
            events.append("read")
    recorded = "recorded on the stream of cuda:77"
    once = [recorded, "more is queued", "waits", "used", "read", "left"]
    assert events == ["made", *once, *once]


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
def test_on_a_gpu_reading_does_not_wait_for_what_is_queued_later() -> None:
    numbers = torch.arange(6.0, device="cuda")
    so_far = SoFar(numbers.device)
    torch.cuda._sleep(2_000_000_000)
    later = torch.cuda.Event()
    later.record()
    with so_far:
        assert numbers.cpu().tolist() == [0, 1, 2, 3, 4, 5]
    assert not later.query()
    later.synchronize()
