"""Pages: which of them leave, when, and where they are read from. (HELM)"""

from __future__ import annotations

import pytest

from tests.helpers.engines import GREEDY, make_engine
from tests.helpers.exactness import assert_same
from tests.helpers.models import deep, prompt
from tests.helpers.offloading import KIB
from tests.helpers.tokenizers import Letters
from ttc import Engine, Paged, Resident


def test_pages_leave_oldest_first_at_the_watermark() -> None:
    engine = make_engine(memory=Paged(4 * KIB, block_tokens=8, watermark=0.5), prefill_tokens=8)
    engine.root(list(range(1, 34)))  # four pages of 1 KiB
    pages = [s.storage for s in sorted(engine.tree.segments(), key=lambda s: s.start)]
    assert [None not in kv.host for kv in pages] == [True, True, False, False]
    assert all(kv.is_resident for kv in pages)  # until their room is needed
    engine.root(list(range(60, 69)))
    assert [kv.is_resident for kv in pages] == [False, True, True, True]
    assert [None not in kv.host for kv in pages] == [True, True, True, False]


def test_a_prompts_pages_that_the_device_cannot_hold_lie_on_the_host_at_once() -> None:
    """A page takes 4 KiB, of one layer 1 KiB."""
    scores = []
    for memory in (Resident(), Paged(3 * KIB, block_tokens=16)):
        engine = Engine(deep(layers=4, heads=1, context=256), Letters(), memory=memory)
        branch = engine.root(prompt(1, 65))
        scores.append(engine.score([branch], [[[5, 6]]]).result()[0][0])
    assert scores[1] == pytest.approx(scores[0], abs=1e-4)
    assert engine.memory.link.to_host_bytes["new"] == 64 * engine.memory.bytes_per_token


@pytest.mark.parametrize("watermark", [0.25, 0.5, 0.75, 1.0])
def test_what_is_above_the_watermark_is_written_and_no_more(watermark: float) -> None:
    """Two pages of 1 KiB on a device of 4 KiB, of which 1 KiB is free then for one more."""
    engine = make_engine(
        memory=Paged(4 * KIB, block_tokens=8, watermark=watermark), prefill_tokens=8
    )
    engine.root(list(range(1, 25)))
    written = [None not in kv.host for kv in engine.memory.live]
    assert (
        written
        == {
            0.25: [True, True, False],
            0.5: [True, False, False],
            0.75: [False, False, False],
            1.0: [False, False, False],
        }[watermark]
    )


def test_a_page_is_not_written_before_the_pass_that_fills_it() -> None:
    """Four pages that one pass fills; the next pass finds them filled."""
    engine = make_engine(memory=Paged(4 * KIB, block_tokens=8, watermark=0.1), prefill_tokens=32)
    root = engine.root(list(range(1, 34)))
    pages = [segment.storage for segment in root.leaf.path()]
    assert [None not in kv.host for kv in pages] == [False] * 4
    engine.generate([root], 2, sampling=GREEDY)
    assert [None not in kv.host for kv in pages] == [True] * 4


def test_the_watermark_makes_room_without_waiting() -> None:
    memory = Paged(8 * KIB, block_tokens=8, watermark=0.5, link_gbps=1e-4)  # 10 ms a page
    engine = make_engine(memory=memory, prefill_tokens=8)
    link = engine.memory.link
    root = engine.root(list(range(1, 50)))  # six pages
    assert link.to_host_bytes.total() == 2 * 1024 and link.exposed_s == 0
    assert all(kv.is_resident for kv in engine.memory.live)
    for kv in engine.memory.live:
        link.wait_on_host(kv.written)  # as if computing had taken that long
    waited = link.exposed_s
    engine.generate([root], 12, sampling=GREEDY)
    engine.root(list(range(60, 77)))  # two pages more than fit
    assert link.exposed_s == waited and link.to_host_bytes.total() > 2 * 1024
    assert sum(kv.is_resident for kv in engine.memory.live) < len(engine.memory.live)
    plain = make_engine()
    expected = plain.root(list(range(1, 50)))
    plain.generate([expected], 12, sampling=GREEDY)
    assert_same([root], [expected])


@pytest.mark.slow
def test_16k_tokens_under_a_25th_of_their_kv() -> None:
    model, tokens = deep(layers=2, heads=1, context=2**15), prompt(5, 16_385)
    plain = Engine(model, Letters(), prefill_tokens=2048)
    expected = plain.root(tokens)
    plain.generate([expected], 3, sampling=GREEDY)
    total = 16_384 * plain.memory.bytes_per_token
    plain.release([expected])
    engine = Engine(model, Letters(), prefill_tokens=2048, memory=Paged(total / 25 / 2**30))
    branch = engine.root(tokens)
    engine.generate([branch], 3, sampling=GREEDY)
    assert engine.memory.device.peak_bytes < total / 25
    assert_same([branch], [expected])
