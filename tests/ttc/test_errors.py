"""Numbers of things, as messages say them."""

from __future__ import annotations

from ttc.errors import number_of


def test_one_is_singular() -> None:
    assert [number_of(n, "problem") for n in (0, 1, 2, 1319)] == [
        "0 problems",
        "1 problem",
        "2 problems",
        "1,319 problems",
    ]
    assert [number_of(n, "branch", "branches") for n in (1, 2)] == ["1 branch", "2 branches"]
