"""How the keys of a decoding step are cut into programs, counted for a GPU of 132 units."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.tiers import examples
from ttc.attention.pieces import Piece
from ttc.attention.plan_arrays import KeySplit, PlanArrays
from ttc.cuda import gpu_cuts
from ttc.cuda.gpu_cuts import BLOCK, MERGE, PROGRAMS, START, cut_for, time_of
from ttc.memory.storage import Storage, room_for

UNITS = 132
KV_HEADS, GROUPS = 8, 4
PROMPT = 256


def chain(tokens: int) -> list[int]:
    """The storages of a long text, one after the other."""
    lengths = list[int]()
    while left := tokens - sum(lengths):
        lengths.append(min(left, room_for(2**30, sum(lengths))))
    return lengths


def piece(start: int, length: int, first: int, end: int) -> Piece:
    return Piece(Storage(0, start, length), 0, length, slice(first, end))


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_cuts, "programs_at_once", lambda device: PROGRAMS * UNITS)


def programs(branches: int, own_tokens: int, filled: int, cut: KeySplit | None = None) -> list[int]:
    """The keys that each program of a step walks: branches on one prompt, each with a text of its
    own, and `filled` tokens since the plan was made. cut: None for that of a GPU."""
    entries = [piece(0, PROMPT, 0, branches)]
    for row in range(branches):
        start = PROMPT
        for length in chain(own_tokens):
            entries.append(piece(start, length, row, row + 1))
            start += length
    position = PROMPT + own_tokens + filled
    runs = [(row, row + 1) for row in range(branches)]
    cut = cut or cut_for(entries, runs, GROUPS, KV_HEADS, torch.device("cpu"))
    arrays = PlanArrays(entries, runs, [position] * branches, GROUPS, [filled] * branches, cut)
    keys = []
    for *_, first, end, _, own_row in arrays.tasks.tolist():
        own = filled + 1 if own_row >= 0 else 0
        keys.append(sum(count for _, _, count in arrays.pieces[first:end].tolist()) + own)
    seen = branches * (own_tokens + filled + 1) + PROMPT * -(-branches // (64 // GROUPS))
    assert sum(keys) == seen  # nothing twice, nothing left out
    return keys * KV_HEADS


@pytest.mark.parametrize("filled", [0, 100, 255])
@pytest.mark.parametrize(
    ("branches", "own_tokens"), [(1, 32_256), (1, 8192), (4, 16_384), (16, 4096), (64, 2048)]
)
def test_long_texts_are_programs_for_all_processors(
    branches: int, own_tokens: int, filled: int
) -> None:
    lengths = programs(branches, own_tokens, filled)
    assert len(lengths) >= UNITS
    assert max(lengths) <= 1.5 * sum(lengths) / len(lengths)


def test_a_short_text_and_what_was_written_since_are_one_program() -> None:
    assert sorted(set(programs(2, 256, 50, KeySplit()))) == [PROMPT, 256 + 51]


def test_segments_are_cut_into_even_parts_wherever_they_end() -> None:
    lengths = [700, 300, 24]
    starts = [0, 700, 1000]
    entries = [piece(start, length, 0, 1) for start, length in zip(starts, lengths, strict=True)]
    arrays = PlanArrays(entries, [(0, 1)], [1030], GROUPS, [6], KeySplit(256))
    parts = [arrays.pieces[first:end].tolist() for _, _, first, end, _, _ in arrays.tasks.tolist()]
    assert parts == [
        [[0, 0, 256]],
        [[0, 256, 256]],
        [[0, 512, 188], [1, 0, 68]],
        [[1, 68, 232], [2, 0, 24]],
        [],  # what was written since
    ]


@st.composite
def trees(draw: st.DrawFn, first: int = 0, end: int = 12, start: int = 0) -> list[Piece]:
    """Entries that the rows from `first` to `end` attend: those of all, then those of fewer."""
    entries = []
    for length in draw(st.lists(st.sampled_from([1, 30, 700, 2000]), max_size=2)):
        entries.append(piece(start, length, first, end))
        start += length
    if end - first > 1:
        middle = draw(st.integers(first, end - 1))
        if middle > first:
            entries += draw(trees(first, middle, start))
            entries += draw(trees(middle, end, start))
    return entries


@settings(max_examples=examples(50), deadline=None)
@given(
    trees(),
    st.sampled_from([1, 3, 8, 64]),
    st.sampled_from([KeySplit(), KeySplit(256, short_keys=32)]),
)
def test_each_row_attends_each_key_of_its_entries_once(
    entries: list[Piece], groups: int, cut: KeySplit
) -> None:
    runs = [(row, row + 1) for row in range(12)]
    arrays = PlanArrays(entries, runs, [9000] * 12, groups, [3] * 12, cut)
    attended = {
        (row, i): np.zeros(e.length, int) for i, e in enumerate(entries) for row in range(12)
    }
    own = []
    for first, end, begin, stop, _, own_row in arrays.tasks.tolist():
        assert (end - first) * groups <= max(64, groups)
        own += [own_row] * (own_row >= 0)
        for entry, skipped, count in arrays.pieces[begin:stop].tolist():
            for row in range(first, end):
                attended[row, entry][skipped : skipped + count] += 1
    assert sorted(own) == list(range(12))
    for (row, index), times in attended.items():
        rows = entries[index].rows
        assert (times == (rows.start <= row < rows.stop)).all()


def test_a_part_more_pays_only_while_units_are_idle() -> None:
    half = time_of(1024, [(2048, 1)], 1, PROGRAMS * UNITS)
    assert half == pytest.approx(START + 1024 / BLOCK + 2 * MERGE)
    full = [(2048, 1)] * 1000
    assert time_of(1024, full, 1, PROGRAMS * UNITS) > time_of(2048, full, 1, PROGRAMS * UNITS)


def test_short_segments_are_read_with_each_of_two_below_them() -> None:
    entries = [piece(0, 300, 0, 4), piece(300, 20, 0, 2), piece(300, 90, 2, 4)]
    runs = [(row, row + 1) for row in range(4)]

    def tasks(cut: KeySplit) -> list[tuple[int, int, list[int]]]:
        arrays = PlanArrays(entries, runs, [400] * 4, 2, [3] * 4, cut)
        return [
            (a, b, arrays.pieces[first:end, 0].tolist())
            for a, b, first, end, _, _ in arrays.tasks.tolist()
        ]

    plain = [(0, 4, [0]), (0, 2, [1]), (2, 4, [2]), *((row, row + 1, []) for row in range(4))]
    assert sorted(tasks(KeySplit(512))) == sorted(plain)
    folded = [(0, 4, [0]), (0, 1, [1]), (1, 2, [1]), (2, 4, [2]), (2, 3, []), (3, 4, [])]
    assert sorted(tasks(KeySplit(512, short_keys=32))) == sorted(folded)
