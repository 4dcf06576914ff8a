"""Trees, layers and shapes for passes over random KV (see `experiments.standins`)."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from experiments.standins.attention_cases import Segments
from ttc.attention.kernels import Layer
from ttc.memory.kv import LayerShape

TREE: Segments = [(100, 0, 4), (700, 4, 7), (33, 0, 2), (1, 0, 1), (16, 2, 3), (31, 3, 4)]
COUNTS = [12, 1, 70, 3, 25, 12, 150]
"""New tokens of the branches of `TREE`."""
LAYERS = [
    Layer(0, 0.3),
    Layer(0, 0.3, softcap=5.0),
    Layer(0, 0.1, window=20),
    Layer(0, 0.1, 50.0, window=110),
    Layer(0, 0.1, chunk=100),
]
SIGHTS = [
    (None, None),
    (1, None),
    (4, None),
    (64, None),
    (200, None),
    (None, 7),
    (None, 64),
    (90, 100),
]
"""(window, chunk) of a layer."""
SHAPES = [
    (LayerShape(3, 64, 64), 3),
    (LayerShape(2, 8, 8), 1),
    (LayerShape(1, 24, 40), 4),
    (LayerShape(2, 80, 16), 7),
]


@st.composite
def trees(
    draw: st.DrawFn, lengths: Sequence[int] = (1, 5, 16, 63, 64, 65, 130, 300, 600)
) -> tuple[Segments, int]:
    """Segments in depth-first order over up to 9 rows: each span of rows may be cut and have a
    segment above it."""
    rows = draw(st.integers(1, 9))

    def grow(first: int, end: int, depth: int) -> Segments:
        found: Segments = []
        for _ in range(draw(st.integers(0, 2))):
            found.append((draw(st.sampled_from(lengths)), first, end))
        if depth and end - first > 1:
            cut = draw(st.integers(first + 1, end - 1))
            found += grow(first, cut, depth - 1) + grow(cut, end, depth - 1)
        return found

    return grow(0, rows, 3), rows
