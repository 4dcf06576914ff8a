"""How plans are cut for a GPU, by its model on paper."""

from __future__ import annotations

import pytest
import torch

from ttc.attention.pieces import Piece
from ttc.attention.plan_arrays import KeySplit, PlanArrays
from ttc.cuda import gpu_cuts
from ttc.cuda.gpu_cuts import BLOCK, MERGE, START, cut_for, time_of
from ttc.memory.storage import Storage

CPU = torch.device("cpu")
H100 = 2 * 132


def entry(tokens: int, first: int, end: int, start: int = 0) -> Piece:
    return Piece(Storage(0, start, tokens), 0, tokens, slice(first, end))


@pytest.fixture(autouse=True)
def on_an_h100(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_cuts, "programs_at_once", lambda device: H100)


def keys_of(entries: list[Piece], rows: int, kv_heads: int = 8) -> int:
    return cut_for(entries, [(row, row + 1) for row in range(rows)], 4, kv_heads, CPU).keys


def test_one_long_text_is_cut_for_all_units_and_many_are_not() -> None:
    alone = keys_of([entry(8192, 0, 1)], 1)
    assert 8192 // alone * 8 >= 0.9 * H100  # programs for nearly all units
    many = keys_of([entry(2048, row, row + 1) for row in range(64)], 64)
    assert many >= 4 * alone


def test_a_part_more_pays_only_while_units_are_idle() -> None:
    half = time_of(1024, [(2048, 1)], kv_heads=1, programs=H100)
    assert half == pytest.approx(START + 1024 / BLOCK + 2 * MERGE)
    full = [(2048, 1)] * 1000
    assert time_of(1024, full, 1, H100) > time_of(2048, full, 1, H100)


def test_short_segments_are_read_with_each_of_two_below_them() -> None:
    entries = [entry(300, 0, 4), entry(20, 0, 2, 300), entry(90, 2, 4, 300)]
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
